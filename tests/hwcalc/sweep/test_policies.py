"""Policies as an axis of ``kvplan compare`` and ``kvplan sweep``: every row is that of its plan."""

from __future__ import annotations

import csv
import io
import json
from typing import Any, Final

import pytest

from hwcalc import compare, plan, sweep
from hwcalc.errors import KvplanError, UsageError
from hwcalc.library.compare import MOST_VARIANTS
from hwcalc.sweep.grid import row_of
from tests.hwcalc.command import QWEN, Capture, run

TINY: Final = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 256,
    "vocab_size": 1000,
    "intermediate_size": 512,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 4096,
}
POLICIES: Final = (
    "snapkv:compression_ratio=0.5",
    "pyramidkv:compression_ratio=0.5,window_size=16",
    "adakv:press=(knorm:compression_ratio=0.3)",
    "rkv:budget=64",
    "decoding:base_press=knorm,compression_interval=32,target_size=100",
    None,
)


def texts(policies: tuple[str | None, ...]) -> str:
    """The list as it is typed."""
    return ",".join(policy or "none" for policy in policies)


def row_or_error(options: dict[str, Any]) -> dict[str, Any]:
    """The row of one plan, or what is known of it beside its error."""
    try:
        return row_of(plan(TINY, **options))
    except KvplanError as error:
        return {"policy": options["policy"], "error": error.message}


@pytest.mark.parametrize("engine", ["reference", "transformers"])
def test_rows_of_a_comparison_are_their_plans(engine: str) -> None:
    """Text and Python alike; one of the rows has no policy."""
    options: dict[str, Any] = {"seq": 1000, "prompt": 600, "batch": 3, "engine": engine, "gpu": "l4"}
    found = compare(TINY, policy=texts(POLICIES), **options)

    assert found == compare(TINY, policy=list(POLICIES), **options)
    assert found.varying == ("policy",)
    for variant, policy in zip(found.variants, POLICIES, strict=True):
        planned = plan(TINY, policy=policy, **options)
        assert planned.fit is not None
        assert (variant.policy, variant.error) == (planned.request.policy, None)
        assert (variant.cache_total_bytes, variant.max_seq, variant.max_batch, variant.verdict) == (
            planned.cache.total_bytes, planned.fit.max_seq, planned.fit.max_batch, planned.fit.verdict,
        )  # fmt: skip
        if planned.policy is None:
            assert {variant.kept_tokens, variant.policy_saved_bytes, variant.prefill_peak_bytes, variant.loses} == {None}
        else:
            assert variant.kept_tokens == max(layers.kept for layers in planned.policy.layers)
            assert variant.kept_tokens_low == min(layers.kept_low for layers in planned.policy.layers)
            assert (variant.policy_saved_bytes, variant.prefill_peak_bytes, variant.loses, variant.policy_offered) == (
                planned.policy.saved_bytes, planned.policy.prefill_peak_bytes, planned.policy.loses, planned.policy.offered,
            )  # fmt: skip


def test_what_is_said_of_policies_is_not_said_of_the_row_without_one() -> None:
    """``--policy-rules`` beside a list that has ``none``; with ``none`` alone it is the error of a plan."""
    rows = compare(TINY, seq=100, policy="streamingllm:compression_ratio=0.5,none", policy_rules="paper").variants
    points = list(sweep(TINY, seq=100, policy="streamingllm:compression_ratio=0.5,none", policy_rules="paper"))

    assert [row.error for row in rows] == [point.error for point in points] == [None, None]
    functions: tuple[Any, ...] = (compare, sweep)
    for function in functions:
        with pytest.raises(UsageError, match="there is none"):
            list(function(TINY, seq=100, policy="none", policy_rules="paper"))


