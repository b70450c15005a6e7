"""``kvplan models --refresh``: a Hub model's facts in the user's own catalog, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hwcalc import load_model, plan
from hwcalc.cli import main
from hwcalc.profiles.catalog import find_entry, user_folder
from tests.hub.repositories import COMMIT, CONFIG, MODEL, weight_file
from tests.hub.server import Hub
from tests.hwcalc.command import Capture, run


def test_facts_are_kept_and_used(hub: Path, loopback: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    """The file is one of the catalog's form; the next plan needs no Hub and has the exact weight bytes."""
    loopback.add("org/name", {**MODEL, "model.safetensors": weight_file({"w": ("BF16", (64, 1669)), "i": ("I64", (3,))})})

    assert main(["models", "--refresh", "org/name"]) == 0
    folder = user_folder("models")
    assert folder is not None
    assert str(folder / "org" / "name.json") in capsys.readouterr().out

    entry = find_entry("org/name")
    assert entry is not None
    assert entry.user
    assert entry.data["config"] == CONFIG
    assert COMMIT in entry.data["fidelity"]
    assert entry.data["weight_bytes"] == {"BF16": 64 * 1669 * 2, "I64": 3 * 8}

    for path in hub.iterdir():
        path.rename(path.with_suffix(".gone"))
    asked = len(loopback.asked)
    result = plan("org/name", seq=10)
    assert len(loopback.asked) == asked
    assert result.model.source == "catalog"
    assert result.memory.weights.bytes == 64 * 1669 * 2 + 3 * 8
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
    folder = user_folder("models")
    assert document["error"]["message"]
    assert folder is None or not folder.exists()


def test_unknown_architectures_are_not_kept(hub: Path, loopback: Hub) -> None:
    """A model that no parser knows is an error, and no file."""
    files = {**MODEL, "config.json": json.dumps({"model_type": "new", "num_hidden_layers": 1}).encode()}
    loopback.add("org/new", files)

    assert main(["models", "--refresh", "org/new"]) == 3
    assert find_entry("org/new") is None


def test_a_hub_that_is_down_is_the_reason(hub: Path, loopback: Hub, capsys: Capture) -> None:
    """Also where cache or catalog know the model: it is not they who were asked."""
    loopback.fail(status=503)
    status, out, err = run(capsys, "models", "--refresh", "Qwen/Qwen3-8B")

    assert (status, out) == (4, "")
    assert "out of order (status 503). Nothing was written." in err
    assert "Planned from" not in err


def test_known_weight_bytes_are_not_lost(hub: Path, loopback: Hub, capsys: Capture) -> None:
    """Weight files that cannot be read leave the entry as it was; a model without one is kept without bytes, with a note."""
    loopback.add("org/name", MODEL)
    loopback.add("org/new", MODEL)
    assert run(capsys, "models", "--refresh", "org/name")[0] == 0
    entry = find_entry("org/name")
    for path in (hub.parent / "home").rglob(f"{COMMIT}.json"):
        path.unlink()
    loopback.fail("model.safetensors", status=503)
    status, out, err = run(capsys, "models", "--refresh", "org/name")

    assert (status, out) == (4, "")
    assert "The weight files could not be read" in err
    assert find_entry("org/name") == entry
    status, out, err = run(capsys, "models", "--refresh", "org/new")
    assert (status, out.split()[0]) == (0, "org/new")
    assert "org/new: The weight files could not be read" in err
    new = find_entry("org/new")
    assert new is not None
    assert new.data["weight_bytes"] is None


@pytest.mark.parametrize("ids", [("org/name", "no/such"), ("no/such", "org/name")])
def test_each_model_by_itself(hub: Path, loopback: Hub, capsys: Capture, ids: tuple[str, str]) -> None:
    """What was written is said, what failed too, in either order."""
    loopback.add("org/name", MODEL)
    status, out, err = run(capsys, "models", "--refresh", *ids)

    assert (status, out.split()[0], out.count("\n")) == (4, "org/name", 1)
    assert "no/such" in err
    status, out, err = run(capsys, "models", "--refresh", *ids, "--json")
    document = json.loads(out)
    assert (status, err) == (4, "")
    assert [row["id"] for row in document["refreshed"]] == ["org/name"]
    assert [(row["id"], row["code"]) for row in document["failed"]] == [("no/such", 4)]


def test_the_first_failure_gives_the_status(hub: Path, loopback: Hub, capsys: Capture) -> None:
    """Of two that fail, both are said."""
    loopback.add("org/new", {**MODEL, "config.json": b'{"model_type": "new", "num_hidden_layers": 1}'})
    for ids, expected in ((("org/new", "no/such"), 3), (("no/such", "org/new"), 4)):
        status, out, err = run(capsys, "models", "--refresh", *ids)
        assert (status, out) == (expected, "")
        assert all(model_id in err for model_id in ids)


def test_a_folder_that_cannot_be_written_has_a_way_out(
    hub: Path, loopback: Hub, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hint names the variable."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file" / "below"))
    loopback.add("org/name", MODEL)
    status, _, err = run(capsys, "models", "--refresh", "org/name")

    assert status == 74
    assert "cannot be written" in err
    assert "XDG_CONFIG_HOME" in err


def test_a_path_is_no_id(hub: Path, loopback: Hub, capsys: Capture, tmp_path: Path) -> None:
    """Only the Hub's models are kept."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    status, _, err = run(capsys, "models", "--refresh", str(tmp_path / "config.json"))

    assert status == 2
    assert "kvplan PATH" in err
