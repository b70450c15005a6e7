"""How fast the link between host and accelerator can be, from what the accelerator's profile names."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from hwcalc.planner.strategies_result import HostLink

if TYPE_CHECKING:
    from hwcalc.profiles.gpus import Gpu

_PCIE: Final = re.compile(r"PCIe([3-6]) x([0-9]{1,2})")
_LANE_GTPS: Final = {3: 8, 4: 16, 5: 32, 6: 64}
"""Transfers of a lane a second, in thousand millions, by generation."""
_CODE: Final = {3: Fraction(128, 130), 4: Fraction(128, 130), 5: Fraction(128, 130), 6: Fraction(236, 256)}
"""The share of bits that are data: 128 of 130 up to generation 5, and 236 bytes of a unit of 256 in generation 6."""
_PCIE_SOURCE: Final = "PCI Express Base Specification: transfers a second, lanes and code"
_C2C: Final = "NVLink-C2C"
_C2C_GBPS: Final = 450
_C2C_SOURCE: Final = "NVIDIA Grace Hopper Superchip architecture: 900 GB/s in both directions together"


def host_link(gpu: Gpu | None) -> HostLink | None:
    """The link in one direction; ``None`` if no accelerator is named or its profile does not name it.

    PCIe 5 with 16 lanes: 32 x 10^9 transfers x 16 bits x 128/130 / 8 = 63.0 GB/s.
    """
    named = None if gpu is None else gpu.interconnect.get("host")
    if not isinstance(named, str):
        return None
    if named == _C2C:
        return HostLink(name=named, gbps=float(_C2C_GBPS), source=_C2C_SOURCE)
    found = _PCIE.match(named)
    if found is None:
        return None
    generation, lanes = int(found[1]), int(found[2])
    return HostLink(name=named, gbps=float(_LANE_GTPS[generation] * lanes * _CODE[generation] / 8), source=_PCIE_SOURCE)
