"""The times that users of a replayed server wait, and how full its pool is, from the rows of the replay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION
from hwcalc.errors import UsageError
from hwcalc.model import Note
from hwcalc.replay.traffic import Goodput, Prefill, Spread, Throughput, Timeline, Traffic
from hwcalc.units import human_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from hwcalc.replay.core import Server
    from hwcalc.replay.result import Simulation


_PREFIXES_UNKNOWN: Final = Note(
    code="prefixes-unknown",
    message="The trace does not say what prompts have in common: each is computed whole, where a server may find a part of it in its cache.",
)


class Times:
    """The times at which each request arrived, was scheduled, answered and finished: arrays by request, with NaN for what never happened."""

    def __init__(self, simulation: Simulation) -> None:
        from numpy import array, frombuffer

        log, servers = simulation.log, simulation.servers
        self.timed = servers[0].seconds is not None
        self.arrived: NDArray[Any] = frombuffer(log.arrivals, dtype="float64") if len(log) else array([])
        self.outputs: NDArray[Any] = array(log.produced, dtype="int64")
        """Tokens that came, which may be fewer than were wanted."""
        self.prompts: NDArray[Any] = frombuffer(log.prompts, dtype="int64") if len(log) else array([], dtype="int64")
        lag = servers[0].scheduler.lag
        # A step is scheduled when the one before it in its server's loop has ended, and its results are there at its end.
        self.scheduled = self._times(simulation, log.scheduled, -1)
        self.first = self._times(simulation, log.firsts, -lag)
        self.finished = self._times(simulation, log.finishes, -lag)
        self.prefill = None if simulation.prefill is None else Times(simulation.prefill)
        """Those of the servers that computed the prompts."""
        if self.prefill is not None:
            self.scheduled = self.prefill.scheduled
        if not self.timed:
            # Steps have the numbers of their turns, and end one later than they begin.
            self.first, self.finished, self.scheduled = self.first + 1, self.finished + 1, self.scheduled + 1

    @staticmethod
    def _times(simulation: Simulation, turns: list[int | None], shift: int) -> NDArray[Any]:
        from numpy import array, frombuffer, full, isnan, maximum, nan, zeros

        numbers = array([nan if turn is None else turn for turn in turns], dtype="float64")
        servers = simulation.servers
        if servers[0].seconds is None:
            out: NDArray[Any] = numbers + shift
            return out
        known = ~isnan(numbers)
        out = full(len(numbers), nan)
        at = frombuffer(simulation.log.servers, dtype="int64") if len(numbers) else zeros(0, dtype="int64")
        for place, server in enumerate(servers):
            own = known & (at == place)
            if own.any():
                ends = frombuffer(server.ends, dtype="float64")
                out[own] = ends[maximum(0, numbers[own].astype("int64") + shift)]
        return out


def request_records(simulation: Simulation) -> list[dict[str, Any]]:
    """A row for each request: what it is, its times, and the turns of its replica."""
    times, log = Times(simulation), simulation.log
    ended = {*log.refused, *log.cancelled, *(number for number, turn in enumerate(log.finishes) if turn is not None)}

    def told(values: NDArray[Any]) -> list[float | None]:
        return [None if value != value else value for value in values.tolist()]  # noqa: PLR0124 - NaN is what is not itself

    prompts = log if simulation.prefill is None else simulation.prefill.log
    columns: dict[str, Any] = {
        "request": range(len(log)),
        "arrival": log.arrivals,
        "prompt_tokens": log.prompts,
        "output_tokens": [tokens if number in ended else None for number, tokens in enumerate(log.produced)],
        "replica": log.servers,
        "ttft": told(times.first - times.arrived),
        "e2e": told(times.finished - times.arrived),
        "first_scheduled": prompts.scheduled,
        "first_token": log.firsts,
        "finished": log.finishes,
        "prefix_hit": prompts.hits,
        "preempted": log.preempted,
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def traffic_of(simulation: Simulation) -> Traffic:
    """The figures of a replay, without its rows."""
    from numpy import isnan, maximum

    occupancy, log, totals = simulation.occupancy, simulation.log, simulation.totals
    times = Times(simulation)
    done = ~isnan(times.finished)
    answered = ~isnan(times.first)
    queue = maximum(0, times.scheduled - times.arrived)
    ttft = times.first - times.arrived
    e2e = times.finished - times.arrived
    more = done & (times.outputs > 1)
    tpot = (times.finished[more] - times.first[more]) / (times.outputs[more] - 1)
    hits = (totals if simulation.prefill is None else simulation.prefill.totals).get("prefix_cache", {})
    looked = hits.get("queries", 0) + hits.get("preempted_queries", 0)
    known = log.prefixes_known or simulation.workload.trace is None
    use, running, waiting = _over_time(simulation)
    setup = occupancy.setup
    return Traffic(
        schema_version=SCHEMA_VERSION,
        kvplan_version=__version__,
        model=occupancy.model.id,
        engine=occupancy.engine.name,
        engine_version=occupancy.deployment.version or None,
        gpu=None if setup.hardware.gpu is None else setup.hardware.gpu.id,
        workload=simulation.workload.name,
        requests=len(log),
        finished=int(done.sum()),
        replicas=len(simulation.servers),
        clock="seconds" if times.timed else "steps",
        unit=simulation.scheduler.measures.unit,
        capacity=simulation.scheduler.capacity,
        settings=simulation.scheduler.settings(),
        totals=totals,
        use=use,
        running=running,
        waiting=waiting,
        hit_share=(hits["hits"] + hits.get("preempted_hits", 0)) / looked if looked and known else None,
        queue=Spread.of(queue[~isnan(queue)]),
        ttft=Spread.of(ttft[answered]),
        tpot=Spread.of(tpot),
        itl=_between_tokens(simulation) if times.timed else Spread.of(tpot, times.outputs[more] - 1),
        e2e=Spread.of(e2e[done]),
        throughput=_throughput(times, done),
        goodput=_goodput(simulation, times, done),
        notes=(*simulation.notes, *_remarks(simulation, known=known)),
        warnings=_warnings(simulation),
        prefill=None if simulation.prefill is None else _prefill(simulation.prefill.traffic),
    )


def _prefill(traffic: Traffic) -> Prefill:
    """The figures of the servers for prompts."""
    return Prefill(
        computed=traffic.e2e, **{name: getattr(traffic, name) for name in Prefill.__struct_fields__ if name != "computed"}
    )


def _throughput(times: Times, done: NDArray[Any]) -> Throughput | None:
    if not times.timed or not done.any():
        return None
    duration = float(times.finished[done].max() - times.arrived.min())
    if duration <= 0:
        return None
    output = int(times.outputs[done].sum())
    return Throughput(
        duration_s=duration,
        requests_per_s=int(done.sum()) / duration,
        output_tokens_per_s=output / duration,
        total_tokens_per_s=(output + int(times.prompts[done].sum())) / duration,
    )


def _goodput(simulation: Simulation, times: Times, done: NDArray[Any]) -> Goodput | None:
    from numpy import isnan, maximum

    limits = simulation.limits
    if not limits.any or not len(done):
        return None
    good = done & ~isnan(times.first)
    good[simulation.log.refused] = False
    if limits.ttft is not None:
        good &= times.first - times.arrived <= limits.ttft
    if limits.itl is not None:
        good &= (times.finished - times.first) / maximum(1, times.outputs - 1) <= limits.itl
    if limits.e2e is not None:
        good &= times.finished - times.arrived <= limits.e2e
    throughput = _throughput(times, done)
    number = int(good.sum())
    rate = None if throughput is None else number / throughput.duration_s
    return Goodput(limits=limits, requests=number, share=number / len(done), requests_per_s=rate)


def _over_time(simulation: Simulation) -> tuple[Spread | None, Spread | None, Spread | None]:
    """The share of the pool that is held, and requests that run and wait, over the time of all steps."""
    from numpy import concatenate, frombuffer

    measures = simulation.scheduler.measures
    rows: dict[str, list[NDArray[Any]]] = {name: [] for name in (measures.used, measures.running, measures.waiting)}
    weights: list[NDArray[Any]] = []
    timed = simulation.servers[0].seconds is not None
    for server in simulation.servers:
        steps = server.scheduler.steps
        if not len(steps):
            continue
        for name, columns in rows.items():
            columns.append(frombuffer(steps.column(name), dtype="int64"))
        if timed:
            lengths = frombuffer(server.lengths, dtype="float64")
            turns = frombuffer(steps.column(steps.columns[0]), dtype="int64")
            weights.append(lengths[turns])
    if not rows[measures.running]:
        return None, None, None
    counts = concatenate(weights) if weights else None
    used, running, waiting = (concatenate(columns) for columns in rows.values())
    return Spread.of(used / simulation.scheduler.capacity, counts), Spread.of(running, counts), Spread.of(waiting, counts)


_PARTS: Final = 400
"""Points of a time line."""


def timeline_of(simulation: Simulation) -> Timeline:
    """The replay over time. Raises :class:`~hwcalc.errors.UsageError` if no step was taken."""
    from numpy import clip, diff, frombuffer, interp, linspace, maximum, searchsorted, stack, zeros

    traffic, measures = simulation.traffic, simulation.scheduler.measures
    spans = {place: _spans(server) for place, server in enumerate(simulation.servers) if len(server.scheduler.steps)}
    if not spans:
        raise UsageError("no step was taken: there is nothing to draw.", hint="Give requests that the server takes.")
    edges = linspace(min(times[0, 0] for times in spans.values()), max(times[-1, 1] for times in spans.values()), _PARTS + 1)
    means = {name: zeros(_PARTS) for name in (measures.used, measures.running, measures.waiting)}
    most = zeros(_PARTS)
    for place, times in spans.items():
        steps = simulation.servers[place].scheduler.steps
        parts = clip(searchsorted(edges, times[:, 1]) - 1, 0, _PARTS - 1)
        for name in means:
            values = frombuffer(steps.column(name), dtype="int64")
            # Nothing is held between two steps, when a server has nothing to do.
            held = (times[:, 1] - times[:, 0]) * values
            upto = stack((held.cumsum() - held, held.cumsum()), axis=1)
            means[name] += diff(interp(edges, times.ravel(), upto.ravel())) / diff(edges)
            if name == measures.used:
                maximum.at(most, parts, values / traffic.capacity)
    use = means[measures.used] / (traffic.capacity * traffic.replicas)
    first = "" if traffic.ttft is None or traffic.clock == "steps" else f" · first token {human_duration(traffic.ttft.p95)} (p95)"
    return Timeline(
        title=f"{traffic.model}, {traffic.engine}{'' if traffic.gpu is None else f' on {traffic.gpu}'}: {traffic.workload}",
        caption=f"{traffic.capacity:,} {traffic.unit} · {traffic.finished:,} of {traffic.requests:,} requests{first}",
        clock=traffic.clock,
        times=tuple(edges[1:].tolist()),
        use=tuple(use.tolist()),
        use_max=tuple(maximum(most, use).tolist()),
        running=tuple(means[measures.running].tolist()),
        waiting=tuple(means[measures.waiting].tolist()),
    )


def _spans(server: Server) -> NDArray[Any]:
    """The begin and the end of each step of a server."""
    from numpy import frombuffer, stack

    steps = server.scheduler.steps
    turns = frombuffer(steps.column(steps.columns[0]), dtype="int64")
    if server.seconds is None:
        return stack((turns, turns + 1), axis=1).astype("float64")
    ends = frombuffer(server.ends, dtype="float64")[turns]
    return stack((ends - frombuffer(server.lengths, dtype="float64")[turns], ends), axis=1)


def _between_tokens(simulation: Simulation) -> Spread | None:
    """The times between two tokens of a request: each step counts for as many as decode in it, with those before in which they did not.

    That of a request which was preempted between them counts for itself.
    """
    from numpy import array, concatenate, frombuffer, ones

    log, servers = simulation.log, simulation.servers
    stalls = [
        (ends := servers[log.servers[number]].ends)[turn] - ends[before]
        for number, before, turn in log.resumed
        if servers[0].seconds
    ]
    lengths, counts = [array(stalls, dtype="float64")], [ones(len(stalls), dtype="int64")]
    for server in servers:
        if len(server.lengths):
            lengths.append(frombuffer(server.gaps, dtype="float64"))
            counts.append(frombuffer(server.decoded, dtype="int64"))
    return Spread.of(concatenate(lengths), concatenate(counts)) if len(lengths) > 1 else None


def _remarks(simulation: Simulation, *, known: bool) -> Iterator[Note]:
    """Notes on how the figures are read. ``known`` says whether the trace tells what prompts have in common."""
    log = simulation.log
    if not known:
        yield _PREFIXES_UNKNOWN
    cut = sum(log.finishes[number] is not None for number in log.cut)
    if cut:
        most = simulation.scheduler.longest_request
        many = "1 answer" if cut == 1 else f"{cut:,} answers"
        message = f"The allowed length cut {many} short: a request has at most {most:,} tokens, its answer included."
        yield Note(code="cut", message=message)


def _warnings(simulation: Simulation) -> tuple[Note, ...]:
    """Warnings of what went wrong."""
    log, out = simulation.log, []
    if simulation.totals["stalled"]:
        message = f"Requests are left that the engine will never serve: {simulation.scheduler.stalls_when}"
        out.append(Note(code="stalled", message=message))
    if refused := len(log.refused) - len(log.failed):
        many = "1 request was" if refused == 1 else f"{refused:,} requests were"
        message = f"{many} refused, as all are that {simulation.scheduler.refuses_when}."
        out.append(Note(code="refused", message=message))
    if failed := len(log.failed):
        many = "1 request was" if failed == 1 else f"{failed:,} requests were"
        out.append(Note(code="failed", message=f"{many} given up while they were served: {simulation.scheduler.fails_when}."))
    return tuple(out)
