"""The equation that leads to vLLM's pool: what it asks for of a GPU, minus all that is not cache.

``available = ceil(total x utilisation) - weights - activation peak - CUDA graphs - everything outside torch`` (vLLM 0.33,
``v1/worker/gpu_worker.py`` determine_available_memory). The constants are in ``profiles/engines/``; weights follow
:mod:`hwcalc.engines.vllm.weights`. Each part is low, expected and high: the budget's high takes every part's low.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING

from hwcalc.engines.budget import Budget, BudgetPart, Section
from hwcalc.engines.calibration import calibrated
from hwcalc.engines.costs import communication, estimated, exact, memory_of, model_width, ranked, remembered, workspaces
from hwcalc.engines.draft_weights import draft_bytes_rank, eagle_bytes_rank, mtp_bytes_rank
from hwcalc.engines.rank_weights import RankBytes
from hwcalc.engines.request import Request
from hwcalc.engines.stored import Context
from hwcalc.engines.vllm.defaults import default_utilization, graphs_subtracted
from hwcalc.engines.vllm.lora import vllm_lora_bytes_rank
from hwcalc.engines.vllm.offload import encoder_cache_bytes, resident_bytes_rank
from hwcalc.engines.vllm.shards import encoder_width
from hwcalc.engines.vllm.weights import VLLM, absorbed_bytes_rank, param_bytes_rank
from hwcalc.formulas import Role
from hwcalc.model import ModelSpec, Note
from hwcalc.profiles.engines import runtime_profile, vllm_profile
from hwcalc.units import human_bytes

if TYPE_CHECKING:
    from hwcalc.engines.vllm.speculation import Speculation

__all__ = [
    "plan_budget",
    "rotary_parts",
    "weight_parts",
]


def plan_budget(
    context: Context, *, sequences: int, batched_tokens: int, speculation: Speculation | None = None
) -> Budget | None:
    """What each GPU has left for the cache; ``None`` without a GPU of known memory, or if the model's weights are unknown.

    ``sequences`` and ``batched_tokens`` are ``max_num_seqs`` and ``max_num_batched_tokens`` as the engine resolved them. What had
    to be assumed goes into the context's notes.
    """
    request, gpu, profile = context.request, context.request.gpu, vllm_profile()
    if gpu is None:
        return None
    memory = memory_of(gpu, context.notes)
    weights = weight_parts(context)
    if memory is None or weights is None:
        return None
    share = float(default_utilization(context.version)) if request.memory_utilization is None else request.memory_utilization
    margin = request.margin or Fraction(0)
    parts = [
        *weights,
        *_beside(context, speculation, batched_tokens),
        *rotary_parts(context.model),
        _activation(context, sequences, batched_tokens),
        *_encoder(context, batched_tokens),
        estimated("non-torch", Section.OVERHEAD, profile.estimate("non_torch.process")),
        *communication(request, gpu),
        *workspaces(gpu),
    ]
    if graphs_subtracted(context.version):
        left = ceil(memory.expected_bytes * share) - sum(part.expected for part in parts)
        parts.append(_graphs(context, left))
    measured = calibrated("vllm", context, tuple(parts), tokens=batched_tokens, rows=sequences)
    budget = Budget.of(memory, share, margin, measured)
    _check_free(context, budget)
    return budget


def weight_parts(context: Context) -> tuple[BudgetPart, ...] | None:
    """Weights of the stage that holds most, and what quantised latent attention keeps beside them."""
    from hwcalc.quantization.planned import format_name, planned_scheme

    model, request = context.model, context.request
    ranks = {"tp": request.tp, "pp": request.pp, "dp": request.dp, "ep": request.ep}
    wanted = format_name(request.weights)
    plain = wanted if wanted in {"fp32", "fp16", "bf16"} else _running_dtype(request)
    scheme, known = planned_scheme(model, wanted)
    stages = remembered(
        model, ("weights", plain, wanted, *ranks.values()), lambda: param_bytes_rank(model, plain, **ranks, scheme=scheme)
    )
    published = None if model.weights is None else model.weights.total_bytes
    source = "parameters by vLLM's own sharding"
    if stages is None or not known:
        return _from_files(context, published, stages)
    offloaded = request.options.get("cpu_offload_gb")
    if offloaded is not None:
        resident = resident_bytes_rank(model, float(offloaded), plain=plain, scheme=scheme, **ranks)
        return None if resident is None else (ranked("weights", Section.WEIGHTS, resident),)
    parts = (exact("weights", Section.WEIGHTS, max(stages), f"{source}, {'16 bits' if scheme is None else scheme.name}"),)
    absorbed = 0 if scheme is None else absorbed_bytes_rank(model, tp=request.tp, pp=request.pp)
    if not absorbed:
        return parts
    text = "vLLM 0.33 layers/attention/mla_attention.py: 16-bit copies of the quantised up-projections"
    return (*parts, exact("absorbed projections", Section.WEIGHTS, absorbed, text))


def _beside(context: Context, speculation: Speculation | None, batched_tokens: int) -> tuple[BudgetPart, ...]:
    """Adapter slots, the weights of a draft, and encoder outputs that wait for the decoder."""
    model, request = context.model, context.request
    found: dict[str, tuple[Section, RankBytes | None]] = {}
    if request.lora is not None:
        ranks = {"tp": request.tp, "pp": request.pp, "dp": request.dp, "ep": request.ep}
        found["adapters"] = Section.WEIGHTS, vllm_lora_bytes_rank(model, request.lora, **ranks)
    if speculation is not None and speculation.method != "ngram":
        found["draft weights"] = Section.WEIGHTS, _draft_bytes(context, speculation)
    for name, (_, size) in found.items():
        if size is None:
            context.notes.append(
                Note(code=f"{name.replace(' ', '-')}-unknown", message=f"The {name} are not known, and not counted.")
            )
    waiting = encoder_cache_bytes(model, batched_tokens)
    if waiting is not None and waiting.high:
        found["encoder cache"] = Section.ACTIVATIONS, waiting
    return tuple(ranked(name, section, size) for name, (section, size) in found.items() if size is not None)


def _draft_bytes(context: Context, speculation: Speculation) -> RankBytes | None:
    from hwcalc.quantization.planned import format_name, planned_scheme

    model, request = context.model, context.request
    if speculation.model is None:
        scheme, known = planned_scheme(model, format_name(request.weights))
        if not known:
            return None
        tp, pp, dp, ep = request.tp, request.pp, request.dp, request.ep
        return mtp_bytes_rank(model, tp=tp, pp=pp, dp=dp, ep=ep, scheme=scheme, rules=VLLM)
    from hwcalc.library.plan import load_model

    draft = load_model(speculation.model)
    scheme, known = planned_scheme(draft, None)
    if not known:
        return None
    if speculation.method == "eagle":
        return eagle_bytes_rank(draft, model, tp=request.tp, pp=request.pp, scheme=scheme, rules=VLLM)
    return draft_bytes_rank(draft, tp=request.tp, scheme=scheme, rules=VLLM)


def _running_dtype(request: Request) -> str | None:
    """``--engine-option dtype=float32`` in the program's spelling."""
    wanted = request.options.get("dtype")
    return {"float32": "fp32", "fp32": "fp32", "float16": "fp16", "fp16": "fp16", "bfloat16": "bf16", "bf16": "bf16"}.get(
        wanted or ""
    )


