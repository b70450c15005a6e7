"""How the tests run the command: in this process, or in a new interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from hwcalc.cli import main
from tests.paths import ROOT as REPOSITORY

__all__ = ["QWEN", "REPOSITORY", "Capture", "python", "run"]

QWEN = "Qwen/Qwen3-8B"
Capture = pytest.CaptureFixture[str]


def run(capsys: Capture, *words: str) -> tuple[int, str, str]:
    """Exit status, standard output, standard error of one command line."""
    status = main(list(words))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def python(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """A new interpreter in the repository, without the colours and settings of the caller."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("KVPLAN", "NO_COLOR", "COV_"))}
    more.setdefault("env", environment | {"PYTHONPATH": str(REPOSITORY), "PYTHONUTF8": "1"})
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, encoding="utf-8", cwd=REPOSITORY, check=False, **more
    )
