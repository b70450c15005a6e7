"""What one rank of vLLM holds of a model's weights: the counted tensors, cut the way vLLM's layers cut them.

The rules are those of vLLM 0.33 (``model_executor/layers/{linear,vocab_parallel_embedding,mamba}`` and the model files): a
matrix is cut by columns or rows over the tensor-parallel ranks unless its layer is replicated; key and value heads are
repeated when there are fewer of them than ranks; vocabularies are padded to a multiple of 64; a pipeline stage has its own layers,
the first one the embedding and the towers, the last one the head. Weights of multi-token prediction are loaded for
speculative decoding only and are not counted here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from formulas import LatentAttention, Mamba2
from formulas.formats import BF16, FP16, FP32, WeightFormat
from formulas.weights import Block, Part, Weight, WeightRole, Weights
from hwcalc.model import ModelSpec

if TYPE_CHECKING:
    from hwcalc.parsers.quantization import Scheme

__all__ = ["absorbed_bytes_rank", "encoder_width", "layer_width", "layers_of_stages", "param_bytes_rank"]

VOCABULARY_PADDING: Final = 64
_HASHED: Final = "hashed moe"

_PLAIN: Final = {"fp32": FP32, "fp16": FP16, "bf16": BF16}
_REPLICATED_ROLES: Final = frozenset({WeightRole.NORM, WeightRole.ROUTER})
_REPLICATED: Final = frozenset(
    {
        "q_a_proj",
        "kv_a_proj_with_mqa",
        "f_a_proj",
        "g_a_proj",
        "fc1_latent_proj",
        "fc2_latent_proj",
        "per_layer_input_gate",
        "per_layer_projection",
        "project_in",
        "project_out",
        "patch_embed",
        "patch_embedding",
        "b_layernorm",
        "mm_input_projection_weight",
        "merging_layer",
        "expert_bias",
        "e_score_correction_bias",
        "class_embedding",
        "position_bias",
        "tid2eid",
        "lambda_1",
        "lambda_2",
        "routed_expert_down_proj",
        "routed_expert_up_proj",
        "self_attention_res_proj",
        "mlp_res_proj",
        "output_attn_res_proj",
    }
)
"""Modules of ReplicatedLinear and plain parameters, by the last part of their path."""
_REPLICATED_INSIDE: Final = ("indexer", "compressor", "attn_hc", "ffn_hc", "hc_head", "router", "patch_embed")
_REPLICATED_IN: Final = frozenset({("deepseek_v4", "kv_proj"), ("zamba2", "linear")})
"""The same, of one family only: model type and module."""
_ROW_PARALLEL: Final = frozenset(
    {
        "o_proj",
        "o_b_proj",
        "out_proj",
        "down_proj",
        "dense",
        "dense_4h_to_h",
        "c_proj",
        "fc2",
        "fc_out",
        "proj",
        "linear_2",
        "linear_fc2",
        "merge_linear_2",
        "wo",
        "w2",
        "2",
    }
)
"""Layers that are cut by input: their bias is added once, so that every rank keeps all of it."""
_KEYS_AND_VALUES: Final = frozenset({"k_proj", "v_proj"})
_FUSED: Final = frozenset({"query_key_value", "qkv_proj", "Wqkv", "W_pack", "wqkv", "c_attn"})

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
_SHARDED_NORMS: Final = frozenset({"minimax_m2"})
_REPLICATED_TOWERS: Final = frozenset({"gemma3n", "gemma4", "kimi_k3"})
"""Families whose towers are transformers' own modules, whole on every rank."""
_REPLICATED_PROJECTORS: Final = frozenset({"gemma3n", "gemma4", "internvl", "kimi_k25", "kimi_k3"})
_TOWERS: Final = frozenset({Part.VISION, Part.AUDIO})

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
"""Families whose embedding, last norm and head are built on every pipeline stage, used or not."""
_TABLES_BUT_NO_NORM: Final = frozenset({"qwen3_next"})
_EMBEDDING_EVERYWHERE: Final = frozenset({"lfm2", "lfm2_moe", "qwen3_5", "qwen3_5_moe"})


