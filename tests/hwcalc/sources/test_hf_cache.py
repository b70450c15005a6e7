"""The Hugging Face cache, read as it lies on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hwcalc.errors import ConfigError, ModelNotFoundError, UsageError
from hwcalc.sources import resolve
from hwcalc.sources.caches import cache_place, cached_ids
from tests.hwcalc.sources.given import COMMIT, CONFIG, OTHER, TEXT, cached, refused


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "home/.cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "{0}/xdg"}, "xdg/huggingface/hub"),
        ({"XDG_CACHE_HOME": "{0}/xdg", "HF_HOME": "{0}/hf"}, "hf/hub"),
        ({"HF_HOME": "~/hf"}, "home/hf/hub"),
        ({"HF_HOME": "$HOME/hf"}, "home/hf/hub"),
        ({"HF_HOME": "{0}/hf", "HUGGINGFACE_HUB_CACHE": "{0}/old"}, "old"),
        ({"HUGGINGFACE_HUB_CACHE": "{0}/old", "HF_HUB_CACHE": "{0}/new"}, "new"),
        ({"HF_HUB_CACHE": "", "HF_HOME": "", "XDG_CACHE_HOME": ""}, "home/.cache/huggingface/hub"),
    ],
)
def test_the_cache_is_where_huggingface_hub_has_it(
    variables: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of its variables, in its order."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(tmp_path))

    assert Path(cache_place()) == tmp_path / expected
    cached(tmp_path / expected)
    assert resolve("org/name").source == "hf-cache"


def test_the_cache_comes_before_the_catalog(hub: Path) -> None:
    """What this machine runs is what is planned, and the commit is said."""
    cached(hub, "Qwen/Qwen3-8B")
    raw = resolve("Qwen/Qwen3-8B")

    assert (raw.id, raw.config, raw.source, raw.revision, raw.notes) == ("Qwen/Qwen3-8B", CONFIG, "hf-cache", COMMIT, ())
    assert COMMIT[:12] in raw.location
    assert resolve("Qwen/Qwen3-4B").source == "catalog"


def test_a_bare_name_is_an_id_in_the_cache_only(hub: Path) -> None:
    """``gpt2`` has no org."""
    cached(hub, "gpt2")

    assert (resolve("gpt2").id, resolve("gpt2").source) == ("gpt2", "hf-cache")
    assert isinstance(refused("gpt"), ModelNotFoundError)


@pytest.mark.parametrize(
    ("given", "revision", "commit"),
    [
        ("org/name", None, COMMIT),
        ("org/name", "main", COMMIT),
        ("org/name@main", None, COMMIT),
        ("org/name@main", "main", COMMIT),
        ("org/name@v1.0", None, OTHER),
        ("org/name", "v1.0", OTHER),
        ("org/name", "refs/pr/1", OTHER),
        ("org/name@" + OTHER, None, OTHER),
        ("org/name@01ff", None, OTHER),
        ("org/name@01FF", None, OTHER),
        ("org/name@0123456", None, COMMIT),
    ],
)
def test_a_revision_is_a_branch_a_tag_or_a_commit(hub: Path, given: str, revision: str | None, commit: str) -> None:
    """In the id or as the option; the start of a commit is enough."""
    cached(hub)
    cached(hub, commit=OTHER, branch="v1.0", text=json.dumps({"model_type": "other"}))
    (hub / "models--org--name" / "refs" / "refs" / "pr").mkdir(parents=True)
    (hub / "models--org--name" / "refs" / "refs" / "pr" / "1").write_text(OTHER + "\n", encoding="utf-8")
    raw = resolve(given, revision=revision)

    assert (raw.id, raw.revision) == ("org/name", commit)
    assert raw.config == (CONFIG if commit == COMMIT else {"model_type": "other"})


@pytest.mark.parametrize("revision", ["0123", "01", "v2", "fff", "0", "main2", "xyz/1"])
def test_a_revision_that_the_cache_lacks(hub: Path, revision: str) -> None:
    """Unknown or ambiguous: the commits that are there are named."""
    cached(hub)
    cached(hub, commit="0123" + "f" * 36, branch=None)
    error = refused("org/name", revision=revision)

    assert isinstance(error, ModelNotFoundError)
    assert COMMIT[:12] in error.message
    assert "0123ffffffff" in error.message
    assert ("more than one" in error.message) == (revision == "0123")


@pytest.mark.parametrize(
    "revision", ["", "..", "../../x", "a/../b", "/etc", "a\\b", "a\0b", "-x", "a b", "a\n", "x" * 500, "a//b", "\ud800"]
)
def test_a_revision_that_is_none(hub: Path, revision: str) -> None:
    """Nothing that could leave the cache's folder."""
    cached(hub)
    error = refused("org/name", revision=revision)

    assert (type(error), error.exit_code) == (UsageError, 2)


