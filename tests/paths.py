"""Where the repository's files lie."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
TESTS: Final = ROOT / "tests"
GOLDEN: Final = TESTS / "golden"

INSIDE: Final = {"hwcalc": "hwcalc", "hwcalc.formulas": "formulas", "hwcalc.profiles": "profiles"}
"""Packages, and the folders of a checkout that hold them."""


def sources() -> dict[str, Path]:
    """The file of every module of the package, by the module's name."""
    found = {}
    for package, folder in INSIDE.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            inner = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join((package, *inner)).removesuffix(".__init__")] = path
    return found
