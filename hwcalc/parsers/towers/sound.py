"""Encoders of sound (Whisper, conformers, Nemotron's), tokenisers of sound and pictures, and what makes tokens audible again.

Sinusoidal positions have no parameters. The layers of a conformer are attention and a convolution between two half MLPs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from hwcalc.formulas.weights import (
    Block,
    Part,
    WeightRole,
    attention,
    embedding,
    gated_mlp,
    layer_norm,
    linear,
    parameter,
    rms_norm,
)
from hwcalc.parsers.blocks import Weighed
from hwcalc.parsers.config import Config
from hwcalc.parsers.towers import build
from hwcalc.parsers.towers.build import GATED, LLAMA, LLAMA_NAMES, Encoder, Style, block, conv, linears, mlp_chain, norms

_AUDIO: Final = Part.AUDIO


def mel_convolutions(config: Config, path: str, width: int) -> Weighed:
    """Two convolutions over time. The second one halves the number of frames."""
    return conv(f"{path}.conv1", width, config.integer("num_mel_bins"), 3) + conv(f"{path}.conv2", width, width, 3)


def _mel_and_positions(config: Config, path: str, width: int) -> Weighed:
    positions = embedding(f"{path}.embed_positions", config.integer("max_source_positions"), width)
    return mel_convolutions(config, path, width) + positions


def _image(config: Config, path: str, width: int) -> Weighed:
    return _halving(config, f"{path}.conv2d", f"{path}.conv_out", config.integer("num_mel_bins"), width)


def _halving(config: Config, path: str, out: str, bins: int, width: int, rows: int | None = None) -> Weighed:
    """Three convolutions that read the spectrogram as an image, and a linear layer that reads ``rows`` channels, or what they leave.

    Each halves its sides, rounded up: 20 bins become 3.
    """
    inner = config.integer("downsample_hidden_size")
    weights = conv(f"{path}1", inner, 1, 3, 3) + conv(f"{path}2", inner, inner, 3, 3) + conv(f"{path}3", inner, inner, 3, 3)
    return weights + linear(out, rows or inner * -(-bins // 8), width)


def _marks(config: Config, path: str, width: int) -> Weighed:
    """A linear layer, and two vectors that mark the beginning and the end of audio."""
    out = config.integer("output_dim")
    return embedding(f"{path}.audio_bos_eos_token", 2, out) + linear(f"{path}.proj", width, out, bias=True)


_NO_KEY_BIAS: Final = (True, False, True, True)


def fun_asr(config: Config, path: str) -> tuple[Block, ...]:
    """Fun-ASR: each layer also has a depthwise convolution as a memory. The first layer reads stacked frames."""
    width, count, base = config.integer("hidden_size"), config.number_of_layers(), f"{path}.layers"
    stacked = config.integer("num_mel_bins") * config.integer("num_stacked_frames")
    memory = conv(f"{base}.self_attn.fsmn.conv", width, 1, config.integer("fsmn_kernel_size"), bias=False)
    layer = build.encoder_layer(config, LLAMA, base, width, config.integer("intermediate_size"))
    widened = linears(f"{base}.self_attn", LLAMA_NAMES[:3], stacked, width, bias=True)
    widened += layer_norm(f"{base}.input_layernorm", stacked)
    paths = {weight.path for weight in widened}
    first = (*widened, *(weight for weight in layer if weight.path not in paths))
    timestamps = config.integer("num_timestamp_prediction_layers", minimum=0)
    normed = len({count - timestamps - 1, count - 1} & set(range(count)))
    return (
        *block("first layer", (*first, *memory), _AUDIO),
        *block("layer", (*layer, *memory), _AUDIO, count - 1),
        *block("norm", layer_norm(f"{base}.final_layernorm", width), _AUDIO, normed),
    )


def dots(config: Config, path: str) -> tuple[Block, ...]:
    """dots3.note: convolutions over the spectrogram as an image, then gated layers. Early files have an object of Whisper's names."""
    early = config.part("whisper_config")

    def size(key: str, name: str) -> int:
        return early.integer(name) if early is not None and early.has(name) else config.integer(key)

    width, heads = size("hidden_size", "d_model"), size("num_attention_heads", "encoder_attention_heads")
    middle, bins = size("intermediate_size", "encoder_ffn_dim"), size("feature_size", "num_mel_bins")
    bias, base = config.flag("attention_bias"), f"{path}.layers"
    style = replace(LLAMA, bias=(bias, False, bias, bias), norm="rms")
    if heads > width:
        raise config.error("num_attention_heads", heads, f"at most hidden_size ({width})")
    rows, base_stem = config.maybe_integer("conv_output_size"), f"{path}.conv_stem"
    stem = _halving(config, f"{base_stem}.convs", f"{base_stem}.conv_out", bins, width, rows)
    layer = build.encoder_layer(config, style, base, width, 0) + linear(f"{base}.mlp.gate_up_proj", width, 2 * middle, bias=True)
    layer += linear(f"{base}.mlp.down_proj", middle, width, bias=True)
    source, out = config.integer("adapter_input_size"), config.integer("adapter_out_dim")
    adapter = layer_norm(f"{path}.adapter.norm", source)
    adapter += mlp_chain(f"{path}.adapter", (source, out, out), ("fc1", "fc2"))
    count = early.integer("encoder_layers") if early is not None and early.has("encoder_layers") else config.number_of_layers()
    return (
        *block("embedding", stem, _AUDIO),
        *block("layer", layer, _AUDIO, count),
        *block("norm", rms_norm(f"{path}.layer_norm", width), _AUDIO),
        *block("projector", adapter, Part.PROJECTOR),
    )


