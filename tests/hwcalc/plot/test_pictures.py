"""Pictures in files and in the terminal: they open, are the same each time, and say what they show."""

from __future__ import annotations

import re
import struct
import sys
import warnings
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import hwcalc
from hwcalc.errors import UsageError
from hwcalc.plot.build import Picture
from hwcalc.plot.series import KINDS
from tests.hwcalc.command import QWEN, Capture, run

MODELS = [QWEN, "google/gemma-3-12b-it"]


def picture(kind: str) -> Picture:
    """A picture of two models."""
    return hwcalc.plot(MODELS, kind=kind, engine="vllm", gpu="h100", seq="8k")


@pytest.mark.parametrize("kind", KINDS)
def test_files(kind: str) -> None:
    """All formats open, without a date. No number by chance, such as those that name the parts of an SVG, is in a file."""
    drawn = picture(kind)
    png, svg, pdf = (drawn.data(name) for name in ("png", "svg", "pdf"))

    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", png[16:24]) >= (1_000, 500)
    assert ET.fromstring(svg).tag.endswith("svg")  # noqa: S314 - our own file
    assert pdf.startswith(b"%PDF")
    assert pdf.rstrip().endswith(b"%%EOF")
    for data in (png, svg, pdf):
        assert b"/CreationDate" not in data
        assert b"dc:date" not in data
    if kind == "layers":
        again = picture(kind)
        assert [again.data(name) for name in ("png", "svg", "pdf")] == [png, svg, pdf]


