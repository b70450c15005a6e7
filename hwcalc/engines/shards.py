"""How a tensor is cut over tensor-parallel and expert-parallel ranks. An engine's own habits are a subclass of :class:`Rank`.

A matrix is cut by its outputs (columns of the product) or, where it takes what such a matrix gives, by its inputs (rows):
Shoeybi et al. 2019, arXiv:1909.08053. Norms, routers and latents that all heads share are whole on every rank, vocabularies
are cut by rows, and a key or value head is never cut: with more ranks than heads each rank has a copy of one (Pope et al. 2022,
arXiv:2211.05102). What does not divide is rounded up: the fullest rank is the one that has to fit.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import ClassVar, Final

from hwcalc.engines.request import ALONE, Parallel
from hwcalc.formulas import Mamba2
from hwcalc.formulas.frozen import replace
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole
from hwcalc.model import ModelSpec

__all__ = ["ROW_PARALLEL", "Rank", "cut_inputs", "cut_outputs", "dealt", "module_of"]

ROW_PARALLEL: Final = frozenset(
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
"""Layers that are cut by input, by the last part of their path: their bias is added once, so that every rank keeps all of it."""
_REPLICATED_ROLES: Final = frozenset({WeightRole.NORM, WeightRole.ROUTER})
_REPLICATED: Final = frozenset(
    {
        "q_a_proj",
        "kv_a_proj_with_mqa",
        "f_a_proj",
        "g_a_proj",
        "per_layer_input_gate",
        "per_layer_projection",
        "patch_embed",
        "patch_embedding",
        "mm_input_projection_weight",
        "expert_bias",
        "e_score_correction_bias",
        "class_embedding",
        "position_bias",
    }
)
"""Projections to what all heads share, small tables and plain parameters."""
_KEYS_AND_VALUES: Final = frozenset({"k_proj", "v_proj"})
_FUSED: Final = frozenset({"query_key_value", "qkv_proj", "Wqkv", "W_pack", "wqkv", "c_attn"})


class Rank:
    """What the fullest of ``tp`` tensor-parallel ranks holds of a tensor.

    ``ep`` above 1 deals whole experts out over that many ranks; otherwise all ranks of ``tp`` and ``dp`` share each expert's
    matrices. Attention is cut by ``tp`` alone: ranks of ``dp`` each have all of it.
    """

    vocabulary_padding: ClassVar[int] = 1
    """Rows of a vocabulary are padded to a multiple of this before they are cut."""
    replicated: ClassVar[AbstractSet[str]] = _REPLICATED
    replicated_inside: ClassVar[AbstractSet[str]] = frozenset({"indexer", "compressor", "router"})
    """Any part of a path that makes the tensor whole on every rank."""

    def __init__(self, model: ModelSpec, parallel: Parallel = ALONE) -> None:
        self.model = model
        self.tp = parallel.tp
        self.shards = parallel.tp * parallel.dp
        self.ep = parallel.ep
        self.attention = [dims for group in model.stack.groups if "num_key_value_heads" in (dims := group.kind.dims())]
        self.mamba = next((group.kind for group in model.stack.groups if isinstance(group.kind, Mamba2)), None)

    def cut(self, block: Block, weight: Weight) -> Weight:
        """The tensor as the rank with most of it holds it."""
        if self.is_vocabulary(weight):
            padded = -(-weight.shape[0] // self.vocabulary_padding) * self.vocabulary_padding
            return _rows(weight, -(-padded // self.tp))
        if weight.copies > 1:
            return self.expert(weight)
        if self.tp == 1 or self.is_replicated(weight) or self.is_whole(block):
            return weight
        name = module_of(weight)
        if name in ROW_PARALLEL:
            return weight if weight.role is WeightRole.BIAS else cut_inputs(weight, self.tp)
        if block.part in {Part.LANGUAGE, Part.MTP} and (name in _KEYS_AND_VALUES or name in _FUSED):
            return _rows(weight, self._attention_rows(name, weight.shape[0]))
        if self.mamba is not None and name in {"in_proj", "conv1d"}:
            return _rows(weight, self._mamba_rows(self.mamba, weight.shape[0]))
        return cut_outputs(weight, self.tp)

    def expert(self, weight: Weight) -> Weight:
        """One expert's tensor: fewer copies, or a part of each."""
        if self.ep > 1:
            return dealt(weight, self.ep)
        last = module_of(weight) in ROW_PARALLEL
        if weight.path.endswith(".bias") or len(weight.shape) < 2:
            return weight if last else cut_outputs(weight, self.shards)
        return cut_inputs(weight, self.shards) if last else cut_outputs(weight, self.shards)

    def is_vocabulary(self, weight: Weight) -> bool:
        """Whether a table has a row for each token, so that it is cut by rows."""
        if weight.role is WeightRole.HEAD:
            return True
        if weight.role is not WeightRole.EMBEDDING:
            return False
        return "pos" not in module_of(weight) and weight.shape[0] >= (self.model.vocab_size or 1) // 2

    def is_replicated(self, weight: Weight) -> bool:
        """Whether every rank has the whole of a tensor."""
        if weight.role is WeightRole.NORM and self.is_sharded_norm(weight.path):
            return False
        if weight.role in _REPLICATED_ROLES or weight.role is WeightRole.EMBEDDING or module_of(weight) in self.replicated:
            return True
        return any(part in self.replicated_inside for part in weight.path.split("."))

    def is_whole(self, block: Block) -> bool:
        """Whether every rank has the whole of a block."""
        return False

    def is_sharded_norm(self, path: str) -> bool:
        """The gated norm inside a Mamba-2 mixer is as wide as the rank's share of the mixer."""
        return path.endswith(("mixer.norm.weight", "mamba.norm.weight")) and self.mamba is not None

    def key_value_heads(self, heads: int) -> int:
        """Key or value heads of a rank: never less than a whole one."""
        return -(-heads // self.tp)

    def state_groups(self, groups: int) -> int:
        """Groups of B and C in a Mamba-2 mixer that a rank has."""
        return -(-groups // self.tp)

    def _attention_rows(self, name: str, rows: int) -> int:
        """Rows of a key, value or fused projection: query heads divided, key and value heads at least one a rank."""
        for dims in self.attention:
            heads, groups, head, value = (
                dims[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim")
            )
            mine = self.key_value_heads(groups)
            if name in _KEYS_AND_VALUES and rows in {groups * head, groups * value}:
                return mine * (rows // groups)
            if name in _FUSED and rows == heads * head + groups * (head + value):
                return -(-heads // self.tp) * head + mine * (head + value)
        return -(-rows // self.tp)

    def _mamba_rows(self, mamba: Mamba2, rows: int) -> int:
        """Rows of a Mamba-2 projection: a group of B and C that cannot be divided is repeated on every rank."""
        shared = 2 * mamba.n_groups * mamba.d_state
        return -(-(rows - shared) // self.tp) + 2 * mamba.d_state * self.state_groups(mamba.n_groups)


def module_of(weight: Weight) -> str:
    """``q_proj`` of ``self_attn.q_proj.weight``, ``A_log`` of ``mixer.A_log``."""
    parts = weight.path.split(".")
    return parts[-2] if parts[-1] in {"weight", "bias"} and len(parts) > 1 else parts[-1]


def cut_outputs(weight: Weight, ranks: int) -> Weight:
    """A share of the outputs: of the first dimension, rounded up."""
    return _rows(weight, -(-weight.shape[0] // ranks))


def cut_inputs(weight: Weight, ranks: int) -> Weight:
    """A share of the inputs: of the last dimension, rounded up."""
    return replace(weight, shape=(*weight.shape[:-1], -(-weight.shape[-1] // ranks)))


def dealt(weight: Weight, ranks: int) -> Weight:
    """A share of the experts, rounded up; each of them is whole."""
    return replace(weight, copies=-(-weight.copies // ranks))


def _rows(weight: Weight, rows: int) -> Weight:
    return replace(weight, shape=(rows, *weight.shape[1:]))
