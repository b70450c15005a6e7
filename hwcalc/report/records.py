"""The JSON documents of commands that list something, and of errors, as records. ``kvplan schema`` derives from them."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from hwcalc.documents import ErrorInfo
from hwcalc.formulas.record import Record
from hwcalc.policies.base import Effect, Quality

if TYPE_CHECKING:
    from hwcalc.hardware.prices import Prices
    from hwcalc.policies.base import Policy
    from hwcalc.profiles.hardware_file import Gpu, Instance


class EmittedDocument(Record):
    """Document of ``kvplan MODEL --emit E --json``: the command as a shell takes it, and its words.

    ``environment`` are the variables that stand before them, or that the server needs; ``file`` is the text of the file that the command
    reads, such as a Modelfile, or of the manifest that was wanted.
    """

    schema_version: str
    kvplan_version: str
    engine: str
    engine_version: str | None
    command: str
    arguments: tuple[str, ...]
    environment: tuple[str, ...] = ()
    file: str | None = None


class ErrorDocument(Record):
    """Document of an error, in place of an answer."""

    schema_version: str
    error: ErrorInfo


class TypeInfo(Record):
    """A known model type, and the combinations of layers that its models have: ``mamba2+gqa``. It keeps nothing: ``no cache``."""

    model_type: str
    families: tuple[str, ...]


class OptionInfo(Record):
    """One of an engine's own knobs, set with ``--engine-option NAME=VALUE``."""

    name: str
    default: str
    help: str


class HardwareInfo(Record):
    """One source's word on accelerators: whether the engine, or a format of it, ``runs`` there, ``never`` does, or that it is ``open``.

    ``what`` is the engine itself (``runs``), or ``weights``, ``cache`` or ``attention`` of these ``formats``. ``accelerators`` are compute
    capabilities (``7.5``, ``7.5+`` for that and later), architectures (``gfx942``, ``gfx*`` for all that begin so) and ids. It holds from
    version ``since`` until before ``until``, null for every version. ``backend`` is the part of the engine that it is about, and ``note`` why.
    """

    what: str
    formats: tuple[str, ...]
    accelerators: tuple[str, ...]
    answer: str
    backend: str
    since: str | None
    until: str | None
    note: str
    source: str


class EngineInfo(Record):
    """One engine. ``versions`` are those whose rules are known, newest first."""

    name: str
    title: str
    definition: str
    versions: tuple[str, ...]
    source: str
    options: tuple[OptionInfo, ...]
    kinds: dict[str, str]
    """Kind of layer -> whether the engine has a rule: ``yes``, ``no``, or that it keeps every token of those with a window."""
    hardware: tuple[HardwareInfo, ...]
    """The accelerators that it runs on and the formats that need more, with source; empty for the formulas, which run nowhere."""


class EngineDTypeInfo(Record):
    """What an engine stores by the name of a format: ``bits`` a value, scales included, in a head of 128 values or the latent that it is for.

    ``since`` and ``until`` are the first release with it and the first without; empty where all known releases have it.
    """

    engine: str
    bits: float
    stored: str
    since: str
    until: str
    source: str


class DTypeInfo(Record):
    """One storage format: ``block_elements`` numbers take ``block_bytes`` bytes, scales included.

    A packed layout has no block of its own (null): ``parts`` names the format of each tensor role. Nor has one of single ``engines``, which
    are listed where it is asked for by its name.
    """

    name: str
    aliases: tuple[str, ...]
    block_elements: int | None
    block_bytes: int | None
    parts: dict[str, str]
    source: str
    engines: tuple[EngineDTypeInfo, ...] = ()


class DTypesDocument(Record):
    """Document of ``kvplan dtypes --json``."""

    schema_version: str
    dtypes: tuple[DTypeInfo, ...]
    weights: tuple[str, ...]
    """Values of ``--weights``; empty where one dtype was asked for."""


class PolicyOptionInfo(Record):
    """One option of a policy. ``default`` is empty where there is none, and ``kind`` says what it takes."""

    name: str
    kind: str
    default: str
    required: bool
    help: str


class PolicyInfo(Record):
    """One cache policy: what it keeps, what becomes of the rest, and what it costs. ``press`` is its class in kvpress, empty without one."""

    name: str
    press: str
    title: str
    aliases: tuple[str, ...]
    role: str
    effect: Effect
    keeps: str
    formula: str
    memory: str
    kernel: str
    definition: str
    source: str
    options: tuple[PolicyOptionInfo, ...]
    quality: tuple[Quality, ...]


