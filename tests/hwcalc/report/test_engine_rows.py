"""``--engine all``: one row for each engine, the same in a table, Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from hwcalc import compare, plan
from hwcalc.engines import ENGINES, find_engine
from hwcalc.errors import UsageError
from hwcalc.report.schema import json_schema
from hwcalc.units import human_bytes
from tests.hwcalc.command import QWEN, Capture, run

GPT = "openai/gpt-oss-20b"
DEEPSEEK = "deepseek-ai/DeepSeek-V3"
HYBRID = "Qwen/Qwen3-Next-80B-A3B-Instruct"
AT_HOME = ("Qwen/Qwen3-14B", "--weights", "q4_k_m", "--gpu", "rtx-4070", "--seq", "16k")


def document(capsys: Capture, *words: str) -> dict[str, Any]:
    """The JSON document of a command."""
    found: dict[str, Any] = json.loads(run(capsys, *words, "--json")[1])
    return found


def test_every_engine_has_a_row(capsys: Capture) -> None:
    """In the order of the list; one that cannot run the model says why in its row."""
    status, out, err = run(capsys, HYBRID, "--engine", "all", "--seq", "8k", "--users", "2")
    rows = [line for line in out.splitlines() if line.split(" ")[0] in ENGINES]

    assert (status, "No GPU given" in err) == (0, True)
    assert [line.split(" ")[0] for line in rows[: len(ENGINES)]] == list(ENGINES)
    assert "cannot: Ollama gives qwen3next one slot" in out
    assert "the formulas" in rows[0]


def test_plan_and_compare_say_the_same(capsys: Capture) -> None:
    """``kvplan MODEL --engine all`` is a comparison of one model, and of the library too."""
    words = ("--engine", "all", "--gpu", "h100", "--seq", "8k")
    of_plan = document(capsys, GPT, *words)

    assert of_plan == document(capsys, "compare", GPT, *words)
    assert of_plan == compare(GPT, engine="all", gpu="h100", seq="8k").to_dict()
    # transformers keeps a token less of the window: a reason takes bytes away.
    assert min(reason["bytes"] for variant in of_plan["variants"] if variant["row"] for reason in variant["row"]["reasons"]) < 0
    Draft202012Validator(json_schema("compare")).validate(of_plan)


def test_a_row_has_the_numbers_of_a_plan_and_its_reasons_are_the_difference(capsys: Capture) -> None:
    """Every engine's cache is that of its own plan; the reasons add up to what it has beyond the formulas."""
    found = document(capsys, GPT, "--engine", "all", "--gpu", "h100", "--seq", "8000", "--users", "4")
    formulas = plan(GPT, seq=8000, batch=4).cache.total_bytes
    planned = [variant for variant in found["variants"] if variant["error"] is None]
    assert len(planned) > 8
    for variant in planned:
        alone, row = plan(GPT, engine=variant["engine"], gpu="h100", seq=8000, batch=4), variant["row"]
        assert variant["cache_total_bytes"] == alone.cache.total_bytes
        assert row["all_gpus_bytes"] == alone.cache.per_gpu_bytes
        assert row["pool_tokens"] == (None if alone.pool is None else alone.pool.tokens)
        assert (row["pool_is"] is None) == (alone.pool is None)
        assert sum(reason["bytes"] for reason in row["reasons"]) == row["all_gpus_bytes"] - formulas
        assert row["cache_is"]


