"""Policies and sharing of bad will in every command that takes them: a documented status, one short message, and no sign that acts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from hwcalc import load_model
from hwcalc.planner.asked import read_options
from hwcalc.planner.context import open_request
from hwcalc.units import MOST_TOKENS
from tests.hwcalc.check.files import check_file, tiny_model
from tests.hwcalc.command import Capture, run


def nested(depth: int) -> str:
    """So many policies around one."""
    text = "knorm"
    for _ in range(depth):
        text = f"composed:presses=[({text})]"
    return text


WRONG: Final = {
    "deep": nested(9),
    "deepest": nested(2000),
    "long": "x" * 100_001,
    "options": "snapkv:" + ",".join(f"a{number}=1" for number in range(9000)),
    "nan": "knorm:compression_ratio=nan",
    "infinite": "knorm:compression_ratio=1e999",
    "negative": "knorm:compression_ratio=-0.5",
    "all": "knorm:compression_ratio=1",
    "huge": "rkv:budget=99999999999999999999",
    "twice": "knorm:compression_ratio=0.5,compression_ratio=0.6",
    "json twice": '["knorm", {"compression_ratio": 0.5, "compression_ratio": 0.7}]',
    "json nan": '["snapkv", {"compression_ratio": NaN}]',
    "json deep": "[" * 5000,
    "cyrillic": "sn\u0430pkv:compression_ratio=0.5",
    "digits": "knorm:compression_ratio=\u0660.\u0665",
    "control": "knorm\x1b[31m:compression_ratio=0.5",
    "bell": "\x07",
    "zero": "kn\0rm",
    "surrogate": "kn\udcffrm",
    "annotation": "knorm:compression_ratio=0.5\n::error::x",
    "no key": "knorm:=0.5",
    "brackets": ")(",
    "many": f"composed:presses=[{','.join(['(knorm)'] * 33)}]",
    "empty": " ",
}
COMMANDS: Final = {
    "plan": ["{}"],
    "explain": ["explain", "{}"],
    "compare": ["compare", "{}"],
    "sweep": ["sweep", "{}"],
    "diff": ["diff", "{}", "{}"],
    "recommend": ["recommend", "{}", "--gpu", "l4"],
    "probe": ["probe", "{}", "--device", "cpu"],
}


def refused(capsys: Capture, words: list[str]) -> str:
    """The message of a line that must be refused as wrong usage."""
    status, out, err = run(capsys, *words)

    assert (status, out) == (2, "")
    assert "internal error" not in err
    assert all(letter.isprintable() or letter == "\n" for letter in err)
    assert not any(line.startswith("::") for line in err.splitlines())
    assert len(err) < 2000
    return err


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A model that is read in no time."""
    return str(tiny_model(tmp_path))


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_policy(capsys: Capture, model: str, command: str, text: str) -> None:
    """Wrong usage, whatever the command."""
    words = [model if word == "{}" else word for word in COMMANDS[command]]
    refused(capsys, [*words, "--seq", "64", f"--policy={text}"])


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_a_wrong_policy_in_a_check(capsys: Capture, tmp_path: Path, text: str) -> None:
    """A fault of the file; a file with a letter that is none cannot be read at all."""
    path = check_file(tmp_path, {"model": "./tiny", "seq": 64, "policy": text, "max_cache": 1})
    status, out, _ = run(capsys, "check", path, "--json")

    assert status == (3 if "\udcff" in text else 2)
    assert [check["status"] for check in json.loads(out)["checks"]] == ["error"]
    _, out, err = run(capsys, "check", path, "--format", "github")
    assert len([line for line in out.splitlines() if line.startswith("::error")]) == 1
    assert "\x1b" not in out + err


@pytest.mark.parametrize(
    "words",
    [
        ["--samples", "0"],
        ["--samples", "-3"],
        ["--samples", "nan"],
        ["--samples", "2000G"],
        ["--beams", "1.5"],
        ["--shared-prefix", "-1"],
        ["--shared-prefix", "x" * 100_000],
        ["--prompt", "0"],
        ["--prompt", "1e9"],
        ["--policy-rules", "\x1b[31m", "--policy", "knorm"],
        ["--policy-rules", "paper"],
        ["--compaction", "x" * 100_000, "--policy", "knorm"],
        ["--compaction", "fill"],
    ],
    ids=lambda words: " ".join(words)[:30],
)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_number_or_word(capsys: Capture, model: str, command: str, words: list[str]) -> None:
    """Wrong usage."""
    own = [model if word == "{}" else word for word in COMMANDS[command]]
    refused(capsys, [*own, "--seq", "64", *words])


@pytest.mark.parametrize("engine", ["reference", "transformers", "vllm", "llamacpp"])
@pytest.mark.parametrize(
    "policy",
    [
        "knorm:compression_ratio=0.5",
        "adakv:press=(knorm:compression_ratio=0.5)",
        "compressionratiodecoding:base_press=knorm,compression_interval=1",
        "decoding:base_press=knorm,compression_interval=1,target_size=1",
        "rkv:budget=1024G",
        "quest",
    ],
)
def test_the_longest_sequence(capsys: Capture, model: str, engine: str, policy: str) -> None:
    """An answer, or an error that says why not; at once."""
    line: list[Any] = [model, "--seq", MOST_TOKENS, "--prompt", 1, "--policy", policy, "--engine", engine]
    status, _, err = run(capsys, *map(str, line))

    assert status in {0, 2, 3}, err


@pytest.mark.parametrize("engine", ["reference", "transformers", "vllm", "llamacpp"])
@pytest.mark.parametrize("line", ["--seq 64", "--seq 1m --prompt 64 --gpu l4", "--seq 64 --users 4 --gpu l4 --shared-prefix 8"])
def test_a_layer_of_which_nothing_is_left(capsys: Capture, model: str, engine: str, line: str) -> None:
    """A ratio of its own may drop all of a layer: kvpress then indexes no token."""
    policy = "perlayercompression:press=(knorm:compression_ratio=0.5),compression_ratios=[1,1]"
    status, out, err = run(capsys, model, *line.split(), "--engine", engine, "--policy", policy, "--json")

    assert status == 0, err
    plan = json.loads(out)
    if line == "--seq 64" and engine in {"reference", "transformers"}:
        assert plan["cache"]["total_bytes"] == 0


@pytest.mark.parametrize("engine", ["reference", "transformers", "vllm", "llamacpp"])
@pytest.mark.parametrize(
    "policy", ["observedattention", "knorm:compression_ratio=0.5", "h2o:budget=1m", "quest", "rkv:budget=16"]
)
def test_lengths_that_are_all_prefix(model: str, engine: str, policy: str) -> None:
    """A search for the longest sequence tries ones of which a policy has nothing to act on: they are not larger than longer ones."""
    line = {"seq": 64, "batch": 2, "shared_prefix": 4, "policy": policy, "engine": engine, "gpu": "rtx-4090"}
    opened = open_request(load_model(model), **read_options(line).keywords())
    sizes = []
    for seq in range(1, 9):
        shorter = opened.sized(seq=seq)
        sizes.append(shorter.needed_bytes)
        assert shorter.budget

    assert sizes == sorted(sizes)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_model_of_states_alone(capsys: Capture, command: str) -> None:
    """A policy has no layer to act on."""
    own = ["state-spaces/mamba-2.8b-hf" if word == "{}" else word for word in COMMANDS[command]]
    status, _, err = run(capsys, *own, "--seq", "64", "--policy", "knorm:compression_ratio=0.5")

    assert status in {0, 1, 2, 3}, err
    assert "internal error" not in err
