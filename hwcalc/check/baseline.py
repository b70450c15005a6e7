"""Compare the bytes of checks with those of an earlier run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, Final

from msgspec import ValidationError, convert, field, to_builtins
from msgspec.structs import replace

from hwcalc.check.changes import changed_keys, planned_of
from hwcalc.check.file import BaselineError, Check
from hwcalc.check.result import (
    GROWTH,
    CheckDocument,
    Checked,
    Edit,
    Figures,
    FileInfo,
    Judged,
    KeyChange,
    count_of,
    summary_of,
)
from hwcalc.documents import dumps
from hwcalc.errors import KvplanError, UsageError
from hwcalc.files import write_file
from hwcalc.formulas.record import Record
from hwcalc.model import Note
from hwcalc.planner.options import ROWS
from hwcalc.planner.result import Plan
from hwcalc.sources.document import read_document
from hwcalc.text import brief, printable, quoted
from hwcalc.units import human_bytes, parse_share

_FIGURES: Final = ("total_bytes", "cache_bytes", "weights_bytes", "bytes_per_token")
_LAYOUT: Final = ("tp", "pp", "dp", "dcp", "ep")
_DROPPED: Final[Mapping[str, object]] = {
    name: ROWS[name].default for name in ("prompt", "policy", "policy_rules", "compaction", "shared_prefix", "samples", "beams")
}
"""What is dropped and shared, with the values of documents that do not say it: those of an earlier kvplan."""

BASELINE: Final = "baseline"
"""What changes are told since."""
_LONGEST_NAME: Final = 200
"""Characters of a name in a message."""
_NEW: Final = "No baseline has this check: nothing to compare its bytes with."
_UNCERTAIN: Final = "The baseline has a check of this name in {}, and which of them it was is not certain: its bytes are compared with none of them."
_NEW_NAMELESS: Final = (
    f"{_NEW[:-1]}, nor what changed. It has no name, so that it is another check once what it plans changes: give it a name."
)
_NOT_IN_BASELINE: Final = "no baseline has this check, which --strict demands"
_NAMED_KEEPS: Final = ". A check with a name keeps its baseline when what it plans changes"
_NO_BASELINE: Final = Judged(
    name=BASELINE,
    unit="plans",
    limit=1,
    got=0,
    holds=False,
    certain=True,
    message="",
)


class Growth(Record):
    """The share by which bytes may grow. ``text`` is how the user wrote it, and ``accept`` the command that accepts what a run plans; empty without a
    single baseline.
    """

    share: Fraction = Fraction(0)
    text: str = "0%"
    accept: str = ""

    def limit(self, before: int) -> int:
        """The most bytes that are allowed where there were ``before``, rounded down."""
        return before + int(before * self.share)


class Baseline(Record):
    """One earlier plan: the name and file of its check, its request, and its figures.

    A document of ``kvplan plan`` has no check: ``name`` and ``file`` are ``None``, and ``setup`` is what :func:`setup_of` returns.
    ``exact`` says that a check of this run has the same setup. ``asked`` are the keys of the check with their values, where the document
    has them, and ``planned`` what its plan says of the request. ``versions`` are those of the engine, the model and kvplan.
    ``document`` is the path of the document.
    """

    name: str | None
    file: str | None
    model: str
    seq: int
    batch: int
    figures: Mapping[str, int]
    setup: tuple[object, ...] = ()
    exact: bool = False
    asked: Mapping[str, str] = field(default_factory=dict)
    planned: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    document: str = ""

    @property
    def place(self) -> tuple[str, str | None]:
        """The document that has the plan, and the file of its check."""
        return self.document, self.file


Grown = Callable[[Figures], tuple[Judged, ...]]
"""Compares figures with a baseline."""


def no_growth(_: Figures) -> tuple[Judged, ...]:
    """Nothing: there is no baseline."""
    return ()


JudgedWith = Callable[[tuple[Judged, ...], tuple[KeyChange, ...], Grown], Sequence[Judged]]
"""Judges a check with its changes and the requirements beside its own."""


class Subject(Record):
    """A check, its file, the names its model may have, its setup, and the figures to compare; ``None`` where its engine refuses it, and nothing is planned.

    ``asked`` and ``versions`` are as in :class:`Baseline`. ``judged_with`` judges the check with its changes and the requirements beside its own,
    ``grown`` are those of figures that a baseline has, and ``refused`` is its result where that raises an error.
    """

    check: Check
    file: str
    models: tuple[str, ...]
    setup: tuple[object, ...]
    figures: Figures | None
    judged_with: JudgedWith
    refused: Callable[[KvplanError], Checked]
    grown: Grown = no_growth
    asked: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the check."""
        return self.check.name


