"""A folder of somebody else's may have links and pipes under any name: nothing is written through them, and nothing waits for ever."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path

import pytest

from hwcalc.errors import UnwritableFileError, UsageError
from hwcalc.files import opened, place_of, whole_file, write_file
from tests.hwcalc.command import Capture, run
from tests.tiny_configs import TINY_LLAMA

CHECKS = "schema_version: 1\nchecks: [{model: ./m, seq: 8, max_cache: 1GiB}]\n"
OURS = "alias x=y\n"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that a stranger has filled, beside a file of the user."""
    folder = tmp_path / "checkout"
    (folder / "m").mkdir(parents=True)
    (tmp_path / "bashrc").write_text(OURS, encoding="utf-8")
    config = {**TINY_LLAMA, "x": "$(touch owned)", "y": "`touch owned`"}
    (folder / "m" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "p.yaml").write_text(CHECKS, encoding="utf-8")
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("target", ["../bashrc", "../new", "m/config.json", "p.yaml.lock"])
def test_a_lock_is_no_link(capsys: Capture, checkout: Path, target: str) -> None:
    """It would be what the link leads to, in the words of a stranger."""
    (checkout / "p.yaml.lock").symlink_to(target)
    before = (checkout / "m" / "config.json").read_bytes()
    status, _, err = run(capsys, "check", "p.yaml", "--lock")

    assert status == 74
    assert "it is a link, and a lock is a file of its own" in err
    assert (checkout.parent / "bashrc").read_text(encoding="utf-8") == OURS
    assert (checkout / "m" / "config.json").read_bytes() == before
    assert not (checkout.parent / "new").exists()


def test_a_lock_is_no_script(capsys: Capture, checkout: Path) -> None:
    """A shell that reads one runs nothing of a config, and nobody can start it; it is read as it was written."""
    (checkout / "p.yaml.lock").touch(mode=0o755)
    assert run(capsys, "check", "p.yaml", "--lock")[0] == 0
    for shell in ("bash", "sh"):
        subprocess.run([shell, "p.yaml.lock"], capture_output=True, check=False, cwd=checkout)

    assert not (checkout / "owned").exists()
    assert not os.stat("p.yaml.lock").st_mode & 0o111  # noqa: PTH116
    locked = json.loads((checkout / "p.yaml.lock").read_bytes())["models"]["./m"]["config"]
    assert (locked["x"], locked["y"]) == ("$(touch owned)", "`touch owned`")
    assert run(capsys, "check", "p.yaml")[0] == 0


@pytest.mark.parametrize(
    "output", ["out.json", "sarif=out.json", "junit=out.json", "json=results/out.json", "results/deep/out.json"]
)
def test_an_output_of_check_stays_in_the_working_folder(capsys: Capture, checkout: Path, output: str) -> None:
    """Whether the name is a link or a folder of it. No folder is made on the other side either."""
    (checkout / "out.json").symlink_to("../bashrc")
    (checkout / "results").symlink_to("..")
    status, _, err = run(capsys, "check", "p.yaml", "--output", output)

    assert status == 74
    assert "a link leads out of the working folder" in err
    assert {entry.name for entry in checkout.parent.iterdir()} == {"bashrc", "checkout"}
    assert (checkout.parent / "bashrc").read_text(encoding="utf-8") == OURS


@pytest.mark.parametrize("words", [("sweep", "m", "--seq", "8", "-o", "out.csv"), ("explore", "m", "-o", "out.csv")])
def test_no_command_writes_through_a_link_out_of_its_folder(capsys: Capture, checkout: Path, words: tuple[str, ...]) -> None:
    """The error names the file, for who means it."""
    (checkout / "out.csv").symlink_to("../bashrc")
    status, _, err = run(capsys, *words)

    assert status == 74
    assert f"--output {checkout.parent / 'bashrc'}" in err
    assert (checkout.parent / "bashrc").read_text(encoding="utf-8") == OURS


