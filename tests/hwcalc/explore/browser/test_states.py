"""The page's numbers are those of the command line that it shows, state by state."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from tests.hwcalc.explore.browser.models import MODELS
from tests.hwcalc.explore.browser.watched import Watched
from tests.hwcalc.explore.planned import agree, planned

EACH = 25
"""States of each model, in which each engine has its turn five times."""
_BATCHES = (1, 1, 2, 3, 4, 7, 8, 16, 33, 64, 100, 256, 1000, 4096)


def states(payload: Mapping[str, Any], model: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """States of a model, drawn from all choices of the page: the engines in turn, lengths by their logarithm."""
    draw = random.Random(model["id"])  # noqa: S311 - the same states in every run
    least, most = payload["lengths"]["least"], payload["lengths"]["most"]
    out = []
    for number in range(count):
        engine = payload["engines"][number % len(payload["engines"])]
        runs = model["engines"].get(engine["name"], {})
        layouts = [one for one in payload["layouts"] if one["tp"] == 1 or not engine.get("splits_layers")]
        seq = int(least * (most / least) ** draw.random())
        out.append({
            "model": model["id"],
            "engine": engine["name"],
            "gpu": draw.choice(payload["gpus"])["id"],
            **draw.choice(layouts),
            "seq": draw.choice((seq, seq, 1 << seq.bit_length() - 1, least, most)),
            "batch": draw.choice(_BATCHES),
            "dtype": draw.choice(runs.get("dtypes", [""])),
            "weights": draw.choice(runs.get("weights", [""])),
            "policy": None,
            "hand": None,
        })  # fmt: skip
    return out


@pytest.mark.parametrize("name", MODELS)
def test_equal_integers(page: Watched, name: str) -> None:
    """Every number of an answer is that of the plan; what the page refuses the plan refuses, in the same words."""
    payload = page.run(
        "(name) => { const { lengths, engines, gpus, layouts, models } = kvplan.payload;"
        " return { lengths, engines, gpus, layouts, model: models.find((model) => model.id === name) }; }",
        name,
    )
    model = payload["model"]
    asked = states(payload, model, EACH)
    rows = page.run("(states) => states.map((state) => [kvplan.answer(state), kvplan.command(state)])", asked)
    # What an engine refuses altogether has one reason, and a plan may name another one that is also true.
    refused = {engine for engine, runs in model["engines"].items() if "refused" in runs and "dtypes" not in runs}
    wrong, answered, moved = [], 0, 0
    for state, (answer, command) in zip(asked, rows, strict=True):
        expected = planned(command)
        if not agree(answer, expected) and not (state["engine"] in refused and isinstance(expected, str)):
            wrong.append((command, answer, expected))
        answered += "refused" not in answer
        moved += f" --seq {state['seq']}" not in command

    assert not wrong, f"{len(wrong)} of {len(rows)}, the first: {wrong[:3]}"
    assert answered
    assert moved <= len(rows) // 2
