"""Compare one plan with what is required of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from hwcalc.check.fields import Headroom
from hwcalc.check.file import Required
from hwcalc.check.result import Figures, Fit, Judged
from hwcalc.check.verdict import DOES_NOT_FIT, FITS, TIGHT, figures_of, in_words, verdict_of
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.planner.result import Plan
from hwcalc.units import human_bytes

__all__ = ["judge", "measured"]


def judge(required: tuple[Required, ...], plan: Plan) -> tuple[Judged, ...]:
    """Every requirement, in order.

    Raises :class:`~hwcalc.errors.UnsupportedError` where the plan has no such figure: what cannot be checked does not hold.
    """
    figures, verdict = figures_of(plan), verdict_of(plan)
    return tuple(_JUDGES[item.name](item, figures, verdict, plan) for item in required)


def measured(count: float, unit: str) -> str:
    """A figure with its unit: bytes to the last one and in a binary unit."""
    if unit == "bytes":
        human = human_bytes(int(count))
        return human if human.endswith(" B") else f"{human} ({int(count):,} B)"
    return f"{count:,.1f} {unit}" if isinstance(count, float) else f"{count:,} {unit}"


def _fit_of(item: Required, figures: Figures) -> Fit:
    if figures.fit is None:
        raise UsageError(
            f"{item.name}: --engine {figures.engine} gives no verdict for this hardware.",
            hint="Choose an engine with a memory equation: engine: vllm. See: kvplan engines",
        )
    return figures.fit


def _known(item: Required, value: Any, figures: Figures) -> Any:
    if value is None:
        raise UnsupportedError(
            f"{item.name} cannot be checked: a plan of this model with --engine {figures.engine} has no such figure.",
            hint=f"Leave {item.name} out, or choose another engine. See: kvplan engines",
        )
    return value


def _fits(item: Required, figures: Figures, verdict: str | None, plan: Plan) -> Judged:
    fit = _fit_of(item, figures)
    assert plan.fit is not None
    word = verdict or (FITS if plan.fit.fits else DOES_NOT_FIT)
    holds = plan.fit.fits is item.limit
    message = in_words(word, fit)
    if not plan.fit.fits and plan.fit.message:
        message += f"; {plan.fit.message}"
    if not item.limit:
        message += "; required: that it does not fit"
    return Judged(name=item.name, unit="verdict", limit=None, got=None, holds=holds, certain=word != TIGHT, message=message)


def _headroom(item: Required, figures: Figures, verdict: str | None, plan: Plan) -> Judged:
    fit = _fit_of(item, figures)
    limit: Headroom = item.limit
    wanted = limit.of(fit.usable_bytes)
    got, worst, best = (fit.usable_bytes - n for n in (fit.needed_bytes, fit.needed_high_bytes, fit.needed_low_bytes))
    asked = f"{item.text} = {measured(wanted, 'bytes')}" if limit.share else measured(wanted, "bytes")
    span = "" if worst == best else f" ({human_bytes(worst)} to {human_bytes(best)})"
    return Judged(
        name=item.name,
        unit="bytes",
        limit=wanted,
        got=max(0, got),
        holds=got >= wanted,
        certain=(worst >= wanted) is (best >= wanted),
        message=f"{human_bytes(got)} free{span}, at least {asked} required",
    )


def _at_most(read: Callable[[Figures, Plan], Any], unit: str) -> Callable[..., Judged]:
    return _compared(read, unit, "at most", lambda got, limit: got <= limit)


def _at_least(read: Callable[[Figures, Plan], Any], unit: str) -> Callable[..., Judged]:
    return _compared(read, unit, "at least", lambda got, limit: got >= limit)


def _compared(
    read: Callable[[Figures, Plan], Any], unit: str, words: str, good: Callable[[float, float], bool]
) -> Callable[..., Judged]:
    """A judge of one figure, given as expected, low and high."""

    def judged(item: Required, figures: Figures, verdict: str | None, plan: Plan) -> Judged:
        if unit not in {"bytes", "B a token"}:
            _fit_of(item, figures)
        expected, low, high = (_known(item, value, figures) for value in read(figures, plan))
        span = "" if low == high else f" ({measured(low, unit)} to {measured(high, unit)})"
        return Judged(
            name=item.name,
            unit="bytes" if unit == "B a token" else unit,
            limit=item.limit,
            got=expected,
            holds=good(expected, item.limit),
            certain=good(low, item.limit) is good(high, item.limit),
            message=f"{measured(expected, unit)}{span}, {words} {measured(item.limit, unit)} required",
        )

    return judged


def _same(value: Any) -> tuple[Any, Any, Any]:
    return value, value, value


def _weights(figures: Figures, plan: Plan) -> tuple[Any, Any, Any]:
    found = plan.memory.weights
    return found.bytes, _or(found.low, found.bytes), _or(found.high, found.bytes)


def _total(figures: Figures, plan: Plan) -> tuple[Any, Any, Any]:
    """The ends of the sum are those of the weights: the cache has none."""
    expected, low, high = _weights(figures, plan)
    total = figures.total_bytes
    if total is None or expected is None:
        return _same(total)
    return total, total - expected + low, total - expected + high


def _or(value: int | None, instead: int | None) -> int | None:
    return instead if value is None else value


def _fewest(figures: Figures, plan: Plan) -> Any:
    fit = figures.fit
    if fit is None:
        return None
    return fit.min_gpus if fit.min_gpus is not None else fit.gpus if plan.fit is not None and plan.fit.fits else None


_JUDGES: Final[Mapping[str, Callable[..., Judged]]] = {
    "fits": _fits,
    "headroom": _headroom,
    "max_cache": _at_most(lambda figures, _: _same(figures.cache_bytes), "bytes"),
    "max_weights": _at_most(_weights, "bytes"),
    "max_total": _at_most(_total, "bytes"),
    "max_bytes_per_token": _at_most(lambda figures, _: _same(figures.bytes_per_token), "B a token"),
    "min_concurrency": _at_least(lambda figures, _: _same(figures.fit and figures.fit.max_batch), "sequences"),
    "min_seq": _at_least(lambda figures, _: _same(figures.fit and figures.fit.max_seq), "tokens"),
    "max_gpus": _at_most(lambda figures, plan: _same(_fewest(figures, plan)), "GPUs"),
    "min_decode_tokens_per_s": _at_least(lambda figures, _: _same(figures.decode_tokens_per_s_bound), "tokens/s"),
}
