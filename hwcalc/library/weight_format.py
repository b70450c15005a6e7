"""What a format of ``--weights`` is: the bits of a weight, who makes such files, and which engines take it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from hwcalc.engines import DEFAULT, ENGINES
from hwcalc.errors import KvplanError, UnknownNameError
from hwcalc.formulas.record import Record
from hwcalc.library.load import load_model
from hwcalc.model import ModelSpec
from hwcalc.planner.context import open_request
from hwcalc.planner.planned_weights import StoredWeights, weights_of
from hwcalc.quantization.planned import format_name, maker, most_in, spellings

_EXAMPLES: Final = ("Qwen/Qwen3-8B", "openai/gpt-oss-20b")
"""A dense model and one of experts. The first that has weights in a format is the example of it."""


class WeightFormatFacts(Record):
    """A format of weights.

    Most weights are stored as ``mostly`` and take ``bits`` each, scales included. ``made_by`` is the program that makes such files, empty
    for the formats of training. The weights of ``model`` take ``model_bytes``, which are ``model_bits`` each, since some tensors have other
    formats. ``engines`` are those that plan the model in this format.
    """

    name: str
    aliases: tuple[str, ...]
    mostly: str
    bits: float
    made_by: str
    model: str
    model_bytes: int
    model_bits: float
    engines: tuple[str, ...]


def weight_format(text: str) -> WeightFormatFacts | None:
    """The facts of a format by any name that ``--weights`` takes; ``None`` if it is none.

    >>> found = weight_format("Q4_K_M")
    >>> found.name, found.bits, found.made_by
    ('q4_k_m', 4.5, 'llama-quantize of llama.cpp')
    >>> weight_format("as published") is None
    True
    """
    try:
        name = format_name(text)
    except UnknownNameError:
        return None
    assert name is not None
    form = most_in(name)
    assert form is not None
    for id_ in _EXAMPLES:
        model = load_model(id_, offline=True)
        weights = weights_of(open_request(model, weights=name)).value
        stored = [one for part in weights.parts for one in part.formats]
        most = [one for one in stored if one.format == form.name]
        if most:
            break
    assert weights.bytes is not None
    return WeightFormatFacts(
        name=name,
        aliases=spellings(name),
        mostly=form.name,
        bits=_bits(sum(one.bytes for one in most), most),
        made_by=maker(name),
        model=id_,
        model_bytes=weights.bytes,
        model_bits=_bits(weights.bytes, stored),
        engines=tuple(engine for engine in ENGINES if engine != DEFAULT and _takes(engine, model, name)),
    )


def _bits(size: int, stored: Iterable[StoredWeights]) -> float:
    """The bits of each weight, where all take so many bytes."""
    return round(8 * size / sum(one.parameters for one in stored), 2)


def _takes(engine: str, model: ModelSpec, name: str) -> bool:
    """True if the engine plans the model in this format."""
    try:
        open_request(model, engine=engine, weights=name)
    except KvplanError:
        return False
    return True
