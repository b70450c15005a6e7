"""RecurrentGemma and xLSTM (``modeling_recurrent_gemma.py`` and ``modeling_xlstm.py`` of transformers 5.23)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hwcalc.formulas import Layer, MatrixLSTM, RealGatedLRU
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.weights import Block, gated_mlp, layer_norm, linear
from hwcalc.formulas.weights_state import matrix_lstm, rg_lru
from hwcalc.parsers.blocks import Named, attention_of, ends, repeated, rms_norms
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import Readers, Reading, attention_dims, build_layers
from hwcalc.parsers.states import LINEAR, SLIDING, spelled_layer_types, state_dtype

__all__ = ["RECURRENT_GEMMA", "XLSTM"]


def _recurrent_gemma(config: Config) -> Reading:
    """``block_types`` is one period; its attention is always windowed."""
    count = config.number_of_layers()
    period = config.strings("block_types")
    spelled = spelled_layer_types(config, count)
    if spelled is None and not period:
        raise config.missing("block_types")
    names = {"recurrent": LINEAR, "attention": SLIDING}
    types = spelled or [names.get(name, name) for i in range(count) for name in [(period or [])[i % len(period or [])]]]
    config.ignore("attention_window_size", "_block_types", "final_w_init_variance_scale")
    window = config.integer("attention_window_size")

    def recurrent(layer: Config, index: int) -> Layer:
        width = layer.maybe_integer("lru_width") or layer.integer("hidden_size")
        return (RealGatedLRU(lru_width=width, d_conv=layer.integer("conv1d_width")),)

    def attention(layer: Config, index: int) -> Layer:
        return (attention_dims(layer).sliding(window),)

    return Reading(layers=build_layers(config, types, {LINEAR: recurrent, SLIDING: attention}), config=config)


def _recurrent_gemma_weights(config: Config, top: Config, reading: Reading) -> list[Block]:
    """``intermediate_size`` counts gate and up together."""
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    bias = config.flag("attention_bias")
    mlp = gated_mlp(hidden, config.integer("intermediate_size") // 2, bias=True, path="mlp_block")

    def weigh(layer: Layer) -> Iterator[Named]:
        for kind in layer:
            if isinstance(kind, RealGatedLRU):
                yield "rg_lru", rg_lru(hidden, kind.lru_width, kind.d_conv, heads)
            elif isinstance(kind, AttentionKind):
                yield "attention", attention_of(kind, hidden, qkv_bias=bias, o_bias=True, path="temporal_block")
        yield "mlp", mlp
        yield "norm", rms_norms(hidden, "temporal_pre_norm", "channel_pre_norm")

    return ends(config, top, norm="model.final_norm") + repeated(reading.layers, weigh)


def _xlstm(config: Config) -> Reading:
    """The widths of the states are shares of ``hidden_size`` rounded up to a multiple of 64, then divided among the heads."""
    heads = config.integer("num_heads")
    hidden = config.maybe_integer("hidden_size") or config.integer("embedding_dim")
    count = config.maybe_integer("num_hidden_layers") or config.integer("num_blocks")
    queries, values = (_share(config, hidden, key, share, 64) for key, share in _SHARES)
    kind = MatrixLSTM(num_heads=heads, qk_head_dim=queries // heads, v_head_dim=values // heads)
    config.ignore(
        "autocast_kernel_dtype", "chunk_size", "chunkwise_kernel", "head_dim", "inference_state_dtype", "max_inference_chunksize",
        "return_last_states",
    )  # fmt: skip
    dtype = state_dtype(config, ("inference_state_dtype",))
    layers = ((kind,),) * config.checked_integer("num_hidden_layers", count, maximum=10_000)
    return Reading(layers=layers, config=config, state_dtype=dtype)


def _xlstm_weights(config: Config, top: Config, reading: Reading) -> list[Block]:
    """The widths of the projections are the same shares, not rounded; 2.667 x 4,096 for the MLP becomes 10,944."""
    hidden, bias = config.integer("hidden_size"), config.flag("use_bias")
    width = _share(config, hidden, "ffn_proj_factor", 2.667, config.integer("ffn_round_up_to_multiple_of"))
    queries, values = (_share(config, hidden, key, share) for key, share in _SHARES)
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
    return out + repeated(reading.layers, weigh)


# What queries and keys take of hidden_size, and what values take.
_SHARES: Final = (("qk_dim_factor", 0.5), ("v_dim_factor", 1.0))


def _share(config: Config, hidden: int, key: str, default: float, multiple: int = 1) -> int:
    """A share of ``hidden``, rounded up to a multiple."""
    width = hidden * config.number(key, default)
    return config.checked_integer(key, int((width + multiple - 1) // multiple * multiple))


RECURRENT_GEMMA: Final = Readers(layers=_recurrent_gemma, weights=_recurrent_gemma_weights)
XLSTM: Final = Readers(layers=_xlstm, weights=_xlstm_weights)
