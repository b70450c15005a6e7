"""The memory equation of vLLM: its share of the GPU, minus everything that is not cache, is the pool.

``available = ceil(total x utilisation) - weights - activation peak - CUDA graphs - everything outside torch`` (vLLM 0.33,
``v1/worker/gpu_worker.py`` determine_available_memory). The constants are in ``profiles/engines/``; the weights come from
:mod:`hwcalc.engines.vllm.weights`. Each part has a low, an expected and a high value. The high end of the budget takes every part at
its low end.

The activation peak is that of the profile run: one forward pass of the largest batch, then the sampler on the logits of all requests. The
tensors of the sampler are derived from its code, version by version; ``profiles/engines/vllm.yaml`` lists them. While it samples, the
hidden states of the whole batch are alive, and so are the rows that were chosen of them. From 0.13 on the buffers of the expert kernels
stay allocated, too (``v1/worker/workspace.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING, Final

from hwcalc.engines.devices import Cost, Saving, compute_capability, computes_fp8, host_holds
from hwcalc.engines.memory import Budget, BudgetPart, Section, budget_of, estimated, exact, loaded, ranked, workspaces
from hwcalc.engines.options import is_on
from hwcalc.engines.rank_weights import expert_width, layer_width, rank_weight_bytes
from hwcalc.engines.setup import Parallel
from hwcalc.engines.steps import Step, step
from hwcalc.engines.vllm.formats import runs_weights
from hwcalc.engines.vllm.rules import rules_of
from hwcalc.engines.vllm.settings import (
    batch_is_chunked,
    default_utilization,
    graphs_subtracted,
    has_states,
    runs_second_runner,
    runs_v0,
)
from hwcalc.engines.vllm.weights import (
    VLLM,
    VllmRank,
    absorbed_bytes_rank,
    encoder_cache_bytes,
    padded_expert_bytes_rank,
    resident,
    stage_weights,
    vllm_lora_bytes_rank,
)
from hwcalc.formulas import SparseIndexer
from hwcalc.formulas.formats import FLOATS
from hwcalc.formulas.record import Record
from hwcalc.model import ModelSpec, Note, Noted
from hwcalc.profiles.engines import planned_version, runtime_profile, vllm_profile
from hwcalc.units import GIB, human_bytes

if TYPE_CHECKING:
    from hwcalc.engines.rank_weights import RankBytes
    from hwcalc.engines.setup import Setup
    from hwcalc.engines.vllm.deployment import VllmDeployment, VllmOccupancy
    from hwcalc.engines.vllm.settings import Speculation
    from hwcalc.model import ModelSpec
    from hwcalc.profiles.hardware_file import Gpu


_GRAPHS: Final = "CUDA graphs"


def plan_budget(
    occupancy: VllmOccupancy, *, sequences: int, batched_tokens: int, policy: tuple[BudgetPart, ...] = ()
) -> Noted[Budget | None]:
    """The bytes that each GPU has left for the cache; ``None`` if the memory of the GPU or the size of the weights is unknown.

    ``sequences`` and ``batched_tokens`` are the resolved ``max_num_seqs`` and ``max_num_batched_tokens``. Notes say what was assumed.
    ``policy`` is what a cache policy takes to score prompts.
    """
    request, speculation = occupancy.request, occupancy.deployment.settings.speculation
    memory_and_weights = loaded(occupancy)
    if memory_and_weights.value is None:
        return Noted(None, memory_and_weights.notes)
    gpu, memory, weights = memory_and_weights.value
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
        *outside_torch(request.setup.parallel, gpu, occupancy.version, request.setup.options.get("all2all_backend")),
        *workspaces(gpu),
        *policy,
    ]
    if graphs_subtracted(occupancy.version) and not is_on(request.setup.options.get("enforce_eager")):
        left = ceil(memory.expected_bytes * share) - sum(part.expected for part in parts)
        parts.append(graphs(occupancy.model, occupancy.version, left, speculation))
    budget, notes = budget_of(occupancy, memory, tuple(parts), tokens=run.tokens, rows=run.rows, share=share)
    return Noted(budget, (*memory_and_weights.notes, *extra.notes, *notes, *_check_free(budget)))


def follows_batch(part: BudgetPart) -> bool:
    """Whether a part follows from the largest batch. The estimate of graphs may follow from what the other parts leave."""
    return part.section is Section.ACTIVATIONS or part.name == _GRAPHS


def share_of(occupancy: VllmOccupancy) -> float:
    """The share of each GPU that vLLM may use."""
    share = occupancy.setup.hardware.memory_utilization
    return float(default_utilization(occupancy.version)) if share is None else share


def profile_run(occupancy: VllmOccupancy, sequences: int, batched_tokens: int) -> ProfileRun:
    """The forward pass that this version runs before it sizes the pool."""
    from hwcalc.quantization.planned import format_name, planned_scheme

    request = occupancy.request
    return ProfileRun(
        version=occupancy.version,
        parallel=request.setup.parallel,
        seq=request.load.seq,
        tokens=batched_tokens,
        rows=min(sequences, batched_tokens),
        element_bytes=4 if _requested_dtype(occupancy.deployment) == "fp32" else 2,
        quantized=planned_scheme(occupancy.model, format_name(request.setup.weights))[0] is not None,
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
    """The parts of weights in this dtype. ``capability`` is that of an NVIDIA GPU; ``None`` is another GPU."""
    from hwcalc.quantization.planned import format_name, planned_scheme

    parallel, weight_format = setup.parallel, format_name(setup.weights)
    weight_dtype = weight_format if weight_format in FLOATS else dtype
    scheme, known = planned_scheme(model, weight_format)
    sizes = VLLM.sizes(model, parallel)
    stages = model.once(
        ("vllm", "weights", weight_dtype, weight_format, *sizes),
        lambda: rank_weight_bytes(model, parallel, weight_dtype=weight_dtype, scheme=scheme, rules=VLLM),
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
    from hwcalc.engines.rank_weights import dflash_bytes_rank, draft_bytes_rank, eagle_bytes_rank, mtp_bytes_rank
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
    alone = None if stages is None else rank_weight_bytes(model, rules=VLLM)
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


_LONGEST_EXPERT_BATCH: Final = {True: 32_768, False: 65_536}
"""Tokens that the expert kernels take at once (VLLM_FUSED_MOE_CHUNK_SIZE): by V0, and by V1."""
_UNCOUNTED_WIDTH: Final = 12
"""Width of the widest layer in hidden widths, if the weights are not counted: a gated MLP with an inner width of four."""
_WIDE: Final = 4
"""Bytes of a number in fp32."""

_FORWARD: Final = "element_bytes x forward_tokens x (hidden_copies x hidden_size + inner_width)"
_EXPERTS: Final = "element_bytes x expert_tokens x experts_per_token x expert_numbers x expert_share"
_SAMPLER: Final = (
    "element_bytes x hidden_size x (forward_tokens + hidden_rows) + logits x sampler_bytes + buffer_rows x vocab_size x 4"
)


class ProfileRun(Record):
    """The forward pass that vLLM runs before it sizes the pool: ``tokens`` at once, then ``rows`` of logits. ``quantized`` says whether weights are."""

    version: str
    parallel: Parallel
    seq: int
    tokens: int
    rows: int
    element_bytes: int
    quantized: bool


def activation_parts(model: ModelSpec, run: ProfileRun) -> tuple[BudgetPart, ...]:
    """The peak above the weights, and what a tower adds to it. The model keeps it: formats of the cache and GPUs do not change it.

    1,024 rows of 128,256 logits take 14 bytes each from 0.17 on, and a buffer of 132 rows in fp32; beside 8,192 hidden states of 4,096
    and twice the chosen rows these are 1.885 GiB with the workspace of cuBLAS, and Llama-3.1-8B logs 1.89.
    """
    # Only V0 looks at the length. Hashed field by field, this takes a fraction of the time of the record.
    seq = run.seq if runs_v0(run.version) else 0
    key = (run.version, seq, run.tokens, run.rows, run.element_bytes, run.quantized, *VLLM.sizes(model, run.parallel))
    return model.once(("activations of vLLM", key), lambda: _activation_parts(model, run))


def _activation_parts(model: ModelSpec, run: ProfileRun) -> tuple[BudgetPart, ...]:
    # Advice changes the number of sequences alone, which only the sampler sees.
    key = (run.version, run.tokens, run.element_bytes, run.quantized, *VLLM.sizes(model, run.parallel))
    steps = (*model.once(("passes of vLLM", key), lambda: (_forward(model, run), _experts(model, run))), _sampling(model, run))
    forward, experts, sampled = ((each.low, each.expected, each.high) for each in steps)
    stay = rules_of(planned_version(run.version)).expert_buffers_kept
    peak = [
        int((buffers if stay else 0) + max(passed + (0 if stay else buffers), sampling))
        for passed, buffers, sampling in zip(forward, experts, sampled, strict=True)
    ]
    chunked = runs_v0(run.version) and batch_is_chunked(run.seq, run.tokens)
    if run.parallel.pp > 1 or chunked:
        # Only the last stage samples. V0 was seen to sample nothing where prompts go in chunks.
        peak[0] = int(forward[0] + (0 if stay else experts[0]))
    if chunked:
        peak[1] = int(forward[1] + experts[1])
    rows = 0 if chunked else run.rows
    copies = vllm_profile().estimate("activation.hidden_copies", run.version)
    ends = min(peak), min(peak[1], peak[2]), max(peak)
    main = BudgetPart(
        name="activations",
        section=Section.ACTIVATIONS,
        low=ends[0],
        expected=ends[1],
        high=ends[2],
        steps=_peak_steps(steps, ends, sampled=not chunked, kept=stay),
        source=f"{run.tokens:,} tokens, {rows:,} rows of logits; {_sampler_source(model, run)}; {copies.source}",
    )
    return (main, *_encoder(model, run, main))


def _peak_steps(steps: tuple[Step, Step, Step], ends: tuple[int, int, int], *, sampled: bool, kept: bool) -> tuple[Step, ...]:
    """The steps of the peak. A model without experts has no buffers for them."""
    forward, experts, sampler = steps
    used = tuple(each for each in (forward, experts if experts.high else None, sampler if sampled else None) if each is not None)
    passed = "forward_pass + expert_buffers" if experts.high else "forward_pass"
    formula = f"max({passed}, sampler)" if sampled else passed
    if sampled and kept and experts.high:
        formula = "expert_buffers + max(forward_pass, sampler)"
    return (
        *used,
        step("activations", formula, ends, unit="bytes", **{each.name: (each.low, each.expected, each.high) for each in used}),
    )


def _second_runner(model: ModelSpec, run: ProfileRun) -> bool:
    return runs_second_runner(model, run.version, quantized=run.quantized)


def _ends(name: str, version: str) -> tuple[float, float, float]:
    estimate = vllm_profile().estimate(name, version)
    return estimate.low, estimate.expected, estimate.high


def _forward(model: ModelSpec, run: ProfileRun) -> Step:
    """A forward pass: a few hidden vectors of each token, and once the inner width of the widest layer.

    8,192 tokens of CodeLlama-7B take 2 x 8,192 x (3.75 x 4,096 + 3 x 11,008) = 792,723,456 bytes.
    """
    rank = VllmRank(model, run.parallel)
    key = ("vllm", "width without experts", *VLLM.sizes(model, run.parallel))
    width = model.once(key, lambda: layer_width(model, rank, experts=False))
    hidden = model.hidden_size or 0
    inside = _UNCOUNTED_WIDTH * hidden // run.parallel.tp if width is None else width
    copies = _ends("activation.hidden_copies", run.version)
    low, expected, high = (int(run.element_bytes * run.tokens * (each * hidden + inside)) for each in copies)
    return step(
        "forward_pass",
        _FORWARD,
        (low, expected, high),
        element_bytes=run.element_bytes,
        forward_tokens=run.tokens,
        hidden_copies=copies,
        hidden_size=hidden,
        inner_width=inside,
    )


def _experts(model: ModelSpec, run: ProfileRun) -> Step:
    """The bytes of the buffers of the expert kernels, with their formula. 8,192 tokens x 8 experts x (2,048 + 2,048) x 2 bytes are 0.5 GiB for Qwen3-30B-A3B."""
    key = ("vllm", "expert width", *VLLM.sizes(model, run.parallel))
    chosen, inner, hidden = model.once(key, lambda: expert_width(model, VllmRank(model, run.parallel)))
    if not chosen:
        return step("expert_buffers", "0", 0)
    if rules_of(planned_version(run.version)).expert_buffers_kept:
        tokens, numbers = run.tokens, max(inner, hidden) + max(2 * inner, hidden)
    else:
        tokens = min(run.tokens, _LONGEST_EXPERT_BATCH[runs_v0(run.version)])
        numbers = max(2 * inner, hidden) + inner
    share = "activation.quantized_expert_share" if run.quantized else "activation.expert_share"
    size = run.element_bytes * tokens * chosen * numbers
    shares = _ends(share, run.version)
    low, expected, high = (int(size * part) for part in shares)
    return step(
        "expert_buffers",
        _EXPERTS,
        (low, expected, high),
        element_bytes=run.element_bytes,
        expert_tokens=tokens,
        experts_per_token=chosen,
        expert_numbers=numbers,
        expert_share=shares,
    )


def _sampling(model: ModelSpec, run: ProfileRun) -> Step:
    """The sampler, and the hidden states that are alive at the same time."""
    hidden, logits = model.hidden_size or 0, run.rows * (model.vocab_size or 0)
    second = _second_runner(model, run)
    # The first runner also makes random rows, so that the sampler sees no infinities.
    chosen_rows = run.rows * (1 if second else 2)
    alive = run.element_bytes * hidden * (run.tokens + chosen_rows)
    wider = run.element_bytes - 2
    # The Triton kernel works in as many rows as it has programs, rounded up to a power of two.
    most = 1 << max(0, run.rows - 1).bit_length()
    buffers = (0.0, 0.0, 0.0) if second else _ends("sampler.buffer_rows", run.version)
    each, rows = (
        tuple(size + wider for size in _ends(_logit_name(model, run), run.version)),
        tuple(min(count, most) for count in buffers),
    )
    low, expected, high = (
        int(alive + logits * size + count * (model.vocab_size or 0) * _WIDE) for size, count in zip(each, rows, strict=True)
    )
    return step(
        "sampler",
        _SAMPLER,
        (low, expected, high),
        element_bytes=run.element_bytes,
        hidden_size=hidden,
        forward_tokens=run.tokens,
        hidden_rows=chosen_rows,
        logits=logits,
        sampler_bytes=(each[0], each[1], each[2]),
        buffer_rows=(rows[0], rows[1], rows[2]),
        vocab_size=model.vocab_size or 0,
    )


def _logit_name(model: ModelSpec, run: ProfileRun) -> str:
    if _second_runner(model, run):
        return "sampler.runner2_logit_bytes"
    return "sampler.few_logit_bytes" if run.rows < vllm_profile().few_rows else "sampler.logit_bytes"


def _sampler_source(model: ModelSpec, run: ProfileRun) -> str:
    return vllm_profile().estimate(_logit_name(model, run), run.version).source


def _encoder(model: ModelSpec, run: ProfileRun, main: BudgetPart) -> tuple[BudgetPart, ...]:
    """The parts that a tower adds: its inputs, which stay alive, and its own pass as far as that takes more than the decoder's."""
    tp = run.parallel.tp
    width = model.once(("vllm", "encoder width", tp), lambda: layer_width(model, VllmRank(model, Parallel(tp=tp)), towers=True))
    if not width:
        return ()
    patches = _ends("activation.encoder_patches", run.version)
    numbers = _ends("activation.patch_numbers", run.version)
    mains = (main.low, main.expected, main.high)
    low, expected, high = (
        ceil(2 * run.tokens * count * size) + max(0, int(2 * run.tokens * count * width) - beside)
        for count, size, beside in zip(patches, numbers, mains, strict=True)
    )
    source = vllm_profile().estimate("activation.encoder_patches", run.version).source
    part = BudgetPart(
        name="encoder profile",
        section=Section.ACTIVATIONS,
        low=low,
        expected=max(low, expected),
        high=max(low, expected, high),
        source=source,
    )
    return (part,)


