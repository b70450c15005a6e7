"""Which tensor of a GGUF file gets which type: the rule of ``llama_tensor_get_type`` (src/llama-quant.cpp, llama.cpp 0c1e57098).

A file type such as Q4_K_M is a mix. It has a main type, and some tensors get more bits: the output table, the values and the down
projections of some layers. The rule knows tensors by their names and shapes in the file, so it is the same for a file that exists
and for one that :mod:`hwcalc.quantization.converted` describes. With an importance matrix, a few mixes choose otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from hwcalc.formulas.record import Record
from hwcalc.quantization.ggml import BLOCKS
from hwcalc.quantization.mix_names import MIXES
from hwcalc.quantization.mix_places import Family, MixFacts, Place, Placed, Typed

__all__ = ["bytes_by_type", "refused", "tensor_type", "typed"]

_SMALL: Final = frozenset({"iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq2_m"})
_IQ2_PLUS: Final = frozenset({"iq2_s", "iq2_m"})
_FALLBACK: Final = {
    **dict.fromkeys(("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs"), "iq4_nl"),
    **dict.fromkeys(("q2_0", "q2_k", "q3_k", "tq1_0", "tq2_0"), "q4_0"),
    "q4_k": "q5_0",
    "q5_k": "q5_1",
    "q6_k": "q8_0",
}
"""The type of rows that the blocks of a type do not divide (``tensor_type_fallback``); a type of small blocks stays as it is."""
_NOT_DIVIDED: Final = frozenset({"q1_0"})
"""Types of large blocks without a fallback: llama.cpp refuses to quantise rows that they do not divide."""


def tensor_type(name: str, place: Place, columns: int, facts: MixFacts, *, imatrix: bool) -> str | None:
    """The type of a tensor with rows of ``columns`` numbers in the mix ``name``; ``None`` if llama.cpp refuses such rows."""
    return _type_by(_Chooser(name=name, main=MIXES[name], facts=facts, imatrix=imatrix), place, columns)


def _type_by(chooser: _Chooser, place: Place, columns: int) -> str | None:
    chosen = chooser.chosen(place, columns)
    block = BLOCKS[chosen][0]
    if columns % block == 0:
        return chosen
    if chosen in _NOT_DIVIDED:
        return None
    smaller = _FALLBACK.get(chosen, chosen)
    return "f16" if columns % BLOCKS[smaller][0] else smaller


class _Chooser(Record):
    """The rule of one mix for one model."""

    name: str
    main: str
    facts: MixFacts
    imatrix: bool

    def chosen(self, place: Place, columns: int) -> str:
        if place.eight_bits:
            return "q8_0"
        if place.category == "output":
            return self._output(columns)
        if self.name == "mxfp4_moe":
            experts = place.experts and (self.facts.arch != "bailingmoe3" or place.category in ("down", "up or gate"))
            return "mxfp4" if experts else "q8_0"
        if place.category == "embedding":
            return self._embedding()
        if place.category == "v":
            return self._small_value() if self.name in _SMALL else self._value(place)
        if place.category == "down":
            return self._small_down(place) if self.name in _SMALL else self._down(place)
        if place.category == "attention output":
            return self._attention_output()
        if place.category in ("q", "k"):
            return self._query_or_key(key=place.category == "k")
        return "iq3_xxs" if place.middle and self.name == "iq3_xs" else self.main

    def _output(self, columns: int) -> str:
        if self.name == "mxfp4_moe" or self.facts.arch == "falcon" or columns % BLOCKS[self.main][0]:
            return "q8_0"
        if self.name in _SMALL or self.name == "iq3_xxs":
            return "q5_k"
        return "q8_0" if self.main == "q8_0" else "q6_k"

    def _embedding(self) -> str:
        if self.name in _SMALL:
            return "iq3_s" if self.name in _IQ2_PLUS else "q2_k"
        return {"iq3_xxs": "iq3_s", "tq1_0": "q4_k", "tq2_0": "q4_k", "q2_0": "q4_k"}.get(self.name, self.main)

    def _small_value(self) -> str:
        if self.facts.n_gqa >= 4 or self.facts.n_expert >= 4:
            return "q4_k"
        return "iq3_s" if self.name in _IQ2_PLUS else "q2_k"

    def _value(self, place: Place) -> str:
        name, many, chosen = self.name, self.facts.n_gqa >= 4, self.main
        if name == "q2_k":
            chosen = "q4_k" if many else "q3_k"
        elif name == "iq3_xxs":
            chosen = "q4_k" if many else "iq3_xxs" if self.imatrix else "iq3_s"
        elif (name in ("q2_k_s", "iq3_xs", "iq3_s") and many) or name == "iq3_m":
            chosen = "q4_k"
        elif name == "q3_k_m":
            chosen = "q5_k" if place.first_two else "q4_k"
        elif name == "q3_k_l" or (name in ("iq4_nl", "iq4_xs") and many) or (name == "q4_k_s" and place.first_four):
            chosen = "q5_k"
        elif name in ("q4_k_m", "q5_k_m") and place.more:
            chosen = "q6_k"
        if self.facts.is_70b and chosen in ("q3_k", "q4_k"):
            chosen = "q5_k"
        return "q8_0" if self.facts.n_expert == 8 else chosen

    def _query_or_key(self, *, key: bool) -> str:
        if key and self.facts.n_expert == 8:
            return "q4_k" if self.name in _SMALL else "q8_0"
        return {"iq3_xs": "iq3_xxs", "iq3_xxs": "iq2_s"}.get(self.name, self.main)

    def _small_down(self, place: Place) -> str:
        early = "iq3_s" if self.name in _IQ2_PLUS else "q2_k"
        return early if place.early_by_count else self.main

    def _down(self, place: Place) -> str:
        name, falcon = self.name, self.facts.arch == "falcon"
        if name == "q2_k":
            return "q3_k"
        if name == "iq3_xxs" and not self.imatrix:
            return "q4_k" if place.early else "q3_k"
        if name == "q3_k_m":
            return "q5_k" if place.earliest else "q4_k" if not falcon or place.more else "q3_k"
        if name == "iq3_m" and (place.early or (self.facts.n_expert == 8 and place.more)):
            return "q4_k"
        if name == "q3_k_l":
            return "q4_k" if falcon else "q5_k"
        if name == "q4_k_m" and falcon:
            return "q6_k" if place.earliest else "q5_k" if place.more else "q4_k"
        if name in ("q4_k_m", "q5_k_m") and place.more:
            return "q6_k"
        if not place.early:
            return self.main
        if name in ("iq4_nl", "iq4_xs"):
            return self.main if self.imatrix else "q5_k"
        if name in ("q4_0", "q5_0"):
            return {"q4_0": "q4_1", "q5_0": "q5_1"}[name] if self.imatrix else self.main
        return {"q2_k_s": "q4_k", "q4_k_s": self.main if falcon else "q5_k"}.get(name, self.main)

    def _attention_output(self) -> str:
        name, eight = self.name, self.facts.n_expert == 8
        if name in _SMALL:
            if eight:
                return "q5_k"
            return "iq2_xxs" if name in ("iq1_s", "iq1_m") else "iq3_s" if name in _IQ2_PLUS else self.main
        if self.facts.arch == "falcon":
            return "q4_k" if name == "q3_k_l" else self.main
        if eight:
            five = self.main in ("q2_k", "q3_k", "q4_k", "iq3_s", "iq3_xxs", "iq4_nl", "iq4_xs")
            return "q5_k" if five and name not in ("q2_k_s", "q3_k_l") else self.main
        chosen = {"q2_k": "q3_k", "iq3_xxs": "iq3_s", "q3_k_m": "q4_k", "q3_k_l": "q5_k", "iq3_m": "q4_k"}
        return chosen.get(name, self.main)


def refused(families: Sequence[Family], found: Iterable[Placed], facts: MixFacts, name: str) -> Family | None:
    """A family whose rows llama.cpp refuses to quantise in this mix, or ``None``."""
    if name not in _NOT_DIVIDED:
        return None
    asked = ((families[one.family], one.place) for one in found)
    return next(
        (
            family
            for family, place in asked
            if place is not None and tensor_type(name, place, family.shape[0], facts, imatrix=False) is None
        ),
        None,
    )


def typed(families: Sequence[Family], found: Iterable[Placed], facts: MixFacts, name: str, *, imatrix: bool) -> tuple[Typed, ...]:
    """The types of all tensors in the mix ``name``. Rows that llama.cpp refuses to quantise keep their type."""
    chooser = _Chooser(name=name, main=MIXES[name], facts=facts, imatrix=imatrix)
    answers = []
    for one in found:
        family = families[one.family]
        form = None if one.place is None else _type_by(chooser, one.place, family.shape[0])
        answers.append(Typed(family=one.family, type=form or family.type, layers=one.layers))
    return tuple(answers)


def bytes_by_type(families: Sequence[Family], types: Iterable[Typed]) -> dict[str, int]:
    """Bytes of a whole file by type."""
    totals: dict[str, int] = {}
    for one in types:
        totals[one.type] = totals.get(one.type, 0) + (len(one.layers) or 1) * families[one.family].bytes_as(one.type)
    return totals
