"""Put requests in the order in which they arrive, of sessions whose turns follow each other, or of a trace that is not quite sorted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush, heappushpop
from typing import Final

from hwcalc.errors import TraceError
from hwcalc.workload.arrivals import Arrivals
from hwcalc.workload.request import Request

MOST_LATE: Final = 65_536
"""A row of a trace may stand at most so many rows behind its place in the order of time."""


def in_turns(sessions: Iterable[list[Request]]) -> Iterator[Request]:
    """The requests of sessions in the order of ``arrival_s``, numbered; each turn knows the one before it.

    Sessions are given in the order in which they begin, with all their turns. Only those exist that have begun and have not ended.
    """
    waiting: list[tuple[float, int, int, list[Request], int | None]] = []
    coming = iter(enumerate(sessions))
    following = next(coming, None)
    number = 0
    while waiting or following is not None:
        if following is not None and (not waiting or following[1][0].arrival_s < waiting[0][0]):
            session, turns = following
            turn, before = 0, None
            following = next(coming, None)
        else:
            _, session, turn, turns, before = heappop(waiting)
        yield turns[turn].changed(number=number, after=before)
        if turn + 1 < len(turns):
            heappush(waiting, (turns[turn + 1].arrival_s, session, turn + 1, turns, number))
        number += 1


def in_order(requests: Iterable[Request]) -> Iterator[Request]:
    """The requests sorted by arrival, numbered, with times from the first one on.

    Raises :class:`~hwcalc.errors.TraceError` for one that stands too far behind its place: no more than a part of a trace is ever held.
    """
    first: float | None = None
    last = 0.0
    for number, (arrival, place, request) in enumerate(_earliest(requests)):
        if first is None:
            first = last = arrival
        if arrival < last:
            raise TraceError(
                f"request {place + 1:,} of the trace arrives before one that is {MOST_LATE:,} rows earlier.",
                hint="Sort the trace by its times.",
            )
        yield request.changed(number=number, arrival_s=arrival - first)
        last = arrival


def _earliest(requests: Iterable[Request]) -> Iterator[tuple[float, int, Request]]:
    """Each time the earliest of the next :data:`MOST_LATE` requests, with its arrival and its place."""
    held: list[tuple[float, int, Request]] = []
    for place, request in enumerate(requests):
        entry = (request.arrival_s, place, request)
        if len(held) < MOST_LATE:
            heappush(held, entry)
        else:
            yield heappushpop(held, entry)
    while held:
        yield heappop(held)


def arriving(requests: Iterable[Request], arrivals: Arrivals | None, seed: int, speedup: float) -> Iterator[Request]:
    """The requests at other times: those of ``arrivals``, or their own at ``speedup`` times the rate. Turns keep their distance in a session."""
    times = None if arrivals is None else arrivals.times(f"{seed} arrival")
    moved: dict[object, float] = {}
    for request in requests:
        now = request.arrival_s / speedup
        if times is not None and request.after is None:
            begin = next(times)
            if request.session is not None:
                moved[request.session] = begin - now
            now = begin
        elif times is not None:
            now += moved.get(request.session, 0.0)
        yield request if now == request.arrival_s else request.changed(arrival_s=now)
