"""Plan one model: ask the engine what it stores for every layer, and add up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from formulas import Encoder, LayerKind, Role, Stack, ranges
from formulas.frozen import frozen
from hwcalc._version import __version__
from hwcalc.engines import find_engine
from hwcalc.engines.base import Context, Engine, Request, StoredTensor
from hwcalc.errors import UsageError
from hwcalc.model import ModelSpec, Note, Parameters
from hwcalc.planner.fit import plan_pool
from hwcalc.planner.memory import plan_memory
from hwcalc.planner.result import (
    SCHEMA_VERSION,
    CacheInfo,
    FitInfo,
    LayerInfo,
    MemoryInfo,
    ModelInfo,
    ParametersInfo,
    PerGpu,
    Plan,
    RequestInfo,
    TensorInfo,
)

__all__ = ["make_context", "plan_model", "stored_layers"]

_FIXED_ROLES = (Role.STATE, Role.CONV)
_SELECTED_ROLES = (Role.LATENT, Role.ROPE)
_LONGEST = 2**40
_MOST_RANKS = 4096


def plan_model(
    model: ModelSpec,
    *,
    seq: int | None = None,
    batch: int = 1,
    dtype: str | None = None,
    engine: str = "reference",
    encoder_seq: int | None = None,
    engine_options: Mapping[str, str] | None = None,
    weights: str | None = None,
    gpu: str | None = None,
    gpus: int | None = None,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    dcp: int = 1,
    ep: int = 1,
    memory_utilization: float | None = None,
    kv_memory: int | None = None,
) -> Plan:
    """Plan ``batch`` sequences of ``seq`` tokens on one GPU. Raises a :class:`~hwcalc.errors.KvplanError` subclass."""
    notes = list(model.notes)
    rules, wanted = find_engine(engine)
    parallel = _parallel(gpus, Parallel(tp=tp, pp=pp, dp=dp, dcp=dcp, ep=ep))
    context = make_context(
        model,
        rules,
        wanted,
        notes,
        seq=seq,
        batch=batch,
        dtype=dtype,
        encoder_seq=encoder_seq,
        options=engine_options or {},
        parallel=parallel,
        hardware=_hardware(gpu, memory_utilization, kv_memory, weights, notes),
    )
    stored = stored_layers(rules, context)
    tensors = tuple(_tensor_info(*item) for item in stored)
    total = sum(tensor.bytes for tensor in tensors)
    single = replace(context, request=replace(context.request, batch=1), notes=[])
    single_stored = stored if context.batch == 1 else stored_layers(rules, single)
    per_sequence = sum(count * tensor.bytes for _, _, count, tensor in single_stored)
    state = sum(count * tensor.bytes for _, _, count, tensor in single_stored if tensor.role in _FIXED_ROLES)
    request = context.request
    definition = "assumed" if model.assumed else rules.definition
    if not rules.pooled:
        notes += _without_effect(rules, request)
    pool, fit = plan_pool(rules, context)
    rank_bytes = rules.rank_bytes(context, total)
    memory = plan_memory(model, weights, total, definition, notes)
    return Plan(
        schema_version=SCHEMA_VERSION,
        kvplan_version=__version__,
        model=_model_info(model, model.stack_for(rules.name)),
        request=RequestInfo(
            engine=rules.name,
            engine_version=context.version or None,
            seq=request.seq,
            batch=request.batch,
            encoder_seq=context.encoder_tokens if _has_cross(model) else None,
            kv_dtype=context.dtypes.kv,
            state_dtype=context.dtypes.state if any(tensor.role is Role.STATE for _, _, _, tensor in stored) else None,
            tp=request.tp,
            pp=request.pp,
            dp=request.dp,
            dcp=request.dcp,
            ep=request.ep,
            memory_utilization=request.memory_utilization,
            kv_memory=request.kv_memory,
            options=dict(request.options),
        ),
        cache=CacheInfo(
            definition=definition,
            bytes_per_token=_growth(single),
            state_bytes_per_sequence=state,
            bytes_per_sequence=per_sequence,
            total_bytes=total,
            per_gpu_bytes=rank_bytes,
            tensors=tensors,
            groups=rules.groups(context),
            read_bytes_per_step=_read_bytes(stored),
        ),
        memory=replace(memory, per_gpu=_per_gpu(memory, request, fit, rank_bytes)),
        pool=pool,
        fit=fit,
        speed=None,
        notes=tuple(dict.fromkeys(notes)),
        warnings=tuple(_warnings(model, request)),
    )


@frozen
class Parallel:
    """How many GPUs share the work, and how."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    dcp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 1 <= value <= _MOST_RANKS:
                raise UsageError(f"{name} is {value:,}.", hint=f"Allowed: a whole number from 1 to {_MOST_RANKS:,}.")


