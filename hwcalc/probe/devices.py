"""The probed device: its free memory, its allocator's counters, and tensors on it. torch is imported when a device is opened.

A meter says how many bytes live tensors take, now and at the most: by CUDA's allocator, or by every storage that torch makes and frees.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Final

from hwcalc.errors import KvplanError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.probe.allocator import environment_words
from hwcalc.probe.result import Environment
from hwcalc.text import brief, shown
from hwcalc.units import GIB

_ROOT: Final = Path("/")
_KIB: Final = 1024
_UNLIMITED: Final = 2**60
"""From here on a cgroup limit means no limit: cgroup v1 then reports a number near 2^63."""


def total_bytes(root: Path = _ROOT) -> int | None:
    """Physical memory, or the limit of the process's control group if that is less."""
    sizes = [limit for limit, _ in _limits(root)]
    with suppress(AttributeError, ValueError, OSError):
        sizes.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(sizes, default=None)


def available_bytes(root: Path = _ROOT) -> int | None:
    """Memory that can be allocated without swapping: the least of the kernel's estimate and of what each control group leaves.

    ``None`` if neither is known (no ``/proc``).
    """
    sizes = [max(0, limit - used) for limit, used in _limits(root)]
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if name == "MemAvailable" and words and words[0].isdecimal():
            sizes.append(int(words[0]) * _KIB)
    return min(sizes, default=None)


def resident_bytes(root: Path = _ROOT) -> int | None:
    """The bytes of this process that are in memory."""
    words = _text(root / "proc/self/statm").split()
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE") if len(words) > 1 and words[1].isdecimal() else None


def driver_version(root: Path = _ROOT) -> str | None:
    """The version of the NVIDIA kernel driver, or of the amdgpu module."""
    line = _text(root / "proc/driver/nvidia/version").partition("\n")[0]
    numbers = [word for word in line.split() if word[:1].isdigit() and "." in word]
    return (numbers[0] if numbers else _text(root / "sys/module/amdgpu/version").strip())[:80] or None


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and usage of each control group of the process, without page cache that can be reclaimed."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        base = root / "sys/fs/cgroup"
        if "memory" in controllers.split(","):
            names, base = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"), base / "memory"
        elif number == "0":
            names = ("memory.max", "memory.current", "inactive_file")
        else:
            continue
        # In a container the path may be that of the host; then only the top folder exists.
        parts = [part for part in path.split("/") if part not in {"", ".", ".."}]
        for depth in range(len(parts) + 1):
            folder = base.joinpath(*parts[:depth])
            limit, used = (_text(folder / name).strip() for name in names[:2])
            if limit.isdecimal() and used.isdecimal() and int(limit) < _UNLIMITED:
                rows = (line.partition(" ") for line in _text(folder / "memory.stat").splitlines())
                cached = (int(value) for name, _, value in rows if name == names[2] and value.strip().isdecimal())
                yield int(limit), max(0, int(used) - next(cached, 0))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


_NAME = re.compile(r"cpu|mps|cuda(?::([0-9]{1,3}))?", re.ASCII)
TORCH_NAMES: Final = {
    "fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2",
    "int8": "int8", "uint8": "uint8", "int64": "int64",
}  # fmt: skip
_RESERVE_PER_CENT: Final = 5
_NO_MEMORY: Final = ("out of memory", "allocate memory", "not enough memory", "alloc_failed", "invalid buffer size")
"""Words of the errors of CUDA, CPU, Windows, CUDA's libraries and Metal if memory runs out."""


class NoDeviceError(KvplanError):
    """There is nothing to measure on: torch or the requested device is missing."""

    exit_code: ClassVar[int] = 5
    type: ClassVar[str] = "no-device"


class Counters(Record):
    """Bytes as the device counts them; ``None`` if it does not count them."""

    allocated: int | None = None
    reserved: int | None = None
    requested: int | None = None
    free: int | None = None
    resident: int | None = None


class Device:
    """The memory of a CPU; the base class of the other devices."""

    kind: ClassVar[str] = "cpu"

    def __init__(self, torch: Any, label: str) -> None:
        self.torch = torch
        self.label = label

    @property
    def name(self) -> str:
        """The device's own name."""
        return platform.processor() or platform.machine()

    @property
    def total_bytes(self) -> int | None:
        """Its whole memory; ``None`` if unknown."""
        return total_bytes()

    def free_bytes(self) -> int | None:
        """The bytes that can still be allocated; ``None`` if unknown."""
        return available_bytes()

    def warm_up(self) -> None:
        """Do everything that costs memory once, so that it is not measured."""

    def counters(self) -> Counters:
        """The current counters, after all work on the device is done."""
        return Counters(resident=resident_bytes())

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        """An uninitialized tensor. Raises torch's error if memory runs out."""
        return self.torch.empty(shape, dtype=getattr(self.torch, TORCH_NAMES[dtype]), device=self.label)

    def release(self) -> None:
        """Return the memory of deleted tensors to the device."""

    def environment(self) -> Environment:
        """Versions and names, for the record."""
        cuda = getattr(self.torch, "version", None)
        return Environment(
            device=self.label,
            device_name=self.name,
            total_bytes=self.total_bytes,
            torch=str(self.torch.__version__),
            cuda=(getattr(cuda, "cuda", None) or getattr(cuda, "hip", None)) if self.kind == "cuda" else None,
            driver=driver_version() if self.kind == "cuda" else None,
            python=platform.python_version(),
            platform=f"{sys.platform} {platform.machine()}",
            allocator=environment_words(os.environ) if self.kind == "cuda" else "",
            date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )


