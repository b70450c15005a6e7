"""Convolutional tokenisers of pictures and sound, and what makes tokens audible again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from hwcalc.formulas.weights import Block, Part, attention, embedding, gated_mlp, layer_norm, linear, parameter, rms_norm
from hwcalc.parsers.blocks import Weighed
from hwcalc.parsers.config import Config
from hwcalc.parsers.towers.build import (
    LLAMA,
    UnknownTowerError,
    block,
    conv,
    copied,
    encoder_layer,
    integers,
    linears,
    mlp_chain,
    norms,
    ratio_width,
    stages,
)

_AUDIO: Final = Part.AUDIO
_MOST_BLOCKS: Final = 1_000


# Pictures as tokens of a codebook: a vector-quantised autoencoder.


def chameleon(config: Config, path: str) -> tuple[Block, ...]:
    """Chameleon: a picture becomes tokens; there is no way back."""
    quantiser = _quantiser(config, path)
    if config.sequence("attn_resolutions") or config.text("attn_type") != "vanilla":
        raise UnknownTowerError(config.model_type)
    encoder = _picture_stages(config, f"{path}.encoder", decoder=False, attends=())
    return (*block("encoder", encoder), *block("quantiser", quantiser))


def janus(config: Config, path: str) -> tuple[Block, ...]:
    """Janus: both ways, with attention at the smallest size."""
    last = (len(stages(config, "channel_multiplier")) - 1,)
    return (
        *block("encoder", _picture_stages(config, f"{path}.encoder", decoder=False, attends=last)),
        *block("decoder", _picture_stages(config, f"{path}.decoder", decoder=True, attends=last)),
        *block("quantiser", _quantiser(config, path)),
    )


def _quantiser(config: Config, path: str) -> Weighed:
    words, code, latent = integers(config, "num_embeddings", "embed_dim", "latent_channels")
    return (
        *embedding(f"{path}.quantize.embedding", words, code),
        *conv(f"{path}.quant_conv", code, latent, 1, 1),
        *conv(f"{path}.post_quant_conv", latent, code, 1, 1),
    )


def _picture_stages(config: Config, path: str, *, decoder: bool, attends: Sequence[int]) -> Weighed:
    """One half of the autoencoder: residual blocks at each size, attention at the levels of ``attends``."""
    base, latent, colours = integers(config, "base_channels", "latent_channels", "in_channels")
    widths = [base * times for times in stages(config, "channel_multiplier")]
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
    return (
        *weights,
        *_picture_block(f"{path}.mid.block_1", middle, middle),
        *_picture_attention(f"{path}.mid.attn_1", middle),
        *_picture_block(f"{path}.mid.block_2", middle, middle),
        *layer_norm(f"{path}.norm_out", width),
        *conv(f"{path}.conv_out", out, width, 3, 3),
    )


def _picture_block(path: str, source: int, out: int) -> Weighed:
    weights = (
        *layer_norm(f"{path}.norm1", source),
        *conv(f"{path}.conv1", out, source, 3, 3),
        *layer_norm(f"{path}.norm2", out),
        *conv(f"{path}.conv2", out, out, 3, 3),
    )
    return weights if source == out else (*weights, *conv(f"{path}.nin_shortcut", out, source, 1, 1))


def _picture_attention(path: str, width: int) -> Weighed:
    weights = layer_norm(f"{path}.norm", width)
    for name in ("q", "k", "v", "proj_out"):
        weights += conv(f"{path}.{name}", width, width, 1, 1)
    return weights


# VibeVoice: sound as continuous latents.


def sound(config: Config, path: str) -> tuple[Block, ...]:
    """VibeVoice's acoustic tokeniser, both ways."""
    decoder = _sound_stages(config, f"{path}.decoder", decoder=True)
    return (*sound_encoder(config, f"{path}.encoder"), *block("decoder", decoder, _AUDIO))


def sound_encoder(config: Config, path: str) -> tuple[Block, ...]:
    """The way in alone."""
    return block("encoder", _sound_stages(config, path, decoder=False), _AUDIO)


