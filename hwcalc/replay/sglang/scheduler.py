"""SGLang's scheduler: in each pass a batch of prompts if any can be admitted, else a decode of all that run.

Source: SGLang 0.5.23, managers/scheduler.py ``event_loop_normal``, ``event_loop_overlap``, ``get_next_batch_to_run``,
``_get_new_batch_prefill_raw``, ``update_running_batch``; managers/schedule_batch.py ``retract_decode``;
managers/scheduler_components/batch_result_processor.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from sys import maxsize
from typing import TYPE_CHECKING, Any, ClassVar, Final

from hwcalc.replay.content import Content, Contents
from hwcalc.replay.core import Measures, RequestLog, Scheduler
from hwcalc.replay.decoding import State
from hwcalc.replay.sglang.admission import Admission, Verdict
from hwcalc.replay.sglang.live import DECODE, KINDS, MIXED, PREFILL, Batch, Live, Running
from hwcalc.replay.sglang.policies import QueueOrder
from hwcalc.replay.sglang.rules import CLIP, RETRACT_STEPS, SchedulerRules
from hwcalc.replay.sglang.tree import RadixCache

if TYPE_CHECKING:
    from hwcalc.workload.request import Request

COLUMNS: Final = (
    "iteration",
    "kind",
    "requests",
    "computed_tokens",
    "hit_tokens",
    "running",
    "waiting",
    "used_tokens",
    "evictable_tokens",
)
_DUMMY: Final = Content((), -1)
"""The one token that stands for a prompt that is too long."""


class SglangScheduler(Scheduler):
    """SGLang's scheduler over a pool of tokens."""

    measures = Measures(running="running", waiting="waiting", used="used_tokens", unit="tokens")
    stalls_when = "one needs more tokens than the pool has, and SGLang lets it wait, and all behind it. Give more tokens."
    more_columns: ClassVar[tuple[str, ...]] = ()
    """Those of a second pool."""
    admits: ClassVar[type[Admission]] = Admission
    request_columns = ("scheduled", "firsts", "finishes", "hits", "preempted", "produced", "reasons")

    def __init__(self, rules: SchedulerRules, requests: RequestLog | None = None) -> None:
        super().__init__((*COLUMNS, *self.more_columns), requests, words={"kind": KINDS})
        self.rules = rules
        self.cache = self._new_cache()
        self.contents = Contents()
        self.order = QueueOrder(rules, self.cache)
        self.lag = int(rules.overlap)
        self.waiting: list[Live] = []
        self.running = Running(rules.page_size)
        self.chunk: Live | None = None
        """The request whose prompt is under way."""
        self.ratio = rules.first_ratio
        """The share of the tokens to come that admission reserves (``new_token_ratio``)."""
        self.ratios: list[float] = []
        """The ratio after each step was planned."""
        self._last: Batch | None = None
        self._full = False
        """True if nobody is admitted until a request leaves the running batch."""
        self._left = False
        """True if a request has finished since the last plan."""
        self._ended = False
        """True if it did so in the running batch."""
        self._rows = rules.max_running_requests
        """Rows of requests that are free."""
        self._now = 0
        self._decoded = (-1, -1)
        """The last two turns in which requests decoded."""
        self._entries = 0
        self._prefilled = 0
        """Prefill tokens as SGLang counts them, for hrrn."""
        self._old_tokens = 0
        """Tokens of the prefill that became the running batch, which it counts again with each decode."""
        self._decodes_kept = 0
        """Passes that are kept for decodes after a prefill (``prefill_decode_interval``)."""
        self._cancellable: dict[int, Live] = {}
        self._looked_up = self._cached = self._retractions = 0
        """Tokens of admitted requests that were looked up, those found at first, and retractions, also those to make room for others."""
        self._turned_away: list[int] = []
        """Requests that came to a full queue."""

    def _new_cache(self) -> RadixCache:
        rules = self.rules
        return RadixCache(
            rules.max_total_num_tokens, rules.page_size, policy=rules.radix_eviction_policy, enabled=not rules.disable_radix_cache
        )

    # What the clock calls.

    @property
    def idle(self) -> bool:
        return not self.running and not self.waiting and self.chunk is None and self._last is None

    def add(self, request: Request) -> None:
        rules, number = self.rules, request.number
        live = self._live_of(request)
        self.requests.hits[number] = 0
        if rules.max_queued_requests is not None and len(self.waiting) >= rules.max_queued_requests and not self._displaces(live):
            self._turned_away.append(number)
            return
        if request.cancel_after_s is not None:
            self._cancellable[number] = live
        self._enqueue(live)

    def _priority(self, request: Request) -> int:
        """A request's priority. Where priorities count, a request without one is the least urgent."""
        if request.priority is not None or not self.rules.enable_priority_scheduling:
            return request.priority or 0
        return maxsize if self.rules.schedule_low_priority_values_first else -maxsize - 1

    def _displaces(self, live: Live) -> bool:
        """True if the queue is full and another leaves it for a more urgent request."""
        if not self.rules.enable_priority_scheduling or not self.waiting:
            return False
        sign = self.rules.sign
        last = max(self.waiting, key=lambda each: (each.priority * sign, each.entry))
        if live.priority * sign >= last.priority * sign:
            return False
        self.waiting.remove(last)
        last.state = State.FINISHED
        self._turned_away.append(last.number)
        return True

    def _live_of(self, request: Request) -> Live:
        """The request as the scheduler takes it, with what it may generate clipped to the pool."""
        rules, prompt, output = self.rules, request.prompt_tokens, request.output_tokens
        asked = output if request.max_tokens is None else request.max_tokens
        room = rules.max_total_num_tokens // rules.page_size * rules.page_size - rules.pages(prompt) - rules.page_size - 1
        max_new = max(0, min(asked, rules.max_req_len - prompt - 1, room))
        stops = asked > output and not rules.ignore_eos and output <= max(1, max_new)
        live = Live(
            self.contents.of(request),
            request.number,
            prompt=prompt,
            output=max(1, output if stops else max_new),
            max_new=max_new,
            stops=stops,
            priority=self._priority(request),
        )
        if prompt >= rules.max_req_input_len:
            live.refused = True
            live.content, live.prompt, live.output, live.stops = _DUMMY, 1, 1, True
            live.forget()
            self.requests.refused.append(request.number)
        elif live.output < min(asked, output):
            self.requests.cut.append(request.number)
        return live

    def step(self, turn: int, most: int) -> int:
        for number in self._turned_away:
            self.requests.reasons[number] = "abort"
            self.requests.finish(number, turn, 0)
        self._turned_away.clear()
        steps = min(most, self.steps_alike())
        if steps:
            taken = self._decode_only(turn, steps)
            if taken:
                return taken
        self._now = turn
        batch = self._plan()
        before = self._last
        self._last = batch
        results = before if self.lag else batch
        self.progressed = batch is not None or results is not None
        if results is not None:
            self._take_results(results)
        return 1

    def rest(self) -> None:
        # An idle pass.
        self.ratio = self.rules.first_ratio

    # A plan.

    def _plan(self) -> Batch | None:
        """The batch of this pass, with its memory; its row is noted."""
        self.load.clear()
        chunk = self.chunk
        if chunk is not None and chunk.end > chunk.prefix:
            self._publish(chunk, chunk.end)
            chunk.prefix = chunk.end
        self._join()
        if self._left:
            self._full = self._left = self._ended = False
        batch = None
        if self._decodes_kept:
            self._decodes_kept -= 1
        else:
            batch = self._prefill()
        if batch is None and self.running:
            batch = self._decode()
        if batch is None:
            return None
        if batch.kind != DECODE:
            self._decodes_kept = self.rules.prefill_decode_interval
        self._prefilled += self._old_tokens if batch.kind == DECODE else batch.tokens
        return batch

    def _join(self) -> None:
        """The requests of the last prefill begin to decode."""
        last = self._last
        if last is None or last.kind == DECODE:
            return
        stay = [live for live in last.requests if live.state in _DECODES and live is not self.chunk and live is not last.chunk]
        if len(stay) < len(last.requests):
            self._full = False
        if not stay:
            return
        if not self.running and not self._ended:
            self._full = False
            self._old_tokens = last.tokens
        self.running.line_up(stay)
        for live in stay:
            if live.state is not State.DECODE:
                live.joined = self._now
                self.running.begin(live)

    def _in_flight(self, live: Live) -> bool:
        """True if a token of a running request is computed, and not looked at."""
        last = self._last
        return self.lag > 0 and last is not None and (last.kind != PREFILL or live.joined == self._now)

    def _read(self, live: Live) -> None:
        """Work out what a running request has."""
        live.stored = self.running.stored(live)
        live.outputs = live.stored - live.prompt + 1 - self._in_flight(live)

    # Prompts.

    def _prefill(self) -> Batch | None:
        """A batch of prompts, if any can be admitted; the running requests join it where chunks are mixed."""
        rules = self.rules
        preempts = rules.enable_priority_scheduling
        if preempts or rules.swa_tokens is not None or not self.running:
            self._full = False
        chunk = self.chunk
        if chunk is None and (self._full or not self.waiting):
            return None
        if chunk is None and not preempts and min(rules.max_running_requests - len(self.running), self._rows) <= 0:
            self._full = True
            return None
        self.order.sort(self.waiting, self._prefilled)
        for live in self.running:
            self._read(live)
        taken = len(self.running) if rules.enable_mixed_chunk else 0
        admission = self.admits(rules, self.cache, list(self.running), ratio=self.ratio, taken=taken)
        if chunk is not None:
            chunk.known = chunk.prompt + chunk.outputs
            limit = self.order.chunk_limit(chunk, self.waiting, admission.chunk_left or 0)
            if not admission.go_on(chunk, limit):
                self.chunk = None
        preempted = self._admit(admission)
        admitted = admission.admitted
        if not admitted:
            self._enqueue(*preempted)
            return None
        # Those that were admitted stood in front.
        del self.waiting[: sum([live.state is State.WAITING for live in admitted])]
        self._enqueue(*preempted)
        if admission.chunk is not None:
            self.chunk = admission.chunk
        return self._launch(admission)

    def _admit(self, admission: Admission) -> list[Live]:
        """Go through the queue as long as requests are admitted; returns those that were preempted."""
        preempts, preempted = self.rules.enable_priority_scheduling, list[Live]()
        held = len(admission.admitted)
        for live in self.waiting:
            if admission.verdict is Verdict.STOP:
                break
            if len(admission.admitted) >= min(self.rules.max_running_requests - len(self.running), self._rows + held):
                self._full = True
            if self._full and not (preempts and self._preempt(live, admission, preempted)):
                break
            self._look_up(live)
            verdict = admission.add(live, under_way=self.chunk is not None)
            if verdict is Verdict.GO_ON:
                continue
            if live not in admission.admitted:
                self._let_go(live)
            if verdict is Verdict.NO_TOKEN:
                self._full = bool(admission.admitted or self.running)
            break
        return preempted

    def _look_up(self, live: Live) -> None:
        """Find what is cached of a request that may be admitted, all but its last token."""
        live.known = live.prompt + live.outputs
        live.prefix, live.node = self.cache.match(live.content, live.known - 1)
        live.found = live.prefix
        live.protected = live.prefix

    def _let_go(self, live: Live) -> None:
        """A request that was looked up is not admitted."""

    def _preempt(self, live: Live, admission: Admission, preempted: list[Live]) -> bool:
        """Retract running requests of clearly lower priority, as many as a more urgent one needs; whether that is enough."""
        rules, sign = self.rules, self.rules.sign
        running = [each for each in self.running if each.state is not State.FINISHED]
        victims = sorted(running, key=lambda each: (-each.priority * sign, -each.entry))
        missing = live.known - live.prefix + min(live.max_new, CLIP) - admission.left
        chosen = list[Live]()
        for victim in victims:
            if (victim.priority - live.priority) * sign <= rules.priority_scheduling_preemption_threshold:
                break
            chosen.append(victim)
            missing -= admission.promised(victim)
            if missing <= 0:
                break
        if not chosen or missing > 0:
            return False
        keep = len(self.running)
        for victim in [each for each in self.running if each in chosen]:
            admission.total -= admission.promised(victim)
            keep -= 1
            self._retract(victim, keep)
        preempted += chosen
        return True

    def _launch(self, admission: Admission) -> Batch:
        """Take the tokens of a batch of prompts from the pool."""
        rules, cache, log, load = self.rules, self.cache, self.requests, self.load
        admitted = admission.admitted
        self._before_extend(admitted)
        tokens = sum([live.end - live.prefix for live in admitted])
        cache.evict(tokens if rules.page_size == 1 else tokens + rules.page_size * len(admitted))
        for live in admitted:
            live.chunks += 1
            if live.state is State.WAITING:
                live.state = State.PREFILL
                self._looked_up += live.known if cache.enabled else 0
                self._rows -= 1
                if log.scheduled[live.number] is None:
                    log.scheduled[live.number] = self._now
                    log.hits[live.number] = live.prefix
                    self._cached += live.prefix
            extend = live.end - live.prefix
            self._take(live, live.end)
            load.add_chunk(extend, live.prefix)
            load.prefill_ends += live.end == live.known
        batch = Batch(PREFILL, admitted, tokens=tokens, step=self.running.steps, chunk=self.chunk)
        load.paused_requests = len(self.running)
        if rules.enable_mixed_chunk and self.running:
            self._mix(batch)
        self._note(batch, len(batch.requests), batch.tokens, admission.hits)
        return batch

    def _before_extend(self, admitted: list[Live]) -> None:
        """Before prompts take tokens."""

    def _take(self, live: Live, tokens: int) -> None:
        """Give a request tokens up to this length."""
        self._spend(self.rules.pages(tokens) - self.rules.pages(live.prefix))
        live.stored = tokens

    def _spend(self, tokens: int) -> None:
        """Take tokens from the pool."""
        self.cache.free -= tokens

    def _mix(self, batch: Batch) -> None:
        """Let the running requests decode in a batch of prompts, if the pool has a token for each."""
        self._leave_out()
        if not self.running or not self._decodes_fit():
            return
        load = self.load
        load.decode_requests, load.decode_tokens = len(self.running), self.running.tokens
        load.paused_requests = 0
        self._take_decode()
        batch.kind, batch.step = MIXED, self.running.steps
        batch.decoding = {live.number for live in self.running}
        batch.tokens += len(self.running)
        batch.requests = [*batch.requests, *self.running]
        # They come back behind the prompts.
        self.running.step_aside()
        self._old_tokens = 0

    # Decoding.

    def _leave_out(self) -> bool:
        """Leave those out of the next decode whose last token is under way, as far as that is foreseen; whether there are any."""
        last = self._last
        if not self.lag or last is None:
            return False
        ending = self.running.foreseen(self.running.steps) if last.kind != PREFILL else []
        if last.kind != DECODE:
            begun = [live for live in last.requests if live.joined == self._now]
            # The prompt's result is all that they need.
            ending += [live for live in begun if self.running.stored(live) - live.prompt + 1 >= live.output]
        ending = [live for live in ending if live.state is State.DECODE and live.is_foreseen]
        for live in ending:
            self.running.stop(live, State.ENDING)
        if ending:
            self._full = False
        return bool(ending)

    def _decode(self) -> Batch | None:
        """A batch of all that run, after retractions where the pool is full; ``None`` if nobody can decode now."""
        ending = self._leave_out()
        if not self.running:
            self._full = False
            return None
        fits = self._decodes_fit()
        if not fits and ending:
            return None
        if fits:
            self.ratio = max(self.ratio - self.rules.ratio_decay, self.rules.least_ratio)
        else:
            self._retract_some()
            if not self.running:
                return None
        load, count = self.load, len(self.running)
        load.decode_requests, load.decode_tokens = count, self.running.tokens
        self._take_decode()
        batch = Batch(DECODE, [], tokens=count, step=self.running.steps)
        self._note(batch, count, count, 0)
        return batch

    def _decodes_fit(self) -> bool:
        """True if the pool has a token for each running request, after evictions."""
        return self.cache.evict(self.rules.page_size * self.running.pages_next())

    def _take_decode(self) -> None:
        """Give each running request a token."""
        page = self.rules.page_size
        need = page * self.running.pages_next()
        if page > 1:
            self.cache.evict(page * len(self.running))
        self._spend(need)
        self._decoded = (self._decoded[1], self._now)
        self.running.steps += 1

    def _retract_some(self) -> None:
        """Retract running requests until the others fit."""
        rules, sign = self.rules, self.rules.sign
        order = list(self.running)
        for live in order:
            self._read(live)
        weight = sign if rules.retraction_policy == "priority" else 0
        order.sort(key=lambda live: (-live.priority * weight, live.outputs, -live.prompt), reverse=True)
        retracted, aborted = list[Live](), list[Live]()
        while len(order) > 1 and not (retracted and self._decodes_fit()):
            live = order.pop()
            self._retract(live, len(order))
            retracted.append(live)
        if len(order) == 1 and not self._decodes_fit():
            live = order.pop()
            self._retract(live, 0)
            self._end(live, "abort")
            aborted.append(live)
        # They go on in the order of retraction.
        self.running.step_aside()
        self.running.line_up(order)
        outputs, to_come = sum([live.outputs for live in order]), sum([live.max_new for live in order])
        self.ratio = min(1.0, (outputs + RETRACT_STEPS * len(order)) / (to_come + 1))
        self._full = False
        self.retraction_log.append(
            (self._now, [live.number for live in retracted], [live.number for live in aborted], self.ratio)
        )
        self._enqueue(*retracted)

    def _retract(self, live: Live, keep: int) -> None:
        """Take all that a running request has, what it has published apart, and then see that ``keep`` others can go on."""
        self._read(live)
        # A token under way is dropped, and computed again.
        dropped = self._in_flight(live)
        if not (dropped and live.joined == self._now):
            live.paused_at = max(self._decoded[not dropped], live.joined - 1)
        self.requests.preemptions.append((self._now, live.number, live.stored))
        self.requests.preempted[live.number] += 1
        self._retractions += 1
        self.requests.produced[live.number] = live.outputs
        self.running.stop(live, State.WAITING)
        self._release(live)
        live.forget()
        self.cache.evict(keep * RETRACT_STEPS)

    def _enqueue(self, *requests: Live) -> None:
        """Requests wait, behind all others."""
        for live in requests:
            live.entry, live.asked_at = self._entries, self._prefilled
            self._entries += 1
        self.waiting += requests

    # Results.

    def _take_results(self, batch: Batch) -> None:
        """Give out the tokens of a batch, and let those go that have all."""
        if batch.kind != DECODE:
            self._take_prompts(batch)
        else:
            for live in self.running.ended(batch.step):
                self._finish(live)

    def _take_prompts(self, batch: Batch) -> None:
        log, now = self.requests, self._now
        due = {live.number for live in self.running.ended(batch.step)} if batch.decoding else frozenset[int]()
        for live in batch.requests:
            if live.state in (State.WAITING, State.FINISHED) or live is batch.chunk:
                continue
            if live.number in batch.decoding:
                if live.number in due:
                    self._finish(live)
                continue
            live.outputs = live.known - live.prompt + 1
            if log.firsts[live.number] is None:
                log.firsts[live.number] = now
            if live.paused_at >= 0:
                log.resumed.append((live.number, live.paused_at, now - self.lag))
                live.paused_at = -1
            if live.outputs >= live.output or live.cancelled:
                self._finish(live)
            else:
                self._publish(live, live.known)
                live.prefix = live.end

    def _finish(self, live: Live) -> None:
        """A request has its last token: what it stored is published, and all else given back."""
        if live.state is State.DECODE:
            self._ended = self._ended or live in self.running
            self.running.stop(live, State.FINISHED)
        self._left = True
        self._publish(live, live.stored, finished=True)
        self._release(live)
        self._end(live, "abort" if live.refused or live.cancelled else "stop" if live.stops else "length")

    def _end(self, live: Live, reason: str) -> None:
        live.state = State.FINISHED
        log = self.requests
        if reason != "abort" or live.refused:
            live.outputs = live.output
        log.reasons[live.number] = reason
        if live.cancelled:
            log.cancel(live.number, live.outputs)
        else:
            log.finish(live.number, self._now, live.outputs)
        self._cancellable.pop(live.number, None)
        self.contents.forget(self._chains)

    def _chains(self) -> Iterable[int]:
        """The chains of all that is cached or alive."""
        alive = [*self.running, *self.waiting, *(() if self._last is None else self._last.requests)]
        for live in alive:
            yield from live.content.chains
        for node in self.cache.nodes():
            if node.content is not None:
                yield node.content.chain_at(node.end - 1)

    def _publish(self, live: Live, tokens: int, *, finished: bool = False) -> None:
        """Put the first tokens of a request into the tree, and pin their end."""
        cache, whole = self.cache, self.rules.whole_pages(tokens)
        if not cache.enabled or not whole:
            return
        priority = live.priority
        node = cache.insert(live.content, whole, kept=live.protected, counted=live.counted, priority=priority)
        live.counted = max(live.counted, whole)
        prompt = self.rules.whole_pages(live.prompt)
        if cache.splits_at_prompt and 0 < prompt < whole:
            cache.insert(live.content, prompt, kept=prompt, counted=prompt, priority=priority + 1)
        if live.node is not None:
            cache.unlock(live.node, live.mark)
        live.mark = cache.lock(node)
        live.node, live.protected = node, whole

    def _release(self, live: Live) -> None:
        """Give back what the tree does not have."""
        self.cache.free += self.rules.pages(live.stored) - live.protected
        if live.node is not None:
            self.cache.unlock(live.node, live.mark)
            live.node = None
        self._rows += 1

    # Many steps at once.

    def steps_alike(self) -> int:
        last = self._last
        if (last is None and self.lag) or (last is not None and last.kind != DECODE):
            return 0
        if not self.running or self.chunk is not None or self._left or self._decodes_kept:
            return 0
        if self.waiting and (not self._full or self.rules.enable_priority_scheduling):
            return 0
        self.load.clear()
        self.load.decode_requests, self.load.decode_tokens = len(self.running), self.running.tokens
        return max(0, self.running.next_due() - self.running.steps - 1)

    def _decode_only(self, turn: int, steps: int) -> int:
        """Take such steps as far as the pool has room; returns how many."""
        rules, cache, log = self.rules, self.cache, self.steps.numbers
        page, count, waiting = rules.page_size, len(self.running), len(self.waiting)
        least, decay, ratio, size = rules.least_ratio, rules.ratio_decay, self.ratio, cache.size
        running, ratios = self.running, self.ratios
        spare = page * count if page > 1 else 0
        for taken in range(steps):
            need = page * running.pages_next()
            if cache.free < need and not cache.evict(need):
                steps = taken
                break
            if cache.free < spare:
                cache.evict(spare)
            ratio = max(ratio - decay, least)
            ratios.append(ratio)
            cache.free -= need
            running.steps += 1
            free, evictable = cache.free, cache.evictable
            log.extend(
                (turn + taken, DECODE, count, count, 0, count, waiting, size - free - evictable, evictable, *self._second())
            )
        if not steps:
            return 0
        self.ratio = ratio
        self._prefilled += steps * self._old_tokens
        self.load.decode_tokens = running.tokens - count
        self._now = turn + steps - 1
        self._decoded = (self._now - 1 if steps > 1 else self._decoded[1], self._now)
        self._last = Batch(DECODE, [], tokens=count, step=self.running.steps)
        self.progressed = True
        return steps

    # What it tells.

    def _note(self, batch: Batch, requests: int, tokens: int, hits: int) -> None:
        cache = self.cache
        row = (self._now, batch.kind, requests, tokens, hits, len(self.running), len(self.waiting), cache.used, cache.evictable)
        self.steps.numbers.extend((*row, *self._second()))
        self.ratios.append(self.ratio)

    def _second(self) -> tuple[int, ...]:
        """The part of a step's row on a second pool: used, and evictable."""
        return ()

    def cancel(self, number: int) -> None:
        live = self._cancellable.pop(number, None)
        if live is None or live.state is State.FINISHED:
            return
        live.cancelled = True
        if live.state is State.WAITING:
            self.waiting.remove(live)
            self._end(live, "abort")
        elif live.state is State.DECODE:
            self._read(live)
            self._finish(live)

    def waiting_tokens(self) -> int:
        waiting = sum([live.prompt + live.output - 1 for live in self.waiting])
        prompts = self._last.requests if self._last is not None else ()
        prefill = sum([live.prompt + live.output - 1 - live.stored for live in prompts if live.state is State.PREFILL])
        running = sum([live.prompt + live.output - 1 - live.offset - self.running.steps for live in self.running])
        return waiting + prefill + running

    def pressure(self) -> tuple[int, int, float]:
        return len(self.running), len(self.waiting), self.cache.used / self.cache.size

    def cached_tokens(self, request: Request) -> int:
        return self.cache.peek(self.contents.of(request), request.prompt_tokens)

    @property
    def longest_request(self) -> int:
        return self.rules.max_req_len - 1

    @property
    def refuses_when(self) -> str:
        return f"have {self.rules.max_req_input_len:,} tokens or more (max_req_input_len)"

    @property
    def capacity(self) -> int:
        return self.rules.max_total_num_tokens

    def settings(self) -> dict[str, Any]:
        rules = self.rules
        return {
            **{name: getattr(rules, name) for name in rules.__struct_fields__ if name not in _ONLY_SOME or getattr(rules, name)},
            "max_req_len": rules.max_req_len,
            "max_req_input_len": rules.max_req_input_len,
        }

    def totals(self, turns: int) -> dict[str, Any]:
        columns = {name: self.steps.column(name) for name in self.steps.columns}
        kinds = Counter(columns["kind"])
        return {
            "iterations": columns["iteration"][-1] + 1 if len(self.steps) else 0,
            "batches": len(self.steps),
            "model_steps": len(self.steps),
            "prefill_batches": kinds[PREFILL],
            "decode_batches": kinds[DECODE],
            "mixed_batches": kinds[MIXED],
            "computed_tokens": sum(columns["computed_tokens"]),
            "hit_tokens": sum(columns["hit_tokens"]),
            "cached_tokens": self._cached,
            "prefix_cache": {"queries": self._looked_up, "hits": sum(columns["hit_tokens"])},
            "preemptions": self._retractions,
            "retractions": sum([len(entry[1]) for entry in self.retraction_log]),
            "oom_aborts": sum([len(entry[2]) for entry in self.retraction_log]),
            "peak_used_tokens": max(columns["used_tokens"], default=0),
            "sum_used_tokens": sum(columns["used_tokens"]),
            "peak_batch": max(columns["requests"], default=0),
            "peak_running": max(columns["running"], default=0),
            "peak_waiting": max(columns["waiting"], default=0),
            "final_used_tokens": self.cache.used,
            "final_cached_tokens": self.cache.evictable,
        }


_DECODES: Final = (State.PREFILL, State.DECODE)
_ONLY_SOME: Final = ("swa_tokens", "sliding_window", "state_slots")
