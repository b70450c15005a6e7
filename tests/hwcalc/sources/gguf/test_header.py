"""What is read of a header, and what is refused: each with what was found and the next step, in little time and memory."""

from __future__ import annotations

import struct
import time
import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hwcalc.errors import ConfigError, KvplanError, UnsupportedError
from hwcalc.model import VOCABULARY
from hwcalc.sources.gguf import header as header_module
from hwcalc.sources.gguf import header as window_module
from hwcalc.sources.gguf.header import Header, Window, read_header
from tests.hwcalc.sources.gguf.given import KEYS, SHAPES, array, gguf_bytes, pair, tensor, text, written

ARCHITECTURE = {"general.architecture": "llama"}


def header_of(data: bytes, *, size: int | None = -1, first: int = 64) -> Header:
    """The header in these bytes, read in small pieces."""
    asked: list[tuple[int, int]] = []

    def read(start: int, end: int) -> bytes:
        asked.append((start, end))
        return data[start:end]

    found = read_header(Window(read, len(data) if size == -1 else size, first), "x.gguf")
    assert all(one[1] <= two[0] for one, two in pairwise(asked)), "nothing is read twice"
    return found


def refused(data: bytes, *, size: int | None = -1) -> KvplanError:
    """The error for a file."""
    with pytest.raises((ConfigError, UnsupportedError)) as raised:
        header_of(data, size=size)
    assert "x.gguf" in raised.value.message
    assert raised.value.hint
    return raised.value


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("first", [16, 100, 100_000])
def test_a_sound_file(order: str, version: int, first: int) -> None:
    """Metadata and tensors, whatever the order of the bytes and the size of the pieces."""
    found = header_of(gguf_bytes(order=order, version=version), first=first)

    assert found.keys == dict(KEYS)
    assert {one.name: (one.type, one.shape) for one in found.tensors} == dict(SHAPES)
    assert (found.version, found.big_endian) == (version, order == ">")
    # 256 x 320 numbers of which 256 take 144 bytes
    assert found.tensors[0].bytes == 320 * 144
    assert found.file_bytes == len(gguf_bytes(order=order, version=version))


@pytest.mark.parametrize("alignment", [1, 8, 32, 4096])
def test_the_file_names_its_alignment(alignment: int) -> None:
    """Where tensors begin follows from it."""
    keys = {**KEYS, "general.alignment": alignment}

    assert header_of(gguf_bytes(keys, alignment=alignment)).file_bytes == len(gguf_bytes(keys, alignment=alignment))


def test_values_of_all_types() -> None:
    """Whole numbers, floats, truth values, text, and arrays of them."""
    numbers = {0: ("B", 200), 1: ("b", -3), 2: ("H", 60000), 3: ("h", -300), 4: ("I", 2**32 - 1), 5: ("i", -5), 6: ("f", 0.5)}
    numbers |= {7: ("?", True), 10: ("Q", 2**64 - 1), 11: ("q", -(2**63)), 12: ("d", 0.1)}
    raw = {f"a.{kind}": struct.pack(f"<I{letter}", kind, number) for kind, (letter, number) in numbers.items()}
    raw |= {f"b.{kind}": struct.pack(f"<IIQ2{letter}", 9, kind, 2, *(number,) * 2) for kind, (letter, number) in numbers.items()}
    found = header_of(gguf_bytes({**ARCHITECTURE, **raw, "c": ["x", "é"], "d": array([])}, {}))

    assert found.keys == {
        **ARCHITECTURE,
        **{f"a.{kind}": number for kind, (_, number) in numbers.items()},
        **{f"b.{kind}": [number] * 2 for kind, (_, number) in numbers.items()},
        "c": ["x", "é"],
        "d": [],
    }


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("longest", [1, 20, 127, 128, 300, 70_000])
def test_tokens_are_counted_and_not_kept(order: str, longest: int) -> None:
    """Short ones are matched many at a time, long ones are stepped over singly."""
    tokens = ["a" * (number * 7919 % (longest + 1)) for number in range(1500)]
    keys = {
        **ARCHITECTURE,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": tokens[:700],
        "tokenizer.ggml.token_type": [1] * 1500,
        "tokenizer.chat_template": "x" * 5000,
        "llama.block_count": 3,
    }

    assert header_of(gguf_bytes(keys, {}, order=order)).keys == {**ARCHITECTURE, VOCABULARY: 1500, "llama.block_count": 3}


