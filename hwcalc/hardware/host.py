"""A machine without a GPU: what ``--gpu cpu`` and ``--gpu cpu-32gb`` name. Nothing is known of it but the memory that the user says."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from hwcalc.units import GIB

if TYPE_CHECKING:
    from hwcalc.profiles.hardware_file import Gpu

_NAME: Final = r"(?a)(?:cpu|none|no-gpu)(?:[ _-]*([1-9][0-9]{0,5}) ?(?:gi?b?)?)?"
EXAMPLE: Final = "cpu-32gb"
_DRIVERS_SHARE: Final = 16
"""Of a machine's memory, firmware and drivers keep at most one part in so many from the operating system."""


def host_named(name: str) -> Gpu | None:
    """The machine without a GPU that this name means; ``None`` if it means something else. Without a size its memory is not known.

    >>> host_named("cpu-32gb").id, host_named("CPU 64").memory_marketing_gb, host_named("none").torch_total_mib, host_named("l4")
    ('cpu-32gb', 64, None, None)
    """
    spoken = name.strip().lower()
    found = re.fullmatch(_NAME, spoken) if spoken.startswith(("cpu", "no")) else None
    if found is None:
        return None
    from hwcalc.profiles.hardware_file import HOST, Gpu

    size = None if found[1] is None else int(found[1])
    mib = None if size is None else size * 1024
    return Gpu(
        id="cpu" if size is None else f"cpu-{size}gb",
        name="No GPU" if size is None else f"No GPU, {size:,} GB of memory",
        vendor="host",
        category=HOST,
        memory_marketing_gb=size,
        # What is said is what programs may use: the verdict is strict.
        torch_total_mib=mib,
        torch_total_basis=None if mib is None else "as its name says",
        source="as its name says",
    )


def this_machine() -> str | None:
    """The name of this machine without its GPU, with the memory that it was sold with; ``None`` if the system does not say how much."""
    with suppress(AttributeError, ValueError, OSError):
        seen = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        whole = -(-seen // GIB)
        even = -(-whole // 8) * 8
        # 62.7 GiB are a machine with 64.
        return f"cpu-{even if (even * GIB - seen) * _DRIVERS_SHARE <= even * GIB else seen // GIB or 1}gb"
    return None
