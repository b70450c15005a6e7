"""The result of a run of checks in each of its formats: text, Markdown, CSV, annotations of GitHub Actions, JUnit and SARIF.

- Annotations are workflow commands (``::error file=F,line=L,col=C,title=T::MESSAGE``), one at the line of each check that fails or only
  probably holds. Messages escape ``%``, CR and LF; properties escape ``:`` and ``,`` too. GitHub shows at most ten errors and ten warnings of
  a step; the log has all.
- JUnit XML has the form that Jenkins, GitLab and readers of pytest's files accept: a ``testsuite`` for each check file, a ``testcase`` for each
  check. A requirement that fails is a ``failure``, a check that could not be made an ``error``; one that only probably holds passes and
  says so in ``system-out``.
- SARIF 2.1.0 (OASIS) has a rule for each kind of requirement and a result for each one that fails or only probably holds, at the line and
  column of its check. Its fingerprint is made of file, check and rule: it does not change when lines are added above the check.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from hwcalc.check.fields import REQUIREMENTS
from hwcalc.check.result import CheckDocument, Checked, Judged, in_words
from hwcalc.documents import dumps
from hwcalc.hardware.named import MEMORY_OPTION
from hwcalc.masking import without_tokens
from hwcalc.report.drawing import PIPED_WIDTH, SCREEN
from hwcalc.report.text import escaped, plural
from hwcalc.text import LONGEST_WORD, clean, cut, unsafe
from hwcalc.units import human_bytes

FORMATS = ("table", "json", "markdown", "csv", "junit", "sarif", "github")


def check_report(
    document: CheckDocument, format_: str, *, color: bool = False, width: int = PIPED_WIDTH, quiet: bool = False
) -> str:
    """The result as text in one of :data:`FORMATS`."""
    if format_ == "json":
        from hwcalc.documents import dumps

        return dumps(document.to_dict())
    if format_ == "sarif":
        return check_sarif(document)
    if format_ == "junit":
        return check_junit(document)
    if format_ == "github":
        return check_annotations(document)

    if format_ == "csv":
        return check_csv(document)
    if format_ == "markdown":
        return check_markdown(document, quiet=quiet)
    return check_table(document, color=color, width=width, quiet=quiet)


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
    from hwcalc.report.summary import footnotes

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
    from hwcalc.report.text import markdown_table

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
    from hwcalc.report.text import csv_text

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


_SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_OTHER_RULES: Final = {
    "lock": "The model's config is the same as in the lock beside the check file.",
    "growth.total_bytes": "Weights and cache have not grown more than allowed since the baseline.",
    "growth.cache_bytes": "The cache has not grown more than allowed since the baseline.",
    "growth.weights_bytes": "The weights have not grown more than allowed since the baseline.",
    "growth.bytes_per_token": "One token's bytes have not grown more than allowed since the baseline.",
    "baseline": "A baseline has the check, where --strict demands one.",
    "error": "The check can be made.",
}
_RULES: Final = {**{name: field.help for name, field in REQUIREMENTS.items()}, **_OTHER_RULES}


def check_sarif(document: CheckDocument) -> str:
    """The SARIF log as JSON text."""
    results = [result for check in document.checks for result in _results(check, strict=document.summary.strict)]
    used = [name for name in _RULES if any(result["ruleId"] == name for result in results)]
    for result in results:
        result["ruleIndex"] = used.index(result["ruleId"])
    driver = {
        "name": "kvplan",
        "version": document.kvplan_version,
        "rules": [
            {
                "id": name,
                "shortDescription": {"text": f"kvplan check: {name}"},
                "fullDescription": {"text": _RULES[name]},
                "defaultConfiguration": {"level": "error"},
            }
            for name in used
        ],
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": document.summary.errors == 0, "exitCode": document.summary.exit_code}],
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]})


def _results(check: Checked, *, strict: bool) -> list[dict[str, Any]]:
    results = [
        _result(check, item.name, in_full(item, check), level=_level(item, strict=strict)) for item in what_is_wrong(check)
    ]
    if check.error is not None:
        results.append(_result(check, "error", reason(check).replace("\n", " "), level="error"))
    return results


def _level(item: Judged, *, strict: bool) -> str:
    return "error" if strict or not item.holds else "warning"


def _result(check: Checked, rule: str, message: str, *, level: str) -> dict[str, Any]:
    from hashlib import sha256

    uri = _uri(without_tokens(check.file))
    return {
        "ruleId": rule,
        "ruleIndex": 0,
        "level": level,
        "message": {"text": f"{clean(check.name)}: {clean(message)}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": uri},
                    "region": {"startLine": check.line, "startColumn": check.column},
                }
            }
        ],
        "partialFingerprints": {"kvplanCheck/v1": sha256(f"{uri}\n{check.name}\n{rule}".encode()).hexdigest()},
    }


def _uri(path: str) -> str:
    """A path as a URI, relative to the current folder if the file lies in it, as code scanning expects."""
    if path == "-":
        return "standard-input"
    whole = Path(os.path.normpath(path))
    if whole.is_absolute():
        if not whole.is_relative_to(Path.cwd()):
            return whole.as_uri()
        whole = whole.relative_to(Path.cwd())
    return quote(whole.as_posix())
