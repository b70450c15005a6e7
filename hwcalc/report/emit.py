"""The command line that starts a plan's engine as planned."""

from __future__ import annotations

import shlex

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION
from hwcalc.engines import ENGINES, find_engine
from hwcalc.engines.command import CommandInput
from hwcalc.engines.request import Parallel
from hwcalc.errors import UsageError
from hwcalc.planner.result import Plan
from hwcalc.report.records import EmittedDocument

__all__ = ["emitted", "emitted_document", "emitters"]


def emitters() -> tuple[str, ...]:
    """The engines that have a command line."""
    return tuple(name for name in ENGINES if find_engine(name)[0].has_command)


def emitted(plan: Plan, engine: str) -> str:
    """The full command. Raises :class:`~hwcalc.errors.UsageError` if the plan is for another engine."""
    if engine not in emitters():
        raise UsageError(f"--emit {engine[:40]!r} is not known.", hint=f"Known: {', '.join(emitters())}.")
    if plan.request.engine != engine:
        raise UsageError(f"the plan is of engine {plan.request.engine}, not {engine}.", hint=f"Add: --engine {engine}")
    return shlex.join(find_engine(engine)[0].command(_command_input(plan)))


def emitted_document(plan: Plan, engine: str) -> EmittedDocument:
    """The same as a document: the command, and its words without the quotes of a shell."""
    command = emitted(plan, engine)
    return EmittedDocument(
        schema_version=SCHEMA_VERSION,
        kvplan_version=__version__,
        engine=plan.request.engine,
        engine_version=plan.request.engine_version,
        command=command,
        arguments=tuple(shlex.split(command)),
    )


def _command_input(plan: Plan) -> CommandInput:
    request = plan.request
    return CommandInput(
        version=request.engine_version,
        model=plan.model.id,
        revision=plan.model.revision,
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
