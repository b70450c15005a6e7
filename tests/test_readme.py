"""The README is true: its examples print what it shows, its figures are those of the tests, and no command is missing."""

from __future__ import annotations

import doctest
import json
import os
import re
import shlex
import subprocess
import sys
from typing import Final

import pytest

from hwcalc import load_model, plan
from hwcalc.cli.options import COMMANDS
from tests.hwcalc.engines import test_golden_transformers as golden
from tests.hwcalc.parsers.weights import test_golden_parameters as parameters
from tests.paths import ROOT

README: Final = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES: Final = re.findall(r"```console\n\$ (kvplan[^\n]*)\n(.*?)```", README, re.DOTALL)
TOKENS: Final = 32_768
WISHES: Final = ("FORCE_COLOR", "NO_COLOR")
ENVIRONMENT: Final = {
    **{name: value for name, value in os.environ.items() if name not in WISHES},
    "PYTHONIOENCODING": "utf-8",
    "COLUMNS": "100",
}
"""The examples show what a terminal of 100 columns shows."""
HERE: Final = re.compile(r"(?<=--gpu )\S+(?: --gpus 8)?\s+\(?whether it fits.*")
"""What depends on the machine: one with a GPU is offered its own."""

# Row of the table, and the model it speaks of.
FACTORS: Final = {
    "Falcon-7B": "tiiuae/falcon-7b",
    "DeepSeek-V3": "deepseek-ai/DeepSeek-V3",
    "Gemma-3-27B": "google/gemma-3-27b-it",
    "Qwen3-Next-80B": "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "gpt-oss-20b": "openai/gpt-oss-20b",
    "Qwen3-4B": "Qwen/Qwen3-4B",
}


def usual_formula(model_id: str) -> int:
    """2 x layers x key/value heads x head_dim x tokens x 2 bytes, by the config's plain keys."""
    config = load_model(model_id).config
    text = config.get("text_config", config)
    heads = text["num_attention_heads"]
    kv_heads = text.get("num_kv_heads") or text.get("num_key_value_heads") or heads
    # Qwen3 is where head_dim itself is what the formula gets wrong.
    head_dim = text.get("head_dim") if text["model_type"] != "qwen3" else None
    return int(2 * text["num_hidden_layers"] * kv_heads * (head_dim or text["hidden_size"] // heads) * TOKENS * 2)


@pytest.mark.parametrize(("command", "shown"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_example(command: str, shown: str) -> None:
    """A command prints what the README shows below it, standard error included."""
    done = subprocess.run(
        [sys.executable, "-m", "hwcalc", *shlex.split(command)[1:]],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=60,
    )

    assert HERE.sub("", shown).rstrip("\n") == HERE.sub("", done.stdout + done.stderr).rstrip("\n")


def test_first_command_is_the_main_job_and_the_second_the_tests() -> None:
    """A newcomer types two commands."""
    blocks = re.findall(r"```(?:console|sh)\n(?:\$ )?([^\n]*)", README)

    assert blocks[0] == "kvplan Qwen/Qwen3-8B --seq 32k --dtype fp8"
    assert blocks[1].endswith("python -m pytest -q")


def test_python_examples() -> None:
    """The Python examples hold."""
    results = doctest.testfile(str(ROOT / "README.md"), module_relative=False, optionflags=doctest.ELLIPSIS)

    assert results.attempted > 0
    assert results.failed == 0


@pytest.mark.parametrize("name", FACTORS)
def test_factor(name: str) -> None:
    """The usual formula is off by what the table says."""
    row = next(line for line in README.splitlines() if line.startswith(f"| {name} |"))
    said = float(row.split("|")[3].replace("\N{MULTIPLICATION SIGN}", ""))
    exact = plan(FACTORS[name], seq=TOKENS, dtype="bf16").cache.total_bytes

    assert said == pytest.approx(usual_formula(FACTORS[name]) / exact, rel=0.05)


def test_accuracy_figures() -> None:
    """The accuracy table counts the golden rows as they are."""
    rows = golden.rows().values()
    dynamic = sum(len(row["total_bytes"]) for row in rows)
    static = sum(len(row["static_total_bytes"]) for row in rows)
    types = len({row["model_type"] for row in rows})
    packed = len(json.loads((ROOT / "tests/golden/transformers_quantized.json").read_text(encoding="utf-8"))["cases"])

    assert f"{len(rows)} rows of {types} model types | {dynamic:,} | {dynamic:,} |" in README
    assert f"| {static:,} | {static - len(golden.KNOWN_MISSES):,} |" in README
    assert f"| {packed} | {packed} |" in README
    counted = len(parameters.rows())
    assert f"| {counted} | {counted - len(parameters.KNOWN_MISSES)} |" in README


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_shown(name: str) -> None:
    """Each command appears in the README and has help."""
    assert f"kvplan {name}" in README or name == "plan"
    done = subprocess.run(
        [sys.executable, "-m", "hwcalc", name, "--help"], capture_output=True, encoding="utf-8", check=True, timeout=60
    )
    assert done.stdout.startswith("Usage: kvplan ")
