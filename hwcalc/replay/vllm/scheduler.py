"""vLLM's scheduler: who gets tokens of the next step, who waits, and who gives his blocks back.

A request that decodes takes one token in every step, and what it holds changes every ``block_size`` steps only. So decoding requests are
counted, and each is looked at only in the steps in which it takes or gives back a block that matters to others, or ends. Blocks that are all
alike are counted, too: the request's table is read when it is looked at.

Source: vLLM 0.33, v1/core/sched/scheduler.py, async_scheduler.py, utils.py, v1/engine/core.py.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Final

from hwcalc.errors import UnsupportedError
from hwcalc.formulas.record import Record
from hwcalc.replay.content import Contents, chain_of
from hwcalc.replay.core import Measures, Role, Scheduler
from hwcalc.replay.decoding import Decoding, State
from hwcalc.replay.vllm.cache import CacheRules, Held, PagedCache
from hwcalc.replay.vllm.groups import NEVER, Group
from hwcalc.replay.vllm.live import Batch, Live

if TYPE_CHECKING:
    from hwcalc.replay.core import RequestLog
    from hwcalc.workload.request import Request

COLUMNS: Final = ("iteration", "scheduled_tokens", "scheduled_requests", "running", "waiting", "used_blocks")


class Speculating(Record):
    """Speculative decoding: ``tokens`` are drafted at a time, and each is accepted with the probability ``acceptance`` if those before it are.

    ``slots`` are tokens of the batch that a draft takes for each request, and ``lookahead`` are tokens before the end of a prompt within
    which no chunk may end.
    """

    method: str
    tokens: int
    slots: int
    lookahead: int
    acceptance: float


class SchedulerRules(Record):
    """The settings of vLLM's scheduler, by its own names."""

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    async_scheduling: bool
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    policy: str = "fcfs"
    speculation: Speculating | None = None
    cache: CacheRules