def _from_files(context: Context, published: int | None, stages: tuple[int, ...] | None) -> tuple[BudgetPart, ...] | None:
    """The files' size shared out: as the 16-bit model is, or evenly where nobody counts its layers."""
    request = context.request
    if published is None or request.weights is not None:
        message = f"Weights of a {context.model.model_type} model are not counted: no budget. Give one with --kv-memory."
        context.notes.append(Note(code="weights-unknown", message=message))
        return None
    estimate = runtime_profile().estimate("uncounted_weights")
    alone = None if stages is None else param_bytes_rank(context.model)
    if stages is not None and alone is not None:
        each = published * max(stages) // sum(alone)
        return (
            BudgetPart(
                name="weights",
                section=Section.WEIGHTS,
                low=each,
                expected=each,
                high=ceil(each * estimate.high),
                source="the weight files, shared out as vLLM cuts the model",
            ),
        )
    each = published // (request.tp * request.pp)
    return (
        BudgetPart(
            name="weights",
            section=Section.WEIGHTS,
            low=ceil(each * estimate.low),
            expected=ceil(each * estimate.expected),
            high=ceil(each * estimate.high),
            source=f"the weight files, shared out evenly; {estimate.source}",
        ),
    )


def rotary_parts(model: ModelSpec) -> tuple[BudgetPart, ...]:
    """The table of rotary embeddings: positions x rotated dimensions, which is 131,072 x 128 for Llama-3.1."""
    dims = [group.kind.dims() for group in model.stack.groups]
    widths = [one.get("qk_rope_head_dim", one.get("head_dim", 0)) for one in dims if "num_attention_heads" in one]
    numbers = (model.max_position_embeddings or 0) * max(widths, default=0)
    if not numbers:
        return ()
    each = runtime_profile().estimate("rotary_bytes")
    low, expected, high = (int(numbers * size) for size in (each.low, each.expected, each.high))
    return (BudgetPart(name="rotary table", section=Section.OVERHEAD, low=low, expected=expected, high=high, source=each.source),)


