"""The schemas that are kept in a file are those of the classes."""

from __future__ import annotations

from pathlib import Path

from hwcalc.report.schema import DOCUMENTS, PATH, json_schema
from hwcalc.report.schema_built import built_schema
from scripts.build_schemas import lines


def test_the_file_has_every_schema_as_it_is_built() -> None:
    """After a change of a document's class: ``python scripts/build_schemas.py``."""
    assert Path(PATH).read_text(encoding="utf-8").splitlines() == lines()


def test_a_schema_is_read_by_the_name_of_its_document() -> None:
    """Also where one name begins with another, as ``check`` and ``check-file``."""
    for document in DOCUMENTS:
        assert json_schema(document) == built_schema(document)
