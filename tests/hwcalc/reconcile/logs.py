"""The logs of the corpus, and the rows of a reconciliation."""

from __future__ import annotations

from typing import Final

from hwcalc.reconcile import Reconciliation
from hwcalc.reconcile.facts import Row
from tests.paths import TESTS

LOGS: Final = TESTS / "logs"
LLAMA: Final = "meta-llama/Llama-3.1-8B"
GIB: Final = 2**30


def figures(found: Reconciliation) -> dict[str, Row]:
    """The rows by name."""
    return {row.name: row for row in found.rows}
