"""Compare one plan with what is required of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from hwcalc.check.fields import Headroom
from hwcalc.check.file import Required
from hwcalc.check.result import Figures, Fit, Judged
from hwcalc.check.verdict import FITS, TIGHT, figures_of, in_words
from hwcalc.errors import KvplanError, UnsupportedError, UsageError
from hwcalc.planner.result import UNLIMITED, Plan
from hwcalc.planner.solve import MOST_GPUS, NODE, counts
from hwcalc.units import human_bytes

__all__ = ["judge", "measured"]


Again = Callable[..., Plan]
"""The same plan with these options changed."""


def judge(required: tuple[Required, ...], plan: Plan, again: Again) -> tuple[Judged, ...]:
    """Every requirement, in order. ``again(batch=4)`` is the plan with that one change.

    Raises :class:`~hwcalc.errors.UnsupportedError` where the plan has no such figure: what cannot be checked does not hold.
    """
    figures = figures_of(plan)
    return tuple(_JUDGES[item.name](item, figures, plan, again) for item in required)


def measured(count: float, unit: str) -> str:
    """A figure with its unit: bytes to the last one and in a binary unit."""
    if unit == "bytes":
        human = human_bytes(int(count))
        return human if human.endswith(" B") else f"{human} ({int(count):,} B)"
    if isinstance(count, float):
        return f"{count:,.1f} {unit}"
    return f"{count:,} {unit.removesuffix('s') if count == 1 else unit}" if count < UNLIMITED else f"any number of {unit}"


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


def _fits(item: Required, figures: Figures, plan: Plan, again: Again) -> Judged:
    fit = _fit_of(item, figures)
    assert plan.fit is not None
    holds = plan.fit.fits is item.limit
    message = in_words(plan.fit.verdict, fit)
    if not plan.fit.fits and plan.fit.message:
        message += f"; {plan.fit.message.rstrip('.')}"
    if item.limit and not plan.fit.fits and plan.fit.suggestions:
        message += f"; try {' or '.join(f'{one.flag} ({one.effect})' for one in plan.fit.suggestions)}"
    if not item.limit:
        message += "; required: that it does not fit"
    return Judged(
        name=item.name, unit="verdict", limit=None, got=None, holds=holds, certain=plan.fit.verdict != TIGHT, message=message
    )


def _headroom(item: Required, figures: Figures, plan: Plan, again: Again) -> Judged:
    fit = _fit_of(item, figures)
    limit: Headroom = item.limit
    wanted = limit.of(fit.usable_bytes)
    got, worst, best = (fit.usable_bytes - n for n in (fit.needed_bytes, fit.needed_high_bytes, fit.needed_low_bytes))
    asked = f"{item.text} = {measured(wanted, 'bytes')}" if limit.share is not None else measured(wanted, "bytes")
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


Read = Callable[[Figures, Plan], tuple[Any, Any, Any]]
"""A figure as expected, low and high."""


def _at_most(read: Read, unit: str = "bytes") -> Callable[..., Judged]:
    def judged(item: Required, figures: Figures, plan: Plan, again: Again) -> Judged:
        expected, low, high = (_known(item, value, figures) for value in read(figures, plan))
        return _compared(
            item, unit, expected, low, high, holds=expected <= item.limit, certain=(low <= item.limit) is (high <= item.limit)
        )

    return judged


def _compared(item: Required, unit: str, expected: float, low: float, high: float, *, holds: bool, certain: bool) -> Judged:
    span = "" if low == high else f" ({measured(low, unit)} to {measured(high, unit)})"
    words = "at least" if item.name.startswith("min") else "at most"
    open_end = "; the ends of the estimate disagree" if not certain and not span else ""
    return Judged(
        name=item.name,
        unit=unit,
        limit=item.limit,
        got=expected,
        holds=holds,
        certain=certain,
        message=f"{measured(expected, unit)}{span}, {words} {measured(item.limit, unit)} required{open_end}",
    )


def _at_least(figure: str, option: str, unit: str) -> Callable[..., Judged]:
    """A judge of what a solver found for the expected value; the ends of the estimate are asked about the limit itself."""

    def judged(item: Required, figures: Figures, plan: Plan, again: Again) -> Judged:
        fit = _fit_of(item, figures)
        got = _known(item, getattr(fit, figure), figures)
        certain = True
        if fit.needed_low_bytes != fit.needed_high_bytes:
            at_limit = again(**{option: item.limit}).fit
            certain = at_limit is not None and at_limit.verdict != TIGHT
        return _compared(item, unit, got, got, got, holds=got >= item.limit, certain=certain)

    return judged


def _max_gpus(item: Required, figures: Figures, plan: Plan, again: Again) -> Judged:
    fit = _fit_of(item, figures)
    if fit.gpu is None:
        _known(item, None, figures)
    if fit.min_gpus is not None:
        count = fit.min_gpus
        holds = count <= item.limit
        exact = fit.needed_low_bytes == fit.needed_high_bytes
        certain = not holds or exact or _held_for_certain(fit, count, item.limit, plan, again)
        return _compared(item, "GPUs", count, count, count, holds=holds, certain=certain)
    message = f"no number of {fit.gpu} that was tried holds it, at most {item.limit:,} required"
    return Judged(name=item.name, unit="GPUs", limit=item.limit, got=None, holds=False, certain=True, message=message)


def _held_for_certain(fit: Fit, least: int, most: int, plan: Plan, again: Again) -> bool:
    """Whether some layout of ``least`` to ``most`` GPUs holds the sequences at the high end of the estimate as well."""
    if plan.fit is not None and plan.fit.verdict == FITS and fit.gpus <= most:
        return True
    for count in counts(min(most, MOST_GPUS)):
        for tp in range(min(count, NODE), 0, -1) if count >= least else ():
            for pp in range(1, count // tp + 1):
                if count % (tp * pp):
                    continue
                shared = {"tp": tp, "pp": pp, "dp": count // tp // pp, "dcp": 1, "ep": 1}
                with suppress(KvplanError):  # a layout that the model or the engine cannot be split into
                    found = again(gpu=fit.gpu, gpus=None, instance=None, **shared).fit
                    if found is not None and found.verdict == FITS:
                        return True
    return False


def _decode(item: Required, figures: Figures, plan: Plan, again: Again) -> Judged:
    got = _known(item, figures.decode_tokens_per_s_bound, figures)
    return _compared(item, "tokens/s", got, got, got, holds=got >= item.limit, certain=True)


def _same(value: Any) -> tuple[Any, Any, Any]:
    return value, value, value


def _weights(figures: Figures, plan: Plan) -> tuple[Any, Any, Any]:
    found = plan.memory.weights
    return found.bytes, _or(found.low, found.bytes), _or(found.high, found.bytes)


def _total(figures: Figures, plan: Plan) -> tuple[Any, Any, Any]:
    """The ends of the sum are those of its parts; the cache has none."""
    total = figures.total_bytes
    expected, low, high = _weights(figures, plan)
    if total is None or expected is None:
        return _same(total)
    low, high = low - expected, high - expected
    for part in (plan.memory.activations, plan.memory.overhead):
        if part is not None:
            low, high = low + part.low - part.bytes, high + part.high - part.bytes
    return total, total + low, total + high


def _or(value: int | None, instead: int | None) -> int | None:
    return instead if value is None else value


_JUDGES: Final[Mapping[str, Callable[..., Judged]]] = {
    "fits": _fits,
    "headroom": _headroom,
    "max_cache": _at_most(lambda figures, _: _same(figures.cache_bytes)),
    "max_weights": _at_most(_weights),
    "max_total": _at_most(_total),
    "max_bytes_per_token": _at_most(lambda figures, _: _same(figures.bytes_per_token)),
    "min_concurrency": _at_least("max_batch", "batch", "sequences"),
    "min_seq": _at_least("max_seq", "seq", "tokens"),
    "max_gpus": _max_gpus,
    "min_decode_tokens_per_s": _decode,
}
