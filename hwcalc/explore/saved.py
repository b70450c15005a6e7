"""What a cache saves: the operations of a new token and of a whole text, with it and without."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from hwcalc.explore.encode import LARGEST
from hwcalc.planner.strategies import GROWTH, RECOMPUTE

if TYPE_CHECKING:
    from hwcalc.planner.strategies_result import Strategies, Strategy

__all__ = ["saved_of"]

_SOURCE: Final = "kvplan strategies: a multiplication is an operation, and so is an addition; a causal prompt is counted exactly"


def saved_of(found: Sequence[Strategies]) -> dict[str, Any]:
    """Operations at each sampled length (``Saved`` in ``page/types.d.ts``); those of attention alone where the weights are not counted."""
    cached, recomputed = ([_named(one, name) for one in found] for name in (GROWTH, RECOMPUTE))
    weights = all(one.flops_per_step is not None for one in (*cached, *recomputed))
    each, whole = ("flops_per_step", "total_flops") if weights else ("attention_flops_per_step", "attention_total_flops")
    return {
        "lengths": [one.seq for one in found],
        "with_cache": _numbers(cached, each),
        "without_cache": _numbers(recomputed, each),
        "total_with_cache": _numbers(cached, whole),
        "total_without_cache": _numbers(recomputed, whole),
        "weights": weights,
        "source": _SOURCE,
    }


def _named(answer: Strategies, name: str) -> Strategy:
    return next(one for one in answer.strategies if one.name == name)


def _numbers(rows: Iterable[Strategy], name: str) -> list[int | str]:
    """A figure of each row. What JavaScript would round is given as its digits."""
    values = [int(getattr(row, name)) for row in rows]
    return [value if value <= LARGEST else str(value) for value in values]
