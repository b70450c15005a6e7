"""Several models on one node, of which some are awake and the others sleep: :func:`swap`.

What a sleeping server keeps, and how it wakes, is the engine's (:class:`~hwcalc.engines.facts.IdleRules`). The memory of each model is that
of its plan.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Unpack

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION, Answer
from hwcalc.engines import ENGINES, find_engine
from hwcalc.engines.facts import IdleRules
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.library.lists import each_model
from hwcalc.library.plan import load_request
from hwcalc.model import ModelLike, Note
from hwcalc.planner.asked import Asked, take_options
from hwcalc.planner.context import open_request
from hwcalc.planner.options import SwapOptions, takes
from hwcalc.planner.verdict import Verdict
from hwcalc.text import quoted, shown
from hwcalc.units import parse_tokens

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.profiles.hardware_file import Gpu
    from hwcalc.profiles.links import Link

MOST_MODELS: Final = 10
"""All sets of so many models are looked at: 1,023."""
_DISK: Final = "nvme"
_ENDS: Final = ("low", "expected", "high")


class Sizes(Record):
    """Bytes of the fullest GPU: the expected value and the ends of its range."""

    low: int
    expected: int
    high: int

    def plus(self, other: Sizes, times: int = 1) -> Sizes:
        """The sum with another range, taken so many times."""
        return Sizes(**{end: getattr(self, end) + times * getattr(other, end) for end in _ENDS})

    def within(self, room: int) -> Verdict:
        """The verdict on so many bytes of room."""
        return Verdict.of(self.expected <= room, self.low <= room, self.high <= room)


NOTHING: Final = Sizes(low=0, expected=0, high=0)


class RestInfo(Record):
    """A way in which a model sleeps. ``gpu`` is what stays on the fullest GPU; ``host_bytes`` to ``host_high_bytes`` is the copy in host memory.

    ``sleep_s`` is the time to copy it there, 0 where nothing is copied, and ``wake_s`` the time in which the weights come back from host
    memory: from the copy, or from files that the system still has there. ``wake_disk_s`` is the time from a drive, null where a copy is
    kept. All are bounds: the bytes by the rate of the link. Null is unknown.
    """

    name: str
    how: str
    starts_with: tuple[str, ...]
    gpu: Sizes
    host_bytes: int
    host_high_bytes: int
    sleep_s: float | None
    wake_s: float | None
    wake_disk_s: float | None


class SwapModel(Record):
    """A model: what it needs of the fullest GPU awake, its weights there and in its files, and its ways to sleep."""

    model: str
    seq: int
    awake: Sizes
    weights_bytes: int
    file_bytes: int
    starts_with: tuple[str, ...]
    rests: tuple[RestInfo, ...]


class Together(Record):
    """Models that are awake at once, the others asleep in their first way: bytes of the fullest GPU, of the ``usable_bytes`` that these
    may use of it, and the verdict.
    """

    models: tuple[str, ...]
    gpu: Sizes
    usable_bytes: int
    verdict: Verdict


class Swapping(Answer, Record):
    """Several models on one node. ``together`` has the largest sets that fit, no one part of another; ``never`` the models in none of them.

    ``most_awake`` is the engine's own limit of models on a GPU, or the given one. ``host_bytes`` is the most that sleeping models need of
    host memory while any of these sets is awake; ``host_high_bytes`` is the most that they can take.
    """

    schema_version: str
    kvplan_version: str
    engine: str
    engine_version: str | None
    gpu: str
    gpus: int
    batch: int
    gpu_bytes: int
    host_link: str | None
    host_gbps: float | None
    disk_link: str
    disk_gbps: float
    most_awake: int | None
    most_option: str
    models: tuple[SwapModel, ...]
    together: tuple[Together, ...]
    never: tuple[str, ...]
    host_bytes: int
    host_high_bytes: int
    source: str
    notes: tuple[Note, ...]

    def headline(self) -> str:
        sets = "; ".join(" + ".join(each.models) for each in self.together)
        return f"{len(self.models):,} models on {self.gpus:,} x {self.gpu}, {self.engine}: awake together {sets or 'none'}"

    def records(self) -> list[dict[str, Any]]:
        """A row for each way of each model."""
        return [
            {"model": model.model, "awake_bytes": model.awake.expected, "rest": rest.name, "asleep_bytes": rest.gpu.expected}
            | {name: getattr(rest, name) for name in ("host_bytes", "host_high_bytes", "sleep_s", "wake_s", "wake_disk_s")}
            for model in self.models
            for rest in model.rests
        ]


@takes(SwapOptions)
def swap(
    models: ModelLike | Sequence[ModelLike],
    *,
    most_awake: int | str | None = None,
    disk: str | None = None,
    **options: Unpack[SwapOptions],
) -> Swapping:
    """Plan several models on one node: which are awake together, what those asleep keep, and what a switch costs.

    ``options`` are keywords of :func:`hwcalc.plan`, and hold for each model. ``most_awake`` replaces the engine's own limit of models that
    are awake, and ``disk`` is the drive with their files: ``nvme`` (the default), ``nvme-gen5``, ``sata``. Raises a subclass of
    :class:`~hwcalc.errors.KvplanError`.
    """
    _, asked = take_options("swap", options)
    given = each_model(models)
    if not 2 <= len(given) <= MOST_MODELS:
        message = f"a node is shared by 2 to {MOST_MODELS} models (got {len(given):,})."
        raise UsageError(message, hint="Use: kvplan swap A B --gpu rtx-4090")
    if asked.gpu is None and asked.instance is None:
        raise UsageError("models share a node: name its accelerator.", hint="Use: --gpu rtx-4090")
    drive, most = _drive(disk), None if most_awake is None else parse_tokens(most_awake, "most_awake")
    found = [_candidate(model, asked, drive.gbps * 1e9) for model in given]
    first, parts = found[0].opened, tuple(each.made for each in found)
    if len({each.opened.engine.name for each in found}) > 1:
        raise UsageError("these models have no engine in common by default.", hint="Name one: --engine llamacpp")
    from hwcalc.profiles.links import host_link

    idle, link = first.engine.facts.idle, host_link(first.setup.hardware.gpu)
    most = idle.most_awake if most is None else most
    sets = _together(found, idle, most or len(found))
    asleep = [sum(part.rests[0].host_bytes for number, part in enumerate(parts) if number not in chosen) for chosen in sets]
    host = max(asleep, default=0)
    return Swapping(
        schema_version=SCHEMA_VERSION,
        kvplan_version=__version__,
        engine=first.engine.name,
        engine_version=first.deployment.version or None,
        gpu=found[0].gpu.id,
        gpus=first.setup.gpus,
        batch=first.load.batch,
        gpu_bytes=found[0].total,
        host_link=None if link is None else link.name,
        host_gbps=None if link is None else link.gbps,
        disk_link=drive.name,
        disk_gbps=drive.gbps,
        most_awake=most,
        most_option=idle.most_option,
        models=parts,
        together=tuple(sets.values()),
        never=tuple(part.model for number, part in enumerate(parts) if all(number not in chosen for chosen in sets)),
        host_bytes=host,
        host_high_bytes=sum(part.rests[0].host_high_bytes for part in parts) if idle.keeps_host else host,
        source=idle.source,
        notes=tuple(dict.fromkeys(note for each in found for note in each.opened.notes)),
    )


def _drive(disk: str | None) -> Link:
    """The drive of this name. Raises :class:`~hwcalc.errors.UsageError` if none has it."""
    from hwcalc.profiles.links import find_link, links

    if disk is not None and not isinstance(disk, str):
        raise UsageError(f"disk must be a string (got {quoted(disk)}).", hint='Write disk="nvme-gen5".')
    found = find_link(_DISK if disk is None else disk)
    if found is None or found.what != "disk":
        names = ", ".join(each.name for each in links() if each.what == "disk")
        raise UsageError(f"drive {shown(disk or _DISK, 40)} is not known.", hint=f"Known: {names}.")
    return found


class _Candidate(NamedTuple):
    """A model on the node: what it needs, the memory of a GPU, what of it its server may use, and what that leaves free.

    ``outside`` is what a process takes that is not in its sum, and ``context`` what all models have once if they are in one process.
    """

    opened: Occupancy
    made: SwapModel
    gpu: Gpu
    total: int
    usable: int
    left: int
    outside: Sizes
    context: Sizes


def _candidate(model: ModelLike, asked: Asked, drive_rate: float) -> _Candidate:
    """A model, planned by itself. Raises :class:`~hwcalc.errors.UnsupportedError` if it cannot sleep, or its memory is not known."""
    from hwcalc.planner.plan import plan_opened
    from hwcalc.profiles.links import host_link

    spec, request = load_request(model, asked)
    opened = open_request(spec, **request)
    engine, gpu = opened.engine, opened.setup.hardware.gpu
    idle, ways = engine.facts.idle, engine.facts.idle.ways_of(opened)
    if not ways:
        able = ", ".join(name for name in ENGINES if find_engine(name)[0].facts.idle.ways)
        raise UnsupportedError(f"{engine.label} keeps a model until its server ends.", hint=f"Name an engine: --engine {able}")
    plan = plan_opened(opened, limits=False)
    fit, on_gpu, files = plan.fit, plan.memory.per_gpu.weights, plan.memory.weights.bytes
    if gpu is None or fit is None or fit.budget is None or on_gpu is None or files is None:
        raise UnsupportedError(f"the memory of {spec.id} there is not known.", hint=f"See: kvplan {spec.id} --gpu ... -v")
    parts, total, link = fit.budget.parts, fit.budget.total_bytes, host_link(gpu)

    def sizes(names: Collection[str]) -> Sizes:
        return Sizes(**{end: sum(getattr(part, end) for part in parts if part.name in names) for end in _ENDS})

    beyond = idle.outside(gpu)
    outside = NOTHING if beyond is None else Sizes(low=beyond.low, expected=beyond.expected, high=beyond.high)
    moved = None if link is None else on_gpu / (link.gbps * 1e9)
    rests = [
        RestInfo(
            name=way.name,
            how=way.how,
            starts_with=way.starts_with,
            gpu=NOTHING if way.ends else sizes(idle.stays).plus(outside),
            host_bytes=on_gpu * fit.gpus * way.copied,
            host_high_bytes=on_gpu * fit.gpus * way.copied * way.host_factor,
            sleep_s=moved if way.copied else 0.0,
            wake_s=moved,
            wake_disk_s=None if way.copied else files / drive_rate,
        )
        for way in ways
    ]
    made = SwapModel(
        model=plan.model.id,
        seq=plan.request.seq,
        awake=Sizes(low=fit.needed_low_bytes, expected=fit.needed_bytes, high=fit.needed_high_bytes),
        weights_bytes=on_gpu,
        file_bytes=files,
        # No share of the GPU starts a model that is larger.
        starts_with=idle.starts_with(total, fit.needed_bytes) if fit.needed_bytes <= total else (),
        rests=tuple(rests),
    )
    left = idle.left_free(total, fit.budget.requested_bytes)
    return _Candidate(opened, made, gpu, total, fit.usable_bytes + left, left, outside, sizes({"context"}))


def _together(found: Sequence[_Candidate], idle: IdleRules, most: int) -> dict[tuple[int, ...], Together]:
    """The largest sets of at most so many models that fit awake, by their numbers. None is part of another.

    A plan has room for what one process takes outside its sum, so that all but the first add theirs.
    """
    sets: dict[tuple[int, ...], Together] = {}
    for size in range(min(len(found), most), 0, -1):
        for chosen in combinations(range(len(found)), size):
            if any(set(chosen) <= set(larger) for larger in sets):
                continue
            awake = [found[number] for number in chosen]
            left = [each.left for each in awake]
            needed = Sizes(low=0, expected=max(left), high=sum(left)).plus(awake[0].outside, size - 1)
            for number, each in enumerate(found):
                needed = needed.plus(each.made.awake if number in chosen else each.made.rests[0].gpu)
            if idle.one_process:
                needed = needed.plus(awake[0].context, 1 - size)
            room = min(each.usable for each in awake)
            verdict = needed.within(room)
            if verdict.fits and _joins(idle, awake):
                names = tuple(each.made.model for each in awake)
                sets[chosen] = Together(models=names, gpu=needed, usable_bytes=room, verdict=verdict)
    return sets


def _joins(idle: IdleRules, awake: Sequence[_Candidate]) -> bool:
    """True if the engine starts each of these models next to the larger ones."""
    first, *others = sorted(awake, key=lambda each: -each.made.awake.expected)
    free = first.total - first.made.awake.expected
    for each in others:
        if not idle.joins(each.opened, free):
            return False
        free -= each.made.awake.expected
    return True
