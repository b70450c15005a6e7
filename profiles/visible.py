"""How much memory of an accelerator a program sees: a reading, or an estimate with the shares of ``hardware.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final

from hwcalc.formulas.record import Record
from hwcalc.profiles.compiled import TOP, record
from hwcalc.profiles.estimate import Estimate, estimate_of

if TYPE_CHECKING:
    from hwcalc.profiles.gpu_file import Gpu

__all__ = ["Hardware", "MetalReading", "MetalStep", "VisibleMemory", "hardware", "usable_mib", "visible_memory"]

_MIB: Final = 1024**2
_VISIBLE: Final = "_visible"


class VisibleMemory(Record):
    """How many bytes of one accelerator a program sees, and how that is known. Plans use ``expected_bytes``."""

    low_bytes: int
    expected_bytes: int
    high_bytes: int
    basis: str
    source: str


class MetalReading(Record):
    """What Metal reported on a Mac with ``ram_gib`` of memory."""

    ram_gib: int
    usable_mib: int
    macos: str


class MetalStep(Record):
    """The share of the memory that Metal lets a GPU use on a Mac with at least ``from_gib``."""

    from_gib: int
    share: tuple[int, int]


class Hardware(Record):
    """The content of ``hardware.yaml``."""

    visible_share: dict[str, Estimate]
    metal: Mapping[str, Any]
    """What the file says of Macs."""

    @cached_property
    def readings(self) -> tuple[MetalReading, ...]:
        """What was read on Macs."""
        return tuple(
            MetalReading(ram_gib=entry["ram_gib"], usable_mib=int(entry["megabytes"] * 10**6) // _MIB, macos=entry["macos"])
            for entry in self.metal["readings"]
        )

    @cached_property
    def older_rule(self) -> tuple[MetalStep, ...]:
        """The steps of older systems."""
        return tuple(map(_step, self.metal["older_rule"]))

    @cached_property
    def newer_rule(self) -> tuple[MetalStep, ...]:
        """The steps of newer systems."""
        return tuple(map(_step, self.metal["newer_rule"]))


def visible_memory(gpu: Gpu) -> VisibleMemory | None:
    """How much memory a program sees of this accelerator; ``None`` if no memory figure is known.

    The first known value counts: the reading of torch, Metal's limit (for a Mac), a share of what the vendor's tool reports, a
    share of what is sold. If only nvidia-smi's 24,564 MiB are known of a card, it counts as 0.994 of that.
    """
    # Kept beside the accelerator: a plan asks for it several times.
    known = vars(gpu)
    if _VISIBLE not in known:
        known[_VISIBLE] = _visible(gpu)
    found: VisibleMemory | None = known[_VISIBLE]
    return found


def _visible(gpu: Gpu) -> VisibleMemory | None:
    if gpu.torch_total_mib is not None:
        seen = gpu.torch_total_mib_seen or (gpu.torch_total_mib, gpu.torch_total_mib)
        sizes = (min(seen[0], gpu.torch_total_mib), gpu.torch_total_mib, max(seen[1], gpu.torch_total_mib))
        return _in_bytes(sizes, f"read: {gpu.torch_total_basis or 'as torch sees it'}", gpu.source)
    if gpu.vendor == "apple":
        usable = usable_mib(gpu)
        if usable is None:
            return None
        basis = f"Metal's own limit for {gpu.memory_marketing_gb} GB of memory; {hardware().metal['raise_with']} raises it"
        return _in_bytes((int(usable.low), int(usable.expected), int(usable.high)), basis, usable.source)
    if gpu.memory_total_mib is not None:
        share = hardware().visible_share["of_tool_amd" if gpu.vendor == "amd" else "of_tool"]
        return _shared(gpu.memory_total_mib, share, "estimated from its tool's total")
    if gpu.memory_marketing_gb is not None:
        share = hardware().visible_share["of_marketing"]
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
    facts, ram = hardware(), gpu.memory_marketing_gb
    older = _part(ram, [step for step in facts.older_rule if step.from_gib <= ram][-1])
    newer = _part(ram, [step for step in facts.newer_rule if step.from_gib <= ram][-1])
    read = [reading for reading in facts.readings if reading.ram_gib == ram]
    if read:
        expected, source = read[-1].usable_mib, f"a reading (macOS {read[-1].macos}), {facts.metal['source']}"
        high = max(newer, expected)
    else:
        later = [step for step in facts.newer_rule if step.from_gib > ram]
        between = later and ram not in {step.from_gib for step in facts.newer_rule}
        expected, high = newer, _part(ram, later[0]) if between else newer
        source = f"no reading of {ram} GB is known, so by the steps of the sizes around it: {facts.metal['source']}"
    return Estimate(low=min(older, expected), expected=expected, high=high, source=source)


def _part(ram_gib: int, step: MetalStep) -> int:
    return ram_gib * 1024 * step.share[0] // step.share[1]


def _in_bytes(mib: tuple[int, int, int], basis: str, source: str) -> VisibleMemory:
    low, expected, high = mib
    return VisibleMemory(low_bytes=low * _MIB, expected_bytes=expected * _MIB, high_bytes=high * _MIB, basis=basis, source=source)


def _shared(mib: int, share: Estimate, basis: str) -> VisibleMemory:
    return _in_bytes((int(mib * share.low), int(mib * share.expected), int(mib * share.high)), basis, share.source)


@lru_cache(maxsize=1)
def hardware() -> Hardware:
    """The facts of ``hardware.yaml``."""
    data = record(TOP, "hardware")
    shares = {name: estimate_of(share) for name, share in data["visible_share"].items()}
    return Hardware(visible_share=shares, metal=data["metal"])


def _step(entry: Mapping[str, Any]) -> MetalStep:
    part, _, whole = entry["share"].partition("/")
    return MetalStep(from_gib=entry["from_gib"], share=(int(part), int(whole)))
