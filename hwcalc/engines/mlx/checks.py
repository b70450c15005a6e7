"""What mlx-lm refuses, and what it takes without effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.engines.capability import check_generation
from hwcalc.engines.mlx.models import (
    CHUNKED,
    COMPUTED_APART,
    EXPANDED,
    LISTED,
    OWN_CACHE,
    PIPELINED,
    SHARDED,
    file_of,
)
from hwcalc.engines.mlx.options import GROUPS, Bits, bits_of
from hwcalc.engines.mlx.windows import keeps_windows, other_windows
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas import (
    ChunkedAttention,
    LatentAttention,
    LayerKind,
    Role,
    SlidingAttention,
)
from hwcalc.formulas.attention import AttentionKind
from hwcalc.model import Note

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy

_VENDORS: Final = ("apple", "nvidia")
_OLDEST_GPU: Final = 75
_NO_BITS: Final = "Leave out kv_bits."


def check(opened: Occupancy) -> None:
    """Raise an error for what mlx-lm does not run; note what has no effect."""
    model, hardware = opened.model, opened.request.hardware
    name = file_of(model)
    if model.gguf is not None:
        raise UnsupportedError("mlx-lm loads safetensors, and not GGUF files.", hint="Use: --engine llamacpp")
    text = model.facts.part_types.get("text")
    if name == "mistral3" and text not in {None, "mistral4", "ministral3"} and _kinds(opened) & {LatentAttention}:
        raise UnsupportedError(
            f"mistral3 of mlx-lm 0.32.2 runs text models of ministral3, mistral4 and llama, and not of {text}.",
            hint="Use: --engine reference",
        )
    pattern = other_windows(model)
    if pattern is not None:
        raise UnsupportedError(
            f"{name} of mlx-lm 0.32.2 reads sliding_window_pattern ({pattern}), by which other layers have a window than by this config.",
            hint="Set sliding_window_pattern in the config.",
        )
    if hardware.gpu is not None and hardware.gpu.vendor.lower() not in _VENDORS:
        raise UnsupportedError(
            f"MLX runs on Apple's chips and on NVIDIA GPUs, and not on {hardware.gpu.id}.",
            hint="Use a Mac, such as: --gpu m4-max",
        )
    check_generation(hardware.gpu, _OLDEST_GPU, "MLX runs on NVIDIA GPUs from compute capability 7.5 on.")
    _check_layout(opened, name)
    if opened.request.draft is not None and _has_states(opened):
        raise UnsupportedError(
            "Speculative decoding requires a trimmable prompt cache (got {'ArraysCache'}), says mlx-lm of recurrent states.",
            hint="Leave out --draft.",
        )
    bits = bits_of(opened)
    if bits is not None:
        _check_bits(opened, bits, name)
    if "max_kv_size" in opened.request.options:
        _check_window(opened, bits, name)
    _tell(opened, name)


def _kinds(opened: Occupancy) -> set[type[LayerKind]]:
    return {type(group.kind) for group in opened.plain_stack.groups}


def _has_states(opened: Occupancy) -> bool:
    tensors = (tensor for group in opened.plain_stack.groups for tensor in group.kind.tensors())
    return any(tensor.role in {Role.CONV, Role.STATE} for tensor in tensors)


def _check_layout(opened: Occupancy, name: str) -> None:
    sizes = opened.request.parallel
    for size, flag, what in ((sizes.dcp, "--dcp", "decode context parallelism"), (sizes.ep, "--ep", "expert parallelism")):
        if size > 1:
            raise UsageError(f"mlx-lm has no {what}.", hint=f"Leave out {flag}.")
    if sizes.tp > 1 and sizes.pp > 1:
        raise UnsupportedError("mlx-lm divides a model by heads or by layers, not by both.", hint="Use --tp or --pp alone.")
    if sizes.tp > 1 and name not in SHARDED:
        raise UnsupportedError(f"{name} of mlx-lm 0.32.2 cannot be divided by heads (it has no shard).", hint="Use: --tp 1")
    if sizes.pp > 1 and name not in PIPELINED:
        raise UnsupportedError(f"{name} of mlx-lm 0.32.2 cannot be divided by layers (it has no pipeline).", hint="Use: --pp 1")
    for group in opened.plain_stack.groups:
        heads = group.kind.num_key_value_heads if isinstance(group.kind, AttentionKind) else sizes.tp
        if heads % sizes.tp:
            raise UsageError(
                f"mlx-lm divides {heads:,} key/value heads evenly only, and not over {sizes.tp:,} machines.",
                hint="Use a --tp that divides them.",
            )


def _check_bits(opened: Occupancy, bits: Bits, name: str) -> None:
    """``maybe_quantize_kv_cache`` turns every ``KVCache`` into a quantized one; what then reads it must know how."""
    kinds = _kinds(opened)
    if name in LISTED:
        opened.tell(Note(code="kv-bits", message=f"kv_bits: no effect on {name}, whose lists of caches stay as they are."))
        return
    if SlidingAttention in kinds and keeps_windows(opened.model):
        raise UnsupportedError("kv_bits: RotatingKVCache Quantization NYI, says mlx-lm of layers with a window.", hint=_NO_BITS)
    if LatentAttention in kinds and name not in EXPANDED:
        raise UnsupportedError(f"kv_bits: {name} of mlx-lm 0.32.2 cannot read a quantized latent.", hint=_NO_BITS)
    if name in COMPUTED_APART:
        raise UnsupportedError(f"kv_bits: {name} of mlx-lm 0.32.2 cannot read a quantized cache.", hint=_NO_BITS)
    for width in _quantized_widths(opened, name):
        if width % bits.group:
            fitting = [group for group in GROUPS if width % group == 0]
            hint = f"Use: --engine-option kv_group_size={fitting[-1]}" if fitting else _NO_BITS
            raise UsageError(f"kv_group_size={bits.group} does not divide a head of {width:,} numbers.", hint=hint)


def _quantized_widths(opened: Occupancy, name: str) -> list[int]:
    """The widths of heads in layers that are quantized."""
    kinds = [
        group.kind.expanded() if isinstance(group.kind, LatentAttention) else group.kind for group in opened.plain_stack.groups
    ]
    quantized = [kind for kind in kinds if not (isinstance(kind, ChunkedAttention) and name in CHUNKED)]
    tensors = [tensor for kind in quantized for tensor in kind.tensors() if tensor.role in {Role.KEY, Role.VALUE}]
    return sorted({tensor.shape[-1] for tensor in tensors})


def _check_window(opened: Occupancy, bits: Bits | None, name: str) -> None:
    if name in OWN_CACHE:
        message = f"max_kv_size: no effect, {name} of mlx-lm makes its cache itself."
        opened.tell(Note(code="max-kv-size", message=message))
    elif bits is not None:
        raise UsageError(
            "max_kv_size makes a rotating cache, which mlx-lm cannot quantize.", hint="Leave out kv_bits or max_kv_size."
        )


def _tell(opened: Occupancy, name: str) -> None:
    kinds = _kinds(opened)
    windows = SlidingAttention in kinds
    if windows and not keeps_windows(opened.model):
        opened.tell(Note(code="window", message=f"{name} of mlx-lm keeps every token of layers with a window."))
    elif (windows or (ChunkedAttention in kinds and name in CHUNKED)) and opened.request.prompt is None:
        message = (
            "Layers with a window are counted behind a prompt of the whole length, of which they hold the last piece; from the first "
            "token that comes alone they hold the window. Say how much is prompt with --prompt."
        )
        opened.tell(Note(code="prefill-storage", message=message))