def outside_torch(parallel: Parallel, gpu: Gpu, version: str, back_end: str | None) -> tuple[BudgetPart, ...]:
    """Kernels, handles and communication; and the buffers of an expert exchange, if the chosen back end has them."""
    exchanges = parallel.ep > 1 and (back_end or "").startswith("deepep")
    return _outside_torch(_link(parallel, gpu), version, exchanges)


@lru_cache(maxsize=256)
def _outside_torch(link: str, version: str, exchanges: bool) -> tuple[BudgetPart, ...]:
    profile = vllm_profile()
    parts = [estimated("non-torch", Section.OVERHEAD, profile.estimate(f"non_torch.{link}", version))]
    if exchanges:
        parts.append(estimated("expert exchange", Section.OVERHEAD, profile.estimate("expert_exchange.deepep", version)))
    return tuple(parts)


def _link(parallel: Parallel, gpu: Gpu) -> str:
    """How ranks are linked: the name of the profile's entry."""
    if gpu.vendor.lower() == "amd":
        return "amd"
    if parallel.tp == 1:
        return "stages" if parallel.pp > 1 else "single"
    if "nvlink" not in str(gpu.interconnect.get("kind") or "").lower():
        return "pcie"
    return "nvlink_pair" if parallel.tp == 2 else "nvlink"


