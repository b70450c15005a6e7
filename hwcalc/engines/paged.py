"""What an engine with blocks says of the groups on which a cache policy acts."""

from __future__ import annotations

from hwcalc.engines.evicting import Evicted
from hwcalc.formulas.frozen import frozen

__all__ = ["PagedGroup", "heads_of"]


@frozen
class PagedGroup:
    """Layers that share one block table. ``layers`` are the numbers of those that the policy cuts, and ``whole`` says that these are all.

    ``block_size`` counts tokens on all ranks together, and ``page_bytes`` is a block of all its layers on one rank. ``steady`` are the
    most blocks of a sequence behind its prompt. ``prompt_tokens`` are the most of a prompt that lie in it, where a prompt is cut while it
    is read; ``None`` is all of them.
    """

    block_size: int
    layers: tuple[int, ...]
    whole: bool
    page_bytes: int
    steady: int
    prompt_tokens: int | None = None


def heads_of(evicted: Evicted) -> dict[int, int]:
    """Key/value heads of each layer, by number: as many may choose tokens on their own."""
    return {shape.index: shape.kv_heads for shape in evicted.setting.layers}
