"""``kvplan compare``: variants side by side."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import jsonschema
import pytest

from hwcalc import compare
from hwcalc.planner.speed_result import COST_COLUMNS
from hwcalc.report.schema import json_schema
from tests.hwcalc.command import QWEN, Capture, run

LLAMA = "meta-llama/Llama-3.1-8B"
DEEPSEEK = "deepseek-ai/DeepSeek-V3"


def variants(capsys: Capture, *words: str, status: int = 0) -> list[dict[str, Any]]:
    """The variants of the JSON document, valid by its schema."""
    told, out, _ = run(capsys, "compare", *words, "--json")
    document: dict[str, Any] = json.loads(out)
    jsonschema.Draft202012Validator(json_schema("compare")).validate(document)

    assert told == status
    found: list[dict[str, Any]] = document["variants"]
    return found


def test_figures_written_out(capsys: Capture) -> None:
    """36 and 32 layers of 8 heads, 128 + 128 numbers, two bytes and one; ratios to the first."""
    found = variants(capsys, QWEN, LLAMA, "--dtype", "bf16,fp8", "--seq", "1k", "--users", "2")

    assert [(variant["model"], variant["dtype"]) for variant in found] == [
        (QWEN, "bf16"), (QWEN, "fp8"), (LLAMA, "bf16"), (LLAMA, "fp8"),
    ]  # fmt: skip
    assert [variant["cache_total_bytes"] for variant in found] == [
        2 * 1024 * layers * 8 * 256 * size for layers, size in ((36, 2), (36, 1), (32, 2), (32, 1))
    ]
    assert [variant["cache_ratio"] for variant in found] == [
        1,
        0.5,
        pytest.approx(32 / 36, abs=1e-6),
        pytest.approx(16 / 36, abs=1e-6),
    ]
    assert found[0]["weights_bytes"] == 2 * 8_190_735_360
    assert found[0]["total_bytes"] == 2 * 8_190_735_360 + found[0]["cache_total_bytes"]


def test_speeds_are_those_of_the_plan(capsys: Capture) -> None:
    """The expected tokens per second with their range; of an engine that nobody measured the bound alone."""
    line = (QWEN, "--gpu", "l4", "--seq", "4k", "--users", "2", "--offline")
    document = json.loads(run(capsys, "compare", *line, "--engine", "vllm,tgi", "--json")[1])
    planned = json.loads(run(capsys, "plan", *line, "--engine", "vllm", "--json")[1])["speed"]["decode_tokens_per_s"]
    measured, unmeasured = document["variants"]

    found = {
        end: measured[f"decode_tokens_per_s{suffix}"] for end, suffix in (("expected", ""), ("low", "_low"), ("high", "_high"))
    }
    assert found == pytest.approx({end: planned[end] for end in found})
    assert unmeasured["decode_tokens_per_s"] is None
    table = run(capsys, "compare", *line, "--engine", "vllm,tgi")[1]
    assert f"{planned['expected']:.1f} ({planned['low']:.1f})" in table
    assert f"<{unmeasured['decode_tokens_per_s_bound']:.1f}" in table


def test_one_length_for_all(capsys: Capture) -> None:
    """Qwen3-8B states 40,960 tokens and Llama-3.1 131,072: the smaller, unless one is given."""
    assert {variant["seq"] for variant in variants(capsys, LLAMA, QWEN)} == {40_960}
    assert {variant["seq"] for variant in variants(capsys, LLAMA, QWEN, "--seq", "99")} == {99}


def test_a_variant_that_fails_is_a_row(capsys: Capture) -> None:
    """The packed latent format is not for Qwen3; the ratio counts from the first that was planned."""
    found = variants(capsys, QWEN, DEEPSEEK, "--dtype", "fp8_ds_mla,bf16", "--seq", "100")

    assert [variant["error"] is None for variant in found] == [False, True, True, True]
    assert found[0]["cache_total_bytes"] is None
    assert found[1]["cache_ratio"] == 1
    assert found[2]["cache_total_bytes"] == 100 * 61 * 656
    _, out, _ = run(capsys, "compare", QWEN, DEEPSEEK, "--dtype", "fp8_ds_mla,bf16", "--seq", "100")
    assert "not planned" in out


def test_none_can_be_planned(capsys: Capture) -> None:
    """Then it is an error, with the first one's status."""
    assert run(capsys, "compare", QWEN, LLAMA, "--dtype", "fp8_ds_mla")[:2] == (3, "")


