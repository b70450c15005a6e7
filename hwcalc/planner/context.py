"""Turns options into an occupancy: fills in every default, checks the request, and lets its engine deploy it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import asdict

from hwcalc.engines import DEFAULT, find_engine, usual_engine
from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.engine import Engine
from hwcalc.engines.memory import is_measured
from hwcalc.engines.setup import ALONE, SETTINGS, UNSHARED, Parallel, Request, Sharing
from hwcalc.errors import KvplanError, UsageError
from hwcalc.formulas import Role
from hwcalc.model import ModelSpec, Note
from hwcalc.planner.asked import Asked, check_ram
from hwcalc.planner.layouts import has_experts, node_of, sizes_for
from hwcalc.planner.options import OF_POLICY
from hwcalc.planner.values import is_auto
from hwcalc.planner.verdict import layout_text
from hwcalc.text import brief
from hwcalc.units import MOST_TOKENS

if TYPE_CHECKING:
    from hwcalc.policies.base import AskedPolicy
    from hwcalc.profiles.hardware_file import Gpu

_SETTLED: Final = frozenset(
    {"engine", "gpus", "engine_options", "policy_rules", "compaction", "shared_prefix"}
    | {field for record in (Parallel, Sharing) for field in record.__struct_fields__}
)
"""Options from which other values of a request follow. Any other one reaches the engine under its own name."""
_CARRIED: Final = SETTINGS - _SETTLED
_OF_RECORDS: Final = _CARRIED | _SETTLED
FIXED_ROLES = (Role.STATE, Role.CONV)
_USUAL_SEQ: Final = 16_384
"""The tokens for which ``--weights auto`` leaves memory where the user names no length and the engine shortens the context by itself."""


def _best_sizes(engine: Engine, model: ModelSpec, request: Request, node: int) -> Parallel:
    """The parallel sizes of the best layout for the request; those of the request if no layout holds a sequence."""
    from hwcalc.planner.solve import has_layouts
    from hwcalc.planner.within import best_layout, laid_out

    if not has_layouts(engine, request):
        return request.setup.parallel
    with suppress(KvplanError):
        return laid_out(engine.open(model, request), node).setup.parallel
    # The engine refuses the usual layout, and may accept another.
    with suppress(KvplanError):
        best = best_layout(engine.open(model, request.changed(parallel=ALONE)), request.setup.gpus, node)
        if best is not None:
            return Parallel(**asdict(best.layout))
    return request.setup.parallel


def _layout_note(engine: Engine, parallel: Parallel) -> Note:
    """A note that says the parallel sizes, where the user gave others or none."""
    if engine.facts.splits_layers:
        held = f"Each of the {parallel.gpus:,} GPUs holds a run of layers (pp {parallel.pp:,})"
        return Note(code="layout", message=f"{held}, as {engine.label} splits a model.")
    message = f"{parallel.gpus:,} GPUs are planned as {layout_text(parallel)}. Another layout: --tp, --pp, --dp, --ep."
    return Note(code="layout", message=message)


def _check_experts(model: ModelSpec, sizes: Parallel) -> None:
    """Check that the model has experts for ``ep``."""
    if sizes.ep > 1 and model.counted is not None and not has_experts(model):
        raise UsageError(f"ep {sizes.ep}: {model.id} has no experts to deal out.", hint="Leave out --ep.")


def open_request(model: ModelSpec, *, option_draft: ModelSpec | None = None, **options: Any) -> Occupancy:
    """The occupancy of a request whose defaults are filled in and which its engine accepts. Its ``notes`` say which defaults were filled in.

    ``options`` are parsed fields of :class:`~hwcalc.planner.asked.Asked`, where ``draft`` is a loaded model. ``option_draft`` is the
    loaded model that an engine option names. Raises a :class:`~hwcalc.errors.KvplanError` subclass.
    """
    asked = Asked(values=options)
    before, notes = list[Note](), list[Note]()
    # A GGUF file has the engine that runs such files.
    name = usual_engine(model) if asked.engine is None else asked.engine
    if asked.engine is None and name != DEFAULT:
        message = f"Planned as {find_engine(name)[0].label} runs the file. By the formulas alone: --engine reference."
        before.append(Note(code="default-engine", message=message))
    engine, version = find_engine(name)
    starter = engine.requests.started_by(asked.engine_options)
    engine, version = (engine, version) if starter is engine else (starter, None)
    gpu, gpus = _accelerator(asked, before)
    check_ram(engine, asked, gpu)
    given = Parallel(tp=asked.tp, pp=asked.pp, dp=asked.dp, dcp=asked.dcp, ep=asked.ep)
    parallel = sizes_for(engine, model, gpu, gpus, given, instance=asked.instance is not None)
    free = given == Parallel()
    node = node_of(gpu, parallel.gpus if asked.instance is not None else None)
    _check_experts(model, parallel)
    asked = _of_lengths(asked)
    options_in_full = engine.requests.options_in_full(asked.engine_options)
    named, seq, seq_notes = _tokens(engine, model, asked.changed(engine_options=options_in_full))
    notes += seq_notes
    resolved = engine.version(version)
    sharing = Sharing(prefix=asked.shared_prefix or 0, samples=asked.samples, beams=asked.beams)
    values = {
        **{name: value for name, value in asked.values.items() if name in _CARRIED},
        "seq": seq,
        "engine_version": resolved or None,
        "parallel": parallel,
        "gpu": gpu,
        "calibrated": gpu is not None and not asked.no_calibration and is_measured(engine.name),
        "weights": asked.weights or model.weights_format,
        "option_draft": option_draft,
        "options": options_in_full,
        "policy": _policy(asked),
        # The one object that most requests have is told apart at once.
        "sharing": UNSHARED if sharing == UNSHARED else sharing,
        "lengths": asked.lengths or (),
        "others": {name: value for name, value in asked.values.items() if name not in _OF_RECORDS},
    }
    request = Request.of(**values)
    if request.load.sharing.asked or request.load.lengths:
        from hwcalc.planner.sharing import check_sharing

        check_sharing(engine, request)
    shortens = named is None and engine.requests.names_length(gpu)
    if is_auto(asked.weights):
        from hwcalc.planner.fitting import best_weights

        roomy = request.changed(weights=None, seq=min(seq, _USUAL_SEQ) if shortens else seq)
        request, chosen = best_weights(engine, model, roomy, node if free else None)
        request, notes = request.changed(seq=seq), [*notes, *chosen]
    if shortens:
        fitting = engine.open(model, request).devices.fitting_length()
        if fitting.value is not None:
            request = request.changed(seq=fitting.value)
            notes = [*(note for note in notes if note not in seq_notes), *fitting.notes]
    if free and request.setup.gpus > 1:
        request = request.changed(parallel=_best_sizes(engine, model, request, node))
    layout_notes = () if gpu is None or request.setup.parallel == given else (_layout_note(engine, request.setup.parallel),)
    return engine.open(model, request, (*before, *layout_notes, *notes))


def _tokens(engine: Engine, model: ModelSpec, asked: Asked) -> tuple[int | None, int, tuple[Note, ...]]:
    """The length that the user or an option of the engine names, the planned length, and a note on it if none is named.

    By default it is the maximum of the model, or one token if the cache has the same size at every length.
    """
    named = asked.seq or engine.requests.length_named(model, asked.batch, asked.engine_options)
    seq, notes, longest = named, list[Note](), model.max_position_embeddings
    if seq is None and longest is not None:
        message = f"Planned for the model's own maximum of {longest:,} tokens. Set it with --seq."
        seq, notes = longest, [Note(code="default-seq", message=message)]
    elif seq is None:
        roles = {tensor.role for group in model.stack.groups for tensor in group.kind.tensors()}
        if not roles <= set(FIXED_ROLES):
            raise UsageError(f"{model.id} does not state its longest sequence.", hint="Give one: --seq 32k")
        message = "Planned for one token: the model keeps the same at every length."
        seq, notes = 1, [Note(code="any-length", message=message)]
    if not 1 <= seq <= MOST_TOKENS or not 1 <= asked.batch <= MOST_TOKENS:
        raise UsageError(f"seq and batch must be from 1 to {MOST_TOKENS:,} (got {seq:,} and {asked.batch:,}).")
    if asked.prompt is not None and asked.prompt > seq:
        raise UsageError(
            f"prompt is {asked.prompt:,} tokens, more than the {seq:,} of a sequence.",
            hint="Give all tokens of a sequence, prompt and output, with --seq.",
        )
    return named, seq, tuple(notes)


def _of_lengths(asked: Asked) -> Asked:
    """The options with ``seq`` and ``batch`` filled in from ``lengths``: the longest length, and the number of sequences."""
    if not asked.lengths:
        return asked
    if asked.seq is not None:
        raise UsageError(
            "--lengths stands in the place of --seq.",
            hint="Give one of them. compare and sweep go by --seq: leave out --lengths there.",
        )
    if asked.policy is not None:
        raise UsageError("a policy is planned for sequences of one length.", hint="Give --seq in place of --lengths.")
    count, batch = len(asked.lengths), asked.batch
    if batch == 1:
        batch = count
    elif batch < count:
        raise UsageError(f"batch {batch:,} is fewer than the {count:,} lengths.", hint=f"Use: --users {count}, or leave it out.")
    longest = max(asked.lengths)
    return asked.changed(seq=longest, batch=batch, lengths=asked.lengths if min(asked.lengths) < longest else ())


def _policy(asked: Asked) -> AskedPolicy | None:
    """The cache policy with its rules. Raises an error for options of a policy without a policy."""
    if asked.policy is None:
        for name in OF_POLICY:
            if getattr(asked, name) is not None:
                flag = name.replace("_", "-")
                raise UsageError(f"--{flag} is about a cache policy, and there is none.", hint="Add one: --policy NAME")
        return None
    from hwcalc.policies.base import KVPRESS, REPACK, AskedPolicy

    return AskedPolicy(chosen=asked.policy, rules=asked.policy_rules or KVPRESS, compaction=asked.compaction or REPACK)


def _accelerator(asked: Asked, notes: list[Note]) -> tuple[Gpu | None, int | None]:
    """The accelerator and the number of them, from ``gpu`` and ``gpus`` or from the instance; checks the shares of its memory."""
    gpu, gpus, instance = asked.gpu, asked.gpus, asked.instance
    if asked.memory_utilization is not None and not 0 < asked.memory_utilization <= 1:
        raise UsageError(f"memory-utilization is {asked.memory_utilization}.", hint="Allowed: a share above 0 and up to 1.")
    if asked.margin is not None and not 0 <= asked.margin < 1:
        raise UsageError(f"margin is {float(asked.margin):g}.", hint="Allowed: a share from 0 to below 1, such as 5%.")
    if instance is not None and gpu is not None:
        raise UsageError("--instance and --gpu both name the accelerator.", hint="Give one of them.")
    if instance is None and gpu is None:
        return None, gpus
    from hwcalc.hardware.named import load_gpu, load_instance

    if instance is None:
        return load_gpu(gpu, notes), gpus
    card, count = load_instance(instance, notes)
    if gpus is not None and gpus > count:
        what = f"{brief(instance, 40)} has {count:,} GPUs, not {gpus:,}."
        raise UsageError(what, hint="Leave out --gpus to use all of them.")
    return card, count if gpus is None else gpus
