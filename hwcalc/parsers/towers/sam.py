"""SAM's image encoder: windows, a few global layers, and positions relative to either side."""

from __future__ import annotations

from typing import Final

from hwcalc.formulas.weights import Block, embedding, layer_norm
from hwcalc.parsers.blocks import Weighed
from hwcalc.parsers.config import Config
from hwcalc.parsers.towers.build import (
    Style,
    block,
    conv,
    encoder_layer,
    integers,
    needed,
    patch_conv,
    ratio_width,
    split_width,
    tower,
)

__all__ = ["downsampled", "encoder", "neck", "two_in_a_row"]

_STYLE: Final = Style(attention="attn", names=("qkv", "proj"), bias=("qkv_bias", True, True, True), mlp=("mlp.lin1", "mlp.lin2"))


def encoder(config: Config, path: str) -> tuple[Block, ...]:
    """SAM's encoder."""
    width, heads = integers(config, "hidden_size", "num_attention_heads")
    count, side = config.number_of_layers(), config.integer("image_size") // config.integer("patch_size")
    embeddings = patch_conv(config, f"{path}.patch_embed.projection", width)
    if config.flag("use_abs_pos"):
        embeddings += embedding(f"{path}.pos_embed", side * side, width)
    base = f"{path}.layers"
    layer = encoder_layer(config, _STYLE, base, width, config.maybe_integer("mlp_dim") or ratio_width(config, width))
    everywhere = sum(1 for index in set(config.integers("global_attn_indexes") or ()) if index < count)
    window = config.integer("window_size", minimum=0)
    out = block("embedding", embeddings)
    for kind, layers, reach in (("global layer", everywhere, side), ("layer", count - everywhere, window or side)):
        relative: Weighed = ()
        if config.flag("use_rel_pos"):
            for axis in "hw":
                relative += embedding(f"{base}.attn.rel_pos_{axis}", 2 * reach - 1, split_width(config, width, heads))
        out += block(kind, layer + relative, count=layers)
    return (*out, *block("neck", neck(f"{path}.neck", width, config.integer("output_channels"))))


def neck(path: str, width: int, out: int) -> Weighed:
    """Two convolutions, each with a norm, to the channels that leave a SAM encoder."""
    return (
        *conv(f"{path}.conv1", out, width, 1, 1, bias=False),
        *layer_norm(f"{path}.layer_norm1", out),
        *conv(f"{path}.conv2", out, out, 3, 3, bias=False),
        *layer_norm(f"{path}.layer_norm2", out),
    )


def downsampled(config: Config, path: str) -> tuple[Block, ...]:
    """The same, and two convolutions that halve the sides."""
    first, second = (config.integers("downsample_channels", length=2, minimum=1) or (512, 1024))[:2]
    weights = (
        *conv(f"{path}.proj.conv1", first, config.integer("output_channels"), 3, 3, bias=False),
        *conv(f"{path}.proj.conv2", second, first, 3, 3, bias=False),
    )
    return (*encoder(config, path), *block("downsampling", weights))


def two_in_a_row(config: Config, path: str) -> tuple[Block, ...]:
    """A SAM encoder, and a CLIP-like one that reads its tokens."""
    sam = tower(needed(config, "sam_config"), f"{path}.sam_encoder")
    return sam + tower(needed(config, "encoder_config"), f"{path}.vision_encoder")
