"""The command line that starts a plan's engine as planned."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION
from hwcalc.engines import ENGINES, find_engine
from hwcalc.engines.command import CommandInput
from hwcalc.engines.request import Parallel
from hwcalc.errors import UsageError
from hwcalc.planner.result import ModelInfo, Plan
from hwcalc.report.records import EmittedDocument
from hwcalc.sources.local import MODEL_FILES, OPEN_FILE
from hwcalc.text import shell_word, shown

__all__ = ["emitted", "emitted_document", "emitters"]


def emitters() -> tuple[str, ...]:
    """The engines that have a command line."""
    return tuple(name for name in ENGINES if find_engine(name)[0].has_command)


def emitted(plan: Plan, engine: str) -> str:
    """The full command, every word quoted for a shell. Raises :class:`~hwcalc.errors.UsageError` if the plan is for another engine."""
    return _quoted((*plan.request.environment, *_words(plan, engine)))


def emitted_document(plan: Plan, engine: str) -> EmittedDocument:
    """The same as a document: the command, and its words without the quotes of a shell."""
    words = _words(plan, engine)
    return EmittedDocument(
        schema_version=SCHEMA_VERSION,
        kvplan_version=__version__,
        engine=plan.request.engine,
        engine_version=plan.request.engine_version,
        command=_quoted((*plan.request.environment, *words)),
        arguments=words,
        environment=plan.request.environment,
    )


def _quoted(words: Iterable[str]) -> str:
    return " ".join(map(shell_word, words))


def _words(plan: Plan, engine: str) -> tuple[str, ...]:
    if engine not in emitters():
        raise UsageError(f"--emit {shown(engine, 40)} is not known.", hint=f"Known: {', '.join(emitters())}.")
    if plan.request.engine != engine:
        raise UsageError(f"the plan is of engine {plan.request.engine}, not {engine}.", hint=f"Add: --engine {engine}")
    return tuple(find_engine(engine)[0].command(_command_input(plan)))


def _named(model: ModelInfo) -> tuple[str, str | None]:
    """What an engine is given as the model: the path of a folder here, which is at no revision, else the id and its revision.

    A path never looks like an id or an option: it begins with ``/`` or ``.``.
    """
    if model.source != "local" or model.location in {"", OPEN_FILE}:
        return model.id, model.revision
    file = Path(model.location)
    path = file.parent if file.name in MODEL_FILES else file
    return (str(path) if path.is_absolute() or path.parts[:1] in {(), ("..",)} else f"./{path}"), None


def _command_input(plan: Plan) -> CommandInput:
    request = plan.request
    model, revision = _named(plan.model)
    return CommandInput(
        version=request.engine_version,
        model=model,
        revision=revision,
        seq=request.seq,
        kv_dtype=request.kv_dtype,
        kv_dtype_named=all(note.code != "default-dtype" for note in plan.notes),
        parallel=Parallel(tp=request.tp, pp=request.pp, dp=request.dp, dcp=request.dcp, ep=request.ep),
        memory_utilization=request.memory_utilization,
        kv_memory=request.kv_memory,
        weights=request.weights,
        lora=request.lora,
        draft=request.draft,
        options=request.options,
        requires=() if plan.pool is None else plan.pool.requires,
    )
