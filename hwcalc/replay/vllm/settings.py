"""The scheduler of a deployment: its groups of layers and settings, as the plan has them, and vLLM's options that bear on scheduling alone."""

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
from hwcalc.replay.vllm.cache import CacheRules
from hwcalc.replay.vllm.groups import ChunkGroup, Group, StateGroup, WindowGroup
from hwcalc.replay.vllm.scheduler import SchedulerRules, Speculating, VllmScheduler
from hwcalc.text import brief
from hwcalc.units import parse_tokens

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.vllm.deployment import VllmDeployment
    from hwcalc.engines.vllm.specs import LayerSpec, Limits
    from hwcalc.replay.core import RequestLog, Scheduler

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
    if rules.speculation is None:
        return VllmScheduler(rules, blocks, requests)
    from hwcalc.replay.vllm.speculation import SpeculatingScheduler

    return SpeculatingScheduler(rules, blocks, requests)


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
