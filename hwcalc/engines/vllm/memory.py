"""The memory equation of vLLM: its share of the GPU, minus everything that is not cache, is the pool.

``available = ceil(total x utilisation) - weights - activation peak - CUDA graphs - everything outside torch`` (vLLM 0.33,
``v1/worker/gpu_worker.py`` determine_available_memory). The constants are in ``profiles/engines/``; the weights come from
:mod:`hwcalc.engines.vllm.weights`. Each part has a low, an expected and a high value. The high end of the budget takes every part at
its low end.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from hwcalc.engines.budget import Budget, BudgetPart, Section
from hwcalc.engines.capability import compute_capability
from hwcalc.engines.costs import exact, ranked, workspaces
from hwcalc.engines.loaded import budget_of, loaded
from hwcalc.engines.noted import Noted
from hwcalc.engines.options import is_on
from hwcalc.engines.steps import step
from hwcalc.engines.vllm.defaults import default_utilization, graphs_subtracted
from hwcalc.engines.vllm.offload import encoder_cache_bytes, resident, stage_weights
from hwcalc.engines.vllm.overhead import graphs, outside_torch
from hwcalc.engines.vllm.profile_run import ProfileRun, activation_parts
from hwcalc.engines.vllm.weights import VLLM, absorbed_bytes_rank, padded_expert_bytes_rank, param_bytes_rank
from hwcalc.formulas.formats import FLOATS
from hwcalc.model import ModelSpec, Note
from hwcalc.profiles.engines import runtime_profile
from hwcalc.units import human_bytes

if TYPE_CHECKING:
    from hwcalc.engines.rank_weights import RankBytes
    from hwcalc.engines.setup import Setup
    from hwcalc.engines.vllm.deployment import VllmDeployment, VllmOccupancy
    from hwcalc.engines.vllm.speculation import Speculation


def plan_budget(
    occupancy: VllmOccupancy, *, sequences: int, batched_tokens: int, policy: tuple[BudgetPart, ...] = ()
) -> Noted[Budget | None]:
    """The bytes that each GPU has left for the cache; ``None`` if the memory of the GPU or the size of the weights is unknown.

    ``sequences`` and ``batched_tokens`` are the resolved ``max_num_seqs`` and ``max_num_batched_tokens``. Notes say what was assumed.
    ``policy`` is what a cache policy takes to score prompts.
    """
    request, speculation = occupancy.request, occupancy.deployment.settings.speculation
    found = loaded(occupancy)
    if found.value is None:
        return Noted(None, found.notes)
    gpu, memory, weights = found.value
    share = share_of(occupancy)
    extra, run = (
        _extras(occupancy.model, occupancy.setup, speculation, batched_tokens),
        profile_run(occupancy, sequences, batched_tokens),
    )
    parts = [
        *weights,
        *extra.value,
        *rotary_parts(occupancy.model),
        *activation_parts(occupancy.model, run),
        *outside_torch(request.parallel, gpu, occupancy.version, request.options.get("all2all_backend")),
        *workspaces(gpu),
        *policy,
    ]
    if graphs_subtracted(occupancy.version) and not is_on(request.options.get("enforce_eager")):
        left = ceil(memory.expected_bytes * share) - sum(part.expected for part in parts)
        parts.append(graphs(occupancy.model, occupancy.version, left, speculation))
    budget, notes = budget_of(occupancy, memory, tuple(parts), tokens=run.tokens, rows=run.rows, share=share)
    return Noted(budget, (*found.notes, *extra.notes, *notes, *_check_free(budget)))


def share_of(occupancy: VllmOccupancy) -> float:
    """The share of each GPU that vLLM may use."""
    share = occupancy.request.hardware.memory_utilization
    return float(default_utilization(occupancy.version)) if share is None else share


def profile_run(occupancy: VllmOccupancy, sequences: int, batched_tokens: int) -> ProfileRun:
    """What this version runs before it sizes the pool."""
    from hwcalc.quantization.planned import format_name, planned_scheme

    request = occupancy.request
    return ProfileRun(
        version=occupancy.version,
        parallel=request.parallel,
        seq=request.seq,
        tokens=batched_tokens,
        rows=min(sequences, batched_tokens),
        element_bytes=4 if _requested_dtype(occupancy.deployment) == "fp32" else 2,
        quantized=planned_scheme(occupancy.model, format_name(request.weights))[0] is not None,
    )


def weight_parts(deployment: VllmDeployment) -> Noted[tuple[BudgetPart, ...] | None]:
    """Weights on the pipeline stage that holds most, and the 16-bit copies that quantised latent attention keeps."""
    model, setup = deployment.model, deployment.setup
    gpu, dtype = setup.hardware.gpu, _requested_dtype(deployment)
    capability = compute_capability(gpu) if gpu is not None and gpu.vendor.lower() == "nvidia" else None
    sizes = VLLM.sizes(model, setup.parallel)
    key = ("vllm", "weight parts", setup.weights, dtype, *sizes, setup.options.get("cpu_offload_gb"), capability)
    return model.once(key, lambda: _weight_parts(model, setup, dtype, capability))


def _weight_parts(
    model: ModelSpec, setup: Setup, dtype: str | None, capability: int | None
) -> Noted[tuple[BudgetPart, ...] | None]:
    """The same for weights in this dtype, on a GPU of NVIDIA's of this compute capability or on another one."""
    from hwcalc.quantization.planned import format_name, planned_scheme

    parallel, weight_format = setup.parallel, format_name(setup.weights)
    weight_dtype = weight_format if weight_format in FLOATS else dtype
    scheme, known = planned_scheme(model, weight_format)
    sizes = VLLM.sizes(model, parallel)
    stages = model.once(
        ("vllm", "weights", weight_dtype, weight_format, *sizes),
        lambda: param_bytes_rank(model, parallel, weight_dtype=weight_dtype, scheme=scheme),
    )
    if stages is None or not known:
        return _from_files(model, setup, stages)
    offloaded = setup.options.get("cpu_offload_gb")
    if offloaded is not None:
        movable = model.once(
            ("vllm", "movable weights", weight_dtype, weight_format, *sizes),
            lambda: stage_weights(model, parallel, weight_dtype=weight_dtype, scheme=scheme),
        )
        return Noted(None if movable is None else (ranked("weights", Section.WEIGHTS, resident(movable, float(offloaded))),))
    source = f"parameters by vLLM's own sharding, {'16 bits' if scheme is None else scheme.name}"
    parts: tuple[BudgetPart, ...] = (exact("weights", Section.WEIGHTS, max(stages), source),)
    padding = None
    if scheme is not None and capability is not None:
        padding = padded_expert_bytes_rank(model, parallel, scheme, capability)
    if padding is not None:
        parts = (*parts, ranked("padded experts", Section.WEIGHTS, padding))
    absorbed = 0 if scheme is None else absorbed_bytes_rank(model, parallel)
    if not absorbed:
        return Noted(parts)
    text = "vLLM 0.33 layers/attention/mla_attention.py: 16-bit copies of the quantised up-projections"
    return Noted((*parts, exact("absorbed projections", Section.WEIGHTS, absorbed, text)))