def _sound_stages(config: Config, path: str, *, decoder: bool) -> Weighed:
    """One stage for each change of rate, each of depthwise convolutions and MLPs."""
    ratios = stages(config, "downsampling_ratios")
    depths = stages(config, "depths", length=len(ratios) + 1)
    filters, kernel, latent, channels, expansion = integers(
        config, "num_filters", "kernel_size", "hidden_size", "channels", "ffn_expansion"
    )
    weights: Weighed = ()
    base, widest = f"{path}.conv_layers.stage", filters * 2 ** len(ratios)
    for stage, depth in enumerate(depths):
        width = filters * 2**stage
        layer = (
            *parameter(f"{base}.gamma", width),
            *parameter(f"{base}.ffn_gamma", width),
            *norms("rms", base, ("norm", "ffn_norm"), width),
            *mlp_chain(f"{base}.ffn", (width, expansion * width, width), ("linear1", "linear2")),
            *conv(f"{base}.mixer.conv", width, 1, kernel),
        )
        weights += copied(layer, depth)
        if stage:
            weights += conv(f"{path}.conv_layers.conv", width, width // 2, 2 * ratios[stage - 1], transposed=decoder)
    (stem, source), (out, last) = ((widest, latent), (channels, filters)) if decoder else ((filters, channels), (latent, widest))
    return (*weights, *conv(f"{path}.stem.conv", stem, source, kernel), *conv(f"{path}.head.conv", out, last, kernel))


# Mimi: sound as tokens.


_SCALES: Final = ("self_attn_layer_scale.scale", "mlp_layer_scale.scale")


def mimi(config: Config, path: str) -> tuple[Block, ...]:
    """Mimi: convolutions, a small transformer and a change of rate on either side of two residual quantisers."""
    width = config.integer("hidden_size")
    style = replace(LLAMA, bias=4 * ("attention_bias",), mlp_bias=(False, False), heads="own", kv_heads=True, scales=_SCALES)
    layer = encoder_layer(config, style, f"{path}.transformer.layers", width, config.integer("intermediate_size"))
    ratios = stages(config, "upsampling_ratios", default=(8, 6, 5, 4))
    stride = _latent_stride(config, ratios)
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


def _latent_stride(config: Config, ratios: list[int]) -> int:
    """How many frames of the convolutions make one of the codec's; two unless its frame rate says otherwise."""
    wanted = config.number("frame_rate", 0.0)
    if wanted <= 0:
        return 2
    return int(math.ceil(config.integer("sampling_rate") / math.prod(ratios)) / wanted)


def _seanet(config: Config, path: str, ratios: list[int], *, decoder: bool) -> Weighed:
    """Convolutions that change the rate, and residual ones between; channels double with each step down."""
    filters, kernel, last = integers(config, "num_filters", "kernel_size", "last_kernel_size")
    channels, latent, residual, compress = integers(config, "audio_channels", "hidden_size", "residual_kernel_size", "compress")
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


# Qwen2.5-Omni: a second language model that speaks, and what makes its tokens audible.


def talker(config: Config, path: str) -> tuple[Block, ...]:
    """A small decoder whose tokens are sounds."""
    width, heads, vocab, source = integers(config, "hidden_size", "num_attention_heads", "vocab_size", "embedding_size")
    kv_heads = config.maybe_integer("num_key_value_heads") or heads
    head_dim, base = config.maybe_integer("head_dim") or width // heads, f"{path}.model.layers"
    layer = (
        *attention(width, heads, kv_heads, head_dim, qkv_bias=True, path=f"{base}.self_attn"),
        *gated_mlp(width, config.integer("intermediate_size"), path=f"{base}.mlp"),
        *norms("rms", base, LLAMA.norms, width),
    )
    ends = (
        *linear(f"{path}.thinker_to_talker_proj", source, width, bias=True),
        *embedding(f"{path}.model.embed_tokens", vocab, source),
        *rms_norm(f"{path}.model.norm", width),
        *linear(f"{path}.codec_head", width, vocab),
    )
    return (*block("talker layer", layer, _AUDIO, config.number_of_layers()), *block("talker ends", ends, _AUDIO))


def speech_diffusion(config: Config, path: str) -> tuple[Block, ...]:
    """The diffusion transformer that turns codes into a spectrogram."""
    width, layers = config.integer("hidden_size"), f"{path}.transformer_blocks"
    inner = config.integer("head_dim") * config.integer("num_attention_heads")
    mel, codes = integers(config, "mel_dim", "emb_dim")
    layer = (
        *linear(f"{layers}.attn_norm.linear", width, 6 * width, bias=True),
        *linears(f"{layers}.attn", ("to_q", "to_k", "to_v"), width, inner, bias=True),
        *linear(f"{layers}.attn.to_out.0", inner, width, bias=True),
        *mlp_chain(f"{layers}.ff.ff", (width, ratio_width(config, width, "ff_mult"), width), ("0", "3")),
    )
    source = mel + config.integer("enc_dim") + config.integer("enc_emb_dim") + codes
    ends = (
        *mlp_chain(f"{path}.time_embed.time_mlp", (256, width, width), ("0", "2")),
        *embedding(f"{path}.text_embed.codec_embed", config.integer("num_embeds") + 1, codes),
        *linear(f"{path}.input_embed.proj", source, width, bias=True),
        *linear(f"{path}.norm_out.linear", width, 2 * width, bias=True),
        *linear(f"{path}.proj_out", width, mel, bias=True),
    )
    return (
        *block("diffusion layer", layer, _AUDIO, config.number_of_layers()),
        *block("diffusion ends", ends, _AUDIO),
        *block("speaker encoder", _speaker_encoder(config, f"{path}.input_embed.spk_encoder"), _AUDIO),
    )


def _speaker_encoder(config: Config, path: str) -> Weighed:
    """ECAPA-TDNN: residual convolutions over slices of the channels, then statistics over time."""
    widths = stages(config, "enc_channels")
    kernels = stages(config, "enc_kernel_sizes", length=len(widths))
    squeezed, last, base = config.integer("enc_se_channels"), widths[-1], f"{path}.blocks"
    scale, pooled = config.integer("enc_res2net_scale", maximum=_MOST_BLOCKS), config.integer("enc_attention_channels")
    weights = conv(f"{base}.conv", widths[0], config.integer("mel_dim"), kernels[0])
    for source, width, kernel in zip(widths[:-2], widths[1:-1], kernels[1:-1], strict=True):
        weights += conv(f"{base}.tdnn1.conv", width, source, 1)
        for _ in range(scale - 1):
            weights += conv(f"{base}.res2net_block.conv", width // scale, width // scale, kernel)
        weights += (
            *conv(f"{base}.tdnn2.conv", width, width, 1),
            *conv(f"{base}.se_block.conv1", squeezed, width, 1),
            *conv(f"{base}.se_block.conv2", width, squeezed, 1),
        )
    return (
        *weights,
        *conv(f"{path}.mfa.conv", last, last, kernels[-1]),
        *conv(f"{path}.asp.tdnn.conv", pooled, 3 * last, 1),
        *conv(f"{path}.asp.conv", last, pooled, 1),
        *conv(f"{path}.fc", config.integer("enc_dim"), 2 * last, 1),
    )


def bigvgan(config: Config, path: str) -> tuple[Block, ...]:
    """The vocoder: each step raises the rate and halves the channels, with residual blocks of several kernels."""
    width, rates = config.integer("upsample_initial_channel"), stages(config, "upsample_rates")
    widening = stages(config, "upsample_kernel_sizes", length=len(rates))
    kernels = stages(config, "resblock_kernel_sizes")
    weights = conv(f"{path}.conv_pre", width, config.integer("mel_dim"), 7)
    for widen in widening:
        half = width // 2
        weights += conv(f"{path}.ups", width, half, widen, transposed=True)
        for kernel in kernels:
            # Three dilations of two convolutions each, and an activation with two vectors before every one.
            activation = parameter(f"{path}.resblocks.activations", 2, half)
            weights += copied((*conv(f"{path}.resblocks.convs", half, half, kernel), *activation), 6)
        width = half
    weights += parameter(f"{path}.activation_post", 2, width)
    return block("vocoder", weights + conv(f"{path}.conv_post", 1, width, 7, bias=False), _AUDIO)
