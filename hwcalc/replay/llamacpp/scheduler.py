"""llama-server's scheduler: slots that each serve one request at a time and keep its tokens, a queue of requests without a slot, and a cache
of prompts in host memory.

A slot's tokens stay where they are when its request has ended, so that the next request with the same beginning goes on from there. What a
slot is about to lose goes to the prompt cache.

Source: llama.cpp v0.5.0 (commit 0c1e57098), tools/server: server-context.cpp ``get_available_slot``, ``process_single_task``,
``update_slots``, ``pre_decode``, ``decode``, ``post_decode``; server-queue.cpp ``pop_deferred_task``; server-task.cpp
``server_prompt_cache``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from struct import pack, unpack
from typing import TYPE_CHECKING, Any, Final

from hwcalc.formulas.record import Record
from hwcalc.replay.content import Content, Contents
from hwcalc.replay.core import Measures, RequestLog, Scheduler
from hwcalc.units import MIB

if TYPE_CHECKING:
    from hwcalc.workload.request import Request

COLUMNS: Final = ("iteration", "scheduled_tokens", "scheduled_requests", "running", "waiting", "used_cells", "cached_cells")
_KEEPS: Final = 0.5
"""The share of a slot's tokens that the next request must keep, or they are saved in the prompt cache."""
_WORTH: Final = 0.25
"""The share of a saved prompt that a request must have, or it is not taken from the prompt cache."""


class SlotRules(Record):
    """The settings of llama-server that bear on its slots, by its own names where it has them."""

    n_parallel: int
    """Slots."""
    n_ctx: int
    """Cells of all slots together."""
    n_ctx_slot: int
    """The most tokens of a request."""
    kv_unified: bool
    """True if all slots share the cells."""
    n_batch: int
    n_ubatch: int
    """The most tokens of a pass over the model."""
    cont_batching: bool = True
    cache_prompt: bool = True
    slot_prompt_similarity: float = 0.1
    cache_idle_slots: bool = True
    cache_ram_mib: int = 8192
    """Host memory for saved prompts; 0 is none, and -1 as many as ``n_ctx`` tokens."""
    saved_bytes: int = 0
    """Bytes of a saved prompt beside its tokens."""
    saved_token_bytes: int = 1
    """Bytes of a token of a saved prompt."""


class Prompt:
    """Tokens that are stored: the first ``tokens`` of a content."""

    __slots__ = ("content", "tokens")

    def __init__(self, content: Content, tokens: int) -> None:
        self.content = content
        self.tokens = tokens

    def shared(self, other: Prompt) -> int:
        """The tokens at the beginning that are the same in both."""
        return self.content.shared_tokens(other.content, min(self.tokens, other.tokens))


_NOTHING: Final = Content((), 0)


class Live:
    """A request that has arrived and not ended."""

    __slots__ = ("number", "output", "produced", "whole")

    def __init__(self, number: int, whole: Prompt, output: int) -> None:
        self.number = number
        self.whole = whole
        """All tokens of its prompt."""
        self.output = output
        """Tokens that it will have, unless its slot is full before."""
        self.produced = 0

    @property
    def left(self) -> int:
        """Output tokens that are still to come."""
        return self.output - self.produced


class Slot:
    """A slot: what it has stored, and the request that it serves."""

    __slots__ = ("begun", "last_used", "live", "sampled_at", "stored")

    def __init__(self) -> None:
        self.stored = Prompt(_NOTHING, 0)
        self.live: Live | None = None
        self.begun = False
        """True if it has looked at the prompt of its request."""
        self.last_used = -1
        self.sampled_at = -1
        """The place in the batch of the token from which the next one is sampled; -1 if there is none."""

    def clear(self) -> None:
        """Forget what is stored."""
        self.stored = Prompt(_NOTHING, 0)

    @property
    def generates(self) -> bool:
        """True if its request's prompt is complete."""
        return self.live is not None and self.live.produced > 0


