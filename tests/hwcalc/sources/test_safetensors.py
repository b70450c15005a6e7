"""Headers and indexes of safetensors files: what they say, and everything that they must not."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwcalc.errors import ConfigError
from hwcalc.sources.weights import LARGEST_HEADER, Header, add_up, header_end, read_header, read_index
from tests.hub.repositories import BITS, header


def framed(document: object) -> bytes:
    """A document with its length in front."""
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    return len(text).to_bytes(8, "little") + text


def tensor(dtype: Any = "BF16", shape: Any = (2, 2), offsets: Any = (0, 8)) -> dict[str, Any]:
    """One tensor's line: four elements of BF16 in eight bytes."""
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_a_header_is_added_up_by_dtype() -> None:
    """Two of BF16 (4 x 2 and 3 x 2 bytes), one of F32 (a scalar), one of packed 4-bit; metadata is none."""
    data, size = header(
        {"a": ("BF16", (2, 2)), "s": ("F32", ()), "b": ("BF16", (3,)), "q": ("F4", (4,)), "e": ("I64", (0, 7))}, {"format": "pt"}
    )
    read = read_header(data + b"tensors", "x", len(data) + size)

    assert read.bytes_by_dtype == {"BF16": 14, "F32": 4, "F4": 2, "I64": 0}
    assert read.elements_by_dtype == {"BF16": 7, "F32": 1, "F4": 4, "I64": 0}
    assert read.tensors == 5
    assert header_end(data, "x") == len(data)


def test_files_are_added_up() -> None:
    """Dtypes of any file, in alphabetical order."""
    one = Header(bytes_by_dtype={"F32": 4}, elements_by_dtype={"F32": 1}, tensors=1)
    two = Header(bytes_by_dtype={"F32": 8, "BF16": 2}, elements_by_dtype={"F32": 2, "BF16": 1}, tensors=2)
    facts = add_up([one, two], "here")

    assert list(facts.bytes_by_dtype.items()) == [("BF16", 2), ("F32", 12)]
    assert (facts.elements_by_dtype, facts.files, facts.tensors) == ({"BF16": 1, "F32": 3}, 2, 3)
    assert (facts.total_bytes, facts.total_elements) == (14, 4)


def test_a_dtype_of_tomorrow_has_the_bytes_that_its_offsets_say() -> None:
    """The format grows; bytes do not depend on knowing the dtype."""
    assert read_header(framed({"w": tensor("F2_E1M0", [16], [0, 4])}), "x").bytes_by_dtype == {"F2_E1M0": 4}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x08\0\0",
        (0).to_bytes(8, "little"),
        (1).to_bytes(8, "little") + b"{",
        (LARGEST_HEADER + 1).to_bytes(8, "little"),
        b"\xff" * 64,
        b"GGUF" + b"\0" * 64,
        b"<!doctype html>" * 8,
        (100).to_bytes(8, "little") + b"{}",
        *(
            framed(text)
            for text in (b"[]", b"{", b"<html>", b"null", b"\xff\xfe\xff", b"[" * 100_000, b'{"a":' * 100_000, b"1" * 10_000)
        ),
        *map(framed, ({"w": None}, {"w": []}, {"w": 1}, {"w": {}}, {"w": "BF16"})),
        *(framed({"w": tensor(dtype=dtype)}) for dtype in (None, 1, "", "bf16", "BF16\n", "\x1b[31m", "F" * 50, "F64", "U8")),
        *(
            framed({"w": tensor(shape=shape)})
            for shape in (None, 4, "4", [-2, -2], [2.0, 2], [True, 4], [2, None], [2**60], [1] * 100, [2**50] * 64, [3], [])
        ),
        *(
            framed({"w": tensor(offsets=offsets)})
            for offsets in (
                None,
                8,
                [8],
                [0, 8, 8],
                [8, 0],
                [-8, 0],
                [0, 8.0],
                [False, 8],
                ["0", "8"],
                [0, 2**60],
                [0, 7],
                [0, 9],
                [8, 16],
            )
        ),
        framed({"a": tensor(), "b": tensor()}),
        framed({"a": tensor(), "b": tensor(offsets=[4, 12])}),
        framed({"a": tensor(), "b": tensor(offsets=[16, 24])}),
        framed({"w": tensor("ZZ", [100], [0, 1])}),
        framed(b'{"w": {"dtype": "U8", "shape": [NaN], "data_offsets": [0, Infinity]}}'),
    ],
)
def test_a_header_that_cannot_be(data: bytes) -> None:
    """Cut, not JSON, or contradicting itself."""
    with pytest.raises(ConfigError) as raised:
        read_header(data, "model.safetensors")
    assert raised.value.message.startswith("model.safetensors cannot be read: ")
    assert raised.value.message.isprintable()
    assert len(raised.value.message) < 200


@pytest.mark.parametrize("more", [-1, 1, 2**40])
def test_a_file_of_another_size_than_its_tensors(more: int) -> None:
    """A download that was cut, or something behind it."""
    data, size = header({"w": ("BF16", (4,))})

    with pytest.raises(ConfigError):
        read_header(data, "x", len(data) + size + more)


@given(
    st.dictionaries(
        st.text(max_size=8), st.tuples(st.sampled_from(sorted(BITS)), st.lists(st.integers(0, 9), max_size=4)), max_size=8
    )
)
def test_any_header_is_read_as_it_was_written(tensors: dict[str, tuple[str, list[int]]]) -> None:
    """Bytes and elements of every dtype are the sums of their tensors."""
    even = {name: (dtype, [*shape, 2]) for name, (dtype, shape) in tensors.items() if name != "__metadata__"}
    data, size = header(even)
    read = read_header(data, "x", len(data) + size)

    assert sum(read.bytes_by_dtype.values()) == size
    assert read.tensors == len(even)
    for dtype, size in read.bytes_by_dtype.items():
        assert size * 8 == read.elements_by_dtype[dtype] * BITS[dtype]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets", "w"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.binary(max_size=64) | st.dictionaries(st.text(max_size=5), json_values, max_size=3).map(framed))
