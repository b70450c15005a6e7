"""One exit code wherever a file cannot be written, and nothing half-written."""

from __future__ import annotations

import json
import stat
import tempfile
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest

from hwcalc.cli.output import wants_json
from hwcalc.errors import LogError, UnwritableFileError, UsageError
from hwcalc.files import whole_file, write_file
from hwcalc.reconcile import reconcile
from tests.hwcalc.command import Capture, run
from tests.hwcalc.reconcile.test_any_log import SMALL

QWEN = "Qwen/Qwen3-8B"
CHECKS = "schema_version: 1\nchecks: [{model: Qwen/Qwen3-8B, seq: 8, max_cache: 1GiB}]\n"
SHARED = Path("/dev/shm")  # noqa: S108 - folders with random names are made there
FULL = "/dev/full"
NO_FOLDER = "/nosuch/folder/f"
"""``check`` alone makes a folder that is not there."""
PLACES = (FULL, "/dev", "file/below")


@pytest.mark.parametrize(
    ("command", "place"),
    [
        *product(("sweep", "check", "check beside", "receipt"), PLACES),
        *product(("sweep", "receipt"), [NO_FOLDER]),
        ("lock", "its own place"),
    ],
)
def test_a_file_that_cannot_be_written(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, place: str
) -> None:
    """Exit 74 with the reason, as text and as the one document of ``--json``."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    checks = tmp_path / "c.yaml"
    checks.write_text(CHECKS, encoding="utf-8")
    if command == "lock":
        (tmp_path / "c.yaml.lock").mkdir()
    words = {
        "sweep": ["sweep", QWEN, "--seq", "8", "--output", place, "--format", "csv"],
        "check": ["check", str(checks), "--output", place],
        "check beside": ["check", str(checks), "--output", f"json={place}"],
        "receipt": ["probe", QWEN, "--seq", "8", "--device", "cpu", "--max-bytes", "1MiB", "--receipt", place],
        "lock": ["check", str(checks), "--lock"],
    }[command]
    status, out, err = run(capsys, *words)
    assert (status, out) == (74, "")
    assert err.startswith("kvplan: --")
    if command != "sweep":
        told, out, _ = run(capsys, *words, "--json")
        assert told == json.loads(out)["error"]["code"] == 74
    assert {entry.name for entry in tmp_path.iterdir()} <= {"file", "c.yaml", "c.yaml.lock"}


@pytest.mark.parametrize("prefix", ["", "json="])
def test_check_makes_the_folder_of_its_output(capsys: Capture, tmp_path: Path, prefix: str) -> None:
    """A gate writes into the folder of a job's results, which nobody has made yet."""
    checks = tmp_path / "c.yaml"
    checks.write_text(CHECKS, encoding="utf-8")
    target = tmp_path / "results" / "kvplan" / "f"

    status, _, _ = run(capsys, "check", str(checks), "--output", f"{prefix}{target}")

    assert status in {0, 1}
    assert target.stat().st_size > 0


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    """What it points to is replaced, and a file behind /dev/stdout is written through it."""
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old", encoding="utf-8")
    link.symlink_to(target)
    with whole_file(str(link), "--output") as file:
        file.write(b"new")

    assert (link.is_symlink(), target.read_text(encoding="utf-8")) == (True, "new")


def _write(target: Path, error: BaseException) -> None:
    with whole_file(str(target), "--output") as file:
        file.write(b"new")
        raise error


def test_the_new_file_is_read_by_whom_the_old_one_was(tmp_path: Path) -> None:
    """A file that its owner alone may read stays so."""
    file = tmp_path / "points.csv"
    file.touch(mode=0o600)
    file.chmod(0o600)

    write_file(str(file), b"new", "--output")

    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (b"new", 0o600)


