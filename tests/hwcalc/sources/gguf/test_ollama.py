"""Ollama's store: names as ``ollama list`` shows them, what manifests say, and what they must not do."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from hwcalc import load_model
from hwcalc.errors import ConfigError, ModelNotFoundError, UnsupportedError, UsageError
from hwcalc.sources import resolve
from hwcalc.sources.listing import installed_models
from tests.hwcalc.sources.gguf.given import KEYS, SHAPES, gguf_bytes
from tests.hwcalc.sources.gguf.test_hub import parts, tensors_of
from tests.hwcalc.sources.given import cached, refused

TINY = gguf_bytes()
MEDIA = "application/vnd.ollama.image."


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store that the environment names."""
    folder = tmp_path / "models"
    monkeypatch.setenv("OLLAMA_MODELS", str(folder))
    return folder


def put(store: Path, name: str, *, layers: Any = None, params: bytes | None = None, **more: bytes) -> Path:
    """A model as Ollama stores it, with the content of each layer; ``name`` has all four parts."""
    rows = []
    for kind, data in {"model": TINY, **({} if params is None else {"params": params}), **more}.items():
        digest = hashlib.sha256(data).hexdigest()
        blob = store / "blobs" / f"sha256-{digest}"
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        rows.append({"mediaType": MEDIA + kind, "digest": f"sha256:{digest}", "size": len(data)})
    manifest = store / "manifests" / name
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": rows if layers is None else layers}), encoding="utf-8")
    return manifest


@pytest.mark.parametrize(
    ("place", "names"),
    [
        (
            "registry.ollama.ai/library/llama3.1/8b",
            ["llama3.1:8b", "library/llama3.1:8b", "registry.ollama.ai/library/llama3.1:8b"],
        ),
        ("registry.ollama.ai/library/mistral/latest", ["mistral:latest", "mistral", "Mistral"]),
        ("registry.ollama.ai/someone/own/v1", ["someone/own:v1"]),
        ("hf.co/bartowski/Tiny-GGUF/Q4_K_M", ["hf.co/bartowski/Tiny-GGUF:Q4_K_M", "hf.co/bartowski/tiny-gguf:q4_k_m"]),
        ("localhost:5000/a/b/c", ["localhost:5000/a/b:c"]),
    ],
)
def test_names(store: Path, place: str, names: list[str]) -> None:
    """What is left out is filled in; capitals do not matter."""
    put(store, place)
    for name in names:
        raw = resolve(f"ollama:{name}", weights=True)
        assert (raw.id, raw.source, raw.location) == (f"ollama:{names[0]}", "gguf", f"ollama:{names[0]}")
        assert (dict(raw.config), tensors_of(raw)) == (dict(KEYS), dict(SHAPES))
        assert raw.revision == hashlib.sha256(TINY).hexdigest()[:12]


def test_parameters_and_a_projector_are_kept(store: Path) -> None:
    """The numbers that the model sets, and the size of what is loaded beside it."""
    params = json.dumps({"num_ctx": 8192, "stop": ["x"], "temperature": 0.5, "NUM": 1, "num_gpu": 10**40}).encode()
    put(store, "registry.ollama.ai/library/x/latest", params=params, projector=bytes(2048), template=b"t")
    raw = resolve("ollama:x")

    assert {key: value for key, value in raw.config.items() if key.startswith("ollama.")} == {
        "ollama.num_ctx": 8192,
        "ollama.temperature": 0.5,
        "ollama.projector_bytes": 2048,
    }
    assert [note.code for note in raw.notes] == ["ollama-num-ctx", "ollama-projector"]
    assert "2 KiB" in raw.notes[1].message
    model = load_model("ollama:x")
    assert model.gguf is not None
    assert model.gguf.keys["ollama.num_ctx"] == 8192
    assert model.address == "ollama:x:latest"


