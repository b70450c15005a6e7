"""The same model with other key/value heads, or with its latent multiplied out: what the cache would take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.formulas import LatentAttention, Role, Stack
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Part
from hwcalc.planner.strategies_load import cells_of
from hwcalc.planner.strategies_result import HeadChoice

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.formulas import LayerKind
    from hwcalc.model import ModelSpec
    from hwcalc.planner.strategies_load import Lengths

_PROJECTIONS: Final = frozenset({"k_proj", "v_proj", "k", "v", "key", "value", "key_proj", "value_proj"})
_FUSED: Final = frozenset({"qkv_proj", "qkv", "query_key_value", "c_attn", "Wqkv", "kv_proj", "wqkv", "W_pack"})


class HeadWhatIf(Record):
    """The model with other key/value heads, or with its latent multiplied out. ``change`` makes its kinds of layers."""

    name: str
    num_key_value_heads: int | None
    own: bool
    latent: bool
    change: Callable[[LayerKind], LayerKind]


def head_what_ifs(stack: Stack) -> tuple[HeadWhatIf, ...]:
    """MHA, GQA with each power of two of groups, and MQA, where the model has plain attention; latent and expanded where it has MLA."""
    kinds = [group.kind for group in stack.groups]
    attention = [kind for kind in kinds if isinstance(kind, AttentionKind)]
    own = {kind.num_key_value_heads for kind in attention}
    found = [
        HeadWhatIf(
            name=_name(attention, heads), num_key_value_heads=heads, own=own == {heads}, latent=False, change=_with_heads(heads)
        )
        for heads in (_counts(attention) if attention else ())
    ]
    if len(own) > 1:
        found.insert(0, HeadWhatIf(name="as published", num_key_value_heads=None, own=True, latent=False, change=_as_it_is))
    if any(isinstance(kind, LatentAttention) for kind in kinds):
        found.append(HeadWhatIf(name="MLA, latent", num_key_value_heads=None, own=True, latent=True, change=_as_it_is))
        found.append(HeadWhatIf(name="MLA, expanded", num_key_value_heads=None, own=False, latent=True, change=_expanded))
    return tuple(found)


def with_kinds(stack: Stack, change: Callable[[LayerKind], LayerKind]) -> Stack:
    """The layers with their kinds changed."""
    return Stack(tuple(tuple(map(change, layer)) for layer in stack.layers))


def head_choices(opened: Occupancy, lengths: Lengths) -> tuple[HeadChoice, ...]:
    """What each of :func:`head_what_ifs` takes."""
    attention = [group.kind for group in opened.stack.groups if isinstance(group.kind, AttentionKind)]
    # A packed format holds latents alone.
    plain = {Role.KEY, Role.VALUE} <= opened.dtypes.roles.keys()
    own_bytes, found = _bytes(opened, lengths, _as_it_is), []
    for one in head_what_ifs(opened.stack):
        if one.latent and not plain:
            continue
        heads = one.num_key_value_heads
        difference = 0 if heads is None else _difference(opened.model, attention, heads)
        found.append(_choice(one.name, heads, one.own, _bytes(opened, lengths, one.change), own_bytes, difference))
    return tuple(found)


def _as_it_is(kind: LayerKind) -> LayerKind:
    return kind


def _expanded(kind: LayerKind) -> LayerKind:
    return kind.expanded() if isinstance(kind, LatentAttention) else kind


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


def _bytes(opened: Occupancy, lengths: Lengths, change: Callable[[LayerKind], LayerKind]) -> int:
    """Bytes of all sequences at their full length with the kinds changed."""
    stack = with_kinds(opened.stack, change)
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
