"""The next larger hardware: an accelerator of the same maker with more memory, an instance of the same cloud with more accelerators."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final

from hwcalc.hardware.profiles import profile_errors
from hwcalc.patterns import pattern
from hwcalc.units import GIB

if TYPE_CHECKING:
    from hwcalc.profiles.gpus import Gpu
    from hwcalc.profiles.instances import Instance

__all__ = ["larger_gpus", "next_instance"]

_STEPS: Final[Mapping[str, tuple[str, ...]]] = {
    "consumer": ("consumer", "workstation", "datacenter"),
    "laptop": ("laptop",),
    "workstation": ("workstation", "datacenter"),
}
"""Where to look for more memory, the nearest first. All other categories stay among themselves."""
_RATE: Final = pattern(r"\bbf16: ([0-9.]+)")


def larger_gpus(gpu: Gpu, needed_bytes: int, most: int) -> Iterator[Gpu]:
    """Up to ``most`` accelerators with more memory than ``gpu``, and with ``needed_bytes`` of it: the nearest ones first, one of each size.

    None is slower, and none is of those that few people can get, unless ``gpu`` is one itself. Of those of the same size, the first is
    the one of which a buyer would miss least: the chip, the architecture, one that is not older, the link, the date.
    """
    from hwcalc.profiles.examples import UNCOMMON
    from hwcalc.profiles.glance import glance
    from hwcalc.profiles.gpus import BUILT_IN, find_gpu

    left_out = frozenset() if gpu.id in UNCOMMON else UNCOMMON
    own = gpu.memory_marketing_gb
    if own is None:
        return
    steps = _STEPS.get(gpu.category or "", (gpu.category,))
    ranked: dict[tuple[int, int], tuple[tuple[bool, bool, bool, bool, int], str]] = {}
    for name, facts in glance(BUILT_IN).items():
        if facts.get("vendor") != gpu.vendor or facts.get("category") not in steps or name in left_out or _slower(gpu, facts):
            continue
        options = re.findall(r"[0-9]+", facts.get("memory_options_gb", ""))
        for size in map(int, options if len(options) > 1 else re.findall(r"^[0-9]+$", facts.get("memory_marketing_gb", ""))):
            if size > own and size * GIB >= needed_bytes:
                sold = f"{name}-{size}gb" if len(options) > 1 else name
                place, one = (steps.index(facts["category"]), size), ((not gpu.id.startswith(name), *_missed(gpu, facts)), sold)
                ranked[place] = min(ranked.get(place, one), one)
    for _, (_, sold) in islice(sorted(ranked.items()), most):
        with profile_errors():
            yield find_gpu(sold)


def _slower(gpu: Gpu, facts: Mapping[str, str]) -> bool:
    rate, own = _RATE.search(facts.get("tflops_dense", "")), gpu.tflops_dense.get("bf16")
    return own is not None and (rate is None or float(rate[1]) < own)


def _missed(gpu: Gpu, facts: Mapping[str, str]) -> tuple[bool, bool, bool, int]:
    link = str(gpu.interconnect.get("kind"))
    years = int(facts.get("released", "0")) - (gpu.released or 0)
    return facts.get("architecture") != gpu.architecture, years < 0, link not in facts.get("interconnect", ""), abs(years)


def next_instance(name: str) -> tuple[Instance, Instance | None]:
    """The instance of this name, and the next larger one of its cloud with the same accelerator; ``None`` if there is none."""
    from hwcalc.hardware.named import instance_named
    from hwcalc.profiles.glance import glance
    from hwcalc.profiles.instances import BUILT_IN, find_instance

    own = instance_named(name)
    if own.fraction is not None:
        return own, None
    others = [
        (int(facts["count"]), _spoken(stem), stem)
        for stem, facts in glance(BUILT_IN / own.cloud).items()
        if facts.get("accelerator") == own.accelerator and "fraction" not in facts and int(facts.get("count", "0")) > own.count
    ]
    with suppress(LookupError):
        return own, find_instance(f"{own.cloud}/{min(others)[2]}") if others else None
    return own, None


def _spoken(name: str) -> list[tuple[int, str]]:
    """The parts of a name, so that ``g5.4xlarge`` comes before ``g5.12xlarge``."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.findall(r"[0-9]+|[^0-9]+", name)]
