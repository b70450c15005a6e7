"""Replay requests on a deployment: :func:`simulate`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc.engines.deployment import Occupancy
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.model import ModelLike, Note
from hwcalc.planner.apart import LAYOUT, decode_options, link_between
from hwcalc.replay.apart import Handover
from hwcalc.replay.core import RequestLog, Role, Scheduler, Seconds, Server, replay
from hwcalc.replay.result import Simulation
from hwcalc.replay.traffic import Limits
from hwcalc.text import quoted
from hwcalc.units import parse_duration, parse_tokens
from hwcalc.workload.request import Request, Workload

if TYPE_CHECKING:
    from hwcalc.replay.core import Router, Scheduler
    from hwcalc.workload.request import Request


def _round_robin() -> Router:
    """One after another."""
    turns = count()
    return lambda _, schedulers: next(turns) % len(schedulers)


def _least_loaded() -> Router:
    """The one with the fewest tokens to compute for the requests that it has."""
    return lambda _, schedulers: min(range(len(schedulers)), key=lambda place: schedulers[place].waiting_tokens())


def _least_requests() -> Router:
    """The one with the fewest requests, where those that wait count more the fuller the pool is; of equals in turn.

    So vLLM's front end chooses among data parallel ranks, where it knows of every request (0.33, v1/engine/core_client.py).
    """
    turns = count()

    def route(_: Request, schedulers: Sequence[Scheduler]) -> int:
        first = next(turns)

        def score(turn: int) -> float:
            running, waiting, used = schedulers[turn % len(schedulers)].pressure()
            return waiting + running + waiting * 6 * max(0.0, used - 0.5)

        return min(range(first, first + len(schedulers)), key=score) % len(schedulers)

    return route


def _prefix() -> Router:
    """The one that computes least before the request has its first token: what waits there, and what of the prompt is not cached there.

    Of equals it is the one that was sent the fewest requests.
    """
    sent = Counter[int]()

    def route(request: Request, schedulers: Sequence[Scheduler]) -> int:
        def left(place: int) -> tuple[int, int]:
            uncached = request.prompt_tokens - schedulers[place].cached_tokens(request)
            return schedulers[place].waiting_tokens() + uncached, sent[place]

        chosen = min(range(len(schedulers)), key=left)
        sent[chosen] += 1
        return chosen

    return route


ROUTES: Final[dict[str, Callable[[], Router]]] = {
    "round-robin": _round_robin,
    "least-loaded": _least_loaded,
    "least-requests": _least_requests,
    "prefix": _prefix,
}
"""The ways to choose, by name."""


def router(name: str) -> Router:
    """A new router of this name."""
    if not isinstance(name, str) or name not in ROUTES:
        raise UsageError(f"route is {quoted(name, 40)}.", hint=f"Allowed: {', '.join(ROUTES)}.")
    return ROUTES[name]()


DEFAULT_ROUTE: Final = "least-requests"
DEFAULT_ENGINE: Final = "vllm"
_STEPS_PER_SECOND: Final = 40
"""Steps for a second of a workload where nothing says how long they take."""
OF_APART: Final = ("prefill_servers", "decode_servers", "link", *(f"decode_{name}" for name in LAYOUT))
"""Keywords of servers that do prompts or tokens alone, as those of :func:`hwcalc.disaggregate`."""
OF_REPLAY: Final = frozenset({"clock", "step_time", "ttft", "itl", "e2e", "replicas", "route", "watch", *OF_APART})
"""Keywords of :func:`simulate` that say how requests are replayed."""
OF_POOL: Final = frozenset({"blocks", "tokens"})
"""Keywords that replace the plan's pool."""
CLOCKS: Final = ("seconds", "steps")
"""The units of a replay's clock."""


