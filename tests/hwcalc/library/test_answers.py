"""Answers of the library in a prompt, a data frame and a notebook; and the notebook of ``docs``."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

import pandas as pd
import polars as pl
import pytest

import hwcalc
from hwcalc import check, compare, explain, fit, free_blocks, keep, load_model, plan, recommend, strategies, sweep
from hwcalc.documents import MOST_ROWS, Answer, html_table
from hwcalc.errors import UsageError
from tests.paths import ROOT

CHECKS = ROOT / "tests" / "readme" / "kvplan.yaml"
QWEN = "Qwen/Qwen3-8B"


ANSWERS: Final[dict[str, Callable[[], Answer]]] = {
    "plan": lambda: plan(QWEN, seq="8k"),
    "plan on a GPU": lambda: plan(QWEN, seq="8k", engine="vllm", gpu="l4"),
    "explain": lambda: explain(QWEN, seq="8k", gpu="l4", engine="vllm"),
    "compare": lambda: compare([QWEN, "openai/gpt-oss-20b"], seq="8k", dtype=["bf16", "fp8"]),
    "recommend": lambda: recommend(QWEN, seq="8k", gpu=["l4", "h100"]),
    "fit": lambda: fit("qwen3-8b", seq="8k", gpu="l4"),
    "keep": lambda: keep(QWEN, "snapkv:compression_ratio=0.5", prompt="8k", decode=4),
    "free_blocks": lambda: free_blocks(16_000, keep=range(0, 16_000, 10)),
    "strategies": lambda: strategies(QWEN, seq="8k", gpu="l4"),
    "sweep": lambda: sweep(QWEN, seq="1k..8k", dtype="bf16,fp8", gpu="l4"),
    "check": lambda: check(str(CHECKS)),
}


@pytest.fixture(scope="module", params=ANSWERS)
def answer(request: pytest.FixtureRequest) -> Answer:
    """Each answer in turn."""
    return ANSWERS[request.param]()


class _Cells(HTMLParser):
    """The text and the open tags of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not attrs
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def _texts(html: str) -> list[str]:
    cells = _Cells()
    cells.feed(html)
    cells.close()
    assert cells.open == []
    return cells.texts


def test_the_repr_is_one_short_line(answer: Answer) -> None:
    """It says what the answer is, and not all of it."""
    text = repr(answer)

    assert text.startswith(f"<{type(answer).__name__}: ")
    assert len(text) < 160
    assert "\n" not in text


def test_a_page_is_short_in_a_prompt() -> None:
    """A line that names it; a notebook shows it in a frame, and as text it is whole."""
    page = hwcalc.explore(QWEN, gpu="l4")

    assert repr(page) == f"<PageText: kvplan: {QWEN}, {len(page):,} characters>"
    assert page._repr_html_().startswith('<iframe srcdoc="&lt;!doctype html&gt;')


def test_lists_are_ranges_and_arrays_too() -> None:
    """As Python counts them; where one number is planned, the error names what takes several."""
    lengths = [1024, 2048, 3072]
    grids = [sweep(QWEN, seq=seq).records() for seq in (lengths, range(1024, 4096, 1024), pd.Series(lengths))]

    assert grids[0] == grids[1] == grids[2]
    with pytest.raises(UsageError, match=r"is a list.*hwcalc\.compare"):
        plan(QWEN, seq=range(1024, 4096, 1024))  # type: ignore[arg-type]


def test_records_are_frames(answer: Answer) -> None:
    """Flat rows with the same keys, of plain values; pandas and polars take them as they are."""
    rows = answer.records()

    assert rows
    assert {tuple(row) for row in rows} == {tuple(rows[0])}
    assert {type(value) for row in rows for value in row.values()} <= {str, int, float, bool, type(None)}
    assert pd.DataFrame(rows).shape == pl.DataFrame(rows, infer_schema_length=None).shape == (len(rows), len(rows[0]))