def param_bytes_rank(
    model: ModelSpec,
    dtype: str | None = None,
    *,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    ep: int = 1,
    scheme: Scheme | None = None,
) -> tuple[int, ...] | None:
    """Bytes of parameters on a rank of each pipeline stage; ``None`` if the model's weights are not counted.

    ``dtype`` is vLLM's model dtype; a float32 checkpoint is loaded in 16 bits unless it says ``fp32``. ``scheme`` is the
    checkpoint's quantisation. ``ep`` above 1 deals whole experts out over that many ranks; otherwise all ranks of ``tp`` and ``dp``
    share each expert's matrices.
    """
    if model.counted is None:
        return None
    plain = _PLAIN.get(dtype or "", FP16 if model.dtype == "fp16" else BF16)
    rank = _Rank(model, tp=tp, dp=dp, ep=ep)
    blocks = [
        (block, tuple(rank.cut(block, weight) for weight in _as_built(model, block))) for block in _held(model, model.counted, pp)
    ]
    totals = []
    for stage in range(pp):
        size = 0
        for block, weights in blocks:
            count = _count_on_stage(model, block, stage, pp)
            if count:
                local = replace(block, count=count, weights=weights)
                size += sum(_bytes(model, local, weight, scheme, plain) for weight in weights)
        totals.append(size)
    return tuple(totals)