def simulate(
    model: ModelLike,
    requests: Any = None,
    /,
    *,
    engine: str = DEFAULT_ENGINE,
    blocks: int | str | None = None,
    tokens: int | str | None = None,
    clock: str | None = None,
    step_time: float | str | None = None,
    ttft: float | str | None = None,
    itl: float | str | None = None,
    e2e: float | str | None = None,
    replicas: int | str | None = None,
    route: str = DEFAULT_ROUTE,
    watch: Callable[[int], None] | None = None,
    **options: Any,
) -> Simulation:
    """Replay ``requests`` on the deployment that these options describe, step by step as its engine schedules them.

    ``requests`` are rows of arrival, prompt tokens, output tokens, and if wanted a prefix group, its tokens and a priority; or whatever
    :func:`hwcalc.workload.opening.workload` takes: a trace's path, words, a workload, with its keywords for a trace
    (``requests=100`` are the first hundred, ``concurrency=23`` sends the next when one of 23 is answered). ``blocks`` are those of the pool that requests get;
    without it the pool is the plan's, which takes hardware (``gpu``). SGLang counts its pool in ``tokens``, and takes the most tokens that a
    row's request may have as a seventh value.

    ``clock`` is ``"steps"``, in which arrivals count steps and steps take no time, or ``"seconds"``, in which each step takes the time
    that the speed model expects on this hardware, or ``step_time``. Rows count steps unless ``clock`` or ``step_time`` says otherwise,
    everything else seconds; without hardware and ``step_time`` a second is 40 steps. ``ttft``, ``itl`` and ``e2e`` are limits, by which goodput is counted. ``replicas`` servers, by default as
    many as ``dp``, share the requests by ``route``: ``least-requests``, as vLLM does it for ``dp``, ``round-robin``, ``least-loaded`` (the
    fewest tokens left) or ``prefix`` (the least left to compute before the first token). With ``prefill_servers`` and ``decode_servers`` prompts and tokens have servers of their own, between which
    caches move over ``link``; ``decode_gpu``, ``decode_tp`` and the like are those of :func:`hwcalc.disaggregate`. ``watch`` is called with the number of requests that have
    ended. All other keywords are those of :func:`hwcalc.plan`, and ``engine_options`` has the options of the engine's scheduler too.

    >>> config = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 8, "hidden_size": 512,
    ...           "torch_dtype": "bfloat16", "max_position_embeddings": 4096}
    >>> s = simulate(config, [(0, 100, 20)], blocks=64, engine_options={"async_scheduling": "false"})
    >>> s.totals["model_steps"], s.totals["peak_used_blocks"], s.requests
    (20, 8, [(0, 0, 19, 0, 0)])

    Raises a :class:`~hwcalc.errors.KvplanError` subclass.
    """
    from hwcalc.workload.opening import OF_TRACE
    from hwcalc.workload.opening import workload as opened

    if watch is not None and not callable(watch):
        raise UsageError(f"watch is {quoted(watch, 40)}.", hint="Allowed: a function of the number of requests that have ended.")
    if requests is None:
        # By its name: simulate(model, requests=rows).
        requests = options.pop("requests", None)
    apart = {name: value for name in OF_APART if (value := options.pop(name, None)) is not None}
    timed = _is_timed(clock, step_time, requests)
    limits = limits_of(ttft=ttft, itl=itl, e2e=e2e)
    workload = opened(requests, **{name: options.pop(name) for name in OF_TRACE if name in options})
    deployed = deploy(model, engine=engine, blocks=blocks, tokens=tokens, **options)
    notes = [Note(code="workload", message=note) for note in workload.notes]
    if timed and clock is None and step_time is None and deployed.occupancy.setup.hardware.gpu is None:
        message = f"No hardware is given: steps are counted, {_STEPS_PER_SECOND} for a second of the workload. Set it with --gpu or --step-time."
        notes.append(Note(code="steps-counted", message=message))
        timed, workload = False, _in_steps(workload)
    if limits.any and not timed:
        raise UsageError("limits of time need steps that take time.", hint="Add: --gpu h100, or --step-time 25ms")
    constant = _seconds(step_time, "step_time")
    chosen, of_prompts, handover = router(route), None, None
    if apart:
        if not timed or replicas is not None:
            raise UsageError(
                "servers for prompts and for tokens need steps that take time, and no --replicas.",
                hint="Give --prefill-servers 1 --decode-servers 1 with --gpu h100, or --step-time 25ms with --link ib-ndr",
            )
        prefill = _servers(deployed, apart.get("prefill_servers"), deployed.seconds(constant, []), Role.PREFILL)
        of_prompts = Simulation(
            workload=workload,
            occupancy=deployed.occupancy,
            servers=prefill,
            log=prefill[0].scheduler.requests,
            notes=deployed.notes,
        )
        own = {name: apart[f"decode_{name}"] for name in LAYOUT if f"decode_{name}" in apart}
        deployed = deploy(model, blocks=blocks, tokens=tokens, **decode_options({**options, "engine": engine}, own))
        servers = _servers(deployed, apart.get("decode_servers"), deployed.seconds(constant, notes), Role.DECODE)
        seconds, note = _transfer(of_prompts.occupancy, deployed.occupancy, apart.get("link"))
        notes += [*of_prompts.notes, note]
        handover = Handover(prefill, servers, seconds, router(route) if len(servers) > 1 else None)
    else:
        servers = _servers(deployed, replicas, deployed.seconds(constant, notes) if timed else None)
    several = len(servers if handover is None else handover.prefill) > 1
    if not several and len(servers) == 1 and route != DEFAULT_ROUTE:
        message = f"A single server gets all requests: route {route} has nothing to choose from. Set how many share them with --replicas."
        notes.append(Note(code="one-server", message=message))
    replay(servers, workload, route=chosen if several else None, concurrency=workload.concurrency, watch=watch, handover=handover)
    return Simulation(
        workload=workload,
        occupancy=deployed.occupancy,
        servers=servers,
        log=servers[0].scheduler.requests,
        limits=limits,
        notes=tuple(dict.fromkeys((*deployed.notes, *notes))),
        prefill=of_prompts,
    )


