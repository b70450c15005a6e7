"""``kvplan diff``: keys that bear on memory, and the bytes that follow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from hwcalc.cli import main
from hwcalc.report.schema import json_schema

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
    jsonschema.validate(document, json_schema("diff"))
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


def test_one_length_for_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --seq both are planned at the smaller maximum."""
    assert main(["diff", *files(tmp_path, max_position_embeddings=8192)]) == 0

    assert "at 4,096 tokens" in capsys.readouterr().out


@pytest.mark.parametrize("models", [[], ["a"], ["a", "b", "c"]])
def test_two_models_are_needed(models: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """One model or three are wrong usage."""
    assert main(["diff", *models]) == 2

    assert "diff compares two models" in capsys.readouterr().err
