"""The weights on a rank of vLLM: how tensors are cut, which stage has which layers, what stays on the GPU, what kernels add.

Tensors are cut by :mod:`hwcalc.engines.rank_weights`, except where vLLM 0.33 differs (``model_executor/layers/{linear,
vocab_parallel_embedding,mamba}`` and the model files): vocabularies are padded to a multiple of 64, and several model types keep more
or fewer tensors whole. Weights of multi-token prediction are loaded only for speculative decoding and are not counted here.

``cpu_offload_gb`` moves parameters to host memory one by one, in order, until the limit is reached, so that the last one may exceed it
(vLLM 0.33, ``model_executor/offloader/uva.py``). It moves parameters of the decoder's layers (``models/utils.py`` make_layers) and of
the towers (``models/interfaces.py`` _mark_tower_model), but not embedding or head. The limit is in GiB per GPU. ``kv_offloading_size``
is only host memory: it is a second level of the cache (``config/cache.py``) and changes nothing on the GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
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
    rank_weight_bytes,
    stages_of,
)
from hwcalc.engines.setup import ALONE, Parallel
from hwcalc.errors import UsageError
from hwcalc.formulas import LatentAttention, pipeline_stages
from hwcalc.formulas.formats import BF16, FLOATS, FP16, MXFP4, WeightFormat
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole, Weights
from hwcalc.units import GIB

if TYPE_CHECKING:
    from hwcalc.model import ModelSpec
    from hwcalc.quantization.scheme import Scheme

_REPLICATED: Final = Rank.replicated | {
    "fc1_latent_proj",
    "fc2_latent_proj",
    "project_in",
    "project_out",
    "b_layernorm",
    "merging_layer",
    "tid2eid",
    "lambda_1",
    "lambda_2",
    "routed_expert_down_proj",
    "routed_expert_up_proj",
    "self_attention_res_proj",
    "mlp_res_proj",
    "output_attn_res_proj",
}
"""Modules of class ReplicatedLinear and single parameters, by the last part of their path."""
_REPLICATED_INSIDE: Final = Rank.replicated_inside | {"attn_hc", "ffn_hc", "hc_head", "patch_embed"}
_REPLICATED_IN: Final = {
    "deepseek_v4": frozenset({"kv_proj"}),
    "zamba2": frozenset({"linear"}),
    "muse_glimmer": frozenset({"fc1", "fc2"}),
}
"""Model type -> modules that are whole for it alone."""
_NONE: Final[frozenset[str]] = frozenset()
_SHARDED_NORMS: Final = frozenset({"minimax_m2"})
_REPLICATED_TOWERS: Final = frozenset({"gemma3n", "gemma4", "kimi_k3"})
"""Model types whose towers are modules of transformers, which are whole on every rank."""
_REPLICATED_PROJECTORS: Final = frozenset({"gemma3n", "gemma4", "internvl", "kimi_k25", "kimi_k3", "muse_glimmer"})


def check_experts(model: ModelSpec, ranks: int) -> None:
    """Raise :class:`~hwcalc.errors.UsageError` if the inner width of the experts does not divide by ``ranks``.

    Without expert parallelism all ranks of tp and dp divide each expert; FusedMoE asserts this when the model is built.
    """
    widths = model.once("inner widths of experts", lambda: _expert_widths(model))
    uneven = sorted(width for width in widths if width % ranks)
    if uneven:
        raise UsageError(
            f"vLLM cannot split experts of an inner width of {uneven[0]:,} over tp x dp = {ranks:,} ranks.",
            hint=f"Deal them out whole: --ep {ranks}.",
        )


def _expert_widths(model: ModelSpec) -> frozenset[int]:
    """The inner widths of the experts of all layers."""
    blocks = () if model.counted is None else model.counted.blocks
    return frozenset(
        weight.shape[-1]
        for block in blocks
        if block.part is Part.LANGUAGE
        for weight in block.weights
        if weight.copies > 1 and len(weight.shape) > 1 and module_of(weight) in ROW_PARALLEL
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
        replicated = _REPLICATED_IN.get(family, _NONE)
        if (replicated and module_of(weight) in replicated) or (family == "internvl" and ".layer.attention." in weight.path):
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
            return self.model.model_type in _SHARDED_NORMS
        return super().is_sharded_norm(path)

    def key_value_heads(self, heads: int) -> int:
        return max(1, heads // self.tp)

    def state_groups(self, groups: int) -> int:
        """As the general rule, but groups that cannot be divided evenly become one group per rank."""
        return groups // self.tp if groups % self.tp == 0 else 1


HASHED: Final = "hashed moe"
"""The kind of the first blocks of DeepSeek-V4, which are routed by a table."""

layers_of_stages: Final = pipeline_stages
"""vLLM 0.33, ``distributed/utils.py`` get_pp_indices: the remainder goes to the stages before the last."""

_TABLES_EVERYWHERE: Final = frozenset(
    {
        "bloom",
        "chatglm",
        "cohere",
        "cohere2",
        "dbrx",
        "falcon",
        "falcon_mamba",
        "gemma",
        "gemma2",
        "gemma3",
        "gemma3_text",
        "gemma4",
        "gemma4_text",
        "gpt2",
        "gpt_oss",
        "gptj",
        "granitemoe",
        "granitemoehybrid",
        "granitemoeshared",
        "internlm2",
        "jamba",
        "mamba",
        "minicpm",
        "mixtral",
        "molmo",
        "nemotron_h",
        "olmo_hybrid",
        "olmoe",
        "opt",
        "orion",
        "phimoe",
        "qwen2_moe",
        "qwen3_moe",
        "stablelm",
    }
)
"""Model types whose embedding, last norm and head are built on every pipeline stage."""
_TABLES_BUT_NO_NORM: Final = frozenset({"qwen3_next"})
_EMBEDDING_EVERYWHERE: Final = frozenset({"lfm2", "lfm2_moe", "qwen3_5", "qwen3_5_moe"})

TABLES: Final = Tables(all=_TABLES_EVERYWHERE, but_no_norm=_TABLES_BUT_NO_NORM, embedding=_EMBEDDING_EVERYWHERE)


_FP32_ROUTER: Final = frozenset(
    {"afmoe", "ernie4_5_moe", "glm4_moe", "minimax_m2", "minimax_m3", "minimax_m3_vl", "mimo_v2_flash", "step3p5", "hy_v3"}
)
"""Model types whose routers stay in 32 bits (GateLinear with params_dtype float32)."""
_CORRECTION_BIAS: Final = frozenset(
    {
        "axk1",
        "deepseek_v3",
        "deepseek_v32",
        "deepseek_v4",
        "glm4_moe",
        "glm_moe_dsa",
        "kimi_k2",
        "kimi_k25",
        "kimi_k3",
        "kimi_linear",
        "lfm2_moe",
        "mimo_v2_flash",
        "minimax_m2",
        "minimax_m3",
        "minimax_m3_vl",
        "nemotron_h",
    }
)
"""Model types whose routers add a learned number per expert. It is a parameter in vLLM, and an uncounted buffer in transformers."""

_BUILT_OTHERWISE: Final = _CORRECTION_BIAS | {"phi", "whisper", "gemma4"}
"""Model types of whose layers vLLM adds or leaves out a tensor."""

_HOPPER: Final = 90
_BLACKWELL: Final = 100
"""Compute capabilities 9.0 and 10.0."""


def param_bytes_rank(
    model: ModelSpec, parallel: Parallel = ALONE, *, weight_dtype: str | None = None, scheme: Scheme | None = None
) -> tuple[int, ...] | None:
    """Bytes of parameters on a rank of each pipeline stage; ``None`` if the model's weights are not counted.

    ``weight_dtype`` is the model dtype in vLLM; a float32 checkpoint is loaded in 16 bits unless it is ``fp32``. ``scheme`` is the
    quantisation of the checkpoint.
    """
    return rank_weight_bytes(model, parallel, weight_dtype=weight_dtype, scheme=scheme, rules=VLLM)


def absorbed_bytes_rank(model: ModelSpec, parallel: Parallel) -> int:
    """Bytes of the 16-bit copies of the up-projections that multi-head latent attention keeps besides quantised weights.

    Decoding multiplies queries and outputs by them. If the weights have 16 bits themselves, the copies are views and take nothing. Four
    heads of 128 + 128 rows over a latent of 512 take 4 x 256 x 512 x 2 bytes per layer.
    """
    most_layers = max(len(stage) for stage in layers_of_stages(len(model.stack), parallel.pp))
    total = 0
    for group in model.stack.groups:
        kind = group.kind
        if isinstance(kind, LatentAttention) and kind.qk_nope_head_dim is not None and kind.v_head_dim is not None:
            heads = -(-kind.num_attention_heads // parallel.tp)
            rows = heads * (kind.qk_nope_head_dim + kind.v_head_dim)
            total += min(group.count, most_layers) * rows * kind.kv_lora_rank * 2
    return total


def padded_expert_bytes_rank(model: ModelSpec, parallel: Parallel, scheme: Scheme, capability: int) -> RankBytes | None:
    """Bytes with which kernels pad MXFP4 experts on the fullest rank; ``None`` if nothing is padded or the weights are not counted.

    Up to Hopper the hidden width is padded to a multiple of 256: 2,880 of gpt-oss becomes 3,072. The inner width of a rank is padded to
    a multiple of 128 by Marlin, which older GPUs use, and of 64 by Triton's kernels on Hopper
    (``fused_moe/oracle/mxfp4.py`` mxfp4_round_up_hidden_size_and_intermediate_size).
    """
    if capability >= _BLACKWELL or model.counted is None or not any(rule.format is MXFP4 for rule in scheme.rules):
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
    steps = (1, 64, 128) if capability >= _HOPPER else (128, 128, 128)
    low, expected, high = (int(size * (wide * Fraction(_up(inner, step), inner) - 1)) for step in steps)
    source = f"MXFP4: experts of {hidden:,} x {inner:,} as {_up(hidden, 256):,} x {_up(inner, steps[1]):,} or {_up(inner, 128):,}"
    return RankBytes(low=low, expected=expected, high=high, source=source) if high else None


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


def _by_routing(model: ModelSpec, block: Block) -> Iterator[Block]:
    """Add DeepSeek-V4's table from tokens to experts to its first layers. Other implementations keep the table as a buffer."""
    hashed = model.facts.hash_routed_layers if block.kind == "moe" and model.model_type == "deepseek_v4" else 0
    chosen = model.facts.experts_per_token
    if not hashed or not chosen or hashed >= block.count or model.vocab_size is None:
        yield block
        return
    table = Weight(path="mlp.gate.tid2eid", shape=(model.vocab_size, chosen), role=WeightRole.OTHER)
    first, rest = (None, None) if block.layers is None else (block.layers[:hashed], block.layers[hashed:])
    yield replace(block, kind=HASHED, count=hashed, layers=first, weights=(*block.weights, table))
    yield replace(block, count=block.count - hashed, layers=rest)


