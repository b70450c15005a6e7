"""The memory equation of a GPU: its terms, parallel sizes, and the verdict."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from math import ceil
from typing import Any, Final

import pytest

from hwcalc import KvplanError, Plan, plan
from hwcalc.engines import ENGINES, find_engine
from hwcalc.engines.memory import Section
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.planner.result import FitInfo
from hwcalc.planner.verdict import Verdict
from hwcalc.profiles.engines import runtime_profile
from hwcalc.profiles.gpus import find_gpu, visible_memory
from hwcalc.report.exports import plan_markdown
from hwcalc.report.table import plan_table
from hwcalc.units import GIB, MIB
from tests.paths import GOLDEN as ROWS

LLAMA: Final = "meta-llama/Llama-3.1-8B"
GOLDEN: Final = json.loads((ROWS / "vllm.json").read_text(encoding="utf-8"))["cases"]
L4_MIB: Final = 22_558
WEIGHTS: Final = 16_060_522_496
"""Llama-3.1-8B in bf16: 8,030,261,248 parameters of two bytes."""


def fit_of(made: Plan) -> FitInfo:
    """The verdict, which must not be None."""
    assert made.fit is not None
    return made.fit


def terms(made: Plan) -> dict[str, int]:
    """The expected bytes of every term."""
    budget = fit_of(made).budget
    assert budget is not None
    return {part.name: part.expected for part in budget.parts}


def test_one_gpu() -> None:
    """22,558 MiB less 5 %; weights, 2,048 tokens of activations, 450 + 200 MiB of context, a workspace."""
    made = plan(LLAMA, seq=8192, gpu="l4")
    fit = fit_of(made)
    total = L4_MIB * MIB
    cache = 8192 * 32 * 8 * 256 * 2

    assert fit.usable_bytes == total - ceil(total * Fraction(1, 20))
    assert terms(made) == {
        "weights": WEIGHTS,
        # Three copies of 4,096 numbers and an inside of 3 x 14,336, in 16 bits; six bytes for each of 128,256 logits.
        "activations": 2 * 2048 * 3 * (4096 + 14_336) + 6 * 128_256,
        "context": (450 + 200) * MIB,
        "workspaces": 8_519_680,
    }
    assert fit.needed_bytes == cache + sum(terms(made).values())
    assert fit.headroom_bytes == fit.usable_bytes - fit.needed_bytes
    assert made.memory.per_gpu.total == fit.needed_bytes
    assert fit.needed_low_bytes < fit.needed_bytes < fit.needed_high_bytes
    assert "default-margin" in {note.code for note in made.notes}


@pytest.mark.parametrize(("given", "left"), [("0", 0), ("10%", 10), (0.25, 25)])
def test_the_margin(given: str | float, left: int) -> None:
    """A share of what programs see, rounded up to a byte; an engine with a share of its own leaves nothing more alone."""
    total = L4_MIB * MIB
    made = plan(LLAMA, seq=8192, gpu="l4", margin=given)

    assert fit_of(made).usable_bytes == total - ceil(Fraction(total * left, 100))
    assert "default-margin" not in {note.code for note in made.notes}
    own = fit_of(plan(LLAMA, seq=8192, gpu="l4", engine="vllm")).budget
    assert own is not None
    assert (own.requested_bytes, own.margin_bytes) == (ceil(total * 0.92), 0)
    assert fit_of(plan(LLAMA, seq=8192, gpu="l4", memory_utilization="80%")).usable_bytes == ceil(total * 0.8)


@pytest.mark.parametrize("wrong", ["100%", "-1%", "x", "5%%", "nan", "1e400", True, [], "0x1"])
def test_a_wrong_margin(wrong: Any) -> None:
    """A share below one."""
    with pytest.raises(UsageError, match="margin"):
        plan(LLAMA, seq=8192, gpu="l4", margin=wrong)


@pytest.mark.parametrize("engine", [*ENGINES])
@pytest.mark.parametrize("wanted", [{}, {"tp": 2}, {"pp": 3}, {"tp": 2, "pp": 2, "dp": 2}])
def test_the_sum_adds_up(engine: str, wanted: dict[str, Any]) -> None:
    """Terms, sections, the GPU and the verdict say the same."""
    places = find_engine(engine)[0].facts.splits_layers
    if places:
        wanted = {name: size for name, size in wanted.items() if name == "pp"}
    try:
        made = plan(LLAMA, seq=4096, batch=4, gpu="h100", engine=engine, **wanted)
    except UnsupportedError:
        # Engines without pipeline stages say so.
        assert "pp" in wanted
        return
    fit, memory = fit_of(made), made.memory
    budget = fit.budget

    assert budget is not None
    assert memory.activations is not None
    assert memory.overhead is not None
    by_section = {section: sum(part.expected for part in budget.parts if part.section == section.value) for section in Section}
    assert memory.per_gpu.weights == by_section[Section.WEIGHTS]
    assert memory.per_gpu.activations == by_section[Section.ACTIVATIONS]
    assert memory.per_gpu.overhead == by_section[Section.OVERHEAD]
    for name, total in (("activations", memory.activations.bytes), ("overhead", memory.overhead.bytes)):
        assert total == (sum(getattr(one, name) for one in memory.devices) or fit.gpus * getattr(memory.per_gpu, name))
    if places:
        assert memory.total_bytes == sum(one.total for one in memory.devices)
        assert made.cache.total_bytes == sum(one.cache for one in memory.devices)
        assert memory.per_gpu.total == max(one.total for one in memory.devices)
    assert memory.per_gpu.total == sum(by_section.values()) + made.cache.per_gpu_bytes == fit.needed_bytes
    assert budget.expected == budget.requested_bytes - sum(part.expected for part in budget.parts)
    assert fit.usable_bytes - fit.needed_high_bytes == budget.low - made.cache.per_gpu_bytes
    assert memory.overhead.low <= memory.overhead.bytes <= memory.overhead.high
    assert all(part.source for part in budget.parts)


def test_the_cache_of_a_rank() -> None:
    """Parallelism divides heads, layers, sequences and tokens; every rank keeps the whole latent."""
    token = 32 * 8 * 256 * 2

    def rank(model: str, **wanted: Any) -> int:
        return plan(model, seq=4096, **wanted).cache.per_gpu_bytes

    assert rank(LLAMA, tp=4) == 4096 * token // 4
    # Sixteen ranks for eight key/value heads: each has one.
    assert rank(LLAMA, tp=16) == 4096 * token // 8
    # 32 layers on three stages: 11, 11 and 10.
    assert rank(LLAMA, pp=3) == 4096 * token * 11 // 32
    # transformers gives the last stage what does not divide: 10, 10 and 12.
    assert rank(LLAMA, pp=3, engine="transformers") == 4096 * token * 12 // 32
    # Five sequences on two replicas: three and two.
    assert rank(LLAMA, dp=2, batch=5) == 3 * 4096 * token
    # 24 ranks are three for each of eight heads. 4,096 tokens over three ranks: 1,366 on the fullest.
    assert rank(LLAMA, tp=24, dcp=3) == 1366 * token // 8
    latent = 4096 * 61 * 576 * 2
    assert rank("deepseek-ai/DeepSeek-V3", tp=8) == latent
    assert rank("deepseek-ai/DeepSeek-V3", tp=8, dp=2, batch=2) == latent
    with pytest.raises(UsageError, match="layers"):
        rank(LLAMA, pp=33)


@pytest.mark.parametrize("engine", ["reference", "vllm", "transformers"])
@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        # One GPU is no eight ranks, and eight are not dealt out to three.
        ("mistralai/Mixtral-8x7B-v0.1", {"ep": 8}),
        ("mistralai/Mixtral-8x7B-v0.1", {"tp": 8, "ep": 3}),
        # The model has no experts.
        (LLAMA, {"tp": 2, "ep": 2}),
        # dcp reuses ranks of tp that hold the same head: there are none of them.
        (LLAMA, {"dcp": 2}),
        (LLAMA, {"tp": 8, "dcp": 3}),
        (LLAMA, {"tp": 8, "dcp": 8}),
    ],
)
def test_nothing_is_shared_with_gpus_that_are_not_there(engine: str, model: str, sizes: dict[str, Any]) -> None:
    """Mixtral does not fit one H100 because someone says ep 8: whatever the engine, the ranks must be there."""
    with pytest.raises(UsageError):
        plan(model, seq=4096, engine=engine, gpu="h100", **sizes)


def test_experts_that_do_not_divide() -> None:
    """An inner width of 14,336 is cut over tp x dp ranks by vLLM unless experts are dealt out whole: not over three."""
    model = "mistralai/Mixtral-8x7B-v0.1"
    with pytest.raises(UsageError, match="14,336"):
        plan(model, seq=4096, engine="vllm", gpu="h100", dp=3)
    assert fit_of(plan(model, seq=4096, engine="vllm", gpu="h100", dp=3, ep=3)).fits
    assert fit_of(plan(model, seq=4096, engine="vllm", gpu="h100", dp=2)).fits


def test_what_runs_in_32_bits_passes_on_32_bits() -> None:
    """Mamba-130m is published in fp32: its hidden vectors are twice as wide as in 16 bits, and the logits are what they are."""
    logits = 6 * 50_280
    model = "state-spaces/mamba-130m-hf"
    wide, narrow = (terms(plan(model, seq=100, gpu="4090", weights=form))["activations"] for form in (None, "bf16"))

    assert wide - logits == 2 * (narrow - logits)


@pytest.mark.parametrize(("gpu", "keeps"), [("v100-sxm2-16gb", False), ("m4-max-36", False), ("l4", True)])
def test_fp8_only_where_a_cache_may_have_it(gpu: str, keeps: bool) -> None:
    """fp8 is not suggested on hardware without an fp8 cache, and requesting it there gives a warning."""
    asked: dict[str, Any] = {"seq": 16_384, "batch": 10, "gpu": gpu}
    tried = [one.flag for one in fit_of(plan("Qwen/Qwen3-8B", **asked, weights="fp8")).suggestions]
    warned = {note.code for note in plan("Qwen/Qwen3-8B", **asked, weights="fp8", dtype="fp8").warnings}

    assert tried
    assert ("--dtype fp8" in tried) is keeps
    assert ("no-fp8-cache" in warned) is not keeps


def test_what_fits_has_a_fewest() -> None:
    """Twelve GPUs are neither within a node nor whole nodes: the search leaves them out, but they were asked for and hold it."""
    fit = fit_of(plan("mistralai/Mixtral-8x22B-v0.1", seq=100, gpu="l40s", tp=4, pp=3, memory_utilization=0.7))

    assert fit.fits
    assert fit.min_gpus == 12


@pytest.mark.parametrize(
    ("model", "gpu", "tp", "seq"),
    [("meta-llama/Llama-2-7b-hf", "a100-sxm4-80gb", 1, 4096), ("meta-llama/Llama-3.1-70B-Instruct", "h100-sxm5-80gb", 8, 32_768)],
)
def test_vllms_own_figures(model: str, gpu: str, tp: int, seq: int) -> None:
    """What vLLM's own planner gives for these models, carried over to the budget of the GPU.

    A block is 8,388,608 bytes for Llama-2-7B; for Llama-3.1-70B 5,242,880 over eight ranks. Weights are vLLM's parameters of a
    rank: with tp 4 and pp 3 a third of a quarter, so that eight ranks hold between an eighth of the matrices and that and the norms.
    """
    rows = [row for row in GOLDEN if row["model"] == model and "error" not in row["result"] and not row["options"].get("tp")]
    (block,) = {size for row in rows for size in row["result"]["bytes_per_block_per_rank"]}
    (whole,) = {size for row in rows for size in row["result"]["param_bytes_rank"]}
    made = plan(model, engine="vllm", gpu=gpu, tp=tp, seq=seq)
    fit, pool = fit_of(made), made.pool

    assert pool is not None
    assert pool.blocks is not None
    assert fit.budget is not None
    assert pool.bytes_per_block == block // tp
    # Rows and columns are divided; 161 norms of 8,192 in 16 bits are whole on every rank.
    norms = 0 if tp == 1 else 161 * 8192 * 2
    assert terms(made)["weights"] == (whole - norms) // tp + norms
    assert pool.blocks == fit.budget.expected // (block // tp)
    assert pool.tokens == pool.blocks * 16 // seq * seq or pool.tokens == int(pool.blocks / (seq // 16) * seq)
    assert fit.expected_max_batch == (pool.blocks - 1) // (seq // 16)
    assert fit.max_batch == (fit.budget.low // (block // tp) - 1) // (seq // 16)
    memory = visible_memory(find_gpu(gpu))
    assert memory is not None
    assert fit.usable_bytes == ceil(memory.expected_bytes * 0.92)
    # The pool identity: what is asked for, less weights, activation peak, what is outside torch, and graphs.
    assert fit.budget.expected == fit.usable_bytes - sum(terms(made).values())
    assert {"weights", "activations", "non-torch", "CUDA graphs"} <= set(terms(made))


def test_logits_of_a_rank() -> None:
    """By the formulas a rank has its rows of the vocabulary; transformers gathers all of them on every rank."""
    layer = 3 * (4096 + 14_336 // 2)

    assert terms(plan(LLAMA, seq=64, gpu="l4", tp=2))["activations"] == 2 * 64 * layer + 6 * 128_256 // 2
    assert terms(plan(LLAMA, seq=64, gpu="l4", tp=2, engine="transformers"))["activations"] == 2 * 64 * layer + 6 * 128_256


def test_adapters_and_drafts() -> None:
    """Eight adapters of rank 16 beside seven matrices of 32 layers, and a draft whole on its GPU with a cache of its own."""
    made = plan(LLAMA, seq=4096, gpu="h100", lora="rank=16,count=8", draft="meta-llama/Llama-3.2-1B")
    # A and B beside q and o of 4,096 x 4,096, k and v of 1,024 x 4,096, gate, up and down of 14,336 x 4,096.
    numbers = 16 * (2 * (4096 + 4096) + 2 * (1024 + 4096) + 3 * (14_336 + 4096))

    assert terms(made)["adapters"] == 8 * 32 * numbers * 2
    assert terms(made)["draft weights"] == 2 * 1_235_814_400
    assert terms(made)["draft cache"] == 4096 * 16 * 8 * 128 * 2
    drafted = plan(LLAMA, seq=4096, gpu="h100", engine="vllm", draft="meta-llama/Llama-3.2-1B")
    assert terms(drafted)["draft weights"] == 2 * 1_235_814_400
    by_option = plan(LLAMA, seq=4096, gpu="h100", engine="vllm", engine_options={"speculative": "draft:meta-llama/Llama-3.2-1B"})
    assert drafted.pool == by_option.pool
    with pytest.raises(UsageError, match="draft"):
        plan(
            LLAMA, seq=4096, gpu="h100", engine="vllm", draft="meta-llama/Llama-3.2-1B", engine_options={"speculative": "ngram:2"}
        )


def test_offloading() -> None:
    """Weights in host memory leave room for the cache; an offloaded cache has two of its 32 layers on the GPU."""
    plain, moved = (
        plan(LLAMA, seq=4096, gpu="l4", engine="vllm", engine_options=options) for options in ({}, {"cpu_offload_gb": "4"})
    )
    assert terms(plain)["weights"] - terms(moved)["weights"] == 4 * GIB
    made = plan(LLAMA, seq=4096, engine="transformers", engine_options={"cache": "offloaded"})
    assert made.cache.per_gpu_bytes * 16 == made.cache.total_bytes


def test_all_experts_are_resident_and_a_few_are_active() -> None:
    """Mixtral holds eight experts and reads two of a token; expert parallelism deals them out and repeats the attention."""
    model = "mistralai/Mixtral-8x7B-v0.1"
    alone, dealt = (plan(model, seq=4096, gpu="h200", tp=ranks, ep=ranks) for ranks in (1, 2))
    parameters = alone.model.parameters

    assert (parameters.total, parameters.active) == (46_702_792_704, 12_879_925_248)
    assert terms(alone)["weights"] == 2 * 46_702_792_704
    assert alone.speed is not None
    assert alone.speed.weight_bytes_per_step is not None
    assert alone.speed.weight_bytes_per_step < 2 * 12_879_925_248 + 2 * 32_000 * 4096
    assert terms(dealt)["weights"] * 2 >= terms(alone)["weights"]


def test_an_instance_names_gpus_and_how_many() -> None:
    """p5.48xlarge is eight H100; with a layout of fewer, that layout."""
    made = fit_of(plan(LLAMA, seq=4096, instance="p5.48xlarge"))
    assert (made.gpu, made.gpus) == ("h100-sxm5-80gb", 8)
    assert fit_of(plan(LLAMA, seq=4096, instance="p5.48xlarge", tp=2)).gpus == 2
    for wrong in ({"gpu": "l4"}, {"gpus": 9}, {"tp": 16}):
        with pytest.raises(UsageError):
            plan(LLAMA, seq=4096, instance="p5.48xlarge", **wrong)


@pytest.mark.parametrize("engine", [*ENGINES])
def test_the_verdict_says_how_sure_it_is(engine: str) -> None:
    """Where the ends of an estimate disagree the words begin with probably; where even the high end holds, and only there, it fits."""
    seen = set()
    strict = {"n_gpu_layers": "all"} if find_engine(engine)[0].facts.splits_layers else {}
    wanted: dict[str, Any] = {"gpu": "l4", "engine": engine, "engine_options": strict}
    start = fit_of(plan(LLAMA, seq=6_000, **wanted))
    if not start.expected_max_seq:
        # By itself it leaves more of a small GPU free than the weights leave.
        wanted["memory_utilization"] = 0.85
        start = fit_of(plan(LLAMA, seq=6_000, **wanted))
    ends = {start.max_seq or 0, start.expected_max_seq or 0}
    # Just beyond both ends, too: a narrow range of estimates lies between the steps.
    for length in (*range(6_000, 64_000, 7_000), *ends, *(end + 70 for end in ends)):
        try:
            made = plan(LLAMA, seq=length, **wanted)
        except KvplanError:
            continue
        fit = fit_of(made)
        seen.add(fit.verdict)
        holds = fit.needed_high_bytes <= fit.usable_bytes
        fails = fit.needed_low_bytes > fit.usable_bytes
        # A pool is counted in blocks, one of which nobody can have: near the edge it may hold less than the bytes say.
        pooled = find_engine(engine)[0].facts.pooled
        if not pooled or not fails:
            assert (fit.verdict == "fits") <= holds
        assert (fit.verdict == "no") <= (fails or pooled)
        for text in (plan_table(made), plan_markdown(made)):
            said = re.findall(r"(?<!probably )\bfits\b|will start", text)
            assert bool(said) is (fit.verdict == "fits"), text
            assert ("probably" in text.partition(" on 1 x l4")[0]) is (not fit.verdict.certain)
    assert seen == set(Verdict)


def test_a_model_that_nobody_counts_has_no_verdict() -> None:
    """Unknown weights give no verdict, and a note that says what to give."""
    made = plan(
        {"model_type": "new", "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 64}, seq=10, gpu="l4", assume="gqa"
    )

    assert made.fit is None
    assert "weights-unknown" in {note.code for note in made.notes}


def test_every_gpu_plans() -> None:
    """The memory is estimated from what is known, or a note says that nothing is known."""
    from hwcalc.profiles.gpus import list_gpus

    for name in list_gpus():
        made = plan(LLAMA, seq=1024, gpu=name)
        assert fit_of(made).usable_bytes > 0
        # A laptop or a Mac is a machine by itself: where one is too small, no number of them is offered.
        assert fit_of(made).min_gpus is not None or find_gpu(name).whole_machine
    assert Fraction(runtime_profile().margin.value) == Fraction(1, 20)


def test_a_margin_beyond_the_engines_share_leaves_nothing() -> None:
    """The requested bytes are never negative, as with 92 % of the GPU less 99.9 %."""
    found = fit_of(plan(LLAMA, seq=8192, gpu="l4", engine="vllm", margin="99.9%"))

    assert found.usable_bytes == 0
    assert found.verdict == "no"
    assert found.headroom_bytes == -found.needed_bytes
