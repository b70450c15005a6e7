"""Reads an encoded payload back: the place of a state in its grids, and the form that the pools have there.

It is what ``page/data.js`` does, so that the encoding is proven without a browser. The form is evaluated by :mod:`tests.hwcalc.form_answers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from hwcalc.engines.forms import (
    Amount,
    Blocks,
    Constant,
    Curve,
    Early,
    Fullest,
    HostRoom,
    Largest,
    Measured,
    MemoryForm,
    Moment,
    PartForm,
    Pass,
    PerGpu,
    Product,
    Term,
)
from hwcalc.explore.build import PageModel, payload_of
from hwcalc.explore.runs import PageAxes
from hwcalc.formulas import LayerNumbers
from hwcalc.formulas.stairs import Stair

__all__ = ["curve_of", "form_at", "grid_at", "options_at", "payload_of_memory"]

Document = Mapping[str, Any]


def payload_of_memory(models: Sequence[PageModel], axes: PageAxes) -> dict[str, Any]:
    """The payload without what stands on the page beside the memory of the model: kinds of attention, policies, speed, commands."""
    beside = dict.fromkeys(("variants", "saved", "policies", "strategies"))
    with pytest.MonkeyPatch.context() as patched:
        for name in ("speeds_of", "starts_of"):
            patched.setattr(f"hwcalc.explore.build.{name}", lambda *_: None)
        patched.setattr("hwcalc.explore.build.sections_of", lambda *_: beside)
        return payload_of(models, axes)


def grid_at(grid: Any, places: Sequence[int]) -> int | None:
    """What a grid has at a place on each of its axes."""
    for place in places:
        if not isinstance(grid, list):
            break
        grid = grid[0 if len(grid) == 1 else place]
    assert grid is None or isinstance(grid, int)
    return grid


def options_at(payload: Document, model: Document, engine: str, places: Sequence[int]) -> dict[str, Any]:
    """The keywords of a plan that stand for a state: dtype, weights, layout and GPU by their places."""
    runs, described = model["engines"][engine], next(one for one in payload["engines"] if one["name"] == engine)
    dtype, weights, layout, gpu = places
    count, tp, pp = (payload["layouts"][layout][name] for name in ("count", "tp", "pp"))
    dp = count // (tp * pp)
    sizes = {"pp": count} if described["splits_layers"] else {"tp": tp, "pp": pp, "dp": dp}
    sizes |= {"ep": tp * dp} if runs.get("deals_experts") and dp > 1 else {}
    return {
        "engine": engine,
        "gpu": payload["gpus"][gpu]["id"],
        "engine_options": described["options"],
        "dtype": runs["dtypes"][dtype] if dtype else None,
        "weights": runs["weights"][weights] if weights else None,
        **sizes,
    }


def form_at(payload: Document, model: Document, engine: str, places: Sequence[int]) -> MemoryForm | str:
    """The form of a state, or why the engine refuses it."""
    runs = model["engines"][engine]
    if "curve" not in runs:
        return str(payload["texts"][grid_at(runs["refused"], (0, 0, *places[2:]))])
    why = grid_at(runs["refused"], places)
    if why is not None:
        return str(payload["texts"][why])
    curve, rest = (dict(payload[pool][grid_at(runs[name], places)]) for pool, name in (("curves", "curve"), ("rests", "rest")))
    found = [grid_at(grid, places) for grid in runs["parts"]]
    rest.pop("open", None)
    return MemoryForm(
        curve=replace(
            curve_of(payload, curve),
            most_tokens=rest.pop("most_tokens"),
            most_sequences=rest["most_sequences"] if rest.pop("refuses_more") else None,
        ),
        parts=tuple(_part(payload, payload["parts"][place]) for place in found if place is not None),
        blocks=Blocks(bytes=curve.get("block_bytes", 1), null=curve.get("null_blocks", 0)),
        crests=tuple(curve.get("crests", ())),
        model_tokens=model["max_seq"],
        **{**rest, "usable": tuple(rest["usable"]), "host": _host(rest["host"])},
    )


def _host(host: Document | None) -> HostRoom | None:
    if host is None:
        return None
    low, expected, high = host["room"]
    return HostRoom(room=(low, expected, high), shared=host["shared"])


def curve_of(payload: Document, curve: Document) -> Curve:
    """The cache of one entry of the curves."""
    return Curve(
        gpus=tuple(tuple(_term(payload, place) for place in terms) for terms in curve["gpus"]),
        total=tuple(_term(payload, place) for place in curve["total"]),
        once_bytes=curve.get("once_bytes", 0),
        total_once_bytes=curve.get("total_once_bytes", 0),
    )


def _term(payload: Document, place: int) -> Term:
    term = payload["terms"][place]
    shape = payload["shapes"][term["shape"]]
    return Term(
        kind=payload["texts"][shape["kind"]],
        layers=LayerNumbers(),
        count=term["count"],
        unit_bytes=term["unit_bytes"],
        stairs=tuple(tuple(Stair(*stair) for stair in sums) for sums in shape["stairs"]),
        rule=payload["texts"][shape["rule"]],
        unit_tokens=shape.get("unit_tokens", 1),
    )


def _part(payload: Document, part: Document) -> PartForm:
    low, expected, high = (_amount(payload, part.get(end, part["expected"])) for end in ("low", "expected", "high"))
    return PartForm(name=part["name"], section=part["section"], low=low, expected=expected, high=high)


def _product(product: Sequence[Any]) -> Product:
    size, factors, stairs = product
    return Product(size, tuple(factors), tuple(Stair(*stair) for stair in stairs))


def _amount(payload: Document, amount: Any) -> Amount:
    if isinstance(amount, int):
        return Constant(bytes=amount)
    ((form, value),) = amount.items()
    if form == "pass":
        return Pass(**dict(zip(("element_bytes", "width", "chunk", "logits", "logit_bytes"), value, strict=True)))
    if form == "largest":
        return Largest(terms=tuple(_term(payload, place) for place in value))
    if form == "gpus":
        return PerGpu(amounts=tuple(_amount(payload, each) for alike, each in value for _ in range(alike)))
    if form == "fullest":
        moments = tuple(Moment(share, tuple(map(_product, payload["sums"][place]))) for share, place in value["moments"])
        return Fullest(moments=moments, chunk=value["chunk"], up=value["up"])
    if form == "early":
        return Early.of(tuple(value["first"]), _amount(payload, value["rule"]))
    assert form == "measured", form
    readings = tuple((tokens, rows, size) for tokens, rows, size in value["readings"])
    return Measured(rule=_amount(payload, value["rule"]), chunk=value["chunk"], readings=readings)
