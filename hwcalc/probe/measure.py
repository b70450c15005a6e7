"""Allocate tensors, measure them, fill them, read them back and free them, also after an error.

A meter says how many bytes live tensors take, now and at the most: by CUDA's allocator, or by every storage that torch makes and frees.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.engines.pool import Allocation
from hwcalc.errors import UsageError
from hwcalc.model import Note
from hwcalc.probe.allocator import AllocatorSettings, predict
from hwcalc.probe.devices import Counters, Device, is_out_of_memory
from hwcalc.probe.result import MEASURED, OUT_OF_MEMORY, REFUSED, Compared, RankResult, TensorResult
from hwcalc.text import brief
from hwcalc.units import MIB, human_bytes

_CHUNK_BYTES: Final = 64 * MIB
_PATTERNS: Final = 251
_FREE_TOLERANCE: Final = 2 * MIB
"""A page of the driver; the runtime's own allocations are smaller."""


@contextmanager
def holding(device: Device) -> Iterator[list[Any]]:
    """A list for tensors. At the end of the block, also after an error, the tensors are dropped and their memory is freed."""
    held: list[Any] = []
    try:
        yield held
    finally:
        held.clear()
        device.release()


def scaled(allocations: Sequence[Allocation], most_bytes: int | None) -> tuple[tuple[Allocation, ...], str | None]:
    """At most ``most_bytes`` of the allocations, as a pool of fewer blocks or the first layers; and a description of the change.

    Raises :class:`~hwcalc.errors.UsageError` if not even one block or layer fits.
    """
    total = sum(one.bytes for one in allocations)
    if most_bytes is None or total <= most_bytes:
        return tuple(allocations), None
    blocks = {one.blocks for one in allocations}
    if None not in blocks and len(blocks) == 1:
        before = next(iter(blocks)) or 1
        width = total // before
        after = most_bytes // width
        if not after:
            raise UsageError(f"{most_bytes:,} bytes hold no block: one takes {width:,}.", hint=f"Use: --max-bytes {width}")
        smaller = tuple(_with_blocks(one, after) for one in allocations)
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
    return tuple(one for one in allocations if one.layer in kept), f"{len(kept):,} of {len(sizes):,} layers"


def rebuilt(allocations: Sequence[Allocation], most_bytes: int | None, pool: Sequence[int]) -> tuple[Allocation, ...]:
    """The allocations of an earlier probe that was scaled to ``most_bytes``. ``pool`` starts with the number of blocks it had."""
    if pool and allocations and all(one.blocks is not None for one in allocations):
        return tuple(_with_blocks(one, pool[0]) for one in allocations)
    return scaled(allocations, most_bytes)[0]


def _with_blocks(one: Allocation, blocks: int) -> Allocation:
    size = one.bytes // (one.blocks or 1) * blocks
    return replace(one, blocks=blocks, shape=(blocks, *one.shape[1:]), bytes=size)


def measure(
    allocations: Sequence[Allocation],
    device: Device,
    *,
    rank: int,
    stage: int,
    settings: AllocatorSettings,
    reserve_bytes: int,
    most_bytes: int | None,
    sharing: int,
    fill: bool,
    notes: list[Note],
) -> RankResult:
    """Allocate the tensors of one rank and compare. ``sharing`` processes share the free memory of the device.

    Running out of memory is a result, not an error. Raises :class:`~hwcalc.errors.UsageError` if nothing fits into ``most_bytes``.
    """
    asked, words = scaled(allocations, most_bytes)
    device.warm_up()
    total = sum(one.bytes for one in asked)
    free = device.free_bytes()
    environment = device.environment()
    measured: list[int] = []
    filled: bool | None = None
    comparisons: list[Compared] = []
    outcome = REFUSED
    message = _refusal(device, asked, settings, free, reserve_bytes, sharing, limited=most_bytes is not None)
    if not message:
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
        outcome = OUT_OF_MEMORY if message else MEASURED
        comparisons = _comparisons(asked, sum(measured), before, after, settings, filled=filled is not None, notes=notes)
    sizes: list[int | None] = [*measured, *[None] * (len(asked) - len(measured))]
    whole = all(one.bytes == size for one, size in zip(asked, sizes, strict=True))
    return RankResult(
        rank=rank,
        stage=stage,
        environment=environment,
        outcome=outcome,
        message=message,
        planned_bytes=sum(one.bytes for one in allocations),
        asked_bytes=total,
        scaled=words,
        most_bytes=most_bytes,
        free_bytes=free,
        reserve_bytes=reserve_bytes,
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
        agrees=not message and filled is not False and whole and all(one.agrees for one in comparisons),
    )


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
    """Why nothing may be allocated; empty if it may. ``limited`` says that the user set a limit."""
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


