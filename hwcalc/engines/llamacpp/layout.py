"""What each device holds of a model: the one place that puts layers, caches and buffers on GPUs and the host.

A :class:`Layout` is of one context, as a plan has it, or of an array of contexts of any length and number of sequences, as a sweep has them.
Numbers are integers or arrays by the same lines. Of one context it also says in words what lies where, and what a pass reads on each device.

A GPU has for it: visible memory - what stays free - the process - the compute buffer. The host has the compute buffer too, and the outputs of
the last layer, which llama.cpp keeps there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from msgspec.structs import replace

from hwcalc.engines.devices import HOST, HOST_SHARE, DeviceReads, DeviceShare, Placement, WeightRead
from hwcalc.engines.forms import ENDS, OPPOSITE
from hwcalc.engines.llamacpp.graph import NOTHING_COPIED, Buffers, GpuPart, HostPart
from hwcalc.engines.llamacpp.layers import ON_HOST, Assignment, Cache, Fitting, Layers, Runs, cache_bytes, device_of, fitted
from hwcalc.engines.memory import Budget, BudgetPart, Section, exact, memory_of, part_of
from hwcalc.formulas import LayerNumbers
from hwcalc.formulas.arithmetic import either, floored, larger, largest, smaller, some
from hwcalc.formulas.record import Record
from hwcalc.model import Note, Noted
from hwcalc.profiles.engines import llamacpp_profile
from hwcalc.quantization.ggml import GGML
from hwcalc.units import GIB, human_bytes

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.engine import LlamacppDeployment
    from hwcalc.engines.llamacpp.occupancy import LlamacppOccupancy
    from hwcalc.engines.llamacpp.settings import PlaceOptions, Settings
    from hwcalc.engines.llamacpp.tensors import WeightGroup
    from hwcalc.engines.setup import Hardware, Setup

_LEFT_BY_SYSTEM: Final[Mapping[str, Fraction | int]] = {"low": Fraction(7, 8), "expected": Fraction(15, 16), "high": 1}
"""What the system and other programs leave of a machine's memory: at least, probably, at most. A habit, not a measurement."""


def _left_free(hardware: Hardware, options: PlaceOptions) -> Noted[int]:
    """Bytes of a GPU that ``--fit`` leaves; 0 where the user says the share that stays free."""
    if hardware.margin is not None or hardware.memory_utilization is not None:
        return Noted(0)
    on_host = hardware.gpu is not None and hardware.gpu.is_host
    if on_host and options.host_bytes is not None:
        # What may be taken was said.
        return Noted(0)
    where = "the machine's memory" if on_host else "each GPU"
    message = (
        f"{human_bytes(options.target_bytes)} of {where} stay free, as llama.cpp's --fit leaves them. "
        "Set it with --engine-option fit_target=MIB, or --margin."
    )
    return Noted(options.target_bytes, (Note(code="default-margin", message=message),))


def budget_beside(hardware: Hardware, options: PlaceOptions, parts: tuple[BudgetPart, ...]) -> Noted[Budget | None]:
    """The bytes that a GPU, or a machine without one, has left beside these parts; ``None`` if its memory is not known."""
    gpu, size = hardware.gpu, options.host_bytes
    if gpu is None:
        return Noted(None)
    memory, notes = memory_of(gpu)
    if gpu.is_host and size is not None:
        from hwcalc.profiles.gpus import VisibleMemory

        sizes = {"low_bytes": size, "expected_bytes": size, "high_bytes": size}
        memory, notes = VisibleMemory(**sizes, basis="host_memory, as given", source="the user"), ()
    if memory is None:
        return Noted(None, notes)
    free, utilization = _left_free(hardware, options), hardware.memory_utilization
    budget = Budget.of(memory, 1.0 if utilization is None else utilization, hardware.margin or 0, parts, free.value)
    return Noted(budget, (*notes, *free.notes))


def rooms_of(hardware: Hardware, options: PlaceOptions) -> Mapping[str, int | None]:
    """Bytes of a GPU that may be used at each end of what programs see; ``None`` if its memory is not known."""
    budget = budget_beside(hardware, options, ()).value
    return dict.fromkeys(ENDS) if budget is None else dict(zip(ENDS, budget.usable, strict=True))