def _extras(
    model: ModelSpec, setup: Setup, speculation: Speculation | None, batched_tokens: int
) -> Noted[tuple[BudgetPart, ...]]:
    """Adapter slots, the weights of a draft, and encoder outputs that are cached for the decoder."""
    sizes: dict[str, tuple[Section, RankBytes | None]] = {}
    if setup.lora is not None:
        from hwcalc.engines.vllm.lora import vllm_lora_bytes_rank

        sizes["adapters"] = Section.WEIGHTS, vllm_lora_bytes_rank(model, setup.lora, setup.parallel)
    if speculation is not None and speculation.method != "ngram":
        sizes["draft weights"] = Section.WEIGHTS, _draft_bytes(model, setup, speculation)
    notes = tuple(
        Note(code=f"{name.replace(' ', '-')}-unknown", message=f"The {name} are not known, and not counted.")
        for name, (_, size) in sizes.items()
        if size is None
    )
    waiting = encoder_cache_bytes(model, batched_tokens)
    if waiting is not None and waiting.high:
        sizes["encoder cache"] = Section.ACTIVATIONS, waiting
    return Noted(tuple(ranked(name, section, size) for name, (section, size) in sizes.items() if size is not None), notes)


def _draft_bytes(model: ModelSpec, setup: Setup, speculation: Speculation) -> RankBytes | None:
    from hwcalc.engines.draft_weights import dflash_bytes_rank, draft_bytes_rank, eagle_bytes_rank, mtp_bytes_rank
    from hwcalc.quantization.planned import format_name, planned_scheme

    if speculation.model is None:
        scheme, known = planned_scheme(model, format_name(setup.weights))
        return mtp_bytes_rank(model, setup.parallel, scheme=scheme, rules=VLLM) if known else None
    draft = speculation.model
    scheme, known = planned_scheme(draft, None)
    if not known:
        return None
    if speculation.method == "dflash":
        return dflash_bytes_rank(draft, model, setup.parallel, scheme=scheme, rules=VLLM)
    if speculation.method == "eagle":
        return eagle_bytes_rank(draft, model, setup.parallel, scheme=scheme, rules=VLLM)
    return draft_bytes_rank(draft, setup.parallel, scheme=scheme, rules=VLLM)


