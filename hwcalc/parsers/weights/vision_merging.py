"""Vision towers that merge neighbouring patches into one token themselves: the Qwen-VL line, GLM-V and their kin.

Each line mirrors the tower's ``modeling_*.py`` in transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from hwcalc.formulas.frozen import frozen
from hwcalc.formulas.weights import Block, Part, Weight, embedding, gated_mlp, linear
from hwcalc.parsers.config import Config
from hwcalc.parsers.weights.towers import (
    Style,
    block,
    conv,
    encoder_layer,
    grid,
    mlp_chain,
    norm,
    patch_conv,
    patch_linear,
    ratio_width,
)

__all__ = ["blocks"]

_QKV: Final = Style(attention="attn", names=("qkv", "proj"), norms=("norm1", "norm2"))
_QWEN3: Final = replace(_QKV, mlp=("mlp.linear_fc1", "mlp.linear_fc2"))
_GATED: Final = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
_QWEN25: Final = replace(_QKV, mlp=_GATED, rms=True)
_GLM4V: Final = replace(_QWEN25, bias=("attention_bias", False, False, False), mlp_bias=(False, False))
_GLM_OCR: Final = replace(
    _QWEN25,
    bias=("attention_bias", "attention_bias", "attention_bias", "attention_bias"),
    mlp_bias=("attention_bias", "attention_bias"),
    qk_norm="head",
)


@frozen
class Merging:
    """What a type of tower is made of."""

    style: Style
    merger: Callable[[Config, str, int], tuple[Weight, ...]]
    width: str = "hidden_size"
    mlp_width: Callable[[Config, int], int] | None = None
    """Width of the MLP, ``intermediate_size`` unless given."""
    frames: str = "temporal_patch_size"
    """The key for how many images make a patch; a tower without it embeds patches by a linear layer."""
    patch_bias: bool = True
    positions: Callable[[Config], int] | None = None
    kv_heads: bool = False


def blocks(config: Config, path: str) -> tuple[Block, ...]:
    """All blocks of a tower in the table, its merger as a projector."""
    spec = _TABLE[config.model_type or ""]
    width = config.integer(spec.width)
    if spec.frames:
        weights = patch_conv(config, f"{path}.patch_embed.proj", width, bias=spec.patch_bias, frames=spec.frames)
    else:
        weights = patch_linear(config, f"{path}.patch_embed.proj", width, bias=spec.patch_bias)
    if spec.positions is not None:
        weights += embedding(f"{path}.pos_embed", spec.positions(config), width)
    heads = config.integer("num_attention_heads")
    head_dim = width // heads
    if head_dim == 0:
        raise config.error(spec.width, width, f"at least the number of attention heads ({heads})")
    layer = encoder_layer(
        config,
        spec.style,
        f"{path}.blocks",
        width,
        spec.mlp_width(config, width) if spec.mlp_width is not None else config.integer("intermediate_size"),
        # Three projections of the whole width, unless keys and values have fewer heads.
        heads=heads if spec.kv_heads else None,
        kv_heads=config.integer("num_key_value_heads") if spec.kv_heads else None,
        head_dim=head_dim,
    )
    return (
        *block("embedding", weights),
        *block("layer", layer, count=config.number_of_layers()),
        *block("merger", spec.merger(config, path, width), Part.PROJECTOR),
    )


def _merged(config: Config, width: int) -> int:
    return width * config.integer("spatial_merge_size") ** 2


def _mlp_merger(config: Config, path: str, width: int, out: str = "out_hidden_size", rms: bool = False) -> tuple[Weight, ...]:
    """A norm over patches, then two linear layers over what was merged."""
    merged = _merged(config, width)
    sizes = (merged, merged, config.integer(out))
    return (*norm(f"{path}.merger.ln_q", width, rms), *mlp_chain(f"{path}.merger", sizes, ("mlp.0", "mlp.2")))


def _qwen2_merger(config: Config, path: str, width: int) -> tuple[Weight, ...]:
    return _mlp_merger(config, path, width, out="hidden_size")


def _qwen25_merger(config: Config, path: str, width: int) -> tuple[Weight, ...]:
    return _mlp_merger(config, path, width, rms=True)


def _deepstack(config: Config, path: str, width: int) -> tuple[Weight, ...]:
    """The same, and once more for each layer whose output goes straight to the language model."""
    weights = _mlp_merger(config, path, width)
    merged = _merged(config, width)
    for _ in config.sequence("deepstack_visual_indexes") or ():
        tap = f"{path}.deepstack_merger_list"
        weights += norm(f"{tap}.norm", merged)
        weights += mlp_chain(tap, (merged, merged, config.integer("out_hidden_size")), ("linear_fc1", "linear_fc2"))
    return weights


def _gated_merger(width: Callable[[Config], int], *norms: str) -> Callable[..., tuple[Weight, ...]]:
    """A strided convolution that merges, then a gated MLP; ``width`` is the MLP's."""

    def merger(config: Config, path: str, own: int) -> tuple[Weight, ...]:
        out, merge = config.integer("out_hidden_size"), config.integer("spatial_merge_size")
        weights = conv(f"{path}.downsample", out, own, merge, merge)
        weights += linear(f"{path}.merger.proj", out, out)
        weights += norm(f"{path}.merger.post_projection_norm", out)
        weights += gated_mlp(out, width(config), path=f"{path}.merger")
        for name in norms:
            weights += norm(f"{path}.{name}", own, rms=True)
        return weights

    return merger


