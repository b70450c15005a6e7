"""SGLang's scheduler where layers have windows or states, which have pools of their own.

Source: SGLang 0.5.23, managers/schedule_batch.py ``maybe_evict_swa``, mem_cache/prefill_budget.py ``SWAPrefillBudget``,
mem_cache/common.py ``free_swa_out_of_window_slots``, mem_cache/unified_cache/components/mamba.py.
"""

from __future__ import annotations

from typing import Any

from hwcalc.replay.sglang.admission import Admission
from hwcalc.replay.sglang.live import Live
from hwcalc.replay.sglang.rules import CLIP, EVICTION_INTERVAL
from hwcalc.replay.sglang.scheduler import SglangScheduler
from hwcalc.replay.sglang.second import SecondCache, StateCache, WindowCache

_UNDER_WAY = 2
"""Chunks of a prompt whose second last has been looked at, where batches overlap."""


class _SecondScheduler(SglangScheduler):
    """A scheduler with a second pool."""

    cache: SecondCache

    def _second(self) -> tuple[int, ...]:
        return self.cache.second_used, self.cache.second_evictable

    def totals(self, turns: int) -> dict[str, Any]:
        used, _ = self.more_columns
        return {
            **super().totals(turns),
            f"peak_{used}": max(self.steps.column(used), default=0),
            "final_second_pool": list(self._second()),
        }


class WindowAdmission(Admission):
    """Admission by two pools: what leaves a window need not fit."""

    cache: WindowCache
    window_total = 0
    """Tokens of the pool of windows that are promised."""

    @property
    def window_left(self) -> int:
        """Tokens of the pool of windows that nobody was promised."""
        return self.cache.second_free + self.cache.second_evictable - self.window_total

    @property
    def has_room(self) -> bool:
        return super().has_room and self.window_left > 0

    def chunk_room(self, most: int) -> int | None:
        room = min(most, int(self.left), self.window_left - self.rules.page_size)
        return room if room > 0 else None

    def _window_tokens(self, extend: int, to_come: int, limit: int | None) -> int:
        """The most tokens of the pool of windows that a prompt takes."""
        window = self.cache.window
        taken = extend if limit is None else min(extend, limit)
        return max(taken - window, 0) + min(extend + to_come, window) + self.rules.page_size

    def check(self, live: Live, extend: int) -> tuple[bool, int | None]:
        fits, limit = super().check(live, extend)
        if not fits:
            return False, None
        to_come, page = max(0, min(live.left, CLIP)), self.rules.page_size
        needed = self._window_tokens(self.rules.pages(extend), to_come, limit)
        if needed < self.window_left:
            return True, limit
        if limit is None or needed < self.cache.second_size:
            return False, None
        # It never fits as it is: smaller chunks take less.
        most = (self.window_left - self._window_tokens(0, to_come, None)) // page * page
        return (True, min(limit, most)) if most > 0 else (False, None)

    def charge(self, extend: int, to_come: int) -> None:
        self.window_total += self._window_tokens(self.rules.pages(extend), to_come, self.chunk_left)
        super().charge(extend, to_come)

    def _fits_whole(self, live: Live, extend: int, needed: int) -> bool:
        to_come = max(0, min(live.left, CLIP))
        return (
            super()._fits_whole(live, extend, needed)
            and self._window_tokens(extend, to_come, self.chunk_left) <= self.window_left
        )

    def _lasts(self, needed: int) -> bool:
        return True


