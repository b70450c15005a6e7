"""The catalog and the user's own models as a source, what was meant by a wrong id, and what is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hwcalc.errors import ConfigError, ModelNotFoundError
from hwcalc.model import Definition, Parameters
from hwcalc.sources import resolve
from hwcalc.sources.listing import known_ids, list_known_models
from hwcalc.sources.nearest import nearest
from tests.catalog import find_model
from tests.hwcalc.sources.given import CONFIG, cached, refused


def test_the_catalog_answers() -> None:
    """With the config, the published number of parameters, and the day it was recorded."""
    raw = resolve("Qwen/Qwen3-8B")

    assert (raw.id, raw.source, raw.revision, raw.notes) == ("Qwen/Qwen3-8B", "catalog", None, ())
    assert raw.parameters == Parameters(total=8_190_735_360, definition=Definition.PUBLISHED)
    assert raw.config["model_type"] == "qwen3"
    assert raw.location.startswith("built-in catalog, recorded 20")


def test_a_reconstructed_config_is_said() -> None:
    """``fidelity`` is a note unless it is the published one."""
    assert [note.code for note in resolve("01-ai/Yi-6B").notes] == ["fidelity"]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own folder of models."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "config" / "kvplan" / "profiles" / "models" / "Qwen"
    folder.mkdir(parents=True)
    return folder


def test_the_users_own_model_comes_first_with_a_notice(own: Path) -> None:
    """The note names the file."""
    path = own / "Qwen3-8B.json"
    path.write_text(json.dumps({"schema_version": 1, "id": "Qwen/Qwen3-8B", "config": CONFIG}), encoding="utf-8")
    raw = resolve("Qwen/Qwen3-8B")

    assert (raw.config, raw.source, raw.parameters, raw.location) == (CONFIG, "catalog", None, str(path))
    assert [note.code for note in raw.notes] == ["user-profile"]
    assert str(path) in raw.notes[0].message
    assert {row.id: row.source for row in list_known_models("qwen/qwen3")}["Qwen/Qwen3-8B"] == "user"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "[",
        '{"id": "\\ud800"}',
        '{"schema_version": 1, "id": "Qwen/Qwen3-8B", "config": {"a": ' + "[" * 150 + "]" * 150 + "}}",
    ],
)
def test_a_broken_file_of_the_users_own_stops(own: Path, content: str) -> None:
    """The error names the file."""
    path = own / "Qwen3-8B.json"
    path.write_text(content, encoding="utf-8")
    error = refused("Qwen/Qwen3-8B")

    assert isinstance(error, ConfigError)
    assert str(path) in error.message


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("qwen/Qwen-3-8B", "Qwen/Qwen3-8B"),
        ("someone/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("gpt-oss", "openai/gpt-oss-20b"),
        ("gpt-oss-20", "openai/gpt-oss-20b"),
    ],
)
def test_a_wrong_id_is_answered_with_the_nearest(given: str, meant: str) -> None:
    """With another org, with letters that differ, or where two are meant: never taken for one of them."""
    error = refused(given)

    assert isinstance(error, ModelNotFoundError)
    assert error.hint.startswith("Did you mean ")
    assert meant in error.hint


def test_the_nearest_may_be_in_the_cache(hub: Path) -> None:
    """Ids of this machine count too."""
    cached(hub, "my-org/my-own-model")

    assert "my-org/my-own-model" in refused("my-own-modl").hint


def test_a_hub_address_is_answered_with_its_id() -> None:
    """Pasted from a browser."""
    assert refused("https://huggingface.co/Qwen/Qwen3-8B/blob/main/config.json").hint.endswith("kvplan Qwen/Qwen3-8B")


def test_the_places_are_named(hub: Path) -> None:
    """Where it was looked for."""
    message = refused("no-such-org/no-such-model").message

    assert str(hub) in message
    assert "catalog" in message


def test_nearest_gives_nothing_for_nothing() -> None:
    """No guess without a resemblance, and no long search for a long text."""
    assert nearest("", ["a/b"]) == nearest("/", ["a/b"]) == nearest("zzzz", ["a/b"]) == ()
    assert nearest("x" * 100_000, known_ids()) == ()


def test_what_is_known(hub: Path) -> None:
    """Catalog and cache in one list; where both have a model, the row is of the one that a plan takes."""
    cached(hub, "Qwen/Qwen3-8B", text=json.dumps({"model_type": "mine"}))
    cached(hub, "org/name")
    cached(hub, "org/broken", text="{")
    cached(hub, "org/no-config", text=None)
    (hub / "datasets--org--data").mkdir()
    rows = {row.id: row for row in list_known_models()}

    assert list(rows) == sorted(rows, key=str.lower)
    assert (rows["Qwen/Qwen3-8B"].source, rows["Qwen/Qwen3-8B"].model_type) == ("hf-cache", "mine")
    assert (rows["org/name"].source, rows["org/name"].model_type, rows["org/name"].parameters) == ("hf-cache", "llama", None)
    assert (rows["org/broken"].source, rows["org/broken"].model_type) == ("hf-cache", None)
    assert "org/no-config" not in rows
    assert "org/data" not in rows
    row = rows["Qwen/Qwen3-4B"]
    assert (row.source, row.model_type, row.fidelity is not None) == ("catalog", "qwen3", True)


def test_the_list_says_what_the_files_say() -> None:
    """Though it reads none of them."""
    for row in list_known_models():
        data = find_model(row.id)
        assert data is not None
        counts = data["parameters"] or {}
        assert (row.model_type, row.released, row.fidelity) == (data["config"]["model_type"], data["released"], data["fidelity"])
        assert (row.source, row.parameters) == ("catalog", counts.get("total"))


def test_the_list_is_searched_by_id_and_type() -> None:
    """Every word must occur, in any case."""
    found = list_known_models("JAMBA ai21")

    assert found
    assert {row.model_type for row in found} == {"jamba"}
    assert list_known_models("no such thing") == []
    assert len(list_known_models(" ")) == len(list_known_models()) == len(known_ids())
