"""Vision transformers: patches, positions, equal layers, and norms around them. One line each in a table.

Each line mirrors the tower's ``modeling_*.py`` in transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from hwcalc.formulas.frozen import frozen
from hwcalc.formulas.weights import Block, Weight, WeightRole, embedding, linear, parameter, plain_mlp
from hwcalc.parsers.config import Config
from hwcalc.parsers.weights.towers import (
    Style,
    UnknownTowerError,
    block,
    conv,
    encoder_layer,
    grid,
    mlp_chain,
    norm,
    pair,
    patch_conv,
    patch_linear,
    ratio_width,
)

__all__ = ["blocks", "pooling_head"]

Extra = Callable[[Config, str, int], tuple[Weight, ...]]
"""Tensors that a tower has besides: its config, its path and its width."""


@frozen
class Vit:
    """What a type of tower is made of."""

    style: Style = Style()
    layers: str = "encoder.layers"
    mlp_width: Callable[[Config, int], int] | None = None
    """Width of the MLP, ``intermediate_size`` unless given."""
    patch: str = "conv"
    """``conv``, ``linear``, or nothing where the patches come from elsewhere."""
    patch_bias: bool = True
    frames: str = ""
    """The key for how many images make a patch, where it is several."""
    positions: Callable[[Config], int] | None = grid
    """Rows of the table of positions."""
    vectors: int = 0
    """Learned vectors in front of the patches."""
    norms: tuple[str, ...] = ("post_layernorm",)
    """Norms before and after the layers."""
    heads: bool = False
    """Whether heads have a width of their own (``head_dim``, ``num_key_value_heads``)."""
    extra: Extra | None = None


def blocks(config: Config, path: str) -> tuple[Block, ...]:
    """All blocks of a tower in the table."""
    spec = _TABLE[config.model_type or ""]
    if config.flag("use_swiglu_ffn"):
        # A gated MLP instead, of a width of its own, that no model in the table has.
        raise UnknownTowerError(config.model_type)
    width = config.integer("hidden_size")
    embeddings: tuple[Weight, ...] = ()
    if spec.patch:
        embed = patch_conv if spec.patch == "conv" else patch_linear
        embeddings += embed(config, f"{path}.patch_embedding", width, bias=spec.patch_bias, frames=spec.frames)
    if spec.positions is not None:
        embeddings += embedding(f"{path}.position_embedding", spec.positions(config), width)
    if spec.vectors:
        embeddings += parameter(f"{path}.class_embedding", spec.vectors, width)
    heads = kv_heads = head_dim = None
    if spec.heads:
        heads = config.integer("num_attention_heads")
        kv_heads = config.maybe_integer("num_key_value_heads") or heads
        head_dim = config.maybe_integer("head_dim") or width // heads
    layer = encoder_layer(
        config,
        spec.style,
        f"{path}.{spec.layers}",
        width,
        spec.mlp_width(config, width) if spec.mlp_width is not None else config.integer("intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
    )
    norms = tuple(weight for name in spec.norms for weight in norm(f"{path}.{name}", width, spec.style.rms))
    return (
        *block("embedding", embeddings),
        *block("layer", layer, count=config.number_of_layers()),
        *block("norm", norms),
        *block("extra", spec.extra(config, path, width) if spec.extra is not None else ()),
    )


def pooling_head(config: Config, path: str, width: int) -> tuple[Weight, ...]:
    """SigLIP's head: one learned query that attends to all patches, then an MLP."""
    if not config.flag("vision_use_head", default=True):
        return ()
    head = f"{path}.head"
    return (
        *parameter(f"{head}.probe", width),
        *parameter(f"{head}.attention.in_proj_weight", 3 * width, width, role=WeightRole.LINEAR),
        *parameter(f"{head}.attention.in_proj_bias", 3 * width, role=WeightRole.BIAS),
        *linear(f"{head}.attention.out_proj", width, width, bias=True),
        *norm(f"{head}.layernorm", width),
        *plain_mlp(width, config.integer("intermediate_size"), path=f"{head}.mlp"),
    )


def _window_merger(config: Config, path: str, width: int) -> tuple[Weight, ...]:
    """MiniCPM-V's merger between two layers: attention within a window, then an MLP over the window."""
    down, across = pair(config, "window_kernel_size")
    merged = down * across * width
    own = encoder_layer(config, Style(norms=("layer_norm1",)), f"{path}.vit_merger", width, 0)
    return (
        *own,
        *norm(f"{path}.vit_merger.pre_norm", merged),
        *mlp_chain(
            f"{path}.vit_merger", (merged, down * across * config.integer("intermediate_size"), width), ("linear_1", "linear_2")
        ),
    )


