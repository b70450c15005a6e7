"""Whisper's encoder and encoders like it: convolutions over a spectrogram, then equal layers.

Sinusoidal positions have no parameters.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from hwcalc.formulas.weights import Block, Part, embedding, layer_norm, linear, rms_norm
from hwcalc.parsers.blocks import Weighed
from hwcalc.parsers.config import Config
from hwcalc.parsers.towers.build import GATED, LLAMA, LLAMA_NAMES, Encoder, Style, block, conv, encoder_layer, linears, mlp_chain

_AUDIO: Final = Part.AUDIO


def mel_convolutions(config: Config, path: str, width: int) -> Weighed:
    """Two convolutions over time. The second one halves the number of frames."""
    return conv(f"{path}.conv1", width, config.integer("num_mel_bins"), 3) + conv(f"{path}.conv2", width, width, 3)


def _mel_and_positions(config: Config, path: str, width: int) -> Weighed:
    positions = embedding(f"{path}.embed_positions", config.integer("max_source_positions"), width)
    return mel_convolutions(config, path, width) + positions


def _image(config: Config, path: str, width: int) -> Weighed:
    rows = config.integer("downsample_hidden_size") * _eighth(config.integer("num_mel_bins"))
    return _halving(config, f"{path}.conv2d") + linear(f"{path}.conv_out", rows, width)


def _halving(config: Config, path: str) -> Weighed:
    """Three convolutions that read the spectrogram as an image. Each halves its sides, rounded up."""
    inner = config.integer("downsample_hidden_size")
    more = conv(f"{path}2", inner, inner, 3, 3) + conv(f"{path}3", inner, inner, 3, 3)
    return conv(f"{path}1", inner, 1, 3, 3) + more


def _eighth(bins: int) -> int:
    """The number of bins that three halvings leave, each rounded up: 20 become 3."""
    return -(-bins // 8)


def _marks(config: Config, path: str, width: int) -> Weighed:
    """A linear layer, and two vectors that mark the beginning and the end of audio."""
    out = config.integer("output_dim")
    return embedding(f"{path}.audio_bos_eos_token", 2, out) + linear(f"{path}.proj", width, out, bias=True)


def _two_layers(config: Config, path: str, width: int) -> Weighed:
    return mlp_chain(path, (width, width, config.integer("output_dim")), ("proj1", "proj2"))


_NO_KEY_BIAS: Final = (True, False, True, True)
_STYLE: Final = Style(bias=_NO_KEY_BIAS, mlp=("fc1", "fc2"), norms=("self_attn_layer_norm", "final_layer_norm"))

WHISPER: Final = Encoder(style=_STYLE, stem=_mel_and_positions, norms=("layer_norm",), part=_AUDIO)
QWEN25_OMNI: Final = replace(WHISPER, stem=mel_convolutions, norms=("ln_post",), joint=_marks)
QWEN3_ASR: Final = replace(WHISPER, style=replace(_STYLE, bias=4 * (True,)), stem=_image, norms=("ln_post",))
QWEN3_OMNI: Final = replace(QWEN3_ASR, joint=_two_layers)
GLM_ASR: Final = Encoder(
    style=replace(LLAMA, bias=_NO_KEY_BIAS, heads="own", kv_heads=True), stem=mel_convolutions, norms=("norm",), part=_AUDIO
)
VOXTRAL_REALTIME: Final = Encoder(
    style=replace(_STYLE, names=LLAMA_NAMES, mlp=GATED, mlp_bias=(False, True), norm="rms", heads="own"),
    stem=lambda config, path, width: mel_convolutions(config, f"{path}.embedder", width),
    norms=("norm",),
    part=_AUDIO,
)


def fun_asr(config: Config, path: str) -> tuple[Block, ...]:
    """Fun-ASR: each layer also has a depthwise convolution as a memory. The first layer reads stacked frames."""
    width, count = config.integer("hidden_size"), config.number_of_layers()
    stacked = config.integer("num_mel_bins") * config.integer("num_stacked_frames")
    base = f"{path}.layers"
    memory = conv(f"{base}.self_attn.fsmn.conv", width, 1, config.integer("fsmn_kernel_size"), bias=False)
    layer = encoder_layer(config, LLAMA, base, width, config.integer("intermediate_size"))
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
    bias = config.flag("attention_bias")
    style = replace(LLAMA, bias=(bias, False, bias, bias), norm="rms")
    base = f"{path}.layers"
    if heads > width:
        raise config.error("num_attention_heads", heads, f"at most hidden_size ({width})")
    rows = config.maybe_integer("conv_output_size") or config.integer("downsample_hidden_size") * _eighth(bins)
    stem = _halving(config, f"{path}.conv_stem.convs") + linear(f"{path}.conv_stem.conv_out", rows, width)
    layer = (
        *encoder_layer(config, style, base, width, 0),
        *linear(f"{base}.mlp.gate_up_proj", width, 2 * middle, bias=True),
        *linear(f"{base}.mlp.down_proj", middle, width, bias=True),
    )
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
