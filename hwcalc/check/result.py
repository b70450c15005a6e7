"""The result of a run of checks: frozen objects whose fields are the JSON document of ``kvplan check``.

The verdict and the figures of a plan, as a check reports them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import field

from hwcalc.documents import Answer, ErrorInfo
from hwcalc.formulas.record import Record
from hwcalc.model import Note
from hwcalc.planner.result import Plan
from hwcalc.planner.verdict import Verdict
from hwcalc.units import human_bytes

GROWTH: Final = "growth."
"""What the names of requirements begin with that compare bytes with a baseline."""
SLOWER: Final = "much slower"
"""What is said of a plan that leaves a part of the model in the memory of the host."""


class Edit(Record):
    """What can be written in the check file so that the check passes, such as ``gpus: 8``, each key on a line, and what that gives; planned again.

    ``flags`` say the same to the engine, as a deployment does; they are empty where no flag does it. ``accepting`` is the option of ``kvplan check``
    that accepts what grows since the baseline; empty where nothing grows more than is allowed. ``layout`` has the
    parallel sizes that the check chooses then, such as ``tp 4, dp 4``; empty where the edit says them, or it is tensor parallelism alone.

    ``settings`` are the options of a plan that it changes, as a check file writes them, null for one that is taken back. ``told`` has the ``flags``
    of a deployment by their names, with their values: flags, variables and parameters; one without a value has an empty one.
    """

    yaml: str
    effect: str
    flags: str = ""
    accepting: str = ""
    layout: str = ""
    settings: Mapping[str, str | None] = field(default_factory=dict)
    told: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_slower(self) -> bool:
        """True for one that nobody wants unasked, such as weights in host memory."""
        return SLOWER in self.effect


class KeyChange(Record):
    """A key of a check whose value is another one ``since`` the baseline or the lock; null where it is not written.

    What is no key of a check file is told as well: ``engine version``, ``model revision``, ``kvplan``.
    """

    key: str
    before: str | None
    after: str | None
    since: str


class Judged(Record):
    """One requirement against one figure of the plan, in ``unit``; null is unknown, or no number.

    ``certain`` is false where the low and the high end of an estimate disagree about it: it holds by the expected value alone. With each of
    the ``edits`` of the first that fails the whole check passes, those of the largest length and the most sequences first. ``line`` and ``column`` are those of the key that it is
    about, null for the check itself.
    """

    name: str
    unit: str
    limit: int | float | None
    got: int | float | None
    holds: bool
    certain: bool
    message: str
    edits: tuple[Edit, ...] = ()
    line: int | None = None
    column: int | None = None


class Fit(Record):
    """The verdict in bytes per GPU: what is usable and what is needed, with the ends of the estimate. Null is not planned.

    ``max_seq`` and ``max_batch`` hold for sure, those with ``expected`` by the expected value.
    """

    gpu: str | None
    gpus: int
    usable_bytes: int
    needed_bytes: int
    needed_low_bytes: int
    needed_high_bytes: int
    headroom_bytes: int
    max_seq: int | None
    expected_max_seq: int | None
    max_batch: int | None
    expected_max_batch: int | None
    min_gpus: int | None


class Figures(Record):
    """The plan of a check in its headline figures. Bytes are those of all GPUs together; null is unknown."""

    engine: str
    engine_version: str | None
    seq: int
    batch: int
    kv_dtype: str
    cache_bytes: int
    bytes_per_token: int
    weights_bytes: int | None
    total_bytes: int | None
    definition: str
    decode_tokens_per_s_bound: float | None
    fit: Fit | None
    policy: str | None = None
    """The cache policy, and whether the engine has it: the plan of one that it lacks is as if it had."""
    policy_offered: bool | None = None


class Checked(Record):
    """One check. ``status`` is ``pass``, ``warning`` (it holds, but not at both ends of an estimate), ``fail`` or ``error``.

    ``verdict`` is ``fits``, ``probably``, ``probably_not`` or ``no``; null where no hardware was named. ``source`` is where the model came from.
    ``asked`` has the keys of the check and their values as text, and ``changes`` those that are not as in the baseline or the lock.
    ``warnings`` are the plan's own, and what no baseline has; they change no status. Each fault of a file that could not be
    read is a check with the name of the file, no ``model`` and the ``error``. ``server`` is what a deployment says of the server that is
    checked; null for the checks of check files.
    """

    name: str
    file: str
    line: int
    column: int
    model: str | None = None
    status: str = "error"
    verdict: Verdict | None = None
    source: str | None = None
    revision: str | None = None
    asked: Mapping[str, str] = field(default_factory=dict)
    changes: tuple[KeyChange, ...] = ()
    plan: Figures | None = None
    requirements: tuple[Judged, ...] = ()
    error: ErrorInfo | None = None
    warnings: tuple[Note, ...] = ()
    notes: tuple[Note, ...] = ()
    server: Mapping[str, Any] | None = None


class Fix(Record):
    """What would mend a deployment, as a unified diff; empty where nothing is changed. ``written`` says whether its file has it.

    ``changes`` are flags by the names of their checks, and ``reasons`` say why for some checks nothing is changed.
    """

    path: str
    diff: str
    changes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    written: bool = False


class FileInfo(Record):
    """One file of checks or servers. ``lock`` is the lock that was read or written, null if there is none; ``notes`` are about the file as a whole."""

    path: str
    checks: int
    lock: str | None = None
    lock_written: bool = False
    notes: tuple[Note, ...] = ()


class Summary(Record):
    """How many checks ended how, the faults of files that cannot be used, and the exit status: 0 all hold, 1 one fails, else the highest code of an
    error.
    """

    checks: int
    passed: int
    warnings: int
    failed: int
    errors: int
    strict: bool
    exit_code: int
    faults: int = 0


class CheckDocument(Answer, Record):
    """The whole run."""

    schema_version: str
    kvplan_version: str
    files: tuple[FileInfo, ...]
    checks: tuple[Checked, ...]
    summary: Summary
    fixes: tuple[Fix, ...] = ()

    def headline(self) -> str:
        """``4 checks: 2 hold, 1 probably holds, 1 fails``, and ``1 file cannot be used: 3 faults``."""
        summary = self.summary
        counts = (
            (summary.passed, "hold" if summary.passed != 1 else "holds"),
            (summary.warnings, "probably hold" if summary.warnings != 1 else "probably holds"),
            (summary.failed, "fails" if summary.failed == 1 else "fail"),
            (summary.errors, "could not be checked"),
        )
        words = ", ".join(f"{count:,} {word}" for count, word in counts if count)
        files = len({check.file for check in self.checks if check.model is None})
        checks, unread, faults = (
            f"{count:,} {what}{'' if count == 1 else 's'}"
            for count, what in ((summary.checks, "check"), (files, "file"), (summary.faults, "fault"))
        )
        said = [f"{checks}{': ' if words else ''}{words}"] if summary.checks or not files else []
        return "; ".join([*said, *([f"{unread} cannot be used: {faults}"] if files else [])])

    def records(self) -> list[dict[str, Any]]:
        """A flat row for each check; ``why`` is what did not hold, or could not be read."""
        rows = []
        for check in self.checks:
            plan = check.plan
            planned: dict[str, Any] = dict.fromkeys(_PLANNED)
            if plan is not None:
                sizes = (plan.cache_bytes, plan.weights_bytes, plan.total_bytes)
                gpu = None if plan.fit is None else plan.fit.gpu
                planned = dict(zip(_PLANNED, (plan.seq, plan.batch, plan.kv_dtype, plan.engine, gpu, *sizes), strict=True))
            fits = None if check.verdict is None else str(check.verdict)
            why = [judged.message for judged in check.requirements if not judged.holds]
            why += [check.error.message] if check.error is not None else []
            told = {"name": check.name, "status": check.status, "model": check.model, "fits": fits}
            rows.append({**told, **planned, "why": "; ".join(why) or None, "file": check.file, "line": check.line})
        return rows

    __repr__ = Answer.__repr__


def summary_of(checks: Sequence[Checked], *, strict: bool) -> Summary:
    """How checks ended. One with several faults has a result for each, and counts once."""
    count = Counter({(check.file, check.name): check.status for check in checks if check.model is not None}.values())
    codes = [check.error.code for check in checks if check.error is not None]
    return Summary(
        checks=count.total(),
        faults=sum(check.model is None for check in checks),
        passed=count["pass"],
        warnings=count["warning"],
        failed=count["fail"],
        errors=count["error"],
        strict=strict,
        exit_code=max(codes) if codes else 1 if count["fail"] else 0,
    )


_PLANNED: Final = ("seq", "batch", "dtype", "engine", "gpu", "cache_total_bytes", "weights_bytes", "total_bytes")
"""Columns of a row of a check that was planned."""


def verdict_of(plan: Plan) -> Verdict | None:
    """The plan's verdict; ``None`` without hardware."""
    return None if plan.fit is None else plan.fit.verdict


