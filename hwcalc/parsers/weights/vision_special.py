"""Vision towers that are no plain vision transformer: tiles and gates, relative positions, experts, convolutions, folding.

Each function mirrors the tower's ``modeling_*.py`` in transformers 5.23.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Final

from hwcalc.formulas.weights import Block, Part, Weight, WeightRole, embedding, experts, gated_mlp, linear, parameter, rms_norm
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
    patch_conv,
    patch_linear,
    ratio_width,
    sam_neck,
    tower,
)

__all__ = ["blocks"]

_NO_BIAS: Final = (False, False, False, False)
_SEPARATE: Final = ("q_proj", "k_proj", "v_proj", "o_proj")
_LLAMA_NORMS: Final = ("input_layernorm", "post_attention_layernorm")


def blocks(config: Config, path: str) -> tuple[Block, ...]:
    """All blocks of a tower in the table."""
    return _TABLE[config.model_type or ""](config, path)


def _head_dim(config: Config, width: int, heads: int) -> int:
    if heads > width:
        raise config.error("num_attention_heads", heads, f"at most hidden_size ({width})")
    return width // heads


def _llama4(config: Config, path: str) -> tuple[Block, ...]:
    """Llama 4: unfolded patches, a class vector last, and an adapter over shuffled pixels."""
    width, middle = config.integer("hidden_size"), config.integer("intermediate_size")
    embeddings = (
        *parameter(f"{path}.class_embedding", width),
        *embedding(f"{path}.positional_embedding_vlm", grid(config, 1), width),
        *patch_linear(config, f"{path}.patch_embedding.linear", width, bias=False),
    )
    layer = encoder_layer(config, Style(names=_SEPARATE, norms=_LLAMA_NORMS), f"{path}.model.layers", width, middle)
    out = config.integer("projector_output_dim")
    adapter = (
        *linear(f"{path}.vision_adapter.mlp.fc1", middle, config.integer("projector_input_dim")),
        *linear(f"{path}.vision_adapter.mlp.fc2", out, out),
    )
    return (
        *block("embedding", embeddings),
        *block("layer", layer, count=config.number_of_layers()),
        *block("norm", (*norm(f"{path}.layernorm_pre", width), *norm(f"{path}.layernorm_post", width))),
        *block("adapter", adapter, Part.PROJECTOR),
    )


def _mllama(config: Config, path: str) -> tuple[Block, ...]:
    """Llama 3.2 Vision: positions per tile and per aspect ratio, each behind a gate, and gated global layers."""
    width, middle = config.integer("hidden_size"), config.integer("intermediate_size")
    patches, tiles = grid(config, 1), config.integer("max_num_tiles")
    ratios = config.sequence("supported_aspect_ratios")
    rows = 1 + (_MLLAMA_RATIOS if ratios is None else len(ratios))
    gated = f"{path}.gated_positional_embedding"
    embeddings = (
        *parameter(f"{path}.class_embedding", width),
        *patch_conv(config, f"{path}.patch_embedding", width, bias=False),
        *parameter(f"{gated}.gate", 1),
        *parameter(f"{gated}.embedding", patches, width),
        *embedding(f"{gated}.tile_embedding", rows, tiles * patches * width),
    )
    for name in ("pre", "post"):
        base = f"{path}.{name}_tile_positional_embedding"
        embeddings += (*parameter(f"{base}.gate", 1), *embedding(f"{base}.embedding", rows, tiles * width))
    layer = encoder_layer(
        config, Style(names=_SEPARATE, bias=_NO_BIAS, norms=_LLAMA_NORMS), f"{path}.transformer.layers", width, middle
    )
    gates = parameter(f"{path}.global_transformer.layers.gates", 2)
    return (
        *block("embedding", embeddings),
        *block("layer", layer, count=config.number_of_layers()),
        *block("global layer", (*layer, *gates), count=config.number_of_layers("num_global_layers")),
        *block("norm", (*norm(f"{path}.layernorm_pre", width), *norm(f"{path}.layernorm_post", width))),
    )


_MLLAMA_RATIOS: Final = 8


def _sam(config: Config, path: str) -> tuple[Block, ...]:
    """SAM's image encoder: windows, a few global layers, and positions relative to either side."""
    width, heads, count = config.integer("hidden_size"), config.integer("num_attention_heads"), config.number_of_layers()
    side = config.integer("image_size") // config.integer("patch_size")
    embeddings = patch_conv(config, f"{path}.patch_embed.projection", width)
    if config.flag("use_abs_pos"):
        embeddings += embedding(f"{path}.pos_embed", side * side, width)
    style = Style(
        attention="attn",
        names=("qkv", "proj"),
        bias=("qkv_bias", True, True, True),
        mlp=("mlp.lin1", "mlp.lin2"),
    )
    layer = encoder_layer(config, style, f"{path}.layers", width, config.maybe_integer("mlp_dim") or ratio_width(config, width))
    everywhere = sum(1 for index in set(config.integers("global_attn_indexes") or ()) if index < count)
    window = config.integer("window_size", minimum=0)
    out = block("embedding", embeddings)
    for kind, layers, reach in (("global layer", everywhere, side), ("layer", count - everywhere, window or side)):
        relative: tuple[Weight, ...] = ()
        if config.flag("use_rel_pos"):
            head_dim = _head_dim(config, width, heads)
            relative = (
                *embedding(f"{path}.layers.attn.rel_pos_h", 2 * reach - 1, head_dim),
                *embedding(f"{path}.layers.attn.rel_pos_w", 2 * reach - 1, head_dim),
            )
        out += block(kind, (*layer, *relative), count=layers)
    return (*out, *block("neck", sam_neck(f"{path}.neck", width, config.integer("output_channels"))))


