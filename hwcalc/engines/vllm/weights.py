"""The weights on a rank of vLLM: how tensors are cut, which stage has which layers, what stays on the GPU, what kernels add.

Tensors are cut by :mod:`hwcalc.engines.rank_weights`, except where vLLM 0.33 differs (``model_executor/layers/{linear,
vocab_parallel_embedding,mamba}`` and the model files): vocabularies are padded to a multiple of 64, and several model types keep more
or fewer tensors whole. Weights of multi-token prediction are loaded only for speculative decoding and are not counted here.

``cpu_offload_gb`` moves parameters to host memory one by one, in order, until the limit is reached, so that the last one may exceed it
(vLLM 0.33, ``model_executor/offloader/uva.py``). It moves parameters of the decoder's layers (``models/utils.py`` make_layers) and of
the towers (``models/interfaces.py`` _mark_tower_model), but not embedding or head. The limit is in GiB per GPU. ``kv_offloading_size``
is only host memory: it is a second level of the cache (``config/cache.py``) and changes nothing on the GPU.

Adapters lie beside the weights: :func:`vllm_lora_bytes_rank`.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec import Struct
from msgspec.structs import replace

from hwcalc.engines.rank_weights import (
    ROW_PARALLEL,
    Rank,
    RankBytes,
    Rules,
    Sharding,
    Tables,
    block_bytes,
    cut_blocks,
    expert_width,
    module_of,
    on_stages,
    stages_of,
)
from hwcalc.engines.setup import ALONE, Parallel
from hwcalc.engines.subjects import AdapterRules
from hwcalc.engines.weights_beside import adapted, adapter_numbers, most_on_a_stage
from hwcalc.errors import UsageError
from hwcalc.formulas import LatentAttention
from hwcalc.formulas.formats import BF16, FLOATS, FP16, MXFP4, WeightFormat
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole, Weights
from hwcalc.units import GIB

if TYPE_CHECKING:
    from hwcalc.engines.options import Lora
    from hwcalc.model import ModelSpec
    from hwcalc.quantization.scheme import Scheme

_REPLICATED: Final = Rank.replicated | {
    "fc1_latent_proj", "fc2_latent_proj", "project_in", "project_out", "b_layernorm", "merging_layer", "tid2eid", "lambda_1", "lambda_2",
    "routed_expert_down_proj", "routed_expert_up_proj", "self_attention_res_proj", "mlp_res_proj", "output_attn_res_proj",
}  # fmt: skip
"""Modules of class ReplicatedLinear and single parameters, by the last part of their path."""
_REPLICATED_INSIDE: Final = Rank.replicated_inside | {"attn_hc", "ffn_hc", "hc_head", "patch_embed"}
_REPLICATED_IN: Final = {"deepseek_v4": {"kv_proj"}, "zamba2": {"linear"}, "muse_glimmer": {"fc1", "fc2"}}
"""Model type -> modules that are whole for it alone."""
_REPLICATED_TOWERS: Final = frozenset({"gemma3n", "gemma4", "kimi_k3"})
"""Model types whose towers are modules of transformers, which are whole on every rank."""
_REPLICATED_PROJECTORS: Final = frozenset({"gemma3n", "gemma4", "internvl", "kimi_k25", "kimi_k3", "muse_glimmer"})


def check_experts(model: ModelSpec, ranks: int) -> None:
    """Raise :class:`~hwcalc.errors.UsageError` if the inner width of the experts does not divide by ``ranks``.

    Without expert parallelism all ranks of tp and dp divide each expert; FusedMoE asserts this when the model is built.
    """

    def inner_widths() -> frozenset[int]:
        blocks = () if model.counted is None else model.counted.blocks
        weights = (weight for block in blocks if block.part is Part.LANGUAGE for weight in block.weights)
        return frozenset(
            weight.shape[-1]
            for weight in weights
            if weight.copies > 1 and len(weight.shape) > 1 and module_of(weight) in ROW_PARALLEL
        )

    uneven = sorted(width for width in model.once("inner widths of experts", inner_widths) if width % ranks)
    if uneven:
        raise UsageError(
            f"vLLM cannot split experts of an inner width of {uneven[0]:,} over tp x dp = {ranks:,} ranks.",
            hint=f"Deal them out whole: --ep {ranks}.",
        )


class VllmRank(Rank):
    """A tensor-parallel rank of vLLM: the part of each tensor that it holds."""

    vocabulary_padding: ClassVar[int] = 64
    replicated: ClassVar[AbstractSet[str]] = _REPLICATED
    replicated_inside: ClassVar[AbstractSet[str]] = _REPLICATED_INSIDE

    def part(self, block: Block, weight: Weight, how: Sharding) -> Weight:
        local = super().part(block, weight, how)
        if self.tp > 1 and self.model.model_type == "deepseek_v4" and module_of(weight) == "sinks":
            # The attention kernel needs at least 64 heads.
            return replace(local, shape=(max(64, local.shape[0]), *local.shape[1:]))
        return local

    def is_vocabulary(self, weight: Weight) -> bool:
        if weight.role is WeightRole.EMBEDDING and self.model.model_type == "whisper":
            return False
        return super().is_vocabulary(weight)

    def is_replicated(self, weight: Weight) -> bool:
        family = self.model.model_type
        if family in _REPLICATED_IN and module_of(weight) in _REPLICATED_IN[family]:
            return True
        if family == "internvl" and ".layer.attention." in weight.path:
            return True
        if family.startswith("minimax_m3") and weight.path.endswith("indexer.q_proj.weight"):
            return False
        return super().is_replicated(weight)

    def is_whole(self, block: Block) -> bool:
        family = self.model.model_type
        if family == "gpt_bigcode" and block.kind == "mlp":
            # vLLM runs this through its Transformers backend, whose plan for it cuts only attention.
            return True
        if block.part is Part.PROJECTOR:
            return family in _REPLICATED_PROJECTORS
        return block.part.is_tower and family in _REPLICATED_TOWERS

    def is_sharded_norm(self, path: str) -> bool:
        if path.endswith((".q_norm.weight", ".k_norm.weight")):
            return self.model.model_type == "minimax_m2"
        return super().is_sharded_norm(path)

    def key_value_heads(self, heads: int) -> int:
        return max(1, heads // self.tp)

    def state_groups(self, groups: int) -> int:
        """As the general rule, but groups that cannot be divided evenly become one group per rank."""
        return groups // self.tp if groups % self.tp == 0 else 1


_TABLES_EVERYWHERE: Final = frozenset({
    "bloom", "chatglm", "cohere", "cohere2", "dbrx", "falcon", "falcon_mamba", "gemma", "gemma2", "gemma3", "gemma3_text",
    "gemma4", "gemma4_text", "gpt2", "gpt_oss", "gptj", "granitemoe", "granitemoehybrid", "granitemoeshared", "internlm2",
    "jamba", "mamba", "minicpm", "mixtral", "molmo", "nemotron_h", "olmo_hybrid", "olmoe", "opt", "orion", "phimoe", "qwen2_moe",
    "qwen3_moe", "stablelm",
})  # fmt: skip
"""Model types whose embedding, last norm and head are built on every pipeline stage."""


_FP32_ROUTER: Final = frozenset(
    {"afmoe", "ernie4_5_moe", "glm4_moe", "minimax_m2", "minimax_m3", "minimax_m3_vl", "mimo_v2_flash", "step3p5", "hy_v3"}
)
"""Model types whose routers stay in 32 bits (GateLinear with params_dtype float32)."""
_CORRECTION_BIAS: Final = frozenset({
    "axk1", "deepseek_v3", "deepseek_v32", "deepseek_v4", "glm4_moe", "glm_moe_dsa", "kimi_k2", "kimi_k25", "kimi_k3",
    "kimi_linear", "lfm2_moe", "mimo_v2_flash", "minimax_m2", "minimax_m3", "minimax_m3_vl", "nemotron_h",
})  # fmt: skip
"""Model types whose routers add a learned number per expert. It is a parameter in vLLM, and an uncounted buffer in transformers."""

_BUILT_OTHERWISE: Final = _CORRECTION_BIAS | {"phi", "whisper", "gemma4"}
"""Model types of whose layers vLLM adds or leaves out a tensor."""
_HASHED: Final = "hashed moe"
"""The kind of the first blocks of DeepSeek-V4, which are routed by a table."""


def absorbed_bytes_rank(model: ModelSpec, parallel: Parallel) -> int:
    """Bytes of the 16-bit copies of the up-projections that multi-head latent attention keeps besides quantised weights.

    Decoding multiplies queries and outputs by them. If the weights have 16 bits themselves, the copies are views and take nothing. Four
    heads of 128 + 128 rows over a latent of 512 take 4 x 256 x 512 x 2 bytes per layer.
    """
    most_layers = max(len(stage) for stage in VLLM.spans(len(model.stack), parallel.pp))
    total = 0
    for group in model.stack.groups:
        kind = group.kind
        if isinstance(kind, LatentAttention) and kind.qk_nope_head_dim is not None and kind.v_head_dim is not None:
            heads = -(-kind.num_attention_heads // parallel.tp)
            rows = heads * (kind.qk_nope_head_dim + kind.v_head_dim)
            total += min(group.count, most_layers) * rows * kind.kv_lora_rank * 2
    return total


_CONSUMER: Final = 110
"""The least compute capability of generations after data centre's Blackwell."""


