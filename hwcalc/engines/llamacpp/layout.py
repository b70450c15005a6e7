"""What each device holds of a model: the one place that puts layers, caches and buffers on GPUs and the host.

A :class:`Layout` is of one context, as a plan has it, or of an array of contexts of any length and number of sequences, as a sweep has them.
Numbers are integers or arrays by the same lines. Of one context it also says in words what lies where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hwcalc.engines.devices import HOST, DeviceShare, Placement
from hwcalc.engines.llamacpp.buffers import NOTHING_COPIED, Buffers, GpuPart, HostPart
from hwcalc.engines.llamacpp.equation import OPPOSITE
from hwcalc.engines.llamacpp.fitting import ON_HOST, Assignment, Fitting, Runs, fitted
from hwcalc.engines.llamacpp.graph import PIPELINE_COPIES
from hwcalc.engines.llamacpp.layers import Cache, Layers, cache_bytes
from hwcalc.engines.memory import BudgetPart, Section
from hwcalc.formulas import LayerNumbers
from hwcalc.formulas.arithmetic import either, floored, larger, smaller, some
from hwcalc.formulas.record import Record

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.deployment import LlamacppDeployment
    from hwcalc.engines.llamacpp.settings import Settings

Scored = Callable[[LayerNumbers], tuple[BudgetPart, ...]]
"""What a policy takes to score the layers whose cache lies on a device."""


class DeviceLoad(Record):
    """The load of a device: bytes of weights, its cache, and the part of the model that it runs."""

    weights: int
    cache: Cache
    part: GpuPart | HostPart


class _OnHost(Record):
    """The layers that runs leave on the host: the number of blocks, and the bytes that a GPU copies of them for a batch."""

    blocks: int
    bare: int
    """How many blocks of GPUs have their experts on the host."""
    from_host: int
    cells: tuple[int, int]
    copies: int


class Layout:
    """The devices of a deployment in contexts with these settings."""

    def __init__(
        self,
        deployment: LlamacppDeployment,
        settings: Settings,
        *,
        layers: Layers | None = None,
        uncut: Settings | None = None,
        scored: Scored | None = None,
    ) -> None:
        """Under a policy, ``uncut`` are the settings for layers that it leaves alone, and ``scored`` is what it takes beside the cache."""
        self.deployment = deployment
        self.settings = settings
        self.layers = deployment.layers if layers is None else layers
        self._uncut = settings if uncut is None else uncut
        self._scored = scored
        self.buffers = Buffers(deployment.moments(settings), deployment.hparams, settings)
        self._known: dict[tuple[Any, ...], Any] = {}

    # --- where layers lie -------------------------------------------------------------------------------------------------

    @cached_property
    def runs(self) -> Runs:
        """The layers on each device: as the deployment pins them, as options say, or as llama.cpp fits them by itself."""
        if self.deployment.pinned is not None:
            return self.deployment.pinned
        return self._fitted() if self.deployment.fits_layers else self.deployment.whole_runs

    def _fitted(self) -> Runs:
        deployment, room = self.deployment, self.deployment.rooms["low"]
        assert room is not None
        beside = 0 if deployment.process is None else deployment.process.high
        weighed = self.layers.weighed

        def holds(runs: Runs, gpu: int) -> bool:
            load = self._gpu_load(runs, gpu, self._on_host(runs))
            needed = load.weights + self.cache_bytes(load) + self.buffers.of(load.part, "high") + beside
            if self._scored is not None:
                layers = runs.assignment(weighed.experts).layers(gpu)
                needed += sum(part.high for part in self._scored_on(gpu, layers))
            return needed <= room

        ends, blocks = deployment.ends, self.layers.blocks
        return fitted(Fitting(blocks=blocks, ends=ends, experts=weighed.has_experts, holds=holds))

    def _on_host(self, runs: Runs) -> _OnHost:
        layers, weighed, helped = self.layers, self.layers.weighed, self.deployment.helped
        host, bare = smaller(runs.host, layers.blocks), 0
        if weighed.has_experts:
            bare = sum(weighed.experts_on_host(run)[1] for run in runs.gpus)
        copying = helped & ((host > 0) | (bare > 0) | (weighed.largest_moved > 0))
        everything = (runs.host == 0) & (bare == 0)
        from_host, cells = NOTHING_COPIED, (0, 0)
        if some(copying):
            from_host = either(copying, layers.largest_on_host(host, runs.gpus), NOTHING_COPIED)
            cells = layers.widest_cells(host)
        copies = 1 + everything * (self.deployment.copies_of_inputs - 1)
        return _OnHost(blocks=host, bare=bare, from_host=from_host, cells=cells, copies=copies)

    def _gpu_load(self, runs: Runs, gpu: int, left: _OnHost) -> DeviceLoad:
        layers, run = self.layers, runs.gpus[gpu]
        blocks, has_layers = layers.blocks, run.end > run.start
        # The scheduler asks the first GPU; without any layer it still multiplies large batches for the host.
        asked = has_layers if gpu else has_layers | (runs.host == blocks + 1)
        for other in runs.gpus[:gpu]:
            asked = asked & (other.end <= other.start)
        copied = NOTHING_COPIED if left.from_host is NOTHING_COPIED else either(asked, left.from_host, NOTHING_COPIED)
        on_host = self.deployment.options.kv_on_host
        return DeviceLoad(
            weights=self._weights_on(runs, gpu),
            cache={} if on_host else layers.cache_of(smaller(run.start, blocks), smaller(run.end, blocks)),
            part=GpuPart(
                runs=has_layers | (copied >= 0),
                first=(runs.host > 0) | (has_layers & (run.start == 0)),
                output=has_layers & (run.end > blocks),
                copies=left.copies,
                from_host=copied,
                full=left.cells[0],
                sliding=left.cells[1],
            ),
        )

    def _weights_on(self, runs: Runs, gpu: int) -> int:
        """Bytes of weights on a GPU. With ``split_mode=row`` each has its share of every matrix."""
        weighed, deployment = self.layers.weighed, self.deployment
        if deployment.options.split_mode != "row":
            return weighed.on_gpu(runs, gpu)
        together = sum(weighed.on_gpu(runs, number) for number in range(deployment.gpus))
        starts = (0.0, *deployment.ends)
        shares = [end - start for start, end in zip(starts, deployment.ends, strict=False)]
        before: int = floored(together * sum(shares[:gpu]))
        end: int = together if gpu == deployment.gpus - 1 else floored(together * sum(shares[: gpu + 1]))
        return end - before

    def _host_load(self, runs: Runs, left: _OnHost) -> DeviceLoad:
        layers, helped, weighed = self.layers, self.deployment.helped, self.layers.weighed
        return DeviceLoad(
            weights=weighed.on_host(runs),
            cache=layers.total if self.deployment.options.kv_on_host else layers.cache_of(0, left.blocks),
            part=HostPart(
                alone=False if helped else runs.host == layers.blocks + 1,
                partly=(left.blocks > 0) | (left.bare > 0) | (weighed.largest_moved > 0),
                helped=helped,
                copies=left.copies,
            ),
        )

    @cached_property
    def _loads(self) -> tuple[tuple[DeviceLoad, ...], DeviceLoad]:
        left = self._on_host(self.runs)
        gpus = tuple(self._gpu_load(self.runs, gpu, left) for gpu in range(len(self.runs.gpus)))
        return gpus, self._host_load(self.runs, left)

    @property
    def gpus(self) -> tuple[DeviceLoad, ...]:
        """The load of each GPU."""
        return self._loads[0]

    @property
    def host(self) -> DeviceLoad:
        """The load of the host."""
        return self._loads[1]

    # --- bytes ------------------------------------------------------------------------------------------------------------

    @property
    def total_bytes(self) -> int:
        """Bytes of the cache of all layers."""
        return cache_bytes(self.layers.total, self.settings, self._uncut)

    def cache_bytes(self, load: DeviceLoad) -> int:
        """Bytes of the cache of a device."""
        return cache_bytes(load.cache, self.settings, self._uncut)

    def cache_on(self, device: int) -> int:
        """Bytes of the cache that lies on a device."""
        size: int = self._once((device, "cache"), lambda: self.cache_bytes(self._load(device)))
        return size

    def part_bytes(self, device: int, end: str, section: Section) -> int:
        """Bytes of weights, of buffers or of the rest on a device, at an end of the estimates."""
        load = self._load(device)
        if section is Section.WEIGHTS:
            return load.weights
        if section is Section.OVERHEAD:
            return sum(getattr(part, end) for part in self.deployment.process_parts(device))
        size: int = self._once((device, end), lambda: self.buffers.of(load.part, end))
        if self._scored is not None:
            size = size + sum(getattr(part, end) for part in self._scored_on(device, self.assignment.layers(device)))
        return size

    def needed_on(self, device: int, end: str) -> int:
        """All bytes on a device, with the parts at an end of the estimates."""
        return self.cache_on(device) + sum(self.part_bytes(device, end, section) for section in Section)

    def on_fullest(self, amount: Callable[[int], int]) -> int:
        """The value of ``amount`` for the fullest GPU: the first that needs most bytes at the high end.

        Without GPUs it is that of the host.
        """
        first, *others = self.main
        found = amount(first)
        most = self.needed_on(first, "high") if others else 0
        for device in others:
            needed = self.needed_on(device, "high")
            found, most = either(needed > most, amount(device), found), larger(most, needed)
        return found

    @property
    def needed_bytes(self) -> int:
        """Bytes of the cache on the fullest GPU.

        If memory is not known, those of the largest cache on a GPU; on a single device, of all layers.
        """
        if self.deployment.knows_devices:
            return self.on_fullest(self.cache_on)
        if self.deployment.on_one_device:
            return self.total_bytes
        most = 0
        for gpu in range(len(self.gpus)):
            most = larger(self.cache_on(gpu), most)
        return most

    @property
    def devices_bytes(self) -> int:
        """Bytes of all devices by the expected values."""
        return self._on_gpus("expected") + self.needed_on(ON_HOST, "expected")

    def _on_gpus(self, end: str) -> int:
        return sum(self.needed_on(gpu, end) for gpu in range(len(self.gpus)))

    # --- whether it holds -------------------------------------------------------------------------------------------------

    def hold(self, devices: Iterable[int], usable: int, end: str) -> bool:
        """Whether each of these devices needs at most ``usable`` bytes at an end of the estimates."""
        held = True
        for device in devices:
            held = held & (self.needed_on(device, OPPOSITE[end]) <= usable)
        return held

    def host_holds(self, end: str) -> bool:
        """Whether the host has memory for the part of the model that GPUs leave to it."""
        if not self.gpus:
            return True
        # A machine with one memory has what the GPUs leave.
        taken = self._on_gpus(OPPOSITE[end]) if self.deployment.shares_memory else 0
        return self.needed_on(ON_HOST, OPPOSITE[end]) <= self.deployment.host_rooms[end] - taken

    # --- one context in words ---------------------------------------------------------------------------------------------

    @cached_property
    def assignment(self) -> Assignment:
        """The device of each layer of one context."""
        weighed = self.layers.weighed
        return self.runs.assignment(weighed.experts, weighed.experts_moved)

    @cached_property
    def fullest(self) -> int:
        """The number of the fullest GPU: the first that needs most bytes at the high end."""
        # Of a single one nobody need know how full it is.
        return max(self.main, key=lambda gpu: self.needed_on(gpu, "high")) if len(self.gpus) > 1 else 0

    @cached_property
    def placement(self) -> Placement:
        """The share of each device in one context."""
        gpus, assignment = range(len(self.gpus)), self.assignment
        return Placement(
            devices=tuple(map(self._share, (*gpus, ON_HOST))),
            fullest=self.fullest,
            gpu_layers=assignment.gpu_layers if gpus else None,
            all_layers=self.layers.blocks + 1 if gpus else None,
            experts_on_host=assignment.experts_on_host,
            moved_bytes=self.layers.weighed.overridden.get(ON_HOST, 0),
        )

    def _share(self, device: int) -> DeviceShare:
        load, layers = self._load(device), self.assignment.layers(device)
        scored = () if self._scored is None else self._scored_on(device, layers)
        return DeviceShare(
            device=HOST if device == ON_HOST else f"gpu{device}",
            layers=layers,
            output=self.assignment.output == device,
            weights_bytes=load.weights,
            cache_bytes=self.cache_on(device),
            parts=(*self.buffer_parts(device), *scored, *self.deployment.process_parts(device)),
        )

    def buffer_parts(self, device: int) -> tuple[BudgetPart, ...]:
        """The buffers of a pass on a device."""
        return self.buffers.parts(self._load(device).part)

    def _scored_on(self, device: int, layers: LayerNumbers) -> tuple[BudgetPart, ...]:
        assert self._scored is not None
        if self.deployment.options.kv_on_host:
            layers = LayerNumbers(range(self.layers.blocks)) if device == ON_HOST else LayerNumbers()
        numbers, scored = layers, self._scored
        parts: tuple[BudgetPart, ...] = self._once(("scored", numbers), lambda: scored(numbers))
        return parts

    @property
    def main(self) -> tuple[int, ...]:
        """The devices that a model is meant to lie on: the GPUs, or the host where there is none."""
        return tuple(range(len(self.gpus))) or (ON_HOST,)

    def _load(self, device: int) -> DeviceLoad:
        return self.host if device == ON_HOST else self.gpus[device]

    def _once(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]


def copies_of_inputs(deployment: LlamacppDeployment) -> int:
    """The number of copies of the inputs of a pass where GPUs hold all layers: several GPUs work on several batches (src/llama-context.cpp).

    A GPU without a share of the layers counts, and so does an override that finds no tensor.
    """
    options = deployment.options
    overridden = bool(options.overrides) or options.cpu_moe or options.n_cpu_moe > 0
    plain = options.split_mode == "layer" and not overridden and not options.kv_on_host
    return PIPELINE_COPIES if deployment.setup.gpus > 1 and plain else 1
