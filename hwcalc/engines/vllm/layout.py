"""The layers of a model in the blocks of the pool: where their caches are, their groups, and the blocks that a sequence takes.

Layers of a group share a block table, and all groups share one pool. Every block of the pool is as large as the pages of the largest
group, so that it can serve any group. Six windowed layers and two full ones form four groups of two, [SS][SS][SS][FF], and a block holds
two pages.

Layers of one kind have caches of one sort, and a model of very many layers has few sorts. What follows from a sort is worked out once, and
where the caches lie does not depend on formats or ranks, so that the model keeps it.

Source: vLLM 0.33, v1/core/kv_cache_planning.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, repeat
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Self

from msgspec import Struct
from msgspec.structs import replace

from hwcalc.engines.pool import Allocation
from hwcalc.engines.vllm.layer_specs import WHOLE_SEQUENCE, SpecBuilder, draft_layers, retained_tokens
from hwcalc.engines.vllm.specs import ChunkSpec, FullSpec, LatentWindowSpec, LayerSpec, Limits, WindowSpec, ceil_div
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas.arithmetic import largest
from hwcalc.formulas.record import Record
from hwcalc.formulas.stairs import Stair, stairs_at, together

if TYPE_CHECKING:
    from hwcalc.engines.steps import Step
    from hwcalc.engines.vllm.rules import Rules
    from hwcalc.engines.vllm.settings import VllmSettings
    from hwcalc.model import ModelSpec

_BOUNDARY: Final = 2
"""How many layers at each end turboquant does not pack."""
_ATTENTION_FIRST: Final = frozenset({"zamba2"})
"""Model types whose attention is shared by layers, and built before them."""


class LayerCache(Struct, frozen=True):
    """One cache of one layer.

    ``kind`` is the index of the layer's group in the stack. ``layer`` and ``kind`` are -1 for a draft layer. ``outer`` marks a layer
    that turboquant does not pack.
    """

    name: str
    layer: int
    kind: int
    outer: bool


class Sorted(Struct, frozen=True):
    """The sort of each cache of a sequence, and the caches of each sort by number. Sorts are numbered in order of first appearance."""

    sorts: tuple[int, ...]
    members: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, sorts: Sequence[int], count: int) -> Self:
        """The caches by sort: ``sorts[i]`` is the sort of cache i, and there are ``count`` sorts."""
        if count == 1:
            return cls(tuple(sorts), (tuple(range(len(sorts))),))
        members: list[list[int]] = [[] for _ in range(count)]
        for number, sort in enumerate(sorts):
            members[sort].append(number)
        return cls(tuple(sorts), tuple(map(tuple, members)))


class Placed(Struct, frozen=True):
    """The caches of all layers, and of each of their sorts the number of the kind, whether it is packed, and which cache of the layer it is."""

    caches: tuple[LayerCache, ...]
    sorted: Sorted
    sorts: tuple[tuple[int, bool, int], ...]


def place_caches(model: ModelSpec, names: Sequence[Sequence[str]], *, outer: bool) -> Placed:
    """The caches of all layers. ``names`` are those of the caches of each kind. With ``outer``, turboquant does not pack the outer layers."""
    stack = model.stack_for("vllm")
    numbers = {group.kind: number for number, group in enumerate(stack.groups)}
    # Looked up by identity first: layers share their kinds, and comparing kinds is slow.
    known: dict[int, int] = {}
    placed: list[tuple[LayerCache, int]] = []
    for layer, kinds in enumerate(stack.layers):
        unpacked = outer and not _BOUNDARY <= layer < len(stack.layers) - _BOUNDARY
        for kind in kinds:
            number = known.get(id(kind), -1)
            if number < 0:
                number = known[id(kind)] = numbers[kind]
            for place, name in enumerate(names[number]):
                placed.append((LayerCache(name, layer, number, unpacked), place))
    if model.model_type in _ATTENTION_FIRST:
        placed.sort(key=lambda one: one[0].name == "state")
    of_cache = [(cache.kind, cache.outer, place) for cache, place in placed]
    sorts = {sort: number for number, sort in enumerate(dict.fromkeys(of_cache))}
    return Placed(tuple([cache for cache, _ in placed]), Sorted.of([sorts[sort] for sort in of_cache], len(sorts)), tuple(sorts))


def stage_layers(layers: int, pp: int, rules: Rules) -> list[int]:
    """The number of layers of each pipeline stage. The remainder goes to the stages before the last, one layer each, the later stages first.

    V0 gives all of it to the last stage.
    """
    if pp > layers:
        raise UsageError(f"pp {pp} is more than the model's {layers} layers.", hint="Use a smaller pp.")
    counts = [layers // pp] * pp
    if rules.stage_remainder == "last":
        counts[-1] += layers % pp
    else:
        for back in range(2, layers % pp + 2):
            counts[-back] += 1
    return counts


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
    whole_chunks = rules.chunks == "whole" and any(isinstance(spec, ChunkSpec) for spec in specs)
    chosen = _promoted(specs, rules) if not hybrid or not rules.groups_layers or whole_chunks else list(specs)
    distinct, pages = set(chosen), {spec.page for spec in chosen}
    alike = len({spec.family for spec in distinct}) == 1 and (rules.sums_page_sizes or len(pages) == 1)
    if len(distinct) == 1 or alike:
        return [_group(range(len(caches.sorts)), chosen, caches)]
    if packed and len(pages) > 1:
        return _packed(chosen, caches, rules) if rules.packed == "pages" else _tuples(chosen, caches)
    unified = {spec: spec.widened(max(pages), rules) for spec in distinct}
    of_one_size = [unified[spec] for spec in chosen]
    if None not in of_one_size:
        return _uniform_page([spec for spec in of_one_size if spec is not None], caches, rules)
    full = _promoted(chosen, rules) if rules.promotes_latents and any(spec.is_latent for spec in distinct) else chosen
    if len({spec.family for spec in full}) > 1 or not rules.sums_page_sizes:
        raise _unequal_pages()
    return [_group(range(len(caches.sorts)), full, caches)]


def _unequal_pages() -> UnsupportedError:
    return UnsupportedError(
        "vLLM cannot bring the pages of these layers to one size.", hint="Use another --dtype, block size or version."
    )


def _group(members: Sequence[int], specs: Sequence[LayerSpec], caches: Sorted) -> BlockGroup:
    if len(specs) == 1:
        return BlockGroup(tuple(members), (specs[0],) * len(members), (specs[0],))
    sorts = [caches.sorts[member] for member in members]
    distinct = tuple(dict.fromkeys(specs[sort] for sort in dict.fromkeys(sorts)))
    return BlockGroup(tuple(members), tuple([specs[sort] for sort in sorts]), distinct)


def _members(caches: Sorted, sorts: Sequence[int]) -> Sequence[int]:
    """The caches of several sorts, in their order."""
    return caches.members[sorts[0]] if len(sorts) == 1 else sorted(chain.from_iterable(caches.members[sort] for sort in sorts))


def _promoted(specs: Sequence[LayerSpec], rules: Rules) -> list[LayerSpec]:
    """The specs with windowed layers kept whole, as vLLM does without its hybrid KV cache manager."""
    distinct = set(specs)
    if len({spec.family for spec in distinct}) == 1:
        return list(specs)
    sizes = {spec.block_size for spec in distinct if isinstance(spec, FullSpec)}
    size = next(iter(sizes)) if len(sizes) == 1 and (rules.promoted_block or any(spec.is_latent for spec in distinct)) else None
    new = {spec: spec.whole(size) if sizes else spec for spec in distinct}
    # A layer that is kept whole still names its window, and layers of one kind have one (FullAttentionSpec.merge).
    windows = {spec.limit for spec in distinct if type(spec) is WindowSpec}
    ends = not rules.keeps_latent_windows_whole and any(
        spec is not new[spec] for spec in distinct if isinstance(spec, LatentWindowSpec)
    )
    if len({spec.family for spec in new.values()}) > 1 or len(windows) > 1 or ends:
        raise UnsupportedError(
            "vLLM cannot run this model without its hybrid KV cache manager: its layers do not become one kind.",
            hint="Leave out: --engine-option disable_hybrid_kv_cache_manager=true"
            if rules.groups_layers
            else "Use a newer version: --engine vllm",
        )
    return [new[spec] for spec in specs]


def _uniform_page(specs: Sequence[LayerSpec], caches: Sorted, rules: Rules) -> list[BlockGroup]:
    """Groups of equal pages. A group has as many layers as the rarest kind, or as the commonest if that has only a few more."""
    sorts: dict[LayerSpec, list[int]] = {}
    for sort, spec in enumerate(specs):
        sorts.setdefault(spec, []).append(sort)
    buckets = {spec: _members(caches, own) for spec, own in sorts.items()}
    least, most = min(map(len, buckets.values())), max(map(len, buckets.values()))
    size = least
    if most > least:
        from fractions import Fraction

        size = most if most < least * Fraction(rules.group_ratio) else least
    groups = []
    for spec, members in buckets.items():
        count = ceil_div(len(members), size)
        for start in range(count):
            # Take every count-th layer, so that each pipeline stage has layers of each group.
            own = tuple(members[start::count] if rules.strided_groups else members[start * size : (start + 1) * size])
            groups.append(BlockGroup(members=own, specs=(spec,) * len(own), distinct=(spec,)))
    return groups


_Pages = dict[tuple[object, ...], dict[int, Sequence[int]]]


def _by_page(families: Sequence[tuple[object, ...]], specs: Sequence[LayerSpec], caches: Sorted) -> _Pages:
    """The caches of each family, by the size of their pages. ``families`` are those of the sorts."""
    buckets: dict[tuple[object, ...], dict[int, list[int]]] = {}
    for sort, (family, spec) in enumerate(zip(families, specs, strict=True)):
        buckets.setdefault(family, {}).setdefault(spec.page, []).append(sort)
    return {family: {page: _members(caches, sorts) for page, sorts in pages.items()} for family, pages in buckets.items()}


def _packed(specs: Sequence[LayerSpec], caches: Sorted, rules: Rules) -> list[BlockGroup]:
    """Groups for pages of different sizes side by side. A family of layers that repeats one pattern is split into groups of equal size."""
    buckets = _by_page([spec.family for spec in specs], specs, caches)
    balanced = {family: len({len(members) for members in pages.values()}) == 1 for family, pages in buckets.items()}
    repeats = {family: max(map(len, pages.values())) for family, pages in buckets.items()}
    floor = max((repeats[family] for family, pages in buckets.items() if balanced[family] and len(pages) > 1), default=0)
    size = _least_padding([repeats[family] for family in buckets if balanced[family]], floor) if floor else 0
    groups = []
    for family, pages in buckets.items():
        count = ceil_div(repeats[family], size) if size and balanced[family] else 1
        if count == 1:
            groups.append(_group(sorted(chain.from_iterable(pages.values())), specs, caches))
        else:
            groups += _strided(pages, count, specs, caches)
    return groups


def _tuples(specs: Sequence[LayerSpec], caches: Sorted) -> list[BlockGroup]:
    """The groups: one of all full layers, and windowed layers in groups of about as many tuples, each of one page of every size.

    A windowed page is as large as the next larger page of a full layer. vLLM asserts that there is one.
    """
    sizes = sorted({spec.page for spec in specs if isinstance(spec, FullSpec)})
    if not sizes or max(spec.page for spec in specs) > sizes[-1]:
        raise _unequal_pages()
    specs = [
        spec if isinstance(spec, FullSpec) else replace(spec, page=next(page for page in sizes if page >= spec.page))
        for spec in specs
    ]
    buckets = _by_page([("full",) if isinstance(spec, FullSpec) else spec.family for spec in specs], specs, caches)
    full = buckets.pop(("full",))
    counts = [max(map(len, pages.values())) for pages in (full, *buckets.values())]
    size = _least_padding(counts, counts[0])
    groups = [_group(sorted(chain.from_iterable(full.values())), specs, caches)]
    for pages in buckets.values():
        if len({len(members) for members in pages.values()}) > 1:  # vLLM asserts that each size has as many layers
            raise _unequal_pages()
        groups += _strided(pages, ceil_div(max(map(len, pages.values())), size), specs, caches)
    return groups


def _strided(pages: Mapping[int, Sequence[int]], count: int, specs: Sequence[LayerSpec], caches: Sorted) -> Iterator[BlockGroup]:
    """``count`` groups of one family; group k has every ``count``-th pattern from k on. A pattern is one layer of each page size."""
    patterns = list(zip(*pages.values(), strict=True))
    return (_group(list(chain.from_iterable(patterns[start::count])), specs, caches) for start in range(count))


def _least_padding(counts: Sequence[int], least: int) -> int:
    """The group size, at least ``least``, to which all counts round up with the least padding; the larger one if two are equal."""
    return min(
        range(max(1, least), max(counts) + 1),
        key=lambda size: (sum(-count % size for count in counts), -size),
        default=least,
    )


_UNCUT: Final[Mapping[int, Step]] = MappingProxyType({})

Sums = tuple[tuple[Stair, ...], ...]
"""Sums of stairs, of which the largest counts."""
StagePages = Sequence[Mapping[int, int]]
"""For each group how many pages of each size, in bytes, its layers have on one stage."""


class BlockDemand(Struct, frozen=True):
    """The blocks of one sequence in all groups, by its tokens. Groups of one rule are one sum of ``stairs``.

    ``largest`` has the other groups, how many there are of each, and their sums, of which the largest counts.
    """

    stairs: tuple[Stair, ...]
    largest: tuple[tuple[int, Sums], ...]

    @classmethod
    def of(cls, groups: Iterable[Sums]) -> Self:
        """The blocks of groups that take so many each."""
        counted = Counter(groups).items()
        return cls(
            stairs=together((count, sums[0]) for sums, count in counted if len(sums) == 1),
            largest=tuple((count, sums) for sums, count in counted if len(sums) > 1),
        )

    def at(self, tokens: int) -> int:
        """Blocks of a sequence of so many tokens; of an array of lengths an array."""
        blocks = stairs_at(self.stairs, tokens)
        for count, sums in self.largest:
            blocks = blocks + count * largest(stairs_at(stairs, tokens) for stairs in sums)
        return blocks


def longest(taken: Callable[[int], int], most: int, bound: int) -> int:
    """The most tokens, up to ``bound``, that take no more than ``most``, which grows with the tokens; 0 if none do."""
    # The bound is mostly a model's context, which mostly fits.
    return bound if bound > 0 and taken(bound) <= most else bisect_right(range(1, bound), most, key=taken)


class RequestBytes(Struct, frozen=True):
    """What requests take. ``kinds`` has one layer of each kind with its blocks; it is a packed layer if there is one.

    The other fields are bytes: ``layers`` of all layers as if packed, ``outer`` what unpacked layers take on top, ``drafts`` of drafts.
    """

    kinds: tuple[tuple[LayerCache, LayerSpec, int], ...]
    layers: int
    outer: int
    drafts: int


class PoolLayout(Record):
    """The groups of one model. ``stage_bytes`` is the size of a block on a rank of each pipeline stage."""

    caches: tuple[LayerCache, ...]
    stages: tuple[int, ...]
    """The pipeline stage of each cache."""
    groups: tuple[BlockGroup, ...]
    block_size: int
    limits: Limits
    rules: Rules
    stage_bytes: tuple[int, ...]
    stage_groups: tuple[tuple[BlockGroup, ...], ...]
    """The groups of each pipeline stage, where stages form their own; else those of the whole model."""
    stage_pages: tuple[StagePages, ...]
    """The pages of the layers of each pipeline stage."""
    packed: bool
    """True if a block has pages of different sizes side by side (DeepSeek-V4)."""
    declared: tuple[LayerSpec, ...]
    """The specs of all caches before they are grouped."""
    encodes: bool
    """True if the model has cross attention, for which blocks are reserved by the longest sequence."""
    model_encoder_tokens: int | None
    """Tokens that cross attention reserves, where the model says so; ``None`` is as many as a batch has."""
    cut: Mapping[int, Step] = _UNCUT
    """Blocks of a request in the caches that a policy cuts, at the one length for which they were counted."""

    @property
    def schedulers(self) -> int:
        """V0 has one for each pipeline stage, with its share of the blocks (core/scheduler.py); V1 has one."""
        return len(self.stage_bytes) if self.rules.engine == "V0" else 1

    def for_length(self, tokens: int, batched_tokens: int) -> PoolLayout:
        """The layout where the longest sequence has ``tokens`` and the largest batch ``batched_tokens``."""
        limits, reserved = self.limits, self.model_encoder_tokens
        if reserved is None:
            # Cross attention reserves as many tokens for the encoder's output as a batch has.
            reserved = max(batched_tokens, tokens) if self.encodes else batched_tokens
        if (batched_tokens, reserved) != (limits.batched_tokens, limits.encoder_tokens):
            limits = replace(limits, batched_tokens=batched_tokens, encoder_tokens=reserved)
        if not self._has_whole_sequences:
            return self if limits is self.limits else replace(self, limits=limits)
        groups, *stages = (
            tuple(group.with_whole_sequences(tokens) for group in groups) for groups in (self.groups, *self.stage_groups)
        )
        return replace(self, limits=limits, groups=groups, stage_groups=tuple(stages))

    @cached_property
    def _has_whole_sequences(self) -> bool:
        return any(spec.block_size == WHOLE_SEQUENCE for group in self.groups for spec in group.distinct)

    def taken(self, count: Callable[[BlockGroup], int]) -> RequestBytes:
        """The bytes of ``count`` blocks of each group on one rank of every stage, added up."""
        kinds, layers, drafts = self._pages
        blocks = [count(group) for group in self.groups]
        packed = sum(layers_of_kind * spec.page * blocks[group] for group, _, spec, layers_of_kind in kinds)
        return RequestBytes(
            kinds=tuple((cache, spec, blocks[group]) for group, cache, spec, _ in kinds),
            layers=packed,
            outer=sum(number * size for number, size in zip(blocks, layers, strict=True)) - packed,
            drafts=sum(number * size for number, size in zip(blocks, drafts, strict=True)),
        )

    @cached_property
    def _pages(self) -> tuple[Sequence[tuple[int, LayerCache, LayerSpec, int]], Sequence[int], Sequence[int]]:
        """A layer of each kind with the number of its group and how many there are of the kind; bytes of a block of layers and of drafts."""
        kinds: dict[tuple[int, str], tuple[int, LayerCache, LayerSpec]] = {}
        counts: Counter[tuple[int, str]] = Counter()
        layers, drafts = [0] * len(self.groups), [0] * len(self.groups)
        for number, group in enumerate(self.groups):
            for member, spec in zip(group.members, group.specs, strict=True):
                cache = self.caches[member]
                if cache.kind < 0:
                    drafts[number] += spec.page
                    continue
                layers[number] += spec.page
                key = (cache.kind, cache.name)
                counts[key] += 1
                if key not in kinds or kinds[key][1].outer:
                    kinds[key] = (number, cache, spec)
        return [(*first, counts[key]) for key, first in kinds.items()], layers, drafts

    def blocks(self, group: BlockGroup, length: int) -> int:
        """Blocks of one request of ``length`` tokens in one group: as many as the member that needs most."""
        if self.cut:
            return int(self.counted(group, length).expected)
        return max(spec.blocks(length, self.limits) for spec in group.distinct)

    def counted(self, group: BlockGroup, length: int) -> Step:
        """The step that explains :meth:`blocks`: that of the member that needs most.

        Members that a policy cuts have a step of their own in ``cut``.
        """
        kept_whole: Sequence[LayerSpec] = group.distinct
        steps: list[Step] = []
        if self.cut:
            members = zip(group.members, group.specs, strict=True)
            kept_whole = list(dict.fromkeys(spec for member, spec in members if member not in self.cut))
            steps = [self.cut[member] for member in group.members if member in self.cut]
        if kept_whole:
            most = kept_whole[0] if len(kept_whole) == 1 else max(kept_whole, key=lambda spec: spec.blocks(length, self.limits))
            steps.append(most.counted(length, self.limits))
        return max(steps, key=lambda counted: counted.expected)

    def total_blocks(self, length: int) -> int:
        """Blocks of one request in all groups together."""
        if self.cut:
            return sum(self.blocks(group, length) for group in self.stage_groups[0])
        return self.demand.at(length)

    @cached_property
    def demand(self) -> BlockDemand:
        """The rule by which :meth:`total_blocks` grows with the length. Under a policy it is known at one length alone."""
        return BlockDemand.of(self.sums(group) for group in self.stage_groups[0])

    def sums(self, group: BlockGroup) -> Sums:
        """The blocks of one sequence in a group, by its tokens: as many as the member that needs most."""
        return tuple(dict.fromkeys(spec.stairs(self.limits) for spec in group.distinct))

    def needed(self, length: int, stage: int) -> int:
        """The bytes of a request of ``length`` tokens by the check before start-up, on a rank of one stage."""
        width = self._checked_widths[stage]
        if width is None:
            return sum(count * spec.page * spec.blocks(length, self.limits) for spec, count in self._declared[stage])
        groups = self._checked_groups
        if groups is self.stage_groups[0]:
            return width * self.total_blocks(length)
        return width * sum(self.blocks(group, length) for group in groups)

    @cached_property
    def _declared(self) -> tuple[tuple[tuple[LayerSpec, int], ...], ...]:
        """The specs of each stage's caches before they are grouped, and how many caches have them."""
        # Told apart by identity: layers of one sort share their spec.
        specs = {id(spec): spec for spec in self.declared}
        counts = Counter(zip(self.stages, map(id, self.declared), strict=True))
        return tuple(
            tuple((specs[spec], count) for (own, spec), count in counts.items() if own == stage)
            for stage in range(len(self.stage_bytes))
        )

    @cached_property
    def _checked_groups(self) -> tuple[BlockGroup, ...]:
        """The groups that the check before start-up counts."""
        if self.rules.check not in ("groups", "tokens"):
            return self.groups[:1]
        return self.stage_groups[0] if self.stage_groups[0] == self.groups else self.groups

    @cached_property
    def _checked_widths(self) -> Sequence[int | None]:
        """The bytes of a block by the check before start-up, on a rank of each stage; ``None`` if it counts layer by layer."""
        if self.rules.check == "layers":
            return [None] * len(self.stage_bytes)
        if self.rules.check == "model":
            return [max(group.block_bytes for group in self.groups)] * len(self.stage_bytes)
        if not self.packed or len(self.groups) == 1 or self.rules.checks_packed_width:
            return self.stage_bytes
        # Groups of full layers come first.
        order = sorted(range(len(self.groups)), key=lambda number: not isinstance(self.groups[number].specs[0], FullSpec))
        return [_tuple_bytes([pages[number] for number in order]) for pages in self.stage_pages]

    def longest_checked(self, budget: int, bound: int, stage: int) -> int:
        """The longest request, up to ``bound`` tokens, that the check before start-up accepts in ``budget`` bytes of a rank of one stage."""
        return longest(lambda length: self.needed(length, stage), budget, bound)


