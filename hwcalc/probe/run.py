"""Run one probe: measure the rank of this process, or the fullest rank if it runs alone, on the requested device."""

from __future__ import annotations

import os
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from hwcalc.engines.allocation import Allocation
from hwcalc.engines.base import Opened
from hwcalc.errors import KvplanError, UnsupportedError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.model import Note
from hwcalc.probe.devices import Device, default_reserve, open_device
from hwcalc.probe.measure import measure
from hwcalc.probe.ranks import Failed, RankError, World, check_world, gathered, stage_of, world_of
from hwcalc.probe.result import Probed, RankResult
from hwcalc.probe.settings import environment_settings
from hwcalc.text import shown

__all__ = ["ProbeOptions", "probe"]


class ProbeOptions(Record):
    """What to measure on. ``scale`` and ``max_bytes`` limit the allocation; ``reserve_bytes`` of the device stay free."""

    device: str | None = None
    reserve_bytes: int | None = None
    scale: Fraction | None = None
    max_bytes: int | None = None
    fill: bool = False


def probe(
    opened: Opened,
    options: ProbeOptions | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    torch: Any = None,
) -> Probed | None:
    """Allocate what the engine would allocate, and compare. Under ``torchrun``, rank 0 returns the result of all ranks, others ``None``.

    A process that runs alone measures the fullest rank. Raises a subclass of :class:`~hwcalc.errors.KvplanError`, with exit code 5 if
    there is no device. ``torch`` replaces the module in tests.
    """
    environment = os.environ if environment is None else environment
    options = options or ProbeOptions()
    world = world_of(environment)
    if world is None:
        stage = opened.fullest_stage
        rank = stage * opened.request.parallel.tp
        device = open_device(options.device, torch=torch)
        notes = [*opened.model.notes, *opened.notes, *_one_rank_note(opened, stage)]
        results = [_rank(opened, device, options, rank=rank, sharing=1, environment=environment, notes=notes)]
        return _probed(opened, results, 1, notes)
    device = open_device(_rank_device(options.device, world, torch), torch=torch)
    notes = [*opened.model.notes, *opened.notes]
    mine: RankResult | Failed
    try:
        check_world(opened.request, world)
        sharing = 1 if device.kind == "cuda" else world.local_size
        mine = _rank(opened, device, options, rank=world.rank, sharing=sharing, environment=environment, notes=notes)
    except KvplanError as error:
        mine = Failed(rank=world.rank, message=error.message, hint=error.hint, exit_code=error.exit_code, type=error.type)
    everything = gathered(world, device, mine)
    if everything is None:
        return None
    failed = next((one for one in everything if isinstance(one, Failed)), None)
    if failed is not None:
        raise RankError(failed)
    return _probed(opened, everything, world.size, notes)


def _rank_device(name: str | None, world: World, torch: Any) -> str | None:
    """The device of this process: each process of a machine takes its own GPU.

    Raises :class:`~hwcalc.errors.UsageError` if one GPU is named for several processes.
    """
    word = None if name is None else name.strip().lower()
    if word not in {None, "cuda", "cuda:0"}:
        if word is not None and word.startswith("cuda:") and world.local_size > 1:
            raise UsageError(
                f"--device {shown(word, 40)} is one GPU for {world.local_size:,} processes.",
                hint="Leave out --device; CUDA_VISIBLE_DEVICES chooses among the GPUs.",
            )
        return name
    device = open_device(name, torch=torch)
    return f"cuda:{world.local_rank}" if device.kind == "cuda" else device.label


def _one_rank_note(opened: Opened, stage: int) -> list[Note]:
    gpus = opened.request.gpus
    if gpus == 1:
        return []
    where = f" (pipeline stage {stage})" if opened.request.parallel.pp > 1 else ""
    message = (
        f"One of {gpus:,} ranks was measured, one that holds most{where}. All: torchrun --nproc-per-node {gpus} -m hwcalc.probe"
    )
    return [Note(code="one-rank", message=message)]


def _rank(
    opened: Opened,
    device: Device,
    options: ProbeOptions,
    *,
    rank: int,
    sharing: int,
    environment: Mapping[str, str],
    notes: list[Note],
) -> RankResult:
    stage = stage_of(opened.request, rank)
    allocations = opened.allocation(stage)
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
    """The smaller of the two limits that the user may set; ``None`` without a limit."""
    if not allocations:
        raise UnsupportedError("there is nothing to allocate: no layer of this model keeps anything.")
    total = sum(one.bytes for one in allocations)
    limits = [] if options.max_bytes is None else [options.max_bytes]
    if options.scale is not None:
        if not 0 < options.scale <= 1:
            raise UsageError(f"scale is {float(options.scale):g}.", hint="Allowed: a share above 0 and up to 1.")
        limits.append(int(total * options.scale))
    return min(limits, default=None)


def _probed(opened: Opened, ranks: list[RankResult], world: int, notes: list[Note]) -> Probed:
    request = opened.request
    return Probed(
        model=opened.model.id,
        model_type=opened.model.model_type,
        engine=opened.engine.name,
        engine_version=opened.version or None,
        definition="measured",
        seq=request.seq,
        batch=request.batch,
        kv_dtype=opened.dtypes.kv,
        tp=request.parallel.tp,
        pp=request.parallel.pp,
        dp=request.parallel.dp,
        dcp=request.parallel.dcp,
        world=world,
        ranks=tuple(ranks),
        agrees=all(rank.agrees for rank in ranks),
        notes=tuple(dict.fromkeys(notes)),
    )
