"""State-space layers: a state of fixed size for a sequence of any length."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from hwcalc.formulas.kind import LayerKind, register
from hwcalc.formulas.tensor import CacheTensor, Fixed, Once, Role

__all__ = ["Mamba1", "Mamba2", "conv_tensor", "state_tensor"]


def conv_tensor(channels: int, axis: str, kernel: int, name: str = "conv_state") -> CacheTensor:
    """The inputs that a causal convolution of ``kernel`` taps needs for its next output: the last ``kernel`` - 1.

    After ABCD, a kernel of 4 computes its next output from [BCD] and the new token.
    """
    return CacheTensor(name=name, shape=(channels,), axes=(axis,), role=Role.CONV, span=Fixed(kernel - 1))


def state_tensor(shape: tuple[int, ...], axes: tuple[str, ...], name: str = "recurrent_state") -> CacheTensor:
    """A state that every token updates in place."""
    return CacheTensor(name=name, shape=shape, axes=axes, role=Role.STATE, span=Once())


@register
class Mamba1(LayerKind):
    """A state of d_state numbers for each of d_inner channels, and the last d_conv - 1 inputs of its convolution.

    Bytes = d_inner x d_state x 4 (fp32) + d_inner x (d_conv - 1) x bytes of the model dtype.

    >>> [t.shape for t in Mamba1(d_inner=8192, d_state=16, d_conv=4).tensors()]
    [(8192,), (8192, 16)]

    After four tokens as after four million: 8,192 x 16 x 4 + 8,192 x 3 x 2 = 573,440 bytes.
    Source: Gu and Dao 2023, arXiv:2312.00752, section 3.
    """

    name: ClassVar[str] = "mamba1"
    title: ClassVar[str] = "Mamba-1"
    keeps: ClassVar[str] = (
        "A state of d_state numbers for each of d_inner channels, and the last d_conv - 1 inputs of its convolution."
    )
    source: ClassVar[str] = "Gu and Dao 2023, arXiv:2312.00752"
    _divided: ClassVar[tuple[str, ...]] = ("d_inner",)

    d_inner: int
    d_state: int
    d_conv: int

    def tensors(self) -> tuple[CacheTensor, ...]:
        return (
            conv_tensor(self.d_inner, "d_inner", self.d_conv),
            state_tensor((self.d_inner, self.d_state), ("d_inner", "d_state")),
        )


@register
class Mamba2(LayerKind):
    """A head_dim x d_state matrix per head, and the last d_conv - 1 inputs of a convolution over x, B and C.

    Bytes = num_heads x head_dim x d_state x 4 (fp32)
    + (num_heads x head_dim + 2 x n_groups x d_state) x (d_conv - 1) x bytes of the model dtype.

    >>> [t.shape for t in Mamba2(num_heads=128, head_dim=64, d_state=128, n_groups=8, d_conv=4).tensors()]
    [(10240,), (128, 64, 128)]

    After four tokens as after four million: 128 x 64 x 128 x 4 + 10,240 x 3 x 2 = 4,255,744 bytes. ``n_groups`` is 0 for a
    model that convolves x alone and computes B and C from the result (PLaMo 2).
    Source: Dao and Gu 2024, arXiv:2405.21060, section 7.
    """

    name: ClassVar[str] = "mamba2"
    title: ClassVar[str] = "Mamba-2"
    keeps: ClassVar[str] = (
        "A head_dim x d_state matrix per head, and the last d_conv - 1 inputs of a convolution over x, B and C."
    )
    source: ClassVar[str] = "Dao and Gu 2024, arXiv:2405.21060"
    _minimum: ClassVar[Mapping[str, int]] = MappingProxyType({"n_groups": 0})
    _divided: ClassVar[tuple[str, ...]] = ("num_heads", "n_groups")

    num_heads: int
    head_dim: int
    d_state: int
    n_groups: int
    d_conv: int

    @property
    def conv_dim(self) -> int:
        """Channels of the convolution: x of every head, B and C of every group."""
        return self.num_heads * self.head_dim + 2 * self.n_groups * self.d_state

    def tensors(self) -> tuple[CacheTensor, ...]:
        return (
            conv_tensor(self.conv_dim, "num_heads x head_dim + 2 x n_groups x d_state", self.d_conv),
            state_tensor((self.num_heads, self.head_dim, self.d_state), ("num_heads", "head_dim", "d_state")),
        )
