"""GGUF files on this machine: by path, in several files, in a folder, on standard input, open, and as a dict of metadata."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hwcalc import load_model, plan
from hwcalc.errors import ConfigError, KvplanError, ModelNotFoundError, UnsupportedError
from hwcalc.model import VOCABULARY, RawModel
from hwcalc.sources import resolve, resolve_stream
from tests.hwcalc.sources.gguf.given import KEYS, SHAPES, gguf_bytes
from tests.hwcalc.sources.gguf.test_hub import parts, tensors_of
from tests.hwcalc.sources.given import COMMIT, refused

TINY = gguf_bytes()


def written(name: str, data: bytes = TINY) -> Path:
    """A file below the current folder."""
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def check(raw: RawModel) -> None:
    """It is the tiny model."""
    assert dict(raw.config) == dict(KEYS)
    assert tensors_of(raw) == dict(SHAPES)


@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("Tiny-Q4_K_M.gguf", "Tiny-Q4_K_M"),
        ("here/Tiny.GGUF", "Tiny"),
        ("model.gguf", "Tiny"),
        ("ggml-model-f16.gguf", "Tiny"),
        ("blobs/sha256-" + "ab" * 32, "Tiny"),
        ("named.bin", "named"),
    ],
)
def test_a_file(name: str, id: str) -> None:  # noqa: A002
    """Its name is the id, unless it says nothing; it is known by its first bytes too."""
    path = written(name)
    for given in (str(path), path, f"./{path}", path.absolute()):
        raw = resolve(given, weights=True)
        check(raw)
        assert (raw.id, raw.source, raw.location) == (id, "gguf", str(Path(given)))
        assert raw.weights is not None
        assert raw.weights.total_bytes == sum(one.bytes for one in raw.tensors)


def test_the_bytes_of_each_type() -> None:
    """Blocks of 256 numbers: 144 bytes of q4_k, 210 of q6_k; 1,024 bytes are 256 numbers of f32."""
    weights = resolve(written("a.gguf")).weights
    # rows of 256: 320 of tokens, and for each layer 256 + 128 + 256 + 512 + 512 of q4_k; of q6_k 128, and 256 of two blocks
    assert weights is not None
    assert weights.bytes_by_dtype == {"f32": 5 * 1024, "q4_k": (320 + 2 * 1664) * 144, "q6_k": 2 * (128 + 512) * 210}
    assert weights.elements_by_dtype == {"f32": 5 * 256, "q4_k": (320 + 2 * 1664) * 256, "q6_k": 2 * (128 + 512) * 256}
    assert (weights.files, weights.tensors, weights.source) == (1, len(SHAPES), "GGUF header")


@pytest.mark.parametrize("number", [1, 2])
def test_a_model_in_several_files(number: int) -> None:
    """Any of them stands for all; without one of them there is no plan."""
    for name, data in parts().items():
        written(name, data)
    names = sorted(parts())
    raw = resolve(names[number - 1])

    check(raw)
    assert raw.id == "Tiny-BF16"
    assert raw.weights is not None
    assert raw.weights.files == 2
    Path(names[2 - number]).unlink()
    error = refused(names[number - 1])
    assert "1 of them are not in its folder" in error.message
    assert names[2 - number] in error.message


def test_parts_that_do_not_belong_together() -> None:
    """Another order, the same tensor twice, too few tensors, a part under another name, and a later part alone."""
    first, second = parts()
    split = {"split.count": 2, "split.tensors.count": len(SHAPES)}
    for other, words in (
        (parts()[first], "part 1 of 2 by its own header"),
        (gguf_bytes({**split, "split.no": 1}, SHAPES), "both have the tensor"),
        (gguf_bytes({**split, "split.no": 1}, dict([*SHAPES.items()][-1:])), "tensors together"),
        (gguf_bytes({"split.count": 3, "split.no": 1}, {}), "part 2 of 3 by its own header"),
    ):
        written(first, parts()[first])
        written(second, other)
        assert words in refused(first).message
    assert "its name does not say so" in refused(str(written("renamed.gguf", parts()[first]))).message


def test_a_folder() -> None:
    """The only model in it; several are listed, a config comes first."""
    written("one/mmproj-x.gguf", gguf_bytes({"general.architecture": "clip"}, {}))
    written("one/x-Q4_K_M.gguf")
    check(resolve("./one"))
    for name, data in parts().items():
        written(f"two/{name}", data)
    check(resolve("./two"))
    written("two/Tiny-Q8_0.gguf")
    error = refused("./two")
    assert isinstance(error, ModelNotFoundError)
    assert "has 2 GGUF models: 'Tiny-BF16-00001-of-00002.gguf', 'Tiny-Q8_0.gguf'" in error.message
    assert "two/Tiny-BF16-00001-of-00002.gguf" in error.hint
    written("one/config.json", b'{"model_type": "llama"}')
    assert resolve("./one").source == "local"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"general.architecture": "clip"}, "the projector of a model for images or sound (mmproj)"),
        ({"general.architecture": "llama", "general.type": "adapter"}, "an adapter (LoRA)"),
        ({"general.architecture": "llama", "general.type": "imatrix"}, "measurements for quantisation"),
        ({"general.architecture": "controlvector"}, "a control vector"),
    ],
)
def test_files_beside_models(keys: dict[str, Any], words: str) -> None:
    """They are named."""
    error = refused(written("x.gguf", gguf_bytes(keys, {})))

    assert isinstance(error, UnsupportedError)
    assert words in error.message


@pytest.mark.parametrize(("keys", "words"), [({}, "has no 'general.architecture'"), ({"general.architecture": 3}, "no text")])
def test_no_architecture(keys: dict[str, Any], words: str) -> None:
    """Without it nobody can say what the file is."""
    error = refused(written("x.gguf", gguf_bytes(keys, {})))

    assert isinstance(error, ConfigError)
    assert words in error.message


def test_a_big_endian_file_is_said_to_be_one() -> None:
    """Its numbers are the same."""
    raw = resolve(written("x.gguf", gguf_bytes(order=">")))

    check(raw)
    assert [note.code for note in raw.notes] == ["byte-order"]


def test_an_open_file() -> None:
    """Also one that gives a few bytes at once, or ends behind its header; it is read no further than that."""

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(min(size or 0, 7))

    written("x.gguf")
    with Path("x.gguf").open("rb") as file:
        raw = resolve_stream(file)
        check(raw)
        assert (raw.source, raw.location, raw.id) == ("gguf", "x.gguf", "Tiny")
    check(resolve_stream(Slow(TINY)))
    check(resolve_stream(io.BytesIO(gguf_bytes(data=False))))
    endless = gguf_bytes(data=False) + bytes(10**7)
    stream = io.BytesIO(endless)
    check(resolve_stream(stream))
    assert stream.tell() < 10**6
    with Path("x.gguf").open(encoding="latin-1") as text, pytest.raises(ConfigError, match="mode 'rb'"):
        resolve_stream(text)


def test_open_files_that_are_cut_or_fail() -> None:
    """Each with the error of a file."""

    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() >= 4:
                raise RuntimeError("gone")
            return super().read(size)

    with pytest.raises(ConfigError, match="ends within its header"):
        resolve_stream(io.BytesIO(TINY[:200]))
    with pytest.raises(ConfigError, match="cannot be read: gone"):
        resolve_stream(Broken(TINY))


def test_standard_input() -> None:
    """``kvplan -`` takes a GGUF file as it takes a config; a pipe that is closed early is no fault."""
    words = [sys.executable, "-m", "hwcalc", "-", "--engine", "reference", "--seq", "1000", "--json"]
    done = subprocess.run(words, input=TINY + bytes(10**6), capture_output=True, check=False)

    assert (done.returncode, done.stderr) == (0, b"")
    # 2 layers x 2 x 2 heads x 64 numbers of 16 bits
    assert b'"bytes_per_token": 1024' in done.stdout


def test_a_dict_of_metadata() -> None:
    """It is known by its architecture; it needs no tensors, and its vocabulary may be a list."""
    model = load_model({**KEYS, VOCABULARY: 320})

    assert (model.id, model.source, model.model_type) == ("Tiny", "python", "llama")
    assert plan(model, seq=1000, engine="reference").cache.total_bytes == 1000 * 1024


def test_a_dict_that_holds_itself_is_refused() -> None:
    """As a config that does."""
    keys: dict[str, Any] = dict(KEYS)
    keys["llama.more"] = [keys]

    with pytest.raises(ConfigError, match="levels deep"):
        load_model(keys)


def test_a_missing_file_says_what_there_is() -> None:
    """The models of its folder."""
    written("Tiny-Q8_0.gguf")

    assert "'Tiny-Q8_0.gguf'" in refused("Tiny-Q4_0.gguf").hint
    Path("broken.gguf").symlink_to("nothing.gguf")
    assert "a link to a file that is gone" in refused("broken.gguf").message


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_not_opened() -> None:
    """It may block for ever."""
    os.mkfifo("pipe.gguf")

    assert "not a regular file" in refused("pipe.gguf").message


def test_a_model_of_a_file_is_named_by_its_path() -> None:
    """So a command line for it can be typed."""
    model = load_model(written("here/Tiny.gguf"))

    assert model.address == "here/Tiny.gguf"
    assert load_model(model.address).gguf == model.gguf


def test_the_name_of_the_cache_is_the_id() -> None:
    """A file below the snapshots of the Hugging Face cache."""
    path = written(f"hub/models--org--name/snapshots/{COMMIT}/sub/x-Q8_0.gguf")
    raw = resolve(path)

    assert (raw.id, raw.revision) == ("org/name:sub/x-Q8_0.gguf", COMMIT)


def test_a_fault_in_the_metadata_names_the_file() -> None:
    """As for configs."""
    path = written("x.gguf", gguf_bytes({**KEYS, "llama.block_count": "two"}))

    with pytest.raises(KvplanError) as raised:
        load_model(path)
    assert "x.gguf" in raised.value.message