def _requested_dtype(deployment: VllmDeployment) -> str | None:
    """The engine option ``dtype`` as kvplan spells it, or ``fp32`` where vLLM chooses that itself; ``None`` is 16 bits."""
    spelling = deployment.setup.options.get("dtype")
    if spelling in (None, "auto"):
        return "fp32" if deployment.settings.model_dtype == "fp32" else None
    return {"float32": "fp32", "fp32": "fp32", "float16": "fp16", "fp16": "fp16", "bfloat16": "bf16", "bf16": "bf16"}.get(
        spelling or ""
    )


def _from_files(model: ModelSpec, setup: Setup, stages: tuple[int, ...] | None) -> Noted[tuple[BudgetPart, ...] | None]:
    """The size of the files, divided over ranks in the proportion of the 16-bit weights, or evenly if the layers are not counted."""
    if model.weights is None or setup.weights is not None:
        message = f"Weights of a {model.model_type} model are not counted: no budget. Give one with --kv-memory."
        return Noted(None, (Note(code="weights-unknown", message=message),))
    published = model.weights.total_bytes
    estimate = runtime_profile().estimate("uncounted_weights")
    alone = None if stages is None else param_bytes_rank(model)
    if stages is not None and alone is not None:
        each = published * max(stages) // sum(alone)
        low, expected, high = each, each, ceil(each * estimate.high)
        source = "the weight files, shared out as vLLM cuts the model"
    else:
        each = published // (setup.parallel.tp * setup.parallel.pp)
        low, expected, high = (ceil(each * share) for share in (estimate.low, estimate.expected, estimate.high))
        source = f"the weight files, shared out evenly; {estimate.source}"
    return Noted((BudgetPart(name="weights", section=Section.WEIGHTS, low=low, expected=expected, high=high, source=source),))


def _rotated_width(model: ModelSpec) -> int:
    """The dimensions that rotary embeddings turn, of the layer with most."""
    dims = [group.kind.dims() for group in model.stack.groups]
    return max((one.get("qk_rope_head_dim", one.get("head_dim", 0)) for one in dims if "num_attention_heads" in one), default=0)


def rotary_parts(model: ModelSpec) -> tuple[BudgetPart, ...]:
    """The table of rotary embeddings: positions x rotated dimensions, 131,072 x 128 for Llama-3.1."""
    return model.once("rotary table of vLLM", lambda: _rotary_parts(model))


def _rotary_parts(model: ModelSpec) -> tuple[BudgetPart, ...]:
    width = _rotated_width(model)
    numbers = (model.max_position_embeddings or 0) * width
    if not numbers:
        return ()
    each = runtime_profile().estimate("rotary_bytes")
    sizes = (each.low, each.expected, each.high)
    low, expected, high = (int(numbers * size) for size in sizes)
    table = step(
        "rotary table",
        "max_position_embeddings x rotated_width x rotary_bytes",
        (low, expected, high),
        max_position_embeddings=model.max_position_embeddings or 0,
        rotated_width=width,
        rotary_bytes=sizes,
    )
    return (
        BudgetPart(
            name="rotary table",
            section=Section.OVERHEAD,
            low=low,
            expected=expected,
            high=high,
            source=each.source,
            steps=(table,),
        ),
    )


def _check_free(budget: Budget) -> tuple[Note, ...]:
    """A note if vLLM may refuse to start: it requires its share to be free, after its own CUDA context has taken memory."""
    context = runtime_profile().estimate("context.cuda")
    if budget.total_bytes - budget.requested_bytes - budget.margin_bytes >= context.expected:
        return ()
    message = (
        f"vLLM asks for {human_bytes(budget.requested_bytes)} of {human_bytes(budget.total_bytes)} and its CUDA context takes about "
        f"{human_bytes(int(context.expected))}: it may refuse to start. Use a lower --memory-utilization."
    )
    return (Note(code="utilization-high", message=message),)
