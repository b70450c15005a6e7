"""Run the checks of one or more files."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from formulas.frozen import frozen
from hwcalc._version import __version__
from hwcalc.api import plan
from hwcalc.check.baseline import Baseline, Growth, compare
from hwcalc.check.file import Check, CheckFile
from hwcalc.check.judge import judge
from hwcalc.check.lock import lock_of, read_lock, write_lock
from hwcalc.check.models import Models, key_of
from hwcalc.check.result import SCHEMA_VERSION, CheckDocument, Checked, CheckFailure, FileInfo, Judged, Summary
from hwcalc.check.verdict import figures_of, verdict_of
from hwcalc.errors import KvplanError, UsageError
from hwcalc.model import Note
from hwcalc.sources.wanted import printable

__all__ = ["Settings", "run_checks"]


@frozen
class Settings:
    """How to run: ``lock`` is ``use`` (where there is one), ``write`` or ``ignore``; ``reading`` goes to the model sources."""

    lock: str = "use"
    strict: bool = False
    baselines: tuple[Baseline, ...] | None = None
    growth: Growth = Growth()
    reading: Mapping[str, Any] = field(default_factory=dict)


def run_checks(files: Sequence[CheckFile], settings: Settings) -> CheckDocument:
    """Judge every check. What is wrong with one check is that check's result; a broken lock is an error of the whole run.

    Raises :class:`~hwcalc.check.errors.LockError`, and with ``lock="write"`` whatever a model that cannot be read raises: then no
    lock is written.
    """
    infos: list[FileInfo] = []
    done: list[Checked] = []
    for file in files:
        models, info = _models(file, settings)
        infos.append(info)
        done += [_checked(file, check, models, settings) for check in file.checks]
    return CheckDocument(
        schema_version=SCHEMA_VERSION,
        kvplan_version=__version__,
        files=tuple(infos),
        checks=tuple(done),
        summary=_summary(done, strict=settings.strict),
    )


def _models(file: CheckFile, settings: Settings) -> tuple[Models, FileInfo]:
    mend = f"kvplan check --lock {shlex.quote(file.path)}"
    path = lock_of(file.path)
    notes: tuple[Note, ...] = ()
    if settings.lock == "write":
        if file.path == "-":
            raise UsageError("standard input has no place for a lock beside it.", hint="Save the checks in a file.")
        models = Models(file.folder, None, mend=mend, reading=settings.reading)
        changed = write_lock(path, _all(file, models), mend)
        notes = (Note(code="lock-written", message=f"{'Wrote' if changed else 'Unchanged:'} {path}"),)
        return models, FileInfo(path=printable(file.path), checks=len(file.checks), lock=path, lock_written=changed, notes=notes)
    locked = None if settings.lock == "ignore" or file.path == "-" else read_lock(path, mend)
    if locked is not None:
        notes = (Note(code="locked", message=f"Models are taken from {path}; no network is used."),)
    return (
        Models(file.folder, locked, mend=mend, reading=settings.reading),
        FileInfo(
            path=printable(file.path),
            checks=len(file.checks),
            lock=path if locked is not None else None,
            lock_written=False,
            notes=notes,
        ),
    )


def _all(file: CheckFile, models: Models) -> dict[str, Any]:
    """The description of every model of a file."""
    found = {}
    for check in file.checks:
        for model, revision in _named(check):
            try:
                found[key_of(model, revision)] = models.raw(model, revision)
            except KvplanError as error:
                error.hint = f"{error.hint} No lock was written.".strip()
                raise
    return found


def _named(check: Check) -> list[tuple[str, str | None]]:
    """The models that a check plans: its own, and the draft model beside it."""
    named = [(check.model, check.options.get("revision"))]
    if "draft" in check.options:
        named.append((check.options["draft"], None))
    return named


def _checked(file: CheckFile, check: Check, models: Models, settings: Settings) -> Checked:
    known: dict[str, Any] = {
        "name": check.name,
        "file": printable(file.path),
        "line": check.line,
        "column": check.column,
        "model": printable(check.model),
        "status": "error",
        "verdict": None,
        "source": None,
        "revision": None,
        "plan": None,
        "requirements": (),
        "error": None,
        "warnings": (),
        "notes": (),
    }
    try:
        return Checked(**known | _judged(check, known["file"], models, settings))
    except KvplanError as error:
        failure = CheckFailure(code=error.exit_code, type=error.type, message=error.message, hint=error.hint)
        return Checked(**known | {"error": failure})


def _judged(check: Check, file: str, models: Models, settings: Settings) -> dict[str, Any]:
    revision, assume = check.options.get("revision"), check.options.get("assume")
    spec = models.spec(check.model, revision, assume)
    options = {key: value for key, value in check.options.items() if key not in {"revision", "assume"}}
    if "draft" in options:
        options["draft"] = models.spec(options["draft"], None, None)
    found = plan(spec, **options)
    judged = list(judge(check.required, found, lambda **change: plan(spec, **options | change)))
    figures, verdict = figures_of(found), verdict_of(found)
    warnings = list(found.warnings)
    for model, of in _named(check):
        lock = models.changed(model, of, assume if model == check.model else None)
        if lock is not None:
            judged.append(lock)
    if settings.baselines is not None:
        grown = compare(settings.baselines, check.name, file, (check.model, spec.id), figures, settings.growth)
        if grown is None:
            warnings.append(Note(code="no-baseline", message="No baseline has this check: nothing to compare its bytes with."))
        judged += grown or ()
    return {
        "status": _status(judged, strict=settings.strict),
        "verdict": verdict,
        "source": spec.source,
        "revision": spec.revision,
        "plan": figures,
        "requirements": tuple(judged),
        "warnings": tuple(warnings),
        "notes": found.notes,
    }


def _status(judged: Sequence[Judged], *, strict: bool) -> str:
    if not all(item.holds for item in judged):
        return "fail"
    if not all(item.certain for item in judged):
        return "fail" if strict else "warning"
    return "pass"


def _summary(done: Sequence[Checked], *, strict: bool) -> Summary:
    count = Counter(check.status for check in done)
    codes = [check.error.code for check in done if check.error is not None]
    return Summary(
        checks=len(done),
        passed=count["pass"],
        warnings=count["warning"],
        failed=count["fail"],
        errors=count["error"],
        strict=strict,
        exit_code=max(codes) if codes else 1 if count["fail"] else 0,
    )
