"""``kvplan check`` as a command: exit statuses, files, what goes where."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import junitparser
import pytest

from hwcalc.check import models
from hwcalc.check.models import Lock, write_lock
from hwcalc.model import RawModel
from hwcalc.report.check import FORMATS
from hwcalc.report.schema import json_schema
from tests.hwcalc.check.files import PER_TOKEN, TINY, check_file, tiny_model, write
from tests.hwcalc.command import Capture, python, run
from tests.paths import ROOT

CHECK = {"name": "one", "model": "./tiny", "seq": 1024, "max_cache": 1024 * PER_TOKEN}
"""Holds to the byte."""


def document(capsys: Capture, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit status and JSON document of one command line, which writes nothing else."""
    status, out, err = run(capsys, "check", *words, "--json")
    assert err == ""
    return status, json.loads(out)


# --- exit statuses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({}, 0),
        ({"max_cache": 1024 * PER_TOKEN - 1}, 1),
        ({"engine": "vllm", "kv_memory": "1MiB"}, 1),  # 1,024 tokens take 2 MiB
        ({"engine": "vllm", "kv_memory": "1MiB", "fits": False}, 0),
        ({"dtype": "nosuch"}, 2),
        ({"engine": "nosuch"}, 2),
        ({"gpu": "nosuch"}, 2),
        ({"model": "./gone"}, 3),
        ({"model": "no-such-org/no-such-model"}, 3),
    ],
)
def test_exit_statuses(tmp_path: Path, change: dict[str, Any], status: int) -> None:
    """Each through the real command, with one JSON document on standard output and nothing beside it."""
    path = check_file(tmp_path, {**CHECK, **change})
    done = python("-m", "hwcalc", "check", path, "--json")

    assert (done.returncode, done.stderr) == (status, "")
    assert json.loads(done.stdout)["summary"]["exit_code"] == status


def test_the_network_that_is_not_there(tmp_path: Path) -> None:
    """A Hub that nobody answers for is 4."""
    path = check_file(tmp_path, {**CHECK, "model": "no-such-org/no-such-model"})
    environment = {**os.environ, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "home")}
    done = python("-m", "hwcalc", "check", path, "--json", "--endpoint", "http://127.0.0.1:9", env=environment)

    assert done.returncode == 4
    assert json.loads(done.stdout)["checks"][0]["error"]["type"] == "hub-unreachable"


@pytest.mark.parametrize(
    ("content", "status"),
    [("schema_version: 1\nchecks: [{model: m}]", 2), ("schema_version: 1\nnothing: 1", 2), ("a: [", 3), ("", 3), (None, 3)],
)
def test_a_file_that_is_wrong(tmp_path: Path, content: str | None, status: int) -> None:
    """What it asks for is 2, what cannot be read is 3; the file is an error among the results, and the hint says what to do."""
    path = tmp_path / "kvplan.yaml"
    if content is not None:
        write(path, content)
    done = python("-m", "hwcalc", "check", str(path), "--json")
    found = json.loads(done.stdout)
    (check,) = found["checks"]

    assert (done.returncode, done.stderr) == (status, "")
    assert (check["status"], check["model"], check["error"]["code"]) == ("error", None, status)
    place = f":{check['line']}:{check['column']}" if status == 2 else ""
    assert (check["name"], check["file"]) == (f"{path}{place}", str(path))
    assert "kvplan.yaml" in check["error"]["message"]
    assert check["error"]["hint"]
    assert found["files"] == [{"path": str(path), "checks": 0, "lock": None, "lock_written": False, "notes": []}]
    jsonschema.Draft202012Validator(json_schema("check")).validate(found)


