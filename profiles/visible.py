"""How much memory of an accelerator a program sees: a reading, or an estimate with the shares of ``hardware.yaml``."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwcalc.formulas.frozen import frozen
from hwcalc.profiles.compiled import TOP, record
from hwcalc.profiles.estimate import Estimate, parse_estimate, parse_share, parse_source, wrong
from hwcalc.profiles.yaml_file import YamlFile

if TYPE_CHECKING:
    from hwcalc.profiles.gpu_file import Gpu

__all__ = ["BUILT_IN", "Hardware", "MetalReading", "MetalStep", "VisibleMemory", "parse_hardware", "usable_mib", "visible_memory"]

BUILT_IN: Final = Path(__file__).with_name("hardware.yaml")
SCHEMA_VERSION: Final = 1

_MIB: Final = 1024**2
_SHARES: Final = ("of_tool", "of_tool_amd", "of_marketing")
_METAL: Final = ("readings", "older_rule", "newer_rule", "raise_with", "source")


@frozen
class VisibleMemory:
    """How many bytes of one accelerator a program sees, and how that is known. Plans use ``expected_bytes``."""

    low_bytes: int
    expected_bytes: int
    high_bytes: int
    basis: str
    source: str


@frozen
class MetalReading:
    """What Metal reported on a Mac with ``ram_gib`` of memory."""

    ram_gib: int
    usable_mib: int
    macos: str


@frozen
class MetalStep:
    """The share of the memory that Metal lets a GPU use on a Mac with at least ``from_gib``."""

    from_gib: int
    share: tuple[int, int]


@frozen
class Hardware:
    """The checked content of ``hardware.yaml``."""

    visible_share: dict[str, Estimate]
    readings: tuple[MetalReading, ...]
    older_rule: tuple[MetalStep, ...]
    newer_rule: tuple[MetalStep, ...]
    raise_with: str
    metal_source: str


def visible_memory(gpu: Gpu) -> VisibleMemory | None:
    """How much memory a program sees of this accelerator; ``None`` if no memory figure is known.

    The first known value counts: the reading of torch, Metal's limit (for a Mac), a share of what the vendor's tool reports, a
    share of what is sold. If only nvidia-smi's 24,564 MiB are known of a card, it counts as 0.994 of that.
    """
    if gpu.torch_total_mib is not None:
        seen = gpu.torch_total_mib_seen or (gpu.torch_total_mib, gpu.torch_total_mib)
        sizes = (min(seen[0], gpu.torch_total_mib), gpu.torch_total_mib, max(seen[1], gpu.torch_total_mib))
        return _in_bytes(sizes, f"read: {gpu.torch_total_basis or 'as torch sees it'}", gpu.source)
    if gpu.vendor == "apple":
        usable = usable_mib(gpu)
        if usable is None:
            return None
        basis = f"Metal's own limit for {gpu.memory_marketing_gb} GB of memory; {_hardware().raise_with} raises it"
        return _in_bytes((int(usable.low), int(usable.expected), int(usable.high)), basis, usable.source)
    if gpu.memory_total_mib is not None:
        share = _hardware().visible_share["of_tool_amd" if gpu.vendor == "amd" else "of_tool"]
        return _shared(gpu.memory_total_mib, share, "estimated from its tool's total")
    if gpu.memory_marketing_gb is not None:
        share = _hardware().visible_share["of_marketing"]
        return _shared(gpu.memory_marketing_gb * 1024, share, "estimated from the number on the box")
    return None


def usable_mib(gpu: Gpu) -> Estimate | None:
    """MiB of a Mac's memory that Metal lets the GPU use; ``None`` for other accelerators and for unknown memory.

    The older rule gives the low value, the newer rule the high one, and the newest reading of that size the expected one. For a
    size without a reading, the newer rule gives the expected value by its next smaller step and the high one by its next larger
    step: 96 GiB lies between 64 and 128.
    """
    if gpu.vendor != "apple" or gpu.memory_marketing_gb is None:
        return None
    facts, ram = _hardware(), gpu.memory_marketing_gb
    older = _part(ram, [step for step in facts.older_rule if step.from_gib <= ram][-1])
    newer = _part(ram, [step for step in facts.newer_rule if step.from_gib <= ram][-1])
    read = [reading for reading in facts.readings if reading.ram_gib == ram]
    if read:
        expected, source = read[-1].usable_mib, f"a reading (macOS {read[-1].macos}), {facts.metal_source}"
        high = max(newer, expected)
    else:
        later = [step for step in facts.newer_rule if step.from_gib > ram]
        between = later and ram not in {step.from_gib for step in facts.newer_rule}
        expected, high = newer, _part(ram, later[0]) if between else newer
        source = f"no reading of {ram} GB is known, so by the steps of the sizes around it: {facts.metal_source}"
    return Estimate(low=min(older, expected), expected=expected, high=high, source=source)


def _part(ram_gib: int, step: MetalStep) -> int:
    return ram_gib * 1024 * step.share[0] // step.share[1]


def _in_bytes(mib: tuple[int, int, int], basis: str, source: str) -> VisibleMemory:
    low, expected, high = (size * _MIB for size in mib)
    return VisibleMemory(low_bytes=low, expected_bytes=expected, high_bytes=high, basis=basis, source=source)


def _shared(mib: int, share: Estimate, basis: str) -> VisibleMemory:
    return _in_bytes((int(mib * share.low), int(mib * share.expected), int(mib * share.high)), basis, share.source)


@lru_cache(maxsize=1)
def _hardware() -> Hardware:
    return parse_hardware(YamlFile(path=BUILT_IN, data=record(TOP, "hardware") or {}, lines={}))


def parse_hardware(file: YamlFile) -> Hardware:
    """Check the content of ``hardware.yaml``. Raises :class:`~hwcalc.profiles.catalog.ProfileError` with path, line and key."""
    known = ("schema_version", "id", "recorded", "visible_share", "metal")
    _exactly(file, "", file.data, known)
    if file.data["schema_version"] != SCHEMA_VERSION or file.data["id"] != file.path.stem:
        raise wrong(file, "schema_version", f"must be {SCHEMA_VERSION}, and id the file's stem")
    shares, metal = file.data["visible_share"], file.data["metal"]
    _exactly(file, "visible_share", shares, _SHARES)
    _exactly(file, "metal", metal, _METAL)
    estimates = {name: parse_estimate(file, f"visible_share.{name}", shares[name]) for name in _SHARES}
    for name, estimate in estimates.items():
        if estimate.high > 1:
            raise wrong(file, f"visible_share.{name}", "must be shares of at most 1")
    if not isinstance(metal["raise_with"], str) or not metal["raise_with"].strip():
        raise wrong(file, "metal.raise_with", "must be a command")
    return Hardware(
        visible_share=estimates,
        readings=_readings(file, metal["readings"]),
        older_rule=_rule(file, "metal.older_rule", metal["older_rule"]),
        newer_rule=_rule(file, "metal.newer_rule", metal["newer_rule"]),
        raise_with=metal["raise_with"],
        metal_source=parse_source(file, "metal.source", metal),
    )


def _exactly(file: YamlFile, key: str, content: Any, names: tuple[str, ...]) -> None:
    if not isinstance(content, dict) or set(content) != set(names):
        odd = "" if not isinstance(content, dict) else next((str(name) for name in content if name not in names), "")
        raise wrong(file, ".".join(filter(None, (key, odd))), f"must have exactly {', '.join(names)}")


def _entries(file: YamlFile, key: str, content: Any, names: tuple[str, ...]) -> list[dict[str, Any]]:
    if not isinstance(content, list) or not content:
        raise wrong(file, key, "must be a list")
    for index, item in enumerate(content):
        _exactly(file, f"{key}.{index}", item, names)
    return content


def _readings(file: YamlFile, content: Any) -> tuple[MetalReading, ...]:
    out = []
    for index, item in enumerate(_entries(file, "metal.readings", content, ("ram_gib", "megabytes", "macos"))):
        key, ram, read = f"metal.readings.{index}", item["ram_gib"], item["megabytes"]
        if not isinstance(ram, int) or isinstance(ram, bool) or ram <= 0 or not isinstance(item["macos"], str):
            raise wrong(file, f"{key}.ram_gib", "must be a whole number of GiB, and macos words")
        if not isinstance(read, float) or not 0 < read * 10**6 <= ram * 1024**3:
            raise wrong(file, f"{key}.megabytes", "must be a number with a point, no more than the memory")
        out.append(MetalReading(ram_gib=ram, usable_mib=int(read * 10**6) // _MIB, macos=item["macos"]))
    return tuple(out)


def _rule(file: YamlFile, key: str, content: Any) -> tuple[MetalStep, ...]:
    steps = []
    for index, item in enumerate(_entries(file, key, content, ("from_gib", "share"))):
        start = item["from_gib"]
        if not isinstance(start, int) or isinstance(start, bool) or start < 0:
            raise wrong(file, f"{key}.{index}.from_gib", "must be a whole number of GiB")
        steps.append(MetalStep(from_gib=start, share=parse_share(file, f"{key}.{index}.share", item["share"])))
    starts = [step.from_gib for step in steps]
    if starts[0] != 0 or starts != sorted(set(starts)):
        raise wrong(file, key, "must begin at 0 and rise")
    return tuple(steps)
