"""Figures that stand side by side agree, in one report and between commands."""

from __future__ import annotations

import csv
import io
import json
from typing import Any, Final

import pytest

from hwcalc import compare, plan
from hwcalc.report.compare import comparison_text
from hwcalc.report.text import csv_text, parameters
from hwcalc.report.view import View
from tests.hwcalc.command import Capture, run

DEEPSEEK: Final = "deepseek-ai/DeepSeek-V3"
LLAMA: Final = "meta-llama/Llama-3.1-8B"


@pytest.mark.parametrize(
    ("model", "options", "copied_of"),
    [
        # A latent lies on every rank, unless decode context parallelism cuts the sequence.
        (DEEPSEEK, {"tp": 8}, (7, 8)),
        (DEEPSEEK, {"tp": 8, "dcp": 2}, (3, 4)),
        (DEEPSEEK, {"tp": 8, "dcp": 8}, (0, 1)),
        # 8 key/value heads on 16 ranks lie on two each.
        (LLAMA, {"tp": 8}, (0, 1)),
        (LLAMA, {"tp": 16}, (1, 2)),
        (LLAMA, {"tp": 16, "dcp": 2}, (0, 1)),
    ],
)
def test_copies_on_ranks_are_counted(model: str, options: dict[str, Any], copied_of: tuple[int, int]) -> None:
    """Without copies, a sequence of whole blocks takes what its tokens take; the reference counts none."""
    cache = plan(model, seq=32_768, batch=3, engine="vllm", **options).cache
    part, whole = copied_of

    assert cache.copied_bytes == cache.total_bytes * part // whole
    assert cache.total_bytes - cache.copied_bytes == 3 * 32_768 * cache.bytes_per_token
    assert plan(model, seq=32_768, tp=8).cache.copied_bytes == 0


def test_copies_are_said_beside_the_figure(capsys: Capture) -> None:
    """68.62 KiB a token and 17.16 GiB a sequence of 32,768: seven of eight bytes are copies."""
    out = run(capsys, DEEPSEEK, "--seq", "32k", "--tp", "8", "--engine", "vllm")[1]

    assert "32,768 tokens; 15.01 GiB are copies on 8 ranks" in out
    assert "copies" not in run(capsys, LLAMA, "--seq", "32k", "--tp", "8", "--engine", "vllm")[1]


def test_no_speed_of_what_does_not_run(capsys: Capture) -> None:
    """A speed stands in the report of a plan that fits; another has that of what it offers alone, and a gate for speed does not pass it."""
    fitting = run(capsys, LLAMA, "--seq", "8k", "--gpu", "l4", "--engine", "vllm")[1]
    failing = run(capsys, LLAMA, "--seq", "128k", "--gpu", "l4", "--engine", "vllm")[1]

    assert "tokens/s" in fitting
    assert "tokens/s" not in failing.partition("\n  try ")[0]
    markdown = run(capsys, LLAMA, "--seq", "128k", "--gpu", "l4", "--format", "markdown")[1]
    assert "tokens/s" not in markdown


def test_the_csv_of_a_plan_has_its_sums_and_its_verdict(capsys: Capture) -> None:
    """They are those of the JSON document, in every row."""
    words = (LLAMA, "--seq", "8k", "--gpu", "l4", "--users", "2")
    rows = list(csv.DictReader(io.StringIO(run(capsys, *words, "--format", "csv")[1])))
    document = json.loads(run(capsys, *words, "--json")[1])

    assert sum(int(row["bytes"]) for row in rows) == document["cache"]["total_bytes"]
    for row in rows:
        assert row["fits"] == document["fit"]["verdict"] == "fits"
        assert [int(row[name]) for name in ("cache_total_bytes", "weights_bytes", "total_bytes", "usable_bytes")] == [
            document["cache"]["total_bytes"],
            document["memory"]["weights"]["bytes"],
            document["memory"]["total_bytes"],
            document["fit"]["usable_bytes"],
        ]
    without = list(csv.DictReader(io.StringIO(run(capsys, LLAMA, "--seq", "8k", "--format", "csv")[1])))
    assert {row["fits"] for row in without} == {""}


def test_truth_is_written_the_same_in_every_csv(capsys: Capture) -> None:
    """``true`` and ``false``, as JSON has them; a verdict is its word in every file."""
    compared = run(capsys, "compare", LLAMA, "--seq", "8k,128k", "--gpu", "l4", "--format", "csv")[1]

    assert csv_text(("a", "b"), [(True, False)]) == "a,b\ntrue,false\n"
    assert [row["fits"] for row in csv.DictReader(io.StringIO(compared))] == ["fits", "no"]


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (999_499_999, "999 million"),
        (999_500_000, "1.00 billion"),
        (999_885_952, "1.00 billion"),
        (1_000_000_000, "1.00 billion"),
        (999_999, "999,999"),
    ],
)
def test_a_thousand_million_is_a_billion(count: int, words: str) -> None:
    """Rounding up does not leave a thousand of the smaller unit."""
    assert parameters(count) == words


