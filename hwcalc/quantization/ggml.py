"""The types in which a GGUF file keeps numbers, the names of its file types and mixes, and the names of its tensors.

Source: llama.cpp 0c1e57098, ggml's ``ggml-common.h``, ``llama_ftype`` of include/llama.h, and src/llama-arch.cpp.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from hwcalc.formulas.formats import BF16, FP16, FP32, WeightFormat
from hwcalc.model import ModelSpec

_TABLE: Final = (
    (0, "f32", 32, 1, 4), (1, "f16", 16, 1, 2), (2, "q4_0", 4, 32, 18), (3, "q4_1", 4, 32, 20), (6, "q5_0", 5, 32, 22),
    (7, "q5_1", 5, 32, 24), (8, "q8_0", 8, 32, 34), (9, "q8_1", 8, 32, 36), (10, "q2_k", 2, 256, 84), (11, "q3_k", 3, 256, 110),
    (12, "q4_k", 4, 256, 144), (13, "q5_k", 5, 256, 176), (14, "q6_k", 6, 256, 210), (15, "q8_k", 8, 256, 292),
    (16, "iq2_xxs", 2, 256, 66), (17, "iq2_xs", 2, 256, 74), (18, "iq3_xxs", 3, 256, 98), (19, "iq1_s", 1, 256, 50),
    (20, "iq4_nl", 4, 32, 18), (21, "iq3_s", 3, 256, 110), (22, "iq2_s", 2, 256, 82), (23, "iq4_xs", 4, 256, 136),
    (24, "i8", 8, 1, 1), (25, "i16", 16, 1, 2), (26, "i32", 32, 1, 4), (27, "i64", 64, 1, 8), (28, "f64", 64, 1, 8),
    (29, "iq1_m", 1, 256, 56), (30, "bf16", 16, 1, 2), (34, "tq1_0", 1, 256, 54), (35, "tq2_0", 2, 256, 66),
    (39, "mxfp4", 4, 32, 17), (40, "nvfp4", 4, 64, 36), (41, "q1_0", 1, 128, 18), (42, "q2_0", 2, 64, 18),
)  # fmt: skip
"""(number in a file, name, bits of a number itself, numbers in a block, bytes of a block): ``enum ggml_type``."""


class GgmlType(Struct, frozen=True):
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


FILE_TYPES: Final[Mapping[int, str]] = {
    0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 7: "q8_0", 8: "q5_0", 9: "q5_1", 10: "q2_k", 11: "q3_k_s", 12: "q3_k_m", 13: "q3_k_l",
    14: "q4_k_s", 15: "q4_k_m", 16: "q5_k_s", 17: "q5_k_m", 18: "q6_k", 19: "iq2_xxs", 20: "iq2_xs", 21: "q2_k_s", 22: "iq3_xs",
    23: "iq3_xxs", 24: "iq1_s", 25: "iq4_nl", 26: "iq3_s", 27: "iq3_m", 28: "iq2_s", 29: "iq2_m", 30: "iq4_xs", 31: "iq1_m",
    32: "bf16", 36: "tq1_0", 37: "tq2_0", 38: "mxfp4_moe", 39: "nvfp4", 40: "q1_0", 41: "q2_0",
}  # fmt: skip
_GUESSED: Final = 1024
"""``LLAMA_FTYPE_GUESSED``: added where the file does not say its type."""


def stated_type(keys: Mapping[str, Any]) -> str | None:
    """The type that a file states in its metadata; ``None`` if it states none that llama.cpp knows."""
    number = keys.get("general.file_type")
    return FILE_TYPES.get(number & ~_GUESSED) if isinstance(number, int) else None


def file_type(model: ModelSpec) -> str | None:
    """The type that a GGUF file states, or else that of most of its weights; ``None`` for what is no file."""
    if model.gguf is None or not model.gguf.tensors:
        return None
    stated = stated_type(model.gguf.keys)
    if stated is not None:
        return stated
    sizes: Counter[str] = Counter()
    for tensor in model.gguf.tensors:
        sizes[tensor.type.lower()] += tensor.bytes
    return sizes.most_common(1)[0][0]


TABLES: Final = frozenset({"token_embd.weight", "position_embd.weight", "token_types.weight", "per_layer_token_embd.weight"})
"""Tables in which a row is looked up for each token."""
ROTARY: Final = ("rope_freqs.", "rope_factors_")
"""How tensors begin that only follow from the config: every device with a layer has a copy."""

_PREFIXES: Final = ("enc.", "dec.", "v.", "a.")
_IN_LAYER: Final = rf"(?s)({'|'.join(map(re.escape, _PREFIXES))})?blk\.([0-9]{{1,5}})\.(.+)"
_STATES: Final = ("ssm_", "time_mix_", "shortconv.")
_FEED_FORWARD: Final = ("ffn_", "exp_probs", "channel_mix", "layer_output_norm")


def placed(name: str) -> tuple[str, int]:
    """A tensor's name without its layer, and the layer; -1 for a tensor outside the layers.

    >>> placed("blk.12.attn_q.weight"), placed("enc.blk.0.attn_q.weight"), placed("output.weight")
    (('attn_q.weight', 12), ('enc.attn_q.weight', 0), ('output.weight', -1))
    """
    match = re.fullmatch(_IN_LAYER, name)
    return (name, -1) if match is None else ((match[1] or "") + match[3], int(match[2]))


def whole_name(stem: str, number: int) -> str:
    """The name of a tensor in a layer: the reverse of :func:`placed`.

    >>> whole_name("enc.attn_q.weight", 3), whole_name("output.weight", -1)
    ('enc.blk.3.attn_q.weight', 'output.weight')
    """
    if number < 0:
        return stem
    rest = without_prefix(stem)
    return f"{stem.removesuffix(rest)}blk.{number}.{rest}"


def without_prefix(stem: str) -> str:
    """A name without the word for the encoder, the decoder or the tower in front."""
    return stem.removeprefix(next((one for one in _PREFIXES if stem.startswith(one)), ""))


def part_of_layer(stem: str) -> str:
    """The part of a layer that a tensor belongs to: ``state``, ``mlp`` or ``attention``.

    >>> part_of_layer("ssm_in.weight"), part_of_layer("enc.ffn_up.weight"), part_of_layer("attn_q.weight")
    ('state', 'mlp', 'attention')
    """
    rest = without_prefix(stem)
    if rest.startswith(_STATES):
        return "state"
    return "mlp" if rest.startswith(_FEED_FORWARD) else "attention"


MIXES: Final[Mapping[str, str]] = {
    "q1_0": "q1_0", "q2_0": "q2_0", "q4_0": "q4_0", "q4_1": "q4_1", "q5_0": "q5_0", "q5_1": "q5_1", "q8_0": "q8_0",
    "mxfp4_moe": "mxfp4", "q2_k": "q2_k", "q2_k_s": "q2_k", "q3_k_s": "q3_k", "q3_k_m": "q3_k", "q3_k_l": "q3_k",
    "q4_k_s": "q4_k", "q4_k_m": "q4_k", "q5_k_s": "q5_k", "q5_k_m": "q5_k", "q6_k": "q6_k", "iq1_s": "iq1_s",
    "iq1_m": "iq1_m", "iq2_xxs": "iq2_xxs", "iq2_xs": "iq2_xs", "iq2_s": "iq2_xs", "iq2_m": "iq2_s", "iq3_xxs": "iq3_xxs",
    "iq3_xs": "iq3_s", "iq3_s": "iq3_s", "iq3_m": "iq3_s", "iq4_nl": "iq4_nl", "iq4_xs": "iq4_xs", "tq1_0": "tq1_0",
    "tq2_0": "tq2_0",
}  # fmt: skip
"""File type -> main type (``llama_ftype_get_default_type``)."""

KEPT_EXPERTS: Final[Mapping[str, str]] = {"mxfp4": "mxfp4_moe"}
"""The format of a checkpoint's experts that the converter keeps -> the type of its file (``LLAMA_FTYPE_MOSTLY_MXFP4_MOE``).

Of such a file only the experts are in that format, and publishers name it by the format alone: ``model-MXFP4.gguf``.
"""

BY_IMATRIX: Final = frozenset({"q4_0", "q5_0", "iq3_xxs", "iq4_nl", "iq4_xs"})
"""Mixes that choose otherwise with an importance matrix."""