def _at(key: str) -> Callable[[Config], int]:
    return lambda config: config.integer(key)


def _ratio(config: Config, width: int) -> int:
    return ratio_width(config, width)


def _out(config: Config, width: int) -> int:
    return config.integer("out_hidden_size")


def _final_norm(config: Config, path: str, width: int) -> tuple[Weight, ...]:
    return norm(f"{path}.ln", width)


_QWEN25_TOWER: Final = Merging(style=_QWEN25, merger=_qwen25_merger, patch_bias=False)
_QWEN35_TOWER: Final = Merging(style=_QWEN3, merger=_mlp_merger, positions=_at("num_position_embeddings"))
_QWEN3_TOWER: Final = Merging(style=_QWEN3, merger=_deepstack, positions=_at("num_position_embeddings"))
_GLM4V_TOWER: Final = Merging(
    style=_GLM4V,
    merger=_gated_merger(_at("intermediate_size"), "post_conv_layernorm", "post_layernorm"),
    mlp_width=_out,
    positions=grid,
)
_GLM_OCR_TOWER: Final = Merging(
    style=_GLM_OCR,
    merger=_gated_merger(lambda config: config.integer("out_hidden_size") * config.integer("in_channels"), "post_layernorm"),
)
_TABLE: Final[dict[str, Merging]] = {
    "qwen2_vl_vision": Merging(style=_QKV, merger=_qwen2_merger, width="embed_dim", mlp_width=_ratio, patch_bias=False),
    "qwen2_5_vl_vision": _QWEN25_TOWER,
    "qwen2_5_omni_vision_encoder": replace(_QWEN25_TOWER, style=replace(_QWEN25, names=("q", "k", "v", "proj"))),
    "exaone4_5_vision": replace(_QWEN25_TOWER, kv_heads=True),
    "qwen3_vl_vision": _QWEN3_TOWER,
    "qwen3_vl_moe_vision": _QWEN3_TOWER,
    "qwen3_omni_moe_vision_encoder": _QWEN3_TOWER,
    "cohere_compass_vision": _QWEN3_TOWER,
    "qwen3_5_vision": _QWEN35_TOWER,
    "qwen3_5_moe_vision": _QWEN35_TOWER,
    "qwen4_exp_vision": _QWEN35_TOWER,
    "glm4v_vision": _GLM4V_TOWER,
    "glm4v_moe_vision": _GLM4V_TOWER,
    "glm_ocr_vision": _GLM_OCR_TOWER,
    "glm5_next_vision": replace(_GLM_OCR_TOWER, merger=_gated_merger(_at("projection_intermediate_size"), "post_layernorm")),
    "ernie4_5_vl_moe_vision": Merging(style=_QKV, merger=_final_norm, frames="", patch_bias=False),
}
