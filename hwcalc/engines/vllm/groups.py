"""Layers into groups that share one block table, and one pool for all groups.

Every block of the pool is as wide as the widest group: the groups' pages lie over each other. Six windowed layers and two full
ones become four groups of two, [SS][SS][SS][FF], and a block holds two pages.

Source: vLLM 0.33, v1/core/kv_cache_planning.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hwcalc.engines.vllm.specs import FULL_FORMS, LATENT_FORMS, Spec, ceil_div
from hwcalc.errors import UnsupportedError

__all__ = ["Group", "form_groups"]


class Group(NamedTuple):
    """Members are indices into the sequence that was grouped, ``specs`` theirs, ``distinct`` each of these once."""

    members: tuple[int, ...]
    specs: tuple[Spec, ...]
    distinct: tuple[Spec, ...]


def form_groups(specs: Sequence[Spec], *, hybrid: bool, packed: bool) -> list[Group]:
    """Group ``specs`` (one for each layer cache, in layer order).

    ``hybrid`` false turns windowed layers into full ones where the model also has full ones. ``packed`` is for the layout in which
    pages of different size lie side by side in a block (DeepSeek-V4).
    Raises :class:`~hwcalc.errors.UnsupportedError` where vLLM would stop.
    """
    if not specs:
        return []
    chosen = list(specs) if hybrid else _promoted(specs)
    distinct = set(chosen)
    if len(distinct) == 1:
        return [_group(range(len(chosen)), chosen)]
    if len({_family(spec) for spec in distinct}) == 1:
        return [_group(range(len(chosen)), chosen)]
    if packed and len({spec.page for spec in distinct}) > 1:
        return _packed(chosen)
    unified = _unified(distinct)
    if unified is None:
        full = _promoted(chosen)
        if len({_family(spec) for spec in full}) > 1:
            raise UnsupportedError(
                "vLLM cannot bring the pages of these layers to one size: a latent page is not padded.",
                hint="Use another --kv-cache-dtype or block size.",
            )
        return [_group(range(len(full)), full)]
    return _uniform_page([unified[spec] for spec in chosen])


def _group(members: Sequence[int], specs: Sequence[Spec]) -> Group:
    own = tuple(specs[index] for index in members)
    return Group(members=tuple(members), specs=own, distinct=tuple(dict.fromkeys(own)))


def _family(spec: Spec) -> tuple[object, ...]:
    """Specs of one family always need the same number of token slots."""
    if spec.form in FULL_FORMS:
        return ("full", spec.block_size)
    if spec.form == "state":
        return ("state", spec.block_size, spec.page, spec.states)
    return (spec.form, spec.block_size, spec.limit)


def _promoted(specs: Sequence[Spec]) -> list[Spec]:
    """Windowed layers kept whole, as without the hybrid manager."""
    distinct = set(specs)
    if len({_family(spec) for spec in distinct}) == 1:
        return list(specs)
    sizes = {spec.block_size for spec in distinct if spec.form in FULL_FORMS}
    size = sizes.pop() if len(sizes) == 1 else None
    new: dict[Spec, Spec] = {}
    for spec in distinct:
        form = {"sliding": "full", "chunked": "full", "sliding_mla": "mla"}.get(spec.form)
        if form is None or not any(other.form in FULL_FORMS for other in distinct):
            new[spec] = spec
            continue
        block = size or spec.block_size
        new[spec] = spec._replace(form=form, limit=0, block_size=block, page=spec.page * block // spec.block_size)
    if len({_family(spec) for spec in new.values()}) > 1:
        raise UnsupportedError(
            "vLLM cannot run this model without its hybrid KV cache manager: its layers do not become one kind.",
            hint="Leave out: --engine-option disable_hybrid_kv_cache_manager=true",
        )
    return [new[spec] for spec in specs]


def _unified(distinct: set[Spec]) -> dict[Spec, Spec] | None:
    """All pages as large as the largest: by more tokens in a block where that divides, else by padding."""
    largest = max(spec.page for spec in distinct)
    new: dict[Spec, Spec] = {}
    for spec in distinct:
        ratio, rest = divmod(largest, spec.page)
        if spec.form == "state" or (rest and spec.form not in LATENT_FORMS):
            new[spec] = spec._replace(page=largest)
        elif rest:
            return None
        else:
            new[spec] = spec._replace(block_size=spec.block_size * ratio, page=largest)
    return new


def _uniform_page(specs: Sequence[Spec]) -> list[Group]:
    """Groups of as many layers as the rarest kind has, or the commonest where that is less than half as many again."""
    buckets: dict[Spec, list[int]] = {}
    for index, spec in enumerate(specs):
        buckets.setdefault(spec, []).append(index)
    least = min(map(len, buckets.values()))
    most = max(map(len, buckets.values()))
    size = most if 2 * most < 3 * least else least
    out = []
    for members in buckets.values():
        count = ceil_div(len(members), size)
        # Every count-th layer, so that pipeline stages have some of each group.
        out += [_group(members[start::count], specs) for start in range(count)]
    return out


def _packed(specs: Sequence[Spec]) -> list[Group]:
    """Pages of different size side by side: buckets that repeat one pattern are cut into groups of as many repeats."""
    buckets: dict[tuple[object, ...], dict[int, list[int]]] = {}
    for index, spec in enumerate(specs):
        buckets.setdefault(_family(spec), {}).setdefault(spec.page, []).append(index)
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
    """The size from ``least`` up to which all counts round up with the least padding; the larger of two equals."""
    return min(
        range(max(1, least), max(counts) + 1),
        key=lambda size: (sum(-count % size for count in counts), -size),
        default=least,
    )
