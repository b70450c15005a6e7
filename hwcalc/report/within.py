"""Users within limits of time, in words: the answer in a line, then what each of them gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.engines import DEFAULT
from hwcalc.planner.verdict import UNLIMITED
from hwcalc.units import human_bytes, human_duration, human_range

if TYPE_CHECKING:
    from hwcalc.planner.result import Plan
    from hwcalc.planner.within_result import ReloadInfo, TimeInfo, WithinInfo

_SLOW: Final = "at the slow end"
LIMIT_WORDS: Final = {
    "ttft": "time to the first token",
    "itl": "time between tokens",
    "e2e": "time of a request",
    "min_rate": "tokens per second of each",
    "places": "more would arrive than can be served",
}
"""Names of limits that are not of memory."""


def within_lines(plan: Plan) -> list[tuple[str, str]]:
    """Labelled lines: how many users, what each gets, how many may arrive; none without limits."""
    found = plan.within
    if found is None:
        return []
    out = [("users", _users(found, plan.request.batch, plan.request.engine)), ("each", _each(found))]
    out += [("chunk", _chunk(found))] if found.chunk is not None else []
    out += [("reload", _reload(found.reload, found.cached_tokens))] if found.reload is not None else []
    return [*out, ("arrive", _arrivals(found, plan.request.engine))] if found.arrivals is not None else out


def limits_text(found: WithinInfo) -> str:
    """The limits in words: ``1 s to the first token and 40 tokens/s each``; empty without any."""
    words = []
    for value, text in ((found.ttft_s, "to the first token"), (found.itl_s, "between tokens"), (found.e2e_s, "in all")):
        if value is not None:
            words.append(f"{human_duration(value)} {text}")
    if found.min_tokens_per_s is not None:
        words.append(f"{found.min_tokens_per_s:,.3g} tokens/s each")
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def limit_word(name: str | None) -> str:
    """The name of what limits the users."""
    return "" if name is None else LIMIT_WORDS.get(name, name)


def _count(users: int) -> str:
    return "any number" if users >= UNLIMITED else f"{users:,}"


def _users(found: WithinInfo, batch: int, engine: str) -> str:
    limits = limits_text(found)
    held = f" within {limits}" if limits else ""
    cached = f", {found.cached_tokens:,} of them cached" if found.cached_tokens else ""
    mean = "on average, " if limits else ""
    of = f", {mean}with a prompt of {found.prompt_tokens:,} tokens{cached} and an output of {found.output_tokens:,}"
    limit = f"limit: {limit_word(found.limiting)}"
    if found.users is None:
        known = _unknown(engine)
        most = f"at most {_count(found.users_bound)} at once" if found.users_bound else "nobody"
        return f"{most}{held}{of} ({limit}) by the bound; {known}"
    users = "nobody" if not found.users else f"{_count(found.users)} at once"
    asked = f", not {batch:,}" if batch > max(1, found.users) and not found.holds else ""
    low = "" if found.users_low is None or found.users_low == found.users else f"{_count(found.users_low)} {_SLOW}; "
    flags = " ".join(one.flag for one in found.settings)
    return f"{users}{held}{of}{asked} ({low}{limit})" + (f"; set {flags}" if flags else "")


def _unknown(engine: str) -> str:
    """The reason why nothing is expected."""
    if engine == DEFAULT:
        return "what to expect depends on the engine: --engine vllm"
    return f"of {engine} on such an accelerator no speed was measured"


def _each(found: WithinInfo) -> str:
    """A user's times with their ranges."""
    served = found.shown
    between = f"{_time(served.itl_s)} between tokens: {_rates(served.itl_s)} tokens/s"
    parts = [f"{_time(served.ttft_s)} to the first token", between, f"{_time(served.e2e_s)} in all"]
    held = "" if found.at_held is None else f", as memory holds no more of the {found.at_batch.users:,}"
    # The rates of other lines are of decoding alone.
    mixed = ", their prompts computed in between" if served.step_with_prompt_s is not None and served.users > 1 else ""
    return f"with {served.users:,} at once{held}{mixed}: {', '.join(parts)}"


def _chunk(found: WithinInfo) -> str:
    """Time of a step with a chunk of a prompt, and the smaller chunk that keeps it short."""
    smaller, served = found.chunk, found.at_users
    assert smaller is not None
    assert served is not None
    usual = f"a step that computes a chunk of a prompt takes {human_duration(served.step_with_prompt_s or 0.0)}"
    least = "" if smaller.ttft_s.expected is None else f", {human_duration(smaller.ttft_s.expected)} to the first token"
    return f"{usual}; {smaller.setting.flag} keeps it within {human_duration(found.itl_s or 0.0)}, with {_count(smaller.users)} at once{least}"


def _reload(reload: ReloadInfo, tokens: int) -> str:
    """A line on loading cached tokens."""
    ways = [] if reload.host_s is None else [f"{human_duration(reload.host_s)} from host memory ({reload.host_link})"]
    ways.append(f"{human_duration(reload.disk_s)} from a drive ({reload.disk_link})")
    return f"{tokens:,} cached tokens of a request, {human_bytes(reload.bytes)}: {', '.join(ways)}; {_time(reload.recompute_s)} to compute again"


def _time(one: TimeInfo) -> str:
    """The expected time with its range, or the shortest."""
    if one.expected is None or one.low is None or one.high is None:
        return f"at least {human_duration(one.bound)}"
    return human_range(one.expected, one.low, one.high)


def _rates(one: TimeInfo) -> str:
    if one.expected is None or one.low is None or one.high is None:
        return f"at most {1 / one.bound:,.3g}"
    return f"{1 / one.expected:,.3g} ({1 / one.high:,.3g} to {1 / one.low:,.3g})"


def _arrivals(found: WithinInfo, engine: str) -> str:
    arrivals = found.arrivals
    assert arrivals is not None
    asked = f"{arrivals.rate:,.3g} request{'' if arrivals.rate == 1 else 's'}/s"
    if arrivals.most_rate is None:
        return f"{asked}: how many can be served is not known; {_unknown(engine)}"
    low = "" if arrivals.most_rate_low is None else f"{arrivals.most_rate_low:,.3g} {_SLOW}; "
    most = f"at most {arrivals.most_rate:,.3g} requests/s ({low}limit: {limit_word(arrivals.limiting)})"
    if arrivals.at_once is None or arrivals.wait_s is None:
        return f"{most}; a rate of {asked} is more than can be served: the queue grows without end"
    wait = f", each waits {human_duration(arrivals.wait_s)}" if arrivals.wait_s >= 1e-3 else ""
    return f"{most}; at {asked}, {arrivals.at_once:,.1f} are served at once{wait}, as in an M/G/c queue"
