"""A replay over time, as a picture: how full the pool is, and how many requests run and wait."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from hwcalc.files import write_file
from hwcalc.plot.build import format_of
from hwcalc.plot.figures import COLORS, INK, figure_file

if TYPE_CHECKING:
    from hwcalc.replay.traffic import Timeline

_HEIGHT: Final = 5.2


def save_timeline(timeline: Timeline, path: str | os.PathLike[str], option: str = "path") -> None:
    """Write the picture of a replay whole or not at all, in the format of the file's suffix. ``option`` is what names the file.

    >>> import hwcalc
    >>> from hwcalc.plot.timeline import save_timeline
    >>> replayed = hwcalc.simulate("Qwen/Qwen3-8B", "prompt=500 output=200 requests=60", blocks=1500, step_time="25ms")
    >>> save_timeline(replayed.timeline, "pool.svg")  # doctest: +SKIP
    """
    name = os.fspath(path)
    write_file(name, timeline_file(timeline, format_of(name, option)), option)


def timeline_file(timeline: Timeline, format_: str) -> bytes:
    """The bytes of the picture in ``png``, ``svg`` or ``pdf``."""
    return figure_file(timeline.title, (timeline.caption,), _HEIGHT, format_, lambda figure: _draw(figure, timeline))


def _draw(figure: Any, timeline: Timeline) -> None:
    pool, requests = figure.subplots(2, 1, sharex=True)
    unit, size = timeline.unit
    times = [time / size for time in timeline.times]
    mean, most = ([100 * share for share in shares] for shares in (timeline.use, timeline.use_max))
    pool.fill_between(times, most, color=COLORS[5], linewidth=0, label="most")
    pool.plot(times, mean, color=COLORS[0], linewidth=1.2, label="mean")
    pool.set_ylim(0, 105)
    pool.set_ylabel("% of the pool in use")
    requests.plot(times, timeline.running, color=COLORS[0], linewidth=1.2, label="running")
    requests.plot(times, timeline.waiting, color=COLORS[1], linewidth=1.2, linestyle=(0, (4, 1.5)), label="waiting")
    requests.set_ylim(bottom=0)
    requests.set_ylabel("requests")
    requests.set_xlabel(unit)
    for axes in (pool, requests):
        axes.legend(loc="upper right", fontsize=8, frameon=False, labelcolor=INK, ncols=2)
        axes.grid(visible=True, color="#DDDDDD", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0)
