"""Results of checks as text: a table for the terminal, Markdown for a job's summary, CSV with a row for each requirement."""

from __future__ import annotations

from collections.abc import Iterator

from hwcalc.check.result import CheckDocument, Checked, Judged
from hwcalc.check.verdict import in_words
from hwcalc.hardware.named import MEMORY_OPTION
from hwcalc.report.drawing import PIPED_WIDTH, SCREEN
from hwcalc.report.text import escaped, plural
from hwcalc.text import LONGEST_WORD, clean, cut
from hwcalc.units import human_bytes

__all__ = [
    "check_csv",
    "check_markdown",
    "check_table",
    "headline",
    "in_full",
    "place",
    "reason",
    "summary_line",
    "what_is_wrong",
]

_WORDS = {"pass": "ok", "warning": "probably", "fail": "FAIL", "error": "ERROR"}
_COLORS = {"pass": "32", "warning": "33", "fail": "31", "error": "31"}
_INDENT = 9
_LONGEST_HINT = 240


def place(check: Checked) -> str:
    """File and line, such as ``checks.yaml:5``; for standard input the line alone."""
    return f"line {check.line}" if check.file == "-" else f"{check.file}:{check.line}"


def headline(check: Checked) -> str:
    """The verdict with its numbers, and the size of the cache; empty if there is no plan."""
    if check.plan is None:
        return ""
    fit = check.plan.fit
    cache = f"cache {human_bytes(check.plan.cache_bytes)}"
    return cache if fit is None or check.verdict is None else f"{in_words(check.verdict, fit)}; {cache}"


def reason(check: Checked) -> str:
    """Why a check could not be made, and a hint. The hint is cut to fit a log line; JSON has all of it."""
    if check.error is None:
        return ""
    hint = check.error.hint
    if len(hint) > _LONGEST_HINT:
        hint = hint[: hint.rfind(" ", 0, _LONGEST_HINT)].rstrip(",") + " ..."
    # The fault of a file has its place in its name.
    return f"{check.error.message.removeprefix(f'{check.name}: ')}\n{hint}".strip()


def what_is_wrong(check: Checked) -> Iterator[Judged]:
    """The requirements that fail, and those that hold only at the expected value of an estimate."""
    for item in check.requirements:
        if not item.holds or not item.certain:
            yield item


def in_full(item: Judged, check: Checked) -> str:
    """A requirement and its outcome. A verdict is printed without its name, so that "probably fits" does not stand behind "fits"."""
    text = item.message if item.name == "fits" else f"{item.name}: {item.message}"
    # Without --strict a check does not fail where all requirements hold.
    strict = check.status == "fail" and not item.certain and all(one.holds for one in check.requirements)
    return f"{text}; --strict wants it sure" if strict else text


def summary_line(document: CheckDocument) -> str:
    """``4 checks: 2 hold, 1 probably holds, 1 fails``."""
    summary = document.summary
    counts = (
        (summary.passed, "hold" if summary.passed != 1 else "holds"),
        (summary.warnings, "probably hold" if summary.warnings != 1 else "probably holds"),
        (summary.failed, "fails" if summary.failed == 1 else "fail"),
        (summary.errors, "could not be checked"),
    )
    words = ", ".join(f"{count:,} {word}" for count, word in counts if count)
    return f"{plural(summary.checks, 'check')}: {words}"


def check_table(document: CheckDocument, *, color: bool = False, width: int = PIPED_WIDTH, quiet: bool = False) -> str:
    """One line for each check, followed by what fails, the reason and warnings; at the end the counts.

    They stand first as well if the answer is longer than a screen.

    ``quiet`` leaves out notes and checks that pass.
    """
    lines: list[str] = []
    for check in _told(document, quiet=quiet):
        word = f"{_WORDS[check.status]:<{_INDENT - 1}} "
        # A failed verdict gets a line of its own below, with the reason.
        head = "" if any(item.name == "fits" for item in what_is_wrong(check)) else headline(check)
        lines += _wrapped(
            f"{clean(cut(check.name, LONGEST_WORD))}  {head}".rstrip(), width, _colored(word, check.status, color=color), 0
        )
        for item in what_is_wrong(check):
            lines += _wrapped(clean(in_full(item, check)), width, " " * _INDENT, 2)
        for line in reason(check).splitlines():
            lines += _wrapped(clean(line), width, " " * _INDENT, 2)
        for note in check.warnings:
            lines += _wrapped(f"warning: {clean(note.message)}", width, " " * _INDENT, 2)
        for said in _assumed(check, quiet=quiet):
            lines += _wrapped(f"note: {clean(said)}", width, " " * _INDENT, 2)
        if check.status != "pass" and not check.name.startswith(f"{place(check)}:"):
            lines += _wrapped(f"at {clean(cut(place(check), LONGEST_WORD))}", width, " " * _INDENT, 2)
    notes = [] if quiet else [note.message for info in document.files for note in info.notes]
    lines += [line for note in notes for line in _wrapped(clean(note), width, "note   ", 0)]
    lines += _definitions(document, "table", width, quiet=quiet).splitlines()
    status = "pass" if document.summary.exit_code == 0 else "fail"
    counts = _colored(summary_line(document), status, color=color)
    return "\n".join([*([counts] if len(lines) >= SCREEN[0] else []), *lines, counts]) + "\n"


