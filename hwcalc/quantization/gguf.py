"""A mix of llama.cpp as the quantisation of a model: the bytes of each weight in a file named Q4_K_M, IQ4_XS, ...

:mod:`hwcalc.quantization.converted` says which tensors the file has, and :mod:`hwcalc.quantization.mixes` which type each gets. Towers
lie in a file of their own, in 16 bits. With an importance matrix, a few mixes choose otherwise: both are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Final

from msgspec.structs import replace

from hwcalc.formulas.formats import FP16, FP32, WeightFormat
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole
from hwcalc.model import ModelSpec
from hwcalc.quantization.converted import Conversion, Piece, converted
from hwcalc.quantization.ggml import GGML
from hwcalc.quantization.gguf_file import check_rows, gguf_file, usual_imatrix
from hwcalc.quantization.mix_names import BY_IMATRIX, MIXES
from hwcalc.quantization.mix_places import Typed
from hwcalc.quantization.mixes import typed
from hwcalc.quantization.scheme import Portion, Rule, Scheme

__all__ = ["Mix", "mix"]


def mix(name: str, model: ModelSpec) -> Mix:
    """The mix of this name for a model. Its ``others`` are the same mix made with an importance matrix, where that differs.

    Raises :class:`~hwcalc.errors.UnsupportedError` if llama.cpp refuses the rows of some tensor.
    """
    usual, file = usual_imatrix(name), gguf_file(model) or converted(model)
    check_rows(file, name)
    made = Mix(name=name, rules=(Rule(format=GGML[MIXES[name]]),), conversion=file, imatrix=usual)
    return made if name not in BY_IMATRIX else replace(made, others=(replace(made, imatrix=not usual),))


_MATRICES: Final = (WeightRole.LINEAR, WeightRole.EXPERT, WeightRole.HEAD, WeightRole.EMBEDDING)


class Mix(Scheme):
    """One mix of llama.cpp for one model."""

    conversion: Conversion
    imatrix: bool = False

    def portions(self, block: Block, weight: Weight, unquantised: WeightFormat) -> Iterator[Portion]:
        """The types of a tensor, each with its numbers and bytes. A cut weight has its share of both."""
        if block.part not in (Part.LANGUAGE, Part.ENCODER, Part.MTP):
            form = FP16 if len(weight.shape) > 1 else FP32
            yield Portion(format=form, elements=block.count * weight.elements, bytes=block.count * form.bytes(weight))
            return
        places = self.conversion.pieces.get((block.kind, block.part, weight.path))
        if places is None:
            yield from self._added(block, weight)
            return
        numbers = range(block.count) if block.layers is None else block.layers
        sums: dict[str, list[int]] = {}
        for number in numbers:
            pieces = places.get(number, ())
            whole = sum(piece.elements for piece in pieces)
            for piece in pieces:
                elements, size, name = self._stored(piece)
                found = sums.setdefault(name, [0, 0])
                found[0] += elements * weight.elements // whole
                found[1] += -(-size * weight.elements // whole)
        for name, (elements, size) in sums.items():
            yield Portion(format=GGML[name], elements=elements, bytes=size)

    def bytes(self, block: Block, weight: Weight, unquantised: WeightFormat) -> int:
        return sum(portion.bytes for portion in self.portions(block, weight, unquantised))

    def _added(self, block: Block, weight: Weight) -> Iterator[Portion]:
        """A weight that the file does not have: prediction layers that the converter leaves out, or a table that an engine copies."""
        if block.part is Part.MTP:
            return
        form = self.main if len(weight.shape) == 2 and weight.role in _MATRICES else FP32
        if weight.role is WeightRole.HEAD:
            form = next((GGML[self._types[place][-1]] for place in self._tables), form)
        form = form if not weight.shape[-1] % (form.group or 1) else FP16
        yield Portion(format=form, elements=block.count * weight.elements, bytes=block.count * form.bytes(weight))

    @property
    def _tables(self) -> Iterator[int]:
        """The families of the output table, or else of the embedding that stands for it."""
        stems = {family.stem: place for place, family in enumerate(self.conversion.families) if not family.layers}
        return (stems[name] for name in ("output.weight", "token_embd.weight") if name in stems)

    @property
    def main(self) -> WeightFormat:
        """The type that the mix is named after."""
        return GGML[MIXES[self.name]]

    def _stored(self, piece: Piece) -> tuple[int, int, str]:
        """Numbers, bytes and type of a piece in one layer."""
        family = self.conversion.families[piece.family]
        name = self._types[piece.family][piece.layer]
        return piece.elements, family.bytes_as(name, piece.elements), name

    @cached_property
    def _types(self) -> Mapping[int, Mapping[int, str]]:
        """Family -> layer -> type."""
        found: dict[int, dict[int, str]] = {}
        for one in self.typed:
            found.setdefault(one.family, {}).update(dict.fromkeys(one.layers or (-1,), one.type))
        return found

    @cached_property
    def typed(self) -> tuple[Typed, ...]:
        """All tensors of the file with their types."""
        return typed(self.conversion.families, self.conversion.placed, self.conversion.facts, self.name, imatrix=self.imatrix)
