"""The benchmark of start-up measures what the README shows, and the fit of speeds finds what rows were made with."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from benchmarks.startup import COMMANDS as MEASURED
from hwcalc.cli.options import COMMANDS
from scripts.examples import ROOT
from scripts.fit_speed import main as fit


def test_the_first_command_of_the_readme_is_measured() -> None:
    """What stands behind the installation."""
    [first] = re.findall(r"^pip install \. && kvplan (.*)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)

    assert first in {line for line, _ in MEASURED}


def test_every_command_is_measured() -> None:
    """But for those that allocate on a device or draw with another package."""
    first = {shlex.split(line)[0] for line, _ in MEASURED}

    assert set(COMMANDS) - first == {"plan", "plot", "probe"} - first


def test_the_fit_finds_the_share_of_the_bandwidth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tokens of Llama-3.1-8B in 16 bits on three cards, by pages of their own: all weights but the embedding, at six tenths of the bandwidth.

    So are they expected by all rows, without the part of a row, and without its source.
    """
    read = 2 * (8_030_261_248 - 128_256 * 4096)
    row: dict[str, Any] = {
        "engine": "llama.cpp",
        "model": "meta-llama/Llama-3.1-8B",
        "weight_dtype": "f16",
        "kv_dtype": "16bit",
        "metric": "decode_tps",
    }
    row |= {"prompt": 1, "output": 128, "depth": 0, "batch": 1, "flags": [], "class": "local nvidia", "moe": False}
    rows = [
        row | {"id": place, "source": f"page {place}", "gpu": gpu, "value": 0.6 * gbps * 1e9 / read}
        for place, (gpu, gbps) in enumerate({"rtx-3090": 936, "rtx-5090": 1792, "rtx-a6000": 768}.items())
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")

    assert fit([str(file)]) == 0
    [line] = re.findall(r"^llamacpp-nvidia +decode +3 +3 .*$", capsys.readouterr().out, re.MULTILINE)
    errors = [float(error) for error in re.findall(r"([\d.]+)% \d\.\d\d", line)]
    assert errors == [pytest.approx(0, abs=5)] * 3
