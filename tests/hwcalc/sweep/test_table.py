"""A sweep on a terminal: a table of the points that are told apart, with the verdict."""

from __future__ import annotations

import json
import re

import pytest

from hwcalc.report import sweep as report
from hwcalc.units import human_bytes
from tests.hwcalc.command import QWEN, Capture, run

GRID = ("sweep", QWEN, "--seq", "8k..32k", "--dtype", "bf16,fp8", "--gpu", "l4")


def test_the_table_has_the_points_of_the_document(capsys: Capture) -> None:
    """Length, format, verdict and cache of each; what all share stands above."""
    status, out, err = run(capsys, *GRID, "--format", "table")
    points = json.loads(run(capsys, *GRID, "--json")[1])["points"]
    first, *rows = [line for line in out.splitlines() if re.search(r"GiB|MiB|verdict", line)][: len(points) + 1]

    assert (status, err) == (0, "")
    assert out.splitlines()[0] == f"{QWEN} · reference · l4 · batch 1"
    assert first.split()[:3] == ["KV", "dtype", "tokens"]
    assert len(rows) == len(points) == 6
    for row, point in zip(rows, points, strict=True):
        assert row.startswith(point["dtype"])
        assert f"{point['seq']:,}" in row
        assert human_bytes(point["cache_total_bytes"]) in row
        assert ("probably fits" if point["fits"] == "probably" else "fits") in row


def test_a_terminal_gets_the_table_and_a_pipe_csv(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """As documented; a file by its suffix, and no table in one."""
    assert run(capsys, *GRID)[1].startswith("model,engine,")
    monkeypatch.setattr("hwcalc.cli.sweep.on_terminal", lambda: True)
    assert run(capsys, *GRID) == run(capsys, *GRID, "--format", "table")
    assert run(capsys, *GRID, "--format", "csv")[1].startswith("model,engine,")
    assert run(capsys, *GRID, "--format", "table", "-o", "points.txt")[0] == 2


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_no_line_is_longer_than_the_terminal(capsys: Capture, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """Columns that have no room are named; the verdict is there."""
    monkeypatch.setenv("COLUMNS", str(columns))
    out = run(capsys, *GRID, "--format", "table", "--engine", "vllm")[1]

    assert max(map(len, out.splitlines())) <= columns
    assert "verdict" in out
    assert ("Left out at this width: " in out) == (columns < 100)


def test_a_long_table_ends(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """All points are planned, the first are shown, and how to get the others is said; a point that fails says why."""
    monkeypatch.setattr(report, "MOST_ROWS", 4)
    out = run(capsys, *GRID, "--format", "table")[1]
    assert "2 more points: -o points.csv, or --format csv." in out

    out = run(capsys, "sweep", QWEN, "EleutherAI/gpt-neo-2.7B", "--engine", "vllm", "--seq", "1k", "--format", "table")[1]
    assert "not planned" in out
