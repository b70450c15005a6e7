"""Hunyuan V4: DeepSeek-V3.2 with a gate on the attention, sinks, and several residual streams."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from hwcalc.formulas import LatentAttention, Layer
from hwcalc.formulas.weights import linear, parameter
from hwcalc.parsers.blocks import Weighed
from hwcalc.parsers.config import Config
from hwcalc.parsers.decoder.build import ROUTED, Decoder, sparse_by_types
from hwcalc.parsers.hyper import hyper_connections, hyper_head
from hwcalc.parsers.latent.layers import LatentLayers, attention_weights
from hwcalc.parsers.reading import kind_in


def _attention(config: Config, spec: Decoder, layer: Layer) -> Weighed:
    """The attention has a gate as wide as the values, and a sink for each head."""
    hidden, latent = config.integer("hidden_size"), kind_in(config, layer, LatentAttention)
    heads = latent.num_attention_heads
    gate = linear("self_attn.gate_proj", hidden, heads * latent.v_head_dim) + parameter("self_attn.sinks", heads)
    return attention_weights(config, spec, layer) + gate


def _every_fourth(count: int) -> list[str]:
    """An indexer on the first layer, and on every fourth after the second."""
    return ["full" if i == 0 or (i - 1) % 4 == 0 else "shared" for i in range(count)]


HY_V4: Final = Decoder(
    layers=LatentLayers(sparse=True, modes=_every_fourth).read,
    attention=_attention,
    experts=replace(ROUTED, sparse=sparse_by_types(1, None)),
    extra=lambda config, _layer: hyper_connections(config, 2),
    outer=hyper_head,
)
