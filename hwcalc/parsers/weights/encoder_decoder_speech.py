"""SpeechT5 and SeamlessM4T, as far as they write text: the classes for speech to text and text to text.

Mirrors ``modeling_*.py`` of those names in transformers 5.23. Their other classes have vocoders that nobody weighs.
"""

from __future__ import annotations

from typing import Final

from hwcalc.formulas.weights import Block, Part, Weight, WeightRole, embedding, layer_norm, linear, parameter, plain_mlp
from hwcalc.parsers.blocks import tied_head
from hwcalc.parsers.config import MAX_LAYERS, Config
from hwcalc.parsers.weights.speech import conformer, feature_extractor, positional_convolution

__all__ = ["blocks"]

_ENCODER: Final = Part.ENCODER


def blocks(config: Config, top: Config) -> tuple[Block, ...] | None:
    """All blocks, or ``None`` for a class that speaks."""
    names = config.raw.get("architectures")
    first = names[0] if isinstance(names, (list, tuple)) and names and isinstance(names[0], str) else ""
    if config.model_type == "speecht5":
        return _speecht5(config, top) if first.endswith("ForSpeechToText") else None
    return _seamless(config, top, first)


def _attention(path: str, width: int) -> tuple[Weight, ...]:
    names = ("k_proj", "v_proj", "q_proj", "out_proj")
    return tuple(weight for name in names for weight in linear(f"{path}.{name}", width, width, bias=True))


def _seamless(config: Config, top: Config, architecture: str) -> tuple[Block, ...] | None:
    """One table for all; NLLB's text encoder or a conformer; NLLB's decoder."""
    width, vocab = config.integer("hidden_size"), config.integer("vocab_size")
    out = [Block(kind="embedding", weights=embedding("shared", vocab, width))]
    if architecture.endswith("ForTextToText"):
        out += _text_stack(config, width, "encoder")
    elif architecture.endswith("ForSpeechToText"):
        speech = conformer(config, "speech_encoder")
        if speech is None:
            return None
        out += speech
    else:
        return None
    out += _text_stack(config, width, "decoder")
    if not tied_head(config, top):
        sides = ("text_encoder", "text_decoder") if architecture.endswith("ForTextToText") else ("text_decoder",)
        out += [Block(kind="embedding", weights=embedding(f"{side}.embed_tokens", vocab, width)) for side in sides]
        out.append(Block(kind="head", weights=linear("lm_head", width, vocab, role=WeightRole.HEAD)))
    return tuple(out)


def _text_stack(config: Config, width: int, side: str) -> list[Block]:
    """Layers with a norm before each block, and one after the last."""
    part = _ENCODER if side == "encoder" else Part.LANGUAGE
    count = config.integer(f"{side}_layers", maximum=MAX_LAYERS)
    own = _attention("self_attn", width) + layer_norm("self_attn_layer_norm", width)
    mlp = plain_mlp(width, config.integer(f"{side}_ffn_dim"), path="ffn") + layer_norm("ffn_layer_norm", width)
    out = [
        Block(kind="attention", weights=own, part=part, count=count),
        Block(kind="mlp", weights=mlp, part=part, count=count),
        Block(kind="norm", weights=layer_norm(f"text_{side}.layer_norm", width), part=part),
    ]
    if side == "decoder":
        cross = _attention("cross_attention", width) + layer_norm("cross_attention_layer_norm", width)
        out.append(Block(kind="cross_attention", weights=cross, count=count))
    return out


def _speecht5(config: Config, top: Config) -> tuple[Block, ...]:
    """SpeechT5: wav2vec's front, one table of relative positions for all encoder layers, computed positions elsewhere."""
    width, vocab = config.integer("hidden_size"), config.integer("vocab_size")
    last = (config.integers("conv_dim", minimum=1) or [1])[-1]
    path = "encoder.prenet"
    front = feature_extractor(config, f"{path}.feature_encoder") + layer_norm(f"{path}.feature_projection.layer_norm", last)
    front += linear(f"{path}.feature_projection.projection", last, width, bias=True)
    front += positional_convolution(config, width, f"{path}.pos_conv_embed")
    # The class masks spans in training unless both are set to zero.
    if config.number("mask_time_prob", 0.05) > 0 or config.number("mask_feature_prob", 0.0) > 0:
        front += parameter(f"{path}.masked_spec_embed", width)
    front += layer_norm("encoder.wrapped_encoder.layer_norm", width)
    heads = config.integer("encoder_attention_heads")
    rows = 2 * config.integer("encoder_max_relative_position")
    front += embedding("encoder.wrapped_encoder.embed_positions.pe_k", rows, max(1, width // heads))
    out = [
        Block(kind="convolution", weights=front, part=_ENCODER),
        Block(kind="embedding", weights=embedding("decoder.prenet.embed_tokens", vocab, width)),
    ]
    for side, part in (("encoder", _ENCODER), ("decoder", Part.LANGUAGE)):
        count = config.integer(f"{side}_layers", maximum=MAX_LAYERS)
        names = ("intermediate_dense", "output_dense")
        mlp = plain_mlp(width, config.integer(f"{side}_ffn_dim"), path="feed_forward", names=names)
        own = _attention("attention" if side == "encoder" else "self_attn", width) + layer_norm("self_attn_layer_norm", width)
        out += [
            Block(kind="attention", weights=own, part=part, count=count),
            Block(kind="mlp", weights=mlp + layer_norm("final_layer_norm", width), part=part, count=count),
        ]
        if side == "decoder":
            cross = _attention("encoder_attn", width) + layer_norm("encoder_attn_layer_norm", width)
            out.append(Block(kind="cross_attention", weights=cross, count=count))
    if not tied_head(config, top):
        head = linear("text_decoder_postnet.lm_head", width, vocab, role=WeightRole.HEAD)
        out.append(Block(kind="head", weights=head))
    return tuple(out)
