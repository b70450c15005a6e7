"""What users really have (``--avg-seq``): the chance that they overrun the pool, and how many may run so that they hardly ever do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.setup import UNSHARED
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.planner.result import FitInfo, OverrunInfo
from hwcalc.planner.solve import budget_bytes
from hwcalc.planner.verdict import Verdict
from hwcalc.units import MOST_TOKENS

if TYPE_CHECKING:
    from hwcalc.planner.chance import Together
    from hwcalc.workload.lengths import Lengths

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
    from hwcalc.planner.chance import SAMPLES
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
    import numpy as np

    from hwcalc.planner.chance import Filled, Together

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