def _unties(model: ModelSpec) -> bool:
    """Whether vLLM builds a separate head although the config ties it: these classes read the key in ``text_config``.

    Mistral-Small-3.1 ties its tables in the outer config and not in ``text_config``: a head of 131,072 x 5,120 x 2 bytes, 1.25 GiB.
    """
    return model.model_type in {"mistral3", "qwen3_5", "qwen3_5_moe"} and model.facts.ties_text_embeddings is False


def _as_built(model: ModelSpec, block: Block) -> Iterator[Weight]:
    """The weights of one layer as the classes of vLLM build them, which add and leave out a few."""
    names = {module_of(weight) for weight in block.weights}
    for weight in block.weights:
        if weight.path == "lm_head.bias" and model.model_type == "phi":
            continue  # vLLM runs it through its Transformers backend, whose head has no bias.
        yield weight
        if model.model_type == "whisper" and weight.path.endswith("k_proj.weight"):
            # Keys get a bias of zeros, since they are fused with queries and values.
            yield Weight(path=weight.path.removesuffix("weight") + "bias", shape=weight.shape[:1], role=WeightRole.BIAS)
        if (
            model.model_type == "gemma4"
            and module_of(weight) == "k_proj"
            and "v_proj" not in names
            and block.part is Part.LANGUAGE
        ):
            # The fused projection has rows for values even if the values are the keys.
            yield replace(weight, path=weight.path.replace("k_proj", "v_proj"))
    routers = [weight for weight in block.weights if weight.role is WeightRole.ROUTER and weight.shape[0] > 1]
    if (
        routers
        and block.kind != HASHED
        and model.model_type in _CORRECTION_BIAS
        and not names & {"expert_bias", "e_score_correction_bias"}
    ):
        yield Weight(path="mlp.gate.e_score_correction_bias", shape=routers[0].shape[:1], role=WeightRole.OTHER)


