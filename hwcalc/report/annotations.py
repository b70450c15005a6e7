"""Checks as workflow commands of GitHub Actions: one annotation at the line of each check that fails or only probably holds.

The format is described in "Workflow commands for GitHub Actions": ``::error file=F,line=L,col=C,title=T::MESSAGE``. Messages escape
``%``, CR and LF; properties escape ``:`` and ``,`` too. GitHub shows at most ten errors and ten warnings of a step; the log has all.
"""

from __future__ import annotations

from hwcalc.check.result import CheckDocument, Checked
from hwcalc.report.check_text import in_full, reason, summary_line, what_is_wrong
from hwcalc.text import clean

__all__ = ["check_annotations"]


def check_annotations(document: CheckDocument) -> str:
    """One line for each check that failed, only probably holds or could not be made, errors first; then warnings and a notice with the counts."""
    order = {"error": 0, "fail": 1, "warning": 2}
    wrong = sorted((check for check in document.checks if check.status in order), key=lambda check: order[check.status])
    lines = [_annotation(check) for check in wrong]
    lines += [_command("notice", check, [note.message for note in check.warnings]) for check in document.checks if check.warnings]
    return "\n".join([*lines, f"::notice title=kvplan check::{_message(summary_line(document))}"]) + "\n"


def _annotation(check: Checked) -> str:
    lines = [in_full(item, check) for item in what_is_wrong(check)]
    return _command("warning" if check.status == "warning" else "error", check, [*lines, *reason(check).splitlines()])


def _command(level: str, check: Checked, lines: list[str]) -> str:
    where = {} if check.file == "-" else {"file": clean(check.file.replace("\\", "/"))}
    where |= {"line": str(check.line), "col": str(check.column), "title": f"kvplan: {clean(check.name)}"}
    properties = ",".join(f"{key}={_property(value)}" for key, value in where.items())
    return f"::{level} {properties}::{_message(chr(10).join(clean(line) for line in lines if line))}"


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
