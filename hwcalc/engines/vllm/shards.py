"""How vLLM's layers cut a weight over tensor-parallel ranks, and how wide a layer is on one of them.

The rules are those of vLLM 0.33 (``model_executor/layers/{linear,vocab_parallel_embedding,mamba}`` and the model files): a
matrix is cut by columns or rows unless its layer is replicated; key and value heads are repeated when there are fewer of them
than ranks; vocabularies are padded to a multiple of 64.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

from formulas import Mamba2
from formulas.weights import Block, Part, Weight, WeightRole
from hwcalc.model import ModelSpec

__all__ = ["Rank", "encoder_width", "is_vocabulary", "layer_width", "module_of"]

VOCABULARY_PADDING: Final = 64
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
_REPLICATED_IN: Final = frozenset(
    {("deepseek_v4", "kv_proj"), ("zamba2", "linear"), ("muse_glimmer", "fc1"), ("muse_glimmer", "fc2")}
)
"""The same, of one family only: model type and module."""
_ROW_PARALLEL: Final = frozenset(
    {
        "o_proj",
        "o_b_proj",
        "out_proj",
        "output_linear",
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
_SHARDED_NORMS: Final = frozenset({"minimax_m2"})
_REPLICATED_TOWERS: Final = frozenset({"gemma3n", "gemma4", "kimi_k3"})
"""Families whose towers are transformers' own modules, whole on every rank."""
_REPLICATED_PROJECTORS: Final = frozenset({"gemma3n", "gemma4", "internvl", "kimi_k25", "kimi_k3", "muse_glimmer"})
_TOWERS: Final = frozenset({Part.VISION, Part.AUDIO})
_MATRICES: Final = frozenset({WeightRole.LINEAR, WeightRole.EXPERT})


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
    rank = Rank(model, tp=tp, dp=dp, ep=ep)
    widest = 0
    for block in model.counted.blocks:
        if block.part not in parts or block.kind in {"embedding", "head", "norm"}:
            continue
        matrices = [weight for weight in block.weights if weight.role in _MATRICES and len(weight.shape) == 2]
        hidden = max((weight.shape[0 if module_of(weight) in _ROW_PARALLEL else 1] for weight in matrices), default=0)
        # A block may be a whole layer: its attention is done before the rest begins.
        for attends in (True, False):
            inside = _inside(
                rank, block, [weight for weight in matrices if ("attn" in weight.path or "attention" in weight.path) is attends]
            )
            widest = max(widest, inside + hidden_copies * hidden)
    return widest


def _inside(rank: Rank, block: Block, weights: list[Weight]) -> int:
    """What the first projections give and the last one takes, per token; chosen experts add what they give, if that is more."""
    width = inside = outside = 0
    for weight in weights:
        local = rank.cut(block, weight)
        copies = min(local.copies, weight.active or local.copies)
        last = module_of(weight) in _ROW_PARALLEL
        if weight.copies > 1 and last:
            # What experts give shares memory with what their first projections give.
            outside += copies * local.shape[0]
            width += copies * local.shape[1]
        elif weight.copies > 1:
            inside += copies * local.shape[0]
        else:
            width += local.shape[1 if last else 0]
    return width + max(inside, outside)


class Rank:
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
        if is_vocabulary(self.model, weight):
            padded = -(-weight.shape[0] // VOCABULARY_PADDING) * VOCABULARY_PADDING
            return _rows(weight, -(-padded // self.tp))
        if weight.copies > 1:
            return self._expert(weight)
        if self.tp == 1 or self._is_replicated(weight) or self._is_whole(block):
            return weight
        name = module_of(weight)
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
            return weight if module_of(weight) in _ROW_PARALLEL else _rows(weight, -(-weight.shape[0] // self.shards))
        if module_of(weight) in _ROW_PARALLEL:
            return _columns(weight, self.shards)
        return _rows(weight, -(-weight.shape[0] // self.shards))

    def _is_replicated(self, weight: Weight) -> bool:
        name = module_of(weight)
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


def module_of(weight: Weight) -> str:
    """``q_proj`` of ``self_attn.q_proj.weight``, ``A_log`` of ``mixer.A_log``."""
    parts = weight.path.split(".")
    return parts[-2] if parts[-1] in {"weight", "bias"} and len(parts) > 1 else parts[-1]


def is_vocabulary(model: ModelSpec, weight: Weight) -> bool:
    """Whether a table has a row for each token, so that vLLM pads and cuts it by rows."""
    if weight.role is WeightRole.HEAD:
        return True
    if weight.role is not WeightRole.EMBEDDING or model.model_type == "whisper":
        return False
    name = module_of(weight)
    return "pos" not in name and weight.shape[0] >= (model.vocab_size or 1) // 2


def _rows(weight: Weight, rows: int) -> Weight:
    return replace(weight, shape=(rows, *weight.shape[1:]))


def _columns(weight: Weight, ranks: int) -> Weight:
    return replace(weight, shape=(*weight.shape[:-1], -(-weight.shape[-1] // ranks)))
