"""vLLM's scheduler with speculative decoding: every decoding request is given its drafts too, and those that are not accepted are taken back.

Whether a drafted token is accepted is a property of the request and of the token's place, so that it is the same with any setting. What the
draft model itself takes is not counted.

Source: vLLM 0.33, v1/core/sched/scheduler.py, async_scheduler.py, config/vllm.py, config/speculative.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.replay.decoding import State
from hwcalc.replay.vllm.live import Batch, Live
from hwcalc.replay.vllm.scheduler import SchedulerRules, VllmScheduler

if TYPE_CHECKING:
    from hwcalc.replay.core import RequestLog
    from hwcalc.workload.request import Request

_MASK: Final = (1 << 64) - 1


def is_accepted(number: int, place: int, acceptance: float) -> bool:
    """True if a drafted token of a request is right, by a number between 0 and 1 that follows from both.

    >>> 650 < sum(is_accepted(7, place, 0.7) for place in range(1000)) < 750
    True
    """
    mixed = (number * 0x9E3779B97F4A7C15 + place * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return (mixed ^ (mixed >> 31)) / 2**64 < acceptance


class _Drafts:
    """The drafts of a request, and its tokens under way."""

    __slots__ = ("drafted", "is_chunk", "most", "padded", "placeholders")

    def __init__(self, most: int) -> None:
        self.most = most
        """The tokens that it may have at most, as the scheduler knows it."""
        self.drafted = 0
        """Tokens that are drafted for its next step."""
        self.placeholders = 0
        """Tokens of steps under way whose number is not known (async scheduling)."""
        self.is_chunk = True
        """True if its last step ended inside its prompt."""
        self.padded = False
        """True if it was given places for drafts that it does not have."""


class _Entry:
    """The tokens that a request got in a step."""

    __slots__ = ("drafts", "live", "padded", "preemptions", "sampled", "tokens")

    def __init__(self, live: Live, tokens: int, drafts: int, *, sampled: bool, padded: bool) -> None:
        self.live = live
        self.tokens = tokens
        self.drafts = drafts
        self.sampled = sampled
        self.padded = padded
        self.preemptions = live.preemptions


class _SpeculatedBatch(Batch):
    __slots__ = ("entries",)

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[_Entry] = []


class SpeculatingScheduler(VllmScheduler):
    """The scheduler where drafts are verified. Requests are looked at in every step, since how far they come follows from their drafts."""

    batches = _SpeculatedBatch

    def __init__(self, rules: SchedulerRules, blocks: int, requests: RequestLog | None = None) -> None:
        super().__init__(rules, blocks, requests)
        assert rules.speculation is not None
        self.speculation = rules.speculation
        self.most_per_step = 1 + rules.speculation.tokens
        self._slots = rules.speculation.slots
        self._drafts: dict[int, _Drafts] = {}
        self._ran = self._prefills = False
        self.drafted = self.accepted = 0
        """Tokens that were drafted and verified, and those of them that were accepted."""

    def add(self, request: Request) -> None:
        if request.prompt_tokens < self.rules.max_model_len:
            most = max(1, request.output_tokens if request.max_tokens is None else request.max_tokens)
            self._drafts[request.number] = _Drafts(request.prompt_tokens + most)
        super().add(request)

    def totals(self, turns: int) -> dict[str, object]:
        return {**super().totals(turns), "draft_tokens": self.drafted, "accepted_tokens": self.accepted}

    def _is_tight(self, budget: int, threshold: int) -> bool:
        return True

    def _chunk_of(self, live: Live, budget: int, threshold: int) -> int:
        drafts, rules = self._drafts[live.number], self.rules
        if drafts.placeholders and live.computed + 2 - drafts.placeholders >= drafts.most:
            return 0
        tokens = live.known + drafts.drafted + drafts.placeholders - live.computed
        tokens = min(tokens, threshold or tokens, budget, rules.max_model_len - live.computed - 1)
        return self._ending_apart(live, live.computed, max(tokens, 0))

    def _ending_apart(self, live: Live, start: int, tokens: int) -> int:
        left = live.known - start - tokens
        if 0 < left < self.speculation.lookahead:
            tokens -= self.speculation.lookahead - left
        return max(tokens, 0)

    def _admit(self, budget: int, threshold: int, chunks: list[tuple[Live, int]]) -> int:
        self._ran = bool(chunks)
        self._prefills = any(self._drafts[live.number].is_chunk for live, _ in chunks)
        return super()._admit(budget, threshold, chunks)

    def _wanted(self, live: Live, hit: int, budget: int) -> int:
        """A request of which one token is left is padded to as many as others have that decode."""
        tokens, drafts = live.known - hit, self._drafts[live.number]
        drafts.padded = False
        if tokens != 1 or self._prefills or not (self._ran or hit):
            return tokens
        padded = 1 + self.speculation.tokens
        if hit + padded + 1 > self.rules.max_model_len:
            return tokens
        drafts.padded = padded <= budget
        return padded if drafts.padded else 0

    def _preempt(self, live: Live, *, scheduled: bool) -> None:
        drafts = self._drafts[live.number]
        drafts.drafted = drafts.placeholders = live.in_flight = 0
        if not drafts.is_chunk:
            live.paused_at = self._now - 1
        super()._preempt(live, scheduled=False)

    def _advance(self, live: Live, tokens: int, batch: Batch) -> None:
        assert isinstance(batch, _SpeculatedBatch)
        drafts, load = self._drafts[live.number], self.load
        known = live.known + drafts.placeholders
        spare = tokens + live.computed - known
        had = self.speculation.tokens if drafts.padded else drafts.drafted
        verified = max(0, min(had, spare))
        if live.computed < known - 1:
            load.add_chunk(tokens, live.computed)
            load.prefill_ends += live.computed + tokens >= known
        else:
            load.decode_requests += 1
            load.decode_tokens += live.computed
            load.prefill_tokens += tokens - 1
            load.prefill_pairs += (tokens - 1) * live.computed + tokens * (tokens - 1) // 2
        live.computed += tokens
        live.in_flight += tokens
        self._blocked = False
        drafts.is_chunk = live.computed < known
        sampled = not drafts.is_chunk
        batch.entries.append(_Entry(live, tokens, verified, sampled=sampled, padded=drafts.padded))
        drafts.padded, drafts.drafted = False, 0
        if sampled:
            batch.sampled = True
            self._resume(live)
            if self.lag:
                drafts.placeholders += 1 + verified
                drafts.drafted = self.speculation.tokens

    def _take_results(self, batch: Batch) -> None:
        assert isinstance(batch, _SpeculatedBatch)
        log, now, cache = self.requests, self._now, self.cache
        for entry in batch.entries:
            live = entry.live
            if live.state is State.FINISHED:
                continue
            drafts, current = self._drafts[live.number], live.preemptions == entry.preemptions
            if current:
                live.in_flight -= entry.tokens
            if not entry.sampled:
                continue
            accepted = 0 if entry.padded else self._accepted(live, entry.drafts)
            if current:
                live.computed -= entry.drafts - accepted
                if drafts.placeholders:
                    drafts.placeholders -= entry.drafts - accepted
            final = live.last + 1
            kept = min(1 + accepted, final - live.known)
            live.known += kept
            if current and live.known >= final:
                live.computed -= 1 + accepted - kept
            if current and drafts.placeholders:
                drafts.placeholders -= 1 + accepted
            if log.firsts[live.number] is None:
                log.firsts[live.number], log.hits[live.number] = now, live.hit
            if current:
                cache.publish(live, live.computed - live.in_flight)
            if live.known >= final:
                self._finish(live)
            elif current and not self.lag:
                drafts.drafted = self.speculation.tokens

    def _accepted(self, live: Live, drafts: int) -> int:
        """The number of drafted tokens that are right, from the first on."""
        accepted = 0
        while accepted < drafts and is_accepted(live.number, live.known + accepted, self.speculation.acceptance):
            accepted += 1
        self.drafted += drafts
        self.accepted += accepted
        return accepted

    def _finish(self, live: Live) -> None:
        if live.state is State.WAITING:
            self.waiting.remove(live)
        else:
            del self.running[live.seq]
            del self.prefilling[live.seq]
            self.cache.release(live, ended=True)
        live.state = State.FINISHED
        del self._drafts[live.number]
        self._cancellable.pop(live.number, None)
        self.requests.finish(live.number, self._now, live.last + 1 - live.prompt)
        self._blocked = False
        self._flushes = self.lag > 0
        self.contents.forget(self._chains)

    def cancel(self, number: int) -> None:
        super().cancel(number)
        self._drafts.pop(number, None)
