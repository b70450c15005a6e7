"""What vLLM is asked at each length by itself: where the layout, or the batch, is as long as the longest sequence.

So it is in V0, whose batch is a whole prompt by default, for encoders, and where a state has one block of all tokens; and at the first lengths
of every model, at which a batch is not full.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import product
from typing import Any, Final, NamedTuple

from hwcalc.engines.budget import Section
from hwcalc.engines.forms import ENDS, Asked, AskedCurve, Curve, PartForm
from hwcalc.engines.vllm.opened import VllmOpened, of_vllm
from hwcalc.formulas.arithmetic import larger, mapped
from hwcalc.formulas.record import Record

__all__ = ["BlockPool", "FirstParts", "Lengths", "asked_curve", "asked_parts", "lengths_of"]

_MOST_KEPT: Final = 65_536
"""Lengths of which the numbers are kept at a time: as many as a sweep asks about at once."""


class AtLength(NamedTuple):
    """Bytes of one sequence on the fullest GPU and on all, of a block, and of the parts of each section at each end."""

    one: int
    whole: int
    block: int
    sections: dict[tuple[str, str], int]


Lengths = Callable[[int], AtLength]


def lengths_of(opened: VllmOpened) -> Lengths:
    """The numbers at each length. They go with whoever asked: a family, which other plans share too, would keep every length for good."""
    return lru_cache(maxsize=_MOST_KEPT)(partial(_at, opened))


def _at(opened: VllmOpened, tokens: int) -> AtLength:
    one, hardware = of_vllm(opened.sized(seq=tokens, batch=1)), opened.request.hardware
    budget = one.budget if hardware.gpu is not None and hardware.kv_memory is None else None
    parts = () if budget is None else budget.parts
    sections = {
        (section.value, end): sum(getattr(part, end) for part in parts if part.section is section)
        for section in Section
        for end in ENDS
    }
    return AtLength(one.needed_bytes, one.stored_bytes, max(one.layout.stage_bytes, default=0), sections)


def asked_curve(lengths: Lengths) -> Curve:
    """The cache."""
    return AskedCurve(one=lambda tokens: lengths(tokens).one, whole=lambda tokens: lengths(tokens).whole)


def asked_parts(lengths: Lengths) -> tuple[PartForm, ...]:
    """The parts of the equation, those of a section together."""

    def amount(section: str, end: str) -> Asked:
        return Asked(rule=lambda tokens: lengths(tokens).sections[section, end], alone=True)

    def part(section: str) -> PartForm:
        low, expected, high = (amount(section, end) for end in ENDS)
        return PartForm(name=section, section=section, low=low, expected=expected, high=high)

    return tuple(part(section.value) for section in Section)


def _first(opened: VllmOpened, tokens: int) -> Mapping[tuple[str, str], int]:
    """The parts of the equation by name and end, at one length."""

    def found() -> dict[tuple[str, str], int]:
        budget = opened.sized(seq=tokens, batch=1).budget
        sizes: dict[tuple[str, str], int] = defaultdict(int)
        for part, end in product(() if budget is None else budget.parts, ENDS):
            sizes[part.name, end] += getattr(part, end)
        return sizes

    return opened.shared(("parts of a short batch", tokens), found)


class FirstParts(Sequence[int]):
    """The bytes of a part of the equation at the first ``lengths``, each found when it is asked for."""

    def __init__(self, *, opened: VllmOpened, name: str, end: str, lengths: int) -> None:
        self.opened = opened
        self.name = name
        self.end = end
        self.lengths = lengths

    def __len__(self) -> int:
        return self.lengths

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return tuple(self[number] for number in range(self.lengths)[place])
        if not 0 <= place < self.lengths:
            raise IndexError(place)
        return _first(self.opened, place + 1)[self.name, self.end]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash((self.name, self.end, self.lengths))


class BlockPool(Record):
    """Blocks of a budget, or ``override`` of them, without the ``null`` one; each of the ``schedulers`` has its share, and of the sequences.

    Without ``lengths`` a block has ``width`` bytes at every length.
    """

    curve: Curve
    width: int
    lengths: Lengths | None
    null: int
    schedulers: int
    override: int | None

    def hold(self, budget_bytes: int, tokens: int, sequences: int) -> bool:
        """Whether so many sequences of a replica fit."""
        lengths = self.lengths
        width = self.width if lengths is None else mapped(lambda length: lengths(length).block, tokens)
        blocks = budget_bytes // width if self.override is None else self.override
        own = larger(blocks - self.null, 0) // self.schedulers
        held: bool = own >= -(-sequences // self.schedulers) * (self.curve.needed_bytes(tokens, 1) // width)
        return held
