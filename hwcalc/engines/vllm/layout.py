"""The layers of a model in the blocks of the pool: where their caches are, their groups, and the blocks that a sequence takes.

Layers of one kind have caches of one sort, and a model of very many layers has few sorts. What follows from a sort is worked out once, and
where the caches lie does not depend on formats or ranks, so that the model keeps it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain, repeat
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Self

from msgspec import Struct
from msgspec.structs import replace

from hwcalc.engines.pool import Allocation
from hwcalc.engines.vllm.groups import BlockGroup, form_groups
from hwcalc.engines.vllm.layer_specs import WHOLE_SEQUENCE, SpecBuilder
from hwcalc.engines.vllm.specs import FullSpec, LayerSpec, Limits
from hwcalc.errors import UsageError
from hwcalc.formulas import CompressedAttention, LatentAttention, LayerKind, SparseIndexer
from hwcalc.formulas.arithmetic import largest
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.record import Record
from hwcalc.formulas.stairs import Stair, stairs_at, together

if TYPE_CHECKING:
    from hwcalc.engines.steps import Step
    from hwcalc.engines.vllm.rules import Rules
    from hwcalc.engines.vllm.settings import Speculation, VllmSettings
    from hwcalc.formulas import Stack
    from hwcalc.model import ModelSpec

_BOUNDARY: Final = 2
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


LayerSort = tuple[int, bool]
"""The index of a kind's group in the stack, and whether the layer is one that turboquant does not pack."""


class Sorted(Struct, frozen=True):
    """The sort of each cache of a sequence, and the caches of each sort by number. Sorts are numbered in order of first appearance."""

    sorts: tuple[int, ...]
    members: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, sorts: Sequence[int], count: int) -> Sorted:
        """Of caches with these sorts, of which there are so many."""
        if count == 1:
            return cls(tuple(sorts), (tuple(range(len(sorts))),))
        members: list[list[int]] = [[] for _ in range(count)]
        for number, sort in enumerate(sorts):
            members[sort].append(number)
        return cls(tuple(sorts), tuple(map(tuple, members)))

    def with_more(self, count: int) -> Sorted:
        """These caches with ``count`` more at the end, each of a sort of its own."""
        sorts, members = len(self.members), len(self.sorts)
        added = tuple((members + number,) for number in range(count))
        return Sorted((*self.sorts, *range(sorts, sorts + count)), (*self.members, *added)) if count else self

    def part(self, members: Sequence[int]) -> tuple[tuple[int, ...], Sorted]:
        """Some of the caches alone, and their sorts as they are numbered here."""
        sorts = [self.sorts[member] for member in members]
        numbers = {sort: number for number, sort in enumerate(dict.fromkeys(sorts))}
        return tuple(numbers), Sorted.of([numbers[sort] for sort in sorts], len(numbers))


class Placed(Struct, frozen=True):
    """The caches of all layers, and what each of their sorts is: the sort of a layer, and which of its caches."""

    caches: tuple[LayerCache, ...]
    sorted: Sorted
    sorts: tuple[tuple[LayerSort, int], ...]

    def stages(self, layers: Sequence[int]) -> tuple[int, ...]:
        """The pipeline stage of each cache, where stages have so many layers."""
        if len(layers) == 1:
            return (0,) * len(self.caches)
        of_layer = list(chain.from_iterable(map(repeat, range(len(layers)), layers)))
        return tuple([of_layer[cache.layer] for cache in self.caches])


class LayerSorts(Struct, frozen=True):
    """The sorts of each layer, and each sort once, in order of first appearance."""

    layers: tuple[tuple[LayerSort, ...], ...]
    distinct: tuple[LayerSort, ...]


def sorts_of_layers(model: ModelSpec, *, outer: bool) -> LayerSorts:
    """The sorts of the model's layers. With ``outer``, turboquant does not pack the first and last ones."""
    return model.once(("vllm sorts", outer), lambda: _sorts_of_layers(model.stack_for("vllm"), outer=outer))


def _sorts_of_layers(stack: Stack, *, outer: bool) -> LayerSorts:
    numbers = {group.kind: number for number, group in enumerate(stack.groups)}
    # Looked up by identity first: layers share their kinds, and comparing kinds is slow.
    known: dict[tuple[int, ...], tuple[LayerSort, ...]] = {}
    layer_sorts = []
    for kinds in stack.layers:
        identity = tuple(map(id, kinds))
        if identity not in known:
            known[identity] = tuple([(numbers[kind], False) for kind in kinds])
        layer_sorts.append(known[identity])
    if outer:
        last = len(layer_sorts) - _BOUNDARY
        layer_sorts = [
            tuple((kind, True) for kind, _ in sorts) if layer < _BOUNDARY or layer >= last else sorts
            for layer, sorts in enumerate(layer_sorts)
        ]
    return LayerSorts(tuple(layer_sorts), tuple(dict.fromkeys(chain.from_iterable(layer_sorts))))