def _docling_connector(config: Config, path: str, width: int) -> tuple[Weight, ...]:
    """Granite Docling's two routes from patches to tokens, a coarse and a fine one."""
    base, out, factor = f"{path}.connector", config.integer("out_hidden_size"), config.integer("scale_factor")
    taps = config.sequence("deepstack_visual_indexes")
    count = _DOCLING_TAPS if taps is None else len(taps)
    weights = norm(f"{base}.ln_in", width)
    routes = {"coarse": factor} | ({"fine": factor // 2} if config.flag("use_fine_route") else {})
    for route, scale in routes.items():
        merged = width * scale**2
        weights += linear(f"{base}.{route}.projection", merged, out)
        for _ in range(count):
            tap = f"{base}.{route}.deepstack_mergers"
            weights += (*norm(f"{tap}.layer_norm", merged), *mlp_chain(tap, (merged, out, out), ("linear_1", "linear_2")))
    return (*weights, *norm(f"{base}.ln_mid", out), *linear(f"{base}.mlp_fc2", out, out), *norm(f"{base}.ln_out", out))


_DOCLING_TAPS: Final = 3


def _hunyuan_merger(config: Config, path: str, width: int) -> tuple[Weight, ...]:
    base, merge, out = f"{path}.patch_merger", config.integer("spatial_merge_size"), config.integer("text_hidden_size")
    return (
        *conv(f"{base}.proj_conv", 2 * width, width, merge, merge),
        *conv(f"{base}.proj_out", 4 * width, 2 * width, 1, 1),
        *linear(f"{base}.mlp", 4 * width, out, bias=True),
        *parameter(f"{base}.image_newline", 4 * width),
        *parameter(f"{base}.image_marks", 3, out),
        *norm(f"{base}.before_rms", width, rms=True),
        *norm(f"{base}.after_rms", out, rms=True),
    )


def _inkling_merger(config: Config, path: str, width: int) -> tuple[Weight, ...]:
    merged = width * config.integer("spatial_merge_size") ** 2
    sizes = (merged, config.integer("projection_hidden_dim"), config.integer("text_hidden_size"))
    return mlp_chain(f"{path}.merger", sizes, ("linear_1", "linear_2"), bias=config.flag("projector_bias"))


def _downsamplers(config: Config, path: str, width: int) -> tuple[Weight, ...]:
    """Two convolutions, each of which halves the sides and doubles the channels."""
    return (
        *conv(f"{path}.downsampler1", 2 * width, width, 3, 3),
        *conv(f"{path}.downsampler2", 4 * width, 2 * width, 3, 3),
    )


def _ovis_head(config: Config, path: str, width: int) -> tuple[Weight, ...]:
    """Ovis reads a patch as probabilities over a vocabulary of visual words."""
    words = config.integer("vocab_size") - config.integer("num_visual_indicator_tokens", minimum=0)
    if words < 1:
        raise config.error("vocab_size", config.get("vocab_size"), "more than num_visual_indicator_tokens")
    stride = config.integer("hidden_stride")
    return (
        *norm(f"{path}.transformer.embeddings.rms_norm", width, rms=True),
        *linear(f"{path}.head_linear", width * stride**2, words),
        *norm(f"{path}.head_norm", words),
    )


def _internvl_extra(config: Config, path: str, width: int) -> tuple[Weight, ...]:
    weights: tuple[Weight, ...] = ()
    if config.flag("use_absolute_position_embeddings"):
        weights += embedding(f"{path}.embeddings.position_embeddings", grid(config, 1), width)
    if config.flag("use_mask_token"):
        weights += parameter(f"{path}.embeddings.mask_token", width)
    if not config.flag("use_mean_pooling"):
        weights += norm(f"{path}.layernorm", width)
    return weights


def _radio_patches(config: Config, path: str, width: int) -> tuple[Weight, ...]:
    """RADIO's own tables: one projection for images, one for videos, and registers beside the class vectors."""
    size = config.integer("patch_size")
    side, patch = config.integer("max_img_size") // size, config.integer("num_channels") * size**2
    weights = linear(f"{path}.embeddings.patch_projection", patch, width)
    frames = config.maybe_integer("video_temporal_patch_size")
    if frames is not None:
        weights += linear(f"{path}.embeddings.video_patch_projection", patch * frames, width)
    rows = config.integer("num_cls_tokens", minimum=0) + config.integer("num_registers", minimum=0)
    return (
        *weights,
        *embedding(f"{path}.embeddings.position_embedding", side * side, width),
        *parameter(f"{path}.embeddings.cls_register_token", rows, width),
    )


def _kosmos_patches(config: Config, path: str, width: int) -> tuple[Weight, ...]:
    rows = config.integer("max_num_patches")
    return (
        *linear(f"{path}.embeddings.patch_projection", config.integer("patch_embed_hidden_size"), width, bias=True),
        *embedding(f"{path}.embeddings.row_embedder", rows, width),
        *embedding(f"{path}.embeddings.column_embedder", rows, width),
    )


def _ratio(config: Config, width: int) -> int:
    return ratio_width(config, width)


def _own_or_ratio(config: Config, width: int) -> int:
    return config.maybe_integer("intermediate_size") or ratio_width(config, width)


def _molmo_positions(config: Config) -> int:
    given = config.maybe_integer("num_position_embeddings")
    if given is not None:
        return given
    patch = config.integer("patch_size")
    sides = pair(config, "image_size") if config.get("image_size") is not None else (378, 378)
    return (sides[0] // patch) * (sides[1] // patch)


def _at(key: str) -> Callable[[Config], int]:
    return lambda config: config.integer(key)


def _area(height: str, width: str) -> Callable[[Config], int]:
    return lambda config: config.integer(height) * config.integer(width)


def _squared(key: str, extra: int = 0, divide: str = "") -> Callable[[Config], int]:
    return lambda config: (config.integer(key) // (config.integer(divide) if divide else 1)) ** 2 + extra


def _grid_and_class(config: Config) -> int:
    return grid(config, 1)


_SIGLIP: Final = Vit()
_CLIP: Final = Vit(positions=_grid_and_class, vectors=1, patch_bias=False, norms=("pre_layrnorm", "post_layernorm"))
_BLIP: Final = Vit(
    style=Style(names=("qkv", "projection"), bias=("qkv_bias", True, True, True)), positions=_grid_and_class, vectors=1
)
_MINICPM: Final = Vit(extra=_window_merger)
_SCALED: Final = ("lambda_1", "lambda_2")
_BEFORE_AFTER: Final = ("layernorm_before", "layernorm_after")
_INTERNVL: Final = Style(
    attention="attention",
    names=("q_proj", "k_proj", "v_proj", "projection_layer"),
    bias=("attention_bias", "attention_bias", "attention_bias", True),
    norms=_BEFORE_AFTER,
    qk_norm="full",
    qk_norm_if="use_qk_norm",
    scales=_SCALED,
)
_JANUS: Final = Style(
    names=("q_proj", "k_proj", "v_proj", "projection_layer"),
    bias=("attention_bias", "attention_bias", "attention_bias", True),
    qk_norm="full",
    qk_norm_if="use_qk_norm",
    qk_norm_rms=False,
)
_NO_BIAS: Final = (False, False, False, False)
_PIXTRAL: Final = Style(
    attention="attention",
    names=("q_proj", "k_proj", "v_proj", "o_proj"),
    bias=_NO_BIAS,
    mlp=("feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj"),
    mlp_bias=(False, False),
    norms=("attention_norm", "ffn_norm"),
    rms=True,
)
_OVIS: Final = replace(
    _PIXTRAL,
    names=("q_proj", "k_proj", "v_proj", "out_proj"),
    bias=("qkv_bias", "qkv_bias", "qkv_bias", "qkv_bias"),
    mlp=("ffn.gate_proj", "ffn.up_proj", "ffn.down_proj"),
    mlp_bias=("mlp_bias", "mlp_bias"),
    norms=("rms_norm1", "rms_norm2"),
)
_KOSMOS25: Final = replace(
    _PIXTRAL,
    names=("query", "key", "value", "output"),
    mlp=("mlp.wi_0", "mlp.wi_1", "mlp.wo"),
    norms=("pre_attention_layer_norm", "pre_mlp_layer_norm"),
)
_ATTN: Final = Style(attention="attn", names=("q_proj", "k_proj", "v_proj", "proj"), norms=("norm1", "norm2"))
_MUSE: Final = Vit(
    style=_ATTN,
    layers="layers",
    patch="linear",
    patch_bias=False,
    frames="patch_temporal",
    positions=_area("pos_emb_height", "pos_emb_width"),
    norms=("ln_pre", "ln_post"),
)
_RADIO: Final = Style(
    attention="attention",
    names=("q_proj", "k_proj", "v_proj", "o_proj"),
    bias=("qkv_bias", "qkv_bias", "qkv_bias", True),
    norms=("norm1", "norm2"),
    scales=("layer_scale1.lambda1", "layer_scale2.lambda1"),
)
_TABLE: Final[dict[str, Vit]] = {
    "siglip_vision_model": Vit(extra=pooling_head),
    "phi4_multimodal_vision": Vit(extra=pooling_head),
    "siglip2_vision_model": Vit(patch="linear", positions=_at("num_patches"), extra=pooling_head),
    "clip_vision_model": _CLIP,
    "kosmos_2_vision_model": _CLIP,
    "unlimited_ocr_vision_encoder": replace(_CLIP, patch="", norms=("pre_layrnorm",)),
    "idefics2_vision": _SIGLIP,
    "idefics3_vision": _SIGLIP,
    "smolvlm_vision": _SIGLIP,
    "paddleocr_vl_vision": _SIGLIP,
    "cosmos3_edge_vision": Vit(patch="linear", positions=_at("num_patches")),
    "video_llama_3_vision": Vit(positions=None),
    "granite_docling_vision": Vit(extra=_docling_connector),
    "minicpm_ocr_vision": _MINICPM,
    "minicpmv4_6_vision": _MINICPM,
    "minicpmv4_7_vision": _MINICPM,
    "janus_vision_model": Vit(style=_JANUS, mlp_width=_ratio),
    "blip_2_vision_model": _BLIP,
    "instructblip_vision_model": _BLIP,
    "instructblipvideo_vision_model": _BLIP,
    "hunyuan_vl_vision": Vit(
        style=Style(names=("q_proj", "k_proj", "v_proj", "o_proj")),
        layers="layers",
        positions=_squared("max_image_size", 1, divide="patch_size"),
        norms=(),
        extra=_hunyuan_merger,
    ),
    "minimax_m3_vl_vision": Vit(
        layers="layers", patch_bias=False, frames="temporal_patch_size", positions=None, norms=("pre_layrnorm",)
    ),
    "step3p5_vision": Vit(
        style=Style(norms=_BEFORE_AFTER, scales=_SCALED),
        layers="layers",
        mlp_width=_ratio,
        patch_bias=False,
        norms=("pre_layernorm",),
        extra=_downsamplers,
    ),
    "inkling2_vision": Vit(
        style=Style(norms=_BEFORE_AFTER, scales=_SCALED),
        layers="layers",
        mlp_width=_own_or_ratio,
        patch="linear",
        patch_bias=False,
        positions=_squared("posemb_grid_size"),
        vectors=2,
        norms=("pre_layernorm",),
        extra=_inkling_merger,
    ),
    "muse_glimmer_vision": _MUSE,
    "muse_spark_vision": _MUSE,
    "kimi_k25_vision": Vit(
        style=_ATTN, layers="layers", positions=_area("pos_emb_height", "pos_emb_width"), norms=("final_layernorm",)
    ),
    "internvl_vision": Vit(style=_INTERNVL, layers="encoder.layer", positions=None, vectors=1, norms=(), extra=_internvl_extra),
    "qianfan_ocr_vision": Vit(style=_INTERNVL, layers="layers", positions=None, vectors=1, norms=(), extra=_internvl_extra),
    "ovis2_vision": Vit(style=_OVIS, layers="transformer.encoder.layers", norms=("transformer.rms_norm",), extra=_ovis_head),
    "pixtral": Vit(style=_PIXTRAL, layers="transformer.layers", patch_bias=False, positions=None, norms=("ln_pre",)),
    "molmo2_vision": Vit(
        style=Style(
            names=("q_proj", "k_proj", "v_proj", "o_proj"),
            bias=("attention_bias", "attention_bias", "attention_bias", "attention_bias"),
        ),
        layers="layers",
        patch="linear",
        positions=_molmo_positions,
        norms=(),
        heads=True,
    ),
    "radio": Vit(
        style=_RADIO, layers="encoder.layer", mlp_width=_ratio, patch="", positions=None, norms=(), extra=_radio_patches
    ),
    "kosmos_2_5_vision_model": Vit(
        style=_KOSMOS25, layers="encoder.layer", patch="", positions=None, norms=("layernorm",), heads=True, extra=_kosmos_patches
    ),
}