def _activation(context: Context, sequences: int, batched_tokens: int) -> BudgetPart:
    """The larger of one forward pass and one sampling; high is both, where neither reuses the other's memory.

    20,000 tokens of Llama-3-8B: 2 x 20,000 x (3 x 4,096 + 3 x 14,336) = 2,211,840,000 bytes.
    """
    model, request, profile = context.model, context.request, vllm_profile()
    hidden, width = model.hidden_size or 0, model_width(VLLM, model, request)
    copies, logit = runtime_profile().estimate("activation.hidden_copies"), profile.estimate("activation.logit_bytes")
    element = 4 if _running_dtype(request) == "fp32" else 2
    forward = [int(element * batched_tokens * (count * hidden + width)) for count in (copies.low, copies.expected, copies.high)]
    rows = min(sequences, batched_tokens) * (model.vocab_size or 0)
    sampling = [int(rows * size) for size in (logit.low, logit.expected, logit.high)]
    return BudgetPart(
        name="activations",
        section=Section.ACTIVATIONS,
        low=max(forward[0], sampling[0]),
        expected=max(forward[1], sampling[1]),
        high=forward[2] + sampling[2],
        source=f"{batched_tokens:,} tokens, {min(sequences, batched_tokens):,} rows of logits; {copies.source}",
    )


def _encoder(context: Context, batched_tokens: int) -> tuple[BudgetPart, ...]:
    """The profile run of a tower with the largest input that a batch holds; none without a tower."""
    model, tp = context.model, context.request.tp
    width = remembered(model, ("encoder", tp), lambda: encoder_width(model, tp=tp))
    if not width:
        return ()
    patches = vllm_profile().estimate("activation.encoder_patches")
    low, expected, high = (int(2 * batched_tokens * count * width) for count in (patches.low, patches.expected, patches.high))
    return (
        BudgetPart(
            name="encoder profile", section=Section.ACTIVATIONS, low=low, expected=expected, high=high, source=patches.source
        ),
    )


def _graphs(context: Context, left: int) -> BudgetPart:
    """The pool of CUDA graphs as vLLM estimates it; models with recurrent states are charged a graph at a time."""
    profile = vllm_profile()
    plain = profile.estimate("graphs.attention")
    if not _has_states(context.model):
        return estimated("CUDA graphs", Section.OVERHEAD, plain)
    graph, count = profile.estimate("graphs.state_graph"), profile.estimate("graphs.state_graphs")
    share = profile.estimate("graphs.state_share")
    return BudgetPart(
        name="CUDA graphs",
        section=Section.OVERHEAD,
        low=int(graph.low * count.low),
        expected=int(graph.expected * count.expected),
        high=max(int(graph.high * count.high), int(max(0, left) * share.high)),
        source=f"{graph.source}; {share.source}",
    )


def _has_states(model: ModelSpec) -> bool:
    return any(tensor.role is Role.STATE for group in model.stack.groups for tensor in group.kind.tensors())


def _check_free(context: Context, budget: Budget) -> None:
    """A note where it may refuse to start: it does when less is free than it asks for; its own context is no longer free by then."""
    own = runtime_profile().estimate("context.cuda")
    if budget.total_bytes - budget.requested_bytes - budget.margin_bytes < own.expected:
        message = (
            f"vLLM asks for {human_bytes(budget.requested_bytes)} of {human_bytes(budget.total_bytes)} and its CUDA context takes about "
            f"{human_bytes(int(own.expected))}: it may refuse to start. Use a lower --memory-utilization."
        )
        context.notes.append(Note(code="utilization-high", message=message))
