"""Slices of NVIDIA's Multi-Instance GPU, by ``mig.yaml``: what each has of its accelerator, and which of them stand side by side.

A slice is an accelerator of its own, named as the driver names it: ``h100-sxm5-80gb-mig-1g.10gb``; ``h100:1g.10gb`` is short for that.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, ClassVar, Final

from msgspec import Meta, convert
from msgspec.structs import replace

from hwcalc.profiles.compiled import TOP, record
from hwcalc.profiles.form import Date, FactFile, Facts, GpuId, Readings, Sources, Whole, Words
from hwcalc.profiles.hardware_file import Gpu

_NAMED: Final = r"(?ai)(.*?)(?:(?:^|[ _-])mig[ _-]|:) *([1-9]g\.[0-9]{1,3}gb)"
ALONE: Final = (
    "NCCL supports slices as an experiment and without P2P (NVIDIA/nccl#1716, 2026-08-23), "
    "and no engine is known to run a model on several"
)
"""Why a server has a single slice."""


class Slice(Facts):
    """A slice: its multiprocessors and parts of the memory, the parts at which it may begin, and the lowest and the highest reading of its memory."""

    multiprocessors: Whole
    memory_slices: Whole
    starts: Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(min_length=1, description="parts of the memory, from 0")]
    memory_mib: Readings


class Cut(Facts):
    """How an accelerator can be cut: all of its multiprocessors and parts of the memory, and its slices by name."""

    accelerators: Annotated[tuple[GpuId, ...], Meta(min_length=1, description="ids of accelerators")]
    multiprocessors: Whole
    memory_slices: Whole
    slices: Annotated[
        Mapping[Annotated[str, Meta(pattern=r"^[1-9]g\.[0-9]{1,3}gb$")], Slice],
        Meta(min_length=1, description="slices by name, such as 1g.10gb"),
    ]

    def contradiction(self) -> tuple[str, str] | None:
        for name, part in self.slices.items():
            if part.multiprocessors > self.multiprocessors or max(part.starts) + part.memory_slices > self.memory_slices:
                return f"slices.{name}", "is more than the accelerator has"
            if part.memory_mib[1] > int(name.partition(".")[2].removesuffix("gb")) * 1024:
                return f"slices.{name}.memory_mib", "is more than its name says"
        return None

    def together(self, names: Sequence[str]) -> bool:
        """True if slices of these names stand side by side on one accelerator.

        >>> cuts()["h100-sxm5-80gb"].together(["3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"]), cuts()["h100-sxm5-80gb"].together(["1g.20gb"] * 5)
        (True, False)
        """
        taken: set[frozenset[int]] = {frozenset()}
        for name in names:
            spans = [frozenset(range(start, start + self.slices[name].memory_slices)) for start in self.slices[name].starts]
            taken = {parts | span for parts in taken for span in spans if not parts & span}
        return bool(taken)

    def most(self, name: str) -> int:
        """The most slices of one name that stand side by side."""
        return next(count for count in range(self.memory_slices, 0, -1) if self.together([name] * count))


class MigFile(FactFile):
    """``mig.yaml``."""

    place: ClassVar[str] = "mig.yaml"
    id: Words
    recorded: Date
    source: Sources
    gpus: Annotated[tuple[Cut, ...], Meta(min_length=1, description="a list of accelerators with their slices")]


@lru_cache(maxsize=1)
def cuts() -> Mapping[str, Cut]:
    """The ways to cut an accelerator, by its id, where they are known."""
    every = convert(record(TOP, "mig"), MigFile).gpus
    return MappingProxyType({name: cut for cut in every for name in cut.accelerators})


def slice_named(name: str) -> tuple[str, str] | None:
    """The accelerator and the slice that a name has; ``None`` for whole accelerators.

    >>> slice_named("h100:1g.10gb"), slice_named("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"), slice_named("MIG 2g.20gb"), slice_named("h100")
    (('h100', '1g.10gb'), ('NVIDIA-H100-80GB-HBM3', '1g.10gb'), ('', '2g.20gb'), None)
    """
    found = re.fullmatch(_NAMED, name.strip())
    return None if found is None else (found[1].strip(" _-"), found[2].lower())


def slice_id(gpu_id: str, name: str) -> str:
    """The id of a slice."""
    return f"{gpu_id}-mig-{name}"


def sliced(gpu: Gpu, name: str) -> Gpu:
    """A slice of the accelerator as an accelerator of its own.

    It has the bandwidth of its parts of the memory, and the rates of its multiprocessors, by their number.
    """
    cut = cuts()[gpu.id]
    part = cut.slices[name]
    low, high = part.memory_mib
    bandwidth, compute = part.memory_slices / cut.memory_slices, part.multiprocessors / cut.multiprocessors
    rates = {kind: None if rate is None else rate * compute for kind, rate in gpu.tflops_dense.items()}
    return replace(
        gpu,
        id=slice_id(gpu.id, name),
        name=f"{gpu.name} MIG {name}",
        slice_of=gpu.id,
        part=True,
        gpus_per_node=None,
        memory_marketing_gb=int(name.partition(".")[2].removesuffix("gb")),
        memory_total_mib=high,
        memory_total_basis="nvidia-smi mig -lgip",
        torch_total_mib=low,
        torch_total_mib_seen=part.memory_mib,
        torch_total_basis="nvidia-smi mig -lgip, which is what torch sees in a slice",
        memory_bandwidth_gbps=None if gpu.memory_bandwidth_gbps is None else gpu.memory_bandwidth_gbps * bandwidth,
        tflops_dense=MappingProxyType(rates),
        interconnect=MappingProxyType({"host": gpu.interconnect.get("host")}),
        tdp_w=None,
        note=(
            f"{part.memory_slices} of {cut.memory_slices} parts of the memory and {part.multiprocessors} of {cut.multiprocessors} "
            f"multiprocessors of {gpu.id}; its bandwidth and rates are taken as these shares. Up to {cut.most(name)} stand side by side."
        ),
        source="; ".join([*record(TOP, "mig")["source"].values(), gpu.source]),
    )
