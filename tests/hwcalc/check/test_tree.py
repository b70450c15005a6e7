"""YAML from strangers: what is read, and that nothing else is."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwcalc.check.file import CheckFileError, parse_tree, read_text
from hwcalc.yaml_tree import LARGEST_FILE, MAX_DEPTH, MAX_NODES, plain_value


def test_values_and_places() -> None:
    """Words, numbers and text by the core schema of YAML 1.2, each with its line and column from 1."""
    tree = parse_tree("a: 32\nb:\n  - 32k\n  - {c: 0.5, d: '7', e: true}\nf:\ng: yes\nh: 1e3 # remark\n", "f")

    assert plain_value(tree) == {"a": 32, "b": ["32k", {"c": 0.5, "d": "7", "e": True}], "f": None, "g": "yes", "h": 1000.0}
    inner = tree.value["b"].value[1]
    assert (inner.line, inner.column) == (4, 5)
    assert (inner.value["c"].line, inner.value["c"].column) == (4, 9)
    assert inner.keys is not None
    assert inner.keys["d"].column == 14


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &x 1", "f:1:4: an anchor"),
        ("a: 1\nb: *a", "f:2:4: an alias"),
        ("a: !!python/object/apply:os.system [ls]", "f:1:4: a tag"),
        ("!t {a: 1}", "f:1:1: a tag"),
        ("a: 1\nb: 2\na: 3", "f:3:1: the key 'a' stands twice (first in line 1)"),
        ("? [a]\n: 1", "f:1:3: a key must be plain text"),
        ("? {a: 1}\n: 1", "f:1:3: a key must be plain text"),
        ("~: 1", "f:1:1: a key must be plain text"),
        ("a: 1\n---\nb: 2", "f:2:1: a second document"),
        ("a: [1, 2", "not YAML: did not find"),
        ("a: 'x", "not YAML"),
        ("\ta: 1", "f:1:1: not YAML"),
        ("a: \x00", "not YAML"),
        ('a: "\\ud800"', "f:1:"),
        ("", "f is empty"),
        ("# only a remark\n", "f is empty"),
        ("[" * (MAX_DEPTH + 1), f"f:1:{MAX_DEPTH + 1}: nested more than {MAX_DEPTH} levels"),
        ("[" * 100_000, "nested more than"),
        ("[" + "1," * (MAX_NODES + 1) + "]", "more than 100,000 values"),
    ],
)
def test_hostile(text: str, said: str) -> None:
    """Each is an error in words with its place, and no other exception."""
    with pytest.raises(CheckFileError) as caught:
        parse_tree(text, "f")

    assert said in caught.value.message
    assert caught.value.hint
    assert caught.value.exit_code == 3


def test_a_billion_laughs_are_not_heard() -> None:
    """Nested aliases end at the first anchor; nothing is expanded."""
    bomb = "a: &a [x, x]\n" + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(20))

    with pytest.raises(CheckFileError, match="f:1:4: an anchor"):
        parse_tree(bomb, "f")


documents = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**18), 10**18) | st.text(alphabet=st.characters(codec="utf-8"), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abcdef", min_size=1, max_size=6), inner, max_size=4),
    max_leaves=20,
)


@given(documents)
def test_json_is_read_as_json(document: Any) -> None:
    """What Python's own reader of JSON makes of a document, this one does too, whether it is escaped or not."""
    assert plain_value(parse_tree(json.dumps([document], ensure_ascii=True), "f")) == [document]


@pytest.mark.parametrize(
    "escaped", [r"\ud83d\ude00", r"\uD83D\uDE00", r"\\\ud83d\ude00", r"\"\ud83d\ude00", r"\\ud83d\\ude00", r"\udbff\udfff"]
)
def test_json_escapes_a_character_as_a_pair(escaped: str) -> None:
    """A document that ``json.dumps`` wrote, with an emoji in a name."""
    text = f'\n {{"a b": ["{escaped}", "x{escaped}{escaped}", "\'"]}}'

    assert plain_value(parse_tree(text, "f")) == json.loads(text)


@pytest.mark.parametrize("half", [r"\ud83d", r"\ude00", r"\ude00\ud83d", r"\ud83d\ud83d", r"\ud83d x", r"\ud83d\\ude00"])
def test_half_of_a_pair_is_an_error_at_its_place(half: str) -> None:
    """It is no character, and the hint says what to write."""
    with pytest.raises(CheckFileError, match=r"f:2:\d+: not YAML: ") as caught:
        parse_tree(f'{{\n"a": "{half}"}}', "f")

    assert "both halves" in caught.value.hint


@given(st.text(max_size=200))
def test_any_text_gives_a_tree_or_words(text: str) -> None:
    """Whatever is in the file: a tree, or an error that names it."""
    said = "f"
    try:
        parse_tree(text, "f")
    except CheckFileError as error:
        said = error.message

    assert said.startswith("f")


def test_numbers_that_are_none_are_text() -> None:
    """NaN and infinity are left to the keys, which take neither; a huge number stays whole."""
    tree = parse_tree("[.inf, .nan, NaN, 0x10, 1_000, 9999999999999999999999, 1e999]", "f")

    assert plain_value(tree)[:6] == [".inf", ".nan", "NaN", "0x10", "1_000", 9999999999999999999999]
    assert math.isinf(plain_value(tree)[6])


@pytest.mark.parametrize("content", [b"\xff\xfea", b"a: \xe9"])
def test_not_utf8(tmp_path: Path, content: bytes) -> None:
    """The first byte that is wrong is named."""
    path = tmp_path / "kvplan.yaml"
    path.write_bytes(content)

    with pytest.raises(CheckFileError, match=r"is not UTF-(8|16-LE) text"):
        read_text(str(path))


def test_files_that_are_none(tmp_path: Path) -> None:
    """A folder, a pipe nobody writes to, nothing at all, and a file that is too large."""
    os.mkfifo(tmp_path / "pipe")
    large = tmp_path / "large"
    large.write_bytes(b"a" * (LARGEST_FILE + 1))
    for name, said in {"": "is a folder", "pipe": "is a pipe", "gone": "there is no file", "large": "larger than 1 MiB"}.items():
        with pytest.raises(CheckFileError, match=said) as caught:
            read_text(str(tmp_path / name))
        assert not caught.value.message.endswith("..")


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    """Editors on Windows write one."""
    path = tmp_path / "kvplan.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1")

    assert plain_value(parse_tree(read_text(str(path)), "f")) == {"a": 1}
