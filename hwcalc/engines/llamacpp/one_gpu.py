"""Whether models fit on one GPU as a whole, from the bytes of their files alone: for lists of hundreds of models.

The context is laid out as for any plan (:class:`~hwcalc.engines.llamacpp.layout.Layout`), with one sequence and the default settings; the bytes
of the weights come from the index of the catalog, of which a list looks at many formats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from hwcalc.engines.llamacpp.deployment import LlamacppDeployment
from hwcalc.engines.llamacpp.engine import Llamacpp
from hwcalc.engines.llamacpp.equation import host_room, process, room_of
from hwcalc.engines.llamacpp.fitting import ON_HOST
from hwcalc.engines.llamacpp.layers import Unit, cache_bytes
from hwcalc.engines.llamacpp.options import place_options
from hwcalc.engines.llamacpp.settings import CELLS
from hwcalc.engines.setup import Setup

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hwcalc.engines.llamacpp.layers import Weighed
    from hwcalc.engines.llamacpp.layout import Layout
    from hwcalc.engines.setup import Request
    from hwcalc.model import ModelSpec

_ENDS: Final = ("low", "expected", "high")


def on_one_gpu(model: ModelSpec) -> LlamacppDeployment:
    """The deployment of a model with the default settings and all layers on a GPU of any kind."""
    return LlamacppDeployment(Llamacpp(), model, Setup())


class Context:
    """The memory of a context of one sequence on the GPU and on the host, without weights and process."""

    def __init__(self, deployment: LlamacppDeployment, tokens: int) -> None:
        self._deployment = deployment
        self._tokens = tokens

    @cached_property
    def _layout(self) -> Layout:
        return self._deployment.layout_at(self._tokens, 1)

    @cached_property
    def cache(self) -> int:
        """Bytes of the cache."""
        return self._layout.cache_on(0)

    @cached_property
    def compute(self) -> int:
        """Bytes of the GPU's buffers for a pass, by the expected value."""
        return self._buffers(0, "expected")

    @cached_property
    def compute_high(self) -> int:
        """Bytes of the GPU's buffers for a pass, at most."""
        return self._buffers(0, "high")

    @cached_property
    def host_high(self) -> int:
        """Bytes of the host's buffers at most."""
        return self._buffers(ON_HOST, "high")

    @cached_property
    def largest_layer(self) -> int:
        """An upper bound on the bytes of the cache of a block."""
        layers, settings = self._layout.layers, self._layout.settings
        each = (
            {Unit(size): units for kind in layer for size, units in layers.units[kind].items()}
            for layer in {*layers.stack.layers}
        )
        most = max(cache_bytes(units, settings, settings) for units in each)
        return most + cache_bytes(layers.extras, settings, settings)

    def _buffers(self, device: int, end: str) -> int:
        load = self._layout.host if device == ON_HOST else self._layout.gpus[device]
        return self._layout.buffers.of(load.part, end)


class Sizes(NamedTuple):
    """Bytes of a model's tensors with all layers on one GPU: those there, and those that stay on the host."""

    gpu: int
    host: int

    @classmethod
    def of(cls, weights: Weighed) -> Sizes:
        """The sums of these weights."""
        gpu = weights.output + weights.tied + weights.copied + sum(experts + rest for experts, rest in weights.blocks)
        return cls(gpu=gpu, host=weights.input)


def step_of(weights: Weighed) -> int:
    """An upper bound on the bytes of the weights of a layer."""
    largest = max((experts + rest for experts, rest in weights.blocks), default=0)
    return max(weights.output + weights.tied, weights.copied + largest)


class Room:
    """A GPU and its host, with answers on whether whole models fit there by the rules of the engine."""

    def __init__(self, request: Request) -> None:
        """``request`` is any with this hardware and without options of the engine."""
        gpu, options = request.hardware.gpu, place_options(request.options)
        assert gpu is not None
        self._process = process(gpu)
        self._shared = gpu.shares_host_memory
        self._least_host, self.likely_host = (host_room(request.setup, options, end) for end in ("low", "expected"))
        self.rooms: Mapping[str, int | None] = {end: room_of(request.hardware, options, end) for end in _ENDS}

    likely_host: int
    """Bytes of the host's memory that a model may well have beside a GPU that it leaves alone."""

    def needed(self, weights: Sizes, context: Context) -> int:
        """Bytes on the GPU with everything there, by the expected value."""
        return weights.gpu + context.cache + context.compute + self._process.expected

    def largest(self, gpu: Sequence[int], host: Sequence[int], context: Context) -> int | None:
        """The position of the first of these formats that fits for certain, the largest format first; ``None`` if none does."""
        room = self.rooms["low"]
        # Without laying out a context of a model that is too large by its weights alone.
        if room is None or gpu[-1] > room:
            return None
        other_bytes = context.cache + context.compute_high + self._process.high
        if gpu[-1] + other_bytes > room:
            return None
        for place, size in enumerate(gpu):
            if size + other_bytes <= room and self.surely_holds(Sizes(size, host[place]), context):
                return place
        return None

    def surely_holds(self, weights: Sizes, context: Context) -> bool:
        """Whether weights and context fit on the GPU at the high end of the estimates, and the rest fits on the host."""
        room = self.rooms["low"]
        needed = weights.gpu + context.cache + context.compute_high + self._process.high
        if room is None or needed > room:
            return False
        return weights.host + context.host_high <= self._least_host - (needed if self._shared else 0)

    def held_apart(self, step: int, context: Context) -> int:
        """A lower bound on the bytes of weights and cache on the GPU where not all of them fit: with a layer more, they would be too many.

        ``step`` is :func:`step_of` the weights.

        Beside them it has the buffers of a pass, and in these what it copies of a layer that lies on the host: taken twice, for the high end.
        """
        layer = step + context.largest_layer
        other_bytes = self._process.high + context.host_high + 2 * (context.compute_high + layer)
        return max(0, (self.rooms["low"] or 0) - other_bytes - layer)

    def longest(self, weights: Sizes, context_at: Callable[[int], Context], fitting: int, bound: int) -> int:
        """The most tokens, up to ``bound``, that surely fit, as ``fitting`` of them do."""
        low, high = fitting // CELLS, -(-bound // CELLS)
        if self.surely_holds(weights, context_at(high * CELLS)):
            return bound
        while high - low > 1:
            middle = (low + high) // 2
            if self.surely_holds(weights, context_at(middle * CELLS)):
                low = middle
            else:
                high = middle
        return min(low * CELLS, bound)
