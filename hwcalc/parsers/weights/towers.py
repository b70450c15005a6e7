"""What encoders beside a language model share: an encoder layer, patch embeddings, and who weighs which type.

Paths begin with the name of the tower in the model (``visual.blocks.attn.qkv.weight``, without a layer's number), since
quantisations leave whole towers alone by that name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import import_module
from typing import Final

from hwcalc.formulas.frozen import frozen
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole, layer_norm, linear, parameter, rms_norm
from hwcalc.parsers.config import Config

__all__ = [
    "Style",
    "Switch",
    "UnknownTowerError",
    "block",
    "conv",
    "encoder_layer",
    "grid",
    "mlp_chain",
    "norm",
    "pair",
    "patch_conv",
    "patch_linear",
    "ratio_width",
    "sam_neck",
    "switched",
    "tower",
]

Switch = bool | str
"""Yes, no, or the config key that says so."""


class UnknownTowerError(Exception):
    """A tower of a type that nobody weighs, or of a shape that cannot be counted."""


# Module -> model types of towers. ``blocks(config, path) -> tuple[Block, ...]``.
_TOWERS: Final[Mapping[str, tuple[str, ...]]] = {
    "vision": (
        "blip_2_vision_model", "clip_vision_model", "cosmos3_edge_vision", "granite_docling_vision",
        "hunyuan_vl_vision", "idefics2_vision", "idefics3_vision", "inkling2_vision", "instructblip_vision_model",
        "instructblipvideo_vision_model", "internvl_vision", "janus_vision_model", "kimi_k25_vision", "kosmos_2_5_vision_model",
        "kosmos_2_vision_model", "minicpm_ocr_vision", "minicpmv4_6_vision", "minicpmv4_7_vision", "minimax_m3_vl_vision",
        "molmo2_vision", "muse_glimmer_vision", "muse_spark_vision", "ovis2_vision", "paddleocr_vl_vision",
        "phi4_multimodal_vision", "pixtral", "qianfan_ocr_vision", "radio", "siglip2_vision_model", "siglip_vision_model",
        "smolvlm_vision", "step3p5_vision", "unlimited_ocr_vision_encoder", "video_llama_3_vision",
    ),
    "vision_merging": (
        "cohere_compass_vision", "ernie4_5_vl_moe_vision", "exaone4_5_vision", "glm4v_moe_vision", "glm4v_vision",
        "glm5_next_vision", "glm_ocr_vision", "qwen2_5_omni_vision_encoder", "qwen2_5_vl_vision", "qwen2_vl_vision",
        "qwen3_5_moe_vision", "qwen3_5_vision", "qwen3_omni_moe_vision_encoder", "qwen3_vl_moe_vision", "qwen3_vl_vision",
        "qwen4_exp_vision",
    ),
    "vision_special": (
        "dots3_note_vision_encoder", "gemma4_unified_vision", "gemma4_vision", "got_ocr2_vision", "inkling_vision",
        "lfm3_vl_vision", "llama4_vision_model", "mllama_vision_model", "pp_chart2table_vision", "sam_vision_model",
        "unlimited_ocr_sam_vision_model", "unlimited_ocr_vision",
    ),
    "audio": (
        "audioflamingo3_encoder", "dots3_note_audio_encoder", "fun_asr_nano_encoder", "gemma4_audio", "gemma4_unified_audio",
        "glmasr_encoder", "granite_speech_encoder", "granite_speech_plus_encoder", "inkling_audio",
        "moss_transcribe_diarize_audio", "muse_spark_audio", "qwen2_5_omni_audio_encoder",
        "qwen2_audio_encoder", "qwen3_asr_encoder", "qwen3_omni_moe_audio_encoder", "voxtral_encoder",
        "voxtral_realtime_encoder",
    ),
}  # fmt: skip


@lru_cache(maxsize=1)
def _by_type() -> Mapping[str, str]:
    return {model_type: module for module, types in _TOWERS.items() for model_type in types}


def tower(config: Config, path: str) -> tuple[Block, ...]:
    """All blocks of one tower, by the model type of its own config.

    Raises :class:`UnknownTowerError` for a type that nobody weighs, and :class:`~hwcalc.errors.ConfigError` if a value makes
    no sense.
    """
    module = _by_type().get(config.model_type or "")
    if module is None:
        raise UnknownTowerError(config.model_type)
    read: Callable[[Config, str], tuple[Block, ...]] = import_module(f"hwcalc.parsers.weights.{module}").blocks
    return read(config, path)


@frozen
class Style:
    """How a family of encoders builds a layer, and what it calls the tensors."""

    attention: str = "self_attn"
    names: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "out_proj")
    """Query, key, value and output, or the three in one and output."""
    bias: tuple[Switch, Switch, Switch, Switch] = (True, True, True, True)
    """Of query, key, value and output; of the three in one, the first counts."""
    mlp: tuple[str, ...] = ("mlp.fc1", "mlp.fc2")
    """Up and down, or gate, up and down."""
    mlp_bias: tuple[Switch, Switch] = (True, True)
    """Of all but the last matrix, and of the last."""
    norms: tuple[str, ...] = ("layer_norm1", "layer_norm2")
    rms: bool = False
    qk_norm: str = ""
    """``head`` (of one head's width), ``full`` (of all heads'), or none."""
    qk_norm_if: Switch = True
    qk_norm_rms: bool = True
    scales: tuple[str, ...] = ()
    """One number per channel, by which a branch is multiplied."""


def switched(config: Config, switch: Switch) -> bool:
    """The value of a switch."""
    return config.flag(switch) if isinstance(switch, str) else switch


def norm(path: str, width: int, rms: bool = False) -> tuple[Weight, ...]:
    """A layer norm, or a root-mean-square one."""
    return rms_norm(path, width) if rms else layer_norm(path, width)


def encoder_layer(
    config: Config,
    style: Style,
    path: str,
    width: int,
    mlp_width: int,
    *,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    kv_input: int | None = None,
) -> tuple[Weight, ...]:
    """The tensors of one layer. Without ``head_dim``, queries, keys and values are each as wide as the input.

    A four-token width 4 with an MLP of 8 and biases: 4 x (16 + 4) + (32 + 8) + (32 + 4) + 2 x 8 = 172.
    """
    query = width if heads is None or head_dim is None else heads * head_dim
    key = query if kv_heads is None or head_dim is None else kv_heads * head_dim
    bias = [switched(config, switch) for switch in style.bias]
    base = f"{path}.{style.attention}" if style.attention else path
    source = kv_input or width
    if len(style.names) == 2:
        weights = linear(f"{base}.{style.names[0]}", width, query + 2 * key, bias=bias[0])
    else:
        weights = (
            *linear(f"{base}.{style.names[0]}", width, query, bias=bias[0]),
            *linear(f"{base}.{style.names[1]}", source, key, bias=bias[1]),
            *linear(f"{base}.{style.names[2]}", source, key, bias=bias[2]),
        )
    weights += linear(f"{base}.{style.names[-1]}", query, width, bias=bias[3])
    if style.qk_norm and switched(config, style.qk_norm_if):
        sizes = (query, key) if style.qk_norm == "full" else (head_dim or 0, head_dim or 0)
        for name, size in zip(("q_norm", "k_norm"), sizes, strict=True):
            weights += norm(f"{base}.{name}", size, style.qk_norm_rms)
    for name in style.norms:
        weights += norm(f"{path}.{name}", width, style.rms)
    if mlp_width:
        biases = [switched(config, switch) for switch in style.mlp_bias]
        for name in style.mlp[:-1]:
            weights += linear(f"{path}.{name}", width, mlp_width, bias=biases[0])
        weights += linear(f"{path}.{style.mlp[-1]}", mlp_width, width, bias=biases[1])
    for name in style.scales:
        weights += parameter(f"{path}.{name}", width)
    return weights


def conv(path: str, out_channels: int, *shape: int, bias: bool = True) -> tuple[Weight, ...]:
    """A convolution: ``shape`` is the channels that one filter sees, then its extent in each direction."""
    weights = parameter(f"{path}.weight", out_channels, *shape, role=WeightRole.CONV)
    return (*weights, *parameter(f"{path}.bias", out_channels, role=WeightRole.BIAS)) if bias else weights


def pair(config: Config, key: str) -> tuple[int, int]:
    """A height and a width, given as two numbers or as one for both."""
    value = config.get(key)
    if isinstance(value, (list, tuple)):
        if len(value) != 2:
            raise config.error(key, value, "one number, or a height and a width")
        return config.checked_integer(key, value[0]), config.checked_integer(key, value[1])
    side = config.integer(key)
    return side, side


def grid(config: Config, extra: int = 0) -> int:
    """Patches of an image of the trained size, and ``extra`` positions more."""
    (height, width), (down, across) = pair(config, "image_size"), pair(config, "patch_size")
    return (height // down) * (width // across) + extra


def channels(config: Config) -> int:
    """Channels of an image, by either name; three where a class does not ask."""
    return config.maybe_integer("num_channels") or config.maybe_integer("in_channels") or 3


def patch_conv(config: Config, path: str, width: int, *, bias: bool = True, frames: str = "") -> tuple[Weight, ...]:
    """Patches to vectors by a convolution; ``frames`` is the key for how many images it takes at once."""
    down, across = pair(config, "patch_size")
    depth = (config.integer(frames),) if frames else ()
    return conv(path, width, channels(config), *depth, down, across, bias=bias)


def patch_linear(config: Config, path: str, width: int, *, bias: bool = True, frames: str = "") -> tuple[Weight, ...]:
    """The same by a linear layer."""
    down, across = pair(config, "patch_size")
    depth = config.integer(frames) if frames else 1
    return linear(path, channels(config) * depth * down * across, width, bias=bias)


def ratio_width(config: Config, width: int, key: str = "mlp_ratio") -> int:
    """A width that is a multiple of another, cut to a whole number."""
    size = int(width * config.number(key, 4.0))
    if size < 1:
        raise config.error(key, config.get(key), "a positive number")
    return size


def mlp_chain(path: str, sizes: tuple[int, ...], names: tuple[str, ...], *, bias: bool = True) -> tuple[Weight, ...]:
    """Linear layers one after another: ``names[i]`` from ``sizes[i]`` to ``sizes[i + 1]``."""
    weights: tuple[Weight, ...] = ()
    for i, name in enumerate(names):
        weights += linear(f"{path}.{name}", sizes[i], sizes[i + 1], bias=bias)
    return weights


def sam_neck(path: str, width: int, out: int) -> tuple[Weight, ...]:
    """Two convolutions, each with a norm, to the channels that leave a SAM encoder."""
    return (
        *conv(f"{path}.conv1", out, width, 1, 1, bias=False),
        *norm(f"{path}.layer_norm1", out),
        *conv(f"{path}.conv2", out, out, 3, 3, bias=False),
        *norm(f"{path}.layer_norm2", out),
    )


def block(kind: str, weights: tuple[Weight, ...], part: Part = Part.VISION, count: int = 1) -> tuple[Block, ...]:
    """One block, or none where it would be empty."""
    return (Block(kind=kind, weights=weights, part=part, count=count),) if weights and count else ()
