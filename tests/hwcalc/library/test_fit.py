"""``kvplan fit``: which models run on a GPU, in which format and which order."""

from __future__ import annotations

import json
import random
import re
import shlex
from pathlib import Path
from typing import Any, Final

import pytest

from hwcalc import fit, plan
from hwcalc.errors import UsageError
from hwcalc.library.candidates import catalog, folded
from hwcalc.library.fit import ability
from hwcalc.planner.asked import read_options
from hwcalc.planner.options import OTHER_NAMES, FitOptions
from hwcalc.planner.runnables import Runnable, Runnables
from hwcalc.planner.verdict import Verdict
from hwcalc.profiles.catalog import find_entry, list_models
from hwcalc.report.fitting import fit_text
from hwcalc.report.schema import json_schema
from hwcalc.report.view import View
from tests.effort import sample
from tests.hwcalc.command import Capture, read_plan, run
from tests.hwcalc.sources.gguf import given

CARDS = ("rtx-3050-6gb", "rtx-3060-12gb", "rtx-4090")
FEW = {"max_params": "3B", "family": ("qwen3", "llama-3.2", "gemma-3", "granite")}


def models(result: Runnables) -> dict[str, Runnable]:
    """The rows by id."""
    return {row.id: row for row in result.models}


def whole(gpu: str, seq: int | str, **wishes: object) -> dict[str, Runnable]:
    """Every model by itself that lies on the GPU as a whole."""
    options = {"max_params": "9B", "family": ("qwen3", "llama-3", "gemma-3"), **wishes}
    return models(fit(gpu=gpu, seq=seq, every=True, limit=0, only_fits=True, **options))  # type: ignore[arg-type]


# --- lines --------------------------------------------------------------------------------------------------------------

SAID: Final[dict[str, object]] = {
    "seq": "16k", "batch": 2, "dtype": "q8_0", "weights": "q4_k_m", "engine": "llamacpp", "gpu": "rtx-4070", "gpus": 2,
    "memory_utilization": "0.9", "margin": "3%", "engine_options": {"n_ubatch": "256"}, "ram": "64GiB",
    "prompt": "4k", "ttft": "1h", "itl": "1min", "e2e": "5h", "min_rate": 0.01, "rate": "1/h", "prefix_hit": "50%", "accepted_tokens": 2, "no_calibration": True,
}  # fmt: skip
"""A value for each option that ``kvplan fit`` shares with a plan."""


def test_every_option_has_a_value_here() -> None:
    """A new option of ``kvplan fit`` gets one."""
    assert SAID.keys() == FitOptions.__annotations__.keys() - OTHER_NAMES.keys()


@pytest.mark.parametrize("without", sample(["", *SAID], 8))
def test_the_line_of_a_model_keeps_every_option(without: str) -> None:
    """Pasted, it plans what the row says: host memory, margin and all others are in it."""
    given = {name: value for name, value in SAID.items() if name not in (without, "memory_utilization")}
    row = fit(["qwen3"], max_params="9B", limit=1, **{"gpu": "rtx-4070", **given}).models[0]  # type: ignore[arg-type]
    _, read = read_plan(row.command)
    asked, told = read_options({"gpu": "rtx-4070", **given}).values, read_options(read).values
    assert {name: told.get(name) for name in asked} == asked
    made = plan(row.id, **read)
    assert made.fit is not None
    assert (made.fit.needed_bytes, made.fit.usable_bytes) == (row.needed_bytes, row.usable_bytes)


def test_the_line_keeps_the_share_of_the_gpu() -> None:
    """One of 0.8, in vLLM."""
    row = fit(["qwen3"], max_params="4B", limit=1, gpu="rtx-4090", engine="vllm", memory_utilization=0.8).models[0]
    assert "--memory-utilization 0.8" in row.command


# --- laws ---------------------------------------------------------------------------------------------------------------


def test_a_larger_card_never_lists_fewer() -> None:
    """What runs on a card runs on a larger one, in a format that is no smaller."""
    smaller: dict[str, Runnable] = {}
    for gpu in CARDS:
        larger = whole(gpu, "8k")

        assert smaller.keys() <= larger.keys()
        assert all(larger[name].weights_bytes >= row.weights_bytes for name, row in smaller.items())
        smaller = larger


