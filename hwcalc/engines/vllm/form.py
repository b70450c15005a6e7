"""The memory of a GPU under vLLM at every length and batch, in the normal form: groups of layers take blocks of one pool.

Blocks are as wide as the widest group, so that the form has one term for each group: Gemma-3 has six windowed groups and a full one, and
each takes so many blocks of the same bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import product
from typing import TYPE_CHECKING, Final, Self

from msgspec import Struct
from msgspec.structs import asdict

from hwcalc.engines.forms import ENDS, Amount, Asked, AskedCurve, Blocks, Constant, Curve, Early, MemoryForm, PartForm, Term
from hwcalc.engines.setup import Load
from hwcalc.engines.vllm.memory import follows_batch
from hwcalc.engines.vllm.pool import BlockPool
from hwcalc.engines.vllm.specs import LayerSpec, StateSpec, ceil_div
from hwcalc.formulas import LayerNumbers
from hwcalc.formulas.record import Record
from hwcalc.formulas.stairs import Stair

if TYPE_CHECKING:
    from hwcalc.engines.memory import Budget, BudgetPart
    from hwcalc.engines.vllm.deployment import VllmDeployment
    from hwcalc.engines.vllm.layout import BlockGroup, PoolLayout, Sums

LIMITED_BY: Final = "max_num_seqs"
"""What limits the sequences that run at once, whatever the memory."""
_MOST_KEPT: Final = 65_536
"""Lengths of which the parts are kept at a time: as many as a sweep asks about at once."""


class SequencePool(Record):
    """The blocks of a budget, for sequences that take ``blocks_of`` their tokens each."""

    pool: BlockPool
    blocks_of: Callable[[int], int]

    def hold(self, budget_bytes: int, tokens: int, sequences: int) -> bool:
        """Whether so many sequences of a replica fit."""
        return self.pool.holds(budget_bytes, ceil_div(sequences, self.pool.schedulers) * self.blocks_of(tokens))


def plan_form(deployment: VllmDeployment) -> MemoryForm | None:
    """The memory form for sequences that are alike and keep every token; ``None`` if there is none.

    There is none where the budget is unknown, or where vLLM checks more than its blocks before it starts.
    """
    hardware, layout, settings = deployment.setup.hardware, deployment.layout, deployment.settings
    curve, given = deployment.curve, hardware.kv_memory
    budget = deployment.at(Load(seq=settings.full_from)).budget if given is None and hardware.gpu is not None else None
    if curve is None or (budget is None and given is None) or not deployment.checks_blocks:
        return None
    pool = deployment.block_pool
    blocks, pools = Blocks(), None
    if pool is not None and pool.override is None and pool.schedulers == 1 and not layout.encodes:
        blocks = Blocks(bytes=pool.block_bytes, null=pool.null_blocks)
    elif pool is not None:
        pools = SequencePool(pool=pool, blocks_of=deployment.blocks_of)
    size = given or 0
    return MemoryForm(
        curve=curve,
        parts=() if budget is None else _parts(deployment, budget),
        usable=(size, size, size) if budget is None else budget.usable,
        total_bytes=size if budget is None else budget.total_bytes,
        blocks=blocks,
        pools=pools,
        most_sequences=settings.sequences * deployment.setup.parallel.dp,
        limited_by=LIMITED_BY,
        dp=deployment.setup.parallel.dp,
    )


def plan_curve(deployment: VllmDeployment) -> Curve:
    """The cache of sequences that are alike and keep everything, at every length."""
    layout, pool, tp = deployment.layout, deployment.block_pool, deployment.setup.parallel.tp
    if pool is None:
        return Curve(gpus=((),), total=())
    width, whole_width = pool.block_bytes, tp * sum(layout.stage_bytes)
    if layout.encodes:
        return AskedCurve(
            one=lambda tokens: width * deployment.blocks_of(tokens),
            whole=lambda tokens: whole_width * deployment.blocks_of(tokens),
        )
    if layout.rules.groups_by_stage and deployment.settings.pp > 1:
        # All stages have as many blocks as the first, in groups of its own layers.
        whole = _groups(layout, whole_width)
    else:
        whole = (*_layers(deployment, tp), *_unused(layout, tp))
    return Curve(gpus=(_groups(layout, width),), total=whole)


def _parts(deployment: VllmDeployment, budget: Budget) -> tuple[PartForm, ...]:
    """The parts of the equation. They follow from the length where a batch is not full, and in V0, whose batch is a whole prompt."""
    before, is_v0 = deployment.settings.full_from, deployment.settings.rules.engine == "V0"
    sizes = lru_cache(maxsize=_MOST_KEPT)(partial(_sizes_at, deployment))

    def amount(part: BudgetPart, end: str) -> Amount:
        def of_length(tokens: int) -> int:
            return sizes(tokens)[part.name, end]

        if is_v0:
            return Asked(rule=of_length, alone=True)
        return Early(before=before, early=of_length, rule=Constant.of(getattr(part, end)))

    def form(part: BudgetPart) -> PartForm:
        if not follows_batch(part) or (before == 1 and not is_v0):
            return PartForm.constant(part)
        low, expected, high = (amount(part, end) for end in ENDS)
        return PartForm(name=part.name, section=part.section.value, low=low, expected=expected, high=high)

    return tuple(map(form, budget.parts))


def _sizes_at(deployment: VllmDeployment, tokens: int) -> Mapping[tuple[str, str], int]:
    """The bytes of the parts by name and end of the range, where the longest sequence has so many tokens."""
    sizes: defaultdict[tuple[str, str], int] = defaultdict(int)
    budget = deployment.at(Load(seq=tokens)).budget
    for part, end in product(() if budget is None else budget.parts, ENDS):
        sizes[part.name, end] += getattr(part, end)
    return sizes


class _Alike(Struct, frozen=True):
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
        return Term(layers=numbers, count=count, rule=_words(self.stairs), **asdict(self))


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


def _layers(deployment: VllmDeployment, tp: int) -> Iterator[Term]:
    """The pages of all layers, on all ranks together, by kinds of layers that grow alike."""
    layout, kinds = deployment.layout, [group.kind.name for group in deployment.plain_stack.groups]
    alike: dict[_Alike, list[int]] = {}
    for group in layout.groups:
        sums, layers = layout.sums(group), defaultdict[tuple[int, LayerSpec], list[int]](list)
        for member, spec in zip(group.members, group.specs, strict=True):
            cache = layout.caches[member]
            layers[cache.kind, spec].append(cache.layer)
        for (kind, spec), numbers in layers.items():
            key = _Alike.of("draft" if kind < 0 else kinds[kind], tp * spec.page, spec, sums)
            alike.setdefault(key, []).extend(numbers)
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
