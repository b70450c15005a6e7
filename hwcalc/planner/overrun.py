"""What users really have (``--avg-seq``): the chance that they overrun the pool, and how many may run so that they hardly ever do.

A pool has ``total`` units (blocks, tokens, bytes). Each sequence takes some of them, by its length alone, and lengths are independent. So
what ``n`` sequences take is distributed as the n-fold convolution of what one takes: the chance of an overrun is exact. Only sums that fit
are kept, and what is missing of them is that chance. For several pools at once it is sampled.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.setup import UNSHARED
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.planner.result import FitInfo, OverrunInfo
from hwcalc.planner.solve import budget_bytes
from hwcalc.planner.verdict import Verdict
from hwcalc.units import MOST_TOKENS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hwcalc.workload.lengths import Lengths

MOST_BINS: Final = 1 << 17
"""The most units that are told apart; of a larger pool several count as one, rounded up and rounded down."""
SAMPLES: Final = 10_000
"""How many times sequences are drawn where several pools fill together."""
_DRAWN_AT_ONCE: Final = 2_000_000
"""Lengths that are drawn at once."""
_FEW: Final = 64
"""Up to so many values, a convolution is summed as it is written; beyond, by fast Fourier transforms."""
NOISE: Final = 1e-11
"""What sums of doubles may be off by. A smaller chance is said as 0."""


class Demand:
    """What one sequence takes of a pool: ``units`` with the ``shares`` of sequences that take so many; and the ``total`` of the pool."""

    def __init__(self, units: NDArray[np.int64], shares: NDArray[np.float64], total: int) -> None:
        self.total = total
        self.most_units = int(units.max())
        self.least_units = int(units.min())
        self.mean_units = float(units @ shares)
        kept = units <= total
        self._shares: NDArray[np.float64] = np.bincount(units[kept], shares[kept]).astype(np.float64)
        self._powers = [self._shares]

    def chance(self, number: int) -> float:
        """The chance that so many sequences need more than the pool has."""
        if number * self.most_units <= self.total:
            return 0.0
        if number * self.least_units > self.total:
            return 1.0
        if number == 1:
            return self._missing(np.ones(1), self._shares)
        first = number.bit_length() - 1
        rest = number - (1 << first)
        # The last step needs no convolution, but the share of sums that fit.
        return (
            self._missing(self.sums(rest), self._power(first))
            if rest
            else self._missing(self._power(first - 1), self._power(first - 1))
        )

    def sums(self, number: int) -> NDArray[np.float64]:
        """The shares of all sums up to the total that so many sequences take."""
        sums, place = np.ones(1), 0
        while number >> place:
            if number >> place & 1:
                sums = self._joined(sums, self._power(place))
            place += 1
        return sums

    def most(self, chance: float, bound: int) -> int:
        """The most sequences, up to ``bound``, whose chance of an overrun is at most this."""
        if self.total < 0:
            return 0
        bound = min(bound, self.total // self.least_units) if self.least_units else bound
        if bound * self.most_units <= self.total:
            return bound
        number, sums, place = 0, np.ones(1), 0
        while 2 << place <= bound and self._holds(2 << place, self._power(place), self._power(place), chance):
            place += 1
        for power in range(place, -1, -1):
            more = number + (1 << power)
            if more <= bound and self._holds(more, sums, self._power(power), chance):
                number, sums = more, self._joined(sums, self._power(power))
        return number

    def _holds(self, number: int, first: NDArray[np.float64], second: NDArray[np.float64], chance: float) -> bool:
        return number * self.most_units <= self.total or self._missing(first, second) <= chance

    def _missing(self, first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
        """The chance that a sum of two does not fit: each value of the first leaves the second what is left of the pool."""
        upto = np.cumsum(second)
        left = np.minimum(self.total - np.arange(len(first)), len(second) - 1)
        chance = 1.0 - float(first @ upto[left])
        return 0.0 if chance < NOISE else min(chance, 1.0)

    def _power(self, place: int) -> NDArray[np.float64]:
        """The chances of what 2^place sequences take."""
        while len(self._powers) <= place:
            self._powers.append(self._joined(self._powers[-1], self._powers[-1]))
        return self._powers[place]

    def _joined(self, first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
        """The convolution of two distributions, as far as the pool reaches."""
        room = len(first) + len(second) - 1
        if min(len(first), len(second)) <= _FEW:
            sums = np.convolve(first, second)
        else:
            width = 1 << (room - 1).bit_length()
            sums = np.fft.irfft(np.fft.rfft(first, width) * np.fft.rfft(second, width), width)[:room]
            sums = np.maximum(sums, 0.0)
        return sums[: self.total + 1]


class Filled(Record):
    """A pool that sequences fill: units that one takes at each length from 1 on, the shares of these lengths, and the units that there are."""

    name: str
    units: NDArray[np.int64]
    shares: NDArray[np.float64]
    total: int

    @cached_property
    def upper(self) -> Demand:
        """The demand of one sequence, rounded up to the units that are told apart."""
        return self._demand(up=True)

    @cached_property
    def lower(self) -> Demand:
        """The same rounded down; the same object where nothing is rounded."""
        return self.upper if self._unit[1] else self._demand(up=False)

    @cached_property
    def _unit(self) -> tuple[int, bool]:
        """Units that count as one, and whether nothing is lost by that."""
        common = int(np.gcd.reduce(self.units)) or 1
        coarse = -(-max(self.total, 0) // MOST_BINS)
        return (common, True) if coarse <= common else (coarse, False)

    def _demand(self, *, up: bool) -> Demand:
        unit, _ = self._unit
        units = -(-self.units // unit) if up else self.units // unit
        return Demand(units, self.shares, self.total // unit)

    def chances(self, number: int) -> tuple[float, float]:
        """The chance that so many sequences overrun the pool: a lower and an upper bound, the same where it is exact."""
        if number <= 0:
            return 0.0, 0.0
        upper = self.upper.chance(number)
        return (upper if self.lower is self.upper else self.lower.chance(number)), upper

    def most(self, chance: float, bound: int) -> int:
        """The most sequences, up to ``bound``, of which it is sure that their chance of an overrun is at most this."""
        return self.upper.most(chance, bound)


class Together(Record):
    """Pools that the same sequences fill, in each of ``copies`` replicas, over which sequences are dealt evenly. One overrun is enough."""

    pools: tuple[Filled, ...]
    copies: int = 1
    limit: int | None = None
    """The most sequences that run at once, in all replicas; others wait."""

    def chances(self, number: int) -> tuple[float, float]:
        """A lower and an upper bound of the chance that so many sequences overrun a pool."""
        running = number if self.limit is None else min(number, self.limit)
        each, more = divmod(running, self.copies)
        (low, high), (low_more, high_more) = self._in_one(each), self._in_one(each + 1) if more else (0.0, 0.0)
        return tuple(_any((a, self.copies - more), (b, more)) for a, b in ((low, low_more), (high, high_more)))  # type: ignore[return-value]

    def _in_one(self, number: int) -> tuple[float, float]:
        """The bounds for one replica: pools that fill together overrun at least as often as one of them, and at most as often as all in turn."""
        each = [pool.chances(number) for pool in self.pools]
        return max((low for low, _ in each), default=0.0), min(1.0, sum(high for _, high in each))

    def most(self, chance: float, bound: int) -> int:
        """The most sequences whose chance of an overrun is at most this, for sure."""
        bound = bound if self.limit is None else min(bound, self.limit)
        in_one = 1.0 - (1.0 - chance) ** (1.0 / self.copies)
        each = min((pool.most(in_one, -(-bound // self.copies)) for pool in self.pools), default=bound)
        while each and self._in_one(each)[1] > in_one:
            # Pools that hold so often each may not do so together. A step of a hundredth errs on the safe side.
            each -= max(1, each // 100)
        number = min(bound, each * self.copies)
        while number < bound and number < (each + 1) * self.copies and self.chances(number + 1)[1] <= chance:
            number += 1
        return number

    def sampled(self, number: int, samples: int = SAMPLES, seed: int = 0) -> tuple[float, float]:
        """The chance by drawing lengths ``samples`` times, and two standard errors of it."""
        running = number if self.limit is None else min(number, self.limit)
        draw, overrun = np.random.default_rng(seed), np.zeros(samples, bool)
        upto = np.cumsum(self.pools[0].shares) if self.pools else np.ones(1)
        for copy in range(self.copies if self.pools else 0):
            here = running // self.copies + (copy < running % self.copies)
            for start in range(0, samples, max(1, _DRAWN_AT_ONCE // max(here, 1))):
                rows = min(max(1, _DRAWN_AT_ONCE // max(here, 1)), samples - start)
                lengths = np.minimum(np.searchsorted(upto, draw.random((rows, here)) * upto[-1]), len(upto) - 1)
                for pool in self.pools:
                    overrun[start : start + rows] |= pool.units[lengths].sum(axis=1) > pool.total
        share = float(overrun.mean())
        # Of no overrun in n samples, three are as rare as one in twenty: 3 / n.
        return share, max(2 * (share * (1 - share) / samples) ** 0.5, 3 / samples)


def _any(*chances: tuple[float, int]) -> float:
    """The chance that any of independent events happens: each with its number."""
    none = 1.0
    for chance, number in chances:
        none *= (1.0 - chance) ** number
    return 0.0 if 1.0 - none < NOISE else 1.0 - none


QUANTILE: Final = 0.99
"""The quantile of use that must stay within the pool where it is asked how many may run."""
_TOO_WIDE: Final = 1e-3
"""Bounds of a chance that are farther apart are replaced by what is drawn."""
_DRAWN: Final = 50_000_000
"""The most lengths that are drawn for it."""
_MOST_DRAWN: Final = 100_000
"""The most users for whom lengths are drawn."""


def overrun_info(opened: Occupancy, words: str, fit: FitInfo | None) -> OverrunInfo | None:
    """The section of a plan on the lengths that sequences really have, of which ``fit`` is on the longest; ``None`` where no pool is known.

    Raises :class:`~hwcalc.errors.UnsupportedError` for an engine without a rule of what unlike sequences take, and
    :class:`~hwcalc.errors.UsageError` for a load that is not of sequences by themselves.
    """
    from hwcalc.workload.opening import held_lengths

    _check(opened)
    ends = {end: size for end in ("low", "expected") if (size := budget_bytes(opened, end)) is not None}
    if len(ends) < 2:
        return None
    lengths, about = held_lengths(words, opened.load.seq)
    sure, likely = (pools_of(opened, max(0, ends[end]), lengths) for end in ("low", "expected"))
    users = opened.load.batch
    (low, high), (_, high_sure) = likely.chances(users), sure.chances(users)
    chance, error, samples = high, high - low, None
    if high - low > _TOO_WIDE and len(likely.pools) > 1 and users <= _MOST_DRAWN:
        samples = min(SAMPLES, _DRAWN // users)
        chance, error = likely.sampled(users, samples)
    most, most_sure = (_most(opened, end, pools, lengths) for end, pools in (("expected", likely), ("low", sure)))
    fullest = max(likely.pools, key=lambda pool: pool.lower.mean_units / max(pool.lower.total, 1), default=None)
    highest = max(chance, high_sure)
    # The longest must fit in any case, or the engine does not start.
    served = fit is not None and bool(fit.expected_max_batch) and chance <= 1 - QUANTILE
    surely = served and fit is not None and bool(fit.max_batch) and highest <= 1 - QUANTILE
    return OverrunInfo(
        lengths=about,
        mean_tokens=lengths.mean,
        longest_tokens=lengths.longest,
        users=users,
        verdict=Verdict.of(served, surely),
        chance=chance,
        chance_error=error,
        chance_high=highest,
        samples=samples,
        quantile=QUANTILE,
        max_users=min(most, most_sure),
        expected_max_users=most,
        limiting=_limiting(opened, likely, most),
        pool=None if fullest is None else fullest.name,
        pool_units=None if fullest is None else fullest.total,
        mean_units=None if fullest is None else float(fullest.units @ fullest.shares),
        copies=likely.copies,
    )


def _most(opened: Occupancy, end: str, pools: Together, lengths: Lengths) -> int:
    """The number of users that may run, by the budget left beside so many: with some engines, more sequences leave less."""
    most, size = pools.most(1 - QUANTILE, MOST_TOKENS), budget_bytes(opened, end)
    while 0 < most < MOST_TOKENS and (left := budget_bytes(opened.sized(batch=most), end)) != size:
        size = left
        fewer = pools_of(opened, max(0, left or 0), lengths).most(1 - QUANTILE, most)
        if fewer == most:
            break
        most = fewer
    return most


def _check(opened: Occupancy) -> None:
    """Refuse what has no distribution of lengths: a policy, what sequences share, and lengths that are given one by one."""
    load, setup = opened.load, opened.setup
    names = {
        "--policy": setup.policy is not None,
        "--lengths": bool(load.lengths),
        "--shared-prefix, --samples and --beams": load.sharing != UNSHARED,
    }
    for name, given in names.items():
        if given:
            raise UsageError(f"--avg-seq is of sequences by themselves: not with {name}.", hint="Leave one of them out.")


def pools_of(opened: Occupancy, size: int, lengths: Lengths) -> Together:
    """The pools of a budget per GPU, with what a sequence of each length takes, by the rules of the engine."""
    shares = opened.pool_shares(size)
    if shares is None:
        raise UnsupportedError(
            f"--avg-seq: {opened.engine.label} has no pool that sequences of any lengths fill, or it is not known with these options.",
            hint="Leave it out, or plan with --engine vllm, sglang or reference.",
        )
    tokens, masses = np.arange(1, lengths.longest + 1), lengths.masses[1:]
    copies = opened.request.replicas * max((share.copies for share in shares), default=1)
    limits = [share.total * copies for share in shares if share.waits]
    most = opened.most_sequences()
    limits += [] if most is None else [most[0]]
    seen = masses > 0
    pools = tuple(
        Filled(
            name=share.name,
            units=np.broadcast_to(np.asarray(share.of_sequence(tokens), np.int64), tokens.shape)[seen],  # type: ignore[arg-type]
            shares=masses[seen] / masses.sum(),
            total=share.total,
        )
        for share in shares
        if not share.waits
    )
    return Together(pools=pools, copies=copies, limit=max(0, min(limits)) if limits else None)


def _limiting(opened: Occupancy, pools: Together, most: int) -> str | None:
    """The limit on the number of users: the cache, or the option that says how many run at once."""
    if pools.limit is not None and most >= pools.limit:
        named = opened.most_sequences()
        return "running requests" if named is None or named[0] > pools.limit else named[1]
    return "cache" if most < MOST_TOKENS else None
