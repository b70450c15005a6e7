"""The rows of the class tables: each is read alone, and is what a reader of the whole document finds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hwcalc
from hwcalc.parsers.config import (
    class_defaults,
    defaults_table,
    tower_defaults,
)

PARSERS = Path(hwcalc.__file__).with_name("parsers")
CLASSES = json.loads((PARSERS / "class_defaults.json").read_text(encoding="utf-8"))
TOWERS = json.loads((PARSERS / "tower_defaults.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("read", "rows"), [(class_defaults, CLASSES["model_types"]), (tower_defaults, TOWERS["model_types"])])
def test_a_row_is_what_the_document_says(read: object, rows: dict[str, dict[str, object]]) -> None:
    """Every one of them."""
    assert callable(read)
    for model_type, row in rows.items():
        found = read(model_type)

        assert (found.aliases, found.defaults, found.nested) == tuple(
            row.get(key, {}) for key in ("aliases", "defaults", "nested")
        )


def test_what_stands_before_the_rows() -> None:
    """The version, the classes, and the parts."""
    assert (defaults_table("version"), defaults_table("architectures")) == (CLASSES["version"], CLASSES["architectures"])
    assert (TOWERS["version"], defaults_table("parts")) == (CLASSES["version"], TOWERS["parts"])


@pytest.mark.parametrize("model_type", [None, "", "no such type", "version", 'bert"', '": ', "\n", "\ud800", "bert\\"])
def test_a_type_without_a_row(model_type: str | None) -> None:
    """Whatever stands in it."""
    assert class_defaults(model_type) is None
    assert tower_defaults(model_type) is None
