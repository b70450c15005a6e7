"""One figure twice: as planned, and as the log states it."""

from __future__ import annotations

from hwcalc.formulas.record import Record
from hwcalc.reconcile.facts import Fact

__all__ = ["Number", "Range", "Row", "compared", "spread"]

Number = int | float


class Range(Record):
    """A prediction: the expected value, the least and the most."""

    low: Number
    expected: Number
    high: Number


class Row(Record):
    """A figure of the log beside the plan's.

    ``low`` to ``high`` is the range of the prediction: of an estimate its own, of an exact rule what the rounding of the log's budget
    leaves open. ``reported_low`` to ``reported_high`` is what the log's figure may have been before it was rounded. ``difference`` is
    reported minus predicted and ``percent`` that of the prediction; ``distance_percent`` is how far the two ranges lie apart, 0 where
    they meet, and ``tolerance`` the share that they may, 0 for a figure that is exact. ``definition`` is what the prediction is (``exact``, ``engine``, ``estimate``, ``profile``), ``meaning`` what the figure is.
    """

    name: str
    unit: str
    definition: str
    meaning: str
    predicted: Number
    low: Number
    high: Number
    reported: Number
    reported_low: Number
    reported_high: Number
    difference: Number
    percent: float | None
    distance_percent: float
    tolerance: float
    within: bool
    rank: str | None
    line: int
    text: str


def spread(value: Number) -> Range:
    """A prediction without uncertainty."""
    return Range(low=value, expected=value, high=value)


def compared(
    name: str, fact: Fact | None, predicted: Range | None, tolerance: float, *, definition: str, meaning: str
) -> list[Row]:
    """The row of this fact; empty if the log or the plan lacks the figure.

    The figures agree if their ranges are no further apart than ``tolerance``, a share of the larger of the two figures.
    """
    if fact is None or predicted is None or isinstance(fact.value, str):
        return []
    low, high = (fact.value if end is None else end for end in (fact.low, fact.high))
    distance = max(0, low - predicted.high, predicted.low - high)
    largest = max(abs(predicted.expected), abs(fact.value))
    share = distance / largest if largest else 0.0
    return [
        Row(
            name=name,
            unit=fact.unit,
            definition=definition,
            meaning=meaning,
            predicted=predicted.expected,
            low=predicted.low,
            high=predicted.high,
            reported=fact.value,
            reported_low=low,
            reported_high=high,
            difference=fact.value - predicted.expected,
            percent=100 * (fact.value - predicted.expected) / predicted.expected if predicted.expected else None,
            distance_percent=100 * share,
            tolerance=tolerance,
            within=share <= tolerance,
            rank=fact.rank,
            line=fact.line,
            text=fact.text,
        )
    ]
