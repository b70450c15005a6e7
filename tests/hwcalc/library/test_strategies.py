"""Strategies of allocation: worked by hand, laws, engines, and errors."""

from __future__ import annotations

from typing import Any, Final

import pytest

from hwcalc import load_model, plan, strategies
from hwcalc.errors import KvplanError, UsageError
from hwcalc.library.explained import names_in
from hwcalc.library.strategies import only_strategy, strategy_section
from hwcalc.planner.strategies import NAMES
from hwcalc.planner.strategies_result import Strategies, Strategy
from hwcalc.profiles.glossary import meaning_of
from scripts.fuzzing.keywords import VALUES
from tests.hwcalc.library.test_explain import value

QWEN: Final = "Qwen/Qwen3-8B"
LLAMA: Final[dict[str, Any]] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "vocab_size": 100,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "max_position_embeddings": 4096,
}
MODELS: Final = (
    QWEN,
    "google/gemma-3-27b-it",
    "deepseek-ai/DeepSeek-V3.2",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "openai/gpt-oss-20b",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    "state-spaces/mamba-130m-hf",
    "google/gemma-4-26B-A4B-it",
)
ROW: Final = 2 * 2 * 8 * 2
"""Bytes of a token in a layer of :data:`LLAMA`: key and value, 2 heads, 8 numbers of 2 bytes."""


def named(found: Strategies, name: str) -> Strategy:
    """The strategy of this name."""
    return next(one for one in found.strategies if one.name == name)


# --- worked by hand ---------------------------------------------------------------------------------------------------


def test_four_tokens() -> None:
    """Four layers, four tokens, one sequence, blocks of three, three tokens now."""
    found = strategies(LLAMA, seq=4, fill="75%", block_size=3)
    whole, now = 4 * 4 * ROW, 4 * 3 * ROW

    assert found.needed_bytes == now
    growth, slots, pages, offload, none = (named(found, name) for name in ("growth", "slots", "pages", "offload", "recompute"))
    assert (growth.full_bytes, growth.held_bytes, growth.wasted_bytes) == (whole, now, 0)
    # Keys or values of one layer a second time.
    assert growth.peak_bytes == whole + 4 * ROW // 2
    # [A], [AB], [ABC], [ABCD] are written.
    assert growth.copied_bytes == 4 * ROW * (1 + 2 + 3 + 4)
    assert (slots.full_bytes, slots.held_bytes, slots.wasted_bytes, slots.peak_bytes) == (whole, whole, 4 * ROW, whole)
    assert slots.most_wasted_bytes == 3 * 4 * ROW
    # Two blocks of three for four tokens, one for three.
    assert (pages.full_bytes, pages.held_bytes, pages.wasted_bytes) == (4 * 6 * ROW, 4 * 3 * ROW, 0)
    assert pages.most_wasted_bytes == 4 * 2 * ROW
    # Two of four layers are on the device, and all of them go over the bus.
    assert (offload.full_bytes, offload.host_bytes, offload.bus_bytes_per_step) == (2 * 4 * ROW, whole, whole)
    assert (none.full_bytes, none.held_bytes, none.cache_bytes_per_step) == (0, 0, 0)
    # One layer's keys and values, and four hidden states of 64 numbers of 2 bytes.
    assert none.peak_bytes == 4 * ROW + 4 * 64 * 2


def test_four_tokens_computed() -> None:
    """Operations of attention by pairs of tokens, of weights by two for each number."""
    found = strategies(LLAMA, seq=4)
    pair = 4 * 2 * 8 * (8 + 8)  # four layers, 8 heads, a key and a value of 8 numbers
    layer = 2 * (64 * 64 * 2 + 64 * 16 * 2 + 3 * 64 * 128) * 4 + 2 * 64 * (2 * 4 + 1)  # norms count as they do in a plan
    head = 2 * 64 * 100
    growth, none = named(found, "growth"), named(found, "recompute")

    assert (growth.attention_flops_per_step, growth.attention_total_flops) == (4 * pair, 10 * pair)
    assert (none.attention_flops_per_step, none.attention_total_flops) == (10 * pair, 20 * pair)
    assert growth.flops_per_step == 4 * pair + layer + head
    assert growth.total_flops == 10 * pair + 4 * (layer + head)
    assert none.flops_per_step == 10 * pair + 4 * layer + head
    assert none.total_flops == 20 * pair + (1 + 2 + 3 + 4) * layer + 4 * head


