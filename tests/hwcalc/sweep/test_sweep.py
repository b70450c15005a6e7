"""``kvplan sweep``: a grid gives what its plans give, point by point, in every format."""

from __future__ import annotations

import csv
import io
import json
import random
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest

from hwcalc import KvplanError, load_model, plan
from hwcalc.files import whole_file
from hwcalc.model import ModelSpec
from hwcalc.profiles.catalog import list_models
from hwcalc.report.schema import json_schema
from hwcalc.sources.request import listening
from hwcalc.sweep.grid import COLUMNS, NUMBERS, OF_SPEED, Grid, RowBlock, SweepPoint, count, row_of
from hwcalc.sweep.rows import blocks
from hwcalc.sweep.writers import texts, write_parquet
from hwcalc.text import csv_cell
from tests.hwcalc.command import QWEN, Capture, run

LLAMA: Final = "meta-llama/Llama-3.1-8B"
DTYPES: Final = (None, "bf16", "fp8", "q8_0:q4_0", "int4", "fp8_ds_mla")


def rows(grid: Grid) -> list[dict[str, Any]]:
    """The rows of a grid, through the text that the command writes."""
    return [json.loads(line) for line in "".join(texts("jsonl", blocks(grid))).splitlines()]


def planned(model: ModelSpec, seq: int | None, batch: int, **keywords: Any) -> dict[str, Any]:
    """The row of one plan, or its error."""
    try:
        row = row_of(plan(model, seq=seq, batch=batch, **keywords))
        # A plan without a verdict does not name its GPU.
        return row | {"gpu": row["gpu"] or keywords.get("gpu")}
    except KvplanError as error:
        return {"model": model.id, "seq": seq, "batch": batch, "error": error.message}


