"""One probe: the ranks that this process is or stands for, on the device that was asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

from hwcalc.engines.allocation import Allocation
from hwcalc.engines.base import Engine, Opened
from hwcalc.errors import KvplanError, UnsupportedError, UsageError
from hwcalc.formulas.frozen import frozen
from hwcalc.model import Note
from hwcalc.probe.devices import Device, default_reserve, open_device
from hwcalc.probe.measure import measure
from hwcalc.probe.ranks import Failed, RankError, World, check_world, gathered, stage_of, world_of
from hwcalc.probe.result import Probed, RankResult
from hwcalc.probe.settings import environment_settings

__all__ = ["ProbeOptions", "interruptible", "probe"]


@frozen
class ProbeOptions:
    """What to measure on. ``scale`` and ``max_bytes`` make it smaller; ``reserve_bytes`` of the device stay free."""

    device: str | None = None
    reserve_bytes: int | None = None
    scale: Fraction | None = None
    max_bytes: int | None = None
    fill: bool = False


def probe(
    engine: Engine,
    context: Opened,
    options: ProbeOptions | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    torch: Any = None,
) -> Probed | None:
    """Allocate what the engine would and compare. Under ``torchrun`` rank 0 has the answer of all, the others ``None``.

    A process alone stands for the rank that holds most. Raises a :class:`~hwcalc.errors.KvplanError` subclass: of exit code 5 where
    there is no device. ``torch`` is for tests.
    """
    environment = os.environ if environment is None else environment
    options = options or ProbeOptions()
    world = world_of(environment)
    if world is None:
        stage = context.fullest_stage
        rank = stage * context.request.parallel.tp
        device = open_device(options.device, torch=torch)
        notes = [*context.model.notes, *context.notes, *_alone(context, stage)]
        results = [_rank(engine, context, device, options, rank=rank, sharing=1, environment=environment, notes=notes)]
        return _probed(engine, context, results, 1, notes)
    device = open_device(_own_device(options.device, world, torch), torch=torch)
    notes = [*context.model.notes, *context.notes]
    mine: RankResult | Failed
    try:
        check_world(context.request, world)
        sharing = 1 if device.kind == "cuda" else world.local_size
        mine = _rank(engine, context, device, options, rank=world.rank, sharing=sharing, environment=environment, notes=notes)
    except KvplanError as error:
        mine = Failed(rank=world.rank, message=error.message, hint=error.hint, exit_code=error.exit_code, type=error.type)
    everything = gathered(world, device, mine)
    if everything is None:
        return None
    failed = next((one for one in everything if isinstance(one, Failed)), None)
    if failed is not None:
        raise RankError(failed)
    return _probed(engine, context, everything, world.size, notes)


def _own_device(wanted: str | None, world: World, torch: Any) -> str | None:
    """Each process of a machine takes a GPU of its own. Raises :class:`~hwcalc.errors.UsageError` where one is named for several."""
    word = None if wanted is None else wanted.strip().lower()
    if word not in {None, "cuda", "cuda:0"}:
        if word is not None and word.startswith("cuda:") and world.local_size > 1:
            raise UsageError(
                f"--device {word[:40]!r} is one GPU for {world.local_size:,} processes.",
                hint="Leave out --device; CUDA_VISIBLE_DEVICES chooses among the GPUs.",
            )
        return wanted
    found = open_device(wanted, torch=torch)
    return f"cuda:{world.local_rank}" if found.kind == "cuda" else found.label


def _alone(context: Opened, stage: int) -> list[Note]:
    gpus = context.request.gpus
    if gpus == 1:
        return []
    where = f" (pipeline stage {stage})" if context.request.parallel.pp > 1 else ""
    message = (
        f"One of {gpus:,} ranks was measured, one that holds most{where}. All: torchrun --nproc-per-node {gpus} -m hwcalc.probe"
    )
    return [Note(code="one-rank", message=message)]


def _rank(
    engine: Engine,
    context: Opened,
    device: Device,
    options: ProbeOptions,
    *,
    rank: int,
    sharing: int,
    environment: Mapping[str, str],
    notes: list[Note],
) -> RankResult:
    stage = stage_of(context.request, rank)
    allocations = context.allocation(stage)
    return measure(
        allocations,
        device,
        rank=rank,
        stage=stage,
        settings=environment_settings(environment),
        reserve_bytes=default_reserve(device) if options.reserve_bytes is None else options.reserve_bytes,
        most_bytes=_most(allocations, options),
        sharing=sharing,
        fill=options.fill,
        notes=notes,
    )


def _most(allocations: tuple[Allocation, ...], options: ProbeOptions) -> int | None:
    """The limit that was asked for, the smaller of two."""
    if not allocations:
        raise UnsupportedError("there is nothing to allocate: no layer of this model keeps anything.")
    total = sum(one.bytes for one in allocations)
    limits = [] if options.max_bytes is None else [options.max_bytes]
    if options.scale is not None:
        if not 0 < options.scale <= 1:
            raise UsageError(f"scale is {float(options.scale):g}.", hint="Allowed: a share above 0 and up to 1.")
        limits.append(int(total * options.scale))
    return min(limits, default=None)


def _probed(engine: Engine, context: Opened, ranks: list[RankResult], world: int, notes: list[Note]) -> Probed:
    request = context.request
    return Probed(
        model=context.model.id,
        model_type=context.model.model_type,
        engine=engine.name,
        engine_version=context.version or None,
        definition="measured",
        seq=request.seq,
        batch=request.batch,
        kv_dtype=context.dtypes.kv,
        tp=request.parallel.tp,
        pp=request.parallel.pp,
        dp=request.parallel.dp,
        dcp=request.parallel.dcp,
        world=world,
        ranks=tuple(ranks),
        agrees=all(rank.agrees for rank in ranks),
        notes=tuple(dict.fromkeys(notes)),
    )


@contextmanager
def interruptible() -> Iterator[None]:
    """Make a request to end (SIGTERM) an exception, as Ctrl-C is one, so that everything is freed on the way out."""
    import signal
    import threading

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)
