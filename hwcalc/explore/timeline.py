"""A replay over time as a page: the charts of :mod:`hwcalc.plot.timeline` to point at, in one file that makes no request."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from hwcalc._version import __version__
from hwcalc.explore.build import Frame, assemble, page_files
from hwcalc.files import write_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hwcalc.replay.traffic import Timeline

_FRAME: Final = Frame(
    main="timeline.js",
    lead="How full is the pool, and who waits?",
    about="Parts of equal length: the pool on average and at its fullest, and requests on average, of all servers together.",
)
_DIGITS: Final = 4
"""Digits after the point, which no screen shows."""


def save_timeline_page(timeline: Timeline, path: str | os.PathLike[str], option: str = "path") -> None:
    """Write the page of a replay whole or not at all. ``option`` is what names the file.

    >>> import hwcalc
    >>> from hwcalc.explore.timeline import save_timeline_page
    >>> replayed = hwcalc.simulate("Qwen/Qwen3-8B", "prompt=500 output=200 requests=60", blocks=1500, step_time="25ms")
    >>> save_timeline_page(replayed.timeline, "pool.html")  # doctest: +SKIP
    """
    write_file(os.fspath(path), timeline_page(timeline).encode(), option)


def timeline_page(timeline: Timeline) -> str:
    """The page as text. The same replay gives the same text."""
    unit, size = timeline.unit

    def short(values: Sequence[float]) -> list[float]:
        return [round(value, _DIGITS) for value in values]

    payload = {
        "live": False,
        "kvplan": __version__,
        "caption": timeline.caption,
        "unit": unit,
        "times": short([time / size for time in timeline.times]),
        **{name: short(getattr(timeline, name)) for name in ("use", "use_max", "running", "waiting")},
    }
    return assemble(page_files(), payload, timeline.title, _FRAME).text
