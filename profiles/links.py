"""Links over which a cache moves, by name: ``links.yaml``, read compiled."""

from __future__ import annotations

from functools import lru_cache

from msgspec import convert

from hwcalc.formulas.record import Record
from hwcalc.profiles.compiled import TOP, record


class Link(Record):
    """A link: its name and other names, its 10^9 bytes per second in one direction, and whether it leads over a ``network`` or to a ``disk``."""

    name: str
    gbps: float
    what: str
    source: str
    also: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def links() -> tuple[Link, ...]:
    """All links, in the order of the file."""
    return convert(record(TOP, "links")["links"], tuple[Link, ...])


def find_link(name: str) -> Link | None:
    """The link of this name, or of another name for it.

    >>> find_link("NDR").gbps, find_link("pigeon")
    (50.0, None)
    """
    word = name.strip().lower()
    return next((one for one in links() if word == one.name or word in one.also), None)
