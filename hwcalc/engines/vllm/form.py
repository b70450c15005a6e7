"""The memory of a GPU under vLLM in the normal form: groups of layers take blocks of one pool, and everything beside it is constant.

Blocks are as wide as the widest group, so that the form has one term for each group: Gemma-3 has six windowed groups and a full one, and
each takes so many blocks of the same bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import product
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from hwcalc.engines.forms import ENDS, Amount, Asked, AskedCurve, Blocks, Constant, Curve, Early, MemoryForm, PartForm, Term
from hwcalc.engines.vllm.pool import BlockPool, check_asks_for_blocks
from hwcalc.engines.vllm.specs import LayerSpec, StateSpec, ceil_div
from hwcalc.formulas import LayerNumbers
from hwcalc.formulas.record import Record
from hwcalc.formulas.stairs import Stair

if TYPE_CHECKING:
    from hwcalc.engines.budget import Budget, BudgetPart
    from hwcalc.engines.vllm.deployment import VllmOccupancy
    from hwcalc.engines.vllm.groups import BlockGroup
    from hwcalc.engines.vllm.layout import PoolLayout, Sums

_MOST_KEPT: Final = 65_536
"""Lengths of which the parts are kept at a time: as many as a sweep asks about at once."""


class SequencePool(Record):
    """The blocks of a budget, for sequences that take ``blocks_of`` their tokens each."""

    pool: BlockPool
    blocks_of: Callable[[int], int]

    def hold(self, budget_bytes: int, tokens: int, sequences: int) -> bool:
        """Whether so many sequences of a replica fit."""
        return self.pool.holds(budget_bytes, ceil_div(sequences, self.pool.schedulers) * self.blocks_of(tokens))


def plan_form(occupancy: VllmOccupancy) -> MemoryForm | None:
    """The memory at every length and for every number of sequences; ``None`` where more than blocks is asked for before start-up.

    There is none where the budget is unknown, or not every request takes its own blocks.
    """
    deployment, hardware = occupancy.deployment, occupancy.setup.hardware
    given, full = hardware.kv_memory, occupancy.sized(seq=max(deployment.settings.full_from, occupancy.tokens))
    curve = plan_curve(occupancy)
    budget = full.budget if given is None and hardware.gpu is not None else None
    if curve is None or (budget is None and given is None) or not check_asks_for_blocks(deployment.layout, deployment.settings):
        return None
    most, limited_by = occupancy.most_sequences()
    pool = deployment.block_pool
    blocks, pools = Blocks(), None
    if pool is not None and pool.override is None and pool.schedulers == 1 and not deployment.layout.encodes:
        blocks = Blocks(bytes=pool.block_bytes, null=pool.null_blocks)
    elif pool is not None:
        pools = SequencePool(pool=pool, blocks_of=deployment.blocks_of)
    size = given or 0
    return MemoryForm(
        curve=curve,
        parts=() if budget is None else _parts(full, budget),
        usable=(size, size, size) if budget is None else budget.usable,
        total_bytes=size if budget is None else budget.total_bytes,
        blocks=blocks,
        pools=pools,
        most_sequences=most,
        limited_by=limited_by,
        dp=occupancy.setup.parallel.dp,
    )


def plan_curve(occupancy: VllmOccupancy) -> Curve | None:
    """The cache at every length; ``None`` where not every request takes its own blocks."""
    deployment, layout, tp = occupancy.deployment, occupancy.deployment.layout, occupancy.setup.parallel.tp
    if occupancy.setup.policy is not None or not occupancy.load.is_alike:
        return None
    if deployment.block_pool is None:
        return Curve(gpus=((),), total=())
    width, whole_width = deployment.block_pool.block_bytes, tp * sum(layout.stage_bytes)
    if layout.encodes:
        return AskedCurve(
            one=lambda tokens: width * deployment.blocks_of(tokens),
            whole=lambda tokens: whole_width * deployment.blocks_of(tokens),
        )
    if layout.rules.groups_by_stage and deployment.settings.pp > 1:
        # All stages have as many blocks as the first, in groups of its own layers.
        whole = _groups(layout, whole_width)
    else:
        whole = (*_layers(occupancy, layout, tp), *_unused(layout, tp))
    return Curve(gpus=(_groups(layout, width),), total=whole)


def _parts(full: VllmOccupancy, budget: Budget) -> tuple[PartForm, ...]:
    """The parts of the equation. They follow from the length where a batch is not full, and in V0, whose batch is a whole prompt."""
    before, sizes = full.settings.full_from, lru_cache(maxsize=_MOST_KEPT)(partial(_sizes_at, full))

    def amount(part: BudgetPart, end: str) -> Amount:
        def of_length(tokens: int) -> int:
            return sizes(tokens)[part.name, end]

        if full.settings.rules.engine == "V0":
            return Asked(rule=of_length, alone=True)
        rule = Constant.of(getattr(part, end))
        return rule if before == 1 else Early(before=before, early=of_length, rule=rule)

    def form(part: BudgetPart) -> PartForm:
        low, expected, high = (amount(part, end) for end in ENDS)
        return PartForm(name=part.name, section=part.section.value, low=low, expected=expected, high=high)

    return tuple(map(form, budget.parts))


def _sizes_at(occupancy: VllmOccupancy, tokens: int) -> Mapping[tuple[str, str], int]:
    """The bytes of the parts by name and end of the range, where the longest sequence has so many tokens."""
    sizes: defaultdict[tuple[str, str], int] = defaultdict(int)
    budget = occupancy.sized(seq=tokens, batch=1).budget
    for part, end in product(() if budget is None else budget.parts, ENDS):
        sizes[part.name, end] += getattr(part, end)
    return sizes


class _Alike(NamedTuple):
    """What the terms of layers have in common that are one."""

    kind: str
    unit_bytes: int
    unit_tokens: int
    stairs: Sums

    @classmethod
    def of(cls, kind: str, unit_bytes: int, spec: LayerSpec, stairs: Sums) -> Self:
        is_state = isinstance(spec, StateSpec) and not spec.every
        return cls(kind, unit_bytes, 1 if is_state else spec.block_size, stairs)

    def term(self, layers: Sequence[int], count: int) -> Term:
        numbers = LayerNumbers(sorted({layer for layer in layers if layer >= 0}))
        return Term(layers=numbers, count=count, rule=_words(self.stairs), **self._asdict())


def _groups(layout: PoolLayout, block_bytes: int) -> tuple[Term, ...]:
    """A term for all groups that grow alike. A unit is a block of the pool, of so many bytes."""
    alike: dict[_Alike, list[BlockGroup]] = {}
    for group in layout.stage_groups[0]:
        kind = group.form
        key = _Alike.of(kind, block_bytes, group.specs[0], layout.sums(group))
        alike.setdefault(key, []).append(group)
    return tuple(
        key.term([layout.caches[member].layer for group in groups for member in group.members], len(groups))
        for key, groups in alike.items()
    )


def _layers(occupancy: VllmOccupancy, layout: PoolLayout, tp: int) -> Iterator[Term]:
    """The pages of all layers, on all ranks together, by kinds of layers that grow alike."""
    kinds = [group.kind.name for group in occupancy.stack.groups]
    alike: dict[_Alike, list[int]] = {}
    for group in layout.groups:
        sums = layout.sums(group)
        for member, spec in zip(group.members, group.specs, strict=True):
            cache = layout.caches[member]
            kind = "draft" if cache.kind < 0 else kinds[cache.kind]
            key = _Alike.of(kind, tp * spec.page, spec, sums)
            alike.setdefault(key, []).append(cache.layer)
    return (key.term(layers, len(layers)) for key, layers in alike.items())


def _unused(layout: PoolLayout, tp: int) -> Iterator[Term]:
    """What blocks have beyond the pages of their group: every block is as wide as the widest group of its stage."""
    width = sum(layout.stage_bytes)
    alike: dict[_Alike, int] = {}
    for group in layout.groups:
        unused = width - group.block_bytes
        if unused:
            key = _Alike.of("unused block space", tp * unused, group.specs[0], layout.sums(group))
            alike[key] = alike.get(key, 0) + 1
    return (key.term((), count) for key, count in alike.items())


def _words(stairs: Sums) -> str:
    sums = [" + ".join(map(_stair_words, each)) for each in stairs]
    return sums[0] if len(sums) == 1 else f"max({', '.join(sums)})"


def _stair_words(stair: Stair) -> str:
    if stair.per == stair.add == stair.most == 1:
        return f"{stair.times:,}"
    blocks = f"ceil(n / {stair.per:,})" if stair.per > 1 else "n"
    return blocks if stair.most is None else f"min({stair.most:,}, {blocks})"
