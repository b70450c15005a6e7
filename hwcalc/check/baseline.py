"""What an earlier run planned, and whether anything has grown since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hwcalc.check.errors import BaselineError
from hwcalc.check.result import Figures, Judged
from hwcalc.errors import KvplanError, UsageError
from hwcalc.formulas.frozen import frozen, replace
from hwcalc.planner.result import Plan
from hwcalc.sources.document import read_document
from hwcalc.text import printable
from hwcalc.units import human_bytes, parse_share

__all__ = ["Baseline", "Growth", "Subject", "compare", "parse_growth", "read_baseline", "settled", "way_of"]

_FIGURES: Final = ("total_bytes", "cache_bytes", "weights_bytes", "bytes_per_token")
_LAYOUT: Final = ("tp", "pp", "dp", "dcp", "ep")


@frozen
class Growth:
    """The share by which bytes may grow, as ``numerator / denominator``, and as it was written."""

    numerator: int = 0
    denominator: int = 1
    text: str = "0%"

    def limit(self, before: int) -> int:
        """The most bytes that ``before`` may have become; a fraction of one is dropped."""
        return before + before * self.numerator // self.denominator


@frozen
class Baseline:
    """One earlier plan: the check's name and file (``None`` for a single plan), what was asked, and its figures.

    ``way`` is that of a single plan, as :func:`way_of` has it; ``exact`` says that a check of this run goes the same way.
    """

    name: str | None
    file: str | None
    model: str
    seq: int
    batch: int
    figures: Mapping[str, int]
    way: tuple[object, ...] = ()
    exact: bool = False


@frozen
class Subject:
    """A check that was planned: its name and file, the ways in which its model may be named, and what of the plan is compared."""

    name: str
    file: str
    models: tuple[str, ...]
    way: tuple[object, ...]
    figures: Figures


def way_of(plan: Plan) -> tuple[object, ...]:
    """What tells plans of one model, ``seq`` and ``batch`` apart: engine (in any version), dtypes, accelerator, layout."""
    request = plan.request
    layout = (getattr(request, name) for name in _LAYOUT)
    return (request.engine, request.kv_dtype, plan.memory.weights.format, None if plan.fit is None else plan.fit.gpu, *layout)


def parse_growth(text: str) -> Growth:
    """``5%``, ``0.5%`` or ``0``: a bare number could be a share or a factor."""
    try:
        share = parse_share(text, "--max-growth")
    except UsageError:
        share = None
    if share is None or share < 0 or not (text.rstrip().endswith("%") or share == 0):
        raise UsageError(f"--max-growth {printable(text)[:40]!r} is not a share.", hint="Allowed: 0%, 0.5%, 10%, ...")
    return Growth(numerator=share.numerator, denominator=share.denominator, text=text.strip())


def read_baseline(path: str) -> tuple[Baseline, ...]:
    """The plans in a document of ``kvplan check --json`` or ``kvplan plan --json``."""
    name = printable(path)
    hint = "Make one: kvplan check FILE --json > baseline.json"
    try:
        document = read_document(Path(path), name)
    except KvplanError as error:
        raise BaselineError(f"the baseline cannot be read: {error.message}", hint=hint) from error
    try:
        if "checks" in document:
            return tuple(_of_check(item) for item in document["checks"] if item["plan"] is not None)
        return (_of_plan(document),)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem = (
            "holds an error, not a plan" if "error" in document else "is no document of kvplan check --json or kvplan plan --json"
        )
        raise BaselineError(f"{name} {problem}.", hint=hint) from error


def _of_check(item: Mapping[str, Any]) -> Baseline:
    plan = item["plan"]
    if not isinstance(item["name"], str):
        raise TypeError
    return Baseline(
        name=item["name"],
        file=str(item["file"]),
        model=str(item["model"]),
        seq=_count(plan["seq"]),
        batch=_count(plan["batch"]),
        figures={key: _count(plan[key]) for key in _FIGURES if plan[key] is not None},
    )


def _of_plan(document: Mapping[str, Any]) -> Baseline:
    cache, memory, request, fit = document["cache"], document["memory"], document["request"], document["fit"]
    gpu = None if fit is None else fit["gpu"]
    found = {
        "total_bytes": memory["total_bytes"],
        "cache_bytes": cache["total_bytes"],
        "weights_bytes": memory["weights"]["bytes"],
        "bytes_per_token": cache["bytes_per_token"],
    }
    return Baseline(
        name=None,
        file=None,
        model=str(document["model"]["id"]),
        seq=_count(request["seq"]),
        batch=_count(request["batch"]),
        figures={key: _count(value) for key, value in found.items() if value is not None},
        way=(request["engine"], request["kv_dtype"], memory["weights"]["format"], gpu, *(request[name] for name in _LAYOUT)),
    )


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise TypeError
    return value


def settled(baselines: Sequence[Baseline], subjects: Sequence[Subject]) -> tuple[Baseline, ...]:
    """The baselines, each single plan marked that some check is the equal of."""
    return tuple(
        replace(item, exact=item.name is None and any(_alike(item, one) and item.way == one.way for one in subjects))
        for item in baselines
    )


def _alike(item: Baseline, subject: Subject) -> bool:
    return item.model in subject.models and (item.seq, item.batch) == (subject.figures.seq, subject.figures.batch)


def compare(baselines: Sequence[Baseline], subject: Subject, growth: Growth) -> tuple[Judged, ...] | None:
    """Each figure against the same check of earlier runs; ``None`` if no baseline has it.

    A check is the same by its name, of several in the same file if one is. A single plan is of the checks with its model, ``seq`` and
    ``batch``, and of those that go its way alone where some do. Where several baselines have it, the smallest figure of each counts.
    """
    figures = subject.figures
    named = [item for item in baselines if item.name == subject.name]
    # Two files may each have a check of that name; a file that has moved since is still known by the name alone.
    same = [item for item in named if item.file == subject.file] or named
    same += [
        item for item in baselines if item.name is None and _alike(item, subject) and (item.way == subject.way or not item.exact)
    ]
    if not same:
        return None
    out = []
    for key in _FIGURES:
        earlier = [item.figures[key] for item in same if key in item.figures]
        now: int | None = getattr(figures, key)
        if earlier and now is not None:
            out.append(_judged(key, min(earlier), now, growth))
    return tuple(out)


def _judged(key: str, before: int, now: int, growth: Growth) -> Judged:
    limit = growth.limit(before)
    moved = "unchanged" if now == before else f"{now - before:+,} B since the baseline's {before:,} B"
    message = (
        f"{key.removesuffix('_bytes').replace('_', ' ')} {human_bytes(now)} ({now:,} B), {moved}; growth allowed: {growth.text}"
    )
    return Judged(name=f"growth.{key}", unit="bytes", limit=limit, got=now, holds=now <= limit, certain=True, message=message)
