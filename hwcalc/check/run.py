"""Run the checks of one or more files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from hwcalc._version import __version__
from hwcalc.check.baseline import (
    Baseline,
    Grown,
    Growth,
    JudgedWith,
    Subject,
    comparable,
    compared,
    gone,
    no_growth,
    setup_of,
    versions_of,
    with_accept,
)
from hwcalc.check.changes import as_written, asked_of, changed_keys, placed
from hwcalc.check.deployed import Deployment, typed_command
from hwcalc.check.file import (
    Check,
    CheckFile,
    CheckUsageError,
    Fault,
    LockError,
    Unread,
)
from hwcalc.check.judge import judge, limits_of
from hwcalc.check.models import SUFFIX, Lock, Models, key_of, read_lock, write_lock
from hwcalc.check.result import (
    CheckDocument,
    Checked,
    FileInfo,
    Judged,
    KeyChange,
    figures_of,
    summary_of,
    verdict_of,
)
from hwcalc.check.server import OpenError, ServerCheck
from hwcalc.documents import SCHEMA_VERSION, ErrorInfo
from hwcalc.engines import find_engine
from hwcalc.errors import KvplanError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.library.plan import plan_loaded, with_own_length
from hwcalc.model import Note
from hwcalc.planner.asked import Access, read_options
from hwcalc.planner.command_line import command_line
from hwcalc.planner.options import COMMANDS
from hwcalc.text import operand, printable

if TYPE_CHECKING:
    from hwcalc.model import ModelSpec
    from hwcalc.planner.result import Plan


class CheckOptions(Record):
    """How to run checks. ``lock`` is ``use`` (if there is one), ``write`` or ``ignore``; ``access`` says how models are fetched.

    With ``accept``, locks that are there are written anew if all checks hold. ``looked_at`` are all files that were looked at, also those without a
    server.
    """

    lock: str = "use"
    strict: bool = False
    baselines: tuple[Baseline, ...] | None = None
    growth: Growth = Growth()
    access: Access = Access()
    accept: bool = False
    looked_at: frozenset[str] = frozenset()

    def writes_lock(self, file: CheckFile) -> bool:
        """True if the lock of a file is written."""
        return self.lock == "write" or (self.accept and self.lock == "use" and os.path.isfile(file.path + SUFFIX))


def run_checks(files: Sequence[CheckFile | Unread], options: CheckOptions) -> CheckDocument:
    """Judge every check. An error of one check, one file or one lock is a result among others.

    With ``lock="write"`` it raises the error of a model that cannot be read, or of a lock, and writes no lock.
    """
    infos: list[FileInfo] = []
    planned: list[tuple[Checked, Subject | None]] = []
    kept: dict[str, dict[tuple[str, ...], Any]] = {}
    made, locks = list[CheckFile](), list[tuple[CheckFile, Lock]]()
    for file in files:
        try:
            # A broken lock is a file that cannot be read.
            read: Unread | tuple[Models, FileInfo]
            read = file if isinstance(file, Unread) else _models(file, options, kept.setdefault(file.folder, {}))
        except LockError as error:
            if not isinstance(file, Unread) and options.writes_lock(file):
                raise
            read = Unread(path=file.path + SUFFIX, faults=(error,))
        if isinstance(read, Unread):
            infos.append(FileInfo(path=printable(read.path), checks=0))
            planned += [(fault, None) for fault in _faults(read)]
            continue
        assert not isinstance(file, Unread)
        models, info = read
        if options.writes_lock(file):
            locks.append((file, _lock_of(file, models)))
        made.append(file)
        infos.append(info)
        for check in file.checks:
            # Each name that is not known is said at its place, which may be among the defaults.
            faults, told = _on_any_gpu(check, models) if check.faults else ((), ())
            for wrong in faults:
                at = replace(_unmade(file, check), line=wrong.line, column=wrong.column, error=ErrorInfo.of(wrong.error))
                planned.append((replace(at, requirements=told), None))
                told = ()
            planned += [] if check.faults else [_checked(file, check, models, options)]
    # A file that was read may have a fault of its own beside it.
    infos = [*{info.path: info for info in reversed(infos)}.values()][::-1]
    if options.baselines is not None:
        growth, strict, checks = options.growth, options.strict, [check for check, _ in planned]
        baselines = comparable(checks, options.baselines, options.looked_at)
        read_files = [printable(file.path) for file in made]
        lost = gone(read_files, checks, baselines, growth, strict=strict, looked_at=options.looked_at)
        planned = [*compared(planned, baselines, growth, strict=strict), *((check, None) for check in lost if strict)]
        missed = [] if strict else [(check.file, Note(code="gone", message=check.requirements[0].message)) for check in lost]
        infos = [replace(info, notes=(*info.notes, *(note for file, note in missed if file == info.path))) for info in infos]
    done = [check if subject is None else _judged(check, subject, options) for check, subject in planned]
    summary = summary_of(done, strict=options.strict)
    if not (options.accept and summary.exit_code):
        of_file = {printable(file.path): (file, lock) for file, lock in locks}
        infos = [_with_lock(info, *of_file[info.path]) if info.path in of_file else info for info in infos]
    return CheckDocument(
        schema_version=SCHEMA_VERSION, kvplan_version=__version__, files=tuple(infos), checks=tuple(done), summary=summary
    )


def _faults(file: Unread) -> Iterator[Checked]:
    """The faults of a file as results. The name of one of a check file says where in the file it is."""
    path = printable(file.path)
    for fault in file.faults:
        name = "standard input" if path == "-" else path
        name = f"{name}:{fault.line}:{fault.column}" if isinstance(fault, CheckUsageError) else name
        yield Checked(name=name, file=path, line=fault.line, column=fault.column, error=ErrorInfo.of(fault))


def _lock_command(file: CheckFile) -> str:
    """The command that writes the lock of a file."""
    if isinstance(file, Deployment):
        # The lock has what was said of its servers too.
        servers = {check.name for check in file.checks}
        return f"{typed_command([file.path], [file.text], file.told, file.told.options, servers=servers)} --lock"
    return f"kvplan check --lock {operand(file.path)}"


def _models(file: CheckFile, options: CheckOptions, kept: dict[tuple[str, ...], Any]) -> tuple[Models, FileInfo]:
    """The models of a file, from its lock where that is used, and what is known of the file."""
    mend, path = _lock_command(file), file.path + SUFFIX
    info = FileInfo(path=printable(file.path), checks=len(file.checks), notes=file.notes)
    if options.writes_lock(file):
        if file.path == "-":
            raise UsageError("standard input has no place for a lock beside it.", hint="Save the checks in a file.")
        return Models(file.folder, None, mend=mend, access=options.access), info
    locked = None if options.lock == "ignore" or file.path == "-" else read_lock(path, mend)
    models = Models(file.folder, locked, mend=mend, access=options.access, kept=kept)
    if locked is None:
        return models, info
    note = Note(code="locked", message=f"Models are taken from {path}; no network is used.")
    return models, replace(info, lock=path, notes=(note, *file.notes))


def _lock_of(file: CheckFile, models: Models) -> Lock:
    """What is to be kept of the models of a file. Raises the error of one that cannot be read."""
    raws, asked = {}, {}
    for check in file.checks:
        # Of a server that leaves its model open there is nothing to keep.
        for model, revision in _named(check) if check.model else ():
            try:
                raws[key_of(model, revision)] = models.raw(model, revision)
            except KvplanError as error:
                error.hint = f"{error.hint} No lock was written.".strip()
                raise
    for check in file.checks:
        with suppress(KvplanError):  # a value that is wrong: making the check raises the same error
            asked[check.name] = asked_of(check)
    return Lock(models=raws, checks=asked)


def _with_lock(info: FileInfo, file: CheckFile, lock: Lock) -> FileInfo:
    """What is known of a file once its lock is written."""
    path = file.path + SUFFIX
    changed = write_lock(path, lock, _lock_command(file))
    note = Note(code="lock-written", message=f"{'Wrote' if changed else 'Unchanged:'} {path}")
    return replace(info, lock=path, lock_written=changed, notes=(note, *_of_nameless(file), *info.notes))


def _of_nameless(file: CheckFile) -> Iterator[Note]:
    """A note where the lock cannot say later what changed in some of the checks."""
    lines = [check.line for check in file.checks if check.nameless]
    if len(lines) == 1:
        said = f"The check in line {lines[0]} has no name. Once what it plans changes, nothing says what changed since the lock: give it a name."
        yield Note(code="nameless", message=said)
    elif lines:
        which = f"{len(lines):,} checks have no name, the first in line {lines[0]}"
        said = f"{which}. Once what such a check plans changes, nothing says what changed since the lock: give each a name."
        yield Note(code="nameless", message=said)


def _named(check: Check) -> list[tuple[str, str | None]]:
    """The models that a check plans, with their revisions: its model and the draft model."""
    named = [(check.model, check.options.get("revision"))]
    if "draft" in check.options:
        named.append((check.options["draft"], None))
        return named
    with suppress(KvplanError):  # an engine or option that is wrong: planning the check raises the same error
        draft = _option_draft(check)
        if draft is not None:
            named.append((draft, None))
    return named


def _option_draft(check: Check) -> str | None:
    """The draft model that an engine option of the check names."""
    asked = read_options(check.options)
    return find_engine(asked.engine)[0].requests.draft_named(asked.engine_options)


def _checked(file: CheckFile, check: Check, models: Models, options: CheckOptions) -> tuple[Checked, Subject | None]:
    """A check with what is known of its lock, and what a baseline is compared with; where it could not be planned, why."""
    known = _unmade(file, check)
    if not check.required:
        return _unplanned(known, check, models, options)
    try:
        spec, replan = _planner(check, models)
        planned = check.started(replan(advise=True), replan)
        compared = (
            models.changed(model, of, check.options.get("assume") if model == check.model else None)
            for model, of in _named(check)
        )
        locks = tuple(lock for lock in compared if lock is not None)
        if not all(lock.holds for lock in locks):
            # What is locked is no longer the model: figures of it would be of neither.
            failed = tuple(placed(lock, check, ()) for lock in locks)
            return replace(known, status="fail", source=spec.source, revision=spec.revision, requirements=failed), None
        figures, asked = figures_of(planned), asked_of(check)
    except KvplanError as error:
        return _not_started(known, check, error, models, options)
    made = replace(
        known,
        asked=asked,
        changes=_since_lock(check, models, asked),
        verdict=verdict_of(planned),
        source=spec.source,
        revision=spec.revision,
        plan=figures,
        requirements=locks,
        warnings=(*check.warned(planned), *_on_host(planned)),
        notes=planned.notes,
    )

    def judged_with(beside: tuple[Judged, ...], changes: tuple[KeyChange, ...], grown: Grown) -> Sequence[Judged]:
        # A change of a server that runs is offered only where it surely does, and its flags have values of their own.
        deployed, search = check.document is not None, partial(_search, spec)
        judged = judge(
            check.required,
            planned,
            replan,
            check.places,
            sure=options.strict or deployed,
            beside=beside,
            grown=grown,
            changes=() if deployed else changes,
            search=partial(search, check),
        )
        own = len(check.required)
        if isinstance(check, ServerCheck):
            server = replace(check, grown=grown, strict=options.strict)
            plans = (planned, lambda other: _planner(other, models)[1])
            return server.settled(judged[:own], *plans, judged[own:], search, changes)
        return judged

    return made, _subject(made, check, models, planned, judged_with)


def _since_lock(check: Check, models: Models, asked: Mapping[str, str]) -> tuple[KeyChange, ...]:
    """The keys that are not as in the lock."""
    before = models.asked_before(check.name)
    return () if before is None else changed_keys(before, asked, "lock")


def _subject(made: Checked, check: Check, models: Models, planned: Plan | None, judged_with: JudgedWith) -> Subject:
    """What a baseline is compared with, of a check and its plan; of one that its engine refuses, only what changed."""
    figures = None if planned is None else figures_of(planned)
    version, revision = (None, None) if planned is None else (planned.request.engine_version, planned.model.revision)
    return Subject(
        check=check,
        file=made.file,
        models=(check.model,) if planned is None else (check.model, planned.model.id),
        setup=() if planned is None else setup_of(planned),
        figures=figures,
        asked=made.asked,
        versions=versions_of(version, revision, __version__),
        judged_with=judged_with,
        refused=lambda error: _refused(made, check, error, models),
    )


def _unplanned(known: Checked, check: Check, models: Models, options: CheckOptions) -> tuple[Checked, Subject | None]:
    """A check of which nothing is planned. A server with too few GPUs is compared as it would be on enough: what is offered of it may not grow."""

    def planner(other: Check) -> Callable[..., Plan]:
        return _planner(other, models)[1]

    def judged_with(beside: tuple[Judged, ...], changes: tuple[KeyChange, ...], grown: Grown) -> Sequence[Judged]:
        server = replace(check, grown=grown, strict=options.strict) if isinstance(check, ServerCheck) else check
        return [*beside, *server.unplanned(planner, changes)]

    if isinstance(check, ServerCheck) and check.few is not None:
        asked, planned = None, None
        with suppress(KvplanError):  # what the engine refuses on enough of them is told in its place
            enough = check.on_enough
            asked = {**asked_of(enough), "gpus": str(check.few.gpus)}
            planned = planner(enough)()
        if asked is not None:
            made = replace(known, asked=asked, changes=_since_lock(check, models, asked))
            return made, _subject(made, check, models, planned, judged_with)
    judged = judged_with((), (), no_growth)
    return replace(known, status=_status(judged, strict=options.strict), requirements=tuple(judged)), None


def _not_started(
    known: Checked, check: Check, error: KvplanError, models: Models, options: CheckOptions
) -> tuple[Checked, Subject | None]:
    """A check that cannot be made: of a server that its engine refuses to start, what changed is known, and what is offered of it may not grow."""
    refused = _refused(known, check, error, models)
    if refused.error is not None or not isinstance(check, ServerCheck):
        return refused, None

    def judged_with(beside: tuple[Judged, ...], changes: tuple[KeyChange, ...], grown: Grown) -> Sequence[Judged]:
        server = replace(check, grown=grown, strict=options.strict)
        found = server.refusal(error, lambda other: _planner(other, models)[1], changes)
        return [*beside, *check.told, *([] if found is None else [found])]

    asked = asked_of(check)
    made = replace(known, asked=asked, changes=_since_lock(check, models, asked))
    return made, _subject(made, check, models, None, judged_with)


def _on_host(plan: Plan) -> Iterator[Note]:
    """A warning if the engine leaves a part of the model in the memory of the host: it fits so, and is far slower."""
    if plan.partly_on_host:
        yield Note(code="host-memory", message=f"{plan.places}: that part is read far slower.")


def _refused(known: Checked, check: Check, error: KvplanError, models: Models) -> Checked:
    """The result of a check that cannot be made: why, or the requirement that fails because of it."""
    refused = check.refusal(error, lambda other: _planner(other, models)[1])
    if refused is not None:
        return replace(known, status="fail", requirements=(*check.told, refused))
    wrong = check.failed(error)
    return replace(known, line=wrong.line, column=wrong.column, error=ErrorInfo.of(wrong.error), requirements=check.told)


def _search(spec: ModelSpec, check: Check) -> str:
    """The command that looks for other hardware for a check, within its limits of time and for as many users."""
    users = max((item.limit for item in check.required if item.name == "min_users"), default=0)
    asked = {**check.options, **limits_of(check.required)} | (
        {"batch": max(users, check.options.get("batch", 1))} if users else {}
    )
    if isinstance(check, ServerCheck):
        # Other hardware serves as many at once as there are users.
        users_option = check.engine.facts.users_option
        knobs = {name: value for name, value in asked.get("engine_options", {}).items() if name != users_option}
        asked = {name: value for name, value in asked.items() if name != "engine_options"} | (
            {"engine_options": knobs} if knobs else {}
        )
    given = {name: value for name, value in asked.items() if name in COMMANDS["recommend"]}
    line = command_line(spec, {}, model=check.model, asked=read_options(given))
    return line.text.replace("kvplan", "kvplan recommend", 1)


def _changed(options: Mapping[str, Any], settings: Mapping[str, str | None]) -> dict[str, Any]:
    """The keywords that make these settings: one of an engine is named ``engine_options.NAME``, and ``None`` takes it back."""
    out: dict[str, Any] = {}
    for name, value in settings.items():
        key, _, inner = name.partition(".")
        if inner:
            pairs = {**(out.get(key) or options.get(key) or {}), inner: value}
            out[key] = {each: text for each, text in pairs.items() if text is not None}
        else:
            out[key] = value
    return out


def _judged(check: Checked, subject: Subject, options: CheckOptions) -> Checked:
    """The check with each requirement judged, at its place; where it fails, with what to change."""
    try:
        judged = subject.judged_with(check.requirements, check.changes, subject.grown)
    except KvplanError as error:
        return subject.refused(error)
    return replace(
        check,
        status=_status(judged, strict=options.strict),
        requirements=tuple(placed(item, subject.check, check.changes) for item in with_accept(judged, options.growth)),
        changes=as_written(check.changes, subject.check),
    )


def _planner(check: Check, models: Models) -> tuple[ModelSpec, Callable[..., Plan]]:
    """The model of a check, and what makes its plan, with some options changed."""
    read_with = {name: check.options.get(name) for name in ("revision", "assume")}
    spec = models.spec(check.model, **read_with)
    models.plan(spec)
    keywords = {key: value for key, value in check.options.items() if key not in read_with} | limits_of(check.required)
    if "draft" in keywords:
        keywords["draft"] = models.spec(keywords["draft"], None, None)
    named = None if "draft" in keywords else _option_draft(check)
    draft = None if named is None else models.spec(named, None, None)

    def replan(*, advise: bool = False, settings: Mapping[str, str | None] = MappingProxyType({}), **change: Any) -> Plan:
        asked = with_own_length(keywords | _changed(keywords, settings) | change, check.own_length, spec.max_position_embeddings)
        return plan_loaded(spec, asked, draft, advise=advise, read_with=read_with if advise else None)

    return spec, replan


def _on_any_gpu(check: Check, models: Models) -> tuple[Sequence[Fault], Sequence[Judged]]:
    """The faults of a check that cannot be made, and what is known of it all the same: of a server that leaves something open also whether its model is
    there, and of one that lacks an accelerator alone what its engine refuses on any.
    """
    if (
        not isinstance(check, ServerCheck)
        or not check.options
        or not all(isinstance(each.error, OpenError) for each in check.faults)
    ):
        return check.faults, check.told
    try:
        _, replan = _planner(check, models)
    except KvplanError as error:
        return check.lacking(error), check.told
    if check.without_gpu is None or len(check.faults) > 1:
        return check.faults, check.told
    try:
        return check.faults, check.settled((), replan(), lambda other: _planner(other, models)[1])
    except KvplanError as error:
        refused = check.refusal(error, lambda other: _planner(other, models)[1])
        return check.faults, check.told if refused is None else (*check.told, refused)


def _unmade(file: CheckFile, check: Check) -> Checked:
    """The result of a check before it is made."""
    path, model = printable(file.path), printable(check.model)
    return Checked(name=check.name, file=path, line=check.line, column=check.column, model=model, server=check.document)


def _status(judged: Sequence[Judged], *, strict: bool) -> str:
    if not all(item.holds for item in judged):
        return "fail"
    if not all(item.certain for item in judged):
        return "fail" if strict else "warning"
    return "pass"
