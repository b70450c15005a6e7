"""Accelerators and instances as documents: what ``kvplan gpus --json`` and ``kvplan instances --json`` print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from hwcalc.formulas.record import Record

if TYPE_CHECKING:
    from hwcalc.profiles.hardware_file import Gpu, Instance


class VisibleInfo(Record):
    """What a program sees of the memory, in bytes. Low and high differ where it is estimated, or where readings do."""

    low_bytes: int
    expected_bytes: int
    high_bytes: int
    basis: str
    source: str


class GpuInfo(Record):
    """One accelerator. Null is unknown. ``memory_marketing_gb`` is of 1,024 MiB each, bandwidth of 10^9 bytes a second.

    Rates are dense TFLOPS (TOPS for int8), and ``instances`` are the clouds' and boxes that have it.
    """

    id: str
    name: str
    aliases: tuple[str, ...]
    vendor: str
    category: str | None
    released: int | None
    architecture: str | None
    compute_capability: str | None
    memory_type: str | None
    memory_marketing_gb: int | None
    memory_options_gb: tuple[int, ...]
    memory_total_mib: int | None
    memory_total_basis: str | None
    torch_total_mib: int | None
    torch_total_mib_seen: tuple[int, ...]
    torch_total_basis: str | None
    visible: VisibleInfo | None
    memory_bandwidth_gbps: float | None
    tflops_dense: dict[str, float | None]
    interconnect: dict[str, str | float | None]
    tdp_w: float | None
    devices_per_package: int | None
    fp8_kv: str | None
    confidence: str | None
    note: str | None
    source: str
    user: bool
    instances: tuple[str, ...]


class GpusDocument(Record):
    """What ``kvplan gpus --json`` prints."""

    schema_version: str
    gpus: tuple[GpuInfo, ...]


class InstanceInfo(Record):
    """One instance: ``count`` accelerators of one kind, or a ``fraction`` of one (1/8).

    ``visible_bytes_each`` is what a program is expected to see of the memory of each.
    """

    name: str
    id: str
    cloud: str
    accelerator: str
    count: int
    fraction: str | None
    fabric: str | None
    memory_mib: int | None
    visible_bytes_each: int | None
    note: str | None
    source: str
    user: bool


class InstancesDocument(Record):
    """What ``kvplan instances --json`` prints."""

    schema_version: str
    instances: tuple[InstanceInfo, ...]


def gpu_info(gpu: Gpu, aliases: Sequence[str], instances: Sequence[str]) -> GpuInfo:
    """The record of an accelerator, with its aliases and the instances that have it."""
    from hwcalc.profiles.gpus import visible_memory

    visible = visible_memory(gpu)
    return GpuInfo(
        id=gpu.id,
        name=gpu.name,
        aliases=tuple(aliases),
        vendor=gpu.vendor,
        category=gpu.category,
        released=gpu.released,
        architecture=gpu.architecture,
        compute_capability=gpu.compute_capability,
        memory_type=gpu.memory_type,
        memory_marketing_gb=gpu.memory_marketing_gb,
        memory_options_gb=gpu.memory_options_gb,
        memory_total_mib=gpu.memory_total_mib,
        memory_total_basis=gpu.memory_total_basis,
        torch_total_mib=gpu.torch_total_mib,
        torch_total_mib_seen=gpu.torch_total_mib_seen or (),
        torch_total_basis=gpu.torch_total_basis,
        visible=None if visible is None else VisibleInfo(**asdict(visible)),
        memory_bandwidth_gbps=gpu.memory_bandwidth_gbps,
        tflops_dense=dict(gpu.tflops_dense),
        interconnect=dict(gpu.interconnect),
        tdp_w=gpu.tdp_w,
        devices_per_package=gpu.devices_per_package,
        fp8_kv=gpu.fp8_kv,
        confidence=gpu.confidence,
        note=gpu.note,
        source=gpu.source,
        user=gpu.user,
        instances=tuple(instances),
    )


def instance_info(instance: Instance, each: Gpu) -> InstanceInfo:
    """The record of an instance; ``each`` is one of its accelerators as a program sees it."""
    from hwcalc.profiles.gpus import visible_memory

    visible = visible_memory(each)
    fraction = instance.fraction
    return InstanceInfo(
        name=instance.name,
        id=instance.id,
        cloud=instance.cloud,
        accelerator=instance.accelerator,
        count=instance.count,
        fraction=None if fraction is None else f"{fraction[0]}/{fraction[1]}",
        fabric=instance.fabric,
        memory_mib=instance.memory_mib,
        visible_bytes_each=None if visible is None else visible.expected_bytes,
        note=instance.note,
        source=instance.source,
        user=instance.user,
    )
