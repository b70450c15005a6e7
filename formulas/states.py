"""States of fixed size for a sequence of any length: state-space layers, linear attention, other recurrences, short convolutions.

A state is large: a matrix or a vector per head instead of a row per token, and every sequence has one in every layer.
"""

from __future__ import annotations

from typing import ClassVar

from hwcalc.formulas.kind import LayerKind, register
from hwcalc.formulas.tensor import CacheTensor, Fixed, Once, Role


class StateKind(LayerKind):
    """What has one size for a sequence of any length: states that every token updates in place, and the last inputs of a convolution."""

    _convolved: ClassVar[str] = ""
    """The channels of a causal convolution, as an axis. It needs its last ``d_conv`` - 1 inputs: after ABCD, a kernel of 4 computes
    its next output from [BCD] and the new token."""
    _states: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """The name of each state, and its axes."""

    @property
    def conv_dim(self) -> int:
        """Channels of the convolution."""
        return self.size(self._convolved)

    def tensors(self) -> tuple[CacheTensor, ...]:
        states = (self.tensor(name, *axes, role=Role.STATE, span=Once()) for name, *axes in self._states)
        if not self._convolved:
            return tuple(states)
        return self.tensor("conv_state", self._convolved, role=Role.CONV, span=Fixed(self.size("d_conv") - 1)), *states


@register
class Mamba1(StateKind):
    """A state of d_state numbers for each of d_inner channels, and the last d_conv - 1 inputs of its convolution.

    Bytes = d_inner x d_state x 4 (fp32) + d_inner x (d_conv - 1) x bytes of the model dtype.

    >>> [t.shape for t in Mamba1(d_inner=8192, d_state=16, d_conv=4).tensors()]
    [(8192,), (8192, 16)]

    After four tokens as after four million: 8,192 x 16 x 4 + 8,192 x 3 x 2 = 573,440 bytes.
    Source: Gu and Dao 2023, arXiv:2312.00752, section 3.
    """

    name = "mamba1"
    title = "Mamba-1"
    source = "Gu and Dao 2023, arXiv:2312.00752"
    _divided = ("d_inner",)
    _convolved = "d_inner"
    _states = (("recurrent_state", "d_inner", "d_state"),)

    d_inner: int
    d_state: int
    d_conv: int


@register
class Mamba2(StateKind):
    """A head_dim x d_state matrix per head, and the last d_conv - 1 inputs of a convolution over x, B and C.

    Bytes = num_heads x head_dim x d_state x 4 (fp32)
    + (num_heads x head_dim + 2 x n_groups x d_state) x (d_conv - 1) x bytes of the model dtype.

    >>> [t.shape for t in Mamba2(num_heads=128, head_dim=64, d_state=128, n_groups=8, d_conv=4).tensors()]
    [(10240,), (128, 64, 128)]

    After four tokens as after four million: 128 x 64 x 128 x 4 + 10,240 x 3 x 2 = 4,255,744 bytes. ``n_groups`` is 0 for a
    model that convolves x alone and computes B and C from the result (PLaMo 2).
    Source: Dao and Gu 2024, arXiv:2405.21060, section 7.
    """

    name = "mamba2"
    title = "Mamba-2"
    source = "Dao and Gu 2024, arXiv:2405.21060"
    _may_be_0 = ("n_groups",)
    _divided = ("num_heads", "n_groups")
    _convolved = "num_heads x head_dim + 2 x n_groups x d_state"
    _states = (("recurrent_state", "num_heads", "head_dim", "d_state"),)

    num_heads: int
    head_dim: int
    d_state: int
    n_groups: int
    d_conv: int


@register
class GatedDeltaNet(StateKind):
    """A key x value matrix per value head, and the last inputs of a convolution over queries, keys and values.

    >>> [t.shape for t in GatedDeltaNet(num_key_heads=16, num_value_heads=32, key_head_dim=128, value_head_dim=128,
    ...                                 d_conv=4).tensors()]
    [(8192,), (32, 128, 128)]

    After four tokens as after four million: 32 x 128 x 128 x 4 + 8,192 x 3 x 2 = 2,146,304 bytes.
    """

    name = "gated_delta_net"
    title = "gated delta net"
    source = "Yang et al. 2024, arXiv:2412.06464"
    _divided = ("num_key_heads", "num_value_heads")
    _convolved = "2 x num_key_heads x key_head_dim + num_value_heads x value_head_dim"
    _states = (("recurrent_state", "num_value_heads", "key_head_dim", "value_head_dim"),)

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    d_conv: int


