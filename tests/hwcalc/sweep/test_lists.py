"""Lists on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from hwcalc.errors import ModelNotFoundError, UsageError
from hwcalc.library.lists import each_model, model_names, numbers, words
from hwcalc.profiles.catalog import list_models


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", (5,)),
        ("1k,2k, 1M", (1024, 2048, 1_048_576)),
        ("1k..128k", (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131_072)),
        ("3..20", (3, 6, 12)),
        ("1..10:4", (1, 5, 9)),
        ("7..7", (7,)),
        ("8,1..8", (8, 1, 2, 4)),
        ("1k..3k:1k,5", (1024, 2048, 3072, 5)),
        (None, ()),
    ],
)
def test_numbers(text: str | None, expected: tuple[int, ...]) -> None:
    """In the order given, each once."""
    assert expected == numbers(text, "seq")


@pytest.mark.parametrize(
    "text",
    ["", ",", "1,", "a", "0", "-1", "8..4", "..", "1..", "..8", "1..8:", "1..8:0", "1..8:x", "1..2..3", "1..9000000:1", "nan"],
)
def test_numbers_that_are_none(text: str) -> None:
    """Wrong usage, said with what is allowed."""
    with pytest.raises(UsageError) as caught:
        numbers(text, "seq")

    assert caught.value.hint


def test_words() -> None:
    """Each once; an empty one is an error."""
    assert words("bf16, fp8,bf16", "dtype") == ("bf16", "fp8")
    assert words(None, "dtype") == ()
    with pytest.raises(UsageError):
        words("bf16,,fp8", "dtype")


def test_lists_in_python() -> None:
    """A list is the same as its entries with commas between; numbers may be numbers."""
    assert words(["bf16", "fp8,bf16"], "dtype") == ("bf16", "fp8")
    assert numbers([1, "2k", "4..8"], "seq") == (1, 2048, 4, 8)
    assert numbers(7, "seq") == (7,)
    assert each_model([{"model_type": "llama"}, "a"]) == ({"model_type": "llama"}, "a")
    for wrong in ([1], 5, {"bf16": 1}):
        with pytest.raises(UsageError):
            words(wrong, "dtype")  # type: ignore[arg-type]


def test_model_names(tmp_path: Path) -> None:
    """As given, by pattern, by file; each once."""
    listed = tmp_path / "models.txt"
    listed.write_text("# two\nQwen/Qwen3-8B  # dense\n\nmeta-llama/Llama-3.1-?B\n", encoding="utf-8")

    assert model_names(["b", "a", "b"], every=False) == ("b", "a")
    assert model_names([f"@{listed}", "Qwen/Qwen3-8B"], every=False) == ("Qwen/Qwen3-8B", "meta-llama/Llama-3.1-8B")
    assert set(model_names(["qwen/*"], every=False)) == {name for name in list_models() if name.startswith("Qwen/")}
    assert model_names([], every=True) == list_models()


def test_model_names_that_are_none(tmp_path: Path) -> None:
    """No name, a pattern without a match, and files that are no lists."""
    with pytest.raises(UsageError):
        model_names([], every=False)
    (tmp_path / "empty").write_text("\n# nothing\n", encoding="utf-8")
    (tmp_path / "nested").write_text("@other\n", encoding="utf-8")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in (
        "no-such/*",
        f"@{tmp_path}",
        f"@{tmp_path}/missing",
        f"@{tmp_path}/empty",
        f"@{tmp_path}/nested",
        f"@{tmp_path}/binary",
        "@",
    ):
        with pytest.raises(ModelNotFoundError):
            model_names([name], every=False)


def test_a_file_of_models_is_bounded(tmp_path: Path) -> None:
    """No name is longer than a path may be, and no file is larger than a hundred thousand ids."""
    path = tmp_path / "models"
    for text, said in (("x" * 5000, "more than 4,096 characters"), ("a/b\n" * 2**20 + "c", "larger than 4 MiB")):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ModelNotFoundError, match=said) as caught:
            model_names((f"@{path}",), every=False)
        assert len(caught.value.message) < 300
