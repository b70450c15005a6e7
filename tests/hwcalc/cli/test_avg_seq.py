"""``--avg-seq``: the users of a plan, in all formats, in checks and in what a plan says."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from hwcalc import check, plan
from hwcalc.report.schema import json_schema
from tests.hwcalc.command import QWEN, Capture, run

LINE = (QWEN, "--engine", "vllm", "--gpu", "h100", "--seq", "32k", "--avg-seq", "4k")


def test_users_that_hardly_ever_overrun_the_pool_fit(capsys: Capture) -> None:
    """The first line says so, the exit status is 0, and a server is started for the longest; too many users do not fit."""
    status, out, err = run(capsys, *LINE, "--users", "60", "--brief")

    assert (status, err) == (0, "")
    assert "60 users of these lengths will fit on 1 x h100-sxm5-80gb, but for a chance of 0.00" in out
    assert "vllm serve Qwen/Qwen3-8B --max-model-len 32768" in out
    assert "error" not in out
    status, out, _ = run(capsys, *LINE, "--users", "200", "--brief")
    assert status == 1
    assert "200 users overrun the pool with a chance of 100 %" in out


def test_the_words_are_as_sure_as_the_chances(capsys: Capture) -> None:
    """On an L4 the expected memory keeps to a chance of 1 %, and the least that it may be does not: so they fit, but only probably."""
    line = (QWEN, "--engine", "vllm", "--gpu", "l4", "--seq", "8k", "--users", "5", "--avg-seq", "2k")
    overrun = json.loads(run(capsys, *line, "--json")[1])["overrun"]
    status, out, _ = run(capsys, *line, "--brief", "-q")

    assert overrun["chance"] <= 0.01 < overrun["chance_high"]
    assert (status, overrun["verdict"]) == (0, "probably")
    assert "5 users of these lengths will probably fit on 1 x l4, but for a chance of 0.11 % (up to 18 %)" in " ".join(
        out.split()
    )


def test_a_server_that_does_not_start_serves_no_users(capsys: Capture) -> None:
    """Weights of 15.26 GiB leave nothing of the 15.07 GiB that SGLang may use: there is no pool that users could overrun."""
    line = (QWEN, "--engine", "sglang", "--gpu", "l4", "--seq", "8k", "--users", "5", "--avg-seq", "2k")
    status, out, _ = run(capsys, *line, "--brief", "-q")

    assert status == 1
    assert "overrun  none of the users is served: SGLang will not start\n" in out
    assert json.loads(run(capsys, *line, "--json")[1])["overrun"]["verdict"] == "no"


def test_all_formats_say_it(capsys: Capture) -> None:
    """The document has the numbers of the library, by its schema; Markdown has the line."""
    document = json.loads(run(capsys, *LINE, "--users", "60", "--json")[1])
    info = plan(QWEN, engine="vllm", gpu="h100", seq="32k", users=60, avg_seq="4k").overrun

    assert info is not None
    jsonschema.Draft202012Validator(json_schema("plan")).validate(document)
    assert document["overrun"]["chance"] == info.chance
    assert document["overrun"]["max_users"] == info.max_users <= info.expected_max_users
    assert document["request"]["avg_seq"] == "4k"
    assert "- overrun: 60 users overrun the pool" in run(capsys, *LINE, "--users", "60", "--format", "markdown")[1]


def test_lengths_of_a_trace_and_of_words(capsys: Capture) -> None:
    """The line says what they are."""
    _, out, _ = run(capsys, *LINE[:-1], "tests/readme/trace.jsonl", "--users", "60", "-q")
    assert "requests of trace.jsonl, at a random moment of decoding" in out
    _, out, _ = run(capsys, *LINE[:-1], "prompt=1k,2k output=300 requests=100", "--users", "60", "-q")
    assert "at a random moment of decoding" in out


@pytest.mark.parametrize(("users", "passes"), [(60, True), (200, False)])
def test_a_check_demands_it(tmp_path: Path, users: int, passes: bool) -> None:
    """With ``max_overrun`` a check is about users, not about sequences of full length; what fails offers fewer users."""
    file = tmp_path / "kvplan.yaml"
    file.write_text(
        f"schema_version: 1\nchecks:\n  - {{model: {QWEN}, engine: vllm, gpu: h100, seq: 32k, batch: {users}, avg_seq: 4k, max_overrun: 1%}}\n"
    )
    (checked,) = check(str(file)).checks

    assert [one.name for one in checked.requirements] == ["max_overrun"]
    assert (checked.status == "fail") is not passes
    assert "required" in checked.requirements[0].message
    assert bool(checked.requirements[0].edits) is not passes


def test_a_check_without_lengths_is_refused(tmp_path: Path) -> None:
    """``max_overrun`` needs ``avg_seq``, and a wrong word of it is named."""
    file = tmp_path / "kvplan.yaml"
    for rest in ("max_overrun: 1%", "avg_seq: 4k, max_overrun: 5"):
        file.write_text(f"schema_version: 1\nchecks:\n  - {{model: {QWEN}, engine: vllm, gpu: h100, seq: 32k, {rest}}}\n")
        (checked,) = check(str(file)).checks
        assert checked.error is not None
        assert (checked.error.code, "max_overrun" in checked.error.message) == (2, True)