def _sam_downsampled(config: Config, path: str) -> tuple[Block, ...]:
    """The same, and two convolutions that halve the sides."""
    first, second = (config.integers("downsample_channels", length=2, minimum=1) or (512, 1024))[:2]
    weights = (
        *conv(f"{path}.proj.conv1", first, config.integer("output_channels"), 3, 3, bias=False),
        *conv(f"{path}.proj.conv2", second, first, 3, 3, bias=False),
    )
    return (*_sam(config, path), *block("downsampling", weights))


def _unlimited_ocr(config: Config, path: str) -> tuple[Block, ...]:
    """Two towers in a row: a SAM encoder, whose tokens a CLIP-like one reads."""
    out: tuple[Block, ...] = ()
    for key, name in (("sam_config", "sam_encoder"), ("encoder_config", "vision_encoder")):
        part = config.part(key)
        if part is None:
            raise config.missing(key)
        out += tower(part, f"{path}.{name}")
    return out


def _dots(config: Config, path: str) -> tuple[Block, ...]:
    """dots3.note: later layers have experts, more of them the deeper."""
    width = config.maybe_integer("embed_dim") or config.integer("hidden_size")
    heads = config.maybe_integer("num_heads") or config.integer("num_attention_heads")
    count = config.number_of_layers()
    bias = config.flag("use_bias" if config.has("use_bias") else "attention_bias")
    style = Style(
        attention="attn",
        names=("qkv", "proj"),
        bias=(bias, bias, bias, bias),
        norms=("norm1", "norm2"),
        rms=True,
        qk_norm="head",
    )
    base = f"{path}.blocks"
    own = encoder_layer(config, style, base, width, 0, head_dim=_head_dim(config, width, heads))
    dense = gated_mlp(width, config.integer("intermediate_size"), bias=config.flag("mlp_bias"), path=f"{base}.mlp")
    expert = gated_mlp(width, config.integer("moe_intermediate_size"), path=f"{base}.mlp.experts")
    active = config.maybe_integer("num_experts_per_tok") or config.maybe_integer("capacity_factor") or 2
    out = block(
        "embedding", (*patch_conv(config, f"{path}.patch_embed.proj", width), *rms_norm(f"{path}.patch_embed.norm", width))
    )
    out += block("attention", own, count=count)
    for number, layers in sorted(Counter(_dots_experts(config, count)).items()):
        if number == 0:
            out += block("mlp", dense, count=layers)
            continue
        router = linear(f"{base}.mlp.gate", width, number, role=WeightRole.ROUTER)
        out += block("moe", (*experts(expert, number, min(active, number)), *router), count=layers)
    merged = config.integer("adapter_in_dim") * config.integer("adapter_merge_size") ** 2
    merger = (
        *norm(f"{path}.merger.ln_q", config.integer("adapter_in_dim")),
        *mlp_chain(f"{path}.merger", (merged, merged, config.integer("adapter_out_dim")), ("mlp.0", "mlp.2")),
    )
    return (*out, *block("norm", rms_norm(f"{path}.norm", width)), *block("merger", merger, Part.PROJECTOR))


