"""The fuzzer finds what it looks for, finds none of it in a small share of its inputs, and what it once found stays mended."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from scripts.fuzz import run_alone
from scripts.fuzzing.case import Case, case_document, case_from, read_case
from scripts.fuzzing.families import FAMILIES, WEIGHTS, case_of
from scripts.fuzzing.mutate import SECRET
from scripts.fuzzing.watch import MEMORY_BYTES, OWN_TOKEN, SECONDS, Outcome, complaints, run_case
from tests.effort import cases, sample
from tests.paths import ROOT

CORPUS = sorted((ROOT / "tests" / "corpus").glob("*.json"))
SHARE = cases(100, 200)
"""Inputs of a test run. scripts/fuzz.py runs a million."""

_CASE = Case(family="config", words=("config.json",), files={})
_GOOD = Outcome(status=0, out="it fits\n", err="", seconds=0.1, memory_bytes=10**7)


@pytest.mark.parametrize("path", sample(CORPUS, 10), ids=lambda path: path.stem)
def test_a_past_fault_stays_mended(path: Path) -> None:
    """Each input that once broke a promise keeps all of them, in a process of its own."""
    case = read_case(path)

    found, outcome = run_alone(case)

    assert found == [], (outcome.err[-500:], outcome.out[-500:])


def test_a_share_of_the_inputs(tmp_path: Path) -> None:
    """The first inputs of every kind end as documented."""
    words = [
        str(ROOT / "scripts" / "fuzz.py"),
        "--inputs",
        str(SHARE),
        "--workers",
        "1",
        "--evenly",
        "--keep",
        str(tmp_path / "faults"),
    ]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, cwd=tmp_path)

    assert done.stdout.rstrip().endswith("no fault"), done.stdout + done.stderr
    assert f"{SHARE} inputs from seed 0" in done.stdout
    assert all(f"\n{family} " in done.stdout for family in FAMILIES)
    assert (done.returncode, (tmp_path / "faults").exists()) == (0, False)


@pytest.mark.parametrize(
    ("outcome", "complaint"),
    [
        (replace(_GOOD, status=70), "exit status 70"),
        (replace(_GOOD, status=-11), "exit status -11"),
        (replace(_GOOD, status=None), "exit status None"),
        (replace(_GOOD, seconds=SECONDS + 0.1), "more than 5 s of the processor"),
        (replace(_GOOD, memory_bytes=MEMORY_BYTES + 1), "more than 300 MB of memory"),
        (replace(_GOOD, err="Traceback (most recent call last):\n"), "a traceback"),
        (replace(_GOOD, err=f"no model {SECRET}\n"), "the secret on standard error"),
        (replace(_GOOD, out=f"{SECRET[:30]}...\n"), "the secret on standard output"),
        (replace(_GOOD, out="a\x1b[2Jb\n"), "a control character on standard output"),
        (replace(_GOOD, err="a\u202eb\n"), "a control character on standard error"),
        (replace(_GOOD, out="x\n  ::error::y\n"), "a line that a runner reads as a command on standard output"),
        (replace(_GOOD, left=(".x.kvplan.tmp",)), "a temporary file is left"),
        (replace(_GOOD, err=f"token {OWN_TOKEN}\n"), "the secret on standard error"),
        (replace(_GOOD, err="x ##vso[y]\n"), "a line that a runner reads as a command on standard error"),
    ],
)  # fmt: skip
def test_each_broken_promise_is_seen(outcome: Outcome, complaint: str) -> None:
    """Each check of the fuzzer can fail."""
    assert complaints(_CASE, outcome) == [complaint]


def test_what_is_kept_is_not_complained_of() -> None:
    """A good outcome has no complaint, and a half document is one only if JSON was asked for."""
    asked = replace(_CASE, words=("config.json", "--json"))

    assert complaints(_CASE, _GOOD) == []
    assert complaints(asked, _GOOD) == ["standard output is not one JSON document"]
    assert complaints(asked, replace(_GOOD, out="{}\n")) == []


@pytest.mark.parametrize("words", [(), ("--", "schema", "nosuch/model", "--json")])
def test_no_option_asks_for_no_format(words: tuple[str, ...]) -> None:
    """What follows ``--`` is no option."""
    assert complaints(replace(_CASE, words=words), _GOOD) == []


def test_csv_is_looked_at_as_a_spreadsheet_does() -> None:
    """Numbers may have signs; other cells that begin with one are formulas."""
    asked = replace(_CASE, words=("config.json", "--format=csv"))

    assert complaints(asked, replace(_GOOD, out="a,b\n-1.5,'=x\n")) == []
    assert complaints(asked, replace(_GOOD, out='a,b\n1,"=x(1)"\n')) == ["a formula in CSV"]


def test_a_corpus_case_knows_its_answer() -> None:
    """The exit status and the text that a case of the corpus names are compared."""
    case = replace(_CASE, status=3, says="nested")

    assert complaints(case, _GOOD) == ["exit status 0, not 3", "it does not say 'nested'"]
    assert complaints(case, replace(_GOOD, status=3, err="nested\n")) == []


@pytest.mark.parametrize("number", range(40))
def test_a_seed_makes_the_same_inputs(number: int) -> None:
    """An input depends on the seed and its number alone, and survives being kept as JSON."""
    case = case_of(7, number)

    assert case == case_of(7, number)
    assert case_from(json.loads(json.dumps(case_document(case)))).files == case.files


@pytest.mark.parametrize("family", ["library", "stream"])
def test_calls_of_the_library(family: str) -> None:
    """An error of kvplan is a status; any other leaves, and is a fault. What runs alone does what a worker does."""
    case = Case(family=family, words=("plan", '{"seq": "8"}'), files={"config.json": b'{"model_type": "nosuch", "x": 1}'})
    broken = Case(family="library", words=("nosuch", "{}"), files={"config.json": b"{}"})

    found, outcome = run_alone(case)

    assert (found, outcome.status) == ([], 3)
    assert "nosuch" in outcome.err
    assert run_alone(broken)[0] == ["a traceback"]


def test_all_kinds_of_input_have_a_share() -> None:
    """A new kind is also run."""
    assert {*WEIGHTS} == {*FAMILIES}


def test_an_exception_that_leaves_the_program_is_an_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker survives whatever the program does."""

    def falls(words: list[str]) -> int:
        raise ZeroDivisionError(*words)

    monkeypatch.setattr("scripts.fuzzing.watch.main", falls)

    outcome = run_case(_CASE, tmp_path / "case")

    assert (outcome.status, outcome.err) == (None, "left the program: ZeroDivisionError: config.json\n")
