"""Conformers, whose layers are attention and a convolution between two half MLPs, and Nemotron's speech encoders."""

from __future__ import annotations

import math
from typing import Final

from msgspec.structs import replace

from hwcalc.formulas.weights import Block, Part, embedding, layer_norm, linear, parameter, rms_norm
from hwcalc.parsers.blocks import Weighed
from hwcalc.parsers.config import Config
from hwcalc.parsers.towers.build import (
    LLAMA_NAMES,
    Encoder,
    Style,
    UnknownTowerError,
    block,
    conv,
    integer_pair,
    integers,
    linears,
    mlp_chain,
    needed,
    norms,
    split_width,
)

_AUDIO: Final = Part.AUDIO


def granite(config: Config, path: str) -> tuple[Block, ...]:
    """Granite Speech: a conformer with a character head whose guesses go back in half-way."""
    width, heads, out = integers(config, "hidden_dim", "num_heads", "output_dim")
    head_dim = config.maybe_integer("dim_head") or width // heads
    inner, expanded = heads * head_dim, width * config.integer("conv_expansion_factor")
    base = f"{path}.layers"
    weights: Weighed = ()
    for name in ("ff1", "ff2"):
        sizes = (width, width * config.integer("feedforward_mult"), width)
        weights += layer_norm(f"{base}.{name}.pre_norm", width)
        weights += mlp_chain(f"{base}.{name}", sizes, ("up_proj", "down_proj"))
    weights += (
        *layer_norm(f"{base}.attn.pre_norm", width),
        *linear(f"{base}.attn.to_q", width, inner),
        *linear(f"{base}.attn.to_kv", width, 2 * inner),
        *linear(f"{base}.attn.to_out", inner, width, bias=True),
        *embedding(f"{base}.attn.rel_pos_emb", 2 * config.integer("max_pos_emb") + 1, head_dim),
        *layer_norm(f"{base}.conv.norm", width),
        *conv(f"{base}.conv.up_conv", 2 * expanded, width, 1),
        *conv(f"{base}.conv.depth_conv.conv", expanded, 1, config.integer("conv_kernel_size"), bias=False),
        *layer_norm(f"{base}.conv.batch_norm", expanded),
        *conv(f"{base}.conv.down_conv", width, expanded, 1),
        *layer_norm(f"{base}.post_norm", width),
    )
    ends = (
        *linear(f"{path}.input_linear", config.integer("input_dim"), width, bias=True),
        *linear(f"{path}.out", width, out, bias=True),
        *linear(f"{path}.out_mid", out, width, bias=True),
    )
    return (*block("layer", weights, _AUDIO, config.number_of_layers("num_layers")), *block("ends", ends, _AUDIO))


def gemma3n(config: Config, path: str) -> tuple[Block, ...]:
    """Gemma 3n: a conformer with light convolutions, behind two convolutions over time and frequency."""
    width, heads = integers(config, "hidden_size", "conf_num_attention_heads")
    base, stem = f"{path}.conformer", f"{path}.subsample_conv_projection"
    channels = config.integers("sscp_conv_channel_size", length=2, minimum=1) or [128, 32]
    kernels, strides = (config.sequence(f"sscp_conv_{what}_size", length=2) or [] for what in ("kernel", "stride"))
    bins, source = config.integer("input_feat_size"), 1
    embeddings: Weighed = ()
    for i, (out, kernel, stride) in enumerate(zip(channels, kernels, strides, strict=True)):
        (high, wide), (_, step) = (integer_pair(config, key, size) for key, size in (("kernel", kernel), ("stride", stride)))
        embeddings += conv(f"{stem}.conv_{i}.conv", out, source, high, wide, bias=False) + rms_norm(f"{stem}.conv_{i}.norm", out)
        # One bin of padding on each side.
        bins, source = (bins + 2 - wide) // step + 1, out
    embeddings += linear(f"{stem}.input_proj_linear", bins * source, width)
    weights: Weighed = ()
    for name in ("ffw_layer_start", "ffw_layer_end"):
        weights += mlp_chain(f"{base}.{name}", (width, 4 * width, width), ("ffw_layer_1", "ffw_layer_2"), bias=False)
        weights += norms("rms", f"{base}.{name}", ("pre_layer_norm", "post_layer_norm"), width)
    own = f"{base}.attention.attn"
    weights += (
        *linears(own, (*LLAMA_NAMES[:3], "relative_position_embedding.pos_proj"), width, width),
        *linear(f"{base}.attention.post", width, width),
        *parameter(f"{own}.per_dim_scale", split_width(config, width, heads)),
        *norms("rms", f"{base}.attention", ("pre_attn_norm", "post_norm"), width),
        *linear(f"{base}.lconv1d.linear_start", width, 2 * width),
        *linear(f"{base}.lconv1d.linear_end", width, width),
        *conv(f"{base}.lconv1d.depthwise_conv1d", width, 1, config.integer("conf_conv_kernel_size"), bias=False),
        *norms("rms", f"{base}.lconv1d", ("pre_layer_norm", "conv_norm"), width),
        *rms_norm(f"{base}.norm", width),
    )
    return (
        *block("embedding", embeddings, _AUDIO),
        *block("layer", weights, _AUDIO, config.number_of_layers("conf_num_hidden_layers")),
    )


