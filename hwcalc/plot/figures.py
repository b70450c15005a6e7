"""Pictures in files, with matplotlib: the same numbers give the same bytes, in colours that all can tell apart and without them."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import Any, Final

from hwcalc.plot.series import Chart, Line, Profile, byte_ticks, decade_ticks, drawing, even_byte_ticks, token_ticks
from hwcalc.text import clean, cut
from hwcalc.units import human_bytes

_COLORS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Seven colours that differ for every kind of colour blindness (Okabe and Ito)."""
_DASHES: Final[tuple[Any, ...]] = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)), (0, (1, 1)))
_MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X")
_HATCHES: Final = ("", "///", "...", "xxx", "---", "\\\\\\", "++")
_INK: Final = "#222222"
_QUIET: Final = "#595959"
_PAPER: Final = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.0}
"""Behind words that may lie on a line."""
_WIDTH: Final = 9.0
_NAME: Final = 60
"""Characters of a name."""
_SETTINGS: Final = {
    "svg.hashsalt": "kvplan",
    "pdf.fonttype": 42,
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.edgecolor": _QUIET,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "hatch.linewidth": 0.6,
}
_METADATA: Final[dict[str, dict[str, str | None]]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": "kvplan"},
    "pdf": {"Creator": "kvplan", "Producer": None, "CreationDate": None},
}


def drawn(chart: Chart, format_: str) -> bytes:
    """The bytes of a file in ``png``, ``svg`` or ``pdf``."""
    matplotlib = drawing("matplotlib", what="A picture in a file")
    from matplotlib.figure import Figure

    height = 1.2 + 2.2 * len(chart.profiles) if chart.profiles else 5.6
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **_SETTINGS}), warnings.catch_warnings():
        # A character that the font lacks is drawn as a box; it is no message for the user.
        warnings.simplefilter("ignore")
        figure = Figure(figsize=(_WIDTH, height), layout="constrained", facecolor="white")
        figure.suptitle(_named(chart.title, 120), x=0.01, ha="left", fontsize=12, fontweight="bold", color=_INK)
        if chart.profiles:
            titles = list(dict.fromkeys(layer.title for profile in chart.profiles for layer in profile.layers))
            panels = figure.subplots(len(chart.profiles), 1, squeeze=False)[:, 0]
            for axes, profile in zip(panels, chart.profiles, strict=True):
                _draw_profile(axes, profile, titles, named=len(chart.profiles) > 1)
            panels[-1].set_xlabel("layer")
        else:
            _draw_lines(figure.subplots(), chart)
        figure.supxlabel(_named(chart.caption, 160), x=0.01, ha="left", fontsize=8, color=_QUIET)
        out = io.BytesIO()
        metadata = {"Title": clean(chart.title), **_METADATA[format_]}
        figure.savefig(out, format=format_, dpi=160, metadata=metadata)
    return out.getvalue()


def _named(text: str, most: int = _NAME) -> str:
    return clean(cut(text, most))


