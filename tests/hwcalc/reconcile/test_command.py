"""What a user of ``kvplan reconcile`` sees: formats, exit statuses, errors."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Final

import jsonschema
import pytest

from hwcalc.cli import completion
from hwcalc.reconcile.dialects import DIALECTS
from tests.hwcalc.command import REPOSITORY, Capture, python, run
from tests.paths import TESTS

LOGS: Final = TESTS / "logs"
GOOD: Final = str(LOGS / "vllm/v0-0.7-llama-3.1-8b-20k.log")
MODEL: Final = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nobody's profiles."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def test_a_log_that_agrees(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict first, then the figures, then what was planned with; exit status 0."""
    monkeypatch.setenv("COLUMNS", "100")
    status, out, err = run(capsys, "reconcile", MODEL, "--log", GOOD)
    # The first lines have the name of the log, as long as it is.
    verdict = "agrees: 3 of 3 figures within 1 %"
    lines = out[out.index(verdict) :].splitlines()

    assert (status, err) == (0, "")
    assert lines[0] == verdict
    assert lines[2].split() == ["figure", "predicted", "range", "reported", "difference", "%", "is"]
    assert next(line for line in lines if "blocks" in line).split() == [
        "blocks", "1,950", "1,948", "to", "1,953", "1,952", "+2", "+0.10", "engine",
    ]  # fmt: skip
    assert "seq 20000 (line 1)" in out
    assert max(map(len, lines)) <= 100


def test_what_agrees_by_its_range_says_so(capsys: Capture) -> None:
    """Rows of more than 1 % agree where the estimate's range has the log's figure: the first line does not call that within 1 %."""
    log = str(LOGS / "vllm/v1-0.27-qwen3-235b-tp4.log")
    status, out, _ = run(capsys, "reconcile", "Qwen/Qwen3-235B-A22B-FP8", "--log", log, "--gpu", "h20-96gb", "-q", "--json")
    document = json.loads(out)
    text = run(capsys, "reconcile", "Qwen/Qwen3-235B-A22B-FP8", "--log", log, "--gpu", "h20-96gb", "-q")[1]

    assert status == 0
    assert max(abs(row["percent"]) for row in document["rows"]) > 1
    assert (
        text.splitlines()[1]
        == f"agrees: {len(document['rows'])} of {len(document['rows'])} figures in their range or within 1 % of it"
    )


def test_a_log_that_differs(capsys: Capture) -> None:
    """Exit status 1, the figure is marked and named."""
    status, out, _ = run(capsys, "reconcile", "meta-llama/Llama-3.2-1B", "--log", GOOD, "-q")

    assert status == 1
    assert "differs: weights further apart than 1 %; blocks, concurrency (must match exactly) (0 of 3 figures agree)" in out
    assert [line.split()[1] for line in out.splitlines() if line.startswith("!")] == ["weights", "blocks", "concurrency"]
    assert "planned with" not in out


def test_a_log_of_another_gpu(capsys: Capture) -> None:
    """The log has workers of 95.01 GiB, and an L4 shows 22.03: it is not of an L4, however the figures differ."""
    log = str(LOGS / "vllm/v1-0.27-qwen3-235b-tp4.log")
    status, out, _ = run(capsys, "reconcile", "Qwen/Qwen3-235B-A22B-FP8", "--log", log, "--gpu", "l4")

    assert status == 1
    assert out.splitlines()[1] == "differs: the log is not of l4: its GPU has 95.01 GiB, and l4 22.06 GiB. Name its GPU: --gpu"


