"""What a recommendation says: records, whose fields are the JSON document."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from hwcalc.documents import Answer, document_of
from hwcalc.engines.pool import Try
from hwcalc.formulas.record import Record
from hwcalc.hardware.candidates import Availability
from hwcalc.model import Note
from hwcalc.planner.speed_result import CostInfo, cost_row
from hwcalc.planner.verdict import Verdict


class Offer(Record):
    """Hardware that would do, planned. Bytes are those of the fullest GPU; null is unknown.

    ``also`` names the larger instances of the same cloud and accelerator that would do as well. ``total_bytes`` is what programs see of
    all its GPUs together. ``needed_low_bytes`` and ``needed_high_bytes`` are the ends of the estimate. ``max_batch`` and ``max_seq`` are
    the most sequences of the planned length and the longest of the planned number. ``availability`` is how people get it: ``rent``,
    ``buy`` or ``rare``. Several ``nodes`` are joined by a network, for which the bound on speed counts nothing. ``weights`` is the format,
    null as published. ``notes`` are those that not every offer has. Within limits of time ``users`` are served by the expected times and
    ``users_low`` by the slow end of their range; ``ttft_s`` and ``itl_s`` are the expected times of the planned ones. Where prices are asked
    for, ``cost`` is what the hardware costs.
    """

    gpu: str
    name: str
    vendor: str
    category: str | None
    instance: str | None
    also: tuple[str, ...]
    availability: Availability
    released: int | None
    gpus: int
    nodes: int
    tp: int
    pp: int
    dp: int
    ep: int
    weights: str | None
    kv_dtype: str
    verdict: Verdict
    total_bytes: int
    usable_bytes: int
    needed_bytes: int
    needed_low_bytes: int
    needed_high_bytes: int
    headroom_bytes: int
    max_batch: int | None
    max_seq: int | None
    decode_tokens_per_s: float | None
    decode_tokens_per_s_low: float | None
    decode_tokens_per_s_high: float | None
    decode_tokens_per_s_bound: float | None
    prefill_s_bound: float | None
    bound_by: str | None
    notes: tuple[Note, ...]
    users: int | None = None
    users_low: int | None = None
    ttft_s: float | None = None
    itl_s: float | None = None
    cost: CostInfo | None = None


class Recommendation(Answer, Record):
    """What would do, in the order of ``sort`` with what is sure first, and what was left out.

    ``considered`` kinds of hardware: ``refused`` the engine does not run on, ``unknown`` have no known memory, ``too_small`` do
    not hold the sequences with up to ``max_gpus``, ``late`` hold them, but never within the limits of time, ``one_at_a_time`` of both because they are machines that cannot be linked, or
    only a few of them, and ``could_be_more`` of both because of ``max_gpus``. ``unsure_left_out`` fit by the expected value
    only. Of what holds them, ``over_budget`` cost more than ``budget_usd_per_hour``, and ``unpriced`` have no dated price. ``more`` offers are beyond the limit. Where nothing does, ``nearest`` comes closest, and ``message`` and ``suggestions``
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
    kv_dtype: str | None
    weights: str
    policy: str | None
    max_gpus: int
    sort: str
    considered: int
    refused: int
    unknown: int
    too_small: int
    late: int = 0
    one_at_a_time: int
    could_be_more: int
    unsure_left_out: int
    budget_usd_per_hour: float | None = None
    over_budget: int = 0
    unpriced: int = 0
    offers: tuple[Offer, ...]
    more: int
    nearest: Offer | None
    message: str
    suggestions: tuple[Try, ...]
    notes: tuple[Note, ...]

    def headline(self) -> str:
        best = (
            f"{self.offers[0].gpus} x {self.offers[0].gpu} first"
            if self.offers
            else "nothing within the limits of time"
            if self.late
            else "nothing holds it"
        )
        count = f"{len(self.offers) + self.more:,} would do, " if self.offers else ""
        return f"{self.model}, {self.seq:,} tokens x {self.batch:,}, {self.engine}: {count}{best}"

    def records(self) -> list[dict[str, Any]]:
        left_out = ("also", "notes", "cost")
        return [
            {name: document_of(value) for name, value in asdict(offer).items() if name not in left_out} | cost_row(offer.cost)
            for offer in self.offers
        ]

    __repr__ = Answer.__repr__