def figures_of(plan: Plan) -> Figures:
    """The figures that a check reports and compares."""
    request, cache, memory = plan.request, plan.cache, plan.memory
    fit = None if plan.fit is None else Fit(**{name: getattr(plan.fit, name) for name in Fit.__struct_fields__})
    return Figures(
        engine=request.engine,
        engine_version=request.engine_version,
        seq=request.seq,
        batch=request.batch,
        kv_dtype=request.kv_dtype,
        cache_bytes=cache.total_bytes,
        bytes_per_token=cache.bytes_per_token,
        weights_bytes=memory.weights.bytes,
        total_bytes=memory.total_bytes,
        definition=cache.definition,
        decode_tokens_per_s_bound=None if plan.speed is None else plan.speed.decode_tokens_per_s_bound,
        fit=fit,
        policy=request.policy,
        policy_offered=None if plan.policy is None else plan.policy.offered,
    )


def verdict_in_words(verdict: Verdict, fit: Fit) -> str:
    """The verdict with its numbers, such as ``probably fits: 19.50 GiB needed (18.90 to 21.30 GiB) of 20.00 GiB usable``."""
    span = ""
    if fit.needed_low_bytes != fit.needed_high_bytes:
        span = f" ({human_bytes(fit.needed_low_bytes)} to {human_bytes(fit.needed_high_bytes)})"
    each = " on each GPU" if fit.gpus > 1 else ""
    return f"{verdict.text}: {human_bytes(fit.needed_bytes)} needed{span} of {human_bytes(fit.usable_bytes)} usable{each}"


def count_of(value: Any) -> int:
    """A count that a file states. Raises :class:`TypeError` if it is none."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise TypeError
    return value
