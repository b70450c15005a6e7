"""The accelerator of this machine, detected through NVML, nvidia-smi, the amdgpu driver, rocm-smi, Metal or torch.

A probe of one of these interfaces returns accelerators in the interface's order; an empty list if it is missing, fails or gives nonsense.
Each call has a time limit and uses no shell, and its answer is checked. Detection installs and allocates nothing. The detected accelerator is
matched with a profile by name and memory. If no profile matches, plans use the detected numbers.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.model import Note
from hwcalc.text import printable
from hwcalc.unfinished import Unfinished
from hwcalc.units import GIB

if TYPE_CHECKING:
    from pathlib import Path

    from hwcalc.profiles.hardware_file import Gpu

_SECONDS: Final = 10
_LONGEST: Final = 256 * 1024
"""Most bytes of an answer. A longer answer is ignored."""
_MOST: Final = 256
"""Most accelerators of one machine."""
_NAME: Final = 96
_LARGEST_MIB: Final = 2**30
_MIB: Final = 1024**2
_SYS: Final = "/sys"
EXAMPLE: Final = "cpu-32gb"
"""A machine without a GPU, as people name it."""
_DRIVERS_SHARE: Final = 16
"""Of a machine's memory, firmware and drivers keep at most one part in so many from the operating system."""


_DEVICES: Final = ("/dev/nvidia0", "/dev/kfd", "/usr/lib/wsl/lib/libnvidia-ml.so.1")
"""Files that are there with an accelerator: NVIDIA's driver, AMD's, and NVIDIA's within WSL."""


def gpu_in_sight() -> bool:
    """True if this machine seems to have an accelerator: by the files of its drivers alone, so that the question costs nothing."""
    if sys.platform == "win32":
        return os.access(f"{os.environ.get('SYSTEMROOT', 'C:/Windows')}/System32/nvml.dll", os.F_OK)
    if sys.platform == "darwin":
        return os.uname().machine == "arm64"
    return any(os.access(path, os.F_OK) for path in _DEVICES)


