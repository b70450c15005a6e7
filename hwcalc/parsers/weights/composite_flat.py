"""Models of several parts whose document keeps the language model's keys at the top: the towers beside it.

Each function mirrors the model's ``modeling_*.py`` in transformers 5.23.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from hwcalc.formulas.weights import Block, Part, Weight, WeightRole, embedding, linear, parameter
from hwcalc.parsers.config import Config
from hwcalc.parsers.weights.composite_codec import picture_stages
from hwcalc.parsers.weights.towers import Style, UnknownTowerError, block, conv, encoder_layer, mlp_chain, norm, tower

__all__ = ["blocks"]

_AUDIO: Final = Part.AUDIO
_JOINT: Final = Part.PROJECTOR


def blocks(top: Config, language: Config) -> tuple[Block, ...] | None:
    """Everything beside the language model; ``None`` where a tower is of a type that nobody weighs."""
    try:
        return _TABLE[top.model_type or ""](top, language)
    except UnknownTowerError:
        return None


def _part(top: Config, key: str) -> Config:
    config = top.part(key)
    if config is None:
        raise top.missing(key)
    return config


def _chameleon(top: Config, language: Config) -> tuple[Block, ...]:
    """Chameleon: a picture becomes tokens of a codebook; there is no way back."""
    vq = _part(top, "vq_config")
    words, code, latent = vq.integer("num_embeddings"), vq.integer("embed_dim"), vq.integer("latent_channels")
    if vq.sequence("attn_resolutions") or vq.text("attn_type") != "vanilla":
        raise UnknownTowerError(vq.model_type)
    ends = (
        *embedding("vqmodel.quantize.embedding", words, code),
        *conv("vqmodel.quant_conv", code, latent, 1, 1),
        *conv("vqmodel.post_quant_conv", latent, code, 1, 1),
    )
    encoder = picture_stages(vq, "vqmodel.encoder", decoder=False, attends=())
    return (*block("encoder", encoder), *block("quantiser", ends))


def _kyutai(top: Config, language: Config) -> tuple[Block, ...]:
    """Kyutai's speech to text: the Mimi codec whole, though only its encoder runs."""
    codec = _part(top, "codec_config")
    if codec.model_type != "mimi":
        raise UnknownTowerError(codec.model_type)
    return _mimi(codec, "codec_model")


