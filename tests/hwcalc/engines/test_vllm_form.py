"""vLLM's memory in the normal form: the same integers as the plan, over a sample of the catalog."""

from __future__ import annotations

import random
import sys
from functools import partial
from types import FrameType
from typing import Any

import pytest
from msgspec.structs import replace

from hwcalc import load_model, plan
from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.forms import MemoryForm
from hwcalc.errors import KvplanError
from hwcalc.formulas import Stack
from hwcalc.formulas.attention import FullAttention
from hwcalc.library.plan import plan_loaded
from hwcalc.model import ModelSpec
from hwcalc.planner.asked import read_options
from hwcalc.planner.context import open_request
from hwcalc.planner.result import Plan
from hwcalc.planner.solve import last_yes
from hwcalc.planner.verdict import Verdict
from hwcalc.profiles.catalog import list_models
from hwcalc.units import MOST_TOKENS

EACH = 5
"""Of so many models one is planned; with 1 it takes minutes, and finds no other fault."""
UNLIKE = (
    "google/gemma-3-27b-it",
    "deepseek-ai/DeepSeek-V3",
    "deepseek-ai/DeepSeek-V3.2",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    "openai/gpt-oss-20b",
    "state-spaces/mamba-2.8b-hf",
)
"""Models whose layers form groups in different ways."""
ENGINES = ("vllm", "vllm", "vllm", "vllm@0.27", "vllm@0.19")
GPUS = ("h100-sxm5-80gb", "l4", "rtx-4090", "a100-sxm4-80gb", "h200-sxm-141gb", "b200-180gb", "mi300x")
DTYPES = ("auto", "auto", "fp8", "fp8_e5m2")
WEIGHTS = (None, None, "fp8", "awq")
LAYOUTS = ((1, 1, 1), (1, 1, 1), (2, 1, 1), (4, 1, 1), (8, 1, 1), (1, 1, 2), (2, 1, 2), (1, 2, 1))
LENGTHS = (128, 129, 1_000, 4_095, 4_096, 8_193, 32_768, 100_001, 131_072, 1_000_000)
BATCHES = (1, 2, 3, 8, 33, 256, 257, 1_024, 1_025)


def asked_of(draw: random.Random) -> dict[str, Any]:
    """Options by chance, without length and batch."""
    tp, pp, dp = draw.choice(LAYOUTS)
    chosen = {"gpu": draw.choice(GPUS), "dtype": draw.choice(DTYPES), "weights": draw.choice(WEIGHTS)}
    return {"engine": draw.choice(ENGINES), **chosen, "tp": tp, "pp": pp, "dp": dp}


def open_asked(model: str, **given: Any) -> Occupancy:
    """A request by the options of the command line."""
    return open_request(load_model(model, offline=True), **read_options(given).keywords())


def form_of(model: ModelSpec, asked: dict[str, Any], seq: int, batch: int) -> MemoryForm | None:
    """The form of a family, from one of its requests."""
    opened = open_request(model, **asked, seq=seq, batch=batch)
    return opened.form()


def numbers_of(plan: Plan) -> dict[str, Any]:
    """What a plan says of memory."""
    fit, gpu = plan.fit, plan.memory.per_gpu
    assert fit is not None
    return {
        "total": plan.cache.total_bytes,
        "cache": (plan.cache.per_gpu_bytes, gpu.cache),
        "sections": (gpu.weights, gpu.activations, gpu.overhead, gpu.total),
        "needed": (fit.needed_low_bytes, fit.needed_bytes, fit.needed_high_bytes),
        "usable": (fit.usable_bytes, fit.headroom_bytes),
        "verdict": (fit.verdict, fit.fits),
        "longest": (fit.max_seq, fit.expected_max_seq),
        "most": (fit.max_batch, fit.expected_max_batch),
    }


def numbers_by(form: MemoryForm, model: ModelSpec, tokens: int, sequences: int) -> dict[str, Any]:
    """The same by the form alone."""
    needed = form.at(tokens, sequences).needed_bytes
    left = {end: form.at(tokens, sequences).left(end) for end in ("low", "expected", "high")}
    usable = form.usable[1]
    sections = [form.at(tokens, sequences).parts_bytes("expected", name) for name in ("weights", "activations", "overhead")]
    holds = {end: form.holds(tokens, sequences, end) for end in left}
    bound = max(model.max_position_embeddings or MOST_TOKENS, tokens)
    many = form.most_sequences
    assert many is not None
    return {
        "total": form.curve.total_bytes(tokens, sequences),
        "cache": (needed, needed),
        "sections": (*sections, sum(sections) + needed),
        "needed": (max(0, usable - left["high"] + needed), usable - left["expected"] + needed, usable - left["low"] + needed),
        "usable": (usable, left["expected"] - needed),
        "verdict": (Verdict.of(holds["expected"], holds["low"], holds["high"]), holds["expected"]),
        "longest": tuple(last_yes(partial(form.holds, sequences=sequences, end=end), bound) for end in ("low", "expected")),
        "most": tuple(last_yes(partial(form.holds, tokens, end=end), many) for end in ("low", "expected")),
    }


