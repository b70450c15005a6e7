"""Recurrent states on a rank: their shapes and formats, and the kernels that write checkpoints of them.

With prefix caching a request holds the running state and the state at the last block boundary, and one more if the kernels write a
checkpoint during a prefill. Without prefix caching it holds only the running state. Each speculated token adds a block.

Source: vLLM 0.33, model_executor/layers/mamba/mamba_utils.py and the layers that export checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from hwcalc.engines.vllm.rules import Rules
from hwcalc.errors import UsageError
from hwcalc.formulas import (
    GatedDeltaNet,
    KimiDeltaAttention,
    LayerKind,
    LightningAttention,
    Mamba1,
    Mamba2,
    ShortConvolution,
)
from hwcalc.formulas.record import Record
from hwcalc.model import ModelSpec

__all__ = [
    "STATE_KINDS",
    "caching_of_states",
    "checkpoint_alignment",
    "default_state_dtype",
    "exports_checkpoints",
    "hears_state_dtype",
    "state_bytes",
]

STATE_KINDS: Final = (Mamba1, Mamba2, GatedDeltaNet, KimiDeltaAttention, ShortConvolution, LightningAttention)

# Prefixes of model classes whose config may name the format of the state; else it is that of convolutions.
_NAMED_STATES: Final = ("Qwen3_5", "Qwen4Exp")
# Model classes with the mixin SupportsMambaPrefixCaching, in 0.11.1 to 0.27.
_EVERY_STATE: Final = frozenset(
    {
        "BambaForCausalLM",
        "FalconH1ForCausalLM",
        "FalconMambaForCausalLM",
        "GraniteMoeHybridForCausalLM",
        "JambaForCausalLM",
        "Mamba2ForCausalLM",
        "MambaForCausalLM",
        "NemotronHForCausalLM",
        "NemotronHPuzzleForCausalLM",
        "Zamba2ForCausalLM",
    }
)
_GATED_DELTA_CHUNK: Final = 64


def default_state_dtype(model: ModelSpec, conv: str, rules: Rules) -> str:
    """The format of recurrent states for ``mamba_ssm_cache_dtype=auto``. ``conv`` is the format of convolutions."""
    if any(isinstance(group.kind, KimiDeltaAttention) for group in model.stack_for("vllm").groups):
        return "fp32"
    architecture = model.architecture or ""
    if architecture.startswith("NemotronH"):
        return conv if rules.nemotron_states == "conv" else model.state_dtype or rules.nemotron_states
    if architecture.startswith(_NAMED_STATES) and rules.config_states:
        return model.state_dtype or conv
    return conv


def hears_state_dtype(model: ModelSpec, rules: Rules) -> bool:
    """Whether ``mamba_ssm_cache_dtype`` sets the format of this model's states."""
    kinds = {type(group.kind) for group in model.stack_for("vllm").groups}
    return not (
        (GatedDeltaNet in kinds and not rules.gated_delta_dtype) or (KimiDeltaAttention in kinds and not rules.kimi_delta_dtype)
    )


def caching_of_states(model: ModelSpec, rules: Rules, *, drafts: bool) -> str:
    """What prefix caching keeps of the states of this model: ``all`` of them, the last ones (``align``), or ``none``.

    ``drafts`` says whether tokens are drafted. With ``none`` vLLM turns prefix caching off for the whole model.
    """
    if rules.state_caching == "no":
        return "none"
    if rules.state_caching == "last":
        return "align"
    every = model.architecture in _EVERY_STATE and not (drafts and rules.speculated_all == "align")
    return "all" if every else "align" if rules.state_caching == "both" else "none"


def exports_checkpoints(kind: LayerKind, model: ModelSpec, capability: int, rules: Rules) -> bool:
    """Whether prefill kernels write the state at block boundaries, which takes one more block per request.

    Those of Mamba-2 always do; those of gated delta nets with FlashInfer (SM90, or SM10x and SM12x with key heads of 128); those of
    Kimi-K3 with FlashKDA.
    """
    family = capability // 10
    if isinstance(kind, Mamba2):
        return rules.mamba2_checkpoint
    if isinstance(kind, GatedDeltaNet):
        if not rules.gated_delta_checkpoint or (model.architecture or "").startswith("OlmoHybrid"):
            return False
        return family == 9 or (family in (10, 12) and kind.key_head_dim == 128)
    if isinstance(kind, KimiDeltaAttention) and rules.kimi_k3_checkpoint:
        return (model.architecture or "").startswith("KimiK3") and family in (9, 10, 12) and kind.head_dim == 128
    return False


