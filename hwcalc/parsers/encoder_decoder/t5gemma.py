"""T5Gemma: two stacks of Gemma 2 or 3. The second one attends to the output of the first.

Mirrors ``modeling_t5gemma.py`` and ``modeling_t5gemma2.py`` of transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hwcalc.formulas import CrossAttention, Layer
from hwcalc.formulas.weights import Block, Part, WeightRole, embedding, gated_mlp, parameter, rms_norm
from hwcalc.parsers.blocks import tied_head
from hwcalc.parsers.config import Config
from hwcalc.parsers.encoder_decoder.common import EncoderDecoder
from hwcalc.parsers.projections import Attends, output_head, stack
from hwcalc.parsers.reading import (
    Reading,
    attention_dims,
    build_layers,
    every,
    full_layer,
    read_layer_types,
    windowed_layer,
)
from hwcalc.parsers.towers.build import UnknownTowerError, needed, tower

__all__ = ["T5GEMMA", "T5GEMMA2", "T5GEMMA2_DECODER", "T5GEMMA_MODULE"]


def _windowed(period: int) -> Callable[[Config, bool], tuple[Layer, ...]]:
    """Layers of Gemma with a window, except the last of each period. Cross attention reads all tokens of the encoder."""

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


def _table(config: Config, path: str, part: Part) -> Block:
    table = embedding(f"{path}.embed_tokens", config.integer("vocab_size"), config.integer("hidden_size"))
    return Block(kind="embedding", weights=table, part=part)


def _encoder(config: Config, path: str, *, head_norms: bool = False) -> list[Block]:
    layers: tuple[Layer, ...] = ((attention_dims(config).full(),),) * config.number_of_layers()
    return _side(config, layers, path, Part.ENCODER, head_norms=head_norms)


def _side(
    config: Config, layers: tuple[Layer, ...], path: str, part: Part, *, source: int | None = None, head_norms: bool = False
) -> list[Block]:
    """Layers of Gemma 2 or 3 with four norms each, and the final norm.

    With ``source``, each layer also has cross attention to an encoder of that width, and two norms around it.
    """
    width, biased = config.integer("hidden_size"), "qkvo" if config.flag("attention_bias") else ""
    names = ("self_attn", "feedforward", *(("cross_attn",) if source is not None else ()))
    own = Attends(path="self_attn", biased=biased, head_norms=head_norms)
    mlp = gated_mlp(width, config.integer("intermediate_size"))
    norms = tuple(weight for name in names for when in ("pre", "post") for weight in rms_norm(f"{when}_{name}_layernorm", width))
    out = stack(layers, width, part, attention=own, mlp=mlp, norm=norms)
    out.append(Block(kind="norm", weights=rms_norm(f"{path}.norm", width), part=part))
    if source is not None:
        cross = Attends(path="cross_attn", cross=True, source=source, biased=biased)
        out += stack(layers, width, part, cross_attention=cross)
    return out


def _t5gemma(config: Config, top: Config, reading: Reading, kind: str) -> list[Block]:
    """Each side has its own embeddings. The decoder's layers attend to the encoder as well."""
    encoder, decoder = needed(config, "encoder"), reading.config
    out = [_table(encoder, "encoder", Part.ENCODER), *_encoder(encoder, "encoder")]
    if kind == "encoder":
        return out
    out.append(_table(decoder, "decoder", Part.LANGUAGE))
    out += _side(decoder, reading.layers, "decoder", Part.LANGUAGE, source=encoder.integer("hidden_size"))
    if kind == "both" and not tied_head(decoder, top):
        out += output_head("lm_head.out_proj", decoder.integer("hidden_size"), decoder.integer("vocab_size"))
    return out


def _t5gemma2(config: Config, top: Config, reading: Reading, kind: str) -> list[Block] | None:
    """One table for all, an encoder that reads images, and a decoder with the same matrices for self and cross attention."""
    encoder = needed(config, "encoder")
    text, vision = encoder.part("text_config"), needed(encoder, "vision_config")
    if text is None:
        return None
    width, path = text.integer("hidden_size"), "encoder.text_model"
    out = [
        _table(text, path, Part.LANGUAGE),
        Block(kind="embedding", weights=parameter(f"{path}.embed_tokens.eoi_embedding", width)),
        *_encoder(text, path, head_norms=True),
    ]
    try:
        out += tower(vision, "encoder.vision_tower")
    except UnknownTowerError:
        return None
    seen, path = vision.integer("hidden_size"), "encoder.multi_modal_projector"
    projector = parameter(f"{path}.mm_input_projection_weight", seen, width, role=WeightRole.LINEAR)
    out.append(Block(kind="projector", weights=projector + rms_norm(f"{path}.mm_soft_emb_norm", seen), part=Part.PROJECTOR))
    out += _side(reading.config, reading.layers, "decoder", Part.LANGUAGE, head_norms=True)
    return out if tied_head(reading.config, top) else None


T5GEMMA_MODULE: Final = EncoderDecoder(special=_windowed(2))
T5GEMMA: Final = EncoderDecoder(special=_windowed(2), weights=_t5gemma, forms=("both", "body", "encoder"), part="decoder")
T5GEMMA2_DECODER: Final = EncoderDecoder(special=_windowed(6))
T5GEMMA2: Final = EncoderDecoder(special=_windowed(6), weights=_t5gemma2, forms=("both", "body"), part="decoder")