def test_the_stores_of_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a variable: that of the home folder."""
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    put(tmp_path / "home" / ".ollama" / "models", "registry.ollama.ai/library/x/latest")

    assert resolve("ollama:x").source == "gguf"


def test_a_model_that_is_not_there(store: Path) -> None:
    """What there is, and the command."""
    empty = refused("ollama:llama3.1:8b")
    put(store, "registry.ollama.ai/library/llama3.1/8b")
    put(store, "hf.co/a/b/latest")
    error = refused("ollama:llama3.1:70b")

    assert isinstance(empty, ModelNotFoundError)
    assert "no Ollama model in" in empty.message
    assert "ollama pull llama3.1:8b" in empty.hint
    assert (type(error), error.exit_code) == (ModelNotFoundError, 3)
    assert "hf.co/a/b:latest, llama3.1:8b" in error.message
    assert error.hint == (
        "Did you mean ollama:llama3.1:8b? Pull it: ollama pull llama3.1:70b. "
        "To plan it before: kvplan meta-llama/Llama-3.1-70B --engine ollama --weights q4_k_m"
    )


@pytest.mark.parametrize(
    "name", ["", ":", "../x", "a/../b", "a/b/c/d", "/etc/passwd", "x:../../y", ".hidden", "x\x1b[2J", "a" * 200, "a//b", "x:"]
)
def test_names_that_are_none(store: Path, name: str) -> None:
    """No path below or outside the store is made of them."""
    assert isinstance(refused(f"ollama:{name}"), ModelNotFoundError)


def test_a_revision_is_refused(store: Path) -> None:
    """Tags are part of the name."""
    put(store, "registry.ollama.ai/library/x/latest")

    assert isinstance(refused("ollama:x", revision="v1"), UsageError)


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ({}, "lists no layers"),
        ([], "lists no layers"),
        ([None], "lists no layers"),
        ([{"mediaType": MEDIA + "model"}], "lists no layers"),
        ([{"mediaType": MEDIA + "template", "digest": "sha256:" + "0" * 64}], "has no model"),
        ([{"mediaType": MEDIA + "model", "digest": "sha256:../../../etc/passwd"}], "which is no digest"),
        ([{"mediaType": MEDIA + "model", "digest": "sha256:" + "0" * 64}], "is not there"),
        ([{"mediaType": MEDIA + "model", "digest": "sha256:" + "0" * 64}] * 2, "2 files of the model"),
    ],
)
def test_manifests_that_are_none(store: Path, layers: Any, words: str) -> None:
    """Each is an error that names the model."""
    put(store, "registry.ollama.ai/library/x/latest", layers=layers)
    error = refused("ollama:x")

    assert isinstance(error, ConfigError)
    assert words in error.message
    assert "ollama:x:latest" in error.message


def test_a_model_of_single_tensors(store: Path) -> None:
    """It is not a GGUF file."""
    layers = [{"mediaType": f"{MEDIA}tensor", "digest": "sha256:" + "0" * 64}]
    put(store, "registry.ollama.ai/library/x/latest", layers=layers)

    assert isinstance(refused("ollama:x"), UnsupportedError)


def test_links_out_of_the_store_are_not_followed(store: Path, tmp_path: Path) -> None:
    """Neither of a manifest nor of a file; a store that is itself a link is none of them."""
    manifest = put(store, "registry.ollama.ai/library/x/latest")
    outside = tmp_path / "outside"
    outside.write_bytes(TINY)
    (blob,) = (store / "blobs").iterdir()
    blob.unlink()
    blob.symlink_to(outside)
    assert "the file of ollama:x:latest is a link out of Ollama's store" in refused("ollama:x").message

    blob.unlink()
    blob.write_bytes(TINY)
    (tmp_path / "manifest").write_bytes(manifest.read_bytes())
    manifest.unlink()
    manifest.symlink_to(tmp_path / "manifest")
    assert "the manifest of ollama:x:latest is a link out of Ollama's store" in refused("ollama:x").message


def test_a_damaged_file_is_to_be_pulled_again(store: Path) -> None:
    """A download that was cut."""
    put(store, "registry.ollama.ai/library/x/latest", model=TINY[:-100])
    error = refused("ollama:x")

    assert "a part of it is missing" in error.message
    assert error.hint == "Pull it again: ollama pull x:latest"


def test_what_is_installed(store: Path, hub: Path, tmp_path: Path) -> None:
    """The cache, the store and folders; each file once, models in several files whole; nothing is opened."""
    put(store, "registry.ollama.ai/library/x/latest")
    put(store, "registry.ollama.ai/library/gone/latest", layers=[{"mediaType": f"{MEDIA}model", "digest": "sha256:" + "0" * 64}])
    snapshot = cached(hub, "org/name-GGUF", text=None).parent
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, data in parts().items():
        (snapshot / name).write_bytes(data)
        (folder / name.replace("BF16", "part")).write_bytes(data)
    (folder / "Tiny-part-00002-of-00002.gguf").unlink()
    (folder / "deep").mkdir()
    (folder / "deep" / "a.gguf").write_bytes(b"not even GGUF")
    (folder / "mmproj-a.gguf").write_bytes(b"")
    (folder / "again.gguf").symlink_to(folder / "deep" / "a.gguf")

    found = {(model.name, model.bytes, model.source) for model in installed_models([folder])}
    assert found == {
        ("ollama:x:latest", len(TINY), "ollama"),
        ("org/name-GGUF:Tiny-BF16-00001-of-00002.gguf", sum(map(len, parts().values())), "hf-cache"),
        (str(folder / "again.gguf"), 13, "folder"),
    }
    for name, _, source in found:
        if source != "folder":
            assert tensors_of(resolve(name, offline=True)) == dict(SHAPES)
