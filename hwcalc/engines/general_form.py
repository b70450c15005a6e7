"""The normal form of a general engine: what it stores for each layer, and its memory equation, as functions of length and batch.

A tensor says itself how its positions follow from the length (:meth:`Span.stairs`) and what a position takes; a part of the equation has
its rule in :attr:`BudgetPart.grows`. So the form is made of what the plan is made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from hwcalc.engines.base import Opened
from hwcalc.engines.budget import BudgetPart
from hwcalc.engines.calibration import calibrated, measured_passes
from hwcalc.engines.encoder import follows_output
from hwcalc.engines.forms import Constant, Curve, Largest, Measured, MemoryForm, PartForm, Term
from hwcalc.engines.ranks import DEALT
from hwcalc.engines.request import UNSHARED
from hwcalc.engines.stored import StoredTensor
from hwcalc.formulas import LayerKind, LayerNumbers
from hwcalc.formulas.hybrid import Group
from hwcalc.formulas.stairs import Stair

__all__ = ["general_curve", "general_form", "growing"]

Stairs: TypeAlias = tuple[Stair, ...]


def general_form(opened: Opened, chunk: int | None) -> MemoryForm | None:
    """The form of a request to a general engine; ``None`` if it has none. A forward pass is expected to take ``chunk`` tokens at most."""
    request = opened.request
    if request.hardware.gpu is None or request.hardware.kv_memory is not None:
        return None
    curve = opened.engine.curve(opened)
    if curve is None or opened.budget is None:
        return None
    limit = opened.engine.most_sequences(opened)
    return MemoryForm(
        curve=curve,
        parts=_parts(opened, chunk),
        usable=opened.budget.usable,
        total_bytes=opened.budget.total_bytes,
        most_sequences=None if limit is None else limit[0],
        limited_by=None if limit is None else limit[1],
        dp=request.parallel.dp,
        crests=tuple(sorted(opened.engine.periods(opened))),
    )


def _parts(opened: Opened, chunk: int | None) -> tuple[PartForm, ...]:
    """The parts of the equation, with what was measured in their place."""
    request, about = opened.request, (opened.engine.name, opened.model.id)
    estimated = opened.with_request(request.changed(calibrated=False)).budget
    assert estimated is not None
    # No forward pass has no tokens: what is measured at some sizes only comes below.
    parts = calibrated(*about, request, estimated.parts, tokens=0, rows=0).value
    passes = measured_passes(*about, request, parts)
    return tuple(_part(part, chunk, passes.get(part.name, ())) for part in parts)


def _part(part: BudgetPart, chunk: int | None, readings: tuple[tuple[int, int, int], ...]) -> PartForm:
    amounts = part.grows or map(Constant.of, (part.low, part.expected, part.high))
    low, expected, high = (Measured(rule=each, chunk=chunk, readings=readings) if readings else each for each in amounts)
    return PartForm(name=part.name, section=part.section.value, low=low, expected=expected, high=high)


def general_curve(opened: Opened, gpus: Iterable[tuple[Group, ...]]) -> Curve | None:
    """The cache of a request to a general engine, with these layers on each GPU that differs.

    ``None`` if the bytes of a tensor are no product, or what exists once is not the same on each GPU; nor has a policy, a draft, or
    sequences of unlike lengths a curve.
    """
    request = opened.request
    if request.policy is not None or request.lengths or request.sharing != UNSHARED or request.draft is not None:
        return None
    held, ranked, extras = opened.kind_tensors, opened.rank_tensors, opened.replica.extras
    stored = [tensor for tensors in (*held.values(), *ranked.values(), extras, opened.extras) for tensor in tensors]
    dcp = opened.request.parallel.dcp
    if any(tensor.position_bytes is None or _stairs(opened, tensor, dcp) is None for tensor in stored):
        return None
    once = {_once(groups, ranked) for groups in gpus}
    if len(once) > 1:
        return None
    return Curve(
        gpus=tuple(dict.fromkeys((*_terms(opened, groups, ranked, dcp), *_outside(opened, extras)) for groups in gpus)),
        total=(*_terms(opened, opened.stack.groups, held), *_outside(opened, opened.extras)),
        once_bytes=once.pop() + sum(tensor.bytes for tensor in extras if tensor.once),
        total_once_bytes=_once(opened.stack.groups, held) + sum(tensor.bytes for tensor in opened.extras if tensor.once),
    )


def _once(groups: Iterable[Group], stored: Mapping[LayerKind, tuple[StoredTensor, ...]]) -> int:
    return sum(group.count * tensor.bytes for group in groups for tensor in stored[group.kind] if tensor.once)


def _stairs(opened: Opened, tensor: StoredTensor, dcp: int = 1) -> Stairs | None:
    """The positions of a tensor on the fullest of the ranks that share its tokens; ``None`` if they are no stairs."""
    stairs = tensor.span.stairs(None if follows_output(opened.model, opened.request) else opened.encoder_tokens)
    if dcp == 1 or tensor.role not in DEALT:
        return stairs
    shared = stairs[0].shared(dcp) if len(stairs) == 1 else None
    return None if shared is None else (shared,)


def _terms(
    opened: Opened, groups: Iterable[Group], stored: Mapping[LayerKind, tuple[StoredTensor, ...]], dcp: int = 1
) -> tuple[Term, ...]:
    """A term for each way in which tensors of these layers grow."""
    return tuple(
        term
        for group in groups
        for term in _alike(opened, stored[group.kind], dcp, kind=group.kind.name, layers=group.layers, count=group.count)
    )


def _outside(opened: Opened, tensors: Iterable[StoredTensor]) -> tuple[Term, ...]:
    """The terms of tensors that belong to no layer."""
    return _alike(opened, tensors, kind="model", layers=LayerNumbers(), count=1)


def _alike(
    opened: Opened, tensors: Iterable[StoredTensor], dcp: int = 1, *, kind: str, layers: LayerNumbers, count: int
) -> tuple[Term, ...]:
    sizes: dict[Stairs, int] = {}
    rules: dict[Stairs, str] = {}
    for tensor in tensors:
        stairs = _stairs(opened, tensor, dcp)
        if tensor.once or not tensor.position_bytes or not stairs:
            continue
        sizes[stairs] = sizes.get(stairs, 0) + tensor.position_bytes
        rules.setdefault(stairs, tensor.span.text)
    return tuple(
        Term(kind=kind, layers=layers, count=count, unit_bytes=size, stairs=(stairs,), rule=rules[stairs])
        for stairs, size in sizes.items()
    )


def growing(opened: Opened, tensors: Iterable[StoredTensor]) -> Largest | None:
    """The largest of some tensors of the fullest rank, for all sequences of a replica; ``None`` if the bytes of one are no product."""
    found = tuple(tensors)
    if any(tensor.position_bytes is None for tensor in found):
        return None
    terms = (term for tensor in found for term in _alike(opened, (tensor,), kind=tensor.name, layers=LayerNumbers(), count=1))
    return Largest(terms=tuple(dict.fromkeys(terms)))
