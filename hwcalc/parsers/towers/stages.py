"""Towers whose layers are unlike: with experts, with convolutions between attention, or folding stage by stage.

MobileNet V5, the convolutional tower of Gemma 3n, by its definition in timm (``mobilenetv5_300m_enc``).
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations, pairwise
from typing import Final

from hwcalc.formulas import weights as w
from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Block, Part, WeightRole
from hwcalc.parsers.blocks import Weighed
from hwcalc.parsers.config import Config
from hwcalc.parsers.towers import build

_MOST_CHOICES: Final = 10_000
"""A tower with more ways to choose its steps is none of those that were published."""


def dots(config: Config, path: str) -> tuple[Block, ...]:
    """dots3.note: later layers have experts, and deeper layers have more of them."""
    width = config.maybe_integer("embed_dim") or config.integer("hidden_size")
    heads = config.maybe_integer("num_heads") or config.integer("num_attention_heads")
    count, base = config.number_of_layers(), f"{path}.blocks"
    bias = 4 * (config.flag("use_bias" if config.has("use_bias") else "attention_bias"),)
    own, norms = ("qkv", "proj"), ("norm1", "norm2")
    style = build.Style(attention="attn", names=own, bias=bias, norms=norms, norm="rms", heads="split", qk_norm="head")
    attention = build.encoder_layer(config, style, base, width, 0, heads=heads)
    dense = w.gated_mlp(width, config.integer("intermediate_size"), bias=config.flag("mlp_bias"), path=f"{base}.mlp")
    expert = w.gated_mlp(width, config.integer("moe_intermediate_size"), path=f"{base}.mlp.experts")
    active = config.maybe_integer("num_experts_per_tok") or config.maybe_integer("capacity_factor") or 2
    embeddings = build.patch_conv(config, f"{path}.patch_embed.proj", width) + w.rms_norm(f"{path}.patch_embed.norm", width)
    out = (*build.block("embedding", embeddings), *build.block("attention", attention, count=count))
    for number, layers in sorted(Counter(_dots_experts(config, count)).items()):
        if number == 0:
            out += build.block("mlp", dense, count=layers)
            continue
        router = w.linear(f"{base}.mlp.gate", width, number, role=WeightRole.ROUTER)
        out += build.block("moe", (*w.experts(expert, number, min(active, number)), *router), count=layers)
    source = config.integer("adapter_in_dim")
    merged = source * config.integer("adapter_merge_size") ** 2
    merger = w.layer_norm(f"{path}.merger.ln_q", source)
    merger += build.mlp_chain(f"{path}.merger", (merged, merged, config.integer("adapter_out_dim")), ("mlp.0", "mlp.2"))
    return (*out, *build.block("norm", w.rms_norm(f"{path}.norm", width)), *build.block("merger", merger, Part.PROJECTOR))


def _dots_experts(config: Config, count: int) -> list[int]:
    """Experts of each layer, 0 for a plain MLP; left out, a pyramid from the 26th of 42 layers on."""
    types = config.strings("mlp_layer_types", length=count)
    if types is not None and not config.has("pyramid_num_routed"):
        layers = (config.layer(i) for i in range(count))
        return [layer.integer("num_local_experts") if kind == "sparse" else 0 for layer, kind in zip(layers, types, strict=True)]
    pyramid = config.sequence("pyramid_num_routed") or [*[-1] * 25, *range(4, 65, 4), 64]
    if len(pyramid) != count:
        listed = f"{len(pyramid)} items long"
        raise config.error_in_words("pyramid_num_routed", listed, f"a list of {count} items, one for each layer")
    return [max(0, config.checked_integer("pyramid_num_routed", number, minimum=-1)) for number in pyramid]


def lfm3(config: Config, path: str) -> tuple[Block, ...]:
    """LFM3-VL: gated short convolutions over the image, and attention in every other layer."""
    width, count = config.integer("hidden_size"), config.number_of_layers()
    kernel, base = config.integer("conv_kernel_size"), f"{path}.layers"
    types = config.strings("layer_types", length=count)
    if types is None:
        types = ["conv" if i < 2 or i % 2 else "full_attention" for i in range(count)]
    convolutions = types.count("conv")
    style = build.Style(bias=4 * (False,), norms=(), heads="split", kv_heads=True, qk_norm="head")
    short = w.linear(f"{base}.conv.in_proj", width, 3 * width)
    short += build.conv(f"{base}.conv.spatial_conv", width, 1, kernel, kernel, bias=False)
    short += w.linear(f"{base}.conv.out_proj", width, width)
    inner = config.integer("intermediate_size")
    common = build.mlp_chain(f"{base}.feed_forward", (width, inner, width), ("w1", "w2"), bias=False)
    common += w.linear(f"{base}.feed_forward.w3", width, inner) + build.norms("rms", base, ("operator_norm", "ffn_norm"), width)
    embeddings = build.patch_linear(config, f"{path}.patch_embed", width, bias=False, frames="temporal_patch_size")
    return (
        *build.block("embedding", (*embeddings, *w.rms_norm(f"{path}.embedding_norm", width))),
        *build.block("convolution", short, count=convolutions),
        *build.block("attention", build.encoder_layer(config, style, base, width, 0), count=count - convolutions),
        *build.block("mlp", common, count=count),
    )


def inkling(config: Config, path: str) -> tuple[Block, ...]:
    """Inkling: linear layers that fold neighbouring pixels, then frames, into channels until one vector is left."""
    out, scales = config.integer("text_hidden_size"), _inkling_scales(config)
    weights: Weighed = ()
    for i, (start, end) in enumerate(pairwise(scales)):
        last = i == len(scales) - 2
        folded = start[2] * (end[0] // start[0]) * (end[1] // start[1]) ** 2
        width = out if last else end[2]
        weights += w.linear(f"{path}.encoder_layers.projection", folded, width)
        if not last:
            weights += w.rms_norm(f"{path}.encoder_layers.layer_norm", width)
    return build.block("folding", (*weights, *w.rms_norm(f"{path}.final_norm", out)))


def _inkling_scales(config: Config) -> list[tuple[int, int, int]]:
    """Frames, side and channels after each layer.

    One step for each prime factor of the side, the largest first, then of the frames; channels are the values that were
    folded, up to a multiple of 64. Layers are spread evenly over the logarithm of the patch, each at the nearest step. Fewer layers
    than steps take different steps, those that are nearest in sum.
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
    total = math.log(side**2 * frames * colours)
    ideal = [total * i / layers for i in range(layers + 1)]
    sizes = [math.log(depth * edge**2) for depth, edge, _ in steps]
    if layers >= len(steps):
        chosen = [min(range(len(steps)), key=lambda k: abs(size - sizes[k])) for size in ideal]
    elif math.comb(len(steps), layers + 1) > _MOST_CHOICES:
        raise build.UnknownTowerError(config.model_type)
    else:
        choices = combinations(range(len(steps)), layers + 1)
        chosen = list(min(choices, key=lambda own: sum(abs(a - sizes[k]) for a, k in zip(ideal, own, strict=True))))
    chosen[0], chosen[-1] = 0, len(steps) - 1
    return [steps[k] for k in chosen]


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