def test_a_longer_context_never_takes_a_larger_format() -> None:
    """Nor lists more."""
    shorter: dict[str, Runnable] = {}
    for seq in (2048, 8192, 32_768):
        longer = whole("rtx-3060-12gb", seq)

        assert not shorter or longer.keys() <= shorter.keys()
        assert all(row.weights_bytes <= shorter[name].weights_bytes for name, row in longer.items() if shorter)
        shorter = longer


@pytest.mark.parametrize("engine", ["reference", "llamacpp"])
def test_figures_are_those_of_the_plan(engine: str) -> None:
    """The line of a row plans the same bytes, verdict, longest sequence and speed."""
    rows = fit(gpu="rtx-4060-ti", seq="16k", engine=engine, every=True, limit=0, max_params="14B").models
    for row in random.Random(14).sample(rows, 5):  # noqa: S311 - any choice will do
        planned = plan(row.id, gpu="rtx-4060-ti", seq="16k", engine=engine, weights=row.weights, offline=True)
        assert planned.fit is not None
        assert planned.speed is not None

        assert (row.cache_bytes, row.kv_dtype) == (planned.cache.total_bytes, planned.request.kv_dtype)
        assert row.weights_bytes == planned.memory.per_gpu.weights
        assert (row.verdict, row.max_seq) == (planned.fit.verdict, planned.fit.max_seq)
        assert (row.needed_bytes, row.usable_bytes) == (planned.fit.needed_bytes, planned.fit.usable_bytes)
        assert (row.gpu_layers, row.all_layers) == (planned.fit.gpu_layers, planned.fit.all_layers)
        # The index knows the model's own tensors; the few hundred bytes that the converter adds take no time that one could see.
        speeds = planned.speed.row()
        assert row.decode_tokens_per_s_bound == pytest.approx(speeds["decode_tokens_per_s_bound"], rel=1e-6)
        # A layer that predicts further tokens is one to a plan, and is not in the index.
        expected = {name: value for name, value in speeds.items() if value is not None}
        assert {name: getattr(row, name) for name in expected} == pytest.approx(expected, rel=1e-3)


def test_the_format_is_that_of_weights_auto() -> None:
    """A plan with ``--weights auto`` takes the same."""
    rows = fit(gpu="rtx-3060", seq="8k", limit=0, **FEW).models  # type: ignore[arg-type]
    for row in rows[:5]:
        assert plan(row.id, gpu="rtx-3060", seq="8k", weights="auto", offline=True).request.weights == row.weights


@pytest.mark.parametrize(
    ("gpu", "host"), [("rtx-3050-6gb", {}), ("rtx-4090", {}), ("rtx-4070", {"ram": 16}), ("rtx-4070", {"ram": 64})]
)
def test_models_with_a_part_on_the_host_are_those_of_the_plan(gpu: str, host: dict[str, Any]) -> None:
    """Those that do not fit as a whole: the same layers on the GPU, the same verdict."""
    rows = [row for row in fit("32b", gpu=gpu, seq="32k", limit=0, **host).models if not row.whole][:3]
    rows += [row for row in fit("70b", gpu=gpu, seq="16k", limit=0, **host).models if not row.whole][:2]
    assert rows
    for row in rows:
        planned = plan(row.id, gpu=gpu, seq=row.seq, engine="llamacpp", weights=row.weights, offline=True, **host)
        assert planned.fit is not None

        assert (row.verdict, row.gpu_layers, row.all_layers) == (
            planned.fit.verdict,
            planned.fit.gpu_layers,
            planned.fit.all_layers,
        )
        assert (row.needed_bytes, row.max_seq) == (planned.fit.needed_bytes, planned.fit.max_seq)


def test_a_host_with_much_memory_holds_what_its_card_would_not_suggest() -> None:
    """235 billion parameters in 4.5 bits are 132 GB: more than a card of 12 GB and a usual host beside it have, and less than 200 GB of --ram."""
    rows = fit("235b", gpu="rtx-4070", seq="4k", limit=0, ram=200).models
    assert "Qwen/Qwen3-235B-A22B" in {name for row in rows for name in (row.id, *row.also)}
    assert not fit("235b", gpu="rtx-4070", seq="4k", limit=0, ram=64).models


