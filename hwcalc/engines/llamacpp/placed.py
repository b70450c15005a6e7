"""The memory of contexts whose layers lie where llama.cpp puts them: more of them on the host, the longer and the more sequences are.

:class:`Places` finds the placement of each context by the engine's own rule (:mod:`~hwcalc.engines.llamacpp.fitting`) and what it puts on each
device, of one context or of an array of them; the form and the curve ask it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hwcalc.engines.budget import Section
from hwcalc.engines.forms import ENDS, Curve, Memory, MemoryForm
from hwcalc.engines.llamacpp.buffers import Buffers, GpuPart
from hwcalc.engines.llamacpp.equation import OPPOSITE, host_room, process, room_of
from hwcalc.engines.llamacpp.fitting import Fitting, Runs, fitted
from hwcalc.engines.llamacpp.loads import Devices, Load, cache_bytes, load_of_run, loads_in, loads_of
from hwcalc.engines.llamacpp.placement import ends_of
from hwcalc.engines.llamacpp.repack import repacked_output
from hwcalc.formulas.arithmetic import either, larger

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.assignment import Assignment
    from hwcalc.engines.llamacpp.opened import LlamacppOpened

__all__ = ["PlacedCurve", "PlacedForm", "Places"]


class Placed:
    """What contexts need on each device; the numbers are integers, or arrays of them."""

    def __init__(self, places: Places, gpus: tuple[Load, ...], host: Load, buffers: Buffers) -> None:
        self._places = places
        self._gpus = gpus
        self._host = host
        self._buffers = buffers
        self._kept: dict[tuple[Any, ...], Any] = {}

    def cache(self, load: Load) -> int:
        """Bytes of the cache that lies on a device."""
        return self._once(("cache", id(load)), lambda: cache_bytes(load.cache, self._buffers.one))

    def part(self, load: Load, end: str, section: Section) -> int:
        """Bytes of weights, of buffers or of the rest on a device."""
        if section is Section.WEIGHTS:
            return load.weights
        if section is Section.OVERHEAD:
            return self._places.process_bytes(end, on_gpu=isinstance(load.part, GpuPart))
        return self._once((end, id(load)), lambda: self._buffers.of(load.part, end))

    def needed(self, load: Load, end: str) -> int:
        """All bytes on a device."""
        return self.cache(load) + sum(self.part(load, end, section) for section in Section)

    def on_fullest(self, amount: Callable[[Load], int]) -> int:
        """An amount of the GPU of which an answer speaks: the first one that needs most at the high end; of the host without any."""
        first, *others = self._gpus or (self._host,)
        found = amount(first)
        most = self.needed(first, "high") if others else 0
        for load in others:
            needed = self.needed(load, "high")
            found, most = either(needed > most, amount(load), found), larger(most, needed)
        return found

    @property
    def cache_on_fullest(self) -> int:
        """The cache on that GPU."""
        return self.on_fullest(self.cache)

    @property
    def widest(self) -> int:
        """The largest cache of all GPUs."""
        found = 0
        for load in self._gpus:
            found = larger(self.cache(load), found)
        return found

    def holds(self, usable: int, end: str, host: int | None) -> bool:
        """Whether each GPU has room for its part, and the host for the rest where its memory is known as ``host``."""
        held = True
        for load in self._gpus or (self._host,):
            held = held & (self.needed(load, OPPOSITE[end]) <= usable)
        if host is None:
            return held
        return held & (self.needed(self._host, OPPOSITE[end]) <= host - self._places.shared(self, OPPOSITE[end]))

    def on_gpus(self, end: str) -> int:
        """Bytes on all GPUs together."""
        return sum(self.needed(load, end) for load in self._gpus)

    @property
    def together(self) -> int:
        """Bytes of all devices by the expected values."""
        return self.on_gpus("expected") + self.needed(self._host, "expected")

    def _once(self, key: tuple[Any, ...], make: Callable[[], int]) -> int:
        if key not in self._kept:
            self._kept[key] = make()
        found: int = self._kept[key]
        return found


class Places:
    """The devices of a family of requests. ``fixed`` is where the layers lie at every length, if they do."""

    def __init__(self, opened: LlamacppOpened, fixed: Assignment | None) -> None:
        self._opened = opened
        self._devices = Devices(opened)
        self._loads = None if fixed is None else loads_in(self._devices, fixed)

    def at(self, tokens: int, sequences: int) -> Placed:
        """What so many sequences of so many tokens need."""
        buffers = Buffers(self._opened, self._opened.settings_at(tokens, sequences))
        gpus, host = loads_of(self._devices, self._fitted(buffers)) if self._loads is None else self._loads
        return Placed(self, gpus, host, buffers)

    def total_bytes(self, tokens: int, sequences: int) -> int:
        """Bytes of the cache of all layers."""
        return cache_bytes(self._devices.layers.total, self._opened.settings_at(tokens, sequences))

    def process_bytes(self, end: str, *, on_gpu: bool) -> int:
        """What a device has beside weights, cache and buffers."""
        return self._process[on_gpu, end]

    def shared(self, placed: Placed, end: str) -> int:
        """What the GPUs take of the memory of the host."""
        gpu = self._opened.request.hardware.gpu
        return placed.on_gpus(end) if gpu is not None and gpu.shares_host_memory else 0

    @cached_property
    def host_rooms(self) -> dict[str, int]:
        """What the host has at each end, if GPUs take nothing of it."""
        return {end: host_room(self._opened.request, self._opened.place_options, lambda _: 0, end) for end in ENDS}

    @cached_property
    def _process(self) -> dict[tuple[bool, str], int]:
        opened, gpu = self._opened, self._opened.request.hardware.gpu
        host = () if opened.gpus else repacked_output(opened)
        own = () if gpu is None else (process(gpu),)
        return {
            (on_gpu, end): sum(getattr(part, end) for part in (own if on_gpu else host))
            for on_gpu in (True, False)
            for end in ENDS
        }

    def _fitted(self, buffers: Buffers) -> Runs:
        layers, opened = self._devices.layers, self._opened
        room = room_of(opened.request.hardware, opened.place_options, "low")
        assert room is not None
        beside = self.process_bytes("high", on_gpu=True)

        def holds(runs: Runs, gpu: int) -> bool:
            load = load_of_run(self._devices, runs, gpu)
            buffer = buffers.of(load.part, "high")
            return load.weights + cache_bytes(load.cache, buffers.one) + buffer + beside <= room

        return fitted(Fitting(blocks=layers.blocks, ends=ends_of(opened), experts=layers.has_experts, holds=holds))


class PlacedCurve(Curve):
    """The cache of contexts: of all layers, and on the fullest GPU where these are placed."""

    places: Places
    answers: Callable[[Placed], int] | None
    """What of a placement is the fullest GPU's cache; ``None`` if all is on one device."""

    def bytes_on(self, gpu: int, tokens: int, sequences: int) -> int:
        """As :meth:`needed_bytes`: which GPU is the fullest follows from the context."""
        return self.needed_bytes(tokens, sequences)

    def needed_bytes(self, tokens: int, sequences: int) -> int:
        if self.answers is None:
            return self.total_bytes(tokens, sequences)
        return self.answers(self.places.at(tokens, sequences))

    def total_bytes(self, tokens: int, sequences: int) -> int:
        return self.places.total_bytes(tokens, sequences)


