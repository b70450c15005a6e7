"""The scheduler of a deployment: its pools and settings, as the plan has them, and SGLang's options that bear on scheduling alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from hwcalc.engines.options import EngineOption, choice_option, integer_option, is_on, number_option
from hwcalc.engines.sglang.engine import SglangOccupancy
from hwcalc.engines.sglang.pools import LayerPools, most_running
from hwcalc.engines.sglang.settings import cuts_prompts
from hwcalc.errors import NoRoomError, UnsupportedError, UsageError
from hwcalc.model import Note
from hwcalc.planner.solve import budget_bytes
from hwcalc.replay.sglang.hybrid import StateScheduler, WindowScheduler
from hwcalc.replay.sglang.policies import POLICIES
from hwcalc.replay.sglang.rules import PREEMPTION_THRESHOLD, SchedulerRules
from hwcalc.replay.sglang.scheduler import SglangScheduler
from hwcalc.replay.sglang.tree import EVICTION
from hwcalc.units import parse_tokens

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.replay.core import RequestLog, Scheduler

_FLAG: Final = choice_option("true", "false", "on", "off")
_COUNT: Final = integer_option(1, 2**40)
_OPTIONS: Final[tuple[tuple[str, str, str, Callable[[str, str], Any]], ...]] = (
    ("schedule_policy", "who is next", "fcfs", choice_option(*POLICIES)),
    ("schedule_conservativeness", "how much of the tokens to come is reserved; more is safer", "1.0", number_option(1000)),
    ("max_prefill_tokens", "most tokens of prompts in a batch", "16384", _COUNT),
    ("prefill_max_requests", "most prompts in a batch", "none", _COUNT),
    ("enable_mixed_chunk", "whether running requests decode in batches of prompts", "false", _FLAG),
    ("radix_eviction_policy", "what goes first of the prefix cache", "lru", choice_option(*EVICTION)),
    ("retraction_policy", "who is retracted first", "length", choice_option("length", "priority")),
    ("enable_priority_scheduling", "whether priorities count, and may preempt", "false", _FLAG),
    ("schedule_low_priority_values_first", "whether smaller priorities are more urgent", "false", _FLAG),
    (
        "priority_scheduling_preemption_threshold",
        "by how much a priority must be higher to preempt",
        str(PREEMPTION_THRESHOLD),
        integer_option(0, 2**40),
    ),
    ("max_queued_requests", "most requests that wait; further ones are refused", "none", _COUNT),
    ("prefill_decode_interval", "decodes after each batch of prompts before the next", "0", integer_option(0, 2**30)),
    ("ignore_eos", "whether all requests run to their most tokens, as benchmarks have it", "false", _FLAG),
)
OPTIONS: Final[Mapping[str, EngineOption]] = MappingProxyType(
    {name: EngineOption(name=name, help=text, default=default, check=check) for name, text, default, check in _OPTIONS}
)
"""SGLang's options that bear on its scheduler and not on its memory, by their names (server_args.py), and one of sampling."""


def remarks(occupancy: Occupancy, options: Mapping[str, object]) -> tuple[Note, ...]:
    """Notes on what is assumed of the scheduler: nothing that the plan does not say."""
    return ()


def maker(
    occupancy: Occupancy, options: Mapping[str, object], *, blocks: int | str | None, tokens: int | str | None
) -> Callable[[RequestLog | None], Scheduler]:
    """A maker of schedulers of a deployment, with a pool of so many tokens, or of the plan's."""
    assert isinstance(occupancy, SglangOccupancy)
    if blocks is not None:
        raise UsageError("SGLang's pool has no blocks: it is counted in tokens.", hint="Give tokens in place of blocks.")
    return partial(_scheduler, rules_of(occupancy, options, tokens))


def _scheduler(rules: SchedulerRules, log: RequestLog | None = None) -> Scheduler:
    if rules.swa_tokens is not None:
        return WindowScheduler(rules, log)
    return SglangScheduler(rules, log) if rules.state_slots is None else StateScheduler(rules, log)


def rules_of(occupancy: SglangOccupancy, options: Mapping[str, object], tokens: int | str | None) -> SchedulerRules:
    """The settings of the scheduler, with SGLang's defaults filled in."""
    settings, deployment = occupancy.settings, occupancy.deployment
    rules = deployment.pool_rules
    if not isinstance(rules, LayerPools):
        raise UnsupportedError(
            f"The replay has no rules for the pools of {deployment.model.id}.",
            hint="Replay a model without compressed attention.",
        )
    states = deployment.layout.has_states
    if states and deployment.window is not None:
        raise UnsupportedError(
            f"The replay has no rules of SGLang's pools of a model with windows and states, as {deployment.model.id} is.",
            hint="Replay a model with one of them.",
        )
    if states and settings.strategy not in ("none", "no_buffer"):
        raise UnsupportedError(
            f"The replay has no rules of mamba_scheduler_strategy={settings.strategy}.",
            hint="Use: --engine-option mamba_scheduler_strategy=no_buffer --engine-option disable_overlap_schedule=true",
        )
    if tokens is None:
        budget = budget_bytes(occupancy)
        if budget is None:
            raise UsageError(
                "A replay needs the tokens of a pool.", hint="Give hardware (--gpu h100), --kv-memory 40GiB, or --tokens N."
            )
        figures = occupancy.sizes(max(0, budget))
        total, windows, slots, running = figures.tokens, figures.swa_tokens, figures.slots, figures.running
        if total < 1:
            raise NoRoomError(
                f"{deployment.model.id} leaves no memory for tokens on this hardware.",
                hint="Use more or larger GPUs, or smaller weights.",
            )
    else:
        total = parse_tokens(tokens, "tokens") // settings.page_size * settings.page_size
        windows = rules.windows_of(total)
        slots = settings.mamba_slots if states else None
        if states and slots is None:
            raise UsageError(
                "A pool of so many tokens says nothing of the slots for states.",
                hint="Give engine option max_mamba_cache_size=N.",
            )
        running = most_running(settings, total, slots)
    given: dict[str, Any] = {
        name: OPTIONS[name].check(name, str(value).lower()) for name, value in options.items() if value is not None
    }
    flags = {name: is_on(value) for name, value in given.items() if OPTIONS[name].check is _FLAG}
    return SchedulerRules(
        max_total_num_tokens=total,
        page_size=settings.page_size,
        max_running_requests=max(1, running),
        context_length=settings.context,
        chunked_prefill_size=settings.chunk if cuts_prompts(occupancy.setup) else None,
        disable_radix_cache=not settings.radix,
        overlap=settings.overlap,
        swa_tokens=windows,
        sliding_window=(deployment.window or 0) if windows is not None else 0,
        state_slots=slots,
        **{**given, **flags},
    )