class VisibleInfo(Record):
    """Bytes of the memory that a program sees. Low and high differ where it is estimated, or where readings do."""

    low_bytes: int
    expected_bytes: int
    high_bytes: int
    basis: str
    source: str


class GpuInfo(Record):
    """One accelerator. Null is unknown. ``memory_marketing_gb`` is of 1,024 MiB each, bandwidth of 10^9 bytes a second.

    Rates are dense TFLOPS (TOPS for int8), and ``instances`` are the clouds' and boxes that have it. ``mig_slices`` are how many MIG slices of
    each name stand side by side on it, and ``slice_of`` is the accelerator of which this is such a slice.
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
    slice_of: str | None
    mig_slices: dict[str, int]
    interconnect: dict[str, str | float | None]
    tdp_w: float | None
    devices_per_package: int | None
    fp8_kv: str | None
    confidence: str | None
    note: str | None
    source: str
    user: bool
    instances: tuple[str, ...]


class InstancePrice(Record):
    """What an instance costs an hour in dollars, ``on_demand`` or ``spot``; only a price of the user's own may be without a date."""

    usd_per_hour: float
    kind: str
    region: str
    date: str | None
    source: str


class InstanceInfo(Record):
    """One instance: ``count`` accelerators of one kind, or a ``fraction`` of one (1/8).

    ``visible_bytes_each`` is what a program is expected to see of the memory of each. ``prices`` are what it costs on demand and as a spot
    machine, each with its day and source.
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
    prices: tuple[InstancePrice, ...]


def gpu_info(gpu: Gpu, aliases: Sequence[str], instances: Sequence[str]) -> GpuInfo:
    """The record of an accelerator, with its aliases and the instances that have it."""
    from hwcalc.profiles.gpus import visible_memory
    from hwcalc.profiles.mig import cuts

    visible, cut = visible_memory(gpu), cuts().get(gpu.id)
    made: dict[str, Any] = {
        "mig_slices": {} if cut is None else {name: cut.most(name) for name in cut.slices},
        "aliases": tuple(aliases),
        "torch_total_mib_seen": gpu.torch_total_mib_seen or (),
        "visible": None if visible is None else VisibleInfo(**asdict(visible)),
        "tflops_dense": dict(gpu.tflops_dense),
        "interconnect": dict(gpu.interconnect),
        "instances": tuple(instances),
    }
    return GpuInfo(**made, **_same_fields(gpu, GpuInfo, made))


def instance_info(instance: Instance, each: Gpu, table: Prices) -> InstanceInfo:
    """The record of an instance with its prices; ``each`` is one of its accelerators as a program sees it."""
    from hwcalc.hardware.prices import Kind
    from hwcalc.profiles.gpus import visible_memory

    found = dict.fromkeys(table.of_instance(instance, kind) for kind in (Kind.ON_DEMAND, Kind.SPOT))
    priced = [
        InstancePrice(
            usd_per_hour=float(price.usd_per_hour),
            kind=price.kind.value,
            region=price.region,
            date=None if price.date is None else price.date.isoformat(),
            source=price.source,
        )
        for price in found
        if price is not None
    ]

    visible, fraction = visible_memory(each), instance.fraction
    made: dict[str, Any] = {
        "fraction": None if fraction is None else f"{fraction[0]}/{fraction[1]}",
        "visible_bytes_each": None if visible is None else visible.expected_bytes,
        "prices": tuple(priced),
    }
    return InstanceInfo(**made, **_same_fields(instance, InstanceInfo, made))


def policy_info(policy: Policy) -> PolicyInfo:
    """The record of a cache policy, with its options and what is published of its quality."""
    from hwcalc.policies.base import quality_of

    options = []
    for option in policy.options:
        if not option.name.startswith("_"):
            default = "" if option.default is None else str(option.default)
            default = default.lower() if isinstance(option.default, bool) else default
            options.append(PolicyOptionInfo(default=default, **_same_fields(option, PolicyOptionInfo, {"default"})))
    made: dict[str, Any] = {"role": policy.role.value, "options": tuple(options), "quality": quality_of(policy.name)}
    return PolicyInfo(**made, **_same_fields(policy, PolicyInfo, made))


def _same_fields(source: object, record: type[Record], but: Container[str]) -> dict[str, Any]:
    """The fields of a record that its source has by the same names."""
    return {name: getattr(source, name) for name in record.__struct_fields__ if name not in but}