@pytest.mark.parametrize(
    ("content", "line", "column", "status"),
    [
        ("schema_version: 1\nchecks:\n- {model: m, seqq: 1, max_cache: 1}\n", 3, 14, 2),
        ("schema_version: 1\nchecks:\n  - &a {model: m}\n", 3, 5, 3),
        ("schema_version: 1\nchecks: [\n", 3, 1, 3),
        (b"schema_version: 1\nchecks: \xff\n", 2, 1, 3),
        (None, 1, 1, 3),
    ],
)
def test_one_file_of_several_that_is_wrong(
    tmp_path: Path, content: str | bytes | None, line: int, column: int, status: int
) -> None:
    """The others are checked, and every format says what is wrong and where; an error wins over a failure."""
    good, failing = check_file(tmp_path, CHECK), check_file(tmp_path, {**CHECK, "max_cache": 1}, name="failing.yaml")
    bad = tmp_path / "bad.yaml"
    if content is not None:
        bad.write_bytes(content if isinstance(content, bytes) else content.encode())
    targets = [f"--output={format_}={tmp_path / format_}" for format_ in FORMATS]
    done = python("-m", "hwcalc", "check", good, str(bad), failing, *targets)
    said = {format_: (tmp_path / format_).read_text(encoding="utf-8") for format_ in FORMATS}

    assert (done.returncode, done.stderr, done.stdout) == (status, "", said["table"])
    found = json.loads(said["json"])
    jsonschema.Draft202012Validator(json_schema("check")).validate(found)
    assert [check["status"] for check in found["checks"]] == ["pass", "error", "fail"]
    assert (found["checks"][1]["line"], found["checks"][1]["column"]) == (line, column)
    assert [file["checks"] for file in found["files"]] == [1, 0, 1]
    results = json.loads(said["sarif"])["runs"][0]["results"]
    assert [result["ruleId"] for result in results] == ["error", "max_cache"]
    place = results[0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"].endswith("/bad.yaml")
    assert place["region"] == {"startLine": line, "startColumn": column}
    suites = junitparser.JUnitXml.fromstring(said["junit"].encode())
    assert [(suite.name, suite.tests, suite.failures, suite.errors) for suite in suites] == [
        (good, 1, 0, 0), (str(bad), 1, 0, 1), (failing, 1, 1, 0),
    ]  # fmt: skip
    assert said["github"].startswith(f"::error file={bad},line={line},col={column},")
    for format_ in ("table", "markdown", "csv"):
        assert "bad.yaml" in said[format_]
        assert "1 file cannot be used: " in said[format_] or format_ == "csv"


def test_errors_win_over_failures(tmp_path: Path, capsys: Capture) -> None:
    """A gate that could not check is not a pass: of several, the highest code."""
    failing, usage, missing = {**CHECK, "max_cache": 1}, {**CHECK, "dtype": "nosuch"}, {**CHECK, "model": "./gone"}
    checks = [{**check, "name": str(index)} for index, check in enumerate((failing, usage, missing, CHECK))]
    status, found = document(capsys, check_file(tmp_path, *checks))

    assert [check["status"] for check in found["checks"]] == ["fail", "error", "error", "pass"]
    assert [check["error"]["code"] for check in found["checks"] if check["error"]] == [2, 3]
    assert (status, found["summary"]["exit_code"]) == (3, 3)


def test_tight_holds_but_not_with_strict(tmp_path: Path, capsys: Capture) -> None:
    """Where the ends of the estimate disagree: a warning with the range, and a failure with --strict."""
    # What must stay free lies between what the high and the low end of the estimate leave.
    path = check_file(tmp_path, {**CHECK, "engine": "vllm", "gpu": "l4", "max_cache": None})
    fit = document(capsys, path)[1]["checks"][0]["plan"]["fit"]
    assert fit["needed_low_bytes"] < fit["needed_bytes"] < fit["needed_high_bytes"]
    path = check_file(tmp_path, {**CHECK, "engine": "vllm", "gpu": "l4", "headroom": fit["usable_bytes"] - fit["needed_bytes"]})
    status, found = document(capsys, path)
    strict, _ = document(capsys, path, "--strict")

    assert (status, strict) == (0, 1)
    assert found["checks"][0]["status"] == "warning"
    assert found["summary"]["warnings"] == 1
    table = run(capsys, "check", path)[1]
    assert table.startswith("probably one")
    assert re.search(r"free \([0-9.]+ [GM]iB to [0-9.]+ [GM]iB\)", table)


# --- files ------------------------------------------------------------------------------------------------------------


def test_paths_start_at_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Wherever the command is run; with and without ``./``."""
    path = check_file(tmp_path / "ci", CHECK, {**CHECK, "name": "two", "model": "tiny"})
    monkeypatch.chdir(tmp_path)

    assert document(capsys, path)[0] == 0
    assert document(capsys, "ci/kvplan.yaml")[0] == 0


def test_several_files(tmp_path: Path, capsys: Capture) -> None:
    """All their checks, each with its file."""
    first, second = check_file(tmp_path, CHECK), check_file(tmp_path, {**CHECK, "max_cache": 1}, name="second.yaml")
    status, found = document(capsys, first, second)

    assert status == 1
    assert [(check["file"], check["status"]) for check in found["checks"]] == [(first, "pass"), (second, "fail")]
    assert [(file["path"], file["checks"]) for file in found["files"]] == [(first, 1), (second, 1)]


def test_a_lock_beside_a_file_that_is_wrong(tmp_path: Path, capsys: Capture) -> None:
    """The others get theirs, and the wrong one none."""
    good, bad = check_file(tmp_path, CHECK), str(write(tmp_path / "bad.yaml", "checks: ["))
    status, found = document(capsys, good, bad, "--lock")

    assert (status, [file["lock_written"] for file in found["files"]]) == (3, [True, False])
    assert sorted(path.name for path in tmp_path.glob("*.lock")) == ["kvplan.yaml.lock"]


def test_standard_input(tmp_path: Path) -> None:
    """A file from a pipe; paths start at the current folder, and there is no place for a lock."""
    text = Path(check_file(tmp_path, CHECK)).read_text(encoding="utf-8")
    command = [sys.executable, "-m", "hwcalc", "check", "-"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, input=text, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    lock = subprocess.run(
        [*command, "--lock"], input=text, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "1 check: 1 holds")
    assert lock.returncode == 2
    assert "no place for a lock" in lock.stderr


def test_lock_and_baseline(tmp_path: Path, capsys: Capture) -> None:
    """Write a lock and a baseline, change the model: the lock is noticed, and without it the growth is."""
    path = check_file(tmp_path, {**CHECK, "max_cache": "1GiB"})
    baseline = str(tmp_path / "baseline.json")
    status, _, err = run(capsys, "check", path, "--lock", "--output", f"json={baseline}")
    assert (status, err) == (0, "")
    tiny_model(tmp_path, num_key_value_heads=8)

    status, found = document(capsys, path)
    assert status == 1
    assert [item["name"] for item in found["checks"][0]["requirements"] if not item["holds"]] == ["lock"]
    status, found = document(capsys, path, "--no-lock", "--baseline", baseline, "--max-growth", "50%")
    assert status == 1
    # Twice the heads, twice the cache; the weights have grown less than by half.
    assert [item["name"] for item in found["checks"][0]["requirements"] if not item["holds"]] == [
        "growth.cache_bytes",
        "growth.bytes_per_token",
    ]
    assert document(capsys, path, "--no-lock", "--baseline", baseline, "--max-growth", "100%")[0] == 0


def test_a_lock_needs_no_network(tmp_path: Path) -> None:
    """A model that only the Hub has, locked: nobody is asked, though nothing forbids it."""
    path = check_file(tmp_path, {**CHECK, "model": "no-such-org/no-such-model"})
    raw = RawModel(id="no-such-org/no-such-model", config=TINY, source="hub", revision="0" * 40)
    write_lock(f"{path}.lock", Lock(models={raw.id: raw}), "")
    environment = {**os.environ, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "home")}
    words = ("-m", "hwcalc", "check", path, "--json", "--endpoint", "http://127.0.0.1:9")

    done = python(*words, env=environment)
    (check,) = json.loads(done.stdout)["checks"]
    assert (done.returncode, done.stderr) == (0, "")
    assert (check["status"], check["source"], check["revision"]) == ("pass", "hub", "0" * 40)
    assert python(*words, "--no-lock", env=environment).returncode == 4


def test_checks_of_many_kinds_of_layers_are_bounded(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks of a file plan so many kinds of layers in all; those behind them are errors that say so."""
    monkeypatch.setattr(models, "MOST_KINDS", 5)
    checks = [{"name": str(seq), "model": "google/gemma-3-27b-it", "seq": seq, "max_cache": "1TiB"} for seq in (64, 128, 256)]
    file = tmp_path / "kvplan.json"
    file.write_text(json.dumps({"schema_version": 1, "checks": checks}), encoding="utf-8")
    status, out, _ = run(capsys, "check", str(file), "--offline", "--json")
    errors = [check["error"] for check in json.loads(out)["checks"]]

    assert status == 2
    assert errors[:2] == [None, None]
    assert errors[2]["message"] == "the checks up to here plan more than 5 kinds of layers."


def test_fifty_checks_from_a_lock_take_a_few_times_as_long_as_one(tmp_path: Path) -> None:
    """The whole process: Python's own start, YAML, ten models, fifty plans, the table."""
    models = (
        "meta-llama/Llama-3.1-8B", "google/gemma-3-27b-it", "openai/gpt-oss-120b", "Qwen/Qwen3-8B", "deepseek-ai/DeepSeek-V3",
        "Qwen/Qwen3-Next-80B-A3B-Instruct", "mistralai/Mistral-7B-v0.1", "openai/gpt-oss-20b", "Qwen/Qwen3-4B", "google/gemma-2-9b-it",
    )  # fmt: skip
    ways: list[dict[str, Any]] = [
        {"engine": "vllm", "gpu": "h100-sxm5-80gb", "gpus": 8, "seq": 8192, "fits": None},
        {"engine": "vllm", "gpu": "h200-sxm-141gb", "gpus": 8, "seq": 4096, "dtype": "fp8", "fits": None},
        {"engine": "reference", "gpu": "l4", "seq": 8192, "fits": None},
        {"seq": 32_768},
        {"seq": 4096, "batch": 8, "dtype": "fp8"},
    ]
    checks = [{"model": model, "max_cache": "1TiB", **way} for model in models for way in ways]
    seconds = []
    for several in (checks[:1], checks):
        path = check_file(tmp_path, *several)
        written = python("-m", "hwcalc", "check", path, "--lock")
        assert written.returncode == 0, written.stdout
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = python("-m", "hwcalc", "check", path)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert done.returncode == 0

    assert done.stdout.splitlines()[-1] == "50 checks: 50 hold"
    assert seconds[1] < 4 * seconds[0]


# --- output -----------------------------------------------------------------------------------------------------------


def test_outputs_stand_beside_the_answer(tmp_path: Path, capsys: Capture) -> None:
    """Every format in a file of its own, the table on standard output."""
    path = check_file(tmp_path, CHECK)
    targets = [f"--output={format_}={tmp_path / format_}" for format_ in FORMATS]
    status, out, err = run(capsys, "check", path, *targets)

    assert (status, out, err) == (0, "ok       one  cache 2.00 MiB\n1 check: 1 holds\n", "")
    assert (tmp_path / "table").read_text(encoding="utf-8") == out
    assert json.loads((tmp_path / "json").read_text(encoding="utf-8"))["summary"]["passed"] == 1
    assert json.loads((tmp_path / "sarif").read_text(encoding="utf-8"))["version"] == "2.1.0"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted([*FORMATS, "kvplan.yaml", "tiny"])


def test_an_output_takes_the_answers_place(tmp_path: Path, capsys: Capture) -> None:
    """``-o FILE`` with --format: nothing on standard output, the exit status as ever."""
    path = check_file(tmp_path, {**CHECK, "max_cache": 1})
    status, out, err = run(capsys, "check", path, "--format", "junit", "-o", str(tmp_path / "out.xml"))

    assert (status, out, err) == (1, "", "")
    assert (tmp_path / "out.xml").read_text(encoding="utf-8").startswith("<?xml")


def test_an_output_that_cannot_be_written(tmp_path: Path, capsys: Capture) -> None:
    """Words and a status of its own; nothing half-written stays."""
    path = check_file(tmp_path, CHECK)
    status, out, err = run(capsys, "check", path, "-o", f"sarif={tmp_path / 'kvplan.yaml' / 'x'}")

    assert (status, out) == (74, "")
    assert "cannot be written" in err
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["kvplan.yaml", "tiny"]


def test_all_faults_of_a_file(tmp_path: Path, capsys: Capture) -> None:
    """Each with its line, as words, as JSON and as annotations; exit 2."""
    path = str(tmp_path / "kvplan.yaml")
    write(Path(path), "schema_version: 1\nchecks:\n- {model: m, seqq: 1}\n- {seq: x}\n")
    status, out, err = run(capsys, "check", path)
    found = json.loads(run(capsys, "check", path, "--json")[1])

    assert (status, err) == (2, "")
    for line, said in ((3, "a check has no key 'seqq'"), (4, "the check names no model"), (4, "seq is not a number: 'x'")):
        assert f"kvplan.yaml:{line}:" in out
        assert said in " ".join(out.split())
        assert any(check["line"] == line and said in check["error"]["message"] for check in found["checks"])
    assert len(found["checks"]) == found["summary"]["faults"] == 3
    assert (found["summary"]["checks"], found["summary"]["errors"]) == (0, 0)
    assert out.endswith("1 file cannot be used: 3 faults\n")
    # They are one case: as many as there are would not be tests.
    (suite,) = junitparser.JUnitXml.fromstring(run(capsys, "check", path, "--format", "junit")[1].encode())
    assert (suite.tests, suite.errors) == (1, 1)
    jsonschema.Draft202012Validator(json_schema("check")).validate(found)
    assert run(capsys, "check", path, "--format", "github")[1].count("::error file=") == 3


def test_the_file_of_the_folder(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """``kvplan check`` finds kvplan.yaml, else kvplan.yml; if both are there, it asks which."""
    monkeypatch.chdir(tmp_path)
    status, _, err = run(capsys, "check")
    # A file that is missing, as in the table of docs/check.md.
    assert status == 3
    assert "no check file is given, and there is no kvplan.yaml here" in err
    (tmp_path / "kvplan.yml").write_text(Path(check_file(tmp_path / "x", CHECK)).read_text(encoding="utf-8"))
    shutil.copytree(tmp_path / "x/tiny", tmp_path / "tiny")

    assert json.loads(run(capsys, "check", "--json")[1])["files"][0]["path"] == "kvplan.yml"
    (tmp_path / "kvplan.yml").rename(tmp_path / "kvplan.yaml")
    assert run(capsys, "check") == run(capsys, "check", "kvplan.yaml")
    assert run(capsys, "check")[0] == 0
    assert run(capsys, "check", "--lock")[0] == 0
    assert (tmp_path / "kvplan.yaml.lock").is_file()
    shutil.copy(tmp_path / "kvplan.yaml", tmp_path / "kvplan.yml")
    status, _, err = run(capsys, "check")
    assert status == 2
    assert "there are kvplan.yaml and kvplan.yml." in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{file}", "{file}"], "given twice"),
        (["{file}", "--format", "nosuch"], "Allowed: table, json, markdown, csv, junit, sarif, github."),
        (["{file}", "--format", "sarif", "--json"], "contradict"),
        (["{file}", "--lock", "--no-lock"], "contradict"),
        (["{file}", "--max-growth", "5%"], "nothing to compare with"),
        (["{file}", "--baseline", "{file}", "--max-growth", "5"], "is not a share"),
        (["{file}", "-o", "a", "-o", "b"], "two --output without a format"),
        (["{file}", "-o", "sarif=a", "-o", "junit=a"], "given twice"),
        (["{file}", "-o", "sarif="], "names no file"),
        (["{file}", "-o", "sarf=a"], "-o sarf=: there is no such format"),
    ],
)
def test_wrong_usage(tmp_path: Path, capsys: Capture, words: list[str], said: str) -> None:
    """Exit 2, and nothing on standard output but the error where it is to be JSON."""
    path = check_file(tmp_path, CHECK)
    status, out, err = run(capsys, "check", *(word.replace("{file}", path) for word in words))

    assert status == 2
    assert said in (out if "--json" in words else err)
    assert (out == "") is ("--json" not in words)


