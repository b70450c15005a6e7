"""Prefill and decode apart: two pools of servers, of which one computes prompts and the other generates, and the cache that moves between.

- A server for prompts computes one after another, each in the expected time of a prompt alone. Requests that arrive at random wait for it as
  in a queue with constant times (M/D/1); the share of its time that may be taken is what keeps the first token within its limit.
- The cache of a prompt moves to the other pool: the bytes of the fullest GPU of either side, over a link for each GPU, at its full rate.
- A server that generates decodes as many requests at once as the memory holds and the time between tokens allows; no prompt is among them.
- Both pools serve as many requests as the slower one. The balance is the numbers of servers with which that is most for each GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import asdict

from hwcalc.documents import Answer, document_of
from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.model import Definition, Note
from hwcalc.planner.solve import last_yes, most
from hwcalc.planner.step_time import link_rate, speculating, step_times
from hwcalc.planner.within import Limits, most_users, request_of
from hwcalc.planner.within_result import TimeInfo
from hwcalc.text import quoted, shown

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.planner.step_time import StepTime
    from hwcalc.profiles.hardware_file import Gpu


class SideInfo(Record):
    """A pool of ``servers``, each on tp x pp x dp GPUs. Rates are those of all of its servers, ``low`` by the slow end of the times.

    ``step_s`` is a prompt alone in the pool for prompts, and a step with all users at once in the other. ``users`` are those of each server
    at once, null for prompts; ``busy`` is the share of time that prompts take, null for the other. ``limiting`` is what more would exceed.
    """

    gpu: str
    tp: int
    pp: int
    dp: int
    ep: int
    servers: int
    gpus: int
    requests_per_s: float
    requests_per_s_low: float
    step_s: TimeInfo
    users: int | None = None
    busy: float | None = None
    limiting: str


class TransferInfo(Record):
    """How the cache of a prompt moves: the link of each GPU, its 10^9 bytes per second, the bytes of the fullest GPU, and seconds."""

    link: str
    gbps: float
    bytes_per_gpu: int
    seconds: float


class TogetherInfo(Record):
    """What as many GPUs as the pools have serve where each server of the first kind does both; ``users`` are those of each at once."""

    servers: int
    users: int
    requests_per_s: float
    limiting: str | None


class Apart(Answer, Record):
    """Prefill and decode apart. ``requests_per_s`` is what the slower pool serves, ``limiting`` names it: ``prefill`` or ``decode``.

    ``ttft_s`` is with the time that a request waits, its prompt and the transfer, at the rate that is served; ``itl_s`` a step of the users at once.
    ``together`` is the same GPUs in one pool; null where the pools have unlike GPUs, or nothing like it was measured. ``holds`` says whether
    requests are served within the limits, as many as were asked for.
    """

    schema_version: str
    kvplan_version: str
    model: str
    engine: str
    engine_version: str | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    prefill: SideInfo
    decode: SideInfo
    transfer: TransferInfo
    gpus: int
    requests_per_s: float
    requests_per_s_low: float
    limiting: str
    holds: bool
    ttft_s: float
    itl_s: float
    e2e_s: float
    output_tokens_per_s: float
    together: TogetherInfo | None
    definition: Definition
    source: str
    notes: tuple[Note, ...]

    def headline(self) -> str:
        sides = f"{self.prefill.gpus} x {self.prefill.gpu} for prompts, {self.decode.gpus} x {self.decode.gpu} for tokens"
        return f"{self.model}, {sides}: {self.requests_per_s:,.3g} requests/s"

    def records(self) -> list[dict[str, Any]]:
        return [
            {"pool": name, **{key: value for key, value in document_of(asdict(side)).items() if key != "step_s"}}
            for name, side in (("prefill", self.prefill), ("decode", self.decode))
        ]

    __repr__ = Answer.__repr__


_MOST_BUSY: Final = 0.9
"""The share of a server's time that prompts may take where no limit says less: beyond it, waiting grows without end."""
_MOST_SERVERS: Final = 8
"""Servers of both pools together among which the balance is looked for, where nobody says how many GPUs there are."""
LAYOUT: Final = ("gpu", "gpus", "tp", "pp", "dp", "ep")
"""The options of a server's hardware that may differ between the pools."""
OWN: Final = "gpu"
"""The name of the link between the GPUs of a node."""


