"""Links over which a cache moves: those of ``links.yaml`` by name, read compiled, and that between an accelerator and its host."""

import re
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta, convert

from hwcalc.formulas.record import Record
from hwcalc.profiles.compiled import TOP, record
from hwcalc.profiles.form import Date, FactFile, Facts, Listed, Word, Words
from hwcalc.profiles.hardware_file import Gpu


class Link(Facts):
    """A link: its name and other names, its 10^9 bytes per second in one direction, and whether it leads over a ``network`` or to a ``disk``."""

    name: Word
    also: Listed = ()
    gbps: Annotated[float, Meta(gt=0, le=10_000, description="a number above 0")]
    what: Annotated[Literal["network", "disk"], Meta(description="network or disk")]
    source: Words


class LinksFile(FactFile):
    """``links.yaml``."""

    place: ClassVar[str] = "links.yaml"
    id: Words
    recorded: Date
    links: Annotated[tuple[Link, ...], Meta(min_length=1, description="a list of links")]

    def contradiction(self) -> tuple[str, str] | None:
        names = [name for link in self.links for name in (link.name, *link.also)]
        for number, link in enumerate(self.links):
            if any(names.count(name) > 1 for name in (link.name, *link.also)):
                return f"links.{number}", f"{link.name} stands twice"
        return None


@lru_cache(maxsize=1)
def links() -> tuple[Link, ...]:
    """All links, in the order of the file."""
    return convert(record(TOP, "links"), LinksFile).links


def find_link(name: str) -> Link | None:
    """The link of this name, or of another name for it.

    >>> find_link("NDR").gbps, find_link("pigeon")
    (50.0, None)
    """
    word = name.strip().lower()
    return next((link for link in links() if word == link.name or word in link.also), None)


class HostLink(Record):
    """The link between host and accelerator: what the profile says of it, and GB/s in one direction by its specification."""

    name: str
    gbps: float
    source: str


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
    match = _PCIE.match(named)
    if match is None:
        return None
    generation, lanes = int(match[1]), int(match[2])
    return HostLink(name=named, gbps=float(_LANE_GTPS[generation] * lanes * _CODE[generation] / 8), source=_PCIE_SOURCE)
