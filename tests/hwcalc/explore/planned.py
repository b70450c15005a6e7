"""What the command line of a state gives, read as the program reads it, with the names that the page has."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from hwcalc import Plan, load_model
from hwcalc.errors import KvplanError
from hwcalc.explore.hand import DIMENSIONS
from hwcalc.explore.runs import LEAST_TOKENS
from hwcalc.library.plan import load_request
from hwcalc.model import ModelSpec
from hwcalc.planner.asked import read_options
from hwcalc.planner.plan import plan_model
from tests.hwcalc.command import read_plan

__all__ = ["agree", "plan_of", "planned"]


@cache
def _read(name: str) -> ModelSpec:
    """A model of the catalog."""
    return load_model(name, offline=True)


@cache
def plan_of(command: str) -> Plan:
    """The plan that a command line gives. It is made once."""
    named, given = read_plan(command)
    # With other dimensions, or an assumed type, the config is read anew. Advice would take longer than the plans.
    model = named if given.keys() & {*DIMENSIONS, "assume"} else _read(named)
    spec, request = load_request(model, read_options(given))
    return plan_model(spec, advise=False, **request)


def planned(command: str) -> dict[str, Any] | str:
    """What the command line gives: the plan's numbers as the page has them, or why there are none."""
    try:
        found = plan_of(command).to_dict()
    except KvplanError as error:
        return f"{error.message} {error.hint}".strip()
    fit, cache, per_gpu = found["fit"], found["cache"], found["memory"]["per_gpu"]
    if fit is None:
        return "\n".join(one["message"] for one in (*found["notes"], *found["warnings"]))
    return {
        "cache": {name: cache[name] for name in ("total_bytes", "per_gpu_bytes")},
        "per_gpu": {name: per_gpu[name] for name in ("weights", "cache", "activations", "overhead", "total")},
        "fit": {
            name: fit[name]
            for name in (
                *("usable_bytes", "needed_bytes", "needed_low_bytes", "needed_high_bytes", "headroom_bytes", "verdict"),
                *("max_seq", "expected_max_seq", "max_batch", "expected_max_batch"),
            )
        },
    }


def agree(answer: Mapping[str, Any], expected: Mapping[str, Any] | str) -> bool:
    """Whether the page says what the plan says. To a refusal the plan adds a command line that works.

    The page's lengths begin at :data:`LEAST_TOKENS`: of a limit below, it knows only that it is below.
    """
    if isinstance(expected, str):
        return answer.keys() == {"refused"} and answer["refused"] != "" and answer["refused"] in expected
    return _from_least(answer) == _from_least(expected)


def _from_least(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The answer, with no limits of length below those of the page."""
    if "fit" not in answer:
        return dict(answer)
    short = {name: 0 for name in ("max_seq", "expected_max_seq") if answer["fit"][name] < LEAST_TOKENS}
    return {**answer, "fit": {**answer["fit"], **short}}