@pytest.mark.parametrize(
    "words", [(GPT, "--gpu", "h100"), (HYBRID, "--tp", "4", "--kv-memory", "10GiB"), (QWEN, "--dtype", "q8_0")]
)
def test_table_markdown_and_csv_have_the_rows_of_the_document(capsys: Capture, words: tuple[str, ...]) -> None:
    """Bytes, tokens of pools, and every reason that the table has room for."""
    words = (*words, "--engine", "all", "--seq", "8000")
    found = document(capsys, *words)["variants"]
    table, markdown, rows = (run(capsys, *words, "--format", form)[1] for form in ("table", "markdown", "csv"))
    lines = markdown.replace("\\", "").splitlines()
    cells = {line.split(" | ")[0].strip("| "): line for line in reversed(lines) if line.startswith("|")}
    flat = " ".join(table.split())
    for variant, record in zip(found, csv.DictReader(io.StringIO(rows)), strict=True):
        line, row = cells[variant["engine"]], variant["row"]
        if row is None:
            assert f"cannot: {variant['error']}" in line
            continue
        assert human_bytes(row["all_gpus_bytes"]) in line
        assert human_bytes(row["all_gpus_bytes"]) in flat
        assert row["pool_tokens"] is None or f"{row['pool_tokens']:,}" in line
        assert int(record["all_gpus_bytes"]) == row["all_gpus_bytes"]
        for reason in row["reasons"]:
            assert f"{reason['words']}: {reason['bytes']:+,} B" in record["reasons"]
        for reason in row["reasons"][:3]:
            assert reason["words"] in line


@pytest.mark.parametrize("flag", [("--emit", "vllm"), ("--plot",), ("--brief",), ("--verbose",)])
def test_what_is_about_one_plan_is_refused(capsys: Capture, flag: tuple[str, ...]) -> None:
    """One says which, and what to do."""
    status, out, err = run(capsys, QWEN, "--engine", "all", *flag)

    assert (status, out) == (2, "")
    assert "is about the plan of one engine" in err
    assert "Name one: --engine vllm" in err


def test_what_is_offered_in_place_of_every_engine_runs(capsys: Capture) -> None:
    """What is about one plan is planned by the engine that is named; and of the changes that help, one is for an engine that starts a server."""
    served = (QWEN, "--gpu", "l40s", "--seq", "16k", "--avg-seq", "4k")
    status, _, err = run(capsys, *served, "--engine", "all")
    offered = err.strip().rpartition("Name one: ")[2].split()
    helped = run(capsys, "Qwen/Qwen3-32B", "--gpu", "rtx-4060-ti-8gb", "--seq", "16k", "--engine", "all")[1]

    assert status == 2
    assert run(capsys, *served, *offered)[0] == 0
    # The first row is that of the formulas, which nobody can start.
    assert "\n  reference" in helped.partition("What makes it fit:")[2]
    tried = shlex.split(helped.replace("\\\n", " ").rpartition("\ntry one of them:")[2])
    assert find_engine(tried[tried.index("--engine") + 1])[0].command.known
    assert run(capsys, *tried[1:])[0] == 0


def test_nothing_is_offered_where_an_engine_runs_the_model(capsys: Capture) -> None:
    """Its rows say what would help the others, and which of them fits; two models are not told by each other's engines."""
    alone = run(capsys, *AT_HOME, "--engine", "all")[1]
    two = run(capsys, "compare", "Qwen/Qwen3-8B", *AT_HOME, "--engine", "llamacpp,sglang")[1]

    assert "What makes it fit:" in alone
    assert "try" not in alone.rpartition("What makes it fit:")[2]
    assert "try" in two.rpartition("What makes it fit:")[2]


@pytest.mark.parametrize("command", ["explain", "sweep", "recommend", "probe"])
def test_commands_by_one_engine_name_the_one_that_takes_all(capsys: Capture, command: str) -> None:
    """A list of engines is for compare."""
    status, _, err = run(capsys, command, QWEN, "--engine", "all")

    assert status == 2
    assert "kvplan compare MODEL --engine all" in err


def test_an_engine_option_is_refused_in_the_rows_of_those_that_lack_it(capsys: Capture) -> None:
    """Those that have it are planned with it."""
    found = document(capsys, QWEN, "--engine", "all", "--seq", "1k", "--engine-option", "block_size=32")["variants"]
    by_name = {variant["engine"]: variant for variant in found}

    assert by_name["vllm"]["error"] is None
    assert "is not known to transformers" in by_name["transformers"]["error"]


