"""A replay that has ended: rows of its steps and requests, and sums and peaks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hwcalc.documents import Answer
from hwcalc.formulas.record import Record
from hwcalc.model import Note
from hwcalc.replay.core import RequestLog, RequestRow, Scheduler, Server, StepRow
from hwcalc.replay.latency import request_records, timeline_of, traffic_of
from hwcalc.replay.traffic import Limits, Timeline, Traffic

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.workload.request import Workload


class Simulation(Answer, Record):
    """A replay that has ended. ``totals``, ``steps`` and ``requests`` have the engine's own words; :attr:`traffic` is what follows from them."""

    workload: Workload
    occupancy: Occupancy
    servers: tuple[Server, ...]
    log: RequestLog
    limits: Limits = Limits()
    notes: tuple[Note, ...] = ()
    prefill: Simulation | None = None
    """The servers that computed the prompts, where those of this replay only generate: its requests end with their first token."""

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler; of several the first."""
        return self.servers[0].scheduler

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns of :attr:`steps`."""
        own = self.scheduler.steps.columns
        return own if len(self.servers) == 1 else ("replica", *own)

    def each_step(self) -> Iterator[StepRow]:
        """A row for each step that scheduled tokens; with several replicas each row has the replica's number in front."""
        for number, server in enumerate(self.servers):
            for row in server.scheduler.steps:
                yield row if len(self.servers) == 1 else (number, *row)

    @cached_property
    def steps(self) -> list[StepRow]:
        """The rows of :meth:`each_step`."""
        return list(self.each_step())

    @cached_property
    def requests(self) -> list[RequestRow]:
        """A row for each request: when it was first scheduled, when its first token came back, when it finished, the tokens that it found
        in the prefix cache, and how often it was preempted; of SGLang its output tokens and why it ended, too.
        """
        return self.log.rows(self.scheduler.request_columns)

    @property
    def preemptions(self) -> list[tuple[int, int, int]]:
        """Each preemption: the iteration, the request, and the tokens that it had computed."""
        return self.log.preemptions

    @property
    def retraction_log(self) -> list[tuple[int, list[int], list[int], float]]:
        """SGLang's retractions: the iteration, those retracted, those aborted, and the ``new_token_ratio`` that was set."""
        return self.scheduler.retraction_log

    @cached_property
    def totals(self) -> dict[str, Any]:
        """Sums and peaks of the whole replay, over all replicas."""
        each = [server.scheduler.totals(server.turns) for server in self.servers]
        return {
            **(each[0] if len(each) == 1 else _added(each)),
            "refused": len(self.log.refused),
            "cancelled": len(self.log.cancelled),
            "stalled": any(server.stalled for server in self.servers)
            or (self.prefill is not None and self.prefill.totals["stalled"]),
        }

    @cached_property
    def traffic(self) -> Traffic:
        """The figures of the replay as a whole."""
        return traffic_of(self)

    @cached_property
    def timeline(self) -> Timeline:
        """The replay over time, which :func:`hwcalc.plot.timeline.save_timeline` draws."""
        return timeline_of(self)

    def headline(self) -> str:
        """The answer in one line."""
        return self.traffic.headline()

    def records(self) -> list[dict[str, Any]]:
        """A row for each request: what it is, its times in the clock's unit, and the turns of :attr:`requests`."""
        return request_records(self)

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of ``kvplan simulate``."""
        return self.traffic.to_dict()

    __repr__ = Answer.__repr__


def _added(each: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The totals of several replicas: peaks are those of the replica with the highest, everything else is added up."""
    together: dict[str, Any] = {}
    for name, first in each[0].items():
        values = [totals[name] for totals in each]
        if isinstance(first, dict):
            together[name] = {key: sum(value[key] for value in values) for key in first}
        elif name.startswith("peak_") or name == "last_iteration":
            together[name] = max((value for value in values if value is not None), default=None)
        else:
            together[name] = sum(values)
    return together