class CudaDevice(Device):
    """CUDA, or ROCm under the same names."""

    kind: ClassVar[str] = "cuda"

    @property
    def name(self) -> str:
        return str(self.torch.cuda.get_device_name(self.label))

    @property
    def total_bytes(self) -> int | None:
        return int(self.torch.cuda.get_device_properties(self.label).total_memory)

    def free_bytes(self) -> int | None:
        return int(self.torch.cuda.mem_get_info(self.label)[0])

    def warm_up(self) -> None:
        """Create the context, and load the kernel that fills tensors.

        Raises :class:`NoDeviceError` if that fails, for example because other programs hold all memory or use the device exclusively.
        """
        try:
            self.torch.cuda.set_device(self.label)
            self.torch.zeros(1, device=self.label)
            self.release()
        except RuntimeError as error:
            words = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
            raise NoDeviceError(
                f"{self.label} cannot be used: {words}", hint="See what holds it, or use another: --device"
            ) from error

    def counters(self) -> Counters:
        cuda = self.torch.cuda
        cuda.synchronize(self.label)
        return Counters(
            allocated=int(cuda.memory_allocated(self.label)),
            reserved=int(cuda.memory_reserved(self.label)),
            requested=int(cuda.memory_stats(self.label).get("requested_bytes.all.current", 0)),
            free=int(cuda.mem_get_info(self.label)[0]),
        )

    def release(self) -> None:
        self.torch.cuda.synchronize(self.label)
        self.torch.cuda.empty_cache()


class MpsDevice(Device):
    """Metal, which shares its memory with the CPU."""

    kind: ClassVar[str] = "mps"

    @property
    def total_bytes(self) -> int | None:
        return int(self.torch.mps.recommended_max_memory())

    def free_bytes(self) -> int | None:
        return max(0, int(self.torch.mps.recommended_max_memory()) - int(self.torch.mps.driver_allocated_memory()))

    def counters(self) -> Counters:
        mps = self.torch.mps
        mps.synchronize()
        return Counters(allocated=int(mps.current_allocated_memory()), reserved=int(mps.driver_allocated_memory()))

    def release(self) -> None:
        self.torch.mps.empty_cache()


def load_torch() -> Any:
    """Import torch. Raises :class:`NoDeviceError` with the command that installs it, or mends it."""
    try:
        import torch
    except (ImportError, OSError) as error:
        cause: BaseException | None = error
        while cause is not None:
            if not isinstance(cause, Exception):
                # Somebody ended the program, and torch's own start made another error of it.
                raise cause from None
            cause = cause.__cause__ or cause.__context__
        # A library that torch needs may be missing: an installed torch is not to be searched for.
        if not isinstance(error, ModuleNotFoundError) or error.name != "torch":
            lines = str(error).strip().splitlines() or [type(error).__name__]
            message = f"PyTorch is installed and does not start: {brief(lines[0], 200)}."
            raise NoDeviceError(
                message, hint="See: python -c 'import torch'. Mend it: pip install --force-reinstall torch"
            ) from error
        message = "the probe needs PyTorch, which is not installed here."
        raise NoDeviceError(message, hint="Install it: pip install 'hwcalc[probe]'") from error
    return torch


def open_device(name: str | None, *, torch: Any = None) -> Device:
    """Open ``cuda:0``, ``cuda``, ``mps`` or ``cpu``; by default the best available device.

    Raises :class:`~hwcalc.errors.UsageError` for another name and :class:`NoDeviceError` if the device is missing.
    """
    match = None if name is None else _NAME.fullmatch(name.strip().lower())
    if name is not None and match is None:
        raise UsageError(f"--device {shown(name, 40)} is not known.", hint="Allowed: cpu, cuda, cuda:0, mps.")
    torch = torch or load_torch()
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if match is not None:
        word = match[0]
    elif cuda:
        word = "cuda"
    elif mps:
        word = "mps"
    else:
        word = "cpu"
    if word.startswith("cuda"):
        index = int(match[1]) if match is not None and match[1] else 0
        count = torch.cuda.device_count() if cuda else 0
        if index >= count:
            found = f"{count} CUDA devices" if count else "no CUDA device"
            raise NoDeviceError(f"--device {word}: torch {torch.__version__} finds {found}.", hint="Use: --device cpu")
        return CudaDevice(torch, f"cuda:{index}")
    if word == "mps":
        if not mps:
            raise NoDeviceError(f"--device mps: torch {torch.__version__} finds no Metal device.", hint="Use: --device cpu")
        return MpsDevice(torch, "mps")
    return Device(torch, "cpu")


def default_reserve(device: Device) -> int:
    """The bytes to leave free: 1 GiB, or 5% of the device if that is more."""
    return max(GIB, (device.total_bytes or 0) * _RESERVE_PER_CENT // 100)


def is_out_of_memory(error: BaseException, torch: Any) -> bool:
    """True if an exception of torch means that memory ran out. Some devices have a class for it, others only a message."""
    classes = tuple(getattr(module, "OutOfMemoryError", MemoryError) for module in (torch, torch.cuda))
    if isinstance(error, (MemoryError, *classes)):
        return True
    words = str(error).lower()
    # The phrases are specific: "An illegal memory access was encountered" is a fault, not a lack of memory.
    return isinstance(error, RuntimeError) and any(sign in words for sign in _NO_MEMORY)


@contextmanager
def holding(device: Device) -> Iterator[list[Any]]:
    """A list for tensors. At the end of the block, also after an error, the tensors are dropped and their memory is freed."""
    held: list[Any] = []
    try:
        yield held
    finally:
        held.clear()
        device.release()


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
