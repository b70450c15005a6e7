"""A workload from whatever names it: words, rows, a trace, or a workload."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.errors import UsageError
from hwcalc.text import quoted, shown
from hwcalc.units import parse_tokens, plain_number
from hwcalc.workload.arrivals import read_arrivals
from hwcalc.workload.columns import parse_columns
from hwcalc.workload.formats import detect, format_named
from hwcalc.workload.made import KEYS, made, words_of
from hwcalc.workload.request import Workload
from hwcalc.workload.rows import workload_of_items
from hwcalc.workload.sessions import arriving
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
    return replace(opened, make=lambda: arriving(make(), times, seed, faster), counting=None)
