"""How a weight tensor is stored: bits per number, scales, zero points and other data. Everything is an exact integer."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Final

from hwcalc.formulas.record import Record

if TYPE_CHECKING:
    from hwcalc.formulas.weights import Weight


class WeightFormat(Record):
    """One storage format of a matrix of ``out x in`` numbers.

    Each number takes ``bits``, or each ``per`` numbers do. Scales of ``scale_bytes`` come on top, by one of three layouts:

    - ``block``: one scale per tile of rows x columns;
    - ``group``: one scale and one zero point of ``zero_bits`` per ``group`` numbers along a row (0 is the whole row);
    - ``flat_group``: one scale per ``flat_group`` numbers of the flattened tensor, and ``nested_bytes`` per 256 scales.

    ``row_bytes``, ``column_bytes`` and ``tensor_bytes`` are added once per row, per column and per tensor.
    """

    name: str
    bits: int
    block: tuple[int, int] | None = None
    group: int | None = None
    scale_bytes: int = 0
    zero_bits: int = 0
    row_bytes: int = 0
    column_bytes: int = 0
    tensor_bytes: int = 0
    flat_group: int | None = None
    nested_bytes: int = 0
    per: int = 1
    """How many numbers take ``bits`` together: 17 bits for 4 numbers are 4.25 bits per number."""

    @property
    def number_bytes(self) -> int:
        """Bytes of one number, for formats of whole bytes; scales are not counted."""
        return self.bits // 8

    def bytes(self, weight: Weight) -> int:
        """Bytes of all copies of a tensor.

        >>> from hwcalc.formulas.weights import Weight, WeightRole
        >>> weight = Weight(path="q_proj.weight", shape=(256, 384), role=WeightRole.LINEAR)
        >>> FP8_BLOCK.bytes(weight)
        98328

        256 x 384 bytes and 2 x 3 fp32 scales. A tensor with one dimension is a single row.
        """
        columns = weight.shape[-1] if weight.shape else 1
        rows = prod(weight.shape[:-1])
        size = -(-rows * columns * self.bits // (8 * self.per))
        size += self.tensor_bytes + rows * self.row_bytes + columns * self.column_bytes
        if self.block is not None:
            size += -(-rows // self.block[0]) * -(-columns // self.block[1]) * self.scale_bytes
        if self.group is not None:
            groups = rows * (1 if self.group == 0 else -(-columns // self.group))
            size += groups * self.scale_bytes + -(-groups * self.zero_bits // 8)
        if self.flat_group is not None:
            groups = -(-rows * columns // self.flat_group)
            size += groups * self.scale_bytes + -(-groups // 256) * self.nested_bytes
        return weight.copies * size


FP32 = WeightFormat(name="fp32", bits=32)
FP16 = WeightFormat(name="fp16", bits=16)
BF16 = WeightFormat(name="bf16", bits=16)
FLOATS: Final[Mapping[str, WeightFormat]] = {form.name: form for form in (FP32, FP16, BF16)}
"""The formats in which a model can run and be trained, by name: what is not quantised is in one of them."""
FP8 = WeightFormat(name="fp8", bits=8, tensor_bytes=4)
"""e4m3 with one fp32 scale per tensor."""
FP8_CHANNEL = WeightFormat(name="fp8_channel", bits=8, row_bytes=2)
"""e4m3 with one bf16 scale per output channel (compressed-tensors, float-quantized)."""
FP8_BLOCK = WeightFormat(name="fp8_block", bits=8, block=(128, 128), scale_bytes=4)
"""e4m3 with one fp32 scale per 128 x 128 tile: DeepSeek-V3, arXiv:2412.19437, section 3.3.2."""
MXFP4 = WeightFormat(name="mxfp4", bits=4, group=32, scale_bytes=1)
"""OCP Microscaling Formats 1.0: 32 e2m1 numbers and an e8m0 scale, 4.25 bits per number."""
MXFP8 = WeightFormat(name="mxfp8", bits=8, group=32, scale_bytes=1)
"""OCP Microscaling Formats 1.0: 32 e4m3 numbers and an e8m0 scale, 8.25 bits per number."""
NVFP4 = WeightFormat(name="nvfp4", bits=4, group=16, scale_bytes=1, tensor_bytes=8)
"""16 e2m1 numbers and an e4m3 scale, 4.5 bits per number; each tensor has two fp32 scales, for the weights and their inputs."""
INT8 = WeightFormat(name="int8", bits=8, row_bytes=2)
"""Integers with one bf16 scale per output channel (compressed-tensors, int-quantized)."""
INT4 = WeightFormat(name="int4", bits=4, group=128, scale_bytes=2)
"""Symmetric integers with one bf16 scale per group (compressed-tensors, pack-quantized)."""
GPTQ = WeightFormat(name="gptq", bits=4, group=128, scale_bytes=2, zero_bits=4, column_bytes=4)
"""GPTQ: an fp16 scale and a packed zero point per group, and an int32 group index per column."""
AWQ = WeightFormat(name="awq", bits=4, group=128, scale_bytes=2, zero_bits=4)
"""AWQ: the same as GPTQ, but without the group index."""
BNB4 = WeightFormat(name="bnb4", bits=4, flat_group=64, scale_bytes=4)
"""bitsandbytes 4 bit: an fp32 maximum per 64 numbers, 4.5 bits per number."""
BNB4_DOUBLE = WeightFormat(name="bnb4_double", bits=4, flat_group=64, scale_bytes=1, nested_bytes=4)
"""bitsandbytes 4 bit with 8-bit maxima and one fp32 number per 256 maxima: 4.127 bits per number."""
BNB8 = WeightFormat(name="bnb8", bits=8, row_bytes=4)
"""bitsandbytes 8 bit: an fp32 maximum per output channel."""
TERNARY = WeightFormat(name="ternary", bits=2, tensor_bytes=2)
"""BitNet: four of the numbers -1, 0 and 1 in a byte, and one 16-bit scale per tensor (transformers, integrations/bitnet.py)."""
