"""How mistral.rs divides weights over its ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.engines.mistral_rs.layers import shard
from hwcalc.engines.rank_weights import Rules
from hwcalc.engines.shards import Rank

if TYPE_CHECKING:
    from hwcalc.formulas import LayerKind
    from hwcalc.formulas.weights import Weight
    from hwcalc.model import ModelSpec

_WHOLE: Final = {
    "GraniteMoeHybridForCausalLM": frozenset({"mamba"}),
    **dict.fromkeys(
        ("Lfm2ForCausalLM", "Lfm2MoeForCausalLM", "Lfm2VlForConditionalGeneration"), frozenset({"conv", "feed_forward"})
    ),
}
"""Class -> modules that every rank has whole."""


class MistralRank(Rank):
    """Layers with a state are whole on every rank, but for what gated delta nets put out; LFM2's MLP is too."""

    def is_replicated(self, weight: Weight) -> bool:
        path = weight.path.split(".")
        if path[0] == "linear_attn":
            return path[1] != "out_proj" or super().is_replicated(weight)
        return path[0] in _WHOLE.get(self.model.architecture or "", ()) or super().is_replicated(weight)


class MistralRules(Rules):
    """Key/value heads are divided, rounded down, or repeated; states are whole on every rank. Stages are of the user's making."""

    engine = "mistral-rs"
    rank = MistralRank

    def shard(self, model: ModelSpec, kind: LayerKind, tp: int) -> LayerKind:
        return shard(model, kind, tp)


MISTRAL_RS: Final = MistralRules()