def _is_fp32(model: ModelSpec, weight: Weight) -> bool:
    """Whether vLLM keeps a parameter in 32 bits whatever the dtype of the model."""
    name = module_of(weight)
    if name == "A_log":
        return model.model_type != "olmo_hybrid"
    if name in {"e_score_correction_bias", "expert_bias"}:
        return True
    if weight.role is WeightRole.ROUTER:
        return model.model_type in _FP32_ROUTER and weight.shape[0] > 1
    if ".indexer.k_norm." in weight.path:
        return model.model_type in {"deepseek_v32", "glm_moe_dsa"}
    if model.model_type in {"kimi_k3", "kimi_linear"}:
        return weight.role is WeightRole.CONV or name == "dt_bias"
    if model.model_type == "deepseek_v4":
        return name in {"sinks", "position_bias", "tid2eid"} or any(
            part in weight.path for part in ("attn_hc", "ffn_hc", "hc_head")
        )
    return False


def _has_experts(model: ModelSpec) -> bool:
    """Whether any part of the model has experts."""
    blocks = () if model.counted is None else model.counted.blocks
    return model.once("any experts", lambda: any(weight.copies > 1 for block in blocks for weight in block.weights))


class VllmRules(Rules):
    """The rules of the model classes of vLLM 0.33."""

    engine: ClassVar[str] = "vllm"
    rank: ClassVar[type[Rank]] = VllmRank
    tables: ClassVar[Tables] = TABLES

    def sizes(self, model: ModelSpec, parallel: Parallel) -> tuple[int, ...]:
        """Replicas matter to experts alone, which their ranks share."""
        return super().sizes(model, parallel) if _has_experts(model) else (parallel.tp, parallel.pp)

    def weight_format(self, model: ModelSpec, weight_dtype: str | None) -> WeightFormat:
        """A float32 checkpoint is loaded in 16 bits unless ``weight_dtype`` is ``fp32``."""
        return FLOATS.get(weight_dtype or "", FP16 if model.dtype == "fp16" else BF16)

    def loaded_blocks(self, model: ModelSpec, weights: Weights, pp: int) -> Iterable[Block]:
        for block in super().loaded_blocks(model, weights, pp):
            yield from _by_routing(model, block)

    def unties(self, model: ModelSpec, pp: int) -> bool:
        return _unties(model) or (pp > 1 and not self.tables.has_embedding_at_the_end(model))

    def as_built(self, model: ModelSpec, block: Block) -> Iterable[Weight]:
        return _as_built(model, block) if model.model_type in _BUILT_OTHERWISE else block.weights

    def is_fp32(self, model: ModelSpec, weight: Weight) -> bool:
        return _is_fp32(model, weight)


