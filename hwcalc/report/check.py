"""The result of a run of checks in each of its formats: text, Markdown, CSV, annotations of GitHub Actions, JUnit and SARIF.

All of them tell the same findings (:func:`findings`): a check that no longer fits has no second one for its headroom, and growth is one
whatever grew. A finding stands at the key that changed since the baseline or the lock, else at its own key.

- Annotations are workflow commands (``::error file=F,line=L,col=C,title=T::MESSAGE``), one at each place of a check that fails or only
  probably holds. Messages escape ``%``, CR and LF; properties escape ``:`` and ``,`` too. GitHub shows at most ten errors and ten warnings of
  a step; the log has all.
- JUnit XML has the form that Jenkins, GitLab and readers of pytest's files accept: a ``testsuite`` for each check file, a ``testcase`` for each
  check. A requirement that fails is a ``failure``, a check that could not be made an ``error``; one that only probably holds passes and
  says so in ``system-out``. The message of a failure is its title; what it says of it, and where, is the text.
- SARIF 2.1.0 (OASIS) has a rule for each kind of requirement and a result for each finding. Its fingerprint is made of file, check and rule: it does not change when lines are added above the check.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from hwcalc.check.changes import in_words
from hwcalc.check.fields import REQUIREMENTS
from hwcalc.check.result import CheckDocument, Checked, Judged, verdict_in_words
from hwcalc.documents import dumps
from hwcalc.formulas.record import Record
from hwcalc.hardware.named import MEMORY_OPTION
from hwcalc.masking import without_tokens
from hwcalc.model import Note
from hwcalc.report.drawing import SCREEN, in_style
from hwcalc.report.styles import BAD, GOOD, UNSURE
from hwcalc.report.text import broken, csv_text, escaped, markdown_table, with_code, with_commands
from hwcalc.report.view import View
from hwcalc.text import LONGEST_WORD, clean, cut, unsafe
from hwcalc.units import human_bytes

FORMATS = ("table", "json", "markdown", "csv", "junit", "sarif", "github")


def check_report(document: CheckDocument, view: View) -> str:
    """The result as text in one of :data:`FORMATS`."""
    if view.format == "json":
        return dumps(document.to_dict())
    if view.format == "sarif":
        return check_sarif(document)
    if view.format == "junit":
        return check_junit(document)
    if view.format == "github":
        return check_annotations(document)
    if view.format == "csv":
        return check_csv(document)
    if view.format == "markdown":
        return check_markdown(document, view)
    return check_table(document, view)


_WORDS = {"pass": "ok", "warning": "probably", "fail": "FAIL", "error": "ERROR"}
_STYLES = {"pass": GOOD, "warning": UNSURE, "fail": BAD, "error": BAD}
_INDENT = 9
_LONGEST_HINT = 240


def place(check: Checked, line: int) -> str:
    """File and line, such as ``checks.yaml:5``; for standard input the line alone."""
    return f"line {line}" if check.file == "-" else f"{check.file}:{line}"


def headline(check: Checked, wrong: Iterable[Finding] = ()) -> str:
    """The verdict with its numbers, and the size of the cache; empty if there is no plan, or one of the findings has the verdict."""
    if check.plan is None or any(one.rule in {"fits", "length", "users"} for one in wrong):
        return ""
    fit = check.plan.fit
    on = f" on {fit.gpus:,} GPUs together" if fit is not None and fit.gpus > 1 else ""
    cache = f"cache {human_bytes(check.plan.cache_bytes)}{on}"
    return cache if fit is None or check.verdict is None else f"{verdict_in_words(check.verdict, fit)}; {cache}"


def _hint(hint: str) -> str:
    """The hint of an error, cut to fit a log line unless it says what to type; JSON has all of it."""
    typed = "kvplan " in hint or "--" in hint
    return hint if typed or len(hint) <= _LONGEST_HINT else hint[: hint.rfind(" ", 0, _LONGEST_HINT)].rstrip(",") + " ..."


class Finding(Record):
    """A fault of a check, told once. ``title`` is short, ``text`` has the numbers, each of ``edits`` says what to write instead.

    ``fails`` is false where a requirement holds by the expected value alone, and is not to hold for sure. ``line`` and ``column`` are
    those of the key that it is about.
    """

    rule: str
    title: str
    text: str
    edits: tuple[str, ...]
    fails: bool
    line: int
    column: int

    @property
    def lines(self) -> list[str]:
        """The text, and a line for each edit."""
        return [text for text in (self.text, *self.edits) if text]


def _apart(here: Iterable[Finding], wrong: Iterable[Finding]) -> list[str]:
    """The lines of findings that stand apart from the others of their check, with the edits that only another one has."""
    said = [line for one in here for line in one.lines]
    fails, told = any(one.fails for one in here), any(one.edits or one.rule == "baseline" for one in here)
    return said + list(next((one.edits for one in wrong if one.edits and fails and not told), ()))


_GROWTH: Final = "growth"


def findings(check: Checked, document: CheckDocument) -> list[Finding]:
    """Findings: what fails, or why a check could not be made, and behind it what holds only at an estimate's expected value."""
    out, items = list[Finding](), [item for item in check.requirements if not item.holds or not item.certain]
    # What does not fit has no headroom either.
    refuted = any(item.name == "fits" and not item.holds for item in items)
    strict = document.summary.strict
    grown = [item for item in items if item.name.startswith(_GROWTH)]
    for item in items:
        if item in grown[1:] or (refuted and item.name == "headroom"):
            continue
        if item in grown:
            rule = title = _GROWTH
            text = f"grew since the baseline: {', '.join(one.message for one in grown)}"
        else:
            rule, title = item.name, item.name
            text = f"{item.name}: {item.message}"
        if item.name == "fits":
            # A verdict is printed without its name, so that "probably fits" does not stand behind "fits".
            text, title = item.message, item.message.partition(":")[0]
        fails = strict or not item.holds
        if item.holds and item.unit != "flag":
            text += "; --strict wants it sure" if strict else "; probably holds" if item.name != "fits" else ""
        place = check.line if item.line is None else item.line, check.column if item.column is None else item.column
        # With fewer GPUs a server starts, and may then not fit.
        holds = {"fits": "fits", "gpus": "starts"}.get(item.name, "holds")
        starts = chain((f"{holds} with",), repeat("or"))
        edits = zip(starts, _edits(item, check), strict=False) if fails else ()
        said = tuple(f"{start} {edit}".replace(" with without ", " without ", 1) for start, edit in edits)
        out.append(Finding(rule=rule, title=title, text=text, edits=said, fails=fails, line=place[0], column=place[1]))
    if check.error is not None:
        title = check.error.message.removeprefix(f"{check.name}: ")
        rule = check.error.type if check.error.type in _OTHER_RULES else "error"
        hint = (_hint(check.error.hint),)
        out.append(Finding(rule=rule, title=title, text=title, edits=hint, fails=True, line=check.line, column=check.column))
    return sorted(out, key=lambda one: not one.fails)


