"""What a replay tells: rows of its steps and requests, and what follows from them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from hwcalc.formulas.record import Record
from hwcalc.replay.core import Clock, RequestRow, Scheduler, StepRow

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.workload.request import Workload


class Simulation(Record):
    """A replay that has ended. ``totals``, ``steps`` and ``requests`` have the names and columns of the engine's own words."""

    workload: Workload
    occupancy: Occupancy
    scheduler: Scheduler
    clock: Clock

    @cached_property
    def steps(self) -> list[StepRow]:
        """A row for each call of the scheduler that gave out tokens."""
        return list(self.scheduler.log.steps)

    @cached_property
    def requests(self) -> list[RequestRow]:
        """A row for each request: when it was first scheduled, when its first token came back, when it finished, the tokens that it found
        in the prefix cache, and how often it was preempted.
        """
        return self.scheduler.log.requests

    @property
    def preemptions(self) -> list[tuple[int, int, int]]:
        """Each preemption: the iteration, the request, and the tokens that it had computed."""
        return self.scheduler.log.preemptions

    @cached_property
    def totals(self) -> dict[str, Any]:
        """Sums and peaks of the whole replay."""
        log, clock = self.scheduler.log, self.clock
        width = len(log.columns)
        columns = [log.numbers[place::width] for place in range(width)]
        iterations, tokens, scheduled, running, waiting, used = columns
        return {
            "iterations": clock.turns,
            "model_steps": log.step_count,
            "scheduled_tokens": sum(tokens),
            "preemptions": len(log.preemptions),
            "peak_used_blocks": max(used, default=0),
            "sum_used_blocks": sum(used),
            "peak_running": max(running, default=0),
            "peak_scheduled_requests": max(scheduled, default=0),
            "peak_waiting": max(waiting, default=0),
            "last_iteration": iterations[-1] if iterations else None,
            "refused": len(log.refused),
            "stalled": clock.stalled,
            **self.scheduler.totals(),
        }
