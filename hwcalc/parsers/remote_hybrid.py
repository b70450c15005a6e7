"""Hybrids and recurrent models whose code lives with the model.

- minimax_m1, minimax_text_01: ``attn_type_list`` says 1 for softmax and 0 for lightning attention, whose state is a square
  matrix for each *query* head (vLLM's ``minimax_text_01.py``: heads x head_dim x head_dim, fp32).
- bailing_moe_linear (Ring-linear, Ling 2.5): the last of each ``layer_group_size`` layers and any that do not fill a group are
  softmax, the others lightning (``modeling_bailing_moe_linear_v2.py``); with ``kv_lora_rank`` the former are MLA.
- plamo2: attention where i % mamba_step == mamba_step // 2, on the last layer alone if the stack is no longer than half a
  step (``is_mamba`` in the model and in vLLM's ``plamo2.py``). Attention forgets all but ``attention_window_size`` tokens
  outside ``full_attention_idx``. The state is Mamba-2's, but only x is convolved.
- plamo3: full where (i + 1) % sliding_window_pattern == 0, else the last ``window_size`` tokens (``is_full_attn``).
- phi4flash (SambaY; ``SambaYCache``, 32 layers): layers 0 to 16 alternate Mamba-1 and a window, 17 is the only full
  attention. After it nothing is kept: odd layers read 17's cache, even ones gate the current token by 16's output.
- rwkv5, rwkv6: ``attention_hidden_size`` // ``head_size`` heads (``num_attention_heads``, where a file has it, is the head
  size by another name). rwkv7: ``hidden_size`` // ``head_dim``; layers listed in ``attn`` have softmax attention instead, and
  keep only the token shift of their feed-forward (fla, ``modeling_rwkv7.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from hwcalc.formulas import (
    LatentAttention,
    Layer,
    LightningAttention,
    Mamba1,
    Mamba2,
    NoCache,
    RwkvMatrix,
    SharedCache,
    ShortConvolution,
)
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import AttentionDims, Reading, attention_dims

__all__ = ["read"]

_PLAMO2_WINDOW: Final = 2_048
"""``attention_window_size`` of the model's config class, where a file leaves it out; null is no window."""


def _minimax(config: Config) -> Reading:
    count = config.number_of_layers()
    dims = attention_dims(config)
    types = config.integers("attn_type_list")
    if types is None:
        raise config.missing("attn_type_list")
    if len(types) < count or set(types) - {0, 1}:
        raise config.error("attn_type_list", types, f"a list of {count} items, 0 (lightning) or 1 (softmax)")
    lightning = LightningAttention(num_heads=dims.num_attention_heads, head_dim=dims.head_dim)
    return Reading(layers=tuple((dims.full(),) if flag else (lightning,) for flag in types[:count]), config=config)


def _bailing_linear(config: Config) -> Reading:
    count = config.number_of_layers()
    period = config.integer("layer_group_size")
    dims = attention_dims(config)
    softmax: Layer = (dims.full(),)
    rank = config.maybe_integer("kv_lora_rank")
    if rank is not None:
        softmax = (
            LatentAttention(
                num_attention_heads=dims.num_attention_heads,
                kv_lora_rank=rank,
                qk_rope_head_dim=config.integer("qk_rope_head_dim", minimum=0),
                qk_nope_head_dim=config.integer("qk_nope_head_dim", minimum=0),
                v_head_dim=dims.v_head_dim,
            ),
        )
    config.ignore("num_kv_heads_for_linear_attn", "max_window_layers", "layer_types", "linear_attn_norm_group_size")
    linear: Layer = (LightningAttention(num_heads=dims.num_attention_heads, head_dim=dims.head_dim),)
    filled = count // period * period
    return Reading(layers=tuple(softmax if (i + 1) % period == 0 or i >= filled else linear for i in range(count)), config=config)


def _plamo2(config: Config) -> Reading:
    count = config.number_of_layers()
    # An engine puts a head_dim of its own into the file; the model's width is hidden_size_per_head.
    config.ignore("head_dim")
    head_dim = config.integer("hidden_size_per_head")
    dims = AttentionDims(
        num_attention_heads=config.integer("num_attention_heads"),
        num_key_value_heads=config.integer("num_key_value_heads"),
        head_dim=head_dim,
        v_head_dim=head_dim,
    )
    step = config.integer("mamba_step", minimum=2)
    window = config.maybe_integer("attention_window_size") if config.has("attention_window_size") else _PLAMO2_WINDOW
    full = set(config.integers("full_attention_idx") or [])
    # Older files name the window a second time, for an engine that reads only this key.
    config.ignore("sliding_window", "mamba_chunk_size", "interleaved_sliding_window")
    mamba: Layer = (
        Mamba2(
            num_heads=config.integer("mamba_num_heads"),
            head_dim=head_dim,
            d_state=config.integer("mamba_d_state"),
            n_groups=0,
            d_conv=config.integer("mamba_d_conv"),
        ),
    )
    enabled = config.flag("mamba_enabled", default=True)

    def layer(index: int) -> Layer:
        attends = index == count - 1 if count <= step // 2 else index % step == step // 2
        if enabled and not attends:
            return mamba
        return (dims.full() if window is None or index in full else dims.sliding(window),)

    return Reading(layers=tuple(layer(i) for i in range(count)), config=config)


