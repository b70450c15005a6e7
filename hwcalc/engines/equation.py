"""The memory equation of one GPU, for engines that have no equation of their own.

The usable memory is ``visible memory x utilisation - margin``. The cache gets what ``weights + adapters + activations + overhead``
leave of it. The GPU with the least left decides: the one whose pipeline stage has the heaviest weights.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING

from hwcalc.engines.budget import Budget, BudgetPart, Section
from hwcalc.engines.costs import estimated, exact, forward
from hwcalc.engines.extra_models import beside
from hwcalc.engines.forms import passed_tokens
from hwcalc.engines.loaded import budget_of, loaded, outside
from hwcalc.engines.noted import Noted
from hwcalc.engines.rank_weights import rank_weight_bytes
from hwcalc.engines.setup import ALONE, Hardware, Parallel
from hwcalc.formulas.formats import FLOATS
from hwcalc.model import Note
from hwcalc.profiles.engines import runtime_profile
from hwcalc.units import parse_share

if TYPE_CHECKING:
    from fractions import Fraction

    from hwcalc.engines.deployment import Deployment, Occupancy
    from hwcalc.quantization.scheme import Scheme


def plan_equation(opened: Occupancy, chunks: tuple[int | None, int | None, int | None]) -> Noted[Budget | None]:
    """The bytes that each GPU has left for the cache; ``None`` if the memory of the GPU or the size of the weights is unknown.

    ``chunks`` are the most tokens of one forward pass of a replica: low, expected and high.
    """
    from hwcalc.quantization.planned import format_name

    request, hardware = opened.request, opened.request.hardware
    memory_and_weights = loaded(opened)
    if memory_and_weights.value is None:
        return Noted(None, memory_and_weights.notes)
    gpu, memory, weights = memory_and_weights.value
    weight_format = format_name(request.weights)
    rows = request.replica_batch
    extra = beside(opened)
    margin = margin_of(hardware)
    parts = (
        *weights,
        *extra.value,
        forward(opened, chunks, rows, dtype=weight_format if weight_format in FLOATS else None),
        *opened.working(),
        *_policy_part(opened),
        *outside(opened, gpu),
    )
    tokens = passed_tokens(opened.tokens, rows, chunks[1])
    share = 1.0 if hardware.memory_utilization is None else hardware.memory_utilization
    budget, measured = budget_of(opened, memory, parts, tokens=tokens, rows=rows, share=share, margin=margin.value)
    return Noted(budget, (*memory_and_weights.notes, *extra.notes, *measured, *margin.notes))


def _policy_part(opened: Occupancy) -> tuple[BudgetPart, ...]:
    if opened.evicted is None:
        return ()
    from hwcalc.engines.peaks import policy_part

    return policy_part(opened)


def margin_of(hardware: Hardware) -> Noted[Fraction | int]:
    """The share of the GPU that stays free: the user's, or by default the profile's, with a note.

    If the user gives the share that the engine may use, the default is no margin.
    """
    if hardware.margin is not None or hardware.memory_utilization is not None:
        return Noted(hardware.margin or 0)
    return _default_margin()


@cache
def _default_margin() -> Noted[Fraction | int]:
    margin = parse_share(runtime_profile().margin_text)
    message = f"Safety margin: {100 * float(margin):g} % of the GPU is left alone. Set it with --margin."
    return Noted(margin, (Note(code="default-margin", message=message),))


def rank_weights_part(deployment: Deployment | Occupancy) -> Noted[tuple[BudgetPart, ...] | None]:
    """Weights on the GPU of the pipeline stage that holds most. ``None``, with a note, if they are unknown.

    If the size of the published files is known and the user asks for no other format, that size is divided over the ranks in the
    proportion of the counted parameters, or evenly if they are not counted. Otherwise the parameters are counted in their format.
    """
    from hwcalc.quantization.planned import format_name, planned_scheme

    model, parallel = deployment.model, deployment.parallel
    weight_format = format_name(deployment.setup.weights)
    weight_dtype = weight_format if weight_format in FLOATS else None
    scheme, known = planned_scheme(model, weight_format)
    rules = deployment.weight_rules()
    held = None if scheme is None else rules.held(scheme)
    unpacked = scheme is not None and held is None

    def on_ranks(scheme: Scheme | None, parallel: Parallel) -> tuple[int, ...] | None:
        key = (rules, "weights", weight_format, scheme is None, parallel)
        return model.once(key, lambda: rank_weight_bytes(model, parallel, weight_dtype=weight_dtype, scheme=scheme, rules=rules))

    stages = on_ranks(held if known else None, parallel)
    if model.weights is not None and weight_format is None and not unpacked:
        published = model.weights.total_bytes
        if stages is not None:
            alone = sum(on_ranks(held if known else None, ALONE) or ())
            shared = "" if parallel.gpus * parallel.ep == 1 else ", shared out as the model is cut"
            size = published * max(stages) // max(1, alone)
            return Noted((exact("weights", Section.WEIGHTS, size, f"{model.weights.source}{shared}"),))
        if parallel.gpus == 1:
            return Noted((exact("weights", Section.WEIGHTS, published, model.weights.source),))
        uncounted = runtime_profile().estimate("uncounted_weights")
        each = -(-published // (parallel.tp * parallel.pp))
        return Noted((estimated("weights", Section.WEIGHTS, uncounted, times=each),))
    if stages is None or not known:
        way_out = (
            "a budget with --kv-memory" if model.counted is None else "a format with --weights, or a budget with --kv-memory"
        )
        message = f"Weights of {model.id} are not known: no verdict. Give {way_out}."
        return Noted(None, (Note(code="weights-unknown", message=message),))
    name = (weight_dtype or model.dtype or "bf16") if held is None else held.name
    part = exact("weights", Section.WEIGHTS, max(stages), f"parameters of a rank, {name}")
    if scheme is None or not unpacked:
        return Noted((part,))
    message = (
        f"The files keep the weights in {scheme.name}; transformers unpacks them when it loads them: on the GPU they are {name}."
    )
    return Noted((part,), (Note(code="weights-unpacked", message=message),))