def test_json(capsys: Capture) -> None:
    """One document, as its schema says, whether it agrees or not."""
    schema = json.loads(run(capsys, "schema", "reconcile")[1])
    jsonschema.Draft202012Validator.check_schema(schema)
    for model, expected in ((MODEL, 0), ("meta-llama/Llama-3.2-1B", 1)):
        status, out, err = run(capsys, "reconcile", model, "--log", GOOD, "--gpu", "rtx-3090", "--json")
        document = json.loads(out)
        jsonschema.Draft202012Validator(schema).validate(document)
        assert (status, err, document["within"]) == (expected, "", expected == 0)
        assert all(row["within"] for row in document["rows"]) is document["within"]
        blocks = next(row for row in document["rows"] if row["name"] == "blocks")
        assert blocks["difference"] == blocks["reported"] - blocks["predicted"]
        assert {"name": "blocks", "value": 1952, "line": 4}.items() <= next(
            fact for fact in document["facts"] if fact["name"] == "blocks"
        ).items()


def test_csv_and_markdown(capsys: Capture) -> None:
    """Plain numbers for programs, a table for a pull request."""
    status, out, err = run(capsys, "reconcile", MODEL, "--log", GOOD, "--format", "csv")
    rows = {row["name"]: row for row in csv.DictReader(io.StringIO(out))}
    assert (status, err) == (0, "")
    assert (rows["blocks"]["reported"], rows["blocks"]["within"], rows["blocks"]["line"]) == ("1952", "true", "4")

    status, out, err = run(capsys, "reconcile", "meta-llama/Llama-3.2-1B", "--log", GOOD, "--format", "csv")
    assert status == 1
    assert "differs" in err

    status, out, _ = run(capsys, "reconcile", MODEL, "--log", GOOD, "--format", "markdown")
    assert status == 0
    assert "| blocks | 1,950 |" in out
    assert "**agrees: 3 of 3 figures within 1 %**" in out


def test_lines_that_were_not_understood(capsys: Capture, tmp_path: Path) -> None:
    """Their number is a note; ``-v`` lists them with the notes, and on standard error where a format has no notes."""
    log = tmp_path / "server.log"
    log.write_text(f"{Path(GOOD).read_text(encoding='utf-8')}Swapped 3 GiB away\nMoved 2 GiB\n", encoding="utf-8")
    words = ("reconcile", MODEL, "--log", str(log))

    status, out, err = run(capsys, *words)
    assert (status, err) == (0, "")
    assert "2 lines about memory were not understood: list them with -v." in " ".join(out.split())
    assert "Swapped" not in out
    assert "not understood" not in "".join(run(capsys, *words, "-q")[1:])
    _, out, err = run(capsys, *words, "--format", "csv")
    assert "list them with -v" not in out
    assert "2 lines about memory were not understood" in err

    _, out, err = run(capsys, *words, "-v")
    assert "Swapped 3 GiB away" in out
    assert ("list them" in out, err) == (False, "")
    assert json.loads(run(capsys, *words, "-v", "-q", "--json")[1])["unread"][0]["text"] == "Swapped 3 GiB away"
    for more in (("-q",), ("--format", "csv"), ("--format", "csv", "-q"), ("--format", "markdown", "-q")):
        status, out, err = run(capsys, *words, "-v", *more)
        assert (status, "Swapped" in out) == (0, False)
        assert "line 6: Swapped 3 GiB away" in err
        assert "line 7: Moved 2 GiB" in err


def test_several_processes(capsys: Capture) -> None:
    """A row for each, beside the figures."""
    log = str(LOGS / "vllm/v0-0.8-workers-24gb.log")
    _, out, _ = run(capsys, "reconcile", MODEL, "--log", log, "--tolerance", "99%")

    assert "VllmWorkerProcess 507" in out
    assert "1.52 GiB" in out