class PromptCache:
    """Prompts in host memory, the oldest first."""

    def __init__(self, rules: SlotRules) -> None:
        self.rules = rules
        self.prompts: list[Prompt] = []

    def save(self, prompt: Prompt) -> bool:
        """Keep a copy of a prompt, unless it is a part of one that is there; whether a copy was made."""
        shared = [each.shared(prompt) for each in self.prompts]
        size, limit = self._bytes(prompt), self.rules.cache_ram_mib * MIB
        if not prompt.tokens or prompt.tokens in shared or 0 < limit < size:
            return False
        # Those of which it is the continuation are not needed any more.
        self.prompts = [each for each, same in zip(self.prompts, shared, strict=True) if same < each.tokens]
        self.prompts.append(Prompt(prompt.content, prompt.tokens))
        while limit > 0 and sum(map(self._bytes, self.prompts)) > limit:
            del self.prompts[0]
        return True

    def trim(self) -> None:
        """Forget the oldest, where no limit is given, until all together have no more tokens than a context."""
        while self.rules.cache_ram_mib < 0 and sum([prompt.tokens for prompt in self.prompts]) > self.rules.n_ctx:
            del self.prompts[0]

    def best(self, stored: Prompt, wanted: Prompt) -> Prompt | None:
        """The prompt that has more of what is wanted than what is stored, and of which a larger share is wanted."""
        same = stored.shared(wanted)
        keeps = _single(same / stored.tokens) if stored.tokens else -1.0
        found = None
        for prompt in self.prompts:
            shared = prompt.shared(wanted)
            share = _single(shared / prompt.tokens)
            if share >= _WORTH and share > keeps and shared > same:
                keeps, same, found = share, shared, prompt
        return found

    def take(self, prompt: Prompt) -> None:
        """A prompt goes back to a slot."""
        self.prompts.remove(prompt)

    def _bytes(self, prompt: Prompt) -> int:
        return self.rules.saved_bytes + prompt.tokens * self.rules.saved_token_bytes


