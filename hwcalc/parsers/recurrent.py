"""Recurrences of their own kind: MiniMax's lightning attention, RecurrentGemma, RWKV-4 and xLSTM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from hwcalc.formulas import Layer, LightningAttention, MatrixLSTM, RealGatedLRU, Rwkv4
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import Reading, attention_dims, build_layers, every, full_layer
from hwcalc.parsers.states import LINEAR, spelled_layer_types, state_dtype

__all__ = ["read"]

_FULL: Final = "full_attention"
_SLIDING: Final = "sliding_attention"


def read(config: Config) -> Reading:
    """Read a config of one of these four families."""
    return _READERS[config.model_type or ""](config)


def _minimax(config: Config) -> Reading:
    """Types by ``layer_types``, else by ``attn_type_list`` (1 is attention), else attention on every second layer from 0 on."""
    count = config.number_of_layers()
    for kind in ("full", "linear"):
        config.ignore(f"{kind}_attn_alpha_factor", f"{kind}_attn_beta_factor")
    config.ignore("sliding_window")
    alternating = every(2, count, _FULL, LINEAR, offset=0)
    flags = config.integers("attn_type_list", length=count)
    spelled = spelled_layer_types(config, count)
    types = spelled or ([_FULL if flag else LINEAR for flag in flags] if flags else alternating)
    readers = {LINEAR: _lightning, _FULL: full_layer}
    layers = build_layers(config, types, readers)
    # The library's class does not read attn_type_list.
    readings = {"transformers": build_layers(config, alternating, readers)} if flags and not spelled else {}
    return Reading(layers=layers, config=config, state_dtype=state_dtype(config), readings=readings)


def _lightning(config: Config, index: int) -> Layer:
    dims = attention_dims(config)
    return (LightningAttention(num_heads=dims.num_attention_heads, head_dim=dims.head_dim),)


def _recurrent_gemma(config: Config) -> Reading:
    """``block_types`` is one period; its attention is always windowed."""
    count = config.number_of_layers()
    period = config.strings("block_types")
    spelled = spelled_layer_types(config, count)
    if spelled is None and not period:
        raise config.missing("block_types")
    names = {"recurrent": LINEAR, "attention": _SLIDING}
    types = spelled or [names.get(name, name) for i in range(count) for name in [(period or [])[i % len(period or [])]]]
    config.ignore("attention_window_size", "_block_types", "final_w_init_variance_scale")
    window = config.integer("attention_window_size")

    def recurrent(layer: Config, index: int) -> Layer:
        width = layer.maybe_integer("lru_width") or layer.integer("hidden_size")
        return (RealGatedLRU(lru_width=width, d_conv=layer.integer("conv1d_width")),)

    def attention(layer: Config, index: int) -> Layer:
        return (attention_dims(layer).sliding(window),)

    return Reading(layers=build_layers(config, types, {LINEAR: recurrent, _SLIDING: attention}), config=config)


def _rwkv(config: Config) -> Reading:
    hidden = config.integer("hidden_size")
    kind = Rwkv4(hidden_size=hidden, attention_hidden_size=config.maybe_integer("attention_hidden_size") or hidden)
    return Reading(layers=((kind,),) * config.number_of_layers(), config=config)


def _xlstm(config: Config) -> Reading:
    """Widths are shares of ``hidden_size`` rounded up to a multiple of 64, then divided among the heads."""
    heads = config.integer("num_heads")
    hidden = config.maybe_integer("hidden_size") or config.integer("embedding_dim")
    count = config.maybe_integer("num_hidden_layers") or config.integer("num_blocks")

    def head_dim(factor_key: str, default: float) -> int:
        width = config.checked_integer(factor_key, int(hidden * config.number(factor_key, default) + 63) // 64 * 64)
        return width // heads

    kind = MatrixLSTM(num_heads=heads, qk_head_dim=head_dim("qk_dim_factor", 0.5), v_head_dim=head_dim("v_dim_factor", 1.0))
    config.ignore(
        "autocast_kernel_dtype", "chunk_size", "chunkwise_kernel", "head_dim", "inference_state_dtype", "max_inference_chunksize",
        "return_last_states",
    )  # fmt: skip
    dtype = state_dtype(config, ("inference_state_dtype",))
    return Reading(
        layers=((kind,),) * config.checked_integer("num_hidden_layers", count, maximum=10_000), config=config, state_dtype=dtype
    )


_READERS: Final[Mapping[str, Callable[[Config], Reading]]] = {
    "minimax": _minimax,
    "recurrent_gemma": _recurrent_gemma,
    "rwkv": _rwkv,
    "xlstm": _xlstm,
}