def _mimi(config: Config, path: str) -> tuple[Block, ...]:
    """Mimi: convolutions, a small transformer and a change of rate on either side of two residual quantisers."""
    width, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    head_dim = config.maybe_integer("head_dim") or width // heads
    if head_dim == 0:
        raise config.error("num_attention_heads", heads, f"at most hidden_size ({width})")
    bias = config.flag("attention_bias")
    style = Style(
        names=("q_proj", "k_proj", "v_proj", "o_proj"),
        bias=(bias, bias, bias, bias),
        mlp_bias=(False, False),
        norms=("input_layernorm", "post_attention_layernorm"),
        scales=("self_attn_layer_scale.scale", "mlp_layer_scale.scale"),
    )
    layer = encoder_layer(
        config,
        style,
        f"{path}.transformer.layers",
        width,
        config.integer("intermediate_size"),
        heads=heads,
        kv_heads=config.integer("num_key_value_heads"),
        head_dim=head_dim,
    )
    ratios = config.integers("upsampling_ratios", minimum=1) or [8, 6, 5, 4]
    if len(ratios) > _MOST_RATIOS:
        raise config.error("upsampling_ratios", f"{len(ratios)} items long", f"a list of at most {_MOST_RATIOS}")
    stride = _latent_stride(config, ratios)
    rates: tuple[Weight, ...] = ()
    if stride > 1:
        groups = config.integer("upsample_groups")
        rates = (
            *conv(f"{path}.encoder.downsample.conv", width, width, 2 * stride, bias=False),
            *conv(f"{path}.decoder.upsample.conv", width, max(1, width // groups), 2 * stride, bias=False),
        )
    inner = config.integer("vector_quantization_hidden_dimension")
    quantisers: tuple[Weight, ...] = ()
    if inner != width:
        for name in ("semantic", "acoustic"):
            base = f"{path}.quantizer.{name}_residual_vector_quantizer"
            quantisers += (
                *conv(f"{base}.input_proj", inner, width, 1, bias=False),
                *conv(f"{base}.output_proj", width, inner, 1, bias=False),
            )
    return (
        *block("encoder", _seanet(config, f"{path}.encoder.encoder_seanet", ratios, decoder=False), _AUDIO),
        *block("decoder", _seanet(config, f"{path}.decoder.decoder_seanet", ratios, decoder=True), _AUDIO),
        *block("layer", layer, _AUDIO, 2 * config.number_of_layers()),
        *block("rates", rates, _AUDIO),
        *block("quantiser", quantisers, _AUDIO),
    )


_MOST_RATIOS: Final = 32


def _latent_stride(config: Config, ratios: list[int]) -> int:
    """How many frames of the convolutions make one of the codec's; two unless its frame rate says otherwise."""
    wanted = config.number("frame_rate", 0.0)
    if wanted <= 0:
        return 2
    return int(math.ceil(config.integer("sampling_rate") / math.prod(ratios)) / wanted)


def _seanet(config: Config, path: str, ratios: list[int], *, decoder: bool) -> tuple[Weight, ...]:
    """Convolutions that change the rate, and residual ones between; channels double with each step down."""
    filters, kernel, last = config.integer("num_filters"), config.integer("kernel_size"), config.integer("last_kernel_size")
    sound, latent = config.integer("audio_channels"), config.integer("hidden_size")
    widest = filters * 2 ** len(ratios)
    residual, compress = config.integer("residual_kernel_size"), config.integer("compress")
    count = config.integer("num_residual_layers", minimum=0, maximum=1_000)
    weights = (
        (*conv(f"{path}.layers.conv", widest, latent, kernel), *conv(f"{path}.layers.conv", sound, filters, last))
        if decoder
        else (*conv(f"{path}.layers.conv", filters, sound, kernel), *conv(f"{path}.layers.conv", latent, widest, last))
    )
    # Either way the last ratio goes with the fewest channels.
    for step, ratio in enumerate(reversed(ratios)):
        narrow = filters * 2**step
        weights += parameter(f"{path}.layers.conv.weight", 2 * narrow, narrow, 2 * ratio, role=WeightRole.CONV)
        weights += parameter(f"{path}.layers.conv.bias", narrow if decoder else 2 * narrow, role=WeightRole.BIAS)
        hidden = max(1, narrow // compress)
        for _ in range(count):
            weights += conv(f"{path}.layers.block.conv", hidden, narrow, residual)
            weights += conv(f"{path}.layers.block.conv", narrow, hidden, 1)
            if config.flag("use_conv_shortcut"):
                weights += conv(f"{path}.layers.shortcut.conv", narrow, narrow, 1)
    return weights


def _phi4(top: Config, language: Config) -> tuple[Block, ...]:
    """Phi-4 multimodal: a SigLIP tower and a conformer, the latter with one projector for sound and one beside pictures."""
    vision, audio, text = _part(top, "vision_config"), _part(top, "audio_config"), language.integer("hidden_size")
    width = vision.integer("hidden_size")
    image, sound = "embed_tokens_extend.image_embed", "embed_tokens_extend.audio_embed"
    projector = (
        *parameter(f"{image}.global_img_feature_extensor", width),
        *parameter(f"{image}.sub_img_feature_extensor", width),
        *mlp_chain(image, (width, text, text), ("img_projection_up", "img_projection_down")),
    )
    source = audio.integer("hidden_size") * audio.integer("downsample_rate")
    for name in ("speech", "vision_speech"):
        projector += mlp_chain(sound, (source, text, text), (f"up_proj_for_{name}", f"down_proj_for_{name}"))
    return (
        *tower(vision, f"{image}.img_processor"),
        *_phi4_audio(audio, f"{sound}.encoder"),
        *block("projector", projector, _JOINT),
    )


def _phi4_audio(config: Config, path: str) -> tuple[Block, ...]:
    width, heads, middle = (
        config.integer("hidden_size"),
        config.integer("num_attention_heads"),
        config.integer("intermediate_size"),
    )
    inner = (config.maybe_integer("head_dim") or width // heads) * heads
    channels, reduction = config.integer("nemo_conv_channels"), config.integer("time_reduction")
    halvings, bins = int(math.log2(reduction)), config.integer("input_size")
    for _ in range(halvings):
        bins = (bins - 1) // 2 + 1
    stem = conv(f"{path}.embed.conv", channels, 1, 3, 3)
    for _ in range(halvings - 1):
        stem += (*conv(f"{path}.embed.conv", channels, 1, 3, 3), *conv(f"{path}.embed.conv", channels, channels, 1, 1))
    stem += linear(f"{path}.embed.out", channels * (config.maybe_integer("nemo_final_size") or bins), width, bias=True)
    buckets = config.integer("bias_max_distance") * (1 if config.flag("bias_symmetric") else 2)
    stem += embedding(f"{path}.relative_attention_bias_layer.bias_values", buckets, heads)
    base = f"{path}.encoders"
    layer: tuple[Weight, ...] = ()
    for name in ("feed_forward_in", "feed_forward_out"):
        layer += (
            *norm(f"{base}.{name}.layer_norm", width),
            *linear(f"{base}.{name}.gate_up_proj", width, 2 * middle, bias=True),
            *linear(f"{base}.{name}.down_proj", middle, width, bias=True),
        )
    for name in ("q_proj", "k_proj", "v_proj"):
        layer += linear(f"{base}.self_attn.{name}", width, inner, bias=True)
    out, deep = config.integer("ext_pw_out_channel"), width * config.integer("depthwise_multiplier")
    layer += (
        *linear(f"{base}.self_attn.o_proj", inner, width, bias=True),
        *norm(f"{base}.conv.layer_norm", width),
        *parameter(f"{base}.conv.glu.b1", out),
        *parameter(f"{base}.conv.glu.b2", out),
        *conv(f"{base}.conv.glu.ext_pw_conv_1d", 2 * out, width, 1),
        *conv(f"{base}.conv.dw_sep_conv_1d.dw_conv", deep, 1, config.integer("kernel_size")),
        *conv(f"{base}.conv.dw_sep_conv_1d.pw_conv", config.integer("depthwise_separable_out_channel"), deep, 1),
        *conv(f"{base}.conv.ext_pw_conv_1d", out, width, 1),
        *norm(f"{base}.layer_norm_att", width),
        *norm(f"{base}.layer_norm", width),
    )
    return (*block("embedding", stem, _AUDIO), *block("layer", layer, _AUDIO, config.number_of_layers("num_blocks")))


_TABLE: Final[dict[str, Callable[[Config, Config], tuple[Block, ...]]]] = {
    "chameleon": _chameleon,
    "kyutai_speech_to_text": _kyutai,
    "phi4_multimodal": _phi4,
}
