"""SAM's image encoder: layers with windows, a few global layers, and relative positions by row and by column."""

from __future__ import annotations

from typing import Final

from hwcalc.formulas.weights import Block, WeightRole, embedding, layer_norm, parameter
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

_STYLE: Final = Style(attention="attn", names=("qkv", "proj"), bias=("qkv_bias", True, True, True), mlp=("mlp.lin1", "mlp.lin2"))


def encoder(config: Config, path: str) -> tuple[Block, ...]:
    """SAM's encoder."""
    width, side = config.integer("hidden_size"), _side(config)
    embeddings = patch_conv(config, f"{path}.patch_embed.projection", width)
    if config.flag("use_abs_pos"):
        embeddings += embedding(f"{path}.pos_embed", side * side, width)
    return (
        *block("embedding", embeddings),
        *sam_layers(config, f"{path}.layers"),
        *block("neck", neck(f"{path}.neck", width, config.integer("output_channels"))),
    )


def _side(config: Config) -> int:
    """Patches along one side of the image."""
    return config.integer("image_size") // config.integer("patch_size")


def sam_layers(
    config: Config, path: str, *, kinds: tuple[str, str] = ("global layer", "layer"), table: str = ".weight"
) -> tuple[Block, ...]:
    """Global layers and layers with windows, under the names ``kinds``. They differ in their tables of relative positions.

    ``table`` is how the path of such a table ends.
    """
    width, heads = integers(config, "hidden_size", "num_attention_heads")
    count, side = config.number_of_layers(), _side(config)
    layer = encoder_layer(config, _STYLE, path, width, config.maybe_integer("mlp_dim") or ratio_width(config, width))
    everywhere = sum(1 for index in set(config.integers("global_attn_indexes") or ()) if index < count)
    window = config.integer("window_size", minimum=0)
    out: tuple[Block, ...] = ()
    for kind, layers, reach in zip(kinds, (everywhere, count - everywhere), (side, window or side), strict=True):
        relative: Weighed = ()
        for axis in "hw" if config.flag("use_rel_pos") else "":
            shape = (2 * reach - 1, split_width(config, width, heads))
            relative += parameter(f"{path}.attn.rel_pos_{axis}{table}", *shape, role=WeightRole.EMBEDDING)
        out += block(kind, layer + relative, count=layers)
    return out


def neck(path: str, width: int, out: int) -> Weighed:
    """Two convolutions, each with a norm. ``out`` is the number of channels that leave SAM's encoder."""
    return (
        *conv(f"{path}.conv1", out, width, 1, 1, bias=False),
        *layer_norm(f"{path}.layer_norm1", out),
        *conv(f"{path}.conv2", out, out, 3, 3, bias=False),
        *layer_norm(f"{path}.layer_norm2", out),
    )


def downsampled(config: Config, path: str) -> tuple[Block, ...]:
    """SAM's encoder and two convolutions, each of which halves the sides."""
    first, second = (config.integers("downsample_channels", length=2, minimum=1) or (512, 1024))[:2]
    weights = (
        *conv(f"{path}.proj.conv1", first, config.integer("output_channels"), 3, 3, bias=False),
        *conv(f"{path}.proj.conv2", second, first, 3, 3, bias=False),
    )
    return (*encoder(config, path), *block("downsampling", weights))


def two_in_a_row(config: Config, path: str) -> tuple[Block, ...]:
    """SAM's encoder, and one like CLIP that reads SAM's tokens."""
    sam = tower(needed(config, "sam_config"), f"{path}.sam_encoder")
    return sam + tower(needed(config, "encoder_config"), f"{path}.vision_encoder")
