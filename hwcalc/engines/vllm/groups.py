"""Forms groups of layers that share a block table. All groups share one pool.

Every block of the pool is as large as the pages of the largest group, so that it can serve any group. Six windowed layers and two full
ones form four groups of two, [SS][SS][SS][FF], and a block holds two pages.

Source: vLLM 0.33, v1/core/kv_cache_planning.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from hwcalc.engines.vllm.rules import Rules
from hwcalc.engines.vllm.specs import ChunkSpec, FullSpec, LayerSpec, ceil_div
from hwcalc.errors import UnsupportedError
from hwcalc.formulas.frozen import replace
from hwcalc.formulas.named import NamedTuple

__all__ = ["BlockGroup", "form_groups"]


class BlockGroup(NamedTuple):
    """One group. ``members`` are indices of layer caches, ``specs`` are the specs of the members, and ``distinct`` has each spec once."""

    members: tuple[int, ...]
    specs: tuple[LayerSpec, ...]
    distinct: tuple[LayerSpec, ...]


def form_groups(specs: Sequence[LayerSpec], rules: Rules, *, hybrid: bool, packed: bool) -> list[BlockGroup]:
    """Group the specs of all layer caches, given in the order of layers.

    If ``hybrid`` is false, windowed layers are kept whole in models that also have full layers. ``packed`` allows pages of different
    sizes side by side in a block (DeepSeek-V4). Raises :class:`~hwcalc.errors.UnsupportedError` where vLLM would refuse the model.
    """
    if not specs:
        return []
    whole = (
        not hybrid or not rules.groups_layers or (rules.chunks == "whole" and any(isinstance(spec, ChunkSpec) for spec in specs))
    )
    chosen = _promoted(specs, rules) if whole else list(specs)
    # Layers share their specs: most are told apart by identity alone.
    distinct = set({id(spec): spec for spec in chosen}.values())
    if len(distinct) == 1:
        return [_group(range(len(chosen)), chosen)]
    if len({spec.family for spec in distinct}) == 1 and (rules.sums_page_sizes or len({spec.page for spec in distinct}) == 1):
        return [_group(range(len(chosen)), chosen)]
    if packed and len({spec.page for spec in distinct}) > 1:
        return _packed(chosen, rules)
    unified = _unified(distinct, rules)
    if unified is None:
        full = _promoted(chosen, rules) if rules.promotes_latents and any(spec.is_latent for spec in distinct) else chosen
        if len({spec.family for spec in full}) > 1 or not rules.sums_page_sizes:
            raise _unequal_pages()
        return [_group(range(len(full)), full)]
    return _uniform_page([unified[spec] for spec in chosen], rules)


def _unequal_pages() -> UnsupportedError:
    return UnsupportedError(
        "vLLM cannot bring the pages of these layers to one size.", hint="Use another --dtype, block size or version."
    )


def _group(members: Sequence[int], specs: Sequence[LayerSpec]) -> BlockGroup:
    member_specs = tuple([specs[index] for index in members])
    distinct = {id(spec): spec for spec in member_specs}.values()
    return BlockGroup(members=tuple(members), specs=member_specs, distinct=tuple(dict.fromkeys(distinct)))


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


def _uniform_page(specs: Sequence[LayerSpec], rules: Rules) -> list[BlockGroup]:
    """Groups of equal pages. A group has as many layers as the rarest kind, or as the commonest if that has only a few more."""
    buckets: dict[LayerSpec, list[int]] = {}
    for index, spec in enumerate(specs):
        buckets.setdefault(spec, []).append(index)
    least = min(map(len, buckets.values()))
    most = max(map(len, buckets.values()))
    size = least if most == least else _layers_of_group(least, most, rules)
    out = []
    for members in buckets.values():
        count = ceil_div(len(members), size)
        # Take every count-th layer, so that each pipeline stage has layers of each group.
        slices = (
            slice(start, None, count) if rules.strided_groups else slice(start * size, (start + 1) * size)
            for start in range(count)
        )
        out += [_group(members[taken], specs) for taken in slices]
    return out


def _packed(specs: Sequence[LayerSpec], rules: Rules) -> list[BlockGroup]:
    """Groups for pages of different sizes side by side. A family of layers that repeats one pattern is split into groups of equal size."""
    if rules.packed != "pages":
        return _tuples(_on_full_pages(specs))
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


def _on_full_pages(specs: Sequence[LayerSpec]) -> list[LayerSpec]:
    """The specs with each windowed page as large as the next larger page of a full layer. vLLM asserts that there is one."""
    full = sorted({spec.page for spec in specs if isinstance(spec, FullSpec)})
    if not full or max(spec.page for spec in specs) > full[-1]:
        raise _unequal_pages()
    return [
        spec if isinstance(spec, FullSpec) else replace(spec, page=next(page for page in full if page >= spec.page))
        for spec in specs
    ]


def _tuples(specs: Sequence[LayerSpec]) -> list[BlockGroup]:
    """All full layers in one group, and windowed layers in groups with about as many tuples of one page of each size."""
    buckets: dict[tuple[object, ...], dict[int, list[int]]] = {}
    for index, spec in enumerate(specs):
        key = ("full",) if isinstance(spec, FullSpec) else spec.family
        buckets.setdefault(key, {}).setdefault(spec.page, []).append(index)
    full = buckets.pop(("full",))
    counts = [max(map(len, pages.values())) for pages in (full, *buckets.values())]
    size = _least_padding(counts, counts[0])
    out = [_group(sorted(index for members in full.values() for index in members), specs)]
    for pages in buckets.values():
        if len({len(members) for members in pages.values()}) > 1:  # vLLM asserts that each size has as many layers
            raise _unequal_pages()
        patterns = list(zip(*pages.values(), strict=True))
        count = ceil_div(len(patterns), size)
        out += [_group([index for pattern in patterns[start::count] for index in pattern], specs) for start in range(count)]
    return out


def _least_padding(counts: Sequence[int], least: int) -> int:
    """The group size, at least ``least``, to which all counts round up with the least padding; the larger one if two are equal."""
    return min(
        range(max(1, least), max(counts) + 1),
        key=lambda size: (sum(-count % size for count in counts), -size),
        default=least,
    )
