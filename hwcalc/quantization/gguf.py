"""The mixes of llama.cpp: which tensor of a file named Q4_K_M, IQ4_XS, ... gets which type.

A mix has a main type. Some tensors get more bits: the output table, the values and the down projections of some layers. The rule is that
of ``llama_tensor_get_type`` in src/llama-quant.cpp (August 2025), for the tensors as transformers names them. Norms, biases, routers and
convolutions stay in 32 bits, and towers lie in a file of their own, in 16 bits. A row that a block does not divide gets another type.
With an importance matrix, a few mixes choose otherwise: both are counted.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import Final

from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.formats import FP16, FP32, WeightFormat
from hwcalc.formulas.frozen import field, frozen, replace
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole
from hwcalc.model import ModelSpec
from hwcalc.quantization.ggml import GGML
from hwcalc.quantization.scheme import Rule, Scheme

__all__ = ["MIXES", "Mix", "mix"]

MIXES: Final[Mapping[str, str]] = {
    "q4_0": "q4_0",
    "q4_1": "q4_1",
    "q5_0": "q5_0",
    "q5_1": "q5_1",
    "q8_0": "q8_0",
    "q2_k": "q2_k",
    "q2_k_s": "q2_k",
    "q3_k_s": "q3_k",
    "q3_k_m": "q3_k",
    "q3_k_l": "q3_k",
    "q4_k_s": "q4_k",
    "q4_k_m": "q4_k",
    "q5_k_s": "q5_k",
    "q5_k_m": "q5_k",
    "q6_k": "q6_k",
    "iq1_s": "iq1_s",
    "iq1_m": "iq1_m",
    "iq2_xxs": "iq2_xxs",
    "iq2_xs": "iq2_xs",
    "iq2_s": "iq2_xs",
    "iq2_m": "iq2_s",
    "iq3_xxs": "iq3_xxs",
    "iq3_xs": "iq3_s",
    "iq3_s": "iq3_s",
    "iq3_m": "iq3_s",
    "iq4_nl": "iq4_nl",
    "iq4_xs": "iq4_xs",
    "tq1_0": "tq1_0",
    "tq2_0": "tq2_0",
}
"""File type -> main type."""

_BY_IMATRIX: Final = frozenset({"q4_0", "q5_0", "iq3_xxs", "iq4_nl", "iq4_xs"})
"""Mixes that choose otherwise with an importance matrix."""
_SMALL: Final = frozenset({"iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq2_m"})
_IQ2_PLUS: Final = frozenset({"iq2_s", "iq2_m"})
_FALLBACK: Final = {"q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0", "tq1_0": "q4_0", "tq2_0": "q4_0"}
"""The type of a row that a block of 256 does not divide; all others become iq4_nl."""

_VALUES: Final = frozenset({"v_proj", "value", "v"})
_KEYS: Final = frozenset({"k_proj", "key", "k"})
_QUERIES: Final = frozenset({"q_proj", "query", "q"})
_FUSED: Final = frozenset({"qkv_proj", "query_key_value", "c_attn", "wqkv", "qkv", "w_pack"})
_OUTPUTS: Final = frozenset({"o_proj", "out_proj", "wo"})
_DOWN: Final = frozenset({"down_proj", "fc2", "dense_4h_to_h", "w2", "fc_out"})
_UP: Final = frozenset({"up_proj", "gate_proj", "gate_up_proj", "fc1", "w1", "w3", "dense_h_to_4h", "fc_in"})


def mix(name: str, model: ModelSpec) -> Mix:
    """The mix of this name for a model. Its ``others`` are the same mix made with an importance matrix, where that differs."""
    made = Mix(
        name=name,
        rules=(Rule(format=GGML[MIXES[name]]),),
        main=MIXES[name],
        gqa=_queries_per_key(model),
        experts=max((weight.copies for _, weight in _language(model) if weight.role is WeightRole.EXPERT), default=1),
        layers=len(model.stack),
        has_output=any(weight.role is WeightRole.HEAD for _, weight in _language(model)),
        falcon=model.model_type.startswith(("falcon", "RefinedWeb")) and model.model_type != "falcon_h1",
        large=len(model.stack) == 80 and model.hidden_size == 8192,
        values=_numbers(model, _VALUES | _FUSED | {"kv_b_proj"}),
        downs=_numbers(model, _DOWN),
    )
    if name not in _BY_IMATRIX:
        return made
    # Published files of three bits and fewer are made with a matrix.
    usual = name == "iq3_xxs"
    return replace(made, imatrix=usual, others=(replace(made, imatrix=not usual),))


def _language(model: ModelSpec) -> list[tuple[Block, Weight]]:
    blocks = () if model.counted is None else model.counted.blocks
    return [(block, weight) for block in blocks if block.part in (Part.LANGUAGE, Part.ENCODER) for weight in block.weights]


def _queries_per_key(model: ModelSpec) -> int:
    kinds = (group.kind for group in model.stack.groups)
    first = next((kind for kind in kinds if isinstance(kind, AttentionKind)), None)
    return 1 if first is None else first.num_attention_heads // first.num_key_value_heads


def _numbers(model: ModelSpec, modules: frozenset[str]) -> tuple[int, ...]:
    """The layers that have one of these matrices, in order."""
    found = {
        number
        for block, weight in _language(model)
        if len(weight.shape) > 1 and _module(weight.path) in modules
        for number in (range(block.count) if block.layers is None else block.layers)
    }
    return tuple(sorted(found))


def _module(path: str) -> str:
    return path.removesuffix(".weight").rpartition(".")[2].lower()


@frozen
class Mix(Scheme):
    """One mix of llama.cpp for one model."""

    main: str = "q4_k"
    gqa: int = 1
    experts: int = 1
    layers: int = 0
    has_output: bool = True
    falcon: bool = False
    large: bool = False
    """Whether llama.cpp takes it for a model of 70B, whose values get five bits at least."""
    values: tuple[int, ...] = field(default=(), repr=False)
    downs: tuple[int, ...] = field(default=(), repr=False)
    imatrix: bool = False

    def formats(self, block: Block, weight: Weight, unquantised: WeightFormat) -> list[tuple[int, WeightFormat]]:
        """The types of a tensor, each with its number of layers."""
        layers: Sequence[int] = range(block.count) if block.layers is None else block.layers
        key = (weight.path, weight.role, weight.shape[-1:], len(weight.shape), block.part, layers)
        if key not in self._chosen:
            counts: dict[WeightFormat, int] = {}
            for number in layers:
                form = self._format(block, weight, number)
                counts[form] = counts.get(form, 0) + 1
            self._chosen[key] = [(count, form) for form, count in counts.items()]
        return self._chosen[key]

    @cached_property
    def _chosen(self) -> dict[Hashable, list[tuple[int, WeightFormat]]]:
        """The answers so far."""
        return {}

    def _format(self, block: Block, weight: Weight, number: int) -> WeightFormat:
        if block.part not in (Part.LANGUAGE, Part.ENCODER, Part.MTP):
            return FP16 if len(weight.shape) > 1 else FP32
        if len(weight.shape) != 2 or weight.role in (WeightRole.ROUTER, WeightRole.CONV, WeightRole.NORM, WeightRole.BIAS):
            return FP32
        name = self._type(weight, number)
        if weight.shape[-1] % (GGML[name].group or 1):
            name = _FALLBACK.get(name, "iq4_nl")
        return FP16 if weight.shape[-1] % (GGML[name].group or 1) else GGML[name]

    def _type(self, weight: Weight, number: int) -> str:
        module = _module(weight.path)
        if weight.role is WeightRole.HEAD or (
            weight.role is WeightRole.EMBEDDING and not self.has_output and "per_layer" not in weight.path
        ):
            return self._output(weight.shape[-1])
        if weight.role is WeightRole.EMBEDDING:
            return self._embedding()
        if module in _DOWN or (module == "c_proj" and ".mlp." in f".{weight.path}"):
            place = number if self.experts > 1 else _place(self.downs, number)
            return self._small_down(place) if self.name in _SMALL else self._down(place)
        if module in _VALUES:
            return self._value(_place(self.values, number))
        if module in _OUTPUTS or module in ("c_proj", "dense"):
            return self._attention_output()
        if module in _FUSED:
            return self._fused()
        if module in _KEYS or module in _QUERIES:
            return self._query_or_key(key=module in _KEYS)
        middle = self.layers // 8 <= number < 7 * self.layers // 8
        return "iq3_xxs" if module in _UP and self.name == "iq3_xs" and middle else self.main

    def _output(self, columns: int) -> str:
        if self.falcon or columns % (GGML[self.main].group or 1) or self.main == "q8_0":
            return "q8_0"
        return "q5_k" if self.name in _SMALL or self.name == "iq3_xxs" else "q6_k"

    def _embedding(self) -> str:
        if self.name in _SMALL:
            return "iq3_s" if self.name in _IQ2_PLUS else "q2_k"
        return {"iq3_xxs": "iq3_s", "tq1_0": "q4_k", "tq2_0": "q4_k"}.get(self.name, self.main)

    def _value(self, place: int) -> str:
        name, many = self.name, self.gqa >= 4
        if name in _SMALL:
            return "q4_k" if many or self.experts >= 4 else "iq3_s" if name in _IQ2_PLUS else "q2_k"
        chosen = self.main
        if name == "q2_k":
            chosen = "q4_k" if many else "q3_k"
        elif name == "iq3_xxs":
            chosen = "q4_k" if many else "iq3_xxs" if self.imatrix else "iq3_s"
        elif (name in ("q2_k_s", "iq3_xs", "iq3_s") and many) or name == "iq3_m":
            chosen = "q4_k"
        elif name == "q3_k_m":
            chosen = "q5_k" if place < 2 else "q4_k"
        elif name == "q3_k_l" or (name in ("iq4_nl", "iq4_xs") and many) or (name == "q4_k_s" and place < 4):
            chosen = "q5_k"
        elif name in ("q4_k_m", "q5_k_m") and _more_bits(place, len(self.values)):
            chosen = "q6_k"
        if self.large and chosen in ("q3_k", "q4_k"):
            chosen = "q5_k"
        return "q8_0" if self.experts == 8 else chosen

    def _query_or_key(self, *, key: bool) -> str:
        if key and self.experts == 8:
            return "q4_k" if self.name in _SMALL else "q8_0"
        return {"iq3_xs": "iq3_xxs", "iq3_xxs": "iq2_s"}.get(self.name, self.main)

    def _small_down(self, place: int) -> str:
        early = "iq3_s" if self.name in _IQ2_PLUS else "q2_k"
        return early if place < self.layers // 8 else self.main

    def _down(self, place: int) -> str:
        name, layers = self.name, self.layers
        early = place < layers // 8
        more = _more_bits(place, layers)
        if name == "q2_k":
            return "q3_k"
        if name == "q3_k_m":
            return "q5_k" if place < layers // 16 else "q4_k" if not self.falcon or more else "q3_k"
        if name == "q3_k_l":
            return "q4_k" if self.falcon else "q5_k"
        if name == "q4_k_m" and self.falcon:
            return "q6_k" if place < layers // 16 else "q5_k" if more else "q4_k"
        if name in ("q4_k_m", "q5_k_m") and more:
            return "q6_k"
        if name == "iq3_m" and (early or (self.experts == 8 and more)):
            return "q4_k"
        if name == "iq3_xxs" and not self.imatrix:
            return "q4_k" if early else "q3_k"
        if not early:
            return self.main
        if name in ("iq4_nl", "iq4_xs"):
            return self.main if self.imatrix else "q5_k"
        if name in ("q4_0", "q5_0"):
            return {"q4_0": "q4_1", "q5_0": "q5_1"}[name] if self.imatrix else self.main
        return {"q2_k_s": "q4_k", "q4_k_s": self.main if self.falcon else "q5_k"}.get(name, self.main)

    def _attention_output(self) -> str:
        name = self.name
        if name in _SMALL:
            if self.experts == 8:
                return "q5_k"
            return "iq2_xxs" if name in ("iq1_s", "iq1_m") else "iq3_s" if name in _IQ2_PLUS else self.main
        if self.falcon:
            return "q4_k" if name == "q3_k_l" else self.main
        if self.experts == 8:
            five = self.main in ("q2_k", "q3_k", "q4_k", "iq3_s", "iq3_xxs", "iq4_nl", "iq4_xs") and name not in (
                "q2_k_s",
                "q3_k_l",
            )
            return "q5_k" if five else self.main
        chosen = {"q2_k": "q3_k", "iq3_xxs": "iq3_s", "q3_k_m": "q4_k", "q3_k_l": "q5_k", "iq3_m": "q4_k"}
        return chosen.get(name, self.main)

    def _fused(self) -> str:
        chosen = {"q3_k_m": "q4_k", "q3_k_l": "q4_k", "iq3_m": "q4_k", "q4_k_m": "q5_k", "q5_k_m": "q6_k"}
        return chosen.get(self.name, self.main)


def _more_bits(place: int, layers: int) -> bool:
    """The first eighth of the layers, the last, and every third between."""
    return place < layers // 8 or place >= 7 * layers // 8 or (place - layers // 8) % 3 == 2


def _place(numbers: tuple[int, ...], number: int) -> int:
    """The place of a layer among those that have such a matrix."""
    return numbers.index(number) if number in numbers else number
