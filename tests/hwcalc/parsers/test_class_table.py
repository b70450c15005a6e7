"""The rows of the class tables: each is read alone, and is what a reader of the whole document finds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hwcalc
from hwcalc.parsers.config import class_defaults, defaults_table

PARSERS = Path(hwcalc.__file__).with_name("parsers")
CLASSES = json.loads((PARSERS / "class_defaults.json").read_text(encoding="utf-8"))
TOWERS = json.loads((PARSERS / "tower_defaults.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("tower", "rows"), [(False, CLASSES["model_types"]), (True, TOWERS["model_types"])])
def test_a_row_is_what_the_document_says(tower: bool, rows: dict[str, dict[str, object]]) -> None:
    """Every one of them."""
    for model_type, row in rows.items():
        found = class_defaults(model_type, tower=tower)

        assert found is not None
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
    assert class_defaults(model_type, tower=True) is None
