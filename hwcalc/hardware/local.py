"""This machine's own accelerator: found through NVML, nvidia-smi, the amdgpu driver, rocm-smi, Metal or torch, whichever is there.

Nothing is installed for it and nothing is allocated. What is found is matched with a profile by name and memory; what no profile
knows is planned with what was measured.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from hwcalc.errors import UsageError
from hwcalc.formulas.frozen import frozen, replace
from hwcalc.hardware.detect import PROBES, FoundGpu
from hwcalc.model import Note
from hwcalc.text import printable

if TYPE_CHECKING:
    from hwcalc.profiles.gpus import Gpu

__all__ = ["LocalGpus", "detect", "gpu_of", "local_gpu", "match"]

_TOLERANCE = 10
"""Per cent of a profile's memory by which a reading may differ: drivers and ECC do less (A10: 6.7), variants differ by more."""
_SAME = 100
"""A reading within one part of so many is the profile's own, read with another driver."""


@frozen
class LocalGpus:
    """The first kind of accelerator of this machine, how many of it there are, and what else there is."""

    first: FoundGpu
    count: int
    others: tuple[FoundGpu, ...]


@lru_cache(maxsize=1)
def detect() -> LocalGpus | None:
    """Ask one interface after the other, the quick ones first; ``None`` where none knows an accelerator."""
    for probe in PROBES:
        found = probe()
        if found:
            same = [one for one in found if (one.name, one.memory_mib) == (found[0].name, found[0].memory_mib)]
            return LocalGpus(first=found[0], count=len(same), others=tuple(one for one in found if one not in same))
    return None


def local_gpu(notes: list[Note]) -> Gpu:
    """This machine's accelerator; what was found goes into ``notes``. Raises :class:`~hwcalc.errors.UsageError` if there is none."""
    machine = detect()
    if machine is None:
        raise UsageError(
            "no GPU found here (asked: NVML, nvidia-smi, amdgpu, rocm-smi, Metal, torch).",
            hint="Name one: kvplan gpus lists them, --gpu h100 takes one.",
        )
    found = machine.first
    gpu = match(found, notes)
    size = "" if found.memory_mib is None else f", {found.memory_mib:,} MiB"
    text = f"Found {printable(found.name)}{size} through {found.through}: "
    if gpu is None:
        gpu = _measured(found)
        text += "no profile is known, so it is planned with what was read; how fast it is, is not known."
    else:
        text += f"planned as {gpu.id}."
    if machine.count > 1:
        text += f" There are {machine.count} of them: --gpus {machine.count} plans with all."
    if machine.others:
        text += f" Left out: {printable(', '.join(sorted({one.name for one in machine.others})))}."
    notes.append(Note(code="local-gpu", message=text))
    return gpu


def gpu_of(found: FoundGpu, notes: list[Note]) -> Gpu:
    """The profile of an accelerator, or one made of what was read."""
    return match(found, notes) or _measured(found)


def match(found: FoundGpu, notes: list[Note] | None = None) -> Gpu | None:
    """The profile of this name whose memory is nearest, with the memory that was read; ``None`` if no profile is near enough.

    A name alone may be several devices (an RTX 3060 has 8 or 12 GB): the memory decides, and a reading that differs by more than a
    tenth is another device. A broken file of the user's own is left out, and named in ``notes``.
    """
    notes = [] if notes is None else notes
    if found.system_mib is not None:
        return _mac(found, notes)
    candidates = _named(found.name, notes)
    if found.memory_mib is None:
        return candidates[0] if len(candidates) == 1 else None
    near = [(abs(size - found.memory_mib), gpu.id, gpu) for gpu in candidates if (size := _memory(gpu, found)) is not None]
    near = [one for one in near if one[0] * 100 <= _TOLERANCE * (found.memory_mib + one[0])]
    return _with_reading(min(near)[2], found) if near else None


def _memory(gpu: Gpu, found: FoundGpu) -> int | None:
    """The profile's figure of the kind that was read, or the next best one, in MiB."""
    sold = None if gpu.memory_marketing_gb is None else gpu.memory_marketing_gb * 1024
    kinds = (gpu.torch_total_mib, gpu.memory_total_mib, sold) if found.by_torch else (gpu.memory_total_mib, sold)
    return next((size for size in kinds if size is not None), None)


def _with_reading(gpu: Gpu, found: FoundGpu) -> Gpu:
    """The profile with what this machine's own driver says."""
    size = found.memory_mib
    assert size is not None
    basis = f"read here through {found.through}"
    if found.by_torch:
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
    # Another setting (ECC) or an older driver: what torch saw of the usual one is not what it sees here.
    return replace(changed, torch_total_mib=None, torch_total_mib_seen=None, torch_total_basis=None)


def _mac(found: FoundGpu, notes: list[Note]) -> Gpu | None:
    """An Apple chip with the memory that the machine has, and the limit that its owner has set for the GPU."""
    from hwcalc.profiles.gpus import UnknownGpuError, find_gpu, with_memory

    assert found.system_mib is not None
    size = found.system_mib // 1024
    try:
        gpu = find_gpu(f"{found.name} {size}")
    except UnknownGpuError:
        candidates = _named(found.name, notes) or _family(found.name)
        if not candidates:
            return None
        gpu = with_memory(candidates[0], size)
    return gpu if found.memory_mib is None else _limited(gpu, found.memory_mib)


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
    """Profiles whose name is this one; else those with all its words and no more than a form factor besides."""
    from hwcalc.hardware.profiles import leaving_out
    from hwcalc.profiles.gpus import find_gpu, list_gpus

    wanted = _words(name)
    gpus: list[Gpu] = []
    for gpu_id in list_gpus():
        with leaving_out(notes):
            gpus.append(find_gpu(gpu_id))
    exact = [gpu for gpu in gpus if _words(gpu.name) == wanted]
    return exact or [gpu for gpu in gpus if wanted and _words(gpu.name) == wanted - _FORMS]


_MAKERS = frozenset({"nvidia", "amd", "intel", "apple", "geforce", "instinct", "radeon", "tesla", "generation"})
_FORMS = frozenset({"oam", "hbm", "tm", "r", "graphics", "mig"})


def _words(name: str) -> frozenset[str]:
    """``AMD Instinct MI250X (per GCD device)`` as ``{mi250x}``: no maker, nothing in brackets, no size, which is compared itself."""
    words = re.findall(r"[a-z0-9]+", re.sub(r"\([^)]*\)", " ", name.lower()))
    return frozenset(word for word in words if word not in _MAKERS and not re.fullmatch(r"[0-9]+gb?", word))


def _measured(found: FoundGpu) -> Gpu:
    """An accelerator without a profile: its name and what was read."""
    from hwcalc.profiles.gpus import Gpu

    size, basis = found.memory_mib, f"read here through {found.through}"
    capability = found.capability
    tool, torch = (None, size) if found.by_torch or found.system_mib is not None else (size, None)
    return Gpu(
        id="local",
        name=printable(found.name),
        vendor=found.vendor,
        compute_capability=None if capability is None else f"{capability[0]}.{capability[1]}",
        architecture=None if capability is None else f"sm_{capability[0]}{capability[1]}",
        category="unified" if found.system_mib is not None else None,
        memory_marketing_gb=None if found.system_mib is None else found.system_mib // 1024,
        memory_total_mib=tool,
        memory_total_basis=None if tool is None else basis,
        torch_total_mib=torch,
        torch_total_mib_seen=None if torch is None else (torch, torch),
        torch_total_basis=None if torch is None else basis,
        source=f"this machine, {found.through}",
    )