def granite(config: Config, path: str) -> tuple[Block, ...]:
    """Granite Speech: a conformer with a character head whose guesses go back in half-way."""
    width, heads, out = build.integers(config, "hidden_dim", "num_heads", "output_dim")
    head_dim = config.maybe_integer("dim_head") or width // heads
    inner, expanded = heads * head_dim, width * config.integer("conv_expansion_factor")
    base = f"{path}.layers"
    weights: Weighed = ()
    for name in ("ff1", "ff2"):
        sizes = (width, width * config.integer("feedforward_mult"), width)
        weights += layer_norm(f"{base}.{name}.pre_norm", width)
        weights += mlp_chain(f"{base}.{name}", sizes, ("up_proj", "down_proj"))
    weights += layer_norm(f"{base}.attn.pre_norm", width) + linear(f"{base}.attn.to_q", width, inner)
    weights += linear(f"{base}.attn.to_kv", width, 2 * inner) + linear(f"{base}.attn.to_out", inner, width, bias=True)
    weights += embedding(f"{base}.attn.rel_pos_emb", 2 * config.integer("max_pos_emb") + 1, head_dim)
    weights += layer_norm(f"{base}.conv.norm", width) + conv(f"{base}.conv.up_conv", 2 * expanded, width, 1)
    weights += conv(f"{base}.conv.depth_conv.conv", expanded, 1, config.integer("conv_kernel_size"), bias=False)
    weights += layer_norm(f"{base}.conv.batch_norm", expanded) + conv(f"{base}.conv.down_conv", width, expanded, 1)
    weights += layer_norm(f"{base}.post_norm", width)
    ends = linear(f"{path}.input_linear", config.integer("input_dim"), width, bias=True)
    ends += linear(f"{path}.out", width, out, bias=True) + linear(f"{path}.out_mid", out, width, bias=True)
    return (*block("layer", weights, _AUDIO, config.number_of_layers("num_layers")), *block("ends", ends, _AUDIO))


def gemma3n(config: Config, path: str) -> tuple[Block, ...]:
    """Gemma 3n: a conformer with light convolutions, behind two convolutions over time and frequency."""
    width, heads = build.integers(config, "hidden_size", "conf_num_attention_heads")
    base, stem = f"{path}.conformer", f"{path}.subsample_conv_projection"
    channels = config.integers("sscp_conv_channel_size", length=2, minimum=1) or [128, 32]
    kernels, strides = (config.sequence(f"sscp_conv_{what}_size", length=2) or [] for what in ("kernel", "stride"))
    bins, source = config.integer("input_feat_size"), 1
    embeddings: Weighed = ()
    for i, (out, kernel, stride) in enumerate(zip(channels, kernels, strides, strict=True)):
        (high, wide), (_, step) = (
            build.integer_pair(config, key, size) for key, size in (("kernel", kernel), ("stride", stride))
        )
        embeddings += conv(f"{stem}.conv_{i}.conv", out, source, high, wide, bias=False) + rms_norm(f"{stem}.conv_{i}.norm", out)
        # One bin of padding on each side.
        bins, source = (bins + 2 - wide) // step + 1, out
    embeddings += linear(f"{stem}.input_proj_linear", bins * source, width)
    weights: Weighed = ()
    for name in ("ffw_layer_start", "ffw_layer_end"):
        weights += mlp_chain(f"{base}.{name}", (width, 4 * width, width), ("ffw_layer_1", "ffw_layer_2"), bias=False)
        weights += norms("rms", f"{base}.{name}", ("pre_layer_norm", "post_layer_norm"), width)
    own = f"{base}.attention.attn"
    weights += linears(own, (*LLAMA_NAMES[:3], "relative_position_embedding.pos_proj"), width, width)
    weights += linear(f"{base}.attention.post", width, width)
    weights += parameter(f"{own}.per_dim_scale", build.split_width(config, width, heads))
    weights += norms("rms", f"{base}.attention", ("pre_attn_norm", "post_norm"), width)
    weights += linear(f"{base}.lconv1d.linear_start", width, 2 * width) + linear(f"{base}.lconv1d.linear_end", width, width)
    weights += conv(f"{base}.lconv1d.depthwise_conv1d", width, 1, config.integer("conf_conv_kernel_size"), bias=False)
    weights += norms("rms", f"{base}.lconv1d", ("pre_layer_norm", "conv_norm"), width) + rms_norm(f"{base}.norm", width)
    return (
        *block("embedding", embeddings, _AUDIO),
        *block("layer", weights, _AUDIO, config.number_of_layers("conf_num_hidden_layers")),
    )


