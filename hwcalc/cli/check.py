"""``kvplan check``: every requirement of a check file must hold."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc.cli.launch import LEFT_OPEN, given_of
from hwcalc.cli.options import DEFAULT, OUTPUT, Option, command, given_options, plan_options, progress
from hwcalc.cli.output import Answer, on_terminal, view_of
from hwcalc.errors import UsageError
from hwcalc.report.view import View
from hwcalc.text import cut, json_for, lines_for, printable, shown

if TYPE_CHECKING:
    from hwcalc.check.result import CheckDocument


FOUND: Final = ("kvplan.yaml", "kvplan.yml")
"""The names of the file that is checked if none is given."""
_JSON = ("json", "sarif")
_NO_FIX: Final = "--fix changes flags of servers, and no check file."
OF_SERVERS: Final = ("gpu", "gpus", "instance", "seq", "batch")
"""Options of a plan for deployments: the accelerators of those that name none, and the load, which counts more than theirs."""
EXAMPLE = """\
# Run it: kvplan check kvplan.yaml; commit what --lock writes, and CI needs no network.
# Every key and what it takes: kvplan schema check-file
schema_version: 1

defaults:                     # for every check that does not say otherwise
  engine: vllm
  gpu: l4

checks:
  - name: chat                # a check with hardware demands that it fits
    model: meta-llama/Llama-3.1-8B
    seq: 16k
    concurrency: 2
    dtype: fp8
    headroom: 1%              # of what the engine may use; or bytes, 2GiB

  - name: long documents
    model: Qwen/Qwen3-8B
    seq: 32k
    gpu: h100-sxm5-80gb
    max_cache: 20GiB
    min_concurrency: 4

  - name: cache of one token  # no hardware, no verdict
    model: google/gemma-3-27b-it
    engine: reference
    gpu: null                 # takes a default back
    seq: 32k
    max_bytes_per_token: 512KiB