def test_verdicts(capsys: Capture) -> None:
    """8 billion parameters in bf16 do not go into the 24 GB of an L4 beside 100,000 tokens, and do into 80 GB. 70 billion do not."""
    both = variants(capsys, QWEN, "--gpu", "l4,h100", "--seq", "100k")
    neither = variants(capsys, "meta-llama/Llama-3.3-70B-Instruct", "--gpu", "l4,h100", "--seq", "1k", status=1)

    assert [variant["verdict"] for variant in both] == ["no", "fits"]
    assert [variant["gpu"] for variant in both] == ["l4", "h100-sxm5-80gb"]
    assert both[1]["usable_bytes"] > both[0]["usable_bytes"]
    assert both[1]["max_seq"] >= 102_400
    assert {variant["verdict"] for variant in neither} == {"no"}


def test_versions_of_one_engine(capsys: Capture) -> None:
    """Two versions are two variants, told apart."""
    status, out, _ = run(capsys, "compare", QWEN, "--engine", "vllm@0.33,vllm@0.25,reference", "--seq", "1k")

    assert status == 0
    assert all(f"\n{name} " in out for name in ("vllm@0.33", "vllm@0.25", "reference"))
    _, out, _ = run(capsys, "compare", QWEN, "--engine", "vllm@0.33,reference", "--seq", "1k")
    assert "\nvllm " in out


@pytest.mark.parametrize("format_", ["table", "markdown"])
def test_what_varies_is_a_column_and_what_is_the_same_stands_above(capsys: Capture, format_: str) -> None:
    """One line above for model and length; a column for the dtype."""
    _, out, _ = run(capsys, "compare", QWEN, "--dtype", "bf16,fp8", "--seq", "1k", "--format", format_)
    head, _, table = out.partition("\n")

    assert QWEN in head
    assert "1,024 tokens" in head
    assert QWEN not in table
    assert "bf16" in table
    assert "bf16" not in head.replace("weights bf16", "")


