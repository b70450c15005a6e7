"""The types in which a GGUF file keeps numbers: so many to a block, and the bytes of a block (ggml's ``ggml-common.h``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hwcalc.formulas.formats import BF16, FP16, FP32, WeightFormat

__all__ = ["BLOCKS", "GGML", "row_bytes"]


def _type(name: str, bits: int, block: int, block_bytes: int) -> WeightFormat:
    """``block`` numbers of ``bits``; the rest of the block's bytes is scales."""
    return WeightFormat(name=name, bits=bits, group=block, scale_bytes=block_bytes - block * bits // 8)


GGML: Final[Mapping[str, WeightFormat]] = {
    "f32": FP32,
    "f16": FP16,
    "bf16": BF16,
    **{
        form.name: form
        for form in (
            _type("q4_0", 4, 32, 18),
            _type("q4_1", 4, 32, 20),
            _type("q5_0", 5, 32, 22),
            _type("q5_1", 5, 32, 24),
            _type("q8_0", 8, 32, 34),
            _type("q2_k", 2, 256, 84),
            _type("q3_k", 3, 256, 110),
            _type("q4_k", 4, 256, 144),
            _type("q5_k", 5, 256, 176),
            _type("q6_k", 6, 256, 210),
            _type("iq1_s", 1, 256, 50),
            _type("iq1_m", 1, 256, 56),
            _type("iq2_xxs", 2, 256, 66),
            _type("iq2_xs", 2, 256, 74),
            _type("iq2_s", 2, 256, 82),
            _type("iq3_xxs", 3, 256, 98),
            _type("iq3_s", 3, 256, 110),
            _type("iq4_nl", 4, 32, 18),
            _type("iq4_xs", 4, 256, 136),
            _type("tq1_0", 1, 256, 54),
            _type("tq2_0", 2, 256, 66),
            _type("mxfp4", 4, 32, 17),
            _type("nvfp4", 4, 64, 36),
            _type("q1_0", 1, 128, 18),
            _type("q2_0", 2, 64, 18),
            _type("q8_1", 8, 32, 36),
            _type("q8_k", 8, 256, 292),
            *(WeightFormat(name=name, bits=int(name[1:])) for name in ("i8", "i16", "i32", "i64", "f64")),
        )
    },
}
"""Name -> format. Bits are those of the numbers themselves; what else a block holds counts as its scale."""

BLOCKS: Final[Mapping[str, tuple[int, int]]] = {
    name: (form.group or 1, ((form.group or 1) * form.bits) // 8 + form.scale_bytes) for name, form in GGML.items()
}
"""Name -> (numbers in a block, bytes of a block), for all types of ``ggml_type`` that a file may have."""


def row_bytes(name: str, columns: int) -> int:
    """Bytes of one row, which must be whole blocks (``ggml_row_size``).

    >>> row_bytes("q4_k", 4096)
    2304
    """
    block, size = BLOCKS[name]
    return columns // block * size