def plan_layout(model: ModelSpec, settings: VllmSettings) -> PoolLayout:
    """The caches of all layers in groups, where a batch is full.

    Raises :class:`~hwcalc.errors.UnsupportedError` for layers that vLLM does not run.
    """
    stack, rules, pp = model.stack_for("vllm"), settings.rules, settings.pp
    builder = SpecBuilder(model, settings, stack)
    outer, stage_sizes = builder.leaves_outer, stage_layers(len(stack), pp, rules)
    built = {(number, False): builder.specs(group.kind) for number, group in enumerate(stack.groups)}
    names = tuple(tuple(name for name, _ in own) for own in built.values())
    placed = model.once(("vllm caches", outer, names), lambda: place_caches(model, names, outer=outer))
    if outer:
        built |= {(number, True): builder.specs(group.kind, outer=True) for number, group in enumerate(stack.groups)}
    drafts = draft_layers(model, settings.speculation)
    of_drafts = [named for kind in drafts for named in builder.specs(kind)]
    specs = [*(built[kind, outer][place][1] for kind, outer, place in placed.sorts), *(spec for _, spec in of_drafts)]
    caches, every, stages = placed.caches, placed.sorted, (0,) * len(placed.caches)
    if pp > 1:
        of_layer = list(chain.from_iterable(map(repeat, range(pp), stage_sizes)))
        stages = tuple([of_layer[cache.layer] for cache in caches])
    if of_drafts:
        # Draft layers are on the last stage, each of a sort of its own.
        caches, stages = (
            (*caches, *(LayerCache(name, -1, -1, outer=False) for name, _ in of_drafts)),
            stages + (pp - 1,) * len(of_drafts),
        )
        every = Sorted.of((*every.sorts, *range(len(placed.sorts), len(specs))), len(specs))
    packed = any(name == "window_latent" for name, _ in chain(of_drafts, *built.values()))
    groups = tuple(form_groups(specs, every, rules, hybrid=settings.hybrid, packed=packed))
    stage_groups = (groups,) * pp
    if rules.groups_by_stage and pp > 1:
        stage_groups = _groups_by_stage(stages, every, specs, settings, packed=packed)
    # Stages have the same groups, or each its own.
    known = {id(own): [_pages(stages, group, pp) for group in own] for own in stage_groups}
    pages = tuple(tuple(each.get(stage, {}) for each in known[id(own)]) for stage, own in enumerate(stage_groups))
    encoder_tokens = None if rules.whole_encoder else model.encoder_tokens
    limits = Limits(
        batches=settings.concurrent_batches,
        batched_tokens=settings.batched_tokens,
        retained=retained_tokens(model, settings.speculation) if rules.retains_for_modules else 0,
        dcp=settings.dcp,
        encoder_tokens=settings.batched_tokens if encoder_tokens is None else encoder_tokens,
    )
    return PoolLayout(
        caches=caches,
        stages=stages,
        groups=groups,
        block_size=builder.block,
        limits=limits,
        rules=rules,
        stage_bytes=tuple(_stage_bytes(*own, rules, packed=packed) for own in zip(pages, stage_groups, strict=True)),
        stage_groups=stage_groups,
        stage_pages=pages,
        packed=packed,
        declared=tuple(map(specs.__getitem__, every.sorts)),
        encodes=builder.encodes,
        model_encoder_tokens=encoder_tokens,
    )


