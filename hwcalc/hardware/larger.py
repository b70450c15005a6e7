"""The next larger hardware: an accelerator of the same maker with more memory, an instance of the same cloud with more accelerators."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final

from hwcalc.hardware.profiles import profile_errors
from hwcalc.units import GIB

if TYPE_CHECKING:
    from hwcalc.profiles.gpus import Gpu
    from hwcalc.profiles.instances import Instance
    from hwcalc.profiles.sold import Sold

__all__ = ["larger_gpus", "next_instance"]

_STEPS: Final[Mapping[str, tuple[str, ...]]] = {
    "consumer": ("consumer", "workstation", "datacenter"),
    "laptop": ("laptop",),
    "workstation": ("workstation", "datacenter"),
}
"""Where to look for more memory, the nearest first. All other categories stay among themselves."""


def larger_gpus(gpu: Gpu, needed_bytes: int, most: int) -> Iterator[Gpu]:
    """Up to ``most`` accelerators with more memory than ``gpu``, and with ``needed_bytes`` of it: the nearest ones first, one of each size.

    None is slower, and none is of those that few people can get, unless ``gpu`` is one itself. Of those of the same size, the first is
    the one of which a buyer would miss least: the chip, the architecture, one that is not older, the link, the date.
    """
    from hwcalc.profiles.gpus import find_gpu

    # Kept beside the accelerator: advice asks again and again.
    known: tuple[tuple[int, str], ...] | None = vars(gpu).get("_larger")
    if known is None:
        known = vars(gpu)["_larger"] = _larger(gpu)
    for sold in islice((sold for size, sold in known if size * GIB >= needed_bytes), most):
        with profile_errors():
            yield find_gpu(sold)


def _larger(gpu: Gpu) -> tuple[tuple[int, str], ...]:
    """Size and name of the built-in accelerators that are larger, the nearest ones first, one of each size."""
    from hwcalc.profiles.examples import UNCOMMON
    from hwcalc.profiles.sold import sold_gpus

    left_out = frozenset() if gpu.id in UNCOMMON else UNCOMMON
    own = gpu.memory_marketing_gb
    if own is None:
        return ()
    steps = _STEPS.get(gpu.category or "", (gpu.category,))
    ranked: dict[tuple[int, int], tuple[tuple[bool, bool, bool, bool, int], str]] = {}
    for name, other in sold_gpus().items():
        if other.vendor != gpu.vendor or other.category not in steps or name in left_out or _slower(gpu, other):
            continue
        options = other.memory_options_gb if len(other.memory_options_gb) > 1 else ()
        for size in options or (other.memory_marketing_gb or 0,):
            if size > own:
                sold = f"{name}-{size}gb" if options else name
                place, one = (steps.index(other.category), size), ((not gpu.id.startswith(name), *_missed(gpu, other)), sold)
                ranked[place] = min(ranked.get(place, one), one)
    return tuple((size, sold) for (_, size), (_, sold) in sorted(ranked.items()))


def _slower(gpu: Gpu, other: Sold) -> bool:
    own = gpu.tflops_dense.get("bf16")
    return own is not None and (other.bf16_tflops is None or other.bf16_tflops < own)


def _missed(gpu: Gpu, other: Sold) -> tuple[bool, bool, bool, int]:
    link, links = str(gpu.interconnect.get("kind")), f"{other.link or ''} {other.host_link or ''}"
    years = (other.released or 0) - (gpu.released or 0)
    return other.architecture != gpu.architecture, years < 0, link not in links, abs(years)


def next_instance(name: str) -> tuple[Instance, Instance | None]:
    """The instance of this name, and the next larger one of its cloud with the same accelerator; ``None`` if there is none."""
    from hwcalc.hardware.named import instance_named
    from hwcalc.profiles.instances import built_in_instances, find_instance

    own = instance_named(name)
    if own.fraction is not None:
        return own, None
    others = [
        (other.count, _spoken(name), name)
        for name, other in built_in_instances().items()
        if (other.cloud, other.accelerator, other.fraction) == (own.cloud, own.accelerator, None) and other.count > own.count
    ]
    with suppress(LookupError):
        return own, find_instance(min(others)[2]) if others else None
    return own, None


def _spoken(name: str) -> list[tuple[int, str]]:
    """The parts of a name, so that ``g5.4xlarge`` comes before ``g5.12xlarge``."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.findall(r"[0-9]+|[^0-9]+", name)]
