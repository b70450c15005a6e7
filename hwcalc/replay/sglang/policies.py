"""The order of SGLang's queue: ``schedule_policy``.

Source: SGLang 0.5.23, managers/schedule_policy.py ``SchedulePolicy``.
"""

from __future__ import annotations

from random import Random
from typing import Final

from hwcalc.replay.sglang.live import Live
from hwcalc.replay.sglang.rules import SchedulerRules
from hwcalc.replay.sglang.tree import Node, RadixCache

CACHE_AWARE: Final = ("lpm", "dfs-weight", "hrrn", "shortest-prefill-first")
CACHE_AGNOSTIC: Final = ("fcfs", "lof", "random", "routing-key")
POLICIES: Final = (*CACHE_AGNOSTIC, *CACHE_AWARE)
_MOST_LOOKED_UP: Final = 128
"""Waiting requests above which lpm and hrrn leave the queue as it is (``WAITING_QUEUE_PREFIX_MATCH_MAX``)."""
_REFRESHES_EVERY: Final = 32
"""In every how many plans the prefixes of those that wait are used (``WAITING_PREFIX_REFRESH_INTERVAL``)."""
_IN_BATCH: Final = 32
"""Tokens up to which a hit is short, and from which a beginning is shared with another that waits
(``IN_BATCH_PREFIX_CACHING_CHECK_THRESHOLD``, ``IN_BATCH_PREFIX_CACHING_DEPRIORITIZE_THRESHOLD``)."""
_NEVER: Final = float("inf")


class QueueOrder:
    """Sorts the queue before each admission."""

    def __init__(self, rules: SchedulerRules, cache: RadixCache) -> None:
        policy = rules.schedule_policy
        self.policy = "fcfs" if policy in CACHE_AWARE and not cache.enabled else policy
        self.rules = rules
        self.cache = cache
        self._refreshes = 0
        self._random = Random(0)  # noqa: S311 - a replay is the same each time

    def sort(self, waiting: list[Live], prefilled: int) -> None:
        """Sort those that wait; ``prefilled`` tokens were computed so far."""
        rules, policy = self.rules, self.policy
        aware = policy in CACHE_AWARE and not (policy in ("lpm", "hrrn") and len(waiting) > _MOST_LOOKED_UP)
        if aware:
            self._look_up(waiting)
            self._sort_by_cache(waiting, prefilled)
            return
        if policy == "fcfs" and rules.enable_priority_scheduling:
            sign = rules.sign
            waiting.sort(key=lambda live: (live.priority * sign, live.entry))
        elif policy == "lof":
            sign = rules.sign if rules.enable_priority_scheduling else 0
            waiting.sort(key=lambda live: (live.priority * sign, -live.max_new))
        elif policy == "random":
            self._random.shuffle(waiting)
        self._refresh(waiting)

    def chunk_limit(self, chunk: Live, waiting: list[Live], budget: int) -> int | None:
        """The tokens that a prompt under way gets, where shorter ones go first; ``None`` is as many as there are."""
        page = self.rules.page_size
        if self.policy != "shortest-prefill-first" or budget < 2 * page:
            return None
        left, reserved = chunk.known - chunk.prefix, 0
        for live in waiting:
            work = _work(live)
            charge = self.rules.pages(work)
            if work >= left or reserved + charge > budget - page:
                break
            reserved += charge
        return (budget - reserved) // page * page if reserved else None

    def _look_up(self, waiting: list[Live]) -> None:
        """Look up all that wait, and mark those whose beginning an earlier one has too."""
        trial = RadixCache(0, 1)
        for live in waiting:
            known = live.prompt + live.outputs
            tokens, live.node = self.cache.match(live.content, known)
            live.prefix = tokens
            live.found = min(tokens, known - 1)
            live.later = False
            if tokens <= _IN_BATCH:
                if trial.match(live.content, known)[0] >= _IN_BATCH:
                    live.later = True
                else:
                    trial.insert(live.content, known, kept=known, counted=0, priority=0)

    def _sort_by_cache(self, waiting: list[Live], prefilled: int) -> None:
        policy = self.policy
        if policy == "lpm":
            waiting.sort(key=lambda live: _NEVER if live.later else -live.found)
        elif policy == "dfs-weight":
            waiting[:] = self._depth_first(waiting)
        elif policy == "hrrn":
            waiting.sort(key=lambda live: (_response(live, prefilled), str(live.number)))
        else:
            waiting.sort(key=lambda live: (live.later, _work(live), live.entry))

    def _depth_first(self, waiting: list[Live]) -> list[Live]:
        """Those that wait, branch by branch, the branch with most of them first, and those at a node after those below it."""
        root, at = self.cache.root, dict[Node, list[Live]]()
        weights = dict[Node, int]()
        for live in waiting:
            node = live.node
            if node is None:
                continue
            at.setdefault(node, []).append(live)
            above: Node | None = node
            while above is not None:
                weights[above] = weights.get(above, 0) + 1
                above = above.parent
        order, stack = list[Live](), [(root, False)]
        while stack:
            node, seen = stack.pop()
            if seen:
                order += at.get(node, ())
                continue
            children = [child for child in node.children.values() if child in weights]
            children.sort(key=lambda child: -weights[child])
            stack.append((node, True))
            stack += [(child, False) for child in reversed(children)]
        return order

    def _refresh(self, waiting: list[Live]) -> None:
        """Use the prefixes of those that wait now and then, the first one last, so that they are evicted last."""
        if not waiting or self.rules.radix_eviction_policy != "lru" or not self.cache.enabled:
            return
        due = self._refreshes % _REFRESHES_EVERY == 0
        self._refreshes += 1
        if due:
            for live in reversed(waiting[:_MOST_LOOKED_UP]):
                self.cache.match(live.content, live.prompt + live.outputs)


def _work(live: Live) -> int:
    """Tokens that a waiting request has to compute."""
    return max(1, live.prompt + live.outputs - live.found)


def _response(live: Live, prefilled: int) -> float:
    """The time that it has waited by what it has to compute, of which the highest goes first (hrrn)."""
    if live.later:
        return _NEVER
    uncached = live.prompt - live.found
    return -max(0, prefilled - live.asked_at) / uncached if uncached > 0 else -_NEVER
