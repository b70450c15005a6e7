"""What one rank of vLLM holds of a model's weights: the counted tensors, cut the way vLLM's layers cut them.

Weights of multi-token prediction are loaded for speculative decoding only and are not counted here. Sources: the model classes
of vLLM 0.33; how they cut is in :mod:`hwcalc.engines.vllm.shards`, what a pipeline stage has in
:mod:`hwcalc.engines.vllm.stages`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, ClassVar, Final

from hwcalc.engines.rank_weights import Rules, rank_weight_bytes
from hwcalc.engines.request import ALONE, Parallel
from hwcalc.engines.shards import Rank, module_of
from hwcalc.engines.stages import Tables
from hwcalc.engines.vllm.shards import VllmRank
from hwcalc.engines.vllm.stages import HASHED, TABLES, layers_of_stages
from hwcalc.formulas import LatentAttention
from hwcalc.formulas.formats import BF16, FLOATS, FP16, WeightFormat
from hwcalc.formulas.frozen import replace
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole, Weights
from hwcalc.model import ModelSpec

if TYPE_CHECKING:
    from hwcalc.quantization.scheme import Scheme

__all__ = ["VLLM", "VllmRules", "absorbed_bytes_rank", "param_bytes_rank"]

_FP32_ROUTER: Final = frozenset(
    {"afmoe", "ernie4_5_moe", "glm4_moe", "minimax_m2", "minimax_m3", "minimax_m3_vl", "mimo_v2_flash", "step3p5", "hy_v3"}
)
"""Families whose routing matrix stays in 32 bits (GateLinear with params_dtype float32)."""
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
"""Families whose routers add a learned number per expert: a parameter in vLLM, a buffer (not counted) in transformers."""


def param_bytes_rank(
    model: ModelSpec, parallel: Parallel = ALONE, *, dtype: str | None = None, scheme: Scheme | None = None
) -> tuple[int, ...] | None:
    """Bytes of parameters on a rank of each pipeline stage; ``None`` if the model's weights are not counted.

    ``dtype`` is vLLM's model dtype; a float32 checkpoint is loaded in 16 bits unless it says ``fp32``. ``scheme`` is the
    checkpoint's quantisation.
    """
    return rank_weight_bytes(model, parallel, plain=dtype, scheme=scheme, rules=VLLM)


def absorbed_bytes_rank(model: ModelSpec, parallel: Parallel) -> int:
    """Bytes of the 16-bit copies of the up-projections that multi-head latent attention keeps beside quantised weights.

    Decoding multiplies them into queries and outputs. Where the weights are 16-bit themselves, the copies are views of them. Four
    heads of 128 + 128 rows over a latent of 512 are 4 x 256 x 512 x 2 bytes a layer.
    """
    longest = max(len(stage) for stage in layers_of_stages(len(model.stack), parallel.pp))
    total = 0
    for group in model.stack.groups:
        kind = group.kind
        if isinstance(kind, LatentAttention) and kind.qk_nope_head_dim is not None and kind.v_head_dim is not None:
            heads = -(-kind.num_attention_heads // parallel.tp)
            rows = heads * (kind.qk_nope_head_dim + kind.v_head_dim)
            total += min(group.count, longest) * rows * kind.kv_lora_rank * 2
    return total


def _by_routing(model: ModelSpec, block: Block) -> Iterator[Block]:
    """DeepSeek-V4 routes its first layers by a table from tokens to experts, which other implementations keep as a buffer."""
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
    """Whether vLLM builds a head of its own although the file says that it is tied: Qwen3.5 looks inside ``text_config``."""
    return model.model_type in {"qwen3_5", "qwen3_5_moe"} and model.facts.ties_text_embeddings is False


def _as_built(model: ModelSpec, block: Block) -> Iterator[Weight]:
    """The weights of one layer as vLLM's classes build them: a few more, and a few fewer, than the reference."""
    names = {module_of(weight) for weight in block.weights}
    for weight in block.weights:
        if weight.path == "lm_head.bias" and model.model_type == "phi":
            continue  # Run through the Transformers backend, whose head has none.
        yield weight
        if model.model_type == "whisper" and weight.path.endswith("k_proj.weight"):
            # Fused with queries and values, keys get a bias of zeros.
            yield Weight(path=weight.path.removesuffix("weight") + "bias", shape=weight.shape[:1], role=WeightRole.BIAS)
        if (
            model.model_type == "gemma4"
            and module_of(weight) == "k_proj"
            and "v_proj" not in names
            and block.part is Part.LANGUAGE
        ):
            # Where values are the keys, the fused projection still has rows for both.
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
    """Parameters that vLLM keeps in 32 bits whatever the model's dtype."""
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


class VllmRules(Rules):
    """vLLM 0.33's model classes."""

    engine: ClassVar[str] = "vllm"
    rank: ClassVar[type[Rank]] = VllmRank
    tables: ClassVar[Tables] = TABLES

    def plain(self, model: ModelSpec, wanted: str | None) -> WeightFormat:
        """A float32 checkpoint is loaded in 16 bits unless it says ``fp32``."""
        return FLOATS.get(wanted or "", FP16 if model.dtype == "fp16" else BF16)

    def held(self, model: ModelSpec, weights: Weights, pp: int) -> Iterable[Block]:
        for block in super().held(model, weights, pp):
            yield from _by_routing(model, block)

    def unties(self, model: ModelSpec, pp: int) -> bool:
        return _unties(model) or (pp > 1 and not self.tables.has_embedding_at_the_end(model))

    def as_built(self, model: ModelSpec, block: Block) -> Iterable[Weight]:
        return _as_built(model, block)

    def is_fp32(self, model: ModelSpec, weight: Weight) -> bool:
        return _is_fp32(model, weight)


VLLM: Final = VllmRules()
