"""Recurrences of their own kind: MiniMax's lightning attention, RecurrentGemma, RWKV-4 and xLSTM.

Mirrors ``modeling_*.py`` of those names in transformers 5.23, and MiniMax's own code for M1 and Text-01.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from hwcalc.formulas import Layer, LightningAttention, MatrixLSTM, RealGatedLRU, Rwkv4
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.weights import Block, WeightRole, embedding, gated_mlp, layer_norm, linear, parameter, rms_norm
from hwcalc.formulas.weights_state import lightning_attention, matrix_lstm, rg_lru, rwkv4
from hwcalc.parsers.blocks import Named, attention_of, ends, gated_experts, repeated, tied_head
from hwcalc.parsers.config import Config
from hwcalc.parsers.weights.stack import cached_layers

__all__ = ["blocks"]


def blocks(config: Config, top: Config) -> tuple[Block, ...]:
    """All blocks of one of the models above."""
    return tuple(_RULES[config.model_type or ""](config, top))


def _minimax(config: Config, top: Config) -> list[Block]:
    """Lightning or softmax attention, then experts; early files may name a shared expert, which a single number weighs."""
    hidden, count = config.integer("hidden_size"), config.integer("num_local_experts")
    width, active = config.integer("intermediate_size"), config.integer("num_experts_per_tok")
    moe = gated_experts(hidden, width, count, active)
    shared = 0 if config.has_class else config.maybe_integer("shared_intermediate_size", minimum=0) or 0
    if shared:
        moe += gated_mlp(hidden, shared, path="shared_mlp") + linear("coefficient", hidden, 1, role=WeightRole.ROUTER)
    rest: tuple[Named, ...] = (
        ("moe", moe),
        ("norm", rms_norm("input_layernorm", hidden) + rms_norm("post_attention_layernorm", hidden)),
    )

    def weigh(layer: Layer) -> Iterator[Named]:
        for kind in layer:
            if isinstance(kind, LightningAttention):
                yield "lightning", lightning_attention(hidden, **vars(kind))
            elif isinstance(kind, AttentionKind):
                yield "attention", attention_of(kind, hidden)
        yield from rest

    return ends(config, top) + repeated(cached_layers(config), weigh)


def _recurrent_gemma(config: Config, top: Config) -> list[Block]:
    """``intermediate_size`` counts gate and up together."""
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    bias = config.flag("attention_bias")
    mlp = gated_mlp(hidden, config.integer("intermediate_size") // 2, bias=True, path="mlp_block")
    norms = rms_norm("temporal_pre_norm", hidden) + rms_norm("channel_pre_norm", hidden)

    def weigh(layer: Layer) -> Iterator[Named]:
        for kind in layer:
            if isinstance(kind, RealGatedLRU):
                yield "rg_lru", rg_lru(hidden, kind.lru_width, kind.d_conv, heads)
            elif isinstance(kind, AttentionKind):
                yield "attention", attention_of(kind, hidden, qkv_bias=bias, o_bias=True, path="temporal_block")
        yield "mlp", mlp
        yield "norm", norms

    return ends(config, top, norm="model.final_norm") + repeated(cached_layers(config), weigh)


def _rwkv(config: Config, top: Config) -> list[Block]:
    """Layer norms throughout, and one more before the first layer."""
    hidden, vocab = config.integer("hidden_size"), config.integer("vocab_size")
    width = config.maybe_integer("intermediate_size") or 4 * hidden
    path = "feed_forward"
    mlp = parameter(f"{path}.time_mix_key", 1, 1, hidden) + parameter(f"{path}.time_mix_receptance", 1, 1, hidden)
    mlp += linear(f"{path}.key", hidden, width) + linear(f"{path}.receptance", hidden, hidden)
    mlp += linear(f"{path}.value", width, hidden)

    def weigh(layer: Layer) -> Iterator[Named]:
        kind = layer[0]
        assert isinstance(kind, Rwkv4)
        yield "rwkv", rwkv4(**vars(kind))
        yield "mlp", mlp
        yield "norm", layer_norm("ln1", hidden) + layer_norm("ln2", hidden)

    out = [
        Block(kind="embedding", weights=embedding("rwkv.embeddings", vocab, hidden)),
        Block(kind="norm", weights=layer_norm("rwkv.blocks.0.pre_ln", hidden) + layer_norm("rwkv.ln_out", hidden)),
    ]
    if not tied_head(config, top):
        out.append(Block(kind="head", weights=linear("head", hidden, vocab, role=WeightRole.HEAD)))
    return out + repeated(cached_layers(config), weigh)


def _xlstm(config: Config, top: Config) -> list[Block]:
    """Widths are shares of ``hidden_size``; that of the MLP is rounded up to a multiple: 2.667 x 4,096 becomes 10,944."""
    hidden, bias = config.integer("hidden_size"), config.flag("use_bias")
    width = _share(config, "ffn_proj_factor", 2.667, config.integer("ffn_round_up_to_multiple_of"))
    queries, values = _share(config, "qk_dim_factor", 0.5), _share(config, "v_dim_factor", 1.0)
    mlp = linear("ffn.proj_up_gate", hidden, width, bias=bias) + linear("ffn.proj_up", hidden, width, bias=bias)
    mlp += linear("ffn.proj_down", width, hidden, bias=bias)
    norms = layer_norm("norm_mlstm", hidden, bias=bias) + layer_norm("norm_ffn", hidden, bias=bias)

    def weigh(layer: Layer) -> Iterator[Named]:
        kind = layer[0]
        assert isinstance(kind, MatrixLSTM)
        yield "mlstm", matrix_lstm(hidden, kind.num_heads, queries, values, bias=bias)
        yield "mlp", mlp
        yield "norm", norms

    out = ends(config, top, embed="backbone.embeddings", norm="backbone.out_norm")
    return out + repeated(cached_layers(config), weigh)


def _share(config: Config, key: str, default: float, multiple: int = 1) -> int:
    width = config.integer("hidden_size") * config.number(key, default)
    return config.checked_integer(key, int((width + multiple - 1) // multiple * multiple))


_RULES: Final[dict[str, Callable[[Config, Config], list[Block]]]] = {
    "minimax": _minimax,
    "minimax_m1": _minimax,
    "minimax_text_01": _minimax,
    "recurrent_gemma": _recurrent_gemma,
    "rwkv": _rwkv,
    "xlstm": _xlstm,
}
