"""MobileNet V5, the convolutional tower of Gemma 3n, by its definition in timm (``mobilenetv5_300m_enc``)."""

from __future__ import annotations

from typing import Final

from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Block, parameter, rms_norm
from hwcalc.parsers.blocks import Weighed
from hwcalc.parsers.config import Config
from hwcalc.parsers.towers.build import UnknownTowerError, block, conv

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
            return (
                *_normed(f"{path}.conv_exp", inner, channels, 3),
                *_normed(f"{path}.conv_pwl", self.out, inner, 1),
            )
        weights = _normed(f"{path}.dw_start", channels, 1, self.before) if self.before else ()
        weights += _normed(f"{path}.pw_exp", inner, channels, 1)
        weights += _normed(f"{path}.dw_mid", inner, 1, self.between) if self.between else ()
        weights += _normed(f"{path}.pw_proj", self.out, inner, 1)
        return weights + parameter(f"{path}.layer_scale", self.out)


class Attention(Record):
    """Attention whose heads share one key and one value, which a convolution may thin out first."""

    heads: int
    head_dim: int
    out: int
    thins: bool = False

    def weigh(self, path: str, channels: int) -> Weighed:
        """The tensors, for an input of so many channels."""
        inner = self.heads * self.head_dim
        weights = rms_norm(f"{path}.norm", channels) + conv(f"{path}.attn.query.proj", inner, channels, 1, 1, bias=False)
        for name in ("key", "value"):
            if self.thins:
                weights += _normed(f"{path}.attn.{name}.down_conv", channels, 1, 3)
            weights += conv(f"{path}.attn.{name}.proj", self.head_dim, channels, 1, 1, bias=False)
        weights += conv(f"{path}.attn.output.proj", self.out, inner, 1, 1, bias=False)
        return weights + parameter(f"{path}.layer_scale", self.out)


def _normed(path: str, out: int, channels: int, side: int) -> Weighed:
    """A square convolution without a bias, and a norm."""
    return conv(path, out, channels, side, side, bias=False) + rms_norm(f"{path}.bn", out)


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
        raise UnknownTowerError(config.model_type)
    base, out = f"{path}.timm_model", config.integer("hidden_size")
    stem = conv(f"{base}.conv_stem.conv", _STEM, 3, 3, 3) + rms_norm(f"{base}.conv_stem.bn", _STEM)
    weights: Weighed = ()
    channels, ends = _STEM, []
    for stage in _STAGES:
        for layer in stage:
            weights += layer.weigh(f"{base}.blocks", channels)
            channels = layer.out
        ends.append(channels)
    joined = Residual(ratio=2, out=out).weigh(f"{base}.msfa.ffn", sum(ends[-_FUSED_STAGES:]))[:-1]
    return (
        *block("embedding", stem),
        *block("layer", weights),
        *block("extra", joined + rms_norm(f"{base}.msfa.norm", out)),
    )
