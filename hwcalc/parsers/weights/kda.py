"""Kimi delta attention with latent attention in between: Kimi Linear, Bailing hybrids and GLM-5 Next.

Mirrors ``modeling_*.py`` of those names in transformers 5.23. Bailing's gates are full matrices, its latent attention has
no query latent and an output gate of one number a head. GLM-5 Next joins residual streams around every block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hwcalc.formulas import KimiDeltaAttention, LatentAttention, Layer, SparseIndexer
from hwcalc.formulas.weights import Block, Weight, gated_mlp, indexer, latent_attention, linear, parameter, rms_norm
from hwcalc.formulas.weights_state import kimi_delta_attention
from hwcalc.parsers.blocks import Named, ends, gated_experts, repeated
from hwcalc.parsers.config import Config
from hwcalc.parsers.weights.decoder import sparse_layers
from hwcalc.parsers.weights.stack import cached_layers

__all__ = ["blocks"]

_BAILING: Final = "bailing_hybrid"
_GLM: Final = "glm5_next_text"
# Leading layers without experts where the file does not say: Kimi, Bailing, GLM-5 Next.
_DENSE: Final = {"kimi_linear": 1, _BAILING: 2, _GLM: 3}


def blocks(config: Config, top: Config) -> tuple[Block, ...]:
    """All blocks of one of the models above."""
    hidden = config.integer("hidden_size")
    norms = rms_norm("input_layernorm", hidden) + rms_norm("post_attention_layernorm", hidden)

    def weigh(key: tuple[Layer, bool]) -> Iterator[Named]:
        layer, sparse = key
        for kind in layer:
            yield from _mixer(config, kind)
        yield ("moe", _experts(config)) if sparse else ("mlp", gated_mlp(hidden, config.integer("intermediate_size")))
        yield "norm", norms
        if config.model_type == _GLM:
            yield "hyper_connection", _hyper_connection(config, "attn_hc")
            yield "hyper_connection", _hyper_connection(config, "ffn_hc")

    layers = cached_layers(config)
    sparse = sparse_layers(config, len(layers), _DENSE[config.model_type or ""])
    return (*ends(config, top), *repeated(zip(layers, sparse, strict=True), weigh))


def _mixer(config: Config, kind: object) -> Iterator[Named]:
    hidden, bias = config.integer("hidden_size"), config.flag("attention_bias")
    bailing = config.model_type == _BAILING
    if isinstance(kind, KimiDeltaAttention):
        full = not bailing
        yield "delta", kimi_delta_attention(hidden, **vars(kind), low_rank_decay=full, low_rank_gate=full)
    elif isinstance(kind, LatentAttention):
        rank = None if bailing else config.maybe_integer("q_lora_rank")
        dims = (kind.kv_lora_rank, kind.qk_nope_head_dim, kind.qk_rope_head_dim, kind.v_head_dim, rank)
        weights = latent_attention(hidden, kind.num_attention_heads, *dims, bias=bias)
        yield "attention", weights + (linear("self_attn.g_proj", hidden, kind.num_attention_heads) if bailing else ())
    elif isinstance(kind, SparseIndexer):
        # GLM-5 Next pools tokens: a gate as wide as the key, and a learned position within the pool.
        width = kind.index_head_dim
        weights = indexer(hidden, config.integer("q_lora_rank"), kind.index_n_heads, width)
        weights += parameter("self_attn.indexer.index_kpool_compress_ape", config.integer("index_kpool"), width)
        yield "indexer", weights + parameter("self_attn.indexer.index_kpool_compress_gate", width, hidden)


def _experts(config: Config) -> tuple[Weight, ...]:
    hidden, width = config.integer("hidden_size"), config.integer("moe_intermediate_size")
    count, active = config.integer("num_local_experts"), config.integer("num_experts_per_tok")
    shared = (config.maybe_integer("n_shared_experts", minimum=0) or 0) * width
    weights = gated_experts(hidden, width, count, active)
    return weights + gated_mlp(hidden, shared, path="mlp.shared_experts") if shared else weights


def _hyper_connection(config: Config, path: str) -> tuple[Weight, ...]:
    """Manifold hyper-connections: for each of n streams n + 2 mixes, each of them a sum over all streams, and three scales."""
    streams = config.integer("hc_mult")
    mixes = (2 + streams) * streams
    return (
        *parameter(f"{path}.fn", mixes, streams * config.integer("hidden_size")),
        *parameter(f"{path}.base", mixes),
        *parameter(f"{path}.scale", 3),
    )
