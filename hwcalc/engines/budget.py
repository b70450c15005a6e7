"""The memory equation's terms, and what they leave for the cache."""

from __future__ import annotations

import enum
from math import ceil
from typing import TYPE_CHECKING

from hwcalc.formulas.frozen import frozen
from hwcalc.model import Definition

if TYPE_CHECKING:
    from fractions import Fraction

    from hwcalc.profiles.gpus import VisibleMemory

__all__ = ["Budget", "BudgetPart", "Section"]


class Section(enum.StrEnum):
    """Which line of the whole equation a part belongs to."""

    WEIGHTS = "weights"
    ACTIVATIONS = "activations"
    OVERHEAD = "overhead"


@frozen
class BudgetPart:
    """One term of the memory equation, in bytes per GPU: low, expected, high, and where it comes from.

    ``definition`` is ``exact``, ``estimate`` or ``measured``.
    """

    name: str
    section: Section
    low: int
    expected: int
    high: int
    source: str
    definition: Definition = Definition.ESTIMATE


@frozen
class Budget:
    """What is left for the cache on the GPU that has least: the bytes that may be used minus the parts.

    ``total_bytes`` is what programs see of the GPU, ``requested_bytes`` what of it may be used, ``margin_bytes`` what is left alone on
    purpose. ``low`` takes every part at its high end.
    """

    total_bytes: int
    requested_bytes: int
    margin_bytes: int
    parts: tuple[BudgetPart, ...]
    low: int
    expected: int
    high: int

    @classmethod
    def of(cls, memory: VisibleMemory, share: float, margin: Fraction, parts: tuple[BudgetPart, ...]) -> Budget:
        """The difference, at both ends and in between. ``share`` and ``margin`` are of the memory that programs see."""
        sizes = (memory.low_bytes, memory.expected_bytes, memory.high_bytes)
        # In floating point, as engines reckon their share; the margin is exact, and may be more than that share.
        low, expected, high = (max(0, ceil(size * share) - ceil(size * margin)) for size in sizes)
        return cls(
            total_bytes=memory.expected_bytes,
            requested_bytes=expected,
            margin_bytes=ceil(memory.expected_bytes * margin),
            parts=parts,
            low=low - sum(part.high for part in parts),
            expected=expected - sum(part.expected for part in parts),
            high=high - sum(part.low for part in parts),
        )
