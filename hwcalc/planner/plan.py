"""Plan one model: ask the engine what it stores for every layer, and add up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION
from hwcalc.engines.base import Engine
from hwcalc.engines.request import Request
from hwcalc.engines.stored import Context, StoredTensor
from hwcalc.formulas import LayerKind, LayerNumbers, Role, Stack
from hwcalc.model import Definition, ModelSpec, Note, Parameters
from hwcalc.planner.context import FIXED_ROLES, has_cross, open_request
from hwcalc.planner.effects import without_effect
from hwcalc.planner.fit import plan_fit
from hwcalc.planner.memory import plan_memory
from hwcalc.planner.result import CacheInfo, LayerInfo, ModelInfo, ParametersInfo, Plan, RequestInfo, SpeedInfo, TensorInfo

__all__ = ["plan_model", "stored_layers"]

_SELECTED_ROLES = (Role.LATENT, Role.ROPE)


def plan_model(model: ModelSpec, **wanted: Any) -> Plan:
    """Plan a request: the keywords are those of :func:`~hwcalc.planner.context.open_request`, as are the errors."""
    notes = list(model.notes)
    rules, context = open_request(model, notes, **wanted)
    stored = stored_layers(rules, context)
    tensors = tuple(_tensor_info(*item) for item in stored)
    total = sum(tensor.bytes for tensor in tensors)
    single = replace(context, request=replace(context.request, batch=1), notes=[])
    single_stored = stored if context.batch == 1 else stored_layers(rules, single)
    per_sequence = sum(count * tensor.bytes for _, _, count, tensor in single_stored)
    state = sum(count * tensor.bytes for _, _, count, tensor in single_stored if tensor.role in FIXED_ROLES)
    request = context.request
    definition = Definition.ASSUMED if model.assumed else rules.definition
    notes += without_effect(wanted)
    rank_bytes = rules.rank_bytes(context, total)
    pool, fit = plan_fit(rules, context, rank_bytes)
    memory = plan_memory(
        rules,
        context,
        cache_bytes=total,
        rank_bytes=rank_bytes,
        definition=definition,
        budget=None if fit is None else fit.budget,
    )
    cache = CacheInfo(
        definition=definition,
        bytes_per_token=_growth(single),
        state_bytes_per_sequence=state,
        bytes_per_sequence=per_sequence,
        total_bytes=total,
        per_gpu_bytes=rank_bytes,
        tensors=tensors,
        groups=rules.groups(context),
        read_bytes_per_step=_read_bytes(stored),
    )
    return Plan(
        schema_version=SCHEMA_VERSION,
        kvplan_version=__version__,
        model=_model_info(model, model.stack_for(rules.name)),
        request=RequestInfo(
            engine=rules.name,
            engine_version=context.version or None,
            seq=request.seq,
            batch=request.batch,
            encoder_seq=context.encoder_tokens if has_cross(model) else None,
            kv_dtype=context.dtypes.kv,
            state_dtype=context.dtypes.state if any(tensor.role is Role.STATE for _, _, _, tensor in stored) else None,
            tp=request.tp,
            pp=request.pp,
            dp=request.dp,
            dcp=request.dcp,
            ep=request.ep,
            memory_utilization=request.memory_utilization,
            kv_memory=request.kv_memory,
            margin=None if request.margin is None else float(request.margin),
            weights=request.weights,
            lora=None if request.lora is None else str(request.lora),
            draft=None if request.draft is None else request.draft.id,
            options=dict(request.options),
        ),
        cache=cache,
        memory=memory,
        pool=pool,
        fit=fit,
        speed=_speed(rules, context),
        notes=tuple(dict.fromkeys(notes)),
        warnings=tuple(_warnings(model, request)),
    )


Stored = tuple[LayerKind | None, LayerNumbers, int, StoredTensor]
"""The layer kind (none for what the model keeps beside its layers), layer numbers, how many, and the tensor of one."""


def stored_layers(engine: Engine, context: Context) -> list[Stored]:
    """Everything the engine stores: equal layers asked once and counted."""
    out: list[Stored] = []
    for group in context.model.stack_for(engine.name).groups:
        out += [(group.kind, group.layers, group.count, tensor) for tensor in engine.tensors(group.kind, context)]
    out += [(None, LayerNumbers(), 1, tensor) for tensor in engine.extras(context)]
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


def _growth(context: Context) -> int:
    """Bytes that one sequence gains from ``seq`` to ``seq`` + 1 tokens, by the formulas in the engine's dtypes."""
    roles = context.dtypes.roles
    growth = 0
    for group in context.model.stack.groups:
        for tensor in group.kind.tensors():
            span = tensor.span
            added = span.positions(context.tokens + 1, context.encoder_tokens) - span.positions(
                context.tokens, context.encoder_tokens
            )
            if added:
                growth += group.count * added * tensor.bytes_per_position(roles[tensor.role])
    return growth


def _read_bytes(stored: list[Stored]) -> int:
    """Bytes that one decode step reads: everything, but for the latents that an indexer lets attention skip.

    A layer that shares an earlier layer's selection skips as much, so the limit holds for all latents of a model.
    """
    limits = {kind.dims().get("index_topk") for kind, *_ in stored if kind is not None} - {None}
    limit = limits.pop() if len(limits) == 1 else None
    total = 0
    for _, _, count, tensor in stored:
        selected = limit is not None and tensor.role in _SELECTED_ROLES and tensor.positions > limit
        total += count * (tensor.bytes // tensor.positions * limit if selected and limit else tensor.bytes)
    return total


def _speed(engine: Engine, context: Context) -> SpeedInfo | None:
    """The bound of the planned hardware; nothing without any."""
    request = context.request
    if request.gpu is None:
        return None
    from hwcalc.planner.speed import speed_bound
    from hwcalc.quantization.planned import format_name

    return speed_bound(
        context.model,
        gpu=request.gpu,
        seq=context.tokens,
        batch=context.batch,
        roles=context.dtypes.roles,
        engine=engine.name,
        encoder_tokens=context.encoder_tokens,
        weights=format_name(request.weights),
        # What an engine runs in 16 bits it reads in 16 bits, whatever the checkpoint has.
        dtype=engine.plain_dtype(context),
        expanded=engine.expands_latents(context),
        tp=request.tp,
        pp=request.pp,
        dp=request.dp,
        dcp=request.dcp,
        expert_ranks=request.ep if request.ep > 1 else None,
        notes=context.notes,
    )


def _warnings(model: ModelSpec, request: Request) -> list[Note]:
    longest, gpu, out = model.max_position_embeddings, request.gpu, []
    if longest is not None and request.seq > longest:
        message = f"{request.seq:,} tokens is more than the model's maximum of {longest:,}."
        out.append(Note(code="beyond-maximum", message=message))
    if gpu is not None and gpu.fp8_kv == "no" and "fp8" in (request.dtype or "").lower():
        message = f"No common engine keeps a cache in fp8 on {gpu.id}: its profile says so (kvplan gpus {gpu.id})."
        out.append(Note(code="no-fp8-cache", message=message))
    return out


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
        dtype=model.dtype,
    )
