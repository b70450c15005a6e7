"""A plan as a table for the terminal. rich is imported only when a table is drawn."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hwcalc.planner.result import Plan, Verdict
from hwcalc.report.advice import advice_pairs
from hwcalc.report.summary import (
    LayerShare,
    definition,
    figures,
    fit_lines,
    model_lines,
    request_line,
    shares,
    source_line,
    verdict,
)
from hwcalc.report.text import abbreviated, exact, layer_words, percent
from hwcalc.text import clean
from hwcalc.units import human_bytes

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

__all__ = ["PIPED_WIDTH", "hanging", "indented", "plan_table", "rendered"]

PIPED_WIDTH = 100
"""Columns of piped output; on a terminal, the most columns that are used."""

_BAR = 40


def rendered(parts: Iterable[RenderableType], *, color: bool = False, width: int = PIPED_WIDTH) -> str:
    """The text that rich would print, without trailing blanks."""
    from rich.console import Console

    console: Console = Console(
        file=io.StringIO(),
        width=min(width, PIPED_WIDTH),
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=False,
        legacy_windows=False,
        _environ={},
    )
    with console.capture() as captured:
        for part in parts:
            console.print(part, crop=False)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def plan_table(plan: Plan, *, color: bool = False, width: int = PIPED_WIDTH, quiet: bool = False) -> str:
    """The total first, then the figures, a bar for each group of layers, and notes.

    ``quiet`` leaves out the notes; warnings are always shown.
    """
    from rich.table import Table
    from rich.text import Text

    name, about, shape = model_lines(plan)
    total = plan.cache.total_bytes
    parts: list[RenderableType] = [
        Text.assemble((name, "bold"), ("  " + about, "dim")),
        Text(shape),
        Text(request_line(plan)),
        Text(),
        *_verdict(plan),
        Text.assemble(
            ("KV cache  ", "bold"), (human_bytes(total), "bold green"), f"  =  {exact(total)}", (f"  {definition(plan)}", "dim")
        ),
        Text(),
    ]
    table = Table.grid(padding=(0, 2, 0, 0))
    for justify in ("left", "right", "right", "left"):
        # Only the last column may wrap: a number is never cut.
        table.add_column(justify=justify, no_wrap=justify == "right")
    for figure in figures(plan):
        strong = "bold" if figure.name == "total" else ""
        table.add_row(
            Text("  " + figure.name, style=strong),
            Text(exact(figure.bytes), style=strong),
            Text(human_bytes(figure.bytes), style=strong),
            Text(figure.meaning, style="dim"),
        )
    parts += [table, Text()]
    parts += _bars(shares(plan), total)
    if not quiet:
        messages = [source_line(plan), *(clean(note.message) for note in plan.notes)]
        parts += [Text(), *hanging([("note", message, "dim") for message in messages])]
    if plan.warnings:
        parts += [Text(), *hanging([("warning", clean(note.message), "yellow") for note in plan.warnings])]
    return rendered(parts, color=color, width=width)


def _verdict(plan: Plan) -> list[RenderableType]:
    """Whether the plan fits, why, how much more would fit, and what would help."""
    from rich.console import Group
    from rich.text import Text

    if plan.fit is None:
        return []
    colour = {Verdict.FITS: "green", Verdict.TIGHT: "yellow", Verdict.DOES_NOT_FIT: "red"}[plan.fit.verdict]
    lines: list[RenderableType] = [Text(verdict(plan), style=f"bold {colour}")]
    lines += hanging([(label, text, "") for label, text in fit_lines(plan)])
    for command, about in advice_pairs(plan.fit.suggestions, plan.request.engine):
        # A command is never cut or wrapped: it would not be pasted as one.
        lines.append(Group(Text(f"  try  {command}", style="yellow", no_wrap=True, overflow="ignore")))
        lines += hanging([("   ", about, "dim")])
    return [*lines, Text()]


def _bars(groups: Sequence[LayerShare], total: int) -> list[RenderableType]:
    """Two lines for each group: its description, then its bar and bytes."""
    from rich.text import Text

    exact_width = max(len(exact(group.bytes)) for group in groups)
    human_width = max(len(human_bytes(group.bytes)) for group in groups)
    lines: list[RenderableType] = []
    for group in groups:
        filled = 0 if total == 0 else max(1 if group.bytes else 0, (2 * _BAR * group.bytes + total) // (2 * total))
        layers = layer_words(group.count, group.layers, abbreviated(group.layers.text)) if group.count else ""
        described = " · ".join(filter(None, (layers, group.rule, group.dtypes)))
        lines += [
            indented(Text.assemble((group.title, "bold"), ("  " + described, "dim"))),
            Text.assemble(
                ("  " + "█" * filled, "cyan"),
                ("░" * (_BAR - filled), "dim"),
                f"  {percent(group.bytes, total):>7}"
                f"  {exact(group.bytes):>{exact_width}}  {human_bytes(group.bytes):>{human_width}}",
            ),
        ]
    return lines


def indented(text: Text) -> RenderableType:
    """A paragraph indented by two columns."""
    from rich.padding import Padding

    return Padding(text, (0, 0, 0, 2))


def hanging(rows: Sequence[tuple[str, str, str]]) -> list[RenderableType]:
    """Rows of label, text and style in one grid; long texts wrap with a hanging indent."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(ratio=1, overflow="fold")
    for label, message, style in rows:
        table.add_row(Text("  " + label, style=style), Text(message, style=style))
    return [table]
