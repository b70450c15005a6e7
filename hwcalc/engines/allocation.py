"""One tensor that a rank allocates on its device."""

from __future__ import annotations

from typing import Final

from hwcalc.formulas.record import Record

__all__ = ["ITEM_BYTES", "Allocation"]

ITEM_BYTES: Final = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1, "uint8": 1, "int64": 8}
"""Bytes of a number in the formats that store each number by itself.

Tensors in these formats have the shape of the cache; in every other format they are rows of bytes (``uint8``).
"""


class Allocation(Record):
    """One tensor of one rank. ``layer`` is -1 if the tensor belongs to no layer, or to several.

    ``bytes`` is the product of ``shape`` and the bytes of a number of ``dtype`` (:data:`ITEM_BYTES`). ``blocks`` is set if the tensor
    is part of a pool: it is the length of the first axis, and a smaller pool of the same layout has fewer blocks.
    """

    name: str
    layer: int
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    blocks: int | None = None
