"""Sweeps are limited by what they cost: an estimate beforehand, a limit with an option, and one document whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from math import inf
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from hwcalc import sweep
from hwcalc.errors import UsageError
from hwcalc.sweep.rows import blocks, parse_time
from tests.hwcalc.command import Capture, run

QWEN = "Qwen/Qwen3-8B"


def test_many_cheap_points_are_cheap() -> None:
    """A hundred million points of the formulas take minutes; as many that are planned one by one take a day."""
    seq, batch = "1..100000:1", "1..1000:1"

    assert len(sweep(QWEN, seq=seq, batch=batch)) == 100_000_000
    with pytest.raises(UsageError, match=r"100,000,000 points, which would take .* (h|days) or more") as caught:
        sweep(QWEN, seq=seq, batch=batch, engine="vllm", kv_memory="8GiB", shared_prefix=1)
    assert "--max-time" in caught.value.hint


def test_the_limit_can_be_lower_and_higher() -> None:
    """By the user's own word."""
    with pytest.raises(UsageError, match="is allowed"):
        sweep(QWEN, seq="1..1000000:1", batch="1..100:1", max_time="10s")
    with pytest.raises(UsageError, match="is allowed"):
        sweep(QWEN, seq="1..1000000:1", batch="1..1000000:1")
    assert sweep(QWEN, seq="1..1000000:1", batch="1..100000:1", max_time="30d").seconds > 3600


@pytest.mark.parametrize("text", ["", "0", "-1", "1y", "nan", "inf", "1e3", "9" * 5000, "\u0661", "1h\0", "367d"])
def test_no_length_of_time(text: str) -> None:
    """Each is wrong usage."""
    with pytest.raises(UsageError):
        parse_time(text)


def test_an_estimate_is_near() -> None:
    """Not in another unit, and not of another number of points. How near it is depends on what else the machine does."""
    rows = sweep(QWEN, seq="1..400:1", engine="vllm", kv_memory="8GiB")
    took = inf
    # The first time loads modules, and another process may take the processor.
    for _ in range(5):
        begun = time.perf_counter()
        for _ in rows.blocks():
            pass
        took = min(took, time.perf_counter() - begun)

    assert took / 25 < rows.seconds < took * 25


@pytest.mark.parametrize("seconds", [0.0, 0.5])
def test_an_interrupted_document_is_an_error_document(tmp_path: Path, seconds: float) -> None:
    """Never half a document. Ctrl-C comes some time after the sweep has said how long it takes."""
    many = (
        QWEN,
        "--offline",
        "--engine",
        "vllm",
        "--kv-memory",
        "8GiB",
        "--shared-prefix",
        "1",
        "--seq",
        "1..1000000:1",
        "--max-time",
        "30d",
        "--json",
    )
    command = [sys.executable, "-m", "hwcalc", "sweep", *many]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)

    assert said.startswith(b"kvplan: 1,000,000 points, about ")
    assert process.returncode == 130
    assert json.loads(out)["error"] == {
        "code": 130, "type": "interrupted", "message": "the command was interrupted.", "hint": ""
    }  # fmt: skip
    assert b"Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_the_middle_is_an_error_document(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows before it are not printed."""

    def broken(grid: Any, *_: Any) -> Any:
        yield from blocks(grid)
        raise UsageError("the disk is gone.")

    monkeypatch.setattr("hwcalc.sweep.rows.blocks", broken)
    status, out, _ = run(capsys, "sweep", QWEN, "--seq", "8,16", "--json")

    assert status == json.loads(out)["error"]["code"] == 2


def test_a_model_that_cannot_be_read_does_not_end_the_others(capsys: Capture) -> None:
    """It is a row with its reason, also where nobody asked to go on."""
    status, out, err = run(capsys, "sweep", "no/model", QWEN, "--offline", "--seq", "8", "--format=JSON")
    missing, planned = json.loads(out)["points"]

    assert (status, missing["model"], planned["model"], planned["error"]) == (0, "no/model", QWEN, None)
    assert "no/model" in missing["error"] in err.replace("\n", " ")
    assert run(capsys, "sweep", "no/model", "--offline", "--seq", "8")[:2] == (3, "")


@pytest.mark.parametrize("format_", ["csv", "jsonl", "json"])
def test_rows_into_devices_and_pipes(capsys: Capture, tmp_path: Path, format_: str) -> None:
    """What is no regular file is written directly."""
    words = ("sweep", QWEN, "--seq", "8", "--format", format_, "--output")
    assert run(capsys, *words, "/dev/null")[:2] == (0, "")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = Thread(target=lambda: read.append(pipe.read_text(encoding="utf-8")), daemon=True)
    reader.start()
    assert run(capsys, *words, str(pipe))[0] == 0
    reader.join(10)

    assert QWEN in read[0]
    assert list(tmp_path.iterdir()) == [pipe]
