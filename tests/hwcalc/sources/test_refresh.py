"""``kvplan models --refresh``: a Hub model's facts in the user's own catalog, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hwcalc import load_model, plan
from hwcalc.cli import main
from profiles.catalog import find_entry, user_folder
from tests.hub.repositories import COMMIT, CONFIG, MODEL
from tests.hub.server import Hub


def test_facts_are_kept_and_used(hub: Path, loopback: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    """The file is one of the catalog's form; the next plan needs no Hub and has the exact weight bytes."""
    loopback.add("org/name", MODEL)

    assert main(["models", "--refresh", "org/name"]) == 0
    folder = user_folder()
    assert folder is not None
    assert str(folder / "org" / "name.json") in capsys.readouterr().out

    entry = find_entry("org/name")
    assert entry is not None
    assert entry.user
    assert entry.data["config"] == CONFIG
    assert COMMIT in entry.data["fidelity"]
    assert entry.data["weight_bytes"] == {"BF16": 64 * 64 * 2, "I64": 3 * 8}

    for path in hub.iterdir():
        path.rename(path.with_suffix(".gone"))
    asked = len(loopback.asked)
    result = plan("org/name", seq=10)
    assert len(loopback.asked) == asked
    assert result.model.source == "catalog"
    assert result.memory.weights.bytes == 64 * 64 * 2 + 3 * 8
    assert result.memory.weights.definition == "exact"


def test_an_id_of_the_catalog_is_read_from_the_hub(hub: Path, loopback: Hub) -> None:
    """A model that the built-in catalog has is asked of the Hub all the same, and the user's file comes first then."""
    loopback.add("Qwen/Qwen3-8B", MODEL)

    assert main(["models", "--refresh", "Qwen/Qwen3-8B"]) == 0
    assert len(load_model("Qwen/Qwen3-8B").stack) == CONFIG["num_hidden_layers"]


@pytest.mark.parametrize("ids", [["no/such"], ["Qwen/Qwen3-8B"], ["../../x"], []])
def test_nothing_is_written_on_failure(hub: Path, loopback: Hub, ids: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """What the Hub does not have leaves no file behind, though the catalog may know the model."""
    assert main(["models", "--refresh", *ids, "--json"]) in {2, 3, 4}

    document = json.loads(capsys.readouterr().out)
    folder = user_folder()
    assert document["error"]["message"]
    assert folder is None or not folder.exists()


def test_unknown_architectures_are_not_kept(hub: Path, loopback: Hub) -> None:
    """A model that no parser knows is an error, and no file."""
    files = {**MODEL, "config.json": json.dumps({"model_type": "new", "num_hidden_layers": 1}).encode()}
    loopback.add("org/new", files)

    assert main(["models", "--refresh", "org/new"]) == 3
    assert find_entry("org/new") is None
