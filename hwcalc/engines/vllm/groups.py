"""Forms groups of layers that share a block table. All groups share one pool.

Every block of the pool is as large as the pages of the largest group, so that it can serve any group. Six windowed layers and two full
ones form four groups of two, [SS][SS][SS][FF], and a block holds two pages.

Source: vLLM 0.33, v1/core/kv_cache_planning.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from hwcalc.engines.vllm.layer_specs import WHOLE_SEQUENCE
from hwcalc.engines.vllm.specs import ChunkSpec, FullSpec, LayerSpec, ceil_div
from hwcalc.errors import UnsupportedError

if TYPE_CHECKING:
    from hwcalc.engines.vllm.layout import Sorted
    from hwcalc.engines.vllm.rules import Rules

_Pages = dict[tuple[object, ...], dict[int, Sequence[int]]]
"""Caches by family and by the bytes of a page."""


class BlockGroup(Struct, frozen=True):
    """One group. ``members`` are indices of layer caches, ``specs`` are the specs of the members, and ``distinct`` has each spec once."""

    members: tuple[int, ...]
    specs: tuple[LayerSpec, ...]
    distinct: tuple[LayerSpec, ...]

    @property
    def block_bytes(self) -> int:
        """The bytes of a block: a page of each member."""
        if len(self.distinct) == 1:
            return len(self.specs) * self.distinct[0].page
        return sum([spec.page for spec in self.specs])

    def with_whole_sequences(self, tokens: int) -> BlockGroup:
        """The group with blocks of so many tokens where a block holds a whole sequence."""
        named = {spec: replace(spec, block_size=tokens) if spec.block_size == WHOLE_SEQUENCE else spec for spec in self.distinct}
        return BlockGroup(self.members, tuple([named[spec] for spec in self.specs]), tuple(named.values()))

    @property
    def form(self) -> str:
        """The names of the members' rules."""
        return "+".join(dict.fromkeys(spec.form for spec in self.distinct))


def form_groups(specs: Sequence[LayerSpec], caches: Sorted, rules: Rules, *, hybrid: bool, packed: bool) -> list[BlockGroup]:
    """Group the caches of all layers, given in the order of layers. ``specs`` are those of their sorts.

    If ``hybrid`` is false, windowed layers are kept whole in models that also have full layers. ``packed`` allows pages of different
    sizes side by side in a block (DeepSeek-V4). Raises :class:`~hwcalc.errors.UnsupportedError` where vLLM would refuse the model.
    """
    if not specs:
        return []
    whole = (
        not hybrid or not rules.groups_layers or (rules.chunks == "whole" and any(isinstance(spec, ChunkSpec) for spec in specs))
    )
    chosen = _promoted(specs, rules) if whole else list(specs)
    distinct = set(chosen)
    if len(distinct) == 1:
        return [_group(range(len(caches.sorts)), chosen, caches)]
    if len({spec.family for spec in distinct}) == 1 and (rules.sums_page_sizes or len({spec.page for spec in distinct}) == 1):
        return [_group(range(len(caches.sorts)), chosen, caches)]
    if packed and len({spec.page for spec in distinct}) > 1:
        return _packed(chosen, caches, rules)
    unified = _unified(distinct, rules)
    if unified is None:
        full = _promoted(chosen, rules) if rules.promotes_latents and any(spec.is_latent for spec in distinct) else chosen
        if len({spec.family for spec in full}) > 1 or not rules.sums_page_sizes:
            raise _unequal_pages()
        return [_group(range(len(caches.sorts)), full, caches)]
    return _uniform_page([unified[spec] for spec in chosen], caches, rules)


def _unequal_pages() -> UnsupportedError:
    return UnsupportedError(
        "vLLM cannot bring the pages of these layers to one size.", hint="Use another --dtype, block size or version."
    )


def _group(members: Sequence[int], specs: Sequence[LayerSpec], caches: Sorted) -> BlockGroup:
    if len(specs) == 1:
        return BlockGroup(tuple(members), (specs[0],) * len(members), (specs[0],))
    sorts = [caches.sorts[member] for member in members]
    distinct = tuple(dict.fromkeys(specs[sort] for sort in dict.fromkeys(sorts)))
    return BlockGroup(members=tuple(members), specs=tuple([specs[sort] for sort in sorts]), distinct=distinct)


def _members(caches: Sorted, sorts: Sequence[int]) -> Sequence[int]:
    """The caches of several sorts, in their order."""
    return caches.members[sorts[0]] if len(sorts) == 1 else sorted(chain.from_iterable(caches.members[sort] for sort in sorts))


def _by_page(families: Sequence[tuple[object, ...]], specs: Sequence[LayerSpec], caches: Sorted) -> _Pages:
    """The caches of each family, by the size of their pages. ``families`` are those of the sorts."""
    buckets: dict[tuple[object, ...], dict[int, list[int]]] = {}
    for sort, (family, spec) in enumerate(zip(families, specs, strict=True)):
        buckets.setdefault(family, {}).setdefault(spec.page, []).append(sort)
    return {family: {page: _members(caches, sorts) for page, sorts in pages.items()} for family, pages in buckets.items()}


