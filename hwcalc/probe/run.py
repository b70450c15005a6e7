"""Run one probe: measure the rank of this process, or the fullest rank if it runs alone, on the requested device.

Probe with one process for each rank, as ``torchrun`` starts them: which rank this process is, and how results are gathered.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.pool import Allocation
from hwcalc.errors import KvplanError, UnsupportedError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.model import Note
from hwcalc.probe.allocator import environment_settings
from hwcalc.probe.devices import Device, default_reserve, open_device
from hwcalc.probe.measure import measure
from hwcalc.probe.result import Probed, RankResult
from hwcalc.text import shown

if TYPE_CHECKING:
    from hwcalc.engines.setup import Request

_TIMEOUT: Final = timedelta(minutes=10)
_MOST: Final = 2**16


class World(Record):
    """The rank of this process, from the variables that ``torchrun`` sets. ``local_size`` processes run on this machine."""

    rank: int
    size: int
    local_rank: int
    local_size: int


class Failed(Record):
    """A rank that could not measure, with the fields of its error."""

    rank: int
    message: str
    hint: str
    exit_code: int
    type: str


class RankError(KvplanError):
    """An error of another rank, raised on rank 0."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(f"rank {failed.rank}: {failed.message}", hint=failed.hint)
        self.exit_code = failed.exit_code  # type: ignore[misc]
        self.type = failed.type  # type: ignore[misc]


def world_of(environment: Mapping[str, str]) -> World | None:
    """The rank of this process; ``None`` if it runs alone. Raises :class:`~hwcalc.errors.UsageError` if the variables are invalid."""
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    defaults = (None, None, environment["RANK"], environment["WORLD_SIZE"])
    numbers = []
    for name, default in zip(names, defaults, strict=True):
        text = environment.get(name, default) or ""
        if not (text.isascii() and text.isdecimal() and len(text) < 6):
            raise UsageError(
                f"{name}={shown(text, 20)} is not a number.", hint="Start it with torchrun, or unset RANK and WORLD_SIZE."
            )
        numbers.append(int(text))
    rank, size, local_rank, local_size = numbers
    if not (rank < size <= _MOST and local_rank < max(local_size, 1) and 0 < local_size <= size):
        raise UsageError(f"rank {rank} of {size} makes no sense.", hint="Start it with torchrun, or unset RANK and WORLD_SIZE.")
    return World(rank=rank, size=size, local_rank=local_rank, local_size=local_size)


def check_world(request: Request, world: World) -> None:
    """Raise :class:`~hwcalc.errors.UsageError` unless there is one process for each rank of the plan."""
    if request.setup.gpus != world.size:
        raise UsageError(
            f"{world.size:,} processes, but tp {request.setup.parallel.tp} x pp {request.setup.parallel.pp} x dp {request.setup.parallel.dp} = {request.setup.gpus:,} ranks.",
            hint=f"Use: torchrun --nproc-per-node {request.setup.gpus}",
        )


def stage_of(request: Request, rank: int) -> int:
    """The pipeline stage of a rank. Ranks are ordered by replica, then by stage, then by tensor-parallel rank."""
    return rank // request.setup.parallel.tp % request.setup.parallel.pp


def gathered(world: World, device: Device, mine: Any) -> list[Any] | None:
    """The results of all ranks in order, on rank 0; ``None`` on the others. NCCL is used between GPUs, gloo between CPUs.

    Every rank calls this once. A rank that failed passes its error as ``mine``, so that no rank waits for it.
    """
    from torch import distributed

    if device.kind == "cuda":
        device.torch.cuda.set_device(device.label)
    if world.size == 1:
        return [mine]
    distributed.init_process_group("nccl" if device.kind == "cuda" else "gloo", timeout=_TIMEOUT)
    try:
        everything: list[Any] | None = [None] * world.size if world.rank == 0 else None
        distributed.gather_object(mine, everything, dst=0)
        if device.kind == "cuda":
            # Sending is asynchronous: wait until the data has arrived.
            device.torch.cuda.synchronize(device.label)
        return everything
    finally:
        distributed.destroy_process_group()


class ProbeOptions(Record):
    """What to measure on. ``scale`` and ``max_bytes`` limit the allocation; ``reserve_bytes`` of the device stay free."""

    device: str | None = None
    reserve_bytes: int | None = None
    scale: Fraction | None = None
    max_bytes: int | None = None
    fill: bool = False


def probe(
    opened: Occupancy,
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
        rank = stage * opened.setup.parallel.tp
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


def _one_rank_note(opened: Occupancy, stage: int) -> list[Note]:
    gpus = opened.setup.gpus
    if gpus == 1:
        return []
    where = f" (pipeline stage {stage})" if opened.setup.parallel.pp > 1 else ""
    message = (
        f"One of {gpus:,} ranks was measured, one that holds most{where}. All: torchrun --nproc-per-node {gpus} -m hwcalc.probe"
    )
    return [Note(code="one-rank", message=message)]


def _rank(
    opened: Occupancy,
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


def _probed(opened: Occupancy, ranks: list[RankResult], world: int, notes: list[Note]) -> Probed:
    request = opened.request
    return Probed(
        model=opened.model.id,
        model_type=opened.model.model_type,
        engine=opened.engine.name,
        engine_version=opened.version or None,
        definition="measured",
        seq=request.load.seq,
        batch=request.load.batch,
        kv_dtype=opened.dtypes.kv,
        tp=request.setup.parallel.tp,
        pp=request.setup.parallel.pp,
        dp=request.setup.parallel.dp,
        dcp=request.setup.parallel.dcp,
        world=world,
        ranks=tuple(ranks),
        agrees=all(rank.agrees for rank in ranks),
        notes=tuple(dict.fromkeys(notes)),
    )