def _edits(item: Judged, check: Checked) -> list[str]:
    """The edits of a requirement in the words of the file, each with the option that accepts what grows, and what it gives."""
    out = []
    for one in item.edits:
        flags = one.flags if check.server is not None else ""
        keys = flags or one.yaml.replace("\n", " and ")
        # To a command it is added.
        keys = (" " if "kvplan check" in keys else " and ").join(filter(None, (keys, one.accepting)))
        effect = "; ".join(filter(None, ("" if flags else one.layout, one.effect)))
        out.append(f"{keys}{f' ({effect})' if effect else ''}")
    return out


def cause(check: Checked) -> str:
    """The change, such as ``seq 16k -> 32k since the baseline``; empty if there is none, or nothing is wrong."""
    if not check.changes or check.status == "pass":
        return ""
    said = []
    for since in dict.fromkeys(change.since for change in check.changes):
        changes = [change for change in check.changes if change.since == since]
        said.append(f"{', '.join(in_words(changes))} since the {since}")
    return "; ".join(said)


def places(check: Checked, wrong: Iterable[Finding]) -> list[str]:
    """Files and lines of what is wrong, each once; of what only probably holds, where nothing fails. A check whose file is gone has none."""
    found = (one for one in wrong if one.line and (one.fails or check.status == "warning"))
    return list(dict.fromkeys(place(check, one.line) for one in found))