def setup_of(plan: Plan) -> tuple[object, ...]:
    """The engine (in any version), dtypes, accelerator, layout and policy of a plan: what model, ``seq`` and ``batch`` leave open."""
    request = plan.request
    others = (getattr(request, name) for name in (*_LAYOUT, *_DROPPED))
    return (request.engine, request.kv_dtype, plan.memory.weights.format, None if plan.fit is None else plan.fit.gpu, *others)


def parse_growth(text: str) -> Growth:
    """Read ``5%``, ``0.5%`` or ``0``. Other bare numbers are refused: they could be a share or a factor.

    Raises :class:`~hwcalc.errors.UsageError`.
    """
    try:
        share = parse_share(text, "--max-growth")
    except UsageError:
        share = None
    if share is None or share < 0 or not isinstance(text, str) or not (text.rstrip().endswith("%") or share == 0):
        raise UsageError(f"--max-growth {quoted(text, 40)} is not a share.", hint="Allowed: 0%, 0.5%, 10%, ...")
    return Growth(share=share, text=text.strip())


def read_baseline(path: str) -> tuple[Baseline, ...]:
    """The plans in a document of ``kvplan check --json`` or ``kvplan plan --json``.

    Raises :class:`~hwcalc.check.file.BaselineError`.
    """
    name = printable(path if len(path) <= _LONGEST_NAME else f"{path[:_LONGEST_NAME]}...")
    hint = "Make one: kvplan check FILE --baseline baseline.json --accept"
    try:
        document = read_document(path or os.curdir, name)
    except KvplanError as error:
        raise BaselineError(f"the baseline cannot be read: {error.message}", hint=hint) from error
    try:
        if "checks" not in document:
            return (_from_plan(document),)
        version = document.get("kvplan_version")
        found = (_from_check(item, version) for item in document["checks"] if item["plan"] is not None)
        return tuple(replace(item, document=path) for item in found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem = "is no document of kvplan check --json or kvplan plan --json"
        problem = "holds an error, not a plan" if "error" in document else problem
        raise BaselineError(f"{name} {problem}.", hint=hint) from error


def versions_of(engine: object, model: object, kvplan: object) -> dict[str, str]:
    """The versions whose change changes bytes though the check file stays the same; unknown ones are left out."""
    known = {"engine version": engine, "model revision": model, "kvplan": kvplan}
    return {name: brief(printable(value), _LONGEST_NAME) for name, value in known.items() if isinstance(value, str)}


def _from_check(item: Mapping[str, Any], version: object) -> Baseline:
    plan, name = item["plan"], item["name"]
    if not isinstance(name, str):
        raise TypeError
    figures = {key: count_of(plan[key]) for key in _FIGURES if plan[key] is not None}
    seq, batch = count_of(plan["seq"]), count_of(plan["batch"])
    asked = item.get("asked") or {}
    if not all(isinstance(text, str) for pair in asked.items() for text in pair):
        raise TypeError
    told = {"engine", "kv_dtype", "fit"} <= {*plan}
    return Baseline(
        name=name,
        file=str(item["file"]),
        model=str(item["model"]),
        seq=seq,
        batch=batch,
        figures=figures,
        asked={printable(key): printable(text) for key, text in asked.items()},
        planned=planned_of(plan) if told else {},
        versions=versions_of(plan.get("engine_version"), item.get("revision"), version),
    )


def _from_plan(document: Mapping[str, Any]) -> Baseline:
    cache, memory, request, fit = document["cache"], document["memory"], document["request"], document["fit"]
    sizes = (memory["total_bytes"], cache["total_bytes"], memory["weights"]["bytes"], cache["bytes_per_token"])
    formats = (request["kv_dtype"], memory["weights"]["format"], None if fit is None else fit["gpu"])
    dropped = (request.get(name, default) for name, default in _DROPPED.items())
    return Baseline(
        name=None,
        file=None,
        model=str(document["model"]["id"]),
        seq=count_of(request["seq"]),
        batch=count_of(request["batch"]),
        figures={key: count_of(value) for key, value in zip(_FIGURES, sizes, strict=True) if value is not None},
        setup=(request["engine"], *formats, *(request[name] for name in _LAYOUT), *dropped),
        planned=planned_of({**request, "fit": fit}),
        versions=versions_of(request.get("engine_version"), document["model"].get("revision"), document.get("kvplan_version")),
    )


def same_request(item: Baseline, subject: Subject) -> bool:
    """True if a check plans the model, the length and the batch of an earlier plan."""
    figures = subject.figures
    return figures is not None and item.model in subject.models and (item.seq, item.batch) == (figures.seq, figures.batch)


def earlier_files(files: Iterable[str], before: Iterable[str]) -> dict[str, str]:
    """The file of ``before`` that each of the files was, where that is certain: one whose path ends alike, or the only one that is left.

    A path is another one from another folder, and its end is the same.
    """
    now, left = ({each: os.path.normpath(each).split(os.sep) for each in {*paths}} for paths in (files, before))
    out: dict[str, str] = {}
    for parts in range(max(map(len, [*now.values(), *left.values()]), default=0), -1, -1):
        ends: dict[tuple[str, ...], tuple[list[str], list[str]]] = {}
        for side, paths in enumerate((now, left)):
            for path, split in paths.items():
                ends.setdefault(tuple(split[max(0, len(split) - parts) :]), ([], []))[side].append(path)
        for new, old in ends.values():
            if len(new) == len(old) == 1:
                out[new[0]] = old[0]
                del now[new[0]], left[old[0]]
    return out


def comparable(checks: Sequence[Checked], baselines: Sequence[Baseline], looked_at: Collection[str] = ()) -> tuple[Baseline, ...]:
    """The baselines without the checks of files that were not looked at and are there still, if a file that the baseline knows has one of that name.

    Where one server of a file has another name than in the baseline, and the same model, the earlier one has the new name. So it has where a server of a
    script has another model, by which it is called.
    """
    read, known, files = {*looked_at}, {(item.document, item.file) for item in baselines}, dict[str | None, set[str]]()
    for check in checks:
        read.add(check.file)
        files.setdefault(check.name, set()).add(check.file)

    def is_of_another(item: Baseline) -> bool:
        if item.file is None or item.file in read or not any((item.document, file) in known for file in files.get(item.name, ())):
            return False
        return os.path.lexists(item.file)

    return tuple(_called_as_now(checks, [item for item in baselines if not is_of_another(item)]))


def _called_as_now(checks: Sequence[Checked], baselines: Sequence[Baseline]) -> Iterator[Baseline]:
    """The baselines, in which the one server of a file that is gone has the name of the one that is new, if it has its model or both are called by theirs."""
    now, before = dict[str, dict[str | None, Checked]](), dict[tuple[str, str | None], set[str | None]]()
    for check in checks:
        now.setdefault(check.file, {})[check.name] = check
    for item in baselines:
        before.setdefault(item.place, set()).add(item.name)
    renamed = dict[tuple[tuple[str, str | None], str | None], Checked]()
    for place, names in before.items():
        of_file = now.get(place[1] or "", {})
        new, left = [check for name, check in of_file.items() if name not in names], names - of_file.keys()
        if len(new) == len(left) == 1 and new[0].server is not None:
            [name] = left
            renamed[place, name] = new[0]
    for item in baselines:
        other = renamed.get((item.place, item.name))
        yield replace(item, name=other.name) if other is not None and _is_same(item, other) else item


def _is_same(item: Baseline, check: Checked) -> bool:
    """True if a server has the model of an earlier one, or if both are called by engine and model."""
    engine = (check.server or {}).get("engine")
    by_model = (item.name, check.name) == (f"{engine} {item.model}", f"{engine} {check.model}")
    return by_model or item.model == check.model


def earlier(
    checks: Sequence[Checked], baselines: Sequence[Baseline]
) -> dict[tuple[str, str | None], set[tuple[str, str | None]]]:
    """The places in the documents of the baselines that each check had, by its file and name, where they are certain."""
    files, before = dict[str | None, list[str]](), dict[tuple[str, str | None], list[str]]()
    for check in checks:
        files.setdefault(check.name, []).append(check.file)
    for item in baselines:
        before.setdefault((item.document, item.name), []).append(str(item.file))
    out = dict[tuple[str, str | None], set[tuple[str, str | None]]]()
    for (document, name), paths in before.items():
        for file, was in earlier_files(files.get(name, ()), paths).items():
            out.setdefault((file, name), set()).add((document, was))
    return out


def compare(
    baselines: Sequence[Baseline], subject: Subject, growth: Growth, places: Container[tuple[str, str | None]]
) -> tuple[Grown, tuple[KeyChange, ...]] | None:
    """What compares figures with those of the same check in earlier runs, and the keys that differ; ``None`` if no baseline has the check.

    Checks are matched by name, and by the ``places`` of theirs in the documents. A single plan matches the checks with its model,
    ``seq`` and ``batch``; if some of them have its setup too, it matches only those. If several baselines match, the smallest value of
    each figure counts.
    """
    same = [item for item in baselines if item.name == subject.name and item.place in places]
    same += [
        item
        for item in baselines
        if item.name is None and same_request(item, subject) and (item.setup == subject.setup or not item.exact)
    ]
    if not same:
        return None
    known = ((key, [item.figures[key] for item in same if key in item.figures]) for key in _FIGURES)
    before = {key: min(earlier) for key, earlier in known if earlier}
    return partial(_grown, before, growth), _changes(same[0], subject)


def compared(
    planned: Sequence[tuple[Checked, Subject | None]], baselines: Sequence[Baseline], growth: Growth, *, strict: bool
) -> list[tuple[Checked, Subject | None]]:
    """The checks with a requirement for the growth of each figure, before they are judged. A check without a baseline gets a warning; ``strict`` fails it."""
    # A check looks at those of its name and at single plans: thousands of checks may have thousands of baselines.
    of_name: dict[str | None, list[Baseline]] = {}
    subjects = [subject for _, subject in planned if subject is not None]
    for item in baselines:
        # A single plan is compared with the check that repeats it, if there is one.
        repeats = any(same_request(item, subject) and item.setup == subject.setup for subject in subjects)
        of_name.setdefault(item.name, []).append(replace(item, exact=item.name is None and repeats))
    was = earlier([check for check, _ in planned], baselines)
    kept = {(name, place) for (_, name), places in was.items() for place in places}
    done = list[tuple[Checked, Subject | None]]()
    for check, subject in planned:
        if subject is None:
            done.append((check, None))
            continue
        places = was.get((subject.file, subject.name), ())
        grown = compare([*of_name.get(subject.name, ()), *of_name.get(None, ())], subject, growth, places)
        if grown is None:
            left = {str(item.file) for item in of_name.get(subject.name, ()) if (item.name, item.place) not in kept}
            said = brief(" and ".join(map(printable, sorted(left))), _LONGEST_NAME)
            message = _UNCERTAIN.format(said) if left else _NEW_NAMELESS if subject.check.nameless else _NEW
            demanded = message if left else _NOT_IN_BASELINE + (_NAMED_KEEPS if subject.check.nameless else "")
            failed = replace(_NO_BASELINE, message=demanded)
            add = f" Add it: {growth.accept}" if growth.accept and not left else ""
            note = Note(code="no-baseline", message=f"{message}{add}")
            more = {"requirements": (*check.requirements, failed)} if strict else {"warnings": (*check.warnings, note)}
            done.append((replace(check, **more), subject))
            continue
        figures, since = grown
        # What the baseline says already is not said again of the lock.
        told = {(change.key, change.before, change.after) for change in since}
        changes = (*since, *(one for one in check.changes if (one.key, one.before, one.after) not in told))
        done.append((replace(check, changes=changes), replace(subject, grown=figures)))
    return done


def gone(
    read: Sequence[str],
    checks: Sequence[Checked],
    baselines: Sequence[Baseline],
    growth: Growth,
    *,
    strict: bool,
    looked_at: Collection[str] = (),
) -> list[Checked]:
    """The checks of the baselines that no file has any more: of the files that were ``read``, or looked at, and of files that are not there. ``strict``
    fails them.
    """
    was = earlier(checks, baselines)
    kept = {(file, name) for (_, name), places in was.items() for _, file in places}
    # A check that moved to another file, or may have, is not gone.
    new = {check.name for check in checks if (check.file, check.name) not in was}
    accept = f"; where that is meant: {growth.accept}" if growth.accept else ""
    out = list[Checked]()
    for item in dict.fromkeys((item.file, item.name, item.model) for item in baselines):
        file, name, model = item
        if file is None or name is None or (file, name) in kept or name in new or not read:
            continue
        if file in read or file in looked_at or not os.path.lexists(file):
            name, model, at = (brief(printable(text), _LONGEST_NAME) for text in (name, model, file))
            said = f"the baseline has the check '{name}' of {at}, which is not there any more"
            said += accept if strict else f". With --strict that fails{accept}"
            judged = (replace(_NO_BASELINE, message=said),)
            path, line = (file, 1) if file in read else (read[0], 0)
            out.append(Checked(name=name, file=path, line=line, column=line, model=model, status="fail", requirements=judged))
    return out


def _grown(before: Mapping[str, int], growth: Growth, figures: Figures) -> tuple[Judged, ...]:
    """The comparison of each figure with the one before. The first that fails has the option that accepts the growth of all of them."""
    out, most = list[Judged](), 0
    allowed = f"; {growth.text} allowed" if growth.share else ""
    for key, least in before.items():
        now: int | None = getattr(figures, key)
        if now is not None:
            limit = growth.limit(least)
            what = f"{key.removesuffix('_bytes').replace('_', ' ')} {_moved(least, now)}{allowed}"
            name, holds = f"{GROWTH}{key}", now <= limit
            out.append(Judged(name=name, unit="bytes", limit=limit, got=now, holds=holds, certain=True, message=what))
            most = max(most, 0 if holds or not least else -(-100 * (now - least) // least))
    failed = [one for one in out if not one.holds]
    accepting = (Edit(yaml="", effect="allows the growth", accepting=f"--max-growth {most}%"),) if most else ()
    return tuple(replace(one, edits=accepting) if failed and one is failed[0] else one for one in out)


def with_accept(judged: Sequence[Judged], growth: Growth) -> list[Judged]:
    """The requirements, where the last that fails has the command that accepts it: of a check in which nothing else fails."""
    failed = [item for item in judged if not item.holds]
    if not growth.accept or not all(item.name == BASELINE or item.name.startswith(GROWTH) for item in failed):
        return [*judged]
    said = f"; where that is meant: {growth.accept}"
    return [replace(item, message=item.message.rstrip(".") + said) if failed and item is failed[-1] else item for item in judged]


def accepted(document: CheckDocument, path: str, before: Sequence[Checked], looked_at: Collection[str]) -> CheckDocument:
    """The result of a run with a note on its baseline, which is written with its checks, and with those it had ``before`` of files not looked at.

    Nothing is written where a check does not hold. Raises :class:`~hwcalc.errors.UnwritableFileError`.
    """
    name = printable(path)
    if document.summary.exit_code:
        return _noted(
            document, "not-accepted", f"{name} was not written, and no lock: what fails or cannot be checked is not accepted."
        )
    here = {*looked_at, *(info.path for info in document.files)}
    others = [check for check in before if check.file not in here]
    kept = [check for check in others if os.path.lexists(check.file)]
    left_out = sorted({check.file for check in others} - {check.file for check in kept})
    # Each check stays where it is, so that the change of the file shows what has changed.
    place = {(check.file, check.name): number for number, check in enumerate(before)}
    end = {check.file: number for number, check in enumerate(before)}
    checks = sorted(
        (*document.checks, *kept),
        key=lambda check: (end.get(check.file, len(place)), place.get((check.file, check.name), len(place))),
    )
    # Notes of the run would change with each of them, and meet in merges.
    files = (FileInfo(path=file, checks=count) for file, count in Counter(check.file for check in checks).items())
    summary = summary_of(checks, strict=document.summary.strict)
    written = replace(document, files=tuple(files), checks=tuple(checks), summary=summary)
    write_file(path, dumps(written.to_dict()).encode(), "--baseline", below=True)
    said = [f"Wrote {name} with {_checks(len(document.checks))}"]
    said += [f"as they were, {_checks(len(kept))} of other files"] if kept else []
    said += [f"left out, those of {brief(', '.join(left_out), _LONGEST_NAME)}, not there any more"] if left_out else []
    locks = ", and what was written of locks" if any(info.lock_written for info in document.files) else ""
    return _noted(document, "accepted", f"{'; '.join(said)}. Commit it{locks}.")


def checks_of(path: str) -> tuple[Checked, ...]:
    """The checks of a baseline as they stand in it; none of a document of ``kvplan plan``, whose place a run takes.

    Raises :class:`~hwcalc.check.file.BaselineError` for one that another kvplan wrote otherwise.
    """
    document = read_document(path, printable(path))
    try:
        return convert(document.get("checks", []), tuple[Checked, ...])
    except ValidationError as error:
        hint = "Make it anew with all of its files: delete it first."
        raise BaselineError(f"{printable(path)} was written by another kvplan, and cannot be written on.", hint=hint) from error


def _checks(count: int) -> str:
    return f"{count:,} check{'' if count == 1 else 's'}"


def _noted(document: CheckDocument, code: str, message: str) -> CheckDocument:
    """The result with a note at its first file."""
    first, *files = document.files
    return replace(document, files=(replace(first, notes=(*first.notes, Note(code=code, message=message))), *files))


def _moved(before: int, now: int) -> str:
    """``125.00 GiB -> 250.00 GiB (+125.00 GiB, x 2)``; a factor that rounds to 1 is left out."""
    if now == before:
        return f"{human_bytes(now)}, unchanged"
    factor = f"{now / before:.4g}" if before else "1"
    difference = f"{'+' if now > before else '-'}{human_bytes(abs(now - before))}"
    return f"{human_bytes(before)} -> {human_bytes(now)} ({difference}{f', x {factor}' if factor != '1' else ''})"


def _changes(baseline: Baseline, subject: Subject) -> tuple[KeyChange, ...]:
    """The differences from the baseline: in keys, or in what is known of them, and in versions that both know."""
    known = baseline.versions.keys() & subject.versions.keys()
    before, now = ({name: said[name] for name in known} for said in (baseline.versions, subject.versions))
    if baseline.asked:
        keys = changed_keys(baseline.asked, subject.asked, BASELINE)
    elif baseline.planned and subject.figures is not None:
        keys = changed_keys(baseline.planned, planned_of(to_builtins(subject.figures)), BASELINE)
    else:
        keys = ()
    return (*keys, *changed_keys(before, now, BASELINE))