def _draw_lines(axes: Any, chart: Chart) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=10 if chart.kind == "frontier" else 2)
    number, handles = -1, []
    for line in chart.lines:
        number += not line.minor
        handles.append(_draw_line(axes, line, number, len(chart.lines)))
    labels = [line.label for line in chart.lines]
    for level in chart.levels:
        # Its words stand in the legend: beside the line they would cover the lines of models that nearly fit.
        handles.append(axes.axhline(level.bytes, color=_INK, linewidth=1.2, linestyle=(0, (8, 3))))
        labels.append(f"{level.label}: {human_bytes(level.bytes)}")
    _set_ticks(axes, chart)
    axes.set_xlabel("tokens of a sequence")
    axes.set_ylabel(chart.y_label)
    axes.grid(visible=True, color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if handles:
        # matplotlib leaves out what begins with an underscore.
        names = [f" {_named(label)}" for label in labels]
        axes.legend(handles, names, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, handlelength=3.6)
    for place, remark in enumerate(chart.remarks):
        axes.text(0.5, 0.5 - 0.06 * place, _named(remark, 100), transform=axes.transAxes, ha="center", color=_INK)


def _draw_line(axes: Any, line: Line, number: int, lines: int) -> Any:
    color, every = _COLORS[number % len(_COLORS)], max(1, len(line.xs) // 8)
    if line.minor:
        hollow = {"marker": _MARKERS[number % len(_MARKERS)], "markersize": 4, "markerfacecolor": "white", "markevery": every}
        return axes.plot(line.xs, line.ys, color=color, linewidth=1.1, linestyle=(0, (1, 1.2)), **hollow)[0]
    dashes = _DASHES[(number // len(_COLORS) + number) % len(_DASHES)]
    # Markers of different lines stand side by side where the lines lie upon each other.
    marked = (number * every // max(1, lines), every)
    style = {"color": color, "linewidth": 1.9, "linestyle": dashes, "marker": _MARKERS[number % len(_MARKERS)]}
    (handle,) = axes.plot(line.xs, line.ys, markersize=5, markevery=marked, markeredgecolor="white", markeredgewidth=0.6, **style)
    if line.low:
        axes.fill_between(line.xs, [max(1, size) for size in line.low], line.high, color=color, alpha=0.15, linewidth=0)
    if line.mark is not None:
        mark = line.mark
        axes.plot([mark.x], [mark.y], marker="X", markersize=10, color=color, markeredgecolor="white", zorder=5)
        # Below: what is near above it are lines of models that do not fit.
        place = {"xytext": (-8, -20 - 13 * (number % 2)), "textcoords": "offset points", "ha": "right"}
        axes.annotate(mark.label, (mark.x, mark.y), **place, fontsize=8.5, color=color, bbox=_PAPER)
    return handle


def _set_ticks(axes: Any, chart: Chart) -> None:
    xs = [length for line in chart.lines for length in line.xs]
    ys = [size for line in chart.lines for size in (*line.ys, *line.high) if size] + [level.bytes for level in chart.levels]
    if not xs or not ys:
        return
    low, high = min(ys), max(ys)
    # Whole markers at both ends.
    axes.set_xlim(min(xs) / 1.08, max(xs) * 1.08)
    axes.set_ylim(low / 1.5, high * 1.8)
    ticks = decade_ticks(low, high) if chart.kind == "frontier" else byte_ticks(low // 2, high * 2)
    for axis, found in ((axes.xaxis, token_ticks(min(xs), max(xs))), (axes.yaxis, ticks)):
        axis.set_ticks([value for value, _ in found], labels=[text for _, text in found])
        axis.set_ticks([], minor=True)


def _draw_profile(axes: Any, profile: Profile, titles: Sequence[str], *, named: bool) -> None:
    handles = {}
    for number, title in enumerate(titles):
        layers = [layer for layer in profile.layers if layer.title == title]
        if layers:
            numbers, sizes = [layer.number for layer in layers], [layer.bytes for layer in layers]
            style = {"color": _COLORS[number % len(_COLORS)], "hatch": _HATCHES[number % len(_HATCHES)]}
            handles[title] = axes.bar(numbers, sizes, width=0.8, edgecolor="white", linewidth=0, **style)
    most = max((layer.bytes for layer in profile.layers), default=0)
    found = even_byte_ticks(most)
    axes.set_ylim(0, max(1, most) * 1.08)
    axes.yaxis.set_ticks([value for value, _ in found], labels=[text for _, text in found])
    axes.set_xlim(-0.6, max((layer.number for layer in profile.layers), default=0) + 0.6)
    axes.set_ylabel("cache of a layer")
    axes.grid(visible=True, axis="y", color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if named:
        axes.set_title(_named(profile.label), loc="left", fontsize=9.5)
    place = {"loc": "lower right", "bbox_to_anchor": (1, 1), "ncols": 3, "borderaxespad": 0.1}
    axes.legend(list(handles.values()), [f" {title}" for title in handles], frameon=False, fontsize=8.5, **place)