def test_a_format_that_does_not_fit_without_a_gpu_is_not_listed() -> None:
    """Of the named format alone: 12 billion parameters in 4.85 bits and their cache, which are more than 8 GB less what a system takes."""
    for host in ({"gpu": "cpu-8gb"}, {"gpu": "cpu", "ram": 8}):
        rows = fit(seq="4k", weights="q4_k_m", limit=0, **host).models
        assert rows
        assert all(0 < row.needed_bytes <= row.usable_bytes for row in rows if row.verdict is Verdict.FITS)
        assert all(row.weights_bytes for row in rows)


def test_an_own_model_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in the user's own folder is a candidate, and replaces the catalog's of the same id."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "kvplan" / "profiles" / "models" / "Qwen" / "Qwen3-8B.json"
    path.parent.mkdir(parents=True)
    entry = find_entry("Qwen/Qwen3-8B")
    assert entry is not None
    half = {**entry.data["config"], "num_hidden_layers": 18}
    path.write_text(json.dumps({**entry.data, "config": half, "parameters": None}), encoding="utf-8")

    (row,) = (row for row in fit("qwen/qwen3-8b", gpu="l4", seq="8k", every=True).models if row.id == "Qwen/Qwen3-8B")
    assert row.all_layers == 19


def test_a_pool_without_room_for_one_token_may_hold_many() -> None:
    """TensorRT-LLM may refuse short sequences and run long ones: the longest is that of the plan."""
    rows = fit("qwen2.5-7b", gpu="rtx-4060-ti", engine="tensorrt-llm", seq=1000, dtype="fp8", every=True).models
    assert rows
    for row in rows:
        planned = plan(row.id, gpu="rtx-4060-ti", engine="tensorrt-llm", seq=1000, dtype="fp8", weights=row.weights, offline=True)
        assert planned.fit is not None
        assert planned.fit.max_seq
        assert row.max_seq == planned.fit.max_seq


# --- a folder of files ---------------------------------------------------------------------------------------------------