def test_often_quoted_for_two_thousand_tokens() -> None:
    """8 x 10^9 against 4 x 10^6 pairs of tokens in a layer, with the exact numbers beside them."""
    pairs = strategies(QWEN, seq=2000).pairs

    assert (pairs.quoted_recomputed, pairs.quoted_cached) == (8 * 10**9, 4 * 10**6)
    assert (pairs.recomputed_scores, pairs.recomputed, pairs.cached) == (2_668_667_000, 1_335_334_000, 2_001_000)


def test_a_prompt_is_one_pass() -> None:
    """Nothing is recomputed if all tokens are the prompt; attention with a cache does not depend on where it ends."""
    whole, half = strategies(QWEN, seq=1000, prompt=1000), strategies(QWEN, seq=1000, prompt=500)

    assert named(whole, "recompute").total_flops == named(whole, "growth").total_flops
    assert named(half, "growth").attention_total_flops == named(whole, "growth").attention_total_flops
    assert named(half, "recompute").attention_total_flops > 250 * named(half, "growth").attention_total_flops
    assert whole.pairs.recomputed == whole.pairs.cached


def test_heads() -> None:
    """Qwen3-8B has 32 query heads of 128 numbers, 8 for keys and values, in 36 layers of 4,096."""
    found = {one.name: one for one in strategies(QWEN, seq="32k").heads}
    own = plan(QWEN, seq="32k").cache.total_bytes

    assert list(found) == ["MHA", "GQA-16", "GQA-8", "GQA-4", "GQA-2", "MQA"]
    assert {name: one.full_bytes * 8 for name, one in found.items()} == {
        "MHA": 32 * own, "GQA-16": 16 * own, "GQA-8": 8 * own, "GQA-4": 4 * own, "GQA-2": 2 * own, "MQA": own,
    }  # fmt: skip
    assert [one.name for one in found.values() if one.own] == ["GQA-8"]
    assert found["MQA"].parameters_difference == -7 * 2 * 128 * 4096 * 36
    assert found["MHA"].parameters_difference == 24 * 2 * 128 * 4096 * 36


@pytest.mark.parametrize("model", [QWEN, "Qwen/Qwen2.5-7B-Instruct", "microsoft/Phi-3-mini-4k-instruct"])
@pytest.mark.parametrize("heads", [16, 4, 1])
def test_heads_agree_with_a_changed_config(model: str, heads: int) -> None:
    """Bytes and parameters of the model with other heads in its config; biases and matrices for all three together too."""
    own = load_model(model)
    choice = next((one for one in strategies(model, seq=1000).heads if one.num_key_value_heads == heads), None)
    if choice is None:
        assert next(iter(own.stack.groups)).kind.dims()["num_attention_heads"] % heads
        return
    changed = load_model({**own.config, "num_key_value_heads": heads})
    assert changed.counted is not None
    assert own.counted is not None

    assert choice.full_bytes == plan(changed, seq=1000).cache.total_bytes
    assert choice.parameters_difference == _elements(changed.counted) - _elements(own.counted)


def _elements(weights: Any) -> int:
    return sum(block.count * weight.elements for block in weights.blocks for weight in block.weights)


