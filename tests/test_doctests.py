"""Every example in a docstring of the package gives what stands beneath it."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest

from tests.paths import sources


def _examples() -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder()
    names = sorted(name for name in sources() if not name.endswith("__main__"))
    return [test for name in names for test in finder.find(import_module(name)) if test.examples]


@pytest.mark.parametrize("test", _examples(), ids=lambda test: test.name)
def test_a_docstrings_examples(test: doctest.DocTest) -> None:
    """Each gives the output that it shows."""
    result = doctest.DocTestRunner().run(test)

    assert result.attempted > 0
    assert result.failed == 0