def test_a_folder_with_broken_files(tmp_path: Path, capsys: Capture) -> None:
    """Each that cannot be read is named with the reason; the others are listed."""
    (tmp_path / "good.gguf").write_bytes(given.gguf_bytes())
    (tmp_path / "empty.gguf").write_bytes(b"")
    (tmp_path / "text.gguf").write_text("no header at all", encoding="utf-8")
    (tmp_path / "huge.gguf").write_bytes(b"GGUF" + (3).to_bytes(4, "little") + b"\xff" * 16)
    (tmp_path / "gone.gguf").symlink_to(tmp_path / "nowhere")
    result = fit(folder=str(tmp_path), gpu="rtx-3060")

    assert [row.id for row in result.models] == ["good.gguf"]
    assert result.models[0].stored
    assert {Path(one.id).name for one in result.unread} >= {"empty.gguf", "text.gguf", "huge.gguf"}
    assert all(one.message for one in result.unread)

    status, out, _ = run(capsys, "fit", "--folder", str(tmp_path), "--gpu", "rtx-3060")
    assert status == 0
    assert "good.gguf" in out
    assert "text.gguf" in out


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """Each has the figures that it has in a folder of its own."""
    for folder, tokens in (("long", 4096), ("short", 512)):
        (tmp_path / folder).mkdir()
        keys = {**given.KEYS, "llama.context_length": tokens, "llama.attention.head_count_kv": 4096 // tokens}
        (tmp_path / folder / "model.gguf").write_bytes(given.gguf_bytes(keys))
    together = fit(folder=str(tmp_path), gpu="rtx-3060", seq=128, every=True).models
    alone = [fit(folder=str(tmp_path / folder), gpu="rtx-3060", seq=128).models[0] for folder in ("long", "short")]

    figures = [(row.max_seq, row.cache_bytes, row.decode_tokens_per_s_bound) for row in alone]
    assert [row.max_seq for row in alone] == [4096, 512]
    assert len(set(figures)) == 2
    assert {(row.max_seq, row.cache_bytes, row.decode_tokens_per_s_bound) for row in together} == set(figures)


@pytest.mark.parametrize(
    ("stated", "name"), [({"general.file_type": 15}, "q4_k_m"), ({"general.file_type": 1024 + 18}, "q6_k"), ({}, "q4_k")]
)
def test_a_file_says_its_own_type(tmp_path: Path, capsys: Capture, stated: dict[str, int], name: str) -> None:
    """As llama.cpp names it; where the file does not say, that of most of its weights."""
    (tmp_path / "one.gguf").write_bytes(given.gguf_bytes({**given.KEYS, **stated}))
    (row,) = fit(folder=str(tmp_path), gpu="rtx-3060").models
    status, out, _ = run(capsys, "fit", "--folder", str(tmp_path), "--gpu", "rtx-3060")

    assert (row.weights, row.file_type) == (None, name)
    assert status == 0
    assert f" {name} " in out


# --- what is listed -----------------------------------------------------------------------------------------------------


def test_families_in_the_order_of_their_best() -> None:
    """Rows of a family that fit as well stand together, the best first; at most three, unless all are asked for."""
    result = fit("qwen3", gpu="rtx-4090", seq="8k", limit=0)
    families = [row.family.lower() for row in result.models if row.whole and row.verdict == "fits"]

    assert families == sorted(families, key=families.index)
    assert max(families.count(name) for name in families) == 3
    assert result.more > 0


def test_size_and_date_say_what_a_model_can_do() -> None:
    """A year later, half the parameters do; of a model with experts it is the geometric mean of all and of the active ones."""
    billion = 10**9

    assert ability(14 * billion, None, 1.0) == ability(7 * billion, None, 0.0)
    assert ability(32 * billion, 2 * billion, 0.0) == ability(8 * billion, 8 * billion, 0.0)
    assert ability(None, None, 0.0) == 0


def test_experts_in_host_memory_take_four_bits() -> None:
    """Q4_K_M, as people do, and not the smallest format; with --only-fits what lies on the card as a whole."""
    model = "Qwen/Qwen3-Coder-30B-A3B-Instruct"
    rows = models(fit("qwen3-coder-30b", gpu="rtx-4060-ti", seq="16k"))
    whole = models(fit("qwen3-coder-30b", gpu="rtx-4060-ti", seq="16k", only_fits=True))
    planned = plan(model, gpu="rtx-4060-ti", seq="16k", weights="auto", engine="llamacpp", offline=True)
    row = rows[model]
    assert planned.fit is not None

    assert (row.weights, row.verdict, row.whole) == ("q4_k_m", "fits", False)
    assert (planned.request.weights, planned.fit.verdict, planned.fit.gpu_layers) == ("q4_k_m", "fits", row.gpu_layers)
    assert "experts in host memory" in next(note.message for note in planned.notes if note.code == "auto-weights")
    assert whole[model].whole
    assert whole[model].weights != "q4_k_m"


def test_a_host_that_is_too_small_for_four_bits() -> None:
    """2 GiB of the host hold no experts in Q4_K_M: what lies on the card as a whole is taken."""
    options = {"host_memory": "2GiB"}
    row = models(fit("qwen3-coder-30b", gpu="rtx-4060-ti", seq="16k", engine_options=options))[
        "Qwen/Qwen3-Coder-30B-A3B-Instruct"
    ]
    planned = plan(row.id, gpu="rtx-4060-ti", seq="16k", weights="auto", engine="llamacpp", engine_options=options, offline=True)

    assert row.whole
    assert planned.request.weights == row.weights


def test_what_people_run_comes_first() -> None:
    """Small experts on the host stand among what lies on the card; a larger model in MLX's four bits before small ones in eight."""
    listed = [row.id for row in fit(gpu="rtx-4070", seq="16k").models]
    on_mac = fit(gpu="m3-pro-18gb", engine="mlx", seq="16k").models
    ids = [row.id for row in on_mac]

    assert {"openai/gpt-oss-20b", "Qwen/Qwen3-14B"} <= set(listed)
    assert ids.index("Qwen/Qwen3-14B") < ids.index("google/gemma-4-E2B-it")
    assert "mlx_4bit" in [row.weights for row in on_mac[:10]]


def test_embedding_models_are_apart() -> None:
    """They are listed where they are asked for, by a word or by the modality, and counted otherwise."""
    name = "Qwen/Qwen3-Embedding-4B"
    without = fit(gpu="rtx-4090", seq="8k", limit=0, every=True)

    assert name not in models(without)
    assert without.embeddings >= 2
    assert name in models(fit("embedding", gpu="rtx-4090", seq="8k"))
    assert {row.modality for row in fit(gpu="rtx-4090", seq="8k", modality="embedding").models} == {"embedding"}


def test_the_verdict_is_never_left_out() -> None:
    """On 80 columns the columns of sizes go first, and then the names of makers; what a cell says is not wrapped.

    A few long names have a line of their own, so that the longest that fits has its column.
    """
    result = fit(gpu="rtx-4070", seq="16k")
    text = fit_text(result, View(format="table", width=80))
    table = text.split("\n\n")[1].splitlines()
    names = [row.id.rpartition("/")[2] + (f" +{len(row.also)}" if row.also else "") for row in result.models]
    long = [line for line in table if line in names]

    assert table[0].split()[-3:] == ["longest", "tok/s", "fits"]
    assert len(table) == 1 + len(result.models) + len(long)
    assert 0 < len(long) < len(names) // 4
    assert max(map(len, table)) <= 80
    # Every row is found by its name and its longest, with a long name above it.
    flat = "\n".join(table).replace("\n ", " ")
    assert all(
        re.search(rf"^{re.escape(name)} .*{row.max_seq:,} ", flat, re.MULTILINE)
        for name, row in zip(names, result.models, strict=True)
    )
    assert "what surely fits in four bits or more comes first" in " ".join(text.split())


def test_variants_are_one_row_and_copies_are_folded() -> None:
    """Base and instruct are one row; an FP8 copy is its model's."""
    rows = models(fit("qwen3-14b", gpu="rtx-4090", seq="8k"))
    assert rows["Qwen/Qwen3-14B"].also == ("Qwen/Qwen3-14B-Base",)

    rows = models(fit("qwen3-32b", gpu="rtx-4090", seq="8k", every=True))
    assert set(rows) == {"Qwen/Qwen3-32B"}
    assert set(rows["Qwen/Qwen3-32B"].also) == {"Qwen/Qwen3-32B-FP8", "Qwen/Qwen3-32B-FP8-Static-PerTensor"}


def test_every_model_of_the_catalog_is_looked_at() -> None:
    """None is lost by folding."""
    named = {name for one in folded(catalog()) for name in (one.id, *one.also)}

    assert named == set(list_models())


@pytest.mark.parametrize(
    ("wishes", "holds"),
    [
        ({"family": "gemma-3"}, lambda row: "gemma" in f"{row.family} {row.model_type}".lower()),
        ({"min_params": "7B"}, lambda row: row.parameters >= 7 * 10**9),
        ({"max_params": "2B"}, lambda row: row.parameters <= 2 * 10**9),
        ({"modality": "vision"}, lambda row: row.modality == "vision"),
        ({"min_speed": 80}, lambda row: row.decode_tokens_per_s >= 80),
        ({"weights": "q4_k_m"}, lambda row: row.weights == "q4_k_m"),
        ({"seq": "64k"}, lambda row: row.seq == 65_536 and row.max_seq >= 65_536),
    ],
)
def test_filters(wishes: dict[str, object], holds: object) -> None:
    """Each row is what was asked for, and there are some."""
    asked = {"gpu": "rtx-4060-ti", "limit": 0, "family": ("qwen3", "gemma-3", "smollm"), **wishes}
    rows = fit(**asked).models  # type: ignore[arg-type]

    assert rows
    assert all(holds(row) for row in rows if row.verdict == "fits")  # type: ignore[operator]


def test_counts_add_up() -> None:
    """Every model is listed, or counted by the reason why it is not."""
    result = fit(gpu="rtx-3060", seq="16k", every=True, limit=0, family=("qwen3", "phi"), min_speed=20)
    listed = sum(1 + len(row.also) for row in result.models)

    assert result.considered == len(list_models())
    left = result.filtered + result.embeddings + result.refused + result.short + result.too_large + result.slow
    assert listed + left == result.considered
    assert result.more == 0


# --- the command --------------------------------------------------------------------------------------------------------


def test_without_a_gpu_it_says_what_to_type(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's is the default."""
    monkeypatch.setattr("hwcalc.hardware.local.detect", lambda: None)
    status, out, error = run(capsys, "fit")

    assert (status, out) == (2, "")
    assert "no GPU found here" in error
    assert "kvplan fit --gpu rtx-4060-ti" in error


def test_the_document_has_its_schema(capsys: Capture) -> None:
    """``kvplan schema fit`` describes what ``--json`` prints, row by row."""
    import jsonschema

    status, out, _ = run(capsys, "fit", "qwen/qwen3-8b", "--gpu", "rtx-4060-ti", "--seq", "16k", "--json")
    document = json.loads(out)
    jsonschema.Draft202012Validator(json_schema("fit")).validate(document)

    assert status == 0
    assert [model["id"] for model in document["models"]] == ["Qwen/Qwen3-8B"]


def test_nothing_runs(capsys: Capture) -> None:
    """The exit status says so."""
    status, out, _ = run(capsys, "fit", "405b", "--gpu", "rtx-3050-6gb", "--only-fits")

    assert status == 1
    assert "Nothing runs on it." in out


def test_no_model_is_meant(capsys: Capture) -> None:
    """Words that no id has together are no verdict about the GPU, and the line that names several families lists both."""
    status, out, _ = run(capsys, "fit", "qwen3", "gpt-oss", "--gpu", "rtx-4070")
    rest = out.rpartition("Several families: ")[2].split()
    families = {model.family for model in fit(family="qwen3,gpt-oss", gpu="rtx-4070").models}

    assert status == 1
    assert "Nothing runs" not in out
    assert rest == ["--family", "qwen3,gpt-oss"]
    assert len(families) > 1
    assert "No such model has 'zzz' in its id." in run(capsys, "fit", "zzz", "--gpu", "rtx-4070")[1]


@pytest.mark.parametrize("format_", ["markdown", "csv", "table"])
def test_other_formats(capsys: Capture, format_: str) -> None:
    """Each has the model, its format and its size."""
    status, out, _ = run(capsys, "fit", "qwen/qwen3-8b", "--gpu", "rtx-4060-ti", "--seq", "16k", "--format", format_)

    assert status == 0
    assert "Qwen/Qwen3-8B" in out
    assert "q8" in out


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_params": "9B", "max_params": "1B"},
        {"modality": "smell"},
        {"min_speed": "fast"},
        {"limit": -1},
        {"folder": "/nowhere-at-all"},
        {"tp": 2},
    ],
)
def test_wrong_values(wrong: dict[str, object]) -> None:
    """An error of the usual kind."""
    with pytest.raises(UsageError):
        fit(gpu="l4", **wrong)  # type: ignore[arg-type]