def test_a_notebook_shows_a_table(answer: Answer) -> None:
    """Closed tags, no attributes, the headline first, and every known figure of the first row."""
    texts = _texts(answer._repr_html_())

    assert texts[0] == answer.headline()
    for value in answer.records()[0].values():
        if isinstance(value, str) and value:
            assert value in texts
        elif isinstance(value, int) and not isinstance(value, bool):
            assert f"{value:,}" in texts


def test_a_document_is_that_of_the_command(answer: Answer) -> None:
    """``to_dict`` begins with the version of its schema."""
    assert next(iter(answer.to_dict())) == "schema_version"


def test_records_agree_with_the_document() -> None:
    """The rows of a plan are figures of its document."""
    one = plan(QWEN, seq="8k", engine="vllm", gpu="l4")
    row, document = one.records()[0], one.to_dict()

    assert row["cache_total_bytes"] == document["cache"]["total_bytes"]
    assert row["weights_bytes"] == document["memory"]["weights"]["bytes"]
    assert (row["fits"], row["max_batch"], row["usable_bytes"]) == tuple(
        document["fit"][name] for name in ("verdict", "max_batch", "usable_bytes")
    )


def test_a_plan_has_the_columns_of_a_sweep() -> None:
    """A row of a plan can stand in a frame of a sweep."""
    own = plan(QWEN, seq="8k", gpu="l4").records()[0]
    point = sweep(QWEN, seq="8k", gpu="l4").records()[0]
    shared = own.keys() & point.keys()

    assert len(shared) >= 15
    assert {name: own[name] for name in shared} == {name: point[name] for name in shared}


def test_a_large_table_says_how_many_rows_follow() -> None:
    """A sweep is planned only as far as it is shown."""
    grid = sweep(QWEN, seq="1k..1000k:1k", batch="1..1000:1")

    assert f"and {1_000_000 - MOST_ROWS:,} more rows" in _texts(grid._repr_html_())


def test_markup_of_others_is_text() -> None:
    """A name of a model is not a tag."""
    rows: list[dict[str, Any]] = [{"model": "<script>x</script>", "bytes": 1}, {"model": "b\x1b[2J", "bytes": None}]
    texts = _texts(html_table("<b>", rows))

    assert texts[0] == "<b>"
    assert "<script>x</script>" in texts
    assert not any("\x1b" in text for text in texts)


