"""The whole equation of one GPU, for an engine without an equation of its own.

``usable = visible memory x utilisation - margin``, and of that ``weights + adapters + activations + overhead`` are not cache. The GPU
that has least left decides: its stage's weights are the heaviest.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from hwcalc.engines.base import Opened
from hwcalc.engines.budget import Budget, BudgetPart, Section
from hwcalc.engines.calibration import calibrated
from hwcalc.engines.costs import communication, device_context, estimated, exact, forward, memory_of, workspaces
from hwcalc.engines.extra_models import beside
from hwcalc.engines.noted import Noted
from hwcalc.engines.rank_weights import rank_weight_bytes
from hwcalc.engines.request import ALONE, Hardware, Parallel
from hwcalc.formulas.formats import FLOATS
from hwcalc.model import Note
from hwcalc.profiles.engines import runtime_profile

if TYPE_CHECKING:
    from hwcalc.quantization.scheme import Scheme

__all__ = ["plan_equation", "rank_weights_part"]


def plan_equation(opened: Opened) -> Noted[Budget | None]:
    """What each GPU has left for the cache. ``None`` without a GPU of known memory, or if the model's weights are unknown."""
    from hwcalc.quantization.planned import format_name

    engine, request, hardware = opened.engine, opened.request, opened.request.hardware
    if hardware.gpu is None:
        return Noted(None)
    memory, notes = memory_of(hardware.gpu)
    weights = opened.weights
    notes += weights.notes
    if memory is None or weights.value is None:
        return Noted(None, notes)
    wanted = format_name(request.weights)
    tokens, rows = engine.forward_tokens(opened), request.replica_batch
    extra = beside(opened)
    margin = _margin(hardware)
    parts = (
        *weights.value,
        *extra.value,
        forward(opened, tokens, rows, plain=wanted if wanted in FLOATS else None),
        *engine.working(opened),
        device_context(hardware.gpu),
        *workspaces(hardware.gpu),
        *communication(request.parallel, hardware.gpu),
    )
    measured = calibrated(engine.name, opened.model.id, request, parts, tokens=tokens[1], rows=rows)
    share = 1.0 if hardware.memory_utilization is None else hardware.memory_utilization
    budget = Budget.of(memory, share, margin.value, measured.value)
    return Noted(budget, (*notes, *extra.notes, *measured.notes, *margin.notes))


def _margin(hardware: Hardware) -> Noted[Fraction]:
    """The share that is left alone: what the user says, else the profile's, with a note; none beside a share of the user's own."""
    if hardware.margin is not None or hardware.memory_utilization is not None:
        return Noted(hardware.margin or Fraction(0))
    margin = runtime_profile().margin
    message = f"Safety margin: {100 * float(margin):g} % of the GPU is left alone. Set it with --margin."
    return Noted(margin, (Note(code="default-margin", message=message),))


def rank_weights_part(opened: Opened) -> Noted[tuple[BudgetPart, ...] | None]:
    """Weights of the stage that holds most.

    Parameters in their format where they are counted; else, or where the files are larger, the files' own size shared out the
    same way. ``None``, with a note, where neither is known.
    """
    from hwcalc.quantization.planned import format_name, planned_scheme

    model, parallel = opened.model, opened.request.parallel
    wanted = format_name(opened.request.weights)
    plain = wanted if wanted in FLOATS else None
    scheme, known = planned_scheme(model, wanted)
    rules = opened.engine.weight_rules()

    def on_ranks(scheme: Scheme | None, parallel: Parallel) -> tuple[int, ...] | None:
        key = (rules.engine, "weights", wanted, scheme is None, parallel)
        return model.once(key, lambda: rank_weight_bytes(model, parallel, plain=plain, scheme=scheme, rules=rules))

    stages = on_ranks(scheme if known else None, parallel)
    if model.weights is not None and wanted is None:
        published = model.weights.total_bytes
        if stages is not None:
            alone = sum(on_ranks(scheme if known else None, ALONE) or ())
            shared = "" if parallel.gpus * parallel.ep == 1 else ", shared out as the model is cut"
            size = published * max(stages) // max(1, alone)
            return Noted((exact("weights", Section.WEIGHTS, size, f"{model.weights.source}{shared}"),))
        if parallel.gpus == 1:
            return Noted((exact("weights", Section.WEIGHTS, published, model.weights.source),))
        uncounted = runtime_profile().estimate("uncounted_weights")
        each = -(-published // (parallel.tp * parallel.pp))
        return Noted((estimated("weights", Section.WEIGHTS, uncounted, times=each),))
    if stages is None or not known:
        message = f"Weights of {model.id} are not known: no verdict. Give a format with --weights, or a budget with --kv-memory."
        return Noted(None, (Note(code="weights-unknown", message=message),))
    format_ = (plain or model.dtype or "bf16") if scheme is None else scheme.name
    return Noted((exact("weights", Section.WEIGHTS, max(stages), f"parameters of a rank, {format_}"),))
