"""Sinks and a window: StreamingLLM."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from hwcalc.policies.base import Chosen, Setting, State
from hwcalc.policies.options import BUDGET, DIVIDE, SINKS
from hwcalc.policies.repeated import repeated
from hwcalc.policies.scorers import SHARE_FORMULA, act_as_scorer, more_than_sinks, scorer
from hwcalc.policies.scratch import SMALL

__all__ = ["POLICIES", "sink_ranges"]


def sink_ranges(tokens: int, stays: int, sinks: int) -> tuple[tuple[int, int], ...]:
    """The first ``sinks`` tokens and the last of ``tokens``, ``stays`` in all: from start to end.

    >>> sink_ranges(127, 12, 4), sink_ranges(100, 2, 4), sink_ranges(100, 50, 0)
    (((0, 4), (119, 127)), ((0, 2),), ((50, 100),))
    """
    first = min(sinks, stays)
    parts = ((0, first), (tokens - (stays - first), tokens))
    if parts[0][1] >= parts[1][0]:
        return ((0, tokens),)
    return tuple(part for part in parts if part[0] < part[1])


def _ones(chosen: Chosen, ratio: float, tokens: int) -> int:
    """All that score 1; the others score 0. Source: kvpress 0.5.5, StreamingLLMPress.score."""
    sinks: int = chosen["n_sink"]
    return max(int(tokens * (1 - ratio)), sinks)


def _prefill(chosen: Chosen, state: State, setting: Setting) -> State:
    """As every scorer, and the rule alone says which positions stay, if nothing was dropped before."""
    whole = all(layer.stored.low == state.hidden for layer in state.layers)
    after = act_as_scorer(chosen, state, setting)
    counts = {layer.stored for layer in after.layers}
    if not whole or len(counts) != 1:
        return after
    return replace(after, ranges=sink_ranges(state.hidden, counts.pop().low, chosen["n_sink"]))


POLICIES: Final = (
    scorer(
        "streamingllm", "StreamingLLMPress", "StreamingLLM: sinks and a window", "arXiv:2309.17453", SINKS, BUDGET, DIVIDE,
        prefill=_prefill, check=more_than_sinks, protects=_ones, decode=repeated, aliases=("streaming", "sinkwindow"), cuts_each_step=True,
        by_place=True, in_prefill=SMALL,
        keeps="the first n_sink tokens and the last ones", memory="nothing: the positions say all",
        formula=f"{SHARE_FORMULA}; with a budget: min(n, budget) in each decode step too",
    ),
)  # fmt: skip
