"""The command line that starts a plan's engine as planned."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION
from hwcalc.engines import ENGINES, find_engine, spelled
from hwcalc.engines.devices import HOST
from hwcalc.engines.engine import Engine
from hwcalc.engines.options import CommandInput
from hwcalc.engines.setup import Parallel
from hwcalc.errors import UsageError
from hwcalc.model import OLLAMA, WRITTEN
from hwcalc.planner.result import Plan
from hwcalc.sources.local import MODEL_FILES, OPEN_FILE
from hwcalc.text import brief, shell_word, shown

if TYPE_CHECKING:
    from pathlib import Path

    from hwcalc.report.records import EmittedDocument

_GGUF: Final = "gguf"
"""The source of models that are GGUF files."""


def emitters() -> tuple[str, ...]:
    """The engines that have a command line."""
    return tuple(name for name in ENGINES if find_engine(name)[0].command.known)


def emitted_engine(engine: str) -> str:
    """The engine that ``--emit`` names. Raises :class:`~hwcalc.errors.UsageError` for one without a command line."""
    found = find_engine(engine)[0] if spelled(engine) in ENGINES else None
    # Only the error lists all engines, since importing each takes a while.
    if found is None or not found.command.known:
        raise UsageError(f"--emit {shown(engine, 40)} is not known.", hint=f"Known: {', '.join(emitters())}.")
    return found.name


def emitted(plan: Plan, engine: str) -> str:
    """The full command, every word quoted for a shell, or the engine's file, with what to type as comments.

    Raises :class:`~hwcalc.errors.UsageError` if the plan is for another engine.
    """
    rules, given = _planned(plan, engine)
    file = rules.command.file(given)
    if file is None:
        return _quoted((*_environment(plan), *rules.command.words(given)))
    serving = [f"# For the server: {_quoted(file.environment)}"] if file.environment else []
    return "\n".join((*serving, f"# {_quoted(file.command)}", file.text.rstrip("\n")))


def emitted_document(plan: Plan, engine: str) -> EmittedDocument:
    """The same as a document: the command, and its words without the quotes of a shell."""
    from hwcalc.report.records import EmittedDocument

    rules, given = _planned(plan, engine)
    file = rules.command.file(given)
    words = tuple(rules.command.words(given)) if file is None else file.command
    environment = _environment(plan) if file is None else file.environment
    return EmittedDocument(
        schema_version=SCHEMA_VERSION,
        kvplan_version=__version__,
        engine=plan.request.engine,
        engine_version=plan.request.engine_version,
        command=_quoted((*(environment if file is None else ()), *words)),
        arguments=words,
        environment=environment,
        file=None if file is None else file.text,
    )


def commands_to_start(plan: Plan) -> list[tuple[str, str, str]]:
    """What to type to start a plan: of each command its label (``first``, ``start``), the command, and a remark; none if nothing can be."""
    engine = plan.request.engine
    try:
        rules, given = _planned(plan, engine)
        file = rules.command.file(given)
        words = rules.command.words(given) if file is None else file.command
    except UsageError:
        return []
    before, remark = rules.command.first(given)
    lines = [("first", _quoted(before), "")] if before else []
    if file is None:
        return [*lines, ("start", _quoted((*_environment(plan), *words)), remark)]
    if file.as_is is not None:
        own = any(note.code == "ollama-context" for note in plan.notes)
        variables = file.environment if own or not file.context else (file.context, *file.environment)
        served = f"with the server started so: {_quoted(variables)} ollama serve" if variables else ""
        return [*lines, ("start", _quoted(file.as_is), " ".join(filter(None, (served, remark))))]
    write = f"--emit {engine} > {file.name} writes the {file.name}; then {_quoted(file.run)}."
    served = f"The server needs {_quoted(file.environment)}." if file.environment else ""
    return [*lines, ("start", _quoted(words), " ".join(filter(None, (write, remark, served))))]


def remarks_on(plan: Plan, engine: str) -> tuple[str, ...]:
    """What has to be there before a command runs, such as a file that must be made."""
    rules, given = _planned(plan, engine)
    before, remark = rules.command.first(given)
    return tuple(filter(None, (f"First: {_quoted(before)}" if before else "", remark)))


_KEPT: Final = "mxfp4"
"""The published format that the converter of llama.cpp keeps; others become 16 bits."""


def _quoted(words: Iterable[str]) -> str:
    return " ".join(map(shell_word, words))


def _environment(plan: Plan) -> tuple[str, ...]:
    """Variables that stand before the command."""
    return plan.request.environment if plan.policy is None else (*plan.request.environment, *plan.policy.environment)


def _planned(plan: Plan, engine: str) -> tuple[Engine, CommandInput]:
    """The engine, and what its command is made of."""
    request, name = plan.request, emitted_engine(engine)
    if request.engine != name:
        raise UsageError(f"the plan is of engine {request.engine}, not {name}.", hint=f"Add: --engine {name}")
    if plan.model.source == "options" or any(note.code == WRITTEN for note in plan.notes):
        message = f"no command starts {brief(plan.model.id, 60)}: its layers were written down, and there are no weights of it."
        raise UsageError(message, hint="Leave out --emit.")
    # The options of the engine, with what a policy and shared cells ask for.
    options = {} if plan.policy is None else dict(plan.policy.options)
    if plan.sharing is not None and plan.sharing.offered and "n_ctx" in request.settings:
        options["n_ctx"] = str(request.settings["n_ctx"])
    return find_engine(name)[0], CommandInput(
        version=request.engine_version,
        seq=request.seq,
        # Each sequence of a request has a slot.
        batch=request.batch * request.samples * request.beams,
        kv_dtype=request.kv_dtype,
        kv_dtype_named=all(note.code != "default-dtype" for note in plan.notes),
        parallel=Parallel(tp=request.tp, pp=request.pp, dp=request.dp, dcp=request.dcp, ep=request.ep),
        memory_utilization=request.memory_utilization,
        kv_memory=request.kv_memory,
        weights=request.weights,
        published="MXFP4_MOE"
        if any(one.format == _KEPT for part in plan.memory.weights.parts for one in part.formats)
        else "BF16",
        lora=request.lora,
        draft=request.draft,
        options=options | request.options,
        flags=() if plan.policy is None else plan.policy.flags,
        requires=() if plan.pool is None else plan.pool.requires,
        layers=len({number for kind in plan.model.layers for number in kind.layers}),
        environment=_environment(plan),
        on_host=bool(plan.memory.devices) and all(one.device == HOST for one in plan.memory.devices),
        **_model(plan),
    )


def _model(plan: Plan) -> dict[str, Any]:
    """What an engine is given as the model: a GGUF file, or the path of a folder here, which is at no revision, else the id and its revision.

    A path never looks like an id or an option: it begins with ``/`` or ``.``. Planned in another format a GGUF file is another file.
    """
    from pathlib import Path

    model, weights = plan.model, plan.request.weights
    path, gguf = Path(model.location), model.source == _GGUF
    named = {"model": model.id, "revision": model.revision, "made": weights is not None and gguf}
    if model.source == "local" and model.location not in {"", OPEN_FILE}:
        named |= {"model": _text(path.parent if path.name in MODEL_FILES else path), "revision": None}
    if not gguf and ":" not in model.id:
        return named | {"made": True}
    if model.id.startswith(OLLAMA):
        from hwcalc.errors import KvplanError
        from hwcalc.sources.ollama import ollama_file

        library = model.id.removeprefix(OLLAMA)
        try:
            return named | {"library": library, "path": str(ollama_file(library))}
        except KvplanError:
            # It is no longer in Ollama's store.
            return named | {"library": library, "path": None}
    if not path.is_file():
        # A repository has files of several formats.
        more = {} if weights is None else {"model": f"{model.id.partition(':')[0]}:{weights.upper()}"}
        return named | more | {"made": False}
    from hwcalc.sources.gguf.names import part_of

    part = part_of(path.name)
    return named | {"path": _text(path if part is None else path.with_name(part.names[0]))}


def _text(path: Path) -> str:
    return str(path) if path.is_absolute() or path.parts[:1] in {(), ("..",)} else f"./{path}"