"""


@command(
    (
        Option(
            "files",
            (),
            "[FILE]...",
            "Check files; commands and manifests; folders and patterns of them; - is standard input. Default: kvplan.yaml.",
            "list",
            complete="paths",
        ),
        Option(
            "lock",
            ("--lock",),
            "",
            "Write the model facts that are used to FILE.lock, anew if it is there.",
            "flag",
            group="check",
            short="Write the models' facts to FILE.lock.",
        ),
        Option("no_lock", ("--no-lock",), "", "Leave a lock that is there alone, and ask the sources.", "flag", group="check"),
        Option(
            "baseline",
            ("--baseline",),
            "PLAN",
            "Fail if bytes have grown since this document of check --json or plan --json; repeatable.",
            "list",
            short="Fail if bytes have grown since this --json.",
            complete="paths",
            group="check",
        ),
        Option("max_growth", ("--max-growth",), "SHARE", "Growth that --baseline allows: 5%. Default: 0%.", group="check"),
        Option(
            "accept",
            ("--accept",),
            "",
            "Take what is planned now, if all holds: write the one file of --baseline, made if it is missing, and the locks that are there.",
            "flag",
            short="Write --baseline, and the locks, as planned now.",
            group="check",
        ),
        Option(
            "strict",
            ("--strict",),
            "",
            "Fail where a requirement holds by the expected value alone (probably), and where no baseline has the check, or no file one of the baseline.",
            "flag",
            group="check",
        ),
        Option(
            "output",
            ("--output", "-o"),
            "[F=]PATH",
            "Write the answer to a file, not to standard output; with a format (sarif=out.sarif) beside it. Repeatable.",
            "list",
            short="Write the answer to a file; with a format beside it: sarif=out.sarif.",
        ),
        Option(
            "fix",
            ("--fix",),
            "",
            "Show the change of flags with which the servers of deployments start, as a unified diff.",
            "flag",
            group="check",
            short="Show the flags with which servers start, as a diff.",
        ),
        Option(
            "write",
            ("--write",),
            "",
            "With --fix: write the change into the files.",
            "flag",
            group="check",
            short="With --fix: write them into the files.",
        ),
        Option("example", ("--example",), "", "Print a check file to start from.", "flag"),
        *plan_options("check"),
        *LEFT_OPEN,
        *(replace(option, short="") for option in plan_options(DEFAULT) if option.name in OF_SERVERS),
        *(
            replace(option, help="table, json, markdown, csv, junit, sarif or github. Default: table.", complete="check_formats")
            if option.name == "format_"
            else option
            for option in OUTPUT
        ),
    ),
    {
        "Start a file": "kvplan check --example > kvplan.yaml",
        "Check kvplan.yaml of this folder": "kvplan check",
        "Will the servers of this folder start? For GitHub": "kvplan check . --gpu h100 --format github",
    },
)
def check(
    *,
    files: list[str] | None,
    lock: bool,
    no_lock: bool,
    baseline: list[str] | None,
    max_growth: str | None,
    accept: bool,
    strict: bool,
    output: list[str] | None,
    example: bool,
    fix: bool,
    write: bool,
    sets: list[str] | None,
    env_file: str | None,
    **options: Any,
) -> Answer:
    """Check requirements of models, and that deployments start.

    A file is a check file, or holds commands or a manifest: each server must start and hold what it is told. Exit status 1 says that one does not hold, 2 to 4 that one could not be checked. Nothing of a deployment is run.
    """
    if example:
        return Answer(text=EXAMPLE)
    view = _view(**{option.name: options[option.name] for option in OUTPUT})
    targets = _targets(output or [], view)
    names = files or [_found()]
    if len(set(names)) < len(names):
        raise UsageError("a check file is given twice.", hint="Give each once.")
    if lock and no_lock:
        raise UsageError("--lock and --no-lock contradict each other.", hint="Give one of them.")
    if max_growth is not None and not baseline:
        raise UsageError("--max-growth without --baseline has nothing to compare with.", hint="Add: --baseline PLAN")
    if accept and len(baseline or ()) != 1:
        hint = "Name one: --baseline baseline.json --accept; for the lock alone: --lock"
        raise UsageError("--accept writes one baseline.", hint=hint)
    if accept and (fix or max_growth is not None):
        other = "--fix" if fix else "--max-growth"
        raise UsageError(f"--accept and {other} contradict each other: what is accepted is as it is.", hint=f"Leave out {other}.")
    if write and not fix:
        raise UsageError("--write writes what --fix shows.", hint="Add: --fix")
    if fix and view.format not in ("table", "json"):
        raise UsageError(f"--fix shows a diff, and no {view.format}.", hint="Leave out --format, or use: --json")
    from hwcalc.check.command import check
    from hwcalc.check.models import SUFFIX

    told = {name: options[name] for name in OF_SERVERS if options[name] is not None}
    with progress():
        document = check(
            names,
            lock="write" if lock else "ignore" if no_lock else "use",
            strict=strict,
            baseline=baseline or (),
            max_growth=max_growth or "0%",
            accept=accept,
            env=given_of(sets or (), env_file),
            **told,
            fix=fix,
            write=write,
            **given_options("check", options),
        )
    # The files of a folder are read too.
    read = (*names, *(info.path for info in document.files))
    return _answer(document, view, targets, [*read, *(f"{name}{SUFFIX}" for name in read), *(baseline or ())], fix=fix)


def _found() -> str:
    """The path of the check file in the working folder."""
    found = [name for name in FOUND if os.path.lexists(name)]
    if not found:
        from hwcalc.check.file import CheckFileError

        hint = f"Write: kvplan check FILE; to start one: kvplan check --example > {FOUND[0]}"
        raise CheckFileError(f"no check file is given, and there is no {FOUND[0]} here.", hint=hint)
    if len(found) > 1:
        raise UsageError(f"there are {' and '.join(found)}.", hint=f"Name one: kvplan check {found[0]}")
    return found[0]


def _view(*, json: bool, format_: str | None, **others: Any) -> View:
    """The view that the output options name. A check has more formats than other commands."""
    if format_ is None:
        return view_of(json=json, **others)
    from hwcalc.report.check import FORMATS

    chosen = format_.strip().lower()
    if chosen not in FORMATS:
        raise UsageError(f"--format {shown(format_, 40)} is not known.", hint=f"Allowed: {', '.join(FORMATS)}.")
    return view_of(json=json, format_=chosen, formats=FORMATS, **others)


def _remarks(document: CheckDocument) -> Iterator[str]:
    """Lines on what was changed or not, and what the checks say."""
    for fix in document.fixes:
        # Servers of several files may have one name.
        of = f"{fix.path}: " if len(document.files) > 1 else ""
        yield from (f"{of}{each}" for each in (*fix.changes, *fix.reasons))
        if fix.written:
            yield f"wrote {fix.path}."

    told = any(fix.diff and not fix.written for fix in document.fixes)
    yield f"{document.headline()}.{' Nothing is changed without --write.' if told else ''}"


def _targets(outputs: list[str], view: View) -> dict[str, str]:
    """The format of every ``--output``, by path. A file without a format replaces standard output."""
    from hwcalc.report.check import FORMATS

    targets: dict[str, str] = {}
    for text in outputs:
        before, sign, after = text.partition("=")
        named = bool(sign) and before.strip().lower() in FORMATS
        if sign and not named and before.isalpha():
            hint = f"Allowed: {', '.join(FORMATS)}. For a file of that name: --output ./NAME"
            raise UsageError(f"--output {cut(before, 40)}=: there is no such format.", hint=hint)
        path, chosen = (after, before.strip().lower()) if named else (text, "")
        if not path or "\0" in path:
            raise UsageError(f"--output {shown(text, 40)} names no file.", hint="Write: --output sarif=kvplan.sarif")
        if path in targets:
            raise UsageError(f"--output {shown(path)} is given twice.", hint="Give each file once.")
        targets[path] = chosen
    if sum(not chosen for chosen in targets.values()) > 1:
        raise UsageError("two --output without a format.", hint="Write: --output sarif=kvplan.sarif --output junit=kvplan.xml")
    return targets


def _answer(document: CheckDocument, view: View, targets: dict[str, str], read: list[str], *, fix: bool) -> Answer:
    """The answer, once the files are written, none of which was ``read``: none on standard output where one of them takes its place."""
    from hwcalc.files import place_of, write_file
    from hwcalc.report.check import check_report

    # A checkout is somebody else's folder: no name in it leads out of it.
    for path in targets:
        place_of(path, "--output", below=True)
    unwritten = list[str]()
    for path, chosen in targets.items():
        format_ = chosen or view.format
        diff = "" if chosen or format_ != "table" else _diff(document)
        if fix and not diff and not chosen and format_ == "table":
            unwritten.append(f"{printable(path)} is not written: there is nothing to change.")
            continue
        text = diff or check_report(document, View(format=format_, quiet=view.quiet))
        # The folder is made if it is not there; where it cannot be, neither can the file be written.
        if not os.path.lexists(path):
            with suppress(OSError):
                os.makedirs(os.path.dirname(path) or os.curdir, exist_ok=True)
        safe = json_for(text) if format_ in _JSON else lines_for(text, commands=bool(diff) or format_ == "github")
        write_file(path, safe.encode(), "--output", read=read, below=True)
    status = document.summary.exit_code
    remarks = tuple(_remarks(document)) if document.fixes and view.format == "table" else ()
    if fix and not document.fixes and status and view.format == "table":
        remarks = (_NO_FIX,)
    remarks += tuple(unwritten)
    if not all(targets.values()):
        return Answer(text="", remarks=remarks, status=status)
    # A terminal shows the end of a long answer, a pipe all of it.
    view = replace(view, detail="screen") if on_terminal() else view
    diff = _diff(document) if view.format == "table" else ""
    commands = bool(diff) or view.format == "github"
    return Answer(
        text=diff or check_report(document, view), json=view.format in _JSON, commands=commands, remarks=remarks, status=status
    )


def _diff(document: CheckDocument) -> str:
    """The changes of all files as a diff; empty where there are none.

    Its heads and its tabs are meant; what stands in a file is no command to a runner, which skips blanks before one.
    """
    return re.sub(r"(?m)^(\s+)::", r"\1?::", "".join(fix.diff for fix in document.fixes))
