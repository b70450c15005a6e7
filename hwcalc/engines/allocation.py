"""One tensor that a rank asks its device for."""

from __future__ import annotations

from typing import Final

from hwcalc.formulas.frozen import frozen

__all__ = ["ITEM_BYTES", "Allocation"]

ITEM_BYTES: Final = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1, "uint8": 1, "int64": 8}
"""Formats of one number each, whose tensors have the cache's own shape; every other format is rows of bytes (``uint8``)."""


@frozen
class Allocation:
    """One tensor of one rank. ``layer`` is -1 for what the model keeps beside its layers, or what its layers share.

    ``bytes`` is the product of ``shape`` and the bytes of a ``dtype`` of :data:`ITEM_BYTES`. ``blocks`` is set for a part of a pool,
    whose first axis it is: fewer blocks are a smaller pool of the same layout.
    """

    name: str
    layer: int
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    blocks: int | None = None
