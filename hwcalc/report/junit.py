"""Checks as JUnit XML, in the form that Jenkins, GitLab and readers of pytest's JUnit files accept.

There is one ``testsuite`` for each check file and one ``testcase`` for each check. A requirement that fails is a ``failure``; a check
that could not be made is an ``error``. A check that only probably holds passes and says so in its ``system-out``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hwcalc.check.result import CheckDocument, Checked
from hwcalc.masking import without_tokens
from hwcalc.report.check_text import headline, in_full, place, reason, what_is_wrong
from hwcalc.text import unsafe

__all__ = ["check_junit"]

# Every character that XML 1.0 does not allow (section 2.2 of the recommendation).
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# What a runner of CI jobs that shows the file would read as a command; as a reference it is the same text to a reader of XML.
_COMMAND = re.compile(r"(?<=#)#(?=\w{0,40}\[)|(?<=\n):(?=\s*:)|(?<=\n)[-+~^]")


def check_junit(document: CheckDocument) -> str:
    """The whole document, with a newline at the end."""
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
    wrong = [in_full(item, check) for item in what_is_wrong(check)]
    if check.status == "fail":
        failed = [item.name for item in what_is_wrong(check) if not item.holds] or [item.name for item in what_is_wrong(check)]
        yield _element("failure", _lines(*wrong, place(check)), message=wrong[0], type=failed[0])
    if check.error is not None:
        error = check.error
        yield _element("error", _lines(reason(check), place(check)), message=error.message, type=error.type)
    remarks = _lines(
        headline(check), *(wrong if check.status == "warning" else ()), *(f"warning: {note.message}" for note in check.warnings)
    )
    if remarks:
        yield _element("system-out", remarks)
    yield "    </testcase>"


def _lines(*texts: str) -> str:
    return "\n".join(text for text in texts if text)


def _element(name: str, text: str, **attributes: str) -> str:
    return f"      <{name}{_attributes(**attributes)}>{_escaped(text)}</{name}>"


def _attributes(**values: str | int) -> str:
    return "".join(f' {name}="{_quoted(str(value))}"' for name, value in values.items())


def _escaped(text: str) -> str:
    text = _NOT_XML.sub("\ufffd", without_tokens(text)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = _COMMAND.sub(_reference, text)
    return "".join(_reference(letter) if letter != "\n" and unsafe(letter) else letter for letter in text)


def _reference(what: re.Match[str] | str) -> str:
    return f"&#{ord(what if isinstance(what, str) else what[0])};"


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', "&quot;").replace("\n", "&#10;")