def gemma4(config: Config, path: str) -> tuple[Block, ...]:
    """Gemma 4: a conformer with light convolutions and keys for relative positions."""
    width, heads = integers(config, "hidden_size", "num_attention_heads")
    head_dim = width // heads
    inner, base, stem = heads * head_dim, f"{path}.layers", f"{path}.subsample_conv_projection"
    first, second = (config.integers("subsampling_conv_channels", length=2, minimum=1) or (128, 32))[:2]
    embeddings = (
        *conv(f"{stem}.layer0.conv", first, 1, 3, 3, bias=False),
        *rms_norm(f"{stem}.layer0.norm", first),
        *conv(f"{stem}.layer1.conv", second, first, 3, 3, bias=False),
        *rms_norm(f"{stem}.layer1.norm", second),
        *linear(f"{stem}.input_proj_linear", first // 4 * second, width),
    )
    weights: Weighed = ()
    for name in ("feed_forward1", "feed_forward2"):
        weights += mlp_chain(f"{base}.{name}", (width, 4 * width, width), ("ffw_layer_1", "ffw_layer_2"), bias=False)
        weights += norms("rms", f"{base}.{name}", ("pre_layer_norm", "post_layer_norm"), width)
    weights += (
        *linears(f"{base}.self_attn", (*LLAMA_NAMES[:3], "relative_k_proj"), width, inner),
        *linear(f"{base}.self_attn.post", width, width),
        *parameter(f"{base}.self_attn.per_dim_scale", head_dim),
        *linear(f"{base}.lconv1d.linear_start", width, 2 * width),
        *linear(f"{base}.lconv1d.linear_end", width, width),
        *conv(f"{base}.lconv1d.depthwise_conv1d", width, 1, config.integer("conv_kernel_size"), bias=False),
        *norms("rms", f"{base}.lconv1d", ("pre_layer_norm", "conv_norm"), width),
        *norms("rms", base, ("norm_pre_attn", "norm_post_attn", "norm_out"), width),
    )
    return (
        *block("embedding", embeddings, _AUDIO),
        *block("layer", weights, _AUDIO, config.number_of_layers()),
        *block("projector", linear(f"{path}.output_proj", width, config.integer("output_proj_dims"), bias=True), _AUDIO),
    )


def phi4(config: Config, path: str) -> tuple[Block, ...]:
    """Phi-4 multimodal: depthwise convolutions that halve the spectrogram, then gated layers with learned distances."""
    width, heads, middle = integers(config, "hidden_size", "num_attention_heads", "intermediate_size")
    inner = (config.maybe_integer("head_dim") or width // heads) * heads
    base = f"{path}.encoders"
    layer: Weighed = ()
    stem = _phi4_stem(config, path, width, heads)
    for name in ("feed_forward_in", "feed_forward_out"):
        layer += (
            *layer_norm(f"{base}.{name}.layer_norm", width),
            *linear(f"{base}.{name}.gate_up_proj", width, 2 * middle, bias=True),
            *linear(f"{base}.{name}.down_proj", middle, width, bias=True),
        )
    out, deep = config.integer("ext_pw_out_channel"), width * config.integer("depthwise_multiplier")
    layer += (
        *linears(f"{base}.self_attn", LLAMA_NAMES[:3], width, inner, bias=True),
        *linear(f"{base}.self_attn.o_proj", inner, width, bias=True),
        *layer_norm(f"{base}.conv.layer_norm", width),
        *parameter(f"{base}.conv.glu.b1", out),
        *parameter(f"{base}.conv.glu.b2", out),
        *conv(f"{base}.conv.glu.ext_pw_conv_1d", 2 * out, width, 1),
        *conv(f"{base}.conv.dw_sep_conv_1d.dw_conv", deep, 1, config.integer("kernel_size")),
        *conv(f"{base}.conv.dw_sep_conv_1d.pw_conv", config.integer("depthwise_separable_out_channel"), deep, 1),
        *conv(f"{base}.conv.ext_pw_conv_1d", out, width, 1),
        *norms("layer", base, ("layer_norm_att", "layer_norm"), width),
    )
    return (*block("embedding", stem, _AUDIO), *block("layer", layer, _AUDIO, config.number_of_layers("num_blocks")))


def _phi4_stem(config: Config, path: str, width: int, heads: int) -> Weighed:
    channels, reduction = integers(config, "nemo_conv_channels", "time_reduction")
    halvings, bins = int(math.log2(reduction)), config.integer("input_size")
    for _ in range(halvings):
        bins = (bins - 1) // 2 + 1
    stem = conv(f"{path}.embed.conv", channels, 1, 3, 3)
    for _ in range(halvings - 1):
        stem += conv(f"{path}.embed.conv", channels, 1, 3, 3) + conv(f"{path}.embed.conv", channels, channels, 1, 1)
    stem += linear(f"{path}.embed.out", channels * (config.maybe_integer("nemo_final_size") or bins), width, bias=True)
    buckets = config.integer("bias_max_distance") * (1 if config.flag("bias_symmetric") else 2)
    return stem + embedding(f"{path}.relative_attention_bias_layer.bias_values", buckets, heads)


# Nemotron Transcribe: a speech encoder, one that tells speakers apart, and one for the times of words.


def _stacking(config: Config, path: str, width: int) -> Weighed:
    frames = config.integer("subsampling_factor") * config.integer("num_mel_bins")
    return linear(f"{path}.embedder.projection", frames, width)


_STYLE: Final = Style(
    names=LLAMA_NAMES, bias=(False, False, False, True), heads="split", kv_heads=True, qk_norm="head", qk_norm_kind="layer"
)
_NEMOTRON: Final = Encoder(style=_STYLE, stem=_stacking, norms=("input_layer_norm", "layer_norm"), part=_AUDIO)
_NEMOTRON_PLAIN: Final = replace(_NEMOTRON, style=replace(_STYLE, qk_norm=""))
NEMOTRON_TIMES: Final = replace(_NEMOTRON, stem=None, part=Part.PROJECTOR)


def nemotron(config: Config, path: str) -> tuple[Block, ...]:
    """The speech encoder and the one that tells speakers apart, with a norm for the output of each."""
    speech, speakers = needed(config, "asr_config"), needed(config, "diarization_config")
    if speakers.model_type != "nemotron3_diarization":
        raise UnknownTowerError(speakers.model_type)
    voices, head, base = needed(speakers, "audio_config"), needed(speakers, "head_config"), f"{path}.diarization_model"
    inner, count = integers(head, "hidden_size", "num_speakers")
    weights = (
        *parameter(f"{base}.silence_embeds", voices.integer("hidden_size")),
        *linear(f"{base}.model.proj", head.integer("audio_hidden_size"), inner, bias=True),
        *conv(f"{base}.model.upsampler.conv", inner * head.integer("subsampling_factor"), inner, 3),
        *linear(f"{base}.classifier.dense", inner, inner, bias=True),
        *linear(f"{base}.classifier.out_proj", inner, count, bias=True),
        *layer_norm(f"{path}.asr_norm", speech.integer("hidden_size")),
        *layer_norm(f"{path}.speaker_norm", count),
    )
    encoders = _NEMOTRON(speech, f"{path}.asr_encoder") + _NEMOTRON_PLAIN(voices, f"{base}.model.audio_tower")
    return (*encoders, *block("speakers", weights, _AUDIO))