def test_two_revisions_are_an_error(hub: Path) -> None:
    """In the id and as the option, and not the same."""
    cached(hub)

    assert isinstance(refused("org/name@main", revision="v1"), UsageError)
    assert isinstance(refused("org/name@"), UsageError)


def test_the_catalog_keeps_no_revisions(hub: Path) -> None:
    """A revision that nobody has is not answered with another config."""
    error = refused("Qwen/Qwen3-8B@v1")

    assert isinstance(error, ModelNotFoundError)
    assert "keeps no revisions" in error.message
    assert error.hint.endswith("kvplan Qwen/Qwen3-8B")
    cached(hub, "Qwen/Qwen3-8B")
    assert resolve("Qwen/Qwen3-8B@main").revision == COMMIT


def test_one_commit_without_a_branch_is_used_and_said(hub: Path) -> None:
    """As a download of a named commit leaves it; of several none is chosen."""
    cached(hub, branch=None)
    raw = resolve("org/name")

    assert raw.revision == COMMIT
    assert [note.code for note in raw.notes] == ["revision"]
    cached(hub, branch=None, commit=OTHER)
    assert "no main branch" in refused("org/name").message


@pytest.mark.parametrize("damage", ["no config", "broken link", "no snapshot", "bad reference", "binary reference", "nothing"])
def test_a_cache_entry_without_config_is_passed_over_and_said(hub: Path, damage: str) -> None:
    """The catalog answers instead, with a note where the cache has something of the model; an unknown id says it in the error."""
    for model_id in ("Qwen/Qwen3-8B", "org/name"):
        config = cached(hub, model_id, text=None if damage == "no config" else TEXT)
        folder = config.parent.parent.parent
        reference = folder / "refs" / "main"
        if damage == "broken link":
            (folder / "blobs" / COMMIT).unlink()
        elif damage == "no snapshot":
            config.unlink()
            config.parent.rmdir()
        elif damage == "bad reference":
            reference.write_text("../../../../etc", encoding="utf-8")
            cached(hub, model_id, commit=OTHER, branch=None)
        elif damage == "binary reference":
            reference.write_bytes(b"\xff\0" * 500)
            cached(hub, model_id, commit=OTHER, branch=None)
        elif damage == "nothing":
            reference.unlink()
            config.unlink()
            config.parent.rmdir()
    raw = resolve("Qwen/Qwen3-8B")

    assert raw.source == "catalog"
    assert [note.code for note in raw.notes] == ["source"]
    assert raw.notes[0].message.startswith("The Hugging Face cache has Qwen/Qwen3-8B")
    assert "The Hugging Face cache has org/name" in refused("org/name").message


def test_a_broken_config_in_the_cache_stops(hub: Path) -> None:
    """It is not passed over in silence: the catalog might describe another model."""
    cached(hub, "Qwen/Qwen3-8B", text="{")

    assert isinstance(refused("Qwen/Qwen3-8B"), ConfigError)


def test_a_cache_that_is_a_file(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that is not there."""
    for folder in (hub / "file", hub / "nowhere"):
        (hub / "file").touch()
        monkeypatch.setenv("HF_HUB_CACHE", str(folder))
        assert resolve("Qwen/Qwen3-8B").notes == ()
        assert cached_ids() == ()


def test_a_path_into_the_cache_tells_id_and_commit(hub: Path) -> None:
    """A snapshot's folder, as other programs print it."""
    config = cached(hub)

    for path in (config, config.parent):
        raw = resolve(str(path))
        assert (raw.id, raw.source, raw.revision) == ("org/name", "local", COMMIT)
