"""Run one probe: measure the rank of this process, or the fullest rank if it runs alone, on the requested device.

``torchrun`` starts one process for each rank. A single process can also measure more: a live model, the largest batch or sequence, the
bandwidth of the cache, a policy.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.pool import Allocation
from hwcalc.engines.stored import fullest_stage
from hwcalc.errors import KvplanError, UnsupportedError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.model import Note
from hwcalc.probe.allocator import AllocatorSettings, environment_settings, predict
from hwcalc.probe.bandwidth import LEAST_KEPT_BYTES, BandwidthResult, measure_bandwidth, save_bandwidth
from hwcalc.probe.devices import Counters, Device, default_reserve, holding, is_out_of_memory, open_device
from hwcalc.probe.limits import WHAT, MaxResult, find_max
from hwcalc.probe.live import DIFFERS, NOT_RUN, LiveResult, run_live
from hwcalc.probe.result import (
    MEASURED,
    OUT_OF_MEMORY,
    REFUSED,
    Compared,
    PolicyRun,
    Probed,
    RankResult,
    TensorResult,
)
from hwcalc.probe.speed import SpeedResult, run_speed
from hwcalc.text import brief, shown
from hwcalc.units import MIB, human_bytes

if TYPE_CHECKING:
    from hwcalc.engines.setup import Request
    from hwcalc.profiles.hardware_file import Gpu

_TIMEOUT: Final = timedelta(minutes=10)
_MOST: Final = 2**16
_CHUNK_BYTES: Final = 64 * MIB
_PATTERNS: Final = 251
_FREE_TOLERANCE: Final = 2 * MIB
"""A page of the driver; the runtime's own allocations are smaller."""


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


def stage_of(request: Request, rank: int) -> int:
    """The pipeline stage of a rank. Ranks are ordered by replica, then by stage, then by tensor-parallel rank."""
    return rank // request.setup.parallel.tp % request.setup.parallel.pp


def _gathered(world: World, device: Device, mine: Any) -> list[Any] | None:
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
    opened: Occupancy, options: ProbeOptions | None = None, *, environment: Mapping[str, str] | None = None, torch: Any = None
) -> Probed | None:
    """Allocate what the engine would allocate, and compare. Under ``torchrun``, rank 0 returns the result of all ranks, others ``None``.

    A process that runs alone measures the fullest rank. Raises a subclass of :class:`~hwcalc.errors.KvplanError`, with exit code 5 if
    there is no device. ``torch`` replaces the module in tests.
    """
    environment = os.environ if environment is None else environment
    options = options or ProbeOptions()
    parallel, gpus = opened.setup.parallel, opened.setup.gpus
    world = world_of(environment)
    notes = [*opened.model.notes, *opened.notes]
    if world is None:
        stage = fullest_stage(opened)
        device = open_device(options.device, torch=torch)
        if gpus > 1:
            where = f" (pipeline stage {stage})" if parallel.pp > 1 else ""
            one = f"One of {gpus:,} ranks was measured, one that holds most{where}."
            notes.append(Note(code="one-rank", message=f"{one} All: torchrun --nproc-per-node {gpus} -m hwcalc.probe"))
        return _probed(opened, [_rank(opened, device, options, stage * parallel.tp, 1, environment, notes)], 1, notes)
    device = open_device(_rank_device(options.device, world, torch), torch=torch)
    mine: RankResult | Failed
    try:
        if gpus != world.size:
            raise UsageError(
                f"{world.size:,} processes, but tp {parallel.tp} x pp {parallel.pp} x dp {parallel.dp} = {gpus:,} ranks.",
                hint=f"Use: torchrun --nproc-per-node {gpus}",
            )
        sharing = 1 if device.kind == "cuda" else world.local_size
        mine = _rank(opened, device, options, world.rank, sharing, environment, notes)
    except KvplanError as error:
        mine = Failed(rank=world.rank, message=error.message, hint=error.hint, exit_code=error.exit_code, type=error.type)
    everything = _gathered(world, device, mine)
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