def this_machine() -> str | None:
    """The name of this machine without its GPU, with the memory that it was sold with; ``None`` if the system does not say how much."""
    with suppress(AttributeError, ValueError, OSError):
        seen = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        whole = -(-seen // GIB)
        even = -(-whole // 8) * 8
        # 62.7 GiB are a machine with 64.
        return f"cpu-{even if (even * GIB - seen) * _DRIVERS_SHARE <= even * GIB else seen // GIB or 1}gb"
    return None


class FoundGpu(Record):
    """One accelerator as an interface reports it."""

    name: str
    vendor: str
    through: str
    memory_mib: int | None = None
    """The total of the vendor's tool, or of torch with ``by_torch``. On a Mac, the limit that the owner has set, if any."""
    by_torch: bool = False
    capability: tuple[int, int] | None = None
    system_mib: int | None = None
    """The whole memory of a machine that its accelerator shares."""


def _found(name: str, memory_mib: int | None, **more: Any) -> list[FoundGpu]:
    """A list with this device, or an empty list if its name or memory make no sense."""
    clean = " ".join(name.split())[:_NAME]
    if not clean or (memory_mib is not None and not 0 < memory_mib <= _LARGEST_MIB):
        return []
    return [FoundGpu(name=clean, memory_mib=memory_mib, **more)]


def bounded_output(*words: str) -> str | None:
    """The output of a program, or ``None`` if it fails, takes too long or prints too much. No shell is used."""
    import shutil
    import signal
    import subprocess
    from threading import Timer

    path = shutil.which(words[0])
    if path is None:
        return None
    try:
        process = subprocess.Popen(  # noqa: S603 - the vendor's tool, with arguments from this file
            [path, *words[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return None

    def stop() -> None:
        with suppress(OSError):
            # Kill its children too, because they may keep the pipe open.
            if os.name == "posix":
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()

    timer = Timer(_SECONDS, stop)
    timer.start()
    assert process.stdout is not None
    data = b""
    try:
        with Unfinished(lambda _status: stop()), process.stdout as pipe:
            data = pipe.read(_LONGEST + 1)
            if len(data) > _LONGEST:
                stop()
        status = process.wait()
    except BaseException:
        stop()
        raise
    finally:
        timer.cancel()
    return data.decode("utf-8", "replace") if status == 0 and len(data) <= _LONGEST else None


def nvml() -> list[FoundGpu]:
    """Ask NVIDIA's management library through its C interface, which needs no process and no CUDA context."""
    import ctypes

    try:
        library = ctypes.CDLL("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
        if library.nvmlInit_v2() != 0:
            return []
    except (OSError, AttributeError):
        return []
    try:
        count = ctypes.c_uint()
        if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return []
        gpus = []
        for index in range(min(count.value, _MOST)):
            handle, name = ctypes.c_void_p(), ctypes.create_string_buffer(_NAME)
            # nvmlMemory_t: total, free, used.
            memory = (ctypes.c_ulonglong * 3)()
            major, minor = ctypes.c_int(), ctypes.c_int()
            if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) != 0:
                continue
            if library.nvmlDeviceGetName(handle, name, ctypes.c_uint(_NAME)) != 0:
                continue
            # Devices that share the memory of the system give no answer.
            size = memory[0] // _MIB if library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0 else None
            known = library.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor)) == 0
            capability, text = (major.value, minor.value) if known else None, name.value.decode("utf-8", "replace")
            gpus += _found(text, size or None, vendor="nvidia", through="NVML", capability=capability)
    except AttributeError:
        return []
    else:
        return gpus
    finally:
        library.nvmlShutdown()


def nvidia_smi() -> list[FoundGpu]:
    """Ask ``nvidia-smi``, for systems that cannot load the library (a container, WSL)."""
    text = bounded_output("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits") or ""
    gpus = []
    for line in text.splitlines()[:_MOST]:
        name, comma, size = line.rpartition(",")
        if comma:
            # The size is "[N/A]" for devices that share the memory of the system.
            gpus += _found(name, _whole(size), vendor="nvidia", through="nvidia-smi")
    return gpus


def amdgpu(root: str | os.PathLike[str] = _SYS) -> list[FoundGpu]:
    """Read the files of the amdgpu driver."""
    from pathlib import Path

    try:
        cards = [path for path in (Path(root) / "class" / "drm").iterdir() if re.fullmatch(r"card[0-9]{1,3}", path.name)]
    except OSError:
        return []
    gpus = []
    for card in sorted(cards, key=lambda path: int(path.name[4:]))[:_MOST]:
        device = card / "device"
        total, name = _whole(_content(device / "mem_info_vram_total")), _content(device / "product_name")
        # Consumer cards and integrated GPUs have no name in these files; rocm-smi may know it.
        if total is not None and name.strip():
            gpus += _found(name, total // _MIB, vendor="amd", through="the amdgpu driver")
    return gpus


def _content(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(1024).decode("utf-8", "replace")
    except OSError:
        return ""


def _whole(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def rocm_smi() -> list[FoundGpu]:
    """Ask ``rocm-smi``, for cards that have no name in the files of the driver."""
    import json

    text = bounded_output("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json")
    try:
        document = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return []
    gpus = []
    for card, values in list(document.items())[:_MOST] if isinstance(document, dict) else []:
        if not str(card).startswith("card") or not isinstance(values, Mapping):
            continue
        facts = {str(key).lower(): str(value) for key, value in values.items()}
        name = facts.get("card series", "")
        total = _whole(facts.get("vram total memory (b)", ""))
        if total is not None:
            gpus += _found(name or "AMD GPU", total // _MIB, vendor="amd", through="rocm-smi")
    return gpus


def metal() -> list[FoundGpu]:
    """Ask ``sysctl`` for the name of an Apple chip and the memory of the machine."""
    if sys.platform != "darwin":
        return []
    lines = (bounded_output("sysctl", "-n", "machdep.cpu.brand_string", "hw.memsize") or "").splitlines()
    total = _whole(lines[1]) if len(lines) == 2 else None
    if total is None or not lines[0].startswith("Apple"):
        return []
    # 0 (or nothing on an older system) means that Metal's own limit is valid.
    limit = _whole(bounded_output("sysctl", "-n", "iogpu.wired_limit_mb") or "") or None
    if limit is not None and limit > total // _MIB:
        limit = None
    return _found(lines[0], limit, vendor="apple", through="sysctl", system_mib=total // _MIB)


def torch() -> list[FoundGpu]:
    """Ask torch if it is installed. It comes last because its import is slow."""
    from importlib.util import find_spec

    try:
        if find_spec("torch") is None:
            return []
        from importlib import import_module

        library = import_module("torch")
        kind = next((name for name in ("cuda", "xpu") if hasattr(library, name) and getattr(library, name).is_available()), None)
        if kind is None:
            return []
        devices = getattr(library, kind)
        amd = kind == "cuda" and library.version.hip is not None
        vendor = "intel" if kind == "xpu" else "amd" if amd else "nvidia"
        gpus = []
        for index in range(min(devices.device_count(), _MOST)):
            about = devices.get_device_properties(index)
            capability = (about.major, about.minor) if vendor == "nvidia" else None
            name, mib = str(about.name), int(about.total_memory) // _MIB
            gpus += _found(name, mib, vendor=vendor, through="torch", by_torch=True, capability=capability)
    except Exception:  # noqa: BLE001 - a broken installation may raise anything
        return []
    return gpus


PROBES: Final[tuple[Callable[[], list[FoundGpu]], ...]] = (nvml, nvidia_smi, amdgpu, rocm_smi, metal, torch)
"""All probes in the order of their use."""


_TOLERANCE = 10
"""Per cent by which a memory reading may differ from the profile. Drivers and ECC change less (A10: 6.7), variants more."""
_SAME = 100
"""If a reading differs from the profile by at most 1/100, only the driver is different."""


class LocalGpus(Record):
    """The first kind of accelerator of this machine, how many of this kind there are, and the accelerators of other kinds."""

    first: FoundGpu
    count: int
    others: tuple[FoundGpu, ...]


@lru_cache(maxsize=1)
def detect() -> LocalGpus | None:
    """Ask one interface after the other, the quick ones first; ``None`` if none of them reports an accelerator."""
    for probe in PROBES:
        gpus = probe()
        if gpus:
            same = [gpu for gpu in gpus if (gpu.name, gpu.memory_mib) == (gpus[0].name, gpus[0].memory_mib)]
            return LocalGpus(first=gpus[0], count=len(same), others=tuple(gpu for gpu in gpus if gpu not in same))
    return None


def local_gpu(notes: list[Note]) -> Gpu:
    """This machine's accelerator, with a note about the detection. Raises :class:`~hwcalc.errors.UsageError` if there is none."""
    machine = detect()
    if machine is None:
        raise UsageError(
            "no GPU found here (asked: NVML, nvidia-smi, amdgpu, rocm-smi, Metal, torch).",
            hint=f"Name one: kvplan gpus lists them, --gpu h100 takes one. Without a GPU: --gpu {this_machine() or EXAMPLE}",
        )
    device = machine.first
    gpu = match(device, notes)
    size = "" if device.memory_mib is None else f", {device.memory_mib:,} MiB"
    text = f"Found {printable(device.name)}{size} through {device.through}: "
    if gpu is None:
        gpu = _measured(device)
        text += "no profile is known, so it is planned with what was read; how fast it is, is not known."
    else:
        text += f"planned as {gpu.id}."
    if machine.count > 1:
        text += f" There are {machine.count} of them: --gpus {machine.count} plans with all."
    if machine.others:
        text += f" Left out: {printable(', '.join(sorted({one.name for one in machine.others})))}."
    notes.append(Note(code="local-gpu", message=text))
    return gpu


def gpu_of(device: FoundGpu, notes: list[Note]) -> Gpu:
    """The profile of a detected accelerator, or a new profile with the detected numbers."""
    return match(device, notes) or _measured(device)


def match(device: FoundGpu, notes: list[Note]) -> Gpu | None:
    """The profile of this name with the nearest memory size, updated by the reading; ``None`` if no profile is near enough.

    Several devices may have the same name (an RTX 3060 has 8 or 12 GB), so the memory decides. A difference of more than a tenth
    means another device. A broken file of the user's own is skipped, with a note.
    """
    if device.system_mib is not None:
        return _mac(device, notes)
    candidates = _named(device.name, notes)
    if device.memory_mib is None:
        return candidates[0] if len(candidates) == 1 else None
    near = []
    for gpu in candidates:
        # The memory figure that is comparable with the reading, or the next best one.
        sold = None if gpu.memory_marketing_gb is None else gpu.memory_marketing_gb * 1024
        sizes = (gpu.torch_total_mib, gpu.memory_total_mib, sold) if device.by_torch else (gpu.memory_total_mib, sold)
        apart = next((abs(size - device.memory_mib) for size in sizes if size is not None), None)
        if apart is not None and apart * 100 <= _TOLERANCE * (device.memory_mib + apart):
            near.append((apart, gpu.id, gpu))
    if not near:
        return None
    # The memory that the driver of this machine reports.
    gpu, size = min(near)[2], device.memory_mib
    basis = f"read here through {device.through}"
    if device.by_torch:
        tool = None if gpu.memory_total_mib is None or gpu.memory_total_mib < size else gpu.memory_total_mib
        known = replace(gpu, memory_total_mib=tool, memory_total_basis=None if tool is None else gpu.memory_total_basis)
        return replace(known, torch_total_mib=size, torch_total_mib_seen=(size, size), torch_total_basis=basis)
    if size == gpu.memory_total_mib:
        return gpu
    changed = replace(gpu, memory_total_mib=size, memory_total_basis=basis)
    torch = gpu.torch_total_mib
    other = gpu.memory_total_mib is None or abs(size - gpu.memory_total_mib) * _SAME > size
    if torch is None or (torch <= size and not other):
        return changed
    # ECC or an older driver changes the memory here, so torch's reading in the profile does not hold.
    return replace(changed, torch_total_mib=None, torch_total_mib_seen=None, torch_total_basis=None)


def _mac(device: FoundGpu, notes: list[Note]) -> Gpu | None:
    """An Apple chip with the memory of this machine, and with the limit for the GPU if the owner has set one."""
    from hwcalc.profiles.gpus import UnknownGpuError, find_gpu, with_memory

    assert device.system_mib is not None
    size = device.system_mib // 1024
    try:
        gpu = find_gpu(f"{device.name} {size}")
    except UnknownGpuError:
        candidates = _named(device.name, notes)
        with suppress(UnknownGpuError):
            candidates = candidates or [find_gpu(device.name)]
        if not candidates:
            return None
        gpu = with_memory(candidates[0], size)
    limit = device.memory_mib
    if limit is None:
        return gpu
    basis = "iogpu.wired_limit_mb, set on this machine"
    return replace(gpu, torch_total_mib=limit, torch_total_mib_seen=(limit, limit), torch_total_basis=basis)


def _named(name: str, notes: list[Note]) -> list[Gpu]:
    """The slice of this name, the profiles with the same words in their name, or those with the same words except for a form factor."""
    from hwcalc.hardware.profiles import known_gpus
    from hwcalc.profiles.gpus import UnknownGpuError, find_gpu
    from hwcalc.profiles.mig import slice_named

    if slice_named(name) is not None:
        with suppress(UnknownGpuError):
            return [find_gpu(name)]
    words, gpus = _words(name), [gpu for _, gpu in known_gpus(notes)]
    exact = [gpu for gpu in gpus if _words(gpu.name) == words]
    return exact or [gpu for gpu in gpus if words and _words(gpu.name) == words - _FORMS]


_MAKERS = frozenset({"nvidia", "amd", "intel", "apple", "geforce", "instinct", "radeon", "tesla", "generation"})
_FORMS = frozenset({"oam", "hbm", "tm", "r", "graphics", "mig"})


def _words(name: str) -> frozenset[str]:
    """The words that identify a device: ``AMD Instinct MI250X (per GCD device)`` gives ``{mi250x}``.

    Makers, text in brackets and sizes are left out. Sizes are compared as numbers.
    """
    words = re.findall(r"[a-z0-9]+", re.sub(r"\([^)]*\)", " ", name.lower()))
    return frozenset(word for word in words if word not in _MAKERS and not re.fullmatch(r"[0-9]+gb?", word))


def _measured(device: FoundGpu) -> Gpu:
    """A profile for an accelerator that has none, with the detected name and numbers."""
    from hwcalc.profiles.hardware_file import Gpu

    size, basis = device.memory_mib, f"read here through {device.through}"
    capability = device.capability
    tool, torch = (None, size) if device.by_torch or device.system_mib is not None else (size, None)
    return Gpu(
        id="local",
        name=printable(device.name),
        vendor=device.vendor,
        compute_capability=None if capability is None else f"{capability[0]}.{capability[1]}",
        architecture=None if capability is None else f"sm_{capability[0]}{capability[1]}",
        category="unified" if device.system_mib is not None else None,
        memory_marketing_gb=None if device.system_mib is None else device.system_mib // 1024,
        memory_total_mib=tool,
        memory_total_basis=None if tool is None else basis,
        torch_total_mib=torch,
        torch_total_mib_seen=None if torch is None else (torch, torch),
        torch_total_basis=None if torch is None else basis,
        source=f"this machine, {device.through}",
    )