def test_a_latent_and_its_expanded_form() -> None:
    """512 + 64 numbers a token and layer, or keys of 128 + 64 and values of 128 in each of 128 heads: 71 times."""
    latent, expanded = strategies("deepseek-ai/DeepSeek-V3", seq="32k").heads

    assert (latent.name, latent.own, expanded.own) == ("MLA, latent", True, False)
    assert expanded.full_bytes * (512 + 64) == latent.full_bytes * 128 * (192 + 128)
    assert expanded.parameters_difference == 0


# --- laws -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("dtype", [None, "fp8"])
def test_laws(model: str, dtype: str | None) -> None:
    """Against the plan, and against each other, for every kind of layer."""
    found = strategies(model, seq=5000, batch=3, dtype=dtype, fill="30%", gpu="h100-sxm5-80gb")
    planned = plan(model, seq=5000, batch=3, dtype=dtype, gpu="h100-sxm5-80gb")
    short = plan(model, seq=1500, batch=3, dtype=dtype)
    growth, slots, pages, offload, none = (named(found, name) for name in ("growth", "slots", "pages", "offload", "recompute"))

    assert growth.full_bytes == slots.full_bytes == planned.cache.total_bytes
    assert found.needed_bytes == growth.held_bytes == short.cache.total_bytes
    assert growth.full_bytes <= growth.peak_bytes <= 2 * growth.full_bytes
    assert slots.held_bytes == slots.full_bytes == slots.peak_bytes
    assert 0 <= (pages.wasted_bytes or 0) <= (pages.most_wasted_bytes or 0)
    assert (slots.wasted_bytes or 0) <= (slots.most_wasted_bytes or 0)
    assert offload.full_bytes <= growth.full_bytes <= offload.full_bytes + offload.host_bytes
    assert none.full_bytes == 0
    assert none.attention_flops_per_step >= growth.attention_flops_per_step
    assert planned.speed is not None
    assert growth.cache_bytes_per_step == planned.speed.cache_bytes_per_step
    assert (growth.flops_per_step, growth.step_s_bound) == (planned.speed.flops_per_step, planned.speed.decode_step_s_bound)
    assert growth.weight_bytes_per_step == planned.speed.weight_bytes_per_step
    assert (none.weight_bytes_per_step or 0) >= (growth.weight_bytes_per_step or 0)
    one = plan(model, seq=5000, dtype=dtype, gpu="h100-sxm5-80gb").speed
    assert one is not None
    assert none.flops_per_step == 3 * (one.prefill_flops or 0)
    sizes = [choice.full_bytes for choice in found.heads if choice.num_key_value_heads is not None]
    assert sizes == sorted(sizes, reverse=True)


def test_waste_rises_as_sequences_shrink() -> None:
    """Slots waste more the emptier they are; pages never more than less than a block."""
    found = [strategies(QWEN, seq=4096, fill=share / 10) for share in range(11)]
    wasted = [named(one, "slots").wasted_bytes or 0 for one in found]

    assert wasted == sorted(wasted, reverse=True)
    assert wasted[-1] == 0
    assert all(
        (named(one, "pages").wasted_bytes or 0) <= (named(one, "slots").wasted_bytes or 0) + 15 * 36 * 4096 for one in found
    )


def test_states_need_no_recompute() -> None:
    """A recurrent model keeps the same at every length: nothing grows, is copied or paged, and a note says it."""
    found = strategies("state-spaces/mamba-130m-hf", seq=4096)
    growth, slots, pages = (named(found, name) for name in ("growth", "slots", "pages"))

    assert growth.full_bytes == growth.held_bytes == growth.peak_bytes == pages.full_bytes == slots.held_bytes
    assert (growth.copied_bytes, pages.wasted_bytes, pages.most_wasted_bytes, slots.wasted_bytes) == (0, 0, 0, 0)
    assert "states-alone" in {note.code for note in found.notes}


# --- engines ----------------------------------------------------------------------------------------------------------


