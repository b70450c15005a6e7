"""Encoders of images that stand before a decoder of text: how many tokens they put out, and what they weigh.

Mirrors ``modeling_*.py`` of ViT, DaViT (Florence-2) and PP-FormulaNet's SAM in transformers 5.23.
"""

from __future__ import annotations

from typing import Final

from hwcalc.formulas.weights import Block, Part, WeightRole, layer_norm, linear, parameter
from hwcalc.parsers.blocks import Weighed
from hwcalc.parsers.config import MAX_LAYERS, Config
from hwcalc.parsers.towers.build import Style, conv, encoder_layer, grid, patch_conv

__all__ = ["davit", "image_tokens", "sam_layers", "vision_layers", "vit"]

# Vision transformers by the tokens that they add to their patches: a class token, and DeiT's distillation token.
_EXTRA_TOKENS: Final = {"beit": 1, "blip_vision_model": 1, "deit": 2, "dinov2": 1, "vit": 1, "vit_mae": 1}
# Hierarchical ones halve the grid between stages and have no class token.
_HALVING: Final = ("donut-swin", "swin", "swinv2")
_LARGEST_IMAGE: Final = 2**20


def image_tokens(encoder: Config | None) -> int | None:
    """Tokens of an encoder of images of one size: one for each patch. ``None`` where the image decides, or the type is unknown.

    A ViT for 64 x 64 pixels with patches of 32 gives four patches and one class token: 5.
    """
    if encoder is None:
        return None
    # Nothing else in an encoder's config bears on what the decoder keeps.
    encoder.ignore(*encoder.raw)
    size, patch = _sides(encoder, "image_size"), _sides(encoder, "patch_size")
    kind = encoder.model_type
    if size is None or patch is None or kind is None:
        return None
    if kind in _EXTRA_TOKENS:
        return (size[0] // patch[0]) * (size[1] // patch[1]) + _EXTRA_TOKENS[kind]
    rows, columns = (-(-size[i] // patch[i]) for i in (0, 1))
    if kind in _HALVING:
        depths = encoder.sequence("depths")
        if not depths:
            return None
        halvings = min(len(depths) - 1, _LARGEST_IMAGE.bit_length())
    elif kind == "pp_formulanet_vision":
        # Two convolutions of stride 2 follow the patches.
        halvings = 2
    else:
        return None
    for _ in range(halvings):
        rows, columns = -(-rows // 2), -(-columns // 2)
    return rows * columns


def _sides(config: Config, key: str) -> tuple[int, int] | None:
    """One side of a square, or height and width."""
    value = config.get(key)
    if value is None:
        return None
    sides = value if isinstance(value, (list, tuple)) else [value, value]
    if len(sides) != 2:
        raise config.error(key, value, "a whole number, or height and width")
    height, width = (config.checked_integer(key, side, maximum=_LARGEST_IMAGE) for side in sides)
    return height, width


def vision_layers(vision: Config, style: Style, path: str) -> Block:
    """The layers of a vision transformer."""
    width = vision.integer("hidden_size")
    layer = encoder_layer(vision, style, path, width, vision.integer("intermediate_size"))
    return Block(kind="encoder_layer", weights=layer, part=Part.VISION, count=vision.number_of_layers())


def vit(vision: Config, path: str) -> tuple[Block, ...]:
    """A vision transformer with its class token and pooler."""
    width = vision.integer("hidden_size")
    style = Style(
        attention="attention",
        names=("q_proj", "k_proj", "v_proj", "o_proj"),
        bias=("qkv_bias", "qkv_bias", "qkv_bias", True),
        norms=("layernorm_before", "layernorm_after"),
    )
    outside = parameter(f"{path}.embeddings.cls_token", 1, 1, width)
    outside += parameter(f"{path}.embeddings.position_embeddings", 1, grid(vision, 1), width)
    outside += patch_conv(vision, f"{path}.embeddings.patch_embeddings.projection", width)
    outside += layer_norm(f"{path}.layernorm", width)
    outside += linear(f"{path}.pooler.dense", width, vision.maybe_integer("pooler_output_size") or width, bias=True)
    return (Block(kind="patches", weights=outside, part=Part.VISION), vision_layers(vision, style, f"{path}.layers"))


def davit(vision: Config, path: str) -> tuple[Block, ...]:
    """Stages of a convolution down, then pairs of blocks that attend over windows and over channels."""
    widths = vision.integers("embed_dim", minimum=1) or []
    count = len(widths)
    kernels, depths = vision.integers("patch_size", length=count, minimum=1), vision.integers("depths", length=count)
    before = vision.sequence("patch_prenorm", length=count)
    if not widths or kernels is None or depths is None or before is None:
        raise vision.missing("embed_dim")
    out, inputs = [], vision.integer("in_channels")
    for i, (width, kernel, depth) in enumerate(zip(widths, kernels, depths, strict=True)):
        down = conv(f"{path}.convs.{i}.conv", width, inputs, kernel, kernel)
        down += layer_norm(f"{path}.convs.{i}.norm", inputs if before[i] else width)
        out.append(Block(kind="patches", weights=down, part=Part.VISION))
        if depth:
            pair = _davit_pair(vision, width, f"{path}.blocks.{i}")
            out.append(Block(kind="encoder_layer", weights=pair, part=Part.VISION, count=min(depth, MAX_LAYERS)))
        inputs = width
    return tuple(out)


def _davit_pair(vision: Config, width: int, path: str) -> Weighed:
    weights: Weighed = ()
    inner = vision.checked_integer("mlp_ratio", int(width * vision.number("mlp_ratio", 4.0)))
    for name, attention in (("spatial_block", "window_attn"), ("channel_block", "channel_attn")):
        base = f"{path}.{name}"
        weights += linear(f"{base}.{attention}.qkv", width, 3 * width, bias=vision.flag("qkv_bias"))
        weights += linear(f"{base}.{attention}.proj", width, width, bias=True)
        weights += linear(f"{base}.ffn.fc1", width, inner, bias=True) + linear(f"{base}.ffn.fc2", inner, width, bias=True)
        for number in (1, 2):
            weights += conv(f"{base}.conv{number}", width, 1, 3, 3) + layer_norm(f"{base}.norm{number}", width)
    return weights


def sam_layers(vision: Config, path: str) -> tuple[Block, ...]:
    """Layers that attend over windows and a few that attend to all: they differ in their tables of relative positions."""
    width, side = vision.integer("hidden_size"), vision.integer("image_size") // vision.integer("patch_size")
    style = Style(attention="attn", names=("qkv", "proj"), bias=("qkv_bias", True, True, True), mlp=("mlp.lin1", "mlp.lin2"))
    plain = encoder_layer(vision, style, f"{path}.layers", width, vision.integer("mlp_dim"))
    count, size = vision.number_of_layers(), max(1, width // vision.integer("num_attention_heads"))
    everywhere = len({index for index in vision.integers("global_attn_indexes") or [] if index < count})
    window = vision.integer("window_size", minimum=0)
    out = []
    for number, rows in ((everywhere, side), (count - everywhere, window or side)):
        tables: Weighed = ()
        if vision.flag("use_rel_pos"):
            for axis in "hw":
                tables += parameter(f"{path}.layers.attn.rel_pos_{axis}", 2 * rows - 1, size, role=WeightRole.EMBEDDING)
        if number:
            out.append(Block(kind="encoder_layer", weights=plain + tables, part=Part.VISION, count=number))
    return tuple(out)
