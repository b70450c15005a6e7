"""Pictures in files, with matplotlib: the same numbers give the same bytes, in colours that all can tell apart and without them."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from textwrap import fill, wrap
from typing import Any, Final

from hwcalc.planner.verdict import Verdict
from hwcalc.plot.series import COST, Cell, Chart, Line, Profile, drawing, kind_words, length_ticks, size_ticks
from hwcalc.text import clean, cut
from hwcalc.units import human_bytes

COLORS: Final = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"),
    *("#882255", "#999933", "#6655AA", "#888888", "#8B4513"),
)
"""Seven colours that differ for every kind of colour blindness (Okabe and Ito), and five more for pictures of more lines."""
_DASHES: Final[tuple[Any, ...]] = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)), (0, (1, 1)))
_MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X")
_HATCHES: Final = ("", "///", "...", "xxx", "---", "\\\\\\", "++")
INK: Final = "#222222"
QUIET: Final = "#595959"
_WIDTH: Final = 9.0
_SPACE: Final = 0.15
"""Inches between the texts of two columns."""
_ROW: Final = 0.18
"""Inches of a line of words at the right edge."""
_LINE: Final = 0.14
"""Inches of a line of words below."""
_TITLE_LINE: Final = 0.2
"""Inches of a further line of the title."""
_PARTS: Final = {"weights": "#9DB4C0", "overhead": "#CFCFCF", "activations": "#F0C987", "cache": "#0072B2"}
"""Colours of the areas of one model: the cache stands out."""
_SHOWN: Final = 2.5
"""Height of a picture in times of the memory that may be used. What needs more leaves it at the top."""
_LEAST_BAR: Final = 0.008
"""The share of the axis that a bar has at least, so that a layer with a small window can be seen."""
_NAME: Final = 60
"""Characters of a name."""
_LABEL: Final = 34
"""Characters of a line of a name at the right edge."""
_SETTINGS: Final = {
    "svg.hashsalt": "kvplan",
    "pdf.fonttype": 42,
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "hatch.linewidth": 0.6,
}
_METADATA: Final[dict[str, dict[str, str | None]]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": "kvplan"},
    "pdf": {"Creator": "kvplan", "Producer": None, "CreationDate": None},
}


def drawn(chart: Chart, format_: str) -> bytes:
    """The bytes of a file in ``png``, ``svg`` or ``pdf``."""
    words = sum(len(_words_of(line)) for line in chart.lines) + 2 * len(chart.levels)
    models = len({cell.row for cell in chart.cells})
    height = (
        1.5 + 0.75 * models
        if chart.cells
        else 1.2 + 2.4 * len(chart.profiles)
        if chart.profiles
        else max(5.2, 1.4 + 1.15 * _ROW * words)
    )
    return figure_file(chart.title, (*chart.remarks, chart.caption), height, format_, lambda figure: _draw(figure, chart))


def figure_file(title: str, below: Sequence[str], height: float, format_: str, draw: Callable[[Any], None]) -> bytes:
    """The bytes of a file of a figure on which ``draw`` puts what it shows, ``height`` inches high with one line ``below`` it."""
    matplotlib = drawing("matplotlib", what="A picture in a file")
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **_SETTINGS}), warnings.catch_warnings():
        # A character that the font lacks is drawn as a box; it is no message for the user.
        warnings.simplefilter("ignore")
        words = "\n".join(fill(_named(line, 520), 125, break_on_hyphens=False) for line in below)
        named = fill(_named(title, 120), 80, break_on_hyphens=False)
        height += words.count("\n") * _LINE + named.count("\n") * _TITLE_LINE
        figure = Figure(figsize=(_WIDTH, height), layout="constrained", facecolor="white")
        figure.suptitle(named, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
        figure.supxlabel(words, x=0.01, ha="left", fontsize=8, color=QUIET)
        draw(figure)
        out = io.BytesIO()
        metadata = {"Title": clean(title), **_METADATA[format_]}
        figure.savefig(out, format=format_, dpi=160, metadata=metadata)
    return out.getvalue()


def _draw(figure: Any, chart: Chart) -> None:
    if chart.cells:
        _draw_cells(figure.subplots(), chart.cells)
    elif chart.profiles:
        titles = list(dict.fromkeys(layer.title for profile in chart.profiles for layer in profile.layers))
        panels = figure.subplots(len(chart.profiles), 1, squeeze=False)[:, 0]
        for axes, profile in zip(panels, chart.profiles, strict=True):
            _draw_profile(axes, profile, titles, named=len(chart.profiles) > 1)
        panels[-1].set_xlabel("layer")
    else:
        _draw_lines(figure.subplots(), chart)


def _named(text: str, most: int = _NAME) -> str:
    return clean(cut(text, most))


def _draw_lines(axes: Any, chart: Chart) -> None:
    if chart.scale == "log":
        axes.set_xscale("log", base=10 if chart.kind == COST else 2)
        axes.set_yscale("log", base=10 if chart.kind in ("frontier", COST) else 2)
    _set_ticks(axes, chart)
    # The place of each name at the right edge: where its line leaves the picture.
    named: list[tuple[float, list[str], str]] = []
    for number, line in enumerate(chart.lines):
        alone = len(chart.lines) == 1 and bool(line.areas)
        _draw_line(axes, line, number, len(chart.lines), areas=alone)
        if line.xs and not alone:
            color = COLORS[number % len(COLORS)]
            named.append((line.ys[-1], _words_of(line), color))
            # From a line that ends early to its name at the right edge.
            axes.plot([line.xs[-1], axes.get_xlim()[1]], [line.ys[-1]] * 2, color=color, linewidth=0.7, alpha=0.6)
        elif line.xs:
            named += _named_areas(line)
    for level in chart.levels:
        axes.axhline(level.bytes, color=INK, linewidth=1.4, linestyle=(0, (8, 3)))
        named.append((level.bytes, [human_bytes(level.bytes), level.label], INK))
    _write_names(axes, named)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.grid(visible=True, color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _words_of(line: Line) -> list[str]:
    """Words at the end of a line: its name, on as many lines as it takes, and the point that is named on it."""
    name = wrap(_named(line.label).replace(" x ", "\u00a0x\u00a0"), _LABEL, break_long_words=False, break_on_hyphens=False)
    return [*(_named(words, _LABEL) for words in name), *([line.mark.label] if line.mark is not None else [])]


def _named_areas(line: Line) -> list[tuple[float, list[str], str]]:
    """The names of the areas of one model, each at the middle of its right end, with its bytes there."""
    names, below = [], 0
    for area in line.areas:
        size = area.ys[-1]
        names.append((below + size / 2, [f"{area.label} {human_bytes(size)}"], INK))
        below += size
    return [*names, *([(below, [line.mark.label], COLORS[1])] if line.mark is not None else [])]


def _write_names(axes: Any, named: Sequence[tuple[float, Sequence[str], str]]) -> None:
    """Write names to the right of the axes, each as near to its height as the others allow, with a thin line to where it belongs."""
    to_axes = axes.transData + axes.transAxes.inverted()
    right = axes.get_xlim()[1]
    row = _ROW / (axes.figure.get_figheight() - 1.4 - axes.figure.get_supxlabel().count("\n") * _LINE)
    wanted = sorted(
        ((min(1.0, max(0.0, to_axes.transform((right, max(height, 1e-9)))[1])), words, color) for height, words, color in named),
        key=lambda name: name[0],
    )
    tops: list[float] = []
    for height, words, _ in wanted:
        least = tops[-1] + row * len(words) if tops else row * len(words) / 2
        tops.append(max(height + row * (len(words) - 1) / 2, least))
    # What went too far up comes down again, each as far as the name above it asks.
    limit = 1.0
    for place in range(len(tops) - 1, -1, -1):
        tops[place] = min(tops[place], limit)
        limit = tops[place] - row * len(wanted[place][1])
    for top, (height, words, color) in zip(tops, wanted, strict=True):
        middle = top - row * (len(words) - 1) / 2
        axes.plot(
            [1.0, 1.015, 1.03], [height, middle, middle], transform=axes.transAxes, clip_on=False, color=color, linewidth=0.7
        )
        for place, text in enumerate(words):
            style = {"color": color, "fontsize": 9 if place == 0 else 8, "va": "center"}
            axes.text(1.037, top - row * place, text, transform=axes.transAxes, **style)


def _draw_line(axes: Any, line: Line, number: int, lines: int, *, areas: bool) -> None:
    color, every = COLORS[number % len(COLORS)], max(1, len(line.xs) // 8)
    if areas:
        colors = [_PARTS[area.label] for area in line.areas]
        axes.stackplot(line.xs, *(area.ys for area in line.areas), colors=colors, edgecolor="white", linewidth=0.5)
        color = INK
    dashes = "-" if areas else _DASHES[(number // len(COLORS) + number) % len(_DASHES)]
    # Markers of different lines stand side by side where the lines lie upon each other.
    marked = (number * every // max(1, lines), every)
    style = {
        "color": color,
        "linewidth": 1.2 if areas else 1.9,
        "linestyle": dashes,
        "marker": None if areas else _MARKERS[number % len(_MARKERS)],
    }
    axes.plot(line.xs, line.ys, markersize=5, markevery=marked, markeredgecolor="white", markeredgewidth=0.6, **style)
    if line.low and areas:
        for ends in (line.low, line.high):
            axes.plot(line.xs, ends, color=color, linewidth=0.9, linestyle=(0, (1, 2)))
    elif line.low:
        axes.fill_between(line.xs, [max(1, size) for size in line.low], line.high, color=color, alpha=0.2, linewidth=0)
    if line.mark is not None:
        cross = {"marker": "X", "markersize": 10, "markeredgecolor": "white", "zorder": 5}
        axes.plot([line.mark.x], [line.mark.y], color=COLORS[1] if areas else color, **cross)


def _set_ticks(axes: Any, chart: Chart) -> None:
    xs = [length for line in chart.lines for length in line.xs]
    ys = [size for line in chart.lines for size in (*line.ys, *line.high) if size] + [level.bytes for level in chart.levels]
    if not xs or not ys:
        return
    low, high = min(ys), chart.highest(max(ys), _SHOWN)
    if chart.scale == "log":
        # Whole markers at both ends.
        axes.set_xlim(min(xs) / 1.08, max(xs) * 1.08)
        axes.set_ylim(low / 1.5, high * 1.8)
        low, high = low // 2, high * 2
    else:
        low = 0
        axes.set_xlim(0 if min(xs) <= max(xs) // 8 else min(xs), max(*xs, min(xs) + 1))
        axes.set_ylim(0, high * 1.04)
    lengths = length_ticks(chart.kind, round(axes.get_xlim()[0]), max(xs), chart.scale)
    for axis, ticks in ((axes.xaxis, lengths), (axes.yaxis, size_ticks(chart.kind, low, high, chart.scale))):
        axis.set_ticks([value for value, _ in ticks], labels=[text for _, text in ticks])
        axis.set_ticks([], minor=True)


_VERDICTS: Final = {
    Verdict.FITS: ("#B7E1CD", ""),
    Verdict.PROBABLY: ("#FCE8B2", "..."),
    Verdict.PROBABLY_NOT: ("#F7C8A8", "///"),
    Verdict.NO: ("#F4B6AC", "xxx"),
    None: ("#EEEEEE", ""),
}
"""The colour and the hatch of a verdict."""


def _draw_cells(axes: Any, cells: Sequence[Cell]) -> None:
    models = {cell.row: cell.model for cell in cells}
    nodes = list(dict.fromkeys(cell.node for cell in cells))
    for cell in cells:
        x, y = nodes.index(cell.node), cell.row
        color, hatch = _VERDICTS[cell.verdict]
        axes.bar(x, 0.94, width=0.96, bottom=y + 0.03, color=color, hatch=hatch, edgecolor="white", linewidth=0)
        sizes = f"{human_bytes(cell.needed_bytes)} of {human_bytes(cell.usable_bytes)}" if cell.usable_bytes else ""
        small = {"fontsize": 7.5}
        rows: tuple[tuple[float, str, dict[str, Any]], ...] = (
            (0.3, cell.words, {"fontweight": "bold"}), (0.58, cell.layout if sizes else "", small), (0.78, sizes, small)
        )  # fmt: skip
        for place, text, look in rows:
            # Behind the words without the hatch.
            box = {"facecolor": color, "linewidth": 0, "pad": 1.5}
            axes.text(x, y + place, text, ha="center", va="center", color=INK, bbox=box, **look)
    axes.set_xlim(-0.5, len(nodes) - 0.5)
    axes.set_ylim(len(models), 0)
    axes.set_xticks(range(len(nodes)), [_named(node, 28) for node in nodes])
    axes.set_yticks([row + 0.5 for row in models], [_named(model, 34) for model in models.values()])
    # As wide as the names of the models, and for each node the longest text of a column.
    names, column = (
        max(text.get_window_extent().width for text in texts) / axes.figure.dpi
        for texts in (axes.get_yticklabels(), (*axes.texts, *axes.get_xticklabels()))
    )
    axes.figure.set_figwidth(max(_WIDTH, names + len(nodes) * (column + _SPACE) + 2 * _SPACE))
    axes.tick_params(length=0)
    axes.xaxis.tick_top()
    axes.spines[:].set_visible(False)


def _draw_profile(axes: Any, profile: Profile, titles: Sequence[str], *, named: bool) -> None:
    most = max((layer.bytes for layer in profile.layers), default=0)
    handles = {}
    for title, sizes in profile.kinds():
        layers = [layer for layer in profile.layers if layer.title == title]
        number = titles.index(title)
        heights = [max(layer.bytes, round(most * _LEAST_BAR)) if layer.bytes else 0 for layer in layers]
        style = {"color": COLORS[number % len(COLORS)], "hatch": _HATCHES[number % len(_HATCHES)]}
        bars = axes.bar([layer.number for layer in layers], heights, width=0.8, edgecolor="white", linewidth=0, **style)
        handles[f" {kind_words(title, sizes)}"] = bars
    ticks = size_ticks("layers", 0, most, "linear")
    axes.set_ylim(0, max(1, most) * 1.08)
    axes.yaxis.set_ticks([value for value, _ in ticks], labels=[text for _, text in ticks])
    axes.set_xlim(-0.6, max((layer.number for layer in profile.layers), default=0) + 0.6)
    axes.set_ylabel("cache of a layer")
    axes.grid(visible=True, axis="y", color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    name = f"{_named(profile.label)}: " if named else ""
    axes.set_title(f"{name}{len(profile.layers)} layers, {human_bytes(profile.total_bytes)}", loc="left", fontsize=9.5, pad=20)
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 3, "borderaxespad": 0.1}
    axes.legend(list(handles.values()), list(handles), frameon=False, fontsize=8.5, **place)