@pytest.mark.parametrize(
    "words",
    [
        (LLAMA, "--engine", "vllm", "--engine-option", "block_size=24"),
        (LLAMA, "--engine", "vllm", "--tp", "3"),
        (LLAMA, "--engine", "vllm", "--pp", "33"),
        (LLAMA, "--pp", "33", "--gpu", "l4"),
        (LLAMA, "--engine", "transformers", "--tp", "16"),
        ("bigcode/starcoder", "--engine", "transformers", "--tp", "2"),
        (LLAMA, "--engine", "vllm", "--engine-option", "speculative=mtp:2"),
        ("Qwen/Qwen3-8B", "--engine", "transformers", "--engine-option", "cache=quantized", "--engine-option", "q_group_size=7"),
    ],
)
def test_a_value_that_this_model_cannot_have_is_usage(capsys: Capture, words: tuple[str, ...]) -> None:
    """An engine option or a parallel size is wrong: exit 2. A model that an engine does not run is exit 3."""
    assert run(capsys, *words, "--seq", "4k")[0] == 2
    assert run(capsys, "EleutherAI/gpt-neo-2.7B", "--engine", "vllm", "--seq", "1k")[0] == 3


@pytest.mark.parametrize(
    "words", [("recommend", LLAMA, "--limit", "-1"), ("recommend", LLAMA, "--max-gpus", "-1"), (LLAMA, "--seq", "-5")]
)
def test_a_negative_number_is_a_number(capsys: Capture, words: tuple[str, ...]) -> None:
    """It is out of range, and the message names its option."""
    status, _, err = run(capsys, *words)

    assert status == 2
    assert err.startswith(f"kvplan: {words[-2]} is out of range: '{words[-1]}'")


def test_what_the_list_of_models_counts_is_said(capsys: Capture) -> None:
    """The published count of DeepSeek-V3 has its multi-token prediction; a plan's has it apart."""
    _, out, err = run(capsys, "models", DEEPSEEK)

    assert "published parameters" in out
    assert "multi-token prediction apart" in err
    assert "671.03 billion parameters" in run(capsys, DEEPSEEK, "--seq", "4k")[1]


def test_a_long_name_makes_room_for_how_many_at_once() -> None:
    """At 80 columns the model of 33 letters has a line of its own, and each row what it needs and holds; at 120 it stands in its row."""
    model = "meta-llama/Llama-3.3-70B-Instruct"
    compared = compare([model, "openai/gpt-oss-120b"], gpu=["4xh100", "8xh200"], engine="vllm", seq="16k", batch=50)
    narrow, wide = (comparison_text(compared, View(width=width)).splitlines() for width in (80, 120))

    assert narrow[2].split() == ["runs", "on", "layout", "verdict", "needs", "of", "at", "once", "longest"]
    assert narrow[3] == model
    assert narrow[4].split()[:3] == ["4", "x", "h100-sxm5-80gb"]
    assert wide[3].startswith(f"{model}  4 x h100-sxm5-80gb")


@pytest.mark.parametrize(
    "models", [["meta-llama/Llama-3.3-70B-Instruct"], ["meta-llama/Llama-3.3-70B-Instruct", "openai/gpt-oss-120b"]]
)
def test_whether_how_many_and_for_how_much_are_left_out_last(models: list[str]) -> None:
    """However narrow, rows say the verdict, how many at once and dollars an hour; what a million tokens cost goes before these, and needs and speed before that."""
    compared = compare(models, gpu=["4xh100", "8xh200"], engine="vllm", seq="16k", batch=50, cost=True)
    texts = (comparison_text(compared, View(width=width)).splitlines() for width in (200, 100, 90, 80, 72))
    wide, *narrower = (next(line for line in text if "verdict" in line) for text in texts)
    last_first = ["tok/s", "longest", "of", "needs", "$/1M"]

    assert all(title in wide for title in (*last_first, "verdict", "at once", "$/h"))
    for header in narrower:
        assert all(title in header for title in ("verdict", "at once", "$/h"))
        shown = [title in header.replace("runs on", "").split() for title in last_first]
        assert shown == sorted(shown)


def test_names_that_leave_no_room_stand_above_their_rows() -> None:
    """A policy with its numbers beside an engine is longer than half a terminal: no line is too wide, and no verdict is broken."""
    policy = "snapkv:compression_ratio=0.5,window_size=32"
    compared = compare(
        "Qwen/Qwen3-8B", seq=32768, gpu="h100-sxm5-80gb", engine=["transformers@5.2", "vllm"], policy=[policy, "none"]
    )
    lines = comparison_text(compared, View(width=80)).splitlines()

    assert max(map(len, lines)) <= 80
    assert lines[lines.index(f"vllm, {policy}") + 1].startswith("  fits  ")
