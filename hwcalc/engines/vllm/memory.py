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
from hwcalc.engines.runs_on import runs_weights
from hwcalc.engines.setup import Parallel
from hwcalc.engines.steps import Ends, Step, step
from hwcalc.engines.vllm.rules import rules_of
from hwcalc.engines.vllm.settings import (
    MAX_LENGTH,
    default_utilization,
    graphs_subtracted,
    has_states,
    loads_towers,
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
    from hwcalc.engines.vllm.weights import StageWeights
    from hwcalc.profiles.hardware_file import Gpu


_ENCODER: Final = "encoder profile"
_GRAPHS: Final = "CUDA graphs"


def plan_budget(
    occupancy: VllmOccupancy, *, sequences: int, batched_tokens: int, policy: tuple[BudgetPart, ...] = ()
) -> Noted[Budget | None]:
    """The bytes that each GPU has left for the cache; ``None`` if the memory of the GPU or the size of the weights is unknown.

    ``sequences`` and ``batched_tokens`` are the resolved ``max_num_seqs`` and ``max_num_batched_tokens``. Notes say what was assumed.
    ``policy`` is what a cache policy takes to score prompts.
    """
    model, setup, version, options = occupancy.model, occupancy.setup, occupancy.deployment.version, occupancy.setup.options
    speculation = occupancy.deployment.settings.speculation
    memory_and_weights, notes = loaded(occupancy)
    if memory_and_weights is None:
        return Noted(None, notes)
    gpu, memory, weights = memory_and_weights
    share = setup.hardware.memory_utilization
    share = float(default_utilization(version)) if share is None else share
    extra, unknown = _extras(model, setup, speculation, batched_tokens)
    run, towers = profile_run(occupancy, sequences, batched_tokens), loads_towers(model, options)
    parts = [
        *weights,
        *extra,
        *rotary_parts(model),
        *(each for each in activation_parts(model, run) if towers or each.name != _ENCODER),
        *outside_torch(setup.parallel, gpu, version, options.get("all2all_backend")),
        *workspaces(gpu),
        *policy,
    ]
    if graphs_subtracted(version) and not is_on(options.get("enforce_eager")):
        left = ceil(memory.expected_bytes * share) - sum(part.expected for part in parts)
        parts.append(graphs(model, version, left, speculation))
    budget, measured = budget_of(occupancy, memory, tuple(parts), tokens=run.tokens, rows=run.rows, share=share)
    notes = (*notes, *unknown, *measured)
    # vLLM requires its share to be free, after its own CUDA context has taken memory.
    context = runtime_profile().estimate("context.cuda").expected
    if budget.total_bytes - budget.requested_bytes - budget.margin_bytes < context:
        message = (
            f"vLLM asks for {human_bytes(budget.requested_bytes)} of {human_bytes(budget.total_bytes)} and its CUDA context takes about "
            f"{human_bytes(int(context))}: it may refuse to start. Use a lower --memory-utilization."
        )
        notes = (*notes, Note(code="utilization-high", message=message))
    return Noted(budget, notes)


def follows_batch(part: BudgetPart) -> bool:
    """True if a part follows from the largest batch. The estimate of graphs may follow from what the other parts leave."""
    return part.section is Section.ACTIVATIONS or part.name == _GRAPHS


def follows_rest(part: BudgetPart, model: ModelSpec) -> bool:
    """True if a part follows from what the others leave of the GPU (:func:`graphs`)."""
    return part.name == _GRAPHS and has_states(model)


def profile_run(occupancy: VllmOccupancy, sequences: int, batched_tokens: int) -> ProfileRun:
    """The forward pass that this version runs before it sizes the pool."""
    from hwcalc.quantization.planned import format_name, planned_scheme

    request = occupancy.request
    return ProfileRun(
        version=occupancy.deployment.version,
        parallel=request.setup.parallel,
        seq=occupancy.length,
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
    towers = loads_towers(model, setup.options)
    key = ("vllm", "weight parts", setup.weights, dtype, *sizes, setup.options.get("cpu_offload_gb"), capability, towers)
    return model.once(key, lambda: _weight_parts(model, setup, dtype, capability))


def _weight_parts(
    model: ModelSpec, setup: Setup, dtype: str | None, capability: int | None
) -> Noted[tuple[BudgetPart, ...] | None]:
    """The parts of weights in this dtype. ``capability`` is that of an NVIDIA GPU; ``None`` is another GPU."""
    from hwcalc.quantization.planned import format_name, planned_scheme

    parallel, weight_format, towers = setup.parallel, format_name(setup.weights), loads_towers(model, setup.options)
    weight_dtype = weight_format if weight_format in FLOATS else dtype
    scheme, known = planned_scheme(model, weight_format)
    stages = model.once(
        ("vllm", "weights", weight_dtype, weight_format, towers, *VLLM.sizes(model, parallel)),
        lambda: stage_weights(model, parallel, weight_dtype=weight_dtype, scheme=scheme, towers=towers),
    )
    if stages is None or not known:
        return _from_files(model, setup, stages)
    offloaded = setup.options.get("cpu_offload_gb")
    if offloaded is not None:
        return Noted((ranked("weights", Section.WEIGHTS, resident(stages, float(offloaded))),))
    source = f"parameters by vLLM's own sharding, {'16 bits' if scheme is None else scheme.name}"
    parts = [exact("weights", Section.WEIGHTS, max(stage.total for stage in stages), source)]
    if scheme is not None and capability is not None:
        padding = padded_expert_bytes_rank(model, parallel, scheme, capability)
        parts += [] if padding is None else [ranked("padded experts", Section.WEIGHTS, padding)]
    absorbed = 0 if scheme is None else absorbed_bytes_rank(model, parallel)
    if absorbed:
        text = "vLLM 0.33 layers/attention/mla_attention.py: 16-bit copies of the quantised up-projections"
        parts.append(exact("absorbed projections", Section.WEIGHTS, absorbed, text))
    return Noted(tuple(parts))


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
    waiting = encoder_cache_bytes(model, batched_tokens) if loads_towers(model, setup.options) else None
    if waiting is not None and waiting.high:
        sizes["encoder cache"] = Section.ACTIVATIONS, waiting
    return Noted(tuple(ranked(name, section, size) for name, (section, size) in sizes.items() if size is not None), notes)


def _draft_bytes(model: ModelSpec, setup: Setup, speculation: Speculation) -> RankBytes | None:
    from hwcalc.engines.weights_beside import dflash_bytes_rank, draft_bytes_rank, eagle_bytes_rank, mtp_bytes_rank
    from hwcalc.quantization.planned import format_name, planned_scheme

    if speculation.model is None:
        scheme, known = planned_scheme(model, format_name(setup.weights))
        return mtp_bytes_rank(model, setup.parallel, scheme=scheme, rules=VLLM) if known else None
    draft = speculation.model
    scheme, known = planned_scheme(draft, None)
    if not known:
        return None
    if speculation.method in ("dflash", "eagle"):
        rule = dflash_bytes_rank if speculation.method == "dflash" else eagle_bytes_rank
        return rule(draft, model, setup.parallel, scheme=scheme, rules=VLLM)
    return draft_bytes_rank(draft, setup.parallel, scheme=scheme, rules=VLLM)


def _requested_dtype(deployment: VllmDeployment) -> str | None:
    """The engine option ``dtype`` as kvplan spells it, or ``fp32`` where vLLM chooses that itself; ``None`` is 16 bits."""
    spelling = deployment.setup.options.get("dtype", "auto")
    if spelling == "auto":
        return "fp32" if deployment.settings.model_dtype == "fp32" else None
    return {"float32": "fp32", "fp32": "fp32", "float16": "fp16", "fp16": "fp16", "bfloat16": "bf16", "bf16": "bf16"}.get(
        spelling
    )


def _from_files(model: ModelSpec, setup: Setup, stages: tuple[StageWeights, ...] | None) -> Noted[tuple[BudgetPart, ...] | None]:
    """The size of the files, divided over ranks in the proportion of the 16-bit weights, or evenly if the layers are not counted."""
    if model.weights is None or setup.weights is not None:
        message = f"Weights of a {model.model_type} model are not counted: no budget. Give one with --kv-memory."
        return Noted(None, (Note(code="weights-unknown", message=message),))
    published = model.weights.total_bytes
    estimate = runtime_profile().estimate("uncounted_weights")
    alone = None if stages is None else rank_weight_bytes(model, rules=VLLM)
    if stages is not None and alone is not None:
        each = published * max(stage.total for stage in stages) // sum(alone)
        low, expected, high = each, each, ceil(each * estimate.high)
        source = "the weight files, shared out as vLLM cuts the model"
    else:
        each = published // (setup.parallel.tp * setup.parallel.pp)
        low, expected, high = (ceil(each * share) for share in (estimate.low, estimate.expected, estimate.high))
        source = f"the weight files, shared out evenly; {estimate.source}"
    return Noted((BudgetPart.of("weights", Section.WEIGHTS, (low, expected, high), source),))


def rotary_parts(model: ModelSpec) -> tuple[BudgetPart, ...]:
    """The table of rotary embeddings: positions x rotated dimensions, 131,072 x 128 for Llama-3.1."""

    def table() -> tuple[BudgetPart, ...]:
        # The dimensions that rotary embeddings turn, of the layer with most.
        dims = [group.kind.dims() for group in model.stack.groups]
        attention = [one for one in dims if "num_attention_heads" in one]
        width = max((one.get("qk_rope_head_dim", one.get("head_dim", 0)) for one in attention), default=0)
        positions, each = model.max_position_embeddings or 0, runtime_profile().estimate("rotary_bytes")
        if not positions or not width:
            return ()
        sizes = (each.low, each.expected, each.high)
        low, expected, high = (int(positions * width * size) for size in sizes)
        formula = "max_position_embeddings x rotated_width x rotary_bytes"
        terms: dict[str, Ends] = {"max_position_embeddings": positions, "rotated_width": width, "rotary_bytes": sizes}
        counted = step("rotary table", formula, (low, expected, high), unit="bytes", **terms)
        return (BudgetPart.of("rotary table", Section.OVERHEAD, (low, expected, high), each.source, steps=(counted,)),)

    return model.once("rotary table of vLLM", table)


_UNCOUNTED_WIDTH: Final = 12
"""Width of the widest layer in hidden widths, if the weights are not counted: a gated MLP with an inner width of four."""

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
    """The peak of a profiling pass as parts of the budget: the decoder's, and what an encoder adds to it."""
    # Advice changes the number of sequences alone, which only the sampler sees.
    key = (run.version, run.tokens, run.element_bytes, run.quantized, *VLLM.sizes(model, run.parallel))
    forward, experts = model.once(("passes of vLLM", key), lambda: (_forward(model, run), _experts(model, run)))
    sampler, sampler_source = _sampling(model, run)
    kept = rules_of(planned_version(run.version)).expert_buffers_kept
    # V0 may cut a prompt that does not fit into a batch.
    chunked = runs_v0(run.version) and run.tokens < run.seq
    ends = [(each.low, each.expected, each.high) for each in (forward, experts, sampler)]
    peak = [
        int((buffers if kept else 0) + max(passed + (0 if kept else buffers), sampling))
        for passed, buffers, sampling in zip(*ends, strict=True)
    ]
    if run.parallel.pp > 1 or chunked:
        # Only the last stage samples. V0 was seen to sample nothing where prompts go in chunks.
        peak[0] = int(forward.low + (0 if kept else experts.low))
    if chunked:
        peak[1] = int(forward.expected + experts.expected)
    size = min(peak), min(peak[1], peak[2]), max(peak)
    # A model without experts has no buffers for them.
    used = [forward, *([experts] if experts.high else []), *([] if chunked else [sampler])]
    passed = "forward_pass + expert_buffers" if experts.high else "forward_pass"
    formula = passed if chunked else f"max({passed}, sampler)"
    if not chunked and kept and experts.high:
        formula = "expert_buffers + max(forward_pass, sampler)"
    terms = {each.name: (each.low, each.expected, each.high) for each in used}
    copies = vllm_profile().estimate("activation.hidden_copies", run.version)
    source = f"{run.tokens:,} tokens, {0 if chunked else run.rows:,} rows of logits; {sampler_source}; {copies.source}"
    steps = (*used, step("activations", formula, size, unit="bytes", **terms))
    main = BudgetPart.of("activations", Section.ACTIVATIONS, size, source, steps=steps)
    # A tower adds its inputs, which stay alive, and its own pass as far as that takes more than the decoder's.
    tp = run.parallel.tp
    width = model.once(("vllm", "encoder width", tp), lambda: layer_width(model, VllmRank(model, Parallel(tp=tp)), towers=True))
    if not width:
        return (main,)
    patches, numbers = _ends("activation.encoder_patches", run.version), _ends("activation.patch_numbers", run.version)
    low, expected, high = (
        ceil(2 * run.tokens * count * each) + max(0, int(2 * run.tokens * count * width) - decoder)
        for count, each, decoder in zip(patches, numbers, size, strict=True)
    )
    size, tower = (
        (low, max(low, expected), max(low, expected, high)),
        vllm_profile().estimate("activation.encoder_patches", run.version),
    )
    return main, BudgetPart.of(_ENCODER, Section.ACTIVATIONS, size, tower.source)


def _ends(name: str, version: str) -> tuple[float, float, float]:
    estimate = vllm_profile().estimate(name, version)
    return estimate.low, estimate.expected, estimate.high


def _forward(model: ModelSpec, run: ProfileRun) -> Step:
    """A forward pass: a few hidden vectors of each token, and once the inner width of the widest layer.

    8,192 tokens of CodeLlama-7B take 2 x 8,192 x (3.75 x 4,096 + 3 x 11,008) = 792,723,456 bytes.
    """
    key = ("vllm", "width without experts", *VLLM.sizes(model, run.parallel))
    width = model.once(key, lambda: layer_width(model, VllmRank(model, run.parallel), experts=False))
    hidden = model.hidden_size or 0
    inside = _UNCOUNTED_WIDTH * hidden // run.parallel.tp if width is None else width
    copies = _ends("activation.hidden_copies", run.version)
    low, expected, high = (int(run.element_bytes * run.tokens * (each * hidden + inside)) for each in copies)
    terms: dict[str, Ends] = {"hidden_copies": copies, "hidden_size": hidden, "inner_width": inside}
    terms = {"element_bytes": run.element_bytes, "forward_tokens": run.tokens, **terms}
    return step("forward_pass", _FORWARD, (low, expected, high), unit="bytes", **terms)


def _experts(model: ModelSpec, run: ProfileRun) -> Step:
    """The buffers of the expert kernels. 8,192 tokens x 8 experts x (2,048 + 2,048) x 2 bytes are 0.5 GiB for Qwen3-30B-A3B."""
    key = ("vllm", "expert width", *VLLM.sizes(model, run.parallel))
    chosen, inner, hidden = model.once(key, lambda: expert_width(model, VllmRank(model, run.parallel)))
    if not chosen:
        return step("expert_buffers", "0", 0)
    tokens, numbers = run.tokens, max(inner, hidden) + max(2 * inner, hidden)
    if not rules_of(planned_version(run.version)).expert_buffers_kept:
        # The tokens that the kernels take at once (VLLM_FUSED_MOE_CHUNK_SIZE) are fewer in V0.
        tokens = min(tokens, 32_768 if runs_v0(run.version) else 65_536)
        numbers = max(2 * inner, hidden) + inner
    shares = _ends("activation.quantized_expert_share" if run.quantized else "activation.expert_share", run.version)
    low, expected, high = (int(run.element_bytes * tokens * chosen * numbers * share) for share in shares)
    terms: dict[str, Ends] = {"experts_per_token": chosen, "expert_numbers": numbers, "expert_share": shares}
    terms = {"element_bytes": run.element_bytes, "expert_tokens": tokens, **terms}
    return step("expert_buffers", _EXPERTS, (low, expected, high), unit="bytes", **terms)


def _sampling(model: ModelSpec, run: ProfileRun) -> tuple[Step, str]:
    """The sampler, and the hidden states that are alive at the same time; and the source of the sampler's bytes for each logit."""
    hidden, vocabulary = model.hidden_size or 0, model.vocab_size or 0
    second = runs_second_runner(model, run.version, quantized=run.quantized)
    few = run.rows < vllm_profile().sampler.few_rows.value
    name = "sampler.runner2_logit_bytes" if second else "sampler.few_logit_bytes" if few else "sampler.logit_bytes"
    # The first runner also makes random rows, so that the sampler sees no infinities.
    chosen_rows = run.rows * (1 if second else 2)
    alive = run.element_bytes * hidden * (run.tokens + chosen_rows)
    # The Triton kernel works in as many rows as it has programs, rounded up to a power of two.
    most = 1 << max(0, run.rows - 1).bit_length()
    low, expected, high = _ends(name, run.version)
    wider = run.element_bytes - 2
    each, rows = (low + wider, expected + wider, high + wider), (0.0, 0.0, 0.0)
    if not second:
        low, expected, high = _ends("sampler.buffer_rows", run.version)
        rows = min(low, most), min(expected, most), min(high, most)
    size = [
        int(alive + run.rows * vocabulary * bytes_each + count * vocabulary * 4)
        for bytes_each, count in zip(each, rows, strict=True)
    ]
    sampler = step(
        "sampler",
        _SAMPLER,
        (size[0], size[1], size[2]),
        element_bytes=run.element_bytes,
        hidden_size=hidden,
        forward_tokens=run.tokens,
        hidden_rows=chosen_rows,
        logits=run.rows * vocabulary,
        sampler_bytes=each,
        buffer_rows=rows,
        vocab_size=vocabulary,
    )
    return sampler, vllm_profile().estimate(name, run.version).source


def outside_torch(parallel: Parallel, gpu: Gpu, version: str, back_end: str | None) -> tuple[BudgetPart, ...]:
    """Kernels, handles and communication; and the buffers of an expert exchange, if the chosen back end has them."""
    if gpu.vendor.lower() == "amd":
        link = "amd"
    elif gpu.shares_host_memory:
        link = "unified"
    elif parallel.tp == 1:
        link = "stages" if parallel.pp > 1 else "single"
    elif "nvlink" not in str(gpu.interconnect.get("kind") or "").lower():
        link = "pcie"
    else:
        link = "nvlink_pair" if parallel.tp == 2 else "nvlink"
    return _outside_torch(link, version, parallel.ep > 1 and (back_end or "").startswith("deepep"))


@lru_cache(maxsize=256)
def _outside_torch(link: str, version: str, exchanges: bool) -> tuple[BudgetPart, ...]:
    profile = vllm_profile()
    parts = [estimated("non-torch", Section.OVERHEAD, profile.estimate(f"non_torch.{link}", version))]
    if exchanges:
        parts.append(estimated("expert exchange", Section.OVERHEAD, profile.estimate("expert_exchange.deepep", version)))
    return tuple(parts)


def graphs(model: ModelSpec, version: str, left: int, speculation: Speculation | None) -> BudgetPart:
    """The memory of CUDA graphs as vLLM estimates it. For models with recurrent states the estimate is per graph.

    ``left`` is what the other parts leave of the GPU, in bytes.
    """
    sparse = any(isinstance(group.kind, SparseIndexer) for group in model.stack.groups)
    if speculation is not None and speculation.method == "mtp" and sparse:
        return _graphs("graphs.sparse_draft", version)
    if not has_states(model):
        return _graphs("graphs.attention", version)
    sizes, counts = _ends("graphs.state_graph", version), _ends("graphs.state_graphs", version)
    graph, share = (vllm_profile().estimate(f"graphs.{name}", version) for name in ("state_graph", "state_share"))
    low, expected, high = (int(size * number) for size, number in zip(sizes, counts, strict=True))
    size = low, expected, max(high, int(max(0, left) * share.high))
    counted = step(_GRAPHS, "graph_bytes x graphs", size, graph_bytes=sizes, graphs=counts)
    return BudgetPart.of(_GRAPHS, Section.OVERHEAD, size, f"{graph.source}; {share.source}", steps=(counted,))


@lru_cache(maxsize=256)
def _graphs(name: str, version: str) -> BudgetPart:
    return estimated(_GRAPHS, Section.OVERHEAD, vllm_profile().estimate(name, version))


_BLACKWELL: Final = 100


def savings(occupancy: VllmOccupancy, short_bytes: int) -> Iterator[Saving]:
    """The savings for the planned GPU. Those of the cache are refused by :func:`~hwcalc.engines.vllm.formats.check_kv_dtype` where no backend has them."""
    setup, settings, replica_batch = occupancy.setup, occupancy.settings, occupancy.request.replica_batch
    options, gpu = setup.options, setup.hardware.gpu
    capability = compute_capability(gpu) if gpu is not None else settings.capability

    def runs(name: str) -> bool:
        return runs_weights(occupancy.engine, occupancy.deployment.version, gpu, name) and (
            name != "nvfp4" or capability >= _BLACKWELL
        )

    if occupancy.length > occupancy.tokens:
        change = {"engine_options": {MAX_LENGTH: str(occupancy.tokens)}}
        yield Saving(Cost.NOTHING, f"a server for sequences of {occupancy.tokens:,}", change)
    if settings.sequences > replica_batch:
        change = {"engine_options": {"max_num_seqs": str(replica_batch)}}
        yield Saving(Cost.NOTHING, f"a server for {replica_batch} at once", change)
    kv_dtype = occupancy.engine.facts.eight_bits(gpu)
    yield Saving(Cost.CACHE, f"{kv_dtype} cache", {"dtype": kv_dtype})
    if computes_fp8(gpu):
        yield Saving(Cost.WEIGHTS, "fp8 weights", {"weights": "fp8"})
    elif runs("int8"):
        yield Saving(Cost.WEIGHTS, "a checkpoint in int8", {"weights": "int8"})
    if not is_on(options.get("enforce_eager")):
        yield Saving(Cost.SPEED, "no CUDA graphs, slower", {"engine_options": {"enforce_eager": "true"}})
    few = next((name for name in ("nvfp4", "awq", "gptq", "mxfp4") if runs(name)), None)
    if few is not None:
        yield Saving(Cost.FEW_BITS, f"a checkpoint in {few}", {"weights": few})
    for kv_dtype in ("nvfp4", "int4_per_token_head"):
        yield Saving(Cost.FEW_CACHE_BITS, f"{kv_dtype} cache", {"dtype": kv_dtype})
    if short_bytes > 0 and setup.hardware.kv_memory is None:
        short, moved = -(-short_bytes // GIB), round(float(options.get("cpu_offload_gb", "0")))
        parts = () if occupancy.budget is None else occupancy.budget.parts
        on_gpu = sum(part.high for part in parts if part.name == "weights")
        if short * GIB <= on_gpu and host_holds(gpu, (short + moved) * GIB):
            what = f"{short + moved:,} GiB of weights in host memory, much slower"
            yield Saving(Cost.HOST, what, {"engine_options": {"cpu_offload_gb": str(short + moved)}})
