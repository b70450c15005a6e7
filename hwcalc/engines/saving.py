"""What can be set in an engine so that a plan takes less memory of its GPUs, and what that costs."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from hwcalc.engines.devices import HOST_SHARE
from hwcalc.units import GIB

if TYPE_CHECKING:
    from hwcalc.profiles.hardware_file import Gpu


class Cost(enum.IntEnum):
    """What a change takes away, the least first: nothing, digits that are hardly missed, money, use, and quality."""

    NOTHING = 0
    """An option is set back to its default, or to what the plan needs."""
    CACHE = 1
    """The cache keeps eight bits of a number instead of sixteen."""
    WEIGHTS = 2
    """So do the weights."""
    SPEED = 3
    """The answers are the same, but come a little later."""
    PARTLY = 4
    """Layers or experts lie in the memory of the host, which computes them: what llama.cpp does by itself."""
    GPUS = 5
    """More GPUs of the same kind."""
    GPU = 6
    """Another GPU."""
    BATCH = 7
    """Fewer sequences at once."""
    LENGTH = 8
    """Shorter sequences."""
    FEW_BITS = 9
    """Weights of four bits."""
    FEW_CACHE_BITS = 10
    """A cache of four bits."""
    FEWER_BITS = 11
    """Weights of three bits or two, which answer noticeably worse."""
    HOST = 12
    """A part lies in the memory of the host, and is fetched for every token."""


class Saving(NamedTuple):
    """A setting that takes less memory: the options of a plan that change, by name, and what they are in words.

    ``frees`` is the most that it frees of each GPU, at the low end of the budget and by the expected value, where that is known
    beforehand and the cache takes what it took.
    """

    cost: Cost
    what: str
    settings: Mapping[str, Any]
    frees: tuple[int, int] | None = None


def computes_fp8(gpu: Gpu | None) -> bool:
    """Whether fp8 is a format of this GPU's own, and not only kept in it. Unknown counts as no, and no GPU as yes."""
    return gpu is None or gpu.fp8_kv == "native"


def computes_fp4(gpu: Gpu | None) -> bool:
    """Whether this GPU computes with numbers of four bits."""
    return gpu is not None and gpu.tflops_dense.get("fp4") is not None


def host_holds(gpu: Gpu | None, moved_bytes: int) -> bool:
    """Whether the host may take so much for each GPU: it has a memory of its own, of a size that people install with such a GPU.

    No profile says how much memory a host has. Servers are sold with two to three times the memory of their GPUs (2 TB with eight H100
    of 80 GB), and desktops reach four times (96 GB with 24 GB); what needs more is no advice.
    """
    if gpu is None:
        return True
    return not gpu.shares_host_memory and moved_bytes <= HOST_SHARE * (gpu.memory_marketing_gb or 0) * GIB
