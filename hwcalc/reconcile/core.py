"""Read a log, plan what it says it runs, and set both side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION
from hwcalc.engines import find_engine
from hwcalc.engines.base import Engine, Opened
from hwcalc.errors import LogError, UsageError
from hwcalc.library.plan import ModelLike, load_model, option_draft
from hwcalc.model import ModelSpec, Note
from hwcalc.planner.context import open_request
from hwcalc.reconcile.dialects import DIALECTS, Dialect, find_dialect
from hwcalc.reconcile.facts import Facts
from hwcalc.reconcile.lines import LogLike, Reader, log_name
from hwcalc.reconcile.result import Input, Reconciliation, Saved
from hwcalc.units import parse_bytes, parse_share, parse_tokens

__all__ = ["TOLERANCE", "reconcile"]

TOLERANCE: Final = "1%"
_COUNTS: Final = ("seq", "batch", "tp", "pp", "dp", "dcp", "ep", "gpus", "encoder_seq")
_PLAIN: Final = ("dtype", "weights", "gpu", "instance")
_SHOWN: Final = (
    "seq",
    "batch",
    "dtype",
    "weights",
    "gpu",
    "instance",
    "tp",
    "pp",
    "dp",
    "dcp",
    "ep",
    "memory_utilization",
    "kv_memory",
)
_STATED_AS: Final = {
    "seq": ("max_model_len", "concurrency_tokens"),
    "tp": ("tensor_parallel_size",),
    "pp": ("pipeline_parallel_size",),
    "dp": ("data_parallel_size",),
    "dcp": ("decode_context_parallel_size",),
    "ep": ("enable_expert_parallel",),
    "memory_utilization": ("gpu_memory_utilization",),
    "dtype": ("kv_cache_dtype",),
    "weights": ("quantization",),
}


def reconcile(
    model: ModelLike,
    log: LogLike,
    *,
    dialect: str | None = None,
    engine: str | None = None,
    tolerance: float | str = TOLERANCE,
    calibrate: bool = False,
    seq: int | str | None = None,
    batch: int | str | None = None,
    dtype: str | None = None,
    weights: str | None = None,
    encoder_seq: int | str | None = None,
    gpu: str | None = None,
    gpus: int | str | None = None,
    instance: str | None = None,
    tp: int | str | None = None,
    pp: int | str | None = None,
    dp: int | str | None = None,
    dcp: int | str | None = None,
    ep: int | str | None = None,
    memory_utilization: float | str | None = None,
    kv_memory: int | str | None = None,
    lora: str | None = None,
    draft: ModelLike | None = None,
    engine_options: Mapping[str, object] | None = None,
    revision: str | None = None,
    offline: bool = False,
    token: str | None = None,
    endpoint: str | None = None,
    assume: str | None = None,
) -> Reconciliation:
    """Compare an engine's start-up log, or its metrics, with a plan of what it says it runs.

    ``log`` is text, lines, a path or an open file; ``dialect`` is how it is read (by default the one that knows most of its lines). What
    the log states is planned: longest sequence, formats, ranks, batch sizes, the engine's version; a keyword of the plan replaces or
    adds to it. Within ``tolerance`` is a prediction whose range and a figure whose rounding lie no further apart than this share. With
    ``calibrate`` the overheads that the log measured are kept for later plans with this engine and GPU.

    Raises :class:`~hwcalc.errors.LogError` if the log cannot be read or states nothing to compare, and what
    :func:`~hwcalc.library.plan.plan` raises.
    """
    allowed = parse_share(tolerance, "the tolerance")
    if not 0 <= allowed < 1:
        raise UsageError(f"the tolerance is {float(allowed):g}.", hint="Allowed: a share from 0 to below 1, such as 1%.")
    given = {
        "seq": seq,
        "batch": batch,
        "tp": tp,
        "pp": pp,
        "dp": dp,
        "dcp": dcp,
        "ep": ep,
        "gpus": gpus,
        "encoder_seq": encoder_seq,
    }
    wanted: dict[str, Any] = {
        name: parse_tokens(value, name, minimum=0 if name == "encoder_seq" else 1)
        for name, value in given.items()
        if value is not None
    }
    for name, word in {"dtype": dtype, "weights": weights, "gpu": gpu, "instance": instance}.items():
        if word is not None and not isinstance(word, str):
            raise UsageError(f"{name} must be a string (got {word!r:.60}).", hint=f'Write {name}="...".')
        if word is not None:
            wanted[name] = word
    if memory_utilization is not None:
        wanted["memory_utilization"] = float(parse_share(memory_utilization, "memory_utilization"))
    if kv_memory is not None:
        wanted["kv_memory"] = parse_bytes(kv_memory, "kv_memory")
    options = _options(engine_options)
    if calibrate and gpu is None and instance is None:
        raise UsageError("--calibrate keeps measurements of a GPU, and none is named.", hint="Name it: --gpu l4")
    chosen = None if dialect is None else find_dialect(dialect)
    reading: dict[str, Any] = {"offline": offline, "token": token, "endpoint": endpoint, "assume": assume}
    spec = load_model(model, revision=revision, **reading)
    if lora is not None:
        from hwcalc.engines.lora import parse_lora

        wanted["lora"] = parse_lora(lora)
    if draft is not None:
        wanted["draft"] = load_model(draft, **reading)
    read, facts, lines, notes = _read(log, chosen)
    name = engine or read.engine
    stated, stated_options = read.inputs(facts)
    if spec.quantization is None and (made := read.online_format(facts)) is not None:
        stated["weights"] = made
    rules, told = find_engine(name)
    if rules.name != read.engine:
        raise UsageError(
            f"the log is of {read.engine}, not of {rules.name}.", hint=f"Leave out --engine, or use {read.engine}@VERSION."
        )
    if told is None and read.states_version:
        name = _versioned(facts, rules, notes)
    try:
        context, shown = _opened(spec, name, stated | wanted, stated_options | options, reading)
        rows, more = read.compare(facts, context.engine, context, float(allowed))
    except UsageError as error:
        # What the log states and no plan takes is the log's fault; what the options say by themselves is the user's.
        _opened(spec, name, wanted, options, reading)
        raise LogError(f"what the log states cannot be planned: {error.message}", hint=error.hint) from error
    inputs = _inputs(facts, wanted, stated, stated_options, options, shown)
    notes += context.notes
    _same_model(facts, spec, notes)
    notes += more
    if not rows:
        message = "; ".join(note.message for note in more)
        raise LogError(
            f"the log states nothing that can be compared with this plan. {message}".strip(),
            hint=f"Lines that are looked for: {'; '.join(read.sought)}.",
        )
    saved = _calibrate(read, facts, context, log) if calibrate else None
    return Reconciliation(
        schema_version=SCHEMA_VERSION,
        kvplan_version=__version__,
        model=spec.id,
        engine=rules.name,
        engine_version=context.version or None,
        dialect=read.name,
        log=log_name(log),
        lines=lines,
        tolerance=float(allowed),
        within=all(row.within for row in rows),
        inputs=inputs,
        rows=tuple(rows),
        facts=facts.all(),
        saved=saved,
        notes=tuple(dict.fromkeys(notes)),
    )


def _options(given: Mapping[str, object] | None) -> dict[str, str]:
    if given is not None and not isinstance(given, Mapping):
        raise UsageError(f"engine_options must be a dict (got {type(given).__name__}).", hint='Write {"block_size": 32}.')
    return {str(name): str(value).lower() if isinstance(value, bool) else str(value) for name, value in (given or {}).items()}


def _read(log: LogLike, chosen: Dialect | None) -> tuple[Dialect, Facts, int, list[Note]]:
    """The facts of the dialect that knows most of the log, how many lines it has, and what to say of it."""
    dialects = DIALECTS if chosen is None else (chosen,)
    parsers = [dialect.parser() for dialect in dialects]
    lines = Reader(log)
    for number, text in lines:
        for parser in parsers:
            parser.feed(number, text)
    best = max(range(len(parsers)), key=lambda index: (len(parsers[index].facts), -index))
    found, dialect = parsers[best], dialects[best]
    if not len(found.facts):
        sought = "; ".join(line for one in dialects for line in one.sought)
        what = "is empty" if lines.count == 0 else f"has no line that is known ({lines.count:,} lines read)"
        raise LogError(f"the log {what}.", hint=f"Lines that are looked for: {sought}.")
    notes = [Note(code="log-cut", message=remark) for remark in lines.remarks]
    if found.starts > 1:
        message = f"The log holds {found.starts:,} starts of the engine: the last one is compared."
        notes.append(Note(code="several-starts", message=message))
    return dialect, found.facts, lines.count, notes


def _versioned(facts: Facts, rules: Engine, notes: list[Note]) -> str:
    """The engine with the version that the log states, or the nearest whose rules are known."""
    name, known = rules.name, rules.versions
    version = facts.word("version")
    if version is None:
        message = f"The log does not state {rules.label}'s version: {known[0]} is taken. Set it with --engine {name}@VERSION."
        notes.append(Note(code="version-unknown", message=message))
        return name
    if version in known:
        return f"{name}@{version}"
    nearest = min(known, key=lambda one: abs(_order(one) - _order(version)))
    message = f"The rules of {rules.label} {version} are not known: those of {nearest} are taken."
    notes.append(Note(code="version-unknown", message=message))
    return f"{name}@{nearest}"


def _order(version: str) -> int:
    major, _, minor = version.partition(".")
    return 1000 * int(major) + int(minor)


def _opened(
    spec: ModelSpec, engine: str, wanted: dict[str, Any], options: dict[str, str], reading: dict[str, Any]
) -> tuple[Opened, dict[str, Any]]:
    """The request as it is planned, and what of it is shown."""
    draft = None if "draft" in wanted else option_draft(engine, options, **reading)
    planned = open_request(spec, engine=engine, engine_options=options, option_draft=draft, **wanted)
    request = planned.request
    values = {**vars(request), **vars(request.parallel), **vars(request.hardware)}
    shown = {name: values.get(name) for name in _SHOWN}
    shown["gpu"] = None if request.hardware.gpu is None else request.hardware.gpu.id
    # What the log measured is compared with estimates, not with itself.
    context = planned.engine.open(spec, request.changed(calibrated=False), planned.notes)
    return context, {**shown, "dtype": context.dtypes.kv}


def _inputs(
    facts: Facts,
    wanted: Mapping[str, Any],
    stated: Mapping[str, object],
    stated_options: Mapping[str, str],
    options: Mapping[str, str],
    shown: Mapping[str, Any],
) -> tuple[Input, ...]:
    out = []
    for name, value in shown.items():
        if value is None:
            continue
        source, line = "default", None
        if name in wanted or (name in ("tp", "gpu") and {"gpus", "instance"} & set(wanted)):
            source = "option"
        elif name in stated:
            source = "log"
            line = next((fact.line for key in _STATED_AS[name] if (fact := facts.last(key)) is not None), None)
        out.append(Input(name=name, value=str(value), source=source, line=line))
    for name, word in {**stated_options, **options}.items():
        fact = facts.last(name)
        by_log = name not in options
        line = fact.line if by_log and fact is not None else None
        out.append(Input(name=f"engine_options.{name}", value=word, source="log" if by_log else "option", line=line))
    return tuple(out)


def _same_model(facts: Facts, spec: ModelSpec, notes: list[Note]) -> None:
    """A note where the log's model has another name; a path is compared by its last part."""
    name = facts.word("model")
    if name is None:
        return
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2].lower()
    if last and last != spec.id.rpartition("/")[2].lower() and "snapshots" not in name:
        from hwcalc.text import printable

        message = f"The log is of {printable(name)[:80]}; it is compared with {spec.id}."
        notes.append(Note(code="other-model", message=message))


