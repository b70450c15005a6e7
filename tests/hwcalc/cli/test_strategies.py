"""``kvplan strategies``: table, documents, explanations and errors."""

from __future__ import annotations

import csv
import io
import json
from typing import Any, Final

import jsonschema
import pytest

from hwcalc import strategies
from hwcalc.cli import completion
from hwcalc.planner.strategies import ENGINE, NAMES
from hwcalc.report.schema import json_schema
from hwcalc.report.strategies import operations
from hwcalc.units import human_bytes
from tests.hwcalc.command import QWEN, Capture, run

LINES: Final = (
    [QWEN, "--seq", "32k"],
    [QWEN, "--seq", "32k", "--users", "4", "--gpu", "h100", "--engine", "vllm", "--fill", "30%"],
    ["google/gemma-3-27b-it", "--lengths", "1k,2k,2k"],
    ["deepseek-ai/DeepSeek-V3.2", "--seq", "8k", "--dtype", "fp8", "--prompt", "4k"],
    ["Qwen/Qwen3-Next-80B-A3B-Instruct", "--lengths", "uniform:1..8k", "--gpu", "l4"],
    ["state-spaces/mamba-130m-hf", "--seq", "1k"],
    ["facebook/bart-large", "--seq", "1k", "--encoder-seq", "700"],
    ["--layers", "4", "--heads", "8", "--kv-heads", "2", "--head-dim", "16", "--seq", "1000"],
)


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_documents_fit_their_schema(capsys: Capture, line: list[str]) -> None:
    """``kvplan schema strategies``; the document is that of the library, and whole numbers stay whole."""
    status, out, _ = run(capsys, "strategies", *line, "--json")
    document = json.loads(out)

    assert status == 0
    jsonschema.Draft202012Validator(json_schema("strategies")).validate(document)
    names = [one["name"] for one in document["strategies"]]
    assert names == [*NAMES, *([ENGINE] if "--engine" in line else [])]


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_table_and_csv_are_those_of_the_document(capsys: Capture, line: list[str]) -> None:
    """Every strategy with its bytes, in each format."""
    document = json.loads(run(capsys, "strategies", *line, "--json")[1])
    _, table, _ = run(capsys, "strategies", *line)
    _, markdown, _ = run(capsys, "strategies", *line, "--format", "markdown")
    rows = list(csv.DictReader(io.StringIO(run(capsys, "strategies", *line, "--format", "csv")[1])))

    assert [row["name"] for row in rows] == [one["name"] for one in document["strategies"]]
    for row, one in zip(rows, document["strategies"], strict=True):
        shown = " ".join(text for text in table.splitlines() if text.split()[:1] == [one["name"]])
        for name in ("full_bytes", "held_bytes", "wasted_bytes", "peak_bytes"):
            assert row[name] == ("" if one[name] is None else str(one[name]))
            assert one[name] is None or human_bytes(one[name]) in shown
        total = one["attention_total_flops"] if one["total_flops"] is None else one["total_flops"]
        assert operations(total) in shown
        assert f"| {one['name']} | {human_bytes(one['full_bytes'])}" in markdown
    for choice in document["heads"]:
        assert human_bytes(choice["full_bytes"]) in table


@pytest.mark.parametrize("name", NAMES)
def test_explained(capsys: Capture, name: str) -> None:
    """One strategy with the model's own numbers; by either command, in text and Markdown, and as a document with that one alone."""
    line = [QWEN, "--seq", "2000"]
    status, out, _ = run(capsys, "strategies", *line, "--explain", name)

    assert status == 0
    assert "36 \N{MULTIPLICATION SIGN} 1 \N{MULTIPLICATION SIGN}" in out
    assert run(capsys, "explain", *line, "--strategy", name)[1] == out
    document = json.loads(run(capsys, "explain", *line, "--strategy", name, "--json")[1])
    assert [one["name"] for one in document["strategies"]] == [name]
    assert (
        "| full\\_bytes |" in run(capsys, "strategies", *line, "--explain", name, "--format", "markdown")[1]
        or name == "recompute"
    )


def test_quiet_is_numbers_alone(capsys: Capture) -> None:
    """No notes, no words."""
    _, out, _ = run(capsys, "strategies", QWEN, "--seq", "2000", "-q")

    assert "trades" not in out
    assert "quoted" not in out
    assert "pages" in out


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ([QWEN, "--explain", "paged"], 2, "strategy 'paged' is not known"),
        ([QWEN, "--explain", "engine"], 2, "--engine vllm"),
        ([QWEN, "--fill", "2"], 2, "a share from 0 to 1"),
        ([QWEN, "--lengths", "1k;2k"], 2, "Write: --lengths"),
        ([QWEN, "--tp", "2"], 2, "--tp"),
        ([QWEN, "--block-size", "x"], 2, "block-size"),
        (["nobody/nothing", "--offline"], 3, "nobody/nothing"),
        ([], 2, "no MODEL is named"),
    ],
)
def test_errors(capsys: Capture, words: list[str], status: int, said: str) -> None:
    """The exit status, what was given, and what to type; with ``--json`` one document."""
    found, out, err = run(capsys, "strategies", *words)
    assert (found, out) == (status, "")
    assert said in " ".join(err.split())
    assert "Traceback" not in err
    error = json.loads(run(capsys, "strategies", *words, "--json")[1])["error"]
    assert error["code"] == status


def test_an_option_of_a_plan_alone(capsys: Capture) -> None:
    """What strategies do not take is said by ``explain --strategy`` too."""
    status, _, err = run(capsys, "explain", QWEN, "--strategy", "pages", "--tp", "2")

    assert status == 2
    assert "strategies takes no 'tp'" in err


def test_completion() -> None:
    """Names of strategies."""
    assert completion.strategies("p") == ["pages"]
    assert completion.strategies("") == [*NAMES, ENGINE]


def test_names_of_a_file_do_nothing(capsys: Capture, tmp_path: Any) -> None:
    """A model's name is printed without its control characters."""
    config = {"model_type": "llama", "_name_or_path": "a\x1b[31m\nb", "num_hidden_layers": 2, "torch_dtype": "bfloat16"}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    _, out, _ = run(capsys, "strategies", str(path), "--seq", "100")

    assert "\x1b" not in out
    assert strategies(config, seq=100).records()


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_tables_fit_the_terminal(capsys: Capture, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """No line is wider: a table that is too wide becomes several, each with the names, and sentences are filled."""
    monkeypatch.setenv("COLUMNS", str(columns))
    _, out, _ = run(capsys, "strategies", QWEN, "--seq", "32k", "--users", "4", "--engine", "vllm", "--gpu", "l4")

    assert max(map(len, out.splitlines())) <= columns
    assert all(
        title in out for title in ("when full", "most wasted", "peak", "on host", "last step", "all steps", "a step takes")
    )
    assert len([line for line in out.splitlines() if line.startswith("strategy")]) == {60: 4, 80: 3, 100: 3, 200: 2}[columns]
