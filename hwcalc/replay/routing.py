"""The choice among several replicas for a request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final

from hwcalc.errors import UsageError
from hwcalc.text import quoted

if TYPE_CHECKING:
    from hwcalc.replay.core import Router, Scheduler
    from hwcalc.workload.request import Request


def _round_robin() -> Router:
    """One after another."""
    turns = count()
    return lambda _, schedulers: next(turns) % len(schedulers)


def _least_loaded() -> Router:
    """The one with the fewest tokens to compute for the requests that it has."""
    return lambda _, schedulers: min(range(len(schedulers)), key=lambda place: schedulers[place].waiting_tokens())


def _least_requests() -> Router:
    """The one with the fewest requests, where those that wait count more the fuller the pool is; of equals in turn.

    So vLLM's front end chooses among data parallel ranks, where it knows of every request (0.33, v1/engine/core_client.py).
    """
    turns = count()

    def route(_: Request, schedulers: Sequence[Scheduler]) -> int:
        first = next(turns)

        def score(turn: int) -> float:
            running, waiting, used = schedulers[turn % len(schedulers)].pressure()
            return waiting + running + waiting * 6 * max(0.0, used - 0.5)

        return min(range(first, first + len(schedulers)), key=score) % len(schedulers)

    return route


def _prefix() -> Router:
    """The one that computes least before the request has its first token: what waits there, and what of the prompt is not cached there.

    Of equals it is the one that was sent the fewest requests.
    """
    sent = Counter[int]()

    def route(request: Request, schedulers: Sequence[Scheduler]) -> int:
        def left(place: int) -> tuple[int, int]:
            uncached = request.prompt_tokens - schedulers[place].cached_tokens(request)
            return schedulers[place].waiting_tokens() + uncached, sent[place]

        chosen = min(range(len(schedulers)), key=left)
        sent[chosen] += 1
        return chosen

    return route


ROUTES: Final[dict[str, Callable[[], Router]]] = {
    "round-robin": _round_robin,
    "least-loaded": _least_loaded,
    "least-requests": _least_requests,
    "prefix": _prefix,
}
"""The ways to choose, by name."""


def router(name: str) -> Router:
    """A new router of this name."""
    if not isinstance(name, str) or name not in ROUTES:
        raise UsageError(f"route is {quoted(name, 40)}.", hint=f"Allowed: {', '.join(ROUTES)}.")
    return ROUTES[name]()