_MOST_SERVERS: Final = 10_000


def _servers(deployed: Deployed, number: int | str | None, seconds: Seconds | None, role: Role = Role.BOTH) -> tuple[Server, ...]:
    """Servers of a deployment with a log of their own: by default each data parallel rank is a server."""
    log, dp = RequestLog(), deployed.occupancy.setup.parallel.dp
    if role is Role.BOTH:
        count = dp if number is None else parse_tokens(number, "replicas")
    else:
        count = dp * parse_tokens(1 if number is None else number, f"{role}_servers")
    if count > _MOST_SERVERS:
        raise UsageError(f"{count:,} servers are too many for a replay.", hint=f"At most {_MOST_SERVERS:,}.")
    servers = tuple(Server(deployed.scheduler(log), seconds) for _ in range(count))
    if role is not Role.BOTH:
        for server in servers:
            server.scheduler.play(role)
    return servers


def _transfer(prefill: Occupancy, decode: Occupancy, link: str | None) -> tuple[Callable[[int], float], Note]:
    """The seconds in which the cache of so many tokens moves, and what is assumed of it."""
    occupancies = (prefill, decode)
    name, rate = link_between([each.setup.hardware.gpu for each in occupancies], link)

    @cache
    def seconds(tokens: int) -> float:
        return max(each.sized(seq=tokens, batch=1).needed_bytes for each in occupancies) / rate

    message = f"The cache of each prompt moves over {name}, {rate / 1e9:,.4g} GB/s for each GPU, whatever else moves."
    return seconds, Note(code="transfer", message=message)


def _is_timed(clock: str | None, step_time: float | str | None, requests: Any) -> bool:
    """True if steps take time."""
    if clock is None:
        rows = not isinstance(requests, (str, os.PathLike, Workload, Mapping))
        return step_time is not None or not rows
    if not isinstance(clock, str) or clock not in CLOCKS:
        raise UsageError(f"clock is {quoted(clock, 40)}.", hint=f"Allowed: {', '.join(CLOCKS)}.")
    if clock == "steps" and step_time is not None:
        raise UsageError("a clock of steps knows no step_time.", hint="Leave out one of them.")
    return clock == "seconds"


def _in_steps(workload: Workload) -> Workload:
    """The workload with its seconds as steps, of which the last that has begun is counted."""

    def steps(seconds: float) -> float:
        # Exact for times of trace files, which have up to seven digits.
        return round(seconds * 10**7) * _STEPS_PER_SECOND // 10**7

    def make() -> Iterator[Request]:
        for request in workload:
            after = request.cancel_after_s
            yield replace(
                request,
                arrival_s=steps(request.arrival_s),
                wait_s=steps(request.wait_s),
                cancel_after_s=after if after is None else steps(after),
            )

    return replace(workload, make=make, counting=None)


