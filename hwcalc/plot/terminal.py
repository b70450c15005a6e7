"""Pictures in characters, with plotext: without colours, each line by a letter of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from hwcalc.plot.series import Chart, Profile, byte_ticks, decade_ticks, drawing, even_byte_ticks, token_ticks
from hwcalc.text import clean, cut
from hwcalc.units import human_bytes


class _Drawn(NamedTuple):
    """A line of one letter through points."""

    marker: str
    points: tuple[tuple[int, int], ...]


_CROSSES: Final = _Drawn("X", ())
"""The named points, which lie above all lines."""

_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_WIDEST: Final = 120
_NARROWEST: Final = 40
_HEIGHT: Final = 20
_TICK: Final = 12
"""Columns for a tick of the lower axis."""
_FEWEST_TICKS: Final = 2
"""A state that never grows is level: the axis then reaches further, so that its size can be read."""
_ASCII: Final = str.maketrans(
    {"─": "-", "│": "|", "┌": "+", "┐": "+", "└": "+", "┘": "+", "┤": "|", "┬": "-", "├": "|", "┴": "-", "┼": "+", "·": "|"}
)


def in_characters(chart: Chart, width: int, *, ascii_only: bool = False) -> str:
    """The chart as text of at most ``width`` columns, and below it what its letters mean."""
    plotext = drawing("plotext", what="A picture in the terminal")
    width = max(_NARROWEST, min(width, _WIDEST))
    drawn = [_profile(plotext, one, width) for one in chart.profiles] if chart.profiles else [_lines(plotext, chart, width)]
    remarks = [clean(one) for one in chart.remarks]
    text = "\n".join([clean(cut(chart.title, width)), *drawn, *remarks, clean(cut(chart.caption, width))])
    lines = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    return lines.translate(_ASCII) if ascii_only else lines


def _lines(plotext: Any, chart: Chart, width: int) -> str:
    xs = [length for line in chart.lines for length in line.xs]
    ys = [size for line in chart.lines for size in line.ys if size] + [level.bytes for level in chart.levels]
    if not xs or not ys:
        return ""
    marks = [line.mark for line in chart.lines if line.mark is not None]
    drawn = [_Drawn("-", ((min(xs), level.bytes), (max(xs), level.bytes))) for level in chart.levels]
    legend, number = [], -1
    for line in chart.lines:
        number += not line.minor
        letter = _LETTERS[number % len(_LETTERS)]
        letter = letter.lower() if line.minor else letter
        drawn.append(_Drawn(letter, tuple((x, y) for x, y in zip(line.xs, line.ys, strict=True) if y)))
        mark = "" if line.mark is None else f", {line.mark.label} (X)"
        legend.append(f"  {letter}  {clean(cut(line.label, 60))}{mark}")
    legend += [f"  -  {clean(level.label)}: {human_bytes(level.bytes)}" for level in chart.levels]
    scale = decade_ticks if chart.kind == "frontier" else byte_ticks
    low, high = min(ys), max(ys)
    if len(scale(low, high)) < _FEWEST_TICKS:
        low, high = low // 2, high * 2
    ticks = scale(max(1, low), high)

    def rows(*some: _Drawn) -> list[str]:
        figure = _figure(plotext, width)
        for one in some:
            if one.points:
                xs_of, ys_of = [_log(x) for x, _ in one.points], [_log(y) for _, y in one.points]
                figure.draw(figure.signal(xs_of, ys_of, marker=one.marker).lines())
        for mark in marks if _CROSSES in some else ():
            figure.draw(figure.signal([_log(mark.x)], [_log(mark.y)], marker=_CROSSES.marker))
        for axis, marked in (("x", token_ticks(min(xs), max(xs))[:: max(1, -(-9 * _TICK // width))]), ("y", ticks)):
            figure.ruler(axis).ticks([_log(value) for value, _ in marked], [text for _, text in marked])
        # Without limits plotext begins at zero.
        figure.ruler("x").lim(_log(min(xs)), _log(max(*xs, min(xs) + 1)))
        figure.ruler("y").lim(_log(low), _log(high))
        built: str = figure.build().string(colorless=True)
        return built.splitlines()

    return "\n".join([*_together(rows(*drawn, _CROSSES), [(one.marker, rows(one)) for one in drawn]), "", *legend])


def _together(whole: Sequence[str], alone: Sequence[tuple[str, Sequence[str]]]) -> Iterator[str]:
    """The picture of all lines, where those that meet in one cell take turns from column to column: none hides another."""
    for row, text in enumerate(whole):
        cells = list(text)
        for place, cell in enumerate(text):
            found = [marker for marker, rows in alone if rows[row][place : place + 1] == marker]
            if len(found) > 1 and cell in found:
                cells[place] = found[place % len(found)]
        yield "".join(cells)


def _log(number: int) -> float:
    from math import log2

    return log2(max(1, number))


def _figure(plotext: Any, width: int) -> Any:
    figure = plotext.figure
    figure.clear()
    figure.plot_size(width, _HEIGHT)
    return figure


def _profile(plotext: Any, profile: Profile, width: int) -> str:
    figure = _figure(plotext, width)
    titles = list(dict.fromkeys(layer.title for layer in profile.layers))
    legend = []
    for letter, title in zip(_LETTERS, titles, strict=False):
        own = [layer for layer in profile.layers if layer.title == title and layer.bytes]
        legend.append(f"  {letter}  {title}")
        for layer in own:
            figure.draw(figure.signal([layer.number] * 2, [0, layer.bytes], marker=letter).lines())
    last = max((layer.number for layer in profile.layers), default=0)
    numbers = list(range(0, last + 1, max(1, -(-(last + 1) // 8))))
    figure.ruler("x").ticks(numbers, [str(number) for number in numbers])
    ticks = even_byte_ticks(max((layer.bytes for layer in profile.layers), default=0))
    figure.ruler("y").ticks([value for value, _ in ticks], [text for _, text in ticks])
    return "\n".join([clean(cut(profile.label, width)), figure.build().string(colorless=True), *legend])