def stage_layers(layers: int, pp: int, rules: Rules) -> list[int]:
    """How many layers each pipeline stage has. The remainder goes to the stages before the last, one layer each, the later stages first.

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


def place_caches(model: ModelSpec, layers: LayerSorts, names: Sequence[tuple[str, ...]]) -> Placed:
    """The caches of all layers. ``names`` are those of the caches of each distinct sort."""
    key = ("vllm caches", layers.distinct, tuple(names))
    return model.once(key, lambda: _place(layers, names, attention_first=model.model_type in _ATTENTION_FIRST))


def _place(layers: LayerSorts, names: Sequence[tuple[str, ...]], *, attention_first: bool) -> Placed:
    of_sort = {
        sort: tuple(((sort, place), (name, *sort)) for place, name in enumerate(own))
        for sort, own in zip(layers.distinct, names, strict=True)
    }
    layer_caches = [(layer, each) for layer, sorts in enumerate(layers.layers) for sort in sorts for each in of_sort[sort]]
    if attention_first:
        layer_caches.sort(key=lambda one: one[1][1][0] == "state")
    numbers = {sort: number for number, sort in enumerate(dict.fromkeys(sort for _, (sort, _) in layer_caches))}
    return Placed(
        tuple([LayerCache(name, layer, kind, outer) for layer, (_, (name, kind, outer)) in layer_caches]),
        Sorted.of([numbers[sort] for _, (sort, _) in layer_caches], len(numbers)),
        tuple(numbers),
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
    return bisect_right(range(1, bound + 1), most, key=taken)


class RequestBytes(Struct, frozen=True):
    """What one request takes. ``kinds`` has one layer of each kind with its blocks; it is a packed layer if there is one.

    The other fields are bytes: ``layers`` of all layers as if packed, ``outer`` what unpacked layers take on top, ``drafts`` of drafts.
    """

    kinds: tuple[tuple[LayerCache, LayerSpec, int], ...]
    layers: int
    outer: int
    drafts: int

    def times(self, requests: int) -> RequestBytes:
        """What so many requests take that have nothing in common."""
        if requests == 1:
            return self
        kinds = tuple((cache, spec, requests * blocks) for cache, spec, blocks in self.kinds)
        return RequestBytes(kinds, requests * self.layers, requests * self.outer, requests * self.drafts)


class _Pages(Struct, frozen=True):
    """The pages of a layout. ``kinds`` has a layer of each kind, with the number of its group and how many layers there are of the kind.

    ``layers`` and ``drafts`` are bytes of a block in each group.
    """

    kinds: tuple[tuple[int, LayerCache, LayerSpec, int], ...]
    layers: tuple[int, ...]
    drafts: tuple[int, ...]


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
    """Whether a block has pages of different sizes side by side (DeepSeek-V4)."""
    declared: tuple[LayerSpec, ...]
    """The specs of all caches before they are grouped."""
    encodes: bool
    """Whether the model has cross attention, for which blocks are reserved by the longest sequence."""
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

    def request_bytes(self, length: int) -> RequestBytes:
        """What one request of ``length`` tokens takes on one rank of every stage, all stages together."""
        return self.taken(lambda group: self.blocks(group, length))

    def taken(self, count: Callable[[BlockGroup], int]) -> RequestBytes:
        """What so many blocks of each group take on one rank of every stage, all stages together."""
        pages = self._pages
        blocks = [count(group) for group in self.groups]
        total = sum(number * size for number, size in zip(blocks, pages.layers, strict=True))
        packed = sum(layers * spec.page * blocks[group] for group, _, spec, layers in pages.kinds)
        return RequestBytes(
            kinds=tuple((cache, spec, blocks[group]) for group, cache, spec, _ in pages.kinds),
            layers=packed,
            outer=total - packed,
            drafts=sum(number * size for number, size in zip(blocks, pages.drafts, strict=True)),
        )

    @cached_property
    def _pages(self) -> _Pages:
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
        return _Pages(tuple((*found, counts[key]) for key, found in kinds.items()), tuple(layers), tuple(drafts))

    def blocks(self, group: BlockGroup, length: int) -> int:
        """Blocks of one request of ``length`` tokens in one group: as many as the member that needs most."""
        if self.cut:
            return int(self.counted(group, length).expected)
        return max(spec.blocks(length, self.limits) for spec in group.distinct)

    def counted(self, group: BlockGroup, length: int) -> Step:
        """The step of :meth:`blocks`, with the formula of the layer that needs most."""
        if not self.cut:
            most = (
                group.distinct[0]
                if len(group.distinct) == 1
                else max(group.distinct, key=lambda spec: spec.blocks(length, self.limits))
            )
            return most.counted(length, self.limits)
        uncut = {spec: None for member, spec in zip(group.members, group.specs, strict=True) if member not in self.cut}
        counted_specs = [self.cut[member] for member in group.members if member in self.cut]
        if uncut:
            counted_specs.append(max(uncut, key=lambda spec: spec.blocks(length, self.limits)).counted(length, self.limits))
        return max(counted_specs, key=lambda counted: counted.expected)

    def total_blocks(self, length: int) -> int:
        """Blocks of one request in all groups together."""
        if self.cut:
            return sum(self.blocks(group, length) for group in self.stage_groups[0])
        return self.demand.at(length)

    @cached_property
    def demand(self) -> BlockDemand:
        """How :meth:`total_blocks` grows with the length. Under a policy it is known at one length alone."""
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
    def _checked_widths(self) -> tuple[int | None, ...]:
        return tuple(map(self._checked_width, range(len(self.stage_bytes))))

    def _checked_width(self, stage: int) -> int | None:
        """The bytes of a block by the check before start-up, on a rank of one stage; ``None`` if it counts layer by layer."""
        if self.rules.check == "layers":
            return None
        if self.rules.check == "model":
            return max(group.block_bytes for group in self.groups)
        if self.packed and len(self.groups) > 1 and not self.rules.checks_packed_width:
            return _tuple_bytes(self._full_first(self.stage_pages[stage]))
        return self.stage_bytes[stage]

    def _full_first(self, pages: StagePages) -> StagePages:
        """The pages of the groups, those of full layers first."""
        return [
            own
            for _, own in sorted(
                zip(self.groups, pages, strict=True), key=lambda pair: not isinstance(pair[0].specs[0], FullSpec)
            )
        ]

    def longest_checked(self, budget: int, bound: int, stage: int) -> int:
        """The longest request, up to ``bound`` tokens, that the check before start-up accepts in ``budget`` bytes of a rank of one stage."""
        return longest(lambda length: self.needed(length, stage), budget, bound)


def _check_stages(stage_groups: Sequence[Sequence[BlockGroup]]) -> None:
    """Raise an error where the groups of two stages are of different kinds: the releases that group by stage do not start then."""
    kinds = [
        sorted((spec.form, spec.block_size, spec.page) for spec in (group.specs[0] for group in own)) for own in stage_groups
    ]
    if any(one != other for own in kinds[1:] for one, other in zip(kinds[0], own, strict=False)):
        raise UsageError(
            "This release forms groups of layers on each pipeline stage, and those of two stages differ.",
            hint="Use another --pp, or --engine vllm@0.11",
        )


def draft_layers(model: ModelSpec, speculation: Speculation | None) -> Sequence[LayerKind]:
    """The kinds of the draft's layers, in order; empty for n-gram lookup."""
    if speculation is None or speculation.method == "ngram":
        return ()
    if speculation.model is not None:
        return [kind for layer in speculation.model.stack_for("vllm") for kind in layer]
    return [kind for _ in range(_modules(model)) for kind in _predictor(model)]


