"""Hunyuan V4 and LongCat Flash: latent attention with parts of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from hwcalc.formulas import LatentAttention, Layer
from hwcalc.formulas.weights import Block, WeightRole, experts, gated_mlp, linear, parameter
from hwcalc.parsers.blocks import Weighed
from hwcalc.parsers.config import Config
from hwcalc.parsers.decoder.build import Decoder, attention_blocks, mlp_blocks, mlp_weights, not_sparse
from hwcalc.parsers.hyper import hyper_connections, hyper_head
from hwcalc.parsers.latent.deepseek import ROUTED, attentions
from hwcalc.parsers.latent.layers import LatentLayers, attention_weights

__all__ = ["HY_V4", "LONGCAT_FLASH"]


def _hunyuan(config: Config, spec: Decoder, layers: Sequence[Layer]) -> list[Block]:
    """A gate as wide as the values, and a sink for each head."""
    del spec
    hidden = config.integer("hidden_size")

    def weigh(layer: Layer) -> Weighed:
        latent = layer[0]
        assert isinstance(latent, LatentAttention)
        heads = latent.num_attention_heads
        gate = linear("self_attn.gate_proj", hidden, heads * latent.v_head_dim) + parameter("self_attn.sinks", heads)
        return attention_weights(config, layer) + gate

    return attention_blocks(layers, weigh)


def _every_fourth(count: int) -> list[str]:
    """An indexer on the first layer, and on every fourth after the second."""
    return ["full" if i == 0 or (i - 1) % 4 == 0 else "shared" for i in range(count)]


def _longcat_mlps(config: Config, spec: Decoder, layers: Sequence[Layer]) -> list[Block]:
    """Two MLPs, and experts of which some do nothing.

    transformers gives those their gate and up all the same (LongcatFlashExperts), which no token uses.
    """
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


HY_V4: Final = Decoder(
    layers=LatentLayers(sparse=True, modes=_every_fourth).read,
    attentions=_hunyuan,
    experts=replace(ROUTED, dense=not_sparse(1, None)),
    extra=lambda config, _layer: hyper_connections(config, 2),
    outer=hyper_head,
)
LONGCAT_FLASH: Final = Decoder(
    norms=4, layers=LatentLayers(count="num_layers", attentions=2).read, attentions=attentions, mlps=_longcat_mlps
)
"""Two attentions in each layer."""