def _told(document: CheckDocument, *, quiet: bool) -> list[Checked]:
    """The checks that are listed: ``quiet`` leaves out those that pass and have no warning."""
    return [check for check in document.checks if not (quiet and check.status == "pass" and not check.warnings)]


def _notes(document: CheckDocument, *, quiet: bool) -> list[Note]:
    """The notes of the files: ``quiet`` leaves them out, but not why nothing at all was checked."""
    return [] if quiet and document.checks else [note for info in document.files for note in info.notes]


def _called(check: Checked) -> str:
    """The name of a check; that of a server with its model, if the name does not say it."""
    model = check.model or ""
    return check.name if check.server is None or not model or model in check.name else f"{check.name} ({model})"


def _named(check: Checked, document: CheckDocument) -> str:
    """What a check is called; of several files, with its place."""
    # The fault of a file has its place in its name.
    alone = len(document.files) == 1 or not check.line or check.name.startswith(check.file)
    return _called(check) if alone else f"{place(check, check.line)}: {_called(check)}"


def _remarks(check: Checked, *, quiet: bool) -> list[str]:
    """Warnings, and what was assumed of the hardware that a check names."""
    assumed = [] if quiet else [note.message for note in check.notes if note.code == MEMORY_OPTION]
    return [*(f"warning: {note.message}" for note in check.warnings), *(f"note: {said}" for said in assumed)]


def _definitions(document: CheckDocument, view: View) -> str:
    """Whose config is not as published, of the checks that are listed."""
    from hwcalc.report.summary import footnotes

    told = _told(document, quiet=view.quiet)
    return footnotes(((check.model or "", check.plan.definition) for check in told if check.plan is not None), view)


def check_table(document: CheckDocument, view: View) -> str:
    """One line for each check, followed by what fails, the reason and warnings; at the end the counts.

    On a terminal (a ``screen``) they stand first as well if the answer is longer than a screen. Quiet, it has no notes and no checks that pass.
    """
    quiet, width = view.quiet, view.width

    def colored(text: str, status: str) -> str:
        return in_style(text, _STYLES[status]) if view.color else text

    lines: list[str] = []
    for check in _told(document, quiet=quiet):
        wrong = findings(check, document)
        # Where something fails, the verdict does not stand beside FAIL: that it fits is not the reason.
        verdict, failed = headline(check, wrong), check.status == "fail"
        passed = check.status == "pass"
        name = f"{clean(cut(_named(check, document) if passed else _called(check), LONGEST_WORD))}  {'' if failed else verdict}".rstrip()
        lines += _wrapped(name, width, colored(f"{_WORDS[check.status]:<{_INDENT - 1}} ", check.status), 0)
        below = [*filter(None, (cause(check),)), *(line for one in wrong for line in one.lines)]
        below += [*([verdict] if failed and verdict else []), *_remarks(check, quiet=quiet)]
        # The fault of a file has its place in its name.
        if not passed and check.line and not check.name.startswith(f"{place(check, check.line)}:"):
            below.append(f"at {', '.join(cut(where, LONGEST_WORD) for where in places(check, wrong))}")
        lines += [line for text in below for line in _wrapped(clean(text), width, " " * _INDENT, 2)]
    notes = [note.message for note in _notes(document, quiet=quiet)]
    lines += [line for note in notes for line in _wrapped(clean(note), width, "note   ", 0)]
    lines += _definitions(document, view).splitlines()
    counts = colored(document.headline(), "pass" if document.summary.exit_code == 0 else "fail")
    return "\n".join([*([counts] if view.detail == "screen" and len(lines) >= SCREEN[0] else []), *lines, counts]) + "\n"


