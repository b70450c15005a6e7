"""Families whose layers keep a recurrent state, with or without attention beside it, and what their rooms share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from hwcalc.formulas import Layer
from hwcalc.formulas.record import Record
from hwcalc.parsers.blocks import Named, Weighed, repeated
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import LayerReader, Reading, build_layers, read_layer_types
from hwcalc.profiles.dtypes import find_dtype

if TYPE_CHECKING:
    from hwcalc.formulas.weights import Block


LINEAR: Final = "linear_attention"
"""What transformers calls every layer that keeps a state and no keys, Mamba included."""
FULL: Final = "full_attention"
SLIDING: Final = "sliding_attention"
HYBRID: Final = "hybrid"
HYBRID_SLIDING: Final = "hybrid_sliding"

_SSM_DTYPE: Final = ("mamba_ssm_dtype", "mamba_ssm_cache_dtype")

Mixers = Mapping[type, tuple[str, Callable[[Any], Weighed]]]
"""What weighs the mixers of a family: for each type of kind, the name of the block and the weights by the kind."""


class Interleaved(Record):
    """A family with several types of layers: which layer is of which type, how each type is read, and what the layers weigh."""

    types: Callable[[Config, int], list[str]]
    """The type of each layer where the file does not spell the types out. The second argument is the number of layers."""
    readers: Mapping[str, LayerReader]
    weights: Callable[[Config, Config, Reading], Sequence[Block] | None]
    ignored: tuple[str, ...] = ()
    """Keys that have no effect on the cache, and keys of one type of layer, which nobody reads in a stack without that type."""
    dtype_keys: tuple[str, ...] = _SSM_DTYPE
    spelled: bool = True
    """True if the model follows types that the file spells out."""

    def read(self, config: Config) -> Reading:
        """The layers, each read by the reader of its type."""
        count = config.number_of_layers()
        types = (spelled_layer_types(config, count) if self.spelled else None) or self.types(config, count)
        config.ignore(*self.ignored)
        layers = build_layers(config, types, self.readers)
        return Reading(layers=layers, config=config, state_dtype=state_dtype(config, self.dtype_keys))

    def weigh(self, config: Config, top: Config, reading: Reading) -> Sequence[Block] | None:
        """The blocks of weights of these layers."""
        return self.weights(config, top, reading)


def state_dtype(config: Config, keys: Iterable[str] = _SSM_DTYPE) -> str | None:
    """The dtype of recurrent states by the first key that names one (``"float32"`` is ``"fp32"``); ``None`` if none does."""
    for key in keys:
        spelled = config.text(key)
        found = find_dtype(spelled.removeprefix("torch.")) if spelled else None
        if found is not None:
            return found.name
    return None


def spelled_layer_types(config: Config, count: int) -> list[str] | None:
    """The types of layers that the file lists under either of the two keys in use, with legacy names replaced."""
    for key in ("layer_types", "layers_block_type"):
        types = read_layer_types(config, count, key)
        if types is not None:
            return types
    return None


def mixed(layer: Layer, mixers: Mixers) -> list[Named]:
    """The mixers of one layer."""
    return [(name, weigh(kind)) for kind in layer for known, (name, weigh) in mixers.items() if isinstance(kind, known)]


def mixed_layers(layers: Iterable[Layer], mixers: Mixers, *rest: Named, before: tuple[Named, ...] = ()) -> list[Block]:
    """Layers that differ only in their mixers. ``rest`` are the other blocks of each layer, ``before`` those listed first."""
    return repeated(layers, lambda layer: (*before, *mixed(layer, mixers), *rest))
