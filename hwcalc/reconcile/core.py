"""Read a log, plan what the log says it runs, and compare the two. Length and number of the lines that are read are bounded."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION
from hwcalc.engines import find_engine
from hwcalc.engines.deployment import Occupancy
from hwcalc.errors import KvplanError, LogError, UnknownNameError, UsageError
from hwcalc.files import opened
from hwcalc.formulas.record import Record
from hwcalc.library.plan import load_request, option_draft
from hwcalc.model import ModelLike, ModelSpec, Note, OpenFile
from hwcalc.planner.asked import Asked, take_options
from hwcalc.planner.context import open_request
from hwcalc.planner.options import OPTIONS, ReconcileOptions, takes
from hwcalc.reconcile.dialects import DIALECTS, Dialect, find_dialect
from hwcalc.reconcile.facts import Facts, Row, device_memory
from hwcalc.reconcile.result import Input, Reconciliation, Saved, Unread, about_memory
from hwcalc.text import brief, printable, shown
from hwcalc.units import MIB, human_bytes, parse_share

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
_JSON: Final = tuple('{["')
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
            if size >= _SHORTEST:
                self.long += size >= LONGEST_LINE
                text = clean(line)
                # A log in a JSON document, such as a notebook, has its line ends written out.
                for part in text.split("\\n") if "\\n" in text and text.lstrip()[:1] in _JSON else (text,):
                    yield self.count, part

    def note_known(self, line: str) -> None:
        """Count a line about memory. After :data:`MOST_KNOWN_BYTES` of them, reading stops."""
        self._known += len(line) + _KNOWN_LINE

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks on lines of the log that were not read."""
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


