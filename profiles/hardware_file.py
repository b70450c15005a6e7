"""An accelerator, and a cloud instance or box: the forms of their files, and the records that plans use."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from msgspec import Meta, convert, field
from msgspec.structs import replace

from hwcalc.formulas.record import Record
from hwcalc.profiles.form import (
    LONGEST_ID,
    Date,
    FactFile,
    Facts,
    GpuId,
    Mib,
    Positive,
    Readings,
    Share,
    Sources,
    Version,
    Whole,
    Word,
    Words,
    one_of,
)

_ID: Final = r"[a-z0-9]+(?:-[a-z0-9]+)*"
HOST: Final = "host"
"""The category of a machine without an accelerator, which no file has."""
NODE: Final = 8
"""The accelerators of a node whose file does not say how many it has: the largest servers that are commonly sold have eight."""


class Rates(Facts):
    """Dense rates in TFLOPS (TOPS for int8)."""

    fp32: Positive | None = None
    tf32: Positive | None = None
    fp16: Positive | None = None
    bf16: Positive | None = None
    fp8: Positive | None = None
    fp4: Positive | None = None
    int8: Positive | None = None


class Interconnect(Facts):
    """The link between accelerators with its bandwidth in GB/s as the sum of both directions, and the one to the host."""

    kind: Words | None = None
    gbps_bidirectional: Positive | None = None
    host: Words | None = None


class _GpuFacts(Facts):
    """What a file and a record of an accelerator both have. ``None`` means unknown. The files' README says what each key means."""

    id: GpuId
    name: Words
    vendor: Word
    category: Annotated[str, one_of("datacenter", "workstation", "consumer", "laptop", "unified", "tpu", "neuron")] | None = None
    released: Annotated[Whole | None, Meta(description="a year")] = None
    architecture: Word | None = None
    compute_capability: Annotated[str, Meta(pattern=r"^[0-9]{1,2}\.[0-9]$", description='CUDA\'s, in quotes: "9.0"')] | None = (
        None
    )
    memory_type: Words | None = None
    memory_marketing_gb: Annotated[Whole | None, Meta(description="a positive whole number: the number on the box")] = None
    memory_total_mib: Mib | None = None
    memory_total_basis: Words | None = None
    torch_total_mib: Mib | None = None
    """The lowest reading. Some drivers withhold more memory than others, and a plan must hold with all of them."""
    torch_total_mib_seen: Readings | None = None
    torch_total_basis: Words | None = None
    memory_bandwidth_gbps: Positive | None = None
    memory_bandwidth_seen_gbps: Positive | None = None
    """What kernels were seen to read at most, where that is far below the peak: some dies of Apple cannot read as fast as their memory."""
    tdp_w: Positive | None = None
    devices_per_package: Whole | None = None
    gpus_per_node: Whole | None = None
    """How many of them one node has at most; for a whole machine, how many machines can be linked to work as one."""
    host_memory: Annotated[Literal["shared"] | None, Meta(description="shared, or no such key")] = None
    """``shared`` if the host has no memory of its own, though this is not sold as a machine with one memory (``category``)."""
    fp8_kv: Annotated[Literal["native", "storage", "no"] | None, Meta(description="native, storage or 'no' in quotes")] = None
    """``native`` (in the attention hardware), ``storage`` (kept in 8 bits, converted on read) or ``no``."""
    confidence: Annotated[Literal["high", "medium", "low"] | None, Meta(description="high, medium or low")] = None
    note: Words | None = None


class GpuFile(_GpuFacts):
    """``gpus/<id>.yaml``."""

    place: ClassVar[str] = "{0.id}.yaml"
    schema_version: Version
    recorded: Date | None = None
    memory_options_gb: (
        Annotated[tuple[Whole, ...], Meta(min_length=1, max_length=64, description="a list of positive whole numbers")] | None
    ) = None
    tflops_dense: Rates | None = None
    interconnect: Interconnect | None = None
    source: Sources

    def contradiction(self) -> tuple[str, str] | None:
        """A program sees at most what the tool reports, and the tool reports at most what is sold. Readings are around what a program sees."""
        sold = None if self.memory_marketing_gb is None else self.memory_marketing_gb * 1024
        largest: int | None = None
        for key, size in (
            ("memory_marketing_gb", sold),
            ("memory_total_mib", self.memory_total_mib),
            ("torch_total_mib", self.torch_total_mib),
        ):
            if size is not None and largest is not None and size > largest:
                return key, f"is {size:,} MiB, more than the {largest:,} MiB that stand above it"
            largest = largest if size is None else size
        seen, torch, most = self.torch_total_mib_seen, self.torch_total_mib, self.memory_total_mib or sold
        if seen is not None and most is not None and seen[1] > most:
            return "torch_total_mib_seen", f"is up to {seen[1]:,} MiB, more than the {most:,} MiB of all"
        if seen is not None and torch is not None and not seen[0] <= torch <= seen[1]:
            return "torch_total_mib_seen", f"does not have torch_total_mib, {torch:,}, in it"
        return None


