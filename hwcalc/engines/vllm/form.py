"""The memory of a GPU under vLLM in the normal form: groups of layers take blocks of one pool, and everything beside it is constant.

Blocks are as wide as the widest group, so that the form has one term for each group: Gemma-3 has six windowed groups and a full one, and
each takes so many blocks of the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

from hwcalc.engines.budget import Budget, BudgetPart
from hwcalc.engines.forms import ENDS, Blocks, Curve, Early, MemoryForm, PartForm, Term
from hwcalc.engines.vllm.groups import BlockGroup
from hwcalc.engines.vllm.layout import PoolLayout
from hwcalc.engines.vllm.opened import VllmOpened, of_vllm
from hwcalc.engines.vllm.specs import LayerSpec, StateSpec, ceil_div
from hwcalc.formulas import LayerNumbers
from hwcalc.formulas.frozen import replace
from hwcalc.formulas.named import NamedTuple
from hwcalc.formulas.stairs import Stair

__all__ = ["plan_curve", "plan_form"]

_Stairs = tuple[tuple[Stair, ...], ...]
"""Sums of stairs, of which the largest counts."""


def plan_form(opened: VllmOpened) -> MemoryForm | None:
    """The form of the family; ``None`` where the layout or the batch follows from the length, or the budget is unknown."""
    request, settings = opened.request, opened.settings
    if request.hardware.gpu is None or request.hardware.kv_memory is not None:
        return None
    least = 1 if settings.full_batch is None else ceil_div(settings.full_batch, settings.sequences)
    long = of_vllm(opened.sized(seq=max(least, opened.tokens)))
    curve, layout = plan_curve(long), long.layout
    if curve is None or not _checks_blocks(long):
        return None
    budget = long.budget
    if budget is None:
        return None
    most, limited_by = opened.engine.most_sequences(opened) or (None, None)
    has_cache = any(layout.stage_bytes)
    form = MemoryForm(
        curve=curve,
        parts=tuple(map(PartForm.constant, budget.parts)),
        usable=_usable(budget),
        total_bytes=budget.total_bytes,
        blocks=Blocks(bytes=max(layout.stage_bytes), null=1) if has_cache else Blocks(),
        most_sequences=most,
        limited_by=limited_by,
        dp=request.parallel.dp,
        least_tokens=least,
    )
    # Where more than anybody asks for fits at the least length, no answer lies below it.
    return form if least == 1 or form.holds(least, most or 1, "low") else _with_early(form, long)


def plan_curve(opened: VllmOpened) -> Curve | None:
    """The cache of the family; ``None`` where the layout follows from the length, or not every request takes its own blocks."""
    layout = opened.layout
    if layout.rules.engine == "V0" or opened.request.policy is not None or opened.together.grouped:
        return None
    if layout.depends_on_length and not _is_constant(layout):
        return None
    if not any(layout.stage_bytes):
        return Curve(gpus=((),), total=())
    return Curve(gpus=(_groups(layout),), total=(*_layers(opened), *_unused(opened)))


def _with_early(form: MemoryForm, opened: VllmOpened) -> MemoryForm:
    """The form with its parts at the lengths below the least, at which a batch has fewer tokens; as it is where nothing fits there."""
    budgets = [opened.sized(seq=1).budget]
    if budgets[0] is None or budgets[0].high < 0:
        return form
    budgets += [opened.sized(seq=tokens).budget for tokens in range(2, form.least_tokens)]
    early = zip(*(budget.parts for budget in budgets if budget is not None), strict=True)
    parts = tuple(_early(part, first) for part, first in zip(form.parts, early, strict=True))
    return replace(form, parts=parts, least_tokens=1)


def _early(part: PartForm, first: tuple[BudgetPart, ...]) -> PartForm:
    ends = {end: Early(first=tuple(getattr(one, end) for one in first), rule=getattr(part, end)) for end in ENDS}
    others = {end: early for end, early in ends.items() if set(early.first) != {early.rule.at(1, 1)}}
    return replace(part, **others) if others else part


def _checks_blocks(opened: VllmOpened) -> bool:
    """Whether the check before start-up asks for no more than the blocks of a request, of as many as there is memory for."""
    layout, rules = opened.layout, opened.layout.rules
    if opened.settings.override is not None:
        return False
    checks_blocks = rules.check in ("groups", "first") or (rules.check == "model" and opened.settings.pp == 1)
    return checks_blocks and (rules.checks_packed_width or not layout.packed)


def _is_constant(layout: PoolLayout) -> bool:
    """Whether only the name of a block depends on the length: a block of all tokens, which holds one state."""
    specs = [spec for group in layout.groups for spec in group.distinct]
    return all(isinstance(spec, StateSpec) and not spec.every for spec in specs)


def _usable(budget: Budget) -> tuple[int, int, int]:
    """What each end of the budget is made of: the low end takes every part at its high end."""
    parts = budget.parts
    return (
        budget.low + sum(part.high for part in parts),
        budget.expected + sum(part.expected for part in parts),
        budget.high + sum(part.low for part in parts),
    )


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


def _groups(layout: PoolLayout) -> tuple[Term, ...]:
    """A term for all groups that grow alike. A unit is a block of the pool, on a rank of the stage whose blocks are widest."""
    alike: dict[_Alike, list[BlockGroup]] = {}
    for group in layout.stage_groups[0]:
        kind = "+".join(dict.fromkeys(spec.form for spec in group.specs))
        key = _Alike.of(kind, max(layout.stage_bytes), group.specs[0], _stairs(layout, group))
        alike.setdefault(key, []).append(group)
    return tuple(
        key.term([layout.caches[member].layer for group in groups for member in group.members], len(groups))
        for key, groups in alike.items()
    )


def _layers(opened: VllmOpened) -> Iterator[Term]:
    """The pages of all layers, on all ranks together, by kinds of layers that grow alike."""
    layout, kinds = opened.layout, [group.kind.name for group in opened.stack.groups]
    alike: dict[_Alike, list[int]] = {}
    for group in layout.groups:
        stairs = _stairs(layout, group)
        for member, spec in zip(group.members, group.specs, strict=True):
            cache = layout.caches[member]
            kind = "draft" if cache.kind < 0 else kinds[cache.kind]
            key = _Alike.of(kind, opened.request.parallel.tp * spec.page, spec, stairs)
            alike.setdefault(key, []).append(cache.layer)
    return (key.term(layers, len(layers)) for key, layers in alike.items())


def _unused(opened: VllmOpened) -> Iterator[Term]:
    """What blocks have beyond the pages of their group: every block is as wide as the widest group of its stage."""
    layout, tp, width = opened.layout, opened.request.parallel.tp, sum(opened.layout.stage_bytes)
    alike: dict[_Alike, int] = {}
    for group in layout.groups:
        unused = width - sum(spec.page for spec in group.specs)
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
