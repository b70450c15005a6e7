"""A workload from whatever names it: words, plain rows ``(arrival, prompt, output, ...)``, a trace, or a workload; and what its sequences
hold while they are served, which ``--avg-seq`` names (:func:`held_lengths`).
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.errors import KvplanError, UsageError
from hwcalc.text import quoted, shown
from hwcalc.units import MOST_TOKENS, parse_token_list, parse_tokens, plain_number
from hwcalc.workload.formats import detect, format_named, parse_columns, read_lines
from hwcalc.workload.lengths import Geometric, Lengths, Listed, read_lengths
from hwcalc.workload.made import AT_ONCE, KEYS, Arrivals, made, read_arrivals, words_of
from hwcalc.workload.request import Request, Segment, Workload
from hwcalc.workload.trace import Trace

_WORDS_OF_TRACE: Final = ("requests", "arrival", "concurrency", "seed")
"""The words of a workload that change a trace as well."""
OF_TRACE: Final = (*_WORDS_OF_TRACE, "speedup", "trace_format", "columns")
"""The keywords of :func:`workload` that a trace has."""
_EXAMPLES: Final = 'Name a trace, or words: "prompt=p50=2k,p95=16k output=300 arrival=poisson=4".'
_MOST_SPEEDUP: Final = 1e6


def workload(
    source: str | os.PathLike[str] | Workload | Iterable[Any] | Mapping[str, Any] | None = None,
    /,
    *,
    trace_format: str | None = None,
    columns: str | Mapping[str, str] | None = None,
    speedup: float | str | None = None,
    **words: Any,
) -> Workload:
    """The workload of a trace's path, of words, of rows ``(arrival, prompt, output, ...)`` or of requests. A workload is returned as it is.

    Words may be given as text or as keywords: ``prompt``, ``output``, ``requests``, ``arrival``, ``concurrency``, ``prefix``, ``groups``,
    ``samples``, ``turns``, ``think``, ``cancel``, ``cancel_after``, ``max``, ``seed``. Of a trace, ``requests`` takes the first so many, ``arrival``
    has other times, ``concurrency`` is the most that are with the servers at once, and ``speedup`` makes it so many times as fast. ``trace_format`` and ``columns`` say what is not seen from its content.

    >>> from hwcalc import workload
    >>> [request.prompt_tokens for request in workload("prompt=1k output=10 requests=2")]
    [1024, 1024]
    >>> [request.arrival_s for request in workload([(0, 50, 5), (7.5, 60, 5)], speedup=3)]
    [0.0, 2.5]

    Raises :class:`~hwcalc.errors.UsageError` for words that make none, and :class:`~hwcalc.errors.TraceError` for a file that is no trace.
    """
    given = {key: value for key, value in words.items() if value is not None}
    path: str | None = None
    if isinstance(source, os.PathLike):
        path = os.fspath(source)
    elif isinstance(source, str):
        # A name with a "=" may still be a file; words never are.
        if "=" in source and not os.path.lexists(source):
            given = {**words_of(source), **given}
        elif source.strip():
            path = source
        elif not given:
            raise UsageError("no workload is named.", hint=_EXAMPLES)
    elif isinstance(source, Mapping):
        other = next((key for key in source if not isinstance(key, str)), None)
        if other is not None:
            raise UsageError(f"{quoted(other, 40)} is no word of a workload.", hint=_EXAMPLES)
        given = {**source, **given}
    if path is None and (source is None or isinstance(source, (str, Mapping))):
        if trace_format is not None or columns is not None:
            raise UsageError("a trace format and columns are of a trace, and words make a workload.", hint=_EXAMPLES)
        return _faster(made(given), None, None, speedup, 0)
    wrong = next((key for key in given if key not in _WORDS_OF_TRACE), None)
    if wrong is not None:
        hint = f"Of a trace: {', '.join(_WORDS_OF_TRACE)}." if wrong in KEYS else f"Known: {', '.join(KEYS)}."
        raise UsageError(f"{shown(wrong, 40)} is not a word of a trace.", hint=hint)
    seed = parse_tokens(given.get("seed", 0), "seed", minimum=0)
    if path is not None:
        # Text from Python may hold anything: a path has no zero.
        if "\0" in path:
            raise UsageError(f"{quoted(path, 40)} is no path.", hint=_EXAMPLES)
        known = format_named(trace_format) if trace_format is not None else detect(path)
        trace = Trace(path=path, format=known, columns=parse_columns(columns), seed=seed)
        opened = Workload(
            name=Path(path).name,
            make=trace.requests,
            concurrency=trace.concurrency,
            notes=trace.notes(),
            counting=trace.requests,
            trace=known.name,
            source=known.source or None,
            licence=known.licence or None,
        )
    elif isinstance(source, Workload):
        opened = source
    elif isinstance(source, Iterable):  # rows; text and words were before
        opened = workload_of_items(source)
    else:
        raise UsageError(f"{quoted(source, 40)} is no workload.", hint=_EXAMPLES)
    if "concurrency" in given:
        opened = replace(opened, concurrency=parse_tokens(given["concurrency"], "concurrency"))
    return _faster(opened, given.get("requests"), given.get("arrival"), speedup, seed)


def _faster(opened: Workload, requests: Any, arrival: Any, speedup: Any, seed: int) -> Workload:
    """The first ``requests`` of a workload, at other times."""
    if requests is not None:
        opened = opened.first(parse_tokens(requests, "requests"))
    if arrival is None and speedup is None:
        return opened
    times = None if arrival is None else read_arrivals(arrival)
    faster = 1.0 if speedup is None else plain_number(speedup, "speedup", "2 is twice as fast, 0.5 half as fast")
    if not 1 / _MOST_SPEEDUP <= faster <= _MOST_SPEEDUP:
        raise UsageError(f"speedup is {quoted(speedup, 40)}.", hint="Allowed: 2 is twice as fast, 0.5 half as fast.")
    make = opened.make
    notes = opened.notes if times is None else tuple(note for note in opened.notes if note != AT_ONCE)
    return replace(opened, make=lambda: arriving(make(), times, seed, faster), counting=None, notes=notes)


def arriving(requests: Iterable[Request], arrivals: Arrivals | None, seed: int, speedup: float) -> Iterator[Request]:
    """The requests at other times: those of ``arrivals``, or their own at ``speedup`` times the rate. Turns keep their distance in a session."""
    times = None if arrivals is None else arrivals.times(f"{seed} arrival")
    moved: dict[object, float] = {}
    for request in requests:
        now = request.arrival_s / speedup
        if times is not None and request.after is None:
            begin = next(times)
            if request.session is not None:
                moved[request.session] = begin - now
            now = begin
        elif times is not None:
            now += moved.get(request.session, 0.0)
        yield request if now == request.arrival_s else request.changed(arrival_s=now)


_SHAPE: Final = "A row is (arrival, prompt tokens, output tokens[, prefix group or None, its tokens[, priority[, most tokens]]])."
_EARLIER: Final = r"r(0|[1-9][0-9]{0,9})"
MOST_SECONDS: Final = 1e10
"""The latest arrival: 300 years, which allows for seconds since 1970."""


def workload_of_rows(rows: Iterable[Sequence[Any]]) -> Workload:
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
    return Workload.of(requests, "rows")


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


MOST_HELD: Final = 1 << 23
"""The longest sequence of which every length is told apart."""
MADE: Final = 100_000
"""Requests that are made to see how long they are, where words make them."""


_MOST_LISTED: Final = 100_000


def check_words(value: Any, name: str) -> str:
    """The words of lengths as text. Raises :class:`~hwcalc.errors.UsageError` for those that name none; files are not read yet."""
    if isinstance(value, Lengths):
        return value.text
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, parse_token_list(value, name, _MOST_LISTED)))
    words = value.strip() if isinstance(value, str) else str(parse_tokens(value, name))
    if not _names_requests(words) and not _may_be_file(words):
        read_lengths(words, name)
    return words


def _names_requests(words: str) -> bool:
    return "=" in words and " " in words


def _may_be_file(words: str) -> bool:
    if os.path.lexists(words):
        return True
    return "=" not in words and (
        any(letter in words for letter in "/\\") or words.endswith((".csv", ".jsonl", ".json", ".parquet"))
    )


def held_lengths(words: str, longest: int) -> tuple[Lengths, str]:
    """The distribution of the tokens that a sequence holds, at most ``longest``, and in words what it is.

    A bare number is a mean; of lengths, sequences are at their full length. Of requests with a prompt and an output (words, or a trace), they
    are at a random moment of their decoding: long outputs take long, so they are seen more often.

    >>> held_lengths("4k", 32768)[1]
    'geometric with a mean of 4,096, at most 32,768'
    """
    if longest > MOST_HELD:
        raise UsageError(f"--avg-seq with sequences of {longest:,} tokens.", hint=f"At most {MOST_HELD:,}: give --seq.")
    if _names_requests(words):
        return _held_by_requests(workload(words_of(words) | _many(words)), longest), f"{words}; at a random moment of decoding"
    if _may_be_file(words):
        return _held_in_file(words, longest)
    lengths = read_lengths(words, "avg_seq", longest=longest, mean=True)
    if isinstance(lengths, Geometric):
        return lengths, f"geometric with a mean of {lengths.mean:,.0f}, at most {lengths.longest:,}"
    return lengths, f"{lengths.text}, at most {lengths.longest:,}"


def _many(words: str) -> dict[str, Any]:
    return {} if "requests=" in words else {"requests": MADE}


def _held_in_file(path: str, longest: int) -> tuple[Lengths, str]:
    """The lengths of a file that has one in each line, or those of the requests of a trace."""
    first = next(
        (line.partition("#")[0].strip() for _, line in read_lines(path, "avg_seq ") if line.partition("#")[0].strip()), ""
    )
    if first[:1].isdigit() and "," not in first:
        lengths = read_lengths(path, "avg_seq", longest=longest)
        return lengths, f"lengths of {path}, at most {lengths.longest:,}"
    opened = workload(path)
    return _held_by_requests(opened, longest), f"requests of {opened.name}, at a random moment of decoding"


def _held_by_requests(requests: Workload, longest: int) -> Lengths:
    """The tokens that are stored at a random step of a random request: prompt, and the output before the step.

    A request of 100 + 3 tokens stores 100, 101 and 102 tokens in its three steps. Those beyond the longest count as the longest.
    """
    steps = Counter[int]()
    for request in requests:
        low = min(request.prompt_tokens, longest)
        high = min(request.prompt_tokens + request.output_tokens - 1, longest)
        # As differences: a step at each length from low to high, and all the others at the longest.
        steps[low] += request.samples
        steps[high + 1] -= request.samples
        beyond = request.output_tokens - (high - low + 1)
        steps[longest] += request.samples * beyond
        steps[longest + 1] -= request.samples * beyond
    counted, now = dict[int, int](), 0
    edges = sorted(steps)
    if not edges:
        raise UsageError(f"{shown(requests.name, 60)} has no requests.", hint="A trace has a line for each request.")
    for edge, after in zip(edges, [*edges[1:], edges[-1] + 1], strict=True):
        now += steps[edge]
        if now:
            counted |= dict.fromkeys(range(edge, after), now)
    return Listed.of(counted, requests.name)