def test_the_widest_table_fits(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long names, every axis: the verdict of each, no line longer than the terminal, and what is left out is named."""
    monkeypatch.setenv("COLUMNS", "100")
    words = (
        "compare",
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
        DEEPSEEK,
        "--dtype",
        "bf16,fp8",
        "--gpu",
        "h100,l4",
        "--tp",
        "1,8",
        "--seq",
        "128k",
    )
    _, out, _ = run(capsys, *words)

    assert max(map(len, out.splitlines())) <= 100
    rows = [line.split() for line in out.splitlines() if line.startswith(("  bf16 ", "  fp8 "))]
    assert len(rows) == 16
    assert all("fit" in " ".join(row) or "probably" in row for row in rows)
    # 61 layers x 576 numbers x 2 bytes x 131,072 tokens: a column that a wider terminal has.
    monkeypatch.setenv("COLUMNS", "220")
    assert f"{61 * 576 * 2 * 131_072 / 2**30:.2f} GiB" in run(capsys, *words)[1]
    assert "Left out at this width: cache, weights" in " ".join(out.split())


def test_csv_has_every_field(capsys: Capture) -> None:
    """One row for each variant, numbers plain."""
    _, out, _ = run(capsys, "compare", QWEN, "--dtype", "bf16,fp8_ds_mla", "--seq", "1k", "--format", "csv")
    found = list(csv.DictReader(io.StringIO(out)))

    assert [row["cache_total_bytes"] for row in found] == [str(1024 * 36 * 8 * 256 * 2), ""]
    definitions = json_schema("compare")["$defs"]
    fields, row = (list(definitions[name]["properties"]) for name in ("Variant", "EngineRow"))
    # Records in a row are columns of their own.
    assert list(found[0]) == [*(name for name in fields if name not in ("row", "cost", "suggestions")), *COST_COLUMNS, *row]


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ([], 2),
        (["no/model"], 3),
        ([QWEN, "--gpu", "nothing"], 2),
        ([QWEN, "--seq", "x"], 2),
        ([QWEN, "--dtype", "fp9,fp8:"], 2),
        ([QWEN, "--seq", "1..61:1"], 2),
        (["Qwen/*"], 2),
    ],
)
def test_wrong_usage(capsys: Capture, words: list[str], status: int) -> None:
    """Said on standard error alone; too many variants send to ``sweep``."""
    told, out, err = run(capsys, "compare", *words)

    assert (told, out) == (status, "")
    assert err


@pytest.mark.parametrize(
    ("words", "name", "swept"),
    [
        (("--dtype", "bf16,zz"), "zz", ("--dtype", "bf16,zz")),
        (("--dtype", "zz,bf16"), "zz", ("--dtype", "zz,bf16")),
        (("--dtype", "bf16,q8_0:zz"), "q8_0:zz", ("--dtype", "bf16,q8_0:zz")),
        (("--dtype", "bf16,q8_0", "--engine", "vllm"), "q8_0", ("--dtype", "bf16,q8_0", "--engine", "vllm")),
        (("--engine", "reference,zz"), "zz", ("--engine", "zz")),
        (("--engine", "reference,vllm@9"), "vllm@9", ("--engine", "vllm@9")),
        (("--weights", "bf16,zz"), "zz", ("--weights", "zz")),
        (("--gpu", "l4,zz"), "zz", ("--gpu", "l4,zz")),
    ],
)
def test_a_name_that_no_model_could_have(capsys: Capture, words: tuple[str, ...], name: str, swept: tuple[str, ...]) -> None:
    """A slip of the pen is exit status 2, in a sweep too, and no row among good ones."""
    for command, given in (("compare", words), ("sweep", swept)):
        status, out, err = run(capsys, command, QWEN, LLAMA, "--seq", "100", *given)
        assert (status, out) == (2, ""), command
        assert name in err


def test_what_one_engine_does_not_know_is_a_row(capsys: Capture) -> None:
    """q8_0 is a format of llama.cpp, which the formulas know and vLLM does not."""
    found = variants(capsys, QWEN, "--engine", "reference,vllm", "--dtype", "q8_0,bf16", "--seq", "100")

    assert [(variant["engine"], variant["dtype"], variant["error"] is None) for variant in found] == [
        ("reference", "q8_0", True), ("reference", "bf16", True), ("vllm", "q8_0", False), ("vllm", "bf16", True),
    ]  # fmt: skip


def test_models_without_a_length(capsys: Capture) -> None:
    """Mamba states none: it must be given, and 24 states of 1,536 x 16 and 24 of the last 3 inputs, fp32, stay as they are."""
    mamba = "state-spaces/mamba-130m-hf"

    assert run(capsys, "compare", mamba)[:2] == (2, "")
    short, long = variants(capsys, mamba, "--seq", "8,800")
    assert short["cache_total_bytes"] == long["cache_total_bytes"] == 24 * 1536 * (16 + 3) * 4


def test_a_state_space_model_holds_any_length(capsys: Capture) -> None:
    """Nothing of it grows with length: no number is the longest."""
    _, out, _ = run(capsys, "compare", "state-spaces/mamba-1.4b-hf", "--seq", "1k", "--gpu", "l4")

    row = next(line for line in out.split("\n\n")[1].splitlines() if line.startswith("state-spaces/mamba"))
    assert "any" in row.split()


def test_tight_is_shown_with_its_range(capsys: Capture) -> None:
    """Both ends where they disagree, one figure where they do not."""
    words = (QWEN, "--seq", "32k", "--dtype", "bf16,fp8", "--gpu", "l4")
    close, fits = variants(capsys, *words)
    _, out, _ = run(capsys, "compare", *words)

    assert close["total_per_gpu_low_bytes"] < close["usable_bytes"] < close["total_per_gpu_high_bytes"]
    assert fits["total_per_gpu_high_bytes"] < fits["usable_bytes"]
    assert [" to " in line for line in out.split("\n\n")[1].splitlines()] == [False, True, False]


def test_one_that_cannot_be_planned_is_said(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a sweep: the status is that of the others, and standard error counts what is missing."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for words in (("compare",), ("sweep", "--seq", "4k"), ("compare", "--format", "csv"), ("compare", "--json", "-q")):
        status, _, said = run(capsys, *words, "Qwen/Qwen3-8", QWEN)

        assert status == 0
        assert "kvplan: 1 of 2 " in said
        assert " could not be planned; the first: 'Qwen/Qwen3-8' is neither " in said
    assert run(capsys, "compare", "Qwen/Qwen3-8", "Qwen/Qwen3-9")[0] == 3


def test_two_names_of_a_model_are_one_row() -> None:
    """Of the catalog alone: files and configs may have one name and differ."""
    rows = compare(["Qwen/Qwen3-8B", "qwen3 8b", "Qwen/Qwen3-4B"], seq="1k").variants

    assert [row.model for row in rows] == ["Qwen/Qwen3-8B", "Qwen/Qwen3-4B"]


def test_formats_side_by_side_have_their_speed_on_80_columns(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside what fits, it is what one chooses a format by. A bound alone gives way to the bytes of the cache."""
    monkeypatch.setenv("COLUMNS", "80")
    card = ("--gpu", "rtx-4070", "--seq", "16k")
    formats = run(capsys, "compare", "Qwen/Qwen3-14B", *card, "--engine", "llamacpp", "--weights", "q4_k_m,q8_0")[1]
    bounds = run(capsys, "compare", "Qwen/Qwen3-4B", *card, "--dtype", "bf16,fp8")[1]
    titles = [next(line for line in out.splitlines() if " verdict " in line).split() for out in (formats, bounds)]

    assert {"verdict", "longest", "tok/s"} <= set(titles[0])
    assert "cache" in titles[1]
    assert "tok/s" not in titles[1]
