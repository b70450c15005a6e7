"""The terms of the memory equation, and the bytes that they leave for the cache."""

from __future__ import annotations

import enum
from math import ceil
from typing import TYPE_CHECKING

from hwcalc.engines.steps import Step
from hwcalc.formulas.record import Record
from hwcalc.model import Definition

if TYPE_CHECKING:
    from fractions import Fraction

    from hwcalc.engines.amounts import Amount
    from hwcalc.profiles.gpus import VisibleMemory

__all__ = ["Budget", "BudgetPart", "Section", "part_of", "usable_bytes"]


class Section(enum.StrEnum):
    """The line of the memory equation that a part belongs to."""

    WEIGHTS = "weights"
    ACTIVATIONS = "activations"
    OVERHEAD = "overhead"


class BudgetPart(Record):
    """One term of the memory equation: low, expected and high in bytes per GPU, and the source.

    ``definition`` is ``exact``, ``estimate`` or ``measured``. ``steps`` say how the bytes come about; without any they are the source's own
    figure. ``grows`` are low, expected and high as rules, where they depend on length or batch.
    """

    name: str
    section: Section
    low: int
    expected: int
    high: int
    source: str
    definition: Definition = Definition.ESTIMATE
    steps: tuple[Step, ...] = ()
    grows: tuple[Amount, Amount, Amount] | None = None


class Budget(Record):
    """The bytes left for the cache on the GPU that has least left: the bytes that may be used, minus the parts.

    ``total_bytes`` is the memory that programs see, ``requested_bytes`` the share that the engine may use (``usable`` has it for both ends
    of that memory too) and ``margin_bytes`` the share that stays free on purpose. ``low`` assumes the high end of every part, and ``high`` the low end. ``utilization`` is the share
    that the engine asks for.
    """

    total_bytes: int
    total_low_bytes: int
    total_high_bytes: int
    utilization: float
    requested_bytes: int
    usable: tuple[int, int, int]
    margin_bytes: int
    parts: tuple[BudgetPart, ...]
    low: int
    expected: int
    high: int

    @classmethod
    def of(cls, memory: VisibleMemory, share: float, margin: Fraction | int, parts: tuple[BudgetPart, ...]) -> Budget:
        """Subtract the parts from the memory. ``share`` and ``margin`` are shares of the memory that programs see."""
        low, expected, high = usable = usable_bytes(memory, share, margin)
        return cls(
            total_bytes=memory.expected_bytes,
            total_low_bytes=memory.low_bytes,
            total_high_bytes=memory.high_bytes,
            utilization=share,
            requested_bytes=expected,
            usable=usable,
            margin_bytes=part_of(memory.expected_bytes, margin),
            parts=parts,
            low=low - sum(part.high for part in parts),
            expected=expected - sum(part.expected for part in parts),
            high=high - sum(part.low for part in parts),
        )


def usable_bytes(memory: VisibleMemory, share: float, margin: Fraction | int) -> tuple[int, int, int]:
    """What an engine may use of the memory, at both ends of what programs see and as expected: low, expected, high."""
    # Engines compute their share in floating point. The margin is exact; it can exceed the share.
    part, whole = margin.numerator, margin.denominator
    low, expected, high = memory.low_bytes, memory.expected_bytes, memory.high_bytes
    return (
        max(0, ceil(low * share) + -low * part // whole),
        max(0, ceil(expected * share) + -expected * part // whole),
        max(0, ceil(high * share) + -high * part // whole),
    )


def part_of(size: int, share: Fraction | int) -> int:
    """A share of a size, rounded up."""
    return -(-size * share.numerator // share.denominator)
