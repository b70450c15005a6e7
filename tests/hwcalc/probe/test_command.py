"""``kvplan probe`` as a command: formats, statuses, files, and what is left when it is killed."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from msgspec.structs import replace

from hwcalc.planner.policy import policy_info
from hwcalc.probe import devices
from hwcalc.report.schema import json_schema
from tests.effort import cases
from tests.hwcalc.command import QWEN, REPOSITORY, Capture, python, run
from tests.hwcalc.probe.fake_cuda import GPU_NAME, MIB, FakeTorch

SMALL = (QWEN, "--seq", "64", "--device", "cpu", "--offline")
# 36 layers x 8 heads x 64 tokens x 128 numbers x 2 bytes, keys and values.
BYTES = 36 * 2 * 8 * 64 * 128 * 2


def test_the_document(capsys: Capture) -> None:
    """JSON that fits its schema, with every tensor as large as predicted."""
    status, out, _ = run(capsys, "probe", *SMALL, "--fill", "--json")
    document = json.loads(out)

    assert status == 0
    Draft202012Validator(json_schema("probe")).validate(document)
    (rank,) = document["probe"]["ranks"]
    assert sum(tensor["measured_bytes"] for tensor in rank["tensors"]) == BYTES
    assert rank["filled"] is True


def test_a_document_of_less_than_predicted(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A difference may be negative, and missing: the schema allows both."""
    monkeypatch.setattr(devices, "load_torch", lambda: FakeTorch(extra=-512))
    status, out, _ = run(capsys, "probe", QWEN, "--seq", "64", "--offline", "--reserve", "0", "--json")
    document = json.loads(out)

    assert status == 1
    Draft202012Validator(json_schema("probe")).validate(document)
    figures = document["probe"]["ranks"][0]["comparisons"]
    assert [one["difference_bytes"] for one in figures if one["name"] == "memory_allocated"] == [-512]


@pytest.mark.parametrize("format_", ["table", "markdown"])
def test_the_table(capsys: Capture, format_: str) -> None:
    """The verdict, the figures, and equal tensors as one row."""
    status, out, _ = run(capsys, "probe", *SMALL, "--format", format_)

    assert status == 0
    assert f"measured as predicted, to the byte: 72 tensors, {BYTES:,} B" in out
    assert "36 x layers.keys" in out
    assert "1x8x64x128" in out


def test_rows(capsys: Capture) -> None:
    """CSV has a row for each tensor and each figure; the measured bytes of tensors add up."""
    _, out, _ = run(capsys, "probe", *SMALL, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))

    assert sum(int(row["measured_bytes"]) for row in rows if row["what"] == "tensor") == BYTES
    assert [row["name"] for row in rows if row["what"] == "figure"] == ["tensors"]


