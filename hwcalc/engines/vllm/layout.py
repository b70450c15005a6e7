"""A model's layer caches in their groups, and what one request takes of the pool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from hwcalc.engines.vllm.builder import SpecBuilder
from hwcalc.engines.vllm.drafts import draft_layers
from hwcalc.engines.vllm.groups import BlockGroup, form_groups
from hwcalc.engines.vllm.settings import VllmSettings
from hwcalc.engines.vllm.specs import LayerSpec, Limits
from hwcalc.errors import UnsupportedError
from hwcalc.formulas import LayerKind, Stack
from hwcalc.formulas.frozen import frozen
from hwcalc.model import ModelSpec

__all__ = ["HeldBytes", "LayerCache", "PoolLayout", "plan_layout"]

_BOUNDARY: Final = 2


class LayerCache(NamedTuple):
    """One cache of one layer.

    ``kind`` is the place of its kind among the stack's groups, ``layer`` and ``kind`` are -1 for a draft's; ``outer`` marks a layer
    that turboquant leaves alone.
    """

    name: str
    layer: int
    stage: int
    kind: int
    outer: bool


class HeldBytes(NamedTuple):
    """``kinds`` has one layer of each with its blocks: a packed one, where outer layers are not. The rest are bytes of one request:
    of all layers as if packed, what outer layers take beyond that, of drafts.
    """

    kinds: tuple[tuple[LayerCache, LayerSpec, int], ...]
    layers: int
    outer: int
    drafts: int


@frozen
class PoolLayout:
    """Groups of one model. ``stage_bytes`` is what a block takes on each pipeline stage's ranks."""

    caches: tuple[LayerCache, ...]
    groups: tuple[BlockGroup, ...]
    block_size: int
    limits: Limits
    stage_bytes: tuple[int, ...]
    depends_on_length: bool
    """Whether another longest sequence would be laid out otherwise: a state that has one block for a whole sequence, an encoder."""

    def held(self, length: int) -> HeldBytes:
        """What one request of ``length`` tokens holds on one rank of each stage, by kind."""
        kinds: dict[tuple[int, str], tuple[LayerCache, LayerSpec, int]] = {}
        counts: dict[tuple[int, str], int] = {}
        whole = drafts = 0
        for group in self.groups:
            blocks = self.blocks(group, length)
            for member, spec in zip(group.members, group.specs, strict=True):
                cache = self.caches[member]
                if cache.kind < 0:
                    drafts += blocks * spec.page
                    continue
                whole += blocks * spec.page
                key = (cache.kind, cache.name)
                counts[key] = counts.get(key, 0) + 1
                if key not in kinds or kinds[key][0].outer:
                    kinds[key] = (cache, spec, blocks)
        plain = sum(count * kinds[key][1].page * kinds[key][2] for key, count in counts.items())
        return HeldBytes(kinds=tuple(kinds.values()), layers=plain, outer=whole - plain, drafts=drafts)

    def blocks(self, group: BlockGroup, length: int) -> int:
        """Blocks of one request of ``length`` tokens in one group: those of the member that needs most."""
        return max(spec.blocks(length, self.limits) for spec in group.distinct)

    def total_blocks(self, length: int) -> int:
        """Blocks of one request in all groups; each group draws on the one pool."""
        return sum(self.blocks(group, length) for group in self.groups)

    def longest(self, blocks: int, bound: int) -> int:
        """The longest request up to ``bound`` tokens that fits ``blocks``, 0 if none does; by halving."""
        low, high = 0, bound
        while low < high:
            middle = (low + high + 1) // 2
            if self.total_blocks(middle) <= blocks:
                low = middle
            else:
                high = middle - 1
        return low


def plan_layout(model: ModelSpec, settings: VllmSettings, length: int) -> PoolLayout:
    """Every layer's caches, grouped. Raises :class:`~hwcalc.errors.UnsupportedError` for what vLLM has no layers for."""
    stack = model.stack_for("vllm")
    builder = SpecBuilder(model, settings, length, stack)
    built = list(_of_layers(builder, stack, settings.pp))
    drafts = draft_layers(model, settings.speculation)
    built += _of_drafts(builder, drafts, settings.pp)
    caches, specs = [cache for cache, _ in built], [spec for _, spec in built]
    groups = form_groups(specs, hybrid=settings.hybrid, packed=any(cache.name == "window_latent" for cache in caches))
    return PoolLayout(
        caches=tuple(caches),
        groups=tuple(groups),
        block_size=builder.block,
        limits=_limits(builder, settings, modules=len(drafts)),
        stage_bytes=_stage_bytes(caches, groups, settings.pp),
        depends_on_length=builder.depends_on_length,
    )


def _of_layers(builder: SpecBuilder, stack: Stack, pp: int) -> Iterator[tuple[LayerCache, LayerSpec]]:
    numbers = {group.kind: number for number, group in enumerate(stack.groups)}
    known: dict[tuple[int, bool], tuple[tuple[str, LayerSpec], ...]] = {}
    by_identity: dict[int, int] = {}
    for layer, stage, kinds in _placed(stack, pp):
        outer = builder.leaves_outer and (layer < _BOUNDARY or layer >= len(stack) - _BOUNDARY)
        for kind in kinds:
            # By identity first: layers share their kinds, and comparing those costs more than all the rest.
            number = by_identity.get(id(kind), -1)
            if number < 0:
                number = by_identity[id(kind)] = numbers[kind]
            key = (number, outer)
            if key not in known:
                known[key] = builder.specs(kind, outer=outer)
            for name, spec in known[key]:
                yield LayerCache(name, layer, stage, number, outer), spec


def _of_drafts(builder: SpecBuilder, drafts: Sequence[LayerKind], pp: int) -> Iterator[tuple[LayerCache, LayerSpec]]:
    """On the last stage."""
    for kind in drafts:
        for name, spec in builder.specs(kind):
            yield LayerCache(name, -1, pp - 1, -1, outer=False), spec


def _limits(builder: SpecBuilder, settings: VllmSettings, *, modules: int) -> Limits:
    return Limits(
        in_flight=settings.in_flight,
        retained=settings.speculated - 1 if modules > 1 and settings.speculated > 1 else 0,
        dcp=settings.dcp,
        encoder_tokens=max(settings.batched_tokens, builder.length if builder.encodes else 0),
    )


def _placed(stack: Stack, pp: int) -> Iterator[tuple[int, int, Sequence[LayerKind]]]:
    """Layers with their pipeline stage. What does not divide goes one each to the stages before the last, last first."""
    if pp > len(stack):
        raise UnsupportedError(f"pp {pp} is more than the model's {len(stack)} layers.", hint="Use a smaller pp.")
    counts = [len(stack) // pp] * pp
    for back in range(2, len(stack) % pp + 2):
        counts[-back] += 1
    layer = 0
    for stage, count in enumerate(counts):
        for _ in range(count):
            yield layer, stage, stack.layers[layer]
            layer += 1


def _stage_bytes(caches: Sequence[LayerCache], groups: Sequence[BlockGroup], pp: int) -> tuple[int, ...]:
    widest = [0] * pp
    for group in groups:
        sums = [0] * pp
        for member, spec in zip(group.members, group.specs, strict=True):
            sums[caches[member].stage] += spec.page
        widest = [max(pair) for pair in zip(widest, sums, strict=True)]
    return tuple(widest)
