"""Every example in a docstring of the package gives what stands beneath it."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
FOLDERS: Final = {"hwcalc.": "hwcalc", "hwcalc.formulas.": "formulas", "hwcalc.profiles.": "profiles"}


def _examples() -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder()
    names = [
        found.name
        for prefix, folder in FOLDERS.items()
        for found in pkgutil.walk_packages([str(ROOT / folder)], prefix)
        if not found.name.endswith("__main__")
    ]
    return [test for name in sorted(names) for test in finder.find(import_module(name)) if test.examples]


@pytest.mark.parametrize("test", _examples(), ids=lambda test: test.name)
def test_a_docstrings_examples(test: doctest.DocTest) -> None:
    """Each gives the output that it shows."""
    result = doctest.DocTestRunner().run(test)

    assert result.attempted > 0
    assert result.failed == 0
