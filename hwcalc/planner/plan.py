"""Plans one model: asks the engine what it stores for each layer, and adds up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict, replace

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION
from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.encoder import has_cross
from hwcalc.engines.setup import UNSHARED
from hwcalc.engines.stored import StoredTensor
from hwcalc.errors import UnknownNameError, UnsupportedError, UsageError
from hwcalc.formulas import LayerKind, LayerNumbers, Role, Stack
from hwcalc.model import EXAMPLE_PARAMETERS, NO_WEIGHTS, Definition, ModelSpec, Note, Parameters
from hwcalc.planner.context import FIXED_ROLES, open_request
from hwcalc.planner.effects import no_blocks, without_effect
from hwcalc.planner.layouts import divides
from hwcalc.planner.memory import plan_memory
from hwcalc.planner.result import (
    NO_VERDICT,
    CacheInfo,
    FitInfo,
    LayerInfo,
    ModelInfo,
    ParametersInfo,
    Plan,
    RequestInfo,
    SpeedInfo,
    TensorInfo,
)
from hwcalc.planner.values import is_auto
from hwcalc.units import GIB

if TYPE_CHECKING:
    from hwcalc.engines.pool import PoolInfo
    from hwcalc.planner.command import CommandLine
    from hwcalc.planner.fit import Search
    from hwcalc.planner.policy_result import PolicyInfo
    from hwcalc.planner.sharing_result import SharingInfo
    from hwcalc.profiles.gpus import Gpu

_SELECTED_ROLES = (Role.LATENT, Role.ROPE)


def plan_model(
    model: ModelSpec, *, line: CommandLine | None = None, advise: bool = True, search: Search | None = None, **options: Any
) -> Plan:
    """Plan a request. Other keywords and errors are those of :func:`~hwcalc.planner.context.open_request`.

    ``line`` is the command line of the plan, where more was asked for than ``options`` say. Without ``advise`` the plan offers no
    changes, which take as long as the plan itself. ``search`` finds its limits, if not as every plan does.
    """
    line = (line or _line_of(model, options)) if advise else None
    try:
        opened = open_request(model, **options)
        _ = opened.evicted  # raises what a policy refuses
    except (UnsupportedError, UsageError) as error:
        if line is not None and not isinstance(error, UnknownNameError):
            error.hint = _with_working(error.hint, model, options, line)
        raise
    if line is not None and is_auto(line.given.get("weights")):
        # What is offered as a change keeps the format that was chosen.
        line = line.changed(weights=opened.request.weights)
    return plan_opened(opened, without_effect(options), line, search)


def _line_of(model: ModelSpec, options: Mapping[str, Any]) -> CommandLine:
    from hwcalc.planner.command import command_line

    return command_line(model, options)


def _with_working(hint: str, model: ModelSpec, options: Mapping[str, Any], line: CommandLine) -> str:
    from hwcalc.planner.working import working

    found = working(model, options, line)
    return f"{hint.rstrip('. ')}. {found}" if found else hint


def plan_opened(
    opened: Occupancy,
    remarks: Iterable[Note] = (),
    line: CommandLine | None = None,
    search: Search | None = None,
    *,
    limits: bool = True,
) -> Plan:
    """Plan an opened request. ``remarks`` are further notes about the request; without a ``line`` the plan offers no changes.

    ``search`` finds the limits of the verdict, if not as every plan does. Without ``limits`` they are not looked for: they are 0. Nor is
    the speed, which is ``None``.
    """
    model = opened.model
    stored = stored_layers(opened)
    policy = _policy_info(opened)
    definition = model.definition(opened.engine.definition) if policy is None else policy.definition
    opened.tell(*remarks)
    pool, fit = _pool_and_fit(opened, line, search, limits=limits)
    memory = plan_memory(
        opened,
        cache_bytes=opened.stored_bytes,
        rank_bytes=opened.needed_bytes,
        definition=definition,
        budget=None if fit is None else fit.budget,
    )
    return Plan(
        schema_version=SCHEMA_VERSION,
        kvplan_version=__version__,
        model=_model_info(model, opened.stack),
        request=_request_info(opened, has_states=any(tensor.role is Role.STATE for _, _, _, tensor in stored)),
        cache=_cache_info(opened, stored, definition),
        memory=memory,
        pool=None if pool is None else _defined(pool, model.definition(pool.definition)),
        fit=fit,
        speed=_bound(opened) if limits else None,
        policy=policy,
        sharing=_sharing_info(opened),
        notes=tuple(note for note in dict.fromkeys((*model.notes, *opened.notes)) if note not in model.warnings),
        warnings=tuple(_warnings(opened, fit, policy, known_weights=memory.weights.bytes is not None)),
    )


def _pool_and_fit(
    opened: Occupancy, line: CommandLine | None, search: Search | None, *, limits: bool
) -> tuple[PoolInfo | None, FitInfo | None]:
    """The pool and the verdict, where the request has a GPU or a budget."""
    hardware = opened.request.hardware
    if hardware.gpu is None and hardware.kv_memory is None:
        return None, None
    from hwcalc.planner.fit import NO_SEARCH, SEARCH, plan_fit

    return plan_fit(opened, opened.needed_bytes, line, (search or SEARCH) if limits else NO_SEARCH)


def _defined(pool: PoolInfo, definition: Definition) -> PoolInfo:
    return pool if definition is pool.definition else replace(pool, definition=definition)


def _policy_info(opened: Occupancy) -> PolicyInfo | None:
    evicted = opened.evicted
    if evicted is None:
        return None
    from hwcalc.planner.policy import policy_info, policy_notes

    info = policy_info(opened, evicted)
    notes = policy_notes(evicted.chosen, evicted.setting.attention, acted=len(evicted.ends), layers=len(evicted.plain))
    opened.tell(*notes, *no_blocks(opened, info))
    return info


def _sharing_info(opened: Occupancy) -> SharingInfo | None:
    if opened.request.sharing == UNSHARED and not opened.request.lengths:
        return None
    from hwcalc.planner.sharing import sharing_info

    return sharing_info(opened)


def _request_info(opened: Occupancy, *, has_states: bool) -> RequestInfo:
    request, hardware = opened.request, opened.request.hardware
    return RequestInfo(
        engine=opened.engine.name,
        engine_version=opened.version or None,
        seq=request.seq,
        batch=request.batch,
        encoder_seq=opened.encoder_tokens if has_cross(opened.model) else None,
        kv_dtype=opened.dtypes.kv,
        state_dtype=opened.dtypes.state if has_states else None,
        **asdict(request.parallel),
        memory_utilization=hardware.memory_utilization,
        kv_memory=hardware.kv_memory,
        margin=None if hardware.margin is None else float(hardware.margin),
        weights=request.weights,
        lora=None if request.lora is None else str(request.lora),
        draft=None if request.draft is None else request.draft.id,
        options=dict(request.options),
        prompt=request.prompt,
        policy=None if request.policy is None else request.policy.chosen.text,
        policy_rules=None if request.policy is None else request.policy.rules,
        compaction=None if request.policy is None else request.policy.compaction,
        shared_prefix=request.sharing.prefix or None,
        lengths=request.lengths,
        samples=request.sharing.samples,
        beams=request.sharing.beams,
        environment=opened.environment(),
        settings=dict(opened.reported_settings()),
    )


def _cache_info(opened: Occupancy, stored: list[Stored], definition: Definition) -> CacheInfo:
    each, fixed = _of_one(opened, stored)
    chosen = _chosen_bytes(opened)
    # Each sequence reads what it has in common with others for itself.
    read = _read_bytes(stored if opened.unshared is opened else stored_layers(opened.unshared)) if chosen is None else chosen
    return CacheInfo(
        definition=definition,
        bytes_per_token=_growth(opened),
        state_bytes_per_sequence=fixed,
        bytes_per_sequence=each,
        total_bytes=opened.stored_bytes,
        copied_bytes=_copied_bytes(opened, stored),
        per_gpu_bytes=opened.needed_bytes,
        tensors=tuple(_tensor_info(*item) for item in stored),
        groups=opened.groups,
        read_bytes_per_step=read,
    )


def _of_one(opened: Occupancy, stored: list[Stored]) -> tuple[int, int]:
    """The bytes of one sequence, and those of them that do not grow with its length."""
    single = opened.single
    stored = stored if single is opened else stored_layers(single)
    fixed = sum(count * tensor.bytes for _, _, count, tensor in stored if tensor.role in FIXED_ROLES)
    return single.stored_bytes, fixed


def _copied_bytes(opened: Occupancy, stored: list[Stored]) -> int:
    """Bytes of ``stored`` that repeat what another tensor-parallel rank keeps: its part of a layer is more than a rank's share of it."""
    parallel = opened.request.parallel
    if parallel.tp == 1 or not opened.engine.counts_copies:
        return 0
    rules, copied = opened.weight_rules(), 0
    for kind, _, count, tensor in stored:
        if kind is not None:
            once = _kept_bytes(opened, kind)
            ranks = parallel.tp * _kept_bytes(opened, rules.shard(opened.model, kind, parallel.tp)) // parallel.dcp
            copied += count * (tensor.bytes * max(0, ranks - once) // ranks if ranks else 0)
    return copied


def _kept_bytes(opened: Occupancy, kind: LayerKind) -> int:
    """Bytes that one layer of this kind keeps of a sequence, by the formulas."""
    roles, tokens, encoder = opened.dtypes.roles, opened.tokens, opened.encoder_tokens
    return sum(tensor.bytes(roles[tensor.role], tokens, encoder) for tensor in kind.tensors())


Stored = tuple[LayerKind | None, LayerNumbers, int, StoredTensor]
"""The kind of a group of layers (``None`` for tensors outside the layers), its layer numbers, their count, and a tensor of one layer."""


def stored_layers(opened: Occupancy) -> list[Stored]:
    """All tensors that the engine stores, with equal layers listed once."""
    out: list[Stored] = []
    for group in opened.stack.groups:
        out += [(group.kind, group.layers, group.count, tensor) for tensor in opened.kind_tensors[group.kind]]
    out += [(None, LayerNumbers(), 1, tensor) for tensor in opened.extras]
    return out


def _tensor_info(kind: LayerKind | None, layers: LayerNumbers, count: int, tensor: StoredTensor) -> TensorInfo:
    return TensorInfo(
        name=tensor.name,
        role=tensor.role.value,
        kind="model" if kind is None else kind.name,
        layers=layers,
        count=count,
        axes=tensor.axes,
        shape=tensor.shape,
        dtype=tensor.dtype,
        span=tensor.span,
        positions=tensor.positions,
        rule=tensor.rule,
        bytes=count * tensor.bytes,
    )


def _growth(opened: Occupancy) -> int:
    """Bytes by which one sequence grows from ``seq`` to ``seq`` + 1 tokens, by the formulas with the dtypes of the engine."""
    roles, tokens, encoder = opened.dtypes.roles, opened.tokens, opened.encoder_tokens
    growth = 0
    for (before, after), count in _pairs(opened).items():
        for shorter, longer in zip(before.tensors(), after.tensors(), strict=True):
            added = longer.span.positions(tokens + 1, encoder) - shorter.span.positions(tokens, encoder)
            if added:
                growth += count * added * longer.bytes_per_position(roles[longer.role])
    return growth


def _pairs(opened: Occupancy) -> dict[tuple[LayerKind, LayerKind], int]:
    """The kinds of layers at the planned length and with a token more, and how many layers there are of each."""
    evicted = opened.evicted
    if evicted is None:
        return {(group.kind, group.kind): group.count for group in opened.model.stack.groups}
    found: dict[tuple[LayerKind, LayerKind], int] = {}
    for pair in zip(chain(*evicted.stack), chain(*evicted.grown.stack), strict=True):
        found[pair] = found.get(pair, 0) + 1
    return found


def _read_bytes(stored: list[Stored]) -> int:
    """Bytes that one decode step reads: everything except the latents that an indexer does not select.

    Layers that reuse the selection of an earlier layer read as few, so the limit holds for all latents of the model.
    """
    limits = {kind.dims().get("index_topk") for kind, *_ in stored if kind is not None} - {None}
    limit = limits.pop() if len(limits) == 1 else None
    total = 0
    for _, _, count, tensor in stored:
        selected = limit is not None and tensor.role in _SELECTED_ROLES and tensor.positions > limit
        total += count * (tensor.bytes // tensor.positions * limit if selected and limit else tensor.bytes)
    return total


def _chosen_bytes(opened: Occupancy) -> int | None:
    """Bytes that a decode step reads under a policy that chooses what is read, those of the keys of its pages too; ``None`` without one."""
    evicted = opened.evicted
    if evicted is None or evicted.read is evicted.most:
        return None
    from hwcalc.engines.peaks import page_keys_bytes

    return _read_bytes(stored_layers(opened.holding(evicted.read))) + page_keys_bytes(opened, evicted.setting)


def _bound(opened: Occupancy) -> SpeedInfo | None:
    """The bound on speed for the planned GPU; ``None`` without a GPU."""
    if opened.request.hardware.gpu is None:
        return None
    from hwcalc.planner.bound import bound_of

    return bound_of(opened)


def _warnings(opened: Occupancy, fit: FitInfo | None, policy: PolicyInfo | None, *, known_weights: bool) -> list[Note]:
    model, request = opened.model, opened.request
    longest, out = model.max_position_embeddings, []
    if longest is not None and request.seq > longest:
        message = f"{request.seq:,} tokens is more than the model's maximum of {longest:,}."
        variables = " ".join(opened.environment())
        message += f" {opened.engine.label} refuses that without {variables}." if variables else ""
        out.append(Note(code="beyond-maximum", message=message))
    if policy is not None:
        from hwcalc.planner.policy import policy_warnings

        out += policy_warnings(opened, policy)
    return [*out, *lasting_warnings(opened, known_weights=known_weights, verdict=fit is not None)]


def lasting_warnings(opened: Occupancy, *, known_weights: bool, verdict: bool) -> list[Note]:
    """The warnings that are the same at every length and number of sequences."""
    model, request = opened.model, opened.request
    gpu, out = request.hardware.gpu, [*model.warnings_with(request.weights)]
    if not divides(model, request.parallel.tp):
        message = f"tp {request.parallel.tp:,} does not divide the attention heads evenly: the fullest rank is planned, and few engines do it."
        out.append(Note(code="uneven-heads", message=message))
    if gpu is not None and gpu.whole_machine and request.gpus > gpu.node:
        what = "a part of an accelerator" if gpu.part else "a machine by itself"
        linked = f"; up to {gpu.node:,} can be linked" if gpu.node > 1 else ", which nothing links to others"
        out.append(
            Note(code="not-joined", message=f"{gpu.id} is {what}{linked}: the plan of {request.gpus:,} is arithmetic alone.")
        )
    if gpu is not None and gpu.fp8_kv == "no" and "fp8" in (request.dtype or "").lower():
        message = f"No common engine keeps a cache in fp8 on {gpu.id}: its profile says so (kvplan gpus {gpu.id})."
        out.append(Note(code="no-fp8-cache", message=message))
    if gpu is not None and not verdict:
        message = f"No verdict on {request.gpus:,} x {gpu.id}: what {model.id} needs beside its cache is not known."
        out.append(Note(code=NO_VERDICT, message=f"{message} {_budget_hint(gpu, model)}"))
    if request.hardware.kv_memory is not None and not known_weights:
        message = f"Weights are not counted, since those of {model.id} are not known: --kv-memory must be what they leave free."
        out.append(Note(code="weights-not-counted", message=message))
    return out


def _budget_hint(gpu: Gpu, model: ModelSpec) -> str:
    """The option that brings a verdict. The memory of the whole GPU is none: weights lie in it too."""
    if any(note.code == NO_WEIGHTS for note in model.notes):
        return f"Give the number of parameters: {EXAMPLE_PARAMETERS}"
    from hwcalc.profiles.gpus import visible_memory

    visible = visible_memory(gpu)
    whole = 0 if visible is None else visible.expected_bytes // GIB
    of = f" of the {whole:,} GiB that a {gpu.id} has" if whole else ""
    return f"Give what the weights and all else leave for the cache{of}: --kv-memory SIZE"


def _model_info(model: ModelSpec, stack: Stack) -> ModelInfo:
    parameters = model.parameters or Parameters(definition=Definition.UNKNOWN)
    return ModelInfo(
        id=model.id,
        source=model.source,
        location=model.location,
        revision=model.revision,
        model_type=model.model_type,
        architecture=model.architecture,
        layers=tuple(
            LayerInfo(kind=group.kind.name, count=group.count, layers=group.layers, dims=group.kind.dims())
            for group in stack.groups
        ),
        parameters=ParametersInfo(
            total=parameters.total, active=parameters.active, mtp=parameters.mtp, definition=parameters.definition
        ),
        max_position_embeddings=model.max_position_embeddings,
        hidden_size=model.hidden_size,
        vocab_size=model.vocab_size,
        dtype=model.dtype,
    )
