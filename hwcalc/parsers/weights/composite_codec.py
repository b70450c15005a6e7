"""Models that speak or draw: convolutional tokenisers of sound and pictures, and what turns tokens back into them.

Each function mirrors the model's ``modeling_*.py`` in transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from hwcalc.formulas.weights import Block, Part, Weight, WeightRole, attention, embedding, gated_mlp, linear, parameter, rms_norm
from hwcalc.parsers.blocks import tied_head
from hwcalc.parsers.config import Config
from hwcalc.parsers.weights.towers import UnknownTowerError, block, conv, mlp_chain, norm, ratio_width, tower

__all__ = ["blocks", "picture_stages"]

_AUDIO: Final = Part.AUDIO
_JOINT: Final = Part.PROJECTOR
_MOST_STAGES: Final = 32


def blocks(top: Config, language: Config) -> tuple[Block, ...] | None:
    """Everything beside the language model; ``None`` where a tower is of a type that nobody weighs."""
    try:
        return _TABLE[top.model_type or ""](top, language)
    except UnknownTowerError:
        return None


def _part(top: Config, key: str, **set_by_parent: int) -> Config:
    config = top.part(key, **set_by_parent)
    if config is None:
        raise top.missing(key)
    return config


def _stages(config: Config, key: str, length: int | None = None) -> list[int]:
    """Whole numbers, one for each stage."""
    values = config.integers(key, length=length, minimum=1)
    if not values:
        raise config.missing(key)
    if len(values) > _MOST_STAGES:
        raise config.error(key, f"{len(values)} items long", f"a list of at most {_MOST_STAGES}")
    return values


# VibeVoice: sound as continuous latents.


def _sound_stages(config: Config, path: str, *, decoder: bool) -> tuple[Weight, ...]:
    """An encoder or decoder: one stage for each change of rate, each of depthwise convolutions and MLPs."""
    ratios = _stages(config, "downsampling_ratios")
    depths = _stages(config, "depths", length=len(ratios) + 1)
    filters, kernel, latent = config.integer("num_filters"), config.integer("kernel_size"), config.integer("hidden_size")
    sound, expansion = config.integer("channels"), config.integer("ffn_expansion")
    weights: tuple[Weight, ...] = ()
    for stage, depth in enumerate(depths):
        width = filters * 2**stage
        base = f"{path}.conv_layers.stage"
        layer = (
            *parameter(f"{base}.gamma", width),
            *parameter(f"{base}.ffn_gamma", width),
            *rms_norm(f"{base}.norm", width),
            *rms_norm(f"{base}.ffn_norm", width),
            *mlp_chain(f"{base}.ffn", (width, expansion * width, width), ("linear1", "linear2")),
            *conv(f"{base}.mixer.conv", width, 1, kernel),
        )
        weights += tuple(Weight(path=weight.path, shape=weight.shape, role=weight.role, copies=depth) for weight in layer)
        if stage:
            # A transposed convolution stores its inputs first; its bias is as wide as its outputs.
            shape = parameter(f"{path}.conv_layers.conv.weight", width, width // 2, 2 * ratios[stage - 1], role=WeightRole.CONV)
            weights += (
                *shape,
                *parameter(f"{path}.conv_layers.conv.bias", width // 2 if decoder else width, role=WeightRole.BIAS),
            )
    top_width = filters * 2 ** len(ratios)
    if decoder:
        return (
            *weights,
            *conv(f"{path}.stem.conv", top_width, latent, kernel),
            *conv(f"{path}.head.conv", sound, filters, kernel),
        )
    return (*weights, *conv(f"{path}.stem.conv", filters, sound, kernel), *conv(f"{path}.head.conv", latent, top_width, kernel))


def _sound_encoder(top: Config, key: str, path: str) -> tuple[Config, tuple[Block, ...]]:
    config = _part(top, key)
    if config.model_type != "vibevoice_acoustic_tokenizer_encoder":
        raise UnknownTowerError(config.model_type)
    return config, block("encoder", _sound_stages(config, path, decoder=False), _AUDIO)


def _connector(path: str, source: int, out: int, names: tuple[str, str, str]) -> tuple[Weight, ...]:
    first, middle, last = names
    return (
        *linear(f"{path}{first}", source, out, bias=True),
        *rms_norm(f"{path}{middle}", out),
        *linear(f"{path}{last}", out, out, bias=True),
    )


def _vibevoice(top: Config, language: Config) -> tuple[Block, ...]:
    """VibeVoice: an acoustic tokeniser both ways, a semantic one, and a diffusion head for the next latent."""
    audio, text = _part(top, "audio_config"), language.integer("hidden_size")
    if audio.model_type != "vibevoice_acoustic_tokenizer":
        raise UnknownTowerError(audio.model_type)
    out = block("encoder", _sound_stages(audio, "audio_tower.encoder", decoder=False), _AUDIO)
    out += block("decoder", _sound_stages(audio, "audio_tower.decoder", decoder=True), _AUDIO)
    semantic, encoder = _sound_encoder(top, "semantic_model_config", "semantic_tokenizer_encoder")
    names = ("linear_1", "act", "linear_2")
    weights = (
        *_connector("multi_modal_projector.", audio.integer("hidden_size"), text, names),
        *_connector("semantic_connector.", semantic.integer("hidden_size"), text, names),
        *parameter("latent_factors", 2),
    )
    head = _part(top, "diffusion_head_config", hidden_size=text, latent_size=audio.integer("hidden_size"))
    return (*out, *encoder, *block("projector", weights, _JOINT), *_diffusion_head(head))


def _diffusion_head(config: Config) -> tuple[Block, ...]:
    width, latent, base = config.integer("hidden_size"), config.integer("latent_size"), "diffusion_head"
    layer = (
        *gated_mlp(width, config.integer("intermediate_size"), bias=config.flag("mlp_bias"), path=f"{base}.layers.ffn"),
        *rms_norm(f"{base}.layers.norm", width),
        *linear(f"{base}.layers.linear", width, 3 * width),
    )
    ends = (
        *linear(f"{base}.noisy_images_proj", latent, width),
        *linear(f"{base}.cond_proj", width, width),
        *linear(f"{base}.timestep_proj.fc1", config.integer("frequency_embedding_size"), width),
        *linear(f"{base}.timestep_proj.fc2", width, width),
        *linear(f"{base}.final_layer.linear_1", width, 2 * width),
        *linear(f"{base}.final_layer.linear_2", width, latent),
    )
    return (*block("diffusion layer", layer, _JOINT, config.number_of_layers()), *block("diffusion ends", ends, _JOINT))


def _vibevoice_asr(top: Config, language: Config) -> tuple[Block, ...]:
    """VibeVoice ASR: the two encoders alone."""
    text, base = language.integer("hidden_size"), "multi_modal_projector."
    out: tuple[Block, ...] = ()
    weights: tuple[Weight, ...] = ()
    for kind in ("acoustic", "semantic"):
        config, encoder = _sound_encoder(top, f"{kind}_tokenizer_encoder_config", f"{kind}_tokenizer_encoder")
        out += encoder
        weights += _connector(base, config.integer("hidden_size"), text, (f"{kind}_linear_1", f"{kind}_norm", f"{kind}_linear_2"))
    return (*out, *block("projector", weights, _JOINT))


# Janus: pictures as tokens of a codebook.


def _picture_block(path: str, source: int, out: int) -> tuple[Weight, ...]:
    weights = (
        *norm(f"{path}.norm1", source),
        *conv(f"{path}.conv1", out, source, 3, 3),
        *norm(f"{path}.norm2", out),
        *conv(f"{path}.conv2", out, out, 3, 3),
    )
    return weights if source == out else (*weights, *conv(f"{path}.nin_shortcut", out, source, 1, 1))


def _picture_attention(path: str, width: int) -> tuple[Weight, ...]:
    weights = norm(f"{path}.norm", width)
    for name in ("q", "k", "v", "proj_out"):
        weights += conv(f"{path}.{name}", width, width, 1, 1)
    return weights


def picture_stages(config: Config, path: str, *, decoder: bool, attends: Sequence[int] | None = None) -> tuple[Weight, ...]:
    """One half of a vector-quantised autoencoder: residual blocks at each size, attention at the levels of ``attends``.

    Left out, that is the smallest size alone.
    """
    base, latent, colours = config.integer("base_channels"), config.integer("latent_channels"), config.integer("in_channels")
    widths = [base * times for times in _stages(config, "channel_multiplier")]
    count, last = config.integer("num_res_blocks", maximum=1_000), len(widths) - 1
    if decoder:
        width = widths[-1]
        weights = conv(f"{path}.conv_in", width, latent, 3, 3)
        middle = width
        order = list(range(last, -1, -1))
    else:
        width = base
        weights = conv(f"{path}.conv_in", base, colours, 3, 3)
        middle = widths[-1]
        order = list(range(last + 1))
    for level in order:
        for _ in range(count + decoder):
            weights += _picture_block(f"{path}.block", width, widths[level])
            width = widths[level]
            if level in ((last,) if attends is None else attends):
                weights += _picture_attention(f"{path}.attn", width)
        if level != order[-1]:
            weights += conv(f"{path}.resample.conv", width, width, 3, 3)
    weights += (
        *_picture_block(f"{path}.mid.block_1", middle, middle),
        *_picture_attention(f"{path}.mid.attn_1", middle),
        *_picture_block(f"{path}.mid.block_2", middle, middle),
        *norm(f"{path}.norm_out", width),
    )
    if decoder:
        return (*weights, *conv(f"{path}.conv_out", config.integer("out_channels"), width, 3, 3))
    return (*weights, *conv(f"{path}.conv_out", latent * (1 + config.flag("double_latent")), width, 3, 3))


def _aligner(path: str, source: int, width: int, count: int) -> tuple[Weight, ...]:
    """One linear layer, and ``count - 1`` more of the same width."""
    more = linear(f"{path}.hidden_layers", width, width, bias=True)
    copied = tuple(Weight(path=w.path, shape=w.shape, role=w.role, copies=count - 1) for w in more)
    return (*linear(f"{path}.fc1", source, width, bias=True), *(copied if count > 1 else ()))


def _janus(top: Config, language: Config) -> tuple[Block, ...]:
    """Janus: a tower to see with, and a tokeniser, embeddings and a head to draw with."""
    vision, vq = _part(top, "vision_config"), _part(top, "vq_config")
    out = tower(vision, "vision_model")
    aligner = _aligner(
        "aligner", vision.integer("hidden_size"), vision.integer("projection_dim"), vision.number_of_layers("depth")
    )
    words, code, latent = vq.integer("num_embeddings"), vq.integer("embed_dim"), vq.integer("latent_channels")
    width = vq.integer("projection_dim")
    quantiser = (
        *embedding("vqmodel.quantize.embedding", words, code),
        *conv("vqmodel.quant_conv", code, latent, 1, 1),
        *conv("vqmodel.post_quant_conv", latent, code, 1, 1),
    )
    drawing = (
        *embedding("generation_embeddings", words, code),
        *_aligner("generation_aligner", code, width, vq.number_of_layers()),
        *linear("generation_head.proj_out", vq.integer("image_token_embed_dim"), width, bias=True),
        *linear("generation_head.vision_head", width, words, bias=True),
    )
    return (
        *out,
        *block("projector", aligner, _JOINT),
        *block("encoder", picture_stages(vq, "vqmodel.encoder", decoder=False)),
        *block("decoder", picture_stages(vq, "vqmodel.decoder", decoder=True)),
        *block("quantiser", quantiser),
        *block("drawing", drawing, _JOINT),
    )


# Qwen2.5-Omni: a second language model that speaks, and what makes its tokens audible.


def _qwen_omni(top: Config, language: Config) -> tuple[Block, ...]:
    """Qwen2.5-Omni whole: towers, and unless audio is off the talker with its vocoder."""
    thinker = top.sub("thinker_config")
    thinker = thinker if thinker is not None else top.retyped("qwen2_5_omni_thinker")
    out: tuple[Block, ...] = ()
    for key, path in (("audio_config", "thinker.audio_tower"), ("vision_config", "thinker.visual")):
        out += tower(_part(thinker, key), path)
    if tied_head(language, top) and not tied_head(language, thinker):
        # The thinker's own word counts, not that of the whole.
        width = language.integer("hidden_size")
        head = linear("thinker.lm_head", width, language.integer("vocab_size"), role=WeightRole.HEAD)
        out += block("head", head, Part.LANGUAGE)
    if not top.flag("enable_audio_output"):
        return out
    vocoder = _part(top, "token2wav_config")
    return (
        *out,
        *_talker(_part(top, "talker_config")),
        *_speech_diffusion(_part(vocoder, "dit_config")),
        *block("vocoder", _bigvgan(_part(vocoder, "bigvgan_config")), _AUDIO),
    )


def _talker(config: Config) -> tuple[Block, ...]:
    width, heads, vocab = config.integer("hidden_size"), config.integer("num_attention_heads"), config.integer("vocab_size")
    source, base = config.integer("embedding_size"), "talker.model.layers"
    layer = (
        *attention(
            width,
            heads,
            config.maybe_integer("num_key_value_heads") or heads,
            config.maybe_integer("head_dim") or width // heads,
            qkv_bias=True,
            path=f"{base}.self_attn",
        ),
        *gated_mlp(width, config.integer("intermediate_size"), path=f"{base}.mlp"),
        *rms_norm(f"{base}.input_layernorm", width),
        *rms_norm(f"{base}.post_attention_layernorm", width),
    )
    ends = (
        *linear("talker.thinker_to_talker_proj", source, width, bias=True),
        *embedding("talker.model.embed_tokens", vocab, source),
        *rms_norm("talker.model.norm", width),
        *linear("talker.codec_head", width, vocab),
    )
    return (*block("talker layer", layer, _AUDIO, config.number_of_layers()), *block("talker ends", ends, _AUDIO))


def _speech_diffusion(config: Config) -> tuple[Block, ...]:
    """The diffusion transformer that turns codes into a spectrogram."""
    width, base = config.integer("hidden_size"), "token2wav.code2wav_dit_model"
    inner = config.integer("head_dim") * config.integer("num_attention_heads")
    mel, codes = config.integer("mel_dim"), config.integer("emb_dim")
    layers = f"{base}.transformer_blocks"
    layer = linear(f"{layers}.attn_norm.linear", width, 6 * width, bias=True)
    for name in ("to_q", "to_k", "to_v"):
        layer += linear(f"{layers}.attn.{name}", width, inner, bias=True)
    layer += linear(f"{layers}.attn.to_out.0", inner, width, bias=True)
    layer += mlp_chain(f"{layers}.ff.ff", (width, ratio_width(config, width, "ff_mult"), width), ("0", "3"))
    source = mel + config.integer("enc_dim") + config.integer("enc_emb_dim") + codes
    ends = (
        *mlp_chain(f"{base}.time_embed.time_mlp", (256, width, width), ("0", "2")),
        *embedding(f"{base}.text_embed.codec_embed", config.integer("num_embeds") + 1, codes),
        *linear(f"{base}.input_embed.proj", source, width, bias=True),
        *linear(f"{base}.norm_out.linear", width, 2 * width, bias=True),
        *linear(f"{base}.proj_out", width, mel, bias=True),
    )
    speaker = _speaker_encoder(config, f"{base}.input_embed.spk_encoder")
    return (
        *block("diffusion layer", layer, _AUDIO, config.number_of_layers()),
        *block("diffusion ends", ends, _AUDIO),
        *block("speaker encoder", speaker, _AUDIO),
    )


def _speaker_encoder(config: Config, path: str) -> tuple[Weight, ...]:
    """ECAPA-TDNN: residual convolutions over slices of the channels, then statistics over time."""
    widths = _stages(config, "enc_channels")
    kernels = _stages(config, "enc_kernel_sizes", length=len(widths))
    squeezed, scale, last = config.integer("enc_se_channels"), config.integer("enc_res2net_scale", maximum=1_000), widths[-1]
    pooled = config.integer("enc_attention_channels")
    weights = conv(f"{path}.blocks.conv", widths[0], config.integer("mel_dim"), kernels[0])
    for source, width, kernel in zip(widths[:-2], widths[1:-1], kernels[1:-1], strict=True):
        weights += conv(f"{path}.blocks.tdnn1.conv", width, source, 1)
        for _ in range(scale - 1):
            weights += conv(f"{path}.blocks.res2net_block.conv", width // scale, width // scale, kernel)
        weights += (
            *conv(f"{path}.blocks.tdnn2.conv", width, width, 1),
            *conv(f"{path}.blocks.se_block.conv1", squeezed, width, 1),
            *conv(f"{path}.blocks.se_block.conv2", width, squeezed, 1),
        )
    return (
        *weights,
        *conv(f"{path}.mfa.conv", last, last, kernels[-1]),
        *conv(f"{path}.asp.tdnn.conv", pooled, 3 * last, 1),
        *conv(f"{path}.asp.conv", last, pooled, 1),
        *conv(f"{path}.fc", config.integer("enc_dim"), 2 * last, 1),
    )


def _bigvgan(config: Config) -> tuple[Weight, ...]:
    """The vocoder: each step raises the rate and halves the channels, with residual blocks of several kernels."""
    width, path = config.integer("upsample_initial_channel"), "token2wav.code2wav_bigvgan_model"
    rates = _stages(config, "upsample_rates")
    widening = _stages(config, "upsample_kernel_sizes", length=len(rates))
    kernels = _stages(config, "resblock_kernel_sizes")
    weights = conv(f"{path}.conv_pre", width, config.integer("mel_dim"), 7)
    for widen in widening:
        half = width // 2
        # A transposed convolution stores its inputs first.
        weights += parameter(f"{path}.ups.weight", width, half, widen, role=WeightRole.CONV)
        weights += parameter(f"{path}.ups.bias", half, role=WeightRole.BIAS)
        for kernel in kernels:
            # Three dilations of two convolutions each, and an activation with two vectors before every one.
            for weight in (
                *conv(f"{path}.resblocks.convs", half, half, kernel),
                *parameter(f"{path}.resblocks.activations", 2, half),
            ):
                weights += (Weight(path=weight.path, shape=weight.shape, role=weight.role, copies=6),)
        width = half
    return (
        *weights,
        *parameter(f"{path}.activation_post", 2, width),
        *conv(f"{path}.conv_post", 1, width, 7, bias=False),
    )


_TABLE: Final[dict[str, Callable[[Config, Config], tuple[Block, ...] | None]]] = {
    "janus": _janus,
    "qwen2_5_omni": _qwen_omni,
    "vibevoice": _vibevoice,
    "vibevoice_asr": _vibevoice_asr,
}
