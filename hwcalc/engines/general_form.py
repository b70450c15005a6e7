"""The normal form of a general engine: what it stores for each layer, and its memory equation, as functions of length and batch.

A tensor says itself how its positions follow from the length (:meth:`Span.stairs`) and what a position takes; a part of the equation has
its rule in :attr:`BudgetPart.grows`. So the form is made of what the plan is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

from msgspec.structs import asdict

from hwcalc.engines.forms import (
    AskedCurve,
    Blocks,
    Constant,
    Curve,
    Largest,
    Measured,
    MemoryForm,
    PartForm,
    Pool,
    StagedCurve,
    Term,
)
from hwcalc.engines.memory import BudgetPart, calibrated, measured_passes, measurements
from hwcalc.engines.models import follows_output
from hwcalc.engines.stored import DEALT
from hwcalc.formulas import LayerKind, LayerNumbers
from hwcalc.formulas.hybrid import Group
from hwcalc.formulas.stairs import Stair
from hwcalc.profiles.calibration import overheads_kind

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.stored import StoredTensor

Stairs: TypeAlias = tuple[Stair, ...]


def general_form(opened: Occupancy, chunk: int | None) -> MemoryForm | None:
    """The form of a request to a general engine; ``None`` if it has none. A forward pass is expected to take ``chunk`` tokens at most."""
    return form_with(opened, lambda: growing_parts(opened, chunk))


def form_with(
    opened: Occupancy,
    parts: Callable[[], tuple[PartForm, ...] | None] | None = None,
    *,
    blocks: Blocks | None = None,
    pools: Pool | None = None,
    form: type[MemoryForm] = MemoryForm,
) -> MemoryForm | None:
    """The memory form of the cache and of these other parts; ``None`` if the cache has no form, or the budget is unknown.

    By default the parts are those of the budget, of which nothing depends on length or batch. A budget of the user's own has none.
    """
    curve, given = opened.curve(), opened.setup.hardware.kv_memory
    budget = opened.budget if curve is not None and given is None and opened.setup.hardware.gpu is not None else None
    if curve is None or (given is None and budget is None):
        return None
    part_forms: tuple[PartForm, ...] | None = ()
    if budget is not None:
        part_forms = tuple(map(PartForm.constant, budget.parts)) if parts is None else parts()
    if part_forms is None:
        return None
    size = given or 0
    most, limited_by = opened.most_sequences() or (None, None)
    return form(
        curve=curve,
        parts=part_forms,
        usable=(size, size, size) if budget is None else budget.usable,
        total_bytes=size if budget is None else budget.total_bytes,
        blocks=blocks or Blocks(),
        pools=pools,
        most_sequences=most,
        limited_by=limited_by,
        dp=opened.setup.parallel.dp,
        crests=tuple(sorted(opened.deployment.traits.periods)),
    )


def growing_parts(opened: Occupancy, chunk: int | None) -> tuple[PartForm, ...]:
    """The parts of the equation as rules, with what was measured in their place. The budget is known."""
    request, about = opened.request, (opened.engine.name, opened.model.id)
    gpu = request.setup.hardware.gpu
    assert gpu is not None
    assert opened.budget is not None
    measured = request.setup.hardware.calibrated and measurements(gpu.id, overheads_kind(about[0])).value is not None
    if not measured:
        return tuple(_part(part, chunk, ()) for part in opened.budget.parts)
    estimated = opened.engine.unchecked(opened.model, request.changed(calibrated=False)).budget
    assert estimated is not None
    # No forward pass has no tokens: what is measured at some sizes only comes below.
    parts = calibrated(*about, request, estimated.parts, tokens=0, rows=0).value
    passes = measured_passes(*about, request, parts)
    return tuple(_part(part, chunk, passes.get(part.name, ())) for part in parts)


def _part(part: BudgetPart, chunk: int | None, readings: tuple[tuple[int, int, int], ...]) -> PartForm:
    if part.grows is None and not readings:
        return PartForm.constant(part)
    amounts = part.grows or map(Constant.of, (part.low, part.expected, part.high))
    low, expected, high = (Measured(rule=each, chunk=chunk, readings=readings) if readings else each for each in amounts)
    return PartForm(name=part.name, section=part.section.value, low=low, expected=expected, high=high)


def general_curve(opened: Occupancy, gpus: Iterable[tuple[Group, ...]]) -> Curve | None:
    """The cache of a request to a general engine, with these layers on each GPU that differs.

    ``None`` if the bytes of a tensor are no product; nor has a policy, a draft, or sequences of unlike lengths a curve.
    """
    if not opened.request.is_plain:
        return None
    held, ranked, extras = opened.kind_tensors, opened.rank_tensors, opened.replica.extras
    stored = [tensor for tensors in (*held.values(), *ranked.values(), extras, opened.extras) for tensor in tensors]
    dcp = opened.setup.parallel.dcp
    if any(tensor.position_bytes is None for tensor in stored):
        return None
    if dcp > 1 and any(_stairs(tensor, _encoded(opened), dcp) is None for tensor in stored):
        return None
    outside, once_bytes = _outside(opened, extras), sum(tensor.bytes for tensor in extras if tensor.once)
    on_gpus = dict.fromkeys(((*_terms(opened, groups, ranked, dcp), *outside), _once(groups, ranked)) for groups in gpus)
    once = tuple(size + once_bytes for _, size in on_gpus)
    curve = Curve(
        gpus=tuple(terms for terms, _ in on_gpus),
        total=(*_terms(opened, opened.stack.groups, held), *_outside(opened, opened.extras)),
        once_bytes=once[0],
        total_once_bytes=_once(opened.stack.groups, held) + sum(tensor.bytes for tensor in opened.extras if tensor.once),
    )
    return curve if len(set(once)) == 1 else StagedCurve(**asdict(curve), once_on=once)


def asked_curve(opened: Occupancy) -> Curve | None:
    """The cache of an engine, computed length by length: it is no sum of stairs, but proportional to the number of sequences."""
    if not opened.request.is_plain:
        return None
    return AskedCurve(
        one=cache(lambda tokens: opened.sized(seq=tokens, batch=1).needed_bytes),
        whole=cache(lambda tokens: opened.sized(seq=tokens, batch=1).stored_bytes),
    )


def _once(groups: Iterable[Group], stored: Mapping[LayerKind, tuple[StoredTensor, ...]]) -> int:
    return sum(group.count * tensor.bytes for group in groups for tensor in stored[group.kind] if tensor.once)


def _encoded(opened: Occupancy) -> int | None:
    """Tokens of the encoder's output; ``None`` if it is as long as the sequence."""
    return None if follows_output(opened.model, opened.load) else opened.encoder_tokens