def test_standard_input() -> None:
    """The log is piped in."""
    done = python(
        "-m", "hwcalc", "reconcile", MODEL, "--log", "-", "--format", "csv", input=Path(GOOD).read_text(encoding="utf-8")
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "blocks" in done.stdout


@pytest.mark.parametrize(
    ("words", "status", "part"),
    [
        ((MODEL,), 2, "no log is named"),
        (("--log", str(LOGS / "mistral-rs/llama-3.1-8b.log")), 3, "does not name its model"),
        (("-", "--log", "-"), 2, "standard input can be only one"),
        ((MODEL, "--log", GOOD, "--dialect", "exllama"), 2, "Known: vllm, prometheus, transformers"),
        ((MODEL, "--log", GOOD, "--tolerance", "many"), 2, "tolerance"),
        ((MODEL, "--log", GOOD, "--calibrate"), 2, "--gpu"),
        ((MODEL, "--log", GOOD, "--gpu", "h1000000"), 2, "h1000000"),
        ((MODEL, "--log", "no-such.log"), 3, "cannot be read"),
        (("no-such.log",), 3, "no-such.log cannot be read (No such file"),
        ((MODEL, "--log", str(LOGS)), 3, "cannot be read"),
        ((MODEL, "--log", os.devnull), 3, "is empty"),
        ((MODEL, "--log", str(LOGS / "vllm/bad-lines.log"), "--dialect", "vllm"), 3, "GPU KV cache size"),
        ((str(REPOSITORY / "README.md"),), 3, "Logs of these engines are read: vLLM, transformers, SGLang, llama.cpp"),
        ((str(LOGS / "sglang/qwen3.8-27b.log"),), 3, "the log calls its model 'model', a folder of its server"),
        ((MODEL, "--log", str(LOGS / "transformers/gpt2.log"), "--dialect", "vllm"), 3, "no line that is known"),
        (("no/such-model", "--log", GOOD), 3, "no/such-model"),
    ],
)
def test_errors(capsys: Capture, words: tuple[str, ...], status: int, part: str) -> None:
    """A message and a hint on standard error, and the same as one JSON document."""
    code, out, err = run(capsys, "reconcile", *words)
    assert (code, out) == (status, "")
    assert part in err

    code, out, err = run(capsys, "reconcile", *words, "--json")
    assert (code, json.loads(out)["error"]["code"], err) == (status, status, "")


def test_calibrate(capsys: Capture, own_folder: Path) -> None:
    """What was kept and where is said, and ``kvplan gpus`` says the same as before."""
    log = str(LOGS / "vllm/v0-0.6-llama-3-8b-a100.log")
    before = run(capsys, "gpus", "a100-pcie-40gb")
    words = ("reconcile", "meta-llama/Meta-Llama-3-8B", "--log", log, "--gpu", "a100-pcie-40gb", "--calibrate", "--json")
    status, out, _ = run(capsys, *words)

    assert status == 1
    path = own_folder / "kvplan/profiles/calibration/a100-pcie-40gb.overheads-vllm.json"
    assert json.loads(out)["saved"]["path"] == str(path)
    reading = json.loads(path.read_text(encoding="utf-8"))["readings"][0]
    assert reading["values"] == {"non_torch_bytes": 107_374_182, "activation_bytes": 10_060_960_891}
    assert reading["conditions"]["model"] == "meta-llama/Meta-Llama-3-8B"
    # The log's own name, and not where it lies.
    assert reading["measured"]["source"] == "vllm 0.6.6, v0-0.6-llama-3-8b-a100.log"
    assert run(capsys, "gpus", "a100-pcie-40gb") == before


def test_hostile_names_are_shown_clean(capsys: Capture) -> None:
    """Nothing of a log moves the terminal's cursor."""
    text = "Initializing a V1 LLM engine (v0.33.0) with config: model='a\x1b]0;x\x07\u202eb', max_seq_len=4096\n# GPU blocks: 9\n"
    text += "Available KV cache memory: 8.00 GiB\n"
    done = python("-m", "hwcalc", "reconcile", MODEL, "--log", "-", input=text)

    assert done.returncode == 1
    assert not {"\x1b", "\x07", "\u202e"} & set(done.stdout + done.stderr)


def test_completion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dialects, and files of the folder."""
    assert set(completion.dialects("")) == {dialect.name for dialect in DIALECTS}
    assert completion.dialects("pro") == ["prometheus"]
    (tmp_path / "server.log").touch()
    monkeypatch.chdir(tmp_path)
    assert completion.files("ser") == ["./server.log"]
    assert completion.files(f"{tmp_path}/ser") == [f"{tmp_path}/server.log"]