def padded_expert_bytes_rank(model: ModelSpec, parallel: Parallel, scheme: Scheme, capability: int) -> RankBytes | None:
    """Bytes with which kernels pad MXFP4 experts on the fullest rank; ``None`` if nothing is padded or the weights are not counted.

    The hidden width is padded to a multiple of 256: 2,880 of gpt-oss becomes 3,072; not by the kernels of data centre's Blackwell (10.0). The inner width of a
    rank is padded to a multiple of 128 by Marlin, which older GPUs use and, at first, those of later generations (11.0, 12.0 and 12.1), and of 64 by Triton's
    kernels on Hopper (``fused_moe/oracle/mxfp4.py`` mxfp4_round_up_hidden_size_and_intermediate_size; 0.13 ``quantization/mxfp4.py`` get_mxfp4_backend).
    """
    if 100 <= capability < _CONSUMER or model.counted is None or not any(rule.format is MXFP4 for rule in scheme.rules):
        return None
    rank = VllmRank(model, parallel)
    experts = [
        replace(block, weights=tuple(weight for weight in block.weights if weight.role is WeightRole.EXPERT))
        for block in cut_blocks(model, VLLM.loaded_blocks(model, model.counted, parallel.pp), rank, VLLM)
    ]
    _, inner, hidden = expert_width(model, rank)
    stages = on_stages(model, experts, parallel.pp, VLLM)
    size = max(sum(block_bytes(model, block, VLLM, scheme, BF16) for block in stage) for stage in stages)
    if not size or not hidden:
        return None
    from fractions import Fraction

    wide = Fraction(_up(hidden, 256), hidden)
    steps = (1, 64, 128) if 90 <= capability < _CONSUMER else (128, 128, 128)
    low, expected, high = (int(size * (wide * Fraction(_up(inner, step), inner) - 1)) for step in steps)
    if capability >= _CONSUMER:
        low = 0  # kernels of their own came later
    source = f"MXFP4: experts of {hidden:,} x {inner:,} as {_up(hidden, 256):,} x {_up(inner, steps[1]):,} or {_up(inner, 128):,}"
    return RankBytes(low=low, expected=expected, high=high, source=source) if high else None


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


