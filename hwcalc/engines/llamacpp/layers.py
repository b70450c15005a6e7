"""Weights and caches of the layers of a model: sums from the first layer on, so that any run of layers is a few look-ups.

Numbers of layers are integers for one context, and arrays for many contexts of any length and number of sequences.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import field

from hwcalc.engines.llamacpp.fitting import ON_HOST, Run, Runs, device_of
from hwcalc.engines.llamacpp.graph import cell_bytes
from hwcalc.engines.llamacpp.rules import RULES, CacheContext, Cells, ngram_state
from hwcalc.formulas.arithmetic import Table, larger, smaller
from hwcalc.formulas.record import Record
from hwcalc.quantization.ggml import ROTARY

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.settings import Settings
    from hwcalc.engines.llamacpp.tensors import WeightGroup, WeightTensor
    from hwcalc.engines.stored import StoredTensor
    from hwcalc.formulas import LayerKind, Stack
    from hwcalc.parsers.gguf.hparams import Hparams

STATES: Final = "n_seq_max"
"""The size by which recurrent states grow: there is one for each sequence, in no stream."""


class Weighed(Record):
    """Bytes of tensors by where they may lie. ``blocks`` are pairs: experts, and all else of a block.

    ``tied`` is the token embedding where it is the output as well: a GPU that has the output has a copy of it. ``copied`` is on every device
    that has a block. ``overridden`` has what the user has put on a device, which no longer counts elsewhere.
    """

    input: int = 0
    output: int = 0
    tied: int = 0
    copied: int = 0
    blocks: tuple[tuple[int, int], ...]
    overridden: Mapping[int, int] = field(default_factory=dict)
    experts_moved: frozenset[int] = frozenset()
    """Blocks all of whose experts the user has put in host memory."""
    largest_moved: int = 0
    """Bytes of the largest tensor of a block among what the user has put there."""

    @property
    def total(self) -> int:
        """Bytes of all tensors, each counted once."""
        blocks = sum(experts + rest for experts, rest in self.blocks)
        return self.input + self.output + self.copied + blocks + sum(self.overridden.values())

    @cached_property
    def experts(self) -> tuple[bool, ...]:
        """Whether each block has experts."""
        return tuple(bool(experts) for experts, _ in self.blocks)

    @cached_property
    def has_experts(self) -> bool:
        """Whether any block has experts."""
        return any(self.experts)

    @cached_property
    def _sums(self) -> tuple[Table, Table, Table]:
        """Tables by number of first blocks: their bytes, the bytes of their experts, and the number of blocks with experts."""
        return (
            Table(accumulate((experts + rest for experts, rest in self.blocks), initial=0)),
            Table(accumulate((experts for experts, _ in self.blocks), initial=0)),
            Table(accumulate(map(int, self.experts), initial=0)),
        )

    def without_experts(self, run: Run) -> tuple[int, int]:
        """The start and the end (exclusive) of the blocks of a run whose experts lie on the host."""
        start = smaller(run.bare_from, len(self.blocks))
        return start, larger(start, smaller(run.bare_to, len(self.blocks)))

    def experts_on_host(self, run: Run) -> tuple[int, int]:
        """Bytes of the experts of a run that lie on the host, and how many blocks have any there."""
        if not self.has_experts:
            return 0, 0
        start, end = self.without_experts(run)
        _, experts, counts = self._sums
        return experts.at(end) - experts.at(start), counts.at(end) - counts.at(start)

    def on_gpu(self, runs: Runs, gpu: int) -> int:
        """Bytes of tensors that lie on a GPU."""
        run, blocks, sums = runs.gpus[gpu], len(self.blocks), self._sums[0]
        start, end = smaller(run.start, blocks), smaller(run.end, blocks)
        has_output = (run.end > run.start) & (run.end > blocks)
        layers: int = sums.at(end) - sums.at(start) - self.experts_on_host(run)[0] + (end > start) * self.copied
        return layers + has_output * (self.output + self.tied) + self.overridden.get(gpu, 0)

    def on_host(self, runs: Runs) -> int:
        """Bytes of tensors that lie on the host, where the output is the embedding itself."""
        blocks = len(self.blocks)
        host = smaller(runs.host, blocks)
        layers: int = self._sums[0].at(host) + sum(self.experts_on_host(run)[0] for run in runs.gpus) + (host > 0) * self.copied
        return layers + self.input + (runs.host > blocks) * self.output + self.overridden.get(ON_HOST, 0)


def weigh(tensors: Iterable[tuple[WeightTensor, tuple[int, ...]]], blocks: int) -> Weighed:
    """The bytes of the tensors by where llama.cpp loads them. Each tensor is given with the layers of its group."""
    sizes, overridden = {"input": 0, "output": 0, "tied": 0, "copied": 0}, dict[int, int]()
    # Most tensors are in the same layers as others.
    alike: dict[tuple[int, ...], list[int]] = {}
    moved, largest = set(), 0
    for tensor, layers in tensors:
        if tensor.buffer is not None:
            # Both copies of a table go to the same buffer, where they are one.
            device = device_of(tensor.buffer)
            overridden[device] = overridden.get(device, 0) + (0 if tensor.copy else len(layers) * tensor.bytes)
            if tensor.role == "layer" and device == ON_HOST:
                moved |= {*layers} if tensor.expert else set()
                largest = max(largest, tensor.bytes)
        elif tensor.role == "layer" and not tensor.name.startswith(ROTARY):
            alike.setdefault(layers, [0, 0])[0 if tensor.expert else 1] += tensor.bytes
        else:
            name = "tied" if tensor.copy else "copied" if tensor.role == "layer" else tensor.role
            sizes[name] += len(layers) * tensor.bytes
    each = [[0, 0] for _ in range(blocks)]
    for layers, (experts, rest) in alike.items():
        for layer in layers:
            block = each[min(layer, blocks - 1)]
            block[0] += experts
            block[1] += rest
    sums = tuple((experts, rest) for experts, rest in each)
    wholly = frozenset(layer for layer in moved if layer < blocks and not sums[layer][0])
    return Weighed(**sizes, blocks=sums, overridden=overridden, experts_moved=wholly, largest_moved=largest)


class Unit(NamedTuple):
    """The name of the size in :class:`~hwcalc.engines.llamacpp.settings.Settings` to which a part of a cache is proportional.

    ``left_alone`` parts are of layers on which the policy does not act: their context is that without the policy.
    """

    size: str
    left_alone: bool = False


Cache = Mapping[Unit, int]
"""Bytes of a cache for one of each unit: for a cell of a stream, or for a sequence."""


def cache_bytes(cache: Cache, settings: Settings, uncut: Settings) -> int:
    """The bytes of a cache in a context; ``uncut`` are the settings where no policy acts."""
    size = 0
    for unit, each in cache.items():
        context = uncut if unit.left_alone else settings
        count = getattr(context, unit.size)
        size = size + each * (count if unit.size == STATES else context.n_stream * count)
    return size


def units_of(tensors: Iterable[StoredTensor]) -> dict[str, int]:
    """The cache of a layer from its tensors in a context of one sequence, by the names of the sizes."""
    units: dict[str, int] = {}
    for tensor in tensors:
        size, positions = (tensor.span.size, tensor.positions) if isinstance(tensor.span, Cells) else (STATES, 1)
        units[size] = units.get(size, 0) + tensor.bytes // positions
    return units


class _Largest:
    """Answers for the largest of some numbers in any range of positions; 0 for an empty range."""

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
    """The layers of a model as they are loaded and cached, with sums from the first on."""

    def __init__(
        self,
        read: Hparams,
        stack: Stack,
        single: Settings,
        weighed: Weighed,
        groups: Iterable[WeightGroup],
        acted_on: Collection[int] | None = None,
    ) -> None:
        """``single`` are the settings of a context of one sequence, and ``groups`` are all tensors.

        ``acted_on`` are the blocks in which a policy drops tokens; ``None`` is all.
        """
        self.weighed = weighed
        self.blocks = len(weighed.blocks)
        self._read, self.stack, self._single, self._groups, self._acted_on = read, stack, single, groups, acted_on
        context = CacheContext(single, read, 1)
        self.units: Mapping[LayerKind, Mapping[str, int]] = {
            group.kind: units_of(RULES[type(group.kind).__name__](group.kind, context)) for group in stack.groups
        }
        """The cache of a layer of each kind."""
        self.extras = {Unit(size): each for size, each in units_of(ngram_state(context)).items()}
        """What belongs to no layer, and lies beside the last block."""

    def _add_layer(self, cache: dict[Unit, int], number: int) -> None:
        for kind in self.stack.layers[number]:
            left_alone = self._acted_on is not None and not (number in self._acted_on and kind.acts_by_token)
            for size, each in self.units[kind].items():
                unit = Unit(size, left_alone)
                cache[unit] = cache.get(unit, 0) + each

    @cached_property
    def total(self) -> Cache:
        """The cache of all layers, with layers beyond the blocks of the file."""
        cache = dict(self.extras)
        for number in range(len(self.stack.layers)):
            self._add_layer(cache, number)
        return cache

    @cached_property
    def _cache(self) -> dict[Unit, Table]:
        """The cache of the first so many blocks."""
        each: list[dict[Unit, int]] = [{} for _ in range(self.blocks)]
        for number in range(min(self.blocks, len(self.stack.layers))):
            self._add_layer(each[number], number)
        units = dict.fromkeys(unit for cache in each for unit in cache)
        return {unit: Table(accumulate((cache.get(unit, 0) for cache in each), initial=0)) for unit in units}

    def cache_of(self, start: int, end: int) -> Cache:
        """The cache of a run of blocks. The last block has what belongs to no layer."""
        cache = {unit: table.at(end) - table.at(start) for unit, table in self._cache.items()}
        if self.extras:
            last = ((end == self.blocks) & (end > start)) * 1
            for unit, size in self.extras.items():
                cache[unit] = cache.get(unit, 0) + last * size
        return cache

    @cached_property
    def _largest(self) -> tuple[Table, _Largest]:
        """Tables with the bytes of the largest tensor: of the first blocks by their number, and of the experts of a range of blocks."""
        most = [[0, 0] for _ in range(self.blocks)]
        for group in self._groups:
            tensor = group.first
            for layer in () if tensor.tower else group.blocks:
                if 0 <= layer < self.blocks:
                    most[layer][tensor.expert] = max(most[layer][tensor.expert], tensor.bytes)
        first = accumulate(map(max, most), max, initial=0)
        return Table(first), _Largest(experts for _, experts in most)

    def largest_on_host(self, host: int, runs: Iterable[Run]) -> int:
        """Bytes of the largest tensor of the host that a GPU copies for a batch: of its ``host`` blocks, of experts, of what patterns moved."""
        first, experts = self._largest
        size = larger(first.at(host), self.weighed.largest_moved)
        for run in runs if self.weighed.has_experts else ():
            size = larger(size, experts.between(*self.weighed.without_experts(run)))
        most: int = size
        return most

    @cached_property
    def _widest(self) -> tuple[Table, Table]:
        """Bytes of a cell of the widest of the first so many blocks, without a window and with one."""
        widest: tuple[list[int], list[int]] = ([0], [0])
        for number in range(self.blocks):
            slides = bool(self._read.is_swa[number])
            for window in (False, True):
                each = cell_bytes(self._read, self._single, number) if window is slides else 0
                widest[window].append(max(widest[window][-1], each))
        return Table(widest[0]), Table(widest[1])

    def widest_cells(self, host: int) -> tuple[int, int]:
        """Bytes of a cell of the widest of the first ``host`` blocks, without a window and with one."""
        full, sliding = self._widest
        return full.at(host), sliding.at(host)
