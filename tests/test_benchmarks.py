"""The benchmark of start-up measures what the README shows."""

from __future__ import annotations

import re
import shlex

from benchmarks.startup import COMMANDS as MEASURED
from hwcalc.cli.options import COMMANDS
from scripts.examples import ROOT


def test_the_first_command_of_the_readme_is_measured() -> None:
    """What stands behind the installation."""
    [first] = re.findall(r"^pip install \. && kvplan (.*)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)

    assert first in {line for line, _ in MEASURED}


def test_every_command_is_measured() -> None:
    """But for those that allocate on a device or draw with another package."""
    first = {shlex.split(line)[0] for line, _ in MEASURED}

    assert set(COMMANDS) - first == {"plan", "plot", "probe"} - first
