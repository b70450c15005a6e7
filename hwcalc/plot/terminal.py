"""Pictures in characters: by plotext in letters where text is read, in fine dots and colours on a terminal; models against nodes by rich."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from hwcalc.planner.verdict import Verdict
from hwcalc.plot.series import Cell, Chart, Line, Profile, drawing, kind_words, length_ticks, size_ticks
from hwcalc.text import clean, cut
from hwcalc.units import human_bytes


class _Drawn(NamedTuple):
    """Points that one letter, or one colour, joins. ``filled`` is drawn from the points down to the lower axis."""

    letter: str
    color: str
    points: tuple[tuple[int, int], ...]
    filled: bool = False


_CROSS: Final = "X"
_LIMIT: Final = "-"
_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_COLORS: Final = (
    "blue+",
    "orange",
    "green+",
    "magenta+",
    "cyan+",
    "yellow",
    "gray",
    "blue",
    "green",
    "magenta",
    "cyan",
    "red+",
)
_PARTS: Final = {"weights": "gray", "overhead": "magenta", "activations": "orange", "cache": "blue+"}
"""Colours of the areas of one model, as in a file."""
_WIDEST: Final = 120
_NARROWEST: Final = 40
_HEIGHT: Final = 18
_TICK: Final = 12
"""Columns for a tick of the lower axis."""
_FEWEST_TICKS: Final = 2
"""A state that never grows is level: the axis then reaches further, so that its size can be read."""
_SHOWN: Final = 2
"""Height of a picture in times of the memory that may be used."""
_ASCII: Final = str.maketrans(
    {"─": "-", "│": "|", "┌": "+", "┐": "+", "└": "+", "┘": "+", "┤": "|", "┬": "-", "├": "|", "┴": "-", "┼": "+", "·": "|"}
)


def in_characters(chart: Chart, width: int, *, ascii_only: bool, color: bool) -> str:
    """The chart as text of at most ``width`` columns, and below it what its letters or colours mean."""
    width = max(_NARROWEST, min(width, _WIDEST))
    color = color and not ascii_only
    if chart.cells:
        text = _cells(chart, width, color=color)
        return text.translate(_ASCII) if ascii_only else text
    plotext = drawing("plotext", what="A picture in the terminal")
    drawn = [_profile(plotext, each, width, color=color) for each in chart.profiles]
    drawn = drawn or [_lines(plotext, chart, width, color=color)]
    remarks = [line for remark in chart.remarks for line in _wrapped(clean(remark), width)]
    caption = _wrapped(clean(chart.caption), width)
    text = "\n".join([*_wrapped(clean(cut(chart.title, 2 * width)), width), *drawn, *remarks, *caption])
    lines = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    return lines.translate(_ASCII) if ascii_only else lines


_PAINT: Final = {Verdict.FITS: "black on green", Verdict.NO: "bright_white on red", None: ""}
"""Green and red are for what is certain; all else is yellow."""


def _cells(chart: Chart, width: int, *, color: bool) -> str:
    """Models against nodes as a table, in colours a heat map; where it is too wide, a line for each pair."""
    from io import StringIO

    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    nodes = list(dict.fromkeys(cell.node for cell in chart.cells))
    rows = [(clean(model), list(cells)) for (_, model), cells in groupby(chart.cells, lambda cell: (cell.row, cell.model))]
    first = max(len(model) for model, _ in rows)
    texts = [text for cell in chart.cells for text in (cell.node, _said(cell))]
    longest = max(len(word) for text in texts for word in text.split()) + 2
    each = min((width - first) // len(nodes) - 1, max(map(len, texts)) + 2)
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))

    def painted(cell: Cell) -> Padding:
        return Padding(Text(_said(cell)), (0, 1), style=_PAINT.get(cell.verdict, "black on yellow") if color else "")

    if each >= longest:
        for size in (first, *[each] * len(nodes)):
            table.add_column(width=size)
        table.add_row("", *(Padding(Text(node), (0, 1)) for node in nodes))
        for model, cells in rows:
            table.add_row(Text(model), *map(painted, cells))
    else:
        for model, cells in rows:
            table.add_row(Text(model))
            for cell in cells:
                table.add_row(Text(f"  {cell.node}"), painted(cell))
    drawn = Console(file=StringIO(), width=width, force_terminal=color, color_system="standard" if color else None, _environ={})
    with drawn.capture() as captured:
        drawn.print(table)
    remarks = [line for remark in chart.remarks for line in _wrapped(clean(remark), width)]
    text = [
        *_wrapped(clean(chart.title), width),
        "",
        *captured.get().splitlines(),
        "",
        *remarks,
        *_wrapped(clean(chart.caption), width),
    ]
    return "\n".join(line.rstrip() for line in text) + "\n"


def _said(cell: Cell) -> str:
    # The title says what the number is of.
    words = cell.words.removesuffix(" at once")
    return words if cell.verdict is None or cell.placed else f"{cell.verdict.text}, {words}"


def _wrapped(text: str, width: int) -> list[str]:
    from textwrap import wrap

    return wrap(text, width, break_on_hyphens=False) or [""]


def _lines(plotext: Any, chart: Chart, width: int, *, color: bool) -> str:
    xs = [length for line in chart.lines for length in line.xs]
    ys = [size for line in chart.lines for size in line.ys if size] + [level.bytes for level in chart.levels]
    if not xs or not ys:
        return ""
    log = chart.scale == "log"
    low, high = min(ys), chart.highest(max(ys), _SHOWN)
    if not log:
        low = 0
    elif len(size_ticks(chart.kind, low, high, chart.scale)) < _FEWEST_TICKS:
        low, high = max(1, low // 2), high * 2
    drawn, legend = _drawn(chart, min(xs), max(xs), high)
    marks = [line.mark for line in chart.lines if line.mark is not None and line.mark.y <= high]
    scale = _log if log else float
    ticks = size_ticks(chart.kind, low, high, chart.scale)
    lengths = length_ticks(chart.kind, min(xs), max(xs), chart.scale)

    def rows(some: Sequence[_Drawn], *, crosses: bool = False, colored: bool = False) -> list[str]:
        figure = _figure(plotext, width)
        for each in some:
            if each.points:
                marker = plotext.marker("hd" if each.filled else "braille", pixel=each.color) if colored else each.letter
                signal = figure.signal([scale(x) for x, _ in each.points], [scale(y) for _, y in each.points], marker=marker)
                figure.draw(signal.lines().fillx() if each.filled else signal.lines())
        for mark in marks if crosses else ():
            cross = plotext.marker(_CROSS, pixel="red+") if colored else _CROSS
            figure.draw(figure.signal([scale(mark.x)], [scale(mark.y)], marker=cross))
        for axis, marked in (("x", lengths[:: max(1, -(-len(lengths) * _TICK // width))]), ("y", ticks)):
            figure.ruler(axis).ticks([scale(value) for value, _ in marked], [text for _, text in marked])
        # Without limits plotext begins at zero.
        figure.ruler("x").lim(scale(min(xs)), scale(max(*xs, min(xs) + 1)))
        figure.ruler("y").lim(scale(low), scale(high))
        text: str = figure.build().string(colorless=not colored)
        return text.splitlines()

    if color:
        picture: Sequence[str] = rows(drawn, crosses=True, colored=True)
    else:
        upon = [each for each in drawn if not each.filled]
        picture = [*_together(rows(drawn, crosses=True), [(each.letter, rows([each])) for each in upon] if len(upon) > 1 else [])]
    about = cut(f"  {clean(chart.y_label)}, against {chart.x_label}", width)
    return "\n".join([*picture, about, *(_key(plotext, each, text, width, color=color) for each, text in legend)])


def _drawn(chart: Chart, first: int, last: int, high: int) -> tuple[list[_Drawn], list[tuple[_Drawn, str]]]:
    """The layers of paint, the lowest first, and their meanings."""
    drawn: list[_Drawn] = []
    legend: list[tuple[_Drawn, str]] = []
    if len(chart.lines) == 1 and chart.lines[0].areas and chart.scale == "linear":
        areas = _areas(chart.lines[0], high)
        drawn += [area for area, _ in areas]
        legend += areas
    else:
        for number, line in enumerate(chart.lines):
            points = tuple((x, y) for x, y in zip(line.xs, line.ys, strict=True) if y and y <= high)
            drawn.append(_Drawn(_LETTERS[number % len(_LETTERS)], _COLORS[number % len(_COLORS)], points))
            mark = "" if line.mark is None else f", {line.mark.label} ({_CROSS})"
            legend.append((drawn[-1], f"{clean(cut(line.label, 60))}{mark}"))
    for level in chart.levels:
        drawn.append(_Drawn(_LIMIT, "red+", ((first, level.bytes), (last, level.bytes))))
        legend.append((drawn[-1], f"{clean(level.label)}: {human_bytes(level.bytes)}"))
    return drawn, legend


def _areas(line: Line, high: int) -> list[tuple[_Drawn, str]]:
    """The areas of a line, the highest first: each covers the lower end of the area before it. Letters are their initials."""
    sums, areas = [0] * len(line.xs), []
    for area in line.areas:
        sums = [below + size for below, size in zip(sums, area.ys, strict=True)]
        points = tuple((x, min(y, high)) for x, y in zip(line.xs, sums, strict=True))
        words = f"{area.label} {human_bytes(area.ys[0])}"
        if area.ys[-1] != area.ys[0]:
            words = f"{words} to {human_bytes(area.ys[-1])}"
        if area is line.areas[-1] and line.mark is not None:
            words = f"{words}, {line.mark.label} ({_CROSS})"
        areas.append((_Drawn(area.label[0], _PARTS[area.label], points, filled=True), words))
    return areas[::-1]


def _key(plotext: Any, drawn: _Drawn, text: str, width: int, *, color: bool) -> str:
    """An entry of the legend, on as many lines as it takes."""
    text = "\n     ".join(_wrapped(text, width - 5))
    if not color:
        return f"  {drawn.letter}  {text}"
    sample = plotext.colorize("█" if drawn.filled else "⠒", drawn.color)
    return f"  {sample}  {text}"


def _together(whole: Sequence[str], alone: Sequence[tuple[str, Sequence[str]]]) -> Iterator[str]:
    """The picture of all lines, where those that meet in one cell take turns from column to column: none hides another."""
    for row, text in enumerate(whole):
        cells = list(text)
        for place, cell in enumerate(text):
            found = [letter for letter, rows in alone if rows[row][place : place + 1] == letter]
            if len(found) > 1 and cell in found:
                cells[place] = found[place % len(found)]
        yield "".join(cells)


def _log(number: int) -> float:
    from math import log2

    return log2(max(1, number))


def _figure(plotext: Any, width: int) -> Any:
    figure = plotext.figure
    figure.clear()
    # What the terminal shows stays behind the picture, and its text has the terminal's own colour.
    figure.theme("colorless")
    figure.plot_size(width, _HEIGHT)
    return figure


def _profile(plotext: Any, profile: Profile, width: int, *, color: bool) -> str:
    figure = _figure(plotext, width)
    most = max((layer.bytes for layer in profile.layers), default=0)
    legend = []
    for number, (letter, (title, sizes)) in enumerate(zip(_LETTERS, profile.kinds(), strict=False)):
        drawn = _Drawn(letter, _COLORS[number % len(_COLORS)], ())
        legend.append(_key(plotext, drawn._replace(filled=True), kind_words(title, sizes), width, color=color))
        for layer in profile.layers:
            if layer.title == title and layer.bytes:
                marker = plotext.marker("full", pixel=drawn.color) if color else letter
                figure.draw(figure.signal([layer.number] * 2, [0, layer.bytes], marker=marker).lines())
    last = max((layer.number for layer in profile.layers), default=0)
    numbers = list(range(0, last + 1, max(1, -(-(last + 1) // 8))))
    figure.ruler("x").ticks(numbers, [str(number) for number in numbers])
    ticks = size_ticks("layers", 0, most, "linear")
    figure.ruler("y").ticks([value for value, _ in ticks], [text for _, text in ticks])
    total = f": {len(profile.layers)} layers, {human_bytes(profile.total_bytes)}"
    title = f"{clean(cut(profile.label, width - len(total)))}{total}"
    return "\n".join([title, figure.build().string(colorless=not color), *legend])
