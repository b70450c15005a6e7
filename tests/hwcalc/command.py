"""How the tests run the command: in this process, or in a new interpreter."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from typing import Any

import pytest

from hwcalc.cli import main
from hwcalc.cli.options import given_options
from hwcalc.cli.commands import read
from tests.paths import ROOT as REPOSITORY

__all__ = ["QWEN", "REPOSITORY", "Capture", "python", "read_plan", "run"]

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