@register
class KimiDeltaAttention(StateKind):
    """A square matrix per head, and the last inputs of three convolutions: queries, keys and values.

    >>> [t.shape for t in KimiDeltaAttention(num_heads=32, head_dim=128, d_conv=4).tensors()]
    [(12288,), (32, 128, 128)]

    After four tokens as after four million: 32 x 128 x 128 x 4 + 12,288 x 3 x 2 = 2,170,880 bytes.
    """

    name = "kimi_delta_attention"
    title = "Kimi delta attention"
    source = "Kimi Team 2025, arXiv:2510.26692"
    _divided = ("num_heads",)
    _convolved = "3 x num_heads x head_dim"
    _states = (("recurrent_state", "num_heads", "head_dim", "head_dim"),)

    num_heads: int
    head_dim: int
    d_conv: int


@register
class LightningAttention(StateKind):
    """A square matrix per head and no convolution.

    >>> LightningAttention(num_heads=64, head_dim=128).tensors()[0].shape
    (64, 128, 128)

    After four tokens as after four million: 64 x 128 x 128 x 4 = 4,194,304 bytes.
    Source: Qin et al. 2024, arXiv:2401.04658; MiniMax 2025, arXiv:2501.08313.
    """

    name = "lightning_attention"
    title = "lightning attention"
    source = "MiniMax 2025, arXiv:2501.08313"
    _divided = ("num_heads",)
    _states = (("recurrent_state", "num_heads", "head_dim", "head_dim"),)

    num_heads: int
    head_dim: int


@register
class GatedLinearAttention(StateKind):
    """A key x value matrix per head and no convolution.

    >>> GatedLinearAttention(num_heads=4, key_head_dim=256, value_head_dim=512).tensors()[0].shape
    (4, 256, 512)

    After four tokens as after four million: 4 x 256 x 512 x 4 = 2,097,152 bytes.
    """

    name = "gated_linear_attention"
    title = "gated linear attention"
    source = "Yang et al. 2023, arXiv:2312.06635"
    _divided = ("num_heads",)
    _states = (("recurrent_state", "num_heads", "key_head_dim", "value_head_dim"),)

    num_heads: int
    key_head_dim: int
    value_head_dim: int


@register
class RealGatedLRU(StateKind):
    """One number per channel of a real-gated linear recurrent unit, and the last inputs of its convolution.

    >>> [t.shape for t in RealGatedLRU(lru_width=2560, d_conv=4).tensors()]
    [(2560,), (2560,)]

    After four tokens as after four million: 2,560 x 4 + 2,560 x 3 x 2 = 25,600 bytes.
    Source: De et al. 2024, arXiv:2402.19427 (Griffin).
    """

    name = "real_gated_lru"
    title = "RG-LRU"
    source = "De et al. 2024, arXiv:2402.19427"
    _divided = ("lru_width",)
    _convolved = "lru_width"
    _states = (("recurrent_state", "lru_width"),)

    lru_width: int
    d_conv: int


def _token_shifts(kind: LayerKind) -> list[CacheTensor]:
    """The inputs of the previous token in attention and feed-forward part; the layer mixes them with the next ones."""
    names = ("attention_shift", "feed_forward_shift")
    return [kind.tensor(name, "hidden_size", role=Role.CONV, span=Once()) for name in names]


@register
class Rwkv4(StateKind):
    """Three numbers per channel (numerator, denominator, running maximum) and two token shifts.

    >>> [t.name for t in Rwkv4(hidden_size=4096, attention_hidden_size=4096).tensors()]
    ['attention_shift', 'feed_forward_shift', 'numerator', 'denominator', 'maximum']

    After four tokens as after four million: 4,096 x (2 x 2 + 3 x 4) = 65,536 bytes.
    """

    name = "rwkv4"
    title = "RWKV-4"
    source = "Peng et al. 2023, arXiv:2305.13048"
    _divided = ("attention_hidden_size",)
    _states = tuple((name, "attention_hidden_size") for name in ("numerator", "denominator", "maximum"))

    hidden_size: int
    attention_hidden_size: int

    def tensors(self) -> tuple[CacheTensor, ...]:
        return (*_token_shifts(self), *super().tensors())


