"""Models of the catalog on one GPU with the default settings of llama.cpp: the figures of their plans, from the index alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.engines.llamacpp.curves import LEAST_TOKENS, Room
from hwcalc.engines.llamacpp.opened import of_llamacpp
from hwcalc.formulas.frozen import frozen, replace
from hwcalc.library.indexed import curves_at, indexed_model, layers_at, sizes_at
from hwcalc.planner.auto_weights import is_auto
from hwcalc.quantization.planned import format_name

if TYPE_CHECKING:
    from hwcalc.planner.fitting import Hosting
    from hwcalc.profiles.model_index import IndexedModel

__all__ = ["Quick", "Whole", "quick"]

_USUAL: Final = frozenset({"seq", "batch", "dtype", "weights", "engine", "gpu", "gpus", "margin", "memory_utilization"})
"""Options that leave a context as the index has it, with one sequence, one GPU and the default format of the cache."""
_SIXTEEN: Final = (None, "auto", "f16", "fp16")
_LIKELY_HOST: Final = 4


@frozen
class Whole:
    """A model that surely fits as a whole, in the format that is planned."""

    weights: str
    weights_bytes: int
    cache_bytes: int
    needed_bytes: int
    longest: int
    layers: int
    host_bytes: int


class Quick:
    """The hardware and the length that were asked for, and which models of the index fit there."""

    def __init__(self, host: Hosting, room: Room, named: str | None) -> None:
        self._host = host
        self._room = room
        self._named = named
        self._whole: dict[tuple[int, int], tuple[Whole, int] | None] = {}

    @property
    def kv_dtype(self) -> str:
        """The format of the cache."""
        return self._room.kv_dtype

    @property
    def usable_bytes(self) -> int:
        """Bytes of the GPU that may be used, by the expected value."""
        return self._room.rooms["expected"] or 0

    def knows(self, row: IndexedModel, tokens: int) -> bool:
        """Whether the index has what is asked for."""
        if row.shape is None or tokens < LEAST_TOKENS or self._room.rooms["low"] is None:
            return False
        last = curves_at(row.shape).points[-1][0]
        longest = max(tokens, row.max_position_embeddings or tokens)
        return longest <= last * 256 and any(name == self._named or self._named is None for name, _ in sizes_at(row.shape))

    def whole(self, row: IndexedModel, tokens: int) -> Whole | None:
        """The model in the largest format that surely fits as a whole; ``None`` if none does."""
        assert row.shape is not None
        key = (row.shape, tokens)
        bound = max(tokens, row.max_position_embeddings or 2**40)
        if key not in self._whole:
            self._whole[key] = self._fitting(row.shape, tokens)
        found = self._whole[key]
        if found is None:
            return None
        whole, far = found
        return whole if far <= bound else replace(whole, longest=bound)

    def _fitting(self, number: int, tokens: int) -> tuple[Whole, int] | None:
        curves, room = curves_at(number), self._room
        for name, sizes in sizes_at(number):
            if self._named is not None and name != self._named:
                continue
            if room.surely(sizes, curves, tokens):
                point = curves.at(tokens)
                far = room.longest(sizes, curves, curves.points[-1][0] * 256)
                whole = Whole(
                    weights=name,
                    weights_bytes=sizes.gpu,
                    cache_bytes=point.cache,
                    needed_bytes=room.needed(sizes.gpu, point, "expected"),
                    longest=far,
                    layers=layers_at(number),
                    host_bytes=sizes.host,
                )
                return whole, far
        return None

    def smallest(self, row: IndexedModel) -> str:
        """The format in which a part of the model stays on the host."""
        assert row.shape is not None
        return self._named or sizes_at(row.shape)[-1][0]

    def hopeless(self, row: IndexedModel, tokens: int) -> bool:
        """Whether the GPU and four times its memory on the host are too small, whatever lies where."""
        assert row.shape is not None
        gpu = self._host.gpu
        name, room = self.smallest(row), self._room.rooms["high"] or 0
        sizes = dict(sizes_at(row.shape))[name]
        sold = (gpu.memory_marketing_gb or 0) * 2**30
        host = sold if gpu.shares_host_memory else _LIKELY_HOST * sold
        return sizes.gpu + curves_at(row.shape).at(tokens).cache > room + host


def quick(host: Hosting, row: IndexedModel | None) -> Quick | None:
    """The quick way, where the request is one that the index has; ``row`` is any model with a shape."""
    asked = host.asked
    usual = asked.given <= _USUAL and (asked.gpus or 1) == asked.batch == 1 and asked.dtype in _SIXTEEN
    if host.engine.name != "llamacpp" or row is None or row.shape is None or not usual:
        return None
    name = sizes_at(row.shape)[0][0]
    model = indexed_model(row, name)
    room = Room(of_llamacpp(host.engine.unchecked(model, host.request(model, name))))
    return Quick(host, room, None if is_auto(asked.weights) else format_name(asked.weights))
