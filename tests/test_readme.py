"""The README is true: its figures are those of the tests, its first commands do what they should, and no command is missing."""

from __future__ import annotations

import json
import re
from typing import Final

import pytest

from hwcalc import load_model, plan
from hwcalc.cli.options import COMMANDS
from scripts.examples import pages
from tests.hwcalc.command import Capture, run
from tests.hwcalc.engines import test_golden_transformers as golden
from tests.hwcalc.parsers.weights import test_golden_parameters as parameters
from tests.paths import ROOT

README: Final = (ROOT / "README.md").read_text(encoding="utf-8")
ACCURACY: Final = (ROOT / "docs/accuracy.md").read_text(encoding="utf-8")
EVERYTHING: Final = "\n".join(page.read_text(encoding="utf-8") for page in pages())
TOKENS: Final = 32_768

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


def test_first_command_is_the_main_job_and_the_second_the_tests() -> None:
    """A newcomer types two commands."""
    blocks = re.findall(r"```(?:console|sh)\n(?:\$ )?([^\n]*)", README)

    words = "Qwen/Qwen3-8B --engine vllm --gpu h100 --seq 32k"
    assert blocks[0] == f"pip install . && kvplan {words}"
    assert f'bin/kvplan" {words}\n' in (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert blocks[1].endswith("python -m pytest -q")


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

    assert f"{len(rows)} rows of {types} model types | {dynamic:,} | {dynamic:,} |" in ACCURACY
    assert f"| {dynamic:,} | {dynamic:,} |" in README
    assert f"| {static:,} | {static - len(golden.KNOWN_MISSES):,} |" in ACCURACY
    assert f"| {packed} | {packed} |" in ACCURACY
    counted = len(parameters.rows())
    for page in (README, ACCURACY):
        assert f"| {counted} | {counted - len(parameters.KNOWN_MISSES)} |" in page


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_shown(capsys: Capture, name: str) -> None:
    """Each command appears on a page and has help."""
    assert f"kvplan {name}" in EVERYTHING or name == "plan"
    status, out, _ = run(capsys, name, "--help")
    assert (status, out[:14]) == (0, "Usage: kvplan ")