def _seconds(value: float | str | None, name: str) -> float | None:
    return None if value is None else parse_duration(value, name)


def limits_of(**given: float | str | None) -> Limits:
    """The limits ``ttft``, ``itl`` and ``e2e``, from text or seconds."""
    return Limits(**{name: _seconds(value, name) for name, value in given.items()})


class Deployed(Record):
    """A deployment that can be replayed, and the options of its scheduler."""

    occupancy: Occupancy
    make: Callable[[RequestLog | None], Scheduler]
    notes: tuple[Note, ...]

    def scheduler(self, log: RequestLog | None = None) -> Scheduler:
        """A new scheduler of one replica."""
        return self.make(log)

    def seconds(self, constant: float | None, notes: list[Note]) -> Seconds:
        """The times of steps; what is assumed goes to ``notes``."""
        from hwcalc.replay.durations import Constant, Modelled

        if constant is not None:
            return Constant(constant)
        from hwcalc.planner.step_time import step_times

        times = step_times(self.occupancy)
        if times is None or times.parameters is None:
            what = "no hardware is given" if times is None else "no speed was measured on hardware of this class"
            raise UsageError(
                f"Steps have no duration: {what}.",
                hint="Give --gpu h100, a time for each step (--step-time 25ms), or count steps (--clock steps).",
            )
        notes.append(
            Note(
                code="step-times",
                message="Each step takes the time that the speed model expects; see docs/speed.md for its errors.",
            )
        )
        return Modelled(times)


def deploy(
    model: ModelLike,
    *,
    engine: str = DEFAULT_ENGINE,
    blocks: int | str | None = None,
    tokens: int | str | None = None,
    **options: Any,
) -> Deployed:
    """The deployment that these options describe."""
    from hwcalc.engines import ENGINES, find_engine
    from hwcalc.library.plan import load_request
    from hwcalc.planner.asked import take_options
    from hwcalc.planner.context import open_request

    take_options("simulate", {"engine": engine})
    served_by = find_engine(engine)[0]
    if served_by.scheduler is None:
        replayed = [name for name in ENGINES if find_engine(name)[0].scheduler is not None]
        message = f"The replay has no rules of {served_by.name}'s scheduler."
        raise UnsupportedError(message, hint=f"Use: --engine {' or '.join(replayed)}")
    rules = import_module(served_by.scheduler)
    named = _named(options.pop("engine_options", None))
    for option in named:
        if option not in rules.OPTIONS and option not in served_by.options:
            hint = f"Known of the scheduler: {', '.join(rules.OPTIONS)}. Of its memory: kvplan engines {served_by.name}"
            raise UsageError(f"engine option {quoted(option, 40)} is not known to {served_by.name}.", hint=hint)
    of_plan = {name: value for name, value in named.items() if name not in rules.OPTIONS}
    of_scheduler = {name: value for name, value in named.items() if name in rules.OPTIONS}
    _, asked = take_options("simulate", {**options, "engine": engine, "engine_options": of_plan})
    spec, request = load_request(model, asked)
    users, default = served_by.facts.users_option, served_by.facts.default_users
    if default is not None:
        # A server that allocates all its sequences is planned for as many as it serves.
        request["batch"] = served_by.options[users].check(users, str(of_plan.get(users, default)))
    occupancy = open_request(spec, **request)
    make = rules.maker(occupancy, of_scheduler, blocks=blocks, tokens=tokens)
    return Deployed(occupancy=occupancy, make=make, notes=(*occupancy.notes, *rules.remarks(occupancy, of_scheduler)))


def _named(options: Mapping[str, Any] | Iterable[str] | None) -> dict[str, Any]:
    """Engine options by name; they may be written ``name=value``."""
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        options = dict(option.partition("=")[::2] for option in options)
    return {
        name: value if value is None else str(value).lower() if isinstance(value, bool) else value
        for name, value in options.items()
    }
