"""The answer of a form is that of a plan, number by number, and so are the solvers."""

from __future__ import annotations

import random
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hwcalc import KvplanError, load_model, plan
from hwcalc.engines.forms import Blocks, Constant, Curve, Early, MemoryForm, PartForm, Term
from hwcalc.formulas import LayerNumbers
from hwcalc.formulas.stairs import Stair
from hwcalc.planner.asked import read_options
from hwcalc.planner.context import open_request
from hwcalc.planner.verdict import UNLIMITED, Verdict
from hwcalc.profiles.catalog import list_models
from tests.hwcalc.command import QWEN
from tests.hwcalc.form_answers import answer, differences, form_of, longest, most, verdict

DRAWN: Final = 50
OF_EVERY_KIND: Final = (
    "mistralai/Mistral-7B-v0.1", "google/gemma-3-27b-it", "meta-llama/Llama-4-Scout-17B-16E-Instruct", "deepseek-ai/DeepSeek-V3.2",
    "deepseek-ai/DeepSeek-V4-Flash", "facebook/bart-large", "RWKV/rwkv-5-world-3b", "google/gemma-4-E4B-it", "Zyphra/Zamba2-2.7B",
    "LiquidAI/LFM2-1.2B", "MiniMaxAI/MiniMax-Text-01", "moonshotai/Kimi-Linear-48B-A3B-Instruct", "ai21labs/AI21-Jamba2-3B",
    "Qwen/Qwen3-Next-80B-A3B-Instruct", "nvidia/Llama-3_3-Nemotron-Super-49B-v1",
)  # fmt: skip
LENGTHS: Final = (1, 3, 127, 128, 129, 1000, 4095, 4096, 4097, 32_768, 99_999, 262_143)
BATCHES: Final = (1, 2, 5, 16, 100)
GPUS: Final = ("h100-sxm5-80gb", "l4", "rtx-4090", "mi300x", "b200-180gb")
LAYOUTS: Final[tuple[dict[str, int], ...]] = ({}, {"tp": 2}, {"tp": 8}, {"dp": 4}, {"tp": 2, "dp": 2}, {"pp": 2})
DTYPES: Final = {"reference": (None, "fp8_e4m3", "q8_0:q4_0", "int4"), "transformers": (None, "fp16", "fp32")}
WEIGHTS: Final = (None, None, "fp8", "bnb4", "bf16")
CACHES: Final = ("dynamic", "dynamic", "static", "offloaded", "quantized")


def planned(model: Any, tokens: int, sequences: int, options: dict[str, Any]) -> Any:
    """The plan, or ``None`` if it is refused."""
    try:
        return plan(model, seq=tokens, batch=sequences, **options)
    except KvplanError:
        return None


@pytest.mark.parametrize("engine", ["reference", "transformers"])
def test_an_answer_is_its_plan(engine: str) -> None:
    """Of drawn models, formats, layouts, GPUs, lengths and batches. The form is made at another length than it is asked for."""
    draw, compared = random.Random(f"forms {engine}"), 0  # noqa: S311 - a sample
    for name in (*OF_EVERY_KIND, *draw.sample(list_models(), DRAWN)):
        model = load_model(name, offline=True)
        options: dict[str, Any] = {"engine": engine, "gpu": draw.choice(GPUS), **draw.choice(LAYOUTS)}
        options |= {"dtype": draw.choice(DTYPES[engine]), "weights": draw.choice(WEIGHTS)}
        if engine == "transformers":
            options["engine_options"] = {"cache": draw.choice(CACHES)}
        try:
            form = form_of(open_request(model, seq=draw.choice(LENGTHS), batch=draw.choice(BATCHES), **options))
        except KvplanError:
            continue
        for _ in range(2):
            tokens, sequences = draw.choice((*LENGTHS, model.max_position_embeddings or 1)), draw.choice(BATCHES)
            if form is not None and (found := planned(model, tokens, sequences, options)) is not None:
                assert differences(form, found) == {}, (name, options, tokens, sequences)
                compared += 1

    assert compared >= DRAWN // 2


