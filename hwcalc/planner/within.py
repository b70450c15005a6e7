"""How many users a plan serves within limits of time, which of the limits binds, and what to set so.

The limits are the longest time to the first token, between tokens and until the last one, and the fewest tokens per second of a user. The times
are those of :func:`~hwcalc.planner.forecast.forecast`: ``users`` requests are served at once, and when one ends the next begins. The number
goes by the expected times; the slow end of their range, with what the memory holds for certain, says how many are sure.

With ``rate`` requests arrive at random instead, and the question is how many in a second. On average as many are served at once as the time
of one makes of them (Little 1961, doi:10.1287/opre.9.3.383). As many places as there are users within the limits may be taken; a request
that finds none waits as in a queue with so many servers: the M/M/c queue (Erlang 1917), times half of one plus the squared variation of the
service times (Allen 1990, Probability, Statistics and Queueing Theory, section 5.3), which for one place is the formula of Pollaczek and Khinchine
for M/G/1. It is a formula for steady traffic at random: bursts, priorities and preemption need a replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import asdict, replace

from hwcalc.errors import KvplanError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.model import Definition, answers_with_vectors
from hwcalc.planner import solve
from hwcalc.planner.options import WITHIN
from hwcalc.planner.solve import HoldingLayout, last_yes, most
from hwcalc.planner.verdict import UNLIMITED
from hwcalc.planner.within_result import ArrivalsInfo, ChunkInfo, ReloadInfo, ServedInfo, SettingInfo, TimeInfo, WithinInfo

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.setup import Load
    from hwcalc.planner.forecast import Forecast
    from hwcalc.planner.result import FitInfo, OverrunInfo
    from hwcalc.planner.step_time import StepTimes

_MOST_OUTPUT: Final = 512
_OUTPUT_SHARE: Final = 8
_LEAST_CHUNK: Final = 256
_STEPS: Final = 40
"""Halvings of a rate: far finer than its digits."""
_EXPECTED: Final = "expected"
_SLOW: Final = "high"
_BOUND: Final = "bound"
"""The ends of a time."""


class Limits(Record):
    """What is asked of each request: its longest times in seconds and its fewest tokens per second. ``None`` is no limit.

    ``rate`` is how many requests arrive in a second; ``None`` where each user sends the next one when the last has ended.
    """

    ttft: float | None = None
    itl: float | None = None
    e2e: float | None = None
    min_rate: float | None = None
    rate: float | None = None
    prefix_hit: Any = None
    accepted_tokens: float = 1.0

    @classmethod
    def of(cls, options: Any) -> Limits | None:
        """The limits among these options; ``None`` without any."""
        given = {name: options[name] for name in WITHIN if options.get(name) is not None}
        hit = given.get("prefix_hit")
        if hit is not None and not 0 <= hit <= 1:
            raise UsageError(f"prefix-hit is {float(hit):g}.", hint="Allowed: a share from 0 to 1, such as 60%.")
        return cls(**given) if given else None

    def exceeded(self, served: Forecast, end: str, wait: float = 0.0) -> dict[str, float]:
        """The figures of a forecast at this end that exceed their limit, with how often the limit they are; the worst first."""
        times = {
            "ttft": getattr(served.ttft_s, end) + wait,
            "itl": getattr(served.itl_s, end),
            "e2e": getattr(served.e2e_s, end) + wait,
        }
        shares = {name: value / limit for name, value in times.items() if (limit := getattr(self, name)) is not None}
        if self.min_rate is not None:
            shares["min_rate"] = times["itl"] * self.min_rate
        # A limit is kept by what is as long, but for the rounding of a sum.
        beyond = {name: share for name, share in shares.items() if share > 1 + 1e-9}
        return dict(sorted(beyond.items(), key=lambda one: -one[1]))


def lengths_of(load: Load, prefix_hit: Any = None, avg_seq: str | None = None) -> tuple[int, int, int]:
    """The tokens of the prompt, of those in the cache already, and of the output of a request.

    Where the user does not say how much of a sequence is its prompt, an eighth is generated, at most 512 tokens. Of unlike lengths it is
    the mean: of those that are given, or of those that ``avg_seq`` names.
    """
    total = load.seq
    if avg_seq is not None:
        from hwcalc.workload.opening import held_lengths

        total = max(1, round(held_lengths(avg_seq, load.seq)[0].mean))
    elif load.lengths:
        of_all = load.lengths_of
        total = round(sum(tokens * count for tokens, count in of_all) / sum(count for _, count in of_all))
    output = min(_MOST_OUTPUT, total // _OUTPUT_SHARE) if load.prompt is None else total - min(load.prompt, total)
    output = max(1, output)
    prompt = max(1, total - output)
    cached = min(load.sharing.prefix, prompt) if prefix_hit is None else int(prompt * prefix_hit)
    # The last token of a prompt is always computed: it gives the first one of the output.
    return prompt, min(cached, prompt - 1), output


class _Users:
    """The search for the most users of a deployment; times and requests are given once."""

    def __init__(self, times: StepTimes, limits: Limits, lengths: tuple[int, int, int]) -> None:
        self.times, self.limits, self.lengths = times, limits, lengths
        self._served: dict[float, Forecast] = {}

    def served(self, users: float) -> Forecast:
        """The forecast for so many users at once."""
        if users not in self._served:
            from hwcalc.planner.forecast import forecast

            prompt, cached, output = self.lengths
            self._served[users] = forecast(self.times, prompt, output, users, cached)
        return self._served[users]

    def holds(self, users: int, end: str, places: int) -> bool:
        """True if so many users are within the limits, with places for all of them."""
        return users <= places and not self.limits.exceeded(self.served(users), end)

    def most(self, end: str, places: int, guess: int = 32) -> tuple[int, str | None]:
        """The most users within the limits, up to ``places``, and the limit that one more would exceed; ``None`` if that is the places."""
        users = last_yes(lambda number: not self.limits.exceeded(self.served(number), end), places, min(guess, places))
        return users, next(iter(self.limits.exceeded(self.served(users + 1), end))) if users < places else None

    def beyond(self, at_once: float, places: int, end: str) -> dict[str, float]:
        """What is exceeded where so many of the places are taken on average, with the wait for one of them."""
        served = self.served(max(1.0, at_once))
        return self.limits.exceeded(served, end, waiting(at_once, places, getattr(served.e2e_s, end)))

    def with_chunk(self, chunk: int) -> _Users:
        """The same with other chunks of prompts."""
        return _Users(replace(self.times, chunk=chunk), self.limits, self.lengths)

    def info(self, users: int) -> ServedInfo:
        """The figures of each of so many users."""
        served = self.served(users)
        return ServedInfo(
            users=users,
            ttft_s=TimeInfo.of(served.ttft_s),
            itl_s=TimeInfo.of(served.itl_s),
            e2e_s=TimeInfo.of(served.e2e_s),
            output_tokens_per_s=TimeInfo.of(served.cycle_s.per_s(users * self.lengths[2])),
            step_with_prompt_s=self.step_with_prompt(users) if self.times.mixes_prompts else None,
        )

    def step_with_prompt(self, users: int) -> float | None:
        """The expected seconds of a step that computes a chunk of a prompt beside the tokens of so many users."""
        prompt, cached, output = self.lengths
        each = max(1.0, users / self.times.servers / self.times.pp)
        chunk = min(self.times.chunk, prompt - cached)
        middle = cached + (prompt - cached - chunk) // 2
        step = self.times.step(prompt_tokens=chunk, prompt_context=middle, decoding=each, context=prompt + (output + 1) // 2)
        expected: float | None = step.expected
        return expected


def request_of(opened: Occupancy, limits: Limits) -> tuple[int, int, int]:
    """The lengths of a request of this occupancy, as :func:`lengths_of` has them."""
    return lengths_of(opened.load, limits.prefix_hit, opened.setup.others.get("avg_seq"))


def within_limits(opened: Occupancy, fit: FitInfo, overrun: OverrunInfo | None) -> WithinInfo | None:
    """The users that a deployment serves within the limits of its options; ``None`` if weights are not counted.

    ``fit`` says how many fit, and ``overrun`` how many of the lengths that users really have.
    """
    from hwcalc.planner.step_time import speculating, step_times

    load, limits = opened.load, Limits.of(opened.setup.others) or Limits()
    if load.sharing.branches > 1:
        raise UsageError(
            "limits of time are of requests with one sequence each.",
            hint="Leave out --samples and --beams, or plan without --ttft, --itl, --e2e, --min-rate and --rate.",
        )
    if answers_with_vectors(opened.model.id):
        raise UsageError(
            f"{opened.model.id} is a model for embeddings or ranks, by its name: it decodes no tokens, and limits of time are of those.",
            hint="Plan without --ttft, --itl, --e2e, --min-rate and --rate: a plan says how long a prompt takes.",
        )
    times = step_times(opened)
    if times is None:
        return None
    times = speculating(times, opened, limits.accepted_tokens)
    lengths = request_of(opened, limits)
    search = _Users(times, limits, lengths)
    room = (fit.expected_max_batch, fit.max_batch) if overrun is None else (overrun.expected_max_users, overrun.max_users)
    places, sure_places = map(_places, room)
    of_memory = fit.expected_limiting if overrun is None else overrun.limiting
    known = times.speed_class is not None
    bound, of_bound = search.most(_BOUND, places)
    users, limiting, users_low, limiting_low = None, of_bound, None, None
    if known:
        users, limiting = search.most(_EXPECTED, places)
        limiting = limiting or of_memory
        users_low, limiting_low = search.most(_SLOW, min(users, sure_places), users)
        limiting_low = limiting_low or (limiting if users_low == users else fit.limiting if overrun is None else of_memory)
    limiting = limiting or of_memory
    arrivals = None if limits.rate is None else _arrivals(search, limits.rate, users, users_low, limiting)
    holds: bool | None
    holds_low: bool | None
    if arrivals is not None:
        holds, holds_low = (_reaches(most_rate, arrivals.rate) for most_rate in (arrivals.most_rate, arrivals.most_rate_low))
    elif known:
        holds, holds_low = search.holds(load.batch, _EXPECTED, places), search.holds(load.batch, _SLOW, sure_places)
    else:
        # What the bound allows is not known to be within.
        holds = holds_low = None if search.holds(load.batch, _BOUND, places) else False
    at_users = users if known else bound
    held = (sure_places or places) if load.batch > places else 0
    return WithinInfo(
        ttft_s=limits.ttft,
        itl_s=limits.itl,
        e2e_s=limits.e2e,
        min_tokens_per_s=limits.min_rate,
        prompt_tokens=lengths[0],
        cached_tokens=lengths[1],
        output_tokens=lengths[2],
        users=users,
        users_low=users_low,
        users_bound=bound,
        limiting=limiting,
        limiting_low=limiting_low,
        holds=holds,
        holds_low=holds_low,
        at_batch=search.info(load.batch),
        at_users=search.info(at_users) if at_users else None,
        at_held=search.info(held) if held else None,
        settings=tuple(_settings(opened, users, times.chunk)) if users else (),
        chunk=_smaller_chunk(opened, search, places, users) if users else None,
        arrivals=arrivals,
        reload=reload_info(opened, times, lengths[1]) if lengths[1] else None,
        definition=Definition.ESTIMATE if known else Definition.BOUND,
        source=times.speed_class.name if times.speed_class is not None else "bound alone: nothing like it was measured",
    )


def serving(opened: Occupancy, *, known: bool = False) -> Callable[[Occupancy], bool] | None:
    """Says of a changed occupancy whether it serves its users, or the arrivals, within the limits; ``None`` without limits.

    It goes by the expected times, and by the bound where nothing like it was measured; with ``known``, that does not serve. Memory is left
    to others.
    """
    limits = Limits.of(opened.setup.others)
    if limits is None:
        return None

    def serves(changed: Occupancy) -> bool:
        from hwcalc.planner.step_time import speculating, step_times

        times = step_times(changed)
        if times is None or (known and times.speed_class is None):
            return False
        search = _Users(speculating(times, changed, limits.accepted_tokens), limits, request_of(changed, limits))
        if limits.rate is None or times.speed_class is None:
            return search.holds(changed.load.batch, _BOUND if times.speed_class is None else _EXPECTED, UNLIMITED)
        users, _ = search.most(_EXPECTED, most(changed).value)
        return users > 0 and _takes(search, limits.rate, users)

    return serves


def most_users(
    opened: Occupancy, times: StepTimes, limits: Limits, lengths: tuple[int, int, int]
) -> tuple[int, float, str | None] | None:
    """The most users of a deployment within the limits, the requests per second that they send, and what one more would exceed.

    ``None`` where nothing like it was measured.
    """
    if times.speed_class is None:
        return None
    search, places = _Users(times, limits, lengths), most(opened)
    users, limiting = search.most(_EXPECTED, places.value)
    return users, _rate_of(search, users, _EXPECTED) if users else 0.0, limiting or places.limiting


def expected_users(opened: Occupancy) -> int:
    """The most users within the limits by the expected values, as :func:`within_limits` says; 0 where nothing like it was measured."""
    limits = Limits.of(opened.setup.others)
    search = None if limits is None else _measured_search(opened, limits)
    return 0 if search is None else search.most(_EXPECTED, most(opened).value, opened.load.batch)[0]


def best_layout(opened: Occupancy, gpus: int, node: int | None, *, any_layout: bool = False) -> HoldingLayout | None:
    """The layout of ``gpus`` GPUs to run the planned sequences in; ``None`` if no layout holds a single one.

    It is that of :func:`hwcalc.planner.solve.holding_layout`, or else the one that holds the most sequences. Within limits of time it is the
    one that serves the most users, or the most requests a second where they arrive. Of layouts that serve all that are asked for, those come
    first that surely hold them.
    """
    limits = Limits.of(opened.setup.others)
    best = None if limits is None else _most_serving(opened, limits, gpus, node, any_layout=any_layout)
    return (
        best
        or solve.holding_layout(opened, gpus, node, any_layout=any_layout)
        or solve.fullest_layout(opened, gpus, node, any_layout=any_layout)
    )


def _most_serving(opened: Occupancy, limits: Limits, gpus: int, node: int | None, *, any_layout: bool) -> HoldingLayout | None:
    """The layout that serves the most within the limits, as :func:`best_layout` says it; ``None`` where nothing like it was measured."""
    best, most_served = None, (False, 0.0)
    for layout, placed in solve.placed_layouts(opened, gpus, node, any_layout=any_layout):
        number, search = float(expected_users(placed)), _measured_search(placed, limits)
        if limits.rate is not None and search is not None and number:
            number, _ = _most_rate(search, int(number), _EXPECTED)
        certain = solve.holds(placed, "low")
        served = certain and number >= (limits.rate or opened.load.batch), number
        if served > most_served:
            best, most_served = HoldingLayout(layout=layout, certain=certain), served
    return best


def laid_out(opened: Occupancy, node: int | None = None) -> Occupancy:
    """The occupancy in the layout of :func:`best_layout`, if the user names the number of GPUs alone; else the same occupancy.

    The request keeps its layout if none holds a sequence. It also does with a budget given by hand, which is that of one layout, and without
    a GPU, where nothing says what holds. Every command that takes a number of GPUs takes its layout from here.
    """
    request = opened.request
    if not solve.has_layouts(opened.engine, request):
        return opened
    try:
        best = best_layout(opened, request.setup.gpus, node)
        return opened if best is None else opened.changed(**asdict(best.layout), dcp=1)
    except KvplanError:
        return opened


def sure_users(opened: Occupancy) -> int:
    """The most users that are sure: the memory holds them for certain, and where there are limits, the slow end of the times is within.

    They are those that :func:`within_limits` says are sure, or ``fit.max_batch`` without limits. None are where nothing like it was measured.
    """
    sure, limits = most(opened, "low").value, Limits.of(opened.setup.others)
    if limits is None or not sure:
        return sure
    search = _measured_search(opened, limits)
    return 0 if search is None else search.most(_SLOW, sure, sure)[0]


def sure_arrivals(opened: Occupancy) -> tuple[int, float]:
    """The most users that are sure, and the requests that may arrive in a second with as many places, as :func:`within_limits` says for sure."""
    limits, users = Limits.of(opened.setup.others), sure_users(opened)
    search = None if limits is None or not users else _measured_search(opened, limits)
    return (0, 0.0) if search is None else (users, _most_rate(search, users, _SLOW)[0])


def _measured_search(opened: Occupancy, limits: Limits) -> _Users | None:
    """The search for the most users of a deployment; ``None`` where nothing like it was measured."""
    from hwcalc.planner.step_time import speculating, step_times

    times = step_times(opened)
    if times is None or times.speed_class is None:
        return None
    return _Users(speculating(times, opened, limits.accepted_tokens), limits, request_of(opened, limits))


_DISK: Final = "nvme"
"""The drive that is told of, where nobody names one."""


def reload_info(opened: Occupancy, times: StepTimes, tokens: int) -> ReloadInfo:
    """The time that the cache of so many tokens takes from the memory of the host and from a drive, and to compute again."""
    from hwcalc.profiles.links import find_link, host_link

    size = opened.sized(seq=tokens, batch=1).needed_bytes
    gpu, disk = times.gpu, find_link(_DISK)
    assert disk is not None
    link = host_link(gpu)
    again = times.prompt(tokens)
    return ReloadInfo(
        bytes=size,
        host_link=None if link is None else link.name,
        host_s=None if link is None else size / (link.gbps * 1e9),
        disk_link=disk.name,
        disk_s=size / (disk.gbps * 1e9),
        recompute_s=TimeInfo.of(again),
    )


def _reaches(most_rate: float | None, rate: float) -> bool | None:
    return None if most_rate is None else most_rate >= rate


def _places(count: int | None) -> int:
    return UNLIMITED if count is None else min(count, UNLIMITED)


def _smaller_chunk(opened: Occupancy, search: _Users, places: int, guess: int) -> ChunkInfo | None:
    """The largest chunk with which even a step that computes a chunk of a prompt is no longer than the limit between tokens, and what it costs.

    ``None`` without such a limit, where the engine's own chunk keeps it, or where none does.
    """
    between, engine = search.limits.itl, opened.engine
    option = engine.facts.chunk_option
    if between is None or not search.times.mixes_prompts or not option or option not in engine.options:
        return None
    # The engine's chunk, or the power of two that holds a whole prompt; then half of that, and so on.
    chunk = min(search.times.chunk, 1 << (search.lengths[0] - 1).bit_length())
    while chunk >= _LEAST_CHUNK:
        smaller = search.with_chunk(chunk)
        users, _ = smaller.most(_EXPECTED, places, guess)
        if not users:
            return None
        step_s = smaller.step_with_prompt(users)
        if step_s is not None and step_s <= between:
            if chunk == search.times.chunk:
                return None
            setting = SettingInfo(option=option, value=chunk, flag=engine.command.flag(option, chunk))
            return ChunkInfo(
                setting=setting, users=users, ttft_s=TimeInfo.of(smaller.served(users).ttft_s), step_with_prompt_s=step_s
            )
        chunk //= 2
    return None


def _settings(opened: Occupancy, users: int, chunk: int) -> Iterator[SettingInfo]:
    """The engine's options for so many users and such chunks: of each replica, as its command line has them."""
    engine, facts = opened.engine, opened.engine.facts
    each = -(-users // opened.setup.parallel.dp)
    tokens = each * opened.tokens
    for option, value in ((facts.users_option, each), (facts.slots_option, tokens), (facts.chunk_option, chunk)):
        if option and option in engine.options:
            yield SettingInfo(option=option, value=value, flag=engine.command.flag(option, value))


def _arrivals(search: _Users, rate: float, users: int | None, users_low: int | None, limiting: str | None) -> ArrivalsInfo:
    """Arrivals at this rate, with as many places as there are users within the limits."""
    if not users:
        unknown = users is None
        return ArrivalsInfo(
            rate=rate,
            at_once=None,
            wait_s=None,
            most_rate=None if unknown else 0.0,
            most_rate_low=None if unknown else 0.0,
            limiting=limiting,
        )
    most_rate, of_most = _most_rate(search, users, _EXPECTED)
    most_low, _ = _most_rate(search, users_low, _SLOW) if users_low else (0.0, None)
    at_once = _at_once(search, rate, users)
    return ArrivalsInfo(
        rate=rate,
        at_once=at_once,
        wait_s=None if at_once is None else waiting(at_once, users, search.served(at_once).e2e_s.expected),
        most_rate=most_rate,
        most_rate_low=most_low,
        limiting=of_most,
    )


def _rate_of(search: _Users, at_once: float, end: str) -> float:
    """Requests that end in a second, where so many are served at once."""
    rate: float = at_once / getattr(search.served(at_once).cycle_s, end)
    return rate


def _halved(good: Callable[[float], bool], low: float, high: float) -> float:
    """The largest number between these that is good, if smaller ones are."""
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if good(middle) else (low, middle)
    return low


def _at_once(search: _Users, rate: float, places: int) -> float | None:
    """The requests served at once on average, where ``rate`` arrive in a second; ``None`` if more arrive than end."""
    if _rate_of(search, places, _EXPECTED) <= rate:
        return None
    # Fewer than one at once take as long as one.
    alone = _rate_of(search, 1, _EXPECTED)
    if rate <= alone:
        return rate / alone
    return _halved(lambda number: _rate_of(search, number, _EXPECTED) <= rate, 1.0, float(places))


def _whole_rate(search: _Users, at_once: float, end: str) -> float:
    """Requests that end in a second, where so many are served at once on average. Fewer than one at once take as long as one."""
    return _rate_of(search, max(1.0, at_once), end) * min(1.0, at_once)


def _takes(search: _Users, rate: float, places: int) -> bool:
    """True if so many requests may arrive in a second within the limits: as :func:`_most_rate` says, in fewer steps."""
    low, high = 0.0, float(places)
    if _whole_rate(search, high, _EXPECTED) < rate:
        return False
    for _ in range(_STEPS):
        middle = (low + high) / 2
        enough, late = _whole_rate(search, middle, _EXPECTED) >= rate, bool(search.beyond(middle, places, _EXPECTED))
        if enough is not late:
            return enough
        low, high = (low, middle) if late else (middle, high)
    return False


def _most_rate(search: _Users, places: int, end: str) -> tuple[float, str | None]:
    """The most requests that may arrive in a second within the limits, and what is exceeded beyond."""
    at_once = _halved(lambda number: not search.beyond(number, places, end), 0.0, float(places))
    whole = _whole_rate(search, at_once, end)
    limiting = next(iter(search.beyond(min(float(places) * (1 - 1e-9), at_once * (1 + 1e-6)), places, end)), None)
    return whole, limiting or "places"


def waiting(at_once: float, places: int, service_s: float) -> float:
    """The mean seconds that a request waits for one of the places, where ``at_once`` are taken on average, each for ``service_s``.

    For one place it is M/D/1:

    >>> waiting(0.5, 1, 2.0)
    1.0
    """
    if at_once >= places:
        return float("inf")
    blocked = 1.0
    for number in range(1, places + 1):
        blocked = at_once * blocked / (number + at_once * blocked)
    share = at_once / places
    waits = blocked / (1 - share * (1 - blocked))
    # Equal times halve what Erlang's formula has for times at random.
    return waits * service_s / (places - at_once) / 2
