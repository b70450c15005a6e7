"""Paths: a folder, a file, and everything that only looks like one."""

from __future__ import annotations

from pathlib import Path

import pytest

from hwcalc.errors import ModelNotFoundError, UsageError
from hwcalc.sources import resolve
from tests.hwcalc.sources.given import CONFIG, TEXT, refused


@pytest.mark.parametrize(
    ("name", "given", "model_id"),
    [
        ("llama/config.json", "llama", "llama"),
        ("llama/config.json", "./llama", "llama"),
        ("llama/config.json", "llama/", "llama"),
        ("llama/config.json", "llama/config.json", "llama"),
        ("llama/other.json", "llama/other.json", "other"),
        ("llama/config", "llama/config", "config"),
        ("llama@main/config.json", "llama@main", "llama@main"),
        ("config.json", ".", "here"),
        ("config.json", "config.json", "here"),
        ("config.json", "../here", "here"),
        ("Qwen/Qwen3-8B/config.json", "Qwen/Qwen3-8B", "Qwen3-8B"),
        ("-.json", "./-.json", "-"),
        ("a b/ü/config.json", "a b/ü", "ü"),
    ],
)
def test_a_path_is_read(name: str, given: str, model_id: str) -> None:
    """A folder with a config.json or a file of any name; the folder, or the file's own name, names the model."""
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(TEXT, encoding="utf-8")

    for model in (given, Path(given)):
        raw = resolve(model)
        assert (raw.id, raw.config, raw.source, raw.revision, raw.parameters) == (model_id, CONFIG, "local", None, None)
        assert Path(raw.location).samefile(path)


def test_home_is_expanded(tmp_path: Path) -> None:
    """``~/x`` works from Python, where no shell expands it."""
    (tmp_path / "home" / "x").mkdir(parents=True)
    (tmp_path / "home" / "x" / "config.json").write_text(TEXT, encoding="utf-8")

    assert resolve("~/x").id == "x"
    assert isinstance(refused("~/y"), ModelNotFoundError)


def test_a_folder_without_config_does_not_hide_an_id() -> None:
    """A folder Qwen/Qwen3-8B of somebody's results: the id still means the model, and ./Qwen/Qwen3-8B the folder."""
    Path("Qwen/Qwen3-8B").mkdir(parents=True)
    Path("org/name").mkdir(parents=True)

    assert resolve("Qwen/Qwen3-8B").source == "catalog"
    assert "has no config.json" in refused("./Qwen/Qwen3-8B").message
    assert "has no config.json" in refused(Path("Qwen/Qwen3-8B")).message
    assert "it has no config.json" in refused("org/name").message


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("inner/config.json", "inner"),
        ("x.txt", "the folder that holds"),
    ],
)
def test_a_folder_without_config_says_what_it_has(name: str, hint: str) -> None:
    """The next thing to type."""
    path = Path("folder") / name
    path.parent.mkdir(parents=True)
    path.write_text(TEXT, encoding="utf-8")
    error = refused("folder")

    assert isinstance(error, ModelNotFoundError)
    assert hint in error.hint


@pytest.mark.parametrize("given", ["x.gguf", "./x.GGUF", "/x.gguf"])
def test_a_gguf_file_that_is_not_there(given: str) -> None:
    """A clear word, exit 3."""
    error = refused(given)

    assert (type(error), error.exit_code) == (ModelNotFoundError, 3)
    assert "there is no file" in error.message


def test_a_revision_of_a_file_is_an_error() -> None:
    """An option that would be ignored is refused."""
    Path("config.json").write_text(TEXT, encoding="utf-8")

    assert isinstance(refused("config.json", revision="main"), UsageError)


@pytest.mark.parametrize(
    "given",
    [
        *(
            "",
            " ",
            "../../no/such",
            "a/../b",
            "a\\b",
            "..\\..\\x",
            "models--x",
            "a--b/c",
            "x\0y",
            "\0",
            "a/b/c",
            "/no/such",
            "./no",
        ),
        *("a" * 10_000, f"org/{'a' * 10_000}", "/" + "a" * 1000, "no.json", "org/no.json", "~nobody-here/x", "~", "org/name\n"),
        *("\x1b[31mred/x", "\ud800/x", "\udcff", "\u202ereversed/x", "org/ü", "hf://org/name", "org//name", "/", ".", ".."),
        *(
            "https://huggingface.co/",
            "org/name?x=1",
            "no-such-model",
            "no-such-org/no-such-model",
            "{}",
            '{"model_type": "llama"}',
        ),
    ],
)
def test_what_is_no_model_is_not_found(given: str) -> None:
    """Nothing leaves the folders that are searched, and nothing but an error in words comes back."""
    error = refused(given)

    assert (type(error), error.exit_code) == (ModelNotFoundError, 3)


@pytest.mark.parametrize("given", ["", "\0", "no", "a" * 10_000, "\ud800", "no.json"])
def test_a_path_object_is_always_a_path(given: str) -> None:
    """It never means an id; '' is the working folder, which has no config here."""
    assert refused(Path(given)).exit_code == 3
    Path("Qwen").mkdir()
    assert isinstance(refused(Path("Qwen/Qwen3-8B")), ModelNotFoundError)