@pytest.mark.parametrize(
    "options",
    [{"policy": "snapkv:compression_ratio=0.5"}, {"shared_prefix": 100}, {"samples": 2, "prompt": 50}],
)
def test_what_has_no_form(options: dict[str, Any]) -> None:
    """What is dropped or shared is planned at each length by itself."""
    asked = read_options({"gpu": "l4", "seq": 1000, **options}).keywords()

    assert form_of(open_request(load_model(QWEN), **asked)) is None


def toy(most_tokens: int | None = None, **more: Any) -> MemoryForm:
    """Two layers of 10 bytes a token, on a GPU of 1,000 bytes of which 90 to 110 are weights."""
    term = Term(kind="toy", layers=LayerNumbers((0, 1)), count=2, unit_bytes=10, stairs=((Stair(),),), rule="n")
    low, expected, high = map(Constant.of, (90, 100, 110))
    part = PartForm(name="weights", section="weights", low=low, expected=expected, high=high)
    curve = Curve(gpus=((term,),), total=(term,), most_tokens=most_tokens)
    return MemoryForm(curve=curve, parts=(part,), usable=(1000, 1000, 1000), total_bytes=1000, **more)


def test_worked_numbers() -> None:
    """900 bytes are 45 tokens of 20 bytes; 890 are 44; three sequences of 15 tokens take all 900, three of 16 would take 960."""
    form = toy()

    assert [longest(form, 1, 1, end) for end in ("low", "expected", "high")] == [44, 45, 45]
    assert (longest(form, 1, 3), most(form, 15, 1), most(form, 16, 1)) == (15, 3, 2)
    assert [verdict(form, tokens, 1) for tokens in (44, 45, 46)] == [Verdict.FITS, Verdict.PROBABLY, Verdict.NO]
    assert answer(form, 45, 1)["fit"] == {
        "usable_bytes": 1000, "needed_bytes": 1000, "needed_low_bytes": 990, "needed_high_bytes": 1010, "headroom_bytes": 0,
        "verdict": "probably", "max_seq": 44, "expected_max_seq": 45, "max_batch": 0, "expected_max_batch": 1,
    }  # fmt: skip


def test_limits() -> None:
    """The model's own length, or a longer planned one; the engine's most sequences and tokens; blocks, of which one is kept back."""
    assert [longest(toy(model_tokens=30), tokens, 1) for tokens in (10, 40, 100)] == [30, 40, 45]
    assert (most(toy(most_sequences=2), 1, 1), longest(toy(most_sequences=2), 1, 3)) == (2, 0)
    short = toy(most_tokens=20)
    assert (longest(short, 1, 1), short.holds(21, 1)) == (20, False)
    assert longest(toy(blocks=Blocks(bytes=100, null=1)), 1, 1) == 40
    # Three replicas of one GPU each have their own share of the sequences.
    assert most(toy(dp=3), 15, 1) == 9


def test_early_lengths() -> None:
    """A part of 840 bytes at one token, 860 at two and 880 from three on: of 900, 40 hold two tokens of 20 bytes, and three lack them."""
    part = Early.of((840, 860), Constant.of(880))
    early = PartForm(name="early", section="activations", low=part, expected=part, high=part)
    form = replace(toy(), parts=(*toy().parts, early))

    assert [form.at(tokens, 1).left("expected") for tokens in (1, 2, 3, 4)] == [60, 40, 20, 20]
    assert (longest(form, 1, 1), longest(form, 100, 3), longest(form, 100, 4)) == (2, 1, 0)


def test_nothing_needed_is_unlimited() -> None:
    """Without a cache any length fits, and any number of sequences."""
    form = toy(dp=1)
    empty = MemoryForm(curve=Curve(gpus=((),), total=()), parts=form.parts, usable=form.usable, total_bytes=1000)

    assert longest(empty, 1, 1) == most(empty, 1, 1) == UNLIMITED


@given(st.integers(1, 60), st.integers(1, 60), st.sampled_from(["low", "expected", "high"]), st.integers(1, 100))
def test_a_solver_finds_the_last_that_holds(tokens: int, sequences: int, end: str, block: int) -> None:
    """And where it starts from makes no difference."""
    form = toy(blocks=Blocks(bytes=block))

    assert longest(form, tokens, sequences, end) == max((n for n in range(1, 60) if form.holds(n, sequences, end)), default=0)
    assert most(form, tokens, sequences, end) == max((n for n in range(1, 60) if form.holds(tokens, n, end)), default=0)
