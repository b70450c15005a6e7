"""YAML of up to 1 MiB that is made to be slow, deep or large: an answer in seconds, and no crash of the parser in C."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from typing import Final

import pytest

from hwcalc.yaml_tree import LARGEST_FILE, MAX_DIRECTIVES, TreeError, plain_value, read_tree

REPEATED: Final = {
    "lists": "[", "mappings": "{", "items": "- ", "keys": "? ", "keys in lists": "[? ", "empty lists": "[[],", "aliases": "*a,",
    "anchors": "&a ", "tags": "!", "bars": "| ", "quotes": '"', "escaped quotes": '\\"', "halves": "\\ud83d", "colons": ": ",
    "documents": "---\n", "ends": "...\n", "blank lines": "\n", "blanks": " ", "tabs": "\t", "zeros": "\0", "remarks": "#\n",
    "directives": "%TAG !a! b\n", "versions": "%YAML 1.1\n", "lines": " a\n", "words": "a ", "pairs": "a: b, ", "carets": ">\n\n a\n",
    "digits": "9", "odd line ends": "\u2028%", "marks": "\ufeff", "emoji": "\U0001f600", "escapes": '"\\x41" ',
}  # fmt: skip
"""What a text repeats."""
STARTS: Final = ("", '"', "{", "[", "a: |\n", '["', "a: ", '{"a": "')
LIMIT_SECONDS: Final = 3


@pytest.fixture
def small_heap() -> Iterator[None]:
    """What earlier tests have left is not looked through again and again: a command has nothing of it."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("small_heap")
@pytest.mark.parametrize("piece", REPEATED.values(), ids=REPEATED)
def test_a_text_of_the_largest_size_is_read_in_time(piece: str) -> None:
    """Each is a tree, or an error in words."""
    for start in STARTS:
        text = (start + piece * LARGEST_FILE)[:LARGEST_FILE]
        begun = time.process_time()
        try:
            read_tree(text)
        except TreeError as error:
            assert error.problem  # noqa: PT017 - which of the two it is depends on the text
        assert time.process_time() - begun < LIMIT_SECONDS, start


def test_many_different_directives_are_refused() -> None:
    """The parser compares each with all others: a file of 1 MiB of them would take 6 seconds."""
    directives = "".join(f"%TAG !a{number}! tag:b\n" for number in range(MAX_DIRECTIVES + 1))

    with pytest.raises(TreeError, match="directives"):
        read_tree(f"{directives}--- a")
    assert plain_value(read_tree("%YAML 1.1\n--- {a: 100%}")) == {"a": "100%"}


def test_a_text_beyond_the_largest_size_is_refused() -> None:
    """A caller may have the text already."""
    with pytest.raises(TreeError, match="larger than 1 MiB"):
        read_tree(" " * (LARGEST_FILE + 1))