VLLM: Final = VllmRules()


_TABLES: Final = frozenset({"embedding", "head"})
_NO_VECTORS: Final = RankBytes(
    low=0,
    expected=0,
    high=0,
    source="vLLM 0.33 v1/core/encoder_cache_manager.py: as many vectors as a batch has tokens, inside the profiled peak",
)
"""The encoder outputs of a model without a tower."""


class StageWeights(Struct, frozen=True):
    """Bytes of weights on a rank of a pipeline stage: all of them, those that may be moved, and the largest layer of these.

    No parameter is larger than its layer.
    """

    total: int
    movable: int
    largest: int


def resident_bytes_rank(
    model: ModelSpec,
    offload_gib: float,
    parallel: Parallel = ALONE,
    *,
    weight_dtype: str | None = None,
    scheme: Scheme | None = None,
) -> RankBytes | None:
    """Bytes of weights that stay on the fullest GPU with ``cpu_offload_gb``; ``None`` if the weights are not counted.

    High assumes that the last moved parameter reaches the limit exactly, low that it exceeds the limit by a whole layer.
    """
    stages = stage_weights(model, parallel, weight_dtype=weight_dtype, scheme=scheme)
    return None if stages is None else resident(stages, offload_gib)


def resident(stages: tuple[StageWeights, ...], offload_gib: float) -> RankBytes:
    """Bytes of weights that stay on the fullest GPU with ``cpu_offload_gb``, from the weights of each stage."""
    limit = int(offload_gib * GIB)
    high = max((stage.total - min(stage.movable, limit) for stage in stages), default=0)
    low = max((stage.total - min(stage.movable, limit + stage.largest if limit else 0) for stage in stages), default=0)
    source = f"vLLM 0.33 offloader/uva.py: {offload_gib:g} GiB of parameters in host memory"
    return RankBytes(low=low, expected=high, high=high, source=source)


