"""Ctrl-C, SIGTERM, SIGHUP and kill -9: how the command ends, and what it leaves. ``scripts/interrupts.py`` does it at random moments."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hwcalc.cli import main, output
from hwcalc.cli.interrupt import GRACE_SECONDS
from hwcalc.files import SUFFIX, whole_file, write_atomically
from hwcalc.sources.caches import keep_files
from hwcalc.sources.request import tell
from hwcalc.sweep import writers
from hwcalc.unfinished import undo_all
from scripts import interrupts
from tests.effort import sample
from tests.hub.repositories import COMMIT
from tests.hwcalc.command import QWEN, REPOSITORY, Capture, python, run

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
KILL = "import os, signal\ndef kill():\n    os.kill(os.getpid(), signal.{})\n"
IMPORTING = """
import sys
class Finder:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            kill()
sys.meta_path.insert(0, Finder())
"""
MAIN = "import sys\nfrom hwcalc.cli import main\nsys.exit(main())\n"


@pytest.fixture(autouse=True, scope="module")
def _heeded() -> None:
    """Who starts the tests may ignore signals, and so would the commands."""
    interrupts.heed_signals()


def program(name: str, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program that has ``kill()``, which sends it the signal of that name."""
    return python("-c", KILL.format(name) + text, *words)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("module", ["hwcalc.cli.run", "hwcalc.model", "hwcalc.planner.plan", "hwcalc.report.table"])
def test_while_it_imports(name: str, module: str) -> None:
    """No import is too early for a quiet end."""
    done = program(name, IMPORTING.format(module=module) + MAIN, QWEN)

    assert (done.returncode, done.stdout, done.stderr) == (128 + getattr(signal, name), "", "")


@pytest.mark.parametrize("place", ["run._answer = kill_first(run._answer)", "run.write = kill_first(run.write)"])
def test_a_document_is_an_answer_or_an_error(place: str) -> None:
    """A signal before the document is written, while remarks are, makes a document of an error; one that comes later waits."""
    text = (
        "import sys\nfrom hwcalc.cli import output, run\n"
        "def kill_first(function):\n    def killed(*given, **named):\n        kill()\n        return function(*given, **named)\n"
        "    return killed\n"
        "run._answer = lambda words: output.Answer(text='{}\\n', json=True, remarks=('a remark',))\n"
        f"{place}\n" + MAIN
    )
    done = program("SIGINT", text, QWEN, "--json")

    assert done.returncode == 130
    assert json.loads(done.stdout)["error"]["type"] == "interrupted"


def test_where_an_exception_would_be_swallowed() -> None:
    """Python prints and forgets what a destructor raises; libraries catch everything."""
    text = (
        "from hwcalc.cli import run\nclass Dying:\n    def __del__(self):\n        kill()\n"
        "def answer(words):\n    Dying()\n    raise AssertionError\nrun._answer = answer\n" + MAIN
    )
    done = program("SIGINT", text, QWEN)

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_while_threads_read() -> None:
    """The process does not wait for its threads."""
    text = (
        "import concurrent.futures, time\nfrom hwcalc.cli import run\n"
        "def answer(words):\n    pool = concurrent.futures.ThreadPoolExecutor(2)\n    pool.submit(time.sleep, 30)\n"
        "    time.sleep(0.1)\n    kill()\nrun._answer = answer\n" + MAIN
    )
    began = time.monotonic()
    done = program("SIGINT", text, QWEN)

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    assert time.monotonic() - began < 20


def test_while_processes_replay() -> None:
    """The processes of ``--workers`` end with the command, and nothing is said of what they leave."""
    text = (
        "import hwcalc.replay.compare\n"
        "def replay_each(model, requests, each, executor, *more, **others):\n    executor.submit(abs, -1).result()\n    kill()\n"
        "hwcalc.replay.compare.replay_each = replay_each\n" + MAIN
    )
    line = ("simulate", QWEN, "--blocks", "60", "--step-time", "1ms", "--trace", "prompt=9 output=2 requests=2")
    # Its output ends when the last of the processes has.
    done = program("SIGINT", text, *line, "--compare", "max_num_seqs=1,2", "--workers", "1")

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_finished_parts_stay(tmp_path: Path) -> None:
    """Ctrl-C before the second part says where the first one is, and the same line goes on."""
    text = (
        "from hwcalc.library import parts\n"
        "keep = parts.Dataset.keep\nkept = []\n"
        "def kill_second(self, part, result):\n    kept.append(part)\n    len(kept) == 2 and kill()\n    keep(self, part, result)\n"
        "parts.Dataset.keep = kill_second\n" + MAIN
    )
    out = str(tmp_path / "points")
    line = ("sweep", QWEN, "--seq", "1k,2k", "--dtype", "bf16,fp8", "--out", out)
    done = program("SIGINT", text, *line)

    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == f"kvplan: finished parts are in '{out}'. The same line goes on with the others.\n"
    assert [file.suffix for file in (tmp_path / "points").rglob("*") if file.is_file()] == [".parquet"]


