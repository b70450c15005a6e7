"""What runs of layers put on each device: sums over the layers, so that any run takes a few look-ups, of one context or of many."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from hwcalc.engines.llamacpp.assignment import ON_HOST
from hwcalc.engines.llamacpp.buffers import NOTHING_COPIED, GpuPart, HostPart
from hwcalc.engines.llamacpp.compute import helps, part_of, whole_copies
from hwcalc.engines.llamacpp.graph import cell_bytes
from hwcalc.engines.llamacpp.placement import device_weights
from hwcalc.engines.llamacpp.rules import Cells
from hwcalc.engines.llamacpp.weighing import weighed_of
from hwcalc.formulas.arithmetic import Table, either, larger, smaller, some
from hwcalc.formulas.record import Record

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.assignment import Assignment, Weighed
    from hwcalc.engines.llamacpp.fitting import Run, Runs
    from hwcalc.engines.llamacpp.opened import LlamacppOpened
    from hwcalc.engines.llamacpp.settings import Settings
    from hwcalc.engines.stored import StoredTensor

__all__ = ["Devices", "Layers", "Load", "cache_bytes", "load_of_run", "loads_in", "loads_of"]

_STATES: Final = ""
"""The name of what is there once for each sequence, among the names of cells."""

Cache = Mapping[str, int]
"""By the name of a number of cells, the bytes of a cell of all layers; and the states of a sequence."""


class Load(Record):
    """What a device has: bytes of weights, its cache, and the part of the model that it runs."""

    weights: int
    cache: Cache
    part: GpuPart | HostPart


def cache_bytes(cache: Cache, one: Settings) -> int:
    """The bytes of a cache in a context."""
    size = 0
    for name, each in cache.items():
        size = size + each * (one.n_seq_max if name == _STATES else one.n_stream * getattr(one, name))
    return size


def _cache_of(tensors: Iterable[StoredTensor]) -> dict[str, int]:
    """The cache of a layer from its tensors in a context of one sequence."""
    found: dict[str, int] = {}
    for tensor in tensors:
        name, positions = (tensor.span.size, tensor.positions) if isinstance(tensor.span, Cells) else (_STATES, 1)
        found[name] = found.get(name, 0) + tensor.bytes // positions
    return found


class _Largest:
    """The largest of some numbers from one place to before another; 0 of none."""

    def __init__(self, numbers: Iterable[int]) -> None:
        rows, step = [[*numbers]], 1
        while 2 * step <= len(rows[0]):
            last = rows[-1]
            rows.append([max(last[place], last[min(place + step, len(last) - 1)]) for place in range(len(last))])
            step *= 2
        self._width = len(rows[0])
        self._table = Table([number for row in rows for number in row] or [0])
        self._level = Table([max(0, count.bit_length() - 1) for count in range(self._width + 1)])
        self._step = Table([1 << max(0, count.bit_length() - 1) for count in range(self._width + 1)])

    def between(self, start: int, end: int) -> int:
        """The largest from ``start`` to before ``end``."""
        count = larger(end - start, 0)
        row = self._level.at(count) * self._width
        first, last = smaller(start, self._width - 1), larger(end - self._step.at(count), 0)
        most: int = (count > 0) * larger(self._table.at(row + first), self._table.at(row + last))
        return most


class Layers:
    """The layers of a model as they are loaded and cached, summed up from the first on. GPUs of all makers have the same."""

    def __init__(self, opened: LlamacppOpened) -> None:
        single = opened.sized(batch=1)
        self._opened = opened
        self.blocks = opened.hparams.n_layer_all
        self._kinds = {kind: _cache_of(tensors) for kind, tensors in single.kind_tensors.items()}
        self._extras = _cache_of(single.extras)

    @cached_property
    def loaded(self) -> Weighed:
        """The tensors, which are known."""
        weighed = weighed_of(self._opened)
        assert weighed is not None
        return weighed

    @cached_property
    def has_experts(self) -> bool:
        """Whether any layer has."""
        return any(experts for experts, _ in self.loaded.blocks)

    @cached_property
    def _weights(self) -> tuple[Table, Table, Table]:
        """Of the first so many blocks: all bytes, those of experts, and how many blocks have any."""
        blocks = self.loaded.blocks
        return (
            Table(accumulate((experts + rest for experts, rest in blocks), initial=0)),
            Table(accumulate((experts for experts, _ in blocks), initial=0)),
            Table(accumulate((bool(experts) * 1 for experts, _ in blocks), initial=0)),
        )

    @cached_property
    def total(self) -> Cache:
        """The cache of all layers, those beyond the blocks of the file too."""
        found = dict(self._extras)
        for group in self._opened.stack.groups:
            for name, size in self._kinds[group.kind].items():
                found[name] = found.get(name, 0) + group.count * size
        return found

    @cached_property
    def _each(self) -> list[dict[str, int]]:
        """The cache of each block."""
        found: list[dict[str, int]] = [{} for _ in range(self.blocks)]
        for own, kinds in zip(found, self._opened.stack.layers, strict=False):
            for kind in kinds:
                for name, size in self._kinds[kind].items():
                    own[name] = own.get(name, 0) + size
        return found

    @cached_property
    def _cache(self) -> dict[str, Table]:
        names = dict.fromkeys(name for one in self._each for name in one)
        return {name: Table(accumulate((one.get(name, 0) for one in self._each), initial=0)) for name in names}

    @cached_property
    def _largest(self) -> tuple[Table, _Largest]:
        """The largest tensor of the first so many blocks, and of the experts of any of them."""
        largest = self._opened.largest_tensors
        first = accumulate((max(pair) for pair in largest), max, initial=0)
        return Table(first), _Largest(experts for experts, _ in largest)

    @cached_property
    def _widest(self) -> tuple[Table, Table]:
        """Bytes of a cell of the widest of the first so many blocks, without a window and with one."""
        rows = [self.host_cells_of((number,)) for number in range(self.blocks)]
        full, sliding = (Table(accumulate((row[place] for row in rows), max, initial=0)) for place in (0, 1))
        return full, sliding

    def host_cells_of(self, numbers: Iterable[int]) -> tuple[int, int]:
        """Bytes of a cell of the widest of some blocks, without a window and with one."""
        read, one, widest = self._opened.hparams, self._opened.settings, [0, 0]
        for number in numbers:
            slides = bool(read.is_swa[number])
            widest[slides] = max(widest[slides], cell_bytes(read, one, number))
        return widest[0], widest[1]

    def cache_of(self, start: int, end: int) -> Cache:
        """The cache of a run of blocks, with what belongs to no layer beside the last."""
        found = {name: table.at(end) - table.at(start) for name, table in self._cache.items()}
        if self._extras:
            last = ((end == self.blocks) & (end > start)) * 1
            for name, size in self._extras.items():
                found[name] = found.get(name, 0) + last * size
        return found

    def cache_on(self, numbers: Iterable[int]) -> Cache:
        """The same of any blocks."""
        found: dict[str, int] = {}
        numbers = tuple(numbers)
        own = [self._each[number] for number in numbers]
        for one in (*own, self._extras) if self.blocks - 1 in numbers else own:
            for name, size in one.items():
                found[name] = found.get(name, 0) + size
        return found

    def experts_of(self, run: Run) -> tuple[int, int]:
        """Bytes of the experts of a run that lie on the host, and how many layers have any there."""
        start, end = self._bare(run)
        _, experts, counts = self._weights
        return experts.at(end) - experts.at(start), counts.at(end) - counts.at(start)

    def _bare(self, run: Run) -> tuple[int, int]:
        start = smaller(run.bare_from, self.blocks)
        return start, larger(start, smaller(run.bare_to, self.blocks))

    def weights_of(self, start: int, end: int) -> int:
        """Bytes of a run of blocks."""
        size: int = self._weights[0].at(end) - self._weights[0].at(start)
        return size

    def copied(self, host: int, runs: Iterable[Run]) -> int:
        """The largest tensor that a GPU copies for a batch, of the first ``host`` blocks and of the experts that lie with them."""
        first, experts = self._largest
        size: int = first.at(host)
        for run in runs if self.has_experts else ():
            size = larger(size, experts.between(*self._bare(run)))
        return size

    def host_cells(self, host: int) -> tuple[int, int]:
        """Bytes of a cell of the widest of the first so many blocks, without a window and with one."""
        full, sliding = self._widest
        return full.at(host), sliding.at(host)


class Devices:
    """The devices of a request and the layers that it has for them."""

    def __init__(self, opened: LlamacppOpened) -> None:
        one = opened.settings
        key = (one.load_mtp, one.drafts, one.type_k, one.type_v, one.flash_attn, one.n_rs_seq)
        place = opened.request.weights, opened.place_options.overrides
        self.opened = opened
        self.layers: Layers = opened.model.once(("llamacpp sums", *key, *place), lambda: Layers(opened))
        self.helped = opened.gpus > 0 and helps(opened)
        self.copies = whole_copies(opened)
        self.kv_on_host = opened.place_options.kv_on_host


class _Left(Record):
    """What runs leave to the host: how many blocks, the experts of how many others, and what of it a GPU copies for a batch."""

    blocks: int
    bare: tuple[tuple[int, int], ...]
    """Of each GPU, the bytes of experts that lie on the host, and the number of layers that have any there."""
    from_host: int
    cells: tuple[int, int]
    copies: int

    @property
    def bare_layers(self) -> int:
        """How many layers have their experts on the host."""
        return sum(count for _, count in self.bare)


def _left(devices: Devices, runs: Runs) -> _Left:
    layers = devices.layers
    host = smaller(runs.host, layers.blocks)
    bare = tuple(map(layers.experts_of, runs.gpus)) if layers.has_experts else ()
    bare_layers = sum(count for _, count in bare)
    copying = devices.helped & ((host > 0) | (bare_layers > 0))
    everything = (runs.host == 0) & (bare_layers == 0)
    from_host, cells = NOTHING_COPIED, (0, 0)
    if some(copying):
        from_host, cells = either(copying, layers.copied(host, runs.gpus), NOTHING_COPIED), layers.host_cells(host)
    return _Left(blocks=host, bare=bare, from_host=from_host, cells=cells, copies=1 + everything * (devices.copies - 1))


def load_of_run(devices: Devices, runs: Runs, gpu: int) -> Load:
    """What one GPU has."""
    return _gpu_load(devices, runs, gpu, _left(devices, runs))


def loads_of(devices: Devices, runs: Runs) -> tuple[tuple[Load, ...], Load]:
    """What each GPU has, and the host."""
    left = _left(devices, runs)
    gpus = tuple(_gpu_load(devices, runs, gpu, left) for gpu in range(len(runs.gpus)))
    return gpus, _host_load(devices, runs, left)


def _gpu_load(devices: Devices, runs: Runs, gpu: int, left: _Left) -> Load:
    layers, run = devices.layers, runs.gpus[gpu]
    weighed, blocks = layers.loaded, layers.blocks
    start, end, has_layers = smaller(run.start, blocks), smaller(run.end, blocks), run.end > run.start
    output = has_layers & (run.end > blocks)
    # The scheduler asks the first GPU; without any layer it still multiplies large batches for the host.
    asked = has_layers if gpu else has_layers | (runs.host == blocks + 1)
    for other in runs.gpus[:gpu]:
        asked = asked & (other.end <= other.start)
    copied = NOTHING_COPIED if left.from_host is NOTHING_COPIED else either(asked, left.from_host, NOTHING_COPIED)
    return Load(
        weights=layers.weights_of(start, end)
        - (left.bare[gpu][0] if left.bare else 0)
        + output * (weighed.output + weighed.tied)
        + (end > start) * weighed.copied
        + weighed.overridden.get(gpu, 0),
        cache={} if devices.kv_on_host else layers.cache_of(start, end),
        part=GpuPart(
            runs=has_layers | (copied >= 0),
            first=(runs.host > 0) | (has_layers & (run.start == 0)),
            output=output,
            copies=left.copies,
            from_host=copied,
            full=left.cells[0],
            sliding=left.cells[1],
        ),
    )


def _host_load(devices: Devices, runs: Runs, left: _Left) -> Load:
    layers, host = devices.layers, left.blocks
    weighed = layers.loaded
    everything = runs.host == layers.blocks + 1
    return Load(
        weights=layers.weights_of(0, host)
        + sum(size for size, _ in left.bare)
        + weighed.input
        + everything * weighed.output
        + (host > 0) * weighed.copied
        + weighed.overridden.get(ON_HOST, 0),
        cache=layers.total if devices.kv_on_host else layers.cache_of(0, host),
        part=HostPart(
            alone=False if devices.helped else everything,
            partly=(host > 0) | (left.bare_layers > 0),
            helped=devices.helped,
            copies=left.copies,
        ),
    )


def loads_in(devices: Devices, assignment: Assignment) -> tuple[tuple[Load, ...], Load]:
    """The same of an assignment of any form."""
    opened = devices.opened
    hosted = [number for number, device in enumerate(assignment.blocks) if device == ON_HOST]
    full, sliding = devices.layers.host_cells_of(hosted)
    gpus = []
    for number in range(opened.gpus):
        part = part_of(opened, assignment, number)
        own = GpuPart(runs=False, first=True, output=False, copies=1)
        if part is not None:
            copied = NOTHING_COPIED if part.from_host is None else part.from_host
            own = GpuPart(
                runs=True,
                first=part.first,
                output=part.output,
                copies=part.copies,
                from_host=copied,
                full=full,
                sliding=sliding,
            )
        gpus.append(_load(devices, assignment, number, own))
    moved = bool(assignment.experts_on_host) or bool(assignment.largest_moved)
    on_host = HostPart(
        alone=not devices.helped and {*assignment.blocks, assignment.output} == {ON_HOST},
        partly=bool(hosted) or moved,
        helped=devices.helped,
        copies=whole_copies(opened) if assignment.everything else 1,
    )
    return tuple(gpus), _load(devices, assignment, ON_HOST, on_host)


def _load(devices: Devices, assignment: Assignment, device: int, part: GpuPart | HostPart) -> Load:
    opened = devices.opened
    if devices.kv_on_host:
        cache: Cache = devices.layers.total if device == ON_HOST else {}
    else:
        cache = devices.layers.cache_on([number for number, one in enumerate(assignment.blocks) if one == device])
    weighed = weighed_of(opened)
    weights = 0 if weighed is None else device_weights(opened, device, assignment, weighed)
    return Load(weights=weights, cache=cache, part=part)
