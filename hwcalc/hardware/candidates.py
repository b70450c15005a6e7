"""The hardware that a recommendation chooses from: single accelerators, or cloud instances with several of them.

The next larger hardware: an accelerator of the same maker with more memory, an instance of the same cloud with more accelerators.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Final

from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.hardware.profiles import profile_errors
from hwcalc.text import shown
from hwcalc.units import GIB

if TYPE_CHECKING:
    from hwcalc.model import Note
    from hwcalc.profiles.hardware_file import Gpu, Instance

EVERY: Final = "all"


class Availability(StrEnum):
    """How people get at an accelerator: clouds rent it, makers of cards and servers sell it, or few people can get it at all."""

    RENT = "rent"
    BUY = "buy"
    RARE = "rare"


class Candidate(Record):
    """One kind of hardware. ``name`` is the value for ``--gpu``, ``instance`` the value for ``--instance``.

    ``count`` is the number of accelerators of an instance.
    """

    name: str
    gpu: Gpu
    instance: str | None = None
    count: int | None = None

    @property
    def availability(self) -> Availability:
        """Its availability, by the instances of clouds and the list of uncommon accelerators.

        What no cloud rents of a maker of which clouds rent something is sold in servers.
        """
        from hwcalc.profiles.gpus import UNCOMMON

        if self.instance is not None:
            return Availability.RENT
        base, rented = self.gpu.slice_of or self.gpu.id, _rented()
        if base in UNCOMMON:
            return Availability.RARE
        if base in rented:
            return Availability.RENT
        sold = self.gpu.category in _SOLD or self.gpu.vendor in rented.values()
        return Availability.BUY if sold else Availability.RARE


_SOLD: Final = ("consumer", "workstation", "laptop", "unified", "host")
"""Categories of what shops sell, whoever makes it."""


@lru_cache(maxsize=1)
def _rented() -> Mapping[str, str]:
    """The accelerators of the clouds' instances, with their makers."""
    from hwcalc.profiles.gpus import built_in_gpus
    from hwcalc.profiles.instances import built_in_instances

    sold = built_in_gpus()
    rented = {instance.accelerator for instance in built_in_instances().values() if not instance.is_bought}
    return {name: sold[name].vendor for name in rented if name in sold}


def gpu_candidates(
    names: Sequence[str], *, vendors: Sequence[str], categories: Sequence[str], notes: list[Note]
) -> tuple[Candidate, ...]:
    """The accelerators of these names, or all known ones in every size of memory, filtered by vendor and category.

    A broken file of the user's own is skipped with a note, unless ``names`` contains it. Raises
    :class:`~hwcalc.errors.UsageError` for an unknown name, and :class:`~hwcalc.errors.ConfigError` for a broken file.
    """
    from hwcalc.hardware.named import LOCAL, MEMORY_OPTION, load_gpu
    from hwcalc.hardware.profiles import known_gpus, leaving_out
    from hwcalc.profiles.gpus import in_every_size

    every: list[Candidate] = []
    for name in names:
        said: list[Note] = []
        gpu = load_gpu(name, said)
        notes += (note for note in said if note.code == MEMORY_OPTION)
        # This machine's accelerator stays local: no profile may have its id.
        every.append(Candidate(name=LOCAL if name.strip().lower() == LOCAL else gpu.id, gpu=gpu))
    for name, gpu in () if names else known_gpus(notes):
        if len(gpu.memory_options_gb) < 2:
            every.append(Candidate(name=name, gpu=gpu))
            continue
        with leaving_out(notes):
            sizes = zip(gpu.memory_options_gb, in_every_size(gpu), strict=True)
            every += [Candidate(name=f"{name}-{size}gb", gpu=sold) for size, sold in sizes]
    return _chosen(tuple({one.gpu.id: one for one in every}.values()), vendors, categories)


def instance_candidates(
    cloud: str, names: Sequence[str], *, vendors: Sequence[str], categories: Sequence[str], notes: list[Note]
) -> tuple[Candidate, ...]:
    """The instances of one cloud, of all clouds, or whose names begin so (``p5``), filtered by accelerator (``names``), vendor and category.

    Errors and broken files are treated as in :func:`gpu_candidates`.
    """
    from hwcalc.hardware.named import instance_device, instance_named, load_gpu
    from hwcalc.hardware.profiles import leaving_out
    from hwcalc.profiles.instances import list_instances

    known = list_instances()
    # A cloud, or all; else the instances whose name begins with the word, first those in which the word ends there.
    word, clouds = cloud.strip().lower(), sorted({name.partition("/")[0] for name in known})
    wanted = [name for name in known if word in (EVERY, name.partition("/")[0])]
    if not wanted and word:
        begun = [name for name in known if (name if "/" in word else name.partition("/")[2]).startswith(word)]
        wanted = [name for name in begun if not name[name.index(word) + len(word) :][:1].isalnum()] or begun
    if not wanted and word != EVERY:
        raise UsageError(
            f"--instances {shown(cloud, 40)} is no known cloud, nor the beginning of an instance's name.",
            hint=f"Known: {EVERY}, {', '.join(clouds)}. See: kvplan instances",
        )
    allowed = {load_gpu(name, []).id for name in names}
    candidates = []
    for name in wanted:
        with leaving_out(notes):
            instance = instance_named(name)
            if not allowed or instance.accelerator in allowed:
                device = instance_device(instance)
                candidates.append(Candidate(name=name, gpu=device, instance=name, count=instance.count))
    return _chosen(tuple(candidates), vendors, categories)


