"""The answers of the solvers and the bound on speed, explained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hwcalc.errors import KvplanError
from hwcalc.library.explained import ExplainedFigure, ExplainedLimit, ExplainedSection, figure_of
from hwcalc.planner.result import FitInfo, Plan
from hwcalc.planner.verdict import UNLIMITED

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy


class _Answer(NamedTuple):
    """A field of the verdict that a solver found: what it varies, what it counts, and the end of the budget that it goes by."""

    field: str
    name: str
    varies: str
    what: str
    end: str
    limiting: str


ANSWERS: Final = (
    _Answer("max_seq", "longest", "seq", "tokens", "low", "limiting_seq"),
    _Answer("expected_max_seq", "longest, expected", "seq", "tokens", "expected", "expected_limiting_seq"),
    _Answer("max_batch", "at once", "batch", "sequences", "low", "limiting"),
    _Answer("expected_max_batch", "at once, expected", "batch", "sequences", "expected", "expected_limiting"),
)
_SPEED: Final = {
    "weight_bytes": "weight_bytes_per_step",
    "cache_bytes": "cache_bytes_per_step",
    "step_s": "decode_step_s_bound",
    "decode_tokens_per_s": "decode_tokens_per_s_bound",
}
"""Steps of the bound whose results are fields of it."""


def limits(plan: Plan, opened: Occupancy) -> tuple[ExplainedLimit, ...]:
    """How long, how many at once, and on how few GPUs, each with what it needs and what the next one would need."""
    fit = plan.fit
    if fit is None:
        return ()
    out = []
    for answer in ANSWERS:
        value = getattr(fit, answer.field, None)
        sure = answer.field.removeprefix("expected_")
        # An expected answer that is the sure one says nothing more.
        if value is not None and (sure == answer.field or value != getattr(fit, sure)):
            out.append(_limit(fit, opened, answer))
    return (*out, *_fewest(fit, opened))


def _limit(fit: FitInfo, opened: Occupancy, answer: _Answer) -> ExplainedLimit:
    value = int(getattr(fit, answer.field))
    bounded = 0 < value < UNLIMITED
    needs, of, unit = _needs(opened, answer.end, **{answer.varies: value}) if bounded else (None, None, "bytes")
    more, more_of, more_unit = (
        _needs(opened, answer.end, **{answer.varies: value + 1}) if value < UNLIMITED else (None, None, unit)
    )
    limiting = getattr(fit, answer.limiting)
    own = opened.most_sequences()
    by_memory = more is not None and more_of is not None and more > more_of and (needs is None or more_unit == unit)
    by_memory = by_memory and (own is None or limiting != own[1])
    return ExplainedLimit(
        name=answer.name,
        figure=f"fit.{answer.field}",
        value=value,
        what=answer.what,
        end=answer.end,
        needs=needs,
        of=of,
        next_value=value + 1 if by_memory else None,
        next_needs=more if by_memory else None,
        next_of=more_of if by_memory else None,
        unit=more_unit if by_memory else unit,
        limiting=limiting,
    )


def _fewest(fit: FitInfo, opened: Occupancy) -> tuple[ExplainedLimit, ...]:
    if fit.min_gpus is None:
        return ()
    layout: Any = getattr(fit, "min_layout", None)
    needs, of, unit = None, None, "bytes"
    if layout is not None:
        sizes = {name: getattr(layout, name) for name in ("tp", "pp", "dp", "ep")}
        needs, of, unit = _needs(opened, "expected", **sizes, dcp=1)
    elif fit.min_gpus == fit.gpus:
        needs, of, unit = _needs(opened, "expected")
    answer = ExplainedLimit(
        name="fewest",
        figure="fit.min_gpus",
        value=fit.min_gpus,
        what="GPUs",
        end="expected",
        needs=needs,
        of=of,
        next_value=None,
        next_needs=None,
        next_of=None,
        unit=unit,
        limiting=None,
    )
    return (answer,)


def _needs(opened: Occupancy, end: str, **change: int) -> tuple[int | None, int | None, str]:
    """What the planned sequences need and what there is for them, with this change; nothing if the engine refuses it."""
    from hwcalc.planner.solve import budget_bytes

    try:
        changed = opened.changed(**change) if change else opened
        size = budget_bytes(changed, end)
        if size is None:
            return None, None, "bytes"
        pool = changed.plan_pool(max(0, size)).value
        held = next((one for one in (() if pool is None else pool.steps) if one.name == "max_requests"), None)
        if held is None:
            return changed.needed_bytes, max(0, size), "bytes"
        terms = {term.name: int(term.expected) for term in held.terms}
        # Each scheduler has its share of the blocks and of the requests.
        schedulers = terms.get("schedulers", 1)
        requests = -(-changed.request.replica_batch // schedulers)
        return _blocks_of(requests, terms), terms["usable_blocks"] // schedulers, "blocks"
    except KvplanError:
        return None, None, "bytes"


def _blocks_of(requests: int, terms: Mapping[str, int]) -> int:
    """Blocks of so many requests; under a cache policy the prompts that are read have more."""
    peak = terms.get("prompt_blocks", 0)
    each = terms.get("blocks_per_request", peak)
    return requests * each + min(requests, terms.get("prompts", 0)) * (peak - each)


def speed(plan: Plan) -> ExplainedSection | None:
    """The bound on speed; ``None`` without a GPU, or if nothing is known of it."""
    found = plan.speed
    if found is None or not found.steps:
        return None
    last = found.steps[-1].name
    places = _SPEED | ({last: "prefill_s_bound"} if last in ("prompt_s", "prefill_s") else {})
    figures: list[ExplainedFigure] = []
    for number, one in enumerate(found.steps):
        place = f"speed.{places[one.name]}" if one.name in places else f"speed.steps.{number}.expected"
        source = found.source if one.name == "decode_tokens_per_s" else ""
        figures.append(figure_of(one, place, definition=str(found.definition), source=source))
    words = [f"{what} is bound by {by}." for what, by in (("A step", found.bound_by), ("A prompt", found.prefill_bound_by)) if by]
    return ExplainedSection(
        name="speed",
        title="speed",
        about="The fastest that any engine could be: a step must read its weights and caches once, and compute its operations.",
        figures=tuple(figures),
        remarks=tuple(words),
    )