def test_options_of_deployments_change_no_check_file(tmp_path: Path, capsys: Capture) -> None:
    """They are refused with the keys to write, and noted where a deployment is read with them."""
    path, serve = check_file(tmp_path, CHECK), tmp_path / "serve.sh"
    serve.write_text("llama-server -hf org/m -c 4096", encoding="utf-8")
    words = [path, "--seq", "32k", "--users", "5"]
    said = "--seq and --users are for deployments"

    status, out, err = run(capsys, "check", *words)
    assert (status, out) == (2, "")
    assert said in err
    assert err.endswith("Write in the check file: seq: 32k, concurrency: 5\n")

    _, found = document(capsys, str(serve), path, "--gpu", "l4")
    [note] = [note for file in found["files"] for note in file["notes"] if file["path"] == path]
    assert "--gpu is for deployments" in note["message"]
    assert [each["status"] for each in found["checks"] if each["file"] == path] == ["pass"]

    # A file that has the options says so itself.
    _, found = document(capsys, str(serve), *words)
    assert not [note for file in found["files"] for note in file["notes"] if file["path"] == path]


def test_a_diff_that_is_empty_is_no_file(tmp_path: Path, capsys: Capture) -> None:
    """``git apply`` takes neither an empty file nor a report."""
    serve = tmp_path / "serve.sh"
    serve.write_text("vllm serve Qwen/Qwen3-0.6B --max-model-len 1024\n", encoding="utf-8")
    out = tmp_path / "x.diff"
    status, _, err = run(capsys, "check", str(serve), "--gpu", "l4", "--fix", "-o", str(out))
    assert status == 0
    assert "is not written: there is nothing to change" in err
    assert not out.exists()