def _promoted(specs: Sequence[LayerSpec], rules: Rules) -> list[LayerSpec]:
    """The specs with windowed layers kept whole, as vLLM does without its hybrid KV cache manager."""
    distinct = set(specs)
    if len({spec.family for spec in distinct}) == 1:
        return list(specs)
    sizes = {spec.block_size for spec in distinct if isinstance(spec, FullSpec)}
    size = next(iter(sizes)) if len(sizes) == 1 and (rules.promoted_block or any(spec.is_latent for spec in distinct)) else None
    new = {spec: spec.whole(size) if sizes else spec for spec in distinct}
    if len({spec.family for spec in new.values()}) > 1:
        raise UnsupportedError(
            "vLLM cannot run this model without its hybrid KV cache manager: its layers do not become one kind.",
            hint="Leave out: --engine-option disable_hybrid_kv_cache_manager=true"
            if rules.groups_layers
            else "Use a newer version: --engine vllm",
        )
    return [new[spec] for spec in specs]


def _unified(distinct: set[LayerSpec], rules: Rules) -> dict[LayerSpec, LayerSpec] | None:
    """The specs with all pages as large as the largest; ``None`` if a page cannot be enlarged to that size."""
    largest = max(spec.page for spec in distinct)
    new = {spec: spec.widened(largest, rules) for spec in distinct}
    return {spec: wide for spec, wide in new.items() if wide is not None} if None not in new.values() else None


def _layers_of_group(least: int, most: int, rules: Rules) -> int:
    from fractions import Fraction

    return most if most < least * Fraction(rules.group_ratio) else least


def _uniform_page(specs: Sequence[LayerSpec], caches: Sorted, rules: Rules) -> list[BlockGroup]:
    """Groups of equal pages. A group has as many layers as the rarest kind, or as the commonest if that has only a few more."""
    sorts: dict[LayerSpec, list[int]] = {}
    for sort, spec in enumerate(specs):
        sorts.setdefault(spec, []).append(sort)
    buckets = {spec: _members(caches, group_members) for spec, group_members in sorts.items()}
    least = min(map(len, buckets.values()))
    most = max(map(len, buckets.values()))
    size = least if most == least else _layers_of_group(least, most, rules)
    out = []
    for spec, members in buckets.items():
        count = ceil_div(len(members), size)
        # Take every count-th layer, so that each pipeline stage has layers of each group.
        slices = (
            slice(start, None, count) if rules.strided_groups else slice(start * size, (start + 1) * size)
            for start in range(count)
        )
        for taken in slices:
            group_members = tuple(members[taken])
            out.append(BlockGroup(members=group_members, specs=(spec,) * len(group_members), distinct=(spec,)))
    return out


def _packed(specs: Sequence[LayerSpec], caches: Sorted, rules: Rules) -> list[BlockGroup]:
    """Groups for pages of different sizes side by side. A family of layers that repeats one pattern is split into groups of equal size."""
    if rules.packed != "pages":
        return _tuples(_on_full_pages(specs), caches)
    buckets = _by_page([spec.family for spec in specs], specs, caches)
    balanced = {family: len({len(members) for members in pages.values()}) == 1 for family, pages in buckets.items()}
    repeats = {family: max(map(len, pages.values())) for family, pages in buckets.items()}
    floor = max((repeats[family] for family, pages in buckets.items() if balanced[family] and len(pages) > 1), default=0)
    size = _least_padding([repeats[family] for family in buckets if balanced[family]], floor) if floor else 0
    out = []
    for family, pages in buckets.items():
        count = ceil_div(repeats[family], size) if size and balanced[family] else 1
        if count == 1:
            out.append(_group(sorted(chain.from_iterable(pages.values())), specs, caches))
            continue
        out += _strided(pages, count, specs, caches)
    return out


def _strided(pages: Mapping[int, Sequence[int]], count: int, specs: Sequence[LayerSpec], caches: Sorted) -> Iterator[BlockGroup]:
    """So many groups of one family, each with every ``count``-th of its patterns, which have a page of each size."""
    patterns = list(zip(*pages.values(), strict=True))
    return (_group(list(chain.from_iterable(patterns[start::count])), specs, caches) for start in range(count))


def _on_full_pages(specs: Sequence[LayerSpec]) -> list[LayerSpec]:
    """The specs with each windowed page as large as the next larger page of a full layer. vLLM asserts that there is one."""
    full = sorted({spec.page for spec in specs if isinstance(spec, FullSpec)})
    if not full or max(spec.page for spec in specs) > full[-1]:
        raise _unequal_pages()
    return [
        spec if isinstance(spec, FullSpec) else replace(spec, page=next(page for page in full if page >= spec.page))
        for spec in specs
    ]


def _tuples(specs: Sequence[LayerSpec], caches: Sorted) -> list[BlockGroup]:
    """The groups: one of all full layers, and windowed layers in groups of about as many tuples, each of one page of every size."""
    buckets = _by_page([("full",) if isinstance(spec, FullSpec) else spec.family for spec in specs], specs, caches)
    full = buckets.pop(("full",))
    counts = [max(map(len, pages.values())) for pages in (full, *buckets.values())]
    size = _least_padding(counts, counts[0])
    out = [_group(sorted(chain.from_iterable(full.values())), specs, caches)]
    for pages in buckets.values():
        if len({len(members) for members in pages.values()}) > 1:  # vLLM asserts that each size has as many layers
            raise _unequal_pages()
        out += _strided(pages, ceil_div(max(map(len, pages.values())), size), specs, caches)
    return out


def _least_padding(counts: Sequence[int], least: int) -> int:
    """The group size, at least ``least``, to which all counts round up with the least padding; the larger one if two are equal."""
    return min(
        range(max(1, least), max(counts) + 1), key=lambda size: (sum(-count % size for count in counts), -size), default=least
    )
