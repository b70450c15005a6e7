"""The QuantizedCache of transformers, with its three backends.

The first update quantises the whole prefill. Later tokens wait in the model dtype until there are ``residual_length`` of them; then
everything is quantised again. A plan shows the cache after the prefill; a note says how much may wait on top of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Final

from hwcalc.engines.base import Opened
from hwcalc.engines.options import integer_option
from hwcalc.engines.stored import StoredTensor
from hwcalc.errors import UsageError
from hwcalc.formulas import DType, Role
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.record import Record
from hwcalc.model import Note
from hwcalc.units import human_bytes

__all__ = ["CacheQuantization", "packs_by_position", "quantization", "quantized_tensors", "unpacked_bytes"]

BACKENDS: Final = {"quanto": (2, 4), "hqq": (1, 2, 3, 4, 8), "fp8": (8,)}
"""Backend -> the bit widths that it supports."""


class CacheQuantization(Record):
    """The checked options of a quantized cache."""

    backend: str
    nbits: int
    q_group_size: int
    residual_length: int

    def data_bytes(self, elements: int) -> int:
        """Bytes of the packed numbers, without scales.

        The numbers form a matrix of groups. quanto packs several groups into one row of bytes: three groups of 4 bits take two rows.
        hqq packs within a group: 8 / nbits numbers into a byte, or ten 3-bit numbers into an int32, so a group of 64 takes seven int32.
        """
        groups = elements // self.q_group_size
        if self.backend == "quanto":
            return self.q_group_size * -(-groups * self.nbits // 8)
        if self.nbits == 3:
            return 4 * -(-self.q_group_size // 10) * groups
        return -(-self.q_group_size * self.nbits // 8) * groups

    def row_bytes(self, elements: int) -> int | None:
        """Bytes of the packed numbers of one position of so many; ``None`` if a position is packed together with others."""
        apart = elements % self.q_group_size == 0
        if self.backend == "quanto":
            apart = apart and elements // self.q_group_size * self.nbits % 8 == 0
        return self.data_bytes(elements) if apart else None

    def data_rule(self, elements: int) -> str:
        """The computation of :meth:`data_bytes` in words and numbers."""
        groups = elements // self.q_group_size
        if self.backend == "quanto":
            return f"{self.q_group_size:,} a group x ceil({groups:,} groups x {self.nbits} bits / 8) B"
        return f"{elements:,} / {self.q_group_size:,} groups x {self.data_bytes(self.q_group_size):,} B"


def quantization(opened: Opened) -> CacheQuantization:
    """The options of ``cache=quantized`` with defaults. Raises :class:`~hwcalc.errors.UsageError` if the backend lacks the bit width."""
    found: CacheQuantization = opened.shared("cache quantization", lambda: _read(opened.request.options))
    return found


def _read(options: Mapping[str, str]) -> CacheQuantization:
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


def quantized_tensors(kind: AttentionKind, opened: Opened, dtype: DType) -> tuple[StoredTensor, ...]:
    """Packed keys and values of one layer after a prefill of ``seq`` tokens, or of those that a policy leaves, with their scales and zero points.

    ``dtype`` is the model dtype. Raises :class:`~hwcalc.errors.UnsupportedError` for lengths that the backend refuses.
    """
    options = quantization(opened)
    out: list[StoredTensor] = []
    for tensor in kind.tensors():
        positions = tensor.span.positions(opened.tokens)
        row = prod(tensor.shape)
        elements = opened.batch * positions * row
        parts: list[tuple[str, str, int, int | None, str | None]]
        if options.backend == "fp8":
            # One fp32 scale for the whole tensor, set by the first update.
            parts = [("", "fp8_e4m3", elements, row, None), ("_scale", "fp32", 4, 4, "1 scale x 4 B")]
        else:
            if elements % options.q_group_size:
                raise UsageError(
                    f"{elements:,} cached numbers are no multiple of q_group_size={options.q_group_size}: "
                    f"{options.backend} refuses them.",
                    hint="Choose another q_group_size or length.",
                )
            groups = elements // options.q_group_size
            scales = dtype.block_bytes * groups
            scales_rule = f"{elements:,} / {options.q_group_size:,} groups x {dtype.block_bytes} B"
            scale = None if row % options.q_group_size else dtype.block_bytes * (row // options.q_group_size)
            zero = "_shift" if options.backend == "quanto" else "_zero"
            parts = [
                ("", f"int{options.nbits}", options.data_bytes(elements), options.row_bytes(row), options.data_rule(elements)),
                ("_scale", dtype.name, scales, scale, scales_rule),
                (zero, dtype.name, scales, scale, scales_rule),
            ]
        out += [
            StoredTensor(
                name=tensor.name + suffix,
                role=tensor.role,
                axes=tensor.axes,
                shape=tensor.shape,
                dtype=name,
                positions=positions,
                span=tensor.span,
                bytes=size,
                rule=rule,
                position_bytes=position_bytes,
                once=options.backend == "fp8" and suffix == "_scale",
            )
            for suffix, name, size, position_bytes, rule in parts
        ]
    return tuple(out)


def packs_by_position(opened: Opened) -> bool:
    """Whether the numbers of each position are packed by themselves."""
    options, rules, tp = quantization(opened), opened.engine.weight_rules(opened), opened.request.parallel.tp
    if options.backend == "fp8":
        return True
    kinds = [group.kind for group in opened.stack.groups]
    shards = [rules.shard(opened.model, kind, tp) for kind in kinds]
    rows = {prod(tensor.shape) for kind in (*kinds, *shards) for tensor in kind.tensors()}
    return all(options.row_bytes(row) is not None for row in rows)


def unpacked_bytes(opened: Opened) -> int:
    """Keys and values of one layer of the prompt in the model dtype: a policy unpacks a layer to cut it (kvpress 0.5.5, dequantize_layer)."""
    dtype, rules, tp = opened.dtypes.roles[Role.KEY], opened.engine.weight_rules(opened), opened.request.parallel.tp
    return max(
        opened.request.replica_batch * opened.request.prompt_tokens * tensor_bytes
        for tensor_bytes in (
            sum(tensor.bytes_per_position(dtype) for tensor in rules.shard(opened.model, group.kind, tp).tensors())
            for group in opened.plain_stack.groups
        )
    )


def residual_note(opened: Opened, dtype: DType) -> Note | None:
    """A note on the unquantised tokens that may come on top of the plan: ``residual_length`` - 1, in the model dtype."""
    options = quantization(opened)
    if options.backend == "fp8":
        return None
    waiting = options.residual_length - 1
    per_token = sum(
        group.count * tensor.bytes_per_position(dtype) for group in opened.plain_stack.groups for tensor in group.kind.tensors()
    )
    size = opened.batch * waiting * per_token
    return Note(
        code="residual",
        message=f"The plan is of the moment after prefill. Up to {waiting:,} newer tokens wait in {dtype.name}: "
        f"{human_bytes(size)} ({size:,} bytes) on top.",
    )
