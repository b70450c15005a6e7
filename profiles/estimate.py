"""Estimates in fact files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hwcalc.formulas.record import Record


class Estimate(Record):
    """A number that is not exact: low, expected and high value, and the source."""

    low: float
    expected: float
    high: float
    source: str


def estimate_of(data: Mapping[str, Any]) -> Estimate:
    """The estimate of a mapping in a fact file, which has been checked."""
    return Estimate(low=data["low"], expected=data["expected"], high=data["high"], source=data["source"])