def stage_weights(
    model: ModelSpec, parallel: Parallel = ALONE, *, weight_dtype: str | None = None, scheme: Scheme | None = None
) -> tuple[StageWeights, ...] | None:
    """The weights on a rank of each pipeline stage; ``None`` if the model's weights are not counted."""
    if model.counted is None:
        return None
    unquantized = VLLM.weight_format(model, weight_dtype)
    stage_weights = []
    for stage in stages_of(model, parallel, VLLM):
        sizes = [(block, block_bytes(model, block, VLLM, scheme, unquantized)) for block in stage]
        movable = [(block, size) for block, size in sizes if _is_layer(block)]
        stage_weights.append(
            StageWeights(
                total=sum(size for _, size in sizes),
                movable=sum(size for _, size in movable),
                largest=max((-(-size // block.count) for block, size in movable), default=0),
            )
        )
    return tuple(stage_weights)


def _is_layer(block: Block) -> bool:
    return block.part.is_tower or (block.part is Part.LANGUAGE and block.kind not in _TABLES)


def encoder_cache_bytes(
    model: ModelSpec, batched_tokens: int, *, item_tokens: int = 0, element_bytes: int = 2
) -> RankBytes | None:
    """Bytes of encoder outputs that are cached for the decoder on the first pipeline stage; ``None`` if the weights are not counted.

    The cache holds as many tokens as ``max_num_batched_tokens`` or as the largest item, whichever is more
    (``v1/core/encoder_cache_manager.py`` compute_mm_encoder_budget). A token takes one vector of the hidden width, and one more for each
    layer with its own visual features (``deepstack_visual_indexes``). The cache is not allocated in advance. The profile run fills it and
    keeps it while the decoder is profiled (``v1/worker/gpu_model_runner.py`` profile_run), so it is part of the measured activation peak,
    not of the pool. Low is 0, for a run without such input. A model without a tower has 0.
    """
    if model.counted is None:
        return None
    if not model.counted.has_towers:
        return _NO_VECTORS
    size = max(batched_tokens, item_tokens) * (model.hidden_size or 0) * (1 + model.facts.deepstack_layers) * element_bytes
    return RankBytes(low=0, expected=size, high=size, source=_NO_VECTORS.source)