def test_an_answer_does_not_wait_for_threads() -> None:
    """One weight file could not be read; the others, slow ones, are read by threads that nobody asks any more."""
    text = (
        "import threading, time\nfrom hwcalc.cli import output, run\n"
        "def answer(words):\n    threading.Thread(target=time.sleep, args=(30,), daemon=True).start()\n"
        "    return output.Answer(text='all\\n', status=1)\nrun._answer = answer\n" + MAIN
    )
    began = time.monotonic()
    done = program("SIGINT", text, QWEN)

    assert (done.returncode, done.stdout, done.stderr) == (1, "all\n", "")
    assert time.monotonic() - began < 20


def test_a_module_that_another_program_runs_ends_alone() -> None:
    """As ``%run -m hwcalc`` in a notebook, whose state must survive."""
    text = (
        "import runpy, sys\nsys.argv = ['kvplan', 'version']\n"
        "try:\n    runpy.run_module('hwcalc', run_name='__main__')\nexcept SystemExit as end:\n    print('status', end.code)\nprint('after')"
    )

    assert python("-c", text).stdout.split()[2:] == ["status", "0", "after"]


def test_a_profile_is_printed() -> None:
    """The process does not end before its profiler has."""
    done = python("-m", "cProfile", "-m", "hwcalc", "version")

    assert done.stdout.startswith("kvplan ")
    assert "function calls" in done.stdout


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_while_a_file_is_written(tmp_path: Path, name: str) -> None:
    """The old file is whole, and nothing lies beside it."""
    target = tmp_path / "points.csv"
    target.write_text("old", encoding="utf-8")
    text = "from hwcalc.sweep import writers\ndef texts(*_):\n    yield 'a,b'\n    kill()\nwriters.texts = texts\n" + MAIN
    done = program(name, text, "sweep", QWEN, "--seq", "1k", "-o", str(target))

    assert (done.returncode, done.stdout, done.stderr) == (128 + getattr(signal, name), "", "")
    assert target.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_while_bytecode_is_written(tmp_path: Path) -> None:
    """Python deletes its own temporary file only where it could not be written."""
    text = (
        "import importlib._bootstrap_external as external\nreplace = external._os.replace\n"
        "def stopped(one, other):\n    if 'planner' in one:\n        kill()\n    return replace(one, other)\n"
        "class Os:\n    def __getattr__(self, name):\n        return stopped if name == 'replace' else getattr(os, name)\n"
        "external._os = Os()\n" + MAIN
    )
    environment = os.environ | {"PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    environment["PYTHONPATH"] = str(REPOSITORY)
    done = python("-c", KILL.format("SIGINT") + text, QWEN, env=environment)

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".pyc"] == []


def test_while_another_program_runs(tmp_path: Path) -> None:
    """``nvidia-smi`` does not go on alone. It has a session of its own, which no Ctrl-C reaches."""
    text = (
        "import sys, threading\nfrom hwcalc.cli.interrupt import end_quietly\nend_quietly()\n"
        "from hwcalc.hardware.local import bounded_output\nthreading.Timer(1, kill).start()\n"
        "bounded_output('sh', '-c', 'echo $$ > ' + sys.argv[1] + '; sleep 60')\n"
    )
    done = program("SIGINT", text, str(tmp_path / "pid"))
    process = int((tmp_path / "pid").read_text(encoding="ascii"))

    assert (done.returncode, done.stderr) == (130, "")
    assert gone(process)


def gone(process: int) -> bool:
    """Whether a process ends within some seconds. Whoever adopts it may let it lie dead for a while."""
    for _ in range(50):
        try:
            if Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] == "Z":
                return True
            os.kill(process, 0)
        except OSError:
            return not Path(f"/proc/{process}").exists()
        time.sleep(0.1)
    return False


def test_the_line_of_progress_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell's next prompt begins an empty line, even if the signal came while the line was written."""
    monkeypatch.setattr(output, "PATIENCE", 0.01)
    terminal = tmp_path / "terminal"
    with terminal.open("w", encoding="utf-8", newline="") as stream, output.shown_progress(stream):
        tell("asking")
        while b"asking" not in terminal.read_bytes():
            time.sleep(0.01)
        undo_all(130)
        shown = terminal.read_bytes().decode("utf-8")

    assert "kvplan: asking" in shown
    assert "\r\x1b[2K\x1b[?25h" in shown


