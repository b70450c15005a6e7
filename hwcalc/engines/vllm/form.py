"""The memory of a GPU under vLLM in the normal form: groups of layers take blocks of one pool, and everything beside it is constant.

Blocks are as wide as the widest group, so that the form has one term for each group: Gemma-3 has six windowed groups and a full one, and
each takes so many blocks of the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

from hwcalc.engines.forms import ENDS, Blocks, Curve, Early, MemoryForm, PartForm, Term
from hwcalc.engines.setup import UNSHARED
from hwcalc.engines.vllm.asked import BlockPool, FirstParts, Lengths, asked_curve, asked_parts, lengths_of
from hwcalc.engines.vllm.specs import LayerSpec, StateSpec, ceil_div
from hwcalc.formulas import LayerNumbers
from hwcalc.formulas.stairs import Stair

if TYPE_CHECKING:
    from hwcalc.engines.budget import Budget
    from hwcalc.engines.vllm.deployment import VllmOccupancy
    from hwcalc.engines.vllm.groups import BlockGroup
    from hwcalc.engines.vllm.layout import PoolLayout

_Stairs = tuple[tuple[Stair, ...], ...]
"""Sums of stairs, of which the largest counts."""


def plan_form(occupancy: VllmOccupancy) -> MemoryForm | None:
    """The form of the family; ``None`` where more than blocks is asked for before start-up, or the budget is unknown."""
    given, lengths, long = occupancy.request.hardware.kv_memory, lengths_of(occupancy), _long(occupancy)
    curve = _curve(occupancy, lengths)
    budget = long.budget if given is None and occupancy.request.hardware.gpu is not None else None
    if curve is None or not _checks_blocks(long) or (budget is None and given is None):
        return None
    most, limited_by = occupancy.most_sequences() or (None, None)
    layout, settings = long.layout, long.settings
    blocks, pool = Blocks(), None
    if any(layout.stage_bytes):
        null, width = int(layout.rules.engine == "V1"), max(layout.stage_bytes)
        if settings.override is None and layout.schedulers == 1 and _is_regular(layout):
            blocks = Blocks(bytes=width, null=null)
        else:
            pool = BlockPool(
                curve=curve,
                width=width,
                lengths=None if _is_regular(layout) else lengths,
                null=null,
                schedulers=layout.schedulers,
                override=settings.override,
            )
    size = given or 0
    return MemoryForm(
        curve=curve,
        parts=() if budget is None else _parts(occupancy, budget, lengths),
        usable=(size, size, size) if budget is None else budget.usable,
        total_bytes=size if budget is None else budget.total_bytes,
        blocks=blocks,
        pools=pool,
        most_sequences=most,
        limited_by=limited_by,
        dp=occupancy.request.parallel.dp,
    )


def plan_curve(occupancy: VllmOccupancy) -> Curve | None:
    """The cache of the family; ``None`` where not every request takes its own blocks."""
    return _curve(occupancy, lengths_of(occupancy))


def _curve(occupancy: VllmOccupancy, lengths: Lengths) -> Curve | None:
    request, layout = occupancy.request, _long(occupancy).layout
    if request.policy is not None or request.lengths or request.sharing != UNSHARED:
        return None
    if not any(layout.stage_bytes):
        return Curve(gpus=((),), total=())
    if not _is_regular(layout):
        return asked_curve(lengths)
    width = max(layout.stage_bytes)
    if layout.rules.groups_by_stage and occupancy.settings.pp > 1:
        # All stages have as many blocks as the first, in groups of its own layers.
        whole = _groups(layout, occupancy.request.parallel.tp * sum(layout.stage_bytes))
    else:
        whole = (*_layers(_long(occupancy)), *_unused(_long(occupancy)))
    return Curve(gpus=(_groups(layout, width),), total=whole)


def _least(occupancy: VllmOccupancy) -> int:
    """The tokens from which on a batch is full: a shorter one has fewer tokens, and takes less beside the cache."""
    settings = occupancy.settings
    return 1 if settings.full_batch is None else ceil_div(settings.full_batch, settings.sequences)


def _long(occupancy: VllmOccupancy) -> VllmOccupancy:
    """The request, at a length at which a batch is full."""
    return occupancy.sized(seq=max(_least(occupancy), occupancy.tokens))


def _is_regular(layout: PoolLayout) -> bool:
    """Whether the layout, and the batch, are the same at all lengths at which a batch is full."""
    return layout.rules.engine == "V1" and (not layout.depends_on_length or _is_constant(layout))


def _parts(occupancy: VllmOccupancy, budget: Budget, lengths: Lengths) -> tuple[PartForm, ...]:
    """The parts of the equation, which follow from the length in a batch that is not full, or as long as the longest sequence."""
    if not _is_regular(_long(occupancy).layout):
        return asked_parts(lengths)
    least = _least(occupancy)
    parts = tuple(map(PartForm.constant, budget.parts))
    if least == 1:
        return parts
    ends = [{end: FirstParts(occupancy=occupancy, name=part.name, end=end, lengths=least - 1) for end in ENDS} for part in parts]
    return tuple(
        PartForm(
            name=part.name,
            section=part.section,
            low=Early(first=first["low"], rule=part.low),
            expected=Early(first=first["expected"], rule=part.expected),
            high=Early(first=first["high"], rule=part.high),
        )
        for part, first in zip(parts, ends, strict=True)
    )


def _checks_blocks(occupancy: VllmOccupancy) -> bool:
    """Whether the check before start-up asks for no more than the blocks of a request, of as many as there is memory for."""
    layout, rules = occupancy.layout, occupancy.layout.rules
    if occupancy.settings.override is not None and not rules.override_checked:
        return False
    return (rules.check != "model" or occupancy.settings.pp == 1) and (rules.checks_packed_width or not layout.packed)


def _is_constant(layout: PoolLayout) -> bool:
    """Whether only the name of a block depends on the length: a block of all tokens, which holds one state."""
    specs = [spec for group in layout.groups for spec in group.distinct]
    return all(isinstance(spec, StateSpec) and not spec.every for spec in specs)


def _stairs(layout: PoolLayout, group: BlockGroup) -> _Stairs:
    """Blocks of one request in a group: as many as the member that needs most."""
    return tuple(dict.fromkeys(spec.stairs(layout.limits) for spec in group.distinct))


class _Alike(NamedTuple):
    """What the terms of layers have in common that are one."""

    kind: str
    unit_bytes: int
    unit_tokens: int
    stairs: _Stairs

    @classmethod
    def of(cls, kind: str, unit_bytes: int, spec: LayerSpec, stairs: _Stairs) -> Self:
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
        key = _Alike.of(kind, block_bytes, group.specs[0], _stairs(layout, group))
        alike.setdefault(key, []).append(group)
    return tuple(
        key.term([layout.caches[member].layer for group in groups for member in group.members], len(groups))
        for key, groups in alike.items()
    )


def _layers(occupancy: VllmOccupancy) -> Iterator[Term]:
    """The pages of all layers, on all ranks together, by kinds of layers that grow alike."""
    layout, kinds = occupancy.layout, [group.kind.name for group in occupancy.stack.groups]
    alike: dict[_Alike, list[int]] = {}
    for group in layout.groups:
        stairs = _stairs(layout, group)
        for member, spec in zip(group.members, group.specs, strict=True):
            cache = layout.caches[member]
            kind = "draft" if cache.kind < 0 else kinds[cache.kind]
            key = _Alike.of(kind, occupancy.request.parallel.tp * spec.page, spec, stairs)
            alike.setdefault(key, []).append(cache.layer)
    return (key.term(layers, len(layers)) for key, layers in alike.items())


def _unused(occupancy: VllmOccupancy) -> Iterator[Term]:
    """What blocks have beyond the pages of their group: every block is as wide as the widest group of its stage."""
    layout, tp, width = occupancy.layout, occupancy.request.parallel.tp, sum(occupancy.layout.stage_bytes)
    alike: dict[_Alike, int] = {}
    for group in layout.groups:
        unused = width - group.block_bytes
        if unused:
            key = _Alike.of("unused block space", tp * unused, group.specs[0], _stairs(layout, group))
            alike[key] = alike.get(key, 0) + 1
    return (key.term((), count) for key, count in alike.items())


def _words(stairs: _Stairs) -> str:
    sums = [" + ".join(map(_stair_words, each)) for each in stairs]
    return sums[0] if len(sums) == 1 else f"max({', '.join(sums)})"


def _stair_words(stair: Stair) -> str:
    if stair.per == stair.add == stair.most == 1:
        return f"{stair.times:,}"
    blocks = f"ceil(n / {stair.per:,})" if stair.per > 1 else "n"
    return blocks if stair.most is None else f"min({stair.most:,}, {blocks})"