def _rank(
    opened: Occupancy,
    device: Device,
    options: ProbeOptions,
    rank: int,
    sharing: int,
    environment: Mapping[str, str],
    notes: list[Note],
) -> RankResult:
    """Allocate the tensors of one rank and compare. ``sharing`` processes share the free memory of the device.

    Running out of memory is a result, not an error. Raises :class:`~hwcalc.errors.UsageError` if nothing fits into the limits.
    """
    stage, settings = stage_of(opened.request, rank), environment_settings(environment)
    allocations = opened.allocation(stage)
    if not allocations:
        raise UnsupportedError("there is nothing to allocate: no layer of this model keeps anything.")
    planned = sum(allocation.bytes for allocation in allocations)
    limits = [] if options.max_bytes is None else [options.max_bytes]
    if options.scale is not None:
        if not 0 < options.scale <= 1:
            raise UsageError(f"scale is {float(options.scale):g}.", hint="Allowed: a share above 0 and up to 1.")
        limits.append(int(planned * options.scale))
    most = min(limits, default=None)
    reserve = default_reserve(device) if options.reserve_bytes is None else options.reserve_bytes
    asked, words = scaled(allocations, most)
    device.warm_up()
    free = device.free_bytes()
    where = device.environment()
    measured: list[int] = []
    filled: bool | None = None
    comparisons: list[Compared] = []
    outcome, message = REFUSED, _refusal(device, asked, settings, free, reserve, sharing, limited=most is not None)
    if not message:
        measured, filled, message, comparisons = _allocated(asked, device, settings, notes, fill=options.fill)
        outcome = OUT_OF_MEMORY if message else MEASURED
    sizes: list[int | None] = [*measured, *[None] * (len(asked) - len(measured))]
    whole = all(one.bytes == size for one, size in zip(asked, sizes, strict=True))
    return RankResult(
        rank=rank,
        stage=stage,
        environment=where,
        outcome=outcome,
        message=message,
        planned_bytes=planned,
        asked_bytes=sum(one.bytes for one in asked),
        scaled=words,
        most_bytes=most,
        free_bytes=free,
        reserve_bytes=reserve,
        filled=filled,
        tensors=tuple(
            TensorResult(
                name=one.name,
                layer=None if one.layer < 0 else one.layer,
                dtype=one.dtype,
                shape=one.shape,
                predicted_bytes=one.bytes,
                measured_bytes=size,
            )
            for one, size in zip(asked, sizes, strict=True)
        ),
        comparisons=() if message else tuple(comparisons),
        agrees=not message and filled is not False and whole and all(comparison.agrees for comparison in comparisons),
    )


def _allocated(
    asked: Sequence[Allocation], device: Device, settings: AllocatorSettings, notes: list[Note], *, fill: bool
) -> tuple[list[int], bool | None, str, list[Compared]]:
    """The bytes of each tensor, whether they were read back as written, a message if memory ran out, and the figures."""
    total = sum(one.bytes for one in asked)
    measured: list[int] = []
    filled, message = None, ""
    with holding(device) as held:
        before = after = device.counters()
        try:
            for one in asked:
                # Only the list refers to the tensors, so emptying it frees them, even after an interrupt.
                held.append(device.empty(one.shape, one.dtype))
                measured.append(int(held[-1].untyped_storage().nbytes()))
            after = device.counters()
            if fill:
                filled = _fill(held, device)
                if device.kind == "cpu":
                    after = replace(after, resident=device.counters().resident)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error, device.torch):
                raise
            if len(measured) == len(asked):
                message = f"out of memory while {human_bytes(total)} were read back; leave more free: --reserve 1GiB"
            else:
                tensors = f"{len(held):,} of {len(asked):,} tensors"
                message = f"out of memory after {tensors}, {human_bytes(sum(measured))} of {human_bytes(total)}."
    comparisons = _comparisons(asked, sum(measured), before, after, settings, filled=filled is not None, notes=notes)
    return measured, filled, message, comparisons