class Side:
    """One pool: servers of one kind."""

    def __init__(self, opened: Occupancy, limits: Limits, lengths: tuple[int, int, int]) -> None:
        times = step_times(opened)
        if times is None:
            raise UsageError(
                f"the weights of {opened.model.id} are not counted: no speed is known.", hint="Give their format: --weights bf16"
            )
        self.opened, self.times, self.limits = opened, speculating(times, opened, limits.accepted_tokens), limits
        self.prompt, self.cached, self.output = lengths
        gpu = opened.setup.hardware.gpu
        assert gpu is not None
        self.gpu: Gpu = gpu

    @property
    def gpus(self) -> int:
        """The GPUs of a server."""
        return self.opened.setup.gpus

    @property
    def steps(self) -> float:
        """The steps of a request behind its first token."""
        return max(1, self.output - 1) / self.times.accepted_tokens

    def request_bytes(self) -> int:
        """The bytes of the cache of a prompt on the fullest GPU."""
        return self.opened.sized(seq=self.prompt, batch=1).needed_bytes

    def reading(self) -> StepTime:
        """A prompt alone."""
        return self.times.prompt(self.prompt - self.cached, self.cached)

    def decoding(self, users: int) -> StepTime:
        """A step with so many users at once and no prompt."""
        return self.times.decode(users, self.prompt + (self.output + 1) // 2)


def end_of(step: StepTime, end: str) -> float:
    """The time at this end, or the bound where nothing like it was measured."""
    value = getattr(step, end)
    return float(step.bound if value is None else value)


def prompts_per_s(side: Side, transfer_s: float, end: str) -> tuple[float, float]:
    """The most prompts per second of one server within the limit, and the share of its time that they take."""
    seconds = end_of(side.reading(), end)
    busy = _MOST_BUSY
    if side.limits.ttft is not None:
        spare = side.limits.ttft - transfer_s - seconds
        # Waiting is busy x seconds / (2 x (1 - busy)).
        busy = min(busy, 2 * spare / (seconds + 2 * spare)) if spare > 0 else 0.0
    return busy * side.times.servers / seconds, busy


def decoded_per_s(side: Side, end: str, before_s: float) -> tuple[float, int, str]:
    """The most requests per second that one server generates, the users at once, and what limits them."""
    limits, steps, accepted = side.limits, side.steps, side.times.accepted_tokens
    allowed = [(limits.itl, "itl"), (None if limits.min_rate is None else 1 / limits.min_rate, "min_rate")]
    allowed += [(None if limits.e2e is None else (limits.e2e - before_s) / (steps * accepted), "e2e")]
    known = [(seconds * accepted, name) for seconds, name in allowed if seconds is not None]
    longest, name = min(known, default=(float("inf"), ""))
    places = most(side.opened, "low" if end == "high" else "expected")

    def good(users: int) -> bool:
        return end_of(side.decoding(users), end) <= longest * (1 + 1e-9)

    users = last_yes(good, places.value, min(32, places.value))
    if not users:
        return 0.0, 0, name or places.limiting or "cache"
    limiting = name if users < places.value else places.limiting or "cache"
    return users / (steps * end_of(side.decoding(users), end)), users, limiting


def transfer_of(prefill: Side, decode: Side, link: str | None) -> TransferInfo:
    """The transfer of a prompt's cache to the other pool. Raises :class:`~hwcalc.errors.UsageError` for an unknown link."""
    size = max(prefill.request_bytes(), decode.request_bytes())
    name, rate = link_between((prefill.gpu, decode.gpu), link)
    return TransferInfo(link=name, gbps=rate / 1e9, bytes_per_gpu=size, seconds=size / rate)


def decode_options(options: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a server for tokens: those of a server for prompts, but for its own hardware and layout."""
    if not own.keys() & {"gpu", "tp", "gpus"}:
        return {**options, **own}
    kept = {name: value for name, value in options.items() if name == "gpu" or name not in (*LAYOUT, "instance")}
    return {**kept, **own}


def link_between(gpus: Iterable[Gpu | None], link: str | None) -> tuple[str, float]:
    """The name of what a cache moves over between two GPUs, and its bytes per second. Raises :class:`~hwcalc.errors.UsageError`."""
    if link is not None and not isinstance(link, str):
        raise UsageError(f"link must be a string (got {quoted(link)}).", hint='Write link="ib-ndr".')
    if link is None or link.strip().lower() == OWN:
        rates = [(gpu, None if gpu is None else link_rate(gpu)) for gpu in gpus]
        known = [(rate, gpu) for gpu, rate in rates if gpu is not None and rate is not None]
        if len(known) < len(rates):
            raise UsageError("the link between these GPUs is not known.", hint="Name it: --link ib-ndr")
        rate, slower = min(known, key=itemgetter(0))
        return str(slower.interconnect.get("kind") or slower.interconnect.get("host")), rate
    from hwcalc.profiles.links import find_link, links

    found = find_link(link)
    if found is None or found.what != "network":
        names = ", ".join((OWN, *(one.name for one in links() if one.what == "network")))
        raise UsageError(f"link {shown(link, 40)} is not known.", hint=f"Known: {names}.")
    return found.name, found.gbps * 1e9


def side_info(side: Side, servers: int, rate: float, rate_low: float, step: StepTime, limiting: str, **more: Any) -> SideInfo:
    """The figures of a pool."""
    parallel = side.opened.setup.parallel
    return SideInfo(
        gpu=side.gpu.id,
        tp=parallel.tp,
        pp=parallel.pp,
        dp=parallel.dp,
        ep=parallel.ep,
        servers=servers,
        gpus=servers * side.gpus,
        requests_per_s=servers * rate,
        requests_per_s_low=servers * rate_low,
        step_s=TimeInfo.of(step),
        limiting=limiting,
        **more,
    )


def balanced(prompts: float, decoded: float, gpus: tuple[int, int], total: int | None, rate: float | None) -> tuple[int, int]:
    """The number of servers of each pool: the fewest that serve a rate, or those that serve most for each GPU, of ``total``.

    Of a pool that serves nothing within the limits, it is a single server: no number of them does.
    """
    if rate is not None:
        first, second = (max(1, ceil(rate / each)) if each else 1 for each in (prompts, decoded))
        return first, second
    most_servers = _MOST_SERVERS if total is None else max(1, total // min(gpus))
    best, best_key = (1, 1), (-1.0, 0)
    for first in range(1, most_servers + 1):
        for second in range(1, most_servers + 1):
            used = first * gpus[0] + second * gpus[1]
            if used > total if total is not None else first + second > most_servers:
                break
            served = min(first * prompts, second * decoded)
            # All GPUs that there are serve as much as they can; without a number, each GPU does.
            key = (served if total is not None else served / used, -used)
            if key > best_key:
                best, best_key = (first, second), key
    return best


def together_of(side: Side, gpus: int) -> TogetherInfo | None:
    """The service of as many GPUs in one pool whose servers do both; ``None`` where nothing like it was measured."""
    found = most_users(side.opened, side.times, side.limits, (side.prompt, side.cached, side.output))
    if found is None:
        return None
    servers = gpus // side.gpus
    users, rate, limiting = found
    return TogetherInfo(servers=servers, users=users, requests_per_s=servers * rate, limiting=limiting)


def limits_and_lengths(opened: Occupancy, options: Mapping[str, Any]) -> tuple[Limits, tuple[int, int, int]]:
    """The limits of a request and its lengths."""
    limits = Limits.of(options) or Limits()
    return limits, request_of(opened, limits)