def test_the_notebook_runs(tmp_path: Path) -> None:
    """Plan, sweep to a frame, plot: the page of the docs, as a script."""
    picture = tmp_path / "cache.png"
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "notebook.py"), str(picture)],
        env={**os.environ, "MPLBACKEND": "Agg", "MPLCONFIGDIR": str(tmp_path), "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("<Plan: Qwen/Qwen3-8B, 32,768 tokens x 1, bf16, vllm ")
    assert "131072" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_model_is_one_line_too() -> None:
    """Its fields are thousands of characters."""
    model = load_model(QWEN)

    assert model.parameters is not None
    assert repr(model) == f"<ModelSpec: {QWEN}, qwen3, bf16, {model.parameters.total:,} parameters, catalog>"
    assert model._repr_html_().startswith("<div><strong>Qwen/")
    assert "<td>qwen3</td>" in model._repr_html_()


@pytest.mark.parametrize("found", [plan, compare, sweep])
def test_the_rows_of_all_answers_have_one_verdict(found: Any) -> None:
    """It is a word in each of them, so that their frames can be joined; a document of a comparison has true and false."""
    row, fit = found(QWEN, seq="8k", gpu="l4").records()[0], plan(QWEN, seq="8k", gpu="l4").fit

    assert fit is not None
    assert (row["fits"], row["gpu"]) == ("fits", "l4")
    assert row["usable_bytes"] == fit.usable_bytes
    assert row.get("gpus", 1) == 1


@pytest.mark.parametrize(
    ("call", "option"), [(sweep, "weights"), (plan, "weights"), (plan, "dtype"), (plan, "gpu"), (plan, "engine")]
)
def test_a_list_where_one_is_taken(call: Any, option: str) -> None:
    """The command that takes several is said."""
    with pytest.raises(UsageError) as caught:
        call(QWEN, **{option: "a,b"})

    assert caught.value.message == f"--{option} 'a,b' is a list, and one is taken here."
    assert caught.value.hint == f"Several side by side: kvplan compare MODEL --{option} a,b"


def test_parts_of_a_plan_have_a_short_text() -> None:
    """A cell that ends with a part of a plan shows its plain fields, in a line or as a table."""
    planned = hwcalc.plan("Qwen/Qwen3-8B", engine="vllm", gpu="l4", seq="8k")

    for part in (planned.fit, planned.cache, planned.memory, planned.pool, planned.speed, planned.model, planned.request):
        assert part is not None
        assert len(repr(part)) < 900
        assert "steps" not in repr(part)
        assert part._repr_html_().startswith(f"<div><strong>{type(part).__name__}</strong><table>")
    assert f"total_bytes={planned.cache.total_bytes}" in repr(planned.cache)


@pytest.mark.parametrize(
    "name", ["check", "compare", "explain", "explore", "fit", "plan", "plot", "recommend", "strategies", "sweep"]
)
def test_a_notebook_shows_what_a_function_takes(name: str) -> None:
    """``sweep?`` has the keywords and the docstring of the function, and no text on how the program is built."""
    function = getattr(hwcalc, name)
    parameters = inspect.signature(function).parameters

    assert not {kind.name for kind in {parameter.kind for parameter in parameters.values()}} & {"VAR_KEYWORD", "VAR_POSITIONAL"}
    assert len(parameters) >= 5
    assert "Any'" not in str(inspect.signature(function))
    assert function.__doc__
    assert "mod:`hwcalc.engines" not in function.__doc__


def test_every_function_takes_the_names_that_people_use() -> None:
    """``users`` and ``context`` are ``batch`` and ``seq`` everywhere; both at once are one option given twice."""
    assert [row.batch for row in sweep(QWEN, context="1k..2k", users=4)] == [4, 4]
    assert compare(QWEN, context="4k", users=3).variants[0].batch == 3
    assert hwcalc.plot(QWEN, context="1k..2k").chart.lines[0].xs[-1] == 2_048
    for ask in (sweep, compare, hwcalc.plot, plan):
        with pytest.raises(UsageError, match="batch and users are the same option"):
            ask(QWEN, batch=2, users=3)


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        ("weights", "memory.weights"),
        ("kv_cache", "Did you mean cache"),
        ("max_batch", "Did you mean fit.max_batch?"),
        ("tokens", "Did you mean pool.tokens?"),
        ("total_bytes", "cache.total_bytes or memory.total_bytes"),
        ("xyzzy", "Its fields: schema_version, "),
        ("__array__", "has no attribute '__array__'."),
    ],
)
def test_a_guessed_attribute_is_answered_with_where_it_is(guess: str, said: str) -> None:
    """What a user of a notebook would type first."""
    made = ANSWERS["plan on a GPU"]()

    assert not hasattr(made, guess)
    with pytest.raises(AttributeError) as raised:
        getattr(made, guess)
    assert said in str(raised.value)


def test_the_attribute_that_an_answer_names_is_there() -> None:
    """Of a part of a plan, and of the rows of a comparison."""
    compared = compare(QWEN, gpu="l4", seq=4096)

    with pytest.raises(AttributeError, match=r"variants\[0\].fits\?"):
        getattr(compared, "fits")  # noqa: B009 - a type checker knows that it is not there
    assert compared.variants[0].fits in (True, False, None)
    with pytest.raises(AttributeError, match=r"Did you mean per_gpu\.total"):
        getattr(plan(QWEN, seq=4096).memory, "total")  # noqa: B009 - as above
