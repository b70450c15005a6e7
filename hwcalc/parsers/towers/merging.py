"""Vision towers that merge neighbouring patches into one token themselves: the Qwen-VL line, GLM-V and their kin."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Final

from msgspec.structs import replace

from hwcalc.formulas.weights import gated_mlp, layer_norm, linear
from hwcalc.parsers.blocks import Weighed, norm
from hwcalc.parsers.config import MAX_LAYERS, Config
from hwcalc.parsers.towers.build import (
    GATED,
    Encoder,
    Style,
    Weigh,
    conv,
    grid,
    integers,
    mlp_chain,
    norms,
    patch_linear,
    patches,
    ratio_width,
)


def _mlp_merger(config: Config, path: str, width: int, *, out: str = "out_hidden_size", kind: str = "layer") -> Weighed:
    """A norm over patches, then two linear layers over what was merged."""
    merged = width * config.integer("spatial_merge_size") ** 2
    weights = norm(kind, f"{path}.merger.ln_q", width)
    return weights + mlp_chain(f"{path}.merger", (merged, merged, config.integer(out)), ("mlp.0", "mlp.2"))


def _deepstack(config: Config, path: str, width: int) -> Weighed:
    """The same, and once more for each layer whose output goes straight to the language model."""
    weights, tap = _mlp_merger(config, path, width), f"{path}.deepstack_merger_list"
    merged = width * config.integer("spatial_merge_size") ** 2
    for _ in config.sequence("deepstack_visual_indexes", most=MAX_LAYERS) or ():
        sizes = (merged, merged, config.integer("out_hidden_size"))
        weights += layer_norm(f"{tap}.norm", merged) + mlp_chain(tap, sizes, ("linear_fc1", "linear_fc2"))
    return weights


def _gated_merger(inner: tuple[str, ...], names: tuple[str, ...]) -> Weigh:
    """A strided convolution that merges, then a gated MLP as wide as the product of the keys ``inner``; norms of the tower."""

    def merger(config: Config, path: str, width: int) -> Weighed:
        out, merge = integers(config, "out_hidden_size", "spatial_merge_size")
        weights = conv(f"{path}.downsample", out, width, merge, merge)
        weights += linear(f"{path}.merger.proj", out, out)
        weights += layer_norm(f"{path}.merger.post_projection_norm", out)
        weights += gated_mlp(out, prod(integers(config, *inner)), path=f"{path}.merger")
        return weights + norms("rms", path, names, width)

    return merger


_stem = partial(patches, "patch_embed.proj", frames="temporal_patch_size", table="pos_embed")
_QKV: Final = Style(attention="attn", names=("qkv", "proj"), norms=("norm1", "norm2"), heads="split")
_GATED_QKV: Final = replace(_QKV, mlp=GATED, norm="rms")

_MERGING: Final = Encoder(style=_QKV, layers="blocks", joint_kind="merger")

QWEN2: Final = replace(
    _MERGING, stem=_stem(bias=False), width="embed_dim", mlp_width=ratio_width, joint=partial(_mlp_merger, out="hidden_size")
)
QWEN25: Final = replace(_MERGING, style=_GATED_QKV, stem=_stem(bias=False), joint=partial(_mlp_merger, kind="rms"))
QWEN25_SPLIT: Final = replace(QWEN25, style=replace(_GATED_QKV, names=("q", "k", "v", "proj")))
EXAONE: Final = replace(QWEN25, style=replace(_GATED_QKV, kv_heads=True))
QWEN3: Final = replace(
    _MERGING,
    style=replace(_QKV, mlp=("mlp.linear_fc1", "mlp.linear_fc2")),
    stem=_stem(positions="num_position_embeddings"),
    joint=_deepstack,
)
QWEN35: Final = replace(QWEN3, joint=_mlp_merger)
GLM4V: Final = replace(
    _MERGING,
    style=replace(_GATED_QKV, bias=("attention_bias", False, False, False), mlp_bias=(False, False)),
    stem=_stem(positions=grid),
    mlp_width="out_hidden_size",
    joint=_gated_merger(("intermediate_size",), ("post_conv_layernorm", "post_layernorm")),
)
GLM_OCR: Final = replace(
    _MERGING,
    style=replace(_GATED_QKV, bias=4 * ("attention_bias",), mlp_bias=("attention_bias", "attention_bias"), qk_norm="head"),
    stem=_stem(),
    joint=_gated_merger(("out_hidden_size", "in_channels"), ("post_layernorm",)),
)
GLM5: Final = replace(GLM_OCR, joint=_gated_merger(("projection_intermediate_size",), ("post_layernorm",)))
ERNIE: Final = replace(
    _MERGING, stem=_stem(embed=patch_linear, bias=False, frames=""), joint=lambda _, path, width: layer_norm(f"{path}.ln", width)
)