def _assumed(check: Checked, *, quiet: bool) -> list[str]:
    """What was assumed of the hardware that a check names."""
    return [] if quiet else [note.message for note in check.notes if note.code == MEMORY_OPTION]


def _told(document: CheckDocument, *, quiet: bool) -> list[Checked]:
    """The checks that are listed: ``quiet`` leaves out those that pass and have no warning."""
    return [check for check in document.checks if not (quiet and check.status == "pass" and not check.warnings)]


def _definitions(document: CheckDocument, format_: str, width: int, *, quiet: bool) -> str:
    """Whose config is not as published, of the checks that are listed."""
    from hwcalc.report.footnote import footnotes

    planned = ((check.model or "", check.plan.definition) for check in _told(document, quiet=quiet) if check.plan is not None)
    return footnotes(planned, format_=format_, width=width)


def _wrapped(text: str, width: int, first: str, hang: int) -> list[str]:
    # Escape codes of colours take no columns, so `first` does not count. A path or a number is never cut.
    room = max(20, width - _INDENT)
    if len(text) <= room and text == text.strip():
        return [first + text]
    from textwrap import wrap

    parts = wrap(text, room, subsequent_indent=" " * hang, break_long_words=False, break_on_hyphens=False) or [""]
    return [(first if index == 0 else " " * _INDENT) + part for index, part in enumerate(parts)]


def _colored(text: str, status: str, *, color: bool) -> str:
    return f"\x1b[{_COLORS[status]}m{text}\x1b[0m" if color else text


def check_markdown(document: CheckDocument, *, quiet: bool = False) -> str:
    """A heading with the counts, a table of the checks, and a list of those that did not pass with file and line."""
    from hwcalc.report.markdown import markdown_table

    rows = [
        (
            _WORDS[check.status],
            check.name,
            "" if check.verdict is None else check.verdict.text,
            headline(check).removeprefix("" if check.verdict is None else f"{check.verdict.text}: "),
            "; ".join(
                [
                    *(in_full(item, check) for item in what_is_wrong(check)),
                    *([check.error.message.removeprefix(f"{check.name}: ")] if check.error else []),
                    *(f"warning: {note.message}" for note in check.warnings),
                    *(f"note: {said}" for said in _assumed(check, quiet=quiet)),
                ]
            ),
        )
        for check in _told(document, quiet=quiet)
    ]
    out = [f"### kvplan check: {escaped(summary_line(document))}\n"]
    if rows:
        out.append(markdown_table(("", "check", "verdict", "plan", "what is wrong"), rows))
    wrong = [check for check in document.checks if check.status != "pass"]
    if wrong:
        out.append(
            "".join(f"- {escaped(_WORDS[check.status])} {escaped(check.name)} at {escaped(place(check))}\n" for check in wrong)
        )
    notes = [] if quiet else [note.message for info in document.files for note in info.notes]
    if notes:
        out.append("".join(f"- {escaped(note)}\n" for note in notes))
    told = _definitions(document, "markdown", 0, quiet=quiet)
    out += [told] if told else []
    return "\n".join(out)


_COLUMNS = (
    "file", "line", "check", "model", "status", "verdict", "requirement", "holds", "certain", "unit", "limit", "got",
    "cache_bytes", "weights_bytes", "total_bytes", "message", "definition",
)  # fmt: skip


def check_csv(document: CheckDocument) -> str:
    """One row for each requirement of each check. A check that could not be made is one row with the requirement ``error``."""
    from hwcalc.report.listing import csv_text

    rows: list[tuple[object, ...]] = []
    for check in document.checks:
        start = (check.file, check.line, check.name, check.model or "", check.status, check.verdict or "")
        plan = check.plan
        definition = "" if plan is None else plan.definition
        figures = (None,) * 3 if plan is None else (plan.cache_bytes, plan.weights_bytes, plan.total_bytes)
        for item in check.requirements:
            judged = (item.name, item.holds, item.certain, item.unit, item.limit, item.got)
            rows.append((*start, *judged, *figures, item.message, definition))
        if check.error is not None:
            rows.append((*start, "error", False, True, "", "", "", *figures, check.error.message, definition))
    return csv_text(_COLUMNS, rows)
