"""The same model with other key/value heads, or with its latent multiplied out: what the cache would take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from hwcalc.formulas import LatentAttention, Role, Stack
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.frozen import replace
from hwcalc.formulas.weights import Part
from hwcalc.planner.strategies_load import cells_of
from hwcalc.planner.strategies_result import HeadChoice

if TYPE_CHECKING:
    from hwcalc.engines.base import Opened
    from hwcalc.formulas import LayerKind
    from hwcalc.model import ModelSpec
    from hwcalc.planner.strategies_load import Lengths

__all__ = ["head_choices"]

_PROJECTIONS: Final = frozenset({"k_proj", "v_proj", "k", "v", "key", "value", "key_proj", "value_proj"})
_FUSED: Final = frozenset({"qkv_proj", "qkv", "query_key_value", "c_attn", "Wqkv", "kv_proj", "wqkv", "W_pack"})


def head_choices(opened: Opened, lengths: Lengths) -> tuple[HeadChoice, ...]:
    """MHA, GQA with each power of two of groups, and MQA, where the model has plain attention; latent and expanded where it has MLA."""
    kinds = [group.kind for group in opened.stack.groups]
    own_bytes = _bytes(opened, lengths, lambda kind: kind)
    found = []
    if any(isinstance(kind, AttentionKind) for kind in kinds):
        attention = [kind for kind in kinds if isinstance(kind, AttentionKind)]
        own = {kind.num_key_value_heads for kind in attention}
        for heads in _counts(attention):
            size = _bytes(opened, lengths, _with_heads(heads))
            difference = _difference(opened.model, attention, heads)
            found.append(_choice(_name(attention, heads), heads, own == {heads}, size, own_bytes, difference))
        if len(own) > 1:
            found.insert(0, _choice("as published", None, own=True, size=own_bytes, own_bytes=own_bytes, difference=0))
    # A packed format holds latents alone.
    if any(isinstance(kind, LatentAttention) for kind in kinds) and {Role.KEY, Role.VALUE} <= opened.dtypes.roles.keys():
        size = _bytes(opened, lengths, lambda kind: kind.expanded() if isinstance(kind, LatentAttention) else kind)
        found += [
            _choice("MLA, latent", None, own=True, size=own_bytes, own_bytes=own_bytes, difference=0),
            _choice("MLA, expanded", None, own=False, size=size, own_bytes=own_bytes, difference=0),
        ]
    return tuple(found)


def _choice(name: str, heads: int | None, own: bool, size: int, own_bytes: int, difference: int | None) -> HeadChoice:
    return HeadChoice(
        name=name,
        num_key_value_heads=heads,
        own=own,
        full_bytes=size,
        share=size / own_bytes if own_bytes else 1.0,
        parameters_difference=difference,
    )


def _counts(attention: list[AttentionKind]) -> Iterator[int]:
    """Numbers of key/value heads, from those of the queries down to one: halves, and the model's own."""
    most = max(kind.num_attention_heads for kind in attention)
    own = {kind.num_key_value_heads for kind in attention}
    halves, heads = {1, most}, most
    while heads % 2 == 0:
        heads //= 2
        halves.add(heads)
    common = own if len(own) == 1 else set()
    shared = {
        count
        for count in halves | common
        if all(kind.num_attention_heads % min(count, kind.num_attention_heads) == 0 for kind in attention)
    }
    yield from sorted(shared | common, reverse=True)


def _name(attention: list[AttentionKind], heads: int) -> str:
    if heads == 1:
        return "MQA"
    return "MHA" if all(heads >= kind.num_attention_heads for kind in attention) else f"GQA-{heads}"


def _with_heads(heads: int) -> Callable[[LayerKind], LayerKind]:
    def changed(kind: LayerKind) -> LayerKind:
        if not isinstance(kind, AttentionKind):
            return kind
        return replace(kind, num_key_value_heads=min(heads, kind.num_attention_heads))

    return changed


def _bytes(opened: Opened, lengths: Lengths, change: Callable[[LayerKind], LayerKind]) -> int:
    """Bytes of all sequences at their full length with the kinds changed."""
    stack = Stack(tuple(tuple(map(change, layer)) for layer in opened.stack.layers))
    return sum(
        cell.count * cell.row_bytes * lengths.batch * cell.span.positions(lengths.seq, lengths.encoder_tokens)
        for cell in cells_of(opened, {"": 1}, stack)
    )


def _difference(model: ModelSpec, attention: list[AttentionKind], heads: int) -> int | None:
    """Parameters more than the model has. Not known if its layers differ in heads, or if its matrices are none of those that are known."""
    own = {kind.num_key_value_heads for kind in attention}
    if own == {heads}:
        return 0
    if model.counted is None or len(own) != 1:
        return None
    before, total, seen = next(iter(own)), 0, False
    fused = {_fused_rows(kind): kind.head_dim + kind.v_head_dim for kind in attention}
    for block in model.counted.blocks:
        for weight in block.weights if block.part is Part.LANGUAGE else ():
            module = weight.path.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2]
            if module in _FUSED:
                rows = next((size for size in weight.shape if size in fused), None)
                if rows is None:
                    return None
                each = weight.elements // rows * fused[rows]
            elif module in _PROJECTIONS:
                if weight.elements % before:
                    return None
                each = weight.elements // before
            else:
                continue
            total, seen = total + block.count * each, True
    return total * (heads - before) if seen else None


def _fused_rows(kind: AttentionKind) -> int:
    """Rows of one matrix for queries, keys and values."""
    return kind.num_attention_heads * kind.head_dim + kind.num_key_value_heads * (kind.head_dim + kind.v_head_dim)
