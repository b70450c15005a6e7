"""A request with every default filled in, checked: what each question to an engine is asked with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hwcalc.engines import find_engine
from hwcalc.engines.base import Opened
from hwcalc.engines.noted import Noted
from hwcalc.engines.request import Hardware, Parallel, Request
from hwcalc.errors import UsageError
from hwcalc.formulas import Role
from hwcalc.formulas.frozen import replace
from hwcalc.formulas.weights import Part
from hwcalc.model import ModelSpec, Note

if TYPE_CHECKING:
    from fractions import Fraction

    from hwcalc.engines.lora import Lora
    from hwcalc.profiles.gpus import Gpu

__all__ = ["FIXED_ROLES", "open_request", "parallel_sizes"]

FIXED_ROLES = (Role.STATE, Role.CONV)
_LONGEST = 2**40


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
    option_draft: ModelSpec | None = None,
) -> Opened:
    """The request with every default filled in and checked by its engine; :attr:`Opened.notes` say what was filled in.

    Raises a :class:`~hwcalc.errors.KvplanError` subclass.
    """
    rules, wanted = find_engine(engine)
    if memory_utilization is not None and not 0 < memory_utilization <= 1:
        raise UsageError(f"memory-utilization is {memory_utilization}.", hint="Allowed: a share above 0 and up to 1.")
    if margin is not None and not 0 <= margin < 1:
        raise UsageError(f"margin is {float(margin):g}.", hint="Allowed: a share from 0 to below 1, such as 5%.")
    (card, gpus), notes = _accelerator(gpu, gpus, instance)
    parallel = parallel_sizes(gpus, Parallel(tp=tp, pp=pp, dp=dp, dcp=dcp, ep=ep), default=instance is not None)
    _check_divides(model, parallel)
    if seq is None:
        seq, more = _default_seq(model)
        notes += more
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
        parallel=parallel,
        hardware=Hardware(gpu=card, memory_utilization=memory_utilization, kv_memory=kv_memory, margin=margin),
        weights=weights,
        lora=lora,
        draft=draft,
        option_draft=option_draft,
        options=dict(engine_options or {}),
    )
    return rules.open(model, request, notes)


def _accelerator(gpu: str | None, gpus: int | None, instance: str | None) -> Noted[tuple[Gpu | None, int | None]]:
    """The accelerator and how many; an instance has both."""
    if instance is not None and gpu is not None:
        raise UsageError("--instance and --gpu both name the accelerator.", hint="Give one of them.")
    notes: list[Note] = []
    if instance is not None:
        from hwcalc.hardware.named import load_instance

        card, count = load_instance(instance, notes)
        if gpus is not None and gpus > count:
            raise UsageError(f"{instance[:40]} has {count:,} GPUs, not {gpus:,}.", hint="Leave out --gpus to use all of them.")
        return Noted((card, count if gpus is None else gpus), tuple(notes))
    if gpu is None:
        return Noted((None, gpus))
    from hwcalc.hardware.named import load_gpu

    return Noted((load_gpu(gpu, notes), gpus), tuple(notes))


def _default_seq(model: ModelSpec) -> Noted[int]:
    """The model's own maximum; one token where every layer keeps the same at any length."""
    longest = model.max_position_embeddings
    if longest is not None:
        message = f"Planned for the model's own maximum of {longest:,} tokens. Set it with --seq."
        return Noted(longest, (Note(code="default-seq", message=message),))
    roles = {tensor.role for group in model.stack.groups for tensor in group.kind.tensors()}
    if roles <= set(FIXED_ROLES):
        message = "Planned for one token: the model keeps the same at every length."
        return Noted(1, (Note(code="any-length", message=message),))
    raise UsageError(f"{model.id} does not state its longest sequence.", hint="Give one: --seq 32k")
