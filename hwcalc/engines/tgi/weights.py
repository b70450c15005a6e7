"""How TGI divides weights and heads over its shards."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from hwcalc.engines.rank_weights import Rules
from hwcalc.engines.tgi.models import keeps_whole_heads
from hwcalc.formulas import AttentionKind, ExpandedLatentAttention, LatentAttention, LayerKind
from hwcalc.formulas.formats import BF16, FLOATS, WeightFormat
from hwcalc.model import ModelSpec

__all__ = ["TGI"]


class TgiRules(Rules):
    """Weights by ideal sharding. Key/value heads are divided and rounded down, a single one stays; none is repeated."""

    engine = "tgi"

    def weight_format(self, model: ModelSpec, weight_dtype: str | None) -> WeightFormat:
        """Weights are loaded in 16 bits, whatever the checkpoint has."""
        return FLOATS.get(weight_dtype or "", BF16)

    def shard(self, model: ModelSpec, kind: LayerKind, tp: int) -> LayerKind:
        if isinstance(kind, (LatentAttention, ExpandedLatentAttention)):
            return replace(kind, num_attention_heads=max(1, kind.num_attention_heads // tp))
        if not isinstance(kind, AttentionKind) or keeps_whole_heads(model):
            return kind
        heads = kind.num_key_value_heads
        return replace(
            kind,
            num_attention_heads=max(1, kind.num_attention_heads // tp),
            num_key_value_heads=max(1, heads // tp),
        )


TGI: Final = TgiRules()
