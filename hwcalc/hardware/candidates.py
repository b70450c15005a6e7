"""The hardware that a recommendation chooses from: accelerators by themselves, or cloud instances with a number of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from hwcalc.errors import UsageError
from hwcalc.formulas.frozen import frozen

if TYPE_CHECKING:
    from hwcalc.model import Note
    from hwcalc.profiles.gpus import Gpu

__all__ = ["EVERY", "Candidate", "gpu_candidates", "instance_candidates"]

EVERY: Final = "all"


@frozen
class Candidate:
    """One kind of hardware. ``name`` is what ``--gpu`` takes, ``instance`` what ``--instance`` takes; ``count`` is an instance's.

    ``alone`` is a whole machine, such as a laptop, that is not joined to others unless someone asks for it.
    """

    name: str
    gpu: Gpu
    instance: str | None = None
    count: int | None = None
    alone: bool = False


def gpu_candidates(
    names: Sequence[str] = (), *, vendors: Sequence[str] = (), categories: Sequence[str] = (), notes: list[Note]
) -> tuple[Candidate, ...]:
    """All known accelerators, each size of memory that they are sold with, or those named; of these makers and categories.

    A broken file of the user's own that nobody named is left out, and named in ``notes``.

    Raises :class:`~hwcalc.errors.UsageError` for a name that nothing has, and :class:`~hwcalc.errors.ConfigError` for a broken file.
    """
    every = {one.gpu.id: one for one in (map(_named, names) if names else _known(notes))}
    return _chosen(tuple(every.values()), vendors, categories)


def instance_candidates(
    cloud: str = EVERY,
    names: Sequence[str] = (),
    *,
    vendors: Sequence[str] = (),
    categories: Sequence[str] = (),
    notes: list[Note],
) -> tuple[Candidate, ...]:
    """All instances of a cloud, or of every one; ``names`` are accelerators that they may have. As :func:`gpu_candidates`."""
    from hwcalc.hardware.named import instance_device, instance_named, load_gpu
    from hwcalc.hardware.profiles import leaving_out
    from hwcalc.profiles.instances import list_instances

    known = list_instances()
    clouds = sorted({name.partition("/")[0] for name in known})
    wanted = cloud.strip().lower()
    if wanted != EVERY and wanted not in clouds:
        raise UsageError(f"--instances {cloud[:40]!r} is no known cloud.", hint=f"Known: {EVERY}, {', '.join(clouds)}.")
    allowed = {load_gpu(name, []).id for name in names}
    found = []
    for name in known:
        if wanted not in (EVERY, name.partition("/")[0]):
            continue
        with leaving_out(notes):
            instance = instance_named(name)
            if not allowed or instance.accelerator in allowed:
                device = instance_device(instance)
                found.append(Candidate(name=name, gpu=device, instance=name, count=instance.count))
    return _chosen(tuple(found), vendors, categories)


def _named(name: str) -> Candidate:
    """By its id, which says what an alias stands for; this machine's own may have none that finds it again."""
    from hwcalc.hardware.named import LOCAL, load_gpu

    gpu = load_gpu(name, [])
    return Candidate(name=LOCAL if name.strip().lower() == LOCAL else gpu.id, gpu=gpu)


def _known(notes: list[Note]) -> Iterable[Candidate]:
    from hwcalc.hardware.profiles import leaving_out
    from hwcalc.profiles.gpus import find_gpu, list_gpus

    for name in list_gpus():
        found: list[Candidate] = []
        with leaving_out(notes):
            gpu = find_gpu(name)
            sizes = [f"{name}-{size}gb" for size in gpu.memory_options_gb] if len(gpu.memory_options_gb) > 1 else []
            found = [Candidate(name=sold, gpu=find_gpu(sold), alone=gpu.whole_machine) for sold in sizes or [name]]
        yield from found


def _chosen(every: tuple[Candidate, ...], vendors: Sequence[str], categories: Sequence[str]) -> tuple[Candidate, ...]:
    """Those that pass the filters. A filter that nothing passes is an error that says what there is."""
    for what, wanted, attribute in (("vendor", vendors, "vendor"), ("category", categories, "category")):
        known = {str(getattr(one.gpu, attribute)).lower() for one in every if getattr(one.gpu, attribute)}
        for word in wanted:
            if word.strip().lower() not in known:
                raise UsageError(f"--{what} {word[:40]!r}: there is none here.", hint=f"There are: {', '.join(sorted(known))}.")
    makers, kinds = ({word.strip().lower() for word in words} for words in (vendors, categories))
    left = tuple(
        one
        for one in every
        if (not makers or one.gpu.vendor.lower() in makers) and (not kinds or (one.gpu.category or "").lower() in kinds)
    )
    if not left:
        raise UsageError("No hardware is all of what is asked for.", hint="See: kvplan gpus, kvplan instances")
    return left
