"""A number that follows from a reconstructed config says so by its definition, wherever it is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from hwcalc import compare, load_model, plan
from hwcalc.model import Definition
from hwcalc.profiles.catalog import list_models
from hwcalc.report.summary import footnotes
from hwcalc.report.view import View
from tests.catalog import find_model
from tests.effort import sample
from tests.hwcalc.command import Capture, run

RECONSTRUCTED: Final = "01-ai/Yi-1.5-9B"
PUBLISHED: Final = "Qwen/Qwen3-8B"


@pytest.mark.parametrize("model_id", sample(list_models(), 120))
def test_the_whole_catalog(model_id: str) -> None:
    """Only an entry that says it is published is called exact. What may say so by its source: ``tests/profiles/test_catalog.py``."""
    entry = find_model(model_id)
    assert entry is not None
    expected = Definition.EXACT if entry["fidelity"].startswith("published") else Definition.RECONSTRUCTED
    model = load_model(model_id)

    assert expected == plan(model, seq=64, encoder_seq=8, dtype="bf16").cache.definition
    assert model.counted is None or expected == (model.parameters and model.parameters.definition)


@pytest.mark.parametrize(("model_id", "word"), [(RECONSTRUCTED, "reconstructed"), (PUBLISHED, "engine")])
def test_every_section_of_a_plan(model_id: str, word: str) -> None:
    """Cache, pool and the weights of the budget; what the GPU adds keeps its own word."""
    document = plan(model_id, seq=2048, engine="vllm", gpu="l4").to_dict()
    parts = {part["name"]: part["definition"] for part in document["fit"]["budget"]["parts"]}

    assert word == document["cache"]["definition"] == document["memory"]["cache"]["definition"] == document["pool"]["definition"]
    assert ("exact" if word == "engine" else word) == parts["weights"] == document["model"]["parameters"]["definition"]
    assert "estimate" == parts["activations"]


@pytest.mark.parametrize("format_", ["table", "markdown", "csv", "json"])
def test_every_format(capsys: Capture, format_: str) -> None:
    """None calls it exact."""
    _, out, _ = run(capsys, RECONSTRUCTED, "--seq", "2k", "--format", format_)

    assert "reconstructed" in out.lower()
    assert "exact: " not in out
    assert "(exact)" not in out
    assert '"exact"' not in out
    assert ",exact," not in out


COMMANDS: Final = {
    "explain": (RECONSTRUCTED,),
    "compare": (RECONSTRUCTED, PUBLISHED),
    "diff": (PUBLISHED, RECONSTRUCTED),
    "recommend": (RECONSTRUCTED, "--limit", "1"),
    "check": (),
}
FORMATS: Final = [
    (command, format_)
    for command in COMMANDS
    for format_ in ("table", "markdown", "csv", "json")
    if (command, format_) != ("recommend", "csv")
]
"""The rows of a recommendation are accelerators."""


@pytest.mark.parametrize(("command", "format_"), FORMATS)
def test_every_command(capsys: Capture, tmp_path: Path, command: str, format_: str) -> None:
    """Each tells it in each format; no line of a published model is called so."""
    path = tmp_path / "kvplan.yaml"
    checks = "".join(f"  - {{model: {model}, max_cache: 1GiB}}\n" for model in (PUBLISHED, RECONSTRUCTED))
    path.write_text(f"schema_version: 1\ndefaults: {{seq: 2k}}\nchecks:\n{checks}", encoding="utf-8")
    words = (str(path),) if command == "check" else (*COMMANDS[command], "--seq", "2k")
    status, out, err = run(capsys, command, *words, "--format", format_)
    told = [line for line in out.splitlines() if "reconstructed" in line.lower()]

    assert 0 == status, err
    assert told
    if format_ != "json":
        assert PUBLISHED not in "".join(told)


@pytest.mark.parametrize("format_", ["table", "markdown"])
@pytest.mark.parametrize(
    ("command", "models"), [("compare", (PUBLISHED, "Qwen/Qwen3-32B")), ("diff", (PUBLISHED, "Qwen/Qwen3-32B"))]
)
def test_no_footnote_without_need(capsys: Capture, command: str, models: tuple[str, ...], format_: str) -> None:
    """Where all configs are as published there is none."""
    assert "reconstructed" not in run(capsys, command, *models, "--seq", "2k", "--format", format_)[1].lower()


def test_many_models_have_one_footnote() -> None:
    """It names five, and says how many more there are."""
    names = [(f"a/{number}", definition) for number in range(7) for definition in ("reconstructed", "exact")]

    assert "(a/0, a/1, a/2, a/3, a/4 and 2 more)" in footnotes(names, View(width=200))
    assert "ASSUMED: " in footnotes([("a/b", "assumed")], View())
    assert "" == footnotes([("a/b", "exact"), ("a/c", None)], View(format="markdown"))


def test_check_compare_and_sweep(capsys: Capture, tmp_path: Path) -> None:
    """The definition stands beside the bytes in each of them, and a lock keeps it."""
    path = tmp_path / "kvplan.yaml"
    path.write_text(f"schema_version: 1\nchecks:\n  - {{model: {RECONSTRUCTED}, seq: 2k, max_cache: 1GiB}}\n", encoding="utf-8")

    def checked() -> str:
        status, out, err = run(capsys, "check", str(path), "--format", "json")
        assert 0 == status, err
        found: str = json.loads(out)["checks"][0]["plan"]["definition"]
        return found

    assert "reconstructed" == checked()
    assert 0 == run(capsys, "check", str(path), "--lock")[0]
    assert "reconstructed" == checked()
    both = compare([RECONSTRUCTED, PUBLISHED], seq=2048).variants
    assert ["reconstructed", "exact"] == [variant.definition for variant in both]
    _, out, _ = run(capsys, "sweep", RECONSTRUCTED, PUBLISHED, "--seq", "2k", "--format", "jsonl")
    assert ["reconstructed", "exact"] == [json.loads(line)["definition"] for line in out.splitlines()]


def test_a_file_of_ones_own_is_what_it_is() -> None:
    """The same config as a file was not reconstructed by the catalog."""
    assert "exact" == plan(dict(load_model(RECONSTRUCTED).config), seq=64).cache.definition
