"""Ways of allocating the cache of one sequence, at some lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from hwcalc.model import Definition

if TYPE_CHECKING:
    from hwcalc.planner.strategies_result import Strategies

__all__ = ["strategy_rows"]

_SIZES: Final = {"bytes": "full_bytes", "held": "held_bytes", "peak": "peak_bytes", "host": "host_bytes"}
"""A figure of the page -> that of :class:`~hwcalc.planner.strategies_result.Strategy`."""


def strategy_rows(found: Sequence[Strategies]) -> dict[str, Any]:
    """What each strategy takes at each sampled length (``StrategyRows`` in ``page/types.d.ts``)."""
    rows = [
        {
            "name": first.name,
            "title": first.title,
            "note": first.trades,
            "used_by": first.used_by,
            "peak_is_bound": first.peak_definition is Definition.BOUND,
            **{name: [getattr(answer.strategies[number], figure) for answer in found] for name, figure in _SIZES.items()},
        }
        for number, first in enumerate(found[0].strategies)
    ]
    return {"lengths": [one.seq for one in found], "rows": rows}
