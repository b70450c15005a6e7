"""The weights that one rank of vLLM holds.

Weights of multi-token prediction are loaded only for speculative decoding and are not counted here. :mod:`hwcalc.engines.vllm.shards`
has the rules for tensors, and :mod:`hwcalc.engines.vllm.stages` those for pipeline stages. Source: the model classes of vLLM 0.33.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec.structs import replace

from hwcalc.engines.rank_weights import RankBytes, Rules, block_bytes, cut_blocks, on_stages, rank_weight_bytes
from hwcalc.engines.request import ALONE, Parallel
from hwcalc.engines.shards import Rank, module_of
from hwcalc.engines.stages import Tables
from hwcalc.engines.vllm.shards import VllmRank
from hwcalc.engines.vllm.stages import HASHED, TABLES, layers_of_stages
from hwcalc.engines.widths import expert_width
from hwcalc.formulas import LatentAttention
from hwcalc.formulas.formats import BF16, FLOATS, FP16, MXFP4, WeightFormat
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole, Weights
from hwcalc.model import ModelSpec

if TYPE_CHECKING:
    from hwcalc.quantization.scheme import Scheme

__all__ = ["VLLM", "VllmRules", "absorbed_bytes_rank", "padded_expert_bytes_rank", "param_bytes_rank"]

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
    """Bytes of the 16-bit copies of the up-projections that multi-head latent attention keeps beside quantised weights.

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
    """What kernels add to MXFP4 experts on the fullest rank; ``None`` if nothing is padded or the weights are not counted.

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
