"""LMDeploy's memory as a form: the same integers as the plan, over a sample of the catalog, one by one and as arrays."""

from __future__ import annotations

import random
from typing import Any, Final

import pytest

from hwcalc import load_model
from hwcalc.planner.context import open_request
from hwcalc.units import GIB
from tests.effort import cases
from tests.hwcalc.engines.form_points import compare_plans, compare_sample
from tests.hwcalc.form_answers import form_of

SAMPLED: Final = cases(80, 200)
POINTS: Final = 6
QWEN: Final = "Qwen/Qwen3-8B"
UNLIKE: Final = (
    QWEN,
    "deepseek-ai/DeepSeek-V3.2",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "mistralai/Mistral-7B-Instruct-v0.1",
    "openai/gpt-oss-20b",
)
"""Models of one kind of blocks: plain, sparse latents, states beside, a window of the whole model, and one of some layers."""
GPUS: Final = (None, "h100-sxm5-80gb", "h100-sxm5-80gb", "l4", "b200-180gb", "rtx-4090", "h200-sxm-141gb")
LAYOUTS: Final[tuple[dict[str, int], ...]] = ({}, {}, {"tp": 2}, {"tp": 8}, {"dp": 2}, {"tp": 2, "dp": 3})
OPTIONS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("backend", ("turbomind",)),
    ("quant_policy", ("4", "8", "16", "42")),
    ("cache_max_entry_count", ("0.1", "0.5", "0.95")),
    ("cache_block_seq_len", ("32", "64", "128")),
    ("max_batch_size", ("1", "8", "256", "5000")),
    ("max_prefill_token_num", ("1024", "65536")),
    ("num_gpu_blocks", ("16", "17", "5000")),
    ("fp32_mamba_ssm_dtype", ("true",)),
)


def asked_of(draw: random.Random) -> dict[str, Any]:
    """Options by chance, without length and batch."""
    options = {name: draw.choice(values) for name, values in OPTIONS if draw.random() < 0.15}
    asked = {"gpu": draw.choice(GPUS), "dtype": draw.choice((None, None, "fp8", "int4"))}
    given = {"kv_memory": 20 * GIB} if asked["gpu"] and draw.random() < 0.1 else {}
    prompt = {"prompt": 1} if draw.random() < 0.3 else {}
    return {"engine": "lmdeploy", **asked, **draw.choice(LAYOUTS), "engine_options": options, **given, **prompt}


def test_a_form_is_its_requests() -> None:
    """Both back ends, windows, states and layouts; at lengths and batches by chance."""
    forms, curves, verdicts = compare_sample(SAMPLED, POINTS, UNLIKE, asked_of)

    assert curves > forms > SAMPLED // 4
    assert {(True,) * 3, (False,) * 3} <= verdicts


@pytest.mark.parametrize("name", UNLIKE)
def test_every_number_of_the_plan(name: str) -> None:
    """The longest length and the most sequences too, which are searched for on the form."""
    compare_plans(name, "lmdeploy", many=900)


def test_a_session_ends_a_block_earlier() -> None:
    """With 17 blocks of 64 one sequence has 15 x 64 tokens, though two have the 16 blocks that are nobody's else."""
    options = {"num_gpu_blocks": "17"}
    form = form_of(
        open_request(load_model(QWEN, offline=True), engine="lmdeploy", gpu="h100-sxm5-80gb", seq=1, engine_options=options)
    )

    assert form is not None
    assert form.holds(15 * 64, 1)
    assert not form.holds(15 * 64 + 1, 1)
    assert form.holds(8 * 64, 2)
    assert not form.holds(8 * 64 + 1, 2)


@pytest.mark.parametrize(
    "change", [{"shared_prefix": 100, "batch": 2}, {"samples": 2, "prompt": 100}, {"lengths": (100, 200), "seq": None}]
)
def test_no_form_rather_than_a_wrong_one(change: dict[str, Any]) -> None:
    """Sequences that are unlike or share something have none."""
    asked: dict[str, Any] = {"engine": "lmdeploy", "gpu": "h100-sxm5-80gb", "seq": 512, **change}
    opened = open_request(load_model(QWEN, offline=True), **asked)

    assert opened.form() is None
    assert opened.curve() is None