def _parallel(gpus: int | None, given: Parallel) -> Parallel:
    """``gpus`` alone is tensor parallel; beside other sizes it must be their product."""
    ranks = given.tp * given.pp * given.dp
    if gpus is None or gpus == ranks:
        return given
    if ranks == 1:
        return replace(given, tp=gpus)
    raise UsageError(
        f"gpus is {gpus:,}, but tp {given.tp} x pp {given.pp} x dp {given.dp} = {ranks:,}.",
        hint="Leave out --gpus, or make them equal.",
    )


def _hardware(
    gpu: str | None, utilization: float | None, kv_memory: int | None, weights: str | None, notes: list[Note]
) -> dict[str, object]:
    """The accelerator and what limits it, checked."""
    if utilization is not None and not 0 < utilization <= 1:
        raise UsageError(f"memory-utilization is {utilization}.", hint="Allowed: a share above 0 and up to 1.")
    found = None
    if gpu is not None:
        from hwcalc.hardware import load_gpu

        found = load_gpu(gpu, notes)
    return {"gpu": found, "memory_utilization": utilization, "kv_memory": kv_memory, "weights": weights}


def make_context(
    model: ModelSpec,
    engine: Engine,
    version: str | None,
    notes: list[Note],
    *,
    seq: int | None,
    batch: int,
    dtype: str | None,
    encoder_seq: int | None,
    options: Mapping[str, str],
    parallel: Parallel | None = None,
    hardware: Mapping[str, object] | None = None,
) -> Context:
    """Fill in every default, printing it into ``notes``, and let the engine check the whole."""
    if seq is None:
        seq = _default_seq(model, notes)
    if not 1 <= seq <= _LONGEST or not 1 <= batch <= _LONGEST:
        raise UsageError(f"seq and batch must be from 1 to {_LONGEST:,} (got {seq:,} and {batch:,}).")
    resolved = engine.version(version)
    engine.check_options(options)
    request = Request(
        seq=seq,
        batch=batch,
        dtype=dtype,
        encoder_seq=encoder_seq,
        engine_version=resolved or None,
        options=dict(options),
        **vars(parallel or Parallel()),
        **(hardware or {}),  # type: ignore[arg-type]
    )
    context = Context(
        model=model,
        request=request,
        version=resolved,
        dtypes=engine.dtypes(model, request, notes),
        encoder_tokens=_encoder_tokens(model, request, notes),
        notes=notes,
    )
    engine.check(context)
    return context


def _default_seq(model: ModelSpec, notes: list[Note]) -> int:
    """The model's own maximum; one token where every layer keeps the same at any length."""
    longest = model.max_position_embeddings
    if longest is not None:
        message = f"Planned for the model's own maximum of {longest:,} tokens. Set it with --seq."
        notes.append(Note(code="default-seq", message=message))
        return longest
    roles = {tensor.role for group in model.stack.groups for tensor in group.kind.tensors()}
    if roles <= set(_FIXED_ROLES):
        notes.append(Note(code="any-length", message="Planned for one token: the model keeps the same at every length."))
        return 1
    raise UsageError(f"{model.id} does not state its longest sequence.", hint="Give one: --seq 32k")


