"""Sorts the weights of a model by format and use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from hwcalc.formulas.weights import Block, Part, Weight, WeightRole
from hwcalc.model import ModelSpec
from hwcalc.planner.weight_share import Use, WeightShare

if TYPE_CHECKING:
    from hwcalc.formulas.formats import WeightFormat
    from hwcalc.quantization.scheme import Scheme

_CROSS: Final = ("cross", "encoder_attn", "encdecattention")
_FROM_ENCODER: Final = frozenset({"k_proj", "v_proj", "k", "v", "key", "value", "kv_proj", "c_attn"})


def weight_shares(model: ModelSpec, weights: str | None = None, dtype: str | None = None) -> tuple[WeightShare, ...] | None:
    """The weights of a model by format and use; ``None`` if they are not counted or their format is unknown.

    ``dtype`` is the dtype of weights that are not quantised. Multi-token prediction and the towers for images and sound are left out,
    since a decode step does not use them.
    """
    from hwcalc.quantization.planned import format_name, planned_scheme

    if model.counted is None:
        return None
    requested = format_name(weights)
    scheme, known = planned_scheme(model, requested)
    if not known:
        return None
    unquantized = _unquantized(requested, dtype or model.dtype)
    totals: dict[tuple[str, Use, int, int], list[int]] = {}
    for block, weight, use in _used_weights(model, model.counted.blocks):
        copies, active = _copies(weight, use)
        for name, elements, size in _portions(block, weight, scheme, unquantized):
            if elements:
                sums = totals.setdefault((name, use, copies, active), [0, 0])
                sums[0] += elements
                sums[1] += size
    return tuple(
        WeightShare(format=name, use=use, copies=copies, active=active, parameters=parameters, bytes=size)
        for (name, use, copies, active), (parameters, size) in totals.items()
    )


def _portions(block: Block, weight: Weight, scheme: Scheme | None, unquantized: WeightFormat) -> Iterable[tuple[str, int, int]]:
    """The formats of a weight in all layers of its block, with parameters and bytes."""
    if scheme is None:
        return ((unquantized.name, block.count * weight.elements, block.count * unquantized.bytes(weight)),)
    return ((one.format.name, one.elements, one.bytes) for one in scheme.portions(block, weight, unquantized))


def _unquantized(requested: str | None, dtype: str | None) -> WeightFormat:
    from hwcalc.formulas.formats import BF16, FLOATS

    return FLOATS.get(requested or "") or FLOATS.get(dtype or "", BF16)


def _copies(weight: Weight, use: Use) -> tuple[int, int]:
    if use is Use.ROW:
        return weight.shape[0], 1
    if use is Use.CHOSEN and weight.active is not None:
        return weight.copies, weight.active
    return 1, 1


def _used_weights(model: ModelSpec, blocks: Iterable[Block]) -> Iterable[tuple[Block, Weight, Use]]:
    """Every weight that a forward pass on text uses, with its use."""
    table: tuple[Block, Weight] | None = None
    has_head = False
    for block in blocks:
        if block.part not in (Part.LANGUAGE, Part.ENCODER):
            continue
        for weight in block.weights:
            use = _use_of(block, weight)
            if weight.role is WeightRole.HEAD and len(weight.shape) > 1:
                has_head = True
            is_vocabulary = use is Use.ROW and "per_layer" not in weight.path and weight.shape[0] == model.vocab_size
            if is_vocabulary and table is None and block.part is Part.LANGUAGE:
                table = block, weight
            yield block, weight, use
    # A tied model multiplies with its embedding. A class whose name ends in "Model" has no head at all.
    if table is not None and not has_head and not (model.architecture or "").endswith("Model"):
        yield *table, Use.LAST


def _use_of(block: Block, weight: Weight) -> Use:
    if weight.role is WeightRole.EMBEDDING and len(weight.shape) > 1:
        return Use.ROW
    if block.part is Part.ENCODER:
        return Use.ENCODER
    if weight.active is not None and weight.active < weight.copies:
        return Use.CHOSEN
    if weight.role is WeightRole.HEAD:
        return Use.LAST
    where = f"{block.kind} {weight.path}".lower()
    module = weight.path.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2]
    return Use.ENCODER if module in _FROM_ENCODER and any(name in where for name in _CROSS) else Use.ALWAYS
