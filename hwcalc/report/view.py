"""The look of an answer, and what is written the same way in every report: tables and paragraphs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from hwcalc.formulas.record import Record
from hwcalc.report.text import PIPED_WIDTH, continued, csv_text, escaped, filled, markdown_table
from hwcalc.text import clean

Detail = Literal["brief", "screen", "usual", "full"]
"""Amounts of an answer to print: its first lines, because that was asked for or because a terminal shows no more at once; those and
what they come from; or everything."""


class View(Record):
    """The look of an answer that the user has chosen: format, width, colours. ``quiet`` leaves out notes and hints."""

    format: str = "table"
    quiet: bool = False
    color: bool = False
    width: int = PIPED_WIDTH
    detail: Detail = "usual"

    def table(
        self,
        header: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        right: Iterable[int] = (),
        titles: Sequence[str] = (),
    ) -> str:
        """Rows in the chosen format; the columns in ``right`` are aligned right, and no word is cut, whatever the width.

        ``titles`` has a line for each row that stands above it, once for all rows in a run that have the same.
        """
        if self.format == "csv":
            return csv_text(header, rows)
        if self.format == "markdown":
            return markdown_table(header, rows, right=right)
        from hwcalc.report.drawing import table

        return table(header, rows, color=self.color, width=self.width, right=right, titles=titles)

    def paragraphs(self, lines: Iterable[str]) -> str:
        """Lines as a Markdown list, or as paragraphs with a hanging indent."""
        if self.format == "markdown":
            return "".join(f"- {escaped(line)}\n" for line in lines)
        return "".join(f"{filled(clean(line), self.width)}\n" for line in lines)

    def labelled(self, lines: Iterable[tuple[str, str]]) -> str:
        """Texts after their labels: a list in Markdown."""
        if self.format == "markdown":
            return "".join(f"- {escaped(label)}: {escaped(text)}\n" for label, text in lines)
        from hwcalc.report.drawing import hanging, rendered

        return rendered(hanging([(label, clean(text), "dim") for label, text in lines]), color=self.color, width=self.width)

    def command(self, label: str, command: str) -> str:
        """A command to copy, after its label. Over several lines a shell still reads it as one."""
        if self.format == "markdown":
            ticks = "``" if "`" in command else "`"
            return f"- {label}: {ticks}{command}{ticks}\n"
        line = f"{label}: {command}"
        return f"{line}\n" if len(line) <= self.width else "\n  ".join((f"{label}:", *continued(command, self.width - 2))) + "\n"

    def headed(self, title: str, verdict: str, *, agrees: bool) -> str:
        """A title, and below it whether measured and expected agree."""
        if self.format == "markdown":
            return f"### {escaped(title)}\n\n**{escaped(verdict)}**\n\n"
        return f"{filled(clean(title), self.width)}\n{self.verdict(verdict, agrees=agrees)}\n"

    def verdict(self, text: str, *, agrees: bool) -> str:
        """The answer in the colour of yes or no; an item of a list in Markdown."""
        if self.format == "markdown":
            return self.paragraphs([text])
        from hwcalc.report.drawing import marked
        from hwcalc.report.styles import BAD, GOOD

        return marked(filled(clean(text), self.width), GOOD if agrees else BAD, color=self.color, width=self.width)