def _has_cross(model: ModelSpec) -> bool:
    return any(isinstance(tensor.span, Encoder) for group in model.stack.groups for tensor in group.kind.tensors())


def _encoder_tokens(model: ModelSpec, request: Request, notes: list[Note]) -> int:
    if not _has_cross(model):
        if request.encoder_seq is not None:
            notes.append(Note(code="no-encoder", message="The model has no cross attention: --encoder-seq has no effect."))
        return 0
    if request.encoder_seq is not None:
        return request.encoder_seq
    if model.encoder_tokens == 0:
        # An image model without an image: its dialect has said so.
        return 0
    if model.encoder_tokens is not None:
        message = f"Encoder length {model.encoder_tokens:,}: the model's own. Set it with --encoder-seq."
        notes.append(Note(code="default-encoder-seq", message=message))
        return model.encoder_tokens
    notes.append(
        Note(
            code="default-encoder-seq",
            message=f"Encoder length {request.seq:,}: taken to be as long as the output. Set it with --encoder-seq.",
        )
    )
    return request.seq


Stored = tuple[LayerKind | None, str, int, StoredTensor]
"""The layer kind (none for what the model keeps beside its layers), layer numbers, how many, and the tensor of one."""


def stored_layers(engine: Engine, context: Context) -> list[Stored]:
    """Everything the engine stores: equal layers asked once and counted."""
    out: list[Stored] = []
    for group in context.model.stack_for(engine.name).groups:
        numbers = ranges(group.layers)
        out += [(group.kind, numbers, group.count, tensor) for tensor in engine.tensors(group.kind, context)]
    out += [(None, "", 1, tensor) for tensor in engine.extras(context)]
    return out


def _tensor_info(kind: LayerKind | None, layers: str, count: int, tensor: StoredTensor) -> TensorInfo:
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


def _per_gpu(memory: MemoryInfo, request: Request, fit: FitInfo | None, cache_bytes: int) -> PerGpu:
    """The fullest GPU. Its weights are the engine's own where there is a budget, and not known for several GPUs without one."""
    size = None if request.tp * request.pp * request.ep > 1 else memory.weights.bytes
    if fit is not None and fit.budget is not None:
        size = sum(part.expected for part in fit.budget.parts if part.name == "weights")
    total = None if size is None else size + cache_bytes
    return PerGpu(weights=size, cache=cache_bytes, activations=None, overhead=None, total=total)


def _without_effect(engine: Engine, request: Request) -> list[Note]:
    """Hardware that an engine without a pool knows nothing of."""
    given = {name: getattr(request, name) > 1 for name in ("tp", "pp", "dp", "dcp", "ep")}
    given |= {name: getattr(request, name) is not None for name in ("gpu", "kv_memory", "memory_utilization")}
    flags = ", ".join(f"--{name.replace('_', '-')}" for name, is_given in given.items() if is_given)
    if not flags:
        return []
    return [
        Note(code="no-pool", message=f"{flags}: no effect with --engine {engine.name}, which has no pool. See: --engine vllm")
    ]


def _warnings(model: ModelSpec, request: Request) -> list[Note]:
    longest = model.max_position_embeddings
    if longest is not None and request.seq > longest:
        return [Note(code="beyond-maximum", message=f"{request.seq:,} tokens is more than the model's maximum of {longest:,}.")]
    return []


def _model_info(model: ModelSpec, stack: Stack) -> ModelInfo:
    parameters = model.parameters or Parameters(definition="unknown")
    return ModelInfo(
        id=model.id,
        source=model.source,
        location=model.location,
        revision=model.revision,
        model_type=model.model_type,
        architecture=model.architecture,
        layers=tuple(
            LayerInfo(kind=group.kind.name, count=group.count, layers=ranges(group.layers), dims=group.kind.dims())
            for group in stack.groups
        ),
        parameters=ParametersInfo(
            total=parameters.total, active=parameters.active, mtp=parameters.mtp, definition=parameters.definition
        ),
        max_position_embeddings=model.max_position_embeddings,
        dtype=model.dtype,
    )
