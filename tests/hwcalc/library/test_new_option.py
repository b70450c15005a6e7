"""The recipe for a new option, followed to the letter: a row and a use, in a copy of the program, and every command has the option."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.hwcalc.command import QWEN
from tests.paths import ROOT

RESERVED: Final = 3 * 2**30
Ask = Callable[..., str]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Runs Python in a copy of the program to which the lines of the recipe are added."""
    root = tmp_path_factory.mktemp("with-a-new-option")
    for folder in ("formulas", "hwcalc", "profiles"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    edits = re.findall(r"(?ms)^ +```diff\n(.*?)^ +```", (ROOT / "hwcalc" / "cli" / "README.md").read_text(encoding="utf-8"))
    assert len(edits) == 2, "a row and a use"
    for edit in edits:
        name, *lines = textwrap.dedent(edit).splitlines()
        before, after = ("".join(f"{line[1:]}\n" for line in lines if line[0] in signs) for signs in (" -", " +"))
        path = root / name.removeprefix("+++ ")
        text = path.read_text(encoding="utf-8")
        assert text.count(before) == 1
        path.write_text(text.replace(before, after), encoding="utf-8")

    def answer(*words: str, status: tuple[int, ...] = (0,)) -> str:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("KVPLAN")} | {
            "PYTHONPATH": str(root)
        }
        done = subprocess.run(
            [sys.executable, *words], capture_output=True, text=True, encoding="utf-8", cwd=root, check=False, env=environment
        )
        assert done.returncode in status, done.stderr
        return done.stdout

    return answer


def test_every_command_has_it(ask: Ask) -> None:
    """Plan, sweep and compare take as much less for the cache, whoever asks; without it all is as before."""
    line = (QWEN, "--seq", "4k", "--gpu", "l4", "--json")
    plain, less = (json.loads(ask("-m", "hwcalc", *line, *more)) for more in ((), ("--reserve", "3GiB")))
    swept, compared = (json.loads(ask("-m", "hwcalc", name, *line, "--reserve", "3GiB")) for name in ("sweep", "compare"))

    assert less["fit"]["headroom_bytes"] == plain["fit"]["headroom_bytes"] - RESERVED
    assert less["fit"]["max_batch"] < plain["fit"]["max_batch"]
    assert {part["name"]: part["expected"] for part in less["memory"]["overhead"]["parts"]}["reserve"] == RESERVED
    assert (
        swept["points"][0]["total_per_gpu_bytes"]
        == less["memory"]["per_gpu"]["total"]
        == plain["memory"]["per_gpu"]["total"] + RESERVED
    )
    assert compared["variants"][0]["max_batch"] == less["fit"]["max_batch"]


def test_the_help_and_written_lines_say_it(ask: Ask) -> None:
    """Its text, its group, and in what is offered instead of a plan that does not fit."""
    assert "Bytes of each GPU for other programs" in " ".join(ask("-m", "hwcalc", "plan", "--help-all").split())
    assert "--reserve 9GiB" in ask("-m", "hwcalc", QWEN, "--gpu", "l4", "--reserve", "9GiB", "--seq", "4k", status=(1,))
    assert ask("-m", "hwcalc", "fit", "--reserve", "1GiB", status=(2,)) == ""


def test_check_files_and_the_library_take_it(ask: Ask, tmp_path: Path) -> None:
    """As a key, in the schema, and as a keyword of the functions, which say so."""
    path = tmp_path / "checks.yaml"
    path.write_text(
        f"schema_version: 1\nchecks:\n- {{model: {QWEN}, seq: 4k, gpu: l4, reserve: 3GiB, headroom: 1GiB}}\n", encoding="utf-8"
    )
    code = f"""
import inspect, hwcalc
from hwcalc.check.fields import check_file_schema
assert "reserve" in check_file_schema()["properties"]["defaults"]["properties"]
assert all("reserve" in inspect.signature(function).parameters for function in (hwcalc.plan, hwcalc.compare, hwcalc.recommend))
print(hwcalc.plan("{QWEN}", seq=4096, gpu="l4", reserve="3GiB").fit.headroom_bytes)
"""
    bytes_free = int(ask("-c", code))
    assert (
        json.loads(ask("-m", "hwcalc", "check", str(path), "--json", status=(0, 1)))["checks"][0]["plan"]["fit"]["headroom_bytes"]
        == bytes_free
    )
