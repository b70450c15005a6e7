"""How the tests run the command: in this process, or in a new interpreter."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from hwcalc.cli import main
from hwcalc.cli.commands import root
from hwcalc.cli.options import given_options
from hwcalc.cli.run import is_typers
from hwcalc.errors import UsageError
from tests.paths import ROOT as REPOSITORY

__all__ = ["QWEN", "REPOSITORY", "Capture", "python", "read", "read_plan", "run"]

QWEN = "Qwen/Qwen3-8B"
Capture = pytest.CaptureFixture[str]


def run(capsys: Capture, *words: str) -> tuple[int, str, str]:
    """Exit status, standard output, standard error of one command line."""
    status = main(list(words))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def read_plan(command: str) -> tuple[str, dict[str, Any]]:
    """The model of a ``kvplan plan`` line and its options, as the command itself reads them."""
    words = shlex.split(command)
    assert words[0] == "kvplan"
    line = read(words[1:])
    assert line is not None, command
    name, values = line
    assert name == "plan"
    return values["model"], given_options("plan", values)


def python(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """A new interpreter in the repository, without the colours and settings of the caller."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("KVPLAN", "NO_COLOR", "COV_"))}
    more.setdefault("env", environment | {"PYTHONPATH": str(REPOSITORY), "PYTHONUTF8": "1"})
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, encoding="utf-8", cwd=REPOSITORY, check=False, **more
    )


def read(words: Sequence[str]) -> tuple[str, dict[str, Any]] | None:
    """The command of a line and the values of the options that it has, as Typer reads them; ``None`` for help, completion and wrong lines."""
    top = root()
    try:
        with top.make_context("kvplan", list(words)) as context:
            rest = [*context._protected_args, *context.args]
            if not rest:
                return None
            name, command, others = top.resolve_command(context, rest)
            with command.make_context(name, others, parent=context) as inner:
                values = dict(inner.params)
                for option in inner.command.params:
                    if option.multiple or option.nargs == -1:
                        values[option.name] = list(values[option.name] or ())
                return str(name), values
    except Exception as error:
        if isinstance(error, UsageError) or is_typers(error, "ClickException") or is_typers(error, "Exit"):
            return None
        raise
