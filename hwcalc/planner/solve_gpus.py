"""Solvers for GPUs: the fewest of one kind that hold the planned sequences, and the layout to run them in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import asdict, replace

from hwcalc.engines.deployment import Occupancy
from hwcalc.errors import KvplanError
from hwcalc.formulas.record import Record
from hwcalc.planner import solve
from hwcalc.planner.layouts import counts, has_experts, layouts, node_of
from hwcalc.planner.verdict import Layout

if TYPE_CHECKING:
    from hwcalc.engines.engine import Engine
    from hwcalc.engines.setup import Request
    from hwcalc.profiles.gpus import Gpu

MOST_GPUS: Final = 64
MOST_SEARCHED: Final = 512
"""The most GPUs among which the fewest are searched for where a request for more fits: each node takes up to 75 ms."""


class Found(Record):
    """A layout that holds the planned sequences, and whether it does so even at the high end of the estimates."""

    layout: Layout
    certain: bool


def best_layout(opened: Occupancy, gpus: int, node: int | None = None, *, any_layout: bool = False) -> Found | None:
    """The layout of ``gpus`` GPUs to run the planned sequences in; ``None`` if none holds them.

    It is the first one in the order of :func:`~hwcalc.planner.layouts.layouts` that holds them for certain, or else the first that holds
    them by the expected value.
    """
    likely: Found | None = None
    for layout in layouts(opened, gpus, node, any_layout=any_layout):
        found = _accepted(opened, layout)
        if found is None or not solve.holds(found[1]):
            continue
        if solve.holds(found[1], "low"):
            return Found(layout=found[0], certain=True)
        likely = likely or Found(layout=found[0], certain=False)
    return likely


def laid_out(opened: Occupancy, node: int | None = None) -> Occupancy:
    """The request in the layout to run it in, where the user names the number of GPUs alone: that of :func:`best_layout`.

    The request keeps its layout if none holds it. It also does with a budget given by hand, which is that of one layout, and without a GPU,
    where nothing says what holds. Every command that takes a number of GPUs takes its layout from here.
    """
    request = opened.request
    if not has_layouts(opened.engine, request):
        return opened
    try:
        found = best_layout(opened, request.gpus, node)
        return opened if found is None else opened.changed(**asdict(found.layout), dcp=1)
    except KvplanError:
        return opened


def has_layouts(engine: Engine, request: Request) -> bool:
    """Whether the GPUs of a request can be laid out in several ways, of which one is known to hold it or not."""
    hardware = request.hardware
    return request.gpus > 1 and not engine.splits_layers and hardware.gpu is not None and hardware.kv_memory is None


def fewest_gpus(opened: Occupancy, most_gpus: int = MOST_GPUS) -> tuple[Layout | None, Layout | None]:
    """The layouts of the fewest GPUs of the planned kind that hold the planned sequences, by the expected value and for certain.

    ``None`` if ``most_gpus`` do not.
    """
    least, likely = _at_least(opened), None
    # Cards are added one by one where none of them needs an equal share.
    any_layout = opened.engine.splits_layers
    for gpus in counts(most_gpus, node_of(opened.request.hardware.gpu), any_layout=any_layout):
        found = best_layout(opened, gpus) if gpus >= least else None
        if found is not None:
            likely = likely or found.layout
            if found.certain:
                return likely, found.layout
    return likely, None


def most_joined(gpu: Gpu, gpus: int) -> int:
    """The most GPUs of this kind that are ever joined, where a plan has so many already: there is no second laptop."""
    return max(gpus, gpu.node) if gpu.whole_machine else MOST_GPUS


def _at_least(opened: Occupancy) -> int:
    """A lower bound on the number of GPUs: they must have memory for the weights."""
    single = solve.tried(opened, tp=1, pp=1, dp=1, dcp=1, ep=1, batch=1)
    try:
        budget = None if single is None else single.budget
    except KvplanError:
        return 1
    if budget is None or budget.requested_bytes <= 0:
        return 1
    weights_bytes = sum(part.low for part in budget.parts if part.name == "weights")
    return max(1, -(-weights_bytes // budget.requested_bytes))


def accepted(opened: Occupancy, layout: Layout) -> tuple[Layout, Occupancy] | None:
    """The request in another layout, which may deal out experts that cannot be cut evenly; ``None`` if the engine refuses both."""
    return _accepted(opened, layout)


def _accepted(opened: Occupancy, layout: Layout) -> tuple[Layout, Occupancy] | None:
    dealt = layout if layout.ep == layout.tp * layout.dp else replace(layout, ep=layout.tp * layout.dp)
    deals = layout.ep < dealt.ep and opened.deals_experts() and has_experts(opened.model)
    for each in (layout, dealt) if deals else (layout,):
        changed = solve.tried(opened, **{**asdict(each), "dcp": 1})
        if changed is None:
            continue
        if not opened.engine.splits_layers:
            return each, changed
        try:
            entire = changed.entire()
        except KvplanError:
            continue
        return each, entire
    return None
