"""Models that read images aloud by a decoder of text: BLIP, Florence-2 and PP-FormulaNet.

Mirrors ``modeling_*.py`` of those names in transformers 5.23.
"""

from __future__ import annotations

from typing import Final

from hwcalc.formulas.weights import Block, Part, embedding, layer_norm, linear, parameter
from hwcalc.parsers.bert import BLIP_TEXT as BLIP_BERT
from hwcalc.parsers.config import Config
from hwcalc.parsers.encoder_decoder.bart import BART, BART_KEYS, FORMULANET
from hwcalc.parsers.encoder_decoder.common import EncoderDecoder, Keys
from hwcalc.parsers.encoder_decoder.images import davit, image_tokens, sam_layers, vision_layers
from hwcalc.parsers.reading import Reading
from hwcalc.parsers.towers.build import Style, conv, grid, needed, patch_conv

__all__ = ["BLIP", "BLIP_TEXT", "FLORENCE2", "PP_FORMULANET", "PP_FORMULANET_TEXT"]


def _blip(config: Config, top: Config, reading: Reading, kind: str) -> list[Block]:
    """BLIP's captioner: BERT's decoder over a vision transformer with fused queries, keys and values."""
    vision = needed(config, "vision_config")
    width, path = vision.integer("hidden_size"), "vision_model"
    outside = parameter(f"{path}.embeddings.class_embedding", 1, 1, width)
    outside += parameter(f"{path}.embeddings.position_embedding", 1, grid(vision, 1), width)
    outside += patch_conv(vision, f"{path}.embeddings.patch_embedding", width) + layer_norm(f"{path}.post_layernorm", width)
    return [
        Block(kind="patches", weights=outside, part=Part.VISION),
        vision_layers(vision, Style(names=("qkv", "projection")), f"{path}.encoder.layers"),
        *BLIP_BERT.blocks(reading.config, top, reading.layers, headed=True, cross=True, source=width),
    ]


def _florence(config: Config, top: Config, reading: Reading, kind: str) -> list[Block]:
    """Florence-2: BART over DaViT, whose image positions are learned by row and by column."""
    vision = needed(config, "vision_config")
    stages = davit(vision, "vision_tower")
    last, hidden, path = (vision.integers("embed_dim") or [0])[-1], vision.integer("projection_dim"), "multi_modal_projector"
    projector = linear(f"{path}.image_projection", last, hidden) + layer_norm(f"{path}.image_proj_norm", hidden)
    rows = vision.integer("max_position_embeddings")
    for name, width in (("row", last // 2), ("column", last - last // 2)):
        projector += embedding(f"{path}.image_position_embed.{name}_embeddings", rows, width)
    between = Block(kind="projector", weights=projector, part=Part.PROJECTOR)
    return [*stages, between, *BART.blocks(reading.config, top, reading, "both")]


def _formulanet(config: Config, top: Config, reading: Reading, kind: str) -> list[Block]:
    """PP-FormulaNet: BART's decoder over SAM's encoder and two convolutions."""
    vision = needed(config, "vision_config")
    width, path, side = vision.integer("hidden_size"), "encoder", vision.integer("image_size") // vision.integer("patch_size")
    outside = patch_conv(vision, f"{path}.patch_embed.projection", width)
    if vision.flag("use_abs_pos"):
        outside += parameter(f"{path}.pos_embed", 1, side, side, width)
    channels = vision.integer("output_channels")
    outside += conv(f"{path}.neck.conv1", channels, width, 1, 1, bias=False) + layer_norm(f"{path}.neck.layer_norm1", channels)
    outside += conv(f"{path}.neck.conv2", channels, channels, 3, 3, bias=False) + layer_norm(f"{path}.neck.layer_norm2", channels)
    first, middle = vision.integer("post_conv_in_channels"), vision.integer("post_conv_mid_channels")
    last, base = vision.integer("post_conv_out_channels"), f"{path}.multi_modal_projector"
    projector = conv(f"{base}.conv1", middle, first, 3, 3, bias=False) + conv(f"{base}.conv2", last, middle, 3, 3, bias=False)
    projector += linear(f"{base}.linear_1", last, last, bias=True)
    projector += linear(f"{base}.linear_2", last, vision.integer("decoder_hidden_size"), bias=True)
    return [
        Block(kind="patches", weights=outside, part=Part.VISION),
        *sam_layers(vision, path),
        Block(kind="projector", weights=projector, part=Part.PROJECTOR),
        *FORMULANET.blocks(reading.config, top, reading, "decoder"),
    ]


def _tokens(config: Config) -> int | None:
    return image_tokens(config.sub("vision_config"))


BLIP_TEXT: Final = EncoderDecoder(keys=Keys())
BLIP: Final = EncoderDecoder(keys=Keys(), weights=_blip, part="text_config", tokens=_tokens)
FLORENCE2: Final = EncoderDecoder(keys=BART_KEYS, weights=_florence, part="text_config")
PP_FORMULANET_TEXT: Final = EncoderDecoder(keys=BART_KEYS)
PP_FORMULANET: Final = EncoderDecoder(keys=BART_KEYS, weights=_formulanet, part="text_config", tokens=_tokens)