def scaled(allocations: Sequence[Allocation], most_bytes: int | None) -> tuple[tuple[Allocation, ...], str | None]:
    """At most ``most_bytes`` of the allocations, as a pool of fewer blocks or the first layers; and a description of the change.

    Raises :class:`~hwcalc.errors.UsageError` if not even one block or layer fits.
    """
    total = sum(allocation.bytes for allocation in allocations)
    if most_bytes is None or total <= most_bytes:
        return tuple(allocations), None
    blocks = {allocation.blocks for allocation in allocations}
    if None not in blocks and len(blocks) == 1:
        before = next(iter(blocks)) or 1
        width = total // before
        after = most_bytes // width
        if not after:
            raise UsageError(f"{most_bytes:,} bytes hold no block: one takes {width:,}.", hint=f"Use: --max-bytes {width}")
        smaller = tuple(_with_blocks(allocation, after) for allocation in allocations)
        return smaller, f"{after:,} of {before:,} blocks"
    sizes: dict[int, int] = {}
    for one in allocations:
        sizes[one.layer] = sizes.get(one.layer, 0) + one.bytes
    kept: set[int] = set()
    used = 0
    for layer, size in sizes.items():
        if used + size > most_bytes:
            break
        kept.add(layer)
        used += size
    if not kept:
        least = next(iter(sizes.values()))
        raise UsageError(f"{most_bytes:,} bytes hold no layer: the first takes {least:,}.", hint=f"Use: --max-bytes {least}")
    return tuple(allocation for allocation in allocations if allocation.layer in kept), f"{len(kept):,} of {len(sizes):,} layers"


def rebuilt(allocations: Sequence[Allocation], most_bytes: int | None, pool: Sequence[int]) -> tuple[Allocation, ...]:
    """The allocations of an earlier probe that was scaled to ``most_bytes``. ``pool`` starts with the number of blocks it had."""
    if pool and allocations and all(allocation.blocks is not None for allocation in allocations):
        return tuple(_with_blocks(allocation, pool[0]) for allocation in allocations)
    return scaled(allocations, most_bytes)[0]


def _with_blocks(one: Allocation, blocks: int) -> Allocation:
    size = one.bytes // (one.blocks or 1) * blocks
    return replace(one, blocks=blocks, shape=(blocks, *one.shape[1:]), bytes=size)