@pytest.mark.skipif(not SHARED.is_dir(), reason="no file system below /dev here")
def test_a_file_below_dev_is_replaced_like_any_other() -> None:
    """Descriptors and devices are written directly; what lies there otherwise is whole or absent."""
    with tempfile.TemporaryDirectory(dir=SHARED) as folder:
        file = Path(folder) / "points.csv"
        file.write_bytes(b"old")
        with suppress(KeyboardInterrupt), whole_file(str(file), "--output") as stream:
            stream.write(b"half")
            stream.flush()
            raise KeyboardInterrupt

        assert [path.read_bytes() for path in Path(folder).iterdir()] == [b"old"]


def test_what_fails_leaves_the_old_file(tmp_path: Path) -> None:
    """Whatever the error is."""
    target = tmp_path / "target"
    target.write_text("old", encoding="utf-8")
    for error in (OSError(28, "No space left on device"), UsageError("wrong"), KeyboardInterrupt()):
        expected = UnwritableFileError if isinstance(error, OSError) else type(error)
        with pytest.raises(expected):
            _write(target, error)
    assert [entry.read_text(encoding="utf-8") for entry in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize(
    ("words", "json_"),
    [
        (["--json"], True), (["--format", "JSON"], True), (["--format=JSON"], True), (["--format= json "], True), (["--format=json"], True),
        (["--format=jsonl"], False), (["--format", "csv"], False), (["--", "--json"], False), (["--format="], False),
    ],
)  # fmt: skip
def test_both_spellings_of_a_format_are_the_same(capsys: Capture, words: list[str], json_: bool) -> None:
    """In answers, and in errors."""
    assert wants_json([QWEN, *words]) is json_
    if json_:
        for command in ("plan", "explain", "sweep", "compare"):
            assert json.loads(run(capsys, command, QWEN, "--seq", "x", *words)[1])["error"]["code"] == 2
            assert "schema_version" in json.loads(run(capsys, command, QWEN, "--seq", "8", *words)[1])


def test_a_command_line_as_a_document(capsys: Capture) -> None:
    """``--emit --json`` is one document, of which the words are those of the text."""
    words = (QWEN, "--engine", "vllm", "--seq", "8k", "--emit", "vllm", "--kv-memory", "8GiB")
    document = json.loads(run(capsys, *words, "--json")[1])

    assert document["command"] == run(capsys, *words)[1].strip()
    assert document["arguments"][:3] == ["vllm", "serve", QWEN]
    assert (document["schema_version"], document["engine"]) == ("1", "vllm")


def test_a_draft_that_is_not_there(capsys: Capture) -> None:
    """Ends a difference with the source's own error."""
    for engine in ("reference", "transformers", "vllm"):
        words = ("diff", QWEN, "Qwen/Qwen3-4B", "--draft", "nosuch/x", "--offline", "--engine", engine)
        assert run(capsys, *words)[0] == 3


def test_a_model_that_cannot_be_read_is_a_variant(capsys: Capture) -> None:
    """It ends no comparison; only where nothing can be read does the first error."""
    status, out, _ = run(capsys, "compare", QWEN, "nosuch/x", "--offline", "--seq", "8", "--users", "1,2", "--json")
    variants = json.loads(out)["variants"]

    assert (status, [one["model"] for one in variants]) == (0, [QWEN, QWEN, "nosuch/x"])
    assert [one["error"] is None for one in variants] == [True, True, False]
    assert run(capsys, "compare", "nosuch/y", "nosuch/x", "--offline", "--seq", "8")[0] == 3


def test_overheads_that_no_gpu_has_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An implausible figure of a log is the log's error, and nothing is written."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    lines = [
        "Available KV cache memory: 10 GiB",
        "non_torch_memory takes 123456789012345.67GiB; PyTorch activation peak memory takes 0.50GiB;",
    ]
    with pytest.raises(LogError, match="cannot be kept"):
        reconcile(SMALL, lines, gpu="l4", calibrate=True)
    assert list(tmp_path.rglob("*.json")) == []
