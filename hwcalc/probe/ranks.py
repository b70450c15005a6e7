"""Probe with one process for each rank, as ``torchrun`` starts them: which rank this process is, and how results are gathered."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from hwcalc.errors import KvplanError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.text import shown

if TYPE_CHECKING:
    from hwcalc.engines.request import Request
    from hwcalc.probe.devices import Device

__all__ = ["World", "check_world", "gathered", "stage_of", "world_of"]

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
    if request.gpus != world.size:
        raise UsageError(
            f"{world.size:,} processes, but tp {request.parallel.tp} x pp {request.parallel.pp} x dp {request.parallel.dp} = {request.gpus:,} ranks.",
            hint=f"Use: torchrun --nproc-per-node {request.gpus}",
        )


def stage_of(request: Request, rank: int) -> int:
    """The pipeline stage of a rank. Ranks are ordered by replica, then by stage, then by tensor-parallel rank."""
    return rank // request.parallel.tp % request.parallel.pp


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