def _wrapped(text: str, width: int, first: str, hang: int) -> list[str]:
    # Escape codes of colours take no columns, so `first` does not count. A path or a number is never cut.
    room = max(20, width - _INDENT)
    if len(text) <= room and text == text.strip():
        return [first + text]
    return [(" " * _INDENT if index else first) + part for index, part in enumerate(broken(with_commands(text), room, hang))]


def check_markdown(document: CheckDocument, view: View) -> str:
    """A heading with the counts, a table of the checks, and a list of what is wrong with those that did not pass."""
    quiet = view.quiet
    rows = []
    for check in _told(document, quiet=quiet):
        fit = None if check.plan is None else check.plan.fit
        sizes = ("", "") if fit is None else (human_bytes(fit.needed_bytes), human_bytes(fit.usable_bytes))
        cache = "" if check.plan is None else human_bytes(check.plan.cache_bytes)
        failed = (
            f"fails {one.title}" for one in findings(check, document) if one.fails and one.rule != "fits" and check.error is None
        )
        verdict = "; ".join((*(() if check.verdict is None else (check.verdict.text,)), *failed))
        rows.append((_WORDS[check.status], _named(check, document), verdict, *sizes, cache))
    out = [f"### kvplan check: {escaped(document.headline())}\n"]
    if rows:
        out.append(markdown_table(("", "check", "verdict", "a GPU needs", "may use", "cache"), rows))
    lists = []
    for check in _told(document, quiet=quiet):
        wrong = findings(check, document)
        said = [*filter(None, (cause(check),)), *(line for one in wrong for line in one.lines)]
        said += _remarks(check, quiet=quiet)
        if said:
            where = f" at {', '.join(map(escaped, places(check, wrong)))}" if wrong and check.line else ""
            lists.append(f"- {escaped(_WORDS[check.status])} {escaped(_called(check))}{where}\n")
            lists += [f"  - {with_code(line)}\n" for line in said]
    notes = [f"- {with_code(note.message)}\n" for note in _notes(document, quiet=quiet)]
    out += [text for text in ("".join(lists), "".join(notes), _definitions(document, view)) if text]
    return "\n".join(out)


_COLUMNS = (
    "file", "line", "check", "model", "status", "verdict", "requirement", "holds", "certain", "unit", "limit", "got",
    "cache_bytes", "weights_bytes", "total_bytes", "message", "definition", "edits",
)  # fmt: skip


def check_csv(document: CheckDocument) -> str:
    """One row for each requirement of each check, at its line. A check that could not be made is one row with the requirement ``error``."""
    rows: list[tuple[object, ...]] = []
    for check in document.checks:
        start = (check.name, check.model or "", check.status, check.verdict or "")
        plan = check.plan
        definition = "" if plan is None else plan.definition
        figures = (None,) * 3 if plan is None else (plan.cache_bytes, plan.weights_bytes, plan.total_bytes)
        for item in check.requirements:
            judged = (item.name, item.holds, item.certain, item.unit, item.limit, item.got)
            line, said = item.line or check.line, (item.message, definition, " or ".join(_edits(item, check)))
            rows.append((check.file, line, *start, *judged, *figures, *said))
        if check.error is not None:
            said = (check.error.message, definition, check.error.hint)
            rows.append((check.file, check.line, *start, "error", False, True, "", "", "", *figures, *said))
    rows += [(info.path, *[""] * 14, note.message, "", "") for info in document.files for note in info.notes]
    return csv_text(_COLUMNS, rows)