def _refusal(
    device: Device,
    asked: Sequence[Allocation],
    settings: AllocatorSettings,
    free: int | None,
    reserve: int,
    sharing: int,
    *,
    limited: bool,
) -> str:
    """The reason why nothing may be allocated; empty if it may. ``limited`` says that the user set a limit."""
    needed = sum(one.bytes for one in asked)
    if device.kind == "cuda":
        needed = max(needed, predict((one.bytes for one in asked), settings).reserved_bytes)
    if free is None:
        return "" if limited else f"nothing says how much of {device.label} is free; say how much to take with --max-bytes."
    usable = max(0, free // sharing - reserve)
    if needed <= usable:
        return ""
    shared = f" for each of {sharing:,} processes" if sharing > 1 else ""
    return (
        f"{human_bytes(needed)} are more than {human_bytes(free // sharing)} free{shared} less a reserve of "
        f"{human_bytes(reserve)}. Smaller: --max-bytes {usable}"
    )


def _fill(held: Sequence[Any], device: Device) -> bool:
    """Fill each tensor with a number of its own; when all are written, read them back. Returns whether they are unchanged."""
    flat = [tensor.view(-1).view(device.torch.uint8) for tensor in held]
    for place, tensor in enumerate(flat):
        tensor.fill_(1 + place % _PATTERNS)
    return all(
        bool((tensor[start : start + _CHUNK_BYTES] == 1 + place % _PATTERNS).all())
        for place, tensor in enumerate(flat)
        for start in range(0, tensor.numel(), _CHUNK_BYTES)
    )


def _comparisons(
    asked: Sequence[Allocation],
    measured: int,
    before: Counters,
    after: Counters,
    settings: AllocatorSettings,
    *,
    filled: bool,
    notes: list[Note],
) -> list[Compared]:
    """The figures of a rank. A note says why allocated and reserved bytes are not compared, where they cannot be predicted."""
    total = sum(one.bytes for one in asked)
    out = [Compared.of("tensors", total, measured)]
    if before.free is not None:
        allocated = reserved = None
        if settings.unmodelled:
            words = brief(", ".join(settings.unmodelled), 200)
            message = f"Allocator settings that are not modelled: {words}. Allocated and reserved bytes are not compared."
            notes.append(Note(code="allocator-settings", message=message))
        elif before.reserved:
            message = f"{before.reserved:,} bytes were reserved before the probe: allocated and reserved bytes are not compared."
            notes.append(Note(code="not-fresh", message=message))
        else:
            statistics = predict((one.bytes for one in asked), settings)
            allocated, reserved = statistics.allocated_bytes, statistics.reserved_bytes
        out += [
            Compared.of("requested_bytes", total, _rise(before.requested, after.requested)),
            Compared.of("memory_allocated", allocated, _rise(before.allocated, after.allocated)),
            Compared.of("memory_reserved", reserved, _rise(before.reserved, after.reserved)),
            Compared.of("drop of mem_get_info", reserved, _rise(after.free, before.free), tolerance=_FREE_TOLERANCE),
        ]
    elif before.allocated is not None:
        out.append(Compared.of("allocated by the driver", total, _rise(before.reserved, after.reserved), tolerance=None))
    elif filled:
        # For information only, because the interpreter allocates and frees pages as well.
        out.append(Compared.of("growth of the process", total, _rise(before.resident, after.resident), tolerance=None))
    return out


def _rise(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def _probed(opened: Occupancy, ranks: list[RankResult], world: int, notes: list[Note]) -> Probed:
    request = opened.request
    return Probed(
        model=opened.model.id,
        model_type=opened.model.model_type,
        engine=opened.engine.name,
        engine_version=opened.deployment.version or None,
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


class MoreOptions(Record):
    """Which further measurements to make; ``search`` is ``batch`` or ``seq``."""

    live: bool = False
    search: str | None = None
    bandwidth: bool = False
    policy: bool = False
    speed: bool = False

    @property
    def any(self) -> bool:
        """True if there is anything to measure."""
        return self.live or self.bandwidth or self.policy or self.speed or self.search is not None


class More(Record):
    """Their results; null was not asked for. ``notes`` say what was kept where."""

    live: LiveResult | None
    maximum: MaxResult | None
    bandwidth: BandwidthResult | None
    notes: tuple[Note, ...]
    policy: PolicyRun | None = None
    speed: SpeedResult | None = None

    @property
    def agrees(self) -> bool:
        """True if every measurement that was requested agrees. A model that could not be run does not count as agreement."""
        same = self.live is None or self.live.status not in {DIFFERS, NOT_RUN}
        same = same and (self.speed is None or not self.speed.reason)
        return same and (self.maximum is None or self.maximum.agrees) and (self.policy is None or self.policy.agrees)


def check_alone(chosen: MoreOptions) -> None:
    """Raise :class:`~hwcalc.errors.UsageError` if one of several processes is asked for measurements that need a single process."""
    if chosen.search is not None and chosen.search not in WHAT:
        raise UsageError(f"--find-max {shown(chosen.search, 40)} is not known.", hint=f"Allowed: {', '.join(WHAT)}.")
    if chosen.any and os.environ.get("WORLD_SIZE", "1") != "1":
        raise UsageError(
            "--live, --find-max, --bandwidth, --speed and --policy are measured by one process.",
            hint="Start it without torchrun.",
        )


def measure_more(opened: Occupancy, options: ProbeOptions, chosen: MoreOptions) -> More:
    """Make the chosen measurements one after the other on the device of the probe. Each frees its memory."""
    device = open_device(options.device)
    notes: list[Note] = []
    live = maximum = bandwidth = policy = speed = None
    if chosen.live:
        live = run_live(opened.model, device.label)
    if chosen.search is not None:
        available, reserve = _available(device, options)
        maximum = find_max(opened, device, chosen.search, reserve_bytes=reserve, available_bytes=available)
    if chosen.bandwidth:
        bandwidth = _bandwidth(opened, device, options, notes)
    if chosen.speed:
        gpu = None if device.kind == "cpu" else accelerator_of(device, notes)
        limits = {"most_bytes": options.max_bytes, "reserve_bytes": options.reserve_bytes}
        speed = run_speed(opened.model, device, gpu, **limits)
    if chosen.policy:
        from hwcalc.probe.policy_run import run_policy

        # In what is free beside the reserve, or in as much as the user allows.
        available, reserve = _available(device, options)
        free = device.free_bytes() if available is None else available
        usable = None if free is None else max(0, free - (default_reserve(device) if reserve is None else reserve))
        policy = run_policy(opened, device, usable_bytes=usable, limited=available is not None, scale=options.scale)
    return More(live=live, maximum=maximum, bandwidth=bandwidth, policy=policy, speed=speed, notes=tuple(notes))


def _available(device: Device, options: ProbeOptions) -> tuple[int | None, int | None]:
    """The available bytes and the reserve of a search. With ``max_bytes``, the reserve is already subtracted."""
    if options.max_bytes is None:
        return None, options.reserve_bytes
    reserve = default_reserve(device) if options.reserve_bytes is None else options.reserve_bytes
    free = device.free_bytes()
    return options.max_bytes if free is None else min(options.max_bytes, max(0, free - reserve)), 0


def _bandwidth(opened: Occupancy, device: Device, options: ProbeOptions, notes: list[Note]) -> BandwidthResult:
    """Measure the bandwidth, and save it for the accelerator that was measured, even if the plan is for another."""
    gpu = None if device.kind == "cpu" else accelerator_of(device, notes)
    result = measure_bandwidth(opened, device, gpu=gpu, most_bytes=options.max_bytes, reserve_bytes=options.reserve_bytes)
    if gpu is None:
        message = "Bandwidth of a CPU: no plan is of one, so that it is not kept."
        result = replace(result, gpu=None, peak_gbps=None)
    elif result.read.bytes < LEAST_KEPT_BYTES:
        message = (
            f"Not kept: of {human_bytes(result.read.bytes)} the chip's own cache may hold a good part. "
            f"Read {human_bytes(LEAST_KEPT_BYTES)} or more: a larger --seq or --users."
        )
    else:
        message = f"Kept in {save_bandwidth(result)}: plans of {gpu.id} use it."
    notes.append(Note(code="calibration", message=message))
    return result


def gpu_here(device: str | None) -> str | None:
    """The name of the device's profile; ``None`` for a CPU, and for what has no profile."""
    from hwcalc.hardware.named import LOCAL

    opened = open_device(device)
    if opened.kind != "cuda":
        return None
    name = accelerator_of(opened, []).id
    return None if name == LOCAL else name


def accelerator_of(device: Device, notes: list[Note]) -> Gpu:
    """The profile of this device. It is looked up by the device's own properties, as torch numbers devices in an order of its own."""
    if device.kind != "cuda":
        from hwcalc.hardware.named import LOCAL, load_gpu

        return load_gpu(LOCAL, notes)
    from hwcalc.hardware.local import FoundGpu, gpu_of

    hip = getattr(device.torch.version, "hip", None)
    size = None if device.total_bytes is None else device.total_bytes // MIB
    found = FoundGpu(name=device.name, vendor="amd" if hip else "nvidia", through="torch", memory_mib=size, by_torch=True)
    return gpu_of(found, notes)