def _groups_by_stage(
    stages: Sequence[int], every: Sorted, specs: Sequence[LayerSpec], settings: VllmSettings, *, packed: bool
) -> tuple[tuple[BlockGroup, ...], ...]:
    """The groups of the caches of each stage alone. The releases that group so do not start where two stages have groups of other kinds."""
    stage_groups = []
    for stage in range(settings.pp):
        members = [number for number, own in enumerate(stages) if own == stage]
        numbers = {sort: number for number, sort in enumerate(dict.fromkeys(every.sorts[member] for member in members))}
        part = Sorted.of([numbers[every.sorts[member]] for member in members], len(numbers))
        groups = form_groups([specs[sort] for sort in numbers], part, settings.rules, hybrid=settings.hybrid, packed=packed)
        stage_groups.append(tuple(replace(group, members=tuple(members[index] for index in group.members)) for group in groups))
    kinds = [
        sorted((spec.form, spec.block_size, spec.page) for spec in (group.specs[0] for group in own)) for own in stage_groups
    ]
    if any(one != other for own in kinds[1:] for one, other in zip(kinds[0], own, strict=False)):
        raise UsageError(
            "This release forms groups of layers on each pipeline stage, and those of two stages differ.",
            hint="Use another --pp, or --engine vllm@0.11",
        )
    return tuple(stage_groups)


