"""Vision transformers: patches, positions, equal layers, and norms around them.

Those of CLIP and its kin; Llama's, with tiles of large images; those that merge neighbouring patches into one token themselves
(Qwen-VL, GLM-V); SAM, with windows and relative positions by row and by column; and BLIP-2's query transformer, whose learned
queries attend to a tower's output, and in some models to text as well.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Final

from msgspec.structs import replace

from hwcalc.formulas import weights as w
from hwcalc.formulas.weights import Block, Part, WeightRole
from hwcalc.parsers.blocks import Weighed, norm, projections, square
from hwcalc.parsers.config import MAX_LAYERS, Config
from hwcalc.parsers.towers import build
from hwcalc.parsers.towers.build import GATED, LLAMA, LLAMA_NAMES, Encoder, Style, Weigh

_WITH_CLASS: Final = partial(build.grid, extra=1)
_SCALED: Final = ("lambda_1", "lambda_2")
_BEFORE_AFTER: Final = ("layernorm_before", "layernorm_after")


def _pooling_head(config: Config, path: str, width: int) -> Weighed:
    """SigLIP's head: one learned query that attends to all patches, then an MLP."""
    if not config.flag("vision_use_head", default=True):
        return ()
    head = f"{path}.head"
    weights = w.parameter(f"{head}.probe", width)
    weights += w.parameter(f"{head}.attention.in_proj_weight", 3 * width, width, role=WeightRole.LINEAR)
    weights += w.parameter(f"{head}.attention.in_proj_bias", 3 * width, role=WeightRole.BIAS)
    weights += w.linear(f"{head}.attention.out_proj", width, width, bias=True) + w.layer_norm(f"{head}.layernorm", width)
    return weights + w.plain_mlp(width, config.integer("intermediate_size"), path=f"{head}.mlp")


def _window_merger(config: Config, path: str, width: int) -> Weighed:
    """MiniCPM-V's merger between two layers: attention within a window, then an MLP over the window."""
    down, across = build.pair(config, "window_kernel_size")
    base, merged = f"{path}.vit_merger", down * across * width
    sizes = (merged, down * across * config.integer("intermediate_size"), width)
    weights = build.encoder_layer(config, Style(norms=("layer_norm1",)), base, width, 0)
    return weights + w.layer_norm(f"{base}.pre_norm", merged) + build.mlp_chain(base, sizes, ("linear_1", "linear_2"))


