"""How llama.cpp fits a model by itself: ``common_params_fit_impl`` (common/fit.cpp of llama.cpp 0c1e57098).

All layers on the GPUs if they fit. Else a dense model fills the GPUs with whole layers from the back; the first layers stay on the host.
A model with experts keeps all layers on the GPUs if that is possible with the experts of some on the host.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from hwcalc.engines.llamacpp.assignment import ON_HOST, Assignment, assign
from hwcalc.formulas import LayerNumbers
from hwcalc.formulas.frozen import frozen, replace

__all__ = ["Fitting", "fitted"]


@frozen
class Fitting:
    """What there is to fit. ``holds`` says whether a device holds what an assignment gives it.

    ``experts`` says for each block whether it has any. ``gpus`` are the numbers of the GPUs that are used.
    """

    blocks: int
    gpus: tuple[int, ...]
    ends: tuple[float, ...]
    experts: tuple[bool, ...]
    holds: Callable[[Assignment, int], bool]

    def all_hold(self, assignment: Assignment) -> bool:
        """Whether every GPU holds its part."""
        return all(self.holds(assignment, gpu) for gpu in self.gpus)


def fitted(fitting: Fitting) -> Assignment:
    """The assignment with the most on the GPUs."""
    whole = assign(fitting.blocks, fitting.blocks + 1, fitting.ends)
    if fitting.all_hold(whole):
        return whole
    if len(fitting.gpus) == 1:
        return _on_one(fitting, whole)
    return _on_several(fitting)


def _most(bound: int, good: Callable[[int], bool]) -> int:
    """The largest number from 0 to ``bound`` that is good; every smaller one is, and 0 counts as good."""
    return bisect_left(range(1, bound + 1), x=True, key=lambda number: not good(number))


def _hosted(fitting: Fitting, assignment: Assignment, numbers: range) -> Assignment:
    hosted = LayerNumbers(n for n in numbers if fitting.experts[n] and assignment.blocks[n] != ON_HOST)
    return replace(assignment, experts_on_host=hosted)


def _on_one(fitting: Fitting, whole: Assignment) -> Assignment:
    """On one GPU: the experts of the first layers go to the host, as ``--n-cpu-moe`` says it; then whole layers from the front."""
    blocks = fitting.blocks
    has_experts = any(fitting.experts)

    def without(first: int) -> Assignment:
        return _hosted(fitting, whole, range(first))

    if has_experts and fitting.all_hold(without(blocks)):
        kept = _most(blocks, lambda number: fitting.all_hold(without(blocks - number)))
        return without(blocks - kept)

    def last(layers: int) -> Assignment:
        some = assign(blocks, layers, fitting.ends)
        return _hosted(fitting, some, range(blocks)) if has_experts else some

    return last(_most(blocks + 1, lambda layers: fitting.all_hold(last(layers))))


@frozen
class _Run:
    """The layers of one GPU: whole ones, and after them some without their experts. The output counts as a whole one."""

    whole: int
    part: int

    @property
    def layers(self) -> int:
        return self.whole + self.part


def _on_several(fitting: Fitting) -> Assignment:
    """On several GPUs: runs of layers from the back, without experts at first; then whole layers again from the front."""
    runs = tuple(_Run(whole=0, part=0) for _ in fitting.gpus)
    for place in reversed(range(len(runs))):
        runs = _filled(fitting, runs, place)
    if any(fitting.experts) and sum(run.layers for run in runs) == fitting.blocks + 1:
        for place in range(len(runs)):
            runs = _made_whole(fitting, runs, place)
    return _assigned(fitting, runs)


def _filled(fitting: Fitting, runs: tuple[_Run, ...], place: int) -> tuple[_Run, ...]:
    """Give a GPU as many of the layers that are left as it holds. The output is always whole."""
    output = int(place == len(runs) - 1)

    def given(layers: int) -> tuple[_Run, ...]:
        part = max(0, layers - output) if any(fitting.experts) else 0
        return (*runs[:place], _Run(whole=layers - part, part=part), *runs[place + 1 :])

    left = fitting.blocks + 1 - sum(run.layers for run in runs)
    return given(_most(left, lambda layers: _holds(fitting, given(layers), place)))


def _made_whole(fitting: Fitting, runs: tuple[_Run, ...], place: int) -> tuple[_Run, ...]:
    """Give a GPU as many more whole layers as it holds: its own that lack their experts first, then those of the GPUs after it."""
    bound = sum(run.part for run in runs[place:])
    return _converted(runs, place, _most(bound, lambda count: _holds(fitting, _converted(runs, place, count), place)))


def _converted(runs: tuple[_Run, ...], place: int, count: int) -> tuple[_Run, ...]:
    out = list(runs)
    for other in range(place, len(out)):
        taken = min(count, out[other].part)
        count -= taken
        out[other] = replace(out[other], part=out[other].part - taken)
        out[place] = replace(out[place], whole=out[place].whole + taken)
    return tuple(out)


def _holds(fitting: Fitting, runs: tuple[_Run, ...], place: int) -> bool:
    return fitting.holds(_assigned(fitting, runs), fitting.gpus[place])


def _assigned(fitting: Fitting, runs: tuple[_Run, ...]) -> Assignment:
    """The device of each layer, from the length of the runs."""
    devices, hosted = [ON_HOST] * (fitting.blocks + 1 - sum(run.layers for run in runs)), list[int]()
    for gpu, run in zip(fitting.gpus, runs, strict=True):
        # The output is whole and comes last. llama.cpp counts it as if it came first, and keeps the experts of a block too many.
        last = gpu == fitting.gpus[-1] and run.layers > 0
        first = len(devices) + run.whole - last
        hosted += range(first, first + run.part)
        devices += [gpu] * run.layers
    experts = LayerNumbers(number for number in hosted if number < len(fitting.experts) and fitting.experts[number])
    return Assignment(blocks=tuple(devices[:-1]), output=devices[-1], experts_on_host=experts)