def _pages(stages: Sequence[int], group: BlockGroup, count: int) -> Mapping[int, Mapping[int, int]]:
    """Stage -> bytes of a page -> the number of such pages that the layers of a group have there."""
    if count == len(group.distinct) == 1:
        return {0: {group.distinct[0].page: len(group.members)}}
    own = map(stages.__getitem__, group.members)
    if len(group.distinct) == 1:
        return {stage: {group.distinct[0].page: pages} for stage, pages in Counter(own).items()}
    found: dict[int, dict[int, int]] = {}
    for (stage, page), pages in Counter(zip(own, [spec.page for spec in group.specs], strict=True)).items():
        found.setdefault(stage, {})[page] = pages
    return found


def _stage_bytes(pages: StagePages, groups: Sequence[BlockGroup], rules: Rules, *, packed: bool) -> int:
    """The bytes of a block on a rank of one stage: those of the widest group."""
    if len(groups) == 1 and len(groups[0].distinct) > 1 and not rules.cuts_mixed_group:
        return groups[0].block_bytes
    if not packed or len(groups) == 1 or rules.packed == "pages":
        return max(map(bytes_of_pages, pages), default=0)
    if rules.packed == "slots":
        return sum(page * count for page, count in _slots(pages).items())
    return _tuple_bytes(pages)


