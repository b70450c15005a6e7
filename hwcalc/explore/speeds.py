"""The bound on the speed of a decode step, for the page: what a step reads and computes, and what each GPU can.

The page has the form of :func:`hwcalc.planner.speed_work.decode_form`, in pieces: the weights in each format, what is read and computed of the
cache in each format for each number of ranks, and the ranks of each layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hwcalc.engines.setup import Parallel
from hwcalc.errors import KvplanError
from hwcalc.explore.runs import AS_PUBLISHED, grid_of
from hwcalc.explore.tables import Place
from hwcalc.planner.speed import is_divided, known_bandwidth, shares_of
from hwcalc.planner.speed_work import DecodeForm, Growing, decode_form, fastest, workload_of

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.explore.runs import Pools, Requests
    from hwcalc.profiles.hardware_file import Gpu


def speeds_of(requests: Requests, runs: Mapping[str, Any], pools: Pools) -> dict[str, Any] | None:
    """The pieces of one engine (``Speeds`` in ``page/types.d.ts``); ``None`` where there is no bound."""
    if "curve" not in runs:
        return None
    parallel = [layout.parallel(requests.engine) for layout in requests.axes.layouts]
    shares: list[int | None] = []
    for name in runs["weights"]:
        form = _form(requests.opened(weights=None if name == AS_PUBLISHED else name))
        rows = [
            [str(share.use), share.bytes, share.copies, share.active, share.flops_per_token, _rates(rates, pools)]
            for share, rates in (() if form is None else form.shares)
        ]
        shares.append(pools.put("shares", rows) if rows else None)
    reads: dict[Place, int | None] = {}
    ranks: list[list[int] | None] = []
    for number, sizes in enumerate(parallel):
        first = next(place for place, one in enumerate(parallel) if one.tp == sizes.tp)
        for dtype, name in enumerate(runs["dtypes"]):
            if first < number:
                reads[dtype, number] = reads[dtype, first]
                continue
            form = _form(requests.opened(sizes=Parallel(tp=sizes.tp), dtype=name if dtype else None))
            reads[dtype, number] = None if form is None else pools.put("reads", _reads(form, pools))
        ranks.append(_ranks(requests.opened(sizes=sizes)))
    return {"shares": shares, "reads": grid_of(reads, (len(runs["dtypes"]), len(parallel))), "ranks": ranks}


def _form(opened: Occupancy | KvplanError) -> DecodeForm | None:
    """The form of a request; ``None`` if the engine refuses it, or has no such form."""
    if isinstance(opened, KvplanError):
        return None
    places = opened.devices.reads().value
    return None if is_divided(places) else decode_form(opened.model, workload_of(opened), shares_of(places) or None)


def _ranks(opened: Occupancy | KvplanError) -> list[int] | None:
    """``tp``, ``pp``, ``dp`` and the ranks that share the experts; ``None`` if the engine refuses the layout, or has no bound there."""
    if isinstance(opened, KvplanError) or is_divided(opened.devices.reads().value):
        return None
    parallel = opened.deployment.parallel
    return [parallel.tp, parallel.pp, parallel.dp, parallel.expert_ranks]


def _reads(form: DecodeForm, pools: Pools) -> dict[str, Any]:
    return {"cache": _rows(form.cache), "attention": _rows(form.attention), "rate": _rates(form.attention_rates, pools)}


def _rows(terms: Iterable[Growing]) -> list[list[Any]]:
    """Terms that grow alike as one."""
    sums: dict[tuple[Any, ...], int] = {}
    for term in terms:
        key = (term.most, tuple((stair.times, stair.per, stair.add, stair.most) for stair in term.stairs))
        sums[key] = sums.get(key, 0) + term.each
    return [[each, most, list(map(list, stairs))] for (most, stairs), each in sums.items()]


def _rates(names: Sequence[str], pools: Pools) -> int:
    return pools.put("rates", list(names))


def gpu_rates(gpu: Gpu, rates: Sequence[Sequence[str]]) -> dict[str, Any]:
    """What an accelerator reads and computes in a second; ``None`` where its profile does not say it."""
    found = [fastest(gpu, tuple(names)) for names in rates]
    return {"bandwidth": known_bandwidth(gpu), "rates": [None if rate is None else rate[1] for rate in found]}
