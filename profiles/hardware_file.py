"""An accelerator, and a cloud instance or box, from the content of its file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from msgspec import field

from hwcalc.formulas.record import Record

if TYPE_CHECKING:
    from pathlib import Path

LONGEST_ID: Final = 64
_ID: Final = r"[a-z0-9]+(?:-[a-z0-9]+)*"
HOST: Final = "host"
"""The category of a machine without an accelerator, which no file has."""
NODE: Final = 8
"""The accelerators of a node whose file does not say how many it has: the largest servers that are commonly sold have eight."""


class Gpu(Record):
    """One accelerator. ``None`` means unknown. Budgets use ``torch_total_mib``.

    The three memory figures are different things: what is sold (``memory_marketing_gb``, in units of 1,024 MiB), what the
    vendor's tool reports (``memory_total_mib``, nvidia-smi for NVIDIA) and what a program sees (``torch_total_mib``). An H100
    is sold with 80 GB, nvidia-smi reports 81,559 MiB, and torch sees 81,082 MiB.
    """

    id: str
    name: str
    vendor: str
    architecture: str | None = None
    compute_capability: str | None = None
    """The number of CUDA, such as ``9.0``; ``None`` for other vendors."""
    memory_marketing_gb: int | None = None
    memory_total_mib: int | None = None
    torch_total_mib: int | None = None
    """The lowest reading. Some drivers withhold more memory than others, and a plan must hold with all of them."""
    memory_bandwidth_gbps: float | None = None
    fp8_kv: str | None = None
    """``native`` (in the attention hardware), ``storage`` (kept in 8 bits, converted on read) or ``no``."""
    source: str = ""
    """The sources of the numbers, in words."""
    category: str | None = None
    released: int | None = None
    memory_type: str | None = None
    memory_options_gb: tuple[int, ...] = ()
    memory_total_basis: str | None = None
    torch_total_mib_seen: tuple[int, int] | None = None
    torch_total_basis: str | None = None
    tflops_dense: Mapping[str, float | None] = field(default_factory=lambda: MappingProxyType({}))
    interconnect: Mapping[str, str | float | None] = field(default_factory=lambda: MappingProxyType({}))
    tdp_w: float | None = None
    devices_per_package: int | None = None
    gpus_per_node: int | None = None
    """How many of them one node has at most; for a whole machine, how many machines can be linked to work as one."""
    host_memory: str | None = None
    """``shared`` if the host has no memory of its own, though this is not sold as a machine with one memory (``category``)."""
    confidence: str | None = None
    note: str | None = None
    path: Path | None = None
    """The user's own file."""
    user: bool = False
    """Whether the file is the user's own."""
    part: bool = False
    """Whether it is a part of an accelerator that others share."""
    slice_of: str | None = None
    """The id of the accelerator of which this is a MIG slice."""

    @property
    def whole_machine(self) -> bool:
        """Whether it works by itself: a machine such as a laptop, or a part of a device. Only machines that can be linked are ever joined (:attr:`node`)."""
        return self.part or self.category in ("laptop", "unified", HOST)

    @property
    def shares_host_memory(self) -> bool:
        """Whether processor and accelerator have one memory, so that nothing gets free if a part of a model moves to the host."""
        return self.category in ("unified", HOST) or self.host_memory == "shared"

    @property
    def is_host(self) -> bool:
        """Whether it is no accelerator at all, but a machine without one: everything lies in the memory of the host."""
        return self.category == HOST

    @property
    def node(self) -> int:
        """How many of them work as one node, over whose links tensor parallelism runs.

        Where the file does not say, it is 8 as in most servers, and 1 for a whole machine.
        """
        return self.gpus_per_node or (1 if self.whole_machine else NODE)

    @property
    def capability(self) -> tuple[int, int] | None:
        """The CUDA compute capability as two numbers."""
        if self.compute_capability is None:
            return None
        major, _, minor = self.compute_capability.partition(".")
        return int(major), int(minor)


def is_id(text: str) -> bool:
    """Whether ``text`` has the form of an id: small letters, digits and hyphens."""
    return len(text) <= LONGEST_ID and re.fullmatch(_ID, text) is not None


def gpu_of(data: Mapping[str, Any], own: Path | None = None) -> Gpu:
    """The accelerator of a file's content, which has been checked. ``own`` is the file if it is the user's own."""
    told, seen = data.get, data.get("torch_total_mib_seen")
    # Lists make all of them: what a file does not say is unknown, and so None.
    values: dict[str, Any] = {name: told(name) for name in _NAMES}
    values["memory_options_gb"] = tuple(told("memory_options_gb") or ())
    values["torch_total_mib_seen"] = None if seen is None else (seen[0], seen[1])
    values["tflops_dense"] = MappingProxyType(told("tflops_dense") or {})
    values["interconnect"] = MappingProxyType(told("interconnect") or {})
    values["source"] = "; ".join(data["source"].values())
    values["path"], values["user"], values["part"] = own, own is not None, False
    values["slice_of"] = None
    return Gpu(**values)


_NAMES: Final = Gpu.__struct_fields__


LONGEST_NAME: Final = 96

_SLUG: Final = r"[a-z0-9]+(?:[.-][a-z0-9]+)*"


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

    @property
    def is_bought(self) -> bool:
        """Whether it is a machine that people buy, such as a DGX, and none that a cloud rents."""
        return self.cloud == "box"


def file_name(name: str) -> str:
    """The stem of an instance's file: small letters, digits and points; a hyphen replaces everything else.

    >>> file_name("Standard_ND96isr_H100_v5"), file_name("DGX-1 (V100 16 GB)"), file_name("p5.48xlarge")
    ('standard-nd96isr-h100-v5', 'dgx-1-v100-16-gb', 'p5.48xlarge')
    """
    kept = "".join(letter if letter == "." or (letter.isascii() and letter.isalnum()) else "-" for letter in name.lower())
    return "-".join(filter(None, (part.strip(".") for part in kept.split("-"))))


def is_file_name(stem: str) -> bool:
    """Whether this can be the stem of an instance's file. A path that leaves the folder cannot."""
    return len(stem) <= LONGEST_NAME and re.fullmatch(_SLUG, stem) is not None


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
