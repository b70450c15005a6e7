"""The layers of a model: the bytes of their weights and caches, and the device on which each lies (llama.cpp 0c1e57098).

Bytes are sums from the first layer on, so that any run of layers is a few look-ups. ``llama_model_base::load_tensors`` (src/llama-model.cpp)
divides layers as options say; ``common_params_fit_impl`` (common/fit.cpp) fits them: all layers on the GPUs if they fit. Else a dense model
fills the GPUs with whole layers from the back; the first layers stay on the host. A model with experts keeps all layers on the GPUs if that
is possible with the experts of some on the host.

Numbers of layers are integers for one context, and arrays for many contexts of any length and number of sequences.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from math import frexp, ldexp
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from msgspec import field

from hwcalc.engines.llamacpp.graph import cell_bytes
from hwcalc.engines.llamacpp.rules import RULES, CacheContext, Cells, ngram_state
from hwcalc.formulas import LayerNumbers
from hwcalc.formulas.arithmetic import Table, either, every, larger, last_good, smaller, some
from hwcalc.formulas.record import Record
from hwcalc.quantization.ggml import ROTARY

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.settings import Settings
    from hwcalc.engines.llamacpp.tensors import WeightGroup, WeightTensor
    from hwcalc.engines.stored import StoredTensor
    from hwcalc.formulas import LayerKind, Stack
    from hwcalc.parsers.gguf.hparams import Hparams

TupleT = TypeVar("TupleT", bound=tuple[Any, ...])

ON_HOST: Final = -1
"""The number of the host among the devices; GPUs are counted from 0."""
_NUMBERED: Final = r"(?a)[0-9]{1,3}\Z"


def device_of(buffer: str) -> int:
    """The number of the device of a buffer type, such as ``CUDA1``; the host for ``CPU`` and for names without a number."""
    match = re.search(_NUMBERED, buffer)
    return int(match[0]) if match else ON_HOST


class Assignment(Record):
    """The device of each block and of the output layer.

    ``experts_on_host`` are the blocks on GPUs whose experts lie on the host.
    """

    blocks: tuple[int, ...]
    output: int
    experts_on_host: LayerNumbers = field(default_factory=LayerNumbers)

    @property
    def gpu_layers(self) -> int:
        """The number of layers on GPUs, in which the output counts as a layer."""
        devices = *self.blocks, self.output
        return len(devices) - devices.count(ON_HOST)

    @property
    def everything(self) -> bool:
        """True if nothing that could lie on a GPU lies on the host."""
        return self.gpu_layers == len(self.blocks) + 1 and not self.experts_on_host

    def layers(self, device: int) -> LayerNumbers:
        """The blocks on a device."""
        return self._layers.get(device, LayerNumbers())

    @cached_property
    def _layers(self) -> dict[int, LayerNumbers]:
        layers: dict[int, list[int]] = {}
        for number, device in enumerate(self.blocks):
            layers.setdefault(device, []).append(number)
        return {device: LayerNumbers(numbers) for device, numbers in layers.items()}


def _single(number: float) -> float:
    """The number rounded to 32 bits, as llama.cpp computes it."""
    # 24 bits of it, and fewer below the smallest normal number.
    exponent = max(frexp(number)[1], -125) - 24
    return ldexp(round(ldexp(number, -exponent)), exponent)


def splits(shares: Sequence[float], gpus: int) -> tuple[float, ...]:
    """The end of the part of each GPU, from 0 to 1, from shares of any size. A missing share is 0; without shares all are equal.

    >>> splits((3, 1), 2), splits((), 4)
    ((0.75, 1.0), (0.25, 0.5, 0.75, 1.0))
    """
    given = [*shares[:gpus], *([0.0] * (gpus - len(shares)))]
    given = given if any(given) else [1.0] * gpus
    ends, total = [], 0.0
    for share in given:
        total = _single(total + _single(share))
        ends.append(total)
    return tuple(_single(end / total) for end in ends)


class Run(NamedTuple):
    """The layers of one GPU, from ``start`` to before ``end``; the last of all is the output.

    The experts of those from ``bare_from`` to before ``bare_to`` lie on the host.
    """

    start: int = 0
    end: int = 0
    bare_from: int = 0
    bare_to: int = 0


class Runs(NamedTuple):
    """The first ``host`` layers lie on the host, and each GPU has a run of the others."""

    host: int
    gpus: tuple[Run, ...]

    def assignment(self, experts: Sequence[bool], moved: Collection[int] = ()) -> Assignment:
        """The device of each layer of one context.

        ``experts`` says for each block whether it has any that follow the runs, and ``moved`` are blocks whose experts the user has put in
        host memory.
        """
        devices = [ON_HOST] * (len(experts) + 1)
        hosted: set[int] = set()
        for gpu, run in enumerate(self.gpus):
            devices[run.start : run.end] = [gpu] * (run.end - run.start)
            hosted.update(number for number in range(run.bare_from, run.bare_to) if number < len(experts) and experts[number])
        hosted.update(number for number in moved if devices[number] != ON_HOST)
        return Assignment(blocks=tuple(devices[:-1]), output=devices[-1], experts_on_host=LayerNumbers(sorted(hosted)))


@lru_cache(maxsize=256)
def divided(blocks: int, gpu_layers: int, ends: tuple[float, ...]) -> Runs:
    """The last ``gpu_layers`` layers, of which the output is the very last, lie on the GPUs; ``ends`` divide them.

    >>> divided(32, 10, (1.0,)).gpus[0][:2], divided(32, 1, (1.0,)).gpus[0][:2]
    ((23, 33), (32, 33))
    >>> [run[:2] for run in divided(32, 33, (0.5, 1.0)).gpus]
    [(0, 17), (17, 33)]
    """
    start, active = max(blocks + 1 - gpu_layers, 0), min(gpu_layers, blocks + 1) if ends else 0
    starts = [blocks + 1] * len(ends)
    counts = [0] * len(ends)
    for number in range(start, start + active):
        place = _single((number - start) / active)
        gpu = min(sum(end <= place for end in ends), len(ends) - 1)
        starts[gpu] = min(starts[gpu], number)
        counts[gpu] += 1
    runs = (Run(first, first + count) if count else Run() for first, count in zip(starts, counts, strict=True))
    return Runs(blocks + 1 - active, tuple(runs))


class Fitting(Record):
    """The input of a fit. ``holds`` tells whether a GPU holds its run.

    ``experts`` says whether any block has them. ``ends`` has an end for each GPU; only those count to which a block goes if all do.
    """

    blocks: int
    ends: tuple[float, ...]
    experts: bool
    holds: Callable[[Runs, int], bool]

    @property
    def whole(self) -> Runs:
        """The runs with all layers on the GPUs."""
        return divided(self.blocks, self.blocks + 1, self.ends)

    def all_hold(self, runs: Runs, gpus: Sequence[int]) -> bool:
        """True if each of these GPUs holds its run."""
        held = self.holds(runs, gpus[0])
        for gpu in gpus[1:]:
            held = held is not False and held & self.holds(runs, gpu)
        return held


def fitted(fitting: Fitting) -> Runs:
    """The runs with the most layers on the GPUs that the GPUs hold."""
    whole, blocks = fitting.whole, fitting.blocks
    gpus = tuple(gpu for gpu, run in enumerate(whole.gpus) if min(run.end, blocks) > run.start)
    held = fitting.all_hold(whole, gpus)
    if every(held):
        return whole
    others = _on_one(fitting, whole, gpus) if len(gpus) == 1 else _on_several(fitting, gpus)
    return _chosen(held, whole, others) if some(held) else others


def _chosen(condition: bool, yes: TupleT, no: TupleT) -> TupleT:
    """The numbers of ``yes`` where the condition holds, else those of ``no``."""
    pairs = zip(yes, no, strict=True)
    made = [_chosen(condition, *pair) if isinstance(pair[0], tuple) else either(condition, *pair) for pair in pairs]
    return type(yes)._make(made) if hasattr(yes, "_make") else type(yes)(made)


def _on_one(fitting: Fitting, whole: Runs, gpus: tuple[int, ...]) -> Runs:
    """The runs that fit on a single GPU: the experts of the first layers go to the host, as ``--n-cpu-moe`` says it.

    Then whole layers from the front.
    """
    blocks, (gpu,) = fitting.blocks, gpus

    def without(first: int) -> Runs:
        return Runs(0, tuple(run._replace(bare_to=first) if number == gpu else run for number, run in enumerate(whole.gpus)))

    last = _tails(fitting, whole, gpu)
    if not fitting.experts:
        return last(last_good(blocks + 1, lambda layers: fitting.all_hold(last(layers), gpus)))
    bare = fitting.all_hold(without(blocks), gpus)
    kept = last_good(blocks, lambda number: fitting.all_hold(without(blocks - number), gpus)) if some(bare) else 0
    if every(bare):
        return without(blocks - kept)
    some_layers = last(last_good(blocks + 1, lambda layers: fitting.all_hold(last(layers), gpus)))
    return _chosen(bare, without(blocks - kept), some_layers) if some(bare) else some_layers


def _tails(fitting: Fitting, whole: Runs, gpu: int) -> Callable[[int], Runs]:
    """A function from a number of last layers to the runs that put them on the GPU, without their experts."""
    blocks, every_gpu = fitting.blocks, range(len(whole.gpus))
    alone = whole.gpus[gpu].end > blocks
    # A GPU can have the output alone; then which layers lie where is as llama.cpp divides them.
    each = [] if alone else [divided(blocks, layers, fitting.ends) for layers in range(blocks + 2)]
    tables = [[Table(one.gpus[number][place] for one in each) for place in (0, 1)] for number in (() if alone else every_gpu)]

    def last(layers: int) -> Runs:
        runs = []
        for number in every_gpu:
            if not alone:
                start, end = (table.at(layers) for table in tables[number])
            else:
                start, end = (blocks + 1 - layers, blocks + 1) if number == gpu else (0, 0)
            bare = (smaller(start, blocks), smaller(end, blocks)) if fitting.experts else (0, 0)
            runs.append(Run(start, end, *bare))
        return Runs(blocks + 1 - layers, tuple(runs))

    return last


class _Part(NamedTuple):
    """The layers of one GPU: whole ones, and after them some without their experts. The output counts as a whole one."""

    whole: int = 0
    part: int = 0

    @property
    def layers(self) -> int:
        return self.whole + self.part


Parts = tuple[_Part, ...]


def _on_several(fitting: Fitting, gpus: tuple[int, ...]) -> Runs:
    """The runs that fit on several GPUs: runs of layers from the back, without experts at first.

    Then whole layers again from the front.
    """
    parts: Parts = tuple(_Part() for _ in gpus)
    for place in reversed(range(len(parts))):
        parts = _filled(fitting, parts, place, gpus)
    if fitting.experts:
        complete = sum(part.layers for part in parts) == fitting.blocks + 1
        made = parts
        for place in range(len(parts)) if some(complete) else ():
            made = _made_whole(fitting, made, place, gpus)
        parts = made if every(complete) else _chosen(complete, made, parts)
    return _laid(fitting, parts, gpus)


def _filled(fitting: Fitting, parts: Parts, place: int, gpus: tuple[int, ...]) -> Parts:
    """The parts, where this GPU has as many of the remaining layers as it holds. The output always has its experts."""
    output = int(place == len(parts) - 1)

    def given(layers: int) -> Parts:
        whole = smaller(layers, output) if fitting.experts else layers
        return (*parts[:place], _Part(whole, layers - whole), *parts[place + 1 :])

    left = fitting.blocks + 1 - sum(part.layers for part in parts)
    return given(last_good(left, lambda layers: fitting.holds(_laid(fitting, given(layers), gpus), gpus[place])))


def _made_whole(fitting: Fitting, parts: Parts, place: int, gpus: tuple[int, ...]) -> Parts:
    """The parts, where this GPU has as many more whole layers as it holds.

    They are first its own layers that lack their experts, then layers of the GPUs after it.
    """
    bound = sum(part.part for part in parts[place:])
    count = last_good(bound, lambda count: fitting.holds(_laid(fitting, _converted(parts, place, count), gpus), gpus[place]))
    return _converted(parts, place, count)


def _converted(parts: Parts, place: int, count: int) -> Parts:
    out = list(parts)
    for other in range(place, len(out)):
        taken = smaller(count, out[other].part)
        count = count - taken
        out[other] = _Part(out[other].whole, out[other].part - taken)
        out[place] = _Part(out[place].whole + taken, out[place].part)
    return tuple(out)


def _laid(fitting: Fitting, parts: Parts, gpus: tuple[int, ...]) -> Runs:
    """The runs of each GPU, from their lengths."""
    start = host = fitting.blocks + 1 - sum(part.layers for part in parts)
    runs = dict.fromkeys(range(len(fitting.ends)), Run())
    for gpu, part in zip(gpus, parts, strict=True):
        # The output is whole and comes last. llama.cpp counts it as if it came first, and keeps the experts of a block too many.
        first = start + part.whole - (part.layers > 0) * (gpu == gpus[-1])
        runs[gpu] = Run(start, start + part.layers, first, first + part.part)
        start = start + part.layers
    return Runs(host, tuple(runs.values()))


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
        """For each block, True if it has experts."""
        return tuple(bool(experts) for experts, _ in self.blocks)

    @cached_property
    def has_experts(self) -> bool:
        """True if any block has experts."""
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
        self._of_layers: dict[tuple[int, bool], dict[Unit, int]] = {}

    def _of_layer(self, number: int) -> Cache:
        """The cache of one layer. Layers that are one object share it."""
        layer, acted_on = self.stack.layers[number], self._acted_on is None or number in self._acted_on
        known = self._of_layers.get((id(layer), acted_on))
        if known is None:
            known = self._of_layers[id(layer), acted_on] = dict[Unit, int]()
            for kind in layer:
                for size, each in self.units[kind].items():
                    unit = Unit(size, self._acted_on is not None and not (acted_on and kind.acts_by_token))
                    known[unit] = known.get(unit, 0) + each
        return known

    @cached_property
    def total(self) -> Cache:
        """The cache of all layers, with layers beyond the blocks of the file."""
        cache = dict(self.extras)
        for number in range(len(self.stack.layers)):
            for unit, each in self._of_layer(number).items():
                cache[unit] = cache.get(unit, 0) + each
        return cache

    @cached_property
    def _cache(self) -> dict[Unit, Table]:
        """The cache of the first so many blocks."""
        cached = min(self.blocks, len(self.stack.layers))
        each = [*map(self._of_layer, range(cached)), *[dict[Unit, int]()] * (self.blocks - cached)]
        units = dict.fromkeys(unit for cache in self._of_layers.values() for unit in cache)
        return {unit: Table(accumulate([cache.get(unit, 0) for cache in each], initial=0)) for unit in units}

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
    def widest(self) -> tuple[Table, Table]:
        """Bytes of a cell of the widest of the first so many blocks, without a window and with one."""
        widest: tuple[list[int], list[int]] = ([0], [0])
        for number in range(self.blocks):
            slides = bool(self._read.is_swa[number])
            for window in (False, True):
                each = cell_bytes(self._read, self._single, number) if window is slides else 0
                widest[window].append(max(widest[window][-1], each))
        return Table(widest[0]), Table(widest[1])