def test_the_example_holds(tmp_path: Path, capsys: Capture) -> None:
    """What --example prints passes as it is, from the catalog alone."""
    status, out, _ = run(capsys, "check", "--example")
    path = write(tmp_path / "kvplan.yaml", out)

    assert status == 0
    assert document(capsys, str(path))[1]["summary"] == {
        "checks": 3, "passed": 3, "warnings": 0, "failed": 0, "errors": 0, "strict": False, "exit_code": 0, "faults": 0,
    }  # fmt: skip


def test_nothing_heavy_is_loaded_for_json(tmp_path: Path) -> None:
    """YAML has to be read; the Hub and arrays have not."""
    program = "import sys; from hwcalc.cli import main; main(); print(*sorted(m.partition('.')[0] for m in sys.modules), file=sys.stderr)"
    path = check_file(tmp_path, CHECK)
    done = python("-c", program, "check", path, "--json", "-o", f"junit={tmp_path / 'o'}", "-o", f"sarif={tmp_path / 'p'}")
    loaded = set(done.stderr.split())

    assert json.loads(done.stdout)["summary"]["passed"] == 1
    assert not {"huggingface_hub", "numpy", "torch"} & loaded


def test_a_search_further_is_for_as_many_users_as_are_required(tmp_path: Path, capsys: Capture) -> None:
    """No single change serves a thousand users at such a rate on one GPU: the command that looks for more names them."""
    asked = {"model": "openai/gpt-oss-20b", "engine": "vllm", "gpu": "l40s", "seq": "16k", "min_rate": 40, "min_users": 1000}
    _, found = document(capsys, check_file(tmp_path, asked))
    said = " ".join(item["message"] for item in found["checks"][0]["requirements"])
    command = said.partition("Search further: ")[2].split(";")[0]
    assert command.startswith("kvplan recommend openai/gpt-oss-20b")
    assert "--users 1000" in command
    assert "--min-rate 40" in command


