"""Recurrent states: the bytes of one slot on one rank.

Source: SGLang 0.5.23, ``configs/mamba_utils.py`` (``Mamba2StateShape``, ``KimiLinearStateShape``). A slot has the state of every
recurrent layer. Convolution states are bf16, recurrent ones float32 unless the config or the user says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from hwcalc.errors import UsageError
from hwcalc.formulas import GatedDeltaNet, KimiDeltaAttention, LayerKind, LightningAttention, Mamba1, Mamba2, ShortConvolution

CONV_BYTES: Final = 2
CONFIG_NAMES_DTYPE: Final = (GatedDeltaNet, Mamba2)
"""Kinds whose states have the dtype that the config names (``mamba_ssm_dtype``)."""


def _groups(groups: int, tp: int) -> int:
    """Groups that are not divided evenly are repeated, one for each rank."""
    return groups if groups % tp == 0 else tp


def _share(count: int, tp: int, what: str) -> int:
    if count % tp:
        raise UsageError(
            f"SGLang divides {what} evenly over ranks: {count:,} are not divisible by tp {tp:,}.", hint="Use another tp."
        )
    return count // tp


def _delta_net(kind: GatedDeltaNet, tp: int) -> tuple[int, int]:
    inner = kind.num_value_heads * kind.value_head_dim
    conv = _share(inner + 2 * _groups(kind.num_key_heads, tp) * kind.key_head_dim, tp, "channels of a convolution")
    heads = _share(kind.num_value_heads, tp, "heads of a state")
    return conv * (kind.d_conv - 1), heads * kind.value_head_dim * kind.key_head_dim


def _mamba2(kind: Mamba2, tp: int) -> tuple[int, int]:
    conv = _share(kind.num_heads * kind.head_dim + 2 * _groups(kind.n_groups, tp) * kind.d_state, tp, "channels of a convolution")
    return conv * (kind.d_conv - 1), _share(kind.num_heads, tp, "heads of a state") * kind.head_dim * kind.d_state


def _mamba1(kind: Mamba1, tp: int) -> tuple[int, int]:
    channels = _share(kind.d_inner, tp, "channels")
    return channels * (kind.d_conv - 1), channels * kind.d_state


def _kimi(kind: KimiDeltaAttention, tp: int) -> tuple[int, int]:
    heads = _share(kind.num_heads, tp, "heads of a state")
    return 3 * heads * kind.head_dim * (kind.d_conv - 1), heads * kind.head_dim * kind.head_dim


def _lightning(kind: LightningAttention, tp: int) -> tuple[int, int]:
    return 0, _share(kind.num_heads, tp, "heads of a state") * kind.head_dim * kind.head_dim


def _convolution(kind: ShortConvolution, tp: int) -> tuple[int, int]:
    return _share(kind.channels, tp, "channels of a convolution") * (kind.d_conv - 1), 0


STATE_RULES: Final[Mapping[type[LayerKind], Callable[[Any, int], tuple[int, int]]]] = MappingProxyType(
    {
        GatedDeltaNet: _delta_net,
        Mamba2: _mamba2,
        Mamba1: _mamba1,
        KimiDeltaAttention: _kimi,
        LightningAttention: _lightning,
        ShortConvolution: _convolution,
    }
)


def state_elements(kind: LayerKind, tp: int) -> tuple[int, int]:
    """Numbers of the convolution state and of the recurrent state of one layer on one of ``tp`` ranks."""
    return STATE_RULES[type(kind)](kind, tp)
