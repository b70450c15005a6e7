"""The page's numbers are those of the command line that it shows, state by state."""

from __future__ import annotations

import random
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hwcalc import load_model, plan
from hwcalc.cli.options import given_options
from hwcalc.cli.quick import read
from hwcalc.errors import KvplanError
from hwcalc.explore.axes import LEAST_TOKENS
from hwcalc.model import ModelSpec
from tests.hwcalc.explore.browser.models import MODELS
from tests.hwcalc.explore.browser.watched import opened

EACH = 104
"""States of each of the 20 models: 2,080 in all."""
DIMENSIONS = {"layers", "heads", "kv_heads", "head_dim"}
_BATCHES = (1, 1, 2, 3, 4, 7, 8, 16, 33, 64, 100, 256, 1000)


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


@cache
def read_once(name: str) -> ModelSpec:
    """A model of the catalog."""
    return load_model(name, offline=True)


def planned(command: str) -> dict[str, Any] | str:
    """What the command line gives: the plan's numbers as the page has them, or why there are none."""
    words = shlex.split(command)
    assert words[0] == "kvplan"
    line = read(words[1:])
    assert line is not None, command
    name, values = line
    assert name == "plan"
    given = given_options("plan", values)
    # Dimensions by hand change the config, from which the model is read anew.
    model = values["model"] if given.keys() & DIMENSIONS else read_once(values["model"])
    try:
        found = plan(model, **given).to_dict()
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


@pytest.mark.parametrize("name", MODELS)
def test_equal_integers(browser: Any, page_file: Path, name: str) -> None:
    """Every number of an answer is that of the plan; what the page refuses the plan refuses, in the same words."""
    with opened(browser, page_file.as_uri()) as page:
        payload = page.run("() => ({...kvplan.payload, texts: [], terms: [], curves: [], parts: [], rests: []})")
        model = next(one for one in payload["models"] if one["id"] == name)
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
