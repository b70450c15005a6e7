"""The scheduler of a deployment: its groups of layers and settings, as the plan has them, and vLLM's options that bear on scheduling alone.

With speculative decoding every decoding request is given its drafts too, and those that are not accepted are taken back. Whether a drafted
token is accepted is a property of the request and of the token's place, so that it is the same with any setting. What the draft model itself
takes is not counted. Source: vLLM 0.33, v1/core/sched/scheduler.py, async_scheduler.py, config/vllm.py, config/speculative.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from hwcalc.engines.options import is_on
from hwcalc.engines.vllm.deployment import VllmOccupancy
from hwcalc.engines.vllm.settings import has_states
from hwcalc.engines.vllm.specs import ChunkSpec, CrossSpec, StateSpec, WindowSpec
from hwcalc.errors import NoRoomError, UnsupportedError, UsageError
from hwcalc.model import Note
from hwcalc.planner.solve import budget_bytes
from hwcalc.replay.decoding import State
from hwcalc.replay.vllm.cache import CacheRules
from hwcalc.replay.vllm.groups import ChunkGroup, Group, StateGroup, WindowGroup
from hwcalc.replay.vllm.live import Batch, Live
from hwcalc.replay.vllm.scheduler import SchedulerRules, Speculating, VllmScheduler
from hwcalc.text import brief
from hwcalc.units import parse_tokens

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.vllm.deployment import VllmDeployment
    from hwcalc.engines.vllm.specs import LayerSpec, Limits
    from hwcalc.replay.core import RequestLog, Scheduler
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


OPTIONS: Final = {
    "acceptance": "the probability that a drafted token is accepted where those before it are (default: 0.7)",
    "enable_chunked_prefill": "whether prompts may be computed in chunks (default: true)",
    "long_prefill_token_threshold": "the most tokens of one prompt in a step while others run or wait (default: 0, none)",
    "policy": "who is next: fcfs or priority (default: fcfs)",
    "prefix_cache_retention_interval": "every how many tokens windows and states stay findable: 0 is at the end of a prompt, none is always (default: 0)",
    "scheduler_reserve_full_isl": "whether a whole prompt must fit before it is admitted (default: true)",
    "watermark": "the share of the blocks that admissions leave free while others run (default: 0)",
}
"""vLLM's options that bear on its scheduler and not on its memory, by their names (config/scheduler.py, config/cache.py)."""
_POLICIES: Final = ("fcfs", "priority")
# The multiples of tokens at which kernels export states (model_executor/layers/mamba): gated delta nets at the ends of blocks.
_EXPORTED_AT: Final = {"mamba2": 1, "kimi_delta": 16}


RULES: Final = "0.33"
"""The release whose rules are replayed."""


def remarks(occupancy: VllmOccupancy, options: Mapping[str, object]) -> tuple[Note, ...]:
    """Notes on what is assumed of the scheduler."""
    notes, settings = list[Note](), occupancy.settings
    if settings.version != RULES:
        message = f"The scheduler is replayed by the rules of vLLM {RULES}; the pool is that of {settings.version}."
        notes.append(Note(code="scheduler-rules", message=message))
    if settings.speculation is not None:
        message = f"A drafted token is accepted with a probability of {options.get('acceptance', '0.7')} where those before it are; the draft's own time is not counted."
        notes.append(Note(code="acceptance", message=message))
    return tuple(notes)


def maker(
    occupancy: Occupancy, options: Mapping[str, object], *, blocks: int | str | None, tokens: int | str | None
) -> Callable[[RequestLog | None], Scheduler]:
    """A maker of schedulers of a deployment, with so many blocks, or those of the plan's pool."""
    assert isinstance(occupancy, VllmOccupancy)
    if tokens is not None:
        raise UsageError("vLLM's pool is counted in blocks.", hint="Give blocks in place of tokens.")
    return partial(scheduler_of, occupancy, options, blocks_of(occupancy, blocks))


def blocks_of(occupancy: VllmOccupancy, blocks: int | str | None) -> int:
    """The blocks that requests get: those given, or those of the plan's pool."""
    if blocks is not None:
        return parse_tokens(blocks, "blocks")
    budget, pool = budget_bytes(occupancy), occupancy.deployment.block_pool
    if budget is None or pool is None:
        raise UsageError(
            "A replay needs the blocks of a pool.", hint="Give hardware (--gpu h100), --kv-memory 40GiB, or --blocks N."
        )
    usable = pool.scheduler_blocks(max(0, budget))
    if usable < 1:
        raise NoRoomError(
            f"{occupancy.model.id} leaves no memory for blocks on this hardware.",
            hint="Use more or larger GPUs, or smaller weights.",
        )
    return usable


def scheduler_of(
    occupancy: VllmOccupancy, options: Mapping[str, object], blocks: int, requests: RequestLog | None = None
) -> VllmScheduler:
    """The scheduler of a deployment that serves requests of up to ``max_model_len`` tokens from ``blocks`` blocks."""
    rules = rules_of(occupancy, options, blocks)
    return (VllmScheduler if rules.speculation is None else SpeculatingScheduler)(rules, blocks, requests)


