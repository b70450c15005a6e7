"""The whole equation of one GPU, for an engine without an equation of its own.

``usable = visible memory x utilisation - margin``, and of that ``weights + adapters + activations + overhead`` are not cache. The GPU
that has least left decides: its stage's weights are the heaviest.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from hwcalc.engines.base import Engine
from hwcalc.engines.budget import Budget, BudgetPart, Section
from hwcalc.engines.calibration import calibrated
from hwcalc.engines.costs import communication, device_context, estimated, exact, forward, memory_of, remembered, workspaces
from hwcalc.engines.extra_models import beside
from hwcalc.engines.rank_weights import PLAIN, rank_weight_bytes
from hwcalc.engines.stored import Context
from hwcalc.model import Note
from hwcalc.profiles.engines import runtime_profile

if TYPE_CHECKING:
    from hwcalc.quantization.scheme import Scheme

__all__ = ["plan_equation", "rank_weights_part"]


def plan_equation(engine: Engine, context: Context) -> Budget | None:
    """What each GPU has left for the cache. ``None`` without a GPU of known memory, or if the model's weights are unknown."""
    from hwcalc.quantization.planned import format_name

    request, gpu = context.request, context.request.gpu
    if gpu is None:
        return None
    memory = memory_of(gpu, context.notes)
    weights = engine.weight_parts(context)
    if memory is None or weights is None:
        return None
    share, wanted = request.memory_utilization, format_name(request.weights)
    plain = wanted if wanted in PLAIN else None
    tokens = engine.forward_tokens(context)
    parts = (
        *weights,
        *beside(engine, context),
        forward(engine.weight_rules(), context, tokens, request.replica_batch, plain=plain),
        *engine.working(context),
        device_context(gpu),
        *workspaces(gpu),
        *communication(request, gpu),
    )
    parts = calibrated(engine.name, context, parts, tokens=tokens[1], rows=request.replica_batch)
    return Budget.of(memory, 1.0 if share is None else share, _margin(context), parts)


def _margin(context: Context) -> Fraction:
    """The share that is left alone: what the user says, else the profile's, with a note; none beside a share of the user's own."""
    request = context.request
    if request.margin is not None or request.memory_utilization is not None:
        return request.margin or Fraction(0)
    margin = runtime_profile().margin
    message = f"Safety margin: {100 * float(margin):g} % of the GPU is left alone. Set it with --margin."
    context.notes.append(Note(code="default-margin", message=message))
    return margin


def rank_weights_part(engine: Engine, context: Context) -> BudgetPart | None:
    """Weights of the stage that holds most.

    Parameters in their format where they are counted; else, or where the files are larger, the files' own size shared out the
    same way. ``None``, with a note, where neither is known.
    """
    from hwcalc.quantization.planned import format_name, planned_scheme

    model, request = context.model, context.request
    wanted = format_name(request.weights)
    plain = wanted if wanted in {"fp32", "fp16", "bf16"} else None
    scheme, known = planned_scheme(model, wanted)
    layout = {"tp": request.tp, "pp": request.pp, "dp": request.dp, "ep": request.ep}
    rules = engine.weight_rules()

    def on_ranks(scheme: Scheme | None, **sizes: int) -> tuple[int, ...] | None:
        key = (rules.engine, "weights", wanted, scheme is None, *sizes.values())
        return remembered(model, key, lambda: rank_weight_bytes(model, plain=plain, scheme=scheme, rules=rules, **sizes))

    stages = on_ranks(scheme if known else None, **layout)
    if model.weights is not None and wanted is None:
        published = model.weights.total_bytes
        if stages is not None:
            alone = sum(on_ranks(scheme if known else None, tp=1, pp=1, dp=1, ep=1) or ())
            shared = "" if request.gpus * request.ep == 1 else ", shared out as the model is cut"
            return exact("weights", Section.WEIGHTS, published * max(stages) // max(1, alone), f"{model.weights.source}{shared}")
        if request.gpus == 1:
            return exact("weights", Section.WEIGHTS, published, model.weights.source)
        uncounted = runtime_profile().estimate("uncounted_weights")
        return estimated("weights", Section.WEIGHTS, uncounted, times=-(-published // (request.tp * request.pp)))
    if stages is None or not known:
        message = f"Weights of {model.id} are not known: no verdict. Give a format with --weights, or a budget with --kv-memory."
        context.notes.append(Note(code="weights-unknown", message=message))
        return None
    format_ = (plain or model.dtype or "bf16") if scheme is None else scheme.name
    return exact("weights", Section.WEIGHTS, max(stages), f"parameters of a rank, {format_}")
