"""What the command line of a plan's engine is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc.engines import find_engine
from hwcalc.engines.devices import HOST
from hwcalc.engines.options import CommandInput
from hwcalc.engines.setup import Parallel
from hwcalc.errors import KvplanError, UnmadeFormatError
from hwcalc.model import OLLAMA
from hwcalc.planner.result import Plan
from hwcalc.quantization.ggml import KEPT_EXPERTS
from hwcalc.quantization.planned import checkpoint_in
from hwcalc.sources.local import MODEL_FILES, OPEN_FILE
from hwcalc.text import shell_word

if TYPE_CHECKING:
    from pathlib import Path

    from hwcalc.engines.facts import Command

_GGUF: Final = "gguf"
"""The source of models that are GGUF files."""


def command_input(plan: Plan) -> CommandInput:
    """The plan as its engine's command line is made of it."""
    request = plan.request
    # The options of the engine, with what a policy and shared cells ask for.
    options = {} if plan.policy is None else dict(plan.policy.options)
    if plan.sharing is not None and plan.sharing.offered and "n_ctx" in request.settings:
        options["n_ctx"] = str(request.settings["n_ctx"])
    # What keeps users within limits of time, where the engine takes more of them than that.
    options |= {} if plan.within is None else {setting.option: str(setting.value) for setting in plan.within.settings}
    return CommandInput(
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
        published=_published(plan),
        lora=request.lora,
        draft=request.draft,
        options=options | request.options,
        flags=() if plan.policy is None else plan.policy.flags,
        requires=() if plan.pool is None else plan.pool.requires,
        layers=len({number for kind in plan.model.layers for number in kind.layers}),
        environment=environment_of(plan),
        on_host=bool(plan.memory.devices) and all(device.device == HOST for device in plan.memory.devices),
        partly_on_host=plan.partly_on_host,
        **_model(plan),
    )


def startable(command: Command, planned: CommandInput) -> tuple[CommandInput, str]:
    """What the command line that starts a plan is made of, and a sentence on it.

    It is ``planned``, unless the engine does not make the planned format of the published weights: then a checkpoint in it is loaded.
    Raises :class:`~hwcalc.errors.KvplanError` for what the engine cannot be told.
    """
    try:
        if command.file(planned) is None:
            command.words(planned)
    except UnmadeFormatError as error:
        model, remark = checkpoint_in(planned.model, error.weights)
        return replace(planned, model=model, revision=None, path=None, weights=None), remark
    return planned, command.first(planned)[1]


def command_text(plan: Plan, words: Sequence[str] | None = None) -> str:
    """The command line that starts a plan, every word quoted for a shell; ``words`` are those of the engine, where they are at hand."""
    if words is None:
        words = find_engine(plan.request.engine)[0].command.words(command_input(plan))
    return " ".join(map(shell_word, (*environment_of(plan), *words)))


def environment_of(plan: Plan) -> tuple[str, ...]:
    """Variables that stand before the command."""
    return plan.request.environment if plan.policy is None else (*plan.request.environment, *plan.policy.environment)


def _published(plan: Plan) -> str:
    """The type of a GGUF file of the published weights: the converter keeps experts of some formats, and others become 16 bits."""
    forms = (form.format for part in plan.memory.weights.parts for form in part.formats)
    return next((KEPT_EXPERTS[form] for form in forms if form in KEPT_EXPERTS), "bf16").upper()


def _model(plan: Plan) -> dict[str, Any]:
    """The model as an engine gets it: a GGUF file, or the path of a folder here, which is at no revision, else id and revision.

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
        from hwcalc.sources.ollama import ollama_file

        library = model.id.removeprefix(OLLAMA)
        try:
            return named | {"library": library, "path": str(ollama_file(library))}
        except KvplanError:
            # It is no longer in Ollama's store.
            return named | {"library": library, "path": None}
    if not path.is_file():
        from hwcalc.sources.gguf.hub import format_of_file

        # A repository has files of several formats.
        repository, _, word = model.id.partition(":")
        more = {} if weights in (None, format_of_file(word)) else {"model": f"{repository}:{weights.upper()}"}
        return named | more | {"made": False}
    from hwcalc.sources.gguf.names import part_of

    part = part_of(path.name)
    return named | {"path": _text(path if part is None else path.with_name(part.names[0]))}


def _text(path: Path) -> str:
    return str(path) if path.is_absolute() or path.parts[:1] in {(), ("..",)} else f"./{path}"
