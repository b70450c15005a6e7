"""Forms groups of layers that share a block table. All groups share one pool.

Every block of the pool is as large as the pages of the largest group, so that it can serve any group. Six windowed layers and two full
ones form four groups of two, [SS][SS][SS][FF], and a block holds two pages.

Source: vLLM 0.33, v1/core/kv_cache_planning.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hwcalc.engines.vllm.specs import FullSpec, LayerSpec, ceil_div
from hwcalc.errors import UnsupportedError

__all__ = ["BlockGroup", "form_groups"]


class BlockGroup(NamedTuple):
    """One group. ``members`` are indices of layer caches, ``specs`` are the specs of the members, and ``distinct`` has each spec once."""

    members: tuple[int, ...]
    specs: tuple[LayerSpec, ...]
    distinct: tuple[LayerSpec, ...]


def form_groups(specs: Sequence[LayerSpec], *, hybrid: bool, packed: bool) -> list[BlockGroup]:
    """Group the specs of all layer caches, given in the order of layers.

    If ``hybrid`` is false, windowed layers are kept whole in models that also have full layers. ``packed`` allows pages of different
    sizes side by side in a block (DeepSeek-V4). Raises :class:`~hwcalc.errors.UnsupportedError` where vLLM would refuse the model.
    """
    if not specs:
        return []
    chosen = list(specs) if hybrid else _promoted(specs)
    distinct = set(chosen)
    if len(distinct) == 1:
        return [_group(range(len(chosen)), chosen)]
    if len({spec.family for spec in distinct}) == 1:
        return [_group(range(len(chosen)), chosen)]
    if packed and len({spec.page for spec in distinct}) > 1:
        return _packed(chosen)
    unified = _unified(distinct)
    if unified is None:
        full = _promoted(chosen)
        if len({spec.family for spec in full}) > 1:
            raise UnsupportedError(
                "vLLM cannot bring the pages of these layers to one size: a latent page is not padded.",
                hint="Use another --kv-cache-dtype or block size.",
            )
        return [_group(range(len(full)), full)]
    return _uniform_page([unified[spec] for spec in chosen])


def _group(members: Sequence[int], specs: Sequence[LayerSpec]) -> BlockGroup:
    member_specs = tuple(specs[index] for index in members)
    return BlockGroup(members=tuple(members), specs=member_specs, distinct=tuple(dict.fromkeys(member_specs)))


def _promoted(specs: Sequence[LayerSpec]) -> list[LayerSpec]:
    """The specs with windowed layers kept whole, as vLLM does without its hybrid KV cache manager."""
    distinct = set(specs)
    if len({spec.family for spec in distinct}) == 1:
        return list(specs)
    sizes = {spec.block_size for spec in distinct if isinstance(spec, FullSpec)}
    size = next(iter(sizes)) if len(sizes) == 1 else None
    new = {spec: spec.whole(size) if sizes else spec for spec in distinct}
    if len({spec.family for spec in new.values()}) > 1:
        raise UnsupportedError(
            "vLLM cannot run this model without its hybrid KV cache manager: its layers do not become one kind.",
            hint="Leave out: --engine-option disable_hybrid_kv_cache_manager=true",
        )
    return [new[spec] for spec in specs]


def _unified(distinct: set[LayerSpec]) -> dict[LayerSpec, LayerSpec] | None:
    """The specs with all pages as large as the largest; ``None`` if a page cannot be enlarged to that size."""
    largest = max(spec.page for spec in distinct)
    new = {spec: spec.widened(largest) for spec in distinct}
    return {spec: wide for spec, wide in new.items() if wide is not None} if None not in new.values() else None


def _uniform_page(specs: Sequence[LayerSpec]) -> list[BlockGroup]:
    """Groups of equal pages. A group has as many layers as the rarest kind, or as the commonest if that has less than 1.5 times as many."""
    buckets: dict[LayerSpec, list[int]] = {}
    for index, spec in enumerate(specs):
        buckets.setdefault(spec, []).append(index)
    least = min(map(len, buckets.values()))
    most = max(map(len, buckets.values()))
    size = most if 2 * most < 3 * least else least
    out = []
    for members in buckets.values():
        count = ceil_div(len(members), size)
        # Take every count-th layer, so that each pipeline stage has layers of each group.
        out += [_group(members[start::count], specs) for start in range(count)]
    return out


def _packed(specs: Sequence[LayerSpec]) -> list[BlockGroup]:
    """Groups for pages of different sizes side by side. A family of layers that repeats one pattern is split into groups of equal size."""
    buckets: dict[tuple[object, ...], dict[int, list[int]]] = {}
    for index, spec in enumerate(specs):
        buckets.setdefault(spec.family, {}).setdefault(spec.page, []).append(index)
    balanced = {family: len({len(members) for members in pages.values()}) == 1 for family, pages in buckets.items()}
    repeats = {family: max(map(len, pages.values())) for family, pages in buckets.items()}
    floor = max((repeats[family] for family, pages in buckets.items() if balanced[family] and len(pages) > 1), default=0)
    size = _least_padding([repeats[family] for family in buckets if balanced[family]], floor) if floor else 0
    out = []
    for family, pages in buckets.items():
        count = ceil_div(repeats[family], size) if size and balanced[family] else 1
        if count == 1:
            members = sorted(index for group in pages.values() for index in group)
            out.append(_group(members, specs))
            continue
        patterns = list(zip(*pages.values(), strict=True))
        out += [_group([index for pattern in patterns[start::count] for index in pattern], specs) for start in range(count)]
    return out


def _least_padding(counts: Sequence[int], least: int) -> int:
    """The group size, at least ``least``, to which all counts round up with the least padding; the larger one if two are equal."""
    return min(
        range(max(1, least), max(counts) + 1),
        key=lambda size: (sum(-count % size for count in counts), -size),
        default=least,
    )
