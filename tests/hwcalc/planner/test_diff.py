"""``kvplan diff``: the keys that affect memory, and the bytes that follow."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from hwcalc.cli import main
from hwcalc.report.schema import json_schema
from tests.hwcalc.command import run

BASE: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}


def files(folder: Path, **changes: Any) -> list[str]:
    """Two config files: the base, and the base with changes."""
    out = []
    for name, config in (("a.json", BASE), ("b.json", BASE | changes)):
        path = folder / name
        path.write_text(json.dumps(config), encoding="utf-8")
        out.append(str(path))
    return out


def difference(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The JSON document of a diff, valid by its schema."""
    assert main(["diff", *arguments, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(json_schema("diff")).validate(document)
    return document


def test_bytes_follow_the_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two key/value heads instead of eight: 2 layers x 6 heads x 64 x 2 x 2 bytes less a token, and 6 x 64 x 512 x 2 x 2 weights."""
    document = difference(capsys, *files(tmp_path, num_key_value_heads=2), "--seq", "100")
    figures = {figure["name"]: figure["difference"] for figure in document["figures"]}

    assert [change["key"] for change in document["keys"]] == ["num_key_value_heads"]
    assert figures["cache.bytes_per_token"] == -2 * 6 * 64 * 2 * 2
    assert figures["cache.total_bytes"] == -100 * 2 * 6 * 64 * 2 * 2
    assert figures["parameters.total"] == -2 * 2 * 6 * 64 * 512
    assert figures["memory.weights.bytes"] == -2 * 2 * 6 * 64 * 512 * 2


def test_keys_without_memory_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A changed epsilon or rope base is no change of memory."""
    document = difference(capsys, *files(tmp_path, rms_norm_eps=1e-6, rope_theta=500000.0))

    assert document["keys"] == []
    assert {figure["difference"] for figure in document["figures"]} == {0}


def test_absent_is_not_null(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A key that only one file has is absent in the other."""
    document = difference(capsys, *files(tmp_path, head_dim=64))

    assert document["keys"] == [{"key": "head_dim", "in_a": False, "in_b": True, "a": None, "b": 64}]


def test_a_language_model_in_a_part_is_compared_with_one_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Keys mean the same in both places. Gemma 3's class has heads of 256, which the first file leaves to it."""
    alone = {**BASE, "model_type": "gemma3_text", "num_key_value_heads": 2, "head_dim": 256, "sliding_window": 128}
    part = {**alone, "num_key_value_heads": 4}
    del part["head_dim"]
    for name, config in (("a.json", {"model_type": "gemma3", "text_config": part}), ("b.json", alone)):
        (tmp_path / name).write_text(json.dumps(config), encoding="utf-8")
    keys = difference(capsys, str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--seq", "100")["keys"]

    assert [key for key in keys if not key["key"].startswith("vision_config.")] == [
        {"key": "num_key_value_heads", "in_a": True, "in_b": True, "a": 4, "b": 2}
    ]


def test_one_length_for_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --seq both are planned at the smaller maximum."""
    assert main(["diff", *files(tmp_path, max_position_embeddings=8192)]) == 0

    assert "at 4,096 tokens" in capsys.readouterr().out


def test_the_table_is_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sizes have units, figures have names, and an accelerator gives a verdict; documents have the exact bytes."""
    models = files(tmp_path, num_key_value_heads=2)
    assert main(["diff", *models, "--seq", "1000", "--gpu", "l4"]) == 0
    rows = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    table = {row[0]: [cell.strip() for cell in row[1:] if cell.strip()] for row in rows if row[0]}

    assert table["cache of a token"] == ["4 KiB", "1 KiB", "-3 KiB", "0.25"]
    assert table["state of a sequence"] == ["0 B", "0 B", "same"]
    assert table["cache"] == ["3.91 MiB", "1,000 KiB", "-2.93 MiB", "0.25"]
    assert table["verdict"] == ["fits", "fits"]


@pytest.mark.parametrize("models", [[], ["a"], ["a", "b", "c"]])
def test_two_models_are_needed(models: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """One model or three are wrong usage."""
    assert main(["diff", *models]) == 2

    assert "diff compares two models" in capsys.readouterr().err


def test_a_dtype_and_a_quantisation_are_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both decide how many bytes a weight takes."""
    document = difference(capsys, *files(tmp_path, torch_dtype="torch.float32"))
    assert document["keys"] == [{"key": "dtype", "in_a": True, "in_b": True, "a": "bfloat16", "b": "float32"}]
    by_name = {figure["name"]: figure for figure in document["figures"]}
    assert by_name["memory.weights.bytes"]["b"] == 2 * by_name["memory.weights.bytes"]["a"]

    quantised = {"quant_method": "awq", "bits": 4, "group_size": 128, "more": {"zero_point": True}}
    document = difference(capsys, *files(tmp_path, quantization_config=quantised))
    assert {change["key"]: change["b"] for change in document["keys"]} == {
        "quantization_config.quant_method": "awq",
        "quantization_config.bits": 4,
        "quantization_config.group_size": 128,
        "quantization_config.more.zero_point": True,
    }
    assert not any(change["in_a"] for change in document["keys"])


def test_the_same_dtype_under_its_two_names_is_no_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``torch_dtype`` became ``dtype`` in transformers 5."""
    a, b = files(tmp_path)
    renamed = {("dtype" if key == "torch_dtype" else key): value for key, value in BASE.items()}
    Path(b).write_text(json.dumps(renamed), encoding="utf-8")

    assert difference(capsys, a, b)["keys"] == []


@pytest.mark.parametrize("order", [0, 1])
def test_one_of_them_from_standard_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, order: int
) -> None:
    """Standard input is read once."""
    a, b = files(tmp_path, num_key_value_heads=2)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(Path(a).read_bytes())))
    document = difference(capsys, *(("-", b) if order == 0 else (b, "-")), "--seq", "100")
    heads = (8, 2) if order == 0 else (2, 8)

    assert [(change["key"], change["a"], change["b"]) for change in document["keys"]] == [("num_key_value_heads", *heads)]


def test_standard_input_is_one_model(capsys: pytest.CaptureFixture[str]) -> None:
    """Twice the same stream is wrong usage."""
    assert main(["diff", "-", "-"]) == 2

    assert "standard input can be only one of the two" in capsys.readouterr().err


def test_a_table_does_not_list_thousands_of_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says how many are left out; a document and CSV have all."""
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "hidden_size": 64,
        "max_position_embeddings": 64,
    }
    for name in ("a", "b"):
        modules = {f"{name}{number}": number for number in range(300)}
        named = config | {"quantization_config": {"quant_method": "gptq", "bits": 4, "dynamic": modules}}
        (tmp_path / f"{name}.json").write_text(json.dumps(named))
    words = ["diff", str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    texts = []
    for more in ([], ["--format", "csv"], ["--json"]):
        assert main([*words, *more]) == 0
        texts.append(capsys.readouterr().out)
    table, cells, document = texts

    assert "400 more keys differ. All of them: --format csv, or --json\n" in table
    assert len(json.loads(document)["keys"]) == 600
    assert sum(line.startswith("key,") for line in cells.splitlines()) == 600


def test_csv_is_one_table_of_plain_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As many columns in each row, and digits alone."""
    assert main(["diff", *files(tmp_path, num_key_value_heads=2, head_dim=64), "--format", "csv", "--seq", "1000"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    by_name = {row["name"]: row for row in rows}

    assert all(None not in row and None not in row.values() for row in rows)
    assert {row["what"] for row in rows} == {"model", "request", "figure", "key"}
    figure = by_name["cache.total_bytes"]
    assert int(figure["b"]) - int(figure["a"]) == int(figure["difference"]) == -1000 * 2 * 6 * 64 * 2 * 2
    assert (figure["a"].isdecimal(), figure["difference"][0]) == (True, "-")
    assert (by_name["num_key_value_heads"]["a"], by_name["num_key_value_heads"]["b"]) == ("8", "2")
    assert (by_name["head_dim"]["a"], by_name["head_dim"]["b"]) == ("", "64")


@pytest.mark.parametrize("wrong", [["--seq", "x"], ["--format", "x"]])
def test_a_wrong_option_comes_before_the_models(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """No model is loaded if the usage is wrong."""
    assert main(["diff", "no-such/a", "no-such/b", *wrong]) == 2


def plans(folder: Path, capsys: pytest.CaptureFixture[str], *options: tuple[str, ...]) -> list[str]:
    """Two files with the documents of plans of one model, each with options of its own."""
    model, *_ = files(folder)
    out = []
    for number, words in enumerate(options):
        assert main([model, *words, "--json"]) == 0
        path = folder / f"plan-{number}.json"
        path.write_text(capsys.readouterr().out, encoding="utf-8")
        out.append(str(path))
    return out


def test_long_values_show_where_they_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both begin with 62 characters that are the same; what follows is 4 and 2."""
    start = "18*mamba2(heads=64, head_dim=64, d_state=128, conv=4) + 6*full(heads=8, head_dim=64, kv_heads="
    files = [tmp_path / f"{number}.yaml" for number in (4, 2)]
    for file in files:
        file.write_text(f"name: one\nlayers: {start}{file.stem})\n", "utf-8")
    _, out, _ = run(capsys, "diff", *map(str, files), "--seq", "8")
    row = next(line for line in out.splitlines() if line.startswith("layers"))
    assert ("kv_heads=4)" in row, "kv_heads=2)" in row) == (True, True)
    assert len(row) <= len("layers") + 2 * (2 + 60)

    checks = tmp_path / "kvplan.yaml"
    checks.write_text("schema_version: 1\nchecks: [{model: 4.yaml, seq: 8, max_cache: 1GiB}]\n", "utf-8")
    assert run(capsys, "check", "--lock", str(checks))[0] == 0
    files[0].write_text(files[1].read_text("utf-8"), "utf-8")
    _, out, _ = run(capsys, "check", str(checks))
    before, _, after = " ".join(out.split()).partition(" -> ")
    assert (before.endswith('kv_heads=4)"'), 'kv_heads=2)"' in after) == (True, True)


def test_two_documents_are_compared_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Twice the tokens and half the bytes of a value, four sequences: 2 layers x 8 heads x 64 x 2 values x 1 byte a token."""
    a, b = plans(tmp_path, capsys, ("--seq", "1k"), ("--seq", "2k", "--users", "4", "--dtype", "fp8"))
    document = difference(capsys, a, b)
    figures = {figure["name"]: (figure["a"], figure["b"]) for figure in document["figures"]}

    assert {change["key"]: (change["a"], change["b"]) for change in document["keys"]} == {
        "request.seq": (1024, 2048),
        "request.batch": (1, 4),
        "request.kv_dtype": ("bf16", "fp8"),
    }
    assert figures["cache.bytes_per_token"] == (4096, 2048)
    assert figures["cache.total_bytes"] == (1024 * 4096, 4 * 2048 * 2048)
    assert (document["verdict_a"], document["seq_b"]) == (None, 2048)
    assert main(["diff", a, b]) == 0
    assert "at 1,024 and 2,048 tokens" in capsys.readouterr().out


def test_layers_of_documents_are_compared_by_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every sixth of Gemma 3's 48 layers keeps all tokens, the others 1,024; every fourth keeps all in the other file, in two sizes."""
    written = ("40*sliding(heads=16, kv_heads=8, head_dim=256, window=1024) + 8*full(heads=16, kv_heads=8, head_dim=256)",
               "36*sliding(heads=16, kv_heads=8, head_dim=256, window=1024) + 8*full(heads=16, kv_heads=8, head_dim=256) + 4*full(heads=16, kv_heads=4, head_dim=256)")  # fmt: skip
    files = []
    for number, layers in enumerate(written):
        assert main(["--layers-of", layers, "--seq", "1k", "--json"]) == 0
        files.append(tmp_path / f"{number}.json")
        files[-1].write_text(capsys.readouterr().out, encoding="utf-8")
    changes = {change["key"]: (change["a"], change["b"]) for change in difference(capsys, *map(str, files))["keys"]}

    assert changes["model.layers.sliding_attention.count"] == (40, 36)
    assert changes["model.layers.sliding_attention.layers"] == ("0-39", "0-35")
    assert changes["model.layers.full_attention[2].num_key_value_heads"] == (None, 4)
    assert "model.layers.sliding_attention.window" not in changes


def test_a_document_with_an_accelerator_has_a_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And what it was planned for is a key that only it has."""
    a, b = plans(tmp_path, capsys, ("--seq", "1k"), ("--seq", "1k", "--gpu", "l4"))
    document = difference(capsys, a, b)

    assert (document["verdict_a"], document["verdict_b"]) == (None, "fits")
    assert [(change["key"], change["b"]) for change in document["keys"]] == [("fit.gpu", "l4"), ("fit.gpus", 1)]


def test_a_document_is_compared_with_a_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not with a model, not with options, and not if it is no plan."""
    a, b = plans(tmp_path, capsys, ("--seq", "1k"), ("--seq", "2k"))
    assert main(["diff", a, "Qwen/Qwen3-8B"]) == 3
    assert "Of two plans: kvplan diff a.json b.json" in capsys.readouterr().err
    assert main(["diff", a, b, "--seq", "4k"]) == 2
    assert "both files are plans already, which take no --seq." in capsys.readouterr().err
    for wrong in ({}, {"model": {"id": 1}}, {**json.loads(Path(a).read_text()), "fit": {"verdict": []}}):
        Path(b).write_text(json.dumps({"kvplan_version": "1"} | wrong), encoding="utf-8")
        assert main(["diff", a, b]) == 3
        assert "is a JSON document that kvplan wrote, and no plan of this version" in capsys.readouterr().err
