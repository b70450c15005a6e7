"""Solvers for GPUs: the fewest of one kind that hold the planned sequences, and the layout to run them in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import asdict, replace

from hwcalc.engines.base import Opened
from hwcalc.engines.families import tried
from hwcalc.errors import KvplanError
from hwcalc.formulas.record import Record
from hwcalc.planner.layouts import counts, has_experts, layouts, node_of
from hwcalc.planner.tries import Tried
from hwcalc.planner.verdict import Layout

if TYPE_CHECKING:
    from hwcalc.engines.base import Engine
    from hwcalc.engines.request import Request
    from hwcalc.profiles.gpus import Gpu

__all__ = [
    "MOST_GPUS",
    "MOST_SEARCHED",
    "Found",
    "accepted",
    "best_layout",
    "fewest_gpus",
    "has_layouts",
    "laid_out",
    "most_joined",
]

MOST_GPUS: Final = 64
MOST_SEARCHED: Final = 512
"""The most GPUs among which the fewest are searched for where a request for more fits: each node takes up to 75 ms."""


class Found(Record):
    """A layout that holds the planned sequences, and whether it does so even at the high end of the estimates."""

    layout: Layout
    certain: bool


def best_layout(opened: Opened, gpus: int, node: int | None = None, *, any_layout: bool = False) -> Found | None:
    """The layout of ``gpus`` GPUs to run the planned sequences in; ``None`` if none holds them.

    It is the first one in the order of :func:`~hwcalc.planner.layouts.layouts` that holds them for certain, or else the first that holds
    them by the expected value.
    """
    likely: Found | None = None
    for layout in layouts(opened, gpus, node, any_layout=any_layout):
        found = _accepted(opened, layout)
        if found is None or not found[1].holds():
            continue
        if found[1].holds("low"):
            return Found(layout=found[0], certain=True)
        likely = likely or Found(layout=found[0], certain=False)
    return likely


def laid_out(opened: Opened, node: int | None = None) -> Opened:
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


def fewest_gpus(opened: Opened, most_gpus: int = MOST_GPUS) -> tuple[Layout | None, Layout | None]:
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


def _at_least(opened: Opened) -> int:
    """A lower bound on the number of GPUs: they must have memory for the weights, and for the cache where it is known to divide."""
    kept = opened.engine.accepts_all_sizes(opened)
    single = opened.shared("single GPU", lambda: _single(opened)) if kept else _single(opened)
    if single is None:
        return 1
    opened_on_one, weights_bytes, requested_bytes = single
    least = max(1, -(-weights_bytes // requested_bytes))
    room = None if opened_on_one is None else opened_on_one.engine.room(opened_on_one)
    if room is None or opened.tokens < room.least_tokens:
        return least
    # A byte more for each GPU: sizes of files are shared out with the rest left off.
    needed_bytes = weights_bytes + room.needed_bytes(opened.tokens, opened.request.batch)
    return max(least, -(-needed_bytes // (requested_bytes + 1)))


def _single(opened: Opened) -> tuple[Opened | None, int, int] | None:
    """What is known of one GPU, if the engine accepts it: the request, if its cache divides evenly; the bytes of weights, and what may be used."""
    single = tried(opened, tp=1, pp=1, dp=1, dcp=1, ep=1, batch=1)
    try:
        budget = None if single is None else single.budget
    except KvplanError:
        return None
    if single is None or budget is None or budget.requested_bytes <= 0:
        return None
    weights_bytes = sum(part.low for part in budget.parts if part.name == "weights")
    return single if single.engine.divides_evenly(single) else None, weights_bytes, budget.requested_bytes


def accepted(opened: Opened, layout: Layout) -> tuple[Layout, Opened] | None:
    """The request in another layout, which may deal out experts that cannot be cut evenly; ``None`` if the engine refuses both."""
    found = _accepted(opened, layout)
    return None if found is None else (found[0], found[1].opened)


def _accepted(opened: Opened, layout: Layout) -> tuple[Layout, Tried] | None:
    dealt = layout if layout.ep == layout.tp * layout.dp else replace(layout, ep=layout.tp * layout.dp)
    deals = layout.ep < dealt.ep and opened.engine.deals_experts(opened) and has_experts(opened.model)
    for each in (layout, dealt) if deals else (layout,):
        changed = Tried.of(opened, {**asdict(each), "dcp": 1})
        if changed is None:
            continue
        if not opened.engine.splits_layers:
            return each, changed
        try:
            entire = changed.opened.engine.entire(changed.opened)
        except KvplanError:
            continue
        return each, Tried(entire, entire.request.seq, entire.request.batch)
    return None