def _raw(log: LogLike) -> Iterator[tuple[str | None, int]]:
    """The beginning of each line, ``None`` for more of a long line, and how much was read for it."""
    if isinstance(log, os.PathLike):
        path, hint = Path(log), "Name a file, or - for standard input."
        shown = printable(str(path))
        try:
            stream = opened(path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "no file can have that name"
            raise LogError(f"the log {shown} cannot be read ({reason}).", hint=hint) from error
        with stream:
            try:
                yield from _stream(stream)
            except OSError as error:
                raise LogError(f"the log {shown} cannot be read ({error.strerror}).", hint=hint) from error
    elif not isinstance(log, str) and hasattr(log, "readline"):
        yield from _stream(log)
    elif isinstance(log, Iterable):
        for item in log.split("\n") if isinstance(log, str) else log:
            if not isinstance(item, str):
                raise LogError(f"a log's lines must be text (got {type(item).__name__}).")
            yield item[:LONGEST_LINE], len(item) + 1
    else:
        raise LogError(f"a log must be text, lines, a path or an open file (got {type(log).__name__}).")


def _stream(stream: Any) -> Iterator[tuple[str | None, int]]:
    """The lines of a file; only the beginning of a very long line."""
    inside = False
    while piece := stream.readline(LONGEST_LINE):
        text = piece.decode("utf-8", "replace") if isinstance(piece, (bytes, bytearray)) else piece
        yield None if inside else text, len(piece)
        inside = not text.endswith("\n")


TOLERANCE: Final = "1%"
_SHOWN: Final = tuple(row.name for row in OPTIONS if row.in_reconciliation)
_STATED_AS: Final = {
    "seq": ("max_model_len", "concurrency_tokens", "n_ctx_seq", "n_ctx", "session_len", "prompt_tokens"),
    "prompt": ("prompt_tokens",), "batch": ("n_seq_max",), "tp": ("tensor_parallel_size",), "pp": ("pipeline_parallel_size",),
    "dp": ("data_parallel_size",), "dcp": ("decode_context_parallel_size",), "ep": ("enable_expert_parallel",),
    "memory_utilization": ("gpu_memory_utilization",), "kv_memory": ("pool_mb",), "dtype": ("kv_cache_dtype",),
    "weights": ("quantization", "file_type"), "gpu": ("device",),
}  # fmt: skip


@takes(ReconcileOptions)
def reconcile(
    model: ModelLike | None,
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

    ``log`` is text, lines, a path or an open file. Without ``model`` it is the log's own. ``dialect`` names how to read it; the default is the dialect that knows most of its
    lines. The plan takes what the log states: longest sequence, formats, ranks, batch sizes, the engine's version. ``options`` are
    keywords of :func:`hwcalc.plan`, which replace what the log states or add to it. A figure that depends on something that neither says,
    such as an accelerator, is not judged. A figure agrees if the range of the prediction and
    the range of the printed figure are at most ``tolerance`` apart, as a share of the larger figure. With ``calibrate``, the overheads
    that the log measured are saved for later plans with this engine and GPU. With ``verbose`` the result lists the lines about memory
    that were not understood, without secrets.

    Raises :class:`~hwcalc.errors.LogError` if the log cannot be read or states nothing to compare, and whatever
    :func:`~hwcalc.library.plan.plan` raises.
    """
    _, asked = take_options("reconcile", {name: value for name, value in options.items() if value is not None})
    chosen = None if dialect is None else find_dialect(dialect)
    allowed = share_of(tolerance)
    if calibrate and asked.gpu is None and asked.instance is None:
        raise UsageError("--calibrate keeps measurements of a GPU, and none is named.", hint="Name it: --gpu l4")
    if model is None:
        read = _read(log, chosen)
        spec, keywords = load_own(read.dialect, asked)
    else:
        spec, keywords = load_request(model, asked)
        read = _read(log, chosen)
    findings = findings_of(read, spec, keywords, asked, engine, allowed)
    if not findings.rows:
        message = "; ".join(note.message for note in findings.remarks)
        raise LogError(
            f"the log states nothing that can be compared with this plan. {message}".strip(),
            hint=f"Lines that are looked for: {'; '.join(read.dialect.sought)}.",
        )
    saved = _calibrate(read.dialect, log_name(log), findings.occupancy) if calibrate else None
    return reconciliation_of(read, findings, log_name(log), allowed, saved=saved, verbose=verbose)


def share_of(tolerance: float | str) -> float:
    """The tolerance as a share. Raises :class:`~hwcalc.errors.UsageError`."""
    allowed = parse_share(tolerance, "the tolerance")
    if not 0 <= allowed.numerator < allowed.denominator:
        raise UsageError(f"the tolerance is {float(allowed):g}.", hint="Allowed: a share from 0 to below 1, such as 1%.")
    return float(allowed)


class Findings(Record):
    """The plan of what a log or a server says it runs, the figures of both, and notes; ``remarks`` are those about what could not be compared.

    ``stated`` are the keywords that it states, ``keywords`` the user's, which win.
    """

    occupancy: Any
    stated: Mapping[str, Any]
    keywords: Mapping[str, Any]
    rows: tuple[Row, ...]
    notes: tuple[Note, ...]
    remarks: tuple[Note, ...]


def findings_of(
    read: LogRead, spec: ModelSpec, keywords: dict[str, Any], asked: Asked, engine: str | None, tolerance: float
) -> Findings:
    """Plan what was read, and compare the two. Raises :class:`~hwcalc.errors.LogError` if it cannot be planned."""
    keywords.pop("option_draft", None)
    notes = list(read.notes)
    name = _engine_of(read.dialect, engine, notes)
    stated, occupancy, rows, remarks = _compared(spec, read.dialect, keywords, asked, name, tolerance)
    notes += [*occupancy.notes, *_same_model(read.dialect, spec), *_same_gpu(read.dialect, occupancy), *remarks]
    return Findings(
        occupancy=occupancy, stated=stated, keywords=keywords, rows=tuple(rows), notes=tuple(notes), remarks=tuple(remarks)
    )


def reconciliation_of(
    read: LogRead, findings: Findings, log: str, tolerance: float, *, saved: Saved | None, verbose: bool
) -> Reconciliation:
    """The document about what was read and compared; ``log`` is what was read."""
    notes, occupancy, facts = list(findings.notes), findings.occupancy, read.dialect.facts
    if (count := read.unread.count) and not verbose:
        several = f"{count:,} lines about memory were" if count > 1 else "A line about memory was"
        message = f"{several} not understood: {'list them' if count > 1 else 'see it'} with -v."
        notes.append(Note(code="lines-unread", message=message))
    return Reconciliation(
        schema_version=SCHEMA_VERSION,
        kvplan_version=__version__,
        model=occupancy.model.id,
        engine=read.dialect.engine,
        engine_version=occupancy.deployment.version or None,
        dialect=read.dialect.name,
        log=log,
        lines=read.lines,
        tolerance=tolerance,
        within=all(row.within is not False for row in findings.rows),
        inputs=_shown_inputs(read.dialect, findings.stated, findings.keywords, occupancy),
        rows=findings.rows,
        facts=facts.all(),
        saved=saved,
        unread=read.unread.lines if verbose else (),
        unread_lines=read.unread.count,
        notes=tuple(dict.fromkeys(notes)),
    )


def _compared(
    spec: ModelSpec, dialect: Dialect, keywords: Mapping[str, Any], asked: Asked, engine: str, tolerance: float
) -> tuple[dict[str, Any], Occupancy, list[Row], list[Note]]:
    """The keywords that the log states, the plan of what it says it runs, rows that compare the two, and notes about what could not be.

    ``keywords`` are the user's, and win.
    """
    stated: dict[str, Any]
    stated, options = dialect.inputs()
    foreign = _foreign_format(spec, dialect)
    of_file = spec.gguf is not None and spec.gguf.tensors
    if spec.quantization is None and not of_file and (online := dialect.online_format() or _nearest_format(foreign)) is not None:
        stated["weights"] = online
    named = None if {"gpu", "instance"} & set(keywords) else _gpu_of(dialect.facts)
    if named is not None:
        stated["gpu"] = named
        if (count := len(dialect.facts.ranks("used"))) > 1 and "gpus" not in keywords:
            stated["gpus"] = count
    stated["engine_options"] = options

    def planned(given: Mapping[str, Any]) -> Occupancy:
        # Saved measurements are ignored, so that the log is compared with the estimates.
        draft = None if "draft" in given else option_draft(engine, given["engine_options"], asked.access, asked.assume)
        occupancy = open_request(spec, engine=engine, option_draft=draft, started=True, **given)
        return occupancy.engine.open(spec, occupancy.request.changed(calibrated=False), occupancy.notes)

    def beside(**more: Any) -> tuple[Occupancy, list[Row], list[Note]]:
        occupancy = planned({**stated, **keywords, "engine_options": {**options, **own}, **more})
        return occupancy, *dialect.compare(occupancy, tolerance)

    own = keywords.get("engine_options", {})
    try:
        occupancy, rows, remarks = beside()
        if foreign is not None and "dtype" not in {**stated, **keywords} and any(_is_apart(row) for row in rows):
            # The files of a format may state one for the cache, too, which the log does not print: its counts tell.
            other, others, more = _or_nothing(partial(beside, dtype=_CACHE_OF_FILES))
            if others and not any(_is_apart(row) for row in others):
                stated["dtype"] = _CACHE_OF_FILES
                message = f"The {dialect.source}'s counts are those of a cache in {_CACHE_OF_FILES}, which files in {foreign} may state: it is planned with."
                occupancy, rows, remarks = other, others, [*more, Note(code="cache-of-files", message=message)]
    except UsageError as error:
        # If the user's own options cannot be planned, this raises their UsageError; else the log is at fault.
        planned({**keywords, "engine_options": own})
        raise LogError(f"what the {dialect.source} states cannot be planned: {error.message}", hint=error.hint) from error
    if foreign is not None and "weights" not in keywords:
        rows = [*_unjudged(rows, "--weights", lambda row: row.name in _OF_WEIGHTS and row.definition != "profile")]
        message = f"The {dialect.source}'s weights are in {foreign}, and which of them that is, only the files say: they are not compared. Set --weights."
        remarks = [*remarks, Note(code="weights-unknown", message=message)]
    elif "weights" not in keywords and dialect.lacks_format(spec):
        rows = [*_unjudged(rows, "--weights", lambda row: row.name in _OF_WEIGHTS)]
        message = f"The {dialect.source} does not say in which format its weights are: they are not compared. Set --weights."
        remarks = [*remarks, Note(code="weights-unknown", message=message)]
    if occupancy.setup.hardware.gpu is None and occupancy.engine.facts.assumed_gpu is not None:
        seen = [_or_nothing(partial(beside, gpu=gpu))[1] for gpu in _OTHER_GPUS]
        rows = [*_unjudged(rows, "--gpu", lambda row: any(_moves(row, others) for others in seen))]
    return stated, occupancy, rows, remarks


_CACHE_OF_FILES: Final = "fp8"
_OTHER_GPUS: Final = ("l4", "b200-180gb")
"""Accelerators of other classes than the one that is assumed: of less memory, and of another generation."""
_OF_WEIGHTS: Final = frozenset({"weights", "weights on GPUs", "consumed", "torch peak", "available"})
"""Figures that the weights are part of."""


def _is_apart(row: Row) -> bool:
    """True if this figure must match exactly, and does not."""
    return row.within is False and row.definition == "engine" and row.tolerance == 0


def _or_nothing(compare: Callable[[], tuple[Any, list[Row], list[Note]]]) -> tuple[Any, list[Row], list[Note]]:
    """The result of this comparison; no rows where it cannot be planned."""
    try:
        return compare()
    except KvplanError:
        return None, [], []


def _moves(row: Row, others: Iterable[Row]) -> bool:
    """True if another accelerator predicts another figure, unless the log agrees with both. One that follows from that GPU's memory is left out."""
    same = [
        other for other in others if (other.name, other.definition) == (row.name, row.definition) and row.definition != "estimate"
    ]
    moved = any((other.low, other.predicted, other.high) != (row.low, row.predicted, row.high) for other in same)
    return moved and not all(one.within for one in (row, *same))


def _unjudged(rows: Iterable[Row], needs: str, rests: Callable[[Row], bool]) -> Iterator[Row]:
    """The rows, of which those that rest on what is not known have no verdict."""
    for row in rows:
        yield replace(row, within=None, needs=needs) if row.needs is None and rests(row) else row


def _foreign_format(spec: ModelSpec, dialect: Dialect) -> str | None:
    """The format of the log's weights, if it is another one than the model's; ``None`` if it is the same, or the log states none."""
    stored = dialect.stored_format()
    if stored is None or (spec.quantization is None and dialect.online_format() is not None):
        return None
    own = str((spec.quantization or {}).get("quant_method") or "")
    alike = own and (own.partition("-")[0].partition("_")[0] in stored or stored.partition("_")[0] in own)
    return None if alike else stored


def _nearest_format(stored: str | None) -> str | None:
    """The format of ``--weights`` that is nearest to one by the name of an engine."""
    from hwcalc.quantization.planned import named_format

    found = None if stored is None else named_format(stored.replace("_", "-"))
    return None if found is None else found[1]


def _gpu_of(facts: Facts) -> str | None:
    """The id of the accelerator whose name the log states, if its profile is known."""
    name, total = facts.word("device"), facts.largest("total_bytes")
    if name is None:
        return None
    from hwcalc.hardware.local import FoundGpu, match

    size = None if total is None or isinstance(total.value, str) else int(total.value) // MIB
    gpu = match(FoundGpu(name=name, vendor="", through="the log", memory_mib=size, by_torch=True), [])
    return None if gpu is None else gpu.id


def load_own(dialect: Dialect, asked: Asked) -> tuple[ModelSpec, dict[str, Any]]:
    """Load the model that the log or the server names, or the one that it is a quantized copy of, where its own files cannot be read."""
    own, base = _models_of(dialect)
    try:
        return load_request(own or base, asked)
    except KvplanError:
        if own is None or base is None:
            raise
        return load_request(base, asked)


def _models_of(dialect: Dialect) -> tuple[str | None, str | None]:
    """The id of the log's model, and that of the model in the catalog that it is a copy of by its name; ``None`` for an unknown one.

    Raises :class:`~hwcalc.errors.LogError` if both are.
    """
    from hwcalc.profiles.catalog import is_model_id, list_models
    from hwcalc.quantization.planned import named_format

    name, own_name = (dialect.facts.word("model") or "").replace("\\", "/").rstrip("/"), dialect.facts.word("general_name")
    hint = f"Name it: kvplan reconcile MODEL --log {'FILE' if dialect.source == 'log' else 'URL'}"
    if not name and not own_name:
        raise LogError(f"the {dialect.source} does not name its model.", hint=hint)
    if name.lower().endswith(".gguf") or own_name:
        from hwcalc.sources.gguf.hub import base_models
        from hwcalc.sources.gguf.names import quantization_of

        file = name.rpartition("/")[2]
        stems = [file.partition(quantization_of(file) or ".gguf")[0].rstrip("-._")] if file.lower().endswith(".gguf") else []
        # A file has the name of its model in itself, too.
        for stem in (*stems, *([own_name.replace(" ", "-")] if own_name else ())):
            found = base_models(f"{stem}-GGUF")
            if len(found) == 1:
                return None, found[0]
        name = name or str(own_name)
    cached = re.search(r"models--([A-Za-z0-9_.-]{1,96}?)--([A-Za-z0-9_.-]{1,96})(?:/|$)", name)
    name = name if cached is None else f"{cached[1]}/{cached[2]}"
    last, known = name.rpartition("/")[2].lower(), list_models()
    bases: dict[str, list[str]] = {}
    for one in known:
        short = one.rpartition("/")[2].lower()
        rest = last[len(short) :] if last.startswith(short) else "?"
        word = named_format(rest[1:]) if rest[:1] in ("-", "_", ".") else None
        if not rest or (word is not None and rest[1:].startswith(word[0])):
            bases.setdefault(short, []).append(one)
    longest = bases[max(bases, key=len)] if bases else []
    base = longest[0] if len(longest) == 1 else None
    own = name if is_model_id(name) else None
    if own is None and base is None:
        raise LogError(
            f"the {dialect.source} calls its model {shown(name, 80)}, a folder of its {'server' if dialect.source == 'log' else 'machine'}, and does not say which that is.",
            hint=hint,
        )
    return own, base


class LogRead(Record):
    """A log that was read: what its dialect took from it, the number of its lines, and notes about it."""

    dialect: Dialect
    lines: int
    unread: Unread
    notes: tuple[Note, ...]


def _read(log: LogLike, chosen: type[Dialect] | None) -> LogRead:
    """Read the log in the chosen dialect, or in the one that knows most of its lines."""
    dialects = [dialect() for dialect in (DIALECTS if chosen is None else (chosen,))]
    lines, unread = Reader(log), [Unread() for _ in dialects]
    for number, text in lines:
        missed = []
        for dialect, left in zip(dialects, unread, strict=True):
            before = dialect.facts.taken
            dialect.feed(number, text)
            if dialect.facts.taken == before:
                missed.append(left)
        about = about_memory(text) if missed else False
        for left in missed if about else ():
            left.add(number, text)
        if about or len(missed) < len(dialects):
            lines.note_known(text)
    best = max(range(len(dialects)), key=lambda index: (len(dialects[index].facts), -index))
    dialect = dialects[best]
    if not len(dialect.facts):
        what = "is empty"
        if lines.count:
            what = f"has no line that is known ({lines.count:,} lines read{' of more' if lines.stopped else ''})"
        if chosen is not None:
            raise LogError(f"the log {what}.", hint=f"Lines that are looked for: {'; '.join(dialects[0].sought)}.")
        names = ", ".join(dict.fromkeys(find_engine(one.engine)[0].label for one in dialects))
        hint = (
            f"Logs of these engines are read: {names}. The lines that are looked for: --dialect {dialects[0].name}, or another."
        )
        raise LogError(f"the log {what}.", hint=hint)
    notes = [Note(code="log-cut", message=remark) for remark in lines.remarks]
    if dialect.starts > 1:
        message = f"The log holds {dialect.starts:,} starts of the engine: the last one is compared."
        notes.append(Note(code="several-starts", message=message))
    return LogRead(dialect=dialect, lines=lines.count, unread=unread[best], notes=tuple(notes))


def _engine_of(dialect: Dialect, chosen: str | None, notes: list[Note]) -> str:
    """The engine to plan with, and the version that the user or the log states, or the nearest one whose rules are known."""
    name = chosen or dialect.engine
    rules, version = find_engine(name)
    logged, _ = find_engine(dialect.engine)
    if isinstance(rules, type(logged)) and rules is not logged:
        # Ollama's log is that of the llama-server it started, which says with what.
        name, rules, version = logged.name, logged, None
    if rules.name != dialect.engine:
        raise UsageError(
            f"the {dialect.source} is of {dialect.engine}, not of {rules.name}.",
            hint=f"Leave out --engine, or use {dialect.engine}@VERSION.",
        )
    if version is not None or not (dialect.states_version or "version" in dialect.facts):
        dialect.named_version = version
        return name
    name, known, said = rules.name, rules.versions, dialect.facts.word("version")
    if said is None:
        message = f"The {dialect.source} does not state {rules.label}'s version: {known[0]} is taken. Set it with --engine {name}@VERSION."
        notes.append(Note(code="version-unknown", message=message))
        return name
    try:
        return f"{name}@{rules.version(said)}"
    except UnknownNameError:
        nearest = dialect.nearest_version(said, known)
    message = f"The rules of {rules.label} {said} are not known: those of {nearest} are taken."
    notes.append(Note(code="version-unknown", message=message))
    return f"{name}@{nearest}"


def _shown_inputs(
    dialect: Dialect, stated: Mapping[str, Any], keywords: Mapping[str, Any], occupancy: Occupancy
) -> tuple[Input, ...]:
    """Each input of the plan with its source: an option, a line of the log, or a default."""
    values, gpu, facts = occupancy.request.flat(), occupancy.setup.hardware.gpu, dialect.facts
    shown = {name: values.get(name) for name in _SHOWN}
    shown |= {"gpu": None if gpu is None else gpu.id, "dtype": occupancy.dtypes.kv}
    out = []
    if gpu is None and (assumed := occupancy.engine.facts.assumed_gpu) is not None:
        out.append(Input(name="gpu", value=assumed, source="assumed", line=None))
    for name, value in shown.items():
        if value is None:
            continue
        source, line = "default", None
        if name in keywords or (name in ("tp", "gpu") and {"gpus", "instance"} & set(keywords)):
            source = "option"
        elif name in stated:
            source = dialect.source
            line = next((fact.line for key in _STATED_AS[name] if (fact := facts.last(key)) is not None), None) or None
        out.append(Input(name=name, value=str(value), source=source, line=line))
    own = keywords.get("engine_options", {})
    for name, word in {**stated["engine_options"], **own}.items():
        fact = None if name in own else facts.last(name)
        source, line = "option" if name in own else dialect.source, None if fact is None else fact.line or None
        out.append(Input(name=f"engine_options.{name}", value=word, source=source, line=line))
    return tuple(out)


def _same_model(dialect: Dialect, spec: ModelSpec) -> list[Note]:
    """A note if another model is named. Of a path, only the last part is compared."""
    name = dialect.facts.word("model") or ""
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2].lower()
    if not last or last == spec.id.rpartition("/")[2].lower() or "snapshots" in name:
        return []
    with suppress(LogError):
        if last.endswith(".gguf") and spec.id in _models_of(dialect):
            return []
    return [Note(code="other-model", message=f"The {dialect.source} names {brief(name, 80)}; it is compared with {spec.id}.")]


def _same_gpu(dialect: Dialect, occupancy: Occupancy) -> list[Note]:
    """A note if a GPU of the log has more memory than one of the plan can have. A machine that shares its memory may be set to give more."""
    stated, memory, gpu = dialect.facts.smallest("total_bytes"), device_memory(occupancy), occupancy.setup.hardware.gpu
    if stated is None or isinstance(stated.value, str) or memory is None or gpu is None or gpu.shares_host_memory:
        return []
    if stated.value <= _ROOM_OF_DRIVERS * memory.high:
        return []
    sizes = f"its GPU has {human_bytes(int(stated.value))}, and {gpu.id} {human_bytes(int(memory.high))}"
    return [Note(code=OTHER_GPU, message=f"The {dialect.source} is not of {gpu.id}: {sizes}. Name its GPU: --gpu")]


OTHER_GPU: Final = "other-gpu"
_ROOM_OF_DRIVERS: Final = 1.1
"""Drivers keep less than a tenth of a GPU's memory, which some systems count and others do not."""


def _calibrate(dialect: Dialect, log: str, occupancy: Occupancy) -> Saved:
    """Save the overheads that the log measured. Raises :class:`~hwcalc.errors.LogError` if it measured none."""
    from datetime import UTC, datetime

    from hwcalc.engines.memory import conditions
    from hwcalc.hardware.profiles import keeping
    from hwcalc.profiles.calibration import Measured, Measurement, overheads_kind, save_reading

    gpu = occupancy.setup.hardware.gpu
    assert gpu is not None
    values = dialect.overheads(occupancy)
    if not values:
        raise LogError(
            "the log measures no overheads: nothing to keep.",
            hint='vLLM states them in "Actual usage is ..." and "non_torch_memory takes ...".',
        )
    tokens, rows = dialect.batch_shape(occupancy)
    version = f" {occupancy.deployment.version}" if occupancy.deployment.version else ""
    source = f"{dialect.engine}{version}, {brief(Path(log).name, 80)}"
    reading = Measurement(
        values=values,
        measured=Measured(device=gpu.name, date=datetime.now(tz=UTC).date().isoformat(), source=source),
        conditions=conditions(occupancy.model.id, occupancy.setup.parallel, tokens=tokens, rows=rows),
    )
    with keeping(LogError):
        path = save_reading(gpu.id, overheads_kind(dialect.engine), reading)
    return Saved(path=str(path), values=values)
