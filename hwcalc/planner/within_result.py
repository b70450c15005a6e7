"""What a plan says of users within limits of time: records, whose fields are the JSON document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hwcalc.documents import Part
from hwcalc.formulas.record import Record
from hwcalc.model import Definition

if TYPE_CHECKING:
    from hwcalc.planner.forecast import Quantity
    from hwcalc.planner.step_time import StepTime


class TimeInfo(Record):
    """A figure of requests: what nothing is faster than, the expected value and its low and high end. Null where nothing like it was measured."""

    bound: float
    expected: float | None
    low: float | None
    high: float | None

    @classmethod
    def of(cls, figure: StepTime | Quantity) -> TimeInfo:
        """The figure of a step or of a forecast."""
        return cls(bound=figure.bound, expected=figure.expected, low=figure.low, high=figure.high)


class ServedInfo(Record):
    """What each of so many ``users`` gets who are served at once, and ``output_tokens_per_s`` of all of them.

    ``ttft_s`` is until the first token, ``itl_s`` between tokens on average, ``e2e_s`` until the last one. ``step_with_prompt_s`` is the expected
    step that computes a chunk of a prompt beside their tokens, what they see now and then; null where the engine mixes no prompts in.
    """

    users: int
    ttft_s: TimeInfo
    itl_s: TimeInfo
    e2e_s: TimeInfo
    output_tokens_per_s: TimeInfo
    step_with_prompt_s: float | None


class SettingInfo(Record):
    """An option of the engine, its value, and how the engine's command line spells it."""

    option: str
    value: int
    flag: str


class ChunkInfo(Record):
    """A smaller chunk of prompts than the engine's, with which even a step that computes one is no longer than the limit between tokens.

    ``users`` are within the limits then, ``ttft_s`` is what each of them waits for the first token, and ``step_with_prompt_s`` such a step.
    """

    setting: SettingInfo
    users: int
    ttft_s: TimeInfo
    step_with_prompt_s: float


class ArrivalsInfo(Record):
    """Requests that arrive at random, ``rate`` in a second: how many are served at once on average, and how long each waits for a place.

    ``most_rate`` is how many may arrive within the limits by the expected times, and ``most_rate_low`` by the slow end of their range; beyond
    the first, ``limiting`` is exceeded: ``places`` where more arrive than end. Null where nothing like it was measured, or where more
    arrive than can be served.
    """

    rate: float
    at_once: float | None
    wait_s: float | None
    most_rate: float | None
    most_rate_low: float | None
    limiting: str | None


class ReloadInfo(Record):
    """What lies in the cache already, if it has to come from elsewhere: its bytes on the fullest GPU, and seconds at the full rate of the link.

    ``host_s`` is from the memory of the host, over ``host_link``, ``disk_s`` from a drive, ``disk_link``; ``recompute_s`` is to compute it
    again. Null is not known.
    """

    bytes: int
    host_link: str | None
    host_s: float | None
    disk_link: str
    disk_s: float
    recompute_s: TimeInfo


class WithinInfo(Part):
    """How many users are served at once within the limits: ``ttft_s``, ``itl_s`` (on average), ``e2e_s`` and ``min_tokens_per_s`` of each.

    ``users`` goes by the expected times and what the memory is expected to hold, ``users_low`` by the slow end of their range and what it
    holds for certain, ``users_bound`` by times that nothing beats. ``limiting`` names what one more would exceed: a limit by its option, or
    what limits ``fit.max_batch``; ``limiting_low`` is the same of ``users_low``. ``holds`` says whether the planned ``batch`` of users, or the
    rate of arrivals, is within the limits, and ``holds_low`` whether it is for sure; null is not known.

    Each request has a prompt of ``prompt_tokens``, of which ``cached_tokens`` lie in the cache already, and ``output_tokens``. ``at_batch``
    is what each of the planned users gets as planned, and ``at_users`` each of the most with ``settings``, the engine's options that keep to
    the limits; null if not even one is served within them. ``at_held`` is what each gets of those that run at once, where the memory does
    not hold all of the planned users; null where it does, or holds none. ``chunk`` is a smaller chunk of prompts that keeps steps with one within ``itl_s``
    too, null where there is none to set. ``reload`` is what cached tokens take where they lie in the host's memory or on a disk; null without
    any.
    """

    ttft_s: float | None
    itl_s: float | None
    e2e_s: float | None
    min_tokens_per_s: float | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    users: int | None
    users_low: int | None
    users_bound: int
    limiting: str | None
    limiting_low: str | None
    holds: bool | None
    holds_low: bool | None
    at_batch: ServedInfo
    at_users: ServedInfo | None
    at_held: ServedInfo | None
    settings: tuple[SettingInfo, ...]
    chunk: ChunkInfo | None
    arrivals: ArrivalsInfo | None
    reload: ReloadInfo | None
    definition: Definition
    source: str

    @property
    def shown(self) -> ServedInfo:
        """The figures of each user: of as many as were asked for, or can run at once, or of the most within the limits."""
        if self.at_held is not None:
            return self.at_held
        return self.at_batch if self.at_batch.users > 1 or self.at_users is None else self.at_users

    @property
    def standing(self) -> str:
        """Where the planned users stand: ``within`` the limits of time, ``not within`` them, or ``not known to be within`` them."""
        return "not known to be within" if self.holds is None else "within" if self.holds else "not within"

    def row(self) -> dict[str, Any]:
        """The headline figures as columns of a table."""
        arrivals, served = self.arrivals, self.at_batch
        return {
            "users_within": self.users,
            "users_within_low": self.users_low,
            "limited_by": self.limiting,
            "ttft_s": served.ttft_s.expected,
            "itl_s": served.itl_s.expected,
            "e2e_s": served.e2e_s.expected,
            **({} if arrivals is None else {"most_rate": arrivals.most_rate, "most_rate_low": arrivals.most_rate_low}),
        }