def bytes_of_pages(pages: Mapping[int, int]) -> int:
    """The bytes of so many pages of each size."""
    return sum(page * count for page, count in pages.items())


def _slots(pages: StagePages) -> dict[int, int]:
    """Bytes of a page -> the most pages of this size that any group has."""
    most: dict[int, int] = {}
    for own in pages:
        for page, count in own.items():
            most[page] = max(count, most.get(page, 0))
    return most


def _tuple_bytes(pages: StagePages) -> int:
    """Bytes of as many tuples, of one page of each size of the first group, as there are layers with pages of one size."""
    return sum(pages[0]) * max(_slots(pages).values(), default=0)


def pool_buffers(layout: PoolLayout, blocks: int, stage: int) -> tuple[Allocation, ...]:
    """The int8 buffers of a rank of pipeline stage ``stage`` (from 0), of ``blocks`` pages each. Their pages add up to a block.

    Two groups of three layers share three buffers: the first layers of both groups are in the first buffer, and so on. A block belongs to
    only one group at a time, so the layers do not conflict. If a block has pages of different sizes side by side (DeepSeek-V4), the pool
    is a single buffer. Source: vLLM 0.33, v1/core/kv_cache_planning.py (KVCacheTensor.shared_by) and v1/worker/gpu/attn_utils.py.
    """
    width = layout.stage_bytes[stage] if stage < len(layout.stage_bytes) else 0
    if not width or not blocks:
        return ()
    pages: list[int] = []
    layers: list[list[int]] = []
    for group in layout.groups:
        local = [
            (spec.page, layout.caches[member].layer)
            for member, spec in zip(group.members, group.specs, strict=True)
            if layout.stages[member] == stage
        ]
        for place, (page, layer) in enumerate(local):
            if place == len(pages):
                pages.append(0)
                layers.append([])
            pages[place] = max(pages[place], page)
            layers[place].append(layer)
    names, sizes = [f"pool.{place}" for place in range(len(pages))], pages
    if sum(pages) != width:
        # The pages of the groups do not match one by one, so the groups share whole blocks.
        names, sizes, layers = ["pool"], [width], [[]]
    return tuple(
        Allocation(
            name=name,
            layer=own[0] if len(own) == 1 else -1,
            dtype="int8",
            shape=(blocks, page),
            bytes=blocks * page,
            blocks=blocks,
        )
        for name, page, own in zip(names, sizes, layers, strict=True)
    )
