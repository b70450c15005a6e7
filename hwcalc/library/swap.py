"""Several models on one node, of which some are awake and the others sleep: :func:`swap`.

What a sleeping server keeps, and how it wakes, is the engine's (:class:`~hwcalc.engines.facts.IdleRules`). The memory of each model is that
of its plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final, Unpack

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION, Answer
from hwcalc.engines import ENGINES, find_engine
from hwcalc.engines.facts import IdleRules, Rest
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.library.lists import each_model
from hwcalc.library.plan import load_request
from hwcalc.model import ModelLike, Note
from hwcalc.planner.context import open_request
from hwcalc.planner.options import SwapOptions, take_options, takes
from hwcalc.planner.verdict import Verdict
from hwcalc.text import quoted, shown
from hwcalc.units import parse_tokens

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.planner.result import BudgetInfo, Plan

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
        raise UsageError(
            f"a node is shared by 2 to {MOST_MODELS} models (got {len(given):,}).", hint="Use: kvplan swap A B --gpu rtx-4090"
        )
    if asked.gpu is None and asked.instance is None:
        raise UsageError("models share a node: name its accelerator.", hint="Use: --gpu rtx-4090")
    drive = _drive(disk)
    most = None if most_awake is None else parse_tokens(most_awake, "most_awake")
    planned = [_planned(model, asked) for model in given]
    opened = planned[0][0]
    idle, hardware = opened.engine.facts.idle, opened.setup.hardware.gpu
    assert hardware is not None
    if len({each.engine.name for each, _ in planned}) > 1:
        raise UsageError("these models have no engine in common by default.", hint="Name one: --engine llamacpp")
    if not idle.ways_of(opened):
        able = ", ".join(name for name in ENGINES if find_engine(name)[0].facts.idle.ways)
        raise UnsupportedError(
            f"{opened.engine.label} keeps a model until its server ends.", hint=f"Name an engine: --engine {able}"
        )
    from hwcalc.planner.strategies import host_link

    link = host_link(hardware)
    rate = None if link is None else link.gbps * 1e9
    beyond = idle.outside(hardware)
    process = NOTHING if beyond is None else Sizes(low=beyond.low, expected=beyond.expected, high=beyond.high)
    parts = [_model(each, plan, idle, process, rate, drive[1] * 1e9) for each, plan in planned]
    most = idle.most_awake if most is None else most
    found = _together(planned, parts, idle, process, most or len(parts))
    asleep = [sum(part.rests[0].host_bytes for number, part in enumerate(parts) if number not in chosen) for chosen in found]
    every = sum(part.rests[0].host_high_bytes for part in parts)
    ever = {number for chosen in found for number in chosen}
    return Swapping(
        schema_version=SCHEMA_VERSION,
        kvplan_version=__version__,
        engine=opened.engine.name,
        engine_version=opened.deployment.version or None,
        gpu=hardware.id,
        gpus=opened.setup.gpus,
        batch=opened.load.batch,
        gpu_bytes=min(_room(plan)[0] for _, plan in planned),
        host_link=None if link is None else link.name,
        host_gbps=None if link is None else link.gbps,
        disk_link=drive[0],
        disk_gbps=drive[1],
        most_awake=most,
        most_option=idle.most_option,
        models=tuple(parts),
        together=tuple(found.values()),
        never=tuple(part.model for number, part in enumerate(parts) if number not in ever),
        host_bytes=max(asleep, default=0),
        host_high_bytes=every if idle.keeps_host else max(asleep, default=0),
        source=idle.source,
        notes=tuple(dict.fromkeys(note for each, _ in planned for note in each.notes)),
    )


def _drive(disk: str | None) -> tuple[str, float]:
    """The name of a drive, and its 10^9 bytes per second. Raises :class:`~hwcalc.errors.UsageError`."""
    from hwcalc.profiles.links import find_link, links

    if disk is not None and not isinstance(disk, str):
        raise UsageError(f"disk must be a string (got {quoted(disk)}).", hint='Write disk="nvme-gen5".')
    found = find_link(_DISK if disk is None else disk)
    if found is None or found.what != "disk":
        names = ", ".join(each.name for each in links() if each.what == "disk")
        raise UsageError(f"drive {shown(disk or _DISK, 40)} is not known.", hint=f"Known: {names}.")
    return found.name, found.gbps


def _planned(model: ModelLike, asked: Any) -> tuple[Occupancy, Plan]:
    """A model on the node, and its plan. Raises :class:`~hwcalc.errors.UnsupportedError` if its memory or weights are not known."""
    from hwcalc.planner.plan import plan_opened

    spec, request = load_request(model, asked)
    opened = open_request(spec, **request)
    plan = plan_opened(opened, limits=False)
    if plan.fit is None or plan.fit.budget is None or plan.memory.per_gpu.weights is None or plan.memory.weights.bytes is None:
        raise UnsupportedError(f"the memory of {spec.id} there is not known.", hint=f"See: kvplan {spec.id} --gpu ... -v")
    return opened, plan


def _budget(plan: Plan) -> BudgetInfo:
    assert plan.fit is not None
    assert plan.fit.budget is not None
    return plan.fit.budget


def _room(plan: Plan) -> tuple[int, int]:
    """The memory of a GPU, and how much of it the engine may use."""
    budget = _budget(plan)
    return budget.total_bytes, budget.requested_bytes


def _named(plan: Plan, names: Iterable[str]) -> Sizes:
    """The sum of the parts of these names."""
    parts = [part for part in _budget(plan).parts if part.name in names]
    return Sizes(**{end: sum(getattr(part, end) for part in parts) for end in _ENDS})


def _model(opened: Occupancy, plan: Plan, idle: IdleRules, process: Sizes, rate: float | None, drive: float) -> SwapModel:
    """What a model needs awake, and its ways to sleep. ``process`` is what its process takes outside the sum."""
    fit, on_gpu, files = plan.fit, plan.memory.per_gpu.weights, plan.memory.weights.bytes
    assert fit is not None
    assert on_gpu is not None
    assert files is not None
    awake = Sizes(low=fit.needed_low_bytes, expected=fit.needed_bytes, high=fit.needed_high_bytes)

    def rest(way: Rest) -> RestInfo:
        moved = None if rate is None else on_gpu / rate
        copy = on_gpu * fit.gpus if way.copied else 0
        return RestInfo(
            name=way.name,
            how=way.how,
            starts_with=way.starts_with,
            gpu=NOTHING if way.ends else _named(plan, idle.stays).plus(process),
            host_bytes=copy,
            host_high_bytes=copy * way.host_factor,
            sleep_s=moved if way.copied else 0.0,
            wake_s=moved,
            wake_disk_s=None if way.copied else files / drive,
        )

    return SwapModel(
        model=plan.model.id,
        seq=plan.request.seq,
        awake=awake,
        weights_bytes=on_gpu,
        file_bytes=files,
        starts_with=idle.starts_with(_room(plan)[0], awake.expected),
        rests=tuple(rest(way) for way in idle.ways_of(opened)),
    )


def _together(
    planned: Sequence[tuple[Occupancy, Plan]], parts: Sequence[SwapModel], idle: IdleRules, process: Sizes, most: int
) -> dict[tuple[int, ...], Together]:
    """The largest sets of at most so many models that fit awake, by their numbers. None is part of another.

    A plan has room for one ``process`` outside its sum, so that all but the first add theirs.
    """
    left = [idle.left_free(*_room(plan)) for _, plan in planned]
    usable = [plan.fit.usable_bytes + more for (_, plan), more in zip(planned, left, strict=True) if plan.fit is not None]
    context = _named(planned[0][1], {"context"})
    found: dict[tuple[int, ...], Together] = {}
    for size in range(min(len(parts), most), 0, -1):
        for chosen in combinations(range(len(parts)), size):
            if any(set(chosen) <= set(larger) for larger in found):
                continue
            shares = [left[number] for number in chosen]
            needed = Sizes(low=0, expected=max(shares), high=sum(shares)).plus(process, size - 1)
            for number, part in enumerate(parts):
                needed = needed.plus(part.awake if number in chosen else part.rests[0].gpu)
            if idle.one_process:
                needed = needed.plus(context, 1 - size)
            room = min(usable[number] for number in chosen)
            verdict = needed.within(room)
            if verdict.fits and _joins(idle, [(planned[number], parts[number]) for number in chosen]):
                names = tuple(parts[number].model for number in chosen)
                found[chosen] = Together(models=names, gpu=needed, usable_bytes=room, verdict=verdict)
    return found


def _joins(idle: IdleRules, chosen: Sequence[tuple[tuple[Occupancy, Plan], SwapModel]]) -> bool:
    """True if the engine starts each of these models next to the larger ones."""
    free = 0
    for number, ((opened, plan), model) in enumerate(sorted(chosen, key=lambda each: -each[1].awake.expected)):
        free = free or _room(plan)[0]
        if number and not idle.joins(opened, free):
            return False
        free -= model.awake.expected
    return True
