"""The command line: parse arguments, call one function, print what it returns."""

from __future__ import annotations

from hwcalc.cli.run import main

__all__ = ["main"]