def _modules(model: ModelSpec) -> int:
    if model.facts.mtp_modules is None:
        raise UsageError(
            f"speculative=mtp: the config of {model.id} names no multi-token-prediction layers.", hint="Use: speculative=ngram:N"
        )
    return model.facts.mtp_modules


def _predictor(model: ModelSpec) -> Sequence[LayerKind]:
    """A predicting layer is built like the model's last layer with attention. That of DeepSeek-V4 has only the window."""
    for layer in reversed(model.stack_for("vllm").layers):
        for kind in layer:
            if isinstance(kind, CompressedAttention):
                return [
                    CompressedAttention(num_attention_heads=kind.num_attention_heads, head_dim=kind.head_dim, window=kind.window)
                ]
        kinds: list[LayerKind] = [kind for kind in layer if isinstance(kind, (AttentionKind, LatentAttention))]
        if kinds:
            # It has its own indexer, even if the last layers reuse the selection of an earlier layer.
            groups = model.stack_for("vllm").groups
            return kinds + [group.kind for group in groups if isinstance(group.kind, SparseIndexer)][:1]
    raise UsageError(f"speculative=mtp: {model.id} has no attention layer.", hint="Use: speculative=ngram:N")


def plan_layout(model: ModelSpec, settings: VllmSettings) -> PoolLayout:
    """The caches of all layers in groups. Raises :class:`~hwcalc.errors.UnsupportedError` for layers that vLLM does not run."""
    stack = model.stack_for("vllm")
    builder = SpecBuilder(model, settings, stack)
    rules, pp = settings.rules, settings.pp
    stage_sizes, layers = stage_layers(len(stack), pp, rules), sorts_of_layers(model, outer=builder.leaves_outer)
    built = {sort: builder.specs(stack.groups[sort[0]].kind, outer=sort[1]) for sort in layers.distinct}
    placed = place_caches(model, layers, [tuple(name for name, _ in own) for own in built.values()])
    drafts = draft_layers(model, settings.speculation)
    of_drafts = [named for kind in drafts for named in builder.specs(kind)]
    specs = [*(built[sort][place][1] for sort, place in placed.sorts), *(spec for _, spec in of_drafts)]
    caches = (*placed.caches, *(LayerCache(name, -1, -1, outer=False) for name, _ in of_drafts))
    # Draft layers are on the last stage.
    stages = placed.stages(stage_sizes) + (pp - 1,) * len(of_drafts)
    every = placed.sorted.with_more(len(of_drafts))
    packed = any(name == "window_latent" for name, _ in chain(of_drafts, *built.values()))
    groups = tuple(form_groups(specs, every, rules, hybrid=settings.hybrid, packed=packed))
    stage_groups = (groups,) * pp
    if rules.groups_by_stage and pp > 1:
        stage_groups = tuple(
            _groups_of(own, every, specs, settings, packed=packed)
            for own in ([number for number, own in enumerate(stages) if own == stage] for stage in range(pp))
        )
        _check_stages(stage_groups)
    pages = _pages_of_stages(stages, stage_groups)
    return PoolLayout(
        caches=caches,
        stages=stages,
        groups=groups,
        block_size=builder.block,
        limits=_limits(model, settings, modules=len(drafts)),
        rules=rules,
        stage_bytes=tuple(_stage_bytes(*own, rules, packed=packed) for own in zip(pages, stage_groups, strict=True)),
        stage_groups=stage_groups,
        stage_pages=pages,
        packed=packed,
        declared=tuple(map(specs.__getitem__, every.sorts)),
        encodes=builder.encodes,
        model_encoder_tokens=None if rules.whole_encoder else model.encoder_tokens,
    )