class WindowScheduler(_SecondScheduler):
    """A scheduler of a model with windows."""

    cache: WindowCache
    more_columns = ("used_window_tokens", "evictable_window_tokens")
    admits = WindowAdmission

    def _new_cache(self) -> WindowCache:
        rules = self.rules
        assert rules.swa_tokens is not None
        return WindowCache(
            rules.max_total_num_tokens,
            rules.page_size,
            rules.swa_tokens,
            rules.sliding_window,
            policy=rules.radix_eviction_policy,
            enabled=not rules.disable_radix_cache,
        )

    def steps_alike(self) -> int:
        # Windows give something back now and then.
        return 0

    def _spend(self, tokens: int) -> None:
        super()._spend(tokens)
        self.cache.second_free -= tokens

    def _look_up(self, live: Live) -> None:
        super()._look_up(live)
        live.branch = self.cache.branch if self.cache.branch > live.prefix else None

    def _before_extend(self, admitted: list[Live]) -> None:
        if self.cache.enabled:
            return
        for live in admitted:
            done = live.prefix
            if self.rules.overlap:
                # The chunk before is still computed.
                if live.chunks < _UNDER_WAY:
                    continue
                done -= self.rules.chunked_prefill_size or 0
            self._slide(live, done)

    def _take_decode(self) -> None:
        window, steps = self.cache.window, self.running.steps
        for live in self.running:
            if steps > live.since:
                known = live.offset + steps - self._in_flight(live)
                if known - window >= live.window_start + EVICTION_INTERVAL:
                    self._slide(live, known)
        super()._take_decode()

    def _slide(self, live: Live, tokens: int) -> None:
        """Give back what of a request's first tokens is behind its window and its own."""
        cache, page = self.cache, self.rules.page_size
        if tokens - cache.window <= live.window_start:
            return
        start = max(live.window_start, live.protected)
        until = (tokens - (cache.window_pages if cache.enabled else cache.window)) // page * page
        cache.second_free += max(0, until - start)
        live.window_start = max(start, until)

    def _publish(self, live: Live, tokens: int, *, finished: bool = False) -> None:
        cache = self.cache
        if not cache.enabled:
            return
        branch = live.branch
        # The window at a branch is published first, so that others find it.
        stops = branch is not None and live.protected < branch <= tokens
        if stops:
            assert branch is not None
            tokens = branch
        if not finished:
            self._slide(live, tokens - 1)
        cache.gone = live.window_start
        super()._publish(live, tokens, finished=finished)
        if stops:
            live.branch = None
            if not finished:
                self._slide(live, live.end - 1)

    def _release(self, live: Live) -> None:
        self.cache.second_free += self.rules.pages(live.stored) - max(live.protected, live.window_start)
        super()._release(live)


class StateScheduler(_SecondScheduler):
    """A scheduler of a model with recurrent states, whose strategy is ``no_buffer``."""

    cache: StateCache
    more_columns = ("used_slots", "evictable_slots")

    def _new_cache(self) -> StateCache:
        rules = self.rules
        assert rules.state_slots is not None
        return StateCache(
            rules.max_total_num_tokens,
            rules.page_size,
            rules.state_slots,
            policy=rules.radix_eviction_policy,
            enabled=not rules.disable_radix_cache,
        )

    def _look_up(self, live: Live) -> None:
        super()._look_up(live)
        node = live.node
        if node is None or not node.part or live.slot:
            return
        # The state is copied for the request.
        if not self.cache.second_free:
            mark = self.cache.lock(node)
            self.cache.evict_second(1)
            self.cache.unlock(node, mark)
        self._take_slot(live)

    def _take_slot(self, live: Live) -> None:
        self.cache.second_free -= 1
        live.slot = True

    def _let_go(self, live: Live) -> None:
        if live.slot:
            self._give_slot(live)

    def _give_slot(self, live: Live) -> None:
        self.cache.second_free += 1
        live.slot = False

    def _before_extend(self, admitted: list[Live]) -> None:
        new = [live for live in admitted if not live.slot]
        if self.cache.enabled:
            self.cache.evict_second(len(new))
        for live in new:
            self._take_slot(live)

    def _publish(self, live: Live, tokens: int, *, finished: bool = False) -> None:
        cache = self.cache
        if not cache.enabled:
            return
        if not finished:
            cache.evict_second(1)
            cache.second_free -= 1
        super()._publish(live, tokens)
        assert live.node is not None
        taken = cache.put_state(live.node)
        if finished:
            live.slot = not taken
        elif not taken:
            cache.second_free += 1

    def _release(self, live: Live) -> None:
        if live.slot:
            self._give_slot(live)
        super()._release(live)