def host_room(setup: Setup, options: PlaceOptions, end: str) -> int:
    """Bytes of the host's memory that the model may take, GPUs with the same memory included: what the system leaves of it.

    Where the size is neither said nor that of the hardware, a host has at least as much memory as its GPUs, and likely four times.
    """
    gpu, size = setup.hardware.gpu, options.host_bytes
    sold = (0 if gpu is None else gpu.memory_marketing_gb or 0) * GIB
    size = sold if size is None and gpu is not None and gpu.shares_host_memory else size
    if size is not None:
        return part_of(size, _LEFT_BY_SYSTEM[end])
    gpus = setup.gpus * sold
    return {"low": gpus, "expected": HOST_SHARE * gpus}.get(end, 2**50)


T = TypeVar("T")
Scored = Callable[[LayerNumbers], tuple[BudgetPart, ...]]
"""What a policy takes to score the layers whose cache lies on a device."""


class DeviceLoad(Record):
    """The load of a device beside its weights: its cache, and the part of the model that it runs."""

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
        runs: Runs | None = None,
    ) -> None:
        """Under a policy, ``uncut`` are the settings for layers that it leaves alone, and ``scored`` is what it takes beside the cache.

        ``runs`` are the layers on each device, where another layout has put them there.
        """
        self.deployment = deployment
        self.settings = settings
        self.layers = deployment.layers if layers is None else layers
        self._uncut = settings if uncut is None else uncut
        self._scored = scored
        self._runs = runs
        sixteen_bit = settings.rules.copies_reserved and deployment.reads_sixteen_bit
        self.buffers = Buffers(
            deployment.hparams,
            settings,
            sixteen_bit=sixteen_bit,
            once=deployment.model.once,
            kv_on_host=deployment.options.kv_on_host,
        )
        self.file: Mapping[int, int] | None = None
        self._known: dict[tuple[Any, ...], Any] = {}

    # --- where layers lie -------------------------------------------------------------------------------------------------

    @cached_property
    def runs(self) -> Runs:
        """The layers on each device: as the deployment pins them, as options say, or as llama.cpp fits them by itself."""
        deployment, scored = self.deployment, self._scored
        if self._runs is not None:
            return self._runs
        if deployment.pinned is not None:
            return deployment.pinned
        if not deployment.fits_layers:
            return deployment.whole_runs
        room, weighed = deployment.rooms["low"], self.layers.weighed
        assert room is not None
        beside = [sum(part.high for part in deployment.process_parts(gpu)) for gpu in range(deployment.gpus)]

        def holds(runs: Runs, gpu: int) -> bool:
            load = self._gpu_load(runs, gpu, self._on_host(runs))
            needed = self._weights_of(runs, gpu) + self._cache_bytes(load) + self.buffers.of(load.part, "high") + beside[gpu]
            if scored is not None:
                layers = runs.assignment(weighed.experts).layers(gpu)
                needed += sum(part.high for part in self._scored_on(gpu, layers))
            return needed + drafting(runs, gpu) + self._adapter_bytes(runs, gpu, "high") <= room

        draft = self._draft(None)

        def drafting(runs: Runs, gpu: int) -> int:
            """Bytes of the draft on a GPU: of a context of the same model with these runs, or of a second model."""
            if draft is None:
                return 0
            if draft.is_another_model:
                return draft.needed_on(gpu, "high") - sum(part.high for part in draft.deployment.process_parts(gpu))
            load = draft._gpu_load(runs, gpu, draft._on_host(runs))  # noqa: SLF001 - another layout
            return draft._cache_bytes(load) + draft.buffers.of(load.part, "high")  # noqa: SLF001

        return fitted(Fitting(blocks=self.layers.blocks, ends=deployment.ends, experts=weighed.has_experts, holds=holds))

    # --- a draft ----------------------------------------------------------------------------------------------------------

    def _draft(self, runs: Runs | None) -> Layout | None:
        """The layout of the context that drafts; ``None`` without one. ``runs`` are the layers of the model on each device."""
        deployment, main = self.deployment.drafting, self.settings
        if deployment is None:
            return None
        made = deployment.context.settings(deployment.hparams, main.n_ctx, main.n_seq_max, main.n_ubatch)
        if deployment.model is not self.deployment.model:
            runs = deployment.whole_runs
        return Layout(deployment, made, runs=runs)

    @cached_property
    def draft(self) -> Layout | None:
        """The layout of the context that drafts beside this one; ``None`` without one."""
        return self._draft(self.runs)

    @property
    def is_another_model(self) -> bool:
        """True if this is the layout of a draft that is a model of its own."""
        return not self.settings.drafts

    @property
    def _first_block(self) -> int:
        """The first block that this context runs."""
        return self.deployment.hparams.n_layer if self.settings.drafts else 0

    def _draft_weights(self, device: int) -> int:
        """Bytes of a second model on a device; those of the model's own layers are among its weights."""
        return 0 if self.draft is None or not self.draft.is_another_model else self.draft.weights_on(device)

    def _adapter_bytes(self, runs: Runs, device: int, end: str) -> int:
        """Bytes of the adapters of the layers on a device, at an end of their range."""
        if self.deployment.adapters is None:
            return 0
        table, blocks = self.deployment.adapters[ENDS.index(end)], self.layers.blocks
        if device == ON_HOST:
            start, stop = 0, smaller(runs.host, blocks)
        else:
            start, stop = smaller(runs.gpus[device].start, blocks), smaller(runs.gpus[device].end, blocks)
        size: int = table.at(stop) - table.at(start)
        return size

    def _adapter_parts(self, device: int) -> tuple[BudgetPart, ...]:
        """The adapters of the layers on a device as a term; none without adapters."""
        if self.deployment.adapters is None:
            return ()
        low, expected, high = (self._adapter_bytes(self.runs, device, end) for end in ENDS)
        source = "A and B of the adapters of these layers; src/llama-adapter.cpp puts them where the layer is"
        return (BudgetPart.of("adapters", Section.WEIGHTS, (low, expected, high), source),)

    def _draft_parts(self, device: int) -> tuple[BudgetPart, ...]:
        """The terms of the context that drafts on a device: the weights of a second model, the cache, the buffers."""
        draft = self.draft
        if draft is None:
            return ()
        found = []
        if size := self._draft_weights(device):
            found.append(exact("draft weights", Section.WEIGHTS, size, f"tensors of {draft.deployment.model.id}"))
        if size := draft.cache_on(device):
            source = f"the cache of the context of {draft.deployment.model.id} that drafts"
            found.append(exact("draft cache", Section.OVERHEAD, size, source))
        buffers = draft.buffers.parts(draft._load(device).part)  # noqa: SLF001 - another layout
        return (*found, *(replace(part, name=f"draft {part.name}") for part in buffers))

    def _on_host(self, runs: Runs) -> _OnHost:
        layers, weighed, helped = self.layers, self.layers.weighed, self.deployment.helped
        host, bare = smaller(runs.host, layers.blocks), 0
        if weighed.has_experts:
            bare = sum(weighed.experts_on_host(run)[1] for run in runs.gpus)
        copying = helped & ((host > self._first_block) | (bare > 0) | (weighed.largest_moved > 0))
        everything = (runs.host == 0) & (bare == 0)
        from_host, cells = NOTHING_COPIED, (0, 0)
        if some(copying):
            from_host = either(copying, layers.largest_on_host(host, runs.gpus), NOTHING_COPIED)
            cells = layers.widest[0].at(host), layers.widest[1].at(host)
        if self.deployment.options.kv_on_host:
            cells = layers.widest[0].at(layers.blocks), layers.widest[1].at(layers.blocks)
        # The graph of a draft is on one device.
        copies = 1 + everything * (1 if self.settings.drafts else self.deployment.copies_of_inputs) - everything
        return _OnHost(blocks=host, bare=bare, from_host=from_host, cells=cells, copies=copies)

    def _gpu_load(self, runs: Runs, gpu: int, left: _OnHost) -> DeviceLoad:
        layers, run = self.layers, runs.gpus[gpu]
        blocks, has_layers = layers.blocks, (run.end > run.start) & (run.end > self._first_block)
        # The scheduler asks the first GPU; without any layer it still multiplies large batches for the host.
        asked = has_layers if gpu else has_layers | (runs.host == blocks + 1)
        for other in runs.gpus[:gpu]:
            asked = asked & (other.end <= other.start)
        copied = NOTHING_COPIED if left.from_host is NOTHING_COPIED else either(asked, left.from_host, NOTHING_COPIED)
        on_host = self.deployment.options.kv_on_host
        return DeviceLoad(
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

    @cached_property
    def _loads(self) -> tuple[tuple[DeviceLoad, ...], DeviceLoad]:
        """The load of each GPU, and that of the host."""
        runs, layers, helped, moved = self.runs, self.layers, self.deployment.helped, self.layers.weighed.largest_moved
        left = self._on_host(runs)
        host = HostPart(
            alone=False if helped else runs.host == layers.blocks + 1,
            partly=(left.blocks > self._first_block) | (left.bare > 0) | (moved > 0),
            helped=helped,
            copies=left.copies,
        )
        cache = layers.total if self.deployment.options.kv_on_host else layers.cache_of(0, left.blocks)
        return tuple(self._gpu_load(runs, gpu, left) for gpu in range(len(runs.gpus))), DeviceLoad(cache=cache, part=host)

    @property
    def gpus(self) -> tuple[DeviceLoad, ...]:
        """The load of each GPU."""
        return self._loads[0]

    @property
    def host(self) -> DeviceLoad:
        """The load of the host."""
        return self._loads[1]

    # --- bytes ------------------------------------------------------------------------------------------------------------

    def with_file(self, sizes: Mapping[int, int]) -> Layout:
        """The same layout with another file, of which a device has ``sizes`` bytes of weights, wherever its layers lie."""
        other = copy(self)
        other.file = sizes
        return other

    def weights_on(self, device: int) -> int:
        """Bytes of weights on a device."""
        if self.file is not None:
            return self.file[device]
        return self._once((device, "weights"), lambda: self._weights_of(self.runs, device))

    def _weights_of(self, runs: Runs, device: int) -> int:
        """Bytes of weights on a device with these runs. With ``split_mode=row`` each GPU has its share of every matrix."""
        weighed, deployment = self.layers.weighed, self.deployment
        if device == ON_HOST:
            return weighed.on_host(runs)
        if deployment.options.split_mode != "row":
            return weighed.on_gpu(runs, device)
        together = sum(weighed.on_gpu(runs, number) for number in range(deployment.gpus))
        starts = (0.0, *deployment.ends)
        shares = [end - start for start, end in zip(starts, deployment.ends, strict=False)]
        before: int = floored(together * sum(shares[:device]))
        end: int = together if device == deployment.gpus - 1 else floored(together * sum(shares[: device + 1]))
        return end - before

    @property
    def total_bytes(self) -> int:
        """Bytes of the cache of all layers."""
        return cache_bytes(self.layers.total, self.settings, self._uncut)

    def _cache_bytes(self, load: DeviceLoad) -> int:
        return cache_bytes(load.cache, self.settings, self._uncut)

    def cache_on(self, device: int) -> int:
        """Bytes of the cache that lies on a device."""
        return self._once((device, "cache"), lambda: self._cache_bytes(self._load(device)))

    def part_bytes(self, device: int, end: str, section: Section) -> int:
        """Bytes of weights, of buffers or of the rest on a device, at an end of the estimates."""
        draft = self.draft
        if section is Section.WEIGHTS:
            return self.weights_on(device) + self._draft_weights(device) + self._adapter_bytes(self.runs, device, end)
        if section is Section.OVERHEAD:
            beside: int = sum(getattr(part, end) for part in self.deployment.process_parts(device))
            return beside if draft is None else beside + draft.cache_on(device)
        size = self._once((device, end), lambda: self.buffers.of(self._load(device).part, end))
        size = size if draft is None else size + draft.part_bytes(device, end, section)
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
        deployment = self.deployment
        if deployment.knows_devices:
            return self.on_fullest(self.cache_on)
        if not deployment.gpus or (deployment.gpus == 1 and deployment.gpu is None):
            return self.total_bytes
        most: int = largest(self.cache_on(gpu) for gpu in range(len(self.gpus)))
        return most

    @property
    def devices_bytes(self) -> int:
        """Bytes of all devices by the expected values."""
        return self._on_gpus("expected") + self.needed_on(ON_HOST, "expected")

    def _on_gpus(self, end: str) -> int:
        return sum(self.needed_on(gpu, end) for gpu in range(len(self.gpus)))

    # --- whether it holds -------------------------------------------------------------------------------------------------

    def hold(self, devices: Iterable[int], usable: int, end: str) -> bool:
        """True if each of these devices needs at most ``usable`` bytes at an end of the estimates."""
        held = True
        for device in devices:
            held = held & (self.needed_on(device, OPPOSITE[end]) <= usable)
        return held

    def host_holds(self, end: str) -> bool:
        """True if the host has memory for the part of the model that GPUs leave to it."""
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
        shares = []
        for device in (*gpus, ON_HOST):
            layers = assignment.layers(device)
            scored = () if self._scored is None else self._scored_on(device, layers)
            share = DeviceShare(
                device=HOST if device == ON_HOST else f"gpu{device}",
                layers=layers,
                output=assignment.output == device,
                weights_bytes=self.weights_on(device),
                cache_bytes=self.cache_on(device),
                parts=(
                    *self.buffers.parts(self._load(device).part),
                    *scored,
                    *self._adapter_parts(device),
                    *self._draft_parts(device),
                    *self.deployment.process_parts(device),
                ),
            )
            shares.append(share)
        return Placement(
            devices=tuple(shares),
            fullest=self.fullest,
            gpu_layers=assignment.gpu_layers if gpus else None,
            all_layers=self.layers.blocks + 1 if gpus else None,
            experts_on_host=assignment.experts_on_host,
            moved_bytes=self.layers.weighed.overridden.get(ON_HOST, 0),
        )

    def _scored_on(self, device: int, layers: LayerNumbers) -> tuple[BudgetPart, ...]:
        assert self._scored is not None
        if self.deployment.options.kv_on_host:
            layers = LayerNumbers(range(self.layers.blocks)) if device == ON_HOST else LayerNumbers()
        numbers, scored = layers, self._scored
        return self._once(("scored", numbers), lambda: scored(numbers))

    @property
    def main(self) -> tuple[int, ...]:
        """The devices that a model is meant to lie on: the GPUs, or the host where there is none."""
        return tuple(range(len(self.gpus))) or (ON_HOST,)

    def _load(self, device: int) -> DeviceLoad:
        return self.host if device == ON_HOST else self.gpus[device]

    def _once(self, key: tuple[Any, ...], make: Callable[[], T]) -> T:
        if key not in self._known:
            self._known[key] = make()
        made: T = self._known[key]
        return made


_Use = Literal["always", "chosen", "row", "last"]
_Group = tuple[str, _Use, int, bool, str | None]
"""Format, use, block (-1 for input and output), whether they are experts, and the buffer that the user named."""


def reads_of(occupancy: LlamacppOccupancy) -> Noted[tuple[DeviceReads, ...]]:
    """The weights and layers of each device in the placement; nothing if the tensors are not known."""
    deployment = occupancy.deployment
    weights, read = deployment.weight_groups, deployment.hparams
    if weights is None:
        return Noted(())
    assignment, options = occupancy.layout.assignment, deployment.options
    groups: dict[_Group, tuple[int, int]] = deployment.model.once(
        ("llamacpp reads", deployment.setup.weights, deployment.context.load_mtp, options.overrides),
        lambda: _grouped(deployment, weights),
    )
    experts = max(1, read.n_expert)
    used = min(experts, max(1, read.n_expert_used))
    copies: dict[_Use, int] = {"chosen": experts, "row": max(1, read.n_vocab)}
    found: dict[int, dict[tuple[str, _Use], tuple[int, int]]] = {}
    last: dict[int, dict[tuple[str, _Use], tuple[int, int]]] = {}
    for (form, use, layer, expert, buffer), (elements, size) in groups.items():
        if buffer is not None:
            device = device_of(buffer)
        elif layer < 0:
            device = assignment.output if use == "last" else ON_HOST
        elif layer >= len(assignment.blocks) or (expert and layer in assignment.experts_on_host):
            device = ON_HOST
        else:
            device = assignment.blocks[layer]
        for by_device in (found, last) if layer == read.n_layer - 1 else (found,):
            sums = by_device.setdefault(device, {})
            before = sums.get((form, use), (0, 0))
            sums[form, use] = before[0] + elements, before[1] + size
    kept_on_host = {ON_HOST: LayerNumbers(range(len(assignment.blocks)))} if options.kv_on_host else None
    host, notes = _host_gbps(deployment)
    works = options.kv_on_host or ON_HOST in assignment.blocks or any(use != "row" for _, use in found.get(ON_HOST, {}))

    def weights_of(sums: Mapping[tuple[str, _Use], tuple[int, int]]) -> tuple[WeightRead, ...]:
        return tuple(
            WeightRead(
                format=form,
                use=use,
                elements=elements,
                bytes=size,
                copies=copies.get(use, 1),
                active=used if use == "chosen" else 1,
            )
            for (form, use), (elements, size) in sums.items()
        )

    reads = (
        DeviceReads(
            device=HOST if device == ON_HOST else f"gpu{device}",
            weights=weights_of(found.get(device, {})),
            cache_layers=assignment.layers(device) if kept_on_host is None else kept_on_host.get(device, LayerNumbers()),
            gbps=host if device == ON_HOST else None,
            at_once=deployment.setup.gpus if options.split_mode == "row" and device != ON_HOST else 1,
            pass_tokens=occupancy.settings.n_ubatch,
            last_layer=weights_of(last.get(device, {})),
            copied=deployment.copied if device == ON_HOST else None,
        )
        for device in (*sorted({*found, *assignment.blocks} - {ON_HOST}), ON_HOST)
    )
    return Noted(tuple(reads), notes if works else ())


def _grouped(deployment: LlamacppDeployment, weights: tuple[WeightGroup, ...]) -> dict[_Group, tuple[int, int]]:
    """Elements and bytes of the tensors that a pass reads, so that those of one block and format are one entry."""
    from hwcalc.engines.llamacpp.tensors import in_file_order, loaded, loaded_groups, with_overrides

    given = deployment.options.overrides
    if given:
        tensors = [(tensor.layer, tensor) for tensor in with_overrides(loaded(deployment.weight_tensors or ()), given)]
    else:
        # Alike tensors have the same record.
        ordered = in_file_order(loaded_groups(weights))
        tensors = [(group.first.layer if number < 0 else number, group.first) for number, group in ordered]
    groups: dict[_Group, tuple[int, int]] = {}
    uses: dict[str, _Use] = {"input": "row", "output": "last"}
    # Prediction layers run beside the step that is bounded, and so do towers.
    for layer, tensor in tensors:
        if not tensor.tower:
            name = tensor.type.lower()
            form = GGML[name].name if name in GGML else name
            use = uses.get(tensor.role, "chosen" if tensor.expert else "always")
            group = (form, use, layer, tensor.expert, tensor.buffer)
            before = groups.get(group, (0, 0))
            groups[group] = before[0] + tensor.elements, before[1] + tensor.bytes
    return groups


def _host_gbps(deployment: LlamacppDeployment) -> Noted[float | None]:
    """The bandwidth of the host's memory in GB/s: the user's, that of the accelerator if both share a memory, or an assumption."""
    given, gpu = deployment.options.host_gbps, deployment.gpu
    if given is not None or (gpu is not None and gpu.shares_host_memory and not gpu.is_host):
        return Noted(given)
    assumed = llamacpp_profile().host_bandwidth
    message = (
        f"The bound on speed assumes {assumed.expected:g} GB/s of host memory (two channels of DDR5-5600; of DDR4-3200 {assumed.low:g}; "
        "servers have more, and are faster). Say it with --engine-option host_bandwidth=GB/s."
    )
    return Noted(assumed.expected, (Note(code="host-bandwidth-assumed", message=message),))