def test_any_bytes_are_a_header_or_an_error(data: bytes) -> None:
    """Never another exception, never a negative number."""
    try:
        read = read_header(data, "x")
    except ConfigError:
        return
    assert all(size >= 0 for size in (*read.bytes_by_dtype.values(), *read.elements_by_dtype.values()))


def test_an_index_names_files_and_about_how_long_their_headers_are() -> None:
    """The guess is enough for the header of a file that has these tensors: the names and a line for each."""
    tensors = {f"model.layers.{number}.self_attn.q_proj.weight": ("F8_E4M3", (16384, 16384)) for number in range(900)}
    files = read_index(json.dumps({"weight_map": dict.fromkeys(tensors, "model-00001-of-00001.safetensors")}).encode(), "index")

    assert list(files) == ["model-00001-of-00001.safetensors"]
    assert len(header(tensors)[0]) <= files["model-00001-of-00001.safetensors"] < 2 * len(header(tensors)[0])


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b"<html>",
        b"[" * 100_000,
        {},
        {"weight_map": {}},
        {"weight_map": []},
        {"weight_map": {"w": 1}},
        {"weight_map": {"w": None}},
        *(
            {"weight_map": {"w": name}}
            for name in ("", "x", "x.bin", "/x.safetensors", "../x.safetensors", "a/../x.safetensors", "..safetensors")
        ),
        *(
            {"weight_map": {"w": name}}
            for name in ("a\\x.safetensors", "a b.safetensors", "x.safetensors\n", "http://x/x.safetensors", "~/x.safetensors")
        ),
        {"weight_map": {f"w{i}": f"{i}.safetensors" for i in range(5000)}},
    ],
)
def test_an_index_that_cannot_be(document: Any) -> None:
    """Nothing outside of its own folder is ever read."""
    with pytest.raises(ConfigError):
        read_index(document if isinstance(document, bytes) else json.dumps(document).encode(), "index")


def dense(tensors: int) -> bytes:
    """A header of as many tensors as its bytes can hold."""
    rows = ",".join(
        f'"{number:x}":{{"dtype":"U8","shape":[],"data_offsets":[{number},{number + 1}]}}' for number in range(tensors)
    )
    return framed(f"{{{rows}}}".encode())


def peak(data: bytes, read: Callable[[bytes, str], object]) -> int:
    """Bytes that reading takes beside the document itself."""
    tracemalloc.start()
    try:
        read(data, "x")
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_dense_header_takes_a_small_multiple_of_its_bytes() -> None:
    """A tree of it would take 27 times as many."""
    data = dense(40_000)

    assert read_header(data, "x").bytes_by_dtype == {"U8": 40_000}
    assert peak(data, read_header) < 2 * len(data)


def test_a_dense_index_takes_no_memory() -> None:
    """But for the names of its files. A tree of it would take eleven times its bytes."""
    data = json.dumps({"weight_map": {f"{number:x}": f"{number % 7}.safetensors" for number in range(40_000)}}).encode()

    assert list(read_index(data, "x")) == [f"{number}.safetensors" for number in range(7)]
    assert peak(data, read_index) < len(data) // 4


@pytest.mark.parametrize(
    "text",
    [
        b'{"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"w":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}',
        b'{"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"\\u0077":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}',
        b'{"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}',
    ],
)
def test_a_tensor_is_listed_once(text: bytes) -> None:
    """Of two rows for one name a loader keeps one: the bytes of the other are not loaded."""
    with pytest.raises(ConfigError, match="twice"):
        read_header(framed(text), "x")


@pytest.mark.parametrize(
    "text",
    [
        b'{"w":{"data_offsets":[0,2],"shape":[2],"dtype":"U8"}}',
        b' { "w" : { "dtype" : "U8" , "shape" : [ 2 ] , "data_offsets" : [ 0 , 2 ] } } ',
        b'{"\\u00e9":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}',
        '{"\u00e9":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}'.encode(),
        b'{"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"note":"}"}}',
        b'{"__metadata__":null,"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}',
        b'{"__metadata__":{"dtype":"U8","shape":"[2]","a":"\\"}"},"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}',
        b'{"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},"e":{"dtype":"U8","shape":[0],"data_offsets":[1,1]},%b}'
        % b'"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}',
    ],
)
def test_rows_that_few_programs_write(text: bytes) -> None:
    """Keys in another order, white space, escapes, tensors in another order than in the file: two bytes in all."""
    assert read_header(framed(text), "x").bytes_by_dtype == {"U8": 2}


@pytest.mark.parametrize(
    "text",
    [
        b'{"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},}',
        b'{"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}x',
        b'{"w":{"dtype":"U8","shape":[02],"data_offsets":[0,2]}}',
        b'{"w":{"dtype":"U8","shape":[2,],"data_offsets":[0,2]}}',
        b'{"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"more":[' + b"[]," * 400_000 + b"[]]}}",
        b'{"__metadata__":[' + b"[]," * 400_000 + b"[]]}",
        b'{"w":{"dtype":"U8","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,2]}}',
        b"{" + b",".join(b'"%d":{"dtype":"F%d","shape":[],"data_offsets":[%d,%d]}' % (i, i, i, i + 1) for i in range(100)) + b"}",
    ],
)
def test_rows_that_cannot_be(text: bytes) -> None:
    """Not JSON, or so large that no tensor could be meant."""
    with pytest.raises(ConfigError):
        read_header(framed(text), "x")
