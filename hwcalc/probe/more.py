"""Further measurements: a live model, the largest batch or sequence, and the bandwidth of the cache."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hwcalc.engines.deployment import Occupancy
from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.model import Note
from hwcalc.probe.bandwidth import BandwidthResult
from hwcalc.probe.limits import MaxResult
from hwcalc.probe.live import DIFFERS, NOT_RUN, LiveResult
from hwcalc.probe.result import PolicyRun
from hwcalc.text import shown
from hwcalc.units import MIB, human_bytes

if TYPE_CHECKING:
    from hwcalc.probe.devices import Device
    from hwcalc.probe.run import ProbeOptions
    from hwcalc.profiles.hardware_file import Gpu

SEARCHES = ("batch", "seq")


class MoreOptions(Record):
    """Which further measurements to make; ``search`` is ``batch`` or ``seq``."""

    live: bool = False
    search: str | None = None
    bandwidth: bool = False
    policy: bool = False

    @property
    def any(self) -> bool:
        """Whether there is anything to measure."""
        return self.live or self.bandwidth or self.policy or self.search is not None


class More(Record):
    """Their results; null was not asked for. ``notes`` say what was kept where."""

    live: LiveResult | None
    maximum: MaxResult | None
    bandwidth: BandwidthResult | None
    notes: tuple[Note, ...]
    policy: PolicyRun | None = None

    @property
    def agrees(self) -> bool:
        """Whether every measurement that was requested agrees. A live model that could not be run does not count as agreement."""
        same = self.live is None or self.live.status not in {DIFFERS, NOT_RUN}
        return same and (self.maximum is None or self.maximum.agrees) and (self.policy is None or self.policy.agrees)


def check_alone(chosen: MoreOptions) -> None:
    """Raise :class:`~hwcalc.errors.UsageError` if one of several processes is asked for measurements that need a single process."""
    if chosen.search is not None and chosen.search not in SEARCHES:
        raise UsageError(f"--find-max {shown(chosen.search, 40)} is not known.", hint=f"Allowed: {', '.join(SEARCHES)}.")
    if chosen.any and os.environ.get("WORLD_SIZE", "1") != "1":
        raise UsageError(
            "--live, --find-max, --bandwidth and --policy are measured by one process.", hint="Start it without torchrun."
        )


def measure_more(opened: Occupancy, options: ProbeOptions, chosen: MoreOptions) -> More:
    """Make the chosen measurements one after the other on the device of the probe. Each frees its memory."""
    from hwcalc.probe.devices import open_device

    device = open_device(options.device)
    notes: list[Note] = []
    live = maximum = bandwidth = policy = None
    if chosen.live:
        from hwcalc.probe.live import run_live

        live = run_live(opened.model, device.label)
    if chosen.search is not None:
        from hwcalc.probe.limits import find_max

        available, reserve = _limits(device, options)
        maximum = find_max(opened, device, chosen.search, reserve_bytes=reserve, available_bytes=available)
    if chosen.bandwidth:
        bandwidth = _bandwidth(opened, device, options, notes)
    if chosen.policy:
        policy = _policy(opened, device, options)
    return More(live=live, maximum=maximum, bandwidth=bandwidth, policy=policy, notes=tuple(notes))


def _policy(opened: Occupancy, device: Device, options: ProbeOptions) -> PolicyRun:
    """Run the policy in what is free beside the reserve, or in as much as the user allows."""
    from hwcalc.probe.devices import default_reserve
    from hwcalc.probe.policy_run import run_policy

    available, reserve = _limits(device, options)
    free = device.free_bytes() if available is None else available
    reserve = default_reserve(device) if reserve is None else reserve
    usable = None if free is None else max(0, free - reserve)
    return run_policy(opened, device, usable_bytes=usable, limited=available is not None, scale=options.scale)


def _limits(device: Device, options: ProbeOptions) -> tuple[int | None, int | None]:
    """The available bytes and the reserve of a search. With ``max_bytes``, the reserve is already subtracted."""
    if options.max_bytes is None:
        return None, options.reserve_bytes
    from hwcalc.probe.devices import default_reserve

    reserve = default_reserve(device) if options.reserve_bytes is None else options.reserve_bytes
    free = device.free_bytes()
    return options.max_bytes if free is None else min(options.max_bytes, max(0, free - reserve)), 0


def _bandwidth(opened: Occupancy, device: Device, options: ProbeOptions, notes: list[Note]) -> BandwidthResult:
    """Measure the bandwidth, and save it for the accelerator that was measured, even if the plan is for another."""
    from msgspec.structs import replace

    from hwcalc.probe.bandwidth import LEAST_KEPT_BYTES, measure_bandwidth, save_bandwidth

    gpu = None if device.kind == "cpu" else accelerator_of(device, notes)
    result = measure_bandwidth(opened, device, gpu=gpu, most_bytes=options.max_bytes, reserve_bytes=options.reserve_bytes)
    if gpu is None:
        notes.append(Note(code="calibration", message="Bandwidth of a CPU: no plan is of one, so that it is not kept."))
        return replace(result, gpu=None, peak_gbps=None)
    if result.read.bytes < LEAST_KEPT_BYTES:
        message = (
            f"Not kept: of {human_bytes(result.read.bytes)} the chip's own cache may hold a good part. "
            f"Read {human_bytes(LEAST_KEPT_BYTES)} or more: a larger --seq or --batch."
        )
        notes.append(Note(code="calibration", message=message))
        return result
    notes.append(Note(code="calibration", message=f"Kept in {save_bandwidth(result)}: plans of {gpu.id} use it."))
    return result


def accelerator_of(device: Device, notes: list[Note]) -> Gpu:
    """The profile of this device. It is looked up by the device's own properties, as torch numbers devices in an order of its own."""
    if device.kind != "cuda":
        from hwcalc.hardware.named import LOCAL, load_gpu

        return load_gpu(LOCAL, notes)
    from hwcalc.hardware.local import FoundGpu, gpu_of

    hip = getattr(device.torch.version, "hip", None)
    size = None if device.total_bytes is None else device.total_bytes // MIB
    found = FoundGpu(name=device.name, vendor="amd" if hip else "nvidia", through="torch", memory_mib=size, by_torch=True)
    return gpu_of(found, notes)
