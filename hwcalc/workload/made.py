"""Workloads that are made of words: lengths, arrivals, common prefixes, samples, sessions of several turns, and users who give up.

``prompt=p50=2k,p95=16k output=300 arrival=poisson=4 requests=1000`` is such a workload. :data:`KEYS` has all words. Those of an arrival:

======================================  ==============================================================================
``once``                                all at the beginning
``rate=4``                              four a second, evenly
``poisson=4``                           four a second on average, each whenever it likes
``poisson=4,burstiness=0.5``            gaps of a gamma distribution with this shape: below 1 in bursts, above 1 evenly
======================================  ==============================================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import count, repeat
from math import log1p
from random import Random
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.text import did_you_mean, quoted, shown
from hwcalc.units import parse_duration, parse_share, parse_tokens
from hwcalc.workload.lengths import Lengths, read_lengths
from hwcalc.workload.request import Request, Segment, Workload, in_turns

_ALLOWED: Final = "Allowed: once; rate=4; poisson=4; poisson=4,burstiness=0.5. Rates are requests a second."
_NUMBER: Final = r"(?:[0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})"
_WORDS: Final = rf"(rate|poisson) *[=:] *({_NUMBER})(?: */ *s)?(?: *, *burstiness *[=:] *({_NUMBER}))?"


class Arrivals(Record):
    """The times at which requests arrive, in seconds from 0. ``text`` is the words that name them. ``rate`` is ``None`` for all at once."""

    text: str
    rate: float | None = None
    random: bool = False
    burstiness: float = 1.0

    def times(self, seed: str) -> Iterator[float]:
        """The times, without end; random ones follow from the seed."""
        if self.rate is None:
            yield from repeat(0.0)
            return
        if not self.random:
            yield from (number / self.rate for number in count())
            return
        drawn, now, scale = Random(seed), 0.0, 1 / (self.rate * self.burstiness)  # noqa: S311 - nothing is secret
        while True:
            yield now
            now += -log1p(-drawn.random()) / self.rate if self.burstiness == 1 else drawn.gammavariate(self.burstiness, scale)


def read_arrivals(value: Any, name: str = "arrival") -> Arrivals:
    """The arrivals that words name.

    >>> read_arrivals("rate=2").rate, read_arrivals("once").rate, read_arrivals("poisson=4,burstiness=0.5").burstiness
    (2.0, None, 0.5)

    Raises :class:`~hwcalc.errors.UsageError` for words that name none.
    """
    if isinstance(value, Arrivals):
        return value
    if not isinstance(value, str):
        raise UsageError(f"{name} is {quoted(value, 40)}.", hint=_ALLOWED)
    words = value.strip().lower()
    if words in ("once", "at once", "all at once"):
        return Arrivals(text="once")
    match = re.fullmatch(_WORDS, words)
    if match is None or float(match[2]) <= 0 or (match[3] and (float(match[3]) <= 0 or match[1] == "rate")):
        raise UsageError(f"{name} {shown(value, 60)} is not known.", hint=_ALLOWED)
    return Arrivals(text=words, rate=float(match[2]), random=match[1] == "poisson", burstiness=float(match[3] or 1))


KEYS: Final[Mapping[str, str]] = {
    "prompt": "lengths of what users write: p50=2k,p95=16k",
    "output": "lengths of what is generated: 300; mean=300",
    "requests": "how many; default: 1000",
    "arrival": "once, rate=4, poisson=4 or poisson=4,burstiness=0.5, in requests a second; default: once",
    "concurrency": "the most requests at once: the next is sent when one is answered, however early it arrives; default: any number",
    "prefix": "tokens before each prompt that all requests of a group have: 1k; default: none",
    "groups": "prefixes of that length, of which each request has one; default: 1",
    "samples": "outputs for each prompt; default: 1",
    "turns": "turns of a session, each with all before it in its prompt: 4; min=1,max=8; default: 1",
    "think": "seconds between an answer and the next turn, on average; default: 0",
    "cancel": "share of requests whose users give up: 5%; default: none",
    "cancel_after": "seconds after which they do, on average; default: 10",
    "max": "the most tokens of prompt and output together: a session ends before; default: no limit",
    "seed": "the seed of all that is random; default: 0",
}
"""The words of a workload, and what each says."""
_DEFAULT_REQUESTS: Final = 1000
AT_ONCE: Final = "All requests come at once. Four a second on average: arrival=poisson=4"
"""The note of words that name no arrival."""
_DEFAULT_CANCEL_SECONDS: Final = 10.0


class Recipe(Record):
    """Of what a workload is made. Its requests follow from the seed: each kind of draw has a sequence of its own, so that other arrivals
    leave the lengths as they are.
    """

    prompt: Lengths
    output: Lengths
    requests: int = _DEFAULT_REQUESTS
    arrival: Arrivals = Arrivals(text="once")
    concurrency: int | None = None
    prefix: int = 0
    groups: int = 1
    samples: int = 1
    turns: Lengths | None = None
    think: float = 0.0
    cancel: float = 0.0
    cancel_after: float = _DEFAULT_CANCEL_SECONDS
    max: int | None = None
    seed: int = 0

    def workload(self, name: str) -> Workload:
        """The workload, whose requests are made when they are needed."""
        return Workload(name=name, make=self._requests, count=self.requests, concurrency=self.concurrency)

    def _drawn(self, what: str) -> Random:
        return Random(f"{self.seed} {what}")  # noqa: S311 - nothing is secret

    def _requests(self) -> Iterator[Request]:
        cancels = self._drawn("cancel")
        for request in in_turns(self._sessions()):
            if self.cancel and cancels.random() < self.cancel:
                yield request.changed(cancel_after_s=-log1p(-cancels.random()) * self.cancel_after)
            else:
                yield request

    def _sessions(self) -> Iterator[list[Request]]:
        """The turns of each session, in the order in which sessions begin, until there are enough requests."""
        prompts, outputs, groups, lengths, thinks = map(self._drawn, ("prompt", "output", "group", "turns", "think"))
        left = self.requests
        for session, begin in enumerate(self.arrival.times(f"{self.seed} arrival")):
            if left <= 0:
                return
            turns = min(left, 1 if self.turns is None else self.turns.quantile(lengths.random()))
            begun: tuple[Segment, ...] = ()
            if self.prefix:
                begun = (Segment(("group", int(groups.random() * self.groups)), self.prefix),)
            several, made, now, wait = self.turns is not None and self.turns.longest > 1, list[Request](), begin, 0.0
            for turn in range(turns):
                written, generated = self.prompt.quantile(prompts.random()), self.output.quantile(outputs.random())
                total = sum(segment.tokens for segment in begun) + written + generated
                if self.max is not None and total > self.max and turn:
                    break
                prefix, output_id = begun, None
                if several:
                    prefix, output_id = (*begun, Segment(("turn", session, turn), written)), ("answer", session, turn)
                    begun = (*prefix, Segment(output_id, generated))
                made.append(
                    Request(
                        number=0,
                        arrival_s=now,
                        prompt_tokens=total - generated,
                        output_tokens=generated,
                        prefix=prefix,
                        output_id=output_id,
                        session=session if several else None,
                        wait_s=wait,
                        samples=self.samples,
                    )
                )
                wait = -log1p(-thinks.random()) * self.think
                now += wait
            left -= len(made)
            yield made


def words_of(text: str) -> dict[str, str]:
    """The words of a workload by their keys.

    >>> words_of("prompt=p50=2k,p95=16k  output=300")
    {'prompt': 'p50=2k,p95=16k', 'output': '300'}

    Raises :class:`~hwcalc.errors.UsageError` for a word that is not ``key=value``, and a key that is there twice.
    """
    words: dict[str, str] = {}
    for word in text.split():
        key, sign, value = word.partition("=")
        if not sign or not value:
            raise UsageError(f"{shown(word, 60)} is no word of a workload.", hint=_hint())
        if key in words:
            raise UsageError(f"{shown(key, 40)} is given twice.", hint="Give it once.")
        words[key.replace("-", "_")] = value
    return words


def _hint() -> str:
    return f"Words are KEY=VALUE with: {', '.join(KEYS)}. Example: prompt=p50=2k,p95=16k output=300 arrival=poisson=4"


def read_recipe(words: Mapping[str, Any]) -> Recipe:
    """The recipe that words, or values of Python, make. Raises :class:`~hwcalc.errors.UsageError` for a wrong one."""
    unknown = next((key for key in words if key not in KEYS), None)
    if unknown is not None:
        raise UsageError(f"a workload has no {shown(unknown, 40)}.", hint=f"{did_you_mean(str(unknown), KEYS)}{_hint()}")
    missing = next((key for key in ("prompt", "output") if words.get(key) is None), None)
    if missing is not None:
        raise UsageError(f"a workload needs {missing}=: {KEYS[missing]}.", hint=_hint())
    given = {key: value for key, value in words.items() if value is not None}
    return Recipe(**{key: _READ[key](value, key) for key, value in given.items()})


def _tokens(value: Any, key: str) -> int:
    return parse_tokens(value, key, minimum=0 if key in ("prefix", "seed") else 1)


def _seconds(value: Any, key: str) -> float:
    """Seconds of a time with its unit, or of a bare number; 0 is none."""
    bare = value
    with suppress(ValueError):
        bare = float(value) if isinstance(value, str) else value
    return 0.0 if bare == 0 else parse_duration(bare, key)


def _share(value: Any, key: str) -> float:
    share = float(parse_share(value, key))
    if not 0 <= share <= 1:
        raise UsageError(f"{key} is {quoted(value, 40)}.", hint="Allowed: a share from 0 to 1, or 0% to 100%.")
    return share


def _lengths(value: Any, key: str) -> Lengths:
    return read_lengths(value, key)


_READ: Final[Mapping[str, Callable[[Any, str], Any]]] = {
    **dict.fromkeys(("prompt", "output", "turns"), _lengths),
    **dict.fromkeys(("requests", "concurrency", "prefix", "groups", "samples", "max", "seed"), _tokens),
    **dict.fromkeys(("think", "cancel_after"), _seconds),
    "arrival": read_arrivals,
    "cancel": _share,
}


def made(words: str | Mapping[str, Any]) -> Workload:
    """The workload that words make, as text or by their keys.

    >>> workload = made("prompt=1k,2k output=100 requests=3 arrival=rate=2")
    >>> [request.arrival_s for request in workload]
    [0.0, 0.5, 1.0]

    Raises :class:`~hwcalc.errors.UsageError` for words that make none.
    """
    named = words_of(words) if isinstance(words, str) else dict(words)
    recipe = read_recipe(named)
    shown_words = {key: value.text if isinstance(value, (Lengths, Arrivals)) else value for key, value in named.items()}
    workload = recipe.workload(" ".join(f"{key}={value}" for key, value in shown_words.items() if value is not None))
    unsaid = named.get("arrival") is None and recipe.concurrency is None and recipe.turns is None
    return replace(workload, notes=(AT_ONCE,)) if unsaid and recipe.requests > 1 else workload