def test_files_that_llama_cpps_package_writes(tmp_path: Path) -> None:
    """The same keys and tensors that were written; big-endian files too."""
    import gguf

    keys = {"qwen3.block_count": 2, "qwen3.rope.freq_base": 1e6, "general.tags": ["a", "b"], "qwen3.heads": [4, 0, 2]}
    tensors = {"token_embd.weight": (64, 32), "blk.0.ffn_gate_exps.weight": (32, 8, 4), "output_norm.weight": (64,)}
    for more in ({}, {"endianess": gguf.GGUFEndian.BIG}):
        path = written(tmp_path / "x.gguf", "qwen3", keys, tensors, **more)
        found = header_of(path.read_bytes())

        assert found.keys == {"general.architecture": "qwen3", **keys}
        assert {one.name: one.shape for one in found.tensors} == tensors
        assert [one.bytes for one in found.tensors] == [2 * 64 * 32, 2 * 32 * 8 * 4, 2 * 64]
        assert found.file_bytes <= path.stat().st_size < found.file_bytes + 32


def test_the_types_are_those_of_llama_cpps_package() -> None:
    """Numbers, blocks and bytes agree wherever both know a type."""
    import gguf

    from hwcalc.quantization.ggml import GGML_TYPES

    mine = {number: (form.name.upper(), form.block, form.block_bytes) for number, form in GGML_TYPES.items()}
    theirs = {int(kind): (kind.name, *gguf.GGML_QUANT_SIZES[kind]) for kind in gguf.GGMLQuantizationType}
    theirs[9] = ("Q8_1", 32, 36)  # ggml-common.h has two halves beside 32 bytes; the package counts two floats

    assert {number: mine[number] for number in theirs} == theirs


def broken(*parts: Any, **more: Any) -> bytes:
    """A file with one key too many, in these raw bytes."""
    return gguf_bytes(ARCHITECTURE, {}, counts=(0, 2), **more) + b"".join(parts)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", ["ends within its header", "its first bytes"]),
        (b"GG", ["ends within its header"]),
        (b"GGUF", ["ends within its header"]),
        (b"PK\x03\x04 zip", ["no GGUF file", "begins with"]),
        (b"ggjt\x03\0\0\0", ["no GGUF file"]),
        (gguf_bytes(version=1), ["version 1"]),
        (gguf_bytes(version=0), ["version is 0"]),
        (gguf_bytes(version=4), ["version is 4", "2 and 3"]),
        (gguf_bytes(version=1, order=">"), ["version 1"]),
        (gguf_bytes(counts=(20, 2**63)), ["9,223,372,036,854,775,808 keys"]),
        (gguf_bytes(counts=(2**40, 10)), ["1,099,511,627,776 tensors"]),
        (gguf_bytes(counts=(20, 60_000), data=False), ["60,000 keys"]),
        (gguf_bytes(counts=(60_000, 10), data=False), ["60,000 tensors"]),
        (broken(pair("general.architecture", 3)), ["'general.architecture' twice"]),
        (broken(pair("", 3)), ["no name"]),
        (broken(struct.pack("<Q", 4 * 1024**3), b"a"), ["ends within its header", "key 2 of 2"]),
        (broken(text("k"), struct.pack("<IQ", 8, 4 * 1024**3), b"a"), ["ends within its header", "the value of 'k'"]),
        (broken(text("k"), struct.pack("<IQ", 8, 2**64 - 1)), ["ends within its header"]),
        (broken(text("k"), struct.pack("<II", 13, 1)), ["of type 13"]),
        (broken(text("k"), struct.pack("<IIQ", 9, 13, 1)), ["of type 13"]),
        (broken(text("k"), struct.pack("<IIQ", 9, 9, 1) * 30), ["an array of arrays"]),
        (broken(text("k"), struct.pack("<IIQ", 9, 8, 2**61)), ["the 2,305,843,009,213,693,952 values of 'k'"]),
        (broken(text("tokenizer.ggml.tokens"), struct.pack("<IIQ", 9, 8, 3_000_000), bytes(100)), ["3,000,000 values"]),
        (broken(text("tokenizer.ggml.scores"), struct.pack("<IIQ", 9, 6, 2**60)), ["'tokenizer.ggml.scores'"]),
        (broken(text("tokenizer.ggml.tokens"), struct.pack("<IIQ", 9, 8, 1), struct.pack("<Q", 2**40)), ["ends within its header"]),
        (gguf_bytes({**KEYS, "llama.attention.head_count": [1] * 10_001}, data=True), ["more than 10,000 values"]),
        (gguf_bytes({**KEYS, "general.alignment": 24}), ["power of two"]),
        (gguf_bytes({**KEYS, "general.alignment": 0}), ["power of two"]),
        (gguf_bytes({**KEYS, "general.alignment": "32"}), ["power of two"]),
        (gguf_bytes()[:-1], ["a part of it is missing", f"{len(gguf_bytes()):,}"]),
        (gguf_bytes(data=False), ["a part of it is missing"]),
    ],
)  # fmt: skip
def test_what_is_refused(data: bytes, words: list[str]) -> None:
    """The message says what was found."""
    error = refused(data)

    assert all(word in error.message for word in words), error.message


