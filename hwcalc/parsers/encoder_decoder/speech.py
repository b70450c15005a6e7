"""Models that write down speech: SeamlessM4T, SpeechT5, Moonshine, Canary and Cohere's ASR.

Mirrors ``modeling_*.py`` of those names in transformers 5.23. Classes of SeamlessM4T and SpeechT5 that speak have vocoders,
which nobody weighs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from hwcalc.formulas import Layer
from hwcalc.formulas.weights import Block, Part, embedding, layer_norm, linear, plain_mlp, rms_norm
from hwcalc.formulas.weights_state import convolution
from hwcalc.parsers.blocks import Named, Weighed, repeated, tied_head
from hwcalc.parsers.classes import architecture
from hwcalc.parsers.config import Config
from hwcalc.parsers.encoder_decoder.bart import BART_KEYS
from hwcalc.parsers.encoder_decoder.common import EncoderDecoder, Keys, Plain, encoder_layers
from hwcalc.parsers.encoder_decoder.sound import conformer, masked_span, parakeet, wav2vec2_front
from hwcalc.parsers.projections import cross_dims, output_head, own_dims, projections
from hwcalc.parsers.reading import Reading
from hwcalc.parsers.towers.build import needed

__all__ = ["CANARY", "COHERE", "DECODER", "MOONSHINE", "SEAMLESS", "SPEECHT5"]


_TEXT: Final = Plain(cross="cross_attention", mlp=("ffn.fc1", "ffn.fc2"), mlp_norm="ffn_layer_norm")


def _seamless(config: Config, top: Config, reading: Reading, kind: str) -> list[Block] | None:
    """One table for all; NLLB's text encoder or a conformer; NLLB's decoder."""
    width, vocab = config.integer("hidden_size"), config.integer("vocab_size")
    out = [Block(kind="embedding", weights=embedding("shared", vocab, width))]
    if kind == "text":
        out += _text_stack(config, "encoder", encoder_layers(config))
    elif architecture(config).endswith("ForSpeechToText"):
        speech = conformer(config, "speech_encoder")
        if speech is None:
            return None
        out += speech
    else:
        return None
    out += _text_stack(config, "decoder", reading.layers)
    if tied_head(config, top):
        return out
    sides = ("text_encoder", "text_decoder") if kind == "text" else ("text_decoder",)
    out += [Block(kind="embedding", weights=embedding(f"{side}.embed_tokens", vocab, width)) for side in sides]
    return out + output_head("lm_head", width, vocab)


def _text_stack(config: Config, side: str, layers: tuple[Layer, ...]) -> list[Block]:
    """Layers with a norm before each block, and one after the last."""
    width, encoder = config.integer("hidden_size"), side == "encoder"
    part = Part.ENCODER if encoder else Part.LANGUAGE
    return [
        *_TEXT.layers(layers, width, config.integer(f"{side}_ffn_dim"), part),
        Block(kind="norm", weights=layer_norm(f"text_{side}.layer_norm", width), part=part),
        *(() if encoder else _TEXT.cross_attention(layers, width)),
    ]


def _speecht5(config: Config, top: Config, reading: Reading, kind: str) -> list[Block] | None:
    """SpeechT5: wav2vec's front, one table of relative positions for all encoder layers, computed positions elsewhere."""
    if not architecture(config).endswith("ForSpeechToText"):
        return None
    width, vocab, path = config.integer("hidden_size"), config.integer("vocab_size"), "encoder.prenet"
    front = wav2vec2_front(config, width, f"{path}.feature_encoder", f"{path}.feature_projection", path)
    front += masked_span(config, width, path) + layer_norm("encoder.wrapped_encoder.layer_norm", width)
    heads, rows = config.integer("encoder_attention_heads"), 2 * config.integer("encoder_max_relative_position")
    front += embedding("encoder.wrapped_encoder.embed_positions.pe_k", rows, max(1, width // heads))
    out = [
        Block(kind="convolution", weights=front, part=Part.ENCODER),
        Block(kind="embedding", weights=embedding("decoder.prenet.embed_tokens", vocab, width)),
    ]
    decoder = Plain(mlp=("feed_forward.intermediate_dense", "feed_forward.output_dense"))
    encoder = replace(decoder, own="attention")
    out += encoder.layers(encoder_layers(config), width, config.integer("encoder_ffn_dim"), Part.ENCODER)
    out += decoder.layers(reading.layers, width, config.integer("decoder_ffn_dim"))
    out += decoder.cross_attention(reading.layers, width)
    return out if tied_head(config, top) else out + output_head("text_decoder_postnet.lm_head", width, vocab)


def _moonshine(config: Config, top: Config, reading: Reading, kind: str) -> list[Block]:
    """Moonshine: three convolutions over the samples themselves; the decoder's MLP is gated, norms have no shift."""
    width, inner, vocab = config.integer("hidden_size"), config.integer("intermediate_size"), config.integer("vocab_size")
    front = convolution("encoder.conv1", width, 127) + convolution("encoder.conv2", 2 * width, 7, inputs=width, bias=True)
    front += convolution("encoder.conv3", width, 3, inputs=2 * width, bias=True) + layer_norm("encoder.groupnorm", width)
    biased = "qkv" if config.flag("attention_bias") else ""
    before = ("input_layernorm", "post_attention_layernorm")

    def encode(kinds: Layer) -> Iterator[Named]:
        yield "attention", projections("self_attn", width, own_dims(kinds, width), biased=biased)
        yield "mlp", plain_mlp(width, inner)
        yield "norm", _norms(before, width)

    def decode(kinds: Layer) -> Iterator[Named]:
        yield "cross_attention", projections("encoder_attn", width, cross_dims(kinds, width), biased=biased)
        yield "attention", projections("self_attn", width, own_dims(kinds, width), biased=biased)
        yield "mlp", linear("mlp.fc1", width, 2 * inner, bias=True) + linear("mlp.fc2", inner, width, bias=True)
        yield "norm", _norms((*before, "final_layernorm"), width)

    out = [
        Block(kind="convolution", weights=front + rms_norm("encoder.layer_norm", width), part=Part.ENCODER),
        *repeated(_moonshine_keys("encoder").layers(config, cross=False), encode, Part.ENCODER),
        *repeated(reading.layers, decode),
        Block(kind="embedding", weights=embedding("decoder.embed_tokens", vocab, width) + rms_norm("decoder.norm", width)),
    ]
    return out if tied_head(config, top) else out + output_head("proj_out", width, vocab)


def _norms(names: tuple[str, ...], width: int) -> Weighed:
    return tuple(weight for name in names for weight in rms_norm(name, width))


def _moonshine_keys(side: str) -> Keys:
    return Keys(
        count=(f"{side}_num_hidden_layers",),
        heads=f"{side}_num_attention_heads",
        kv_heads=f"{side}_num_key_value_heads",
    )


def _transcriber(config: Config, top: Config, reading: Reading, kind: str) -> list[Block]:
    """Canary and Cohere's ASR: a plain decoder over a Parakeet encoder. The head has a bias, tied or not."""
    encoder, decoder = needed(config, "encoder_config"), reading.config
    width, vocab = decoder.integer("hidden_size"), decoder.integer("vocab_size")
    biased = "qkvo" if decoder.flag("attention_bias") else ""
    outside = embedding("decoder.embed_tokens", vocab, width)
    outside += layer_norm("decoder.norm", width) + layer_norm("decoder.embedding_layernorm", width)
    if decoder is config:  # Cohere's
        outside += embedding("decoder.pos_emb", decoder.integer("max_position_embeddings"), width)
        outside += linear("decoder.proj", encoder.integer("hidden_size"), width, bias=True)

    def layer(kinds: Layer) -> Iterator[Named]:
        yield "attention", projections("self_attn", width, own_dims(kinds, width), biased=biased)
        yield "cross_attention", projections("encoder_attn", width, cross_dims(kinds, width), biased=biased)
        yield "mlp", plain_mlp(width, decoder.integer("intermediate_size"))
        names = ("input_layernorm", "post_attention_layernorm", "final_layernorm")
        yield "norm", tuple(weight for name in names for weight in layer_norm(name, width))

    return [
        *parakeet(encoder, "encoder"),
        Block(kind="embedding", weights=outside),
        *repeated(reading.layers, layer),
        *output_head("proj_out", width, vocab, tied=tied_head(decoder, top), bias=True),
    ]


SEAMLESS: Final = EncoderDecoder(keys=BART_KEYS, weights=_seamless, forms=("both", "text"))
SPEECHT5: Final = EncoderDecoder(keys=BART_KEYS, weights=_speecht5)
MOONSHINE: Final = EncoderDecoder(keys=_moonshine_keys("decoder"), weights=_moonshine)
DECODER: Final = EncoderDecoder()
"""Of Canary, and all of Moonshine's streaming model."""
CANARY: Final = EncoderDecoder(weights=_transcriber, part="decoder_config")
COHERE: Final = EncoderDecoder(weights=_transcriber)
