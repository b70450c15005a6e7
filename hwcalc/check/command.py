"""What ``kvplan check`` does: read the files that are named, run their checks, and accept or mend them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.check.baseline import (
    Baseline,
    accepted,
    checks_of,
    comparable,
    earlier,
    parse_growth,
    read_baseline,
)
from hwcalc.check.deployed import Deployment, Told, read_any, read_deployment, typed_command
from hwcalc.check.file import (
    BaselineError,
    CheckFile,
    CheckFileError,
    CheckUsageError,
    Fault,
    Unread,
    parse_check_file,
)
from hwcalc.check.folders import files_in
from hwcalc.check.result import (
    CheckDocument,
    Checked,
    Fix,
)
from hwcalc.check.run import CheckOptions, run_checks
from hwcalc.errors import UsageError
from hwcalc.files import place_of
from hwcalc.launch.read import Given, read_variables, used_in
from hwcalc.launch.server import KEYS
from hwcalc.launch.values import number
from hwcalc.library.lists import texts
from hwcalc.model import Note
from hwcalc.planner.asked import counted_once, read_options
from hwcalc.planner.values import read_flag
from hwcalc.text import brief, did_you_mean, printable, quoted, shell_word

_LOCKS: Final = ("use", "write", "ignore")
_LONGEST_NAME: Final = 200
"""Characters of a name of a baseline in a message."""
_ALIKE: Final = 0.8
"""How much a name that no file has resembles one that is meant: ``node`` is not ``code``."""
_SETTINGS: Final = "model, gpu, gpus_per_replica, tp"


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
    plans, unread, before = list[Baseline](), list[Unread](), tuple[Checked, ...]()
    for path in baselines:
        try:
            plans += read_baseline(path) if os.path.lexists(path) or not accept else ()
            # Read before a lock is written, too: where the baseline cannot be written on, nothing is.
            before = checks_of(path) if plans and accept else ()
        except BaselineError as error:
            unread.append(Unread(path=path, faults=(error,)))
    options = CheckOptions(
        lock="ignore" if isinstance(files, Mapping) else lock,
        strict=read_flag(strict, "strict"),
        baselines=tuple(plans) if baselines and not unread and not accept else None,
        accept=accept,
        access=read_options({"offline": offline, "token": token, "endpoint": endpoint}).access,
    )
    name, count = counted_once(gpu, number(gpus))
    more = {"gpu": name, "gpus": gpus if count is None else count, "instance": instance, "seq": seq, "batch": batch}
    given = env if isinstance(env, Given) else Given.of([f"{name}={value}" for name, value in read_variables(env).items()])
    named = {name: value for name, value in more.items() if value is not None}
    found_in, allowed = files_in(paths, given.file), growth.text if growth.share else ""
    told = Told(given=given, options=named, baselines=tuple(baselines), growth=allowed, accept=accept, several=len(found_in) > 1)
    read = _read(files, found_in, told)
    looked_at = frozenset(map(printable, found_in))
    read, stale = _with_stale(read, plans, given, looked_at)
    # A hook is given those of all files, and runs for some.
    elsewhere = {item.name for item in plans if item.file is not None and item.file not in looked_at}
    passed_over = stale | {name for name in given.settings if name.rpartition(".")[0] in elsewhere}
    read = _without_options(_with_idle(read, given, passed_over), told, named=found_in.keys() <= {*paths})
    if paths and not read:
        said = f"nothing in {', '.join(map(printable, paths))} starts a server that kvplan knows."
        read.append(Unread(path=paths[0], faults=(CheckFileError(said, hint="Name a file, to see what is read of it."),)))
    if len(baselines) == 1:
        made = _command(paths, read, told)
        # What is said of a server under another name is mended before anything is accepted.
        growth = replace(growth, accept="" if stale else f"{made} --baseline {shell_word(baselines[0])} --accept")
        for file in unread:
            # What is no JSON may be a file of something else, which nothing is to be written over.
            name = file.path if file.path.endswith(".json") else "baseline.json"
            made_anew = f"{made} --baseline {shell_word(name)} --accept"
            taken = (
                f"Delete it, or take one side of a merge (git checkout --ours {shell_word(name)}), and write it anew: {made_anew}"
            )
            file.faults[0].hint = taken if os.path.lexists(name) else f"Make one: {made_anew}"
    options = replace(options, growth=growth, looked_at=looked_at)
    read += unread
    document = run_checks(read, options)
    if accept:
        return accepted(document, baselines[0], before, looked_at)
    if read_flag(fix, "fix") or read_flag(write, "write"):
        return _fixed(read, document, options, write=write)
    return document


def _read(files: str | Sequence[str] | Mapping[str, Any], found_in: Mapping[str, bool], told: Told) -> list[CheckFile | Unread]:
    """The files that were found, or the content of one, and why some cannot be read. Those of a folder that hold nothing are left out."""
    readers: dict[str, Callable[[], CheckFile | None]]
    readers = {path: partial(read_any, path, told, in_folder=in_folder) for path, in_folder in found_in.items()}
    if isinstance(files, Mapping):
        readers = {_MAPPING: partial(_of_mapping, files)}
    read = list[CheckFile | Unread]()
    for path, reader in readers.items():
        try:
            found = reader()
        except (CheckFileError, CheckUsageError) as error:
            others = error.others if isinstance(error, CheckUsageError) else ()
            read.append(Unread(path=path, faults=(error, *others)))
        else:
            read += [] if found is None else [found]
    return read


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


def _with_idle(read: Sequence[CheckFile | Unread], given: Given, passed_over: Collection[str]) -> list[CheckFile | Unread]:
    """The files, with a note at the first deployment for each name that ``--set`` gives a value without any effect, but for those ``passed_over``.

    Names that the files do not know, and that resemble none of theirs, have one note together: a hook is given those of all files, and runs for some.
    """
    files = [file for file in read if isinstance(file, Deployment)]
    idle = [
        name
        for name in given.sets
        if name not in passed_over
        and not any(file.told.given.changes(name, file.text, os.path.basename(file.path)) for file in files)
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


def _with_stale(
    read: Sequence[CheckFile | Unread], baselines: Sequence[Baseline], given: Given, looked_at: Collection[str]
) -> tuple[list[CheckFile | Unread], frozenset[str]]:
    """The files with a fault for each server that ``--set`` is for, a file had in a baseline, and has no more; and those names of ``--set``.

    Under its new name it would go on with what is said of all servers, such as another accelerator: the fault stands at that server.
    """
    files = {printable(file.path): file for file in read if isinstance(file, Deployment)}
    servers = {check.name for file in files.values() for check in file.checks}
    before = dict.fromkeys((item.file, item.name) for item in baselines if item.name not in servers and item.file is not None)
    gone, stale = list[Unread](), set[str]()
    for path, name in before:
        sets = [each for each in given.settings if each.rpartition(".")[0] == name]
        if not sets or not (path in looked_at or not os.path.lexists(path)):
            continue
        stale |= {*sets}
        known = {item.name for item in baselines if item.file == path}
        new = [check for check in files[path].checks if check.name not in known] if path in files else []
        hint = f"If it is gone, leave out: {brief(printable(' '.join(f'--set {each}' for each in sets)), _LONGEST_NAME)}"
        for other in new[::-1]:
            pairs = (f"{other.name}.{each.rpartition('.')[2]}={given.variables[each]}" for each in sets)
            words = " ".join(f"--set {shell_word(pair)}" for pair in pairs)
            hint = f"If it is called {other.name} now: {words}. {hint}"
        message = f"--set {brief(printable(', '.join(sets)), _LONGEST_NAME)} is for a server that the baseline has, and {path} does not have any more."
        if not new:
            gone.append(Unread(path=path, faults=(CheckUsageError(message, hint=hint),)))
            continue
        line, column = new[0].line, new[0].column
        fault = Fault(line=line, column=column, error=CheckUsageError(message, hint=hint, line=line, column=column))
        renamed = replace(new[0], faults=(*new[0].faults, fault))
        files[path] = replace(files[path], checks=tuple(renamed if check is new[0] else check for check in files[path].checks))
    return [*(files.get(printable(file.path), file) for file in read), *gone], frozenset(stale)


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
    options = replace(options, baselines=options.baselines and comparable(document.checks, options.baselines, options.looked_at))
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
