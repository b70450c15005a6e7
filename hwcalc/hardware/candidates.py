"""The hardware that a recommendation chooses from: single accelerators, or cloud instances with several of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.text import shown

if TYPE_CHECKING:
    from hwcalc.model import Note
    from hwcalc.profiles.gpus import Gpu

__all__ = ["EVERY", "Candidate", "gpu_candidates", "instance_candidates"]

EVERY: Final = "all"


class Candidate(Record):
    """One kind of hardware. ``name`` is the value for ``--gpu``, ``instance`` the value for ``--instance``.

    ``count`` is the number of accelerators of an instance.
    """

    name: str
    gpu: Gpu
    instance: str | None = None
    count: int | None = None


def gpu_candidates(
    names: Sequence[str] = (), *, vendors: Sequence[str] = (), categories: Sequence[str] = (), notes: list[Note]
) -> tuple[Candidate, ...]:
    """The accelerators of these names, or all known ones in every size of memory, filtered by vendor and category.

    A broken file of the user's own is skipped with a note, unless ``names`` contains it. Raises
    :class:`~hwcalc.errors.UsageError` for an unknown name, and :class:`~hwcalc.errors.ConfigError` for a broken file.
    """
    every = {one.gpu.id: one for one in ((_named(name, notes) for name in names) if names else _known(notes))}
    return _chosen(tuple(every.values()), vendors, categories)


def instance_candidates(
    cloud: str = EVERY,
    names: Sequence[str] = (),
    *,
    vendors: Sequence[str] = (),
    categories: Sequence[str] = (),
    notes: list[Note],
) -> tuple[Candidate, ...]:
    """The instances of one cloud, of all clouds, or whose names begin so (``p5``), filtered by accelerator (``names``), vendor and category.

    Errors and broken files are treated as in :func:`gpu_candidates`.
    """
    from hwcalc.hardware.named import instance_device, instance_named, load_gpu
    from hwcalc.hardware.profiles import leaving_out
    from hwcalc.profiles.instances import list_instances

    known = list_instances()
    wanted = _instances_named(cloud, known)
    allowed = {load_gpu(name, []).id for name in names}
    candidates = []
    for name in wanted:
        with leaving_out(notes):
            instance = instance_named(name)
            if not allowed or instance.accelerator in allowed:
                device = instance_device(instance)
                candidates.append(Candidate(name=name, gpu=device, instance=name, count=instance.count))
    return _chosen(tuple(candidates), vendors, categories)


def _instances_named(cloud: str, known: Sequence[str]) -> Sequence[str]:
    """The instances of a cloud, or of all; else those whose name begins with the word, first those in which the word ends there."""
    word = cloud.strip().lower()
    clouds = sorted({name.partition("/")[0] for name in known})
    if word == EVERY:
        return known
    if word in clouds:
        return [name for name in known if name.partition("/")[0] == word]
    begun = [
        name for name in known if word and name.removeprefix("" if "/" in word else name.partition("/")[0] + "/").startswith(word)
    ]
    whole = [name for name in begun if not name[name.index(word) + len(word) :][:1].isalnum()]
    if not begun:
        raise UsageError(
            f"--instances {shown(cloud, 40)} is no known cloud, nor the beginning of an instance's name.",
            hint=f"Known: {EVERY}, {', '.join(clouds)}. See: kvplan instances",
        )
    return whole or begun


def _named(name: str, notes: list[Note]) -> Candidate:
    """The accelerator of this name under its id. This machine's accelerator stays ``local``: no profile may have its id."""
    from hwcalc.hardware.named import LOCAL, MEMORY_OPTION, load_gpu

    said: list[Note] = []
    gpu = load_gpu(name, said)
    notes += (note for note in said if note.code == MEMORY_OPTION)
    return Candidate(name=LOCAL if name.strip().lower() == LOCAL else gpu.id, gpu=gpu)


def _known(notes: list[Note]) -> Iterable[Candidate]:
    from hwcalc.hardware.profiles import known_gpus, leaving_out
    from hwcalc.profiles.gpus import in_every_size

    for name, gpu in known_gpus(notes):
        candidates = [Candidate(name=name, gpu=gpu)]
        if len(gpu.memory_options_gb) > 1:
            candidates = []
            with leaving_out(notes):
                sizes = zip(gpu.memory_options_gb, in_every_size(gpu), strict=True)
                candidates = [Candidate(name=f"{name}-{size}gb", gpu=sold) for size, sold in sizes]
        yield from candidates


def _chosen(every: tuple[Candidate, ...], vendors: Sequence[str], categories: Sequence[str]) -> tuple[Candidate, ...]:
    """The candidates that pass both filters. Raises :class:`UsageError` if nothing passes one of them."""
    for what, words, attribute in (("vendor", vendors, "vendor"), ("category", categories, "category")):
        known = {str(getattr(one.gpu, attribute)).lower() for one in every if getattr(one.gpu, attribute)}
        for word in words:
            if word.strip().lower() not in known:
                raise UsageError(
                    f"--{what} {shown(word, 40)}: there is none here.", hint=f"There are: {', '.join(sorted(known))}."
                )
    makers, kinds = ({word.strip().lower() for word in names} for names in (vendors, categories))
    left = tuple(
        one
        for one in every
        if (not makers or one.gpu.vendor.lower() in makers) and (not kinds or (one.gpu.category or "").lower() in kinds)
    )
    if not left:
        raise UsageError("No hardware is all of what is asked for.", hint="See: kvplan gpus, kvplan instances")
    return left