def check_annotations(document: CheckDocument) -> str:
    """One line for each place of what failed, only probably holds or could not be made, checks with errors first; then warnings and a
    notice with the counts.
    """
    order = {"error": 0, "fail": 1, "warning": 2}
    lines = []
    for check in sorted((check for check in document.checks if check.status in order), key=lambda check: order[check.status]):
        wrong = findings(check, document)
        for where in dict.fromkeys((one.line, one.column) for one in wrong):
            here = [one for one in wrong if (one.line, one.column) == where]
            said = [*filter(None, (cause(check),)), *_apart(here, wrong)]
            lines.append(_annotation("error" if here[0].fails else "warning", check, where, said))
    warned = (check for check in document.checks if check.warnings)
    lines += [
        _annotation("warning", check, (check.line, check.column), [note.message for note in check.warnings]) for check in warned
    ]
    # That a lock was used is no news on a change.
    told = ((info, note) for info in document.files for note in info.notes if note.code != "locked")
    lines += [
        _annotation("notice", Checked(name=info.path, file=info.path, line=1, column=1), (1, 1), [note.message])
        for info, note in told
    ]
    return "\n".join([*lines, f"::notice title=kvplan check::{_message(document.headline())}"]) + "\n"


def _annotation(level: str, check: Checked, at: tuple[int, int], lines: list[str]) -> str:
    where = {} if check.file == "-" or not check.line else {"file": clean(check.file.replace("\\", "/"))}
    where |= {"line": str(at[0]), "col": str(at[1])} if check.line else {}
    where |= {"title": f"kvplan: {clean(check.name)}"}
    properties = ",".join(f"{key}={_message(value).replace(':', '%3A').replace(',', '%2C')}" for key, value in where.items())
    return f"::{level} {properties}::{_message(chr(10).join(clean(line) for line in lines if line))}"


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


# Every character that XML 1.0 does not allow (section 2.2 of the recommendation).
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# What a runner of CI jobs that shows the file would read as a command; as a reference it is the same text to a reader of XML.
_COMMAND = re.compile(r"(?<=#)#(?=\w{0,40}\[)|(?<=\n):(?=\s*:)|(?<=\n)[-+~^]")


def check_junit(document: CheckDocument) -> str:
    """The whole document, with a newline at the end."""
    summary, cases = document.summary, list[dict[str, list[Checked]]]()
    for info in document.files:
        # What a file or a check has of faults is one case.
        of_file: dict[str, list[Checked]] = {}
        for check in document.checks:
            if check.file == info.path:
                of_file.setdefault(check.name if check.model is not None else check.file, []).append(check)
        cases.append(of_file)
    unread = sum(each[0].model is None for of_file in cases for each in of_file.values())
    counts = {"tests": summary.checks + unread, "failures": summary.failed, "errors": summary.errors + unread}
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', f"<testsuites{_attributes(name='kvplan check', **counts)}>"]
    for info, of_file in zip(document.files, cases, strict=True):
        name = "standard input" if info.path == "-" else info.path
        failed, errors = (sum(each[0].status == status for each in of_file.values()) for status in ("fail", "error"))
        counts = {"tests": len(of_file), "failures": failed, "errors": errors, "skipped": 0, "time": 0}
        lines.append(f"  <testsuite{_attributes(name=name, **counts)}>")
        for case, checks in of_file.items():
            lines.append(f"    <testcase{_attributes(classname=name, name='standard input' if case == '-' else case, time=0)}>")
            lines += _outcome(checks, document)
            lines.append("    </testcase>")
        if info.notes:
            lines.append(f"    <system-out>{_escaped(chr(10).join(note.message for note in info.notes))}</system-out>")
        lines.append("  </testsuite>")
    return "".join(f"{line}\n" for line in [*lines, "</testsuites>"])


def _outcome(checks: Sequence[Checked], document: CheckDocument) -> Iterable[str]:
    """Elements for what fails, for the errors, and for what is said beside."""
    check = checks[0]

    def element(name: str, texts: Iterable[str], **attributes: str) -> str:
        return f"      <{name}{_attributes(**attributes)}>{_escaped(chr(10).join(filter(None, texts)))}</{name}>"

    def lines(one: Checked) -> list[str]:
        wrong = findings(one, document)
        # The name of a fault of a file is its place.
        where = [one.name] if one.model is None and one.name.startswith(f"{one.file}:") else places(one, wrong)
        return [*(line for each in wrong for line in each.lines), *(f"at {each}" for each in where)]

    wrong, changed = findings(check, document), cause(check)
    told = [changed, *lines(check)]
    if check.status == "fail":
        failed = [one for one in wrong if one.fails]
        title = ", ".join(one.title for one in failed)
        yield element("failure", told, message=f"{title} ({changed})" if changed else title, type=failed[0].rule)
    if check.error is not None:
        yield element("error", (line for one in checks for line in lines(one)), message=check.error.type, type=check.error.type)
    said = [
        headline(check, wrong),
        *(told if check.status == "warning" else ()),
        *(f"warning: {note.message}" for note in check.warnings),
    ]
    if any(said):
        yield element("system-out", said)


