"""A decoder of text behind an encoder of another make: the three pair classes, BLIP, Florence-2 and PP-FormulaNet.

Mirrors ``modeling_*.py`` of those names in transformers 5.23. A pair of which one side is of a type that nobody weighs is not
weighed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hwcalc.formulas.weights import Block, Part, Weight, WeightRole, embedding, layer_norm, linear, parameter
from hwcalc.parsers.config import MAX_LAYERS, Config
from hwcalc.parsers.weights.bert import BERT_TYPES, bert_blocks
from hwcalc.parsers.weights.decoder_gpt import blocks as gpt_blocks
from hwcalc.parsers.weights.encoder_decoder import BART_TYPES, bart_blocks, form
from hwcalc.parsers.weights.speech import feature_extractor, positional_convolution
from hwcalc.parsers.weights.towers import Style, conv, encoder_layer, grid, patch_conv

__all__ = ["blocks"]

_VISION: Final = Part.VISION


def blocks(config: Config, top: Config) -> tuple[Block, ...] | None:
    """All blocks of one of the models above, or ``None`` where a side or the class is of another make."""
    found = _RULES[config.model_type or ""](config, top)
    return None if found is None else tuple(found)


def _pair(config: Config, top: Config) -> list[Block] | None:
    """Any encoder with any decoder, and a matrix between them where their widths differ."""
    encoder = config.part("encoder")
    decoder = config.sub("decoder") or config.retyped(config.nested_type("decoder"))
    if encoder is None:
        return None
    first = _ENCODERS.get(encoder.model_type or "")
    if first is None and encoder.model_type not in BERT_TYPES:
        return None
    seen = _decoder(decoder)
    found = first(encoder) if first is not None else _bert_encoder(encoder)
    if seen is None or found is None:
        return None
    width, wide = decoder.integer("hidden_size"), encoder.integer("hidden_size")
    if wide != width and decoder.maybe_integer("cross_attention_hidden_size") is None:
        between = linear("enc_to_dec_proj", wide, width, bias=True)
        found = [*found, Block(kind="projector", weights=between, part=Part.PROJECTOR)]
    return [*found, *seen]


def _decoder(decoder: Config) -> tuple[Block, ...] | None:
    if decoder.model_type in BERT_TYPES:
        cross = decoder.flag("is_decoder") and decoder.flag("add_cross_attention")
        return bert_blocks(decoder, decoder, headed=True, cross=cross)
    if decoder.model_type in BART_TYPES:
        return bart_blocks(decoder, decoder, "decoder")
    if decoder.model_type == "gpt2":
        return gpt_blocks(decoder, decoder)
    return None


def _bert_encoder(encoder: Config) -> list[Block]:
    return list(bert_blocks(encoder, encoder, headed=False, cross=False, part=Part.ENCODER, path="encoder."))


def _vit(vision: Config) -> list[Block] | None:
    """A vision transformer with its class token and pooler."""
    width, path = vision.integer("hidden_size"), "encoder"
    style = Style(
        attention="attention",
        names=("q_proj", "k_proj", "v_proj", "o_proj"),
        bias=("qkv_bias", "qkv_bias", "qkv_bias", True),
        norms=("layernorm_before", "layernorm_after"),
    )
    outside = parameter(f"{path}.embeddings.cls_token", 1, 1, width)
    outside += parameter(f"{path}.embeddings.position_embeddings", 1, grid(vision, 1), width)
    outside += patch_conv(vision, f"{path}.embeddings.patch_embeddings.projection", width) + layer_norm(
        f"{path}.layernorm", width
    )
    pooled = vision.maybe_integer("pooler_output_size") or width
    return [
        Block(kind="patches", weights=outside + linear(f"{path}.pooler.dense", width, pooled, bias=True), part=_VISION),
        _layers(vision, encoder_layer(vision, style, f"{path}.layers", width, vision.integer("intermediate_size"))),
    ]


def _layers(vision: Config, weights: tuple[Weight, ...], part: Part = _VISION) -> Block:
    return Block(kind="encoder_layer", weights=weights, part=part, count=vision.number_of_layers())


def _wav2vec2(audio: Config) -> list[Block] | None:
    """wav2vec 2.0 without adapters, its mask embedding included unless masking is set to zero."""
    if audio.flag("add_adapter") or audio.get("adapter_attn_dim") is not None:
        return None
    width, path = audio.integer("hidden_size"), "encoder"
    last = (audio.integers("conv_dim", minimum=1) or [1])[-1]
    front = feature_extractor(audio, f"{path}.feature_extractor") + layer_norm(f"{path}.feature_projection.layer_norm", last)
    front += linear(f"{path}.feature_projection.projection", last, width, bias=True)
    front += positional_convolution(audio, width, f"{path}.encoder.pos_conv_embed")
    front += layer_norm(f"{path}.encoder.layer_norm", width)
    if audio.number("mask_time_prob", 0.05) > 0 or audio.number("mask_feature_prob", 0.0) > 0:
        front += parameter(f"{path}.masked_spec_embed", width)
    style = Style(
        attention="attention",
        mlp=("feed_forward.intermediate_dense", "feed_forward.output_dense"),
        norms=("layer_norm", "final_layer_norm"),
    )
    layer = encoder_layer(audio, style, f"{path}.encoder.layers", width, audio.integer("intermediate_size"))
    return [Block(kind="convolution", weights=front, part=Part.AUDIO), _layers(audio, layer, Part.AUDIO)]


def _blip(config: Config, top: Config) -> list[Block] | None:
    """BLIP's captioner: BERT's decoder over a vision transformer with fused queries, keys and values."""
    vision = config.part("vision_config")
    text = config.sub("text_config", "blip_text_model") or config.retyped("blip_text_model")
    if vision is None or form(config) != "both" or text.model_type != "blip_text_model":
        return None
    width, path = vision.integer("hidden_size"), "vision_model"
    outside = parameter(f"{path}.embeddings.class_embedding", 1, 1, width)
    outside += parameter(f"{path}.embeddings.position_embedding", 1, grid(vision, 1), width)
    outside += patch_conv(vision, f"{path}.embeddings.patch_embedding", width) + layer_norm(f"{path}.post_layernorm", width)
    style = Style(names=("qkv", "projection"))
    return [
        Block(kind="patches", weights=outside, part=_VISION),
        _layers(vision, encoder_layer(vision, style, f"{path}.encoder.layers", width, vision.integer("intermediate_size"))),
        *bert_blocks(text, top, headed=True, cross=True, source=width),
    ]


def _florence(config: Config, top: Config) -> list[Block] | None:
    """Florence-2: BART over DaViT, whose image positions are learned by row and by column."""
    vision = config.part("vision_config")
    text = config.sub("text_config", "bart") or config.retyped("bart")
    if text.model_type != "bart":
        # The model's own files call it florence2_language.
        text = text.retyped("bart")
    if vision is None or form(config) != "both":
        return None
    widths, hidden = vision.integers("embed_dim", minimum=1) or [], vision.integer("projection_dim")
    stages = _davit(vision, widths)
    last = widths[-1] if widths else 0
    path = "multi_modal_projector"
    projector = linear(f"{path}.image_projection", last, hidden) + layer_norm(f"{path}.image_proj_norm", hidden)
    rows = vision.integer("max_position_embeddings")
    for name, width in (("row", last // 2), ("column", last - last // 2)):
        projector += embedding(f"{path}.image_position_embed.{name}_embeddings", rows, width)
    return [*stages, Block(kind="projector", weights=projector, part=Part.PROJECTOR), *bart_blocks(text, top, "both")]


def _davit(vision: Config, widths: list[int]) -> list[Block]:
    """Four stages: a convolution down, then pairs of blocks that attend over windows and over channels."""
    count = len(widths)
    kernels, depths = vision.integers("patch_size", length=count, minimum=1), vision.integers("depths", length=count)
    before = vision.sequence("patch_prenorm", length=count)
    if not widths or kernels is None or depths is None or before is None:
        raise vision.missing("embed_dim")
    out, inputs = [], vision.integer("in_channels")
    for i, (width, kernel, depth) in enumerate(zip(widths, kernels, depths, strict=True)):
        path = f"vision_tower.convs.{i}"
        down = conv(f"{path}.conv", width, inputs, kernel, kernel)
        down += layer_norm(f"{path}.norm", inputs if before[i] else width)
        out.append(Block(kind="patches", weights=down, part=_VISION))
        block: tuple[Weight, ...] = ()
        for name, attention in (("spatial_block", "window_attn"), ("channel_block", "channel_attn")):
            base = f"vision_tower.blocks.{i}.{name}"
            block += linear(f"{base}.{attention}.qkv", width, 3 * width, bias=vision.flag("qkv_bias"))
            block += linear(f"{base}.{attention}.proj", width, width, bias=True)
            inner = vision.checked_integer("mlp_ratio", int(width * vision.number("mlp_ratio", 4.0)))
            block += linear(f"{base}.ffn.fc1", width, inner, bias=True) + linear(f"{base}.ffn.fc2", inner, width, bias=True)
            for number in (1, 2):
                block += conv(f"{base}.conv{number}", width, 1, 3, 3) + layer_norm(f"{base}.norm{number}", width)
        out.append(Block(kind="encoder_layer", weights=block, part=_VISION, count=min(depth, MAX_LAYERS)))
        inputs = width
    return [block for block in out if block.count]


def _formulanet(config: Config, top: Config) -> list[Block] | None:
    """PP-FormulaNet: BART's decoder over SAM's encoder and two convolutions."""
    vision = config.part("vision_config")
    text = config.sub("text_config", "pp_formulanet_text") or config.retyped("pp_formulanet_text")
    if vision is None or form(config) != "both" or text.model_type != "pp_formulanet_text":
        return None
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
        Block(kind="patches", weights=outside, part=_VISION),
        *_sam_layers(vision, width, side, path),
        Block(kind="projector", weights=projector, part=Part.PROJECTOR),
        *bart_blocks(text, top, "decoder"),
    ]


def _sam_layers(vision: Config, width: int, side: int, path: str) -> list[Block]:
    """Layers that attend over windows and a few that attend to all: they differ in their tables of relative positions."""
    style = Style(attention="attn", names=("qkv", "proj"), bias=("qkv_bias", True, True, True), mlp=("mlp.lin1", "mlp.lin2"))
    plain = encoder_layer(vision, style, f"{path}.layers", width, vision.integer("mlp_dim"))
    count, size = vision.number_of_layers(), max(1, width // vision.integer("num_attention_heads"))
    everywhere = len({index for index in vision.integers("global_attn_indexes") or [] if index < count})
    window = vision.integer("window_size", minimum=0)
    out = []
    for number, rows in ((everywhere, side), (count - everywhere, window or side)):
        tables: tuple[Weight, ...] = ()
        if vision.flag("use_rel_pos"):
            for axis in "hw":
                tables += parameter(f"{path}.layers.attn.rel_pos_{axis}", 2 * rows - 1, size, role=WeightRole.EMBEDDING)
        if number:
            out.append(Block(kind="encoder_layer", weights=plain + tables, part=_VISION, count=number))
    return out


_ENCODERS: Final[dict[str, Callable[[Config], list[Block] | None]]] = {"vit": _vit, "wav2vec2": _wav2vec2}
_RULES: Final[dict[str, Callable[[Config, Config], list[Block] | None]]] = {
    "blip": _blip,
    "encoder-decoder": _pair,
    "florence2": _florence,
    "pp_formulanet": _formulanet,
    "speech-encoder-decoder": _pair,
    "vision-encoder-decoder": _pair,
}
