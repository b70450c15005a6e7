"""Columns of a table of which those that matter least are left out where a line has no room for all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from hwcalc.formulas.record import Record
from hwcalc.planner.speed_result import rented_words
from hwcalc.report.text import PIPED_WIDTH
from hwcalc.units import GIB, human_bytes

if TYPE_CHECKING:
    from hwcalc.planner.speed_result import CostInfo
    from hwcalc.report.view import View

GAP: Final = 2
"""Blanks between two columns."""


class Column(Record):
    """A column: a cell for each row, and how soon it is left out where there is no room, the highest rank first; 0 never is."""

    title: str
    cells: tuple[str, ...]
    rank: int = 0
    right: bool = True


def width_of(columns: Sequence[Column]) -> int:
    """Characters of these columns, with the blanks behind each."""
    return sum(max(map(len, (column.title, *column.cells))) + GAP for column in columns)


def that_fit(columns: Sequence[Column], room: int) -> tuple[list[Column], list[str]]:
    """The columns that so many characters hold, and the titles of those that are left out.

    >>> wide = [Column(title="a", cells=("xx",)), Column(title="b", cells=("yyyy",), rank=1), Column(title="c", cells=("z",), rank=2)]
    >>> [column.title for column in that_fit(wide, 8)[0]], that_fit(wide, 8)[1]
    (['a', 'b'], ['c'])
    """
    kept, dropped = list(columns), list[str]()
    while width_of(kept) > room + GAP and any(column.rank for column in kept):
        least = max(kept, key=lambda column: column.rank)
        kept.remove(least)
        dropped.insert(0, least.title)
    return kept, dropped


def listed(
    view: View, header: Sequence[str], rows: Sequence[Sequence[str]], expendable: Sequence[str], right: Iterable[int] = ()
) -> tuple[str, tuple[str, ...]]:
    """The rows in the format of the view, and a remark on the columns for which a terminal has no room, if there are any.

    ``expendable`` are the titles that may be left out, the first before others.
    """
    if view.format != "table" or view.width >= PIPED_WIDTH or not rows:
        return view.table(header, rows, right=right), ()
    ranks = {title: len(expendable) - place for place, title in enumerate(expendable)}
    at_right = {header[place] for place in right}
    columns = [
        Column(title=title, cells=cells, rank=ranks.get(title, 0), right=title in at_right)
        for title, cells in zip(header, zip(*rows, strict=True), strict=True)
    ]
    kept, dropped = that_fit(columns, view.width)
    text = view.table(
        [column.title for column in kept],
        list(zip(*(column.cells for column in kept), strict=True)),
        right=[place for place, column in enumerate(kept) if column.right],
    )
    return text, (left_out(dropped),) if dropped else ()


def left_out(titles: Sequence[str]) -> str:
    """A sentence that names what is left out."""
    return f"Left out at this width: {', '.join(titles)}. All: --format csv."


NEEDED: Final = "needs"
RATE: Final = "tok/s"
HOURLY: Final = "$/h"
PER_MILLION: Final = "$/1M"
MONTHLY: Final = "$/month"
PER_USER: Final = "$/user"
OF_COLUMNS: Final = {
    NEEDED: "needs: GiB of the fullest GPU",
    "of": "of: what may be used of it",
    "at once": "at once: the most sequences of this length",
    "users": "users: served at once within the limits, by the expected times and memory (and by the slow end of their range, for sure)",
    "longest": "longest: the most tokens of each planned sequence",
    HOURLY: "$/h: dollars an hour of all of the node",
    PER_MILLION: "$/1M: dollars for a million output tokens at the expected speed (and at the slow end of the range)",
    MONTHLY: "$/month: of 730 hours",
    PER_USER: "$/user: dollars a month for each user within the limits",
    RATE: "tok/s: tokens per second of all sequences while they decode, as expected (and at the slow end of the range); < is a bound",
    "cache": "cache: of all sequences on all GPUs, copies included",
    "a token": "a token: bytes of each further token of a sequence, by the formulas",
    "ratio": "ratio: the cache divided by that of the first row",
    "kept": "kept: tokens of a sequence that the policy leaves behind its prompt, from layer to layer",
    "saved": "saved: how much smaller the largest cache is than with every token",
    "peak": "peak: the cache and what the policy needs beside it while the prompt is cut, on the fullest GPU",
    "in all": "in all: with the policy the plan needs less memory (saves) or more (loses); if it needs as much, blocks come free after the prefill, or nothing does",
}
"""Meanings of the columns of plans in ``compare`` and ``sweep``."""


def said_of(shown: Iterable[str], otherwise: Mapping[str, str] | None = None) -> str:
    """Meanings of the shown columns. ``otherwise`` has columns that are of something else in this table."""
    titles = set(shown)
    return "; ".join(text for title, text in {**OF_COLUMNS, **(otherwise or {})}.items() if title in titles)


def rate_text(expected: float | None, low: float | None, bound: float | None = None) -> str:
    """Tokens per second, with the slow end of their range if it is given; else the bound. Empty if nothing is known."""
    if expected is None:
        return "" if bound is None else f"<{_rate(bound)}"
    return _rate(expected) if low is None else f"{_rate(expected)} ({_rate(low)})"


def _rate(tokens: float) -> str:
    return f"{tokens:,.0f}" if tokens >= 100 else f"{tokens:,.1f}"


def size_text(count: int | None) -> str:
    """A size of memory with its unit; ``unknown`` if nobody can say."""
    return "unknown" if count is None else human_bytes(count)


def gib(count: int | None) -> str:
    """A number of GiB without its unit; ``unknown`` if nobody can say."""
    return "unknown" if count is None else f"{count / GIB:,.2f}"


def cost_cells(cost: CostInfo | None) -> dict[str, str]:
    """The cells of :data:`HOURLY`, :data:`PER_MILLION`, :data:`PER_USER` and :data:`MONTHLY` by title; empty without a price."""
    if cost is None:
        return dict.fromkeys((HOURLY, PER_MILLION, PER_USER, MONTHLY), "")
    from hwcalc.hardware.prices import money

    tokens, of_tokens = cost.usd_per_million_tokens, ""
    if tokens is not None and tokens.expected is not None:
        of_tokens = f"{money(tokens.expected)} ({money(tokens.high or 0)})"
    each = "" if cost.usd_per_user_month is None else money(cost.usd_per_user_month)
    return {HOURLY: money(cost.usd_per_hour), PER_MILLION: of_tokens, PER_USER: each, MONTHLY: money(cost.usd_per_month)}


_MOST_PRICES: Final = 4
"""So many prices are named one by one; of more, those who ask them."""


def dated_prices(costs: Iterable[CostInfo | None]) -> tuple[str, ...]:
    """Lines that name what the prices are of, with their days, the share of the time that is used, and what is rented; none without prices."""
    from hwcalc.hardware.prices import KINDS

    known = [cost for cost in costs if cost is not None]
    if not known:
        return ()
    prices = {cost.price.text: cost.price for cost in known}
    usual = [price for price in prices.values() if price.date and not price.old and not price.user]
    told = [*prices]
    if len(usual) > _MOST_PRICES:
        providers, kinds, days = (
            sorted({*each}) for each in zip(*((one.provider, KINDS[one.kind], one.date) for one in usual), strict=True)
        )
        told = [f"{', '.join(providers)}; {' and '.join(kinds)}, {' to '.join(dict.fromkeys((days[0], days[-1])))}"]
        told += [text for text, price in prices.items() if price not in usual]
    used = {f" A million tokens at {cost.use:.0%} use (--use)." for cost in known if cost.usd_per_million_tokens is not None}
    return (f"Prices: {'; '.join(told)}. Their sources: --json or --format csv.{''.join(used)}", *rented_words(known))


def cost_words(cost: CostInfo) -> tuple[str, ...]:
    """The price of the nodes with its row and date; then that of output tokens and of users, where it is known."""
    from hwcalc.hardware.prices import money

    tokens, second = cost.usd_per_million_tokens, []
    first = f"{money(cost.usd_per_hour)}/h, {money(cost.usd_per_month)}/month ({cost.price.text})"
    if tokens is not None and tokens.expected is not None:
        low, high = (money(end or 0) for end in (tokens.low, tokens.high))
        second.append(f"{money(tokens.expected)} a million ({low} to {high}) at {cost.use:.0%} use")
    if cost.usd_per_user_month is not None:
        second.append(f"{money(cost.usd_per_user_month)}/month a user")
    return (first, "; ".join(second)) if second else (first,)
