"""The command line that starts a plan's engine as planned, and what a manifest is made of."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION
from hwcalc.engines import ENGINES, find_engine, spelled
from hwcalc.engines.engine import Engine
from hwcalc.engines.options import CommandInput
from hwcalc.errors import KvplanError, UsageError
from hwcalc.model import WRITTEN
from hwcalc.planner.command_input import command_input, command_text, environment_of, startable
from hwcalc.planner.result import Plan
from hwcalc.report.manifest import CHART, CHART_ENGINE, FORMS, manifest
from hwcalc.report.text import plural
from hwcalc.text import brief, did_you_mean, shell_word, shown

if TYPE_CHECKING:
    from hwcalc.report.records import EmittedDocument


def emitters() -> tuple[str, ...]:
    """The engines that have a command line."""
    return tuple(name for name in ENGINES if find_engine(name)[0].command.known)


EACH: Final = "command"
"""The value of ``--emit`` for the command line of the engine that is named elsewhere."""


def emitted_forms() -> tuple[str, ...]:
    """Values of ``--emit``: the engines that have a command line, and the forms of manifests."""
    return (*emitters(), *FORMS)


def manifest_form(what: str) -> str | None:
    """The form of a manifest that ``--emit`` names; ``None`` for an engine."""
    name = what.strip().lower()
    return name if name in FORMS else None


def emitted_engine(what: str) -> str:
    """The engine that ``--emit`` names. Raises :class:`~hwcalc.errors.UsageError` for one without a command line, and for what is of any engine."""
    form = EACH if what.strip().lower() == EACH else manifest_form(what)
    if form == CHART:
        return CHART_ENGINE
    if form is not None:
        raise UsageError(f"--emit {form} writes the server of an engine, and none is named.", hint="Add: --engine vllm")
    found = find_engine(what)[0] if spelled(what) in ENGINES else None
    # Only the error lists all engines, since importing each takes a while.
    if found is None or not found.command.known:
        raise UsageError(
            f"--emit {shown(what, 40)} is not known.",
            hint=f"{did_you_mean(what, emitted_forms())}Known: {', '.join(emitted_forms())}.",
        )
    return found.name


def emitted(plan: Plan, what: str, replicas: int = 1, suffix: str = "") -> str:
    """The full command, every word quoted for a shell, or the engine's file, with what to type as comments, or a manifest.

    A manifest has so many ``replicas``, under a name that ends so.
    Raises :class:`~hwcalc.errors.UsageError` if the plan is for another engine.
    """
    rules, given = _planned(plan, what)
    form = manifest_form(what)
    if form is not None:
        return manifest(plan, form, rules, given, replicas, suffix)
    file = rules.command.file(given)
    if file is None:
        return command_text(plan, rules.command.words(given))
    serving = [f"# For the server: {_quoted(file.environment)}"] if file.environment else []
    typed = [f"# {_quoted(words)}" for words in (file.command, file.run) if words]
    return "\n".join((*serving, *typed, file.text.rstrip("\n")))


def emitted_document(plan: Plan, what: str) -> EmittedDocument:
    """The same as a document: the command, and its words without the quotes of a shell."""
    from hwcalc.report.records import EmittedDocument

    rules, given = _planned(plan, what)
    form = manifest_form(what)
    file = rules.command.file(given)
    words = tuple(rules.command.words(given)) if file is None else file.command
    environment = environment_of(plan) if file is None else file.environment
    return EmittedDocument(
        schema_version=SCHEMA_VERSION,
        kvplan_version=__version__,
        engine=plan.request.engine,
        engine_version=plan.request.engine_version,
        command=_quoted((*(environment if file is None else ()), *words)),
        arguments=words,
        environment=environment,
        file=manifest(plan, form, rules, given) if form is not None else None if file is None else file.text,
    )


def commands_to_start(plan: Plan) -> list[tuple[str, str, str]]:
    """Commands that start a plan, each with its label (``first``, ``start``) and a remark; without a command the remark says why there is none."""
    engine = plan.request.engine
    try:
        if not find_engine(engine)[0].command.known:
            message = f"{find_engine(engine)[0].label} is a library, which no command starts."
            raise UsageError(message, hint="Servers are --engine vllm, --engine llamacpp and others.")
        rules, given = _planned(plan, engine)
        given, remark = startable(rules.command, given)
        file = rules.command.file(given)
        words = rules.command.words(given) if file is None else file.command
    except KvplanError as error:
        # A plan is an answer also where the engine has no flag for what it plans.
        return [("start", "", " ".join(filter(None, ("none:", error.message, error.hint))))]
    before = rules.command.first(given)[0]
    remark = " ".join(filter(None, (remark, _on_nodes(plan, rules, given))))
    lines = [("first", _quoted(before), "")] if before else []
    if file is None:
        return [*lines, ("start", command_text(plan, words), remark)]
    variables = file.environment
    if file.as_is is not None:
        words = file.as_is
        own = any(note.code == "ollama-context" for note in plan.notes)
        variables = variables if own or not file.context else (file.context, *variables)
    else:
        write = f"--emit {engine} > {file.name} writes the {file.name}; then {_quoted(file.run)}."
        remark = " ".join(filter(None, (write, remark)))
    server, about = rules.command.server(given, variables)
    lines += [("first", _quoted(server), about)] if server else []
    return [*lines, ("start", _quoted(words), remark)]


def remarks_on(plan: Plan, what: str) -> tuple[str, ...]:
    """Remarks on what a command needs before it runs, such as a file."""
    rules, given = _planned(plan, what)
    before, remark = rules.command.first(given)
    return tuple(filter(None, (f"First: {_quoted(before)}" if before else "", remark, _on_nodes(plan, rules, given))))


def _on_nodes(plan: Plan, rules: Engine, given: CommandInput) -> str:
    """A sentence on the nodes of a server that has more GPUs than a node of them; empty for one on a single node."""
    from hwcalc.hardware.named import gpu_named

    fit = plan.fit
    if fit is None or fit.gpu is None or fit.gpus == 1:
        return ""
    with suppress(KvplanError):
        # Some priced machines have more than servers of their accelerator usually do.
        node = max(gpu_named(fit.gpu).node, 0 if plan.cost is None else plan.cost.price.count)
        nodes = -(-fit.gpus // node)
        if nodes > 1:
            return f"Spans {nodes:,} nodes of {plural(node, 'GPU')}. {rules.command.on_nodes(given, nodes)}"
    return ""


def _quoted(words: Iterable[str]) -> str:
    return " ".join(map(shell_word, words))


def _planned(plan: Plan, what: str) -> tuple[Engine, CommandInput]:
    """The engine, and what its command is made of."""
    name = plan.request.engine if manifest_form(what) is not None else emitted_engine(what)
    if not find_engine(name)[0].command.known:
        raise UsageError(f"no command starts {name}.", hint=f"Add: --engine {CHART_ENGINE}")
    if plan.request.engine != name:
        raise UsageError(f"the plan is of engine {plan.request.engine}, not {name}.", hint=f"Add: --engine {name}")
    if plan.policy is not None and not plan.policy.offered:
        message = f"{find_engine(name)[0].label} has no cache policy {brief(plan.policy.name, 40)}: no command starts the plan."
        raise UsageError(message, hint="Leave out --policy.")
    if plan.model.source == "options" or any(note.code == WRITTEN for note in plan.notes):
        message = f"no command starts {brief(plan.model.id, 60)}: its layers were written down, and there are no weights of it."
        raise UsageError(message, hint="Name a model with weights in their place.")
    return find_engine(name)[0], command_input(plan)
