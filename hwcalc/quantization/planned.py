"""The quantisation of a plan: that of ``--weights`` if it is set, otherwise that of the checkpoint."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from hwcalc.errors import UnknownNameError
from hwcalc.formulas.formats import FLOATS
from hwcalc.model import ModelSpec, Note
from hwcalc.text import shown

if TYPE_CHECKING:
    from hwcalc.quantization.scheme import Scheme

__all__ = ["format_name", "named_in_the_id", "planned_scheme", "weight_formats"]

_SPELLINGS: Final = {
    "float32": "fp32",
    "f32": "fp32",
    "float16": "fp16",
    "f16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "fp8_e4m3": "fp8",
    "nf4": "bnb4",
    "bnb_nf4": "bnb4",
    "bnb_fp4": "bnb4",
    "bnb_4bit": "bnb4",
    "bnb_8bit": "bnb8",
    "bnb_int8": "bnb8",
    "llm_int8": "bnb8",
    "awq_4bit": "awq",
    "awq_int4": "awq",
    "gptq_4bit": "gptq",
    "gptq_int4": "gptq",
    "w4a16": "int4",
    "w8a8": "int8",
    "w8a16": "int8",
    "q3_k": "q3_k_m",
    "q4_k": "q4_k_m",
    "q5_k": "q5_k_m",
}
"""Other names of formats, in lower case, their words joined by underscores."""
_BY_HAND: Final = re.compile(r"^ud_|_k_?(xl|l)$|_(xxl|xl)$")
"""Names of files that are made otherwise than ``llama-quantize`` makes them: unsloth's dynamic ones, and those with larger tables."""
_PUBLISHED: Final = frozenset({"catalog", "hub", "hf-cache"})
"""Sources whose model ids are the names that publishers chose."""


def weight_formats() -> tuple[str, ...]:
    """All names that ``--weights`` takes."""
    from hwcalc.quantization.by_bits import EXAMPLES
    from hwcalc.quantization.mix_names import MIXES
    from hwcalc.quantization.scheme import FORMATS

    return (*FLOATS, *FORMATS, *MIXES, *EXAMPLES)


def format_name(text: str | None) -> str | None:
    """The canonical format name for a value of ``--weights``; ``None`` means as published. Raises :class:`UnknownNameError`."""
    if text is None:
        return None
    from hwcalc.quantization.mix_names import MIXES

    # Most name a mix as it is: the other formats need not be read for it.
    if text in MIXES and text not in _SPELLINGS:
        return text
    name = text.strip().lower()
    name = name if name.isalnum() else re.sub(r"[\s_-]+", "_", name)
    name = _SPELLINGS.get(name, name)
    from hwcalc.quantization.scheme import FORMATS

    # Most names are one of these; the others have tables of their own.
    if name in FLOATS or name in FORMATS:
        return name
    known = weight_formats()
    if name in known:
        return name
    from hwcalc.quantization.by_bits import named_by_bits

    by_bits = named_by_bits(name)
    if by_bits is None and _BY_HAND.search(name):
        nearest = next(part for part in (re.sub(r"_k_?(xl|l)$", "_k_m", name.removeprefix("ud_")), "q4_k_m") if part in known)
        raise UnknownNameError(
            f"--weights {shown(text, 40)} is a mix that its publisher chooses tensor by tensor: no rule says what is in it.",
            option="weights",
            hint=f"Give the file itself, such as ./model.gguf or org/repo:FILE.gguf, or a mix of llama.cpp: --weights {nearest}.",
        )
    if by_bits is None:
        raise UnknownNameError(
            f"--weights {shown(text, 40)} is not a known weight format.",
            option="weights",
            hint=f"Known: {', '.join(known)}; exl2, exl3 and mlx with other bits: exl2 3.5bpw.",
        )
    return by_bits


def planned_scheme(model: ModelSpec, name: str | None) -> tuple[Scheme | None, bool]:
    """The scheme of a plan (``None`` for unquantised weights), and whether it is known.

    ``name`` is the name of a format; ``None`` means as published.
    """
    if name in FLOATS:
        return None, True
    if name is None and model.gguf is not None and model.gguf.tensors:
        stored = model.once("published scheme", lambda: _stored(model))
        return stored, stored is not None
    if name is None and model.quantization is None:
        return None, model.once("names a format", lambda: named_in_the_id(model)) is None
    if name is not None:
        return model.once(("scheme", name), lambda: _named(model, name)), True
    scheme = model.once("published scheme", lambda: _published(model))
    return scheme, scheme is not None


def _named(model: ModelSpec, name: str) -> Scheme | None:
    """The scheme of a format by its canonical name. What a GGUF mix gives to a tensor depends on the model."""
    from hwcalc.quantization.mix_names import MIXES

    if name in MIXES:
        from hwcalc.quantization.gguf import mix

        return mix(name, model)
    from hwcalc.quantization.by_bits import by_bits
    from hwcalc.quantization.scheme import uniform_scheme

    return uniform_scheme(name) or by_bits(name)


def _stored(model: ModelSpec) -> Scheme | None:
    from hwcalc.quantization.as_stored import stored_scheme

    return stored_scheme(model)


def _published(model: ModelSpec) -> Scheme | None:
    from hwcalc.quantization.config import read_scheme

    scheme = read_scheme(model.quantization or {}, model.facts.expert_dtype)
    if scheme is None:
        return None
    from hwcalc.formulas.weights import Part

    blocks = () if model.counted is None else model.counted.blocks
    numbers = [number for block in blocks for number in block.layers or () if block.part is Part.LANGUAGE]
    return scheme.placed(layers=1 + max(numbers, default=-1), text_only=model.facts.quantizes_text_only)


def named_in_the_id(model: ModelSpec) -> Note | None:
    """A note for a published model whose name contains a quantised format that its config does not state, or ``None``."""
    from hwcalc.quantization.named_format import named_format

    word_and_format = named_format(model.id) if model.source in _PUBLISHED else None
    if word_and_format is None:
        return None
    word, name = word_and_format
    return Note(
        code="weights-unknown",
        message=f"The name {model.id} says {word}, but its config does not say how the weights are quantised: they are not "
        f"counted. Give a format: --weights {name}.",
    )
