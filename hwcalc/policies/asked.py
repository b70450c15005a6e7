"""A cache policy as a plan is asked for it."""

from __future__ import annotations

from typing import Final

from hwcalc.formulas.record import Record
from hwcalc.policies.base import KVPRESS, Chosen

__all__ = ["COMPACTIONS", "FILL", "NO_COMPACTION", "REPACK", "AskedPolicy"]

REPACK: Final = "repack"
"""Survivors move together in their order."""
FILL: Final = "fill"
"""Survivors of the last blocks move into the holes of the first ones."""
NO_COMPACTION: Final = "none"
"""Nothing moves: a block goes when nothing in it is left."""
COMPACTIONS: Final = (REPACK, FILL, NO_COMPACTION)


class AskedPolicy(Record):
    """A policy with the rules that it follows, and what becomes of the blocks of a paged cache."""

    chosen: Chosen
    rules: str = KVPRESS
    compaction: str = REPACK
