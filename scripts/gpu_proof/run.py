"""What a step is given: torch, the device, the allocator's settings, and the time that it may take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from time import monotonic
from typing import Any, Final

from hwcalc.errors import UnsupportedError
from hwcalc.formulas.record import Record
from hwcalc.probe.allocator import AllocatorSettings, environment_settings
from hwcalc.probe.devices import Device, default_reserve, open_device
from scripts.gpu_proof.cases import TooLargeError
from scripts.gpu_proof.record import CaseRecord, failed, skipped

Case = tuple[str, Callable[[], CaseRecord]]
"""What a case is called, and what measures it."""

_MOST_REASONS: Final = 3
"""After so many broken cases in a row a CUDA context is taken to be lost."""


class Run(Record):
    """``load`` imports torch. ``most_bytes`` bounds what is allocated; ``until`` is when no further case may begin."""

    load: Callable[[], Any]
    until: float
    environment: Mapping[str, str]
    device_name: str = "cuda"
    most_bytes: int | None = None
    clock: Callable[[], float] = monotonic

    @property
    def settings(self) -> AllocatorSettings:
        """The allocator's settings of this process."""
        return environment_settings(self.environment)

    def opened(self) -> Device:
        """The device, warmed up."""
        device = open_device(self.device_name, torch=self.load())
        device.warm_up()
        return device

    def usable_bytes(self, device: Device) -> int:
        """The bytes of the device that may be allocated: what is free, less the reserve that the probe leaves."""
        free = device.free_bytes() or 0
        usable = max(0, free - default_reserve(device))
        return usable if self.most_bytes is None else min(usable, self.most_bytes)


def cases(run: Run, todo: Iterable[Case]) -> Iterator[CaseRecord]:
    """Run cases until the time is up. An error of one case is its record, and the others go on.

    A case that kvplan refuses to plan has no prediction that could be wrong: it is skipped, with the reason.
    """
    broken = 0
    for name, measure in todo:
        if run.clock() >= run.until:
            yield skipped(name, "no time was left")
        elif broken >= _MOST_REASONS:
            yield skipped(name, "the cases before it failed")
        else:
            try:
                yield measure()
                broken = 0
            except TooLargeError as reason:
                yield skipped(name, reason.message)
            except UnsupportedError as reason:
                yield skipped(name, f"kvplan does not plan it: {reason.message}")
            except Exception as error:
                broken += 1
                yield failed(name, error)