def test_a_notebook_sees_a_table() -> None:
    """One row for each model."""
    result = fit("qwen/qwen3-8b", gpu="rtx-4060-ti", seq="16k")

    assert "Qwen/Qwen3-8B" in result._repr_html_()
    assert result.records()[0]["weights"] == "q8_0"
    assert "models run" in result.headline()


# --- the order ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gpu", "seq"), [("h100", "32k"), ("rtx-3060", "8k"), ("rtx-4090", "8k")])
def test_what_follows_instructions_and_has_room_comes_first(gpu: str, seq: str) -> None:
    """A pretrained model, or one that only just reaches the context, is not the first where others of its size fit."""
    rows = fit(gpu=gpu, seq=seq).models

    assert not any(word in rows[0].id.lower() for word in ("dbrx-base", "starcoder", "-base"))
    assert rows[0].max_position_embeddings is not None
    assert rows[0].max_position_embeddings >= 2 * rows[0].seq
    assert "databricks/dbrx-base" not in [row.id for row in rows]


def test_within_a_family_instructed_models_come_first() -> None:
    """The row is named by the model that follows instructions, and those that are only pretrained come last."""
    rows = fit(gpu="rtx-4090", seq="4k", family="starcoder2,qwen2.5-coder", limit=0, every=True).models
    for family in ("starcoder2", "Qwen2.5-Coder"):
        ids = [row.id for row in rows if row.family == family and row.whole and row.verdict == "fits"]
        told = ["instruct" in name.lower() for name in ids]

        assert any(told)
        assert told == sorted(told, reverse=True)


