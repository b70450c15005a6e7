"""Run the checks of one or more files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc._version import __version__
from hwcalc.check.baseline import (
    Baseline,
    Grown,
    Growth,
    JudgedWith,
    Subject,
    accepted,
    accepting,
    comparable,
    compared,
    earlier,
    gone,
    no_growth,
    parse_growth,
    read_baseline,
    setup_of,
    versions_of,
)
from hwcalc.check.changes import as_written, asked_of, changed_keys, placed
from hwcalc.check.deployed import Deployment, Told, read_any, read_deployment, typed_command
from hwcalc.check.file import (
    BaselineError,
    Check,
    CheckFile,
    CheckFileError,
    CheckUsageError,
    Fault,
    LockError,
    Unread,
    parse_check_file,
)
from hwcalc.check.folders import files_in
from hwcalc.check.judge import judge, limits_of
from hwcalc.check.models import SUFFIX, Lock, Models, key_of, read_lock, write_lock
from hwcalc.check.result import (
    CheckDocument,
    Checked,
    FileInfo,
    Fix,
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
from hwcalc.files import place_of
from hwcalc.formulas.record import Record
from hwcalc.launch.read import Given, read_variables, used_in
from hwcalc.launch.server import KEYS
from hwcalc.launch.values import number
from hwcalc.library.lists import texts
from hwcalc.library.plan import plan_loaded, with_own_length
from hwcalc.model import Note
from hwcalc.planner.asked import Access, counted_once, read_options
from hwcalc.planner.command_line import command_line
from hwcalc.planner.options import COMMANDS
from hwcalc.planner.values import read_flag
from hwcalc.text import brief, did_you_mean, operand, printable, quoted, shell_word

if TYPE_CHECKING:
    from hwcalc.model import ModelSpec
    from hwcalc.planner.result import Plan

_LOCKS: Final = ("use", "write", "ignore")
_LONGEST_NAME: Final = 200
"""Characters of a name of a baseline in a message."""
_ALIKE: Final = 0.8
"""How much a name that no file has resembles one that is meant: ``node`` is not ``code``."""
_SETTINGS: Final = "model, gpu, gpus_per_replica, tp"


class CheckOptions(Record):
    """How to run checks. ``lock`` is ``use`` (if there is one), ``write`` or ``ignore``; ``access`` says how models are fetched.

    With ``accept``, locks that are there are written anew if all checks hold.
    """

    lock: str = "use"
    strict: bool = False
    baselines: tuple[Baseline, ...] | None = None
    growth: Growth = Growth()
    access: Access = Access()
    accept: bool = False

    def writes_lock(self, file: CheckFile) -> bool:
        """True if the lock of a file is written."""
        return self.lock == "write" or (self.accept and self.lock == "use" and os.path.isfile(file.path + SUFFIX))


def check(
    files: str | Sequence[str] | Mapping[str, Any],
    *,
    lock: str = "use",
    strict: bool = False,
    baseline: str | Sequence[str] = (),
    max_growth: str = "0%",
    accept: bool = False,
    offline: bool = False,
    token: str | None = None,
    endpoint: str | None = None,
    env: Mapping[str, str] | Given | None = None,
    gpu: str | None = None,
    gpus: int | str | None = None,
    instance: str | None = None,
    seq: int | str | None = None,
    batch: int | str | None = None,
    fix: bool = False,
    write: bool = False,
) -> CheckDocument:
    """Judge the checks of files, and the servers of deployments, as ``kvplan check`` does. ``summary.exit_code`` is 0 if all of them hold.

    A file may be a folder or a pattern; the content of one check file may be given as a dict, which has no lock. ``env`` has values for the variables that deployments leave open, and settings such as ``model``. ``gpu``,
    ``gpus`` and ``instance`` are for those that name no accelerators, or no number of them; ``seq`` and ``batch`` count more than what they say. With ``fix``, the document has the change of flags with which failing servers start, and with ``write``
    their files have it too. ``lock`` is ``use`` (if there is one), ``write`` or
    ``ignore``. ``baseline`` names documents of earlier runs; since then, bytes may not have grown by more than ``max_growth``. With ``accept``,
    what is planned now is the baseline, if all checks hold: its file is written, and so are the locks that are there. A file that
    cannot be read is a result among others, and so is its lock; without one of the baselines nothing is compared. Raises what :func:`run_checks` raises.
    """
    paths, baselines = () if isinstance(files, Mapping) else texts(files, "files"), texts(baseline, "baseline")
    if not isinstance(lock, str) or lock not in _LOCKS:
        raise UsageError(f"lock is {quoted(lock)}.", hint=f"Allowed: {', '.join(_LOCKS)}.")
    if isinstance(files, Mapping) and lock == "write":
        raise UsageError(
            "a check of a dict has no file beside which a lock could lie.", hint="Give the path of a file, or leave lock out."
        )
    growth, accept = parse_growth(max_growth), read_flag(accept, "accept")
    if accept and (read_flag(fix, "fix") or growth.share):
        raise UsageError("accept takes what is planned as it is.", hint="Leave out fix, write and max_growth.")
    if accept and len(baselines) != 1:
        raise UsageError("accept writes one baseline.", hint="Name it: kvplan check FILE --baseline baseline.json --accept")
    if accept:
        # Before a lock is written: where the baseline cannot be, nothing is.
        place_of(baselines[0], "--baseline", below=True)
    plans, unread = list[Baseline](), list[Unread]()
    for path in baselines:
        try:
            plans += read_baseline(path) if os.path.lexists(path) or not accept else ()
        except BaselineError as error:
            unread.append(Unread(path=path, faults=(error,)))
    options = CheckOptions(
        lock="ignore" if isinstance(files, Mapping) else lock,
        strict=read_flag(strict, "strict"),
        baselines=tuple(plans) if baselines and not unread and not accept else None,
        accept=accept,
        access=read_options({"offline": offline, "token": token, "endpoint": endpoint}).access,
    )
    read: list[CheckFile | Unread] = []
    name, count = counted_once(gpu, number(gpus))
    more = {"gpu": name, "gpus": gpus if count is None else count, "instance": instance, "seq": seq, "batch": batch}
    given = env if isinstance(env, Given) else Given.of([f"{name}={value}" for name, value in read_variables(env).items()])
    named = {name: value for name, value in more.items() if value is not None}
    found_in, allowed = files_in(paths, given.file), growth.text if growth.share else ""
    told = Told(given=given, options=named, baselines=tuple(baselines), growth=allowed, accept=accept, several=len(found_in) > 1)
    readers: dict[str, Callable[[], CheckFile | None]]
    readers = {path: partial(read_any, path, told, in_folder=in_folder) for path, in_folder in found_in.items()}
    if isinstance(files, Mapping):
        readers = {_MAPPING: partial(_of_mapping, files)}
    for path, reader in readers.items():
        try:
            found = reader()
        except (CheckFileError, CheckUsageError) as error:
            others = error.others if isinstance(error, CheckUsageError) else ()
            read.append(Unread(path=path, faults=(error, *others)))
        else:
            read += [] if found is None else [found]
    read = _without_options(_with_idle(read, given), told, named=found_in.keys() <= {*paths})
    if paths and not read:
        said = f"nothing in {', '.join(map(printable, paths))} starts a server that kvplan knows."
        read.append(Unread(path=paths[0], faults=(CheckFileError(said, hint="Name a file, to see what is read of it."),)))
    _check_names([file for file in read if isinstance(file, Deployment)], plans, given)
    if len(baselines) == 1:
        made = _command(paths, read, told)
        growth = replace(growth, accept=f"{made} --baseline {shell_word(baselines[0])} --accept")
        for file in unread:
            # What is no JSON may be a file of something else, which nothing is to be written over.
            name = file.path if file.path.endswith(".json") else "baseline.json"
            file.faults[0].hint = f"Make one: {made} --baseline {shell_word(name)} --accept"
    options = replace(options, growth=growth)
    read += unread
    document = run_checks(read, options)
    if accept:
        return accepted(document, baselines[0])
    if read_flag(fix, "fix") or read_flag(write, "write"):
        return _fixed(read, document, options, write=write)
    return document


def _command(paths: Sequence[str], read: Sequence[CheckFile | Unread], told: Told) -> str:
    """The command of this run, with what counts for its files alone."""
    deployed = [file for file in read if isinstance(file, Deployment)]
    # A folder or a pattern stays one; a file of variables or a lock is the file that reads it.
    files = (files_in([path], told.given.file) if os.path.isfile(path) else [path] for path in paths)
    names = {check.name for file in deployed for check in file.checks}
    texts_read = [file.text for file in deployed]
    return typed_command([*dict.fromkeys(chain.from_iterable(files))], texts_read, told, told.options, servers=names)


_MAPPING: Final = "check"
"""The name of what is given as a dict."""


def _of_mapping(content: Mapping[str, Any]) -> CheckFile:
    import json

    try:
        text = json.dumps(content)
    except (TypeError, ValueError, RecursionError) as error:
        hint = "Give what the YAML file would hold."
        raise UsageError("a check as a dict has text, numbers, lists and dicts alone.", hint=hint) from error
    return parse_check_file(text, _MAPPING)


def _with_idle(read: Sequence[CheckFile | Unread], given: Given) -> list[CheckFile | Unread]:
    """The files, with a note at the first deployment for each name that ``--set`` gives a value without any effect.

    Names that the files do not know, and that resemble none of theirs, have one note together: a hook is given those of all files, and runs for some.
    """
    files = [file for file in read if isinstance(file, Deployment)]
    idle = [
        name
        for name in given.sets
        if not any(file.told.given.changes(name, file.text, os.path.basename(file.path)) for file in files)
    ]
    if not files or not idle:
        return [*read]
    checks = [check for file in files for check in file.checks]
    servers = [*dict.fromkeys(check.name for check in checks)]
    known = f"Servers: {brief(', '.join(servers), _LONGEST_NAME)}"
    left = [*dict.fromkeys(name for check in checks for name in check.server.asks)]
    used = [*dict.fromkeys(name for file in files for name in used_in(file.text))]
    said, strange = list[str](), list[str]()
    for name in idle:
        server, _, key = name.rpartition(".")
        shown_name = f"--set {brief(printable(name), _LONGEST_NAME)}"
        if name in given.settings and server and server not in servers:
            meant = did_you_mean(server, servers, alike=_ALIKE)
            why = f"no server is called {brief(printable(server), _LONGEST_NAME)}. {meant}{known}" if meant else ""
        elif name not in given.settings and not any(name in file.text for file in files):
            meant = did_you_mean(key, KEYS) if key.islower() else did_you_mean(name, used, alike=_ALIKE)
            more = meant or f"Settings are {_SETTINGS}, and others; of one server SERVER.gpu, SERVER.seq, SERVER.users. {known}. "
            of_left = brief(", ".join(left) or "nothing", _LONGEST_NAME)
            why = (
                f"no file has a variable of that name, and it is no setting. {more}Left open: {of_left}" if meant or left else ""
            )
        else:
            why = "the files say it so already, give it a value themselves, or nothing that is planned depends on it"
        if why:
            said.append(f"{shown_name} changed nothing: {why}.")
        else:
            strange.append(name)
    if strange:
        names = brief(printable(", ".join(strange)), _LONGEST_NAME)
        said.append(
            f"--set {names} changed nothing: no setting, and no server or variable of these files, has that name. {known}."
        )
    notes = (Note(code="set-without-effect", message=each) for each in said)
    return [replace(file, notes=(*file.notes, *notes)) if file is files[0] else file for file in read]


def _check_names(files: Sequence[Deployment], baselines: Sequence[Baseline], given: Given) -> None:
    """Raise :class:`~hwcalc.errors.UsageError` if ``--set`` is for a server that a file had in a baseline and has no more: it would go on with what is said
    of all servers, such as another accelerator, under its new name.
    """
    servers = {check.name for file in files for check in file.checks}
    for file in files:
        before = {item.name for item in baselines if item.file == printable(file.path)}
        for name in given.settings:
            server, _, key = name.rpartition(".")
            if server in before - servers:
                new = sorted(check.name for check in file.checks if check.name not in before)
                renamed = [
                    f"If it is called {each} now: --set {shell_word(f'{each}.{key}={given.variables[name]}')}" for each in new
                ]
                said = f"--set {brief(printable(name), _LONGEST_NAME)} is for a server that {printable(file.path)} does not have any more, and the baseline has."
                raise UsageError(said, hint="; ".join([*renamed, "If it is gone, leave that out."]))


def _without_options(read: Sequence[CheckFile | Unread], told: Told, *, named: bool) -> list[CheckFile | Unread]:
    """The files, with a note at check files that lack what was given for the deployments among them.

    Raises :class:`~hwcalc.errors.UsageError` where each of them was ``named``, and none is a deployment.
    """
    names = [f"--{'users' if name == 'batch' else name}" for name in told.options]
    checks = [file for file in read if isinstance(file, CheckFile) and not isinstance(file, Deployment)]
    if not names or not checks:
        return [*read]
    options, file = " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))), printable(checks[0].path)
    values = {name: value if isinstance(value, str) else quoted(value) for name, value in told.options.items()}
    keys = ", ".join(f"{'concurrency' if name == 'batch' else name}: {value}" for name, value in values.items())
    said, hint = f"{options} {'is' if len(names) == 1 else 'are'} for deployments", f"Write in the check file: {keys}"
    if named and len(checks) == len(read):
        raise UsageError(f"{said}, and {file} is a check file, which says that itself.", hint=hint)
    hardware = {"gpu", "gpus", "instance"}
    keys_given = {*told.options} | (hardware if hardware & told.options.keys() else set())
    # A file that says it already has nothing to be written.
    own = {file.path for file in checks if any(check.options.keys() & keys_given for check in file.checks)}

    def noted(file: CheckFile) -> CheckFile:
        message = f"{said}, and changed nothing in {printable(file.path)}. {hint}"
        return replace(file, notes=(*file.notes, Note(code="for-deployments", message=message)))

    return [noted(each) if isinstance(each, CheckFile) and each in checks and each.path not in own else each for each in read]


def _fixed(read: Sequence[CheckFile | Unread], document: CheckDocument, options: CheckOptions, *, write: bool) -> CheckDocument:
    """The result with the changes that mend its deployments; once they are written, that of the new texts."""
    from hwcalc.check.mend import mended
    from hwcalc.check.mend import write as write_mended

    fixes, now = list[Fix](), list(read)
    options = replace(options, baselines=options.baselines and comparable(document.checks, options.baselines))
    was = earlier(document.checks, options.baselines or ())

    def tried(file: Deployment) -> Sequence[Checked]:
        """The results of a text, compared with what the baselines have of its checks."""
        kept = {(check.name, place) for check in file.checks for place in was.get((printable(file.path), check.name), ())}
        own = tuple(item for item in options.baselines or () if item.name is None or (item.name, item.place) in kept)
        alone = replace(options, baselines=own or None, lock="ignore" if options.lock == "ignore" else "use")
        return run_checks([file], alone).checks

    for place, file in enumerate(read):
        if not isinstance(file, Deployment):
            continue
        checked = [check for check in document.checks if check.file == printable(file.path)]
        text, fix = mended(file, checked, tried)
        if fix.diff and write:
            write_mended(file.path, file.text, text)
            fix = replace(fix, written=True)
            now[place] = replace(read_deployment(file.path, text, file.told) or file, notes=file.notes)
        fixes += [fix] if fix.diff or fix.reasons else []
    return replace(run_checks(now, options) if any(fix.written for fix in fixes) else document, fixes=tuple(fixes))


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
    if options.baselines is not None:
        growth, strict, checks = options.growth, options.strict, [check for check, _ in planned]
        baselines = comparable(checks, options.baselines)
        lost = gone([printable(file.path) for file in made], checks, baselines, growth, strict=strict)
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
        return f"{typed_command([file.path], [file.text], file.told, file.told.options)} --lock"
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
        return _refused(known, check, error, models), None
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
            server = replace(check, grown=grown)
            plans = (planned, lambda other: _planner(other, models)[1])
            return server.settled(judged[:own], *plans, judged[own:], search, changes)
        return judged

    return made, _subject(made, check, models, planned, judged_with)


def _since_lock(check: Check, models: Models, asked: Mapping[str, str]) -> tuple[KeyChange, ...]:
    """The keys that are not as in the lock."""
    before = models.asked_before(check.name)
    return () if before is None else changed_keys(before, asked, "lock")


def _subject(made: Checked, check: Check, models: Models, planned: Plan, judged_with: JudgedWith) -> Subject:
    """What a baseline is compared with, of a check and its plan."""
    figures, spec = figures_of(planned), planned.model
    return Subject(
        check=check,
        file=made.file,
        models=(check.model, spec.id),
        setup=setup_of(planned),
        figures=figures,
        asked=made.asked,
        versions=versions_of(figures.engine_version, spec.revision, __version__),
        judged_with=judged_with,
        refused=lambda error: _refused(made, check, error, models),
    )


def _unplanned(known: Checked, check: Check, models: Models, options: CheckOptions) -> tuple[Checked, Subject | None]:
    """A check of which nothing is planned. A server with too few GPUs is compared as it would be on enough: what is offered of it may not grow."""

    def planner(other: Check) -> Callable[..., Plan]:
        return _planner(other, models)[1]

    def judged_with(beside: tuple[Judged, ...], changes: tuple[KeyChange, ...], grown: Grown) -> Sequence[Judged]:
        server = replace(check, grown=grown) if isinstance(check, ServerCheck) else check
        return [*beside, *server.unplanned(planner, changes)]

    if isinstance(check, ServerCheck) and check.few is not None:
        with suppress(KvplanError):  # what the engine refuses on enough of them is told in its place
            enough = check.on_enough
            asked = {**asked_of(enough), "gpus": str(check.few.gpus)}
            made = replace(known, asked=asked, changes=_since_lock(check, models, asked))
            return made, _subject(made, check, models, planner(enough)(), judged_with)
    judged = judged_with((), (), no_growth)
    return replace(known, status=_status(judged, strict=options.strict), requirements=tuple(judged)), None


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
        requirements=tuple(placed(item, subject.check, check.changes) for item in accepting(judged, options.growth)),
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