@pytest.mark.parametrize("engine", ["reference", "transformers", "vllm"])
@pytest.mark.parametrize("hardware", [{}, {"gpu": "l4"}], ids=str)
def test_points_of_a_sweep_are_their_plans(engine: str, hardware: dict[str, str]) -> None:
    """Lengths on either side of the budgets, with a prompt; the reference's curves are for rows without a policy alone."""
    options: dict[str, Any] = {"engine": engine, **hardware}
    seqs, batches = (1, 50, 1000, 3000), (1, 4)
    points = list(sweep(TINY, seq=seqs, batch=batches, policy=texts(POLICIES), prompt=600, **options))

    assert len(points) == len(POLICIES) * len(seqs) * len(batches)
    expected = ((policy, seq, batch) for policy in POLICIES for seq in seqs for batch in batches)
    for point, (policy, seq, batch) in zip(points, expected, strict=True):
        row = row_or_error({"policy": policy, "seq": seq, "batch": batch, "prompt": 600, **options})
        row |= {"gpu": hardware.get("gpu")}
        assert {name: getattr(point, name) for name in row} == row


def test_curves_know_no_policy() -> None:
    """The same lengths with and without one, where the reference has curves."""
    points = list(sweep(TINY, seq=(100, 2000), policy="knorm:compression_ratio=0.5,none"))

    assert [(point.policy, point.kept_tokens) for point in points] == [
        ("knorm:compression_ratio=0.5", 50), ("knorm:compression_ratio=0.5", 1000), (None, None), (None, None),
    ]  # fmt: skip
    assert [2 * points[place].cache_total_bytes for place in (0, 1)] == [point.cache_total_bytes for point in points[2:]]  # type: ignore[operator]


def test_a_list_on_the_command_line(capsys: Capture) -> None:
    """Joined where it is given twice; in the table, CSV and JSON under its own name."""
    words = ["compare", QWEN, "--seq", "4k"]
    joined = run(capsys, *words, "--policy", "snapkv:compression_ratio=0.5,window_size=32,none", "--json")
    assert run(capsys, *words, "--policy", "snapkv:compression_ratio=0.5,window_size=32", "--policy", "none", "--json") == joined
    document = json.loads(joined[1])
    assert [variant["policy"] for variant in document["variants"]] == ["snapkv:compression_ratio=0.5,window_size=32", None]
    _, out, _ = run(capsys, *words, "--policy", "pyramidkv:compression_ratio=0.5,observedattention:compression_ratio=0.5,none")
    assert "  kept  " in out
    assert "102 to 3,994" in out
    status, out, err = run(capsys, "sweep", QWEN, "--seq", "1k,4k", "--policy", "knorm:compression_ratio=0.5,none")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert (status, err) == (0, "")
    assert [(row["policy"], row["kept_tokens"]) for row in rows] == [
        ("knorm:compression_ratio=0.5", "512"), ("knorm:compression_ratio=0.5", "2048"), ("", ""), ("", ""),
    ]  # fmt: skip


def test_several_where_one_is_taken(capsys: Capture) -> None:
    """The hint is the command that takes a list."""
    status, _, err = run(capsys, QWEN, "--seq", "4k", "--policy", "knorm:compression_ratio=0.5,none")

    assert status == 2
    assert "kvplan compare MODEL --policy knorm:compression_ratio=0.5,none" in err


def test_too_many_variants() -> None:
    """As for the other lists."""
    policies = [f"knorm:compression_ratio=0.{number:02}" for number in range(1, MOST_VARIANTS + 2)]

    with pytest.raises(UsageError, match=f"at most {MOST_VARIANTS}"):
        compare(TINY, seq=100, policy=policies)


def test_an_unknown_policy_is_an_error_of_the_whole() -> None:
    """No row of it."""
    with pytest.raises(UsageError, match="nonsense"):
        compare(TINY, seq=100, policy="nonsense,none")
    with pytest.raises(UsageError, match="nonsense"):
        sweep(TINY, seq=100, policy=["none", "nonsense"])


def test_a_policy_that_one_engine_refuses_is_a_row_with_an_error() -> None:
    """The other rows stand."""
    found = compare(TINY, seq=8, policy="snapkv:compression_ratio=0.5,window_size=64,none").variants

    assert found[0].error is not None
    assert found[0].policy == "snapkv:compression_ratio=0.5"
    assert found[1].error is None
