"""The lengths of prompts and outputs: distributions of lengths in tokens, and the words that name them.

========================  =========================================================================================
``2k``                    always 2,048 tokens
``1k,2k,8k*3``            these lengths, equally likely; 8k counts three times
``min=1k,max=8k``         uniform: every length between is equally likely; or ``uniform:1k..8k``
``p50=2k,p95=16k``        lognormal through these quantiles; piecewise if there are three or more
``mean=4k``               geometric: of all distributions with this mean, the one that assumes nothing else
``lengths.txt``           the lengths of a file, one in a line; each line is equally likely
========================  =========================================================================================

``min=`` and ``max=`` limit any of them: a length beyond a limit becomes the limit.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from math import ceil, exp, expm1, log, log1p
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final

from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.text import quoted, shown
from hwcalc.units import MOST_TOKENS, parse_token_list, parse_tokens, parse_uniform

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_LINES: Final = 10_000_000
"""The most lengths that a file or a list may have."""
_NORMAL: Final = NormalDist()
_QUANTILE: Final = r"p(?P<percent>[0-9]{1,2}(?:\.[0-9]{1,6})?)"
_TIMES: Final = r"(?P<tokens>[^*]+)\*(?P<times>[1-9][0-9]{0,6})"
_ALLOWED: Final = "Allowed: 2k; 1k,2k,8k*3; min=1k,max=8k; p50=2k,p95=16k; mean=4k; or a file with a length in each line."
_LEAST_SPREAD: Final = 1e-12


class Lengths(Record):
    """A distribution of lengths in tokens, from ``shortest`` to ``longest``. ``text`` is the words that name it."""

    text: str
    shortest: int
    longest: int

    def quantile(self, share: float) -> int:
        """The least length that so large a share of all lengths does not exceed. With a random share it is a random length."""
        raise NotImplementedError

    def cumulative(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """The shares of lengths of at most so many tokens, which are from 0 to ``longest``."""
        raise NotImplementedError

    @cached_property
    def masses(self) -> NDArray[np.float64]:
        """The shares of all lengths from 0 to ``longest``."""
        import numpy as np

        return np.diff(self.cumulative(np.arange(self.longest + 1)), prepend=0.0)

    @cached_property
    def mean(self) -> float:
        """The mean length."""
        import numpy as np

        return float(self.masses @ np.arange(len(self.masses)))

    @property
    def is_constant(self) -> bool:
        """True if all lengths are the same."""
        return self.shortest == self.longest


class Listed(Lengths):
    """Lengths of a list, each ``counts`` times."""

    lengths: tuple[int, ...]
    """In ascending order, each once."""
    counts: tuple[int, ...]

    @classmethod
    def of(cls, counted: Mapping[int, int], text: str) -> Listed:
        """The distribution of lengths with how often each is there."""
        lengths = tuple(sorted(counted))
        counts = tuple(counted[length] for length in lengths)
        return cls(text=text, shortest=lengths[0], longest=lengths[-1], lengths=lengths, counts=counts)

    @cached_property
    def _upto(self) -> list[int]:
        return list(accumulate(self.counts))

    def quantile(self, share: float) -> int:
        place = bisect_left(self._upto, share * self._upto[-1])
        return self.lengths[min(place, len(self.lengths) - 1)]

    def cumulative(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        import numpy as np

        upto = np.array([0, *self._upto], float)
        shares: NDArray[np.float64] = upto[np.searchsorted(np.array(self.lengths), tokens, side="right")] / upto[-1]
        return shares

    @cached_property
    def mean(self) -> float:
        return sum(length * count for length, count in zip(self.lengths, self.counts, strict=True)) / self._upto[-1]


class Uniform(Lengths):
    """Every length from ``shortest`` to ``longest`` equally likely."""

    def quantile(self, share: float) -> int:
        number = self.longest - self.shortest + 1
        return self.shortest + min(max(ceil(share * number), 1), number) - 1

    def cumulative(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        import numpy as np

        inside = np.clip(tokens - self.shortest + 1, 0, None)
        return inside / (self.longest - self.shortest + 1)

    @cached_property
    def mean(self) -> float:
        return (self.shortest + self.longest) / 2


class Geometric(Lengths):
    """Each length is ``ratio`` times as likely as the one before it: with this mean and these limits, all else is left open."""

    ratio: float

    @classmethod
    def of(cls, mean: float, shortest: int, longest: int, text: str) -> Geometric:
        """The distribution with a mean between the limits."""
        steps, above = longest - shortest, mean - shortest
        low, high = -50.0, 50.0
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if _geometric_mean(middle, steps) < above else (low, middle)
        return cls(text=text, shortest=shortest, longest=longest, ratio=exp((low + high) / 2))

    def quantile(self, share: float) -> int:
        rate, steps = log(self.ratio), self.longest - self.shortest + 1
        if share >= 1:
            return self.longest
        if abs(rate * steps) < _LEAST_SPREAD:
            place = share * steps
        elif rate < 0:
            place = log1p(share * expm1(rate * steps)) / rate
        else:
            place = steps - log1p((1 - share) * expm1(-rate * steps)) / -rate
        return self.shortest + min(max(ceil(place - 1e-9), 1), steps) - 1

    def cumulative(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        import numpy as np

        rate, steps = log(self.ratio), self.longest - self.shortest + 1
        inside = np.clip(tokens - self.shortest + 1, 0, steps).astype(float)
        if abs(rate * steps) < _LEAST_SPREAD:
            return inside / steps
        below: NDArray[np.float64]
        if rate < 0:
            below = np.expm1(rate * inside) / np.expm1(rate * steps)
        else:
            below = (np.exp(rate * (inside - steps)) - np.exp(-rate * steps)) / -np.expm1(-rate * steps)
        return below


def _geometric_mean(rate: float, steps: int) -> float:
    """The mean of 0 to ``steps`` where each is e^rate times as likely as the one before."""
    if abs(rate) * (steps + 1) < 1e-6:
        # The first terms of the series, where the difference of two large numbers would lose its digits.
        return steps / 2 + rate * steps * (steps + 2) / 12
    if rate > 0:
        return steps - _geometric_mean(-rate, steps)
    return 1 / expm1(-rate) - (steps + 1) / expm1(-rate * (steps + 1)) if -rate * (steps + 1) < 700 else 1 / expm1(-rate)


class Quantiles(Lengths):
    """A distribution through quantiles: the logarithm of the length is linear in the normal score between them, and beyond the last two.

    Through two quantiles that is the lognormal distribution. ``points`` are normal scores and logarithms of lengths.
    """

    points: tuple[tuple[float, float], ...]

    def _place(self, score: float) -> float:
        """The logarithm of the length at a normal score."""
        after = next((number for number, (known, _) in enumerate(self.points[1:-1], 1) if score < known), len(self.points) - 1)
        (score0, log0), (score1, log1) = self.points[after - 1 : after + 1]
        return log0 + (score - score0) * (log1 - log0) / (score1 - score0)

    def quantile(self, share: float) -> int:
        if share <= 0:
            return self.shortest
        if share >= 1:
            return self.longest
        place = self._place(_NORMAL.inv_cdf(share))
        if place >= log(self.longest):
            return self.longest
        # A length that is whole but for the last digits of its logarithm is that length.
        return min(max(ceil(exp(place) * (1 - 1e-12)), self.shortest), self.longest)

    def cumulative(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        import numpy as np

        scores, logs = (np.array(one) for one in zip(*self.points, strict=True))
        places = np.log(np.maximum(tokens, 1))
        after = np.clip(np.searchsorted(logs, places), 1, len(logs) - 1)
        slopes = np.diff(scores) / np.diff(logs)
        at = scores[after - 1] + (places - logs[after - 1]) * slopes[after - 1]
        shares = np.fromiter(map(_NORMAL.cdf, at.tolist()), float, at.size)
        return np.where(tokens >= self.longest, 1.0, np.where(tokens < self.shortest, 0.0, shares))


def read_lengths(value: Any, name: str = "lengths", *, longest: int | None = None, mean: bool = False) -> Lengths:
    """The distribution that words name, or a number, a list, or a distribution.

    ``longest`` is the limit where the words name none. With ``mean`` a bare number is the mean of the lengths and not all of them.

    >>> read_lengths("p50=2k,p95=16k").quantile(0.95), read_lengths("1k,2k").mean, read_lengths(512).longest
    (16384, 1536.0, 512)

    Raises :class:`~hwcalc.errors.UsageError` for words that name none.
    """
    if isinstance(value, Lengths):
        return _limited(value, longest)
    if isinstance(value, (list, tuple)):
        return _limited(_listed(parse_token_list(value, name, MOST_LINES), ",".join(map(str, value[:8]))), longest)
    if not isinstance(value, str):
        value = str(parse_tokens(value, name))
    words = value.strip()
    uniform = parse_uniform(words, name)
    if uniform is not None:
        return _limited(Uniform(text=words, shortest=uniform[0], longest=uniform[1]), longest)
    if "=" in words:
        return _of_keys(words, name, longest)
    if _names_file(words):
        return _limited(_of_file(words, name), longest)
    try:
        lengths = _of_list(words, name)
    except UsageError as error:
        raise UsageError(f"{name} {shown(words, 60)} is no length. {error.message}.", hint=_ALLOWED) from error
    if mean and lengths.is_constant:
        if longest is not None and lengths.longest > longest:
            message = f"{name} {shown(words, 60)} is a mean of {lengths.longest:,}, and the longest is {longest:,}."
            raise UsageError(message, hint=f"Give a smaller mean, or a larger --seq: --seq {words}")
        return _of_keys(f"mean={words}", name, longest)
    return _limited(lengths, longest)


def _of_list(words: str, name: str) -> Listed:
    counted: dict[int, int] = {}
    for word in words.split(","):
        match = re.fullmatch(_TIMES, word.strip())
        tokens, times = (match["tokens"], int(match["times"])) if match else (word, 1)
        length = parse_tokens(tokens.strip(), name)
        counted[length] = counted.get(length, 0) + times
    return Listed.of(counted, words)


def _listed(lengths: Sequence[int], text: str) -> Listed:
    counted: dict[int, int] = {}
    for length in lengths:
        counted[length] = counted.get(length, 0) + 1
    return Listed.of(counted, text)


def _of_keys(words: str, name: str, longest: int | None) -> Lengths:
    """The distribution of words such as ``p50=2k,p95=16k,max=32k``."""
    quantiles: dict[float, int] = {}
    limits: dict[str, int] = {}
    for word in words.split(","):
        key, _, tokens = (part.strip() for part in word.partition("="))
        match = re.fullmatch(_QUANTILE, key.lower())
        if match is not None:
            share, known = float(match["percent"]) / 100, quantiles
        elif key.lower() in ("min", "max", "mean"):
            share, known = key.lower(), limits  # type: ignore[assignment]
        else:
            raise UsageError(f"{name} {shown(words, 60)}: {shown(key, 20)} is not known.", hint=_ALLOWED)
        if share in known:
            raise UsageError(f"{name} {shown(words, 60)} has {shown(key, 20)} twice.", hint=_ALLOWED)
        known[share] = parse_tokens(tokens, f"{name} {key}")
    low, high, mean = limits.get("min", 1), limits.get("max", longest), limits.get("mean")
    if high is not None and high < low:
        raise UsageError(
            f"{name} {shown(words, 60)}: the longest, {high:,}, is shorter than the shortest, {low:,}.", hint=_ALLOWED
        )
    if quantiles and mean is not None:
        raise UsageError(f"{name} {shown(words, 60)}: give a mean, or quantiles.", hint=_ALLOWED)
    if quantiles:
        return _of_quantiles(quantiles, low, high, words, name)
    if mean is not None:
        # Beyond 32 times its mean a geometric distribution has 10^-14 of all lengths.
        most = min(32 * (mean - low) + low, MOST_TOKENS) if high is None else high
        if not low <= mean <= most:
            raise UsageError(f"{name} {shown(words, 60)}: the mean is not between {low:,} and {most:,}.", hint=_ALLOWED)
        if mean in (low, most):
            return Listed.of({mean: 1}, words)
        return Geometric.of(mean, low, most, words)
    if high is None or "min" not in limits:
        raise UsageError(f"{name} {shown(words, 60)}: uniform lengths need min and max.", hint=_ALLOWED)
    return Uniform(text=words, shortest=low, longest=high)


def _of_quantiles(quantiles: Mapping[float, int], low: int, high: int | None, words: str, name: str) -> Lengths:
    shares = sorted(quantiles)
    if len(shares) < 2:
        raise UsageError(
            f"{name} {shown(words, 60)} has one quantile.", hint=f"Two make a distribution: p50=2k,p95=16k. {_ALLOWED}"
        )
    if not shares[0] > 0:
        raise UsageError(f"{name} {shown(words, 60)}: p0 is no quantile.", hint="Write min=, or a quantile above 0.")
    if any(quantiles[early] >= quantiles[late] for early, late in pairwise(shares)):
        raise UsageError(f"{name} {shown(words, 60)}: a higher quantile must be longer.", hint=_ALLOWED)
    points = tuple((_NORMAL.inv_cdf(share), log(quantiles[share])) for share in shares)
    if high is None:
        # One request of a billion is longer.
        unlimited = Quantiles(text=words, shortest=low, longest=MOST_TOKENS, points=points)
        high = max(unlimited.quantile(1 - 1e-9), low)
    return Quantiles(text=words, shortest=low, longest=high, points=points)


def _limited(lengths: Lengths, high: int | None) -> Lengths:
    """The same lengths, of which those beyond the limit become the limit."""
    if high is None or lengths.longest <= high:
        return lengths
    if isinstance(lengths, Listed):
        counted: dict[int, int] = {}
        for length, count in zip(lengths.lengths, lengths.counts, strict=True):
            counted[min(length, high)] = counted.get(min(length, high), 0) + count
        return Listed.of(counted, lengths.text)
    if isinstance(lengths, Uniform):
        raise UsageError(f"lengths {shown(lengths.text, 60)} are longer than {high:,} tokens.", hint="Give a smaller max.")
    from msgspec.structs import replace

    return replace(lengths, longest=high, shortest=min(lengths.shortest, high))


def _names_file(words: str) -> bool:
    """True if words name a file of lengths: a path, which a list of numbers is not."""
    return bool(re.search(r"[A-Za-z]{2}|/|\\", words)) and not re.fullmatch(r"[0-9.,_*kKmMgG ]+", words)


def _of_file(path: str, name: str) -> Listed:
    """The lengths of a text file, one in a line. Empty lines and those that begin with ``#`` say nothing."""
    from hwcalc.workload.formats import read_lines

    counted: dict[int, int] = {}
    for number, line in read_lines(path, f"{name} "):
        word = line.partition("#")[0].strip()
        if not word:
            continue
        try:
            length = parse_tokens(word, name)
        except UsageError as error:
            raise UsageError(
                f"{quoted(path, 60)}, line {number}: {error.message}", hint="Each line is a length in tokens."
            ) from error
        counted[length] = counted.get(length, 0) + 1
    if not counted:
        raise UsageError(f"{quoted(path, 60)} has no lengths.", hint="Each line is a length in tokens.")
    return Listed.of(counted, path)