def test_an_engines_own_row() -> None:
    """Of vLLM in its own blocks, llama.cpp with all cells from the start, transformers as the cache class says."""
    lengths = [100, 1000]
    vllm = named(strategies(QWEN, seq=2048, lengths=lengths, engine="vllm", gpu="h100"), "engine")
    assert vllm.held_bytes == sum(plan(QWEN, seq=length, engine="vllm", gpu="h100").cache.total_bytes for length in lengths)
    cells = named(strategies(QWEN, seq=2048, lengths=lengths, engine="llamacpp"), "engine")
    assert cells.held_bytes == cells.full_bytes == plan(QWEN, seq=2048, batch=2, engine="llamacpp").cache.total_bytes
    for cache, same in (("static", True), ("dynamic", False)):
        options = {"cache": cache}
        own = named(strategies(QWEN, seq=2048, engine="transformers", engine_options=options), "engine")
        assert (own.held_bytes == own.full_bytes) is same
    split = named(strategies(QWEN, seq="32k", batch=2, engine="llamacpp", gpu="rtx-3060-12gb"), "engine")
    assert (split.wasted_bytes, split.step_s_bound) == ((split.full_bytes + split.host_bytes) // 2, None)
    grown = strategies(QWEN, seq=2048, engine="transformers")
    assert named(grown, "engine").peak_bytes == named(grown, "growth").peak_bytes


def test_an_offloaded_cache_of_transformers() -> None:
    """What lies on the device and what on the host, as a plan of that cache class says."""
    options = {"cache": "offloaded"}
    found = strategies(QWEN, seq=2048, batch=3, engine="transformers", engine_options=options)
    own, planned = named(found, "engine"), plan(QWEN, seq=2048, batch=3, engine="transformers", engine_options=options)

    assert own.full_bytes == named(found, "offload").full_bytes == planned.cache.per_gpu_bytes
    assert own.full_bytes + own.host_bytes == planned.cache.total_bytes


def test_an_engines_block_size() -> None:
    """The engine's own unless one is given: 64 tokens for a latent in vLLM's own fp8 format."""
    assert strategies("deepseek-ai/DeepSeek-V3.2", seq=4096, engine="vllm", dtype="fp8").block_size == 64
    assert strategies(QWEN, seq=4096).block_size == strategies(QWEN, seq=4096, engine="vllm").block_size == 16
    assert strategies(QWEN, seq=4096, engine="vllm", block_size=32).block_size == 32


@pytest.mark.parametrize(
    ("gpu", "gbps"), [("h100-sxm5-80gb", 63.015), ("a100-sxm4-80gb", 31.508), ("v100-sxm2-32gb", 15.754), ("gh200-96gb", 450.0)]
)
def test_the_link_to_the_host(gpu: str, gbps: float) -> None:
    """Lanes x transfers x code of the generation that the profile names: 16 x 32 x 128/130 / 8."""
    found = strategies(QWEN, seq=4096, gpu=gpu)
    offload = named(found, "offload")

    assert found.host_link is not None
    assert found.host_link.gbps == pytest.approx(gbps, abs=0.001)
    assert offload.bus_s_bound == pytest.approx(offload.host_bytes / (found.host_link.gbps * 1e9))
    assert (offload.step_s_bound or 0) >= (offload.bus_s_bound or 0)


# --- explained --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("lengths", [None, "100,1999,1999", "uniform:1..2000"])
def test_every_number_is_derived(model: str, lengths: str | None) -> None:
    """The printed numbers of each figure give it; its symbols are explained; and the figures are those of the answer."""
    found = strategies(model, seq=2000, batch=1 if lengths and "," in lengths else 3, lengths=lengths, gpu="h100-sxm5-80gb")
    for one in found.strategies:
        section = strategy_section(one)
        figures = {figure.name: figure.result for figure in section.figures}
        for figure in section.figures:
            if figure.numbers:
                close = 0.01 if "estimate" in figure.definition or figure.unit == "s" else 0
                assert value(figure.numbers) == pytest.approx(figure.result, rel=1e-5 if close else 0, abs=1e-9), figure
            assert all(name in figures or meaning_of(name) for name in names_in(figure.formula)), figure
        for name in ("full_bytes", "held_bytes", "wasted_bytes", "peak_bytes", "copied_bytes"):
            if name in figures:
                assert figures[name] == getattr(one, name), (one.name, name)
        assert figures["attention_step"] == one.attention_flops_per_step
        assert figures["attention_total"] == one.attention_total_flops
        if one.flops_per_step is not None:
            assert (figures["step_operations"], figures["total_operations"]) == (one.flops_per_step, one.total_flops)


def test_one_strategy() -> None:
    """By its name; others are named in the error."""
    found = strategies(QWEN, seq=2000)

    assert [one.name for one in only_strategy(found, "Pages").strategies] == ["pages"]
    with pytest.raises(UsageError, match="not known") as error:
        only_strategy(found, "paged")
    assert all(name in error.value.hint for name in NAMES)


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fill": "50%", "lengths": "1k"}, "both say"),
        ({"fill": "150%"}, "fill"),
        ({"fill": "-1"}, "fill"),
        ({"lengths": "1k,,2k"}, "lengths is not a number"),
        ({"lengths": ""}, "lengths is not a number"),
        ({"lengths": []}, "lengths must be"),
        ({"lengths": 5}, "lengths must be"),
        ({"lengths": "0"}, "out of range"),
        ({"lengths": "uniform:9..3"}, "end before"),
        ({"lengths": "uniform:1..x"}, "not a number"),
        ({"lengths": "uniform"}, "not a number"),
        ({"lengths": "9k", "seq": "8k"}, "longer than --seq"),
        ({"lengths": "1k,2k", "batch": 3}, "2 sequences, --users 3"),
        ({"lengths": ["1"] * 10_001}, "10,001 sequences"),
        ({"lengths": "1," * 500_000}, "characters"),
        ({"seq": 10, "prompt": 11}, "prompt is 11 tokens"),
        ({"block_size": 0}, "block-size"),
        ({"tp": 2}, "takes no 'tp'"),
        ({"policy": "snapkv"}, "takes no 'policy'"),
    ],
)
def test_errors(options: dict[str, Any], said: str) -> None:
    """What was given and what is allowed."""
    with pytest.raises(UsageError) as error:
        strategies(LLAMA, **options)

    assert said in error.value.message
    assert error.value.hint


