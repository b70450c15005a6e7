"""The whole equation of one GPU, for an engine without an equation of its own.

``usable = visible memory x utilisation - margin``, and of that ``weights + adapters + activations + overhead`` are not cache. The GPU
that has least left decides: its stage's weights are the heaviest.
"""

from __future__ import annotations

from fractions import Fraction

from hwcalc.engines.base import Budget, BudgetPart, Context, Engine, Section
from hwcalc.engines.costs import communication, device_context, estimated, exact, forward, memory_of, remembered, workspaces
from hwcalc.engines.extra_models import adapters, draft_weights
from hwcalc.model import Note
from profiles.engines import runtime_profile

__all__ = ["plan_equation", "rank_weights_part"]


def plan_equation(engine: Engine, context: Context) -> Budget | None:
    """What each GPU has left for the cache. ``None`` without a GPU of known memory, or if the model's weights are unknown."""
    request, gpu = context.request, context.request.gpu
    if gpu is None:
        return None
    memory = memory_of(gpu, context.notes)
    weights = rank_weights_part(engine, context)
    if memory is None or weights is None:
        return None
    share = request.memory_utilization
    parts = (
        weights,
        *adapters(context),
        *draft_weights(engine, context),
        forward(context, engine.forward_tokens(context), request.replica_batch),
        *engine.working(context),
        device_context(gpu),
        workspaces(gpu),
        *communication(request, gpu),
    )
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
    from hwcalc.planner.memory import format_name, planned_scheme

    model, request = context.model, context.request
    wanted = format_name(request.weights)
    plain = wanted if wanted in {"fp32", "fp16", "bf16"} else None
    scheme, known = planned_scheme(model, wanted)
    ranks = (request.tp, request.pp, request.dp, request.ep)
    stages = remembered(
        model, (engine.name, "weights", wanted, *ranks), lambda: engine.rank_weights(context, plain, scheme if known else None)
    )
    published = model.weights.total_bytes if model.weights is not None and wanted is None else None
    if published is not None:
        if ranks == (1, 1, 1, 1):
            return exact("weights", Section.WEIGHTS, published, model.weights.source if model.weights is not None else "")
        if stages is not None:
            alone = remembered(model, (engine.name, "alone", wanted), lambda: _alone(engine, context, plain))
            whole = published * max(stages) // max(1, alone)
            return exact("weights", Section.WEIGHTS, whole, "the weight files, shared out as the model is cut")
        uncounted = runtime_profile().estimate("uncounted_weights")
        return estimated("weights", Section.WEIGHTS, uncounted, times=-(-published // (request.tp * request.pp)))
    if stages is None or not known:
        message = f"Weights of {model.id} are not known: no verdict. Give a format with --weights, or a budget with --kv-memory."
        context.notes.append(Note(code="weights-unknown", message=message))
        return None
    format_ = (plain or model.dtype or "bf16") if scheme is None else scheme.name
    return exact("weights", Section.WEIGHTS, max(stages), f"parameters of a rank, {format_}")


def _alone(engine: Engine, context: Context, plain: str | None) -> int:
    """The same weights on one GPU."""
    from dataclasses import replace

    single = replace(context, request=replace(context.request, tp=1, pp=1, dp=1, dcp=1, ep=1), notes=[])
    return sum(engine.rank_weights(single, plain, None) or ())