def test_links_that_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link in its folder is followed; one that leads in a circle is refused, and stays."""
    monkeypatch.chdir(tmp_path)
    Path("a").symlink_to("b")
    Path("c").symlink_to("d")
    Path("d").symlink_to("c")
    write_file("a", b"new", "--output", below=True)

    assert Path("b").read_bytes() == b"new"
    assert place_of("../x", "--output", below=True) == str(tmp_path.parent / "x")
    with pytest.raises(UnwritableFileError, match="in a circle"):
        write_file("c", b"new", "--output")
    assert Path("c").is_symlink()


def test_what_is_read_is_not_written(capsys: Capture, checkout: Path) -> None:
    """A check file, its lock, a list of models."""
    run(capsys, "check", "p.yaml", "--lock")
    (checkout / "list").write_text("m\n", encoding="utf-8")
    (checkout / "again.csv").hardlink_to("list")
    for words in (
        ("check", "p.yaml", "-o", "p.yaml"),
        ("check", "p.yaml", "-o", "p.yaml.lock"),
        ("sweep", "@list", "--seq", "8", "-o", "again.csv"),
    ):
        before = Path(words[-1]).read_bytes()
        status, _, err = run(capsys, *words)
        assert (status, Path(words[-1]).read_bytes()) == (2, before)
        assert "is a file that is read" in err


def test_a_write_protected_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new file could take its place, for the folder may be written. The superuser may write everything."""
    file = tmp_path / "f"
    file.write_bytes(b"old")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UnwritableFileError, match="write-protected"), whole_file(str(file), "--output"):
        pass
    assert file.read_bytes() == b"old"


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("check", "p.yaml", "--lock"), 74),
        (("check", "p.yaml"), 3),
        (("sweep", "@pipe", "--seq", "8"), 3),
        (("reconcile", "m", "--log", "pipe"), 3),
        (("probe", "--verify", "pipe"), 3),
    ],
)
def test_a_pipe_without_a_writer_ends(
    capsys: Capture, checkout: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], status: int
) -> None:
    """What waits for it would wait for ever."""
    monkeypatch.setattr("hwcalc.files._PIPE_SECONDS", 0.1)
    os.mkfifo("p.yaml.lock")
    os.mkfifo("pipe")
    told, out, err = run(capsys, *words)

    assert told == status
    assert "pipe" in out + err


@pytest.mark.parametrize(
    "words",
    [
        ("sweep", "m", "--seq", "8", "-o", "pipe"),
        ("check", "p.yaml", "-o", "pipe"),
        ("explore", "m", "--gpu", "l4", "-o", "pipe"),
        ("plot", "m", "-o", "pipe.svg"),
    ],
)
def test_a_pipe_without_a_reader_ends(
    capsys: Capture, checkout: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """What writes to it would wait for ever."""
    monkeypatch.setattr("hwcalc.files._PIPE_SECONDS", 0.1)
    monkeypatch.setattr("hwcalc.explore.build.payload_of", lambda *_, **__: {})
    os.mkfifo("pipe")
    os.mkfifo("pipe.svg")
    status, _, err = run(capsys, *words)

    assert status == 74
    assert "cannot be written: nobody reads this pipe" in err


def test_a_pipe_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also to somebody who opens it later."""
    monkeypatch.setattr("hwcalc.files._PIPE_SECONDS", 5.0)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Timer(0.1, lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_file(str(pipe), b"text", "--output")
    reader.join()
    assert read == [b"text"]


def test_a_pipe_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also from somebody who opens it later, or writes later."""
    monkeypatch.setattr("hwcalc.files._PIPE_SECONDS", 0.3)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    silent = threading.Event()

    def write() -> None:
        with pipe.open("wb") as file:
            silent.wait(0.6)
            file.write(b"text")

    writer = threading.Thread(target=write)
    writer.start()
    with opened(pipe) as file:
        assert file.read() == b"text"
    writer.join()


def test_a_name_that_is_none() -> None:
    """Nothing, and a name with a zero in it."""
    for name in ("", "a\0b"):
        with pytest.raises(UsageError, match="names no file"):
            place_of(name, "--output")