def checkpoint_alignment(kind: LayerKind, model: ModelSpec, capability: int, rules: Rules) -> int:
    """The number of tokens of which a block must be a multiple, so that checkpoints fall on block boundaries."""
    if isinstance(kind, GatedDeltaNet) and exports_checkpoints(kind, model, capability, rules):
        return _GATED_DELTA_CHUNK
    return 1


def state_bytes(kind: LayerKind, *, tp: int, speculated: int, conv_bytes: int, ssm_bytes: int) -> int:
    """Bytes of the state of one layer on one of ``tp`` ranks.

    >>> state_bytes(Mamba1(d_inner=8192, d_state=16, d_conv=4), tp=1, speculated=0, conv_bytes=2, ssm_bytes=2)
    311296
    """
    shape = _SHAPES[type(kind)](kind, tp)
    columns = shape.columns + (speculated if shape.drafts else 0)
    return columns * shape.width * conv_bytes + shape.matrix * (ssm_bytes if shape.own_format else conv_bytes)


class _StateShape(Record):
    """The state on one rank: the convolution has ``columns`` x ``width`` numbers, and the recurrence ``matrix`` numbers."""

    columns: int = 0
    width: int = 0
    matrix: int = 0
    drafts: bool = True
    """Whether each speculated token adds a column to the convolution."""
    own_format: bool = True
    """Whether the recurrence has its own format, or that of the convolution."""


def _mamba1(kind: Mamba1, tp: int) -> _StateShape:
    width = _share(kind.d_inner, tp, "d_inner")
    return _StateShape(columns=kind.d_conv - 1, width=width, matrix=width * kind.d_state, drafts=False)


def _mamba2(kind: Mamba2, tp: int) -> _StateShape:
    if kind.n_groups != 1 and kind.n_groups % tp:
        raise UsageError(f"vLLM cannot split n_groups {kind.n_groups:,} over tp {tp}.", hint="Use a tp that divides it.")
    # Every rank with a head of a group has the B and C of that group.
    groups = kind.n_groups if kind.n_groups % tp == 0 else tp
    width = _share(kind.num_heads * kind.head_dim + 2 * groups * kind.d_state, tp, "conv_dim")
    matrix = _share(kind.num_heads, tp, "num_heads") * kind.head_dim * kind.d_state
    return _StateShape(columns=kind.d_conv - 1, width=width, matrix=matrix)


def _gated_delta(kind: GatedDeltaNet, tp: int) -> _StateShape:
    matrix = _share(kind.num_value_heads, tp, "num_value_heads") * kind.value_head_dim * kind.key_head_dim
    return _StateShape(columns=kind.d_conv - 1, width=_share(kind.conv_dim, tp, "conv_dim"), matrix=matrix)


def _kimi_delta(kind: KimiDeltaAttention, tp: int) -> _StateShape:
    matrix = _share(kind.num_heads, tp, "num_heads") * kind.head_dim * kind.head_dim
    return _StateShape(columns=kind.d_conv - 1, width=_share(kind.conv_dim, tp, "conv_dim"), matrix=matrix)


def _short_convolution(kind: ShortConvolution, tp: int) -> _StateShape:
    return _StateShape(columns=kind.d_conv - 1, width=_share(kind.channels, tp, "channels"))


def _lightning(kind: LightningAttention, tp: int) -> _StateShape:
    matrix = _share(kind.num_heads, tp, "num_heads") * kind.head_dim * kind.head_dim
    return _StateShape(matrix=matrix, own_format=False)


def _share(number: int, tp: int, name: str) -> int:
    if number % tp:
        raise UsageError(f"vLLM cannot split {name} {number:,} over tp {tp}.", hint="Use a tp that divides it.")
    return number // tp


_SHAPES: Final[Mapping[type[LayerKind], Callable[..., _StateShape]]] = MappingProxyType(
    {
        Mamba1: _mamba1,
        Mamba2: _mamba2,
        GatedDeltaNet: _gated_delta,
        KimiDeltaAttention: _kimi_delta,
        ShortConvolution: _short_convolution,
        LightningAttention: _lightning,
    }
)
