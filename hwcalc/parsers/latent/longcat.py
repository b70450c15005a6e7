"""LongCat Flash: two attentions and two MLPs in each layer, and experts of which some do nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hwcalc.formulas import Layer
from hwcalc.formulas.weights import Block, WeightRole, experts, gated_mlp, linear
from hwcalc.parsers.config import Config
from hwcalc.parsers.decoder.build import Decoder, mlp_blocks, mlp_weights
from hwcalc.parsers.latent.layers import LatentLayers, attention_weights


def _mlps(config: Config, spec: Decoder, layers: Sequence[Layer]) -> list[Block]:
    """Some experts do nothing. transformers gives them gate and up (LongcatFlashExperts), which no token uses."""
    hidden, number = config.integer("hidden_size"), config.integer("n_routed_experts")
    idle = config.maybe_integer("zero_expert_num", minimum=0) or 0
    width = config.integer("moe_intermediate_size")
    expert = gated_mlp(hidden, width, path="mlp.experts")
    router = linear("mlp.router.classifier", hidden, number + idle, bias=config.flag("router_bias"), role=WeightRole.ROUTER)
    weights = experts(expert, number, config.integer("num_experts_per_tok")) + router
    if idle:
        weights += experts(expert[:2], idle, 0)
    weights += mlp_weights(config, spec) * 2
    return mlp_blocks([None] * len(layers), lambda _: weights)


LONGCAT_FLASH: Final = Decoder(
    norms=4, layers=LatentLayers(count="num_layers", attentions=2).read, attention=attention_weights, mlps=_mlps
)
