"""``formulas`` loads its names on first use; the lists of them agree."""

from __future__ import annotations

import ast
from pathlib import Path

from hwcalc import formulas


def test_every_name_is_there() -> None:
    """What is exported can be had, from the module that is said to hold it."""
    assert set(formulas._HOMES) == set(formulas.__all__)
    for name in formulas.__all__:
        assert getattr(formulas, name) is not None


def test_type_checkers_see_the_same_names() -> None:
    """The block for type checkers imports each name from the same module."""
    (block,) = (
        node for node in ast.parse(Path(str(formulas.__file__)).read_text(encoding="utf-8")).body if isinstance(node, ast.If)
    )
    seen = {
        alias.name: (statement.module or "").removeprefix("hwcalc.formulas.")
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }

    assert seen == formulas._HOMES
