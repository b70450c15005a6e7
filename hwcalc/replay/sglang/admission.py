"""The rule of admission: SGLang's estimate of the tokens that everything which runs and is admitted will still take.

Source: SGLang 0.5.23, managers/schedule_policy.py ``PrefillAdder``, mem_cache/prefill_budget.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from hwcalc.replay.sglang.live import Live
from hwcalc.replay.sglang.rules import CLIP, SchedulerRules
from hwcalc.replay.sglang.tree import RadixCache

_RESERVED: Final = 1
"""Tokens that each request must have free at the end of another (``IGNORE_EOS_RESERVE_TOKENS``)."""


class Verdict(IntEnum):
    """The consequence of an attempt to admit for those behind."""

    GO_ON = 0
    NO_TOKEN = 1
    """The pool is full."""
    STOP = 2
    """Nothing more is computed in this batch."""


class Admission:
    """One attempt to build a batch of prompts."""

    def __init__(self, rules: SchedulerRules, cache: RadixCache, running: list[Live], *, ratio: float, taken: int) -> None:
        self.rules = rules
        self.cache = cache
        self.running = running
        self.ratio = ratio
        self.input_left = rules.max_prefill_tokens - taken
        chunk = rules.chunked_prefill_size
        self.chunk_left: int | None = None if chunk is None else chunk - taken
        self.total: float = taken + sum([self.promised(live) for live in running])
        """Tokens that are promised: to those that run, and to those admitted."""
        self.current = taken
        """Tokens that this batch takes."""
        self.admitted: list[Live] = []
        self.chunk: Live | None = None
        """The request whose prompt the batch does not finish."""
        self.hits = 0
        self._course: list[tuple[float, int]] | None = None

    def promised(self, live: Live) -> float:
        """The tokens to come that are reserved for a running request."""
        return min(live.left, CLIP) * (1.0 if self.rules.ignore_eos else self.ratio)

    # Room.

    @property
    def left(self) -> float:
        """Tokens that nobody was promised."""
        return self.cache.available - self.total

    @property
    def has_room(self) -> bool:
        """True if the pool has tokens left for this batch and for later."""
        return self.left > 0 and self.cache.available - self.current > 0

    @property
    def verdict(self) -> Verdict:
        """The verdict on those behind: another may be tried, or not."""
        if not self.has_room:
            return Verdict.NO_TOKEN
        spent = self.input_left <= 0 or (self.chunk_left is not None and self.chunk_left <= 0)
        return Verdict.STOP if spent else Verdict.GO_ON

    def chunk_room(self, most: int) -> int | None:
        """The tokens that a prompt under way gets; ``None`` leaves it for later."""
        room = min(most, int(self.left))
        return room if room > 0 else most

    def check(self, live: Live, extend: int) -> tuple[bool, int | None]:
        """True for a prompt that fits, and the tokens of it that this batch may compute."""
        needed = extend + max(0, min(live.left, CLIP)) + self.rules.page_size
        return needed < self.left, self.chunk_left

    def charge(self, extend: int, to_come: int) -> None:
        """Take what a prompt gets off the budgets."""
        extend = self.rules.pages(extend)
        now = extend + self.rules.page_size
        self.total += now + to_come
        self.current += now
        self.input_left -= extend
        if self.chunk_left is not None:
            self.chunk_left -= extend

    # Requests.

    def go_on(self, live: Live, limit: int | None) -> bool:
        """Give a prompt under way its next chunk; whether it is still not complete."""
        assert self.chunk_left is not None
        room = self.chunk_room(self.chunk_left)
        if room is None:
            return True
        if limit is not None:
            room = min(room, limit)
        left = live.known - live.prefix
        extend = min(left, room)
        live.end = live.prefix + extend
        self.admitted.append(live)
        self.charge(extend, 0 if left > room else min(live.max_new, CLIP))
        return left > room

    def add(self, live: Live, *, under_way: bool) -> Verdict:
        """Try a request that waits, whose cached prefix was looked up. If it is admitted its prefix is pinned."""
        rules = self.rules
        if rules.prefill_max_requests is not None and len(self.admitted) >= rules.prefill_max_requests:
            return Verdict.STOP
        if rules.ignore_eos and not self.cache.enabled:
            return self._add_foreseen(live)
        assert live.node is not None
        mark = self.cache.lock(live.node)
        chosen = self._choose(live, under_way=under_way)
        if isinstance(chosen, Verdict):
            self.cache.unlock(live.node, mark)
            return chosen
        live.mark = mark
        self._admit(live, chosen)
        self.hits += live.prefix
        return self.verdict

    def _choose(self, live: Live, *, under_way: bool) -> int | Verdict:
        """The tokens that are computed of a request, or why none are."""
        rules, page = self.rules, self.rules.page_size
        extend = live.known - live.prefix
        fits, most = self.check(live, extend)
        if not fits:
            return Verdict.NO_TOKEN
        paged = rules.pages(extend)
        if self.chunk_left is None and self.admitted and paged >= self.input_left:
            return Verdict.STOP
        if most is None or paged <= most:
            return extend
        if under_way and rules.schedule_policy == "shortest-prefill-first":
            return Verdict.STOP
        extend = rules.whole_pages(live.prefix + most // page * page) - live.prefix
        return extend if extend > 0 else Verdict.STOP

    def _admit(self, live: Live, extend: int) -> None:
        live.end = live.prefix + extend
        self.admitted.append(live)
        whole = live.end == live.known
        if not whole:
            self.chunk = live
        self.charge(extend, min(live.max_new, CLIP) if whole else 0)

    def _add_foreseen(self, live: Live) -> Verdict:
        """Try a request of which everything is foreseen: all have as many outputs as they may, and nothing is cached.

        Those that run, are admitted, and this one end in the order of the tokens that they still need; at each end the others must fit.
        """
        rules = self.rules
        extend = live.known - live.prefix
        needed = rules.pages(extend) + rules.page_size
        if not self._fits_whole(live, extend, needed):
            return Verdict.NO_TOKEN
        self._note(live)
        if not self._lasts(needed):
            return Verdict.NO_TOKEN
        if self.chunk_left is None or extend <= self.chunk_left:
            self._admit(live, extend)
        elif self.chunk_left <= 0:
            return Verdict.STOP
        else:
            self._admit(live, self.chunk_left)
        return self.verdict

    def _fits_whole(self, live: Live, extend: int, needed: int) -> bool:
        return needed <= min(self.cache.available - self.current, self.left)

    def _lasts(self, needed: int) -> bool:
        """True if the pool holds all until each has ended."""
        assert self._course is not None
        room, freed = self.cache.available - self.current - needed, 0
        for place, (left, occupied) in enumerate(self._course):
            alive = len(self._course) - place
            if room + freed - left * alive <= _RESERVED * alive:
                return False
            freed += occupied
        return True

    def _note(self, live: Live) -> None:
        """Put a request among those whose ends are foreseen."""
        if self._course is None:
            everyone: Iterable[Live] = (live, *self.running, *self.admitted)
            self._course = sorted([_ahead(each) for each in everyone if each.left > 0], key=lambda each: each[0])
            return
        ahead = _ahead(live)
        if ahead[0] <= 0:
            return
        # SGLang puts what is larger than all before the last.
        places = [place for place, other in enumerate(self._course) if ahead[0] <= other[0]]
        self._course.insert(places[0] if places else max(0, len(self._course) - 1), ahead)


def _ahead(live: Live) -> tuple[float, int]:
    """The tokens that it still needs, and those that it holds until then."""
    return live.max_new * 1.0 - live.outputs, live.prompt + live.outputs