class VllmRules(Rules):
    """The rules of the model classes of vLLM 0.33."""

    engine: ClassVar[str] = "vllm"
    rank: ClassVar[type[Rank]] = VllmRank
    tables: ClassVar[Tables] = Tables(
        all=_TABLES_EVERYWHERE,
        but_no_norm=frozenset({"qwen3_next"}),
        embedding=frozenset({"lfm2", "lfm2_moe", "qwen3_5", "qwen3_5_moe"}),
    )

    def sizes(self, model: ModelSpec, parallel: Parallel) -> tuple[int, ...]:
        """Replicas matter to experts alone, which their ranks share."""
        blocks = () if model.counted is None else model.counted.blocks
        experts = model.once("any experts", lambda: any(weight.copies > 1 for block in blocks for weight in block.weights))
        return super().sizes(model, parallel) if experts else (parallel.tp, parallel.pp)

    def weight_format(self, model: ModelSpec, weight_dtype: str | None) -> WeightFormat:
        """A float32 checkpoint is loaded in 16 bits unless ``weight_dtype`` is ``fp32``."""
        return FLOATS.get(weight_dtype or "", FP16 if model.dtype == "fp16" else BF16)

    def loaded_blocks(self, model: ModelSpec, weights: Weights, pp: int) -> Iterable[Block]:
        """With DeepSeek-V4's table from tokens to experts in its first layers. Other implementations keep the table as a buffer."""
        vocabulary, chosen = model.vocab_size, model.facts.experts_per_token
        for block in super().loaded_blocks(model, weights, pp):
            hashed = model.facts.hash_routed_layers if block.kind == "moe" and model.model_type == "deepseek_v4" else 0
            if not hashed or not chosen or hashed >= block.count or vocabulary is None:
                yield block
                continue
            table = Weight(path="mlp.gate.tid2eid", shape=(vocabulary, chosen), role=WeightRole.OTHER)
            first, rest = (None, None) if block.layers is None else (block.layers[:hashed], block.layers[hashed:])
            yield replace(block, kind=_HASHED, count=hashed, layers=first, weights=(*block.weights, table))
            yield replace(block, count=block.count - hashed, layers=rest)

    def unties(self, model: ModelSpec, pp: int) -> bool:
        """True if vLLM builds a separate head although the config ties it: some classes read the key in ``text_config``.

        Mistral-Small-3.1 ties its tables in the outer config and not in ``text_config``: a head of 131,072 x 5,120 x 2 bytes, 1.25 GiB.
        """
        by_text = model.model_type in {"mistral3", "qwen3_5", "qwen3_5_moe"} and model.facts.ties_text_embeddings is False
        return by_text or (pp > 1 and not self.tables.has_embedding_at_the_end(model))

    def as_built(self, model: ModelSpec, block: Block) -> Iterable[Weight]:
        """The weights of one layer as the classes of vLLM build them, which add and leave out a few."""
        family = model.model_type
        if family not in _BUILT_OTHERWISE:
            return block.weights
        names = {module_of(weight) for weight in block.weights}
        built: list[Weight] = []
        for weight in block.weights:
            if weight.path == "lm_head.bias" and family == "phi":
                continue  # vLLM runs it through its Transformers backend, whose head has no bias.
            built.append(weight)
            if family == "whisper" and weight.path.endswith("k_proj.weight"):
                # Keys get a bias of zeros, since they are fused with queries and values.
                bias = weight.path.removesuffix("weight") + "bias"
                built.append(Weight(path=bias, shape=weight.shape[:1], role=WeightRole.BIAS))
            language_key = module_of(weight) == "k_proj" and block.part is Part.LANGUAGE
            if family == "gemma4" and language_key and "v_proj" not in names:
                # The fused projection has rows for values even if the values are the keys.
                built.append(replace(weight, path=weight.path.replace("k_proj", "v_proj")))
        routers = [weight for weight in block.weights if weight.role is WeightRole.ROUTER and weight.shape[0] > 1]
        has_bias = block.kind == _HASHED or names & {"expert_bias", "e_score_correction_bias"}
        if routers and family in _CORRECTION_BIAS and not has_bias:
            built.append(Weight(path="mlp.gate.e_score_correction_bias", shape=routers[0].shape[:1], role=WeightRole.OTHER))
        return built

    def is_fp32(self, model: ModelSpec, weight: Weight) -> bool:
        """True if vLLM keeps a parameter in 32 bits whatever the dtype of the model."""
        family, name = model.model_type, module_of(weight)
        if name == "A_log":
            return family != "olmo_hybrid"
        if name in {"e_score_correction_bias", "expert_bias"}:
            return True
        if weight.role is WeightRole.ROUTER:
            return family in _FP32_ROUTER and weight.shape[0] > 1
        if ".indexer.k_norm." in weight.path:
            return family in {"deepseek_v32", "glm_moe_dsa"}
        if family in {"kimi_k3", "kimi_linear"}:
            return weight.role is WeightRole.CONV or name == "dt_bias"
        if family == "deepseek_v4":
            hyper_connection = any(part in weight.path for part in ("attn_hc", "ffn_hc", "hc_head"))
            return hyper_connection or name in {"sinks", "position_bias", "tid2eid"}
        return False