def test_a_difference_is_status_1(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """An allocator that miscounts: the table says where, and the status says so."""
    monkeypatch.setattr(devices, "load_torch", lambda: FakeTorch(extra=512))
    status, out, _ = run(capsys, "probe", QWEN, "--seq", "64", "--offline", "--reserve", "0")

    assert status == 1
    assert "measured is not what was predicted" in out
    assert "+512 B" in out
    assert "DIFFERS" in out


def test_too_much_is_status_1(capsys: Capture) -> None:
    """61 layers x 163,840 tokens x 1,000 sequences x 1,152 bytes are 10 TiB: refused with the limit to type."""
    status, out, _ = run(capsys, "probe", "deepseek-ai/DeepSeek-V3", "--users", "1000", "--device", "cpu", "--offline")

    assert status == 1
    assert "not measured: refused" in out
    assert "--max-bytes" in out


@pytest.mark.parametrize(("size", "unknown"), [(81_082, False), (1024, True)])
def test_the_device_is_the_gpu(capsys: Capture, monkeypatch: pytest.MonkeyPatch, size: int, unknown: bool) -> None:
    """What an engine chooses by the accelerator is chosen for the one that is measured, if it is known: an H100 by name and memory."""
    monkeypatch.setattr(devices, "load_torch", lambda: FakeTorch(name=GPU_NAME, total=size * MIB))
    document = json.loads(
        run(capsys, "probe", QWEN, "--seq", "64", "--offline", "--engine", "vllm", "--reserve", "0", "--json")[1]
    )

    assert ("default-gpu" in [note["code"] for note in document["probe"]["notes"]]) is unknown


def test_no_torch_is_status_5(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it, as JSON too."""
    monkeypatch.setitem(sys.modules, "torch", None)
    status, out, _ = run(capsys, "probe", *SMALL, "--json")

    assert status == 5
    assert json.loads(out)["error"]["code"] == 5
    assert "pip install 'hwcalc[probe]'" in json.loads(out)["error"]["hint"]


def test_no_such_device_is_status_5(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two devices are there, the ninth is not."""
    monkeypatch.setattr(devices, "load_torch", FakeTorch)
    status, _, err = run(capsys, "probe", QWEN, "--seq", "64", "--offline", "--device", "cuda:9")

    assert status == 5
    assert "2 CUDA devices" in err


@pytest.mark.parametrize(
    "words",
    [
        (),
        (QWEN, "--verify", "x.json"),
        ("--verify", "x.json", "--receipt", "y.json"),
        ("--verify", "x.json", "--live"),
        ("--verify", "x.json", "--find-max", "seq"),
        (*SMALL, "--device", "gpu"),
        (*SMALL, "--scale", "0"),
        (*SMALL, "--scale", "nan"),
        (*SMALL, "--max-bytes", "-5"),
        (*SMALL, "--max-bytes", "1"),
        (*SMALL, "--reserve", "much"),
        (*SMALL, "--receipt", ""),
    ],
    ids=str,
)
def test_wrong_usage_is_status_2(capsys: Capture, words: tuple[str, ...]) -> None:
    """With a message and nothing on standard output."""
    status, out, err = run(capsys, "probe", *words)

    assert (status, out) == (2, "")
    assert err.startswith("kvplan: ")


def test_a_receipt_that_cannot_be_written_is_status_74(capsys: Capture) -> None:
    """It is refused before anything is measured."""
    status, out, err = run(capsys, "probe", *SMALL, "--receipt", "/nowhere/r.json")

    assert (status, out) == (74, "")
    assert "no file can be made there" in err


def test_a_receipt_and_its_verification(capsys: Capture, tmp_path: Path) -> None:
    """Written, planned again, and in every format; nothing else lies beside it."""
    path = tmp_path / "r.json"
    assert run(capsys, "probe", *SMALL, "--receipt", str(path))[0] == 0
    assert [one.name for one in tmp_path.iterdir()] == ["r.json"]
    status, out, _ = run(capsys, "probe", "--verify", str(path))
    assert status == 0
    assert "still as predicted" in out
    status, out, _ = run(capsys, "probe", "--verify", str(path), "--json")
    Draft202012Validator(json_schema("verify")).validate(json.loads(out))
    assert json.loads(out)["comparisons"][0]["predicted_bytes"] == BYTES
    assert run(capsys, "probe", "--verify", str(path), "--format", "csv")[1].startswith("what,name,predicted_bytes")
    path.write_text(path.read_text().replace('"num_hidden_layers": 36', '"num_hidden_layers": 35'))
    status, out, _ = run(capsys, "probe", "--verify", str(path))
    assert status == 1
    assert "drift  layers.35.keys was measured and is not planned any more." in out


def test_planning_needs_no_torch() -> None:
    """A receipt is planned again without torch, numpy or a schema library; help needs none either."""
    code = (
        "import sys; from hwcalc.cli import main; status = main(sys.argv[1:]); "
        "print(sorted({'torch', 'numpy', 'pydantic', 'yaml', 'transformers'} & set(sys.modules)), file=sys.stderr); sys.exit(status)"
    )
    kept = min((REPOSITORY / "tests/receipts").glob("*.json"))
    done = python("-c", code, "probe", "--verify", str(kept), "--json")
    assert (done.returncode, done.stderr.strip()) == (0, "[]")
    done = python("-c", code, "probe", "--help")
    assert done.returncode == 0
    assert "torch" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_killed_at_any_moment(tmp_path: Path, number: int) -> None:
    """No receipt, or a whole one; never half of one. A process that is asked to end does so with its own status."""
    rng = random.Random(int(number))  # noqa: S311 - no secret
    statuses = set()
    for turn in range(cases(1, 4)):
        path = tmp_path / f"{turn}.json"
        command = [sys.executable, "-m", "hwcalc", "probe", QWEN, "--seq", "2k", "--offline", "--device", "cpu", "--fill"]
        with subprocess.Popen(
            [*command, "--receipt", str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=REPOSITORY,
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        ) as process:
            with suppress(subprocess.TimeoutExpired):
                process.wait(rng.uniform(0.2, 3))
            process.send_signal(number)
            output, errors = process.communicate(timeout=60)
        statuses.add(process.returncode)
        assert b"Traceback" not in errors or b"site-packages" in errors, errors
        if path.exists():
            document: Any = json.loads(path.read_text())
            assert document["probe"]["agrees"] is True
        else:
            assert output == b""
    assert statuses <= {0, 130, 143, -number}


POLICY = (
    QWEN,
    "--seq",
    "260",
    "--prompt",
    "250",
    "--policy",
    "snapkv:compression_ratio=0.9,window_size=16",
    "--device",
    "cpu",
    "--offline",
)


def test_a_policy_in_every_format(capsys: Capture) -> None:
    """The verdict, each figure with its unit, and JSON that fits its schema."""
    status, out, _ = run(capsys, "probe", *POLICY, "--users", "2")
    assert status == 0
    assert "policy snapkv:compression_ratio=0.9,window_size=16 on cpu: as planned" in out
    assert "survivors at random (seed 0)" in out
    assert "every survivor read back in its place" in out
    # 36 layers of 24 kept tokens of two sequences.
    assert f"{36 * 24 * 2 * 4096:,} B" in out

    status, out, _ = run(capsys, "probe", *POLICY, "--engine", "vllm", "--json")
    document = json.loads(out)
    assert status == 0
    Draft202012Validator(json_schema("probe")).validate(document)
    figures = {one["name"]: one["measured"] for one in document["probe"] and document["more"]["policy"]["figures"]}
    assert (figures["blocks before the cut"], figures["free after compaction"]) == (16, 14)

    status, out, _ = run(capsys, "probe", *POLICY, "--format", "csv")
    rows = {row["name"]: row for row in csv.DictReader(io.StringIO(out)) if row["what"] == "policy"}
    assert status == 0
    assert rows["cache behind the prompt (B)"]["measured_bytes"] == str(36 * 24 * 4096)


def test_a_policy_that_differs_is_status_1(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that is a token off is told in the row and in the status."""

    def wrong(*given: Any) -> Any:
        info = policy_info(*given)
        return replace(info, prefill_bytes=info.prefill_bytes - 4096)

    monkeypatch.setattr("hwcalc.probe.policy_run.policy_info", wrong)
    status, out, _ = run(capsys, "probe", *POLICY)

    assert status == 1
    assert "DIFFERS from the plan" in out
    assert "+4,096 B" in out


def test_a_policy_in_a_receipt(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its figures are planned again; another plan is drift."""
    path = tmp_path / "r.json"
    assert run(capsys, "probe", *POLICY, "--receipt", str(path))[0] == 0
    document = json.loads(path.read_text(encoding="utf-8"))
    Draft202012Validator(json_schema("receipt")).validate(document)
    assert document["arguments"]["policy"] == POLICY[6]
    assert document["more"]["policy"]["seed"] == 0

    status, out, _ = run(capsys, "probe", "--verify", str(path))
    assert status == 0
    assert "cache behind the prompt" in out

    for figure in document["more"]["policy"]["figures"]:
        if figure["name"] == "cache at the end":
            figure["measured"] += 1
    path.write_text(json.dumps(document), encoding="utf-8")
    assert run(capsys, "probe", "--verify", str(path))[0] == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("state-spaces/mamba-130m-hf", "--policy", "knorm"), "nothing to act on"),
        ((QWEN, "--policy", "knorm:compression_ratio=0.5", "--engine", "llamacpp"), "--engine reference"),
        ((QWEN, "--policy", "knorm:compression_ratio=0.5", "--max-bytes", "500KiB"), "hold no layer with the copy of its cut"),
        ((QWEN, "--policy", "quest", "--engine", "vllm"), "no block is to be given back"),
        ((QWEN, "--policy", "knorm:compression_ratio=0.5", "--samples", "2", "--prompt", "90"), "Leave out --shared-prefix"),
    ],
    ids=str,
)
def test_a_policy_that_cannot_be_run(capsys: Capture, words: tuple[str, ...], expected: str) -> None:
    """With what to type instead."""
    status, out, err = run(capsys, "probe", "--seq", "100", *words, "--device", "cpu", "--offline")

    assert status in {2, 3}
    assert out == ""
    assert expected in err