class Meter:
    """Bytes above those at the start. ``restart`` begins a new peak."""

    def __init__(self) -> None:
        self._now = self._peak = 0
        self.counts = True

    @property
    def now(self) -> int:
        """The bytes that live tensors take."""
        return self._now

    @property
    def peak(self) -> int:
        """The most since the last restart."""
        return self._peak

    def restart(self) -> None:
        """Forget the peak."""
        self._peak = self._now

    @contextmanager
    def aside(self) -> Iterator[None]:
        """A block whose tensors do not count: what is looked up and looked after. None of them may outlive it on the device."""
        before, self.counts = self.counts, False
        try:
            yield
        finally:
            self.counts = before

    def change(self, size: int) -> None:
        """A storage has come, or gone."""
        self._now += size
        self._peak = max(self._peak, self._now)


class _CudaMeter(Meter):
    """The bytes that were asked of CUDA's allocator: without its rounding, which hangs on what was there before."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device = device
        self._before = 0
        self._start = self._read("current")
        self.restart()

    def _read(self, what: str) -> int:
        cuda = self._device.torch.cuda
        cuda.synchronize(self._device.label)
        return int(cuda.memory_stats(self._device.label).get(f"requested_bytes.all.{what}", 0))

    @property
    def now(self) -> int:
        return self._read("current") - self._start

    @property
    def peak(self) -> int:
        return max(self._before, self._read("peak") - self._start)

    def restart(self) -> None:
        self._before = 0
        self._device.torch.cuda.reset_peak_memory_stats(self._device.label)

    @contextmanager
    def aside(self) -> Iterator[None]:
        self._before = self.peak
        try:
            yield
        finally:
            before = self._before
            self.restart()
            self._before = before


@contextmanager
def metering(device: Device) -> Iterator[Meter]:
    """A meter for what the block does on this device.

    CUDA's allocator counts by itself. The CPU's has no counters, and Metal's have no peak: there each operation's new storages are
    counted until they are freed.
    """
    if device.kind == "cuda":
        yield _CudaMeter(device)
        return
    from torch.utils._python_dispatch import TorchDispatchMode

    meter = Meter()
    known: dict[int, weakref.finalize[Any, Any]] = {}

    def gone(key: int, size: int) -> None:
        del known[key]
        meter.change(-size)

    def dispatch(_: Any, function: Any, __: Any, args: Any = (), kwargs: Any = None) -> Any:
        # ``_cdata`` is torch's own name of the memory behind a tensor.
        taken = {int(one.untyped_storage()._cdata) for one in _tensors((args, kwargs or {}))}  # noqa: SLF001
        result = function(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            key = int(storage._cdata)  # noqa: SLF001 - as above
            if meter.counts and key not in known and key not in taken:
                known[key] = weakref.finalize(storage, gone, key, storage.nbytes())
                meter.change(storage.nbytes())
        return result

    # A class statement would need torch when types are checked.
    with type("Ledger", (TorchDispatchMode,), {"__torch_dispatch__": dispatch})():
        yield meter


def _tensors(value: Any) -> Iterator[Any]:
    """The tensors in what an operation took or gave."""
    if hasattr(value, "untyped_storage"):
        yield value
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _tensors(one)
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))
