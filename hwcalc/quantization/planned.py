"""Which quantisation is planned: that of ``--weights``, else the one that the checkpoint states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from hwcalc.errors import UnknownNameError
from hwcalc.formulas.formats import BF16, FP16, FP32, WeightFormat
from hwcalc.model import ModelSpec, Note

if TYPE_CHECKING:
    from hwcalc.quantization.scheme import Scheme

__all__ = ["PLAIN_FORMATS", "format_name", "named_in_the_id", "planned_scheme", "weight_formats"]

PLAIN_FORMATS: Final[Mapping[str, WeightFormat]] = {"fp32": FP32, "fp16": FP16, "bf16": BF16}


_SPELLINGS: Final = {"float32": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16", "fp8_e4m3": "fp8", "nf4": "bnb4"}


_PUBLISHED: Final = frozenset({"catalog", "hub", "hf-cache"})
"""Sources whose ids are names that a publisher gave."""


def weight_formats() -> tuple[str, ...]:
    """What ``--weights`` takes."""
    from hwcalc.quantization.scheme import FORMATS

    return (*PLAIN_FORMATS, *FORMATS)


def format_name(wanted: str | None) -> str | None:
    """``--weights`` as the name of a format; ``None`` is as published. Raises :class:`~hwcalc.errors.UsageError`."""
    if wanted is None:
        return None
    name = wanted.strip().lower()
    name = _SPELLINGS.get(name, name)
    known = weight_formats()
    if name not in known:
        raise UnknownNameError(
            f"--weights {wanted[:40]!r} is not a known weight format.", option="weights", hint=f"Known: {', '.join(known)}."
        )
    return name


def planned_scheme(model: ModelSpec, wanted: str | None) -> tuple[Scheme | None, bool]:
    """The quantisation that is planned, ``None`` for plain weights, and whether it is understood. ``wanted`` is a format's name."""
    if wanted in PLAIN_FORMATS:
        return None, True
    if wanted is None and model.quantization is None:
        return None, named_in_the_id(model) is None
    from hwcalc.quantization.scheme import read_scheme, uniform_scheme

    if wanted is not None:
        return uniform_scheme(wanted), True
    scheme = model.once("published scheme", lambda: read_scheme(model.quantization or {}, model.facts.expert_dtype))
    return scheme, scheme is not None


def named_in_the_id(model: ModelSpec) -> Note | None:
    """Why a published model's config cannot be taken at its word: its name says a format that it does not state."""
    from hwcalc.quantization.named_format import named_format

    found = named_format(model.id) if model.source in _PUBLISHED else None
    if found is None:
        return None
    word, name = found
    return Note(
        code="weights-unknown",
        message=f"The name {model.id} says {word}, but its config does not say how the weights are quantised: they are not "
        f"counted. Give a format: --weights {name}.",
    )
