"""A number that follows from a reconstructed config says so by its definition, wherever it is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from hwcalc import compare, load_model, plan
from hwcalc.model import Definition
from hwcalc.profiles.catalog import find_model, list_models
from tests.hwcalc.command import Capture, run

RECONSTRUCTED: Final = "01-ai/Yi-1.5-9B"
PUBLISHED: Final = "Qwen/Qwen3-8B"


@pytest.mark.parametrize("model_id", list_models())
def test_the_whole_catalog(model_id: str) -> None:
    """Only an entry that says it is published is called exact. What may say so by its source: ``tests/profiles/test_catalog.py``."""
    entry = find_model(model_id)
    assert entry is not None
    expected = Definition.EXACT if entry["fidelity"].startswith("published") else Definition.RECONSTRUCTED
    model = load_model(model_id)

    assert expected == plan(model, seq=64, encoder_seq=8, dtype="bf16").cache.definition
    assert model.counted is None or expected == (model.parameters and model.parameters.definition)


@pytest.mark.parametrize(("model_id", "word"), [(RECONSTRUCTED, "reconstructed"), (PUBLISHED, "engine")])
def test_every_section_of_a_plan(model_id: str, word: str) -> None:
    """Cache, pool and the weights of the budget; what the GPU adds keeps its own word."""
    document = plan(model_id, seq=2048, engine="vllm", gpu="l4").to_dict()
    parts = {part["name"]: part["definition"] for part in document["fit"]["budget"]["parts"]}

    assert word == document["cache"]["definition"] == document["memory"]["cache"]["definition"] == document["pool"]["definition"]
    assert ("exact" if word == "engine" else word) == parts["weights"] == document["model"]["parameters"]["definition"]
    assert "estimate" == parts["activations"]


@pytest.mark.parametrize("format_", ["table", "markdown", "csv", "json"])
def test_every_format(capsys: Capture, format_: str) -> None:
    """None calls it exact."""
    _, out, _ = run(capsys, RECONSTRUCTED, "--seq", "2k", "--format", format_)

    assert "reconstructed" in out.lower()
    assert "exact: " not in out
    assert "(exact)" not in out
    assert '"exact"' not in out
    assert ",exact," not in out


def test_check_compare_and_sweep(capsys: Capture, tmp_path: Path) -> None:
    """The definition stands beside the bytes in each of them, and a lock keeps it."""
    path = tmp_path / "kvplan.yaml"
    path.write_text(f"schema_version: 1\nchecks:\n  - {{model: {RECONSTRUCTED}, seq: 2k, max_cache: 1GiB}}\n", encoding="utf-8")

    def checked() -> str:
        status, out, err = run(capsys, "check", str(path), "--format", "json")
        assert 0 == status, err
        found: str = json.loads(out)["checks"][0]["plan"]["definition"]
        return found

    assert "reconstructed" == checked()
    assert 0 == run(capsys, "check", str(path), "--lock")[0]
    assert "reconstructed" == checked()
    both = compare([RECONSTRUCTED, PUBLISHED], seq=2048).variants
    assert ["reconstructed", "exact"] == [variant.definition for variant in both]
    _, out, _ = run(capsys, "sweep", RECONSTRUCTED, PUBLISHED, "--seq", "2k", "--format", "jsonl")
    assert ["reconstructed", "exact"] == [json.loads(line)["definition"] for line in out.splitlines()]


def test_a_file_of_ones_own_is_what_it_is() -> None:
    """The same config as a file was not reconstructed by the catalog."""
    assert "exact" == plan(dict(load_model(RECONSTRUCTED).config), seq=64).cache.definition