def _chosen(every: tuple[Candidate, ...], vendors: Sequence[str], categories: Sequence[str]) -> tuple[Candidate, ...]:
    """The candidates that pass both filters. Raises :class:`UsageError` if nothing passes one of them."""
    for what, words, attribute in (("vendor", vendors, "vendor"), ("category", categories, "category")):
        known = {str(getattr(one.gpu, attribute)).lower() for one in every if getattr(one.gpu, attribute)}
        for word in words:
            if word.strip().lower() not in known:
                hint = f"There are: {', '.join(sorted(known))}."
                raise UsageError(f"--{what} {shown(word, 40)}: there is none here.", hint=hint)
    makers, kinds = ({word.strip().lower() for word in names} for names in (vendors, categories))
    left = tuple(one for one in every if not makers or one.gpu.vendor.lower() in makers)
    left = tuple(one for one in left if not kinds or (one.gpu.category or "").lower() in kinds)
    if not left:
        raise UsageError("No hardware is all of what is asked for.", hint="See: kvplan gpus, kvplan instances")
    return left


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

    for sold in islice((sold for size, sold in _larger(gpu) if size * GIB >= needed_bytes), most):
        with profile_errors():
            yield find_gpu(sold)


def fastest_gpus(most: int) -> Iterator[Gpu]:
    """Up to ``most`` accelerators that people can get, those whose node has the most bandwidth first."""
    from hwcalc.profiles.gpus import UNCOMMON, built_in_gpus, find_gpu

    common = [gpu for name, gpu in built_in_gpus().items() if name not in UNCOMMON]
    for gpu in sorted(common, key=lambda gpu: -(gpu.memory_bandwidth_gbps or 0) * gpu.node)[:most]:
        yield find_gpu(gpu.id)


def _larger(gpu: Gpu) -> tuple[tuple[int, str], ...]:
    """Size and name of the built-in accelerators that are larger, the nearest ones first, one of each size."""
    from hwcalc.profiles.gpus import UNCOMMON, built_in_gpus

    left_out = frozenset() if gpu.id in UNCOMMON else UNCOMMON
    own, rate = gpu.memory_marketing_gb, gpu.tflops_dense.get("bf16")
    if own is None:
        return ()
    steps = _STEPS.get(gpu.category or "", (gpu.category,))
    ranked: dict[tuple[int, int], tuple[tuple[bool, bool, bool, bool, int], str]] = {}
    for name, other in built_in_gpus().items():
        if other.vendor != gpu.vendor or other.category not in steps or name in left_out:
            continue
        if rate is not None and (other.tflops_dense.get("bf16") or -1) < rate:
            continue
        links = " ".join(str(other.interconnect.get(end) or "") for end in ("kind", "host"))
        years = (other.released or 0) - (gpu.released or 0)
        other_link = str(gpu.interconnect.get("kind")) not in links
        missed = not gpu.id.startswith(name), other.architecture != gpu.architecture, years < 0, other_link, abs(years)
        options = other.memory_options_gb if len(other.memory_options_gb) > 1 else ()
        for size in options or (other.memory_marketing_gb or 0,):
            if size > own:
                place, sold = (steps.index(other.category), size), (missed, f"{name}-{size}gb" if options else name)
                ranked[place] = min(ranked.get(place, sold), sold)
    return tuple((size, sold) for (_, size), (_, sold) in sorted(ranked.items()))


def next_instance(name: str) -> tuple[Instance, Instance | None]:
    """The instance of this name, and the next larger one of its cloud with the same accelerator; ``None`` if there is none."""
    from hwcalc.hardware.named import instance_named
    from hwcalc.profiles.instances import built_in_instances, find_instance

    own = instance_named(name)
    if own.fraction is not None:
        return own, None
    others = [
        # The parts of a name, so that g5.4xlarge comes before g5.12xlarge.
        (other.count, [(int(part or 0), word) for part, word in re.findall(r"([0-9]+)|([^0-9]+)", name)], name)
        for name, other in built_in_instances().items()
        if (other.cloud, other.accelerator, other.fraction) == (own.cloud, own.accelerator, None) and other.count > own.count
    ]
    with suppress(LookupError):
        return own, find_instance(min(others)[2]) if others else None
    return own, None


def instances_with(cloud: str, accelerator: str, most: int) -> tuple[str, ...]:
    """The names of a cloud's instances with up to so many of this accelerator, those with most of them first."""
    from hwcalc.profiles.instances import built_in_instances

    alike = [
        (-instance.count, name)
        for name, instance in built_in_instances().items()
        if (instance.cloud, instance.accelerator, instance.fraction) == (cloud, accelerator, None) and instance.count <= most
    ]
    return tuple(name for _, name in sorted(alike))
