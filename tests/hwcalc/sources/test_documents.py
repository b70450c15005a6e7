"""Documents and streams: JSON as real files have it, and an error in words for everything else."""

from __future__ import annotations

import io
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

import pytest

from hwcalc.errors import ConfigError, UsageError
from hwcalc.sources import resolve, resolve_stream
from hwcalc.sources.document import LARGEST_DOCUMENT, MAX_DEPTH
from tests.hwcalc.sources.given import CONFIG, TEXT, refused

HOSTILE: Final[dict[str, tuple[bytes, str]]] = {
    "empty": (b"", "is empty"),
    "blank": (b" \n\t ", "is empty"),
    "only a mark": (b"\xef\xbb\xbf", "is empty"),
    "cut off": (b'{"a": 1,\n "b": ', "line 2, column 7"),
    "two": (b"{}{}", "line 1, column 3"),
    "single quotes": (b"{'a': 1}", "line 1, column 2"),
    "list": (b"[{}]", "a list"),
    "string": (b'"x"', "a string"),
    "number": (b"1e999", "a number"),
    "nan": (b"NaN", "a number"),
    "null": (b"null", "null"),
    "truth": (b"true", "true or false"),
    "deep lists": (b"[" * 200_000, "levels deep"),
    "deep objects": (b'{"a":' * 200_000, "levels deep"),
    "rather deep": (b'{"a": ' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}", "levels deep"),
    "long integer": (b'{"a": ' + b"9" * 5000 + b"}", "too many digits"),
    "latin-1": (b'{"a": "\xfc"}', "not UTF-8"),
    "utf-16": ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
    "overlong": (b'{"a": "\xc0\xaf"}', "not UTF-8"),
    "half a pair": (b'{"a": ["\\uD800"]}', "half of a UTF-16 pair"),
    "half a pair in a key": (b'{"\\udfff": 1}', "half of a UTF-16 pair"),
    "zero bytes": (bytes(1000), "not JSON"),
    "control character": (b'{"a": "\x01"}', "not JSON"),
    "too large": (b" " * (LARGEST_DOCUMENT + 1), "larger than 16 MiB"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_document_is_a_config_error(name: str) -> None:
    """The same words from a file, a binary stream and standard input; never the document's content."""
    data, words = HOSTILE[name]
    Path("config.json").write_bytes(data)
    error = refused("config.json")

    assert (type(error), error.exit_code) == (ConfigError, 3)
    assert words in error.message
    with pytest.raises(ConfigError, match="the open file"):
        resolve_stream(io.BytesIO(data))


def test_real_files_beyond_strict_json_are_read() -> None:
    """A byte-order mark, NaN, infinities, a key twice (the last one counts), and nesting as deep as allowed."""
    text = '{"a": NaN, "b": [Infinity, -Infinity], "c": 1, "c": 2, "d": "\\ud83d\\ude00", "e": ' + "[" * 99 + "]" * 99 + "}"
    Path("config.json").write_text(text, encoding="utf-8-sig")
    config = resolve("config.json").config

    assert math.isnan(config["a"])
    assert config["b"] == [math.inf, -math.inf]
    assert (config["c"], config["d"]) == (2, "\N{GRINNING FACE}")


@pytest.mark.parametrize(
    ("text", "hint"),
    [("\n<!doctype html><html>", "/resolve/"), ("version https://git-lfs.github.com/spec/v1\noid", "git lfs pull")],
)
def test_what_is_there_in_place_of_json_is_named(text: str, hint: str) -> None:
    """A web page and a Git LFS pointer are the usual ones."""
    Path("config.json").write_text(text, encoding="utf-8")

    assert hint in refused("config.json").hint


def test_gguf_under_the_name_of_a_document_is_named() -> None:
    """By its first bytes."""
    Path("config.json").write_bytes(b"GGUF\x03\0\0\0")

    assert "is a GGUF file" in refused("config.json").message


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_or_a_device_never_hangs() -> None:
    """They are refused before they are opened; standard input is the way for pipes."""
    os.mkfifo("pipe")
    Path("folder").mkdir()
    os.mkfifo("folder/config.json")
    start = time.monotonic()

    for given in ("pipe", "folder", "/dev/zero"):
        error = refused(given)
        assert isinstance(error, ConfigError)
        assert "kvplan -" in error.hint
    assert time.monotonic() - start < 2


def test_a_folder_in_the_place_of_the_file() -> None:
    """``config.json/`` as a folder: a config error for what it holds is right, a traceback is not."""
    Path("x/config.json/config.json").mkdir(parents=True)

    assert "is a folder" in refused("x").message
    assert isinstance(refused("x"), ConfigError)


def test_links_that_lead_nowhere() -> None:
    """Broken, and in a circle."""
    Path("gone.json").symlink_to("nowhere.json")
    Path("circle.json").symlink_to("circle.json")

    assert "a link to a file that is gone" in refused("gone.json").message
    assert refused("circle.json").exit_code == 3


def test_permission_denied_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not "not found"."""
    Path("config.json").write_text(TEXT, encoding="utf-8")

    def deny(*_: object) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("hwcalc.sources.document.open", deny, raising=False)
    error = refused("config.json")

    assert isinstance(error, ConfigError)
    assert "permission denied" in error.message


class Pipe(io.RawIOBase):
    """A pipe that gives a few bytes at a time, or does something worse."""

    def __init__(self, data: bytes = b"", error: Exception | None = None) -> None:
        self.data, self.error = data, error

    def read(self, size: int = -1) -> bytes:
        if self.error is not None:
            raise self.error
        part, self.data = self.data[:3], self.data[3:]
        return part


def test_an_open_file_is_read() -> None:
    """Text or binary; a file with a name is known by it, and stays open."""
    Path("mine").mkdir()
    Path("mine/config.json").write_text(TEXT, encoding="utf-8")

    for stream in (io.StringIO(TEXT), io.BytesIO(TEXT.encode()), io.StringIO("\ufeff" + TEXT), Pipe(TEXT.encode())):
        raw = resolve_stream(stream)  # type: ignore[arg-type]
        assert (raw.id, raw.config, raw.source, raw.location) == ("config", CONFIG, "local", "an open file")
    path = Path("mine/config.json")
    with path.open(encoding="utf-8") as text, path.open("rb") as binary:
        assert [resolve_stream(text).id, resolve_stream(binary).id] == ["mine", "mine"]
        assert not text.closed


@pytest.mark.parametrize(
    "stream",
    [
        Pipe(error=OSError("broken pipe")),
        Pipe(error=ValueError("closed")),
        Pipe(error=UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid")),
        Pipe(error=io.UnsupportedOperation("not readable")),
        type("Numbers", (), {"read": lambda *_: 7})(),
        type("Lists", (), {"read": lambda *_: [1]})(),
        type("NotReadable", (), {"read": None})(),
        object(),
    ],
)
def test_a_stream_that_cannot_be_read_is_a_config_error(stream: Any) -> None:
    """Whatever has a ``read`` that fails, and whatever has none."""
    with pytest.raises(ConfigError):
        resolve_stream(stream)


@pytest.mark.parametrize("endless", [b"x", b" ", b"[" * 4096])
def test_an_endless_stream_ends(endless: bytes) -> None:
    """At most 16 MiB are read."""

    class Endless(io.RawIOBase):
        read_so_far = 0

        def read(self, size: int = -1) -> bytes:
            type(self).read_so_far += size
            return endless * (size // len(endless)) or endless[:size]

    with pytest.raises(ConfigError):
        resolve_stream(Endless())  # type: ignore[arg-type]
    assert Endless.read_so_far <= 2 * (LARGEST_DOCUMENT + 1)


@pytest.mark.parametrize(
    ("name", "model_id"), [("org/name", "org/name"), ("/mnt/me/run", "config"), (7, "config"), ("\x1b[0m/x", "config")]
)
def test_standard_input(name: object, model_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``-``: the config names the model if the name is an id."""
    data = json.dumps({**CONFIG, "_name_or_path": name}).encode()
    for model in ("-", "stream"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="ascii"))
        raw = resolve("-") if model == "-" else resolve_stream(sys.stdin)
        assert (raw.id, raw.source, raw.location, raw.revision) == (model_id, "stdin", "standard input", None)


def test_standard_input_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal would wait for ever; a process may have none."""
    closed = io.StringIO()
    closed.close()
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    for stream in (None, closed, terminal):
        monkeypatch.setattr(sys, "stdin", stream)
        assert isinstance(refused("-"), UsageError)