def _attributes(**values: str | int) -> str:
    quoted = {name: _escaped(str(value)).replace('"', "&quot;").replace("\n", "&#10;") for name, value in values.items()}
    return "".join(f' {name}="{value}"' for name, value in quoted.items())


def _escaped(text: str) -> str:
    text = _NOT_XML.sub("\ufffd", without_tokens(text)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = _COMMAND.sub(lambda what: f"&#{ord(what[0])};", text)
    return "".join(f"&#{ord(letter)};" if letter != "\n" and unsafe(letter) else letter for letter in text)


_SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_OTHER_RULES: Final = {
    "lock": "The model's config is the same as in the lock beside the check file.",
    _GROWTH: "Total, cache, weights and the bytes of a token have not grown more than allowed since the baseline.",
    "baseline": "A baseline has the check, where --strict demands one.",
    "flags": "The engine of a deployment knows its flags, and takes their values.",
    "gpus": "A server of a deployment has as many GPUs as its parallel sizes take.",
    "users": "A server runs as many requests at once as users send.",
    "length": "A server allows no longer sequences than its engine does for the model.",
    "open": "A deployment says all that a plan needs, or it is given with --set, --env-file or --gpu.",
    "error": "The check can be made.",
}
_RULES: Final = {**{name: field.help for name, field in REQUIREMENTS.items()}, **_OTHER_RULES}


def check_sarif(document: CheckDocument) -> str:
    """The SARIF log as JSON text."""
    from hashlib import sha256

    wrong = [(check, findings(check, document)) for check in document.checks]
    found = [(check, one, _apart([one], all_)) for check, all_ in wrong for one in all_]
    used = [name for name in _RULES if any(one.rule == name for _, one, _ in found)]
    results: list[dict[str, Any]] = []
    for check, one, lines in found:
        uri = _uri(without_tokens(check.file))
        # Services take a finding with a place alone: that of a file that is gone is the first line of another one.
        region = {"startLine": max(1, one.line), "startColumn": max(1, one.column)}
        message = "; ".join(filter(None, (cause(check), *lines))) if one.rule != "error" else " ".join(lines)
        # A server may leave several values open.
        same = one.title if one.rule == "open" else one.rule
        results.append(
            {
                "ruleId": one.rule,
                "ruleIndex": used.index(one.rule),
                "level": "error" if one.fails else "warning",
                "message": {"text": f"{clean(check.name)}: {clean(message)}"},
                "locations": [{"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}],
                "partialFingerprints": {"kvplanCheck/v1": sha256(f"{uri}\n{check.name}\n{same}".encode()).hexdigest()},
            }
        )
    rules = [
        {
            "id": name,
            "shortDescription": {"text": f"kvplan check: {name}"},
            "fullDescription": {"text": _RULES[name]},
            "defaultConfiguration": {"level": "error"},
        }
        for name in used
    ]
    run = {
        "tool": {"driver": {"name": "kvplan", "version": document.kvplan_version, "rules": rules}},
        "invocations": [
            {
                "executionSuccessful": document.summary.errors + document.summary.faults == 0,
                "exitCode": document.summary.exit_code,
                "toolExecutionNotifications": [
                    {"level": "note", "message": {"text": f"{clean(without_tokens(info.path))}: {clean(note.message)}"}}
                    for info in document.files
                    for note in info.notes
                ],
            }
        ],
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]})


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
