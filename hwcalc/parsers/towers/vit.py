"""Vision transformers: patches, positions, equal layers, and norms around them; some fold their patches at the end."""

from __future__ import annotations

from functools import partial
from typing import Final

from msgspec.structs import replace

from hwcalc.formulas.weights import Block, WeightRole, embedding, layer_norm, linear, parameter, plain_mlp, rms_norm
from hwcalc.parsers.blocks import Weighed
from hwcalc.parsers.config import MAX_LAYERS, Config
from hwcalc.parsers.towers.build import (
    GATED,
    LLAMA,
    LLAMA_NAMES,
    Encoder,
    Style,
    block,
    conv,
    encoder_layer,
    grid,
    integers,
    mlp_chain,
    pair,
    patch_linear,
    patches,
    ratio_width,
)

_WITH_CLASS: Final = partial(grid, extra=1)
_SCALED: Final = ("lambda_1", "lambda_2")
_BEFORE_AFTER: Final = ("layernorm_before", "layernorm_after")


# SigLIP and CLIP, and towers that are one of them with another end.


def _pooling_head(config: Config, path: str, width: int) -> Weighed:
    """SigLIP's head: one learned query that attends to all patches, then an MLP."""
    if not config.flag("vision_use_head", default=True):
        return ()
    head = f"{path}.head"
    return (
        *parameter(f"{head}.probe", width),
        *parameter(f"{head}.attention.in_proj_weight", 3 * width, width, role=WeightRole.LINEAR),
        *parameter(f"{head}.attention.in_proj_bias", 3 * width, role=WeightRole.BIAS),
        *linear(f"{head}.attention.out_proj", width, width, bias=True),
        *layer_norm(f"{head}.layernorm", width),
        *plain_mlp(width, config.integer("intermediate_size"), path=f"{head}.mlp"),
    )


def _window_merger(config: Config, path: str, width: int) -> Weighed:
    """MiniCPM-V's merger between two layers: attention within a window, then an MLP over the window."""
    down, across = pair(config, "window_kernel_size")
    base, merged = f"{path}.vit_merger", down * across * width
    sizes = (merged, down * across * config.integer("intermediate_size"), width)
    return (
        *encoder_layer(config, Style(norms=("layer_norm1",)), base, width, 0),
        *layer_norm(f"{base}.pre_norm", merged),
        *mlp_chain(base, sizes, ("linear_1", "linear_2")),
    )