def test_a_word_in_a_name_comes_before_one_in_a_type() -> None:
    """Falcon3 and Yi are of the type llama, and not called so."""
    ids = [row.id.lower() for row in fit("llama", gpu="rtx-4090", limit=0).models]
    named = ["llama" in name for name in ids]

    assert any(not name for name in named)
    assert named == sorted(named, reverse=True)


# --- what the table says --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("format_", "width"), [("table", 200), ("table", 50), ("markdown", 80)])
def test_the_last_line_is_what_to_type_next(format_: str, width: int) -> None:
    """The command of the first row; a shell reads it as one where it does not fit on a line."""
    result = fit("qwen/qwen3-8b", gpu="rtx-4060-ti", seq="16k")
    text = fit_text(result, View(format=format_, width=width))
    block = text[text.index("plan one:") :]
    typed = block.removeprefix("plan one:").strip().strip("`")

    assert block.endswith("\n")
    assert all(len(line) <= width for line in block.splitlines() if format_ == "table")
    assert shlex.split(typed.replace("\\\n", " ")) == shlex.split(result.models[0].command)
    assert "plan one" not in fit_text(result, View(format=format_, width=width, quiet=True))


def test_a_name_with_blanks_stays_one_word(tmp_path: Path) -> None:
    """However narrow the terminal."""
    (tmp_path / "my --own model.gguf").write_bytes(given.gguf_bytes())
    result = fit(folder=str(tmp_path), gpu="rtx-3060")

    told = " ".join(fit_text(result, View(width=40)).replace("\\\n", " ").split())
    assert result.models[0].command in told
    assert "my --own model.gguf'" in fit_text(result, View(width=40))


