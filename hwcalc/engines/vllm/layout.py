"""The layer caches of a model in groups, and the blocks that a request takes from the pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import Final, NamedTuple

from hwcalc.engines.steps import Step
from hwcalc.engines.vllm.builder import SpecBuilder
from hwcalc.engines.vllm.counts import BlockCounts, longest
from hwcalc.engines.vllm.drafts import draft_layers
from hwcalc.engines.vllm.groups import BlockGroup, form_groups
from hwcalc.engines.vllm.placed import LayerCache, Sorted, place_caches, sorts_of_layers, stage_layers
from hwcalc.engines.vllm.rules import Rules
from hwcalc.engines.vllm.settings import VllmSettings
from hwcalc.engines.vllm.specs import FullSpec, LayerSpec, Limits
from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.model import ModelSpec

__all__ = ["PoolLayout", "RequestBytes", "bytes_of_pages", "plan_layout"]

_UNCUT: Final[Mapping[int, Step]] = MappingProxyType({})


StagePages = Sequence[Mapping[int, int]]
"""For each group how many pages of each size, in bytes, its layers have on one stage."""


class RequestBytes(NamedTuple):
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


class _Pages(NamedTuple):
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
    depends_on_length: bool
    """Whether the layout changes with the longest sequence. It does for encoders, and for states with one block per sequence."""
    cut: Mapping[int, Step] = _UNCUT
    """Blocks of a request in the caches that a policy cuts, at the one length for which they were counted."""

    @property
    def schedulers(self) -> int:
        """V0 has one for each pipeline stage, with its share of the blocks (core/scheduler.py); V1 has one."""
        return len(self.stage_bytes) if self.rules.engine == "V0" else 1

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
        """How :meth:`blocks` comes about, by the member that needs most."""
        if not self.cut:
            most = (
                group.distinct[0]
                if len(group.distinct) == 1
                else max(group.distinct, key=lambda spec: spec.blocks(length, self.limits))
            )
            return most.counted(length, self.limits)
        uncut = {spec: None for member, spec in zip(group.members, group.specs, strict=True) if member not in self.cut}
        found = [self.cut[member] for member in group.members if member in self.cut]
        if uncut:
            found.append(max(uncut, key=lambda spec: spec.blocks(length, self.limits)).counted(length, self.limits))
        return max(found, key=lambda counted: counted.expected)

    def total_blocks(self, length: int) -> int:
        """Blocks of one request in all groups together."""
        if self.cut:
            return sum(self.blocks(group, length) for group in self.stage_groups[0])
        return self.counts.at(length)

    @cached_property
    def counts(self) -> BlockCounts:
        """How :meth:`total_blocks` grows with the length. Under a policy it is known at one length alone."""
        return BlockCounts.of(self.stage_groups[0], self.limits)

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

    def longest(self, blocks: int, bound: int) -> int:
        """The longest request, up to ``bound`` tokens, that fits into ``blocks`` blocks; 0 if none fits."""
        if self.cut:
            return longest(lambda length: self.total_blocks(length) <= blocks, bound)
        return self.counts.longest(blocks, bound)

    def longest_checked(self, budget: int, bound: int, stage: int) -> int:
        """As :meth:`longest`, by the check before start-up, in ``budget`` bytes of a rank of one stage."""
        width = self._checked_widths[stage]
        if width is None or self.cut or self._checked_groups is not self.stage_groups[0]:
            return longest(lambda length: self.needed(length, stage) <= budget, bound)
        return self.counts.longest(budget // width, bound) if width else bound


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


def plan_layout(model: ModelSpec, settings: VllmSettings, length: int) -> PoolLayout:
    """Group the caches of all layers. Raises :class:`~hwcalc.errors.UnsupportedError` for layers that vLLM does not run."""
    stack = model.stack_for("vllm")
    builder = SpecBuilder(model, settings, length, stack)
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
        limits=_limits(builder, settings, modules=len(drafts)),
        rules=rules,
        stage_bytes=tuple(_stage_bytes(*own, rules, packed=packed) for own in zip(pages, stage_groups, strict=True)),
        stage_groups=stage_groups,
        stage_pages=pages,
        packed=packed,
        declared=tuple(map(specs.__getitem__, every.sorts)),
        depends_on_length=builder.depends_on_length,
    )


def _groups_of(
    members: Sequence[int], every: Sorted, specs: Sequence[LayerSpec], settings: VllmSettings, *, packed: bool
) -> tuple[BlockGroup, ...]:
    """The groups of these caches alone."""
    sorts, part = every.part(members)
    groups = form_groups([specs[sort] for sort in sorts], part, settings.rules, hybrid=settings.hybrid, packed=packed)
    return tuple(group._replace(members=tuple(members[index] for index in group.members)) for group in groups)


def _limits(builder: SpecBuilder, settings: VllmSettings, *, modules: int) -> Limits:
    return Limits(
        batches=settings.concurrent_batches,
        batched_tokens=settings.batched_tokens,
        retained=settings.speculated - 1 if modules > 1 and settings.speculated > 1 else 0,
        dcp=settings.dcp,
        encoder_tokens=_encoder_tokens(builder, settings),
    )


def _encoder_tokens(builder: SpecBuilder, settings: VllmSettings) -> int:
    """Tokens that cross attention reserves for the encoder's output: as many as a batch has."""
    if not settings.rules.whole_encoder and builder.model.encoder_tokens is not None:
        return builder.model.encoder_tokens
    return max(settings.batched_tokens, builder.length if builder.encodes else 0)


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
