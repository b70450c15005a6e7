"""Pieces as rich draws them: columns, wrapped cells, and text that is never cut."""

from __future__ import annotations

import pytest

from hwcalc.report.drawing import (
    Column,
    Grid,
    Text,
    columns,
    fitted,
    hanging,
    height,
    indented,
    longest_word,
    over,
    rendered,
)
from hwcalc.report.text import BOUND, continued, filled
from hwcalc.text import shell_word


def test_numbers_are_aligned_right_and_blanks_at_the_end_left_out() -> None:
    """Two columns with two blanks between them."""
    rows = [[Text("a"), Text("10")], [Text("bcd"), Text("2")]]

    assert rendered(columns(rows, width=80, right=(1,), headed=False)) == "a    10\nbcd   2\n"


def test_a_long_cell_is_wrapped_at_blanks() -> None:
    """Names in the first column stay whole; the widest other column gives way."""
    rows = [[Text("name-of-a-model"), Text("one two three four")]]

    assert rendered(columns(rows, width=30), width=30) == "name-of-a-model  one two three\n                 four\n"


def test_a_word_is_never_cut() -> None:
    """A word that is longer than a line has a line that is longer."""
    assert rendered([Text("x" * 50)], width=20) == "x" * 50 + "\n"
    assert rendered([indented(Text("x" * 50))], width=20) == "  " + "x" * 50 + "\n"


def test_a_last_cell_goes_below_its_row() -> None:
    """Where it would have too little room beside the others."""
    assert rendered(over([[Text("a"), Text("one two three")]], width=10), width=10) == "a\n  one two\n  three\n"


def test_a_column_of_words_that_has_no_room_goes_below_its_row() -> None:
    """Names and numbers have 16 of 20 columns, so that no word of the last has room beside them."""
    rows = [[Text("name"), Text("1,234,567"), Text("anything else")]]

    assert rendered(columns(rows, width=20, right=(1,), headed=False), width=20) == "name  1,234,567\n  anything else\n"


def test_titles_of_numbers_are_wrapped() -> None:
    """Their words take 5 columns, and the number below them too."""
    rows = [[Text("of"), Text("first token")], [Text("all"), Text("1,234")]]

    assert rendered(columns(rows, width=10, right=(1,)), width=10) == "of   first\n     token\nall  1,234\n"


def test_columns_without_room_follow_below_each_with_the_first() -> None:
    """Three numbers of 9 columns and a name of 4 take 37, and two of the numbers 26."""
    rows = [[Text("name"), *(Text(f"{number}23,456,789"[-9:]) for number in "123")]]

    text = rendered(columns(rows, width=26, right=(1, 2, 3), headed=False), width=26)

    assert text == "name  3,456,789  3,456,789\n\nname  3,456,789\n"


@pytest.mark.parametrize(
    "words", ["plan it with --seq 4096", "or it has all 16 GiB", "and of those 2,048 tokens", "and about 7.6 billion"]
)
def test_words_that_belong_together_stay_on_one_line(words: str) -> None:
    """No line is broken between an option and its value, or a number and its unit: beside a label, in a cell and in a paragraph."""
    last = " ".join(words.split()[-2:])
    beside = rendered(hanging([("note", words, "")]), width=24)
    cell = rendered(columns([[Text("note"), Text(words)]], width=22), width=22)

    for text in (beside, cell, filled(words, 17)):
        assert text.count("\n") >= 1
        assert last in text
        assert BOUND not in text


@pytest.mark.parametrize("name", ["llama.cpp org/a model of 8B.gpu=h100", "it's a b c", 'so "called" d e', "tab\there and there"])
@pytest.mark.parametrize("width", range(20, 90, 7))
def test_no_line_is_broken_in_quotes(name: str, width: int) -> None:
    """The word as a shell reads it stands whole in a line, of a sentence and of a command."""
    word = shell_word(name)
    sentence = filled(f"name it for this server alone: add --set {word} to that, or name all of the servers' own", width)
    command = continued(f"kvplan check deploy/serve.sh --gpu h100 --set {word} --users 64 --seq 32k", width)

    assert sum(word in line for line in sentence.split("\n")) == 1
    assert sum(word in line for line in command) == 1
    assert all(len(line) <= max(width, len(word) + len("  --set  \\")) for line in command)


def test_styles_are_written_in_colour_alone() -> None:
    """The same text, with codes around what has a style."""
    parts = [Text("model ", ("name", "bold"), style="dim")]

    assert rendered(parts) == "model name\n"
    assert "\x1b[" in rendered(parts, color=True)


def test_characters_of_two_columns_are_counted_so() -> None:
    """Two characters of four columns, and a longest word of as many."""
    assert longest_word(Text("日本 a")) == 4
    grid = Grid(columns=(Column(width=4), Column()), rows=((Text("日本"), Text("x")),))
    assert rendered([grid]) == "日本x\n"


@pytest.mark.parametrize(("room", "widths"), [(90, [50, 12, 28]), (40, [50, 12, 8])])
def test_the_widest_column_is_narrowed_first(room: int, widths: list[int]) -> None:
    """None below its least."""
    assert fitted([50, 12, 40], [50, 12, 8], room) == widths


@pytest.mark.parametrize("width", [12, 20, 33, 60, 100])
def test_a_height_is_counted_as_rich_breaks_lines(width: int) -> None:
    """Texts, commands that are never broken, and paragraphs beside labels, with words that are longer than a line."""
    words = "needs  87.38 GiB of 80 GiB: weights 65.5 GiB, cache 2.14, --kv-cache-dtype fp8 and so on"
    parts = [
        Text("a model", ("  of a type", "dim")), Text(words), Text(), Text("  try    kvplan " + "x" * 70 + " --seq 8k", whole=True),
        *hanging([("needs", words, ""), ("a label of several words that takes two lines", "short", ""), ("", "x" * 30, "")]),
        *hanging([("at once", "3 sequences", "")]), indented(Text(words)),
    ]  # fmt: skip
    lines = rendered(parts, width=width).splitlines()

    assert height(parts, width) == sum(max(1, -(-len(line) // width)) for line in lines)


def test_names_of_several_words_are_wrapped_before_a_table_is_parted() -> None:
    """A name of 17 columns and two numbers of 9 take 39 with their gaps; with the name in two lines 32 are enough."""
    rows = [
        [Text(title) for title in ("name", "first", "second")],
        [Text("a name of several"), Text("1,234,567"), Text("7,654,321")],
    ]

    lines = rendered(columns(rows, width=33, right=(1, 2)), width=33).splitlines()

    assert [line.split() for line in lines] == [
        ["name", "first", "second"],
        ["a", "name", "of", "1,234,567", "7,654,321"],
        ["several"],
    ]


def test_a_title_stands_beside_the_others() -> None:
    """The remarks are paragraphs below their rows, where their title would be read as one of them. 14 columns are taken, and 8 are left."""
    rows = [[Text("name"), Text("bytes"), Text("remark")], [Text("a"), Text("1,234,567"), Text("one two three four")]]

    assert (
        rendered(columns(rows, width=24, right=(1,)), width=24)
        == "name      bytes  remark\na     1,234,567\n  one two three four\n"
    )


def test_the_ranks_of_one_layout_stay_together() -> None:
    """In a cell and in a paragraph that have no room for two words more."""
    cell = rendered(columns([[Text("node"), Text("laid out as dp 4, ep 4")]], width=20), width=20)

    for text in (cell, filled("laid out as dp 4, ep 4", 18)):
        assert "dp 4, ep 4" in text