@pytest.mark.parametrize("name", ["block_size", "fill", "lengths", "prompt", "seq", "batch"])
def test_any_value(name: str) -> None:
    """Whatever is given, the answer is a value or an error of ours, soon."""
    for strange in (*(make() for make in VALUES), [1, "2k"], "uniform:1..1", "uniform:..", "50%", ",", [[1]], "1" * 400):
        try:
            strategies({**LLAMA, "max_position_embeddings": 1000}, **{name: strange})
        except KvplanError as error:
            message = error.message
        else:
            continue
        assert 0 < len(message) < 2000


def test_a_format_that_packs_what_is_not_there() -> None:
    """An error of the engine or of the comparison, never a guess."""
    with pytest.raises(KvplanError):
        strategies(LLAMA, seq=10, dtype="fp8_ds_mla")


def test_the_largest_numbers() -> None:
    """Closed forms take no longer for a distribution over the longest sequences there can be."""
    found = strategies(QWEN, seq="1024G", batch=2**40, lengths="uniform:1..1024G")

    assert found.pairs.quoted_recomputed == 2**120
    assert found.needed_bytes == (2**40 + 1) * 2**39 * 36 * 4096


@pytest.mark.parametrize(("engine", "size"), [("sglang", 1), ("tgi", 1), ("mistral-rs", 32), ("lmdeploy", 64), ("mlx", 16)])
def test_pages_are_those_of_the_engine(engine: str, size: int) -> None:
    """Blocks of its pool; 16 tokens for an engine without one."""
    assert strategies("Qwen/Qwen3-0.6B", engine=engine, seq=1024).block_size == size