def _calibrate(read: Dialect, facts: Facts, context: Opened, log: LogLike) -> Saved:
    """Keep what the log measured. Raises :class:`~hwcalc.errors.LogError` if it measured nothing of the kind."""
    from datetime import UTC, datetime
    from pathlib import Path

    from hwcalc.engines.calibration import conditions
    from hwcalc.hardware.profiles import profile_errors
    from hwcalc.profiles.calibration import Measured, Reading, overheads_kind, save_reading
    from hwcalc.text import printable

    gpu = context.request.hardware.gpu
    assert gpu is not None
    values = read.overheads(facts, context)
    if not values:
        raise LogError(
            "the log measures no overheads: nothing to keep.",
            hint='vLLM states them in "Actual usage is ..." and "non_torch_memory takes ...".',
        )
    tokens, rows = read.batch_shape(context)
    version = f" {context.version}" if context.version else ""
    source = f"{read.engine}{version}, {printable(Path(log_name(log)).name)[:80]}"
    measured = Measured(device=gpu.name, date=datetime.now(tz=UTC).date().isoformat(), source=source)
    reading = Reading(
        values=values,
        measured=measured,
        conditions=conditions(context.model.id, context.request.parallel, tokens=tokens, rows=rows),
    )
    with profile_errors():
        path = save_reading(gpu.id, overheads_kind(read.engine), reading)
    return Saved(path=str(path), values=values)
