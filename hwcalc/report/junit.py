"""Checks as JUnit XML, the way Jenkins, GitLab and the readers of pytest's own file take it.

One ``testsuite`` for each check file, one ``testcase`` for each check. A requirement that fails is a ``failure``, a check that could
not be made an ``error``. A check that is tight passes, and says so in its ``system-out``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hwcalc.check.result import CheckDocument, Checked
from hwcalc.report.check_text import headline, in_full, place, reason, what_is_wrong

__all__ = ["check_junit"]

# Everything that XML 1.0 has no way to write, section 2.2 of the recommendation.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def check_junit(document: CheckDocument) -> str:
    """The whole document, ending in a newline."""
    summary = document.summary
    suites = [_suite(info.path, [check for check in document.checks if check.file == info.path]) for info in document.files]
    counts = {"tests": summary.checks, "failures": summary.failed, "errors": summary.errors}
    body = "".join(line + "\n" for suite in suites for line in suite)
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites{_attributes(name="kvplan check", **counts)}>\n{body}</testsuites>\n'
    )


def _suite(path: str, checks: list[Checked]) -> Iterable[str]:
    name = "standard input" if path == "-" else path
    counts = {
        "tests": len(checks),
        "failures": sum(check.status == "fail" for check in checks),
        "errors": sum(check.status == "error" for check in checks),
        "skipped": 0,
        "time": 0,
    }
    yield f"  <testsuite{_attributes(name=name, **counts)}>"
    for check in checks:
        yield from _case(name, check)
    yield "  </testsuite>"


def _case(suite: str, check: Checked) -> Iterable[str]:
    yield f"    <testcase{_attributes(classname=suite, name=check.name, time=0)}>"
    wrong = [in_full(item) for item in what_is_wrong(check)]
    if check.status == "fail":
        failed = [item.name for item in what_is_wrong(check) if not item.holds] or [item.name for item in what_is_wrong(check)]
        yield _element("failure", _lines(*wrong, place(check)), message=wrong[0], type=failed[0])
    if check.error is not None:
        error = check.error
        yield _element("error", _lines(reason(check), place(check)), message=error.message, type=error.type)
    said = _lines(
        headline(check), *(wrong if check.status == "warning" else ()), *(f"warning: {note.message}" for note in check.warnings)
    )
    if said:
        yield _element("system-out", said)
    yield "    </testcase>"


def _lines(*texts: str) -> str:
    return "\n".join(text for text in texts if text)


def _element(name: str, text: str, **attributes: str) -> str:
    return f"      <{name}{_attributes(**attributes)}>{_escaped(text)}</{name}>"


def _attributes(**values: str | int) -> str:
    return "".join(f' {name}="{_quoted(str(value))}"' for name, value in values.items())


def _escaped(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\r", "&#13;")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', "&quot;").replace("\n", "&#10;").replace("\t", "&#9;")
