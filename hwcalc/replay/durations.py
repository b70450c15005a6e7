"""The times of a replay's steps: a constant time, or that of the speed model for a deployment (:mod:`hwcalc.planner.step_time`)."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hwcalc.planner.step_time import StepTimes
    from hwcalc.replay.core import StepLoad

_POINTS: Final = tuple(sorted({0, *(round(64 * 2 ** (number / 2)) for number in range(37))}))
"""Contexts in tokens, up to 16 million, between which the time of a step that decodes is taken to grow evenly."""
_SHARP: Final = 32
"""Numbers of tokens of a step with a prompt are rounded to so many parts of themselves, which changes its time by at most 2%."""


class Constant:
    """Every step takes as long."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, load: StepLoad) -> float:
        return self.seconds


class Modelled:
    """The expected time of each step of a deployment; its ``end`` may be ``low`` or ``high`` too.

    A replay has very many steps that are nearly alike, so that times are kept: of steps that decode, by the number of requests at fixed
    contexts; of steps with prompts, by rounded numbers of tokens.
    """

    def __init__(self, times: StepTimes, end: str = "expected") -> None:
        self.times = times
        self.end = end
        self._decoding: dict[int, list[float]] = {}
        self._mixed: dict[tuple[int, ...], float] = {}

    def __call__(self, load: StepLoad) -> float:
        requests, prompt = load.decode_requests, load.prefill_tokens
        context = load.decode_tokens / requests + 1 if requests else 0.0
        if not prompt:
            return self._decode(requests, context)
        # One prompt with as many pairs stands for all.
        before = max(0.0, load.prefill_pairs / prompt - prompt / 2)
        passes = load.passes
        parts = (prompt // passes, int(before), requests // passes, int(context))
        key = (*map(_rounded, parts), load.prefill_ends // passes)
        seconds = self._mixed.get(key)
        if seconds is None:
            step = self.times.step(prompt_tokens=key[0], prompt_context=key[1], prompts=key[4], decoding=key[2], context=key[3])
            seconds = self._mixed[key] = float(getattr(step, self.end))
        return passes * seconds

    def _decode(self, requests: int, context: float) -> float:
        times = self._decoding.get(requests)
        if times is None:
            from numpy import array

            step = self.times.step(decoding=requests, context=array(_POINTS, dtype="float64"))
            times = self._decoding[requests] = [float(value) for value in getattr(step, self.end)]
        place = bisect_right(_POINTS, context) - 1
        if place + 1 >= len(_POINTS):
            return times[-1]
        low, high = _POINTS[place], _POINTS[place + 1]
        return times[place] + (times[place + 1] - times[place]) * (context - low) / (high - low)


def _rounded(number: int) -> int:
    """A number rounded so that its upper bits are left: 1,000 to 992."""
    unit = max(1, 1 << max(0, number.bit_length() - _SHARP.bit_length()))
    return (number + unit // 2) // unit * unit
