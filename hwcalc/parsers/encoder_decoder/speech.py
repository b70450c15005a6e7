"""Models that write down speech: SeamlessM4T, SpeechT5, Moonshine, Canary and Cohere's ASR.

Mirrors ``modeling_*.py`` of those names in transformers 5.23. Classes of SeamlessM4T and SpeechT5 that speak have vocoders,
which nobody weighs.
"""

from __future__ import annotations

from typing import Final

from hwcalc.formulas import Layer
from hwcalc.formulas.frozen import replace
from hwcalc.formulas.weights import Block, Part, embedding, layer_norm, linear, plain_mlp, rms_norm
from hwcalc.formulas.weights_state import convolution
from hwcalc.parsers.blocks import Weighed, tied_head
from hwcalc.parsers.classes import architecture
from hwcalc.parsers.config import Config
from hwcalc.parsers.encoder_decoder.bart import BART_KEYS
from hwcalc.parsers.encoder_decoder.common import EncoderDecoder, Keys, encoder_layers
from hwcalc.parsers.encoder_decoder.sound import conformer, masked_span, parakeet, wav2vec2_front
from hwcalc.parsers.projections import KVQO, Attends, output_head, stack
from hwcalc.parsers.reading import Reading
from hwcalc.parsers.towers.build import needed

__all__ = ["CANARY", "COHERE", "DECODER", "MOONSHINE", "SEAMLESS", "SPEECHT5"]


def _with_norm(path: str, name: str, width: int, *, cross: bool = False) -> Attends:
    return Attends(path=path, names=KVQO, cross=cross, biased="kvqo", norms=layer_norm(f"{name}_layer_norm", width))


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
    mlp = plain_mlp(width, config.integer(f"{side}_ffn_dim"), path="ffn") + layer_norm("ffn_layer_norm", width)
    cross = _with_norm("cross_attention", "cross_attention", width, cross=True)
    return [
        *stack(layers, width, part, attention=_with_norm("self_attn", "self_attn", width), mlp=mlp),
        Block(kind="norm", weights=layer_norm(f"text_{side}.layer_norm", width), part=part),
        *(() if encoder else stack(layers, width, cross_attention=cross)),
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
    names = ("intermediate_dense", "output_dense")
    for side, layers, path in (("encoder", encoder_layers(config), "attention"), ("decoder", reading.layers, "self_attn")):
        mlp = plain_mlp(width, config.integer(f"{side}_ffn_dim"), path="feed_forward", names=names)
        part = Part.ENCODER if side == "encoder" else Part.LANGUAGE
        own = _with_norm(path, "self_attn", width)
        out += stack(layers, width, part, attention=own, mlp=mlp + layer_norm("final_layer_norm", width))
    out += stack(reading.layers, width, cross_attention=_with_norm("encoder_attn", "encoder_attn", width, cross=True))
    return out if tied_head(config, top) else out + output_head("text_decoder_postnet.lm_head", width, vocab)


def _moonshine(config: Config, top: Config, reading: Reading, kind: str) -> list[Block]:
    """Moonshine: three convolutions over the samples themselves; the decoder's MLP is gated, norms have no shift."""
    width, inner, vocab = config.integer("hidden_size"), config.integer("intermediate_size"), config.integer("vocab_size")
    front = convolution("encoder.conv1", width, 127) + convolution("encoder.conv2", 2 * width, 7, inputs=width, bias=True)
    front += convolution("encoder.conv3", width, 3, inputs=2 * width, bias=True) + layer_norm("encoder.groupnorm", width)
    own = Attends(path="self_attn", biased="qkv" if config.flag("attention_bias") else "")
    before = ("input_layernorm", "post_attention_layernorm")
    gate = linear("mlp.fc1", width, 2 * inner, bias=True) + linear("mlp.fc2", inner, width, bias=True)
    encoder = _moonshine_keys("encoder").layers(config, cross=False)
    out = [
        Block(kind="convolution", weights=front + rms_norm("encoder.layer_norm", width), part=Part.ENCODER),
        *stack(encoder, width, Part.ENCODER, attention=own, mlp=plain_mlp(width, inner), norm=_norms(before, width)),
        *stack(
            reading.layers,
            width,
            cross_attention=replace(own, path="encoder_attn", cross=True),
            attention=own,
            mlp=gate,
            norm=_norms((*before, "final_layernorm"), width),
        ),
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
    outside = embedding("decoder.embed_tokens", vocab, width)
    outside += layer_norm("decoder.norm", width) + layer_norm("decoder.embedding_layernorm", width)
    if decoder is config:  # Cohere's
        outside += embedding("decoder.pos_emb", decoder.integer("max_position_embeddings"), width)
        outside += linear("decoder.proj", encoder.integer("hidden_size"), width, bias=True)
    heard = parakeet(encoder, "encoder")
    own = Attends(path="self_attn", biased="qkvo" if decoder.flag("attention_bias") else "")
    norms = ("input_layernorm", "post_attention_layernorm", "final_layernorm")
    return [
        *heard,
        Block(kind="embedding", weights=outside),
        *stack(
            reading.layers,
            width,
            attention=own,
            cross_attention=replace(own, path="encoder_attn", cross=True),
            mlp=plain_mlp(width, decoder.integer("intermediate_size")),
            norm=tuple(weight for name in norms for weight in layer_norm(name, width)),
        ),
        *output_head("proj_out", width, vocab, tied=tied_head(decoder, top), bias=True),
    ]


SEAMLESS: Final = EncoderDecoder(keys=BART_KEYS, weights=_seamless, forms=("both", "text"))
SPEECHT5: Final = EncoderDecoder(keys=BART_KEYS, weights=_speecht5)
MOONSHINE: Final = EncoderDecoder(keys=_moonshine_keys("decoder"), weights=_moonshine)
DECODER: Final = EncoderDecoder()
"""Of Canary, and all of Moonshine's streaming model."""
CANARY: Final = EncoderDecoder(weights=_transcriber, part="decoder_config")
COHERE: Final = EncoderDecoder(weights=_transcriber)
