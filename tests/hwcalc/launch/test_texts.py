"""Every kind of text is read: commands, scripts and manifests of our own making, with what each starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from hwcalc import read_launch

ROWS: Final[list[tuple[str, dict[str, Any]]]] = [
    (f"{path.stem}-{number}", row)
    for path in sorted(Path(__file__).parent.glob("texts/*.yaml"))
    for number, row in enumerate(yaml.safe_load(path.read_text(encoding="utf-8")))
]


@pytest.mark.parametrize("row", [row for _, row in ROWS], ids=[name for name, _ in ROWS])
def test_a_text(row: dict[str, Any]) -> None:
    """As many servers as it starts, and every value of each."""
    read = [server.to_dict() for server in read_launch(row["text"], row.get("env"))]
    said = [
        {key: value for key, value in server.items() if value not in (None, {}, []) and key not in ("unresolved", "irrelevant")}
        for server in read
    ]

    assert row["expected"] == said


def test_there_are_texts_of_every_kind() -> None:
    """At least 150."""
    assert len(ROWS) >= 150
