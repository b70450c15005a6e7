"""A request with every default filled in, checked: what each question to an engine is asked with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from hwcalc.engines import find_engine
from hwcalc.engines.base import Engine
from hwcalc.engines.request import Request
from hwcalc.engines.stored import Context
from hwcalc.errors import UsageError
from hwcalc.formulas import Encoder, Role
from hwcalc.formulas.frozen import frozen
from hwcalc.formulas.weights import Part
from hwcalc.model import ModelSpec, Note

if TYPE_CHECKING:
    from fractions import Fraction

    from hwcalc.engines.lora import Lora
    from hwcalc.profiles.gpus import Gpu

__all__ = ["FIXED_ROLES", "Parallel", "encoder_tokens", "has_cross", "open_request", "parallel_sizes"]

FIXED_ROLES = (Role.STATE, Role.CONV)
_LONGEST = 2**40
_MOST_RANKS = 4096


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


def parallel_sizes(gpus: int | None, given: Parallel, *, default: bool = False) -> Parallel:
    """``gpus`` alone is tensor parallel; beside other sizes it must be their product, or no less if it is a ``default``."""
    ranks = given.tp * given.pp * given.dp
    if gpus is None or gpus == ranks or (default and 1 < ranks < gpus):
        return _checked(given)
    if ranks == 1:
        return _checked(replace(given, tp=gpus))
    if default:
        raise UsageError(
            f"tp {given.tp} x pp {given.pp} x dp {given.dp} = {ranks:,}, but the instance gives {gpus:,} GPUs.",
            hint="Use no more than it has.",
        )
    raise UsageError(
        f"gpus is {gpus:,}, but tp {given.tp} x pp {given.pp} x dp {given.dp} = {ranks:,}.",
        hint="Leave out --gpus, or make them equal.",
    )


def _checked(sizes: Parallel) -> Parallel:
    """Sizes that other ranks are named by must be made of those ranks: nothing is dealt out over GPUs that are not there."""
    if sizes.tp % sizes.dcp:
        raise UsageError(f"dcp {sizes.dcp} does not divide tp {sizes.tp}.", hint="dcp reuses the ranks of tp: add --tp.")
    ranks = sizes.tp * sizes.dp
    if ranks % sizes.ep:
        raise UsageError(
            f"ep {sizes.ep} does not divide tp x dp = {ranks:,}.",
            hint=f"ep reuses the ranks of tp and dp: use --ep {ranks}, or leave it out.",
        )
    return sizes


def _check_divides(model: ModelSpec, sizes: Parallel) -> None:
    """Whether the model has what these ranks are to share: experts for ``ep``, and copies of a key/value head for ``dcp``."""
    if sizes.ep > 1 and model.counted is not None:
        language = [block for block in model.counted.blocks if block.part is Part.LANGUAGE]
        if not any(weight.copies > 1 for block in language for weight in block.weights):
            raise UsageError(f"ep {sizes.ep}: {model.id} has no experts to deal out.", hint="Leave out --ep.")
    if sizes.dcp == 1:
        return
    for group in model.stack.groups:
        heads = group.kind.dims().get("num_key_value_heads", 1)
        if sizes.tp // heads < sizes.dcp:
            raise UsageError(
                f"dcp {sizes.dcp} needs {sizes.dcp} ranks for each of the {heads} key/value heads; "
                f"tp {sizes.tp} has {sizes.tp // heads}.",
                hint=f"Use --tp {sizes.dcp * heads}, or leave out --dcp.",
            )


def open_request(
    model: ModelSpec,
    notes: list[Note],
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
    instance: str | None = None,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    dcp: int = 1,
    ep: int = 1,
    memory_utilization: float | None = None,
    kv_memory: int | None = None,
    margin: Fraction | None = None,
    lora: Lora | None = None,
    draft: ModelSpec | None = None,
) -> tuple[Engine, Context]:
    """The engine, and the request with every default filled in and checked by it; what was filled in goes into ``notes``.

    Raises a :class:`~hwcalc.errors.KvplanError` subclass.
    """
    rules, wanted = find_engine(engine)
    if memory_utilization is not None and not 0 < memory_utilization <= 1:
        raise UsageError(f"memory-utilization is {memory_utilization}.", hint="Allowed: a share above 0 and up to 1.")
    if margin is not None and not 0 <= margin < 1:
        raise UsageError(f"margin is {float(margin):g}.", hint="Allowed: a share from 0 to below 1, such as 5%.")
    card, gpus = _hardware(gpu, gpus, instance, notes)
    parallel = parallel_sizes(gpus, Parallel(tp=tp, pp=pp, dp=dp, dcp=dcp, ep=ep), default=instance is not None)
    _check_divides(model, parallel)
    if seq is None:
        seq = _default_seq(model, notes)
    if not 1 <= seq <= _LONGEST or not 1 <= batch <= _LONGEST:
        raise UsageError(f"seq and batch must be from 1 to {_LONGEST:,} (got {seq:,} and {batch:,}).")
    resolved = rules.version(wanted)
    rules.check_options(engine_options or {})
    request = Request(
        seq=seq,
        batch=batch,
        dtype=dtype,
        encoder_seq=encoder_seq,
        engine_version=resolved or None,
        **vars(parallel),
        gpu=card,
        memory_utilization=memory_utilization,
        kv_memory=kv_memory,
        margin=margin,
        weights=weights,
        lora=lora,
        draft=draft,
        options=dict(engine_options or {}),
    )
    context = Context(
        model=model,
        request=request,
        version=resolved,
        dtypes=rules.dtypes(model, request, notes),
        encoder_tokens=encoder_tokens(model, request, notes),
        notes=notes,
    )
    rules.check(context)
    return rules, context


def _hardware(gpu: str | None, gpus: int | None, instance: str | None, notes: list[Note]) -> tuple[Gpu | None, int | None]:
    """The accelerator and how many; an instance has both."""
    if instance is None:
        if gpu is None:
            return None, gpus
        from hwcalc.hardware.named import load_gpu

        return load_gpu(gpu, notes), gpus
    if gpu is not None:
        raise UsageError("--instance and --gpu both name the accelerator.", hint="Give one of them.")
    from hwcalc.hardware.named import load_instance

    card, count = load_instance(instance, notes)
    if gpus is not None and gpus > count:
        raise UsageError(f"{instance[:40]} has {count:,} GPUs, not {gpus:,}.", hint="Leave out --gpus to use all of them.")
    return card, count if gpus is None else gpus


def _default_seq(model: ModelSpec, notes: list[Note]) -> int:
    """The model's own maximum; one token where every layer keeps the same at any length."""
    longest = model.max_position_embeddings
    if longest is not None:
        message = f"Planned for the model's own maximum of {longest:,} tokens. Set it with --seq."
        notes.append(Note(code="default-seq", message=message))
        return longest
    roles = {tensor.role for group in model.stack.groups for tensor in group.kind.tensors()}
    if roles <= set(FIXED_ROLES):
        notes.append(Note(code="any-length", message="Planned for one token: the model keeps the same at every length."))
        return 1
    raise UsageError(f"{model.id} does not state its longest sequence.", hint="Give one: --seq 32k")


def has_cross(model: ModelSpec) -> bool:
    """Whether any layer looks at an encoder's output."""
    return any(isinstance(tensor.span, Encoder) for group in model.stack.groups for tensor in group.kind.tensors())


def encoder_tokens(model: ModelSpec, request: Request, notes: list[Note]) -> int:
    """Tokens of the encoder's output; where that is a default, ``notes`` says so."""
    if not has_cross(model):
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
