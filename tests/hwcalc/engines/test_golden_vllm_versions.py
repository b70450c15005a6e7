"""What 22 older releases of vLLM computed with their own planners (``tests/golden/vllm_versions.json``) is planned to the block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest

from hwcalc.errors import KvplanError
from tests.hwcalc.engines.vllm_rows import differences, older_rows

LEAST_EXACT: Final = 0.97

_NO_DCP: Final = "that release has no decode context parallelism: its run dropped the option, kvplan refuses it"
KNOWN_MISSES: Final[Mapping[tuple[str, str], str]] = {
    ("0.8.5", "llama31-8b_tp16_dcp2"): _NO_DCP,
    ("0.9.2", "llama31-8b_tp16_dcp2"): _NO_DCP,
}
"""Rows that are not planned exactly, by version and name, each with its reason. One that begins to pass must leave this table."""


@pytest.mark.parametrize(("version", "name"), older_rows(), ids=map("-".join, older_rows()))
def test_row_is_planned_to_the_block(version: str, name: str) -> None:
    """Every figure of the row, or a known reason."""
    try:
        found = differences(older_rows()[version, name])
    except KvplanError as error:
        found = [f"{type(error).__name__}: {error.message}"]
    reason = KNOWN_MISSES.get((version, name))
    if reason is not None:
        assert found, f"{version} {name} is exact now: take it out of KNOWN_MISSES"
        pytest.xfail(reason)
    assert not found, "\n".join(found)


def test_few_rows_are_missed() -> None:
    """At least 97 % of all rows are exact, and every miss is a row of the file."""
    assert len(older_rows()) == 544
    assert set(KNOWN_MISSES) <= set(older_rows())
    assert len(KNOWN_MISSES) <= (1 - LEAST_EXACT) * len(older_rows())


@pytest.mark.parametrize("version", sorted({version for version, _ in older_rows()}))
def test_few_rows_of_one_release_are_missed(version: str) -> None:
    """At least 97 % of its rows are exact, or the only misses are rows that this release cannot run as asked."""
    rows = [row for row in older_rows() if row[0] == version]
    missed = [KNOWN_MISSES[row] for row in rows if row in KNOWN_MISSES]
    assert len(missed) <= (1 - LEAST_EXACT) * len(rows) or set(missed) == {_NO_DCP}