def graphs(model: ModelSpec, version: str, left: int, speculation: Speculation | None) -> BudgetPart:
    """The memory of CUDA graphs as vLLM estimates it. For models with recurrent states the estimate is per graph.

    ``left`` is what the other parts leave of the GPU, in bytes.
    """
    profile = vllm_profile()
    if speculation is not None and speculation.method == "mtp" and _is_sparse(model):
        return _graphs("graphs.sparse_draft", version)
    if not has_states(model):
        return _graphs("graphs.attention", version)
    graph, count = profile.estimate("graphs.state_graph", version), profile.estimate("graphs.state_graphs", version)
    share = profile.estimate("graphs.state_share", version)
    sizes, counts = ((one.low, one.expected, one.high) for one in (graph, count))
    low, expected, high = (int(size * number) for size, number in zip(sizes, counts, strict=True))
    high = max(high, int(max(0, left) * share.high))
    return BudgetPart(
        name=_GRAPHS,
        section=Section.OVERHEAD,
        low=low,
        expected=expected,
        high=high,
        source=f"{graph.source}; {share.source}",
        steps=(step(_GRAPHS, "graph_bytes x graphs", (low, expected, high), graph_bytes=sizes, graphs=counts),),
    )


@lru_cache(maxsize=256)
def _graphs(name: str, version: str) -> BudgetPart:
    return estimated(_GRAPHS, Section.OVERHEAD, vllm_profile().estimate(name, version))