def muse_spark_audio(config: Config, path: str) -> tuple[Block, ...]:
    """Muse Spark: four stages that fold the waveform, each with depthwise convolutions and MLPs."""
    count = config.number_of_layers()
    widths = config.integers("hidden_sizes", length=count, minimum=1) or []
    patches = config.integers("patch_sizes", length=count, minimum=1) or []
    depths = config.integers("depths", length=count) or []
    if not (widths and patches and depths):
        raise config.missing("hidden_sizes")
    kernel, out, source = config.integer("conv_kernel_size"), config.integer("out_hidden_size"), 1
    blocks: tuple[Block, ...] = ()
    embedder, base = f"{path}.layers.patch_embedder", f"{path}.layers.conv_blocks"
    for width, patch, depth in zip(widths, patches, depths, strict=True):
        folded = w.linear(f"{embedder}.proj", source * patch, width, bias=True) + w.rms_norm(f"{embedder}.norm", width)
        layer = build.conv(f"{base}.conv", width, 1, kernel) + w.rms_norm(f"{base}.norm", width)
        layer += build.mlp_chain(f"{base}.mlp", (width, build.ratio_width(config, width), width), ("fc1", "fc2"))
        blocks += (*build.block("embedding", folded, Part.AUDIO), *build.block("layer", layer, Part.AUDIO, depth))
        source = width
    ends = w.rms_norm(f"{path}.norm", source) + w.linear(f"{path}.proj", source, out, bias=True)
    ends += w.rms_norm(f"{path}.post_proj_norm", out)
    return (*blocks, *build.block("projector", ends, Part.PROJECTOR))


def inkling_audio(config: Config, path: str) -> tuple[Block, ...]:
    """Inkling: each mel bin of a frame is a token of a codebook of its own."""
    width = config.integer("text_hidden_size")
    rows = config.integer("n_mel_bins") * config.integer("mel_vocab_size")
    weights = (*w.embedding(f"{path}.embed_audio_tokens", rows, width), *w.rms_norm(f"{path}.norm", width))
    return build.block("embedding", weights, Part.AUDIO)


