"""Families whose layers keep a recurrent state, alone or beside attention, and the pieces that their rooms share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from hwcalc.formulas.frozen import frozen
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import LayerReader, Reading, build_layers, read_layer_types
from hwcalc.profiles.dtypes import find_dtype

if TYPE_CHECKING:
    from hwcalc.formulas.weights import Block

__all__ = [
    "FULL",
    "HYBRID",
    "HYBRID_SLIDING",
    "LINEAR",
    "SLIDING",
    "Interleaved",
    "spelled_layer_types",
    "state_dtype",
]

LINEAR: Final = "linear_attention"
"""What transformers calls every layer that keeps a state and no keys, Mamba included."""
FULL: Final = "full_attention"
SLIDING: Final = "sliding_attention"
HYBRID: Final = "hybrid"
HYBRID_SLIDING: Final = "hybrid_sliding"

_SSM_DTYPE: Final = ("mamba_ssm_dtype", "mamba_ssm_cache_dtype")


@frozen
class Interleaved:
    """A family whose layers are of several types: how they are typed, what a layer of each type keeps, what the layers weigh."""

    types: Callable[[Config, int], list[str]]
    """The types of so many layers."""
    readers: Mapping[str, LayerReader]
    weights: Callable[[Config, Config, Reading], Sequence[Block] | None]
    ignored: tuple[str, ...] = ()
    """Keys without effect on the cache, and keys of one type of layer, which a stack without that type leaves unread."""
    dtype_keys: tuple[str, ...] = _SSM_DTYPE

    def read(self, config: Config) -> Reading:
        """The layers, each by the reader of its type."""
        types = self.types(config, config.number_of_layers())
        config.ignore(*self.ignored)
        layers = build_layers(config, types, self.readers)
        return Reading(layers=layers, config=config, state_dtype=state_dtype(config, self.dtype_keys))

    def weigh(self, config: Config, top: Config, reading: Reading) -> Sequence[Block] | None:
        """The blocks of weights of these layers."""
        return self.weights(config, top, reading)


def state_dtype(config: Config, keys: Iterable[str] = _SSM_DTYPE) -> str | None:
    """The dtype that the file names for its recurrent states (``"float32"`` is ``"fp32"``); ``None`` where it names none."""
    for key in keys:
        spelled = config.text(key)
        found = find_dtype(spelled.removeprefix("torch.")) if spelled else None
        if found is not None:
            return found.name
    return None


def spelled_layer_types(config: Config, count: int) -> list[str] | None:
    """The types that the file spells out under either of the two names in use, legacy names made current."""
    for key in ("layer_types", "layers_block_type"):
        types = read_layer_types(config, count, key)
        if types is not None:
            return types
    return None
