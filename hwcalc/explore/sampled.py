"""The lengths at which the page has exact figures of what is not in the normal form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.explore.axes import LEAST_TOKENS, MOST_TOKENS
from hwcalc.library.strategies import strategies

if TYPE_CHECKING:
    from hwcalc.model import ModelSpec
    from hwcalc.planner.strategies_result import Strategies

__all__ = ["allocations", "sampled_lengths"]

_USUAL: Final = 2**17
"""The longest length of a model that does not say its own."""


def sampled_lengths(model: ModelSpec, factor: int = 2, least: int = LEAST_TOKENS) -> tuple[int, ...]:
    """Lengths from ``least`` tokens on, each ``factor`` times the one before, up to the model's own."""
    most = min(MOST_TOKENS, model.max_position_embeddings or _USUAL)
    found = [least]
    while found[-1] * factor <= most:
        found.append(found[-1] * factor)
    return tuple(found)


def allocations(model: ModelSpec, encoder_seq: int | None = None) -> tuple[Strategies, ...]:
    """The ways of allocating the cache of one sequence, at each sampled length, by the formulas."""
    lengths = sampled_lengths(model)
    return tuple(strategies(model, engine="reference", seq=seq, encoder_seq=encoder_seq) for seq in lengths)
