"""The short writer of tables against rich, which draws the same pieces."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwcalc import plan
from hwcalc.report import drawing
from hwcalc.report.columns import columns, hanging, indented, over
from hwcalc.report.pieces import BOUND, Column, Grid, Piece, Text, cell_len, is_simple
from hwcalc.report.styled import drawn
from hwcalc.report.table import plan_table
from hwcalc.report.unstyled import written

CHARACTERS = "aaaaabcM1,.()   --·…│█░é" + BOUND
WORDS = st.text(st.sampled_from(CHARACTERS), max_size=24)
LINES = st.lists(WORDS, max_size=4).map("\n".join)
STYLES = st.sampled_from(["", "bold", "dim", "bold cyan"])
ROOM = st.integers(1, 60)
TEXTS = st.builds(lambda words, style: Text(words, style=style), LINES, STYLES)


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    """A grid of up to four columns, of which at most one gives way."""
    sized = st.builds(Column, width=st.integers(1, 30), right=st.booleans(), folds=st.booleans())
    kept = st.builds(
        Column, least=st.none() | st.integers(0, 20), right=st.booleans(), folds=st.booleans(), whole=st.sampled_from([True])
    )
    loose = st.builds(Column, least=st.none() | st.integers(0, 20), right=st.booleans(), folds=st.booleans())
    made = draw(st.lists(sized | kept, max_size=3))
    if not made or draw(st.booleans()):
        made.insert(draw(st.integers(0, len(made))), draw(loose))
    rows = draw(st.lists(st.tuples(*(TEXTS for _ in made)), max_size=4))
    return Grid(columns=tuple(made), rows=tuple(rows), gap=draw(st.integers(0, 3)))


@given(st.lists(st.tuples(TEXTS | grids(), ROOM), max_size=4))
def test_the_short_writer_writes_what_rich_draws(pieces: list[tuple[Piece, int]]) -> None:
    """Widths, breaks, cuts and alignment, down to widths in which nothing has room."""
    assert written(pieces) == drawn(pieces, color=False)


@given(st.lists(st.tuples(LINES, LINES, LINES), min_size=1, max_size=4), st.integers(20, 60))
def test_the_layouts_of_reports_are_written_alike(rows: list[tuple[str, str, str]], width: int) -> None:
    """Columns, a last cell below its row, labels with texts, and paragraphs."""
    cells = [[Text(cell) for cell in row] for row in rows]
    labelled = [(label.replace("\n", " "), text, "dim") for label, text, _ in rows]
    parts = [columns(cells, width=width, right=(1,)), *over(cells, width=width), *hanging(labelled), indented(cells[0][2])]

    assert written((part, width) for part in parts) == drawn(((part, width) for part in parts), color=False)


@pytest.mark.parametrize("width", [20, 47, 80, 100, 100_000])
@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("Qwen/Qwen3-8B", {}),
        ("google/gemma-3-27b-it", {"engine": "vllm", "gpu": "l4", "seq": "32k", "batch": 8}),
        ("deepseek-ai/DeepSeek-V3", {"engine": "sglang", "gpu": "h200", "gpus": 8}),
        ("Qwen/Qwen3-14B", {"engine": "llamacpp", "weights": "q6_k", "gpu": "rtx-4060-ti-16gb", "seq": "32k"}),
    ],
)
def test_plans_are_written_as_rich_draws_them(
    model: str, options: dict[str, object], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything that a plan says, at the width of a pipe and of narrow terminals."""
    planned = plan(model, **options)  # type: ignore[arg-type]
    short = plan_table(planned, width=width, detail="full", command="kvplan MODEL")
    monkeypatch.setattr(drawing, "is_simple", lambda _text: False)

    assert plan_table(planned, width=width, detail="full", command="kvplan MODEL") == short


def test_simple_characters_take_one_column() -> None:
    """Every character of the whole of Unicode that is counted without rich has the width that rich gives it."""
    from rich.cells import cell_len as measured

    simple = [letter for letter in map(chr, range(sys.maxunicode + 1)) if is_simple(letter) and letter != "\n"]

    assert BOUND in simple
    assert {measured(letter) for letter in simple} == {1}
    assert measured("".join(simple)) == len(simple) == cell_len("".join(simple))


@pytest.mark.parametrize("text", ["日本語 two", "e\u0301 mark", "🎉", "a\tb", "\x0b"])
def test_other_characters_are_left_to_rich(text: str) -> None:
    """They take no column or two, or move what stands behind them."""
    from rich.cells import cell_len as measured

    assert not is_simple(text)
    assert cell_len(text) == measured(text)
    assert (
        drawing.rendered([indented(Text(text))], width=20) == "\n".join(drawn([(indented(Text(text)), 20)], color=False)) + "\n"
    )