def _is_sparse(model: ModelSpec) -> bool:
    return any(isinstance(group.kind, SparseIndexer) for group in model.stack.groups)


_BLACKWELL: Final = 100


def savings(occupancy: VllmOccupancy, short_bytes: int) -> Iterator[Saving]:
    """The savings for the planned GPU. Those of the cache are refused by :func:`check_kv_dtype` where no backend has them."""
    request, options = occupancy.request, occupancy.setup.options
    gpu = request.setup.hardware.gpu
    capability = compute_capability(gpu) if gpu is not None else occupancy.settings.capability
    nvidia = gpu is None or gpu.vendor.lower() == "nvidia"

    def runs(name: str) -> bool:
        return runs_weights(name, occupancy.version, capability) and (name != "nvfp4" or capability >= _BLACKWELL)

    if occupancy.settings.sequences > request.replica_batch:
        count = str(request.replica_batch)
        what, settings = f"a server for {count} at once", {"engine_options": {"max_num_seqs": count}}
        yield Saving(Cost.NOTHING, what, settings, _activations(occupancy))
    for kv_dtype in ("fp8",) if computes_fp8(gpu) else ("int8_per_token_head",):
        yield Saving(Cost.CACHE, f"{kv_dtype} cache", {"dtype": kv_dtype})
    if computes_fp8(gpu):
        yield Saving(Cost.WEIGHTS, "fp8 weights", {"weights": "fp8"})
    elif nvidia and runs("int8"):
        yield Saving(Cost.WEIGHTS, "a checkpoint in int8", {"weights": "int8"})
    if not is_on(options.get("enforce_eager")):
        yield Saving(Cost.SPEED, "no CUDA graphs, slower", {"engine_options": {"enforce_eager": "true"}})
    few = next((name for name in ("nvfp4", "awq", "gptq") if runs(name)), "gptq") if nvidia else "awq"
    yield Saving(Cost.FEW_BITS, f"a checkpoint in {few}", {"weights": few})
    for kv_dtype in ("nvfp4", "int4_per_token_head"):
        yield Saving(Cost.FEW_CACHE_BITS, f"{kv_dtype} cache", {"dtype": kv_dtype})
    if short_bytes > 0 and request.setup.hardware.kv_memory is None:
        moved = round(float(options.get("cpu_offload_gb", "0")))
        size = -(-short_bytes // GIB) + moved
        # No more than the weights that are on the GPU.
        if (size - moved) * GIB <= _weights_bytes(occupancy) and host_holds(gpu, size * GIB):
            what = f"{size:,} GiB of weights in host memory, much slower"
            yield Saving(Cost.HOST, what, {"engine_options": {"cpu_offload_gb": str(size)}})


def _activations(occupancy: VllmOccupancy) -> tuple[int, int] | None:
    """The activations, high and expected: fewer sequences free a part of them, as long as a batch has as many tokens."""
    settings = occupancy.settings
    batches = settings.full_batch is None or occupancy.request.replica_batch * occupancy.load.seq >= settings.full_batch
    as_planned = batches and settings.rules.engine != "V0" and settings.override is None
    if not as_planned or occupancy.budget is None or occupancy.setup.hardware.gpu is None:
        return None
    parts = [part for part in occupancy.budget.parts if part.section is Section.ACTIVATIONS]
    return sum(part.high for part in parts), sum(part.expected for part in parts)


def _weights_bytes(occupancy: VllmOccupancy) -> int:
    """The weights of one GPU."""
    parts = () if occupancy.budget is None else occupancy.budget.parts
    return sum(part.high for part in parts if part.name == "weights")
