"""The layer caches of a model in groups, and the blocks that a request takes from the pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Final

from hwcalc.engines.steps import Step
from hwcalc.engines.vllm.builder import SpecBuilder
from hwcalc.engines.vllm.counts import BlockCounts, longest
from hwcalc.engines.vllm.drafts import draft_layers
from hwcalc.engines.vllm.groups import BlockGroup, form_groups
from hwcalc.engines.vllm.rules import Rules
from hwcalc.engines.vllm.settings import VllmSettings
from hwcalc.engines.vllm.specs import FullSpec, LayerSpec, Limits, StateSpec
from hwcalc.errors import UsageError
from hwcalc.formulas import LayerKind, Stack
from hwcalc.formulas.frozen import frozen
from hwcalc.formulas.named import NamedTuple
from hwcalc.model import ModelSpec

__all__ = ["LayerCache", "PoolLayout", "RequestBytes", "plan_layout"]

_BOUNDARY: Final = 2
_UNCUT: Final[Mapping[int, Step]] = MappingProxyType({})
_ATTENTION_FIRST: Final = frozenset({"zamba2"})
"""Model types whose attention is shared by layers, and built before them."""


class LayerCache(NamedTuple):
    """One cache of one layer.

    ``kind`` is the index of the layer's group in the stack. ``layer`` and ``kind`` are -1 for a draft layer. ``outer`` marks a layer
    that turboquant does not pack.
    """

    name: str
    layer: int
    stage: int
    kind: int
    outer: bool


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


@frozen
class PoolLayout:
    """The groups of one model. ``stage_bytes`` is the size of a block on a rank of each pipeline stage."""

    caches: tuple[LayerCache, ...]
    groups: tuple[BlockGroup, ...]
    block_size: int
    limits: Limits
    rules: Rules
    stage_bytes: tuple[int, ...]
    stage_groups: tuple[tuple[BlockGroup, ...], ...]
    """The groups of each pipeline stage, where stages form their own; else those of the whole model."""
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

    def stage_pages(self, stage: int) -> list[list[int]]:
        """The pages of each group's layers on one stage."""
        return _pages(self.caches, self.stage_groups[stage], stage)

    def needed(self, length: int, stage: int) -> int:
        """The bytes of a request of ``length`` tokens by the check before start-up, on a rank of one stage."""
        width = self._checked_widths[stage]
        if width is None:
            own = (spec for cache, spec in zip(self.caches, self.declared, strict=True) if cache.stage == stage)
            return sum(spec.page * spec.blocks(length, self.limits) for spec in own)
        groups = self._checked_groups
        if groups is self.stage_groups[0]:
            return width * self.total_blocks(length)
        return width * sum(self.blocks(group, length) for group in groups)

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
            return max(sum(spec.page for spec in group.specs) for group in self.groups)
        if self.packed and len(self.groups) > 1 and not self.rules.checks_packed_width:
            return _tuple_bytes(self._full_first(self.stage_pages(stage)))
        return self.stage_bytes[stage]

    def _full_first(self, pages: list[list[int]]) -> list[list[int]]:
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
    built = list(_of_layers(builder, stack, settings.pp))
    if model.model_type in _ATTENTION_FIRST:
        built.sort(key=lambda pair: isinstance(pair[1], StateSpec))
    drafts = draft_layers(model, settings.speculation)
    built += _of_drafts(builder, drafts, settings.pp)
    caches, specs = [cache for cache, _ in built], [spec for _, spec in built]
    rules, packed = settings.rules, any(cache.name == "window_latent" for cache in caches)

    def grouped(members: Sequence[int]) -> tuple[BlockGroup, ...]:
        groups = form_groups([specs[member] for member in members], rules, hybrid=settings.hybrid, packed=packed)
        if len(members) == len(specs):
            return tuple(groups)
        return tuple(group._replace(members=tuple(members[index] for index in group.members)) for group in groups)

    groups = grouped(range(len(specs)))
    stage_groups = (groups,) * settings.pp
    if rules.groups_by_stage and settings.pp > 1:
        stages = [[index for index, cache in enumerate(caches) if cache.stage == stage] for stage in range(settings.pp)]
        stage_groups = tuple(grouped(members) for members in stages)
        _check_stages(stage_groups)
    return PoolLayout(
        caches=tuple(caches),
        groups=groups,
        block_size=builder.block,
        limits=_limits(builder, settings, modules=len(drafts)),
        rules=rules,
        stage_bytes=tuple(_stage_bytes(caches, own, stage, rules, packed=packed) for stage, own in enumerate(stage_groups)),
        stage_groups=stage_groups,
        packed=packed,
        declared=tuple(specs),
        depends_on_length=builder.depends_on_length,
    )


