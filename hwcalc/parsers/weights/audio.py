"""Audio towers: Whisper's encoder and its kin, conformers, and a few of their own kind.

Each function mirrors the tower's ``modeling_*.py`` in transformers 5.23. Sinusoidal positions are no parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from hwcalc.formulas.weights import Block, Part, Weight, embedding, linear, parameter, rms_norm
from hwcalc.parsers.config import Config
from hwcalc.parsers.weights.towers import Style, block, conv, encoder_layer, mlp_chain, norm, ratio_width

__all__ = ["blocks"]

_AUDIO: Final = Part.AUDIO
_WHISPER: Final = Style(bias=(True, False, True, True), mlp=("fc1", "fc2"), norms=("self_attn_layer_norm", "final_layer_norm"))
_QWEN3: Final = replace(_WHISPER, bias=(True, True, True, True))
_LLAMA_NORMS: Final = ("input_layernorm", "post_attention_layernorm")
_SEPARATE: Final = ("q_proj", "k_proj", "v_proj", "o_proj")


def blocks(config: Config, path: str) -> tuple[Block, ...]:
    """All blocks of a tower in the table."""
    return _TABLE[config.model_type or ""](config, path)


def _dims(config: Config) -> tuple[int, int]:
    """Heads and the width of one."""
    width, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    head_dim = config.maybe_integer("head_dim") or width // heads
    if head_dim == 0:
        raise config.error("num_attention_heads", heads, f"at most hidden_size ({width})")
    return heads, head_dim


def _mel_convolutions(config: Config, path: str, width: int) -> tuple[Weight, ...]:
    """Two convolutions over time, the second of which halves it."""
    return (*conv(f"{path}.conv1", width, config.integer("num_mel_bins"), 3), *conv(f"{path}.conv2", width, width, 3))


def _whisper(config: Config, path: str, *, positions: bool = True, final: str = "layer_norm") -> tuple[Block, ...]:
    width = config.integer("hidden_size")
    embeddings = _mel_convolutions(config, path, width)
    if positions:
        embeddings += embedding(f"{path}.embed_positions", config.integer("max_source_positions"), width)
    layer = encoder_layer(config, _WHISPER, f"{path}.layers", width, config.integer("intermediate_size"))
    return (
        *block("embedding", embeddings, _AUDIO),
        *block("layer", layer, _AUDIO, config.number_of_layers()),
        *block("norm", norm(f"{path}.{final}", width), _AUDIO),
    )


def _qwen25_omni(config: Config, path: str) -> tuple[Block, ...]:
    width, out = config.integer("hidden_size"), config.integer("output_dim")
    marks = (*embedding(f"{path}.audio_bos_eos_token", 2, out), *linear(f"{path}.proj", width, out, bias=True))
    return (*_whisper(config, path, positions=False, final="ln_post"), *block("projector", marks, Part.PROJECTOR))


def _halved(number: int, times: int) -> int:
    """A length that strided convolutions halve, each time rounding up."""
    for _ in range(times):
        number = (number + 1) // 2
    return number


def _image_convolutions(config: Config, path: str, bins: int, width: int, names: tuple[str, str]) -> tuple[Weight, ...]:
    """Three convolutions over the spectrogram as an image, and a linear layer over what is left of each frame."""
    inner = config.integer("downsample_hidden_size")
    return (
        *conv(f"{path}.{names[0]}1", inner, 1, 3, 3),
        *conv(f"{path}.{names[0]}2", inner, inner, 3, 3),
        *conv(f"{path}.{names[0]}3", inner, inner, 3, 3),
        *linear(f"{path}.{names[1]}", inner * _halved(bins, 3), width),
    )


def _qwen3(config: Config, path: str) -> tuple[Block, ...]:
    width = config.integer("hidden_size")
    stem = _image_convolutions(config, path, config.integer("num_mel_bins"), width, ("conv2d", "conv_out"))
    layer = encoder_layer(config, _QWEN3, f"{path}.layers", width, config.integer("intermediate_size"))
    return (
        *block("embedding", stem, _AUDIO),
        *block("layer", layer, _AUDIO, config.number_of_layers()),
        *block("norm", norm(f"{path}.ln_post", width), _AUDIO),
    )


def _qwen3_omni(config: Config, path: str) -> tuple[Block, ...]:
    width = config.integer("hidden_size")
    projector = mlp_chain(path, (width, width, config.integer("output_dim")), ("proj1", "proj2"))
    return (*_qwen3(config, path), *block("projector", projector, Part.PROJECTOR))


def _glm_asr(config: Config, path: str) -> tuple[Block, ...]:
    width = config.integer("hidden_size")
    heads, head_dim = _dims(config)
    layer = encoder_layer(
        config,
        Style(names=_SEPARATE, bias=(True, False, True, True), norms=_LLAMA_NORMS),
        f"{path}.layers",
        width,
        config.integer("intermediate_size"),
        heads=heads,
        kv_heads=config.maybe_integer("num_key_value_heads") or heads,
        head_dim=head_dim,
    )
    return (
        *block("embedding", _mel_convolutions(config, path, width), _AUDIO),
        *block("layer", layer, _AUDIO, config.number_of_layers()),
        *block("norm", norm(f"{path}.norm", width), _AUDIO),
    )


def _voxtral_realtime(config: Config, path: str) -> tuple[Block, ...]:
    """Voxtral Realtime: Whisper's convolutions, then gated layers with root-mean-square norms."""
    width = config.integer("hidden_size")
    heads, head_dim = _dims(config)
    style = Style(
        names=_SEPARATE,
        bias=(True, False, True, True),
        mlp=("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
        mlp_bias=(False, True),
        norms=("self_attn_layer_norm", "final_layer_norm"),
        rms=True,
    )
    layer = encoder_layer(
        config, style, f"{path}.layers", width, config.integer("intermediate_size"), heads=heads, head_dim=head_dim
    )
    return (
        *block("embedding", _mel_convolutions(config, f"{path}.embedder", width), _AUDIO),
        *block("layer", layer, _AUDIO, config.number_of_layers()),
        *block("norm", rms_norm(f"{path}.norm", width), _AUDIO),
    )


def _fun_asr(config: Config, path: str) -> tuple[Block, ...]:
    """Fun-ASR: each layer remembers by a depthwise convolution as well; the first reads stacked frames."""
    width, count = config.integer("hidden_size"), config.number_of_layers()
    stacked = config.integer("num_mel_bins") * config.integer("num_stacked_frames")
    base = f"{path}.layers"
    style = Style(names=_SEPARATE, norms=_LLAMA_NORMS)
    memory = conv(f"{base}.self_attn.fsmn.conv", width, 1, config.integer("fsmn_kernel_size"), bias=False)
    layer = encoder_layer(config, style, base, width, config.integer("intermediate_size"))
    first = (
        *linear(f"{base}.self_attn.q_proj", stacked, width, bias=True),
        *linear(f"{base}.self_attn.k_proj", stacked, width, bias=True),
        *linear(f"{base}.self_attn.v_proj", stacked, width, bias=True),
        *norm(f"{base}.input_layernorm", stacked),
        *(
            w
            for w in layer
            if not w.path.startswith((f"{base}.self_attn.q", f"{base}.self_attn.k", f"{base}.self_attn.v", f"{base}.input"))
        ),
    )
    timestamps = config.integer("num_timestamp_prediction_layers", minimum=0)
    normed = len({count - timestamps - 1, count - 1} & set(range(count)))
    return (
        *block("first layer", (*first, *memory), _AUDIO),
        *block("layer", (*layer, *memory), _AUDIO, count - 1),
        *block("norm", norm(f"{base}.final_layernorm", width), _AUDIO, normed),
    )


def _granite_speech(config: Config, path: str) -> tuple[Block, ...]:
    """Granite Speech: a conformer with a character head whose guesses go back in half-way."""
    width, heads, out = config.integer("hidden_dim"), config.integer("num_heads"), config.integer("output_dim")
    head_dim = config.maybe_integer("dim_head") or width // heads
    inner, expanded = heads * head_dim, width * config.integer("conv_expansion_factor")
    base = f"{path}.layers"
    weights: tuple[Weight, ...] = ()
    for name in ("ff1", "ff2"):
        weights += norm(f"{base}.{name}.pre_norm", width)
        weights += mlp_chain(
            f"{base}.{name}", (width, width * config.integer("feedforward_mult"), width), ("up_proj", "down_proj")
        )
    weights += (
        *norm(f"{base}.attn.pre_norm", width),
        *linear(f"{base}.attn.to_q", width, inner),
        *linear(f"{base}.attn.to_kv", width, 2 * inner),
        *linear(f"{base}.attn.to_out", inner, width, bias=True),
        *embedding(f"{base}.attn.rel_pos_emb", 2 * config.integer("max_pos_emb") + 1, head_dim),
        *norm(f"{base}.conv.norm", width),
        *conv(f"{base}.conv.up_conv", 2 * expanded, width, 1),
        *conv(f"{base}.conv.depth_conv.conv", expanded, 1, config.integer("conv_kernel_size"), bias=False),
        *norm(f"{base}.conv.batch_norm", expanded),
        *conv(f"{base}.conv.down_conv", width, expanded, 1),
        *norm(f"{base}.post_norm", width),
    )
    ends = (
        *linear(f"{path}.input_linear", config.integer("input_dim"), width, bias=True),
        *linear(f"{path}.out", width, out, bias=True),
        *linear(f"{path}.out_mid", out, width, bias=True),
    )
    return (*block("layer", weights, _AUDIO, config.number_of_layers("num_layers")), *block("ends", ends, _AUDIO))


def _gemma4(config: Config, path: str) -> tuple[Block, ...]:
    """Gemma 4: a conformer with light convolutions and keys for relative positions."""
    width, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
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
    weights: tuple[Weight, ...] = ()
    for name in ("feed_forward1", "feed_forward2"):
        weights += mlp_chain(f"{base}.{name}", (width, 4 * width, width), ("ffw_layer_1", "ffw_layer_2"), bias=False)
        weights += (*rms_norm(f"{base}.{name}.pre_layer_norm", width), *rms_norm(f"{base}.{name}.post_layer_norm", width))
    for name in ("q_proj", "k_proj", "v_proj", "relative_k_proj"):
        weights += linear(f"{base}.self_attn.{name}", width, inner)
    weights += (
        *linear(f"{base}.self_attn.post", width, width),
        *parameter(f"{base}.self_attn.per_dim_scale", head_dim),
        *linear(f"{base}.lconv1d.linear_start", width, 2 * width),
        *linear(f"{base}.lconv1d.linear_end", width, width),
        *conv(f"{base}.lconv1d.depthwise_conv1d", width, 1, config.integer("conv_kernel_size"), bias=False),
        *rms_norm(f"{base}.lconv1d.pre_layer_norm", width),
        *rms_norm(f"{base}.lconv1d.conv_norm", width),
        *rms_norm(f"{base}.norm_pre_attn", width),
        *rms_norm(f"{base}.norm_post_attn", width),
        *rms_norm(f"{base}.norm_out", width),
    )
    return (
        *block("embedding", embeddings, _AUDIO),
        *block("layer", weights, _AUDIO, config.number_of_layers()),
        *block("projector", linear(f"{path}.output_proj", width, config.integer("output_proj_dims"), bias=True), _AUDIO),
    )


def _nothing(config: Config, path: str) -> tuple[Block, ...]:
    """Audio that goes to the language model through its projector alone."""
    return ()


def _inkling(config: Config, path: str) -> tuple[Block, ...]:
    """Inkling: each mel bin of a frame is a token of a codebook of its own."""
    width = config.integer("text_hidden_size")
    rows = config.integer("n_mel_bins") * config.integer("mel_vocab_size")
    weights = (*embedding(f"{path}.embed_audio_tokens", rows, width), *rms_norm(f"{path}.norm", width))
    return block("embedding", weights, _AUDIO)


def _dots(config: Config, path: str) -> tuple[Block, ...]:
    """dots3.note: a spectrogram read as an image, and gated layers. Early files keep Whisper's names in an object."""
    early = config.part("whisper_config")

    def size(key: str, name: str) -> int:
        return early.integer(name) if early is not None and early.has(name) else config.integer(key)

    width, heads = size("hidden_size", "d_model"), size("num_attention_heads", "encoder_attention_heads")
    middle, bins = size("intermediate_size", "encoder_ffn_dim"), size("feature_size", "num_mel_bins")
    bias = config.flag("attention_bias")
    style = Style(names=_SEPARATE, bias=(bias, False, bias, bias), norms=_LLAMA_NORMS, rms=True)
    base = f"{path}.layers"
    if heads > width:
        raise config.error("num_attention_heads", heads, f"at most hidden_size ({width})")
    inner = config.integer("downsample_hidden_size")
    stem = (
        *_image_convolutions(config, f"{path}.conv_stem", 1, width, ("convs", "conv_out"))[:-1],
        *linear(f"{path}.conv_stem.conv_out", config.maybe_integer("conv_output_size") or inner * ((bins + 7) // 8), width),
    )
    layer = (
        *encoder_layer(config, style, base, width, 0),
        *linear(f"{base}.mlp.gate_up_proj", width, 2 * middle, bias=True),
        *linear(f"{base}.mlp.down_proj", middle, width, bias=True),
    )
    source, out = config.integer("adapter_input_size"), config.integer("adapter_out_dim")
    adapter = (*norm(f"{path}.adapter.norm", source), *mlp_chain(f"{path}.adapter", (source, out, out), ("fc1", "fc2")))
    count = early.integer("encoder_layers") if early is not None and early.has("encoder_layers") else config.number_of_layers()
    return (
        *block("embedding", stem, _AUDIO),
        *block("layer", layer, _AUDIO, count),
        *block("norm", rms_norm(f"{path}.layer_norm", width), _AUDIO),
        *block("projector", adapter, Part.PROJECTOR),
    )


def _muse_spark(config: Config, path: str) -> tuple[Block, ...]:
    """Muse Spark: four stages that fold the waveform, each with depthwise convolutions and MLPs."""
    count = config.number_of_layers()
    widths = config.integers("hidden_sizes", length=count, minimum=1) or []
    patches = config.integers("patch_sizes", length=count, minimum=1) or []
    depths = config.integers("depths", length=count) or []
    if not (widths and patches and depths):
        raise config.missing("hidden_sizes")
    kernel, out, source = config.integer("conv_kernel_size"), config.integer("out_hidden_size"), 1
    stages: tuple[Block, ...] = ()
    for width, patch, depth in zip(widths, patches, depths, strict=True):
        base = f"{path}.layers.conv_blocks"
        embedder = (
            *linear(f"{path}.layers.patch_embedder.proj", source * patch, width, bias=True),
            *rms_norm(f"{path}.layers.patch_embedder.norm", width),
        )
        layer = (
            *conv(f"{base}.conv", width, 1, kernel),
            *rms_norm(f"{base}.norm", width),
            *mlp_chain(f"{base}.mlp", (width, ratio_width(config, width), width), ("fc1", "fc2")),
        )
        stages += (*block("embedding", embedder, _AUDIO), *block("layer", layer, _AUDIO, depth))
        source = width
    ends = (
        *rms_norm(f"{path}.norm", source),
        *linear(f"{path}.proj", source, out, bias=True),
        *rms_norm(f"{path}.post_proj_norm", out),
    )
    return (*stages, *block("projector", ends, Part.PROJECTOR))


_TABLE: Final[dict[str, Callable[[Config, str], tuple[Block, ...]]]] = {
    "audioflamingo3_encoder": _whisper,
    "dots3_note_audio_encoder": _dots,
    "fun_asr_nano_encoder": _fun_asr,
    "gemma4_audio": _gemma4,
    "gemma4_unified_audio": _nothing,
    "glmasr_encoder": _glm_asr,
    "granite_speech_encoder": _granite_speech,
    "granite_speech_plus_encoder": _granite_speech,
    "inkling_audio": _inkling,
    "moss_transcribe_diarize_audio": _whisper,
    "muse_spark_audio": _muse_spark,
    "qwen2_5_omni_audio_encoder": _qwen25_omni,
    "qwen2_audio_encoder": _whisper,
    "qwen3_asr_encoder": _qwen3,
    "qwen3_omni_moe_audio_encoder": _qwen3_omni,
    "voxtral_encoder": _whisper,
    "voxtral_realtime_encoder": _voxtral_realtime,
}
