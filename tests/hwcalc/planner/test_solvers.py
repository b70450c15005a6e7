"""Every solver against trying all numbers one by one, on random small cases of every engine."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import cache
from itertools import takewhile
from math import ceil
from typing import Any, Final

import pytest
from msgspec.structs import asdict, replace

from hwcalc import KvplanError, ModelSpec, load_model, plan
from hwcalc.engines import ENGINES, find_engine
from hwcalc.engines.deployment import Occupancy
from hwcalc.planner import solve
from hwcalc.planner.context import open_request
from hwcalc.planner.result import FitInfo
from hwcalc.planner.verdict import UNLIMITED, Layout, Verdict
from hwcalc.profiles.hardware_file import Gpu
from hwcalc.units import MIB
from tests.effort import cases

CASES: Final = cases(44, 60)
LONGEST: Final = 72
MOST: Final = 40

SMALL: Final[dict[str, dict[str, Any]]] = {
    "llama": {"num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 256, "intermediate_size": 512},
    "mistral": {
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "hidden_size": 128,
        "intermediate_size": 256,
        "sliding_window": 20,
    },
    "gemma2": {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_size": 128,
        "intermediate_size": 256,
        "sliding_window": 24,
    },
    "deepseek_v3": {
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "hidden_size": 128,
        "intermediate_size": 256,
        "kv_lora_rank": 64,
        "q_lora_rank": None,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "n_routed_experts": 8,
        "moe_intermediate_size": 64,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    },
    "mamba2": {"hidden_size": 128, "num_heads": 8, "head_dim": 32, "state_size": 16, "n_groups": 1, "expand": 2},
    "falcon_h1": {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 128,
        "intermediate_size": 256,
        "mamba_d_ssm": 256,
        "mamba_n_heads": 8,
        "mamba_d_head": 32,
        "mamba_d_state": 16,
        "mamba_n_groups": 1,
    },
    "qwen3_moe": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "hidden_size": 128,
        "intermediate_size": 256,
        "moe_intermediate_size": 64,
        "num_experts": 8,
        "num_experts_per_tok": 2,
    },
}
FINE: Final[dict[str, tuple[int | str, ...]]] = {
    "max_num_seqs": tuple(range(1, 13)),
    "max_num_batched_tokens": tuple(range(12, 65)),
    "enable_prefix_caching": ("true", "true", "false"),
    "tokens_per_block": (2, 4),
    "cache_block_seq_len": (16,),
    "kernel_block_size": (16,),
    "pa_block_size": (8,),
    "attention": ("flashinfer", "paged"),
    "max_batch_size": (8, 256),
}
"""Options of engines, by their names, with which small cases differ: few tokens in a block, few sequences at once."""

GROUPED: Final = "deepseek-ai/DeepSeek-V4-Flash"
"""Compressed attention, whose buffers empty now and then: a longer sequence may take less for a moment."""


@cache
def small(name: str) -> ModelSpec:
    """A model of four layers, or the one whose cache is not monotone."""
    if name == GROUPED:
        return load_model(name)
    config = {"model_type": name, "num_hidden_layers": 4, "vocab_size": 1000, "torch_dtype": "bfloat16"}
    return load_model(config | SMALL[name])


def card(mib: int) -> Gpu:
    """An accelerator of which programs see so much."""
    return Gpu(
        id="test", name="test", vendor="nvidia", architecture="sm_90", compute_capability="9.0",
        torch_total_mib=mib, memory_bandwidth_gbps=1000.0,
    )  # fmt: skip


def question(engine: str, dice: random.Random) -> Occupancy:
    """Some model on some hardware, often too little; what the engine refuses is thrown again."""
    while True:
        name = dice.choice([*SMALL, GROUPED]) if engine != "vllm" else dice.choice([*SMALL])
        model = replace(small(name), max_position_embeddings=dice.randint(4, LONGEST))
        ranks = {"tp": dice.choice([1, 1, 2, 4]), "pp": dice.choice([1, 1, 1, 2, 3]), "dp": dice.choice([1, 1, 2])}
        wanted: dict[str, Any] = {"seq": dice.randint(1, LONGEST), "batch": dice.randint(1, MOST), "engine": engine, **ranks}
        wanted["engine_options"] = {
            option: str(dice.choice(values)) for option, values in FINE.items() if option in find_engine(engine)[0].options
        }
        by_hand = name == GROUPED or dice.random() < 0.5
        if by_hand:
            wanted["kv_memory"] = int(2 ** dice.uniform(10, 26))
        try:
            opened = open_request(model, **wanted)
            if not by_hand:
                least = opened.engine.unchecked(opened.model, opened.request.changed(gpu=card(1 << 20))).budget
                assert least is not None
                used = sum(part.expected for part in least.parts)
                room = 2 ** dice.uniform(12, 25)
                share = 0.92 if engine == "vllm" else 0.95
                gpu = card(max(1, ceil((used + room) / share / MIB) + dice.randint(-3, 2)))
                opened = opened.engine.unchecked(opened.model, opened.request.changed(gpu=gpu))
        except KvplanError:
            continue
        return opened


def fits(opened: Occupancy, **change: int) -> bool:
    """One case by itself: ask for the budget and for the bytes (or the pool), and compare."""
    try:
        # Occupancy anew: what a family keeps cannot be wrong here.
        made = opened.engine.open(opened.model, opened.request.changed(**change))
        request = made.request
        if request.setup.hardware.kv_memory is None:
            size = -1 if made.budget is None else made.budget.expected
        else:
            size = request.setup.hardware.kv_memory
        replica = -(-request.load.batch // request.setup.parallel.dp)
        pool, limit = made.pool(max(0, size)).value, made.most_sequences()
        if pool is not None:
            held = pool.fits and all(most is None or most >= replica for most in (pool.max_requests, pool.at_once))
            return size >= 0 and held and (limit is None or request.load.batch <= limit[0])
        if limit is not None and request.load.batch > limit[0]:
            return False
        needed = made.needed_bytes
    except KvplanError:
        return False
    return needed <= size and (request.setup.hardware.gpu is None or made.devices.lacking("expected") is None)


def on_the_way(opened: Occupancy, batch: int) -> bool:
    """So many sequences of the planned length, and of those just before it where there are buffers that empty now and then.

    A buffer of the four latest tokens is fullest at three. Without one, a longer sequence always takes more: see
    ``test_what_fits_has_an_end``.
    """
    back = 3 if opened.model.model_type == small(GROUPED).model_type else 0
    return all(fits(opened, batch=batch, seq=seq) for seq in range(max(1, opened.tokens - back), opened.tokens + 1))


def last(good: Iterable[bool]) -> int:
    """The last number up to which every case is good, since a sequence grows through every shorter length."""
    return sum(1 for _ in takewhile(bool, good))


@pytest.mark.parametrize("engine", [*ENGINES])
def test_longest_and_most(engine: str) -> None:
    """The longest sequence and the most sequences are the last that fit when all are tried in turn."""
    dice = random.Random(f"{engine} 0")  # noqa: S311 - cases, not secrets
    seen: set[tuple[str | None, str | None]] = set()
    for _ in range(CASES):
        opened = question(engine, dice)
        length = max(opened.model.max_position_embeddings or 0, opened.tokens)
        longest, most = solve.longest(opened), solve.most(opened)
        told = f"{opened.model.model_type} {opened.request}"

        assert longest.value == last(fits(opened, seq=seq) for seq in range(1, length + 1)), told
        if most.value < UNLIMITED:
            upper = min(most.value + 1, 4 * MOST)
            assert min(most.value, upper) == last(on_the_way(opened, batch) for batch in range(1, upper + 1)), told
        else:
            assert fits(opened, batch=UNLIMITED), told
        seen.add((longest.limiting, most.limiting))
    # Neither everything nor nothing fits, or the cases would say nothing.
    assert {limit for limit, _ in seen} >= {"cache", "model length"}
    assert len({limit for _, limit in seen}) >= 2


@pytest.mark.parametrize("engine", [*ENGINES])
def test_what_fits_has_an_end(engine: str) -> None:
    """But for buffers that empty, nothing longer and no larger batch fits once one does not."""
    dice = random.Random(f"{engine} end")  # noqa: S311 - cases, not secrets
    ends = 0
    for _ in range(cases(20, 50)):
        opened = question(engine, dice)
        if opened.model.model_type == small(GROUPED).model_type:
            continue
        lengths = [fits(opened, seq=seq) for seq in range(1, LONGEST + 1)]
        batches = [fits(opened, batch=batch) for batch in range(1, MOST + 1)]
        assert (lengths, batches) == (sorted(lengths, reverse=True), sorted(batches, reverse=True)), str(opened.request)
        ends += len({*lengths}) + len({*batches}) - 2
    # Where cells come 256 at a time, all lengths of these cases take as much.
    assert ends > (1 if find_engine(engine)[0].facts.splits_layers else 3)


@pytest.mark.parametrize("engine", [*ENGINES])
def test_fewest_gpus_and_the_best_layout(engine: str) -> None:
    """No smaller number of GPUs has a layout that fits, and no other layout of a node holds more."""
    dice = random.Random(engine)  # noqa: S311 - cases, not secrets
    found: set[int | None] = set()
    for _ in range(cases(50, 80)):
        model = replace(small(dice.choice([*SMALL])), max_position_embeddings=2**20)
        length, batch = int(2 ** dice.uniform(8, 18)), int(2 ** dice.uniform(0, 7))
        # Beside layers the host holds inputs for every cell; how much it has is another question.
        told = {"host_memory": "4TiB"} if find_engine(engine)[0].facts.splits_layers else {}
        if "max_seqs" in find_engine(engine)[0].options:
            told["max_seqs"] = "128"
        try:
            opened = open_request(model, engine=engine, seq=length, batch=batch, engine_options=told)
        except KvplanError:
            continue
        opened = opened.engine.unchecked(opened.model, opened.request.changed(gpu=card(int(2 ** dice.uniform(10.2, 12.5)))))
        opened = opened.devices.entire()
        every = {layout: fits(opened, **asdict(layout), dcp=1) for layout in sensible(opened, 4)}
        good = [layout for layout, holds in every.items() if holds]
        fewest, certain_fewest = solve.fewest_gpus(opened, most_gpus=4)
        surely = [layout for layout in good if certainly(opened, layout)]

        assert (None if fewest is None else fewest.gpus) == min((layout.gpus for layout in good), default=None)
        assert fewest is None or fewest in good
        assert (None if certain_fewest is None else certain_fewest.gpus) == min((layout.gpus for layout in surely), default=None)
        assert certain_fewest is None or certain_fewest in surely
        best = solve.holding_layout(opened, 4)
        of_four = [layout for layout in good if layout.gpus == 4]
        sure = [layout for layout in of_four if certainly(opened, layout)]
        assert (best is None) is (not of_four)
        if best is not None:
            assert best.layout in (sure or of_four)
            assert best.certain is bool(sure)
            # No replica is idle unless all layouts have an idle one.
            assert best.layout.dp <= opened.batch or all(layout.dp > opened.batch for layout in (sure or of_four))
        found.add(None if fewest is None else fewest.gpus)
    assert found >= {None, 1}
    assert len(found) > 2


def sensible(opened: Occupancy, most: int) -> list[Layout]:
    """Up to ``most`` GPUs of one node, by powers of two; the small models' heads are cut evenly, so that there are no stages.

    An engine that gives each GPU a run of layers takes any number.
    """
    if opened.engine.facts.splits_layers:
        return [Layout(pp=gpus) for gpus in range(1, most + 1)]
    experts = "num_experts" in opened.model.config or "n_routed_experts" in opened.model.config
    deals = experts and opened.deployment.traits.deals_experts
    out = []
    for gpus in (size for size in (1, 2, 4, 8) if size <= most):
        for tp in (
            size for size in (1, 2, 4, 8) if gpus % size == 0 and all(heads % size == 0 for heads in heads_of(opened.model))
        ):
            dp = gpus // tp
            out.append(Layout(tp=tp, dp=dp, ep=gpus if deals and dp > 1 else 1))
    return out


def certainly(opened: Occupancy, layout: Layout) -> bool:
    """Whether the layout holds at the low end of the budget too."""
    made = opened.changed(**asdict(layout), dcp=1)
    assert made.budget is not None
    return solve.holds_in(made, made.budget.low)


def heads_of(model: ModelSpec) -> set[int]:
    """Attention heads of the layers that have any."""
    return {dims["num_attention_heads"] for group in model.stack.groups if "num_attention_heads" in (dims := group.kind.dims())}


@pytest.mark.parametrize(
    ("model", "weights", "gpu", "ram", "engine"),
    [
        ("Qwen/Qwen3-14B", "q4_k_m", "rtx-4070", 64, "llamacpp"),
        ("Qwen/Qwen3-32B", "q4_k_m", "rtx-4070", 16, "llamacpp"),
        ("openai/gpt-oss-120b", None, "rtx-4070", 64, "llamacpp"),
        ("Qwen/Qwen3-14B", "q6_k", "rtx-3060-12gb", 8, "ollama"),
    ],
)
def test_the_longest_with_layers_in_host_memory(model: str, weights: str | None, gpu: str, ram: int, engine: str) -> None:
    """A plan of that length fits and a longer one does not, whatever length was planned before; layers that stay allow no more."""

    def fit_of(seq: int) -> FitInfo:
        fit = plan(model, engine=engine, weights=weights, gpu=gpu, ram=ram, seq=seq).fit
        assert fit is not None
        return fit

    fit = fit_of(4096)
    longest = fit.moved_max_seq
    assert longest is not None
    assert fit.max_seq is not None
    assert longest >= fit.max_seq
    assert fit_of(8192).moved_max_seq == longest
    assert fit_of(longest).verdict is Verdict.FITS
    maximum = plan(model).model.max_position_embeddings
    assert maximum is not None
    assert longest == maximum or fit_of(longest + 256).verdict is not Verdict.FITS


@pytest.mark.parametrize("change", [{"engine": "vllm"}, {"engine": "llamacpp", "engine_options": {"n_gpu_layers": "all"}}])
def test_where_no_layer_moves_there_is_one_longest(change: dict[str, Any]) -> None:
    """No layer of vLLM lies in host memory, and llama.cpp moves none where it was told how many lie on the GPU."""
    fit = plan("Qwen/Qwen3-8B", gpu="rtx-4090", seq=4096, **change).fit
    assert fit is not None
    assert fit.moved_max_seq is None


@pytest.mark.parametrize(("engine", "option"), [("sglang", "context_length"), ("vllm", "max_model_len"), ("llamacpp", "n_ctx")])
def test_a_length_that_the_server_allows_is_its_limit(engine: str, option: str) -> None:
    """Not the cache, which has room for more."""
    fit = plan("Qwen/Qwen3-8B", engine=engine, gpu="h100", seq=4096, engine_options={option: "8192"}).fit
    assert fit is not None
    assert (fit.max_seq, fit.limiting_seq) == (8192, "allowed length")