def _plamo3(config: Config) -> Reading:
    count = config.number_of_layers()
    dims = attention_dims(config)
    period = config.integer("sliding_window_pattern")
    sliding = dims.sliding(config.integer("window_size"))
    # The same rule once more, spelled out for other engines.
    config.ignore("sliding_window", "interleaved_sliding_window", "layer_types")
    return Reading(
        layers=tuple((sliding if (i + 1) % period else dims.full(),) for i in range(count)),
        config=config,
    )


def _phi4flash(config: Config) -> Reading:
    count = config.number_of_layers()
    dims = attention_dims(config)
    period = config.maybe_integer("mb_per_layer", minimum=0) or 0
    half = count // 2
    windows = _phi4flash_windows(config, count)
    # Made from the same numbers when the file was written.
    config.ignore("layer_types", "layers_block_type", "mamba_dt_rank", "mamba_conv_bias", "mamba_proj_bias")
    mamba = Mamba1(
        d_inner=config.integer("mamba_expand") * config.integer("hidden_size"),
        d_state=config.integer("mamba_d_state"),
        d_conv=config.integer("mamba_d_conv"),
    )

    def layer(index: int) -> Layer:
        is_mamba = period > 0 and index % period == 0
        if index >= half + 2:
            return (NoCache() if is_mamba else SharedCache(),)
        if is_mamba:
            return (mamba,)
        window = windows[index] if index < half else None
        return (dims.full() if window is None else dims.sliding(window),)

    return Reading(layers=tuple(layer(i) for i in range(count)), config=config)


def _phi4flash_windows(config: Config, count: int) -> list[int | None]:
    """The window of each layer: spelled out, or one number for the odd layers."""
    given = config.get("sliding_window")
    if isinstance(given, (list, tuple)):
        entries = config.sequence("sliding_window", length=count) or []
        return [None if entry is None else config.checked_integer("sliding_window", entry) for entry in entries]
    window = config.maybe_integer("sliding_window")
    return [window if index % 2 else None for index in range(count)]


def _rwkv(config: Config) -> Reading:
    """RWKV-5 and -6."""
    count = config.number_of_layers()
    hidden = config.integer("hidden_size")
    width = config.maybe_integer("attention_hidden_size") or hidden
    head_dim = config.integer("head_dim")
    config.ignore("num_attention_heads", "num_heads", "head_size_divisor")
    return Reading(layers=(_rwkv_layer(config, hidden, width, head_dim),) * count, config=config)


def _rwkv7(config: Config) -> Reading:
    count = config.number_of_layers()
    hidden = config.integer("hidden_size")
    config.ignore("num_heads", "attn_mode")
    value_dim = config.get("value_dim")
    values = value_dim if isinstance(value_dim, (list, tuple)) else [value_dim]
    if any(value not in (None, hidden) for value in values):
        raise config.error("value_dim", value_dim, f"hidden_size ({hidden}) on every layer: no other is known")
    mixing = _rwkv_layer(config, hidden, hidden, config.integer("head_dim"))
    attention = config.sub("attn")
    if attention is None:
        return Reading(layers=(mixing,) * count, config=config)
    listed = set(attention.integers("layers") or [])
    attending = _rwkv7_attention(attention, hidden)
    return Reading(layers=tuple(attending if i in listed else mixing for i in range(count)), config=config)


def _rwkv_layer(config: Config, hidden: int, width: int, head_dim: int) -> Layer:
    heads = width // head_dim
    if heads * head_dim != width:
        raise config.error("head_dim", head_dim, f"a divisor of the attention's width ({width})")
    return (RwkvMatrix(hidden_size=hidden, num_heads=heads, head_dim=head_dim),)


def _rwkv7_attention(attention: Config, hidden: int) -> Layer:
    heads = attention.integer("num_heads")
    key_value = attention.maybe_integer("num_kv_heads") or heads
    head_dim = hidden // heads
    dims = AttentionDims(num_attention_heads=heads, num_key_value_heads=key_value, head_dim=head_dim, v_head_dim=head_dim)
    window = attention.maybe_integer("window_size")
    return (
        dims.full() if window is None else dims.sliding(window),
        # A token shift is a convolution of two taps.
        ShortConvolution(channels=hidden, d_conv=2),
    )


_READERS: Final[Mapping[str, Callable[[Config], Reading]]] = {
    "bailing_moe_linear": _bailing_linear,
    "minimax_m1": _minimax,
    "minimax_text_01": _minimax,
    "phi4flash": _phi4flash,
    "plamo2": _plamo2,
    "plamo3": _plamo3,
    "rwkv5": _rwkv,
    "rwkv6": _rwkv,
    "rwkv7": _rwkv7,
    "rwkv7_fla": _rwkv7,
}


def read(config: Config) -> Reading:
    """Read one of the models above."""
    return _READERS[config.model_type or ""](config)
