"""Interrupt kvplan at random moments and see what it leaves behind.

    python scripts/interrupts.py                      1,000 times Ctrl-C, 200 times SIGTERM, 200 times kill -9
    python scripts/interrupts.py --sigint 50 --only sweep --seed 7

Each run is a new process in a folder of its own, with a home, caches and a small Hub on this machine. It is left alone for a random part
of the time that the command takes, and then gets the signal. Afterwards:

- except after kill -9, it has ended with 130 (Ctrl-C) or 143 (SIGTERM), or as it does without a signal if it was faster or about to end;
- standard error has no traceback, and standard output is empty or whole (a sweep that prints lines: whole lines);
- each file that it writes is as before, absent or whole, and there is no temporary file in any folder;
- after kill -9 a second run of the same command in the same folder gives the right answer.

Python takes some milliseconds before the first line of kvplan, in which a signal is Python's own affair: it ends by the signal or prints
a traceback of its own start. These runs are counted apart (`start`) and do not count as one of the 1,000. Neither do those in the first
lines of kvplan itself, before it could ask for signals (`first lines`).

exit status: 0 every run was as it should be; 1 one was not; 2 wrong usage
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

ROOT: Final = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    # A script's own folder is on the path, its repository is not.
    sys.path.insert(0, str(ROOT))

from scripts.signals.cases import CASES, HUB_MODEL, REPOSITORY, Case, Room  # noqa: E402 - after the path is known
from tests.hub.server import Hub  # noqa: E402 - as above

SIGNALS: Final = {"sigint": signal.SIGINT, "sigterm": signal.SIGTERM, "sigkill": signal.SIGKILL}
PATIENCE: Final = 60
"""Seconds after which a run that does not end has failed."""
OLD: Final = b"old\n"
TRACEBACK: Final = re.compile(rb"Traceback|Exception ignored|Remainder of file ignored")
OURS: Final = re.compile(r'File "[^"]*/(?:hwcalc|formulas|profiles)/([\w/]+\.py)"')
FIRST_LINES: Final = frozenset(
    {"__init__.py", "__main__.py", "_version.py", "checkout.py", "unfinished.py", "cli/__init__.py", "cli/interrupt.py"}
)
"""The files that run before the command has prepared for a signal."""
ENDED, INTERRUPTED, START, FIRST, BAD = "as usual", "interrupted", "start", "first lines", "BAD"


@dataclass(frozen=True)
class Usual:
    """What a case does without a signal: its status, its output, the files it leaves, and how long it takes.

    ``again`` is the output of a second run in the same folder, which may find a cache or a lock.
    """

    status: int
    output: bytes
    again: bytes
    files: dict[str, bytes]
    seconds: float


@dataclass(frozen=True)
class Run:
    """One interrupted run: how it ended, and what is wrong with it (nothing, mostly)."""

    case: str
    signal: str
    end: str
    after: float
    wrong: str = ""


class Bench:
    """A folder for all runs, and the Hub that they ask."""

    def __init__(self, folder: Path, endpoint: str, cases: Sequence[Case]) -> None:
        self.folder, self._endpoint = folder, endpoint
        self._count = 0
        self.usual = {case.name: self._measured(case) for case in cases}

    @contextmanager
    def room(self, case: Case) -> Iterator[Room]:
        """A new folder, deleted at the end."""
        self._count += 1
        room = Room(self.folder / str(self._count), case, self._endpoint, self.folder / "bytecode")
        try:
            yield room
        finally:
            room.remove()

    def _measured(self, case: Case) -> Usual:
        found = []
        for script in (False, True, True, True):
            with self.room(case) as room:
                began = time.monotonic()
                done = finished(room, script=script)
                seconds, files = time.monotonic() - began, room.files()
                found.append(Usual(done.returncode, done.stdout, finished(room, script=script).stdout, files, seconds))
        if found[1].output != found[2].output or not found[1].files.keys() == found[2].files.keys() <= found[0].files.keys():
            raise SystemExit(f"interrupts: {case.name} does not say the same twice")
        # The first one has written the bytecode of all others.
        shortest = min(one.seconds for one in found[1:])
        return Usual(found[2].status, found[2].output, found[2].again, found[0].files | found[2].files, shortest)

    def run(self, case: Case, name: str, rng: random.Random) -> Run:
        """One run: wait, send the signal, look at what is left."""
        usual, number = self.usual[case.name], SIGNALS[name]
        after, script, has_old = rng.uniform(0, usual.seconds), rng.random() < 0.5, rng.random() < 0.5
        with self.room(case) as room:
            if has_old:
                for path in case.outputs:
                    (room.work / path).write_bytes(OLD)
            before = room.files()
            status, output, errors = interrupted(room, number, after, script=script)
            end = ending(status, output, errors, usual, number)
            wrong = said(case, usual, number, end, output, errors) or left(case, usual, before, room.files(), number, end)
            if not wrong and number is signal.SIGKILL:
                wrong = self._again(room, usual)
        return Run(case.name, name, BAD if wrong else end, after, wrong and f"{wrong} (status {status}, {errors[-300:]!r})")

    def _again(self, room: Room, usual: Usual) -> str:
        done = finished(room, script=False)
        if done.returncode != usual.status or done.stdout not in (usual.output, usual.again):
            return f"the next run ends with {done.returncode} or prints something else: {done.stderr[-300:]!r}"
        now = room.files()
        missing = [path for path in usual.files if not path.endswith(".pyc") and not whole(path, now.get(path), usual)]
        return f"the next run does not write {missing}" if missing else ""


def finished(room: Room, *, script: bool) -> subprocess.CompletedProcess[bytes]:
    """A run without a signal."""
    return subprocess.run(room.command(script=script), cwd=room.work, env=room.environment, capture_output=True, check=False)


def interrupted(room: Room, number: signal.Signals, after: float, *, script: bool) -> tuple[int, bytes, bytes]:
    """Start the command, wait, send the signal, and give back status, output and errors."""
    with subprocess.Popen(
        room.command(script=script),
        cwd=room.work,
        env=room.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        with suppress(subprocess.TimeoutExpired):
            process.wait(after)
        process.send_signal(number)
        try:
            output, errors = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return -1000, b"", b"it did not end"
        return process.returncode, output, errors


def ending(status: int, output: bytes, errors: bytes, usual: Usual, number: signal.Signals) -> str:
    """The word for how a run ended, by its status and what it said."""
    ours = set(OURS.findall(errors.decode("utf-8", "replace")))
    if status == usual.status and output == usual.output:
        # Where Python starts, a destructor or a .pth file may swallow Ctrl-C, and Python says so and goes on.
        return START if TRACEBACK.search(errors) and not ours else ENDED
    if number is signal.SIGKILL:
        return INTERRUPTED if status == -number else BAD
    if status == 128 + number:
        return INTERRUPTED
    if output or ours - FIRST_LINES or status not in {-number, 1}:
        return BAD
    return FIRST if ours else START


def is_told(output: bytes, status: int) -> bool:
    """True if the output is the document of an interrupted command, which answers so where JSON was asked for."""
    try:
        document = json.loads(output)
    except ValueError:
        return False
    return isinstance(document, dict) and document.get("error", {}).get("code") == status


def said(case: Case, usual: Usual, number: signal.Signals, end: str, output: bytes, errors: bytes) -> str:
    """The fault of status, output and errors; empty if all is well."""
    if end == BAD:
        return "it ended in another way"
    if end in {ENDED, INTERRUPTED} and TRACEBACK.search(errors):
        return "a traceback"
    if output in (b"", usual.output) or (end == INTERRUPTED and is_told(output, 128 + number)):
        return ""
    # kill -9 may come between two pieces of one document.
    streams = (case.streams and output.endswith(b"\n")) or number is signal.SIGKILL
    if not streams or not usual.output.startswith(output):
        return f"{len(output)} of {len(usual.output)} bytes of output"
    return ""


def left(case: Case, usual: Usual, before: dict[str, bytes], now: dict[str, bytes], number: signal.Signals, end: str) -> str:
    """The fault of the files that are left."""
    for path, data in now.items():
        if path in before and data == before[path]:
            continue
        if path in usual.files:
            if not whole(path, data, usual):
                return f"a part of {path}"
        elif number is not signal.SIGKILL and not (end in {START, FIRST} and ".pyc." in path):
            return f"{path} is left"
    gone = sorted(before.keys() - now.keys())
    return f"{gone} is gone" if gone else ""


def whole(path: str, data: bytes | None, usual: Usual) -> bool:
    """True if a file is what the command writes. Bytecode has times in it, JSON may."""
    if data is None or data == usual.files[path]:
        return data is not None
    if path.endswith(".json"):
        with suppress(ValueError):
            return bool(json.loads(data).keys() == json.loads(usual.files[path]).keys())
    return path.endswith(".pyc") and len(data) == len(usual.files[path])


def start_seconds() -> float:
    """The seconds that Python takes to its first line, which nobody can cover."""
    found = []
    for _ in range(15):
        began = time.monotonic()
        with subprocess.Popen([sys.executable, "-c", "import os; os.write(1, b'x')"], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.read(1)
            found.append(time.monotonic() - began)
    return statistics.median(found)


def report(runs: Sequence[Run], bench: Bench) -> None:
    """Print how the runs of each case ended, by signal."""
    ends = (INTERRUPTED, ENDED, START, FIRST, BAD)
    for name in SIGNALS:
        mine = [run for run in runs if run.signal == name]
        if not mine:
            continue
        print(f"\n{name.upper():26} {'takes':>7} {'runs':>6} " + " ".join(f"{end:>12}" for end in ends))
        for case in [*bench.usual, ""]:
            those = [run for run in mine if case in ("", run.case)]
            counts = Counter(run.end for run in those)
            seconds = f"{bench.usual[case].seconds * 1000:4.0f} ms" if case else ""
            print(f"{case or 'all':26} {seconds:>7} {len(those):6} " + " ".join(f"{counts[end]:12}" for end in ends))
    for end in (START, FIRST):
        latest = max((run.after for run in runs if run.end == end), default=0.0)
        print(f"{end}: the latest after {latest * 1000:.0f} ms")
    print(f"Python alone takes {start_seconds() * 1000:.0f} ms to its first line")
    for run in runs:
        if run.wrong:
            print(f"{run.signal} after {run.after:.3f} s of {run.case}: {run.wrong}")


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, count in (("sigint", 1000), ("sigterm", 200), ("sigkill", 200)):
        parser.add_argument(f"--{name}", type=int, default=count, metavar="N", help=f"how often (default {count:,})")
    parser.add_argument("--seed", type=int, default=1, help="another seed, other moments (default 1)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only commands whose name contains this")
    given = parser.parse_args(words)
    if not any(given.only in case.name for case in CASES):
        parser.error(f"--only {given.only!r} is in no name. Names: " + ", ".join(case.name for case in CASES))
    return given


def interrupt(given: argparse.Namespace) -> Iterator[Run]:
    """All runs that the options ask for, case by case in turn. The last thing is the table of counts."""
    cases = [case for case in CASES if given.only in case.name]
    rng = random.Random(given.seed)  # noqa: S311 - no secret
    with tempfile.TemporaryDirectory() as folder, Hub() as hub:
        hub.add(HUB_MODEL, REPOSITORY)
        bench = Bench(Path(folder), hub.address, cases)
        runs: list[Run] = []
        try:
            for name in SIGNALS:
                reached = turn = 0
                while reached < getattr(given, name):
                    runs.append(bench.run(cases[turn % len(cases)], name, rng))
                    turn, reached = turn + 1, reached + (runs[-1].end not in {START, FIRST})
                    yield runs[-1]
        finally:
            report(runs, bench)


def main(words: Sequence[str] | None = None) -> int:
    """Run all and give back the exit status."""
    heed_signals()
    runs = list(interrupt(arguments(words)))
    return 1 if any(run.wrong for run in runs) else 0


def heed_signals() -> None:
    """Ignore no signal that the commands are to get: under ``nohup``, or behind a shell, they would ignore it too."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def leave(number: int, frame: object) -> NoReturn:
    """End with the folders deleted and the counts so far printed."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, leave)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
