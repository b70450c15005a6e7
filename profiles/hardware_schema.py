"""The forms of the files of accelerators and instances, and of ``hardware.yaml``: how much of an accelerator's memory a program sees."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, RootModel, model_validator

from hwcalc.profiles.hardware_file import LONGEST_ID, Gpu, Instance, file_name, gpu_of, instance_of
from hwcalc.profiles.schema import (
    Date,
    Estimate,
    FactFile,
    Facts,
    Positive,
    Share,
    Sources,
    Whole,
    Word,
    Words,
    WrongKeyError,
    YamlFile,
    check,
)

GpuId = Annotated[
    str, Field(pattern=r"^[a-z0-9]+(?:-[a-z0-9]+)*$", max_length=LONGEST_ID, description="small letters, digits and hyphens")
]
Mib = Annotated[int, Field(gt=0, lt=2**40, description="a positive whole number of MiB")]


def _rising(readings: list[int]) -> list[int]:
    if readings[0] > readings[1]:
        raise ValueError("must be two numbers of MiB, the lower first")
    return readings


class Rates(Facts):
    """Dense rates in TFLOPS (TOPS for int8)."""

    fp32: Positive | None = None
    tf32: Positive | None = None
    fp16: Positive | None = None
    bf16: Positive | None = None
    fp8: Positive | None = None
    fp4: Positive | None = None
    int8: Positive | None = None


class Link(Facts):
    """The link between accelerators with its bandwidth in GB/s as the sum of both directions, and the one to the host."""

    kind: Words | None = None
    gbps_bidirectional: Positive | None = None
    host: Words | None = None


class GpuFile(FactFile):
    """``gpus/<id>.yaml``. ``None`` is unknown. Its README says what each key means."""

    id: GpuId
    name: Words
    vendor: Word
    category: Annotated[
        Literal["datacenter", "workstation", "consumer", "laptop", "unified", "tpu", "neuron"] | None,
        Field(description="one of datacenter, workstation, consumer, laptop, unified, tpu, neuron"),
    ] = None
    released: Annotated[Whole | None, Field(description="a year")] = None
    recorded: Date | None = None
    architecture: Word | None = None
    compute_capability: Annotated[
        Annotated[str, Field(pattern=r"^[0-9]{1,2}\.[0-9]$")] | None, Field(description='CUDA\'s, in quotes: "9.0"')
    ] = None
    memory_type: Words | None = None
    memory_marketing_gb: Annotated[Whole | None, Field(description="a positive whole number: the number on the box")] = None
    memory_options_gb: Annotated[
        Annotated[list[Whole], Field(min_length=1, max_length=64)] | None, Field(description="a list of positive whole numbers")
    ] = None
    memory_total_mib: Mib | None = None
    memory_total_basis: Words | None = None
    torch_total_mib: Mib | None = None
    torch_total_mib_seen: Annotated[
        Annotated[list[Mib], Field(min_length=2, max_length=2), AfterValidator(_rising)] | None,
        Field(description="two numbers of MiB, the lower first"),
    ] = None
    torch_total_basis: Words | None = None
    memory_bandwidth_gbps: Positive | None = None
    tflops_dense: Rates | None = None
    interconnect: Link | None = None
    tdp_w: Positive | None = None
    devices_per_package: Whole | None = None
    gpus_per_node: Whole | None = None
    host_memory: Annotated[Literal["shared"] | None, Field(description="shared, or no such key")] = None
    fp8_kv: Annotated[Literal["native", "storage", "no"] | None, Field(description="native, storage or 'no' in quotes")] = None
    confidence: Annotated[Literal["high", "medium", "low"] | None, Field(description="high, medium or low")] = None
    note: Words | None = None
    source: Sources

    def place(self) -> tuple[str, ...]:
        return (f"{self.id}.yaml",)

    @model_validator(mode="after")
    def _a_program_sees_at_most_what_is_sold(self) -> Self:
        """A program sees at most what the tool reports, and the tool reports at most what is sold."""
        sold = None if self.memory_marketing_gb is None else self.memory_marketing_gb * 1024
        largest: int | None = None
        for key, size in (
            ("memory_marketing_gb", sold),
            ("memory_total_mib", self.memory_total_mib),
            ("torch_total_mib", self.torch_total_mib),
        ):
            if size is not None and largest is not None and size > largest:
                raise WrongKeyError(key, f"is {size:,} MiB, more than the {largest:,} MiB that stand above it")
            largest = largest if size is None else size
        return self

    @model_validator(mode="after")
    def _readings_are_around_the_total(self) -> Self:
        """The range of readings contains ``torch_total_mib`` and does not exceed the whole memory."""
        seen, torch, sold = self.torch_total_mib_seen, self.torch_total_mib, self.memory_marketing_gb
        most = self.memory_total_mib or (None if sold is None else sold * 1024)
        if seen is None:
            return self
        if most is not None and seen[1] > most:
            raise WrongKeyError("torch_total_mib_seen", f"is up to {seen[1]:,} MiB, more than the {most:,} MiB of all")
        if torch is not None and not seen[0] <= torch <= seen[1]:
            raise WrongKeyError("torch_total_mib_seen", f"does not have torch_total_mib, {torch:,}, in it")
        return self


class Aliases(RootModel[dict[GpuId, GpuId]]):
    """``gpu_aliases.yaml``: other name -> id."""


GPU_FIELDS: Final = tuple(GpuFile.model_fields)
"""The keys of a file."""


def parse_gpu(file: YamlFile, *, user: bool = False) -> Gpu:
    """Check one file. Its stem must be the id. Raises :class:`~hwcalc.profiles.catalog.ProfileError` with line and key."""
    check(file, GpuFile)
    return gpu_of(file.data, file.path if user else None)


_MOST: Final = 100_000


class InstanceFile(FactFile):
    """``instances/<cloud>/<name>.yaml``. Its README says what each key means."""

    id: Annotated[Words, Field(description="its name, as its cloud spells it")]
    cloud: Annotated[str, Field(pattern=r"^[a-z0-9]{1,32}$", description="small letters and digits")]
    recorded: Date | None = None
    accelerator: Annotated[GpuId, Field(description="the id of an accelerator")]
    count: Annotated[int, Field(gt=0, le=_MOST, description=f"a whole number from 1 to {_MOST:,}")]
    fabric: Words | None = None
    fraction: Annotated[Share | None, Field(description="a share of one accelerator, written 1/8")] = None
    memory_mib: Annotated[Whole | None, Field(description="a positive whole number of MiB")] = None
    note: Words | None = None
    source: Sources

    def place(self) -> tuple[str, ...]:
        return self.cloud, f"{file_name(self.id)}.yaml"

    @model_validator(mode="after")
    def _a_fraction_is_of_one(self) -> Self:
        if self.fraction is None and self.memory_mib is not None:
            raise WrongKeyError("memory_mib", "goes with fraction: a whole accelerator's memory is in its own file")
        if self.fraction is not None and self.count != 1:
            raise WrongKeyError("fraction", "goes with a count of 1")
        return self


INSTANCE_FIELDS: Final = tuple(InstanceFile.model_fields)
"""The keys of a file."""


def parse_instance(file: YamlFile, *, user: bool = False) -> Instance:
    """Check one file. Its folder must be the cloud. Raises :class:`~hwcalc.profiles.catalog.ProfileError` with line and key."""
    check(file, InstanceFile)
    return instance_of(file.data, file.path if user else None)


def _of_one(share: Estimate) -> Estimate:
    if share.high > 1:
        raise ValueError("must be shares of at most 1")
    return share


EstimatedShare = Annotated[Estimate, AfterValidator(_of_one)]


class VisibleShare(Facts):
    """What torch sees, as a share of what is known."""

    of_tool: EstimatedShare
    of_tool_amd: EstimatedShare
    of_marketing: EstimatedShare


class Reading(Facts):
    """What Metal reported on a Mac, in 10^6 bytes."""

    ram_gib: Whole
    megabytes: Positive
    macos: Words

    @model_validator(mode="after")
    def _is_of_the_memory(self) -> Self:
        if self.megabytes * 10**6 > self.ram_gib * 1024**3:
            raise WrongKeyError("megabytes", "must be no more than the memory")
        return self


class Step(Facts):
    """The share of a Mac's memory that Metal allows from a size on."""

    from_gib: Annotated[int, Field(ge=0, description="a whole number of GiB")]
    share: Share


def _rising_shares(steps: list[Step]) -> list[Step]:
    starts = [step.from_gib for step in steps]
    if starts[:1] != [0] or not all(lower < higher for lower, higher in pairwise(starts)):
        raise ValueError("must begin at 0 and rise")
    return steps


Rule = Annotated[list[Step], AfterValidator(_rising_shares)]


class Metal(Facts):
    """What Metal lets a GPU use of a Mac's memory."""

    readings: Annotated[list[Reading], Field(min_length=1)]
    older_rule: Rule
    newer_rule: Rule
    raise_with: Words
    source: Words


class HardwareFile(FactFile):
    """``hardware.yaml``, whose comments say what each number is."""

    id: Words
    recorded: Date
    visible_share: VisibleShare
    metal: Metal

    def place(self) -> tuple[str, ...]:
        return (f"{self.id}.yaml",)
