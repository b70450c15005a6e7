"""Which tensor of a GGUF file gets which type: the rule of ``llama_tensor_get_type`` (src/llama-quant.cpp, llama.cpp 0c1e57098).

A file is gone through in the order of that source: by layer, then by name. A file type such as Q4_K_M is a mix. It has a main
type, and some tensors get more bits: the output table, the values and the down projections of some layers. The rule knows
tensors by their names and shapes in the file, so it is the same for a file that exists and for one that
:mod:`hwcalc.quantization.converted` describes. With an importance matrix, a few mixes choose otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final

from hwcalc.formulas.record import Record
from hwcalc.quantization.ggml import BLOCKS, MIXES, whole_name

_KEPT: Final = (
    "_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel", "per_layer_model_proj", "ssm_conv1d",
    "shortconv.conv.weight", "indexer.k_proj.weight", "indexer.q_proj.weight", "time_mix_first.weight", "time_mix_w0.weight",
    "time_mix_w1.weight", "time_mix_w2.weight", "time_mix_v0.weight", "time_mix_v1.weight", "time_mix_v2.weight",
    "time_mix_a0.weight", "time_mix_a1.weight", "time_mix_a2.weight", "time_mix_g1.weight", "time_mix_g2.weight",
    "time_mix_decay_w1.weight", "time_mix_decay_w2.weight", "time_mix_lerp_fused.weight", "attn_rel_b.weight", ".position_embd",
    "sam.pos_embd", "sam.neck.", "sam.net_", ".rel_pos", ".patch_embd", ".patch_merger", "a.rvq.codebook", "mm.a.code_embd",
)  # fmt: skip
"""Tensors whose names contain one of these keep their type (``tensor_allows_quantization``)."""
_NEVER: Final = frozenset({"position_embd.weight", "token_types.weight"})
_NOT_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "glm5-next": (
        "hc_", "indexer.attn_q_b", "indexer.attn_k", "indexer.proj", "indexer_compressor_gate", "indexer_compressor_ape",
        "ssm_f_a.weight", "ssm_f_b.weight", "ssm_g_a.weight", "ssm_g_b.weight", "ssm_beta.weight", "attn_kv_a_mqa.weight",
        "attn_k_b.weight", "attn_v_b.weight",
    ),
}  # fmt: skip
"""More such names of one architecture."""
_EIGHT_BITS: Final[Mapping[str, tuple[str, ...]]] = {"glm5-next": ("attn_q_a", "attn_q_b", "nextn.eh_proj")}
"""Tensors of one architecture that get no less than Q8_0."""
_LAYERS_OF_70B: Final[Mapping[str, int]] = {"llama": 80, "qwen2": 80, "deci": 80, "olmo": 80, "jais2": 68}
"""The number of layers by which llama.cpp knows a model of 70B."""

_CATEGORIES: Final = (
    ("attn_qkv.weight", "v"), ("attn_kv_b.weight", "v"), ("attn_v.weight", "v"), ("attn_k.weight", "k"), ("attn_q.weight", "q"),
    ("attn_output.weight", "attention output"), ("ffn_up", "up or gate"), ("ffn_gate", "up or gate"), ("ffn_down", "down"),
)  # fmt: skip
"""A part of the name -> the category (``tensor_get_category``). Values include the fused projections, as there."""


class Family(Record):
    """The tensors of a file that have one name and one shape: ``attn_q.weight`` in layers 0 to 31. ``shape`` has the row length first.

    ``layers`` is empty for a tensor outside the layers, whose ``stem`` is the whole name. ``type`` is the type before quantisation.
    """

    stem: str
    shape: tuple[int, ...]
    type: str
    layers: tuple[int, ...] = ()

    @cached_property
    def elements(self) -> int:
        """Numbers of one tensor."""
        size = 1
        for length in self.shape:
            size *= length
        return size

    def bytes_as(self, name: str, elements: int | None = None) -> int:
        """Bytes of one tensor in the type ``name``, or of so many of its numbers."""
        block, size = BLOCKS[name]
        return (self.elements if elements is None else elements) // block * size


class MixFacts(Record):
    """What the rule asks of the model beside its tensors, with the names of llama.cpp."""

    arch: str
    n_layer_all: int
    n_expert: int = 0
    n_gqa: int = 1
    """Query heads per key head in the first layer; 0 if that layer has no keys."""

    @property
    def is_70b(self) -> bool:
        """True if llama.cpp takes it for a model of 70B, whose values get five bits at least (``type`` in src/models/*.cpp)."""
        if self.arch == "llama" and (self.n_gqa == 1 or self.n_expert == 8):
            return False
        return _LAYERS_OF_70B.get(self.arch) == self.n_layer_all


class Place(Record):
    """What the rule asks of one tensor: what it is, and where among those of its category it stands."""

    category: str
    experts: bool = False
    """True if the tensor has a third dimension."""
    first_two: bool = False
    first_four: bool = False
    early: bool = False
    """In the first eighth of the layers."""
    early_by_count: bool = False
    """Among the first of its category, as many as an eighth of the layers."""
    earliest: bool = False
    """In the first sixteenth."""
    more: bool = False
    """In the first eighth, the last, or a third of those between (``use_more_bits``)."""
    middle: bool = False
    """Between the first eighth and the last."""
    eight_bits: bool = False


class Typed(Record):
    """The tensors of a family that get one type. ``layers`` is empty outside the layers."""

    family: int
    type: str
    layers: tuple[int, ...]


class Placed(Record):
    """The tensors of a family that stand in one place. ``place`` is ``None`` for tensors that keep their type."""

    family: int
    place: Place | None
    layers: tuple[int, ...]


def placed(families: Sequence[Family], facts: MixFacts) -> tuple[Placed, ...]:
    """Divide the families by place, once for all mixes."""
    tied = not any(family.stem == "output.weight" and not family.layers for family in families)
    categories, allowed = [], []
    for family in families:
        category = next((category for word, category in _CATEGORIES if word in family.stem), "other")
        if family.stem == "output.weight" and not family.layers:
            category = "output"
        elif family.stem in ("token_embd.weight", "per_layer_token_embd.weight") and not family.layers:
            category = "output" if tied else "embedding"
        categories.append(category)
        # Which tensors may be quantised (``tensor_allows_quantization``).
        stem = family.stem if not family.layers else f"blk.0.{family.stem}"
        kept = stem in _NEVER or any(word in stem for word in (*_KEPT, *_NOT_OF.get(facts.arch, ())))
        allowed.append(any(length > 1 for length in family.shape[1:]) and stem.endswith("weight") and not kept)
    places = _counted(families, categories, allowed, facts)
    found = []
    for index, family in enumerate(families):
        if not allowed[index]:
            found.append(Placed(family=index, place=None, layers=family.layers))
            continue
        by_place: dict[tuple[tuple[str, bool], ...], list[int]] = {}
        for number in family.layers or (-1,):
            by_place.setdefault(places.get((index, number), ()), []).append(number)
        for flags, numbers in by_place.items():
            place = Place(
                category=categories[index],
                experts=len(family.shape) > 2 and family.shape[2] > 1,
                eight_bits=any(word in family.stem for word in _EIGHT_BITS.get(facts.arch, ())),
                **dict(flags),
            )
            found.append(Placed(family=index, place=place, layers=tuple(numbers) if family.layers else ()))
    return tuple(found)


def _counted(
    families: Sequence[Family], categories: Sequence[str], allowed: Sequence[bool], facts: MixFacts
) -> dict[tuple[int, int], tuple[tuple[str, bool], ...]]:
    """The place of each tensor that llama.cpp counts. It goes through a file by layer, and by name within a layer."""
    ordered = []
    for index, family in enumerate(families):
        if allowed[index] and categories[index] in ("v", "down", "up or gate"):
            # ``weight_name_comparer``: layers of encoders and decoders are not known as such.
            unknown = family.stem.startswith(("enc.", "dec."))
            for number in family.layers or (-1,):
                name = whole_name(family.stem, number) if unknown else family.stem
                ordered.append((-1 if unknown else number, name, number, index))
    ordered.sort()
    values = sum(1 for *_, index in ordered if categories[index] == "v")
    layers, so_far = facts.n_layer_all, Counter[str]()
    places: dict[tuple[int, int], tuple[tuple[str, bool], ...]] = {}
    flags: tuple[tuple[str, bool], ...]
    for _, name, number, index in ordered:
        category = categories[index]
        # Gates and ups have counters of their own.
        counter = "gate" if category == "up or gate" and "ffn_up" not in name else category
        count = so_far[counter]
        so_far[counter] += 1
        at = number if facts.n_expert > 1 else count
        if category == "v":
            flags = (("first_two", count < 2), ("first_four", count < 4), ("more", _more_bits(count, values)))
        elif category == "up or gate":
            flags = (("middle", layers // 8 <= at < 7 * layers // 8),)
        else:
            early = (("early", at < layers // 8), ("early_by_count", count < layers // 8), ("earliest", at < layers // 16))
            flags = (*early, ("more", _more_bits(at, layers)))
        places[index, number] = flags
    return places


def _more_bits(place: int, layers: int) -> bool:
    """True if llama.cpp's ``use_more_bits`` holds for the tensor in ``place`` of ``layers``: outer eighths, every third between.

    C++ divides towards zero, but only counts from 0 come here, and what lies before the first eighth is answered first.
    """
    return place < layers // 8 or place >= 7 * layers // 8 or (place - layers // 8) % 3 == 2


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


class _Chooser(Record):
    """The rule of one mix for one model."""

    name: str
    main: str
    facts: MixFacts
    imatrix: bool

    def type_of(self, place: Place, columns: int) -> str | None:
        """The type of a tensor with rows of ``columns`` numbers; ``None`` if llama.cpp refuses such rows."""
        chosen = self._chosen(place, columns)
        if columns % BLOCKS[chosen][0] == 0:
            return chosen
        if chosen in _NOT_DIVIDED:
            return None
        smaller = _FALLBACK.get(chosen, chosen)
        return "f16" if columns % BLOCKS[smaller][0] else smaller

    def _chosen(self, place: Place, columns: int) -> str:
        name, category, small, eight = self.name, place.category, self.name in _SMALL, self.facts.n_expert == 8
        least = "iq3_s" if name in _IQ2_PLUS else "q2_k"
        if place.eight_bits:
            return "q8_0"
        if category == "output":
            if name == "mxfp4_moe" or self.facts.arch == "falcon" or columns % BLOCKS[self.main][0]:
                return "q8_0"
            return "q5_k" if small or name == "iq3_xxs" else "q8_0" if self.main == "q8_0" else "q6_k"
        if name == "mxfp4_moe":
            experts = place.experts and (self.facts.arch != "bailingmoe3" or category in ("down", "up or gate"))
            return "mxfp4" if experts else "q8_0"
        if category == "embedding":
            wider = {"iq3_xxs": "iq3_s", "tq1_0": "q4_k", "tq2_0": "q4_k", "q2_0": "q4_k"}
            return least if small else wider.get(name, self.main)
        if category == "v":
            if not small:
                return self._value(place)
            return "q4_k" if self.facts.n_gqa >= 4 or self.facts.n_expert >= 4 else least
        if category == "down":
            return self._down(place) if not small else least if place.early_by_count else self.main
        if category == "attention output":
            return self._attention_output()
        if category == "k" and eight:
            return "q4_k" if small else "q8_0"
        if category in ("q", "k"):
            return {"iq3_xs": "iq3_xxs", "iq3_xxs": "iq2_s"}.get(name, self.main)
        return "iq3_xxs" if place.middle and name == "iq3_xs" else self.main

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
    chooser = _Chooser(name=name, main=MIXES[name], facts=facts, imatrix=False)
    for one in found:
        family = families[one.family]
        if one.place is not None and chooser.type_of(one.place, family.shape[0]) is None:
            return family
    return None


def typed(families: Sequence[Family], found: Iterable[Placed], facts: MixFacts, name: str, *, imatrix: bool) -> tuple[Typed, ...]:
    """The types of all tensors in the mix ``name``. Rows that llama.cpp refuses to quantise keep their type."""
    chooser = _Chooser(name=name, main=MIXES[name], facts=facts, imatrix=imatrix)
    answers = []
    for one in found:
        family = families[one.family]
        form = None if one.place is None else chooser.type_of(one.place, family.shape[0])
        answers.append(Typed(family=one.family, type=form or family.type, layers=one.layers))
    return tuple(answers)
