"""The benchmark of start-up measures what the README shows."""

from __future__ import annotations

import shlex

from benchmarks.startup import COMMANDS as MEASURED
from hwcalc.cli.options import COMMANDS
from scripts.examples import ROOT, examples


def test_every_example_of_the_readme_is_measured() -> None:
    """The commands whose output the README shows."""
    shown = {example.command.removeprefix("kvplan ") for example in examples(ROOT / "README.md")}

    assert shown
    assert shown <= {line for line, _ in MEASURED}


def test_every_command_is_measured() -> None:
    """But for those that allocate on a device or draw with another package."""
    first = {shlex.split(line)[0] for line, _ in MEASURED}

    assert set(COMMANDS) - first == {"plan", "plot", "probe"} - first