def nothing(config: Config, path: str) -> tuple[Block, ...]:
    """Audio that goes to the language model through its projector alone."""
    return ()


_STEM: Final = 64


class Residual(Record):
    """An inverted residual: channels grow by ``ratio``, and convolutions of single channels stand before and between.

    ``fused`` has one full convolution in place of the growth, and no scale at its end.
    """

    ratio: int
    out: int
    before: int = 0
    """The side of the convolution before the growth; 0 if there is none."""
    between: int = 0
    fused: bool = False

    def weigh(self, path: str, channels: int) -> Weighed:
        """The tensors, for an input of so many channels."""
        inner = self.ratio * channels
        if self.fused:
            return (*_normed(f"{path}.conv_exp", inner, channels, 3), *_normed(f"{path}.conv_pwl", self.out, inner, 1))
        weights = _normed(f"{path}.dw_start", channels, 1, self.before) if self.before else ()
        weights += _normed(f"{path}.pw_exp", inner, channels, 1)
        weights += _normed(f"{path}.dw_mid", inner, 1, self.between) if self.between else ()
        weights += _normed(f"{path}.pw_proj", self.out, inner, 1)
        return weights + w.parameter(f"{path}.layer_scale", self.out)


class Attention(Record):
    """Attention whose heads share one key and one value, which a convolution may thin out first."""

    heads: int
    head_dim: int
    out: int
    thins: bool = False

    def weigh(self, path: str, channels: int) -> Weighed:
        """The tensors, for an input of so many channels."""
        inner = self.heads * self.head_dim
        weights = w.rms_norm(f"{path}.norm", channels) + build.conv(f"{path}.attn.query.proj", inner, channels, 1, 1, bias=False)
        for name in ("key", "value"):
            if self.thins:
                weights += _normed(f"{path}.attn.{name}.down_conv", channels, 1, 3)
            weights += build.conv(f"{path}.attn.{name}.proj", self.head_dim, channels, 1, 1, bias=False)
        weights += build.conv(f"{path}.attn.output.proj", self.out, inner, 1, 1, bias=False)
        return weights + w.parameter(f"{path}.layer_scale", self.out)


def _normed(path: str, out: int, channels: int, side: int) -> Weighed:
    """A square convolution without a bias, and a norm."""
    return build.conv(path, out, channels, side, side, bias=False) + w.rms_norm(f"{path}.bn", out)


_STAGES: Final[tuple[tuple[Residual | Attention, ...], ...]] = (
    3 * (Residual(ratio=4, out=128, fused=True),),
    (
        Residual(ratio=6, out=256, before=3, between=5),
        *2 * (Residual(ratio=4, out=256, before=5), Residual(ratio=4, out=256, before=3)),
    ),
    (
        Residual(ratio=6, out=640, before=5, between=5),
        *7 * (Residual(ratio=4, out=640, before=5),),
        Residual(ratio=1, out=640),
        *14 * (Attention(heads=12, head_dim=64, out=640, thins=True), Residual(ratio=2, out=640)),
    ),
    (
        Residual(ratio=6, out=1280, before=5, between=5),
        *19 * (Attention(heads=16, head_dim=96, out=1280), Residual(ratio=2, out=1280)),
    ),
)
_FUSED_STAGES: Final = 2
"""The last stages, whose outputs the end puts side by side."""


def gemma3n(config: Config, path: str) -> tuple[Block, ...]:
    """The tower without a head. ``architecture`` names its size; there is one."""
    if config.text("architecture") != "mobilenetv5_300m_enc":
        raise build.UnknownTowerError(config.model_type)
    base, out = f"{path}.timm_model", config.integer("hidden_size")
    stem = build.conv(f"{base}.conv_stem.conv", _STEM, 3, 3, 3) + w.rms_norm(f"{base}.conv_stem.bn", _STEM)
    weights: Weighed = ()
    channels, ends = _STEM, []
    for stage in _STAGES:
        for layer in stage:
            weights += layer.weigh(f"{base}.blocks", channels)
            channels = layer.out
        ends.append(channels)
    joined = Residual(ratio=2, out=out).weigh(f"{base}.msfa.ffn", sum(ends[-_FUSED_STAGES:]))[:-1]
    return (
        *build.block("embedding", stem),
        *build.block("layer", weights),
        *build.block("extra", joined + w.rms_norm(f"{base}.msfa.norm", out)),
    )
