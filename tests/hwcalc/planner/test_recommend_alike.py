"""GPUs that an engine treats alike: what is read off one of them, beside a search that opens the request on every GPU."""

from __future__ import annotations

import random

import pytest

from hwcalc import load_model, recommend
from hwcalc.engines.reference import Reference
from hwcalc.errors import KvplanError
from hwcalc.planner.context import open_request
from hwcalc.planner.recommend_alike import Alike
from hwcalc.profiles.catalog import list_models
from hwcalc.profiles.gpus import find_gpu

DRAW = random.Random(18)  # noqa: S311 - which models are compared
MODELS = DRAW.sample(sorted(list_models()), 24)


@pytest.mark.parametrize("name", MODELS)
def test_the_answer_is_that_of_every_gpu_by_itself(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerators and instances, by any option: offers, counts, notes, and errors."""
    draw = random.Random(name)  # noqa: S311
    model = load_model(name, offline=True)
    options = {
        "seq": draw.choice([1, 2048, 8192]),
        "batch": draw.choice([1, 3, 64]),
        "instances": draw.choice([None, None, "all"]),
        "any_layout": draw.random() < 0.3,
        "max_gpus": draw.choice([1, 8, 16]),
        "margin": draw.choice([None, "0", "10%"]),
        "weights": draw.choice([None, "fp8", "bf16"]),
        "dtype": draw.choice([None, "fp8"]),
        "limit": 3,
    }

    def answer() -> object:
        try:
            return recommend(model, **options).to_dict()  # type: ignore[arg-type]
        except KvplanError as error:
            return type(error), error.message, error.hint

    assert Reference.alike_on_gpus
    alike = answer()
    monkeypatch.setattr(Reference, "alike_on_gpus", False)

    assert answer() == alike


@pytest.mark.parametrize("name", MODELS)
def test_a_layout_that_is_not_opened_would_hold_nothing(name: str) -> None:
    """The bound by which a layout is passed over is never more than what the fullest GPU takes, whatever the layout."""
    draw = random.Random(name)  # noqa: S311
    model = load_model(name, offline=True)
    opened = open_request(model, engine="reference", seq=draw.choice([1, 3000]), batch=draw.choice([1, 3, 64]))
    alike, gpu = Alike(opened), find_gpu("h100")
    if alike.on(gpu) is None:
        return
    for gpus in (1, 2, 4, 8, 16):
        for layout, least_bytes in alike.layouts(gpus, 8, any_layout=True):
            need = alike.need("h100", gpu, layout)

            assert need is None or least_bytes <= need.expected_bytes + need.cache_bytes
