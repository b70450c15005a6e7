"""Which layers lie on which device: as options divide them, and as llama.cpp fits them by itself (llama.cpp 0c1e57098).

``llama_model_base::load_tensors`` (src/llama-model.cpp) divides layers; ``common_params_fit_impl`` (common/fit.cpp) fits them: all layers
on the GPUs if they fit. Else a dense model fills the GPUs with whole layers from the back; the first layers stay on the host. A model with
experts keeps all layers on the GPUs if that is possible with the experts of some on the host.

The numbers of layers are integers for one context, and arrays for many contexts of any length and number of sequences.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from functools import cached_property, lru_cache
from math import frexp, ldexp
from typing import Any, Final, NamedTuple, TypeVar

from msgspec import field

from hwcalc.formulas import LayerNumbers
from hwcalc.formulas.arithmetic import Table, either, every, last_good, smaller, some
from hwcalc.formulas.record import Record

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
        """Whether nothing that could lie on a GPU lies on the host."""
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
        """Whether each of these GPUs holds its run."""
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