def _stairs(tensor: StoredTensor, encoded: int | None, dcp: int) -> Stairs | None:
    """The positions of a tensor on the fullest of the ranks that share its tokens; ``None`` if they are no stairs."""
    stairs = tensor.span.stairs(encoded)
    if dcp == 1 or tensor.role not in DEALT:
        return stairs
    shared = stairs[0].shared(dcp) if len(stairs) == 1 else None
    return None if shared is None else (shared,)


def _terms(
    opened: Occupancy, groups: Iterable[Group], stored: Mapping[LayerKind, tuple[StoredTensor, ...]], dcp: int = 1
) -> tuple[Term, ...]:
    """A term for each way in which tensors of these layers grow."""
    return tuple(
        term
        for group in groups
        for term in _alike(opened, stored[group.kind], dcp, kind=group.kind.name, layers=group.layers, count=group.count)
    )


def _outside(opened: Occupancy, tensors: Iterable[StoredTensor]) -> tuple[Term, ...]:
    """The terms of tensors that belong to no layer."""
    return _alike(opened, tensors, kind="model", layers=LayerNumbers(), count=1)


def _alike(
    opened: Occupancy, tensors: Iterable[StoredTensor], dcp: int = 1, *, kind: str, layers: LayerNumbers, count: int
) -> tuple[Term, ...]:
    sizes: dict[Stairs, int] = {}
    rules: dict[Stairs, str] = {}
    encoded = _encoded(opened)
    for tensor in tensors:
        stairs = _stairs(tensor, encoded, dcp)
        if tensor.once or not tensor.position_bytes or not stairs:
            continue
        sizes[stairs] = sizes.get(stairs, 0) + tensor.position_bytes
        rules.setdefault(stairs, tensor.span.text)
    return tuple(
        Term(kind=kind, layers=layers, count=count, unit_tokens=1, unit_bytes=size, stairs=(stairs,), rule=rules[stairs])
        for stairs, size in sizes.items()
    )


def growing(opened: Occupancy, tensors: Iterable[StoredTensor]) -> Largest | None:
    """The largest of some tensors of the fullest rank, for all sequences of a replica; ``None`` if the bytes of one are no product."""
    listed = tuple(tensors)
    if any(tensor.position_bytes is None for tensor in listed):
        return None
    terms = (term for tensor in listed for term in _alike(opened, (tensor,), kind=tensor.name, layers=LayerNumbers(), count=1))
    return Largest(terms=tuple(dict.fromkeys(terms)))