def _docling_connector(config: Config, path: str, width: int) -> Weighed:
    """Granite Docling's two routes from patches to tokens, a coarse and a fine one."""
    base, out, factor = f"{path}.connector", config.integer("out_hidden_size"), config.integer("scale_factor")
    taps = config.sequence("deepstack_visual_indexes", most=MAX_LAYERS)
    weights = w.layer_norm(f"{base}.ln_in", width)
    routes = {"coarse": factor} | ({"fine": factor // 2} if config.flag("use_fine_route") else {})
    for route, scale in routes.items():
        merged, tap = width * scale**2, f"{base}.{route}.deepstack_mergers"
        weights += w.linear(f"{base}.{route}.projection", merged, out)
        for _ in range(3 if taps is None else len(taps)):
            weights += w.layer_norm(f"{tap}.layer_norm", merged)
            weights += build.mlp_chain(tap, (merged, out, out), ("linear_1", "linear_2"))
    weights += w.layer_norm(f"{base}.ln_mid", out) + w.linear(f"{base}.mlp_fc2", out, out)
    return weights + w.layer_norm(f"{base}.ln_out", out)


def _internvl_extra(config: Config, path: str, width: int) -> Weighed:
    weights: Weighed = ()
    if config.flag("use_absolute_position_embeddings"):
        weights += w.embedding(f"{path}.embeddings.position_embeddings", build.grid(config, 1), width)
    if config.flag("use_mask_token"):
        weights += w.parameter(f"{path}.embeddings.mask_token", width)
    if not config.flag("use_mean_pooling"):
        weights += w.layer_norm(f"{path}.layernorm", width)
    return weights


def _ovis_head(config: Config, path: str, width: int) -> Weighed:
    """Ovis reads a patch as probabilities over a vocabulary of visual words."""
    words = config.integer("vocab_size") - config.integer("num_visual_indicator_tokens", minimum=0)
    if words < 1:
        raise config.error("vocab_size", config.get("vocab_size"), "more than num_visual_indicator_tokens")
    stride = config.integer("hidden_stride")
    weights = w.rms_norm(f"{path}.transformer.embeddings.rms_norm", width)
    return weights + w.linear(f"{path}.head_linear", width * stride**2, words) + w.layer_norm(f"{path}.head_norm", words)


def _kosmos_patches(config: Config, path: str, width: int) -> Weighed:
    rows = config.integer("max_num_patches")
    return (
        *w.linear(f"{path}.embeddings.patch_projection", config.integer("patch_embed_hidden_size"), width, bias=True),
        *w.embedding(f"{path}.embeddings.row_embedder", rows, width),
        *w.embedding(f"{path}.embeddings.column_embedder", rows, width),
    )


def _gemma4_stem(config: Config, path: str, width: int) -> Weighed:
    """Patches of three colours, and positions by row and by column."""
    base, patch = f"{path}.patch_embedder", config.integer("patch_size")
    return (
        *w.linear(f"{base}.input_proj", 3 * patch**2, width),
        *w.embedding(f"{base}.position_embedding_table", 2 * config.integer("position_embedding_size"), width),
    )


def gemma4_unified(config: Config, path: str) -> tuple[Block, ...]:
    """Gemma 4 without a tower: large patches go through one linear layer, with norms and positions."""
    width = config.integer("mm_embed_dim")
    patch = 3 * (config.integer("patch_size") * config.integer("pooling_kernel_size")) ** 2
    weights = w.layer_norm(f"{path}.patch_ln1", patch) + w.linear(f"{path}.patch_dense", patch, width, bias=True)
    weights += w.layer_norm(f"{path}.patch_ln2", width)
    weights += w.embedding(f"{path}.pos_embedding", 2 * config.integer("mm_posemb_size"), width)
    weights += w.layer_norm(f"{path}.pos_norm", width)
    return build.block("embedding", weights)


def _rows_and_columns(config: Config) -> int:
    return config.integer("pos_emb_height") * config.integer("pos_emb_width")


def _first_rows_and_columns(config: Config) -> int:
    """MoonViT's table is for images of 64 x 64 patches where the file names no other size; larger images interpolate it."""
    height, width = (config.maybe_integer(f"init_pos_emb_{side}") or 64 for side in ("height", "width"))
    return height * width


def _hunyuan_merger(config: Config, path: str, width: int) -> Weighed:
    base, merge, out = f"{path}.patch_merger", *build.integers(config, "spatial_merge_size", "text_hidden_size")
    weights = build.conv(f"{base}.proj_conv", 2 * width, width, merge, merge)
    weights += build.conv(f"{base}.proj_out", 4 * width, 2 * width, 1, 1) + w.linear(f"{base}.mlp", 4 * width, out, bias=True)
    weights += w.parameter(f"{base}.image_newline", 4 * width) + w.parameter(f"{base}.image_marks", 3, out)
    return weights + w.rms_norm(f"{base}.before_rms", width) + w.rms_norm(f"{base}.after_rms", out)


def _hy_v4_merger(config: Config, path: str, width: int) -> Weighed:
    base, merge, out = f"{path}.patch_merger", *build.integers(config, "spatial_merge_size", "out_hidden_size")
    weights = build.conv(f"{base}.proj_conv", out, width, merge, merge) + build.conv(f"{base}.proj_out", out, out, 1, 1)
    return weights + w.parameter(f"{base}.image_newline", out) + w.rms_norm(f"{base}.before_rms", width)


def _molmo_positions(config: Config) -> int:
    given = config.maybe_integer("num_position_embeddings")
    if given is not None:
        return given
    patch = config.integer("patch_size")
    sides = build.pair(config, "image_size") if config.get("image_size") is not None else (378, 378)
    return (sides[0] // patch) * (sides[1] // patch)


def _radio_patches(config: Config, path: str, width: int) -> Weighed:
    """RADIO has its own tables: one projection for images, one for videos, and registers beside the class vectors."""
    base, size = f"{path}.embeddings", config.integer("patch_size")
    side, patch = config.integer("max_img_size") // size, config.integer("num_channels") * size**2
    weights = w.linear(f"{base}.patch_projection", patch, width)
    frames = config.maybe_integer("video_temporal_patch_size")
    if frames is not None:
        weights += w.linear(f"{base}.video_patch_projection", patch * frames, width)
    weights += w.embedding(f"{base}.position_embedding", side * side, width)
    rows = config.integer("num_cls_tokens", minimum=0) + config.integer("num_registers", minimum=0)
    return weights + w.parameter(f"{base}.cls_register_token", rows, width)


def _downsamplers(config: Config, path: str, width: int) -> Weighed:
    """Two convolutions, each of which halves the sides and doubles the channels."""
    first = build.conv(f"{path}.downsampler1", 2 * width, width, 3, 3)
    return first + build.conv(f"{path}.downsampler2", 4 * width, 2 * width, 3, 3)


def _inkling_merger(config: Config, path: str, width: int) -> Weighed:
    merged = width * config.integer("spatial_merge_size") ** 2
    sizes = (merged, *build.integers(config, "projection_hidden_dim", "text_hidden_size"))
    return build.mlp_chain(f"{path}.merger", sizes, ("linear_1", "linear_2"), bias=config.flag("projector_bias"))


_ENDS: Final = ("layernorm_pre", "layernorm_post")


def _stem4(config: Config, path: str, width: int) -> Weighed:
    return (
        *w.parameter(f"{path}.class_embedding", width),
        *w.embedding(f"{path}.positional_embedding_vlm", build.grid(config, 1), width),
        *build.patch_linear(config, f"{path}.patch_embedding.linear", width, bias=False),
    )


def _adapter(config: Config, path: str, width: int) -> Weighed:
    """An MLP over shuffled pixels, which are as wide as the tower's own MLP."""
    base, out = f"{path}.vision_adapter.mlp", config.integer("projector_output_dim")
    first = w.linear(f"{base}.fc1", config.integer("intermediate_size"), config.integer("projector_input_dim"))
    return first + w.linear(f"{base}.fc2", out, out)


def _tiled_stem(config: Config, path: str, width: int) -> Weighed:
    """Positions per tile and per aspect ratio, each behind a gate."""
    patches, tiles = build.grid(config, 1), config.integer("max_num_tiles")
    ratios = config.sequence("supported_aspect_ratios")
    rows, gated = 1 + (8 if ratios is None else len(ratios)), f"{path}.gated_positional_embedding"
    weights = w.parameter(f"{path}.class_embedding", width)
    weights += build.patch_conv(config, f"{path}.patch_embedding", width, bias=False) + w.parameter(f"{gated}.gate", 1)
    weights += w.parameter(f"{gated}.embedding", patches, width)
    weights += w.embedding(f"{gated}.tile_embedding", rows, tiles * patches * width)
    for name in ("pre", "post"):
        base = f"{path}.{name}_tile_positional_embedding"
        weights += (*w.parameter(f"{base}.gate", 1), *w.embedding(f"{base}.embedding", rows, tiles * width))
    return weights


def mllama(config: Config, path: str) -> tuple[Block, ...]:
    """Llama 3.2 Vision: after its layers some more of the same shape, each with two gates."""
    embeddings, layer, norms = _TILED(config, path)
    gates = w.parameter(f"{path}.global_transformer.layers.gates", 2)
    more = build.block("global layer", layer.weights + gates, count=config.number_of_layers("num_global_layers"))
    return (embeddings, layer, *more, norms)


def _mlp_merger(config: Config, path: str, width: int, *, out: str = "out_hidden_size", kind: str = "layer") -> Weighed:
    """A norm over patches, then two linear layers over what was merged."""
    merged = width * config.integer("spatial_merge_size") ** 2
    weights = norm(kind, f"{path}.merger.ln_q", width)
    return weights + build.mlp_chain(f"{path}.merger", (merged, merged, config.integer(out)), ("mlp.0", "mlp.2"))


def _dots_ocr_norms(config: Config, path: str, width: int) -> Weighed:
    """dots.ocr: a norm behind the patches, and one behind the layers unless ``post_norm`` leaves it out."""
    weights = norm("rms", f"{path}.patch_embed.patchifier.norm", width)
    return weights + (norm("rms", f"{path}.post_trunk_norm", width) if config.flag("post_norm", default=True) else ())


def _deepstack(config: Config, path: str, width: int) -> Weighed:
    """The same, and once more for each layer whose output goes straight to the language model."""
    weights, tap = _mlp_merger(config, path, width), f"{path}.deepstack_merger_list"
    merged = width * config.integer("spatial_merge_size") ** 2
    for _ in config.sequence("deepstack_visual_indexes", most=MAX_LAYERS) or ():
        sizes = (merged, merged, config.integer("out_hidden_size"))
        weights += w.layer_norm(f"{tap}.norm", merged) + build.mlp_chain(tap, sizes, ("linear_fc1", "linear_fc2"))
    return weights


def _gated_merger(inner: tuple[str, ...], names: tuple[str, ...]) -> Weigh:
    """A strided convolution that merges, then a gated MLP as wide as the product of the keys ``inner``; norms of the tower."""

    def merger(config: Config, path: str, width: int) -> Weighed:
        out, merge = build.integers(config, "out_hidden_size", "spatial_merge_size")
        weights = build.conv(f"{path}.downsample", out, width, merge, merge)
        weights += w.linear(f"{path}.merger.proj", out, out)
        weights += w.layer_norm(f"{path}.merger.post_projection_norm", out)
        weights += w.gated_mlp(out, prod(build.integers(config, *inner)), path=f"{path}.merger")
        return weights + build.norms("rms", path, names, width)

    return merger


def qformer(config: Config, path: str, *, instructed: bool = False) -> tuple[Block, ...]:
    """The query transformer of BLIP-2, or of InstructBLIP, which always reads text: an instruction. BLIP-2's config says whether it does.

    Some layers have cross attention to the tower. If the model reads text, each layer has a second MLP for it.
    """
    reads_text = instructed or config.flag("use_qformer_text_input")
    width, middle = build.integers(config, "hidden_size", "intermediate_size")
    count, base = config.number_of_layers(), f"{path}.encoder.layer"
    layer = _attention(f"{base}.attention", width, width) + _mlp(base, width, middle, "_query")
    if reads_text:
        layer += _mlp(base, width, middle, "")
    crossing = -(-count // config.integer("cross_attention_frequency"))
    cross = _attention(f"{base}.crossattention", width, config.integer("encoder_hidden_size"))
    return (
        *build.block("norm", w.layer_norm(f"{path}.layernorm", width), Part.PROJECTOR),
        *build.block("layer", layer, Part.PROJECTOR, count),
        *build.block("cross attention", cross, Part.PROJECTOR, crossing),
    )


def _attention(path: str, width: int, source: int) -> Weighed:
    names = {"q": "attention.query", "k": "attention.key", "v": "attention.value", "o": "output.dense"}
    weights = projections(path, width, square(width), names, source=source, biased="qkvo")
    return weights + w.layer_norm(f"{path}.output.LayerNorm", width)


def _mlp(path: str, width: int, middle: int, suffix: str) -> Weighed:
    weights = w.plain_mlp(width, middle, path=path, names=(f"intermediate{suffix}.dense", f"output{suffix}.dense"))
    return weights + w.layer_norm(f"{path}.output{suffix}.LayerNorm", width)


def encoder(config: Config, path: str) -> tuple[Block, ...]:
    """SAM's encoder."""
    width, side = config.integer("hidden_size"), config.integer("image_size") // config.integer("patch_size")
    embeddings = build.patch_conv(config, f"{path}.patch_embed.projection", width)
    if config.flag("use_abs_pos"):
        embeddings += w.embedding(f"{path}.pos_embed", side * side, width)
    return (
        *build.block("embedding", embeddings),
        *sam_layers(config, f"{path}.layers"),
        *build.block("neck", build.neck(f"{path}.neck", width, config.integer("output_channels"))),
    )


def sam_layers(
    config: Config, path: str, *, kinds: tuple[str, str] = ("global layer", "layer"), table: str = ".weight"
) -> tuple[Block, ...]:
    """Global layers and layers with windows, under the names ``kinds``. They differ in their tables of relative positions.

    ``table`` is how the path of such a table ends.
    """
    width, heads = build.integers(config, "hidden_size", "num_attention_heads")
    count, side = config.number_of_layers(), config.integer("image_size") // config.integer("patch_size")
    layer = build.encoder_layer(config, _STYLE, path, width, config.maybe_integer("mlp_dim") or build.ratio_width(config, width))
    everywhere = sum(1 for index in set(config.integers("global_attn_indexes") or ()) if index < count)
    window = config.integer("window_size", minimum=0)
    out: tuple[Block, ...] = ()
    for kind, layers, reach in zip(kinds, (everywhere, count - everywhere), (side, window or side), strict=True):
        relative: Weighed = ()
        for axis in "hw" if config.flag("use_rel_pos") else "":
            shape = (2 * reach - 1, build.split_width(config, width, heads))
            relative += w.parameter(f"{path}.attn.rel_pos_{axis}{table}", *shape, role=WeightRole.EMBEDDING)
        out += build.block(kind, layer + relative, count=layers)
    return out


def downsampled(config: Config, path: str) -> tuple[Block, ...]:
    """SAM's encoder and two convolutions, each of which halves the sides."""
    first, second = (config.integers("downsample_channels", length=2, minimum=1) or (512, 1024))[:2]
    weights = build.conv(f"{path}.proj.conv1", first, config.integer("output_channels"), 3, 3, bias=False)
    weights += build.conv(f"{path}.proj.conv2", second, first, 3, 3, bias=False)
    return (*encoder(config, path), *build.block("downsampling", weights))


def two_in_a_row(config: Config, path: str) -> tuple[Block, ...]:
    """SAM's encoder, and one like CLIP that reads SAM's tokens."""
    sam = build.tower(build.needed(config, "sam_config"), f"{path}.sam_encoder")
    return sam + build.tower(build.needed(config, "encoder_config"), f"{path}.vision_encoder")


SIGLIP: Final = Encoder(stem=build.patches(positions=build.grid), layers="encoder.layers", norms=("post_layernorm",))
SIGLIP_POOLED: Final = replace(SIGLIP, extra=_pooling_head)
SIGLIP2_BARE: Final = replace(SIGLIP, stem=build.patches(embed=build.patch_linear, positions="num_patches"))
SIGLIP2: Final = replace(SIGLIP2_BARE, extra=_pooling_head)
# Images of any size have a second table, of 32,768 positions in a row, in vLLM's ``keye.py``.
KEYE: Final = replace(
    SIGLIP, extra=lambda _, path, width: w.embedding(f"{path}.embeddings.packing_position_embedding", 32_768, width)
)
NO_POSITIONS: Final = replace(SIGLIP, stem=build.patches())
DOCLING: Final = replace(SIGLIP, extra=_docling_connector)
MINICPM: Final = replace(SIGLIP, extra=_window_merger)
CLIP: Final = replace(
    SIGLIP, stem=build.patches(bias=False, positions=_WITH_CLASS, vectors=1), norms=("pre_layrnorm", "post_layernorm")
)
CLIP_BEHIND_SAM: Final = replace(CLIP, stem=build.patches(embed=None, positions=_WITH_CLASS, vectors=1), norms=("pre_layrnorm",))
BLIP: Final = replace(
    SIGLIP, stem=build.patches(positions=_WITH_CLASS, vectors=1),
    style=Style(names=("qkv", "projection"), bias=("qkv_bias", True, True, True)),
)  # fmt: skip
MINIMAX: Final = Encoder(stem=build.patches(bias=False, frames="temporal_patch_size"), norms=("pre_layrnorm",))
_INTERN: Final = Style(
    attention="attention", names=("q_proj", "k_proj", "v_proj", "projection_layer"),
    bias=("attention_bias", "attention_bias", "attention_bias", True), norms=_BEFORE_AFTER, qk_norm="full",
    qk_norm_if="use_qk_norm", scales=_SCALED,
)  # fmt: skip
QIANFAN: Final = Encoder(style=_INTERN, stem=build.patches(vectors=1), extra=_internvl_extra)
INTERNVL: Final = replace(QIANFAN, layers="encoder.layer")
JANUS: Final = replace(
    SIGLIP, style=replace(_INTERN, attention="self_attn", norms=Style().norms, qk_norm_kind="layer", scales=()),
    mlp_width=build.ratio_width,
)  # fmt: skip
_PIXTRAL: Final = Style(
    attention="attention", names=LLAMA_NAMES, bias=4 * (False,),
    mlp=("feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj"), mlp_bias=(False, False),
    norms=("attention_norm", "ffn_norm"), norm="rms",
)  # fmt: skip
PIXTRAL: Final = Encoder(style=_PIXTRAL, stem=build.patches(bias=False), layers="transformer.layers", norms=("ln_pre",))
OVIS: Final = Encoder(
    style=replace(
        _PIXTRAL, names=Style().names, bias=4 * ("qkv_bias",), mlp=("ffn.gate_proj", "ffn.up_proj", "ffn.down_proj"),
        mlp_bias=("mlp_bias", "mlp_bias"), norms=("rms_norm1", "rms_norm2"),
    ),
    stem=build.patches(positions=build.grid), layers="transformer.encoder.layers", norms=("transformer.rms_norm",),
    extra=_ovis_head,
)  # fmt: skip
KOSMOS25: Final = Encoder(
    style=replace(
        _PIXTRAL, names=("query", "key", "value", "output"), mlp=("mlp.wi_0", "mlp.wi_1", "mlp.wo"),
        norms=("pre_attention_layer_norm", "pre_mlp_layer_norm"), heads="own", kv_heads=True,
    ),
    layers="encoder.layer", norms=("layernorm",), extra=_kosmos_patches,
)  # fmt: skip
GEMMA4: Final = Encoder(
    style=replace(
        _PIXTRAL, attention="self_attn", mlp=GATED, heads="own", kv_heads=True, qk_norm="head",
        norms=(*LLAMA.norms, "pre_feedforward_layernorm", "post_feedforward_layernorm"),
    ),
    stem=_gemma4_stem, layers="encoder.layers",
)  # fmt: skip
KIMI: Final = Encoder(
    style=Style(attention="attn", names=("q_proj", "k_proj", "v_proj", "proj"), norms=("norm1", "norm2")),
    stem=build.patches(positions=_rows_and_columns), norms=("final_layernorm",),
)  # fmt: skip
MOONVIT: Final = replace(KIMI, stem=build.patches(positions=_first_rows_and_columns))
"""Kimi VL's tower, as vLLM's ``moonvit.py`` builds it: that of Kimi K2.5 for single images."""
MUSE: Final = replace(
    KIMI, stem=build.patches(embed=build.patch_linear, bias=False, frames="patch_temporal", positions=_rows_and_columns),
    norms=("ln_pre", "ln_post"),
)  # fmt: skip
HUNYUAN: Final = Encoder(
    style=Style(names=LLAMA_NAMES),
    stem=build.patches(positions=lambda config: (config.integer("max_image_size") // config.integer("patch_size")) ** 2 + 1),
    extra=_hunyuan_merger,
)
HY_V4: Final = replace(HUNYUAN, style=Style(names=LLAMA_NAMES, heads="split", kv_heads=True), extra=_hy_v4_merger)
MOLMO2: Final = Encoder(
    style=Style(names=LLAMA_NAMES, bias=4 * ("attention_bias",), heads="own", kv_heads=True),
    stem=build.patches(embed=build.patch_linear, positions=_molmo_positions),
)
RADIO: Final = Encoder(
    style=Style(
        attention="attention", names=LLAMA_NAMES, bias=("qkv_bias", "qkv_bias", "qkv_bias", True), norms=("norm1", "norm2"),
        scales=("layer_scale1.lambda1", "layer_scale2.lambda1"),
    ),
    layers="encoder.layer", mlp_width=build.ratio_width, extra=_radio_patches,
)  # fmt: skip
STEP: Final = Encoder(
    style=Style(norms=_BEFORE_AFTER, scales=_SCALED), stem=build.patches(bias=False, positions=build.grid),
    mlp_width=build.ratio_width, norms=("pre_layernorm",), extra=_downsamplers,
)  # fmt: skip
INKLING2: Final = replace(
    STEP,
    stem=build.patches(
        embed=build.patch_linear, bias=False, positions=lambda config: config.integer("posemb_grid_size") ** 2, vectors=2
    ),
    mlp_width=lambda config, width: config.maybe_integer("intermediate_size") or build.ratio_width(config, width),
    extra=_inkling_merger,
)
LLAMA4: Final = Encoder(style=LLAMA, stem=_stem4, layers="model.layers", norms=_ENDS, joint=_adapter, joint_kind="adapter")
_TILED: Final = Encoder(style=replace(LLAMA, bias=4 * (False,)), stem=_tiled_stem, layers="transformer.layers", norms=_ENDS)
_stem = partial(build.patches, "patch_embed.proj", frames="temporal_patch_size", table="pos_embed")
_QKV: Final = Style(attention="attn", names=("qkv", "proj"), norms=("norm1", "norm2"), heads="split")
_GATED_QKV: Final = replace(_QKV, mlp=GATED, norm="rms")
_MERGING: Final = Encoder(style=_QKV, layers="blocks", joint_kind="merger")
QWEN2: Final = replace(
    _MERGING, stem=_stem(bias=False), width="embed_dim", mlp_width=build.ratio_width,
    joint=partial(_mlp_merger, out="hidden_size"),
)  # fmt: skip
DOTS_OCR: Final = replace(
    _MERGING,
    style=replace(
        _GATED_QKV, mlp=("mlp.fc1", "mlp.fc3", "mlp.fc2"), bias=4 * ("use_bias",), mlp_bias=("use_bias", "use_bias")
    ),
    stem=build.patches("patch_embed.patchifier.proj"), width="embed_dim", extra=_dots_ocr_norms,
    joint=partial(_mlp_merger, out="hidden_size"),
)  # fmt: skip
QWEN25: Final = replace(_MERGING, style=_GATED_QKV, stem=_stem(bias=False), joint=partial(_mlp_merger, kind="rms"))
QWEN25_SPLIT: Final = replace(QWEN25, style=replace(_GATED_QKV, names=("q", "k", "v", "proj")))
EXAONE: Final = replace(QWEN25, style=replace(_GATED_QKV, kv_heads=True))
QWEN3: Final = replace(
    _MERGING, style=replace(_QKV, mlp=("mlp.linear_fc1", "mlp.linear_fc2")), stem=_stem(positions="num_position_embeddings"),
    joint=_deepstack,
)  # fmt: skip
QWEN35: Final = replace(QWEN3, joint=_mlp_merger)
GLM4V: Final = replace(
    _MERGING, style=replace(_GATED_QKV, bias=("attention_bias", False, False, False), mlp_bias=(False, False)),
    stem=_stem(positions=build.grid), mlp_width="out_hidden_size",
    joint=_gated_merger(("intermediate_size",), ("post_conv_layernorm", "post_layernorm")),
)  # fmt: skip
GLM_OCR: Final = replace(
    _MERGING,
    style=replace(_GATED_QKV, bias=4 * ("attention_bias",), mlp_bias=("attention_bias", "attention_bias"), qk_norm="head"),
    stem=_stem(), joint=_gated_merger(("out_hidden_size", "in_channels"), ("post_layernorm",)),
)  # fmt: skip
GLM5: Final = replace(GLM_OCR, joint=_gated_merger(("projection_intermediate_size",), ("post_layernorm",)))
ERNIE: Final = replace(
    _MERGING, stem=_stem(embed=build.patch_linear, bias=False, frames=""),
    joint=lambda _, path, width: w.layer_norm(f"{path}.ln", width),
)  # fmt: skip
instructed: Final = partial(qformer, instructed=True)
_STYLE: Final = Style(attention="attn", names=("qkv", "proj"), bias=("qkv_bias", True, True, True), mlp=("mlp.lin1", "mlp.lin2"))