@pytest.mark.parametrize("broken", [None, "", '{"schema_version"', '{"schema_version": 1, "checks": 2}'])
def test_a_lock_or_a_baseline_that_cannot_be_read(broken: str | None, tmp_path: Path, capsys: Capture) -> None:
    """An error in every format, at its file; the other files are checked all the same."""
    path, other = check_file(tmp_path, CHECK), check_file(tmp_path, {**CHECK, "name": "two"}, name="other.yaml")
    lock, baseline = Path(f"{path}.lock"), tmp_path / "base.json"
    if broken is not None:
        lock.write_text(broken, encoding="utf-8")
        baseline.write_text(broken, encoding="utf-8")
    words = (path, other, "--baseline", str(baseline), "--strict")
    status, found = document(capsys, *words)
    wrong = [str(baseline)] if broken is None else [str(lock), str(baseline)]

    assert status == 3
    assert [check["file"] for check in found["checks"] if check["error"]] == wrong
    assert {check["name"] for check in found["checks"] if not check["error"]} == ({"one", "two"} if broken is None else {"two"})
    assert all(check["status"] == "pass" for check in found["checks"] if not check["error"])
    for format_ in ("junit", "github", "sarif", "markdown", "csv", "table"):
        status, out, _ = run(capsys, "check", *words, "--format", format_)
        assert status == 3
        assert all(Path(name).name in out for name in wrong)
        if format_ == "junit":
            suites = junitparser.JUnitXml.fromstring(out.encode())
            assert sum(suite.errors for suite in suites) == len(wrong)


def test_csv_has_the_line_of_each_requirement(tmp_path: Path, capsys: Capture) -> None:
    """As the other formats have it."""
    check_file(tmp_path, CHECK)
    text = "schema_version: 1\nchecks:\n- name: one\n  model: ./tiny\n  seq: 1024\n  max_cache: 1\n"
    path = str(write(tmp_path / "kvplan.yaml", text))
    (row,) = csv.DictReader(io.StringIO(run(capsys, "check", path, "--format", "csv")[1]))

    assert (row["requirement"], row["line"]) == ("max_cache", "6")
    assert "kvplan.yaml,line=6," in run(capsys, "check", path, "--format", "github")[1]