def rules_of(occupancy: VllmOccupancy, options: Mapping[str, object], blocks: int) -> SchedulerRules:
    """The settings of the scheduler, with vLLM's defaults filled in."""
    settings, length = occupancy.settings, occupancy.length
    if settings.pp > 1:
        raise UnsupportedError("The replay has no rules of pipeline stages.", hint="Leave out --pp; --tp and --dp are replayed.")
    caching = settings.prefix_caching
    retention = _retention(options.get("prefix_cache_retention_interval", "0"))
    watermark = _share(options.get("watermark", "0"), "watermark", most=0.99)
    speculation, ahead = _speculation(occupancy.deployment, _share(options.get("acceptance", "0.7"), "acceptance", most=1.0))
    policy = str(options.get("policy", "fcfs"))
    if policy not in _POLICIES:
        raise UsageError(f"engine option policy={brief(policy, 40)} is not known.", hint=f"Allowed: {', '.join(_POLICIES)}.")
    return SchedulerRules(
        max_num_batched_tokens=settings.batched_tokens,
        max_num_seqs=settings.sequences,
        max_model_len=length,
        async_scheduling=settings.concurrent_batches > settings.pp,
        enable_chunked_prefill=_flag(options, "enable_chunked_prefill"),
        long_prefill_token_threshold=_number(options, "long_prefill_token_threshold"),
        policy=policy,
        speculation=speculation,
        cache=CacheRules(
            groups=groups_of(occupancy),
            caching=caching,
            retention=retention,
            # vLLM counts its null block.
            watermark=int(watermark * (blocks + 1)),
            reserve=_flag(options, "scheduler_reserve_full_isl"),
            max_model_len=length,
            **ahead,
        ),
    )


def _speculation(deployment: VllmDeployment, acceptance: float) -> tuple[Speculating | None, dict[str, int]]:
    """The rules by which drafts are verified, and what they ask of the cache (config/vllm.py ``num_lookahead_tokens``, ``num_hash_lookahead_tokens``)."""
    given = deployment.settings.speculation
    if given is None:
        return None, {}
    if deployment.settings.state_caching != "none" or has_states(deployment.model):
        raise UnsupportedError(
            "The replay has no rule for drafts of models with recurrent states.", hint="Leave out: --engine-option speculative"
        )
    number, method = given.tokens, given.method
    lookahead = {"ngram": 0, "dflash": number + 1}.get(method, number)
    # Modules that predict one after another read further ahead.
    modules = min(deployment.model.facts.mtp_modules or 1, number) if method == "mtp" else 1
    ahead = (number if modules > 1 else 1) if given.reads_hidden_states else 0
    of_cache = {"lookahead": lookahead, "hash_ahead": 0 if method == "dflash" else ahead, "unsettled": max(0, ahead - 1)}
    slots = int(method == "draft")
    return Speculating(method=method, tokens=number, slots=slots, lookahead=ahead, acceptance=acceptance), of_cache


def groups_of(occupancy: VllmOccupancy) -> tuple[Group, ...]:
    """The groups of layers that share the pool, as the plan formed them."""
    deployment, layout = occupancy.deployment, occupancy.layout
    return tuple(
        _group(number, group.specs[0], layout.limits, deployment, occupancy.length) for number, group in enumerate(layout.groups)
    )


def _group(number: int, spec: LayerSpec, limits: Limits, deployment: VllmDeployment, length: int) -> Group:
    size = spec.block_size
    if isinstance(spec, CrossSpec):
        raise UnsupportedError(
            f"The replay has no rule for cross attention, which {deployment.model.id} has.",
            hint="Replay a model without an encoder.",
        )
    if isinstance(spec, ChunkSpec):
        cap = -(-min(spec.limit + limits.in_flight, length) // size)
        return ChunkGroup(number, size, chunk=spec.limit, cap=cap, rule=spec)
    if isinstance(spec, WindowSpec):
        cap = -(-min(spec.limit - 1 + limits.retained + limits.in_flight, length) // size) + 1
        return WindowGroup(number, size, window=spec.limit, retained=limits.retained, cap=cap, rule=spec)
    if isinstance(spec, StateSpec):
        if deployment.settings.state_caching == "align":
            return StateGroup(number, size, checkpoint_alignment=_exported_at(spec, deployment), rule=spec)
        # A block holds the state of a request from its first token to its last.
        return Group(number, max(size, length), rule=spec)
    return Group(number, size * limits.dcp, rule=spec)


def _exported_at(spec: StateSpec, deployment: VllmDeployment) -> int | None:
    """At which multiples of tokens the kernels of these layers export states from inside a prompt; ``None`` if they do not."""
    settings = deployment.settings
    counted = settings.speculated if settings.rules.speculated_states else 0
    return _EXPORTED_AT.get(spec.tag, spec.block_size) if spec.states - counted > 2 else None


def _flag(options: Mapping[str, object], name: str) -> bool:
    value = str(options.get(name, "true")).lower()
    if value not in ("true", "false", "on", "off", "1", "0"):
        raise UsageError(f"engine option {name}={brief(value, 40)} is not known.", hint="Allowed: true, false.")
    return value == "1" or is_on(value)


def _number(options: Mapping[str, object], name: str) -> int:
    return parse_tokens(str(options[name]), f"engine option {name}") if options.get(name) else 0


def _retention(value: object) -> int | None:
    if value is None or str(value).lower() == "none":
        return None
    return 0 if str(value) == "0" else parse_tokens(str(value), "engine option prefix_cache_retention_interval")


def _share(value: object, name: str, *, most: float) -> float:
    try:
        share = float(str(value))
    except ValueError:
        share = -1.0
    if not 0 <= share <= most:
        raise UsageError(f"engine option {name}={brief(str(value), 40)} is no share.", hint=f"Allowed: 0 to {most:g}.")
    return share