def _groups_of(
    members: Sequence[int], every: Sorted, specs: Sequence[LayerSpec], settings: VllmSettings, *, packed: bool
) -> tuple[BlockGroup, ...]:
    """The groups of these caches alone."""
    sorts, part = every.part(members)
    groups = form_groups([specs[sort] for sort in sorts], part, settings.rules, hybrid=settings.hybrid, packed=packed)
    return tuple(replace(group, members=tuple(members[index] for index in group.members)) for group in groups)


def _limits(model: ModelSpec, settings: VllmSettings, *, modules: int) -> Limits:
    """The limits of a full batch, for a sequence that fits into it."""
    encoder_tokens = None if settings.rules.whole_encoder else model.encoder_tokens
    return Limits(
        batches=settings.concurrent_batches,
        batched_tokens=settings.batched_tokens,
        retained=settings.speculated - 1 if modules > 1 and settings.speculated > 1 else 0,
        dcp=settings.dcp,
        encoder_tokens=settings.batched_tokens if encoder_tokens is None else encoder_tokens,
    )


def _pages_of_stages(stages: Sequence[int], stage_groups: Sequence[Sequence[BlockGroup]]) -> tuple[StagePages, ...]:
    """How many pages of each size the layers of each group have on each stage."""
    # Stages have the same groups, or each its own.
    known = {id(groups): [_pages(stages, group, len(stage_groups)) for group in groups] for groups in stage_groups}
    return tuple(tuple(pages.get(stage, {}) for pages in known[id(groups)]) for stage, groups in enumerate(stage_groups))


def _pages(stages: Sequence[int], group: BlockGroup, count: int) -> Mapping[int, Mapping[int, int]]:
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
    """How many pages of each size the groups have at most."""
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
    if sum(pages) != width:
        # The pages of the groups do not match one by one, so the groups share whole blocks.
        return (_buffer("pool", -1, blocks, width),)
    return tuple(
        _buffer(f"pool.{place}", layers[place][0] if len(layers[place]) == 1 else -1, blocks, page)
        for place, page in enumerate(pages)
    )


def _buffer(name: str, layer: int, blocks: int, page: int) -> Allocation:
    return Allocation(name=name, layer=layer, dtype="int8", shape=(blocks, page), bytes=blocks * page, blocks=blocks)
