"""The types in which a GGUF file keeps numbers: so many to a block, and the bytes of a block (ggml's ``ggml-common.h``, 0c1e57098)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from hwcalc.formulas.formats import BF16, FP16, FP32, WeightFormat

__all__ = ["BLOCKS", "FLOAT_TYPES", "GGML", "GGML_TYPES", "GgmlType"]

_TABLE: Final = (
    (0, "f32", 32, 1, 4),
    (1, "f16", 16, 1, 2),
    (2, "q4_0", 4, 32, 18),
    (3, "q4_1", 4, 32, 20),
    (6, "q5_0", 5, 32, 22),
    (7, "q5_1", 5, 32, 24),
    (8, "q8_0", 8, 32, 34),
    (9, "q8_1", 8, 32, 36),
    (10, "q2_k", 2, 256, 84),
    (11, "q3_k", 3, 256, 110),
    (12, "q4_k", 4, 256, 144),
    (13, "q5_k", 5, 256, 176),
    (14, "q6_k", 6, 256, 210),
    (15, "q8_k", 8, 256, 292),
    (16, "iq2_xxs", 2, 256, 66),
    (17, "iq2_xs", 2, 256, 74),
    (18, "iq3_xxs", 3, 256, 98),
    (19, "iq1_s", 1, 256, 50),
    (20, "iq4_nl", 4, 32, 18),
    (21, "iq3_s", 3, 256, 110),
    (22, "iq2_s", 2, 256, 82),
    (23, "iq4_xs", 4, 256, 136),
    (24, "i8", 8, 1, 1),
    (25, "i16", 16, 1, 2),
    (26, "i32", 32, 1, 4),
    (27, "i64", 64, 1, 8),
    (28, "f64", 64, 1, 8),
    (29, "iq1_m", 1, 256, 56),
    (30, "bf16", 16, 1, 2),
    (34, "tq1_0", 1, 256, 54),
    (35, "tq2_0", 2, 256, 66),
    (39, "mxfp4", 4, 32, 17),
    (40, "nvfp4", 4, 64, 36),
    (41, "q1_0", 1, 128, 18),
    (42, "q2_0", 2, 64, 18),
)
"""(number in a file, name, bits of a number itself, numbers in a block, bytes of a block): ``enum ggml_type``."""


class GgmlType(NamedTuple):
    """A type as files name it by number. 256 numbers of ``q4_k`` are one block of 144 bytes."""

    name: str
    block: int
    block_bytes: int


GGML_TYPES: Final[Mapping[int, GgmlType]] = {
    number: GgmlType(name=name, block=block, block_bytes=size) for number, name, _, block, size in _TABLE
}
"""Number in a file -> type."""

BLOCKS: Final[Mapping[str, tuple[int, int]]] = {name: (block, size) for _, name, _, block, size in _TABLE}
"""Name -> (numbers in a block, bytes of a block)."""

GGML: Final[Mapping[str, WeightFormat]] = {
    **{
        name: WeightFormat(name=name, bits=bits)
        if block == 1
        else WeightFormat(name=name, bits=bits, group=block, scale_bytes=size - block * bits // 8)
        for _, name, bits, block, size in _TABLE
    },
    "f32": FP32,
    "f16": FP16,
    "bf16": BF16,
}
"""Name -> format. Bits are those of the numbers themselves; what else a block holds counts as its scale."""

FLOAT_TYPES: Final[Mapping[str, str]] = {GGML[name].name: name for name in ("f32", "f16", "bf16")}
"""kvplan's name of a float -> ggml's: ``fp16`` -> ``f16``."""
