"""The next larger hardware: an accelerator of the same maker with more memory, an instance of the same cloud with more accelerators."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Final

from hwcalc.hardware.profiles import profile_errors
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
_RATE: Final = re.compile(r"\bbf16: ([0-9.]+)")


def larger_gpus(gpu: Gpu, needed_bytes: int, most: int) -> Iterator[Gpu]:
    """Up to ``most`` accelerators with more memory than ``gpu``, and with ``needed_bytes`` of it: the nearest ones first, one of each size.

    None is slower, and none is of those that few people can get, unless ``gpu`` is one itself. Of those of the same size, the first is
    the one of which a buyer would miss least: the chip, the architecture, one that is not older, the link, the date.
    """
    from hwcalc.profiles.gpus import find_gpu

    if gpu.memory_marketing_gb is None:
        return
    larger = _larger(
        gpu.id,
        gpu.vendor,
        gpu.category,
        gpu.memory_marketing_gb,
        gpu.architecture,
        gpu.released or 0,
        str(gpu.interconnect.get("kind")),
        gpu.tflops_dense.get("bf16"),
    )
    enough = (sold for size, sold in larger if size * GIB >= needed_bytes)
    for sold in islice(enough, most):
        with profile_errors():
            yield find_gpu(sold)


@lru_cache(maxsize=256)
def _larger(
    gpu_id: str,
    vendor: str,
    category: str | None,
    memory_gb: int,
    architecture: str | None,
    released: int,
    link: str,
    rate: float | None,
) -> tuple[tuple[int, str], ...]:
    """The built-in accelerators that are larger than the one of which this is known: of each size one, with that size, the nearest first."""
    from hwcalc.profiles.examples import UNCOMMON
    from hwcalc.profiles.glance import glance
    from hwcalc.profiles.gpus import BUILT_IN

    left_out = frozenset() if gpu_id in UNCOMMON else UNCOMMON
    steps = _STEPS.get(category or "", (category,))
    ranked: dict[tuple[int, int], tuple[tuple[bool, bool, bool, bool, int], str]] = {}
    for name, facts in glance(BUILT_IN).items():
        if facts.get("vendor") != vendor or facts.get("category") not in steps or name in left_out or _slower(rate, facts):
            continue
        options = re.findall(r"[0-9]+", facts.get("memory_options_gb", ""))
        for size in map(int, options if len(options) > 1 else re.findall(r"^[0-9]+$", facts.get("memory_marketing_gb", ""))):
            if size > memory_gb:
                sold = f"{name}-{size}gb" if len(options) > 1 else name
                years = int(facts.get("released", "0")) - released
                missed = (
                    not gpu_id.startswith(name),
                    facts.get("architecture") != architecture,
                    years < 0,
                    link not in facts.get("interconnect", ""),
                    abs(years),
                )
                place, one = (steps.index(facts["category"]), size), (missed, sold)
                ranked[place] = min(ranked.get(place, one), one)
    return tuple((size, sold) for (_, size), (_, sold) in sorted(ranked.items()))


def _slower(own: float | None, facts: Mapping[str, str]) -> bool:
    rate = _RATE.search(facts.get("tflops_dense", ""))
    return own is not None and (rate is None or float(rate[1]) < own)


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