def gemma4(config: Config, path: str) -> tuple[Block, ...]:
    """Gemma 4: a conformer with light convolutions and keys for relative positions."""
    width, heads = build.integers(config, "hidden_size", "num_attention_heads")
    head_dim = width // heads
    inner, base, stem = heads * head_dim, f"{path}.layers", f"{path}.subsample_conv_projection"
    first, second = (config.integers("subsampling_conv_channels", length=2, minimum=1) or (128, 32))[:2]
    embeddings = conv(f"{stem}.layer0.conv", first, 1, 3, 3, bias=False) + rms_norm(f"{stem}.layer0.norm", first)
    embeddings += conv(f"{stem}.layer1.conv", second, first, 3, 3, bias=False) + rms_norm(f"{stem}.layer1.norm", second)
    embeddings += linear(f"{stem}.input_proj_linear", first // 4 * second, width)
    weights: Weighed = ()
    for name in ("feed_forward1", "feed_forward2"):
        weights += mlp_chain(f"{base}.{name}", (width, 4 * width, width), ("ffw_layer_1", "ffw_layer_2"), bias=False)
        weights += norms("rms", f"{base}.{name}", ("pre_layer_norm", "post_layer_norm"), width)
    weights += linears(f"{base}.self_attn", (*LLAMA_NAMES[:3], "relative_k_proj"), width, inner)
    weights += linear(f"{base}.self_attn.post", width, width) + parameter(f"{base}.self_attn.per_dim_scale", head_dim)
    weights += linear(f"{base}.lconv1d.linear_start", width, 2 * width) + linear(f"{base}.lconv1d.linear_end", width, width)
    weights += conv(f"{base}.lconv1d.depthwise_conv1d", width, 1, config.integer("conv_kernel_size"), bias=False)
    weights += norms("rms", f"{base}.lconv1d", ("pre_layer_norm", "conv_norm"), width)
    weights += norms("rms", base, ("norm_pre_attn", "norm_post_attn", "norm_out"), width)
    return (
        *block("embedding", embeddings, _AUDIO),
        *block("layer", weights, _AUDIO, config.number_of_layers()),
        *block("projector", linear(f"{path}.output_proj", width, config.integer("output_proj_dims"), bias=True), _AUDIO),
    )


def phi4(config: Config, path: str) -> tuple[Block, ...]:
    """Phi-4 multimodal: depthwise convolutions that halve the spectrogram, then gated layers with learned distances."""
    width, heads, middle = build.integers(config, "hidden_size", "num_attention_heads", "intermediate_size")
    inner = (config.maybe_integer("head_dim") or width // heads) * heads
    base = f"{path}.encoders"
    channels, reduction = build.integers(config, "nemo_conv_channels", "time_reduction")
    halvings, bins = int(math.log2(reduction)), config.integer("input_size")
    for _ in range(halvings):
        bins = (bins - 1) // 2 + 1
    stem = conv(f"{path}.embed.conv", channels, 1, 3, 3)
    for _ in range(halvings - 1):
        stem += conv(f"{path}.embed.conv", channels, 1, 3, 3) + conv(f"{path}.embed.conv", channels, channels, 1, 1)
    stem += linear(f"{path}.embed.out", channels * (config.maybe_integer("nemo_final_size") or bins), width, bias=True)
    buckets = config.integer("bias_max_distance") * (1 if config.flag("bias_symmetric") else 2)
    stem += embedding(f"{path}.relative_attention_bias_layer.bias_values", buckets, heads)
    layer: Weighed = ()
    for name in ("feed_forward_in", "feed_forward_out"):
        layer += layer_norm(f"{base}.{name}.layer_norm", width)
        layer += linear(f"{base}.{name}.gate_up_proj", width, 2 * middle, bias=True)
        layer += linear(f"{base}.{name}.down_proj", middle, width, bias=True)
    out, deep = config.integer("ext_pw_out_channel"), width * config.integer("depthwise_multiplier")
    layer += linears(f"{base}.self_attn", LLAMA_NAMES[:3], width, inner, bias=True)
    layer += linear(f"{base}.self_attn.o_proj", inner, width, bias=True) + layer_norm(f"{base}.conv.layer_norm", width)
    layer += parameter(f"{base}.conv.glu.b1", out) + parameter(f"{base}.conv.glu.b2", out)
    layer += conv(f"{base}.conv.glu.ext_pw_conv_1d", 2 * out, width, 1)
    layer += conv(f"{base}.conv.dw_sep_conv_1d.dw_conv", deep, 1, config.integer("kernel_size"))
    layer += conv(f"{base}.conv.dw_sep_conv_1d.pw_conv", config.integer("depthwise_separable_out_channel"), deep, 1)
    layer += conv(f"{base}.conv.ext_pw_conv_1d", out, width, 1) + norms("layer", base, ("layer_norm_att", "layer_norm"), width)
    return (*block("embedding", stem, _AUDIO), *block("layer", layer, _AUDIO, config.number_of_layers("num_blocks")))


def _stacking(config: Config, path: str, width: int) -> Weighed:
    frames = config.integer("subsampling_factor") * config.integer("num_mel_bins")
    return linear(f"{path}.embedder.projection", frames, width)


def nemotron(config: Config, path: str) -> tuple[Block, ...]:
    """The speech encoder and the one that tells speakers apart, with a norm for the output of each."""
    speech, speakers = build.needed(config, "asr_config"), build.needed(config, "diarization_config")
    if speakers.model_type != "nemotron3_diarization":
        raise build.UnknownTowerError(speakers.model_type)
    voices, head, base = (
        build.needed(speakers, "audio_config"),
        build.needed(speakers, "head_config"),
        f"{path}.diarization_model",
    )
    inner, count = build.integers(head, "hidden_size", "num_speakers")
    weights = parameter(f"{base}.silence_embeds", voices.integer("hidden_size"))
    weights += linear(f"{base}.model.proj", head.integer("audio_hidden_size"), inner, bias=True)
    weights += conv(f"{base}.model.upsampler.conv", inner * head.integer("subsampling_factor"), inner, 3)
    weights += linear(f"{base}.classifier.dense", inner, inner, bias=True)
    weights += linear(f"{base}.classifier.out_proj", inner, count, bias=True)
    weights += layer_norm(f"{path}.asr_norm", speech.integer("hidden_size")) + layer_norm(f"{path}.speaker_norm", count)
    encoders = _NEMOTRON(speech, f"{path}.asr_encoder") + _NEMOTRON_PLAIN(voices, f"{base}.model.audio_tower")
    return (*encoders, *block("speakers", weights, _AUDIO))


_MOST_BLOCKS: Final = 1_000


def chameleon(config: Config, path: str) -> tuple[Block, ...]:
    """Chameleon: a picture becomes tokens; there is no way back."""
    quantiser = _quantiser(config, path)
    if config.sequence("attn_resolutions") or config.text("attn_type") != "vanilla":
        raise build.UnknownTowerError(config.model_type)
    encoder = _picture_stages(config, f"{path}.encoder", decoder=False, attends=())
    return (*block("encoder", encoder), *block("quantiser", quantiser))


def apertus(config: Config, path: str) -> tuple[Block, ...]:
    """Apertus 1.5: a picture becomes tokens, with attention at the sizes that the file names.

    Of 256 points, 16 are left after four halvings: the fifth stage attends.
    """
    words, code, latent, size = build.integers(config, "codebook_size", "embed_dim", "latent_channels", "resolution")
    named = config.integers("attn_resolutions") or ()
    attends = [level for level in range(len(build.stages(config, "channel_multiplier"))) if size // 2**level in named]
    encoder = _picture_stages(config, f"{path}.encoder", decoder=False, attends=attends)
    quantiser = embedding(f"{path}.quantize.embedding", words, code) + conv(f"{path}.quant_conv", code, latent, 1, 1)
    return (*block("encoder", encoder), *block("quantiser", quantiser))


def wavtokenizer(config: Config, path: str) -> tuple[Block, ...]:
    """WavTokenizer's encoder: convolutions that halve the samples' number and double the channels, then an LSTM."""
    if config.text("norm_type") != "weight_norm":
        raise build.UnknownTowerError(config.model_type)
    base, channels, first, last, inner, out = build.integers(
        config, "num_filters", "audio_channels", "kernel_size", "last_kernel_size", "residual_kernel_size", "hidden_size"
    )
    repeats, compress = config.integer("num_residual_layers", maximum=_MOST_BLOCKS), config.integer("compress")
    shortcut = config.flag("use_conv_shortcut")

    def convolution(name: str, source: int, width: int, kernel: int) -> Weighed:
        """A convolution whose weights are directions, each with its length."""
        lengths = parameter(f"{path}.{name}.weight_g", width, 1, 1, role=WeightRole.CONV)
        return lengths + conv(f"{path}.{name}", width, source, kernel)

    width, weights = base, convolution("conv_in", channels, base, first)
    for ratio in reversed(build.stages(config, "upsampling_ratios")):
        narrow = width // compress
        own = convolution("block.1", width, narrow, inner) + convolution("block.3", narrow, width, 1)
        own += convolution("shortcut", width, width, 1) if shortcut else ()
        weights += repeats * own + convolution("downsample", width, 2 * width, 2 * ratio)
        width *= 2
    for _ in range(config.integer("num_lstm_layers", minimum=0, maximum=_MOST_BLOCKS)):
        weights += linears(f"{path}.lstm", ("weight_ih", "weight_hh"), width, 4 * width, bias=True)
    return block("encoder", weights + convolution("conv_out", width, out, last), _AUDIO)


def _wave_convolutions(config: Config, path: str, width: int) -> Weighed:
    """Convolutions over the samples, each with a norm, a linear layer, and one convolution that marks positions."""
    widths, source = build.stages(config, "conv_dim"), 1
    weights: Weighed = ()
    for out, kernel in zip(widths, build.stages(config, "conv_kernel", len(widths)), strict=True):
        weights += conv(f"{path}.subsampling.conv", out, source, kernel, bias=config.flag("conv_bias"))
        weights += layer_norm(f"{path}.subsampling.conv.layer_norm", out)
        source = out
    weights += layer_norm(f"{path}.subsampling.layer_norm", source)
    weights += linear(f"{path}.subsampling.projection", source, width, bias=True)
    groups = config.integer("num_conv_pos_embedding_groups")
    return weights + conv(f"{path}.encode_positions.conv", width, width // groups, config.integer("num_conv_pos_embeddings"))


def janus(config: Config, path: str) -> tuple[Block, ...]:
    """Janus: both ways, with attention at the smallest size."""
    last = (len(build.stages(config, "channel_multiplier")) - 1,)
    return (
        *block("encoder", _picture_stages(config, f"{path}.encoder", decoder=False, attends=last)),
        *block("decoder", _picture_stages(config, f"{path}.decoder", decoder=True, attends=last)),
        *block("quantiser", _quantiser(config, path)),
    )


def _quantiser(config: Config, path: str) -> Weighed:
    words, code, latent = build.integers(config, "num_embeddings", "embed_dim", "latent_channels")
    weights = embedding(f"{path}.quantize.embedding", words, code) + conv(f"{path}.quant_conv", code, latent, 1, 1)
    return weights + conv(f"{path}.post_quant_conv", latent, code, 1, 1)


def _picture_stages(config: Config, path: str, *, decoder: bool, attends: Sequence[int]) -> Weighed:
    """One half of the autoencoder: residual blocks at each size, attention at the levels of ``attends``."""
    base, latent, colours = build.integers(config, "base_channels", "latent_channels", "in_channels")
    widths = [base * times for times in build.stages(config, "channel_multiplier")]
    count, order = config.integer("num_res_blocks", maximum=_MOST_BLOCKS), list(range(len(widths)))
    middle = widths[-1]
    if decoder:
        order.reverse()
    width, source = (middle, latent) if decoder else (base, colours)
    weights = conv(f"{path}.conv_in", width, source, 3, 3)
    for level in order:
        for _ in range(count + decoder):
            weights += _picture_block(f"{path}.block", width, widths[level])
            width = widths[level]
            if level in attends:
                weights += _picture_attention(f"{path}.attn", width)
        if level != order[-1]:
            weights += conv(f"{path}.resample.conv", width, width, 3, 3)
    out = config.integer("out_channels") if decoder else latent * (1 + config.flag("double_latent"))
    weights += _picture_block(f"{path}.mid.block_1", middle, middle) + _picture_attention(f"{path}.mid.attn_1", middle)
    weights += _picture_block(f"{path}.mid.block_2", middle, middle)
    return weights + layer_norm(f"{path}.norm_out", width) + conv(f"{path}.conv_out", out, width, 3, 3)


def _picture_block(path: str, source: int, out: int) -> Weighed:
    weights = layer_norm(f"{path}.norm1", source) + conv(f"{path}.conv1", out, source, 3, 3) + layer_norm(f"{path}.norm2", out)
    weights += conv(f"{path}.conv2", out, out, 3, 3)
    return weights if source == out else (*weights, *conv(f"{path}.nin_shortcut", out, source, 1, 1))


def _picture_attention(path: str, width: int) -> Weighed:
    weights = layer_norm(f"{path}.norm", width)
    for name in ("q", "k", "v", "proj_out"):
        weights += conv(f"{path}.{name}", width, width, 1, 1)
    return weights


def sound(config: Config, path: str) -> tuple[Block, ...]:
    """VibeVoice's acoustic tokeniser, both ways."""
    decoder = _sound_stages(config, f"{path}.decoder", decoder=True)
    return (*sound_encoder(config, f"{path}.encoder"), *block("decoder", decoder, _AUDIO))


def sound_encoder(config: Config, path: str) -> tuple[Block, ...]:
    """The way in alone."""
    return block("encoder", _sound_stages(config, path, decoder=False), _AUDIO)


def _sound_stages(config: Config, path: str, *, decoder: bool) -> Weighed:
    """One stage for each change of rate, each of depthwise convolutions and MLPs."""
    ratios = build.stages(config, "downsampling_ratios")
    depths = build.stages(config, "depths", length=len(ratios) + 1)
    filters, kernel, latent = build.integers(config, "num_filters", "kernel_size", "hidden_size")
    channels, expansion = build.integers(config, "channels", "ffn_expansion")
    weights: Weighed = ()
    base, widest = f"{path}.conv_layers.stage", filters * 2 ** len(ratios)
    for stage, depth in enumerate(depths):
        width = filters * 2**stage
        layer = parameter(f"{base}.gamma", width) + parameter(f"{base}.ffn_gamma", width)
        layer += norms("rms", base, ("norm", "ffn_norm"), width)
        layer += mlp_chain(f"{base}.ffn", (width, expansion * width, width), ("linear1", "linear2"))
        layer += conv(f"{base}.mixer.conv", width, 1, kernel)
        weights += build.copied(layer, depth)
        if stage:
            weights += conv(f"{path}.conv_layers.conv", width, width // 2, 2 * ratios[stage - 1], transposed=decoder)
    (stem, source), (out, last) = ((widest, latent), (channels, filters)) if decoder else ((filters, channels), (latent, widest))
    return (*weights, *conv(f"{path}.stem.conv", stem, source, kernel), *conv(f"{path}.head.conv", out, last, kernel))


def mimi(config: Config, path: str) -> tuple[Block, ...]:
    """Mimi: convolutions, a small transformer and a change of rate on either side of two residual quantisers."""
    width = config.integer("hidden_size")
    scales = ("self_attn_layer_scale.scale", "mlp_layer_scale.scale")
    style = replace(LLAMA, bias=4 * ("attention_bias",), mlp_bias=(False, False), heads="own", kv_heads=True, scales=scales)
    layer = build.encoder_layer(config, style, f"{path}.transformer.layers", width, config.integer("intermediate_size"))
    ratios = build.stages(config, "upsampling_ratios", default=(8, 6, 5, 4))
    # How many frames of the convolutions make one of the codec's: two unless its frame rate says otherwise.
    rate, stride = config.number("frame_rate", 0.0), 2
    if rate > 0:
        stride = int(math.ceil(config.integer("sampling_rate") / math.prod(ratios)) / rate)
    rates: Weighed = ()
    if stride > 1:
        groups = config.integer("upsample_groups")
        rates += conv(f"{path}.encoder.downsample.conv", width, width, 2 * stride, bias=False)
        rates += conv(f"{path}.decoder.upsample.conv", width, max(1, width // groups), 2 * stride, bias=False)
    inner = config.integer("vector_quantization_hidden_dimension")
    quantisers: Weighed = ()
    for name in ("semantic", "acoustic") if inner != width else ():
        base = f"{path}.quantizer.{name}_residual_vector_quantizer"
        quantisers += conv(f"{base}.input_proj", inner, width, 1, bias=False)
        quantisers += conv(f"{base}.output_proj", width, inner, 1, bias=False)
    return (
        *block("encoder", _seanet(config, f"{path}.encoder.encoder_seanet", ratios, decoder=False), _AUDIO),
        *block("decoder", _seanet(config, f"{path}.decoder.decoder_seanet", ratios, decoder=True), _AUDIO),
        *block("layer", layer, _AUDIO, 2 * config.number_of_layers()),
        *block("rates", rates, _AUDIO),
        *block("quantiser", quantisers, _AUDIO),
    )


def _seanet(config: Config, path: str, ratios: list[int], *, decoder: bool) -> Weighed:
    """Convolutions that change the rate, and residual ones between; channels double with each step down."""
    filters, kernel, last = build.integers(config, "num_filters", "kernel_size", "last_kernel_size")
    channels, latent, residual, compress = build.integers(
        config, "audio_channels", "hidden_size", "residual_kernel_size", "compress"
    )
    widest, base = filters * 2 ** len(ratios), f"{path}.layers"
    count = config.integer("num_residual_layers", minimum=0, maximum=_MOST_BLOCKS)
    ends = ((widest, latent), (channels, filters)) if decoder else ((filters, channels), (latent, widest))
    weights: Weighed = ()
    for (out, source), taps in zip(ends, (kernel, last), strict=True):
        weights += conv(f"{base}.conv", out, source, taps)
    # Either way the last ratio goes with the fewest channels.
    for step, ratio in enumerate(reversed(ratios)):
        narrow = filters * 2**step
        weights += conv(f"{base}.conv", 2 * narrow, narrow, 2 * ratio, transposed=decoder)
        hidden = max(1, narrow // compress)
        for _ in range(count):
            weights += conv(f"{base}.block.conv", hidden, narrow, residual) + conv(f"{base}.block.conv", narrow, hidden, 1)
            if config.flag("use_conv_shortcut"):
                weights += conv(f"{base}.shortcut.conv", narrow, narrow, 1)
    return weights


def talker(config: Config, path: str) -> tuple[Block, ...]:
    """A small decoder whose tokens are sounds."""
    width, heads, vocab, source = build.integers(config, "hidden_size", "num_attention_heads", "vocab_size", "embedding_size")
    kv_heads = config.maybe_integer("num_key_value_heads") or heads
    head_dim, base = config.maybe_integer("head_dim") or width // heads, f"{path}.model.layers"
    layer = attention(width, heads, kv_heads, head_dim, qkv_bias=True, path=f"{base}.self_attn")
    layer += gated_mlp(width, config.integer("intermediate_size"), path=f"{base}.mlp") + norms("rms", base, LLAMA.norms, width)
    ends = linear(f"{path}.thinker_to_talker_proj", source, width, bias=True)
    ends += embedding(f"{path}.model.embed_tokens", vocab, source) + rms_norm(f"{path}.model.norm", width)
    ends += linear(f"{path}.codec_head", width, vocab)
    return (*block("talker layer", layer, _AUDIO, config.number_of_layers()), *block("talker ends", ends, _AUDIO))


def speech_diffusion(config: Config, path: str) -> tuple[Block, ...]:
    """The diffusion transformer that turns codes into a spectrogram."""
    width, layers = config.integer("hidden_size"), f"{path}.transformer_blocks"
    inner = config.integer("head_dim") * config.integer("num_attention_heads")
    mel, codes = build.integers(config, "mel_dim", "emb_dim")
    layer = linear(f"{layers}.attn_norm.linear", width, 6 * width, bias=True)
    layer += linears(f"{layers}.attn", ("to_q", "to_k", "to_v"), width, inner, bias=True)
    layer += linear(f"{layers}.attn.to_out.0", inner, width, bias=True)
    layer += mlp_chain(f"{layers}.ff.ff", (width, build.ratio_width(config, width, "ff_mult"), width), ("0", "3"))
    source = mel + config.integer("enc_dim") + config.integer("enc_emb_dim") + codes
    ends = mlp_chain(f"{path}.time_embed.time_mlp", (256, width, width), ("0", "2"))
    ends += embedding(f"{path}.text_embed.codec_embed", config.integer("num_embeds") + 1, codes)
    ends += linear(f"{path}.input_embed.proj", source, width, bias=True)
    ends += linear(f"{path}.norm_out.linear", width, 2 * width, bias=True) + linear(f"{path}.proj_out", width, mel, bias=True)
    return (
        *block("diffusion layer", layer, _AUDIO, config.number_of_layers()),
        *block("diffusion ends", ends, _AUDIO),
        *block("speaker encoder", _speaker_encoder(config, f"{path}.input_embed.spk_encoder"), _AUDIO),
    )


def _speaker_encoder(config: Config, path: str) -> Weighed:
    """ECAPA-TDNN: residual convolutions over slices of the channels, then statistics over time."""
    widths = build.stages(config, "enc_channels")
    kernels = build.stages(config, "enc_kernel_sizes", length=len(widths))
    squeezed, last, base = config.integer("enc_se_channels"), widths[-1], f"{path}.blocks"
    scale, pooled = config.integer("enc_res2net_scale", maximum=_MOST_BLOCKS), config.integer("enc_attention_channels")
    weights = conv(f"{base}.conv", widths[0], config.integer("mel_dim"), kernels[0])
    for source, width, kernel in zip(widths[:-2], widths[1:-1], kernels[1:-1], strict=True):
        weights += conv(f"{base}.tdnn1.conv", width, source, 1)
        for _ in range(scale - 1):
            weights += conv(f"{base}.res2net_block.conv", width // scale, width // scale, kernel)
        weights += conv(f"{base}.tdnn2.conv", width, width, 1) + conv(f"{base}.se_block.conv1", squeezed, width, 1)
        weights += conv(f"{base}.se_block.conv2", width, squeezed, 1)
    weights += conv(f"{path}.mfa.conv", last, last, kernels[-1]) + conv(f"{path}.asp.tdnn.conv", pooled, 3 * last, 1)
    return weights + conv(f"{path}.asp.conv", last, pooled, 1) + conv(f"{path}.fc", config.integer("enc_dim"), 2 * last, 1)


def bigvgan(config: Config, path: str) -> tuple[Block, ...]:
    """The vocoder: each step raises the rate and halves the channels, with residual blocks of several kernels."""
    width, rates = config.integer("upsample_initial_channel"), build.stages(config, "upsample_rates")
    widening = build.stages(config, "upsample_kernel_sizes", length=len(rates))
    kernels = build.stages(config, "resblock_kernel_sizes")
    weights = conv(f"{path}.conv_pre", width, config.integer("mel_dim"), 7)
    for widen in widening:
        half = width // 2
        weights += conv(f"{path}.ups", width, half, widen, transposed=True)
        for kernel in kernels:
            # Three dilations of two convolutions each, and an activation with two vectors before every one.
            activation = parameter(f"{path}.resblocks.activations", 2, half)
            weights += build.copied((*conv(f"{path}.resblocks.convs", half, half, kernel), *activation), 6)
        width = half
    weights += parameter(f"{path}.activation_post", 2, width)
    return block("vocoder", weights + conv(f"{path}.conv_post", 1, width, 7, bias=False), _AUDIO)


_STYLE: Final = Style(bias=_NO_KEY_BIAS, mlp=("fc1", "fc2"), norms=("self_attn_layer_norm", "final_layer_norm"))
OMNIASR: Final = Encoder(
    style=Style(
        attention="attention", mlp=("feed_forward.intermediate_dense", "feed_forward.output_dense"),
        norms=("layer_norm", "final_layer_norm"),
    ),
    stem=_wave_convolutions, norms=("layer_norm",), part=_AUDIO,
)  # fmt: skip
WHISPER: Final = Encoder(style=_STYLE, stem=_mel_and_positions, norms=("layer_norm",), part=_AUDIO)
QWEN25_OMNI: Final = replace(WHISPER, stem=mel_convolutions, norms=("ln_post",), joint=_marks)
QWEN3_ASR: Final = replace(WHISPER, style=replace(_STYLE, bias=4 * (True,)), stem=_image, norms=("ln_post",))
QWEN3_OMNI: Final = replace(
    QWEN3_ASR, joint=lambda config, path, width: mlp_chain(path, (width, width, config.integer("output_dim")), ("proj1", "proj2"))
)
GLM_ASR: Final = Encoder(
    style=replace(LLAMA, bias=_NO_KEY_BIAS, heads="own", kv_heads=True), stem=mel_convolutions, norms=("norm",), part=_AUDIO
)
VOXTRAL_REALTIME: Final = Encoder(
    style=replace(_STYLE, names=LLAMA_NAMES, mlp=GATED, mlp_bias=(False, True), norm="rms", heads="own"),
    stem=lambda config, path, width: mel_convolutions(config, f"{path}.embedder", width), norms=("norm",), part=_AUDIO,
)  # fmt: skip
_CONFORMER_STYLE: Final = Style(
    names=LLAMA_NAMES, bias=(False, False, False, True), heads="split", kv_heads=True, qk_norm="head", qk_norm_kind="layer"
)
_NEMOTRON: Final = Encoder(style=_CONFORMER_STYLE, stem=_stacking, norms=("input_layer_norm", "layer_norm"), part=_AUDIO)
_NEMOTRON_PLAIN: Final = replace(_NEMOTRON, style=replace(_CONFORMER_STYLE, qk_norm=""))
NEMOTRON_TIMES: Final = replace(_NEMOTRON, stem=None, part=Part.PROJECTOR)