def test_every_number_of_the_plan() -> None:
    """Models, formats, layouts, GPUs, lengths and batches by chance: the form gives each number of the plan, to the byte."""
    draw, compared, without = random.Random(16), 0, []  # noqa: S311 - no secret
    for name in (*UNLIKE, *UNLIKE, *list_models()[::EACH]):
        model, asked = load_model(name, offline=True), asked_of(draw)
        try:
            form = form_of(model, asked, draw.choice(LENGTHS), draw.choice(BATCHES))
        except KvplanError:
            continue
        if form is None:
            without.append(name)
            continue
        for _ in range(2):
            tokens, sequences = draw.choice(LENGTHS), draw.choice(BATCHES)
            found = numbers_of(plan_loaded(model, {**asked, "seq": tokens, "batch": sequences}))
            assert numbers_by(form, model, tokens, sequences) == found, (name, asked, tokens, sequences)
            compared += 1
    assert compared > 150, without
    assert len(without) < compared // 4, without


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("Qwen/Qwen3-8B", {"engine": "vllm@0.19", "engine_options": {"num_gpu_blocks_override": "100"}}),
        ("Qwen/Qwen3-8B", {"engine": "vllm@0.15", "pp": 2}),
        ("Qwen/Qwen3-8B", {"shared_prefix": 100, "batch": 2}),
        ("Qwen/Qwen3-8B", {"policy": "rkv"}),
    ],
)
def test_no_form_rather_than_a_wrong_one(model: str, options: dict[str, Any]) -> None:
    """Where the check before start-up asks for more than blocks, or requests have something in common or drop something, there is none."""
    opened = open_asked(model, **({"engine": "vllm", "gpu": "h100-sxm5-80gb", "seq": 512} | options))

    assert opened.form() is None


def test_the_first_lengths() -> None:
    """A request that is shorter than a batch has the form of the longer ones, which is right at all lengths: with 1,024 sequences 8 tokens fill it."""
    short, long = (open_asked("Qwen/Qwen3-8B", engine="vllm", gpu="h100-sxm5-80gb", seq=seq) for seq in (1, 4_096))
    form, other = short.form(), long.form()

    assert form is not None
    assert other is not None
    assert (form.curve, form.usable, form.blocks) == (other.curve, other.usable, other.blocks)
    ends = ("low", "expected", "high")
    assert [form.at(tokens, 1).left(end) for tokens in range(1, 12) for end in ends] == [
        other.at(tokens, 1).left(end) for tokens in range(1, 12) for end in ends
    ]
    activations = [form.at(tokens, 1).parts_bytes("expected", "activations") for tokens in (*range(1, 10), 4_096)]
    planned = [short.sized(seq=tokens).budget for tokens in (*range(1, 10), 4_096)]
    assert activations == [
        sum(one.expected for one in budget.parts if one.section == "activations") for budget in planned if budget
    ]
    assert activations[0] < activations[6] < activations[7] == activations[-1]


def test_gemma_by_hand() -> None:
    """Gemma-3-27B: 62 layers, every sixth full, in groups of ten; a page is 2 x 16 tokens x 16 heads x 128 x 2 bytes, 262,144 of 131,072 a side."""
    opened = open_asked("google/gemma-3-27b-it", engine="vllm", gpu="h100-sxm5-80gb", seq=32_768)
    form = opened.form()

    assert form is not None
    windowed, full = sorted(form.curve.gpus[0], key=lambda term: -term.count)
    assert (windowed.kind, full.kind) == ("sliding", "full")
    assert full.units(32_768) == 2_048
    assert windowed.units(32_768) == windowed.units(1_000_000)
    assert sum(len(term.layers) for term in form.curve.total) == 62


def calls_of_plan(count: int) -> int:
    """How many functions the plan of a model of ``count`` layers calls, which all differ."""
    unlike = (
        FullAttention(num_attention_heads=1, num_key_value_heads=1, head_dim=8 * n, v_head_dim=8 * n) for n in range(1, count + 1)
    )
    model = replace(load_model("meta-llama/Llama-3.1-8B"), stack=Stack(tuple((kind,) for kind in unlike)))
    calls = 0

    def count_call(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count_call)
    try:
        plan(model, engine="vllm", seq=16, gpu="h100")
    finally:
        sys.setprofile(before)
    return calls


def test_work_grows_with_the_layers_and_not_with_their_square() -> None:
    """Of a model whose layers are all unlike, four times the layers are about four times the calls."""
    calls_of_plan(10)
    assert calls_of_plan(400) < 6 * calls_of_plan(100)
