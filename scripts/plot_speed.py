"""Draw how far measured speeds lie from the expected ones, class by class: the pictures of docs/speed.md.

    python scripts/plot_speed.py ROWS.jsonl [-o docs]

Rows are those of ``scripts/speed_rows.py``. Each point is a measurement, the slow ones below; the band is the range of its class. One picture
is of programs on one machine and one of servers. They are as narrow as a telephone's page, so that their words can be read there too.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

import numpy as np

ROOT: Final = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    # A script's own folder is on the path, its repository is not.
    sys.path.insert(0, str(ROOT))

from hwcalc.profiles.speed import SpeedClass, speed_classes  # noqa: E402
from scripts.screenshots import fewer_colors  # noqa: E402
from scripts.speed_rows import Compared, compared, is_plain, kind_of, rows_of  # noqa: E402

Strip = tuple[SpeedClass, str, list[Compared]]
"""Rows of one kind of speed, such as ``decode``, of one class."""

_KINDS: Final = {"decode": "#1f6feb", "prompt": "#c2410c", "serving": "#15803d"}
_TICKS: Final = (0.25, 0.5, 1, 2, 4)
_WIDTH, _MARGIN, _LABELS = 5.4, 0.1, 2.0
"""Inches: of the picture, at its sides, and of the words beside the points."""
_LINE, _STRIP, _FOOT = 0.21, 0.36, 0.6
"""Inches: of a line of a title, of a strip of points, and of the axis and its words."""
_SIZE: Final = 11.5
"""Points of words: 11 pixels where the picture is as wide as a telephone's page."""
_TITLE: Final = 50
"""Characters of a line of a title."""
_COLOURS: Final = 48
_DPI: Final = 200


def main(arguments: list[str] | None = None) -> int:
    """Draw the pictures."""
    import matplotlib as mpl

    mpl.use("Agg")

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rows", type=Path, help="the file of rows")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs", help="the folder of the pictures")
    options = parser.parse_args(arguments)
    found, refused = compared(filter(is_plain, rows_of(options.rows)))
    strips = strips_of(found)
    for family in sorted({speed_class.family for speed_class, *_ in strips}):
        target = options.output / f"speed-{family}.png"
        draw([strip for strip in strips if strip[0].family == family], target)
        fewer_colors(target, _COLOURS)
    print(f"{options.output}: {len(found)} rows, {sum(refused.values())} without an expected speed")
    return 0


def strips_of(found: Sequence[Compared]) -> list[Strip]:
    """The rows of each class and kind, slow ones first, in the order of the table of docs/speed.md."""
    rows: dict[tuple[str, str], list[Compared]] = defaultdict(list)
    for one in found:
        rows[one.speed_class, kind_of(one.row)].append(one)
    classes = {one.id: one for one in speed_classes()}
    return [(classes[name], kind, sorted(some, key=lambda one: one.measured)) for (name, kind), some in sorted(rows.items())]


def draw(strips: Sequence[Strip], target: Path) -> None:
    """Write the picture: a title for each class, below it a strip for each kind of speed."""
    from matplotlib import pyplot as plt

    classes = [(wrap(one.name, _TITLE), [*some]) for one, some in groupby(strips, key=lambda strip: strip[0])]
    height = sum((len(title) + 0.5) * _LINE + len(some) * _STRIP for title, some in classes) + _FOOT
    figure = plt.figure(figsize=(_WIDTH, height))
    top = height
    for title, some in classes:
        top -= 0.6 * _LINE
        words = {"fontsize": _SIZE, "fontweight": "bold", "va": "top", "linespacing": 1.1}
        figure.text(_MARGIN / _WIDTH, top / height, "\n".join(title), **words)
        top -= (len(title) - 0.1) * _LINE
        for speed_class, kind, points in some:
            top -= _STRIP
            left = (_MARGIN + _LABELS) / _WIDTH
            place = figure.add_axes((left, top / height, 1 - left - 2 * _MARGIN / _WIDTH, 0.9 * _STRIP / height))
            _points(place, speed_class.range_of(kind), kind, points)
            error = float(np.median([one.error for one in points]))
            label = f"{kind}, {len(points):,} row{'s' * (len(points) != 1)}: {100 * error:.0f} %"
            words = {"fontsize": _SIZE, "color": _KINDS[kind], "va": "center"}
            figure.text(_MARGIN / _WIDTH, (top + 0.45 * _STRIP) / height, label, **words)
    place.set_xticks(_TICKS, [f"{tick:g}" for tick in _TICKS], fontsize=_SIZE)
    place.set_xlabel("measured / expected", fontsize=_SIZE)
    figure.savefig(target, dpi=_DPI)


def _points(place: Any, ends: tuple[float, float], kind: str, points: Sequence[Compared]) -> None:
    """Points by their quotient of measured and expected speed, the range behind them."""
    quotients = np.clip([one.measured / one.expected for one in points], _TICKS[0], _TICKS[-1])
    heights = (np.arange(len(points)) + 0.5) / len(points)
    place.axvspan(*ends, color="#e5e7eb", linewidth=0)
    place.axvline(1, color="#555555", linewidth=0.8)
    place.plot(quotients, heights, linestyle="none", marker=".", markersize=5, color=_KINDS[kind], alpha=0.6, markeredgewidth=0)
    place.set(xscale="log", xlim=(_TICKS[0], _TICKS[-1]), ylim=(0, 1), yticks=[])
    place.set_xticks(_TICKS, [])
    place.minorticks_off()
    for side in ("top", "left", "right"):
        place.spines[side].set_visible(False)
    place.spines["bottom"].set_color("#bbbbbb")


if __name__ == "__main__":
    sys.exit(main())
