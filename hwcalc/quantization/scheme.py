"""Which format a quantisation gives to each weight, and which weights it leaves unquantised."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

from msgspec.structs import replace

from hwcalc.formulas.formats import (
    AWQ,
    BNB4,
    BNB4_DOUBLE,
    BNB8,
    FP8,
    FP8_BLOCK,
    FP8_CHANNEL,
    GPTQ,
    INT4,
    INT8,
    MXFP4,
    MXFP8,
    NVFP4,
    WeightFormat,
)
from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole
from hwcalc.quantization.names import MOST_COMPARED, Names

__all__ = ["FORMATS", "QUANTISED_ROLES", "Portion", "Rule", "Scheme", "uniform_scheme"]

FORMATS: Final[Mapping[str, WeightFormat]] = {
    item.name: item for item in (FP8, FP8_BLOCK, FP8_CHANNEL, MXFP8, MXFP4, NVFP4, INT8, INT4, GPTQ, AWQ, BNB4, BNB4_DOUBLE, BNB8)
}
"""Quantised formats by their names for ``--weights``."""

QUANTISED_ROLES: Final = (WeightRole.LINEAR, WeightRole.EXPERT)
"""What a quantiser packs unless it says otherwise."""
_TEXT: Final = (Part.LANGUAGE, Part.ENCODER, Part.MTP)


class Rule(Record):
    """One format and the weights that get it: those with these roles that ``only`` names and ``never`` does not name."""

    format: WeightFormat
    roles: tuple[WeightRole, ...] = QUANTISED_ROLES
    only: Names | None = None
    never: Names = Names()
    text_only: bool = False
    """Whether the towers for images and sound, and what joins them to the text, stay unquantised."""

    def covers(self, weight: Weight, part: Part) -> bool:
        """Whether the format is one for tensors of this kind, whatever their names."""
        return weight.role in self.roles and len(weight.shape) > 1 and not (self.text_only and part not in _TEXT)

    def taken(self, weight: Weight, part: Part, layers: Sequence[int]) -> frozenset[int]:
        """The ``layers`` in which the weight gets this format."""
        if not self.covers(weight, part):
            return frozenset()
        module = weight.path.removesuffix(".weight")
        included = frozenset(layers) if self.only is None else self.only.layers(module, part, layers)
        return included and included - self.never.layers(module, part, layers)

    @property
    def names_layers(self) -> bool:
        """Whether the rule depends on layer numbers."""
        return self.never.names_layers or (self.only is not None and self.only.names_layers)


class Portion(NamedTuple):
    """Parameters that are stored in one format, and their bytes."""

    format: WeightFormat
    elements: int
    bytes: int


class Scheme(Record):
    """Rules in order. The first rule that takes a weight decides its format; all other weights stay unquantised."""

    name: str
    rules: tuple[Rule, ...]
    others: tuple[Scheme, ...] = ()
    """Other ways of making weights of this format, which take more or fewer bytes."""
    unpacked_by_transformers: bool = False
    """Whether transformers unpacks the weights when it loads them, so that on the GPU they are as wide as unquantised ones."""

    def bytes(self, block: Block, weight: Weight, unquantised: WeightFormat) -> int:
        """Bytes of one tensor in all layers of its block."""
        return sum([count * form.bytes(weight) for count, form in self.formats(block, weight, unquantised)])

    def portions(self, block: Block, weight: Weight, unquantised: WeightFormat) -> Iterator[Portion]:
        """The formats of a tensor in all layers of its block, each with its parameters and bytes."""
        for count, form in self.formats(block, weight, unquantised):
            yield Portion(format=form, elements=count * weight.elements, bytes=count * form.bytes(weight))

    def formats(self, block: Block, weight: Weight, unquantised: WeightFormat) -> list[tuple[int, WeightFormat]]:
        """The formats of a tensor, each with its number of layers. If the block has no layer numbers, they count from 0."""
        layers: Sequence[int] = range(block.count) if block.layers is None else block.layers
        if self._alike and layers:
            for rule in self.rules:
                if rule.covers(weight, block.part):
                    return [(len(layers), rule.format)]
            return [(len(layers), unquantised)]
        key = (weight.path, weight.role, len(weight.shape), block.part, layers)
        if key not in self._formats:
            self._formats[key] = self._counted(weight, block.part, layers)
        return [(count, form or unquantised) for count, form in self._formats[key]]

    @cached_property
    def _alike(self) -> bool:
        """Whether a tensor has the same format in all layers, by what it is alone: no rule has names."""
        return all(rule.only is None and rule.never.is_empty for rule in self.rules)

    @cached_property
    def _formats(self) -> dict[Hashable, list[tuple[int, WeightFormat | None]]]:
        """The answers so far: a plan asks for the same tensors, cut in different ways, at each step of its solvers."""
        return {}

    def _counted(self, weight: Weight, part: Part, layers: Sequence[int]) -> list[tuple[int, WeightFormat | None]]:
        left = layers
        counted: list[tuple[int, WeightFormat | None]] = []
        for rule in self.rules:
            taken = rule.taken(weight, part, left)
            rest = [number for number in left if number not in taken] if taken else left
            if taken:
                counted.append((len(left) - len(rest), rule.format))
            left = rest
            if not left:
                return counted
        return [*counted, (len(left), None)]

    def strangers(self, blocks: Iterable[Block]) -> tuple[str, ...]:
        """Names that the config leaves unquantised and that no module of the model has."""
        modules = [(weight.path.removesuffix(".weight"), block.part) for block in blocks for weight in block.weights]
        return tuple(dict.fromkeys(name for rule in self.rules[:1] for name in rule.never.strangers(modules)))

    def placed(self, *, layers: int, text_only: bool) -> Scheme | None:
        """The scheme of a model with this many layers, whose config says it for the text alone or for the whole model.

        ``None`` if too many of its patterns would have to be compared with the name of each layer.
        """
        # One object for all rules that share it, so that they share what was looked up.
        never = {id(rule.never): replace(rule.never, depth=layers) for rule in self.rules}
        patterns = {pattern for rule in self.rules for names in (rule.only, rule.never) if names for pattern in names.by_number}
        if len(patterns) * layers > MOST_COMPARED:
            return None
        rules = tuple(
            replace(
                rule,
                only=None if rule.only is None else replace(rule.only, depth=layers),
                never=never[id(rule.never)],
                text_only=text_only,
            )
            for rule in self.rules
        )
        return replace(self, rules=rules)

    @property
    def names_layers(self) -> bool:
        """Whether any rule depends on layer numbers."""
        return any(rule.names_layers for rule in self.rules)


def uniform_scheme(name: str) -> Scheme | None:
    """The scheme of ``--weights NAME``: all matrices except embeddings, routers and the head; ``None`` for an unknown name."""
    form = FORMATS.get(name)
    return None if form is None else Scheme(name=name, rules=(Rule(format=form),))