def test_names_are_only_names() -> None:
    """What mathtext, a legend or XML would read is drawn as it is."""
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "_name_or_path": "_<b>$x$",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = hwcalc.plot(config, seq=1_024)
        assert ET.fromstring(drawn.data("svg")).tag.endswith("svg")  # noqa: S314 - our own file


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("layers", "window", "tokens"),
    # Each value with each value of the others.
    [(1, 1, 1), (1, None, 1_000_000_000_000), (1_000, 1, 1_000_000_000_000), (1_000, None, 1)],
)
def test_extremes(kind: str, layers: int, window: int | None, tokens: int, capfd: pytest.CaptureFixture[str]) -> None:
    """One value, or one length, is a picture too, and the packages that draw say nothing of it on the terminal."""
    config = {
        "model_type": "mistral",
        "num_hidden_layers": layers,
        "hidden_size": 64,
        "intermediate_size": 64,
        "vocab_size": 1_000,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": tokens,
        "sliding_window": window,
    }
    hardware: dict[str, Any] = {"frontier": {"kv_memory": "60GiB"}, "nodes": {"gpu": "2xh100"}, "cost": {"gpu": "2xh100"}}.get(
        kind, {}
    )
    drawn = hwcalc.plot(config, seq=tokens, kind=kind, engine="vllm", **hardware)
    if layers == 1:
        assert drawn.data("png").startswith(b"\x89PNG")
    assert "\x1b" not in drawn.text()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("scale", ["linear", "log"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [40, 80, 120])
def test_characters(kind: str, width: int, scale: str) -> None:
    """No line is wider than the terminal, none has a colour, and ASCII is enough."""
    drawn = hwcalc.plot(MODELS, kind=kind, engine="vllm", gpu="h100", seq="8k", scale=None if kind == "nodes" else scale)
    text = drawn.text(width, ascii_only=True)

    assert text.isascii()
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= width
    assert "A  " in text or kind == "nodes"


def test_colours_are_for_terminals() -> None:
    """In colours lines are fine dots, and without them letters; what the terminal has behind the picture stays."""
    colored = picture("memory").text(80, color=True)
    columns = [len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in colored.splitlines()]

    assert "\x1b[38;5;" in colored
    assert "\x1b[48;5;" not in colored
    assert any("\u2801" <= character <= "\u28ff" for character in colored)
    assert max(columns) <= 80


def test_twelve_lines_have_twelve_colours() -> None:
    """In a file and on a terminal: the names at the right edge and the key say which is which by colour alone."""
    gpus = "l40s,a100-80gb,h100,h200,b200,mi300x,2xl4,4xl4,8xl4,2xh100,4xh100,8xh100"
    drawn = hwcalc.plot(QWEN, kind="cost", engine="vllm", gpu=gpus, seq="4k", users=8)
    names = [part for part in ET.fromstring(drawn.data("svg")).iter() if part.get("id", "").startswith("text_")]  # noqa: S314 - our own file
    colors = {style for name in names for part in name.iter() if (style := part.get("style", "")).startswith("fill: #")}
    # Four greys are those of axes, title and caption.
    assert len(colors) >= 12
    keys = re.findall(r"\n  \x1b\[38;5;(\d+)m", drawn.text(80, color=True))
    assert len(keys) == len(set(keys)) == 12


def test_no_line_hides_another() -> None:
    """Lines that lie in the same cells take turns; the line of the GPU is seen above the areas of a model that needs more."""
    twins = hwcalc.plot([QWEN, "Qwen/Qwen3-8B-Base"], seq="8k").text(80)
    full = hwcalc.plot("google/gemma-3-27b-it", engine="vllm", gpu="h100").text(80)

    assert "ABAB" in twins
    assert re.search("│-+X-+│", full)
    assert "cccc" in full


def test_labels_cover_no_line() -> None:
    """Every name in a file stands right of the axes, and no two names lie upon each other."""
    from matplotlib.figure import Figure

    from hwcalc.plot import figures

    models = [
        "Qwen/Qwen3-8B",
        "google/gemma-3-27b-it",
        "openai/gpt-oss-20b",
        "Qwen/Qwen3-4B",
        "Qwen/Qwen3-8B-Base",
        "Qwen/Qwen3-14B",
    ]
    for chart in (
        hwcalc.plot(models, engine="vllm", gpu="h100").chart,
        hwcalc.plot(QWEN, engine="vllm", gpu="l4").chart,
        hwcalc.plot(models, kind="frontier", engine="vllm", gpu="h100").chart,
    ):
        figure = Figure(figsize=(9, 6))
        axes = figure.subplots()
        figures._draw_lines(axes, chart)
        figure.canvas.draw()
        edges = sorted((text.get_window_extent().y0, text.get_window_extent().y1) for text in axes.texts)
        assert len(axes.texts) >= len(chart.lines)
        assert min(text.get_window_extent().x0 for text in axes.texts) > axes.get_window_extent().x1
        assert all(below[1] <= above[0] + 1 for below, above in pairwise(edges))


@pytest.mark.parametrize("model", ["meta-llama/Llama-3.3-70B-Instruct", "Qwen/Qwen3-235B-A22B"])
@pytest.mark.parametrize(("gpus", "users"), [(8, 20), (8, 200), (16, 200)])
def test_pictures_of_nodes_have_the_numbers_of_plans(model: str, gpus: int, users: int) -> None:
    """A cell holds at once what the plan holds, and users cost as many nodes as that takes: the plan's dollars a month for each."""
    wanted: dict[str, Any] = {"engine": "vllm", "seq": "16k", "users": users}
    own: dict[str, Any] = {"price": {"h100": "2.5/h"}}
    made = hwcalc.plan(model, gpu="h100", gpus=gpus, **wanted, **own)
    (cell,) = hwcalc.plot(model, kind="nodes", gpu=f"{gpus}xh100", **wanted).chart.cells
    (line,) = hwcalc.plot(model, kind="cost", gpu=f"{gpus}xh100", **wanted, **own).chart.lines
    assert made.fit is not None
    assert made.fit.max_batch
    assert made.cost is not None

    assert made.cost.usd_per_month == 2.5 * gpus * 730
    assert cell.at_once == made.fit.max_batch
    assert list(line.ys) == [round(-(-x // made.fit.max_batch) * made.cost.usd_per_month) for x in line.xs]


def test_models_on_nodes() -> None:
    """A cell is the plan of a model on a node, by the layout that a comparison chooses; green and red are its verdict."""
    models, nodes = ["openai/gpt-oss-120b", "deepseek-ai/DeepSeek-V3"], "4xh100,8xh200"
    drawn = hwcalc.plot(models, kind="nodes", gpu=nodes, engine="vllm", seq="16k", batch=50)
    compared = hwcalc.compare(models, gpu=nodes, engine="vllm", seq="16k", batch=50)
    text = drawn.text(100)

    assert [cell.at_once for cell in drawn.chart.cells] == [variant.max_batch for variant in compared.variants]
    assert re.search(r"gpt-oss-120b +fits, [\d,]+ +fits, [\d,]+\n", text)
    assert re.search(r"DeepSeek-V3 +does not fit, 0 +fits, [\d,]+\n", text)
    assert "\x1b[97;41mdoes not fit, 0" in drawn.text(100, color=True)
    for width in (50, 60, 70):
        narrow = drawn.text(width)
        assert max(map(len, narrow.splitlines())) <= width
        assert set(text.split()) <= set(narrow.split())
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "a picture of nodes needs their names"),
        ({"gpu": "h100", "seq": "8k,16k"}, "a picture of nodes has one seq"),
        ({"gpu": "h100", "engine": "vllm,sglang"}, "a picture of nodes has one engine"),
        ({"gpu": "h100", "scale": "log"}, "scale is about lines"),
    ]
    for options, words in wrong:
        with pytest.raises(hwcalc.KvplanError, match=words):
            hwcalc.plot(models, kind="nodes", **options)


@pytest.mark.parametrize("nodes", ["2xl40s", "4xh100,8xh200,8xmi300x,2xl40s,16xh100,32xh200"])
def test_words_stay_in_their_cell(nodes: str) -> None:
    """The picture is as wide as its columns ask: no text of a cell is wider than the cell, and no name of a node reaches into the next."""
    from matplotlib.figure import Figure

    from hwcalc.plot import figures

    models = ["Qwen/Qwen3-235B-A22B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B"]
    chart = hwcalc.plot(models, kind="nodes", engine="vllm", gpu=nodes, seq="16k", batch=50).chart
    figure = Figure(figsize=(9, 3), layout="constrained")
    axes = figure.subplots()
    figures._draw_cells(axes, chart.cells)
    figure.canvas.draw()
    boxes = [bar.get_window_extent() for bar in axes.patches]
    words = [
        [text.get_window_extent() for text in axes.texts[3 * place : 3 * place + 3] if text.get_text()]
        for place in range(len(boxes))
    ]
    names = [text.get_window_extent() for text in axes.get_xticklabels()]

    assert len(boxes) == len(chart.cells)
    for box, inside in zip(boxes, words, strict=True):
        assert all(box.x0 <= text.x0 and text.x1 <= box.x1 and box.y0 <= text.y0 and text.y1 <= box.y1 for text in inside)
        assert all(below.y1 <= above.y0 for above, below in pairwise(inside))
    assert all(left.x1 < right.x0 for left, right in pairwise(names))


def test_dollars_against_users() -> None:
    """As many nodes as hold them: 46 users of 8,192 tokens on an H100 at 2 dollars an hour, 1,460 a month, and the 47th takes another."""
    drawn = hwcalc.plot(QWEN, kind="cost", gpu="h100,rtx-4090", engine="vllm", seq="8k", price={"h100": "2/h"})
    (line,) = drawn.chart.lines
    held = hwcalc.plan(QWEN, gpu="h100", engine="vllm", seq="8k").fit
    assert held is not None
    assert held.max_batch == 46
    at = dict(zip(line.xs, line.ys, strict=True))

    assert (at[1], at[46], at[47], at[4 * 46]) == (1460, 1460, 2920, 5840)
    assert line.label == "1 x h100-sxm5-80gb: $2.00/h"
    assert [remark.partition(":")[0] for remark in drawn.chart.remarks] == ["1 x rtx-4090"]
    assert "A  1 x h100-sxm5-80gb: $2.00/h" in drawn.text()
    with pytest.raises(UsageError, match="spot is about prices, and a picture of memory has none"):
        hwcalc.plot(QWEN, spot=True)


def test_dollars_of_what_is_owned() -> None:
    """The line of one's own node ends with it, 46 users; the picture ends at four times the users asked for; the rest is rented."""
    drawn = hwcalc.plot(
        [QWEN, "deepseek-ai/DeepSeek-V3"],
        kind="cost",
        gpu="h100,2xh100,2xa100",
        engine="vllm",
        seq="8k",
        batch=30,
        own="h100",
        kwh="0.15",
    )
    lines = {line.label: line for line in drawn.chart.lines}
    owned = lines["Qwen3-8B on 1 x h100-sxm5-80gb: $0.105/h"]

    # 700 W at 0.15 dollars per kWh are 0.105 an hour, in 730 hours 76.65.
    assert (owned.xs, owned.ys) == ((1, 46), (77, 77))
    assert owned.mark is not None
    assert owned.mark.label == "you own 1: 46 users"
    assert {line.xs[-1] for line in lines.values() if line is not owned} == {120}
    names = "; ".join(f"DeepSeek-V3 on {node}" for node in ("1 x h100-sxm5-80gb", "2 x h100-sxm5-80gb", "2 x a100-sxm4-80gb"))
    assert drawn.chart.remarks == (
        f"{names}: no user for certain",
        "Counted as rented: more h100-sxm5-80gb than the 1 that you own, all a100-sxm4-80gb.",
    )
    written = " ".join(re.findall(r"<!-- ([^>]*) -->", drawn.data("svg").decode())).replace("\n", " ")
    assert all(words in written for words in (*drawn.chart.remarks, owned.mark.label))


def test_nodes_of_what_cannot_be_planned() -> None:
    """A model that cannot be read has a cell on every node; two configs without names are two rows; a model without weights is unknown."""
    config = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    drawn = hwcalc.plot([QWEN, "no/such-model"], kind="nodes", gpu="h100,2xl40s", engine="vllm", seq="8k", offline=True)
    twins = hwcalc.plot([config, config], kind="nodes", gpu="h100", seq="1k").chart.cells

    assert [cell.why for cell in drawn.chart.cells] == ["", "", "does not run", "does not run"]
    assert drawn.text(100).count("does not run") == 2
    assert [cell.row for cell in twins] == [0, 1]
    equation = hwcalc.plot((), kind="nodes", gpu="h100", seq="1k", layers=32, heads=32, head_dim=128).chart.cells
    assert [cell.why for cell in equation] == ["unknown"]


def test_a_notebook_shows_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last line of a cell is the picture itself, and where nothing draws it one short line."""
    drawn = picture("layers")

    assert repr(drawn) == "<Picture: Cache of each layer at 8,192 tokens>"
    svg = drawn._repr_svg_()
    assert svg is not None
    assert ET.fromstring(svg).tag.endswith("svg")  # noqa: S314 - our own file
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert drawn._repr_svg_() is None


@pytest.mark.parametrize(("model", "seq"), [("state-spaces/mamba-1.4b-hf", "64k"), (QWEN, 1), (QWEN, 16), (QWEN, 32)])
def test_what_is_level_or_short_has_a_scale(capsys: Capture, model: str, seq: str | int) -> None:
    """A state that never grows, or a few tokens: the axis has sizes, and the drawing library says nothing of its own."""
    text = hwcalc.plot(model, seq=seq).text(80)

    assert text.count("iB┤") >= 1
    assert "A" in text.split("  A  ")[0].split("length", 1)[1].split("bytes of")[0]
    assert capsys.readouterr() == ("", "")


def test_the_command_writes_a_file(capsys: Capture, tmp_path: Path) -> None:
    """The format is that of the suffix; a wrong one writes nothing."""
    target = tmp_path / "memory.svg"

    status, out, said = run(capsys, "plot", QWEN, "--seq", "4k", "-o", str(target))
    assert (status, out) == (0, "")
    assert said.startswith(f"kvplan: wrote {str(target)!r}: ")
    assert target.read_bytes() == hwcalc.plot(QWEN, seq="4k").data("svg")
    status, _, said = run(capsys, "plot", QWEN, "-o", str(tmp_path / "memory.gif"))
    assert (status, [path.name for path in tmp_path.iterdir()]) == (2, ["memory.svg"])
    assert ".png, .svg, .pdf" in said


def test_in_the_terminal(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a file it is drawn on standard output; ``--plot`` draws it below a plan."""
    monkeypatch.setenv("COLUMNS", "80")
    status, alone, _ = run(capsys, "plot", QWEN, "--seq", "4k")
    assert status == 0
    assert "A  Qwen/Qwen3-8B" in alone
    assert run(capsys, "plot", "layers", QWEN, "--seq", "4k")[1] == hwcalc.plot(QWEN, kind="layers", seq="4k").text(80)

    status, below, _ = run(capsys, QWEN, "--seq", "4k", "--plot")
    assert status == 0
    assert "KV cache" in below
    assert "cache against sequence length" in below
    assert run(capsys, QWEN, "--plot", "--json")[0] == 2
    assert run(capsys, "-", "--plot")[0] == 2


@pytest.mark.parametrize(("package", "words"), [("matplotlib", ("-o", "x.png")), ("plotext", ())])
def test_what_is_not_installed(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, package: str, words: tuple[str, ...]
) -> None:
    """The error has the command that installs it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    status, out, said = run(capsys, "plot", QWEN, "--seq", "4k", *words)

    assert (status, out, list(tmp_path.iterdir())) == (2, "", [])
    assert "pip install 'hwcalc[plot]'" in said