def test_no_line_of_progress_comes_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that ends while the line is being prepared has standard output for itself: rich replaces it while a line is shown."""
    begun, ended, done = threading.Event(), threading.Event(), threading.Event()

    class Late(threading.Timer):
        def run(self) -> None:
            begun.set()
            ended.wait(10)
            self.function()
            done.set()

    monkeypatch.setattr("threading.Timer", Late)
    terminal = tmp_path / "terminal"
    with terminal.open("w", encoding="utf-8") as stream:
        with output.shown_progress(stream):
            tell("asking")
            assert begun.wait(10)
        ended.set()
        assert done.wait(10)

        assert terminal.read_bytes() == b""


def test_an_ignored_signal_stays_ignored() -> None:
    """Under ``nohup``, the end of the terminal does not end the command."""
    text = (
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\nfrom hwcalc.cli import interrupt\ninterrupt.end_quietly()\nkill()\n" + MAIN
    )
    done = program("SIGHUP", text, QWEN, "--json")

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["model"]["id"] == QWEN


def test_a_function_leaves_signals_to_its_caller(capsys: Capture) -> None:
    """Neither the library nor ``main`` with arguments handles signals, in whatever thread."""
    before = [signal.getsignal(number) for number in (*SIGNALS, signal.SIGALRM)]
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(main([QWEN, "--json"])))
    thread.start()
    thread.join()

    assert found == [0]
    assert json.loads(capsys.readouterr().out)["model"]["id"] == QWEN
    assert run(capsys, QWEN)[0] == 0
    assert [signal.getsignal(number) for number in (*SIGNALS, signal.SIGALRM)] == before


def test_a_process_in_another_thread() -> None:
    """``main`` without arguments works there too. Only the main thread may handle signals."""
    text = "import threading, sys\nfrom hwcalc.cli import main\nthread = threading.Thread(target=main)\nthread.start()\nthread.join()\n"
    done = python("-c", text, QWEN, "--json")

    assert done.stderr == ""
    assert json.loads(done.stdout)["model"]["id"] == QWEN


def models(**environment: str) -> subprocess.Popen[bytes]:
    """A command that prints more than a pipe holds, stuck in the middle of it."""
    command = [sys.executable, "-m", "hwcalc", "models", "--json"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, env=os.environ | environment, cwd=REPOSITORY
    )
    assert process.stdout is not None
    assert process.stdout.read(1) == b"{"
    time.sleep(0.1)
    return process


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("number", SIGNALS)
def test_a_document_that_has_begun_is_finished(number: signal.Signals, unbuffered: str) -> None:
    """Its reader gets all of it."""
    with models(PYTHONUNBUFFERED=unbuffered) as process:
        process.send_signal(number)
        time.sleep(0.2)
        rest, errors = process.communicate(timeout=30)

    assert (process.returncode, errors) == (128 + number, b"")
    assert json.loads(b"{" + rest)["models"]


@pytest.mark.parametrize("times", [1, 2])
def test_a_reader_that_has_stopped(times: int) -> None:
    """Nobody reads on: after some seconds, or at the second Ctrl-C, the command ends all the same."""
    with models() as process:
        began = time.monotonic()
        for _ in range(times):
            process.send_signal(signal.SIGINT)
            time.sleep(0.2)
        status = process.wait(timeout=30)

    assert status == 130
    assert (time.monotonic() - began > GRACE_SECONDS) == (times == 1)


def test_a_document_of_points_is_whole_or_an_error(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep to standard output is one document. That of a sweep that does not end says so."""
    texts = writers.texts

    def broken(*given: Any) -> Iterator[str]:
        yield next(texts(*given))
        raise KeyboardInterrupt

    assert json.loads(run(capsys, "sweep", QWEN, "--seq", "1k,2k", "--json")[1])["points"]
    monkeypatch.setattr(writers, "texts", broken)
    status, out, err = run(capsys, "sweep", QWEN, "--seq", "1k", "--json")

    assert (status, err) == (130, "")
    assert json.loads(out)["error"] == {
        "code": 130,
        "type": "interrupted",
        "message": "the command was interrupted.",
        "hint": "",
    }


def test_what_killed_processes_left_is_deleted_a_day_later(tmp_path: Path) -> None:
    """Only temporary files of kvplan, and not those that somebody may still be writing to."""
    old, new, other = (tmp_path / name for name in (f".a.0{SUFFIX}", f".a.1{SUFFIX}", ".a.tmp"))
    for path in (old, new, other):
        path.write_bytes(b"half")
    for path in (old, other):
        os.utime(path, (0, time.time() - 25 * 3600))
    write_atomically(tmp_path / "file", b"whole")

    assert sorted(tmp_path.iterdir()) == sorted([new, other, tmp_path / "file"])


def test_a_temporary_file_says_whose_it_is(tmp_path: Path) -> None:
    """It lies in the folder of the file, because only there can it take its place at once."""
    with whole_file(str(tmp_path / "points.csv"), "--output"):
        (temporary,) = tmp_path.iterdir()

        assert temporary.name.startswith(".points.csv.")
        assert temporary.name.endswith(SUFFIX)


def test_a_commit_without_its_last_file_has_no_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A config whose quantisation lies in a second file is not there before that."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))

    def killed(source: str, target: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "symlink", killed)
    with pytest.raises(KeyboardInterrupt):
        keep_files("org/model", "main", COMMIT, {"config.json": b"{}", "hf_quant_config.json": b'{"a": 1}'})

    assert [path.read_bytes() for path in tmp_path.rglob("blobs/*")] == [b'{"a": 1}']


@pytest.mark.parametrize("only", sample(["check --output", "Hub"], 1))
def test_at_random_moments(only: str) -> None:
    """A share of what ``scripts/interrupts.py`` does."""
    given = interrupts.arguments(["--sigint", "1", "--sigterm", "1", "--sigkill", "1", "--only", only])

    assert [run for run in interrupts.interrupt(given) if run.wrong] == []