def absorbed_bytes_rank(model: ModelSpec, *, tp: int, pp: int) -> int:
    """Bytes of the 16-bit copies of the up-projections that multi-head latent attention keeps beside quantised weights.

    Decoding multiplies them into queries and outputs. Where the weights are 16-bit themselves, the copies are views of them. Four
    heads of 128 + 128 rows over a latent of 512 are 4 x 256 x 512 x 2 bytes a layer.
    """
    longest = max(len(stage) for stage in layers_of_stages(len(model.stack), pp))
    total = 0
    for group in model.stack.groups:
        kind = group.kind
        if isinstance(kind, LatentAttention) and kind.qk_nope_head_dim is not None and kind.v_head_dim is not None:
            heads = -(-kind.num_attention_heads // tp)
            rows = heads * (kind.qk_nope_head_dim + kind.v_head_dim)
            total += min(group.count, longest) * rows * kind.kv_lora_rank * 2
    return total


def layer_width(model: ModelSpec, *, tp: int = 1, dp: int = 1, ep: int = 1) -> int | None:
    """Numbers per token that the widest layer of the decoder holds inside on one rank; ``None`` if weights are not counted.

    What its projections give and what the last of them takes: a gated MLP of 14,336 holds 3 x 14,336.
    """
    return _widest(model, {Part.LANGUAGE}, tp=tp, dp=dp, ep=ep)


def encoder_width(model: ModelSpec, *, tp: int = 1) -> int | None:
    """The same of a patch in the towers, with four copies of its hidden vector; zero for a model without any."""
    return _widest(model, {Part.VISION, Part.AUDIO, Part.ENCODER}, tp=tp, dp=1, ep=1, hidden_copies=4)


def _widest(model: ModelSpec, parts: AbstractSet[Part], *, tp: int, dp: int, ep: int, hidden_copies: int = 0) -> int | None:
    if model.counted is None:
        return None
    rank = _Rank(model, tp=tp, dp=dp, ep=ep)
    widest = 0
    for block in model.counted.blocks:
        if block.part not in parts or block.kind in {"embedding", "head", "norm"}:
            continue
        width = inside = outside = hidden = 0
        for weight in block.weights:
            if weight.role not in {WeightRole.LINEAR, WeightRole.EXPERT} or len(weight.shape) != 2:
                continue
            local = rank.cut(block, weight)
            copies = min(local.copies, weight.active or local.copies)
            last = _module(weight) in _ROW_PARALLEL
            hidden = max(hidden, weight.shape[0 if last else 1])
            if weight.copies > 1 and last:
                # What chosen experts give shares memory with what their first projections give.
                outside += copies * local.shape[0]
                width += copies * local.shape[1]
            elif weight.copies > 1:
                inside += copies * local.shape[0]
            else:
                width += local.shape[1 if last else 0]
        widest = max(widest, width + max(inside, outside) + hidden_copies * hidden)
    return widest


def layers_of_stages(layers: int, pp: int) -> tuple[range, ...]:
    """The layers of each pipeline stage. What does not divide goes to the stages before the last.

    >>> [len(stage) for stage in layers_of_stages(80, 3)]
    [27, 27, 26]

    80 = 3 x 26 + 2: the two that are left over go to the two stages before the last.
    """
    sizes = [layers // pp] * pp
    for extra in range(layers % pp):
        sizes[-2 - extra] += 1
    starts = [sum(sizes[:stage]) for stage in range(pp)]
    return tuple(range(start, start + size) for start, size in zip(starts, sizes, strict=True))


def _held(model: ModelSpec, weights: Weights, pp: int) -> list[Block]:
    """The blocks that vLLM loads: no multi-token prediction, a second table where a tied one cannot be shared."""
    blocks = [part for block in weights.blocks if block.part is not Part.MTP for part in _by_routing(model, block)]
    tables = [weight for block in blocks for weight in block.weights if _is_vocabulary(model, weight)]
    heads = [weight for weight in tables if weight.role is WeightRole.HEAD]
    embedded = [weight for weight in tables if weight.role is WeightRole.EMBEDDING and "per_layer" not in weight.path]
    if embedded and not heads and (_unties(model) or (pp > 1 and not _has_embedding_at_the_end(model))):
        # The last stage has the head, and a stage cannot share a table with another one.
        head = Weight(path="lm_head.weight", shape=embedded[0].shape, role=WeightRole.HEAD)
        blocks.append(Block(kind="head", weights=(head,)))
    return blocks


def _by_routing(model: ModelSpec, block: Block) -> Iterator[Block]:
    """DeepSeek-V4 routes its first layers by a table from tokens to experts, which other implementations keep as a buffer."""
    hashed = _number(model.config, "num_hash_layers") if block.kind == "moe" and model.model_type == "deepseek_v4" else 0
    chosen = _number(model.config, "num_experts_per_tok")
    if not hashed or not chosen or hashed >= block.count or model.vocab_size is None:
        yield block
        return
    table = Weight(path="mlp.gate.tid2eid", shape=(model.vocab_size, chosen), role=WeightRole.OTHER)
    yield replace(block, kind=_HASHED, count=hashed, weights=(*block.weights, table))
    yield replace(block, count=block.count - hashed)


def _has_embedding_at_the_end(model: ModelSpec) -> bool:
    return model.model_type in _TABLES_EVERYWHERE | _TABLES_BUT_NO_NORM | _EMBEDDING_EVERYWHERE


def _unties(model: ModelSpec) -> bool:
    """Whether vLLM builds a head of its own although the file says that it is tied: Qwen3.5 looks inside ``text_config``."""
    inner = model.config.get("text_config")
    return model.model_type in {"qwen3_5", "qwen3_5_moe"} and isinstance(inner, Mapping) and not inner.get("tie_word_embeddings")


def _as_built(model: ModelSpec, block: Block) -> Iterator[Weight]:
    """The weights of one layer as vLLM's classes build them: a few more, and a few fewer, than the reference."""
    names = {_module(weight) for weight in block.weights}
    for weight in block.weights:
        if weight.path == "lm_head.bias" and model.model_type == "phi":
            continue  # Run through the Transformers backend, whose head has none.
        yield weight
        if model.model_type == "whisper" and weight.path.endswith("k_proj.weight"):
            # Fused with queries and values, keys get a bias of zeros.
            yield Weight(path=weight.path.removesuffix("weight") + "bias", shape=weight.shape[:1], role=WeightRole.BIAS)
        if model.model_type == "gemma4" and _module(weight) == "k_proj" and "v_proj" not in names and block.part is Part.LANGUAGE:
            # Where values are the keys, the fused projection still has rows for both.
            yield replace(weight, path=weight.path.replace("k_proj", "v_proj"))
    routers = [weight for weight in block.weights if weight.role is WeightRole.ROUTER and weight.shape[0] > 1]
    if (
        routers
        and block.kind != _HASHED
        and model.model_type in _CORRECTION_BIAS
        and not names & {"expert_bias", "e_score_correction_bias"}
    ):
        yield Weight(path="mlp.gate.e_score_correction_bias", shape=routers[0].shape[:1], role=WeightRole.OTHER)


def _module(weight: Weight) -> str:
    """``q_proj`` of ``self_attn.q_proj.weight``, ``A_log`` of ``mixer.A_log``."""
    parts = weight.path.split(".")
    return parts[-2] if parts[-1] in {"weight", "bias"} and len(parts) > 1 else parts[-1]


def _is_vocabulary(model: ModelSpec, weight: Weight) -> bool:
    """Whether a table has a row for each token, so that vLLM pads and cuts it by rows."""
    if weight.role is WeightRole.HEAD:
        return True
    if weight.role is not WeightRole.EMBEDDING or model.model_type == "whisper":
        return False
    name = _module(weight)
    return "pos" not in name and weight.shape[0] >= (model.vocab_size or 1) // 2


def _bytes(model: ModelSpec, block: Block, weight: Weight, scheme: Scheme | None, plain: WeightFormat) -> int:
    if _is_fp32(model, weight):
        return block.count * FP32.bytes(weight)
    return block.count * plain.bytes(weight) if scheme is None else scheme.bytes(block, weight, plain)


def _is_fp32(model: ModelSpec, weight: Weight) -> bool:
    """Parameters that vLLM keeps in 32 bits whatever the model's dtype."""
    name = _module(weight)
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


def _count_on_stage(model: ModelSpec, block: Block, stage: int, pp: int) -> int:
    """How many layers of this block a pipeline stage has."""
    if pp == 1:
        return block.count
    first, last = stage == 0, stage == pp - 1
    if block.part in {Part.VISION, Part.AUDIO, Part.PROJECTOR, Part.ENCODER}:
        return block.count if first else 0
    total = len(model.stack)
    mine = layers_of_stages(total, pp)[stage]
    if block.count == 1 and total > 1:
        return _single(model, block, first=first, last=last)
    if block.count == total:
        return len(mine)
    return sum(layer in mine for layer in _layers(model, block, total))


def _single(model: ModelSpec, block: Block, *, first: bool, last: bool) -> int:
    """A block that the model has once: what comes before the layers is on the first stage, the rest on the last one."""
    family = model.model_type
    everywhere = family in _TABLES_EVERYWHERE
    if block.kind == "embedding":
        return int(first or everywhere or family in _TABLES_BUT_NO_NORM or family in _EMBEDDING_EVERYWHERE)
    if block.kind == "head":
        return int(last or everywhere or family in _TABLES_BUT_NO_NORM)
    return int(first if block.kind in {"mlp", "moe", "attention"} else last or everywhere)


def _layers(model: ModelSpec, block: Block, total: int) -> tuple[int, ...]:
    """Which layers have this block: those of the cached kind that is as frequent, the first or the last ones, or evenly spread."""
    count = min(block.count, total)
    for group in model.stack.groups:
        if len(group.layers) == count and block.kind in {"attention", "delta", "mamba", "conv"}:
            return group.layers
    dense = _number(model.config, "first_k_dense_replace") or _number(model.config, "num_hash_layers")
    if dense and count == dense:
        return tuple(range(count))
    if dense and count == total - dense:
        return tuple(range(dense, total))
    return tuple(index * total // count for index in range(count))


def _number(config: Mapping[str, Any], key: str) -> int:
    for holder in (config, config.get("text_config")):
        value = holder.get(key) if isinstance(holder, Mapping) else None
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return 0


class _Rank:
    """What one tensor-parallel rank holds of a tensor."""

    def __init__(self, model: ModelSpec, *, tp: int, dp: int, ep: int) -> None:
        self.model = model
        self.tp = tp
        self.shards = tp * dp
        self.ep = ep
        self.attention = [dims for group in model.stack.groups if "num_key_value_heads" in (dims := group.kind.dims())]
        self.mamba = next((group.kind for group in model.stack.groups if isinstance(group.kind, Mamba2)), None)

    def cut(self, block: Block, weight: Weight) -> Weight:
        """The tensor as the rank with most of it holds it."""
        if _is_vocabulary(self.model, weight):
            padded = -(-weight.shape[0] // VOCABULARY_PADDING) * VOCABULARY_PADDING
            return _rows(weight, -(-padded // self.tp))
        if weight.copies > 1:
            return self._expert(weight)
        if self.tp == 1 or self._is_replicated(weight) or self._is_whole(block):
            return weight
        name = _module(weight)
        if name == "sinks" and self.model.model_type == "deepseek_v4":
            # The attention kernel works on at least 64 heads.
            return _rows(weight, max(64, -(-weight.shape[0] // self.tp)))
        if name in _ROW_PARALLEL:
            return weight if weight.role is WeightRole.BIAS else _columns(weight, self.tp)
        if block.part is Part.LANGUAGE and (name in _KEYS_AND_VALUES or name in _FUSED):
            return _rows(weight, self._attention_rows(name, weight.shape[0]))
        if self.mamba is not None and name in {"in_proj", "conv1d"}:
            return _rows(weight, self._mamba_rows(weight.shape[0]))
        return _rows(weight, -(-weight.shape[0] // self.tp))

    def _expert(self, weight: Weight) -> Weight:
        if self.ep > 1:
            return replace(weight, copies=-(-weight.copies // self.ep))
        if weight.path.endswith(".bias") or len(weight.shape) < 2:
            return weight if _module(weight) in _ROW_PARALLEL else _rows(weight, -(-weight.shape[0] // self.shards))
        if _module(weight) in _ROW_PARALLEL:
            return _columns(weight, self.shards)
        return _rows(weight, -(-weight.shape[0] // self.shards))

    def _is_replicated(self, weight: Weight) -> bool:
        name = _module(weight)
        if weight.role is WeightRole.NORM and self._is_sharded_norm(weight.path):
            return False
        if weight.role in _REPLICATED_ROLES or weight.role is WeightRole.EMBEDDING or name in _REPLICATED:
            return True
        family = self.model.model_type
        if (family, name) in _REPLICATED_IN or (family == "internvl" and ".layer.attention." in weight.path):
            return True
        if family.startswith("minimax_m3") and weight.path.endswith("indexer.q_proj.weight"):
            return False
        return any(part in _REPLICATED_INSIDE for part in weight.path.split("."))

    def _is_whole(self, block: Block) -> bool:
        """Whether every rank has the whole of a tower or projector."""
        family = self.model.model_type
        if family == "gpt_bigcode" and block.kind == "mlp":
            # Run through the Transformers backend, whose plan for this family cuts attention only.
            return True
        if block.part is Part.PROJECTOR:
            return family in _REPLICATED_PROJECTORS
        return block.part in _TOWERS and family in _REPLICATED_TOWERS

    def _is_sharded_norm(self, path: str) -> bool:
        if path.endswith((".q_norm.weight", ".k_norm.weight")):
            return self.model.model_type in _SHARDED_NORMS
        # The gated norm inside a Mamba-2 mixer is as wide as the rank's share of the mixer.
        return path.endswith(("mixer.norm.weight", "mamba.norm.weight")) and self.mamba is not None

    def _attention_rows(self, name: str, rows: int) -> int:
        """Rows of a key, value or fused projection: query heads divided, key and value heads at least one a rank."""
        for dims in self.attention:
            heads, groups, head, value = (
                dims[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim")
            )
            mine = max(1, groups // self.tp)
            if name in _KEYS_AND_VALUES and rows in {groups * head, groups * value}:
                return mine * (rows // groups)
            if name in _FUSED and rows == heads * head + groups * (head + value):
                return -(-heads // self.tp) * head + mine * (head + value)
        return -(-rows // self.tp)

    def _mamba_rows(self, rows: int) -> int:
        """Rows of a Mamba-2 projection: a group of B and C that cannot be divided is repeated on every rank."""
        mamba = self.mamba
        assert mamba is not None
        shared = 2 * mamba.n_groups * mamba.d_state
        groups = mamba.n_groups if mamba.n_groups % self.tp == 0 else self.tp
        return -(-(rows - shared) // self.tp) + 2 * mamba.d_state * (groups // self.tp)


def _rows(weight: Weight, rows: int) -> Weight:
    return replace(weight, shape=(rows, *weight.shape[1:]))


def _columns(weight: Weight, ranks: int) -> Weight:
    return replace(weight, shape=(*weight.shape[:-1], -(-weight.shape[-1] // ranks)))
