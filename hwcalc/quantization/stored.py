"""Whether the weight files beside a config hold the whole model. Files that hold less say nothing about its size."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from hwcalc.formulas.formats import BF16, FLOATS
from hwcalc.formulas.weights import Part, WeightRole, Weights
from hwcalc.model import PARTIAL_WEIGHTS, Definition, ModelSpec, Note, WeightFacts
from hwcalc.quantization.planned import planned_scheme

__all__ = ["LEAST_PERCENT", "LEAST_PERCENT_RECONSTRUCTED", "most_parameters", "needed_parameters", "with_whole_weights"]

LEAST_PERCENT: Final = 98
"""Files with less than this share of the parameters that every copy of a model has are not the whole model.

Of the models with a published count whose config is a copy of the published file, the lowest share is 98.65 % (facebook/opt-125m).
"""

LEAST_PERCENT_RECONSTRUCTED: Final = 90
"""The same where the config is not such a copy. The lowest share is 94.75 %; the smallest of ten equal files that is missing takes 10 %."""

_NUMBER_BITS: Final = {
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F16", "BF16"), 16),
    "F32": 32,
    "F64": 64,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F4": 4,
}
"""Bits of the dtypes of which each element is one parameter. An integer may hold several, and an exponent (F8_E8M0) is a scale."""

_UNNAMED_BITS: Final = 4

_SCALES: Final = frozenset({"F8_E8M0", "BOOL"})


def with_whole_weights(model: ModelSpec) -> ModelSpec:
    """The model, without the bytes of its files if they are not the whole model and the counted parameters take more.

    A note says what the files lack. If the parameters are not counted, the bytes of the files stay.
    """
    files = model.weights
    if files is None:
        return model
    if model.counted is None:
        return _unchecked(model, files)
    needed = needed_parameters(model.counted)
    stored = most_parameters(model, files)
    least = LEAST_PERCENT if model.definition(Definition.EXACT) is Definition.EXACT else LEAST_PERCENT_RECONSTRUCTED
    if 100 * stored >= least * needed:
        return model
    counted_bytes = _counted_bytes(model, model.counted)
    larger = counted_bytes is not None and counted_bytes <= files.total_bytes
    share = "less than 1 %" if 100 * stored < needed else f"{100 * stored // needed} %"
    message = (
        f"The weight files are not the whole model: they hold at most {stored:,} parameters in {files.total_bytes:,} bytes, "
        f"{share} of the {needed:,} that the config needs at least. "
        + ("The files are planned, which take more bytes." if larger else "The parameters of the config are planned instead.")
    )
    note = Note(code=PARTIAL_WEIGHTS, message=message)
    return replace(model, weights=files if larger else None, notes=(*model.notes, note))


def needed_parameters(counted: Weights) -> int:
    """The parameters that the files of every copy of a model have.

    Towers, multi-token prediction and the head may be missing: there are exports for text only, and models that only embed.
    """
    return sum(
        block.count * weight.elements
        for block in counted.blocks
        if block.part in (Part.LANGUAGE, Part.ENCODER)
        for weight in block.weights
        if weight.role is not WeightRole.HEAD
    )


def most_parameters(model: ModelSpec, files: WeightFacts) -> int:
    """The most parameters that files with these dtypes can hold.

    An element of a floating dtype is one. An integer holds as many as its bits allow by the narrowest format of the model's
    quantisation, eight of 4 bits in an I32. If that is not known it holds one a bit, and one in 4 bits if the config names none: so
    files were packed before configs said so.
    """
    numbers = packed = 0
    for dtype, size in files.bytes_by_dtype.items():
        bits = _NUMBER_BITS.get(dtype)
        if bits is not None:
            numbers += 8 * size // bits
        elif dtype not in _SCALES:
            packed += size
    return numbers + 8 * packed // _narrowest_bits(model) if packed else numbers


def _narrowest_bits(model: ModelSpec) -> int:
    scheme, known = planned_scheme(model, None)
    if scheme is None:
        return _UNNAMED_BITS if known else 1
    return min((rule.format.bits for rule in scheme.rules), default=1)


def _counted_bytes(model: ModelSpec, counted: Weights) -> int | None:
    """Bytes of the parameters as the config stores them; ``None`` for an unknown quantisation."""
    scheme, known = planned_scheme(model, None)
    if not known:
        return None
    unquantized = FLOATS.get(model.dtype or "", BF16)
    return sum(
        block.count * unquantized.bytes(weight) if scheme is None else scheme.bytes(block, weight, unquantized)
        for block in counted.blocks
        if block.part is not Part.MTP
        for weight in block.weights
    )


def _unchecked(model: ModelSpec, files: WeightFacts) -> ModelSpec:
    """The model with a note if its files cannot even hold its embedding."""
    rows, width = model.vocab_size, model.hidden_size
    table = 1 if rows is None or width is None else rows * width
    stored = most_parameters(model, files)
    if stored >= table:
        return model
    than = "none" if table == 1 else f"fewer than the {table:,} of its embedding alone"
    message = (
        f"The weight files hold at most {stored:,} parameters, {than}, and kvplan does not count the parameters of this model: "
        "its weights may take much more than the files."
    )
    return replace(model, notes=(*model.notes, Note(code="weights-unchecked", message=message)))