def one_tensor(row: bytes, count: int = 1) -> bytes:
    """A file whose list of tensors is raw bytes, and much room behind it."""
    return gguf_bytes(ARCHITECTURE, {}, counts=(count, 1)) + row + bytes(4096)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (tensor("x" * 64, (256,), 0, 0), ["name of tensor 1 of 1", "64 bytes"]),
        (tensor("x", (1,) * 5, 0, 0), ["'x' has 5 dimensions"]),
        (text("x") + struct.pack("<I", 2**32 - 1), ["4,294,967,295 dimensions"]),
        (tensor("x", (256, 0), 0, 0), ["'x' has the shape 256 x 0"]),
        (tensor("x", (2**40, 2**40), 0, 0), ["'x' has the shape"]),
        (tensor("x", (2**64 - 1,), 0, 0), ["'x' has the shape"]),
        (tensor("x", (256,), 4, 0), ["of type 4"]),
        (tensor("x", (256,), 2**32 - 1, 0), ["of type 4,294,967,295"]),
        (tensor("x", (100,), 12, 0), ["100 numbers", "q4_k packs 256"]),
        (tensor("x", (256,), 0, 32), ["offset 32", "expected is 0"]),
        (tensor("x", (256,), 0, 7), ["offset 7", "not a multiple of 32"]),
        (tensor("x", (2**40,), 0, 0), ["a part of it is missing"]),
    ],
)  # fmt: skip
def test_tensors_that_are_refused(row: bytes, words: list[str]) -> None:
    """The message names the tensor."""
    error = refused(one_tensor(row))

    assert all(word in error.message for word in words), error.message


def test_two_tensors_that_are_refused() -> None:
    """A second one of the same name, or at the same place."""
    first = tensor("x", (8,), 0, 0)

    assert "'x' twice" in refused(one_tensor(first + tensor("x", (8,), 0, 32), 2)).message
    assert "overlaps another" in refused(one_tensor(first + tensor("y", (8,), 0, 0), 2)).message
    assert "leaves a gap" in refused(one_tensor(first + tensor("y", (8,), 0, 64), 2)).message


def test_a_header_alone_is_enough_where_the_size_is_not_known() -> None:
    """A pipe or an open file may end behind its header."""
    data = gguf_bytes(data=False)

    assert len(header_of(data, size=None).tensors) == len(SHAPES)
    for end in range(0, len(data) - 1, 37):
        assert "ends within its header" in refused(data[:end], size=None).message


def test_a_cut_file_is_refused_wherever_it_is_cut() -> None:
    """At each byte of a small one."""
    data = gguf_bytes(
        {**KEYS, "tokenizer.ggml.tokens": ["a", "bc"], "x.list": [1, 2, 3]}, dict([*SHAPES.items()][:2]), data=False
    )

    for end in range(len(data)):
        refused(data[:end])