VLLM: Final = VllmRules()


class StageWeights(Struct, frozen=True):
    """Bytes of weights on a rank of a pipeline stage: all of them, those that may be moved, and the largest layer of these.

    No parameter is larger than its layer.
    """

    total: int
    movable: int
    largest: int


def resident(stages: tuple[StageWeights, ...], offload_gib: float) -> RankBytes:
    """Bytes of weights that stay on the fullest GPU with ``cpu_offload_gb``, from the weights of each stage.

    High assumes that the last moved parameter reaches the limit exactly, low that it exceeds the limit by a whole layer.
    """
    limit = int(offload_gib * GIB)
    high = max((stage.total - min(stage.movable, limit) for stage in stages), default=0)
    low = max((stage.total - min(stage.movable, limit + stage.largest if limit else 0) for stage in stages), default=0)
    source = f"vLLM 0.33 offloader/uva.py: {offload_gib:g} GiB of parameters in host memory"
    return RankBytes(low=low, expected=high, high=high, source=source)


def stage_weights(
    model: ModelSpec,
    parallel: Parallel,
    *,
    weight_dtype: str | None = None,
    scheme: Scheme | None = None,
    towers: bool = True,
) -> tuple[StageWeights, ...] | None:
    """The weights on a rank of each pipeline stage; ``None`` if the model's weights are not counted.

    ``towers`` says whether what reads images and sound is loaded, with what joins it to the language model.
    """
    if model.counted is None:
        return None
    unquantized = VLLM.weight_format(model, weight_dtype)
    weights = []
    for stage in stages_of(model, parallel, VLLM):
        loaded = [block for block in stage if towers or not (block.part.is_tower or block.part is Part.PROJECTOR)]
        sizes = [(block, block_bytes(model, block, VLLM, scheme, unquantized)) for block in loaded]
        movable = [
            (block, size)
            for block, size in sizes
            if block.part.is_tower or (block.part is Part.LANGUAGE and block.kind not in ("embedding", "head"))
        ]
        largest = max((-(-size // block.count) for block, size in movable), default=0)
        weights.append(StageWeights(sum(size for _, size in sizes), sum(size for _, size in movable), largest))
    return tuple(weights)


def encoder_cache_bytes(model: ModelSpec, batched_tokens: int) -> RankBytes | None:
    """Bytes of encoder outputs that are cached for the decoder on the first pipeline stage; ``None`` if the weights are not counted.

    The cache holds as many tokens as ``max_num_batched_tokens`` (``v1/core/encoder_cache_manager.py`` compute_mm_encoder_budget). A token
    takes one vector of the hidden width in 16 bits, and one more for each layer with its own visual features
    (``deepstack_visual_indexes``). The cache is not allocated in advance. The profile run fills it and keeps it while the decoder is
    profiled (``v1/worker/gpu_model_runner.py`` profile_run), so it is part of the measured activation peak, not of the pool. Low is 0, for
    a run without such input. A model without a tower has 0.
    """
    if model.counted is None:
        return None
    size = 0
    if model.counted.has_towers:
        size = batched_tokens * (model.hidden_size or 0) * (1 + model.facts.deepstack_layers) * 2
    source = "vLLM 0.33 v1/core/encoder_cache_manager.py: as many vectors as a batch has tokens, inside the profiled peak"
    return RankBytes(low=0, expected=size, high=size, source=source)


_SLOT_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values of ``--max-lora-rank`` (``config/lora.py`` MaxLoRARanks)."""
_LARGEST_VOCABULARY: Final = 258_048
_ADAPTED_TABLES: Final = frozenset({
    "apertus", "exaone", "exaone4", "exaone_moe", "falcon_h1", "granite", "granitemoe", "granitemoehybrid", "granitemoeshared",
    "hyperclovax", "jamba", "lfm2", "lfm2_moe", "llama", "minicpm", "mixtral", "nemotron", "nemotron_h", "nemotron-nas", "phimoe",
    "qwen3", "qwen3_5", "qwen3_5_moe", "qwen3_moe", "solar",
})  # fmt: skip
"""Model types whose class has ``embedding_modules`` for embedding and head."""
_EMBEDDING_ONLY: Final = frozenset({"cohere", "cohere2"})
_FUSED_EXPERTS: Final = frozenset({"gpt_oss", "interns1_pro", "qwen3_5_moe", "qwen3_omni_moe", "qwen3_vl_moe"})
"""Model types whose experts have gate and up as one tensor (``is_3d_moe_weight``)."""


def slot_rank(rank: int) -> int:
    """The smallest ``max_lora_rank`` for an adapter: 32 for rank 24. Raises :class:`~hwcalc.errors.UsageError` above 512."""
    for allowed in _SLOT_RANKS:
        if rank <= allowed:
            return allowed
    raise UsageError(
        f"vLLM takes adapters up to rank {_SLOT_RANKS[-1]}, not {rank:,}.", hint=f"Use: --lora rank={_SLOT_RANKS[-1]}"
    )


class VllmAdapters(AdapterRules):
    """``max_loras`` slots on the GPU; each process has ``max_cpu_loras`` adapters in pinned memory, of those in the slots a copy too.

    Source: vLLM 0.32, config/lora.py, lora/model_manager.py, lora/lora_weights.py.
    """

    reserved_by = "max_loras"
    loaded_by = "max_cpu_loras"

    def on_gpu(self) -> RankBytes | None:
        return vllm_lora_bytes_rank(self.deployment.model, self.lora, self.deployment.setup.parallel)


def vllm_lora_bytes_rank(model: ModelSpec, lora: Lora, parallel: Parallel = ALONE) -> RankBytes | None:
    """Bytes of the slots for adapters on the fullest rank; ``None`` if the model's weights are not counted.

    vLLM 0.33 allocates ``max_loras`` slots of ``max_lora_rank``, which are zero until an adapter is loaded. Each linear layer of the
    language model gets the slots, routers too (``lora/layers/base_linear.py`` create_lora_weights). A layer of several projections has A
    and B for each projection (``column_parallel_linear.py``), and experts have them for each local expert (``fused_moe.py``), with one A
    for gate and up together if the checkpoint has them as one tensor. Model classes that name their tables also get slots for the
    embedding (``vocab_parallel_embedding.py``) and for the logits (``logits_processor.py``), which are not cut. Adapters beyond the slots
    wait in host memory (``max_cpu_loras``).

    ``lora.count`` is ``max_loras``, the number of adapters in one batch. Tables and routers have slots only if ``targets`` is ``all``
    (``--lora-target-modules``). High includes slots for tables of model types that are not known to name them. Raises
    :class:`~hwcalc.errors.UsageError` for a rank or a vocabulary for which vLLM has no slots.
    """
    if model.counted is None:
        return None
    rank, vocabulary = slot_rank(lora.rank), model.vocab_size or 0
    blocks = cut_blocks(model, VLLM.loaded_blocks(model, model.counted, parallel.pp), VllmRank(model, parallel), VLLM)
    tied = not any(weight.role is WeightRole.HEAD for block in blocks for weight in block.weights)

    def numbers(block: Block, weight: Weight, *, with_tables: bool) -> int:
        """Numbers in one slot for a tensor that has been cut already."""
        matrix = lora.targets == "all" and block.part is Part.LANGUAGE and len(weight.shape) == 2
        embeds = weight.role is WeightRole.EMBEDDING and module_of(weight) == "embed_tokens"
        if with_tables and matrix and (embeds or weight.role is WeightRole.HEAD):
            # A and B for the whole vocabulary, although the table is cut; twice if it is tied: for the embedding and for the logits.
            whole = replace(weight, shape=(vocabulary or weight.shape[0], weight.shape[1]))
            return adapter_numbers(rank, whole) * (2 if tied and model.model_type not in _EMBEDDING_ONLY else 1)
        if matrix and weight.role is WeightRole.ROUTER:
            return adapter_numbers(rank, weight)
        if not adapted(block, weight, lora):
            return 0
        fused = weight.role is WeightRole.EXPERT and model.model_type in _FUSED_EXPERTS and module_of(weight) == "up_proj"
        # It shares the A of the gate.
        shared = weight.copies * rank * weight.shape[1] if fused else 0
        return adapter_numbers(rank, weight) - shared

    layers, tables = (
        lora.count
        * lora.element_bytes
        * most_on_a_stage(model, blocks, parallel.pp, VLLM, partial(numbers, with_tables=with_tables))
        for with_tables in (False, True)
    )
    if lora.targets == "all" and model.model_type in _ADAPTED_TABLES and vocabulary > _LARGEST_VOCABULARY:
        raise UsageError(
            f"vLLM makes no adapter slots beside a vocabulary of {vocabulary:,}, only up to {_LARGEST_VOCABULARY:,}.",
            hint="Use: --lora with targets=attention or targets=mlp",
        )
    likely = tables if model.model_type in _ADAPTED_TABLES | _EMBEDDING_ONLY else layers
    source = f"vLLM 0.33 lora/layers: max_loras {lora.count:,} x max_lora_rank {rank:,} in {lora.dtype}"
    return RankBytes(low=likely, expected=likely, high=tables, source=source)
