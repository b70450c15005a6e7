"""The bytes of tensors, now and at the most: by CUDA's allocator, or by every storage that torch makes and frees."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hwcalc.probe.devices import Device

__all__ = ["Meter", "metering"]


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
    """A meter for what the block does on this device."""
    if device.kind == "cuda":
        yield _CudaMeter(device)
        return
    meter = Meter()
    with _ledger(meter):
        yield meter


def _ledger(meter: Meter) -> Any:
    """A mode in which each operation's new storages are counted until they are freed.

    The CPU's allocator has no counters, and Metal's have no peak.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    known: dict[int, weakref.finalize[Any, Any]] = {}

    def gone(key: int, size: int) -> None:
        del known[key]
        meter.change(-size)

    def dispatch(_: Any, function: Any, __: Any, args: Any = (), kwargs: Any = None) -> Any:
        taken = {_key(one) for one in _tensors((args, kwargs or {}))}
        result = function(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            key = _key(tensor)
            if meter.counts and key not in known and key not in taken:
                storage = tensor.untyped_storage()
                known[key] = weakref.finalize(storage, gone, key, storage.nbytes())
                meter.change(storage.nbytes())
        return result

    # A class statement would need torch when types are checked.
    return type("Ledger", (TorchDispatchMode,), {"__torch_dispatch__": dispatch})()


def _key(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - torch's own name of the memory behind a tensor


def _tensors(value: Any) -> Iterator[Any]:
    """The tensors in what an operation took or gave."""
    if hasattr(value, "untyped_storage"):
        yield value
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _tensors(one)
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))
