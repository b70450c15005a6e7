"""The page speaks as the command line does: verdicts, why something does not fit, the layers of a model."""

from __future__ import annotations

from typing import Any

import pytest

from hwcalc.errors import KvplanError
from hwcalc.library.layer_bytes import layer_bytes
from hwcalc.planner.verdict import Verdict
from tests.effort import cases, sample
from tests.hwcalc.explore.browser.test_states import states
from tests.hwcalc.explore.browser.watched import Watched
from tests.hwcalc.explore.planned import plan_of

LAYERS = (
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1",
    "google/gemma-4-E2B-it",
    "deepseek-ai/DeepSeek-V3.2",
    "facebook/bart-large",
)
"""Models with layers that keep nothing, that share a cache, and that keep two."""
NO_WORDS = "vLLM says: "
"""What an engine itself would say is in the plan alone."""


@pytest.mark.parametrize("name", sample(["Qwen/Qwen3-8B", "google/gemma-3-12b-it"], 1))
def test_the_verdict_and_its_reason(small: Watched, name: str) -> None:
    """The verdict of the page is that of the plan in its words, and so is why it does not fit."""
    payload = small.run("() => ({...kvplan.payload, texts: [], terms: [], curves: [], parts: [], rests: []})")
    model = next(one for one in payload["models"] if one["id"] == name)
    said: set[str] = set()
    for state in states(payload, model, cases(25, 60)):
        small.set(**state)
        command = small.run("() => kvplan.command()")
        verdict, reason, refused = small.run(
            "() => ['.verdict', '.reason', '.refused'].map((one) => document.querySelector(`#answer ${one}`))"
            ".map((one) => one.hidden ? '' : one.textContent)"
        )
        try:
            plan = plan_of(command)
        except KvplanError:
            assert refused
            continue
        assert plan.fit is not None
        assert (verdict, bool(reason)) == (plan.fit.verdict.text, not plan.fit.fits), command
        assert reason == plan.reason or plan.reason.startswith(NO_WORDS), command
        said.add(verdict)

    assert said >= {Verdict.FITS.text, Verdict.NO.text}


def test_all_verdicts(small: Watched) -> None:
    """The words of a verdict in a table are those of the command line as well."""
    small.settle(engine="vllm", gpu="l4", count=1, tp=1, pp=1, seq=1 << 20, batch=8)
    small.run(
        "() => { document.querySelector('#engines details').open = true; document.querySelector('#engines').scrollIntoView(); }"
    )
    small.page.wait_for_function("() => document.querySelector('#engines tbody tr')")
    words = small.run("() => [...document.querySelectorAll('#engines tbody tr')].map((row) => row.lastElementChild.textContent)")

    assert set(words) <= {verdict.text for verdict in Verdict}


@pytest.mark.parametrize("name", LAYERS)
def test_a_cell_for_each_layer(page: Watched, name: str) -> None:
    """The strip has the layers of the plan with their bytes, and those that keep nothing too."""
    page.run("() => { document.querySelector('#strip details').open = true; document.querySelector('#strip').scrollIntoView(); }")
    for engine in ("reference", "transformers", "vllm"):
        change: dict[str, Any] = {"model": name, "engine": engine, "gpu": "b200-180gb", "seq": 4_000, "batch": 1}
        page.settle(**change)
        command, answer = page.run("() => [kvplan.command(), kvplan.answer()]")
        if "refused" in answer:
            continue
        rows = page.run(
            "() => [...document.querySelectorAll('#strip tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))"
        )
        assert [(row[0], row[-1]) for row in rows] == [
            (str(one.number), f"{one.bytes:,}") for one in layer_bytes(plan_of(command))
        ]


def test_a_policy_that_takes_more_than_it_saves(small: Watched) -> None:
    """Its bar has what it takes beside the cache, so that bar and verdict agree, on every GPU."""
    rows = "() => [...document.querySelectorAll('#policies .bar-row')].map((row) => row.innerText)"
    small.settle(model="Qwen/Qwen3-8B", engine="reference", gpu="l4", seq=8_192, batch=1, count=1, policy=None)
    small.run("() => document.querySelector('#policies').scrollIntoView()")
    (h2o,) = (row for row in small.run(rows) if "h2o:" in row)
    assert "beside it" in h2o
    assert "more than with every token kept" in h2o

    assert "does not fit" in h2o

    small.settle(gpu="h100-sxm5-80gb")
    (h2o,) = (row for row in small.run(rows) if "h2o:" in row)
    assert "fits" in h2o
    assert "H100" in small.page.locator("#policies .lead").inner_text()


def test_past_the_end_of_the_model(small: Watched) -> None:
    """The line of the verdict says it."""
    small.set(model="Qwen/Qwen3-8B", engine="vllm", gpu="h100-sxm5-80gb", seq=200_000, batch=1, count=1, policy=None)
    line = small.page.locator("#answer .beyond").inner_text()

    assert "maximum of 40,960" in line
    assert "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1" in line
