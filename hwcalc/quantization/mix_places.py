"""The tensors of a GGUF file as the rule of :mod:`hwcalc.quantization.mixes` sees them: what each is, and where it stands.

The names are those of src/llama-quant.cpp, llama.cpp 0c1e57098, in whose order a file is gone through: by layer, then by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final

from hwcalc.formulas.record import Record
from hwcalc.quantization.ggml import BLOCKS
from hwcalc.quantization.tensor_names import whole_name

__all__ = ["Family", "MixFacts", "Place", "Placed", "Typed", "placed"]

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
    ("attn_qkv.weight", "v"),
    ("attn_kv_b.weight", "v"),
    ("attn_v.weight", "v"),
    ("attn_k.weight", "k"),
    ("attn_q.weight", "q"),
    ("attn_output.weight", "attention output"),
    ("ffn_up", "up or gate"),
    ("ffn_gate", "up or gate"),
    ("ffn_down", "down"),
)
"""A part of the name -> the category (``tensor_get_category``). Values include the fused projections, as there."""


class Family(Record):
    """The tensors of a file that have one name and one shape: ``attn_q.weight`` in layers 0 to 31. ``shape`` has the row length first.

    ``layers`` is empty for a tensor outside the layers, whose ``stem`` is the whole name. ``type`` is the type before quantisation.
    """

    stem: str
    shape: tuple[int, ...]
    type: str
    layers: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """How many tensors it is."""
        return len(self.layers) or 1

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
        """Whether llama.cpp takes it for a model of 70B, whose values get five bits at least (``type`` in src/models/*.cpp)."""
        if self.arch == "llama" and (self.n_gqa == 1 or self.n_expert == 8):
            return False
        return _LAYERS_OF_70B.get(self.arch) == self.n_layer_all


class Place(Record):
    """What the rule asks of one tensor: what it is, and where among those of its category it stands."""

    category: str
    experts: bool = False
    """Whether the tensor has a third dimension."""
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
    categories = [_category(family, tied=tied) for family in families]
    allowed = [_allowed(family, facts.arch) for family in families]
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


def _category(family: Family, *, tied: bool) -> str:
    if family.stem == "output.weight" and not family.layers:
        return "output"
    if family.stem in ("token_embd.weight", "per_layer_token_embd.weight") and not family.layers:
        return "output" if tied else "embedding"
    return next((category for word, category in _CATEGORIES if word in family.stem), "other")


def _allowed(family: Family, arch: str) -> bool:
    """Whether the tensor may be quantised (``tensor_allows_quantization``)."""
    stem = family.stem if not family.layers else f"blk.0.{family.stem}"
    dimensions = next((size for size in range(len(family.shape), 0, -1) if family.shape[size - 1] > 1), 1)
    return (
        dimensions > 1
        and stem.endswith("weight")
        and stem not in _NEVER
        and not any(word in stem for word in (*_KEPT, *_NOT_OF.get(arch, ())))
    )


def _counted(
    families: Sequence[Family], categories: Sequence[str], allowed: Sequence[bool], facts: MixFacts
) -> dict[tuple[int, int], tuple[tuple[str, bool], ...]]:
    """The place of each tensor that llama.cpp counts. It goes through a file by layer, and by name within a layer."""
    ordered = sorted(
        (*_order(family.stem, number), number, index)
        for index, family in enumerate(families)
        if allowed[index] and categories[index] in ("v", "down", "up or gate")
        for number in family.layers or (-1,)
    )
    values = sum(1 for *_, index in ordered if categories[index] == "v")
    layers, so_far = facts.n_layer_all, Counter[str]()
    places: dict[tuple[int, int], tuple[tuple[str, bool], ...]] = {}
    flags: tuple[tuple[str, bool], ...]
    for _, stem, number, index in ordered:
        category = categories[index]
        # Gates and ups have counters of their own.
        counter = "gate" if category == "up or gate" and "ffn_up" not in stem else category
        count = so_far[counter]
        so_far[counter] += 1
        if category == "v":
            flags = (("first_two", count < 2), ("first_four", count < 4), ("more", _more_bits(count, values)))
        else:
            at = number if facts.n_expert > 1 else count
            flags = (
                (("middle", layers // 8 <= at < 7 * layers // 8),)
                if category == "up or gate"
                else (
                    ("early", at < layers // 8),
                    ("early_by_count", count < layers // 8),
                    ("earliest", at < layers // 16),
                    ("more", _more_bits(at, layers)),
                )
            )
        places[index, number] = flags
    return places


def _order(stem: str, number: int) -> tuple[int, str]:
    """``weight_name_comparer``: by layer, then by name. Layers of encoders and decoders are not known as such."""
    if number >= 0 and stem.startswith(("enc.", "dec.")):
        return -1, whole_name(stem, number)
    return number, stem


def _more_bits(place: int, layers: int) -> bool:
    """C++ divides towards zero, but only counts from 0 come here, and what lies before the first eighth is answered first."""
    return place < layers // 8 or place >= 7 * layers // 8 or (place - layers // 8) % 3 == 2