def test_the_limit_of_a_header(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named."""
    monkeypatch.setattr(window_module, "LARGEST_HEADER", 1024**2)
    monkeypatch.setattr(header_module, "LARGEST_HEADER", 1024**2)
    keys = {**ARCHITECTURE, "tokenizer.ggml.scores": [1] * 300_000, "tokenizer.ggml.tokens": ["a"] * 200}

    assert "takes more than 1 MiB" in refused(gguf_bytes(keys, {})).message
    assert "takes more than 1 MiB" in refused(gguf_bytes(keys, {}), size=None).message


def test_metadata_that_take_much_memory() -> None:
    """Many lists of small numbers, whose Python objects take more than their bytes."""
    keys = {**ARCHITECTURE, **{f"k{number}": struct.pack("<IIQ", 9, 0, 9_000) + bytes(9_000) for number in range(1_000)}}
    data = gguf_bytes(keys, {})
    tracemalloc.start()
    try:
        assert "of memory" in refused(data).message
        assert tracemalloc.get_traced_memory()[1] < 40_000_000
    finally:
        tracemalloc.stop()


def test_a_large_vocabulary_takes_no_time() -> None:
    """150,000 tokens, their types and 280,000 merges: within 0.06 seconds of the processor, and little memory."""
    tokens = [f"token{number:x}" for number in range(151_936)]
    merges = [f"{number:x} {number * 7:x}" for number in range(280_000)]
    keys = {
        **KEYS,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * len(tokens),
        "tokenizer.ggml.merges": merges,
    }
    data = gguf_bytes(keys, {f"blk.{number}.w.weight": ("q4_k", (256, 256)) for number in range(700)}, data=False)
    seconds = []
    for _ in range(5):
        start = time.process_time()
        found = header_of(data, size=None, first=window_module.FIRST)
        seconds.append(time.process_time() - start)

    assert found.keys[VOCABULARY] == 151_936
    assert min(seconds) < 0.06


def _q(number: int) -> bytes:
    return number.to_bytes(8, "little")


def _i(number: int) -> bytes:
    return number.to_bytes(4, "little")


def _many(part: bytes, count: int) -> bytes:
    return b"GGUF" + _i(3) + _q(0) + _q(count) + b"".join(_q(8) + b"k%07d" % number + part for number in range(count))


@pytest.mark.parametrize(
    "data",
    [
        _many(_i(0) + b"\1", 1_024),
        _many(_i(9) + _i(4) + _q(0), 1_024),
        _many(_i(8) + _q(0), 1_024),
        _many(_i(9) + _i(8) + _q(110) + _q(0) * 110, 1_024),
        _many(_i(9) + _i(8) + _q(4_096) + _q(5_000) + b"x" * 5_000 + _q(0) * 4_095, 26),
        _many(_i(9) + _i(8) + _q(255) + _q(0) * 255, 480),
        b"GGUF" + _i(3) + _q(8_192) + _q(0) + b"".join(_q(4) + b"%04x" % n + _i(1) + _q(32) + _i(0) + _q(128 * n) for n in range(8_192)),
        b"GGUF" + _i(3) + _q(0) + _q(1_024) + b"".join(_q(9) + "אב\u202e".encode()[:4] + b"%05d" % n + _i(0) + b"\1" for n in range(1_024)),
    ],
    ids=["numbers", "empty arrays", "empty strings", "short arrays", "a long string first", "strings", "tensors", "unsafe names"],
)  # fmt: skip
def test_many_small_parts_are_read_soon(data: bytes) -> None:
    """No header of a megabyte takes more than 50 ms of the processor; a slow machine is given four times as much."""
    times = []
    for _ in range(3):
        start = time.process_time()
        read_header(Window(lambda first, end: data[first:end], None), "x.gguf")
        times.append(time.process_time() - start)

    assert min(times) < 0.2


def test_more_parts_than_any_model_has() -> None:
    """The error says how many there may be."""
    with pytest.raises(ConfigError, match="30,000 keys, and the most are 1,024"):
        read_header(Window(lambda first, end: _many(_i(0) + b"\1", 30_000)[first:end], None), "x.gguf")
