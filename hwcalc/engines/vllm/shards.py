"""How vLLM cuts weights over tensor-parallel ranks.

The rules are those of :mod:`hwcalc.engines.shards`, except where vLLM 0.33 differs (``model_executor/layers/{linear,
vocab_parallel_embedding,mamba}`` and the model files): vocabularies are padded to a multiple of 64, and several model types keep more
or fewer tensors whole.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import ClassVar, Final

from msgspec.structs import replace

from hwcalc.engines.shards import ROW_PARALLEL, Rank, Sharding, module_of
from hwcalc.errors import UsageError
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole
from hwcalc.model import ModelSpec

__all__ = ["VllmRank", "check_experts"]

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
    """Cuts a tensor as vLLM does."""

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
        own = _REPLICATED_IN.get(family, _NONE)
        if (own and module_of(weight) in own) or (family == "internvl" and ".layer.attention." in weight.path):
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
