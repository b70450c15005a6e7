"""The weights of a GGUF file in the types that the file itself gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import field

from hwcalc.formulas.formats import WeightFormat
from hwcalc.formulas.weights import Block, Weight
from hwcalc.model import ModelSpec
from hwcalc.quantization.ggml import GGML
from hwcalc.quantization.scheme import Scheme
from hwcalc.quantization.tensor_names import placed

__all__ = ["stored_scheme"]


class AsStored(Scheme):
    """Each tensor of each layer in its own type."""

    types: Mapping[tuple[str, int], WeightFormat] = field(default_factory=dict)

    def formats(self, block: Block, weight: Weight, unquantised: WeightFormat) -> list[tuple[int, WeightFormat]]:
        """The types of a tensor, each with its number of layers."""
        layers: Sequence[int] = (-1,) if block.layers is None else block.layers
        counts: dict[WeightFormat, int] = {}
        for number in layers:
            form = self.types.get((weight.path, number), unquantised)
            counts[form] = counts.get(form, 0) + 1
        return [(count, form) for form, count in counts.items()]


def stored_scheme(model: ModelSpec) -> Scheme | None:
    """The scheme of a model that was read from a file with tensors; ``None`` if a type is not known."""
    types: dict[tuple[str, int], WeightFormat] = {}
    for tensor in () if model.gguf is None else model.gguf.tensors:
        form = GGML.get(tensor.type)
        if form is None:
            return None
        types[placed(tensor.name)] = form
    return AsStored(name="as stored", rules=(), types=types) if types else None