def test_what_a_policy_drops_is_a_reason(capsys: Capture) -> None:
    """Beside those of the same engine without it; and the sum holds."""
    words = ("--engine", "all", "--seq", "32k", "--policy", "snapkv:compression_ratio=0.5,window_size=32")
    formulas = plan(QWEN, seq="32k").cache.total_bytes
    found = {variant["engine"]: variant for variant in document(capsys, QWEN, *words)["variants"]}
    dropped = {reason["words"]: reason["bytes"] for reason in found["reference"]["row"]["reasons"]}

    assert dropped == {"dropped by the policy": -formulas // 2}
    for variant in found.values():
        if variant["row"] is not None:
            assert sum(reason["bytes"] for reason in variant["row"]["reasons"]) == variant["row"]["all_gpus_bytes"] - formulas


@pytest.mark.parametrize("width", [60, 80, 100])
def test_reasons_without_room_stand_below_their_row(capsys: Capture, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """Each engine has one row, and beneath it the reasons as a paragraph, not a column of one word a line."""
    monkeypatch.setenv("COLUMNS", str(width))
    out = run(capsys, GPT, "--engine", "all", "--gpu", "h100", "--seq", "8k")[1]
    rows = out.split("\n\n")[1].splitlines()

    assert [line.split()[0] for line in rows if not line.startswith(" ")] == ["engine", *ENGINES]
    assert "  window not honoured (+189.00 MiB)" in rows
    assert "  cannot: TGI: Unsupported model type gpt_oss" in rows


def test_only_columns_that_are_shown_are_explained(capsys: Capture) -> None:
    """Without a GPU nobody has a pool, and one GPU is all GPUs."""
    alone, with_gpu, ranks = (
        run(capsys, "compare", model, "--engine", "reference,sglang", "--seq", "8k", *words)[1]
        for model, words in ((QWEN, ()), (QWEN, ("--gpu", "h100")), (DEEPSEEK, ("--tp", "2")))
    )

    assert "pool tokens" not in alone
    assert "pool tokens: of the pool" in with_gpu
    assert "each counted as the fullest" not in alone + with_gpu
    assert "each counted as the fullest" in ranks


def test_a_model_stands_above_its_rows_where_its_name_leaves_no_room(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """One table with the verdict, in which no line is longer than the terminal; what is left out is named."""
    monkeypatch.setenv("COLUMNS", "60")
    llama = "meta-llama/Llama-3.3-70B-Instruct"
    out = run(capsys, "compare", GPT, llama, "--engine", "vllm", "--seq", "8k", "--gpu", "4xh100,8xh200")[1]

    assert max(map(len, out.splitlines())) <= 60
    lines = out.splitlines()
    place = lines.index(llama)
    assert lines[place + 1].split()[:6] == ["4", "x", "h100-sxm5-80gb", "tp", "4", "fits"]
    assert lines[place + 2].startswith("  8 x h200-sxm-141gb")
    assert "Left out at this width: " in out


def test_nodes_of_unlike_size_stand_side_by_side(capsys: Capture) -> None:
    """Each with its number of GPUs, in the layout that a plan of it has, and with the plan's verdict and most sequences."""
    options: dict[str, Any] = {"engine": "vllm", "seq": "16k", "batch": 50}
    nodes = ("4xh100", "8xh200", "8xmi300x", "2xl40s")
    found = compare([DEEPSEEK, GPT], gpu=",".join(nodes), **options)

    assert found.varying == ("model", "gpu")
    for variant, (model, node) in zip(found.variants, [(m, n) for m in (DEEPSEEK, GPT) for n in nodes], strict=True):
        alone = plan(model, gpu=node, **options)
        assert alone.fit is not None
        assert (variant.gpu, variant.gpus) == (alone.fit.gpu, alone.fit.gpus)
        assert (variant.tp, variant.max_batch, variant.verdict) == (alone.request.tp, alone.fit.max_batch, alone.fit.verdict)
    assert found.variants[1].layout == "dp 8, ep 8"
    out = run(capsys, "compare", DEEPSEEK, "--gpu", "8xh200,h100", "--engine", "vllm", "--seq", "16k")[1]
    assert "8 x h200-sxm-141gb  dp 8, ep 8" in out or "8 x h200-sxm-141gb  tp 8" in out


def test_instances_stand_side_by_side() -> None:
    """All accelerators of each, by the instance's name."""
    found = compare(QWEN, instance="p5.48xlarge,g6.12xlarge", engine="vllm", seq="8k")

    assert [(one.instance, one.gpu, one.gpus) for one in found.variants] == [
        ("p5.48xlarge", "h100-sxm5-80gb", 8),
        ("g6.12xlarge", "l4", 4),
    ]
    with pytest.raises(UsageError, match="both name the accelerator"):
        compare(QWEN, instance="p5.48xlarge", gpu="l4", seq="8k")


def test_dimensions_alone_are_a_model(capsys: Capture) -> None:
    """The bare equation side by side, as ``kvplan`` plans it: 2 x 32 x 8 x 128 x 2 B a token."""
    dimensions = ("--layers", "32", "--heads", "32", "--kv-heads", "8", "--head-dim", "128", "--seq", "1k")
    status, out, err = run(capsys, *dimensions, "--engine", "all")
    assert (status, "No GPU given" in err) == (0, True)
    assert "reference     K, V bf16  128.00 MiB  128 KiB" in out


def test_a_version_of_all_engines(capsys: Capture) -> None:
    """There is none in common."""
    status, out, err = run(capsys, QWEN, "--engine", "all@1")
    assert (status, out) == (2, "")
    assert err.endswith("All engines have no version in common. Use: --engine all\n")


def test_weights_whose_format_nobody_knows(capsys: Capture, tmp_path: Path) -> None:
    """The heading says nothing of them. A pool of 2 MiB pages is one pool, not several."""
    config = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "max_position_embeddings": 100}
    path = tmp_path / "small.json"
    path.write_text(json.dumps({"model_type": "zzz", "architectures": ["LlamaForCausalLM"], **config}))
    _, out, _ = run(capsys, str(path), "--engine", "all", "--assume", "gqa")
    assert out.splitlines()[0] == "small · 100 tokens · batch 1"
    assert "whole pages of memory (+1.94 MiB)" in out


def test_files_with_one_name_are_told_apart(tmp_path: Path, capsys: Capture) -> None:
    """By the file, or by its path where files have one name too. A file that is named twice is one model."""
    (tmp_path / "b").mkdir()
    files = [tmp_path / "a.yaml", tmp_path / "b" / "a.yaml", tmp_path / "c.yaml"]
    for number, file in enumerate(files, 1):
        file.write_text(f"name: mine\nlayers: {number}*full(heads=8, head_dim=64)\n", "utf-8")

    def named(*models: Path) -> list[str]:
        status, out, _ = run(capsys, "compare", *map(str, models), "--seq", "8", "--format", "json")
        assert status == 0
        return [variant["model"] for variant in json.loads(out)["variants"]]

    assert named(files[0], files[2]) == ["mine (a.yaml)", "mine (c.yaml)"]
    assert named(*files[:2]) == [f"mine ({file})" for file in files[:2]]


def test_an_accelerator_that_is_assumed_is_said(capsys: Capture) -> None:
    """Once, of the engines that go by it; with one that is named nothing is assumed."""
    said = "No GPU given: what vLLM, SGLang would set by it is that of h100-sxm5-80gb. Set it with --gpu."
    for hardware, notes in (((), 1), (("--gpu", "l4"), 0)):
        words = ("compare", "Qwen/Qwen3-8B", "--engine", "vllm", "--engine", "sglang", "--seq", "8k", *hardware)
        _, _, err = run(capsys, *words)
        assert " ".join(err.split()).count(said) == notes
