"""Faults of a check file as a person sees them: all at once, each at its own line, each said once."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.hwcalc.command import Capture, run

BAD = """schema_version: 1
defaults:
  engine: vlm
  gpu: h10
checks:
  - name: a
    modl: Qwen/Qwen3-8B
    seq: lots
  - name: b
    model: Qwen/Qwen3-8B
    gpu: h10x
    colour: red
"""
NAMES = """schema_version: 1
defaults: {engine: vllm, gpu: h10, seq: 4k}
checks:
  - {name: a, model: Qwen/Qwen3-8B}
  - {name: b, model: Qwen/Qwen3-8B, gpu: l4}
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.yaml").write_text(BAD, encoding="utf-8")
    Path("names.yaml").write_text(NAMES, encoding="utf-8")


def test_all_faults_come_at_once(capsys: Capture) -> None:
    """Names of engines and hardware with keys and values, those of the defaults at their own lines."""
    status, out, _ = run(capsys, "check", "bad.yaml")
    places = re.findall(r"^ERROR +bad[.]yaml:(\d+):\d+\n +(.*)$", out, re.MULTILINE)

    assert status == 2
    assert places == [
        ("3", "--engine 'vlm' is not known."),
        ("4", "--gpu 'h10' is not known."),
        ("7", "a check has no key 'modl'."),
        ("8", "seq is not a number: 'lots'."),
        ("11", "--gpu 'h10x' is not known."),
        ("12", "a check has no key 'colour'."),
    ]
    assert "names no model" not in out


def test_a_place_is_said_once(capsys: Capture) -> None:
    """The place of a fault is its name. In JUnit a file that cannot be used is one case, with each place."""
    table, junit = (run(capsys, "check", "bad.yaml", "--format", form)[1] for form in ("table", "junit"))
    names = re.findall(r'<testcase classname="bad.yaml" name="([^"]*)"', junit)

    assert table.count("bad.yaml") == 6
    assert names == ["bad.yaml"]
    assert len(set(re.findall(r"at (bad\.yaml:\d+:\d+)", junit))) == junit.count("\nat bad.yaml:") == 6


def test_a_name_of_the_defaults_is_at_its_line(capsys: Capture) -> None:
    """Where nothing else is wrong the other checks are made."""
    document = json.loads(run(capsys, "check", "names.yaml", "--json")[1])

    assert [(check["name"], check["status"], check["line"], check["column"]) for check in document["checks"]] == [
        ("a", "error", 2, 31),
        ("b", "pass", 5, 5),
    ]


def test_a_file_beside_it(capsys: Capture) -> None:
    """The other suffix of YAML is a slip."""
    for typed in ("names.yml", "./names.yml", ".//names.json"):
        assert "There is: kvplan check names.yaml" in run(capsys, "check", typed)[1]
    assert "There is:" not in run(capsys, "check", "names.")[1]


def test_why_strict_fails(capsys: Capture) -> None:
    """That it probably fits is no reason by itself; in JUnit it passes without the flag, and says so."""
    text = "schema_version: 1\nchecks: [{name: c, model: Qwen/Qwen3-8B, gpu: l4, seq: 27000}]\n"
    Path("close.yaml").write_text(text, encoding="utf-8")
    loose, strict = (run(capsys, "check", "close.yaml", *words) for words in ((), ("--strict",)))
    junit = run(capsys, "check", "close.yaml", "--format", "junit")[1]

    assert (loose[0], strict[0]) == (0, 1)
    assert "--strict" not in loose[1]
    assert "; --strict wants it sure" in strict[1].replace("\n" + " " * 11, " ")
    assert "<system-out>probably fits" in junit
