"""The accelerator of this machine, detected through NVML, nvidia-smi, the amdgpu driver, rocm-smi, Metal or torch.

Detection installs and allocates nothing. The detected accelerator is matched with a profile by name and memory. If no profile
matches, plans use the detected numbers.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.hardware.detect import PROBES, FoundGpu
from hwcalc.hardware.host import EXAMPLE, this_machine
from hwcalc.model import Note
from hwcalc.text import printable

if TYPE_CHECKING:
    from hwcalc.profiles.gpus import Gpu

__all__ = ["LocalGpus", "detect", "gpu_of", "local_gpu", "match"]

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
            same = [one for one in gpus if (one.name, one.memory_mib) == (gpus[0].name, gpus[0].memory_mib)]
            return LocalGpus(first=gpus[0], count=len(same), others=tuple(one for one in gpus if one not in same))
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


def match(device: FoundGpu, notes: list[Note] | None = None) -> Gpu | None:
    """The profile of this name with the nearest memory size, updated by the reading; ``None`` if no profile is near enough.

    Several devices may have the same name (an RTX 3060 has 8 or 12 GB), so the memory decides. A difference of more than a tenth
    means another device. A broken file of the user's own is skipped, with a note.
    """
    notes = [] if notes is None else notes
    if device.system_mib is not None:
        return _mac(device, notes)
    candidates = _named(device.name, notes)
    if device.memory_mib is None:
        return candidates[0] if len(candidates) == 1 else None
    near = [(abs(size - device.memory_mib), gpu.id, gpu) for gpu in candidates if (size := _memory(gpu, device)) is not None]
    near = [one for one in near if one[0] * 100 <= _TOLERANCE * (device.memory_mib + one[0])]
    return _with_reading(min(near)[2], device) if near else None


def _memory(gpu: Gpu, device: FoundGpu) -> int | None:
    """The memory figure of the profile that is comparable with the reading, or the next best one, in MiB."""
    sold = None if gpu.memory_marketing_gb is None else gpu.memory_marketing_gb * 1024
    kinds = (gpu.torch_total_mib, gpu.memory_total_mib, sold) if device.by_torch else (gpu.memory_total_mib, sold)
    return next((size for size in kinds if size is not None), None)


def _with_reading(gpu: Gpu, device: FoundGpu) -> Gpu:
    """The profile with the memory that the driver of this machine reports."""
    size = device.memory_mib
    assert size is not None
    basis = f"read here through {device.through}"
    if device.by_torch:
        tool = None if gpu.memory_total_mib is None or gpu.memory_total_mib < size else gpu.memory_total_mib
        return replace(
            gpu,
            memory_total_mib=tool,
            memory_total_basis=None if tool is None else gpu.memory_total_basis,
            torch_total_mib=size,
            torch_total_mib_seen=(size, size),
            torch_total_basis=basis,
        )
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
        candidates = _named(device.name, notes) or _family(device.name)
        if not candidates:
            return None
        gpu = with_memory(candidates[0], size)
    return gpu if device.memory_mib is None else _limited(gpu, device.memory_mib)


def _limited(gpu: Gpu, limit_mib: int) -> Gpu:
    return replace(
        gpu,
        torch_total_mib=limit_mib,
        torch_total_mib_seen=(limit_mib, limit_mib),
        torch_total_basis="iogpu.wired_limit_mb, set on this machine",
    )


def _family(name: str) -> list[Gpu]:
    from hwcalc.profiles.gpus import UnknownGpuError, find_gpu

    try:
        return [find_gpu(name)]
    except UnknownGpuError:
        return []


def _named(name: str, notes: list[Note]) -> list[Gpu]:
    """The profiles with the same words in their name, or those with the same words except for a form factor."""
    from hwcalc.hardware.profiles import known_gpus

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
    from hwcalc.profiles.gpus import Gpu

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