def _of_layers(builder: SpecBuilder, stack: Stack, pp: int) -> Iterator[tuple[LayerCache, LayerSpec]]:
    numbers = {group.kind: number for number, group in enumerate(stack.groups)}
    known: dict[tuple[int, bool], tuple[tuple[str, LayerSpec], ...]] = {}
    by_identity: dict[int, int] = {}
    for layer, stage, kinds in _placed(stack, pp, builder.rules):
        outer = builder.leaves_outer and (layer < _BOUNDARY or layer >= len(stack) - _BOUNDARY)
        for kind in kinds:
            # Look up by identity first: layers share their kinds, and comparing kinds is slow.
            number = by_identity.get(id(kind), -1)
            if number < 0:
                number = by_identity[id(kind)] = numbers[kind]
            key = (number, outer)
            if key not in known:
                known[key] = builder.specs(kind, outer=outer)
            for name, spec in known[key]:
                yield LayerCache(name, layer, stage, number, outer), spec


def _of_drafts(builder: SpecBuilder, drafts: Sequence[LayerKind], pp: int) -> Iterator[tuple[LayerCache, LayerSpec]]:
    """The caches of draft layers, which are on the last stage."""
    for kind in drafts:
        for name, spec in builder.specs(kind):
            yield LayerCache(name, -1, pp - 1, -1, outer=False), spec


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


def _placed(stack: Stack, pp: int, rules: Rules) -> Iterator[tuple[int, int, Sequence[LayerKind]]]:
    """Each layer with its pipeline stage. The remainder goes to the stages before the last, one layer each, the later stages first.

    V0 gives all of it to the last stage.
    """
    if pp > len(stack):
        raise UsageError(f"pp {pp} is more than the model's {len(stack)} layers.", hint="Use a smaller pp.")
    counts = [len(stack) // pp] * pp
    if rules.stage_remainder == "last":
        counts[-1] += len(stack) % pp
    else:
        for back in range(2, len(stack) % pp + 2):
            counts[-back] += 1
    layer = 0
    for stage, count in enumerate(counts):
        for _ in range(count):
            yield layer, stage, stack.layers[layer]
            layer += 1


def _stage_bytes(caches: Sequence[LayerCache], groups: Sequence[BlockGroup], stage: int, rules: Rules, *, packed: bool) -> int:
    """The bytes of a block on a rank of one stage: those of the widest group."""
    pages = _pages(caches, groups, stage)
    if len(groups) == 1 and len(groups[0].distinct) > 1 and not rules.cuts_mixed_group:
        return sum(spec.page for spec in groups[0].specs)
    if not packed or len(groups) == 1 or rules.packed == "pages":
        return max((sum(own) for own in pages), default=0)
    if rules.packed == "slots":
        return sum(page * count for page, count in _slots(pages).items())
    return _tuple_bytes(pages)


def _pages(caches: Sequence[LayerCache], groups: Sequence[BlockGroup], stage: int) -> list[list[int]]:
    return [[spec.page for member, spec in zip(*group[:2], strict=True) if caches[member].stage == stage] for group in groups]


def _slots(pages: Sequence[Sequence[int]]) -> dict[int, int]:
    """How many pages of each size the groups have at most."""
    most: dict[int, int] = {}
    for own in map(Counter, pages):
        for page, count in own.items():
            most[page] = max(count, most.get(page, 0))
    return most


def _tuple_bytes(pages: Sequence[Sequence[int]]) -> int:
    """Bytes of as many tuples, of one page of each size of the first group, as there are layers with pages of one size."""
    return sum(set(pages[0])) * max(_slots(pages).values(), default=0)
