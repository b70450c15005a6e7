"""The lengths of a layer while text is generated: step by step, and what they come to without following the steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hwcalc.formulas.record import Record
from hwcalc.policies.base import Start

__all__ = ["CutAbove", "CutAtLengths", "CutEachStep", "Ends", "Growing", "Walk", "ends_of_steps", "larger", "sawtooth"]


class Ends(Record):
    """What the decode steps of a layer come to: its length at the end, the most behind a step and within one, and the first of the largest
    cuts, from so many tokens to so many; ``None`` if nothing is cut.
    """

    last: int
    most: int
    most_within: int
    largest: tuple[int, int] | None = None

    @property
    def cut(self) -> bool:
        """Whether anything is cut."""
        return self.largest is not None


class Walk:
    """The length of a layer in each decode step, before and behind its cut; and :meth:`ends`, which follows from the rule at once."""

    def __iter__(self) -> Iterator[tuple[int, int]]:
        raise NotImplementedError

    def ends(self) -> Ends:
        """The same as :func:`ends_of_steps` of all steps."""
        raise NotImplementedError


def ends_of_steps(start: Start, steps: Iterable[tuple[int, int]]) -> Ends:
    """What the steps come to, one by one."""
    last = most = within = start.length
    largest: tuple[int, int] | None = None
    for before, after in steps:
        last, most, within = after, max(most, after), max(within, before)
        largest = larger(largest, (before, after))
    return Ends(last=last, most=most, most_within=within, largest=largest)


def larger(known: tuple[int, int] | None, cut: tuple[int, int]) -> tuple[int, int] | None:
    """The larger of two cuts; the first if they are equal."""
    dropped = 0 if known is None else known[0] - known[1]
    return cut if cut[0] - cut[1] > dropped else known


def sawtooth(start: Start, first: int, budget: int, every: int) -> Ends:
    """A first cut to ``budget`` in step ``first``, and the next ones every so many steps."""
    length, steps = start.length, start.steps
    if first > steps:
        return Growing(start=start).ends()
    rest = steps - first
    return Ends(
        last=budget + rest % every,
        most=max(length + first - 1, budget + min(rest, every - 1)),
        most_within=max(length + first, budget + min(rest, every)),
        largest=larger((length + first, budget), (budget + every if rest >= every else budget, budget)),
    )


class Growing(Walk, Record):
    """One token a step, and nothing is cut."""

    start: Start

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for step in range(1, self.start.steps + 1):
            yield self.start.length + step, self.start.length + step

    def ends(self) -> Ends:
        last = self.start.length + self.start.steps
        return Ends(last=last, most=last, most_within=last)


class CutEachStep(Walk, Record):
    """Where a step goes over the budget, ``drop`` tokens go, or as many as are over."""

    start: Start
    budget: int
    drop: int = 1

    def __iter__(self) -> Iterator[tuple[int, int]]:
        length = self.start.length
        for _ in range(self.start.steps):
            before = length + 1
            length = before if before <= self.budget else before - max(self.drop, before - self.budget)
            yield before, length

    def ends(self) -> Ends:
        length, budget, drop = self.start.length, self.budget, self.drop
        first = max(1, budget - length + 1)
        rest = self.start.steps - first
        if rest < 0:
            return Growing(start=self.start).ends()
        before = length + first
        after = before - max(drop, before - budget)
        # From the second cut on it goes from budget + 1 - drop to the budget, again and again.
        waits = budget - after + 1
        last = after + rest if rest < waits else budget + 1 - drop + (rest - waits) % drop
        most, within = (after + min(rest, waits - shorter) for shorter in (1, 0))
        return Ends(last=last, most=max(before - 1, most), most_within=max(before, within), largest=(before, after))


class CutAtLengths(Walk, Record):
    """Cut to the budget in the step behind the one at which the whole text, dropped tokens too, has a multiple of ``every`` tokens.

    With a prompt of 100 and 128, 128: the text has 128 tokens behind step 28, and step 29 goes from 129 to 128.
    Source: Zefan-Cai/R-KV d15c976, CausalLM_forward with step_length.
    """

    start: Start
    budget: int
    every: int

    def __iter__(self) -> Iterator[tuple[int, int]]:
        length, text = self.start.length, self.start.prompt
        for _ in range(self.start.steps):
            before = length + 1
            length = self.budget if text % self.every == 0 and before > self.budget else before
            text += 1
            yield before, length

    def ends(self) -> Ends:
        every = self.every
        due = -self.start.prompt % every + 1
        # The first step at which it is due and above the budget.
        above = self.budget - self.start.length + 1
        return sawtooth(self.start, due + every * -(min(0, due - above) // every), self.budget, every)


class CutAbove(Walk, Record):
    """Cut to the budget in the step that reaches the budget and ``every`` tokens."""

    start: Start
    budget: int
    every: int

    def __iter__(self) -> Iterator[tuple[int, int]]:
        length = self.start.length
        for _ in range(self.start.steps):
            before = length + 1
            length = self.budget if before >= self.budget + self.every else before
            yield before, length

    def ends(self) -> Ends:
        return sawtooth(self.start, max(1, self.budget + self.every - self.start.length), self.budget, self.every)
