"""The width of a layer on one rank: how many numbers per token its forward pass holds at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from hwcalc.engines.shards import ROW_PARALLEL, Rank, Sharding, module_of, once_of_few
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole

if TYPE_CHECKING:
    from hwcalc.model import ModelSpec

_MATRICES: Final = (WeightRole.LINEAR, WeightRole.EXPERT)
_DECODER: Final = (Part.LANGUAGE,)
_TOWERS: Final = (Part.VISION, Part.AUDIO, Part.ENCODER)
_TABLES: Final = frozenset({"embedding", "head", "norm"})


class _Matrix(NamedTuple):
    """A matrix of a layer, how it is cut, and whether it is the last one of an attention or an MLP."""

    weight: Weight
    how: Sharding
    last: bool


class _Layer(NamedTuple):
    """The hidden width of a block, and its matrices: those of attention, which ends before the MLP begins, and all others."""

    block: Block
    hidden: int
    sides: tuple[tuple[_Matrix, ...], tuple[_Matrix, ...]]


def layer_width(model: ModelSpec, rank: Rank, *, experts: bool = True) -> int | None:
    """Numbers per token that the widest layer of the decoder holds on one rank; ``None`` if the weights are not counted.

    These are the outputs of the projections and the input of the last one: a gated MLP of 14,336 holds 3 x 14,336. Without ``experts``
    the experts that a token is routed to do not count.
    """
    return _widest(model, _DECODER, rank, experts=experts)


def expert_width(model: ModelSpec, rank: Rank) -> tuple[int, int, int]:
    """Three sizes of the widest expert layer on one rank: experts per token, their inner width and their hidden width.

    Zeros for a model without experts, or if the weights are not counted.
    """
    widest = (0, 0, 0)
    for block, weight in once_of_few(model, "last matrices of experts", lambda: _last_of_experts(model)):
        hidden, inner = rank.cut(block, weight).shape
        widest = max(widest, (weight.active or weight.copies, inner, hidden), key=_product)
    return widest


def _last_of_experts(model: ModelSpec) -> tuple[tuple[Block, Weight], ...]:
    """The last matrices of the experts of the decoder, with their blocks."""
    blocks = () if model.counted is None else model.counted.blocks
    return tuple(
        (block, weight)
        for block in blocks
        if block.part is Part.LANGUAGE
        for weight in block.weights
        if weight.copies > 1 and len(weight.shape) == 2 and module_of(weight) in ROW_PARALLEL
    )


def _product(sizes: tuple[int, int, int]) -> int:
    return sizes[0] * max(sizes[1], sizes[2])


def encoder_width(model: ModelSpec, rank: Rank) -> int | None:
    """Numbers per patch in the widest layer of the towers, with four copies of the hidden vector; 0 for a model without towers."""
    return _widest(model, _TOWERS, rank, hidden_copies=4)


def _widest(model: ModelSpec, parts: tuple[Part, ...], rank: Rank, *, hidden_copies: int = 0, experts: bool = True) -> int | None:
    if model.counted is None:
        return None
    key = ("matrices", type(rank), parts is _DECODER, experts)
    layers = once_of_few(model, key, lambda: _layers(model, parts, rank, experts=experts))
    return max((_inside(rank, one.block, side) + hidden_copies * one.hidden for one in layers for side in one.sides), default=0)


def _layers(model: ModelSpec, parts: tuple[Part, ...], rank: Rank, *, experts: bool) -> tuple[_Layer, ...]:
    """The blocks of these parts that may be the widest. A block may be a whole layer."""
    assert model.counted is not None
    return tuple(
        _layer(rank, block, experts=experts)
        for block in model.counted.blocks
        if block.part in parts and block.kind not in _TABLES
    )


def _layer(rank: Rank, block: Block, *, experts: bool) -> _Layer:
    matrices = [
        weight
        for weight in block.weights
        if weight.role in _MATRICES and len(weight.shape) == 2 and (experts or weight.copies == 1)
    ]
    sides: tuple[list[_Matrix], list[_Matrix]] = [], []
    hidden = 0
    for weight in matrices:
        last = module_of(weight) in ROW_PARALLEL
        hidden = max(hidden, weight.shape[0 if last else 1])
        attends = "attn" in weight.path or "attention" in weight.path
        sides[not attends].append(_Matrix(weight, rank.how(block, weight), last))
    return _Layer(block, hidden, (tuple(sides[0]), tuple(sides[1])))


def _inside(rank: Rank, block: Block, matrices: tuple[_Matrix, ...]) -> int:
    """The outputs of the first projections and the input of the last, per token; for experts their outputs, if these are more."""
    width = inside = outside = 0
    for weight, how, last in matrices:
        local = rank.part(block, weight, how)
        copies = min(local.copies, weight.active or local.copies)
        if weight.copies > 1 and last:
            # The outputs of experts reuse the memory of the outputs of their first projections.
            outside += copies * local.shape[0]
            width += copies * local.shape[1]
        elif weight.copies > 1:
            inside += copies * local.shape[0]
        else:
            width += local.shape[1 if last else 0]
    return width + max(inside, outside)
