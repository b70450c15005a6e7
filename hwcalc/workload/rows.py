"""Requests from plain rows: ``(arrival, prompt, output[, prefix group, its tokens[, priority[, most tokens]]])``."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, Final

from hwcalc.errors import KvplanError, UsageError
from hwcalc.text import quoted
from hwcalc.units import MOST_TOKENS
from hwcalc.workload.request import Request, Segment, Workload

_SHAPE: Final = "A row is (arrival, prompt tokens, output tokens[, prefix group or None, its tokens[, priority[, most tokens]]])."
_EARLIER: Final = r"r(0|[1-9][0-9]{0,9})"
MOST_SECONDS: Final = 1e10
"""The latest arrival: 300 years, which allows for seconds since 1970."""


def workload_of_rows(rows: Iterable[Sequence[Any]], name: str = "rows") -> Workload:
    """The workload of plain rows, sorted by arrival; rows that arrive together keep their order.

    A group is any name; ``"rN"`` is the prompt of row N and its output, as the next turn of a conversation begins. Tokens of a group are
    the same in all rows, and a row may take only the first of them.

    >>> first, second = workload_of_rows([(0, 100, 20, "system", 64), (3, 160, 8, "r0", 120)])
    >>> first.prefix
    (Segment(id='system', tokens=64), Segment(id=('prompt', 0), tokens=36))
    >>> second.prefix == (*first.prefix, Segment(first.output_id, 20))
    True

    Raises :class:`~hwcalc.errors.UsageError` for a row that is none.
    """
    listed = [_checked(number, row) for number, row in enumerate(_items(rows))]
    earlier = {number: int(match[1]) for number, row in enumerate(listed) if (match := _earlier(row[3]))}
    named, requests = set(earlier.values()), list[Request]()
    for number, (arrival, prompt, output, group, tokens, priority, most) in enumerate(listed):
        if number in earlier:
            if earlier[number] >= number:
                raise UsageError(f"row {number}: prefix group {group} is not an earlier row.", hint=_SHAPE)
            before = requests[earlier[number]]
            whole = (*before.prefix, Segment(before.output_id, before.output_tokens))
            prefix = _cut(whole, tokens)
        else:
            prefix = (Segment(group, tokens),) if group is not None and tokens else ()
        if number in named and (own := prompt - sum(segment.tokens for segment in prefix)):
            prefix = (*prefix, Segment(("prompt", number), own))
        requests.append(
            Request(
                number=number,
                arrival_s=float(arrival),
                prompt_tokens=prompt,
                output_tokens=output,
                prefix=prefix,
                output_id=("output", number) if number in named else None,
                priority=priority,
                max_tokens=most,
            )
        )
    if any(late.arrival_s < early.arrival_s for early, late in pairwise(requests)):
        requests.sort(key=lambda request: request.arrival_s)
        requests = [request.changed(number=number) for number, request in enumerate(requests)]
    return Workload.of(requests, name)


def workload_of_items(items: Iterable[Any]) -> Workload:
    """The workload of requests, or of plain rows."""
    gone_through = _items(items)
    first = next(gone_through, None)
    listed = () if first is None else chain([first], gone_through)
    return Workload.of([*listed]) if isinstance(first, Request) else workload_of_rows(listed)


def _items(rows: Iterable[Any]) -> Iterator[Any]:
    try:
        yield from rows
    except KvplanError:
        raise
    except Exception as error:  # it may be anything that says it can be gone through
        raise UsageError(f"{quoted(rows, 40)} is no workload: it cannot be gone through.", hint=_SHAPE) from error


def _earlier(group: Hashable) -> re.Match[str] | None:
    return re.fullmatch(_EARLIER, group) if isinstance(group, str) else None


def _cut(segments: Iterable[Segment], tokens: int) -> tuple[Segment, ...]:
    """The first ``tokens`` tokens of segments."""
    kept = []
    for segment in segments:
        if tokens <= 0:
            break
        kept.append(segment if segment.tokens <= tokens else Segment(segment.id, tokens))
        tokens -= segment.tokens
    return tuple(kept)


def _checked(number: int, row: Sequence[Any]) -> tuple[float, int, int, Hashable, int, int | None, int | None]:
    """The seven values of a row."""
    if isinstance(row, str) or not isinstance(row, Sequence) or not 3 <= len(row) <= 7:
        raise UsageError(f"row {number} is {quoted(row, 60)}.", hint=_SHAPE)
    values: list[Any] = [*row, *[None] * (7 - len(row))]
    arrival, prompt, output, group, tokens, priority, most = values
    if isinstance(arrival, bool) or not isinstance(arrival, (int, float)) or not 0 <= arrival <= MOST_SECONDS:
        raise UsageError(f"row {number}: arrival is {quoted(arrival, 40)}.", hint=f"Allowed: 0 to {MOST_SECONDS:,.0f}. {_SHAPE}")
    try:
        hash(group)
    except TypeError as error:
        raise UsageError(
            f"row {number}: the prefix group is {quoted(group, 40)}.", hint=f"Allowed: a name or None. {_SHAPE}"
        ) from error
    whole = {
        "prompt": (prompt, 1),
        "output": (output, 0),
        "tokens of the prefix": (tokens or 0, 0),
        "most tokens": (most or 0, 0),
    }
    for what, (value, least) in whole.items():
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST_TOKENS:
            hint = f"Allowed: a whole number from {least} to {MOST_TOKENS:,}. {_SHAPE}"
            raise UsageError(f"row {number}: {what} is {quoted(value, 40)}.", hint=hint)
    if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int)):
        raise UsageError(f"row {number}: priority is {quoted(priority, 40)}.", hint=f"Allowed: a whole number. {_SHAPE}")
    if (tokens or 0) > prompt:
        raise UsageError(f"row {number}: its prefix of {tokens:,} tokens is longer than its prompt of {prompt:,}.", hint=_SHAPE)
    return arrival, prompt, output, group, tokens or 0, priority, most