def _dots_experts(config: Config, count: int) -> list[int]:
    """Experts of each layer, 0 for a plain MLP; left out, a pyramid from the 26th of 42 layers on."""
    types = config.strings("mlp_layer_types", length=count)
    if types is not None and not config.has("pyramid_num_routed"):
        layers = (config.layer(i) for i in range(count))
        return [layer.integer("num_local_experts") if kind == "sparse" else 0 for layer, kind in zip(layers, types, strict=True)]
    pyramid = config.sequence("pyramid_num_routed") or [*[-1] * 25, *range(4, 65, 4), 64]
    if len(pyramid) != count:
        raise config.error("pyramid_num_routed", f"{len(pyramid)} items long", f"a list of {count} items, one for each layer")
    return [max(0, config.checked_integer("pyramid_num_routed", number, minimum=-1)) for number in pyramid]


def _gemma4(config: Config, path: str) -> tuple[Block, ...]:
    """Gemma 4: positions by row and by column, four norms a layer."""
    width, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    style = Style(
        names=_SEPARATE,
        bias=_NO_BIAS,
        mlp=("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
        mlp_bias=(False, False),
        norms=("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
        rms=True,
        qk_norm="head",
    )
    head_dim = config.maybe_integer("head_dim") or _head_dim(config, width, heads)
    layer = encoder_layer(
        config,
        style,
        f"{path}.encoder.layers",
        width,
        config.integer("intermediate_size"),
        heads=heads,
        kv_heads=config.integer("num_key_value_heads"),
        head_dim=head_dim,
    )
    embeddings = (
        *linear(f"{path}.patch_embedder.input_proj", 3 * config.integer("patch_size") ** 2, width),
        *embedding(f"{path}.patch_embedder.position_embedding_table", 2 * config.integer("position_embedding_size"), width),
    )
    return (*block("embedding", embeddings), *block("layer", layer, count=config.number_of_layers()))


def _gemma4_unified(config: Config, path: str) -> tuple[Block, ...]:
    """Gemma 4 without a tower: large patches go through one linear layer, with norms and positions."""
    width = config.integer("mm_embed_dim")
    patch = 3 * (config.integer("patch_size") * config.integer("pooling_kernel_size")) ** 2
    weights = (
        *norm(f"{path}.patch_ln1", patch),
        *linear(f"{path}.patch_dense", patch, width, bias=True),
        *norm(f"{path}.patch_ln2", width),
        *embedding(f"{path}.pos_embedding", 2 * config.integer("mm_posemb_size"), width),
        *norm(f"{path}.pos_norm", width),
    )
    return block("embedding", weights)


def _lfm3(config: Config, path: str) -> tuple[Block, ...]:
    """LFM3-VL: gated short convolutions over the image, and attention in every other layer."""
    width, heads, count = config.integer("hidden_size"), config.integer("num_attention_heads"), config.number_of_layers()
    kernel, base = config.integer("conv_kernel_size"), f"{path}.layers"
    types = config.strings("layer_types", length=count)
    if types is None:
        types = ["conv" if i < 2 or i % 2 else "full_attention" for i in range(count)]
    convolutions = types.count("conv")
    own = Style(bias=_NO_BIAS, norms=(), rms=True, qk_norm="head")
    attention = encoder_layer(
        config,
        own,
        base,
        width,
        0,
        heads=heads,
        kv_heads=config.integer("num_key_value_heads"),
        head_dim=_head_dim(config, width, heads),
    )
    short = (
        *linear(f"{base}.conv.in_proj", width, 3 * width),
        *conv(f"{base}.conv.spatial_conv", width, 1, kernel, kernel, bias=False),
        *linear(f"{base}.conv.out_proj", width, width),
    )
    common = (
        *mlp_chain(f"{base}.feed_forward", (width, config.integer("intermediate_size"), width), ("w1", "w2"), bias=False),
        *linear(f"{base}.feed_forward.w3", width, config.integer("intermediate_size")),
        *rms_norm(f"{base}.operator_norm", width),
        *rms_norm(f"{base}.ffn_norm", width),
    )
    embeddings = patch_linear(config, f"{path}.patch_embed", width, bias=False, frames="temporal_patch_size")
    return (
        *block("embedding", (*embeddings, *rms_norm(f"{path}.embedding_norm", width))),
        *block("convolution", short, count=convolutions),
        *block("attention", attention, count=count - convolutions),
        *block("mlp", common, count=count),
    )


def _inkling(config: Config, path: str) -> tuple[Block, ...]:
    """Inkling: linear layers that fold neighbouring pixels, then frames, into channels until one vector is left."""
    out = config.integer("text_hidden_size")
    weights: tuple[Weight, ...] = ()
    scales = _inkling_scales(config)
    for i, (start, end) in enumerate(pairwise(scales)):
        last = i == len(scales) - 2
        folded = start[2] * (end[0] // start[0]) * (end[1] // start[1]) ** 2
        width = out if last else end[2]
        weights += linear(f"{path}.encoder_layers.projection", folded, width)
        if not last:
            weights += rms_norm(f"{path}.encoder_layers.layer_norm", width)
    return block("folding", (*weights, *rms_norm(f"{path}.final_norm", out)))


def _inkling_scales(config: Config) -> list[tuple[int, int, int]]:
    """Frames, side and channels after each layer.

    One step for each prime factor of the side, the largest first, then of the frames; channels are the values that were
    folded, up to a multiple of 64. Layers are spread evenly over the logarithm of the patch, each at the nearest step.
    Side 4 with 2 frames, 3 channels: (1, 1, 3), (1, 2, 64), (1, 4, 64), (2, 4, 128).

    This is what transformers documents. Its 5.23 rounds up for frames without dividing by 64 first, which makes 614,400
    channels of 9,600 and a tower of 765 billion parameters: not followed, as all of Inkling was published with 952 billion.
    """
    layers, side, frames = config.number_of_layers(), config.integer("patch_size"), config.integer("temporal_patch_size")
    colours = config.integer("num_channels")
    steps = [(1, 1, colours)]
    edge = depth = 1
    for factor in _primes(side):
        edge *= factor
        steps.append((1, edge, -(-(edge**2) * colours // 64) * 64))
    for factor in _primes(frames):
        depth *= factor
        steps.append((depth, edge, -(-(edge**2) * colours * depth // 64) * 64))
    if layers < len(steps):
        # An optimal assignment of steps to layers would be needed, and no model asks for one.
        raise UnknownTowerError(config.model_type)
    total = math.log(side**2 * frames * colours)
    sizes = [math.log(depth * edge**2) for depth, edge, _ in steps]
    nearest = [min(range(len(steps)), key=lambda k: abs(total * i / layers - sizes[k])) for i in range(layers + 1)]
    nearest[0], nearest[-1] = 0, len(steps) - 1
    return [steps[k] for k in nearest]


def _primes(number: int) -> list[int]:
    """Prime factors, the largest first.

    >>> _primes(40)
    [5, 2, 2, 2]
    """
    factors, divisor = [], 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
        if divisor > 100_000:
            break
    return sorted([*factors, number] if number > 1 else factors, reverse=True)


_TABLE: Final[dict[str, Callable[[Config, str], tuple[Block, ...]]]] = {
    "dots3_note_vision_encoder": _dots,
    "gemma4_unified_vision": _gemma4_unified,
    "gemma4_vision": _gemma4,
    "got_ocr2_vision": _sam,
    "inkling_vision": _inkling,
    "lfm3_vl_vision": _lfm3,
    "llama4_vision_model": _llama4,
    "mllama_vision_model": _mllama,
    "pp_chart2table_vision": _sam,
    "sam_vision_model": _sam,
    "unlimited_ocr_sam_vision_model": _sam_downsampled,
    "unlimited_ocr_vision": _unlimited_ocr,
}
