"""A.X K1 and K2: DeepSeek's layers with a norm after the experts (K1), or gates on attention and norms (K2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from hwcalc.formulas import LatentAttention, Layer
from hwcalc.formulas.weights import Block, linear, rms_norm
from hwcalc.parsers.blocks import Weighed
from hwcalc.parsers.config import Config
from hwcalc.parsers.decoder.build import ROUTED, Decoder, mlp_blocks, mlp_weights, moe_weights, sparse_layers
from hwcalc.parsers.latent.layers import LatentLayers, attention_weights
from hwcalc.parsers.reading import kind_in


def _sparse(config: Config, count: int) -> list[bool]:
    """Which layers have experts: those in ``mlp_layer_types``, else every ``moe_layer_freq``-th after the dense first ones."""
    if config.strings("mlp_layer_types") is not None:
        return sparse_layers(config, count)
    prefix = config.maybe_integer("first_k_dense_replace", minimum=0)
    first, every_nth = 1 if prefix is None else prefix, config.maybe_integer("moe_layer_freq") or 1
    return [i >= first and i % every_nth == 0 for i in range(count)]


def _k2_attention(config: Config, spec: Decoder, layer: Layer) -> Weighed:
    """One projection gives queries and gate, from an input twice as wide as the query latent."""
    rank, latent = config.integer("q_lora_rank"), kind_in(config, layer, LatentAttention)
    widths = latent.qk_nope_head_dim + latent.qk_rope_head_dim + latent.v_head_dim
    own = attention_weights(config, spec, layer[:1])
    return (
        *(weight for weight in own if not weight.path.endswith("q_b_proj.weight")),
        *linear("self_attn.q_gate_proj", 2 * rank, latent.num_attention_heads * widths),
        *attention_weights(config, spec, layer[1:]),
    )


def _k2_mlps(config: Config, spec: Decoder, layers: Sequence[Layer]) -> list[Block]:
    """MLPs with the norms around them. The norm before attention has a gate of low rank, and so has the one before experts."""
    hidden, rank = config.integer("hidden_size"), config.integer("gated_norm_rank")

    def gated(path: str) -> Weighed:
        return (
            *rms_norm(f"{path}.norm", hidden),
            *linear(f"{path}.mlp.fc1", hidden, rank),
            *linear(f"{path}.mlp.fc2", rank, hidden),
        )

    before = gated("input_layernorm")
    sparse = moe_weights(config, ROUTED) + before + gated("post_attention_layernorm")
    dense = mlp_weights(config, spec) + before + rms_norm("post_attention_layernorm", hidden)
    return mlp_blocks(_sparse(config, len(layers)), lambda routed: sparse if routed else dense)


def _post_norm(config: Config) -> Weighed:
    return rms_norm("mlp.post_mlp_layernorm", config.integer("hidden_size"))


AXK1: Final = Decoder(
    layers=LatentLayers().read, attention=attention_weights, experts=replace(ROUTED, sparse=_sparse, extra=_post_norm)
)
AXK2: Final = Decoder(norms=0, layers=LatentLayers(sparse=True, own_indexers=True).read, attention=_k2_attention, mlps=_k2_mlps)
