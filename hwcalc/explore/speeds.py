"""The speed of a decode step, for the page: what a step reads and computes, what each GPU can, and what share of that an engine reaches.

The page has the form of :func:`hwcalc.planner.speed_work.decode_form`, in pieces: the weights in each format, what is read and computed of the
cache in each format for each number of ranks, and the ranks of each layout. Beside them are the parameters of the engine's class on each GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from hwcalc.engines.setup import Parallel
from hwcalc.errors import KvplanError
from hwcalc.explore.runs import AS_PUBLISHED, grid_of
from hwcalc.explore.tables import Place
from hwcalc.planner.speed import is_divided, known_bandwidth, shares_of
from hwcalc.planner.speed_work import ANY_RATE, SIXTEEN, DecodeForm, Growing, WeightShare, decode_form, fastest, workload_of
from hwcalc.planner.step_time import fullest_deviations, launched_layers, link_rate, multiplied, packed, rates_of, speed_class_of

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.explore.runs import Pools, Requests
    from hwcalc.profiles.hardware_file import Gpu


def speeds_of(requests: Requests, runs: Mapping[str, Any], pools: Pools) -> dict[str, Any] | None:
    """The pieces of one engine (``Speeds`` in ``page/types.d.ts``); ``None`` where there is no bound."""
    if "curve" not in runs:
        return None
    parallel = requests.layouts
    weights: list[int | None] = []
    for name in runs["weights"]:
        form = _form(requests.opened(weights=None if name == AS_PUBLISHED else name))
        places = [pools.put("shares", _share(share, rates, pools)) for share, rates in (() if form is None else form.shares)]
        weights.append(pools.put("weights", places) if places else None)
    reads: dict[Place, int | None] = {}
    ranks: list[list[float] | None] = []
    for number, sizes in enumerate(parallel):
        first = next(place for place, one in enumerate(parallel) if one.tp == sizes.tp)
        for dtype, name in enumerate(runs["dtypes"]):
            if first < number:
                reads[dtype, number] = reads[dtype, first]
                continue
            form = _form(requests.opened(sizes=Parallel(tp=sizes.tp), dtype=name if dtype else None))
            reads[dtype, number] = (
                None
                if form is None
                else pools.put(
                    "reads",
                    {"cache": _rows(form.cache), "attention": _rows(form.attention), "rate": _rates(form.attention_rates, pools)},
                )
            )
        ranks.append(_ranks(requests.opened(sizes=sizes)))
    return {
        "weights": weights,
        "reads": grid_of(reads, (len(runs["dtypes"]), len(parallel))),
        "ranks": ranks,
        "layers": sum(group.count for group in requests.plain.deployment.plain_stack.groups),
        "launched": launched_layers(requests.plain.deployment.plain_stack),
        "hidden_size": requests.model.hidden_size or 0,
        "classes": [_class(requests.opened(gpu=gpu), pools) for gpu in requests.axes.gpus],
    }


def _class(opened: Occupancy | KvplanError, pools: Pools) -> int | None:
    """The parameters of the engine's class on the accelerator; ``None`` if the engine refuses it, or nothing like it was measured."""
    if isinstance(opened, KvplanError):
        return None
    found, gpu = speed_class_of(opened), opened.setup.hardware.gpu
    if found is None or gpu is None:
        return None
    parameters = to_builtins(found.parameters)
    rates = {}
    for name, form, best in (("rate", "q8_0", ANY_RATE), ("bf16_rate", "bf16", SIXTEEN)):
        reached = rates_of(form, best, found.parameters, gpu)
        rates[name] = None if reached == best else _rates(reached, pools)
    for name in ("integer_matrices", "bf16_matrices", "card_layers"):
        del parameters[name]
    layers = {f"{name}layer_us": found.parameters.layer_on(gpu, experts=bool(name)) for name in ("", "expert_")}
    return pools.put("classes", {**parameters, **layers, **rates, "range": list(found.range_of("decode"))})


def _form(opened: Occupancy | KvplanError) -> DecodeForm | None:
    """The form of a request; ``None`` if the engine refuses it, or has no such form."""
    if isinstance(opened, KvplanError):
        return None
    places = opened.devices.reads().value
    return None if is_divided(places) else decode_form(opened.model, workload_of(opened), shares_of(places) or None)


def _ranks(opened: Occupancy | KvplanError) -> list[float] | None:
    """``tp``, ``pp``, ``dp``, the ranks that share the experts, and how much more the fullest has of whole ones; ``None`` if the engine refuses the layout, or has no bound there."""
    if isinstance(opened, KvplanError) or is_divided(opened.devices.reads().value):
        return None
    parallel = opened.deployment.parallel
    return [parallel.tp, parallel.pp, parallel.dp, parallel.expert_ranks, fullest_deviations(parallel.ep)]


def _share(share: WeightShare, rates: Sequence[str], pools: Pools) -> dict[str, Any]:
    return {
        "use": str(share.use),
        "bytes": share.bytes,
        "parameters": share.parameters,
        "copies": share.copies,
        "active": share.active,
        "flops": share.flops_per_token,
        "rate": _rates(rates, pools),
        "bf16": share.format == "bf16",
        "multiplied": multiplied(share.format),
        "packed": packed(share.format),
    }


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
    vectors = gpu.tflops_dense.get("fp32")
    seen = gpu.memory_bandwidth_seen_gbps
    return {
        "bandwidth": known_bandwidth(gpu),
        "seen": None if seen is None else seen * 1e9,
        "rates": [None if rate is None else rate[1] for rate in found],
        "vectors": None if vectors is None else vectors * 1e12,
        "link": link_rate(gpu),
    }
