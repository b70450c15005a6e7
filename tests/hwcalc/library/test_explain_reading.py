"""What a person reads of an explanation: ends that add up, the reason of each limit, no trivial rows, rows for a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest

from hwcalc import explain, plan
from hwcalc.engines.steps import step
from hwcalc.library.explained import SECTIONS, figure_of
from hwcalc.planner.verdict import UNLIMITED
from hwcalc.text import TIMES
from tests.hwcalc.command import Capture, run

MAC = ("--weights", "q4_k_m", "--gpu", "m4-24gb")
REFUSED = ("meta-llama/Llama-3.1-70B-Instruct", "--seq", "128k", "--engine", "vllm", "--gpu", "h100", "--gpus", "2")


def test_an_expected_limit_has_its_own_reason(capsys: Capture) -> None:
    """By the expected values the model's own length ends it, where the sure value ends at the cache."""
    told = explain("Qwen/Qwen3-14B", weights="q4_k_m", gpu="m4-24gb", seq="32k")
    limits = {limit.name: limit for limit in told.limits}
    _, out, _ = run(capsys, "explain", "Qwen/Qwen3-14B", *MAC, "--seq", "32k", "--only", "limits")

    assert ("cache", "model length") == (limits["longest"].limiting, limits["longest, expected"].limiting)
    assert limits["longest, expected"].value == 40_960
    (line,) = (line for line in out.splitlines() if line.startswith("  longest, expected"))
    assert "the limit is model length" in line


@pytest.mark.parametrize("model", ["Qwen/Qwen3-14B", "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-Next-80B-A3B-Instruct"])
@pytest.mark.parametrize("engine", ["reference", "vllm", "transformers"])
def test_a_limit_that_needs_less_than_there_is_has_another_reason(model: str, engine: str) -> None:
    """What ends below the budget is never said to end by memory."""
    told = explain(model, seq="8k", engine=engine, gpu="h200", gpus=2)
    for limit in told.limits:
        if limit.name != "fewest" and limit.next_value is None and 0 < limit.value < UNLIMITED:
            assert limit.limiting not in {"cache", "weights"}, limit


