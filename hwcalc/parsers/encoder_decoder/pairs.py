"""Decoders of text behind an encoder of images (BLIP, Florence-2, PP-FormulaNet), and any encoder with any decoder of text.

Mirrors ``modeling_*.py`` of those names, of ViT and of the three classes for pairs in transformers 5.23. Every layer of the
decoder of a pair gets cross attention to the encoder. Its parameters are not counted if the type of either side has no weights
here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hwcalc.errors import ConfigError, UnknownArchitectureError
from hwcalc.formulas import CrossAttention, FullAttention, SlidingAttention
from hwcalc.formulas.weights import Block, Part, embedding, layer_norm, linear, parameter, plain_mlp
from hwcalc.parsers.bert import BLIP_TEXT as BLIP_BERT
from hwcalc.parsers.bert import Bert
from hwcalc.parsers.blocks import Weighed
from hwcalc.parsers.config import MAX_LAYERS, Config
from hwcalc.parsers.encoder_decoder.bart import BART, BART_KEYS, FORMULANET, Bart, EncoderDecoder, Keys
from hwcalc.parsers.encoder_decoder.sound import wav2vec2
from hwcalc.parsers.reading import Readers, Reading, dims_of
from hwcalc.parsers.registry import find_family
from hwcalc.parsers.towers.build import LLAMA_NAMES, Style, conv, encoder_layer, grid, neck, needed, pair, patch_conv
from hwcalc.parsers.towers.vit import sam_layers
from hwcalc.text import quoted

# Vision transformers, and how many tokens they add to the patches: a class token, and DeiT's distillation token.
_EXTRA_TOKENS: Final = {"beit": 1, "blip_vision_model": 1, "deit": 2, "dinov2": 1, "vit": 1, "vit_mae": 1}
# Hierarchical encoders halve the grid between stages and have no class token.
_HALVING: Final = ("donut-swin", "swin", "swinv2")
_MOST_HALVINGS: Final = 21


def image_tokens(encoder: Config | None) -> int | None:
    """The number of tokens that an encoder of images puts out: one for each patch.

    ``None`` if the number depends on the image, or if the type is unknown. A ViT for 64 x 64 pixels with patches of 32 gives
    four patches and one class token: 5.
    """
    if encoder is None:
        return None
    # No other key of an encoder's config bears on what the decoder keeps.
    encoder.ignore(*encoder.raw)
    kind = encoder.model_type
    if encoder.get("image_size") is None or encoder.get("patch_size") is None:
        return None
    size, patch = pair(encoder, "image_size"), pair(encoder, "patch_size")
    if kind in _EXTRA_TOKENS:
        return (size[0] // patch[0]) * (size[1] // patch[1]) + _EXTRA_TOKENS[kind]
    rows, columns = (-(-size[i] // patch[i]) for i in (0, 1))
    if kind in _HALVING:
        depths = encoder.sequence("depths")
        if not depths:
            return None
        halvings = min(len(depths) - 1, _MOST_HALVINGS)
    elif kind == "pp_formulanet_vision":
        # Two convolutions of stride 2 follow the patches.
        halvings = 2
    else:
        return None
    for _ in range(halvings):
        rows, columns = -(-rows // 2), -(-columns // 2)
    return rows * columns


def _transformer(vision: Config, path: str, style: Style, names: tuple[str, ...], pooler: Weighed = ()) -> tuple[Block, Block]:
    """A vision transformer. ``names`` are those of the class token, the positions, the patches, the norm and the layers."""
    width = vision.integer("hidden_size")
    token, positions, patches, norm, layers = (f"{path}.{name}" for name in names)
    outside = parameter(token, 1, 1, width) + parameter(positions, 1, grid(vision, 1), width)
    outside += patch_conv(vision, patches, width) + layer_norm(norm, width)
    layer = encoder_layer(vision, style, layers, width, vision.integer("intermediate_size"))
    return (
        Block(kind="patches", weights=outside + pooler, part=Part.VISION),
        Block(kind="encoder_layer", weights=layer, part=Part.VISION, count=vision.number_of_layers()),
    )


def vit(vision: Config, path: str) -> tuple[Block, ...]:
    """A vision transformer with class token and pooler."""
    width, base = vision.integer("hidden_size"), "embeddings"
    biases, norms = ("qkv_bias", "qkv_bias", "qkv_bias", True), ("layernorm_before", "layernorm_after")
    style = Style(attention="attention", names=LLAMA_NAMES, bias=biases, norms=norms)
    names = (f"{base}.cls_token", f"{base}.position_embeddings", f"{base}.patch_embeddings.projection", "layernorm", "layers")
    pooler = linear(f"{path}.pooler.dense", width, vision.maybe_integer("pooler_output_size") or width, bias=True)
    return _transformer(vision, path, style, names, pooler)


def _blip(config: Config, top: Config, reading: Reading, kind: str) -> list[Block]:
    """The captioner of BLIP: BERT's decoder after a vision transformer with fused queries, keys and values."""
    vision = needed(config, "vision_config")
    embeddings = tuple(f"embeddings.{name}" for name in ("class_embedding", "position_embedding", "patch_embedding"))
    names = (*embeddings, "post_layernorm", "encoder.layers")
    encoder = _transformer(vision, "vision_model", Style(names=("qkv", "projection")), names)
    source = vision.integer("hidden_size")
    return [*encoder, *BLIP_BERT.blocks(reading.config, top, reading.layers, headed=True, cross=True, source=source)]


