"""Read a log, plan what the log says it runs, and compare the two. Length and number of the lines that are read are bounded."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION
from hwcalc.engines import find_engine
from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.engine import Engine
from hwcalc.errors import LogError, UnknownNameError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.library.plan import load_request, option_draft
from hwcalc.model import ModelLike, ModelSpec, Note, OpenFile
from hwcalc.planner.context import open_request
from hwcalc.planner.options import OPTIONS, Access, ReconcileOptions, take_options, takes
from hwcalc.profiles.engines import planned_version
from hwcalc.reconcile.dialects import DIALECTS, Dialect, find_dialect
from hwcalc.reconcile.facts import Facts, Row
from hwcalc.reconcile.result import Input, Reconciliation, Saved, Unread, about_memory
from hwcalc.text import brief
from hwcalc.units import parse_share

if TYPE_CHECKING:
    from typing import Unpack


LONGEST_LINE: Final = 256 * 1024
"""Bytes of a line that are read. An engine prints its whole configuration in one line."""
MOST_LINES: Final = 2_000_000
MOST_BYTES: Final = 64 * 1024**2
"""A log may be a device that never ends. An engine states its memory when it starts, near the beginning of its log."""
MOST_KNOWN_BYTES: Final = 16 * 1024**2
"""Bytes of lines about memory, which take most of the time; each counts as :data:`_KNOWN_LINE` more than it has."""
_KNOWN_LINE: Final = 256
_SHORTEST: Final = 8
"""Shorter lines state nothing: the shortest statement is ``blocks:1``."""

LogLike = str | os.PathLike[str] | OpenFile | Iterable[str]

# Each part has a bounded length and none overlaps the next, so that no text causes catastrophic backtracking.
_ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]{0,40}[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\^_])")


class Reader:
    """The lines of a log with their numbers, counted from 1. Afterwards ``remarks`` says what was left out."""

    def __init__(self, log: LogLike) -> None:
        self._log = log
        self._known = 0
        self.count = 0
        self.long = 0
        self.stopped = False

    def __iter__(self) -> Iterator[tuple[int, str]]:
        taken = 0
        for line, size in _raw(self._log):
            taken += size
            if taken > MOST_BYTES or self.count == MOST_LINES or self._known > MOST_KNOWN_BYTES:
                self.stopped = True
                return
            if line is None:
                continue
            self.count += 1
            if size < _SHORTEST:
                continue
            if size >= LONGEST_LINE:
                self.long += 1
            yield self.count, clean(line)

    def note_known(self, line: str) -> None:
        """Count a line about memory. After :data:`MOST_KNOWN_BYTES` of them, reading stops."""
        self._known += len(line) + _KNOWN_LINE

    @property
    def remarks(self) -> tuple[str, ...]:
        """What was not read of the log."""
        out = []
        if self.stopped:
            out.append(f"The log is long: only its first {self.count:,} lines were read.")
        if self.long:
            out.append(f"Of {self.long:,} long lines only the first {LONGEST_LINE:,} characters were read.")
        return tuple(out)


def clean(line: str) -> str:
    r"""The line without colours, zero bytes (of a log in UTF-16) and line ends. Carriage returns of progress bars become blanks.

    >>> clean("\x1b[1;36m(Worker pid=1)\x1b[0;0m INFO\x00 x\r\n")
    '(Worker pid=1) INFO x'
    """
    if "\x00" in line:
        line = line.replace("\x00", "")
    if "\x1b" in line:
        line = _ESCAPE.sub("", line)
    return line.rstrip("\r\n").replace("\r", " ").replace("\t", " ")


def log_name(log: LogLike) -> str:
    """The path or name of the log, or ``text``."""
    if isinstance(log, os.PathLike):
        return os.fspath(log)
    name = getattr(log, "name", None)
    return name if isinstance(name, str) else "text"


Piece = tuple[str | None, int]
"""The beginning of a line, ``None`` for more of a long line, and how much was read for it."""


def _raw(log: LogLike) -> Iterator[Piece]:
    if isinstance(log, str):
        for line in log.split("\n"):
            yield line[:LONGEST_LINE], len(line) + 1
    elif isinstance(log, os.PathLike):
        yield from _file(Path(log))
    elif hasattr(log, "readline"):
        yield from _stream(log)
    elif isinstance(log, Iterable):
        for item in log:
            if not isinstance(item, str):
                raise LogError(f"a log's lines must be text (got {type(item).__name__}).")
            yield item[:LONGEST_LINE], len(item) + 1
    else:
        raise LogError(f"a log must be text, lines, a path or an open file (got {type(log).__name__}).")


def _file(path: Path) -> Iterator[Piece]:
    from hwcalc.text import printable

    shown = printable(str(path))
    hint = "Name a file, or - for standard input."
    try:
        stream = path.open("rb")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no file can have that name"
        raise LogError(f"the log {shown} cannot be read ({reason}).", hint=hint) from error
    with stream:
        try:
            yield from _stream(stream)
        except OSError as error:
            raise LogError(f"the log {shown} cannot be read ({error.strerror}).", hint=hint) from error


def _stream(stream: Any) -> Iterator[Piece]:
    """The lines of a file; only the beginning of a very long line."""
    inside = False
    while True:
        piece = stream.readline(LONGEST_LINE)
        if not piece:
            return
        whole = piece.endswith(b"\n" if isinstance(piece, (bytes, bytearray)) else "\n")
        if inside:
            yield None, len(piece)
        else:
            yield (piece.decode("utf-8", "replace") if isinstance(piece, (bytes, bytearray)) else piece), len(piece)
        inside = not whole


TOLERANCE: Final = "1%"
_SHOWN: Final = tuple(row.name for row in OPTIONS if row.in_reconciliation)
_STATED_AS: Final = {
    "seq": ("max_model_len", "concurrency_tokens", "n_ctx_seq", "n_ctx", "session_len", "prompt_tokens"),
    "prompt": ("prompt_tokens",), "batch": ("n_seq_max",), "tp": ("tensor_parallel_size",), "pp": ("pipeline_parallel_size",),
    "dp": ("data_parallel_size",), "dcp": ("decode_context_parallel_size",), "ep": ("enable_expert_parallel",),
    "memory_utilization": ("gpu_memory_utilization",), "kv_memory": ("pool_mb",), "dtype": ("kv_cache_dtype",),
    "weights": ("quantization",),
}  # fmt: skip


@takes(ReconcileOptions)
def reconcile(
    model: ModelLike,
    log: LogLike,
    *,
    dialect: str | None = None,
    engine: str | None = None,
    tolerance: float | str = TOLERANCE,
    calibrate: bool = False,
    verbose: bool = False,
    **options: Unpack[ReconcileOptions],
) -> Reconciliation:
    """Compare an engine's start-up log, or its metrics, with a plan of what the log says it runs.

    ``log`` is text, lines, a path or an open file. ``dialect`` names how to read it; the default is the dialect that knows most of its
    lines. The plan takes what the log states: longest sequence, formats, ranks, batch sizes, the engine's version. ``options`` are
    keywords of :func:`hwcalc.plan`, which replace what the log states or add to it. A figure agrees if the range of the prediction and
    the range of the printed figure are at most ``tolerance`` apart, as a share of the larger figure. With ``calibrate``, the overheads
    that the log measured are saved for later plans with this engine and GPU. With ``verbose`` the result lists the lines about memory
    that were not understood, without secrets.

    Raises :class:`~hwcalc.errors.LogError` if the log cannot be read or states nothing to compare, and whatever
    :func:`~hwcalc.library.plan.plan` raises.
    """
    _, asked = take_options("reconcile", {name: value for name, value in options.items() if value is not None})
    choices = _Choices(
        dialect=None if dialect is None else find_dialect(dialect),
        engine=engine,
        tolerance=_tolerance(tolerance),
        calibrate=calibrate,
        verbose=verbose,
        access=asked.access,
        assume=asked.assume,
    )
    if calibrate and asked.gpu is None and asked.instance is None:
        raise UsageError("--calibrate keeps measurements of a GPU, and none is named.", hint="Name it: --gpu l4")
    spec, keywords = load_request(model, asked)
    keywords.pop("option_draft", None)
    return _reconciled(spec, log, choices, keywords)


class _Choices(Record):
    """What the user chose: how to read the log, and what to do with the result. ``engine`` is as the user named it."""

    dialect: type[Dialect] | None
    engine: str | None
    tolerance: float
    calibrate: bool
    verbose: bool
    access: Access
    assume: str | None


class _Log(Record):
    """A log that was read: what its dialect took from it, the number of its lines, and notes about it."""

    given: LogLike
    dialect: Dialect
    lines: int
    unread: Unread
    notes: tuple[Note, ...]


class _Inputs(Record):
    """The inputs of the plan. ``stated`` and ``stated_options`` come from the log; ``keywords`` and ``options`` come from the user,
    and win. Engine options are kept apart from keywords of the plan.
    """

    stated: Mapping[str, object]
    stated_options: Mapping[str, str]
    keywords: Mapping[str, Any]
    options: Mapping[str, str]


def _tolerance(share: float | str) -> float:
    allowed = parse_share(share, "the tolerance")
    if not 0 <= allowed.numerator < allowed.denominator:
        raise UsageError(f"the tolerance is {float(allowed):g}.", hint="Allowed: a share from 0 to below 1, such as 1%.")
    return float(allowed)


def _reconciled(spec: ModelSpec, log: LogLike, choices: _Choices, keywords: dict[str, Any]) -> Reconciliation:
    read = _read(log, choices.dialect)
    stated, stated_options = read.dialect.inputs()
    if spec.quantization is None and (online := read.dialect.online_format()) is not None:
        stated["weights"] = online
    options = keywords.pop("engine_options", {})
    inputs = _Inputs(stated=stated, stated_options=stated_options, keywords=keywords, options=options)
    notes = list(read.notes)
    name = _engine_of(read, choices.engine, notes)
    occupancy, rows, remarks = _compared(spec, name, read, inputs, choices)
    notes += [*occupancy.notes, *_same_model(read.dialect.facts, spec), *remarks]
    if read.unread.count and not choices.verbose:
        notes.append(Note(code="lines-unread", message=_unread_message(read.unread.count)))
    if not rows:
        message = "; ".join(note.message for note in remarks)
        raise LogError(
            f"the log states nothing that can be compared with this plan. {message}".strip(),
            hint=f"Lines that are looked for: {'; '.join(read.dialect.sought)}.",
        )
    return Reconciliation(
        schema_version=SCHEMA_VERSION,
        kvplan_version=__version__,
        model=spec.id,
        engine=read.dialect.engine,
        engine_version=occupancy.version or None,
        dialect=read.dialect.name,
        log=log_name(log),
        lines=read.lines,
        tolerance=choices.tolerance,
        within=all(row.within for row in rows),
        inputs=_shown_inputs(read.dialect.facts, inputs, occupancy),
        rows=tuple(rows),
        facts=read.dialect.facts.all(),
        saved=_calibrate(read, occupancy) if choices.calibrate else None,
        unread=read.unread.lines if choices.verbose else (),
        unread_lines=read.unread.count,
        notes=tuple(dict.fromkeys(notes)),
    )


def _unread_message(count: int) -> str:
    several = f"{count:,} lines about memory were" if count > 1 else "A line about memory was"
    return f"{several} not understood: {'list them' if count > 1 else 'see it'} with -v."


def _compared(
    spec: ModelSpec, name: str, read: _Log, inputs: _Inputs, choices: _Choices
) -> tuple[Occupancy, list[Row], list[Note]]:
    """The plan of what the log says it runs, the rows that compare it with the log, and notes about what could not be compared."""
    try:
        occupancy = _planned(
            spec, name, {**inputs.stated, **inputs.keywords}, {**inputs.stated_options, **inputs.options}, choices
        )
        rows, remarks = read.dialect.compare(occupancy, choices.tolerance)
    except UsageError as error:
        # If the user's own options cannot be planned, this raises their UsageError; else the log is at fault.
        _planned(spec, name, inputs.keywords, inputs.options, choices)
        raise LogError(f"what the log states cannot be planned: {error.message}", hint=error.hint) from error
    return occupancy, rows, remarks


def _planned(
    spec: ModelSpec, engine: str, keywords: Mapping[str, Any], options: Mapping[str, str], choices: _Choices
) -> Occupancy:
    """The opened request. It ignores saved measurements, so that the log is compared with the estimates."""
    draft = None if "draft" in keywords else option_draft(engine, options, choices.access, choices.assume)
    planned = open_request(spec, engine=engine, engine_options=options, option_draft=draft, **keywords)
    return planned.engine.open(spec, planned.request.changed(calibrated=False), planned.notes)


def _read(log: LogLike, chosen: type[Dialect] | None) -> _Log:
    """Read the log in the chosen dialect, or in the one that knows most of its lines."""
    dialects = [dialect() for dialect in (DIALECTS if chosen is None else (chosen,))]
    lines, unread = Reader(log), [Unread() for _ in dialects]
    for number, text in lines:
        missed = [left for dialect, left in zip(dialects, unread, strict=True) if not _takes(dialect, number, text)]
        about = about_memory(text) if missed else False
        if about:
            for left in missed:
                left.add(number, text)
        if about or len(missed) < len(dialects):
            lines.note_known(text)
    best = max(range(len(dialects)), key=lambda index: (len(dialects[index].facts), -index))
    dialect = dialects[best]
    if not len(dialect.facts):
        sought = "; ".join(line for one in dialects for line in one.sought)
        what = (
            "is empty"
            if lines.count == 0
            else f"has no line that is known ({lines.count:,} lines read{' of more' if lines.stopped else ''})"
        )
        raise LogError(f"the log {what}.", hint=f"Lines that are looked for: {sought}.")
    notes = [Note(code="log-cut", message=remark) for remark in lines.remarks]
    if dialect.starts > 1:
        message = f"The log holds {dialect.starts:,} starts of the engine: the last one is compared."
        notes.append(Note(code="several-starts", message=message))
    return _Log(given=log, dialect=dialect, lines=lines.count, unread=unread[best], notes=tuple(notes))


def _takes(dialect: Dialect, number: int, text: str) -> bool:
    """Feed a line to a dialect. Returns whether it states a fact."""
    before = dialect.facts.taken
    dialect.feed(number, text)
    return dialect.facts.taken > before


def _engine_of(read: _Log, chosen: str | None, notes: list[Note]) -> str:
    """The engine to plan with, and the version that the user or the log states."""
    name = chosen or read.dialect.engine
    rules, version = find_engine(name)
    logged, _ = find_engine(read.dialect.engine)
    if isinstance(rules, type(logged)) and rules is not logged:
        # Ollama's log is that of the llama-server it started, which says with what.
        name, rules, version = logged.name, logged, None
    if rules.name != read.dialect.engine:
        raise UsageError(
            f"the log is of {read.dialect.engine}, not of {rules.name}.",
            hint=f"Leave out --engine, or use {read.dialect.engine}@VERSION.",
        )
    return _versioned(read.dialect.facts, rules, notes) if version is None and read.dialect.states_version else name


def _versioned(facts: Facts, rules: Engine, notes: list[Note]) -> str:
    """The engine with the version that the log states, or with the nearest version whose rules are known."""
    name, known = rules.name, rules.versions
    version = facts.word("version")
    if version is None:
        message = f"The log does not state {rules.label}'s version: {known[0]} is taken. Set it with --engine {name}@VERSION."
        notes.append(Note(code="version-unknown", message=message))
        return name
    try:
        return f"{name}@{rules.resolve_version(version)}"
    except UnknownNameError:
        nearest = min(known, key=lambda one: abs(_order(one) - _order(version)))
    message = f"The rules of {rules.label} {version} are not known: those of {nearest} are taken."
    notes.append(Note(code="version-unknown", message=message))
    return f"{name}@{nearest}"


def _order(version: str) -> int:
    major, minor, *_ = (*planned_version(version), 0)
    return 1000 * major + minor


def _shown_inputs(facts: Facts, inputs: _Inputs, occupancy: Occupancy) -> tuple[Input, ...]:
    """Each input of the plan with its source: an option, a line of the log, or a default."""
    values, gpu, keywords = occupancy.request.flat(), occupancy.setup.hardware.gpu, inputs.keywords
    shown = {name: values.get(name) for name in _SHOWN}
    shown |= {"gpu": None if gpu is None else gpu.id, "dtype": occupancy.dtypes.kv}
    out = []
    if gpu is None and (assumed := occupancy.engine.assumed_gpu) is not None:
        out.append(Input(name="gpu", value=assumed, source="assumed", line=None))
    for name, value in shown.items():
        if value is None:
            continue
        source, line = "default", None
        if name in keywords or (name in ("tp", "gpu") and {"gpus", "instance"} & set(keywords)):
            source = "option"
        elif name in inputs.stated:
            source = "log"
            line = next((fact.line for key in _STATED_AS[name] if (fact := facts.last(key)) is not None), None)
        out.append(Input(name=name, value=str(value), source=source, line=line))
    for name, word in {**inputs.stated_options, **inputs.options}.items():
        fact = facts.last(name)
        by_log = name not in inputs.options
        line = fact.line if by_log and fact is not None else None
        out.append(Input(name=f"engine_options.{name}", value=word, source="log" if by_log else "option", line=line))
    return tuple(out)


def _same_model(facts: Facts, spec: ModelSpec) -> list[Note]:
    """A note if the log names another model. Of a path, only the last part is compared."""
    name = facts.word("model")
    if name is None:
        return []
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2].lower()
    if not last or last == spec.id.rpartition("/")[2].lower() or "snapshots" in name:
        return []

    return [Note(code="other-model", message=f"The log is of {brief(name, 80)}; it is compared with {spec.id}.")]


def _calibrate(read: _Log, occupancy: Occupancy) -> Saved:
    """Save the overheads that the log measured. Raises :class:`~hwcalc.errors.LogError` if it measured none."""
    from datetime import UTC, datetime
    from pathlib import Path

    from hwcalc.engines.memory import conditions
    from hwcalc.hardware.profiles import keeping
    from hwcalc.profiles.calibration import Measured, Measurement, overheads_kind, save_reading

    gpu = occupancy.setup.hardware.gpu
    assert gpu is not None
    values = read.dialect.overheads(occupancy)
    if not values:
        raise LogError(
            "the log measures no overheads: nothing to keep.",
            hint='vLLM states them in "Actual usage is ..." and "non_torch_memory takes ...".',
        )
    tokens, rows = read.dialect.batch_shape(occupancy)
    version = f" {occupancy.version}" if occupancy.version else ""
    source = f"{read.dialect.engine}{version}, {brief(Path(log_name(read.given)).name, 80)}"
    measured = Measured(device=gpu.name, date=datetime.now(tz=UTC).date().isoformat(), source=source)
    reading = Measurement(
        values=values,
        measured=measured,
        conditions=conditions(occupancy.model.id, occupancy.setup.parallel, tokens=tokens, rows=rows),
    )
    with keeping(LogError):
        path = save_reading(gpu.id, overheads_kind(read.dialect.engine), reading)
    return Saved(path=str(path), values=values)