class PlacedForm(MemoryForm):
    """The memory equation of contexts, each with its layers where the engine puts them."""

    places: Places
    without_gpu: bool

    def at(self, tokens: int, sequences: int) -> Memory:
        return _PlacedMemory(self, self.places.at(tokens, sequences), tokens, sequences)


class _PlacedMemory(Memory):
    """What it says of contexts whose layers are placed."""

    def __init__(self, form: PlacedForm, placed: Placed, tokens: int, sequences: int) -> None:
        super().__init__(form, tokens, sequences)
        self._placed, self._host_rooms = placed, None if form.without_gpu else form.places.host_rooms

    @cached_property
    def needed_bytes(self) -> int:
        return self._placed.cache_on_fullest

    def parts_bytes(self, end: str, section: str | None = None) -> int:
        sections = tuple(Section) if section is None else tuple(one for one in Section if one == section)
        return self._placed.on_fullest(lambda load: sum(self._placed.part(load, end, one) for one in sections))

    def holds(self, end: str = "expected") -> bool:
        if self.allowed is False:
            return False
        host = None if self._host_rooms is None else self._host_rooms[end]
        return self.allowed & self._placed.holds(self.form.usable[ENDS.index(end)], end, host)

    @cached_property
    def devices_bytes(self) -> int:
        return self._placed.together