def _docling_connector(config: Config, path: str, width: int) -> Weighed:
    """Granite Docling's two routes from patches to tokens, a coarse and a fine one."""
    base, out, factor = f"{path}.connector", config.integer("out_hidden_size"), config.integer("scale_factor")
    taps = config.sequence("deepstack_visual_indexes", most=MAX_LAYERS)
    weights = layer_norm(f"{base}.ln_in", width)
    routes = {"coarse": factor} | ({"fine": factor // 2} if config.flag("use_fine_route") else {})
    for route, scale in routes.items():
        merged, tap = width * scale**2, f"{base}.{route}.deepstack_mergers"
        weights += linear(f"{base}.{route}.projection", merged, out)
        for _ in range(3 if taps is None else len(taps)):
            weights += layer_norm(f"{tap}.layer_norm", merged)
            weights += mlp_chain(tap, (merged, out, out), ("linear_1", "linear_2"))
    weights += layer_norm(f"{base}.ln_mid", out) + linear(f"{base}.mlp_fc2", out, out)
    return weights + layer_norm(f"{base}.ln_out", out)


SIGLIP: Final = Encoder(stem=patches(positions=grid), layers="encoder.layers", norms=("post_layernorm",))
SIGLIP_POOLED: Final = replace(SIGLIP, extra=_pooling_head)
SIGLIP2_BARE: Final = replace(SIGLIP, stem=patches(embed=patch_linear, positions="num_patches"))
SIGLIP2: Final = replace(SIGLIP2_BARE, extra=_pooling_head)
NO_POSITIONS: Final = replace(SIGLIP, stem=patches())
DOCLING: Final = replace(SIGLIP, extra=_docling_connector)
MINICPM: Final = replace(SIGLIP, extra=_window_merger)
CLIP: Final = replace(
    SIGLIP, stem=patches(bias=False, positions=_WITH_CLASS, vectors=1), norms=("pre_layrnorm", "post_layernorm")
)
CLIP_BEHIND_SAM: Final = replace(CLIP, stem=patches(embed=None, positions=_WITH_CLASS, vectors=1), norms=("pre_layrnorm",))
BLIP: Final = replace(
    SIGLIP,
    stem=patches(positions=_WITH_CLASS, vectors=1),
    style=Style(names=("qkv", "projection"), bias=("qkv_bias", True, True, True)),
)
MINIMAX: Final = Encoder(stem=patches(bias=False, frames="temporal_patch_size"), norms=("pre_layrnorm",))

# InternVL and Janus.

_INTERN: Final = Style(
    attention="attention",
    names=("q_proj", "k_proj", "v_proj", "projection_layer"),
    bias=("attention_bias", "attention_bias", "attention_bias", True),
    norms=_BEFORE_AFTER,
    qk_norm="full",
    qk_norm_if="use_qk_norm",
    scales=_SCALED,
)


def _internvl_extra(config: Config, path: str, width: int) -> Weighed:
    weights: Weighed = ()
    if config.flag("use_absolute_position_embeddings"):
        weights += embedding(f"{path}.embeddings.position_embeddings", grid(config, 1), width)
    if config.flag("use_mask_token"):
        weights += parameter(f"{path}.embeddings.mask_token", width)
    if not config.flag("use_mean_pooling"):
        weights += layer_norm(f"{path}.layernorm", width)
    return weights


QIANFAN: Final = Encoder(style=_INTERN, stem=patches(vectors=1), extra=_internvl_extra)
INTERNVL: Final = replace(QIANFAN, layers="encoder.layer")
JANUS: Final = replace(
    SIGLIP,
    style=replace(_INTERN, attention="self_attn", norms=Style().norms, qk_norm_kind="layer", scales=()),
    mlp_width=ratio_width,
)

# Towers with root-mean-square norms and gated MLPs.

_PIXTRAL: Final = Style(
    attention="attention",
    names=LLAMA_NAMES,
    bias=4 * (False,),
    mlp=("feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj"),
    mlp_bias=(False, False),
    norms=("attention_norm", "ffn_norm"),
    norm="rms",
)
PIXTRAL: Final = Encoder(style=_PIXTRAL, stem=patches(bias=False), layers="transformer.layers", norms=("ln_pre",))


def _ovis_head(config: Config, path: str, width: int) -> Weighed:
    """Ovis reads a patch as probabilities over a vocabulary of visual words."""
    words = config.integer("vocab_size") - config.integer("num_visual_indicator_tokens", minimum=0)
    if words < 1:
        raise config.error("vocab_size", config.get("vocab_size"), "more than num_visual_indicator_tokens")
    stride = config.integer("hidden_stride")
    return (
        *rms_norm(f"{path}.transformer.embeddings.rms_norm", width),
        *linear(f"{path}.head_linear", width * stride**2, words),
        *layer_norm(f"{path}.head_norm", words),
    )


OVIS: Final = Encoder(
    style=replace(
        _PIXTRAL,
        names=Style().names,
        bias=4 * ("qkv_bias",),
        mlp=("ffn.gate_proj", "ffn.up_proj", "ffn.down_proj"),
        mlp_bias=("mlp_bias", "mlp_bias"),
        norms=("rms_norm1", "rms_norm2"),
    ),
    stem=patches(positions=grid),
    layers="transformer.encoder.layers",
    norms=("transformer.rms_norm",),
    extra=_ovis_head,
)


def _kosmos_patches(config: Config, path: str, width: int) -> Weighed:
    rows = config.integer("max_num_patches")
    return (
        *linear(f"{path}.embeddings.patch_projection", config.integer("patch_embed_hidden_size"), width, bias=True),
        *embedding(f"{path}.embeddings.row_embedder", rows, width),
        *embedding(f"{path}.embeddings.column_embedder", rows, width),
    )


KOSMOS25: Final = Encoder(
    style=replace(
        _PIXTRAL,
        names=("query", "key", "value", "output"),
        mlp=("mlp.wi_0", "mlp.wi_1", "mlp.wo"),
        norms=("pre_attention_layer_norm", "pre_mlp_layer_norm"),
        heads="own",
        kv_heads=True,
    ),
    layers="encoder.layer",
    norms=("layernorm",),
    extra=_kosmos_patches,
)


def _gemma4_stem(config: Config, path: str, width: int) -> Weighed:
    """Patches of three colours, and positions by row and by column."""
    base, patch = f"{path}.patch_embedder", config.integer("patch_size")
    return (
        *linear(f"{base}.input_proj", 3 * patch**2, width),
        *embedding(f"{base}.position_embedding_table", 2 * config.integer("position_embedding_size"), width),
    )


GEMMA4: Final = Encoder(
    style=replace(
        _PIXTRAL,
        attention="self_attn",
        mlp=GATED,
        norms=(*LLAMA.norms, "pre_feedforward_layernorm", "post_feedforward_layernorm"),
        heads="own",
        kv_heads=True,
        qk_norm="head",
    ),
    stem=_gemma4_stem,
    layers="encoder.layers",
)


def gemma4_unified(config: Config, path: str) -> tuple[Block, ...]:
    """Gemma 4 without a tower: large patches go through one linear layer, with norms and positions."""
    width = config.integer("mm_embed_dim")
    patch = 3 * (config.integer("patch_size") * config.integer("pooling_kernel_size")) ** 2
    weights = (
        *layer_norm(f"{path}.patch_ln1", patch),
        *linear(f"{path}.patch_dense", patch, width, bias=True),
        *layer_norm(f"{path}.patch_ln2", width),
        *embedding(f"{path}.pos_embedding", 2 * config.integer("mm_posemb_size"), width),
        *layer_norm(f"{path}.pos_norm", width),
    )
    return block("embedding", weights)


# Towers whose tables of positions are as large as the largest image.


def _rows_and_columns(config: Config) -> int:
    return config.integer("pos_emb_height") * config.integer("pos_emb_width")


def _first_rows_and_columns(config: Config) -> int:
    """MoonViT's table is for images of 64 x 64 patches where the file names no other size; larger images interpolate it."""
    height, width = (config.maybe_integer(f"init_pos_emb_{side}") or 64 for side in ("height", "width"))
    return height * width


KIMI: Final = Encoder(
    style=Style(attention="attn", names=("q_proj", "k_proj", "v_proj", "proj"), norms=("norm1", "norm2")),
    stem=patches(positions=_rows_and_columns),
    norms=("final_layernorm",),
)
MOONVIT: Final = replace(KIMI, stem=patches(positions=_first_rows_and_columns))
"""Kimi VL's tower, as vLLM's ``moonvit.py`` builds it: that of Kimi K2.5 for single images."""
MUSE: Final = replace(
    KIMI,
    stem=patches(embed=patch_linear, bias=False, frames="patch_temporal", positions=_rows_and_columns),
    norms=("ln_pre", "ln_post"),
)


def _hunyuan_merger(config: Config, path: str, width: int) -> Weighed:
    base, merge, out = f"{path}.patch_merger", *integers(config, "spatial_merge_size", "text_hidden_size")
    return (
        *conv(f"{base}.proj_conv", 2 * width, width, merge, merge),
        *conv(f"{base}.proj_out", 4 * width, 2 * width, 1, 1),
        *linear(f"{base}.mlp", 4 * width, out, bias=True),
        *parameter(f"{base}.image_newline", 4 * width),
        *parameter(f"{base}.image_marks", 3, out),
        *rms_norm(f"{base}.before_rms", width),
        *rms_norm(f"{base}.after_rms", out),
    )


def _hunyuan_positions(config: Config) -> int:
    return (config.integer("max_image_size") // config.integer("patch_size")) ** 2 + 1


HUNYUAN: Final = Encoder(style=Style(names=LLAMA_NAMES), stem=patches(positions=_hunyuan_positions), extra=_hunyuan_merger)


def _molmo_positions(config: Config) -> int:
    given = config.maybe_integer("num_position_embeddings")
    if given is not None:
        return given
    patch = config.integer("patch_size")
    sides = pair(config, "image_size") if config.get("image_size") is not None else (378, 378)
    return (sides[0] // patch) * (sides[1] // patch)


MOLMO2: Final = Encoder(
    style=Style(names=LLAMA_NAMES, bias=4 * ("attention_bias",), heads="own", kv_heads=True),
    stem=patches(embed=patch_linear, positions=_molmo_positions),
)


def _radio_patches(config: Config, path: str, width: int) -> Weighed:
    """RADIO has its own tables: one projection for images, one for videos, and registers beside the class vectors."""
    base, size = f"{path}.embeddings", config.integer("patch_size")
    side, patch = config.integer("max_img_size") // size, config.integer("num_channels") * size**2
    weights = linear(f"{base}.patch_projection", patch, width)
    frames = config.maybe_integer("video_temporal_patch_size")
    if frames is not None:
        weights += linear(f"{base}.video_patch_projection", patch * frames, width)
    weights += embedding(f"{base}.position_embedding", side * side, width)
    rows = config.integer("num_cls_tokens", minimum=0) + config.integer("num_registers", minimum=0)
    return weights + parameter(f"{base}.cls_register_token", rows, width)


RADIO: Final = Encoder(
    style=Style(
        attention="attention",
        names=LLAMA_NAMES,
        bias=("qkv_bias", "qkv_bias", "qkv_bias", True),
        norms=("norm1", "norm2"),
        scales=("layer_scale1.lambda1", "layer_scale2.lambda1"),
    ),
    layers="encoder.layer",
    mlp_width=ratio_width,
    extra=_radio_patches,
)

# Towers with a scale on each branch, which make their patches fewer at the end.


def _downsamplers(config: Config, path: str, width: int) -> Weighed:
    """Two convolutions, each of which halves the sides and doubles the channels."""
    first = conv(f"{path}.downsampler1", 2 * width, width, 3, 3)
    return first + conv(f"{path}.downsampler2", 4 * width, 2 * width, 3, 3)


STEP: Final = Encoder(
    style=Style(norms=_BEFORE_AFTER, scales=_SCALED),
    stem=patches(bias=False, positions=grid),
    mlp_width=ratio_width,
    norms=("pre_layernorm",),
    extra=_downsamplers,
)


def _inkling_merger(config: Config, path: str, width: int) -> Weighed:
    merged = width * config.integer("spatial_merge_size") ** 2
    sizes = (merged, *integers(config, "projection_hidden_dim", "text_hidden_size"))
    return mlp_chain(f"{path}.merger", sizes, ("linear_1", "linear_2"), bias=config.flag("projector_bias"))


INKLING2: Final = replace(
    STEP,
    stem=patches(embed=patch_linear, bias=False, positions=lambda config: config.integer("posemb_grid_size") ** 2, vectors=2),
    mlp_width=lambda config, width: config.maybe_integer("intermediate_size") or ratio_width(config, width),
    extra=_inkling_merger,
)
