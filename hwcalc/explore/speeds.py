"""The bound on the speed of a decode step, for the page: what a step reads and computes, and what each GPU can.

The page has the form of :func:`hwcalc.planner.speed_work.decode_form`, in pieces: the weights in each format, what is read and computed of the
cache in each format for each number of ranks, and how many ranks share the experts in each layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hwcalc.errors import KvplanError
from hwcalc.explore.runs import AS_PUBLISHED, accepted, grid_of
from hwcalc.explore.tables import Place
from hwcalc.planner.speed import is_divided, known_bandwidth, shares_of
from hwcalc.planner.speed_work import DecodeForm, Growing, decode_form, fastest, workload_of

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.explore.runs import PageAxes, Pools
    from hwcalc.model import ModelSpec
    from hwcalc.profiles.hardware_file import Gpu


def speeds_of(model: ModelSpec, engine: str, axes: PageAxes, runs: Mapping[str, Any], pools: Pools) -> dict[str, Any] | None:
    """The pieces of one engine (``Speeds`` in ``page/types.d.ts``); ``None`` where there is no bound."""
    if "curve" not in runs:
        return None
    plain = accepted(model, engine, axes)
    parallel = [layout.parallel(engine) for layout in axes.layouts]
    shares: list[int | None] = []
    for name in runs["weights"]:
        form = _form(plain, weights=None if name == AS_PUBLISHED else name)
        rows = [
            [str(share.use), share.bytes, share.copies, share.active, share.flops_per_token, _rates(rates, pools)]
            for share, rates in (() if form is None else form.shares)
        ]
        shares.append(pools.put("shares", rows) if rows else None)
    reads: dict[Place, int | None] = {}
    experts: list[int | None] = []
    for number, sizes in enumerate(parallel):
        first = next(place for place, one in enumerate(parallel) if one.tp == sizes.tp)
        for dtype, name in enumerate(runs["dtypes"]):
            if first < number:
                reads[dtype, number] = reads[dtype, first]
                continue
            form = _form(plain, dtype=name if dtype else None, tp=sizes.tp)
            reads[dtype, number] = None if form is None else pools.put("reads", _reads(form, pools))
        experts.append(_expert_ranks(plain, tp=sizes.tp, pp=sizes.pp, dp=sizes.dp))
    return {"shares": shares, "reads": grid_of(reads, (len(runs["dtypes"]), len(parallel))), "experts": experts}


def _form(plain: Occupancy, **change: Any) -> DecodeForm | None:
    """The form of a request with something else in it; ``None`` if the engine refuses that, or has no such form."""
    try:
        opened = plain.changed(**{name: value for name, value in change.items() if value is not None})
    except KvplanError:
        return None
    places = opened.devices.reads().value
    return None if is_divided(places) else decode_form(opened.model, workload_of(opened), shares_of(places) or None)


def _expert_ranks(plain: Occupancy, **sizes: int) -> int | None:
    """How many ranks share the experts in a layout; ``None`` if the engine has none, or no bound there."""
    with suppress(KvplanError):
        opened = plain.changed(**sizes)
        if not is_divided(opened.devices.reads().value):
            return opened.deployment.parallel.expert_ranks
    return None


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
