"""Dimensions set by hand: polynomials give the numbers of the plan with these options, everywhere on the sliders."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from functools import cache
from math import prod
from typing import Any, Final

import pytest

from hwcalc.explore.build import PageModel
from hwcalc.explore.hand import on_rank
from hwcalc.explore.runs import PageAxes, PageLayout, every, page_engines
from hwcalc.library.load import load, with_dimensions
from hwcalc.library.plan import plan_loaded
from hwcalc.model import ModelSpec
from hwcalc.planner.asked import Access
from tests.effort import cases
from tests.hwcalc.explore.evaluate import form_at, options_at, payload_of_memory
from tests.hwcalc.form_answers import differences

MODELS: Final = ("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B", "google/gemma-3-27b-it")
LAYOUTS: Final = ((1, 1), (2, 2), (4, 1), (8, 4), (8, 8))
AXES: Final = PageAxes(gpus=("l4", "h200-sxm-141gb"), layouts=tuple(PageLayout(count=count, tp=tp) for count, tp in LAYOUTS))
ACCESS: Final = Access(offline=True)
POINTS: Final = cases(15, 30)


@cache
def _payload(name: str) -> dict[str, Any]:
    model = PageModel(spec=load(name, ACCESS), argument=name, changed=with_dimensions(name, ACCESS, {}))
    found: dict[str, Any] = json.loads(json.dumps(payload_of_memory((model,), AXES)))
    return found


class _PutIn:
    """A pool with numbers in the place of polynomials."""

    def __init__(self, pool: list[Any], values: Mapping[str, int]) -> None:
        self._pool, self._values = pool, values

    def __getitem__(self, place: int) -> Any:
        return self._put(self._pool[place])

    def _put(self, piece: Any) -> Any:
        if isinstance(piece, dict):
            if piece.keys() == {"max"}:
                return max(map(self._put, piece["max"]))
            return {name: self._put(one) for name, one in piece.items()}
        if not isinstance(piece, list):
            return piece
        if piece and all(isinstance(one, list) and len(one) == 2 and _are_names(one[1]) for one in piece):
            value = sum(number * prod(self._values[name] for name in names) for number, names in piece)
            return int(value) if value == int(value) else value
        return [self._put(one) for one in piece]


def _are_names(one: object) -> bool:
    return isinstance(one, list) and all(isinstance(name, str) for name in one)


def _drawn(draw: random.Random, ranges: Mapping[str, Mapping[str, int]], tp: int) -> dict[str, int]:
    """Dimensions on the sliders that go together."""
    while True:
        found = {name: draw.randrange(one["least"], one["most"] + 1, one["step"]) for name, one in ranges.items()}
        divisors = [heads for heads in range(tp, ranges["kv_heads"]["most"] + 1, tp) if not found["heads"] % heads]
        if divisors:
            return {**found, "kv_heads": draw.choice(divisors)}


@pytest.mark.parametrize("name", MODELS)
def test_numbers_by_hand_are_those_of_the_plan(name: str) -> None:
    """States drawn from all engines, formats, layouts and dimensions: all numbers of the answer are equal."""
    payload = _payload(name)
    (model,) = payload["models"]
    hand = model["hand"]
    changed = with_dimensions(name, ACCESS, {})
    assert changed is not None
    assert isinstance(hand, dict), hand
    draw = random.Random(f"by hand {name}")  # noqa: S311
    described = {**model, "engines": hand["engines"]}
    compared = 0
    for number in range(POINTS):
        engine = page_engines()[number % len(page_engines())]
        runs = hand["engines"][engine]
        if "curve" not in runs:
            continue
        place = draw.choice(every((len(runs["dtypes"]), 1, len(payload["layouts"]), len(payload["gpus"]))))
        options = options_at(payload, described, engine, place)
        dimensions = _drawn(draw, hand["dimensions"], options.get("tp", 1))
        ranks = on_rank(dimensions, options.get("tp", 1))
        pools = {pool: _PutIn(payload[pool], ranks) for pool in ("terms", "curves", "parts", "sums", "rests")}
        form = form_at({**payload, **pools}, described, engine, place)
        if isinstance(form, str):
            continue
        given = {name: value for name, value in options.items() if value is not None}
        seq, batch = draw.randint(max(128, form.least_tokens), 40_000), draw.choice((1, 3, 16))
        found = plan_loaded(changed(dimensions), {"seq": seq, "batch": batch, **given})
        assert differences(form, found) == {}, (dimensions, given, seq, batch)
        compared += 1
    assert compared >= POINTS // 3


def test_a_model_that_cannot_have_other_dimensions_says_so_at_once() -> None:
    """Its first refusal is the sentence; no other model is made for each format, layout and accelerator."""
    name, asked = "nvidia/Llama-3_3-Nemotron-Super-49B-v1", []
    changed = with_dimensions(name, ACCESS, {})
    assert changed is not None

    def counted(dimensions: Mapping[str, int]) -> ModelSpec:
        asked.append(dimensions)
        return changed(dimensions)

    payload = payload_of_memory((PageModel(spec=load(name, ACCESS), argument=name, changed=counted),), AXES)
    assert "--kv-heads changes nothing" in payload["models"][0]["hand"]
    assert len(asked) <= 4, "all dimensions, then all but the layers"
