"""The Python API with arguments that people hand in: each works, or is an error in words."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from hwcalc import KvplanError, load_model, plan
from hwcalc.errors import ConfigError, UsageError

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "vocab_size": 1000,
    "torch_dtype": "bfloat16",
}
PER_TOKEN = 2 * 2 * 2 * 64 * 2


class Integer:
    """An integer of another library: NumPy's have no other bond with int."""

    def __index__(self) -> int:
        """Seven."""
        return 7


class Broken(io.StringIO):
    """A file whose read() raises what it likes."""

    def read(self, size: int | None = -1, /) -> str:
        """Never."""
        raise RuntimeError("no")


def test_integers_of_other_libraries_count() -> None:
    """Whatever has __index__ is a number."""
    assert plan(CONFIG, seq=Integer(), batch=Integer()).cache.total_bytes == 49 * PER_TOKEN  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [10.0, float("nan"), Decimal(5), b"32k", [1], True, -1, 0, "x", "", {}])
@pytest.mark.parametrize("name", ["seq", "batch"])
def test_wrong_numbers(name: str, value: object) -> None:
    """What is no whole number from 1 is a usage error that names the argument."""
    with pytest.raises(UsageError, match=name):
        plan(CONFIG, **({"seq": 10} | {name: value}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dtype", 5),
        ("dtype", b"fp8"),
        ("dtype", ""),
        ("dtype", "fp8:"),
        ("engine", 5),
        ("engine", ""),
        ("weights", 5),
        ("weights", "fp7"),
        ("revision", 5),
        ("assume", 5),
        ("assume", "luck"),
        ("engine_options", "cache=static"),
        ("engine_options", [("cache", "static")]),
        ("engine_options", {1: 2}),
        ("engine_options", {"cache": None}),
    ],
)
def test_wrong_words(name: str, value: object) -> None:
    """Arguments of another type, and words that mean nothing, are usage errors."""
    with pytest.raises(UsageError):
        plan(CONFIG, seq=10, **{name: value})  # type: ignore[arg-type]


def test_every_form_of_a_model(tmp_path: Path) -> None:
    """A dict, a folder, a file, open files and a loaded model are one model."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG), encoding="utf-8")
    expected = 10 * PER_TOKEN
    with path.open(encoding="utf-8") as text, path.open("rb") as binary:
        forms: list[Any] = [CONFIG, tmp_path, str(tmp_path), path, text, binary, load_model(CONFIG)]
        assert [plan(form, seq=10).cache.total_bytes for form in forms] == [expected] * len(forms)


def test_a_file_that_cannot_be_read() -> None:
    """Whatever read() raises is a bad config, not a crash."""
    with pytest.raises(ConfigError, match="cannot be read"):
        load_model(Broken())


@pytest.mark.parametrize("model", [None, 5, [], b"x", object()])
def test_what_is_no_model(model: object) -> None:
    """Anything else is an error that says what a model may be."""
    with pytest.raises(KvplanError):
        load_model(model)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["revision", "assume", "token", "endpoint"])
def test_words_must_be_words(name: str) -> None:
    """A token is not repeated."""
    with pytest.raises(UsageError, match=f"{name} must be a string") as caught:
        plan("Qwen/Qwen3-8B", seq=1, **{name: 12345})  # type: ignore[arg-type]

    assert ("12345" in str(caught.value)) is (name != "token")