class VllmScheduler(Scheduler):
    """vLLM's scheduler over ``blocks`` blocks for requests, the null block not counted."""

    batches: ClassVar[type[Batch]] = Batch
    measures = Measures(running="running", waiting="waiting", used="used_blocks")
    stalls_when = "one needs more blocks than there are. vLLM refuses to start with such a pool. Give more blocks, or a smaller max_model_len."

    def __init__(self, rules: SchedulerRules, blocks: int, requests: RequestLog | None = None) -> None:
        super().__init__(COLUMNS, requests)
        self.rules = rules
        self.cache = PagedCache(rules.cache, blocks)
        self.contents = Contents()
        self.lag = int(rules.async_scheduling)
        self.waiting: deque[Live] = deque()
        self.running: dict[int, Live] = {}
        """In the order of admission."""
        self.prefilling: dict[int, Live] = {}
        self.loading: dict[int, Live] = {}
        """Requests whose cache comes from another server, by number."""
        self.loaded: dict[int, Live] = {}
        """Those whose cache has come, who are the first to go on."""
        self.kept: dict[int, Live] = {}
        """Requests that have ended, whose cache another server has not got yet."""
        self.decoding = Decoding[Live](rules.cache.groups[0].size)
        self.hits = dict.fromkeys(("queries", "hits", "requests", "preempted_queries", "preempted_hits", "preempted_requests"), 0)
        self.schedule_calls = self.preemptions = 0
        self._is_priority = rules.policy == "priority"
        self._slots = 0
        """Tokens of the batch that each request takes beside its own."""
        self._whole = all(type(group) is Group for group in rules.cache.groups)
        self._most = _capped(rules.max_num_batched_tokens, rules.long_prefill_token_threshold)
        """The most tokens of a prompt in a step."""
        self._pending: Batch | None = None
        """The batch under way (async scheduling)."""
        self._flushes = False
        """True if a call is still due that tells the workers who has finished."""
        self._blocked = False
        """True if the first waiting request does not fit, as long as nobody gives anything back."""
        self._cancellable: dict[int, Live] = {}
        self._now = 0
        self._next_order = self._next_seq = 0

    # What the clock calls.

    @property
    def idle(self) -> bool:
        if self.running or self.loaded:
            return False
        if self.waiting:
            # Who does not fit waits until a cache has moved.
            return self._blocked and bool(self.loading or self.kept)
        return self._pending is None

    def add(self, request: Request) -> None:
        prompt, output = request.prompt_tokens, max(1, request.output_tokens)
        if prompt >= self.rules.max_model_len:
            self.requests.refuse(request.number)
            return
        if output > self.rules.max_model_len - prompt:
            output = self.rules.max_model_len - prompt
            self.requests.cut.append(request.number)
        most = output if request.max_tokens is None else min(request.max_tokens, self.rules.max_model_len - prompt)
        live = Live(
            self.contents.of(request),
            request,
            self._next_order,
            prompt + output - 1,
            unforeseen=self.lag > 0 and most > output,
        )
        if self.role is Role.DECODE:
            live.remote, live.computed = True, prompt - 1
        if request.cancel_after_s is not None:
            self._cancellable[request.number] = live
        self._next_order += 1
        if self._is_priority:
            self._blocked = False
        self._wait(live)

    def _wait(self, live: Live, *, first: bool = False) -> None:
        """Let a request wait behind all others, or in front of them; where priorities count, in their order and that of arrival."""
        if self._is_priority:
            insort(self.waiting, live, key=_urgency)
        elif first:
            self.waiting.appendleft(live)
        else:
            self.waiting.append(live)

    def step(self, turn: int, most: int) -> int:
        if most > 1:
            taken = self._decode_only(turn, min(most, self.steps_alike()))
            if taken:
                return taken
        self._now = turn
        batch: Batch | None = None
        tokens = 0
        if self.running or self.waiting or self.loaded or self._flushes:
            batch = self.batches()
            self.schedule_calls += 1
            self._flushes = False
            tokens = self._schedule(batch)
        if self.lag:
            batch, self._pending = self._pending, batch
        self.progressed = tokens > 0
        if batch is not None:
            self.progressed = self.progressed or batch.sampled
            self._take_results(batch)
        return 1

    def cancel(self, number: int) -> None:
        live = self._cancellable.pop(number, None)
        if live is None or live.state is State.FINISHED:
            return
        known = live.known
        if live.state is State.WAITING:
            self.waiting.remove(live)
        else:
            if live.state is State.LOADING:
                del (self.loading if number in self.loading else self.loaded)[number]
            elif live.state is State.PREFILL:
                del self.running[live.seq], self.prefilling[live.seq]
            else:
                del self.running[live.seq]
                ending = live.state is State.ENDING
                self._stop_decoding(live, State.FINISHED)
                # The last token of one that ends is under way.
                known = live.last if ending else live.known
                self.cache.publish(live, live.computed - live.in_flight)
            self.cache.release(live, ended=True)
        live.state = State.FINISHED
        self._blocked = False
        self._flushes = self.lag > 0
        self.requests.cancel(number, known - live.prompt)

    def waiting_tokens(self) -> int:
        decoding = [live for live in self.running.values() if live.state is State.DECODE]
        others = (*self._waiting, *self.prefilling.values())
        return sum([live.last + 1 - live.computed for live in others]) + sum(
            [live.last - live.offset - self.decoding.steps for live in decoding]
        )

    def pressure(self) -> tuple[int, int, float]:
        return len(self.running), len(self._waiting), self.cache.pool.used / self.cache.pool.total

    def cached_tokens(self, request: Request) -> int:
        return self.cache.look_up(Held(self.contents.of(request), request.prompt_tokens)).tokens

    @property
    def longest_request(self) -> int:
        return self.rules.max_model_len

    @property
    def refuses_when(self) -> str:
        return f"do not fit in max_model_len {self.rules.max_model_len:,}"

    @property
    def capacity(self) -> int:
        return self.cache.pool.total

    def settings(self) -> dict[str, Any]:
        rules = self.rules
        return {
            **{name: getattr(rules, name) for name in rules.__struct_fields__ if name != "cache"},
            "enable_prefix_caching": rules.cache.caching,
            "prefix_cache_retention_interval": rules.cache.retention,
            "scheduler_reserve_full_isl": rules.cache.reserve,
            "watermark_blocks": rules.cache.watermark,
            "block_size": [group.size for group in rules.cache.groups],
        }

    def totals(self, turns: int) -> dict[str, Any]:
        iterations, tokens, scheduled, running, waiting, used = (self.steps.column(name) for name in COLUMNS)
        return {
            "iterations": turns,
            "schedule_calls": self.schedule_calls,
            "model_steps": len(self.steps),
            "scheduled_tokens": sum(tokens),
            "preemptions": self.preemptions,
            "peak_used_blocks": max(used, default=0),
            "sum_used_blocks": sum(used),
            "peak_running": max(running, default=0),
            "peak_scheduled_requests": max(scheduled, default=0),
            "peak_waiting": max(waiting, default=0),
            "last_iteration": iterations[-1] if iterations else None,
            "used_blocks_after": self.cache.pool.used,
            "prefix_cache": dict(self.hits),
        }

    # One call of schedule().

    def _schedule(self, batch: Batch) -> int:
        """Give out the tokens of a step, and note its row; returns how many tokens."""
        rules, decoding = self.rules, self.decoding
        self.cache.begin_step()
        threshold = rules.long_prefill_token_threshold if len(self.running) + len(self.waiting) > 1 else 0
        preemptions = self.preemptions
        events = [live for live in decoding.due(decoding.steps) if live.event_at == decoding.steps and live.state is State.DECODE]
        decoding.pass_by(decoding.steps)
        load = self.load
        load.clear()
        chunks: list[tuple[Live, int]] = []
        budget = rules.max_num_batched_tokens
        if self._is_priority or self._is_tight(budget, threshold):
            deferred = self._serve_in_order(budget, threshold, batch, chunks)
        else:
            self._serve_changes(events, budget, threshold, batch, chunks)
            deferred = []
        decoded = decoding.count - len(deferred)
        taken = decoded + sum([tokens for _, tokens in chunks])
        if self.preemptions == preemptions and (self.waiting or self.loaded):
            taken += self._admit(budget - taken - self._slots * len(chunks), threshold, chunks)
        if taken:
            requests, used = decoded + len(chunks), self.cache.pool.used
            self.steps.numbers.extend((self._now, taken, requests, len(self.running), len(self._waiting), used))
        batch.sampled = decoded > 0
        load.decode_requests = decoded
        load.decode_tokens = decoding.tokens
        decoding.steps += 1
        for live in deferred:
            decoding.leave(live.offset, pages=live.counted)
            live.offset -= 1
            decoding.enter(live.offset, pages=live.counted)
            live.idle_at = self._now
            live.forced = 2
            self._set_event(live, decoding.steps)
        for live, tokens in chunks:
            self._advance(live, tokens, batch)
        if not self.lag:
            return taken
        for live in batch.ending:
            # A foreseen end: no further token is scheduled for it.
            if live.state is State.DECODE and not live.unforeseen:
                self._stop_decoding(live, State.ENDING)
        return taken

    def _is_tight(self, budget: int, threshold: int) -> bool:
        """True if the order of running requests decides who gets tokens."""
        if self.decoding.count > budget:
            return True
        if not self.prefilling:
            return False
        wanted = self.decoding.count
        for live in self.prefilling.values():
            wanted += _capped(live.known - live.computed, threshold)
        if wanted <= budget:
            return False
        # The rest of the budget is for a prompt that comes last.
        return len(self.prefilling) > 1 or self.decoding.count == budget or next(reversed(self.running)) not in self.prefilling

    def _serve_changes(
        self, events: list[Live], budget: int, threshold: int, batch: Batch, chunks: list[tuple[Live, int]]
    ) -> None:
        """Give blocks to those who need some, and tokens to prompts, where every decoding request gets its token."""
        counted = self._take_counted(events, budget, threshold)
        work = events if counted else [live for live in self.running.values() if self._is_looked_at(live)]
        left = budget - self.decoding.count
        for live in sorted([*work, *self.prefilling.values()], key=_by_seq):
            if live.state is State.WAITING:
                continue
            if live.state is State.DECODE:
                if not self._decode(live, batch):
                    return
                continue
            tokens = self._chunk_of(live, left, threshold)
            if not tokens:
                continue
            if not self._serve(live, tokens):
                return
            chunks.append((live, tokens))
            left -= tokens

    def _is_looked_at(self, live: Live) -> bool:
        """True if a decoding request takes or gives back something in this step, or ends."""
        if live.state is not State.DECODE:
            return False
        return live.event_at == self.decoding.steps or (live.counted and self.decoding.takes_page(live.offset))

    def _take_counted(self, events: list[Live], budget: int, threshold: int) -> bool:
        """Take the blocks that are only counted; false if it matters who comes first."""
        decoding, pool = self.decoding, self.cache.pool
        blocks = decoding.pages_next()
        if not blocks:
            return True
        if threshold or not all(live.counted for live in events):
            return False
        # Those who are looked at take theirs themselves.
        own = sum([decoding.takes_page(live.offset) for live in events])
        prompts = budget // decoding.page + len(self.prefilling) if self.prefilling else 0
        if blocks + prompts > pool.free:
            return False
        pool.take(blocks - own)
        return True

    def _serve_in_order(self, budget: int, threshold: int, batch: Batch, chunks: list[tuple[Live, int]]) -> list[Live]:
        """Go through the running requests as vLLM does, while the budget lasts; returns the decoding ones that got no token."""
        slots, left, preemptions = self._slots, budget, self.preemptions
        granted: dict[int, int] = {}
        for live in list(self.running.values()):
            if left <= slots:
                break
            if live.state is State.WAITING or live.state is State.ENDING:
                continue
            tokens = 1
            if live.state is State.PREFILL:
                tokens = self._chunk_of(live, left - slots, threshold)
                if not tokens:
                    continue
                served = self._serve(live, tokens, granted)
            else:
                served = not self._is_looked_at(live) or self._decode(live, batch, granted)
            if served:
                granted[live.seq] = tokens
                left -= tokens + slots
            elif not self._is_priority:
                break
            if self.preemptions > preemptions:
                # Who is preempted gives his tokens back.
                left, preemptions = budget - sum(granted.values()) - slots * len(granted), self.preemptions
        chunks += [(live, granted[seq]) for seq, live in self.prefilling.items() if seq in granted]
        chunks.sort(key=lambda chunk: chunk[0].seq)
        batch.ending = [live for live in batch.ending if live.state is State.DECODE]
        return [live for seq, live in self.running.items() if live.state is State.DECODE and seq not in granted]

    def _chunk_of(self, live: Live, budget: int, threshold: int) -> int:
        """The tokens that a running prompt gets."""
        live.in_flight = live.chunk if self.lag and live.chunk_at == self._now - 1 else 0
        tokens = min(_capped(live.known - live.computed, threshold), budget)
        if tokens > 0 and self.cache.states:
            tokens = self.cache.split(live, live.computed, tokens, self._most)
        return max(tokens, 0)

    def _decode(self, live: Live, batch: Batch, granted: dict[int, int] | None = None) -> bool:
        """Take and give back what a decoding request must in this step; whether it could go on."""
        self._read(live)
        if not self._whole:
            # What was filled since it was looked at last, before some of it may leave.
            self.cache.publish(live, live.computed - live.in_flight)
        if not self._serve(live, 1, granted):
            return False
        if live.computed + 1 == live.last:
            batch.ending.append(live)
        if live.forced:
            live.forced -= 1
            self._set_event(live, self.decoding.steps + 1)
        else:
            self._look_next(live, self.decoding.steps + 1)
        return True

    def _serve(self, live: Live, tokens: int, granted: dict[int, int] | None = None) -> bool:
        """Give a running request blocks for more tokens, and preempt others until there are enough; whether it was not preempted itself."""
        while not self.cache.grow(live, tokens):
            victim = self._victim()
            if granted is not None:
                granted.pop(victim.seq, None)
            self._preempt(victim, scheduled=self._is_priority and victim.seq < live.seq and victim.state is State.DECODE)
            if victim is live:
                return False
        return True

    def _victim(self) -> Live:
        """The running request that is preempted next, taken from those that run."""
        if not self._is_priority:
            return self.running.popitem()[1]
        victim = max(self.running.values(), key=lambda live: (live.priority, live.order))
        del self.running[victim.seq]
        return victim

    def _preempt(self, live: Live, *, scheduled: bool) -> None:
        """Take all blocks of a request, and put it in front of those that wait. ``scheduled`` says that it has got a token in this step."""
        cache = self.cache
        if live.state is State.DECODE:
            self._read(live)
            if self.lag:
                cache.publish(live, live.computed if scheduled else live.computed - live.in_flight)
            else:
                cache.publish(live, live.computed + scheduled)
            self._leave(live)
            # A token that is under way is still delivered.
            live.known = live.computed + 1
            live.paused_at = self._now - 1 - (live.idle_at == self._now - 1)
        elif live.state is State.ENDING:
            cache.publish(live, live.last - 1)
        else:
            del self.prefilling[live.seq]
        self.requests.preemptions.append((self._now, live.number, live.computed))
        self.requests.preempted[live.number] += 1
        cache.release(live)
        self._blocked = False
        live.state, live.computed = State.WAITING, 0
        live.preemptions += 1
        self.preemptions += 1
        self._wait(live, first=True)

    def _admit(self, budget: int, threshold: int, chunks: list[tuple[Live, int]]) -> int:
        """Admit waiting requests while there is room; returns the tokens that they get."""
        rules, cache, slots, taken = self.rules, self.cache, self._slots, 0
        while budget > slots and self.loaded and len(self.running) < rules.max_num_seqs:
            live = self.loaded.pop(next(iter(self.loaded)))
            # The last token of the prompt is computed here, in a block that it has.
            cache.publish(live, live.computed)
            cache.grow(live, 1)
            self._run(live, 1, chunks)
            taken += 1
            budget -= 1
        while budget > slots and self.waiting and len(self.running) < rules.max_num_seqs and not self._blocked:
            live = self.waiting[0]
            live.in_flight = 0
            cache.open(live)
            hit = cache.look_up(live)
            if live.remote:
                if not cache.admit(live, hit, live.prompt - hit.tokens, others_run=bool(self.running)):
                    self._blocked = True
                    break
                self._load(live, hit.tokens)
                continue
            tokens = self._wanted(live, hit.tokens, budget - slots)
            if not tokens:
                break
            tokens = _capped(tokens, threshold)
            if not rules.enable_chunked_prefill and tokens > budget - slots:
                break
            tokens = self._ending_apart(live, hit.tokens, min(tokens, budget - slots))
            if cache.states:
                live.junction = hit.junction
                tokens = cache.split(live, hit.tokens, tokens, self._most)
                if not tokens:
                    break
            if not cache.admit(live, hit, tokens, others_run=bool(self.running)):
                self._blocked = self._whole
                break
            cache.publish(live, min(hit.tokens + tokens, live.known))
            self.waiting.popleft()
            live.computed = hit.tokens
            self._count_hit(live, hit.tokens)
            self._run(live, tokens, chunks)
            taken += tokens
            budget -= tokens + slots
        return taken

    def _run(self, live: Live, tokens: int, chunks: list[tuple[Live, int]]) -> None:
        """Let a request run that has what it needs for the next tokens of its prompt."""
        live.seq = self._next_seq
        self._next_seq += 1
        live.state = State.PREFILL
        self.running[live.seq] = self.prefilling[live.seq] = live
        chunks.append((live, tokens))

    def _load(self, live: Live, hit: int) -> None:
        """Let a request wait for its cache; what it has found here does not move."""
        self.waiting.popleft()
        live.state, live.remote = State.LOADING, False
        self._count_hit(live, hit)
        self.loading[live.number] = live
        self.pulls.append((live.number, live.prompt - hit))

    def cache_moved(self, number: int) -> None:
        live = self.loading.pop(number, None)
        if live is not None:
            self.loaded[number] = live
        elif number in self.kept:
            self.cache.release(self.kept.pop(number), ended=True)
            self._blocked = False

    def play(self, role: Role) -> None:
        if not self._whole or self.rules.speculation is not None:
            what = "drafts" if self._whole else "windows and recurrent states"
            raise UnsupportedError(
                f"The replay has no rule for {what} where prompts and tokens have servers of their own.",
                hint="Leave out: --prefill-servers, --decode-servers",
            )
        self.role = role

    @property
    def _waiting(self) -> Collection[Live]:
        """Requests that wait, also for their cache."""
        if self.role is not Role.DECODE:
            return self.waiting
        return (*self.waiting, *self.loading.values(), *self.loaded.values())

    def _wanted(self, live: Live, hit: int, budget: int) -> int:
        """The tokens that a waiting request would be given if there were no limit; 0 if it has to wait."""
        return live.known - hit

    def _ending_apart(self, live: Live, start: int, tokens: int) -> int:
        """The tokens of a chunk, where it must not end right before the prompt does."""
        return tokens

    def _count_hit(self, live: Live, tokens: int) -> None:
        log = self.requests
        if not live.preemptions:
            live.hit = tokens
        if self.rules.cache.caching:
            before = "preempted_" if live.preemptions else ""
            self.hits[f"{before}queries"] += live.known
            self.hits[f"{before}hits"] += tokens
            self.hits[f"{before}requests"] += 1
        if log.scheduled[live.number] is None:
            log.scheduled[live.number] = self._now

    def _advance(self, live: Live, tokens: int, batch: Batch) -> None:
        """After a step: a prompt that is complete goes on to decode."""
        load = self.load
        load.add_chunk(tokens, live.computed)
        live.computed += tokens
        live.chunk, live.chunk_at = tokens, self._now
        self._blocked = False
        if live.computed < live.known:
            return
        batch.sampled = True
        load.prefill_ends += 1
        self._resume(live)
        if self.requests.firsts[live.number] is None:
            batch.firsts.append(live)
        del self.prefilling[live.seq]
        live.state = State.DECODE
        live.offset = live.computed - self.decoding.steps
        live.counted = self.cache.is_settled(live)
        self.decoding.enter(live.offset, pages=live.counted)
        live.forced = 1 if self.lag and not self._whole else 0
        if live.computed == live.last:
            batch.ending.append(live)
        if live.computed < live.last or live.unforeseen:
            if live.forced:
                self._set_event(live, self.decoding.steps)
            else:
                self._look_next(live, self.decoding.steps)

    def _resume(self, live: Live) -> None:
        """Note that a request gets a token, if it was preempted since the one before."""
        if live.paused_at >= 0:
            self.requests.resumed.append((live.number, live.paused_at, self._now))
            live.paused_at = -1

    # Results.

    def _take_results(self, batch: Batch) -> None:
        """Give out the tokens of a batch, and let those go that have all."""
        log, now = self.requests, self._now
        for live in batch.firsts:
            if live.state is not State.FINISHED:
                # vLLM tells what was found in the cache together with the first token.
                log.firsts[live.number], log.hits[live.number] = now, live.hit
        if not batch.ending:
            return
        batch.ending.sort(key=_by_seq)
        cache = self.cache
        for live in batch.ending:
            if live.state is State.FINISHED:
                continue
            if live.state is State.WAITING:
                self.waiting.remove(live)
            else:
                del self.running[live.seq]
                self._stop_decoding(live, State.FINISHED)
                cache.publish(live, live.last)
                if self.role is Role.PREFILL:
                    self.kept[live.number] = live
                else:
                    cache.release(live, ended=True)
            live.state = State.FINISHED
            log.finish(live.number, now, live.last + 1 - live.prompt)
            self._cancellable.pop(live.number, None)
        self._blocked = False
        self._flushes = self.lag > 0
        self.contents.forget(self._chains)

    def _chains(self) -> Iterable[int]:
        """The chains of all that is cached or alive."""
        yield from map(chain_of, self.cache.pool.names())
        for live in (*self.running.values(), *self._waiting, *self.kept.values()):
            yield from live.content.chains

    def _stop_decoding(self, live: Live, state: State) -> None:
        if live.state is State.DECODE:
            self._read(live)
            self._leave(live)
        live.state = state

    def _leave(self, live: Live) -> None:
        """A request whose tokens are worked out is no longer counted."""
        self.decoding.leave(live.offset, pages=live.counted)
        live.counted, live.event_at = False, -1

    # Decoding requests.

    def _read(self, live: Live) -> None:
        """Work out the tokens of a decoding request, and what it has taken for them, from the count of steps."""
        live.computed = live.offset + self.decoding.steps
        if live.counted:
            self.cache.catch_up(live)
        live.in_flight = 0
        if self.lag and live.idle_at != self._now - 1:
            live.in_flight = live.chunk if live.chunk_at == self._now - 1 else 1
        live.known = live.computed + (not live.in_flight)

    def _look_next(self, live: Live, first: int) -> None:
        """Look at a decoding request, from this step on, when it takes or gives back something that is not counted, or ends."""
        change = NEVER if live.counted else self.cache.next_change(live, self.lag)
        if live.offset + self.decoding.steps <= live.last - 1:
            change = min(change, live.last - 1)
        if change < NEVER:
            self._set_event(live, max(first, change - live.offset))

    def _set_event(self, live: Live, step: int) -> None:
        live.event_at = step
        self.decoding.look_at(live, step)

    def steps_alike(self) -> int:
        decoding, load = self.decoding, self.load
        if self.prefilling or self.loaded or self._flushes or not 0 < decoding.count <= self.rules.max_num_batched_tokens:
            return 0
        if self.waiting and not (self._blocked or len(self.running) >= self.rules.max_num_seqs):
            return 0
        pending = self._pending
        if self.lag and (pending is None or pending.firsts or pending.ending):
            return 0
        load.clear()
        load.decode_requests, load.decode_tokens = decoding.count, decoding.tokens
        return decoding.next_due() - decoding.steps

    def _decode_only(self, turn: int, steps: int) -> int:
        """Take such steps as far as the pool has blocks; returns how many."""
        decoding, pool, numbers = self.decoding, self.cache.pool, self.steps.numbers
        count, running, waiting = decoding.count, len(self.running), len(self._waiting)
        for taken in range(steps):
            blocks = decoding.pages_next()
            if blocks > pool.free:
                steps = taken
                break
            if blocks:
                pool.take(blocks)
            numbers.extend((turn + taken, count, count, running, waiting, pool.used))
            decoding.steps += 1
        if not steps:
            return 0
        self.load.decode_tokens = decoding.tokens - count
        self.schedule_calls += steps
        self._now = turn + steps - 1
        self.progressed = True
        return steps


def _urgency(live: Live) -> tuple[int, int]:
    return live.priority, live.order


def _by_seq(live: Live) -> int:
    return live.seq


def _capped(tokens: int, threshold: int) -> int:
    """Tokens of a prompt that a step may compute where ``long_prefill_token_threshold`` is set; 0 is no threshold."""
    return threshold if 0 < threshold < tokens else tokens