def test_a_length_that_is_not_sure() -> None:
    """Is what is expected, and never 0 tokens."""
    result = fit("nemotron-3-ultra", gpu="h100", seq="32k")
    (row,) = result.models

    assert row.max_seq == 0
    assert row.expected_max_seq is not None
    assert row.expected_max_seq >= row.seq
    assert f" ~{row.expected_max_seq:,} " in fit_text(result, View(width=200))
    assert "not sure" in fit_text(result, View(width=200))


def test_a_model_without_a_limit_has_none() -> None:
    """A state takes the same at any length."""
    rows = fit("state-spaces/mamba", gpu="rtx-4060-ti", seq="16k", every=True, limit=0).models
    assert rows
    for row in rows:
        planned = plan(row.id, gpu="rtx-4060-ti", seq="16k", engine="llamacpp", weights=row.weights, offline=True)
        assert planned.fit is not None
        assert row.max_seq == planned.fit.max_seq


def test_bytes_are_those_of_the_plan_where_the_index_is_a_byte_off() -> None:
    """Buffers of Mamba layers beside attention do not grow by whole bytes."""
    rows = fit("nvidia-nemotron-nano", gpu="rtx-4060-ti", seq="16k", limit=0).models
    assert "nvidia/NVIDIA-Nemotron-Nano-12B-v2" in [row.id for row in rows]
    for row in rows:
        planned = plan(row.id, gpu="rtx-4060-ti", seq="16k", engine="llamacpp", weights=row.weights, offline=True)
        assert planned.fit is not None
        assert (row.needed_bytes, row.max_seq, row.verdict) == (
            planned.fit.needed_bytes,
            planned.fit.max_seq,
            planned.fit.verdict,
        )


def test_memory_of_a_host_is_refused_by_the_name_that_was_typed() -> None:
    """A Mac has one memory, and MLX no second one beside it."""
    for engine in ("mlx", "llamacpp"):
        with pytest.raises(UsageError, match=r"^(--)?ram: the memory of apple-m3-pro-18gb is the host's, 18 GB"):
            fit(gpu="m3-pro-18gb", engine=engine, ram=64)
    # The other size that it is sold with.
    with pytest.raises(UsageError) as raised:
        fit(gpu="m3-pro", engine="llamacpp", ram=18)
    assert raised.value.hint.endswith("name the machine that has so much: --gpu apple-m3-pro-18gb")
    with pytest.raises(UsageError, match="ram: vLLM is planned on the GPU alone"):
        fit(gpu="l4", engine="vllm", ram=64)
