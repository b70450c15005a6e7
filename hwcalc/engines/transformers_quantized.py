"""transformers' QuantizedCache: what its three backends make of a prefill.

The first update quantises the whole prefill. Each later token waits in the model dtype; when ``residual_length`` of them are
there, everything is quantised anew. A plan is of the moment after prefill; a note says what may wait on top of it.
"""

from __future__ import annotations

from math import prod
from typing import Final

from hwcalc.engines.base import Opened
from hwcalc.engines.options import integer_option
from hwcalc.engines.stored import StoredTensor
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas import DType
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.frozen import frozen
from hwcalc.model import Note
from hwcalc.units import human_bytes

__all__ = ["CacheQuantization", "quantization", "quantized_tensors"]

BACKENDS: Final = {"quanto": (2, 4), "hqq": (1, 2, 3, 4, 8), "fp8": (8,)}
"""Backend -> the bit widths it packs."""


@frozen
class CacheQuantization:
    """The knobs of a quantized cache, checked."""

    backend: str
    nbits: int
    q_group_size: int
    residual_length: int

    def data_bytes(self, elements: int) -> int:
        """Bytes of the packed numbers, without scales.

        Numbers are laid out as a matrix of groups. quanto packs several groups into one row of bytes: three groups of 4
        bits take two rows. hqq packs within a group, 8 / nbits to a byte, and ten 3-bit numbers to an int32: a group of 64
        takes seven.
        """
        groups = elements // self.q_group_size
        if self.backend == "quanto":
            return self.q_group_size * -(-groups * self.nbits // 8)
        if self.nbits == 3:
            return 4 * -(-self.q_group_size // 10) * groups
        return -(-self.q_group_size * self.nbits // 8) * groups

    def data_rule(self, elements: int) -> str:
        """The same in words and numbers."""
        groups = elements // self.q_group_size
        if self.backend == "quanto":
            return f"{self.q_group_size:,} a group x ceil({groups:,} groups x {self.nbits} bits / 8) B"
        return f"{groups:,} groups of {self.q_group_size:,} x {self.data_bytes(self.q_group_size):,} B"


def quantization(opened: Opened) -> CacheQuantization:
    """The options of ``cache=quantized`` with their defaults; a combination that no backend has is an error."""
    options = opened.request.options
    backend = options.get("quant_backend", "quanto")
    nbits = int(options.get("nbits", "8" if backend == "fp8" else "4"))
    if nbits not in BACKENDS[backend]:
        allowed = ", ".join(map(str, BACKENDS[backend]))
        raise UsageError(f"quant_backend={backend} does not pack {nbits} bits.", hint=f"Allowed nbits: {allowed}.")
    return CacheQuantization(
        backend=backend,
        nbits=nbits,
        q_group_size=integer_option(1)("q_group_size", options.get("q_group_size", "64")),
        residual_length=integer_option(1)("residual_length", options.get("residual_length", "128")),
    )


def quantized_tensors(kind: AttentionKind, opened: Opened, own: DType) -> tuple[StoredTensor, ...]:
    """Packed keys and values of one layer after a prefill of ``seq`` tokens, each with its scales and zero points."""
    knobs = quantization(opened)
    out: list[StoredTensor] = []
    for tensor in kind.tensors():
        elements = opened.batch * opened.tokens * prod(tensor.shape)
        parts: list[tuple[str, str, int, str | None]]
        if knobs.backend == "fp8":
            # One fp32 scale for the whole tensor, frozen at the first update.
            parts = [("", "fp8_e4m3", elements, None), ("_scale", "fp32", 4, "one scale x 4 B")]
        else:
            if elements % knobs.q_group_size:
                raise UnsupportedError(
                    f"{elements:,} cached numbers are no multiple of q_group_size={knobs.q_group_size}: "
                    f"{knobs.backend} refuses them.",
                    hint="Choose another q_group_size or length.",
                )
            groups = elements // knobs.q_group_size
            scales = own.block_bytes * groups
            scales_rule = f"{groups:,} groups of {knobs.q_group_size:,} x {own.block_bytes} B"
            zero = "_shift" if knobs.backend == "quanto" else "_zero"
            parts = [
                ("", f"int{knobs.nbits}", knobs.data_bytes(elements), knobs.data_rule(elements)),
                ("_scale", own.name, scales, scales_rule),
                (zero, own.name, scales, scales_rule),
            ]
        out += [
            StoredTensor(
                name=tensor.name + suffix,
                role=tensor.role,
                axes=tensor.axes,
                shape=tensor.shape,
                dtype=dtype,
                positions=opened.tokens,
                span=tensor.span,
                bytes=size,
                rule=rule,
            )
            for suffix, dtype, size, rule in parts
        ]
    return tuple(out)


def residual_note(opened: Opened, own: DType) -> Note | None:
    """How much may wait unquantised beside the plan: ``residual_length`` - 1 tokens in the model dtype."""
    knobs = quantization(opened)
    if knobs.backend == "fp8":
        return None
    waiting = knobs.residual_length - 1
    per_token = sum(
        group.count * tensor.bytes_per_position(own) for group in opened.model.stack.groups for tensor in group.kind.tensors()
    )
    size = opened.batch * waiting * per_token
    return Note(
        code="residual",
        message=f"The plan is of the moment after prefill. Up to {waiting:,} newer tokens wait in {own.name}: "
        f"{human_bytes(size)} ({size:,} bytes) on top.",
    )