class LlamacppScheduler(Scheduler):
    """llama-server's loop over its slots."""

    measures = Measures(running="running", waiting="waiting", used="used_cells", unit="cells")
    stalls_when = "llama-server serves whatever it takes."
    fails_when = "the cells that all slots share ran out"

    def __init__(self, rules: SlotRules, requests: RequestLog | None = None) -> None:
        super().__init__(COLUMNS, requests)
        self.rules = rules
        self.slots = [Slot() for _ in range(rules.n_parallel)]
        self.contents = Contents()
        self.saved = PromptCache(rules) if rules.cache_ram_mib else None
        self.queue: deque[Live] = deque()
        """Requests that were not looked at yet."""
        self.deferred: deque[Live] = deque()
        """Requests that found no slot."""
        self.counts = dict.fromkeys(("looked_up", "hits", "saved", "loaded", "cleared", "halved"), 0)
        self._turn = self._uses = 0

    # What the clock calls.

    @property
    def idle(self) -> bool:
        return not self.queue and not self.deferred and all(slot.live is None for slot in self.slots)

    def add(self, request: Request) -> None:
        prompt = request.prompt_tokens
        # A request ends when its slot is full but for one token.
        output = max(1, min(request.output_tokens, self.rules.n_ctx_slot - prompt))
        if output < request.output_tokens:
            self.requests.cut.append(request.number)
        self.queue.append(Live(request.number, Prompt(self.contents.of(request), prompt), output))

    def cancel(self, number: int) -> None:
        for slot in self.slots:
            if slot.live is not None and slot.live.number == number:
                self.requests.cancel(number, slot.live.produced)
                self._release(slot)
                return
        for waiting in (self.queue, self.deferred):
            for live in waiting:
                if live.number == number:
                    waiting.remove(live)
                    self.requests.cancel(number, 0)
                    return

    def step(self, turn: int, most: int) -> int:
        self._turn = turn
        self.progressed = bool(self.queue)
        while self.queue:
            self._launch(self.queue.popleft())
        self.load.clear()
        size, requests = self._fill_batch()
        if size:
            self.progressed = True
            self.load.passes = -(-size // self.rules.n_ubatch)
            running = sum([slot.live is not None for slot in self.slots])
            used = sum([slot.stored.tokens for slot in self.slots if slot.live is not None])
            cached = sum([slot.stored.tokens for slot in self.slots if slot.live is None])
            waiting = len(self.deferred)
            decoded = self._decode(size, used + cached)
            self.steps.numbers.extend((turn, size, requests, running, waiting, used - size + decoded, cached))
        return 1

    # A request finds a slot.

    def _launch(self, live: Live) -> None:
        """Give a request a slot, or let it wait; slots that are idle then are saved, and emptied where all share the cells."""
        slot = self._slot_for(live)
        if slot is None:
            self.deferred.append(live)
            return
        slot.live, slot.begun = live, False
        if not self.rules.cache_idle_slots or self.saved is None:
            return
        for other in self.slots:
            if other.live is None:
                self.counts["saved"] += self.saved.save(other.stored)
                self.saved.trim()
                if self.rules.kv_unified:
                    other.clear()

    def _slot_for(self, live: Live) -> Slot | None:
        """The idle slot with the most tokens of the prompt, if they are more than the least share of it; else that which was used first.

        What is stored in it is saved if most of it gets lost, and a saved prompt that fits better takes its place.
        """
        wanted, least = live.whole, _single(self.rules.slot_prompt_similarity)
        idle = [slot for slot in self.slots if slot.live is None]
        if not idle:
            return None
        found, best = None, 0.0
        for slot in idle if least else ():
            similarity = _single(slot.stored.shared(wanted) / wanted.tokens)
            if similarity > max(best, least):
                found, best = slot, similarity
        if found is not None:
            loses = _single(_single(best * wanted.tokens) / found.stored.tokens) < _KEEPS
        else:
            # Of slots that were never used it is the last.
            found, loses = min(reversed(idle), key=lambda slot: slot.last_used), True
        if loses and self.saved is not None:
            self.counts["saved"] += self.saved.save(found.stored)
            self._load(found, wanted)
            self.saved.trim()
        return found

    def _load(self, slot: Slot, wanted: Prompt) -> None:
        """Let a saved prompt take the place of what a slot has, if it has more of what is wanted."""
        assert self.saved is not None
        better = self.saved.best(slot.stored, wanted)
        if better is None:
            return
        slot.clear()
        if self.rules.kv_unified and better.tokens > self._free():
            return
        self.saved.take(better)
        slot.stored = better
        self.counts["loaded"] += 1

    def _free(self) -> int:
        return self.rules.n_ctx - sum([slot.stored.tokens for slot in self.slots])

    # A step.

    def _fill_batch(self) -> tuple[int, int]:
        """Put a token of each request that generates into the batch, and then prompts; returns how many tokens and requests are in it."""
        load, rules, size, requests = self.load, self.rules, 0, 0
        for slot in self.slots:
            if slot.generates:
                load.decode_tokens += slot.stored.tokens
                slot.stored.tokens += 1
                slot.sampled_at = size
                size += 1
        load.decode_requests = requests = size
        if size and not rules.cont_batching:
            return size, requests
        for slot in self.slots:
            if size >= rules.n_batch:
                break
            live = slot.live
            if live is None or slot.generates or not (slot.begun or self._begins(slot, live)):
                continue
            stored, whole = slot.stored, live.whole
            tokens = min(whole.tokens - stored.tokens, rules.n_batch - size)
            load.add_chunk(tokens, stored.tokens)
            stored.tokens += tokens
            size += tokens
            requests += 1
            complete = stored.tokens == whole.tokens
            load.prefill_ends += complete
            slot.sampled_at = size - 1 if complete else -1
        return size, requests

    def _begins(self, slot: Slot, live: Live) -> bool:
        """Look at the prompt of a request that has got a slot: keep what it has in common with what is stored. Too long ones are refused."""
        whole, log = live.whole, self.requests
        if whole.tokens >= self.rules.n_ctx_slot:
            self._release(slot)
            log.refuse(live.number)
            return False
        # At least one token is computed.
        hit = min(slot.stored.shared(whole), whole.tokens - 1) if self.rules.cache_prompt else 0
        slot.stored, slot.begun = Prompt(whole.content, hit), True
        log.scheduled[live.number], log.hits[live.number] = self._turn, hit
        self.counts["looked_up"] += whole.tokens
        self.counts["hits"] += hit
        return True

    def _decode(self, size: int, tokens: int) -> int:
        """Compute a batch, in parts if the shared cells do not hold it; returns how many of its tokens were computed.

        ``tokens`` are those of all slots with the batch. Slots that are idle are emptied for it, one after another; then it is halved. If
        not even one token fits, all requests end.
        """
        rules, done = self.rules, 0
        free, most = rules.n_ctx - tokens + size, rules.n_batch
        while done < size:
            part = min(most, size - done)
            if not rules.kv_unified or part <= free:
                free -= part
                done += part
                most = rules.n_batch
                self._sample(done - part, done)
                continue
            if most == 1:
                self._fail()
                break
            idle = next((slot for slot in self.slots if slot.live is None and slot.stored.tokens), None)
            if idle is None:
                most //= 2
                self.counts["halved"] += 1
            else:
                free += idle.stored.tokens
                idle.clear()
                self.counts["cleared"] += 1
        self.contents.forget(self._chains)
        return done

    def _sample(self, start: int, stop: int) -> None:
        """Give the next token to those whose last one lies in a part of the batch."""
        turn, log = self._turn, self.requests
        for slot in self.slots:
            live = slot.live
            if live is None or not start <= slot.sampled_at < stop:
                continue
            slot.sampled_at = -1
            live.produced += 1
            if live.produced == 1:
                log.firsts[live.number] = turn
            if not live.left:
                self._release(slot)
                log.finish(live.number, turn, live.produced)

    def _fail(self) -> None:
        """End all requests that have a slot, and empty their slots."""
        for slot in self.slots:
            if slot.live is not None:
                self.requests.fail(slot.live.number, slot.live.produced)
                self._release(slot)
                slot.clear()

    def _release(self, slot: Slot) -> None:
        """A slot has served its request: the first that waits is looked at before all that arrive."""
        slot.live, slot.begun, slot.sampled_at = None, False, -1
        slot.last_used = self._uses
        self._uses += 1
        if self.deferred:
            self.queue.appendleft(self.deferred.popleft())

    def _chains(self) -> Iterator[int]:
        """The chains of all that is stored or waits."""
        for prompt in self._prompts():
            yield from prompt.content.chains
        for live in (*self.queue, *self.deferred):
            yield from live.whole.content.chains

    def _prompts(self) -> Iterable[Prompt]:
        """All that is stored, or served."""
        served = [slot.live.whole for slot in self.slots if slot.live is not None]
        return (*(slot.stored for slot in self.slots), *served, *(self.saved.prompts if self.saved is not None else ()))

    # What it tells.

    def waiting_tokens(self) -> int:
        waiting = sum([live.whole.tokens + live.output for live in (*self.queue, *self.deferred)])
        served = [(slot, slot.live) for slot in self.slots if slot.live is not None]
        return waiting + sum(
            [
                live.left if slot.generates else live.whole.tokens - slot.stored.tokens * slot.begun + live.output
                for slot, live in served
            ]
        )

    def pressure(self) -> tuple[int, int, float]:
        running = [slot.stored.tokens for slot in self.slots if slot.live is not None]
        return len(running), len(self.queue) + len(self.deferred), sum(running) / self.rules.n_ctx

    def cached_tokens(self, request: Request) -> int:
        wanted = Prompt(self.contents.of(request), request.prompt_tokens)
        return max([prompt.shared(wanted) for prompt in self._prompts()], default=0)

    @property
    def longest_request(self) -> int:
        return self.rules.n_ctx_slot

    @property
    def refuses_when(self) -> str:
        return f"have a prompt of {self.rules.n_ctx_slot:,} tokens or more, which a slot's context does not hold with an answer"

    @property
    def capacity(self) -> int:
        return self.rules.n_ctx

    def settings(self) -> dict[str, Any]:
        return {name: getattr(self.rules, name) for name in self.rules.__struct_fields__}

    def totals(self, turns: int) -> dict[str, Any]:
        iterations, tokens, scheduled, running, waiting, used, cached = (self.steps.column(name) for name in COLUMNS)
        counts = self.counts
        return {
            "iterations": turns,
            "model_steps": len(self.steps),
            "scheduled_tokens": sum(tokens),
            "preemptions": 0,
            "peak_used_cells": max(used, default=0),
            "sum_used_cells": sum(used),
            "peak_cached_cells": max(cached, default=0),
            "peak_running": max(running, default=0),
            "peak_scheduled_requests": max(scheduled, default=0),
            "peak_waiting": max(waiting, default=0),
            "last_iteration": iterations[-1] if iterations else None,
            "prefix_cache": {"queries": counts["looked_up"], "hits": counts["hits"]},
            "prompt_cache": {name: counts[name] for name in ("saved", "loaded")},
            "cleared_slots": counts["cleared"],
            "halved_batches": counts["halved"],
        }


def _single(value: float) -> float:
    """A number as the server has it, with 32 bits."""
    rounded: float = unpack("f", pack("f", value))[0]
    return rounded
