"""Dots 3 Note: sliding layers have a latent of another shape (``per_layer_config`` or ``swa_*``). Each head has a gate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from hwcalc.formulas import LatentAttention, Layer
from hwcalc.formulas.weights import Block, linear, rms_norm
from hwcalc.parsers.blocks import Weighed
from hwcalc.parsers.config import Config
from hwcalc.parsers.decoder.build import ROUTED, Decoder, attention_blocks, sparse_by_types, times
from hwcalc.parsers.latent.layers import INDEXED, SLIDING, LatentLayers, kind_weights, latent_attention
from hwcalc.parsers.reading import every


def _types(config: Config, count: int) -> list[str]:
    """The first two layers and every fourth after them have an indexer. The others slide."""
    config.ignore("use_dsa", "use_sliding_window", "sliding_window_size")
    return [INDEXED if i < 2 else name for i, name in enumerate(every(4, count, INDEXED, SLIDING, offset=1))]


def _latent(layer: Config, index: int, window: int | None) -> LatentAttention:
    del index
    if window is None or "per_layer_config" in layer.raw:
        return latent_attention(layer, window=window)
    # Without per_layer_config the file gives the dims of sliding layers by swa_* keys. These are the class's defaults.
    head_dim = layer.maybe_integer("swa_head_dim") or 256
    nope = layer.maybe_integer("swa_qk_nope_head_dim") or 192
    layer.ignore("swa_num_key_value_heads", "swa_q_lora_rank", "swa_rope_theta")
    return LatentAttention(
        num_attention_heads=layer.maybe_integer("swa_num_attention_heads") or 64,
        kv_lora_rank=layer.maybe_integer("swa_kv_lora_rank") or 1024,
        qk_nope_head_dim=nope,
        qk_rope_head_dim=layer.maybe_integer("swa_qk_rope_head_dim") or max(0, head_dim - nope),
        v_head_dim=layer.maybe_integer("swa_v_head_dim") or 128,
        window=window,
    )


def _query_rank(config: Config, layer: Layer) -> int:
    sliding = any(isinstance(kind, LatentAttention) and kind.window is not None for kind in layer)
    if not sliding or "per_layer_config" in config.raw:
        return config.integer("q_lora_rank")
    return config.maybe_integer("swa_q_lora_rank") or 1024


def _attentions(config: Config, spec: Decoder, layers: Sequence[Layer]) -> list[Block]:
    del spec
    hidden = config.integer("hidden_size")

    def weigh(key: tuple[Layer, int]) -> Weighed:
        layer, rank = key
        weights: Weighed = ()
        for kind in layer:
            weights += kind_weights(config, kind, rank)
            if isinstance(kind, LatentAttention):
                weights += rms_norm("self_attn.k_rope_only_layernorm", kind.qk_rope_head_dim)
                weights += linear("self_attn.g_proj", hidden, kind.num_attention_heads)
        return weights

    ranks = [_query_rank(config.layer(index), layer) for index, layer in enumerate(layers)]
    return attention_blocks(zip(layers, ranks, strict=True), weigh)


DOTS3_NOTE: Final = Decoder(
    layers=LatentLayers(sparse=True, types=_types, latent=_latent, own_indexers=True).read,
    attentions=_attentions,
    experts=replace(ROUTED, shared=times("n_shared_experts", "shared_experts_intermediate_size"), sparse=sparse_by_types(1)),
)
