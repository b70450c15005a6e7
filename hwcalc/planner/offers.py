"""What a recommendation says, what may be wished of it, and its orders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from msgspec.structs import asdict

from hwcalc.answers import Answer
from hwcalc.documents import document_of
from hwcalc.engines.pool import Try
from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.model import Note
from hwcalc.planner.verdict import Verdict
from hwcalc.text import shown

DEFAULT_MOST: Final = 8
DEFAULT_LIMIT: Final = 20
LARGEST_MOST: Final = 64
DEFAULT_SORT: Final = "memory"


class Offer(Record):
    """Hardware that would do, planned. Bytes are those of the fullest GPU; null is unknown.

    ``also`` names the larger instances of the same cloud and accelerator that would do as well. ``total_bytes`` is what programs see of
    all its GPUs together. ``needed_low_bytes`` and ``needed_high_bytes`` are the ends of the estimate. ``max_batch`` and ``max_seq`` are
    the most sequences of the planned length and the longest of the planned number. ``notes`` are those that not every offer has.
    """

    gpu: str
    name: str
    vendor: str
    category: str | None
    instance: str | None
    also: tuple[str, ...]
    gpus: int
    tp: int
    pp: int
    dp: int
    ep: int
    verdict: Verdict
    total_bytes: int
    usable_bytes: int
    needed_bytes: int
    needed_low_bytes: int
    needed_high_bytes: int
    headroom_bytes: int
    max_batch: int | None
    max_seq: int | None
    decode_tokens_per_s_bound: float | None
    prefill_s_bound: float | None
    bound_by: str | None
    notes: tuple[Note, ...]


class Figures(NamedTuple):
    """The values of :class:`Offer` that a plan has, the dtype of its cache, and all its notes and warnings."""

    kv_dtype: str
    verdict: Verdict
    usable_bytes: int
    needed_bytes: int
    needed_low_bytes: int
    needed_high_bytes: int
    headroom_bytes: int
    max_batch: int | None
    max_seq: int | None
    decode_tokens_per_s_bound: float | None
    prefill_s_bound: float | None
    bound_by: str | None
    notes: tuple[Note, ...]
    warnings: tuple[Note, ...]


class Recommendation(Answer, Record):
    """What would do, in the order of ``sort`` with what is sure first, and what was left out.

    ``considered`` kinds of hardware: ``refused`` the engine does not run on, ``unknown`` have no known memory, ``too_small`` do
    not hold the sequences with up to ``max_gpus``, ``one_at_a_time`` of those because they are machines that cannot be linked, or
    only a few of them, and ``could_be_more`` of those because of ``max_gpus``. ``unsure_left_out`` fit by the expected value
    only. ``more`` offers are beyond the limit. Where nothing does, ``nearest`` comes closest, and ``message`` and ``suggestions``
    are its plan's.
    """

    schema_version: str
    kvplan_version: str
    model: str
    revision: str | None
    engine: str
    engine_version: str | None
    seq: int
    batch: int
    kv_dtype: str
    weights: str
    policy: str | None
    max_gpus: int
    sort: str
    considered: int
    refused: int
    unknown: int
    too_small: int
    one_at_a_time: int
    could_be_more: int
    unsure_left_out: int
    offers: tuple[Offer, ...]
    more: int
    nearest: Offer | None
    message: str
    suggestions: tuple[Try, ...]
    notes: tuple[Note, ...]

    def headline(self) -> str:
        best = f"{self.offers[0].gpus} x {self.offers[0].gpu} first" if self.offers else "nothing holds it"
        found = f"{len(self.offers) + self.more:,} would do, " if self.offers else ""
        return f"{self.model}, {self.seq:,} tokens x {self.batch:,}, {self.engine}: {found}{best}"

    def records(self) -> list[dict[str, Any]]:
        left_out = ("also", "notes")
        return [
            {name: document_of(value) for name, value in asdict(offer).items() if name not in left_out} for offer in self.offers
        ]

    __repr__ = Answer.__repr__


class Wishes(Record):
    """Which offers are wanted, and in which order.

    ``strict`` leaves out what is not sure to fit. A ``limit`` of 0 lists every offer. ``every`` lists instances with the same accelerator
    one by one. ``any_layout`` tries odd numbers of GPUs and every tp x pp x dp as well.
    """

    max_gpus: int = DEFAULT_MOST
    sort: str = DEFAULT_SORT
    strict: bool = False
    limit: int = DEFAULT_LIMIT
    every: bool = False
    any_layout: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.max_gpus <= LARGEST_MOST:
            raise UsageError(f"max-gpus is {self.max_gpus:,}.", hint=f"Allowed: a whole number from 1 to {LARGEST_MOST}.")
        if self.limit < 0:
            raise UsageError(f"limit is {self.limit:,}.", hint="Allowed: a whole number; 0 lists all.")
        if self.sort not in SORTS:
            raise UsageError(f"sort is {shown(self.sort, 40)}.", hint=f"Allowed: {', '.join(SORTS)}.")


def _speed(offer: Offer) -> float:
    return offer.decode_tokens_per_s_bound or 0.0


def _headroom(offer: Offer) -> float:
    return offer.headroom_bytes / offer.usable_bytes if offer.usable_bytes else 0.0


SORTS: Final[Mapping[str, Callable[[Offer], tuple[float, ...]]]] = MappingProxyType(
    {
        "memory": lambda offer: (offer.total_bytes,),
        "gpus": lambda offer: (offer.gpus, offer.total_bytes),
        "speed": lambda offer: (-_speed(offer),),
        "headroom": lambda offer: (-_headroom(offer),),
    }
)
"""Orders of the offers: least memory, fewest GPUs, most tokens per second by the bound, most of a GPU free. What is sure comes first."""
