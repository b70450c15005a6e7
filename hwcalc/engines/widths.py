"""The width of a layer on one rank: how many numbers per token its forward pass holds at once."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from hwcalc.engines.shards import ROW_PARALLEL, Rank, module_of
from hwcalc.formulas.hints import Final
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole
from hwcalc.model import ModelSpec

__all__ = ["encoder_width", "expert_width", "layer_width"]

_MATRICES: Final = frozenset({WeightRole.LINEAR, WeightRole.EXPERT})


def layer_width(model: ModelSpec, rank: Rank, *, experts: bool = True) -> int | None:
    """Numbers per token that the widest layer of the decoder holds on one rank; ``None`` if the weights are not counted.

    These are the outputs of the projections and the input of the last one: a gated MLP of 14,336 holds 3 x 14,336. Without ``experts``
    the experts that a token is routed to do not count.
    """
    return _widest(model, {Part.LANGUAGE}, rank, experts=experts)


def expert_width(model: ModelSpec, rank: Rank) -> tuple[int, int, int]:
    """Of the layer with the widest experts on one rank, for a token: the experts it is routed to, their inner width and hidden width.

    Zeros for a model without experts, or if the weights are not counted.
    """
    widest = (0, 0, 0)
    for block in () if model.counted is None else model.counted.blocks:
        for weight in block.weights:
            last = weight.copies > 1 and len(weight.shape) == 2 and module_of(weight) in ROW_PARALLEL
            if last and block.part is Part.LANGUAGE:
                hidden, inner = rank.cut(block, weight).shape
                widest = max(widest, (weight.active or weight.copies, inner, hidden), key=_product)
    return widest


def _product(sizes: tuple[int, int, int]) -> int:
    return sizes[0] * max(sizes[1], sizes[2])


def encoder_width(model: ModelSpec, rank: Rank) -> int | None:
    """Numbers per patch in the widest layer of the towers, with four copies of the hidden vector; 0 for a model without towers."""
    return _widest(model, {Part.VISION, Part.AUDIO, Part.ENCODER}, rank, hidden_copies=4)


def _widest(
    model: ModelSpec, parts: AbstractSet[Part], rank: Rank, *, hidden_copies: int = 0, experts: bool = True
) -> int | None:
    if model.counted is None:
        return None
    widest = 0
    for block in model.counted.blocks:
        if block.part not in parts or block.kind in {"embedding", "head", "norm"}:
            continue
        matrices = [
            weight
            for weight in block.weights
            if weight.role in _MATRICES and len(weight.shape) == 2 and (experts or weight.copies == 1)
        ]
        hidden = max((weight.shape[0 if module_of(weight) in ROW_PARALLEL else 1] for weight in matrices), default=0)
        # A block may be a whole layer. Its attention ends before its MLP begins, so the two are counted separately.
        for is_attention in (True, False):
            inside = _inside(
                rank,
                block,
                [weight for weight in matrices if ("attn" in weight.path or "attention" in weight.path) is is_attention],
            )
            widest = max(widest, inside + hidden_copies * hidden)
    return widest


def _inside(rank: Rank, block: Block, weights: list[Weight]) -> int:
    """The outputs of the first projections and the input of the last, per token; for experts their outputs, if these are more."""
    width = inside = outside = 0
    for weight in weights:
        local = rank.cut(block, weight)
        copies = min(local.copies, weight.active or local.copies)
        last = module_of(weight) in ROW_PARALLEL
        if weight.copies > 1 and last:
            # The outputs of experts reuse the memory of the outputs of their first projections.
            outside += copies * local.shape[0]
            width += copies * local.shape[1]
        elif weight.copies > 1:
            inside += copies * local.shape[0]
        else:
            width += local.shape[1 if last else 0]
    return width + max(inside, outside)