def test_the_ends_of_needs_add_up(capsys: Capture) -> None:
    """On a Mac the visible memory is itself uncertain, and that is a term of the high end."""
    told = explain("Qwen/Qwen3-8B", weights="q4_k_m", gpu="m4-24gb", seq="8k")
    fit = told.plan.fit
    assert fit is not None
    assert fit.budget is not None
    figures = {figure.name: figure for section in told.sections for figure in section.figures}
    at_most, usable = figures["needs, at most"], figures["usable"]
    _, out, _ = run(capsys, "explain", "Qwen/Qwen3-8B", *MAC, "--seq", "8k", "--only", "verdict")

    terms = [int(term.replace(",", "")) for term in at_most.numbers.split(" + ")]
    assert sum(terms) == at_most.result == fit.needed_high_bytes == 9_752_927_079
    # 5 % of the 16 GiB and of the 17.76 GiB that may be visible is left alone.
    low, high = 16 * 2**30, fit.budget.total_bytes
    missing = (high - -(-high // 20)) - (low - -(-low // 20))
    assert terms[-1] == missing
    assert usable.low == usable.result - missing
    assert figures["needs, at least"].result == fit.needed_low_bytes
    assert "16.00 GiB to 17.76 GiB: 15.20 GiB to 16.87 GiB of it may be used." in out
    assert "less_memory  what may not be used" in out


def test_the_words_of_an_engine_are_quoted(capsys: Capture) -> None:
    """Whose words they are, without a full stop after theirs; they stay byte for byte."""
    planned = plan(REFUSED[0], seq="128k", engine="vllm", gpu="h100", gpus=2)
    assert planned.pool is not None
    assert planned.fit is not None
    said = planned.pool.message
    assert said is not None
    assert said.endswith(".")
    _, table, _ = run(capsys, *REFUSED)
    _, explained, err = run(capsys, "explain", *REFUSED, "--only", "pool,verdict")

    assert planned.fit.message == said
    assert f"error    vLLM says: {said}\n" in table
    assert f"Why not: vLLM says: {said}\n" in explained
    assert f"kvplan: vLLM says: {said}\n" in err
    assert 1 == explained.count(said)
    assert not re.search(r"(?<!vLLM says: )" + re.escape(said), table + explained + err)


def test_our_own_reason_is_a_sentence(capsys: Capture) -> None:
    """What is not an engine's message is kvplan's own, with a full stop."""
    _, out, _ = run(capsys, "explain", "Qwen/Qwen3-32B", "--seq", "4k", "--gpu", "l4", "--only", "verdict")

    assert re.search(r"Why not: it does not fit: [\d.]+ GiB too much on the GPU\.\n", out)


@pytest.mark.parametrize("format_", ["table", "markdown"])
def test_how_to_see_one_part(capsys: Capture, format_: str) -> None:
    """A line at the end of a whole explanation, and of no part."""
    words = ("explain", "Qwen/Qwen3-8B", "--seq", "32k", "--format", format_)
    hint = "one part: --only weights"

    assert hint in run(capsys, *words)[1].splitlines()[-1]
    assert hint not in run(capsys, *words, "--only", "cache")[1]
    assert hint not in run(capsys, *words, "--quiet")[1]


def test_trivial_rows_are_left_out(capsys: Capture) -> None:
    """No sum of one number, and no product that is zero at both ends."""
    _, out, _ = run(capsys, "explain", "Qwen/Qwen3-8B", *MAC, "--seq", "8k")
    _, two, _ = run(capsys, "explain", "Qwen/Qwen3-8B", "--seq", "8k", "--gpu", "h100", "--gpus", "2", "--engine", "vllm")
    assert not re.search(r"(?m)^[^=\u00d7+-]* ([\d,]+) = \1 B", out)
    assert "activations, together" not in out
    assert "activations, all GPUs" in two
    assert f" 0 {TIMES} " not in two
    assert "buffer_rows" not in two

    figure = figure_of(step("sum", "a x b + c x d + max(c, b)", 14, a=2, b=4, c=0, d=(0, 0, 9)), "x", definition="exact")
    assert (f"a {TIMES} b + max(c, b)", f"2 {TIMES} 4 + max(0, 4)") == (figure.formula, figure.numbers)
    kept = figure_of(step("sum", "a + d", (2, 2, 11), a=2, d=(0, 0, 9)), "x", definition="exact")
    assert kept.formula == "a + d"


def test_a_formula_is_printed_once_in_a_section(capsys: Capture) -> None:
    """Rows of weights with the same formula have their numbers alone."""
    _, out, _ = run(capsys, "explain", "deepseek-ai/DeepSeek-V3", "--seq", "32k", "--only", "weights")

    for formula in (f"parameters {TIMES} bits / 8", f"parameters {TIMES} bits / 8 + scales"):
        assert 1 == sum(line.endswith(f" {formula}") for line in out.splitlines())


def test_the_bytes_that_a_step_reads_have_their_arithmetic(capsys: Capture) -> None:
    """52 windows of 1,024 tokens and 10 layers of 32,768, with keys and values of 16 heads x 128 in 16 bits."""
    _, out, _ = run(capsys, "explain", "google/gemma-3-27b-it", "--gpu", "h200", "--seq", "32k", "--only", "speed")

    row = 2 * 16 * 128 * 2
    windows, full = 52 * 1024 * row, 10 * 32_768 * row
    assert f"52 {TIMES} 1,024 {TIMES} {row:,} = {windows:,} B" in out
    assert f"10 {TIMES} 32,768 {TIMES} {row:,} = {full:,} B" in out
    assert f"{windows:,} + {full:,} = {windows + full:,} B" in out


def test_a_reason_is_given_once(capsys: Capture) -> None:
    """Two formulas in a row that pass over the same; what a single sequence reads needs no product with one."""
    _, out, _ = run(
        capsys, "explain", "deepseek-ai/DeepSeek-V3", "--gpu", "h200", "--gpus", "8", "--seq", "32k", "--only", "quoted,speed"
    )

    assert 1 == out.count("stands for the keys and values of all 128 heads")
    assert 1 == out.count("it ignores the same\n")
    assert f" 1 {TIMES} " not in out
    assert f"61 {TIMES} 32,768 {TIMES} {(512 + 64) * 2:,} = " in out


def test_csv(capsys: Capture) -> None:
    """A row for each figure and each limit, which names its plan; the numbers are those of the library."""
    words = (
        "explain",
        "meta-llama/Llama-3.1-70B-Instruct",
        "--seq",
        "32k",
        "--users",
        "20",
        "--engine",
        "vllm",
        "--gpu",
        "h100",
        "--gpus",
        "4",
    )
    told = explain(words[1], seq="32k", batch=20, engine="vllm", gpu="h100", gpus=4)
    status, out, err = run(capsys, *words, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))

    assert 1 == status
    assert "does not fit" in err
    assert len(rows) == len(told.records())
    assert {"meta-llama/Llama-3.1-70B-Instruct"} == {row["model"] for row in rows}
    for row, record in zip(rows, told.records(), strict=True):
        assert (row["section"], row["name"], row["unit"]) == (record["section"], record["name"], record["unit"])
        assert float(row["result"]) == record["result"]
        assert row["unit"] != "bytes" or re.fullmatch(r"-?\d+", row["result"]), row
    (cache,) = (row for row in rows if row["section"] == "cache")
    assert (80, 32_768 * 20 * 2 * 8 * 128 * 2 * 80) == (int(cache["layers"]), int(cache["result"]))
    limits = [row["name"] for row in rows if row["section"] == "limits"]
    assert limits == [limit.name for limit in told.limits]
    only = run(capsys, *words, "--format", "csv", "--only", "weights")[1]
    assert {"weights"} == {row["section"] for row in csv.DictReader(io.StringIO(only))}


def test_csv_warns_beside_the_rows(capsys: Capture) -> None:
    """Warnings are on standard error, as those of a plan."""
    status, out, err = run(
        capsys, "explain", "meta-llama/Llama-3.3-70B-Instruct", "--seq", "2k", "--gpu", "h200", "--format", "csv"
    )
    warned = json.loads(run(capsys, "explain", "meta-llama/Llama-3.3-70B-Instruct", "--seq", "2k", "--gpu", "h200", "--json")[1])[
        "warnings"
    ]

    assert out.startswith("model,engine,")
    assert all(f"warning: {note['message']}" in err for note in warned)
    assert {row["section"] for row in csv.DictReader(io.StringIO(out))} <= set(SECTIONS)
    assert status in (0, 1)
