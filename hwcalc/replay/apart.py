"""Prompts and tokens on servers of their own: the way of a request from the one to the other.

A server for prompts computes a prompt and its first token, and keeps the cache until it has moved. The request then waits at a server for
tokens for room; from then on its cache moves, over a link of its own, and when it is there the last token of the prompt is computed again, from
which the user gets the first one. So vLLM does it (v1/core/sched/scheduler.py ``WAITING_FOR_REMOTE_KVS``, kv_connector/v1/nixl
``get_num_new_matched_tokens``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hwcalc.replay.core import RequestLog, Router, Server
    from hwcalc.workload.request import Request


class Handover:
    """Requests on their way from ``prefill`` to ``decode`` servers. ``seconds`` are those in which the cache of so many tokens moves."""

    def __init__(
        self, prefill: Sequence[Server], decode: Sequence[Server], seconds: Callable[[int], float], route: Router | None
    ) -> None:
        self.prefill = prefill
        self.decode = decode
        self.seconds = seconds
        self.route = route
        """The choice among the servers for tokens."""
        self.prompts: RequestLog = prefill[0].scheduler.requests
        self.answers: RequestLog = decode[0].scheduler.requests
        self._requests: dict[int, Request] = {}
        """Those whose cache has not moved."""
        self._coming: list[tuple[float, int, bool]] = []
        """The seconds at which prompts are computed or caches have moved, with the request's number and whether its cache has."""

    @property
    def next_time(self) -> float | None:
        """The second at which the next request or its cache comes to a server for tokens."""
        return self._coming[0][0] if self._coming else None

    def take(self, request: Request, arrival: float, place: int) -> None:
        """Bring a request to a server for prompts."""
        self._requests[request.number] = request
        self.prompts.open(request, arrival, place)
        self.prefill[place].take(request.changed(output_tokens=1, max_tokens=1, output_id=None), arrival)

    def until(self, now: float) -> None:
        """Bring what comes by now to the servers for tokens."""
        while self._coming and self._coming[0][0] <= now:
            time, number, moved = heappop(self._coming)
            request = self._requests.get(number)
            if request is None:
                continue
            if not moved:
                schedulers = [server.scheduler for server in self.decode]
                place = 0 if self.route is None else self.route(request, schedulers)
                self.answers.servers[number] = place
                self.decode[place].take(request, time)
                if number not in self.answers.refused[-1:]:
                    continue
            del self._requests[number]
            for server in (self.prefill[self.prompts.servers[number]], self.decode[self.answers.servers[number]]):
                server.wake(time)
                server.scheduler.cache_moved(number)

    def look(self, server: Server | None) -> None:
        """See what a server has done in its step, and which prompts have ended."""
        if server is not None:
            for number, tokens in server.scheduler.pulls:
                heappush(self._coming, (server.before + self.seconds(tokens), number, True))
            server.scheduler.pulls.clear()
        for number in self.prompts.gone:
            finish = self.prompts.finishes[number]
            if finish is not None:
                heappush(self._coming, (self.prefill[self.prompts.servers[number]].second_of(finish), number, False))
            elif self._requests.pop(number, None) is not None:
                self.answers.refuse(number)
        self.prompts.gone.clear()

    def cancel(self, number: int) -> None:
        """Forget a request whose user has given up."""
        waits = self._requests.pop(number, None) is not None
        if waits:
            scheduler = self.prefill[self.prompts.servers[number]].scheduler
            if self.prompts.finishes[number] is None:
                scheduler.cancel(number)
            else:
                scheduler.cache_moved(number)
        ended = len(self.answers.gone)
        self.decode[self.answers.servers[number]].scheduler.cancel(number)
        if waits and len(self.answers.gone) == ended:
            self.answers.cancel(number, 0)
