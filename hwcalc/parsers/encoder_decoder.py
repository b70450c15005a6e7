"""Encoder-decoder models: each decoder layer keeps self attention, and cross attention over the encoder's output.

Most of these classes map ``num_hidden_layers`` and ``num_attention_heads`` to their *encoder*, so the decoder's own keys
are read here. A class named ``...ForCausalLM`` is the decoder alone, which has no encoder output to attend to, and one
named ``...EncoderModel`` the encoder alone, which keeps nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hwcalc.errors import ConfigError, UnknownArchitectureError
from hwcalc.formulas import CrossAttention, FullAttention, Layer, NoCache, SlidingAttention
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.frozen import frozen
from hwcalc.model import Note
from hwcalc.parsers.config import MAX_LAYERS, Config
from hwcalc.parsers.encoders import encoder_tokens
from hwcalc.parsers.reading import (
    AttentionDims,
    Reading,
    attention_dims,
    build_layers,
    every,
    full_layer,
    read_layer_types,
    windowed_layer,
)
from hwcalc.parsers.registry import dialect_for, read_with

__all__ = ["read"]


@frozen
class _Keys:
    """Under which keys a class describes its decoder. ``layers`` are tried in turn; null means the next one."""

    layers: tuple[str, ...]
    heads: str
    kv_heads: str | None = None
    head_dim: str | None = None


_BART = _Keys(layers=("decoder_layers",), heads="decoder_attention_heads")
_T5 = _Keys(layers=("num_decoder_layers", "num_layers"), heads="num_heads", head_dim="d_kv")
_PIX2STRUCT = _Keys(layers=("num_layers",), heads="num_heads", head_dim="d_kv")
_PROPHETNET = _Keys(layers=("num_decoder_layers",), heads="num_decoder_attention_heads")
_MOONSHINE = _Keys(
    layers=("decoder_num_hidden_layers",), heads="decoder_num_attention_heads", kv_heads="decoder_num_key_value_heads"
)
_COMMON = _Keys(layers=("num_hidden_layers",), heads="num_attention_heads", kv_heads="num_key_value_heads", head_dim="head_dim")
_MHA = _Keys(layers=("num_hidden_layers",), heads="num_attention_heads")

_DECODERS: Mapping[str, _Keys] = {
    **dict.fromkeys(
        (
            "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "fsmt", "led", "m2m_100", "marian", "mbart", "mvp",
            "nllb-moe", "pegasus", "pegasus_x", "plbart", "pp_formulanet_text", "seamless_m4t", "seamless_m4t_v2",
            "speech_to_text", "speecht5", "trocr", "whisper",
        ),
        _BART,
    ),
    **dict.fromkeys(("longt5", "mt5", "pop2piano", "switch_transformers", "t5", "udop", "umt5"), _T5),
    **dict.fromkeys(("canary_decoder", "cohere_asr", "moonshine_streaming"), _COMMON),
    **dict.fromkeys(("blip_text_model", "musicgen_decoder", "musicgen_melody_decoder"), _MHA),
    "moonshine": _MOONSHINE,
    "pix2struct_text_model": _PIX2STRUCT,
    "prophetnet": _PROPHETNET,
}  # fmt: skip

# Composite models: where the decoder is described.
_NESTED: Mapping[str, str] = {
    "blip": "text_config",
    "canary": "decoder_config",
    "dia": "decoder_config",
    "florence2": "text_config",
    "musicgen": "decoder",
    "musicgen_melody": "decoder",
    "pix2struct": "text_config",
    "pp_formulanet": "text_config",
    "t5gemma": "decoder",
    "t5gemma2": "decoder",
}
_PAIRS = ("encoder-decoder", "vision-encoder-decoder", "speech-encoder-decoder")
_DEEPEST_PAIR = 4

# The decoder alone is the only class with this config, or it takes the encoder's output in as a prefix.
_NEVER_CROSS = frozenset({"trocr", "musicgen_melody", "musicgen_melody_decoder"})

# What lies outside the decoder: encoders of text and speech, the convolutions before them, unit decoders after it.
_OUTSIDE = ("encoder_", "speech_encoder_", "t2u_", "conv_", "num_conv_", "num_encoder_", "adaptor_")
_WITHOUT_EFFECT = (
    "num_attention_heads",
    "num_key_value_heads",
    "add_cross_attention",
    "cross_attention_hidden_size",
    "attention_window",
    "delay_pattern",
    "pad_head_dim_to_multiple_of",
    "share_encoder_decoder_embeddings",
)


def read(config: Config) -> Reading:
    """Read an encoder-decoder config of any of the forms above."""
    if config.model_type in _PAIRS:
        return _pair(config)
    key = _NESTED.get(config.model_type or "")
    decoder = config if key is None else _nested(config, key)
    _set_aside(config)
    alone = _architecture(config)
    if alone.endswith("EncoderModel"):
        return _encoder_alone(decoder, alone)
    cross = not alone.endswith("ForCausalLM") and config.model_type not in _NEVER_CROSS
    reading = _decoder(decoder, cross)
    tokens = encoder_tokens(config) if cross else None
    notes = reading.notes
    if config.model_type in ("musicgen_melody", "musicgen_melody_decoder"):
        notes += (
            Note(
                code="encoder-as-prefix",
                message="The text and melody that condition this model stand before its own tokens: --seq counts them too.",
            ),
        )
    return Reading(layers=reading.layers, config=decoder, encoder_tokens=tokens, notes=notes)


def _architecture(config: Config) -> str:
    names = config.raw.get("architectures")
    first = names[0] if isinstance(names, (list, tuple)) and names else ""
    return first if isinstance(first, str) else ""


def _nested(config: Config, key: str) -> Config:
    """The decoder's config; one that is absent or of a type nobody else knows is read as the class's own."""
    usual = config.nested_type(key)
    child = config.sub(key)
    if child is None:
        return config.retyped(usual)
    return child if child.model_type in _DECODERS or child.model_type in _SPECIAL else child.retyped(usual)


def _set_aside(config: Config) -> None:
    """Mark everything that describes other parts than the decoder as known."""
    config.ignore(*_WITHOUT_EFFECT, *(key for key in config.raw if str(key).startswith(_OUTSIDE)))


def _encoder_alone(config: Config, architecture: str) -> Reading:
    config.ignore(*config.raw)
    count = _count(config, _DECODERS.get(config.model_type or "", _COMMON))
    return Reading(
        layers=((NoCache(),),) * count,
        config=config,
        notes=(Note(code="encoder-only", message=f"{architecture[:60]} is an encoder alone: it keeps nothing between steps."),),
    )


def _decoder(config: Config, cross: bool) -> Reading:
    """The layers of a decoder that is described at this level."""
    _set_aside(config)
    special = _SPECIAL.get(config.model_type or "")
    if special is not None:
        return Reading(layers=special(config, cross), config=config)
    keys = _DECODERS[config.model_type or ""]
    dims = _dims(config, keys)
    layer: Layer = (dims.full(), CrossAttention(**vars(dims))) if cross else (dims.full(),)
    return Reading(layers=(layer,) * _count(config, keys), config=config)


def _count(config: Config, keys: _Keys) -> int:
    *optional, last = keys.layers
    for key in optional:
        count = config.maybe_integer(key, maximum=MAX_LAYERS)
        if count is not None:
            return count
    return config.number_of_layers(last)


def _dims(config: Config, keys: _Keys) -> AttentionDims:
    heads = config.integer(keys.heads)
    kv_heads = config.maybe_integer(keys.kv_heads) if keys.kv_heads else None
    head_dim = config.maybe_integer(keys.head_dim) if keys.head_dim else None
    if head_dim is None:
        width = config.integer("hidden_size")
        head_dim = width // heads
        if head_dim == 0:
            raise config.error("hidden_size", width, f"at least the number of attention heads ({heads})")
    return AttentionDims(num_attention_heads=heads, num_key_value_heads=kv_heads or heads, head_dim=head_dim, v_head_dim=head_dim)


def _dia(config: Config, cross: bool) -> tuple[Layer, ...]:
    """Self attention is grouped, cross attention has heads of its own."""
    count = config.number_of_layers()
    own = attention_dims(config).full()
    heads, kv_heads = config.integer("cross_num_attention_heads"), config.integer("cross_num_key_value_heads")
    width = config.integer("cross_head_dim")
    config.ignore("cross_hidden_size")
    over = CrossAttention(num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=width, v_head_dim=width)
    return ((own, over) if cross else (own,),) * count


def _t5gemma(period: int) -> Callable[[Config, bool], tuple[Layer, ...]]:
    """Gemma layers, windowed but for the last of each period; cross attention looks at everything."""

    def layers(config: Config, cross: bool) -> tuple[Layer, ...]:
        count = config.number_of_layers()
        types = read_layer_types(config, count)
        if types is None:
            pattern = config.maybe_integer("sliding_window_pattern") or period
            types = every(pattern, count, "full_attention", "sliding_attention")
        config.ignore("sliding_window_pattern", "_sliding_window_pattern")
        own = build_layers(config, types, {"full_attention": full_layer, "sliding_attention": windowed_layer})
        over = CrossAttention(**vars(attention_dims(config)))
        return tuple((*layer, over) if cross else layer for layer in own)

    return layers


_SPECIAL: Mapping[str, Callable[[Config, bool], tuple[Layer, ...]]] = {
    "dia_decoder": _dia,
    "t5_gemma_module": _t5gemma(2),
    "t5gemma2_decoder": _t5gemma(6),
}


def _pair(config: Config) -> Reading:
    """Any encoder with any decoder that was given cross attention on every layer."""
    if config.where.count(".") >= _DEEPEST_PAIR:
        raise ConfigError(f"{config.where} is nested too deep for a {config.model_type} model.")
    decoder = config.sub("decoder") or config.retyped(config.nested_type("decoder"))
    decoder.ignore("add_cross_attention", "cross_attention_hidden_size", "is_decoder")
    if decoder.model_type in _DECODERS or decoder.model_type in _SPECIAL:
        reading = _decoder(decoder, cross=True)
    else:
        dialect = dialect_for(decoder.model_type)
        if dialect is None or decoder.model_type in (*_PAIRS, *_NESTED):
            raise UnknownArchitectureError(
                f"No parser knows the decoder of this {config.model_type} model: {str(decoder.model_type)[:60]!r}.",
                hint="Plan the decoder by itself, or see: kvplan models",
            )
        reading = read_with(dialect, _as_decoder(decoder))
    return Reading(
        layers=tuple(_with_cross(layer) for layer in reading.layers),
        config=decoder,
        encoder_tokens=encoder_tokens(config),
        notes=reading.notes,
    )


def _as_decoder(config: Config) -> Config:
    """The same config with ``is_decoder``, which these models set whatever the file says."""
    child = Config({**config.raw, "is_decoder": True}, config.model_type, config.where)
    child.read = config.read
    config.children.append(child)
    return child


def _with_cross(layer: Layer) -> Layer:
    if any(isinstance(kind, CrossAttention) for kind in layer):
        return layer
    own = next((kind for kind in layer if isinstance(kind, (FullAttention, SlidingAttention))), None)
    return layer if own is None else (*layer, _cross_of(own))


def _cross_of(kind: AttentionKind) -> CrossAttention:
    return CrossAttention(
        num_attention_heads=kind.num_attention_heads,
        num_key_value_heads=kind.num_key_value_heads,
        head_dim=kind.head_dim,
        v_head_dim=kind.v_head_dim,
    )