def agree(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Each column that the plan has."""
    assert expected == {name: found[name] for name in expected}


@pytest.fixture(scope="module")
def models() -> tuple[ModelSpec, ...]:
    """Models of the catalog that have every kind of layer that the catalog has, and a few more."""
    every = [load_model(name, offline=True) for name in list_models()]
    chosen: list[ModelSpec] = []
    kinds: set[str] = set()
    for model in every:
        own = {group.kind.name for group in model.stack.groups}
        if not own <= kinds:
            kinds |= own
            chosen.append(model)
    assert {
        "full_attention",
        "sliding_attention",
        "latent_attention",
        "mamba2",
        "cross_attention",
        "compressed_attention",
    } <= kinds
    return (*chosen, *random.Random(11).sample(every, 30))  # noqa: S311 - a sample


# --- the numbers ------------------------------------------------------------------------------------------------------


def test_a_row_written_out(capsys: Capture) -> None:
    """Qwen3-8B: 36 layers, 8 key/value heads of 128 + 128; half of them on each of two ranks; one byte in fp8, two in bf16."""
    status, out, err = run(capsys, "sweep", QWEN, "--seq", "1k,4k", "--users", "3", "--dtype", "bf16,fp8", "--tp", "2")
    found = list(csv.DictReader(io.StringIO(out)))

    assert (status, err) == (0, "")
    assert [(row["dtype"], row["seq"]) for row in found] == [("bf16", "1024"), ("bf16", "4096"), ("fp8", "1024"), ("fp8", "4096")]
    for row in found:
        token = 36 * 8 * (128 + 128) * (1 if row["dtype"] == "fp8" else 2)
        assert row["bytes_per_token"] == str(token)
        assert row["cache_total_bytes"] == str(3 * int(row["seq"]) * token)
        assert row["cache_per_gpu_bytes"] == str(3 * int(row["seq"]) * token // 2)
        assert row["weights_bytes"] == str(2 * 8_190_735_360)
        # Each rank has all norms: two of 4,096 and two of 128 a layer, and the last.
        norms = 36 * (2 * 4096 + 2 * 128) + 4096
        assert row["total_bytes"] == str(2 * (8_190_735_360 + norms) + 3 * int(row["seq"]) * token)


def test_a_thousand_points_are_their_plans(models: tuple[ModelSpec, ...]) -> None:
    """Every kind of layer, random lengths, batches, dtypes and ranks."""
    chance, points = random.Random(5), 0  # noqa: S311 - a sample
    while points < 1000:
        model, dtype, tp = chance.choice(models), chance.choice(DTYPES), chance.choice((None, 1, 2, 3, 4, 8, 16))
        weights = chance.choice((None, None, "int8"))
        seqs = tuple({chance.choice((1, 7, 127, 128, 129, 4096, 100_003, chance.randrange(1, 2**20))) for _ in range(3)})
        batches = tuple({chance.randrange(1, 500) for _ in range(3)})
        options = {} if weights is None else {"weights": weights}
        grid = Grid(models=(model,), seqs=seqs, batches=batches, dtypes=(dtype,), tps=(tp,), options=options)
        found = rows(grid)
        points += len(found)
        keywords = grid.keywords(next(grid.settings))

        assert len(found) == count(grid)
        for row, (seq, batch) in zip(found, ((seq, batch) for seq in seqs for batch in batches), strict=True):
            agree(row, planned(model, seq, batch, **keywords))


@pytest.mark.parametrize("engine", ["reference", "transformers", "vllm"])
def test_verdicts_are_those_of_the_plans(models: tuple[ModelSpec, ...], engine: str) -> None:
    """With an accelerator: what it must hold, and whether it can."""
    chance, seen = random.Random(3), set()  # noqa: S311 - a sample
    for model in chance.sample(models, 12 if engine == "reference" else 4):
        seqs, batches = (1, 5_000, 70_001), (1, 48)
        grid = Grid(
            models=(model,), seqs=seqs, batches=batches, gpus=("l4", "h100-sxm5-80gb"), tps=(1, 2), options={"engine": engine}
        )
        found = iter(rows(grid))
        for gpu in grid.gpus:
            for tp in (1, 2):
                for seq, batch in ((seq, batch) for seq in seqs for batch in batches):
                    row = next(found)
                    agree(row, planned(model, seq, batch, gpu=gpu, tp=tp, engine=engine))
                    seen.add(row["fits"])
                    assert row["gpu"] == gpu

    assert {"fits", "no"} <= seen


@pytest.mark.parametrize(("engine", "limits"), [("vllm", {}), ("sglang", {}), ("reference", {}), ("vllm", {"min_rate": 20.0})])
def test_layouts_are_those_of_the_plans(engine: str, limits: dict[str, float]) -> None:
    """Several GPUs by their number alone: each point runs in the layout of its plan, held or not, within limits of time or without."""
    chance, layouts, verdicts = random.Random(7), set(), set()  # noqa: S311 - a sample
    for name in ("deepseek-ai/DeepSeek-V3", "openai/gpt-oss-120b", "meta-llama/Llama-3.3-70B-Instruct", "Qwen/Qwen3-30B-A3B"):
        model, gpus = load_model(name), chance.choice((2, 4, 8, 16))
        seqs, batches = (1, chance.randrange(2, 20_000), 120_000), (1, chance.randrange(2, 30), chance.randrange(30, 400))
        gpu = chance.choice(("h100-sxm5-80gb", "h200-sxm-141gb", "l40s"))
        grid = Grid(models=(model,), seqs=seqs, batches=batches, gpus=(gpu,), options={"engine": engine, "gpus": gpus, **limits})
        keywords = grid.keywords(next(grid.settings))
        for row, (seq, batch) in zip(rows(grid), ((seq, batch) for seq in seqs for batch in batches), strict=True):
            agree(row, planned(model, seq, batch, **keywords))
            layouts.add((name, row["tp"]))
            verdicts.add(row["fits"])

    assert {"fits", "no"} <= verdicts
    assert len(layouts) > 4, "no model ran in two layouts"


@pytest.mark.parametrize("engine", ["reference", "transformers", "vllm"])
def test_the_ends_of_the_estimate_are_those_of_the_plans(engine: str, tmp_path: Path) -> None:
    """What a verdict rests on, in JSON lines and in Parquet; nothing without an accelerator. Lengths beyond 64 bits of bytes too."""
    # No length is within a block of an end: vLLM's null block is in its verdict, and not in the bytes that are needed.
    model, seqs, batches = load_model(QWEN), (1, 16_384, 36_864, 2**40), (1, 2**30)
    grid = Grid(models=(model,), seqs=seqs, batches=batches, gpus=("l4",), options={"engine": engine})
    found = rows(grid)
    fits = [plan(model, seq=seq, batch=batch, gpu="l4", engine=engine).fit for seq in seqs for batch in batches]

    names = ("total_per_gpu_low_bytes", "total_per_gpu_high_bytes")
    assert [tuple(row[name] for name in names) for row in found] == [
        fit and (fit.needed_low_bytes, fit.needed_high_bytes) for fit in fits
    ]
    for row, fit in zip(found, fits, strict=True):
        assert fit is not None
        ends = [row[name] <= fit.usable_bytes for name in names]
        assert row["total_per_gpu_low_bytes"] < row["total_per_gpu_high_bytes"]
        assert ends == {"fits": [True, True], "no": [False, False]}.get(row["fits"] or "", [True, False])
        assert row["fits"] == fit.verdict.value
    small = Grid(models=(model,), seqs=seqs[:3], gpus=("l4", None), options={"engine": engine})
    with (tmp_path / "points.parquet").open("wb") as file:
        write_parquet(file, blocks(small))
    stored = import_module("pyarrow.parquet").read_table(tmp_path / "points.parquet").to_pylist()
    assert [row[names[0]] for row in stored] == [row[names[0]] for row in found[::2][:3]] + [None] * 3
    assert [row[names[1]] for row in stored] == [row[names[1]] for row in found[::2][:3]] + [None] * 3


def test_the_models_own_maximum(models: tuple[ModelSpec, ...]) -> None:
    """Without lengths each model has its own; one that states none is an error in its row."""
    found = rows(Grid(models=models, batches=(1, 3)))

    assert len(found) == 2 * len(models)
    for row, (model, batch) in zip(found, ((model, batch) for model in models for batch in (1, 3)), strict=True):
        agree(row, planned(model, None, batch))
    assert {row["seq"] for row in found} >= {2_048, 131_072}


def test_more_than_64_bits() -> None:
    """The longest sequences in the largest batch, to the last byte: 2^40 x 2^40 tokens of Qwen3-8B."""
    grid = Grid(models=(load_model(QWEN),), seqs=(1, 2**40), batches=(2**40,))
    found = rows(grid)

    assert [row["cache_total_bytes"] for row in found] == [n * 2**40 * 36 * 8 * 256 * 2 for n in (1, 2**40)]
    agree(found[1], planned(load_model(QWEN), 2**40, 2**40))


def test_blocks_stay_small_and_in_order() -> None:
    """A long list of lengths comes in several blocks, the batch changing fastest."""
    grid = Grid(models=(load_model(QWEN),), seqs=tuple(range(1, 100_001)), batches=(1, 2))
    made = list(blocks(grid))
    seqs: list[int] = []
    for block in made:
        assert block.size <= 65_536
        column = block.columns["seq"]
        assert isinstance(column, list)
        seqs += column

    assert seqs == [seq for seq in range(1, 100_001) for _ in range(2)]


def test_what_is_done_is_told() -> None:
    """For the line on a terminal."""
    told: list[str] = []
    with listening(told.append):
        list(blocks(Grid(models=(load_model(QWEN),), seqs=(1, 2), dtypes=("bf16", "fp8"))))

    assert told == ["2 of 4 points", "4 of 4 points"]


def test_the_curves_are_faster_than_plans() -> None:
    """Twenty thousand points take less time than a thousand plans: they take a tenth of it, or less."""
    models = tuple(load_model(name) for name in (QWEN, LLAMA, "openai/gpt-oss-20b", "google/gemma-3-27b-it"))
    started = time.process_time()
    made = sum(block.size for block in blocks(Grid(models=models, seqs=tuple(range(1, 501)), batches=tuple(range(1, 11)))))
    on_curves = time.process_time() - started
    started = time.process_time()
    for seq in range(250):
        for model in models:
            plan(model, seq=seq + 1)

    assert made == 20_000
    assert on_curves < time.process_time() - started


# --- what cannot be planned -------------------------------------------------------------------------------------------


def test_a_point_that_cannot_be_planned_is_a_row(capsys: Capture) -> None:
    """The packed latent format is for latents: Qwen3 has none, DeepSeek-V3 has 61 layers of 656 bytes a token."""
    words = ("sweep", QWEN, "deepseek-ai/DeepSeek-V3", "--seq", "100", "--dtype", "bf16,fp8_ds_mla", "--format", "jsonl")
    status, out, err = run(capsys, *words)
    found = [json.loads(line) for line in out.splitlines()]

    assert status == 0
    assert [row["error"] is None for row in found] == [True, False, True, True]
    assert found[1]["cache_total_bytes"] is None
    assert (found[1]["model"], found[1]["dtype"], found[1]["seq"]) == (QWEN, "fp8_ds_mla", 100)
    assert found[3]["cache_total_bytes"] == 100 * 61 * 656
    assert "1 of 4 points could not be planned" in err


def test_no_point_at_all(capsys: Capture) -> None:
    """The rows are written, and the status is that of the first error."""
    status, out, _ = run(capsys, "sweep", QWEN, "--seq", "1,2", "--dtype", "fp8_ds_mla")

    assert status == 3
    assert len(out.splitlines()) == 3


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["no/other", "no/model", "--seq", "8"], 3),
        (["no-such-*"], 3),
        ([], 2),
        ([QWEN, "--dtype", "bf16,fp9"], 2),
        ([QWEN, "--gpu", "l4,nothing"], 2),
        ([QWEN, "--engine", "nothing"], 2),
        ([QWEN, "--seq", "8,x"], 2),
        ([QWEN, "--seq", "2G..4096G"], 2),
        ([QWEN, "--users", "1..0"], 2),
        ([QWEN, "--tp", "1,99999"], 2),
        ([QWEN, "--weights", "nothing"], 2),
        ([QWEN, "--encoder-seq", "-5"], 2),
        ([QWEN, "--kv-memory", "some"], 2),
        ([QWEN, "--engine-option", "a=1"], 2),
        ([QWEN, "--format", "xml"], 2),
        ([QWEN, "--format", "parquet"], 2),
        ([QWEN, "--output", "points.xls"], 2),
        ([QWEN, "--output", "/no/such/folder/points.csv"], 74),
        ([QWEN, "--output", "/dev", "--format", "csv"], 74),
        ([QWEN, "--output", "/dev/full", "--format", "csv"], 74),
        (["--all", "--seq", "1..1000000:1", "--users", "1..1000:1"], 2),
    ],
)
def test_wrong_from_the_start(capsys: Capture, words: list[str], status: int) -> None:
    """Nothing on standard output but, when asked for, the error as JSON."""
    assert run(capsys, "sweep", *words)[:2] == (status, "")
    if not {"--format", "--output"} & set(words):
        told, out, _ = run(capsys, "sweep", *words, "--json", *(["--seq", "8"] if "--seq" not in words else []))
        document = json.loads(out)
        jsonschema.Draft202012Validator(json_schema("error")).validate(document)
        assert told == document["error"]["code"] == status


def test_keep_going(capsys: Capture) -> None:
    """A model that is not there is a row among the others."""
    status, out, err = run(capsys, "sweep", "no/model", QWEN, "--seq", "8", "--keep-going", "--format", "jsonl")
    found = [json.loads(line) for line in out.splitlines()]

    assert status == 0
    assert [row["model"] for row in found] == ["no/model", QWEN]
    assert "no/model" in found[0]["error"]
    assert found[1]["cache_total_bytes"] == 8 * 36 * 8 * 256 * 2
    assert "1 of 2 points" in err
    assert run(capsys, "sweep", "no/model", "--keep-going")[0] == 3


# --- formats ----------------------------------------------------------------------------------------------------------


def config(name: str) -> ModelSpec:
    """A model with a name of one's own."""
    return load_model({"model_type": "llama", "_name_or_path": name, "torch_dtype": "bfloat16", "num_hidden_layers": 2})


@pytest.fixture
def mixed() -> Grid:
    """Errors, warnings, unknown numbers, and names with every awkward character."""
    awkward = (config('a,"b" %d %s 100%'), config("line\nbreak\r and \u20ac"))
    return Grid(models=(*awkward, load_model(LLAMA)), seqs=(100, 200_000), batches=(1, 2), dtypes=(None, "fp8_ds_mla", "fp8"))


def test_formats_agree(mixed: Grid, tmp_path: Path) -> None:
    """CSV, JSON lines, one JSON document and Parquet hold the same rows under the same names."""
    parquet: Any = import_module("pyarrow.parquet")
    lines = rows(mixed)
    document = json.loads("".join(texts("json", blocks(mixed))))
    table = list(csv.DictReader(io.StringIO("".join(texts("csv", blocks(mixed))), newline="")))
    with (tmp_path / "points.parquet").open("wb") as file:
        write_parquet(file, blocks(mixed))
    stored = parquet.read_table(tmp_path / "points.parquet").to_pylist()

    assert len(lines) == 36
    assert list(lines[0]) == list(COLUMNS)
    assert document["points"] == lines == stored
    assert table == [{name: "" if value is None else csv_cell(str(value)) for name, value in row.items()} for row in lines]
    assert lines[0]["model"] == 'a,"b" %d %s 100%'
    assert {row["warning"] for row in lines if row["model"] == LLAMA} == {None, "beyond-maximum"}
    jsonschema.Draft202012Validator(json_schema("sweep")).validate(document)


def test_numbers_are_numbers() -> None:
    """The columns of whole numbers are those that end so, the axes, and what is counted."""
    assert {"seq", "batch", "gpus", "tp", "kept_tokens", "users_within", "users_within_low"} == {
        name for name in NUMBERS if "bytes" not in name
    }
    assert set(NUMBERS) | {*OF_SPEED} | {
        "model",
        "engine",
        "engine_version",
        "dtype",
        "gpu",
        "policy",
        "definition",
        "fits",
        "limited_by",
        "warning",
        "error",
    } == set(COLUMNS)
    assert list(SweepPoint.__annotations__) == list(COLUMNS)


def test_parquet_has_64_bits(tmp_path: Path, capsys: Capture) -> None:
    """A larger number is an error, and no file is left."""
    target = tmp_path / "points.parquet"
    status, _, err = run(capsys, "sweep", QWEN, "--seq", "1024G", "--users", "1024G", "--output", str(target))

    assert status == 2
    assert "64 bits" in err
    assert list(tmp_path.iterdir()) == []


def test_parquet_without_pyarrow(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to install."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    status, _, err = run(capsys, "sweep", QWEN, "--seq", "8", "--output", str(tmp_path / "points.parquet"))

    assert status == 2
    assert "pip install 'hwcalc[parquet]'" in err


@pytest.mark.parametrize(
    ("name", "start"), [("a.csv", "model,"), ("a.jsonl", '{"model"'), ("a.ndjson", '{"model"'), ("a.json", '{"schema')]
)
def test_a_file_has_the_format_of_its_suffix(tmp_path: Path, capsys: Capture, name: str, start: str) -> None:
    """Whole, and said on standard error; ``--format`` stands before the suffix."""
    target = tmp_path / name
    target.write_text("old", encoding="utf-8")

    assert run(capsys, "sweep", QWEN, "--seq", "8", "-o", str(target)) == (
        0,
        "",
        f"kvplan: 1 point in {target}\n",
    )
    assert target.read_text(encoding="utf-8").startswith(start)
    assert run(capsys, "sweep", QWEN, "--seq", "8", "-o", str(target), "--format", "csv", "-q") == (0, "", "")
    assert target.read_text(encoding="utf-8").startswith("model,")
    assert [target] == list(tmp_path.iterdir())


def test_a_file_is_only_seen_whole(tmp_path: Path) -> None:
    """What fails on the way leaves the old file as it was, and nothing beside it."""
    target = tmp_path / "points.csv"
    target.write_text("old", encoding="utf-8")

    def broken() -> Iterator[RowBlock]:
        yield from blocks(Grid(models=(load_model(QWEN),), seqs=(8,)))
        raise KeyboardInterrupt

    def write() -> None:
        with whole_file(str(target), "--output") as file:
            for piece in texts("csv", broken()):
                file.write(piece.encode())

    with pytest.raises(KeyboardInterrupt):
        write()

    assert target.read_text(encoding="utf-8") == "old"
    assert [target] == list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "status"), [("", 74), ("missing/points.csv", 74), ("a\0b", 2)])
def test_no_place_for_a_file(tmp_path: Path, name: str, status: int) -> None:
    """A folder, a folder that is not there, and no name at all."""
    with pytest.raises(KvplanError) as caught, whole_file(f"{tmp_path}/{name}", "--output"):
        pass

    assert caught.value.exit_code == status

    assert list(tmp_path.iterdir()) == []