@register
class RwkvMatrix(StateKind):
    """RWKV from version 5 on: a head_dim x head_dim matrix per head and two token shifts.

    >>> [t.shape for t in RwkvMatrix(hidden_size=2560, num_heads=40, head_dim=64).tensors()]
    [(2560,), (2560,), (40, 64, 64)]

    After four tokens as after four million: 40 x 64 x 64 x 4 + 2 x 2,560 x 2 = 665,600 bytes.
    Sources: Peng et al. 2024, arXiv:2404.05892 (5 and 6); Peng et al. 2025, arXiv:2503.14456 (7).
    """

    name = "rwkv_matrix"
    title = "RWKV"
    source = "Peng et al. 2024, arXiv:2404.05892"
    _divided = ("num_heads",)
    _states = (("recurrent_state", "num_heads", "head_dim", "head_dim"),)

    hidden_size: int
    num_heads: int
    head_dim: int
    token_shifts: int | None = None
    """1 for a model whose feed-forward part shifts nothing; ``None`` is both."""

    def tensors(self) -> tuple[CacheTensor, ...]:
        return (*_token_shifts(self)[: self.token_shifts], *super().tensors())


@register
class MatrixLSTM(StateKind):
    """mLSTM: per head a matrix memory, a normaliser and a running maximum.

    >>> [t.shape for t in MatrixLSTM(num_heads=8, qk_head_dim=256, v_head_dim=512).tensors()]
    [(8, 256, 512), (8, 256), (8, 1)]

    After four tokens as after four million: 8 x (256 x 512 + 256 + 1) x 4 = 4,202,528 bytes.
    """

    name = "matrix_lstm"
    title = "mLSTM"
    source = "Beck et al. 2024, arXiv:2405.04517"
    _divided = ("num_heads",)
    _states = (
        ("memory", "num_heads", "qk_head_dim", "v_head_dim"),
        ("normalizer", "num_heads", "qk_head_dim"),
        ("maximum", "num_heads", "1"),
    )

    num_heads: int
    qk_head_dim: int
    v_head_dim: int


@register
class ShortConvolution(StateKind):
    """The last d_conv - 1 inputs of one short causal convolution, and nothing else.

    In LFM2 it is a layer of its own. Other models use it beside attention, on keys, values or hidden states.

    >>> ShortConvolution(channels=2048, d_conv=3).tensors()[0].span.positions(4)
    2

    After four tokens as after four million: 2,048 x 2 x 2 = 8,192 bytes.
    Source: Liquid AI, LFM2 model code (transformers, modeling_lfm2.py).
    """

    name = "short_convolution"
    title = "short convolution"
    source = "transformers, modeling_lfm2.py"
    _divided = ("channels",)
    _convolved = "channels"

    channels: int
    d_conv: int


@register
class StreamConvolutions(StateKind):
    """The last d_conv - 1 inputs of four short convolutions: of keys, values, and the outputs of attention and MLP.

    They are those around one layer of Inkling, for an engine that keeps the four side by side.

    >>> StreamConvolutions(num_key_value_heads=8, head_dim=128, hidden_size=6144, d_conv=4).conv_dim
    14336

    After four tokens as after four million: (2 x 8 x 128 + 2 x 6,144) x 3 x 2 = 86,016 bytes.
    Source: vLLM, vllm/models/inkling/nvidia/sconv_swa_attn.py.
    """

    name = "stream_convolutions"
    title = "four short convolutions"
    source = "vLLM, models/inkling/nvidia/sconv_swa_attn.py"
    _divided = ("num_key_value_heads",)
    _convolved = "2 x num_key_value_heads x head_dim + 2 x hidden_size"

    num_key_value_heads: int
    head_dim: int
    hidden_size: int
    d_conv: int
