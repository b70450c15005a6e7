"""The machine's memory as the operating system reports it: the total, what is available, and what this process holds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["available_bytes", "driver_version", "resident_bytes", "total_bytes"]

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
                yield int(limit), max(0, int(used) - _stat(folder, names[2]))


def _stat(folder: Path, key: str) -> int:
    for line in _text(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == key and value.strip().isdecimal():
            return int(value)
    return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