class Gpu(_GpuFacts):
    """One accelerator. Budgets use ``torch_total_mib``.

    The three memory figures are different things: what is sold (``memory_marketing_gb``, in units of 1,024 MiB), what the
    vendor's tool reports (``memory_total_mib``, nvidia-smi for NVIDIA) and what a program sees (``torch_total_mib``). An H100
    is sold with 80 GB, nvidia-smi reports 81,559 MiB, and torch sees 81,082 MiB.
    """

    memory_options_gb: tuple[int, ...] = ()
    tflops_dense: Mapping[str, int | float | None] = field(default_factory=dict)
    interconnect: Mapping[str, str | int | float | None] = field(default_factory=dict)
    source: str = ""
    """The sources of the numbers, in words."""
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
        """True if it works by itself: a machine such as a laptop, or a part of a device. Only machines that can be linked are ever joined (:attr:`node`)."""
        return self.part or self.category in ("laptop", "unified", HOST)

    @property
    def shares_host_memory(self) -> bool:
        """True if processor and accelerator have one memory, so that nothing gets free if a part of a model moves to the host."""
        return self.category in ("unified", HOST) or self.host_memory == "shared"

    @property
    def is_host(self) -> bool:
        """True if it is no accelerator at all, but a machine without one: everything lies in the memory of the host."""
        return self.category == HOST

    @property
    def node(self) -> int:
        """The most of them that work as one node, over whose links tensor parallelism runs.

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
    """True if ``text`` has the form of an id: small letters, digits and hyphens."""
    return len(text) <= LONGEST_ID and re.fullmatch(_ID, text) is not None


def gpu_of(data: Mapping[str, Any], own: Path | None = None) -> Gpu:
    """The accelerator of a file's content, which has been checked. ``own`` is the file if it is the user's own."""
    # Lists make all of them: what a file does not say is unknown.
    told = {name: value for name, value in data.items() if value is not None and name in Gpu.__struct_fields__}
    return replace(convert({**told, "source": "; ".join(data["source"].values())}, Gpu), path=own, user=own is not None)


LONGEST_NAME: Final = 96
_SLUG: Final = r"[a-z0-9]+(?:[.-][a-z0-9]+)*"
Cloud: TypeAlias = Annotated[str, Meta(pattern=r"^[a-z0-9]{1,32}$", description="small letters and digits")]


class InstanceFile(FactFile):
    """``instances/<cloud>/<name>.yaml``. Its README says what each key means."""

    place: ClassVar[str] = "{0.cloud}/{0.stem}.yaml"
    id: Annotated[Words, Meta(description="its name, as its cloud spells it")]
    cloud: Cloud
    recorded: Date | None = None
    accelerator: Annotated[GpuId, Meta(description="the id of an accelerator")]
    count: Annotated[int, Meta(gt=0, le=100_000, description="a whole number from 1 to 100,000")]
    fabric: Words | None = None
    fraction: Annotated[Share | None, Meta(description="a share of one accelerator, written 1/8")] = None
    memory_mib: Annotated[Whole | None, Meta(description="a positive whole number of MiB")] = None
    note: Words | None = None
    source: Sources

    @property
    def stem(self) -> str:
        """The stem of its name."""
        return file_name(self.id)

    def contradiction(self) -> tuple[str, str] | None:
        if self.fraction is None and self.memory_mib is not None:
            return "memory_mib", "goes with fraction: a whole accelerator's memory is in its own file"
        return ("fraction", "goes with a count of 1") if self.fraction is not None and self.count != 1 else None


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
        """True if it is a machine that people buy, such as a DGX, and none that a cloud rents."""
        return self.cloud == "box"


def file_name(name: str) -> str:
    """The stem of an instance's file: small letters, digits and points; a hyphen replaces everything else.

    >>> file_name("Standard_ND96isr_H100_v5"), file_name("DGX-1 (V100 16 GB)"), file_name("p5.48xlarge")
    ('standard-nd96isr-h100-v5', 'dgx-1-v100-16-gb', 'p5.48xlarge')
    """
    kept = "".join(letter if letter == "." or (letter.isascii() and letter.isalnum()) else "-" for letter in name.lower())
    return "-".join(filter(None, (part.strip(".") for part in kept.split("-"))))


def is_file_name(stem: str) -> bool:
    """True if this can be the stem of an instance's file. A path that leaves the folder cannot."""
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
