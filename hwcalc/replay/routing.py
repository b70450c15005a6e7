"""Which of several replicas a request is sent to."""

from __future__ import annotations

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


def _prefix() -> Router:
    """The one that computes least before the request has its first token: what waits there, and what of the prompt is not cached there."""

    def route(request: Request, schedulers: Sequence[Scheduler]) -> int:
        def left(place: int) -> tuple[int, int]:
            load = schedulers[place].waiting_tokens()
            return load + request.prompt_tokens - schedulers[place].cached_tokens(request), load

        return min(range(len(schedulers)), key=left)

    return route


ROUTES: Final[dict[str, Callable[[], Router]]] = {"round-robin": _round_robin, "least-loaded": _least_loaded, "prefix": _prefix}
"""The ways to choose, by name."""


def router(name: str) -> Router:
    """A new router of this name."""
    if name not in ROUTES:
        raise UsageError(f"route is {quoted(name, 40)}.", hint=f"Allowed: {', '.join(ROUTES)}.")
    return ROUTES[name]()
