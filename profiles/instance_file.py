"""One cloud instance or box, and the name of its file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from hwcalc.formulas.record import Record

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["LONGEST_NAME", "Instance", "file_name", "instance_of", "is_file_name"]

LONGEST_NAME: Final = 96

_SLUG = re.compile(r"[a-z0-9]+(?:[.-][a-z0-9]+)*")


class Instance(Record):
    """``count`` accelerators of one kind, rented or sold together."""

    id: str
    """The name as the cloud spells it."""
    cloud: str
    accelerator: str
    """Id of a file in ``gpus/``."""
    count: int
    fabric: str | None = None
    """What connects the accelerators if there are several."""
    fraction: tuple[int, int] | None = None
    """The share of one accelerator, as two numbers: ``(1, 8)``. ``None`` means whole accelerators."""
    memory_mib: int | None = None
    """The memory of a share, as the cloud's interface reports it."""
    note: str | None = None
    source: str = ""
    path: Path | None = None
    """The user's own file."""
    user: bool = False
    """Whether the file is the user's own."""

    @property
    def name(self) -> str:
        """The full name with the cloud, which is unique: ``aws/p5.48xlarge``."""
        return f"{self.cloud}/{file_name(self.id)}"


def file_name(name: str) -> str:
    """The stem of an instance's file: small letters, digits and points; a hyphen replaces everything else.

    >>> file_name("Standard_ND96isr_H100_v5"), file_name("DGX-1 (V100 16 GB)"), file_name("p5.48xlarge")
    ('standard-nd96isr-h100-v5', 'dgx-1-v100-16-gb', 'p5.48xlarge')
    """
    kept = "".join(letter if letter == "." or (letter.isascii() and letter.isalnum()) else "-" for letter in name.lower())
    return "-".join(filter(None, (part.strip(".") for part in kept.split("-"))))


def is_file_name(stem: str) -> bool:
    """Whether this can be the stem of an instance's file. A path that leaves the folder cannot."""
    return len(stem) <= LONGEST_NAME and _SLUG.fullmatch(stem) is not None


def instance_of(data: Mapping[str, Any], own: Path | None = None) -> Instance:
    """The instance of a file's content, which has been checked. ``own`` is the file if it is the user's own."""
    part, _, whole = (data.get("fraction") or "").partition("/")
    return Instance(
        id=data["id"],
        cloud=data["cloud"],
        accelerator=data["accelerator"],
        count=data["count"],
        fabric=data.get("fabric"),
        memory_mib=data.get("memory_mib"),
        note=data.get("note"),
        fraction=(int(part), int(whole)) if part else None,
        source="; ".join(data["source"].values()),
        path=own,
        user=own is not None,
    )
