"""What an explanation says of a cache policy is what the plan says, and its formulas give it, rounding and all."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwcalc import explain
from hwcalc.engines.steps import value_of
from hwcalc.errors import KvplanError
from hwcalc.library.explained import ExplainedFigure, ExplainedSection, names_in
from hwcalc.policies.parse import policies
from hwcalc.profiles.glossary import meaning_of
from tests.hwcalc.command import Capture, run
from tests.hwcalc.library.test_explain import check, value

SMALL: Final[dict[str, Any]] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "torch_dtype": "bfloat16",
}


def section(model: object, name: str = "policy", **options: Any) -> ExplainedSection:
    """One part of an explanation, of which every figure is that of the plan."""
    told = explain(model, **options)  # type: ignore[arg-type]
    check(told)
    return next(part for part in told.sections if part.name == name)


def figure(part: ExplainedSection, words: str) -> ExplainedFigure:
    """The first figure with these words in its name."""
    return next(one for one in part.figures if words in one.name)


def test_the_rounding_is_that_of_doubles() -> None:
    """1,000 x (1 - 0.9) is 99.99...8 in doubles: 99 tokens stay, and the explanation says why."""
    part = section(SMALL, seq=1000, policy="snapkv:compression_ratio=0.9")

    kept = figure(part, "behind the prompt")
    assert (kept.result, kept.unit, value(kept.numbers)) == (99, "tokens", 99)
    assert "1,000" in kept.numbers
    assert "0.9" in kept.numbers
    assert any("99 stay and not 100" in remark for remark in part.remarks)


def test_no_remark_where_nothing_is_rounded() -> None:
    """Half of 1,000 is 500."""
    part = section(SMALL, seq=1000, policy="knorm:compression_ratio=0.5")

    assert not any("doubles" in remark for remark in part.remarks)


@pytest.mark.parametrize("rules", ["kvpress", "paper"])
def test_layers_of_a_pyramid(rules: str) -> None:
    """Every layer has a line of its own, by the same formula; their tokens are added up for the bytes."""
    part = section(SMALL, seq=1000, policy="pyramidkv:compression_ratio=0.5,window_size=16", policy_rules=rules)

    kept = [one for one in part.figures if "behind the prompt" in one.name and one.unit == "tokens"]
    assert len(kept) == SMALL["num_hidden_layers"]
    assert all(one.numbers and value(one.numbers) == one.result for one in kept)
    full, most = figure(part, "without the policy"), figure(part, "cache at the most")
    # 2 x 2 heads x 16 x 2 bytes a token and layer.
    assert full.result == 4 * 1000 * 128
    assert most.result == sum(one.result for one in kept) * 128
    assert value(most.numbers) == most.result


def test_bytes_beside_layers_on_which_it_does_not_act() -> None:
    """Windows keep what they keep: they are a term of the sum."""
    part = section("google/gemma-3-27b-it", seq="32k", batch=2, policy="streamingllm:compression_ratio=0.5")

    most = figure(part, "cache at the most")
    assert "other_layers" in most.formula
    assert value(most.numbers) == most.result


def test_the_saw_of_a_policy_that_cuts_while_decoding() -> None:
    """R-KV with a budget of 128: cut at 129 in step 29, then from 256 to 128 every 128 steps."""
    part = section(SMALL, seq=700, prompt=100, policy="rkv:budget=128")

    assert figure(part, "at the most").result == 256
    saw = next(remark for remark in part.remarks if "cuts while text is generated" in remark)
    assert "the first in step 29: 129 to 128 tokens" in saw
    assert "every 128 steps from 256 to 128" in saw


def test_scores_have_their_terms() -> None:
    """Eager attention makes heads x n x n scores; the terms give the bytes."""
    part = section(SMALL, seq=1000, batch=3, policy="observedattention:compression_ratio=0.5")

    scores = figure(part, "eager attention scores")
    # bf16: 10 bytes a head and 2 of the mask, 4 heads, 1,000 x 1,000, 3 sequences.
    assert scores.result == 3 * (10 * 4 + 2) * 1000 * 1000 == value(scores.numbers)


def test_a_policy_that_acts_on_nothing_says_so() -> None:
    """A recurrent model has no tokens to drop."""
    part = section("state-spaces/mamba-130m-hf", seq=4096, policy="knorm:compression_ratio=0.5")

    assert any("acts on no layer" in remark for remark in part.remarks)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(policies())),
    tokens=st.integers(300, 5000),
    ratio=st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99]),
    output=st.integers(0, 40),
)
def test_every_formula_gives_what_the_plan_keeps(name: str, tokens: int, ratio: float, output: int) -> None:
    """Whatever the policy: its figures are those of the plan, and every symbol has a meaning."""
    known = {option.name for option in policies()[name].options}
    words = [f"compression_ratio={ratio}"] if "compression_ratio" in known else []
    words += [f"press=(knorm:compression_ratio={ratio})"] if "press" in known else []
    words += [f"base_press=(knorm:compression_ratio={ratio})"] if "base_press" in known else []
    words += ["budget=128"] if name in {"h2o", "scissorhands"} else []
    text = f"{name}:{','.join(words)}" if words else name
    try:
        part = section(SMALL, seq=tokens + output, prompt=tokens, policy=text)
    except KvplanError:
        return
    for one in part.figures:
        assert {name for name in names_in(one.formula) if not meaning_of(name)} <= {"without_policy", "at_the_most"}


@pytest.mark.parametrize("name", sorted(name for name, policy in policies().items() if policy.worked is not None))
def test_worked_formulas_are_arithmetic(name: str) -> None:
    """What a row calls its formula can be computed."""
    policy = policies()[name]
    if any(option.required for option in policy.options):
        return
    part = section(SMALL, seq=3000, policy=name)
    first = part.figures[0]

    assert first.formula
    assert value(first.numbers) == first.result


def test_arithmetic_takes_no_words() -> None:
    """A formula in words has no value, nor has one that calls anything else."""
    assert value_of("floor(7 / 2) + max(1, n)", {"n": 3}) == 6
    for formula in ("kept of kept", "n +", "__import__('os')", "n.real", "1 / 0", "min()", "[n]", "9**9**9"):
        assert value_of(formula, {"n": 3}) is None


def test_only_the_policy(capsys: Capture) -> None:
    """``--only policy`` shows nothing else, and says what symbols mean."""
    status, out, _ = run(
        capsys, "explain", "Qwen/Qwen3-8B", "--seq", "1000", "--policy", "snapkv:compression_ratio=0.9", "--only", "policy"
    )

    assert status == 0
    assert "policy snapkv:compression_ratio=0.9" in out
    assert "99 tokens" in out
    assert "compression_ratio  share of the tokens that is dropped" in out
    assert "weights" not in out.partition("policy snapkv")[2].partition("note")[0]


@pytest.mark.parametrize("engine", ["reference", "transformers", "vllm"])
@pytest.mark.parametrize(
    "options",
    [
        {"seq": 800, "prompt": 600, "samples": 4, "shared_prefix": 200, "batch": 8},
        {"seq": 800, "prompt": 600, "beams": 3},
        {"lengths": "100,200,800", "batch": 6},
    ],
)
def test_what_is_shared_is_derived(engine: str, options: dict[str, Any]) -> None:
    """Every figure is that of the plan, and its formula gives it."""
    part = section(SMALL, "sharing", engine=engine, **options)

    assert figure(part, "cache without sharing").result >= figure(part, "saved").result
    for one in part.figures:
        names = {re.sub(r"_\d+$", "", name) for name in names_in(one.formula)}
        assert {name for name in names if not meaning_of(name)} <= {"unshared", "shared"}
        assert one.numbers, one
        assert value(one.numbers) == one.result, one


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("Qwen/Qwen3-8B", {"seq": "32k", "policy": "snapkv:compression_ratio=0.9"}),
        ("Qwen/Qwen3-8B", {"seq": "32k", "policy": "snapkv:compression_ratio=0.9", "compaction": "none"}),
        ("Qwen/Qwen3-8B", {"seq": "16k", "prompt": "1k", "policy": "triattention"}),
        ("Qwen/Qwen3-8B", {"seq": "16k", "prompt": "1k", "policy": "triattention", "gpu": "h200"}),
        ("google/gemma-3-27b-it", {"seq": "32k", "policy": "streamingllm:compression_ratio=0.5", "gpu": "h200"}),
        ("google/gemma-3-27b-it", {"seq": "32k", "policy": "streamingllm:compression_ratio=0.5"}),
        ("openai/gpt-oss-20b", {"seq": "16k", "policy": "knorm:compression_ratio=0.5"}),
        ("deepseek-ai/DeepSeek-V3", {"seq": "8k", "policy": "knorm:compression_ratio=0.5", "tp": 8}),
    ],
)
def test_blocks_are_derived(model: str, options: dict[str, Any]) -> None:
    """Blocks that come back: nominal, without compaction and with it, each from the plan; every symbol has a meaning."""
    told = explain(model, engine="vllm", **options)
    check(told)
    part = next(one for one in told.sections if one.name == "policy")

    assert figure(part, "would fill").result >= 0
    assert figure(part, "with compaction").result >= 0
    for one in part.figures:
        assert {name for name in names_in(one.formula) if not meaning_of(name)} <= {"without_policy", "at_the_most"}


def test_the_prefill_has_its_terms() -> None:
    """All layers but the last are cut, that one is whole, and the scores lie beside it."""
    part = section(SMALL, seq=1000, policy="observedattention:compression_ratio=0.5")
    peak = figure(part, "the prefill at its fullest")

    # 2 x 2 heads x 16 x 2 bytes a token: three layers of 500 tokens and one of 1,000, and (10 x 4 + 2) x n x n of scores.
    assert peak.result == 128 * (3 * 500 + 1000) + 42 * 1000 * 1000 == value(peak.numbers)


def test_a_policy_that_loses_says_so() -> None:
    """322 GiB of scores for half of 4.5 GiB."""
    part = section("Qwen/Qwen3-8B", seq="32k", policy="observedattention:compression_ratio=0.5")

    assert any("The policy loses" in remark for remark in part.remarks)


@pytest.mark.parametrize(
    ("policy", "most", "last"),
    [
        # R-KV: 4,001 to 1,024 at once; then at every total of 128 x n the next step cuts.
        ("rkv:budget=1024", "1,024 + 128 = 1,152", None),
        # TriAttention: at budget + 128; 8,192 - 4,001 = 4,191 steps are 32 cuts and 95 steps more.
        ("triattention:kv_budget=2048", "2,048 + 128 = 2,176", "2,048 + 95 = 2,143"),
        # A cut in every 512nd step: 8 in 4,191, and 95 steps more; the prompt is whole until the first.
        ("decoding:base_press=(knorm),target_size=1000", "4,001 + 512 = 4,513", "1,000 + 95 = 1,095"),
        ("knorm:compression_ratio=0.5", "2,000 + 4,191 = 6,191", "2,000 + 4,191 = 6,191"),
    ],
)
def test_the_sawtooth_is_derived(policy: str, most: str, last: str | None) -> None:
    """At the most and at the end: what a cut has left, and a token a step since."""
    part = section(SMALL, seq=8192, prompt=4001, policy=policy)

    for words, expected in (("at the most", most), ("at the end", last)):
        one = figure(part, words)
        assert value(one.numbers) == one.result
        assert expected is None or f"{one.numbers} = {one.result:,}" == expected


def test_the_cache_without_the_policy_is_derived() -> None:
    """Of a prompt in tensors; of the whole text in a context of cells."""
    for engine, tokens in (("reference", 4001), ("llamacpp", 8192)):
        one = figure(
            section("Qwen/Qwen3-8B", seq=8192, prompt=4001, policy="h2o:budget=512", engine=engine), "that cache without"
        )
        assert (value(one.numbers), one.result) == (tokens * 147_456,) * 2