def _florence(config: Config, top: Config, reading: Reading, kind: str) -> list[Block]:
    """Florence-2: BART after DaViT. The positions in the image are learned by row and by column."""
    vision = needed(config, "vision_config")
    stages = _davit(vision, "vision_tower")
    last, hidden, path = (vision.integers("embed_dim") or [0])[-1], vision.integer("projection_dim"), "multi_modal_projector"
    projector = linear(f"{path}.image_projection", last, hidden) + layer_norm(f"{path}.image_proj_norm", hidden)
    rows = vision.integer("max_position_embeddings")
    for name, width in (("row", last // 2), ("column", last - last // 2)):
        projector += embedding(f"{path}.image_position_embed.{name}_embeddings", rows, width)
    between = Block(kind="projector", weights=projector, part=Part.PROJECTOR)
    return [*stages, between, *BART.blocks(reading.config, top, reading, "both")]


def _davit(vision: Config, path: str) -> tuple[Block, ...]:
    """Stages: a convolution that shrinks the image, then pairs of blocks, one with attention in windows, one across channels."""
    widths = vision.integers("embed_dim", minimum=1) or []
    kernels = vision.integers("patch_size", length=len(widths), minimum=1)
    depths, before = vision.integers("depths", length=len(widths)), vision.sequence("patch_prenorm", length=len(widths))
    if not widths or kernels is None or depths is None or before is None:
        raise vision.missing("embed_dim")
    out, inputs = [], vision.integer("in_channels")
    for i, (width, kernel, depth) in enumerate(zip(widths, kernels, depths, strict=True)):
        down = conv(f"{path}.convs.{i}.conv", width, inputs, kernel, kernel)
        down += layer_norm(f"{path}.convs.{i}.norm", inputs if before[i] else width)
        out.append(Block(kind="patches", weights=down, part=Part.VISION))
        if depth:
            both: Weighed = ()
            inner = vision.checked_integer("mlp_ratio", int(width * vision.number("mlp_ratio", 4.0)))
            for name, attention in (("spatial_block", "window_attn"), ("channel_block", "channel_attn")):
                base = f"{path}.blocks.{i}.{name}"
                both += linear(f"{base}.{attention}.qkv", width, 3 * width, bias=vision.flag("qkv_bias"))
                both += linear(f"{base}.{attention}.proj", width, width, bias=True)
                both += plain_mlp(width, inner, path=f"{base}.ffn")
                for number in (1, 2):
                    both += conv(f"{base}.conv{number}", width, 1, 3, 3) + layer_norm(f"{base}.norm{number}", width)
            out.append(Block(kind="encoder_layer", weights=both, part=Part.VISION, count=min(depth, MAX_LAYERS)))
        inputs = width
    return tuple(out)


def _formulanet(config: Config, top: Config, reading: Reading, kind: str) -> list[Block]:
    """PP-FormulaNet: BART's decoder after SAM's encoder and two convolutions."""
    vision = needed(config, "vision_config")
    width, path, side = vision.integer("hidden_size"), "encoder", vision.integer("image_size") // vision.integer("patch_size")
    outside = patch_conv(vision, f"{path}.patch_embed.projection", width)
    if vision.flag("use_abs_pos"):
        outside += parameter(f"{path}.pos_embed", 1, side, side, width)
    outside += neck(f"{path}.neck", width, vision.integer("output_channels"))
    first, middle = vision.integer("post_conv_in_channels"), vision.integer("post_conv_mid_channels")
    last, base = vision.integer("post_conv_out_channels"), f"{path}.multi_modal_projector"
    projector = conv(f"{base}.conv1", middle, first, 3, 3, bias=False) + conv(f"{base}.conv2", last, middle, 3, 3, bias=False)
    projector += linear(f"{base}.linear_1", last, last, bias=True)
    projector += linear(f"{base}.linear_2", last, vision.integer("decoder_hidden_size"), bias=True)
    return [
        Block(kind="patches", weights=outside, part=Part.VISION),
        *sam_layers(vision, f"{path}.layers", kinds=("encoder_layer", "encoder_layer"), table=""),
        Block(kind="projector", weights=projector, part=Part.PROJECTOR),
        *FORMULANET.blocks(reading.config, top, reading, "decoder"),
    ]


def _tokens(config: Config) -> int | None:
    return image_tokens(config.sub("vision_config"))


_DEEPEST: Final = 4


def _read(config: Config) -> Reading:
    if config.where.count(".") >= _DEEPEST:
        raise ConfigError(f"{config.where} is nested too deep for a {config.model_type} model.")
    decoder = config.sub("decoder") or config.retyped(config.nested_type("decoder"), "decoder")
    decoder.ignore("add_cross_attention", "cross_attention_hidden_size", "is_decoder")
    family = find_family(decoder.model_type)
    is_pair = decoder.model_type in ("encoder-decoder", "vision-encoder-decoder", "speech-encoder-decoder")
    if family is None or is_pair or (isinstance(family, EncoderDecoder) and family.part):
        raise UnknownArchitectureError(
            f"No parser knows the decoder of this {config.model_type} model: {quoted(decoder.model_type)}.",
            hint="Plan the decoder by itself, or see: kvplan models",
        )
    if isinstance(family, EncoderDecoder):
        alone = family.decode(decoder)
    else:
        # These models set is_decoder, whatever the file says.
        child = Config({**decoder.raw, "is_decoder": True}, decoder.model_type, decoder.where)
        child.read = decoder.read
        decoder.children.append(child)
        alone = family.read(child)
    layers = []
    for layer in alone.layers:
        own = tuple(kind for kind in layer if isinstance(kind, (FullAttention, SlidingAttention)))
        crosses = not own or any(isinstance(kind, CrossAttention) for kind in layer)
        layers.append(layer if crosses else (*layer, dims_of(own).cross()))
    tokens = image_tokens(config.sub("encoder")) if config.model_type == "vision-encoder-decoder" else None
    return Reading(layers=tuple(layers), config=decoder, types=alone.types, encoder_tokens=tokens, notes=alone.notes)


def _weigh(config: Config, top: Config, reading: Reading) -> list[Block] | None:
    """Both sides, and a matrix between them if their widths differ."""
    encoder, decoder = needed(config, "encoder"), reading.config
    family = find_family(encoder.model_type)
    weigh = family.encoder if isinstance(family, Bert) else {"vit": vit, "wav2vec2": wav2vec2}.get(encoder.model_type or "")
    if weigh is None:
        return None
    after: Sequence[Block] | None = None
    family = find_family(decoder.model_type)
    if isinstance(family, Bert):
        after = family.blocks(decoder, decoder, reading.layers, headed=True, cross=family.crosses(decoder))
    elif isinstance(family, Bart):
        after = family.blocks(decoder, decoder, reading, "decoder")
    elif family is not None and decoder.model_type == "gpt2":
        after = family.weigh(decoder, decoder, reading)
    before = weigh(encoder, "encoder")
    if after is None or before is None:
        return None
    width, wide = decoder.integer("hidden_size"), encoder.integer("hidden_size")
    if wide != width and decoder.maybe_integer("cross_attention_hidden_size") is None:
        between = linear("enc_to_dec_proj", wide, width, bias=True)
        before = [*before, Block(kind="projector", weights=between, part=Part.PROJECTOR)]
    return [*before, *after]


BLIP_TEXT: Final = EncoderDecoder(keys=Keys())
BLIP: Final = EncoderDecoder(keys=Keys(), weights=_blip, part="text_config", tokens=_tokens)
FLORENCE2: Final = EncoderDecoder(keys=BART_KEYS, weights=_florence, part="text_config")
PP_FORMULANET_TEXT: Final = EncoderDecoder(keys=BART_KEYS)
PP_FORMULANET: Final = EncoderDecoder(keys=BART_KEYS, weights=_formulanet, part="text_config", tokens=_tokens)
PAIR: Final = Readers(layers=_read, weights=_weigh)
