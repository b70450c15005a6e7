"""Feed kvplan what nobody would: damaged configs, arguments, check files, profiles, logs, headers, weight files and GGUF files.

    python scripts/fuzz.py                        10,000 inputs, a minute or two
    python scripts/fuzz.py --inputs 1000000       a million
    python scripts/fuzz.py --seconds 3600         as many as an hour allows
    python scripts/fuzz.py --family gguf --inputs 50000
    python scripts/fuzz.py --replay FILE...       what was kept of an earlier fault

Every input must end with a documented exit status other than 70 (a fault in kvplan itself), within 5 seconds of the processor and 300 MB
(20 and 500 for a page or a picture), without a traceback, a control character, a line that a CI runner takes for a command, or a word of a token. The inputs run in the worker
processes, one after the other: most are calls of the library, the others commands (``WEIGHTS`` in scripts/fuzzing/families.py has
the share of each kind, and ``--evenly`` runs all kinds equally often). What looks like a fault runs again in a process of its own and counts only if it does the same there.
The same seed makes the same inputs. A fault is kept in DIR as one JSON file; mended, it belongs into tests/corpus, which the tests run.

Ctrl-C ends it with what was found so far.

exit status: 0 no fault; 1 a fault; 2 wrong usage
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    # A script's own folder is on the path, its repository is not.
    sys.path.insert(0, str(ROOT))

from hwcalc.formulas.record import Record  # noqa: E402
from scripts.fuzzing.case import Case, case_document, read_case, write_files  # noqa: E402
from scripts.fuzzing.families import CALLED, FAMILIES, WEIGHTS, case_of  # noqa: E402
from scripts.fuzzing.watch import (  # noqa: E402
    MEMORY_BYTES,
    READING_SECONDS,
    SECONDS,
    Outcome,
    complaints,
    environment,
    run_case,
    written_outside,
)

HANGS_SECONDS: Final = 60.0
"""A worker that is this long at one input is ended."""
FRESH_AFTER: Final = 20_000
"""Inputs of one worker. A new one begins with the memory of a new process."""
STEP: Final = 200
"""Inputs between two reports of a worker."""
OBJECTS: Final = 100_000
"""Objects that are made before Python searches for garbage: as many as in the command itself."""
ADDRESS_SPACE_BYTES: Final = 6 * 1024**3
"""What a worker may ask for at all, so that one bad input does not end the machine."""
IN_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - only folders with random names are made there
"""Where Linux keeps files that never go to a disk."""
MOST_TRIED: Final = 300
SHOWN: Final = 30


class Fault(Record):
    """One input that broke a promise."""

    number: int
    complaint: str
    where: str
    file: str


class Worker:
    """A process that runs the inputs from ``first`` on, below ``end``, and this side of its pipe."""

    def __init__(self, options: argparse.Namespace, first: int, end: int) -> None:
        self.end = end
        self._at = multiprocessing.RawValue("q", first)
        self._seen = first
        self._since = time.monotonic()
        here, there = multiprocessing.Pipe()
        self.pipe: Connection = here
        arguments = (there, self._at, options, first, end)
        self.process = multiprocessing.get_context("fork").Process(target=_work, args=arguments, daemon=True)
        self.process.start()
        there.close()

    @property
    def number(self) -> int:
        """The input that it runs."""
        return int(self._at.value)

    def hangs(self) -> bool:
        """True if it has been at one input for too long."""
        if self.number != self._seen:
            self._seen, self._since = self.number, time.monotonic()
        return time.monotonic() - self._since > HANGS_SECONDS


def main() -> int:
    """Run the fuzzer."""
    options = _options()
    os.environ.pop("KVPLAN_DEBUG", None)
    if options.replay:
        return _replay(options)
    started = time.monotonic()
    done: Counter[str] = Counter()
    took: defaultdict[str, float] = defaultdict(float)
    suspects: list[tuple[int, str]] = []
    most = {"seconds": (0.0, 0), "memory": (0, 0), "reading": (0.0, 0)}
    try:
        # Here, not in the workers, which may be killed.
        with tempfile.TemporaryDirectory(prefix="kvplan-fuzz-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as scratch:
            options.scratch = Path(scratch)
            _run(options, started, done, took, suspects, most)
    except KeyboardInterrupt:
        print("interrupted: what was found so far", file=sys.stderr)
    faults, passing, untried = _confirmed(options, suspects)
    seconds = time.monotonic() - started
    _print_table(options, done, took, most, seconds)
    print(
        f"suspected: {len(suspects):,}; of these not again in a process of their own: {passing:,}; not tried again: {untried:,}"
    )
    for (complaint, where), numbers in _grouped(faults).items():
        print(f"FAULT {complaint}: {where}: {len(numbers):,} inputs, such as {numbers[0].file or numbers[0].number}")
    print("no fault" if not faults and not untried else f"{len(faults):,} faults")
    return 1 if faults or untried else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=_positive, default=10_000, metavar="N", help="how many inputs (default: 10,000)")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first input (default: 0)")
    parser.add_argument("--seconds", type=float, default=float("inf"), metavar="S", help="end after so many seconds")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="which inputs (default: 0)")
    parser.add_argument("--family", choices=[*FAMILIES], action="append", help="only these kinds of input; repeatable")
    parser.add_argument("--evenly", action="store_true", help="each kind as often as the others, also those that take long")
    parser.add_argument(
        "--workers", type=_positive, default=os.cpu_count() or 1, metavar="N", help="processes (default: all cores)"
    )
    parser.add_argument("--keep", type=Path, default=Path("fuzz-faults"), metavar="DIR", help="where faults are kept")
    parser.add_argument("--replay", type=Path, nargs="+", metavar="FILE", help="run kept inputs again, and print what they say")
    return parser.parse_args()


def _positive(text: str) -> int:
    number = int(text.replace(",", "").replace("_", ""))
    if number < 1:
        message = "it must be 1 or more"
        raise argparse.ArgumentTypeError(message)
    return number


def _families(options: argparse.Namespace) -> Mapping[str, int]:
    names = options.family or [*WEIGHTS]
    return {name: 1 if options.evenly else WEIGHTS[name] for name in names}


def _run(
    options: argparse.Namespace,
    started: float,
    done: Counter[str],
    took: dict[str, float],
    suspects: list[tuple[int, str]],
    most: dict[str, Any],
) -> None:
    """Keep the workers busy until all inputs have run or the time is over."""
    last = options.first + options.inputs
    waiting = [(first, min(first + FRESH_AFTER, last)) for first in range(options.first, last, FRESH_AFTER)][::-1]
    workers: list[Worker] = []
    said = started
    while workers or waiting:
        over = time.monotonic() - started > options.seconds
        if over:
            waiting.clear()
        while waiting and len(workers) < options.workers:
            workers.append(Worker(options, *waiting.pop()))
        ready = multiprocessing.connection.wait([worker.pipe for worker in workers], timeout=1.0)
        for worker in [*workers]:
            ended = _listen(worker, done, took, suspects, most) if worker.pipe in ready else False
            hangs = worker.hangs()
            if hangs or over:
                worker.process.kill()
            if ended or hangs or over:
                worker.process.join()
                workers.remove(worker)
                if (hangs or worker.process.exitcode != 0) and not over:
                    suspects.append((worker.number, f"it takes more than {HANGS_SECONDS:g} s" if hangs else "its process died"))
                    if worker.number + 1 < worker.end:
                        waiting.append((worker.number + 1, worker.end))
        if time.monotonic() - said > 10:
            said = time.monotonic()
            rate = sum(done.values()) / (said - started)
            last_one = f", the last {suspects[-1][0]} of {suspects[-1][1]}" if suspects else ""
            text = f"{sum(done.values()):,} of {options.inputs:,} inputs, {rate:,.0f} a second, {len(suspects):,} suspected{last_one}"
            print(text, file=sys.stderr, flush=True)


def _listen(
    worker: Worker, done: Counter[str], took: dict[str, float], suspects: list[tuple[int, str]], most: dict[str, Any]
) -> bool:
    """Take in what a worker reports. Returns whether it has ended."""
    try:
        while worker.pipe.poll():
            kind, *content = worker.pipe.recv()
            if kind == "suspect":
                suspects.append((content[0], content[1]))
            else:
                done.update(content[0])
                for family, seconds in content[1].items():
                    took[family] += seconds
                for name, pair in content[2].items():
                    most[name] = max(most[name], pair)
    except EOFError:
        return True
    return False


def _work(pipe: Connection, at: Any, options: argparse.Namespace, first: int, end: int) -> None:
    """Run inputs in this process, and report. ``at`` takes the number of the input that runs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    families = _families(options)
    counted: Counter[str] = Counter()
    took: defaultdict[str, float] = defaultdict(float)
    most: dict[str, Any] = {"seconds": (0.0, 0), "memory": (0, 0), "reading": (0.0, 0)}
    # What is imported and read by now stays: nobody need search it for garbage.
    gc.freeze()
    gc.set_threshold(OBJECTS)
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        folder = Path(scratch) / "case"
        variables = environment(folder)
        os.environ.clear()
        os.environ.update(variables)
        for number in range(first, end):
            at.value = number
            case = case_of(options.seed, number, families)
            outcome = run_case(case, folder, fresh=case.family == "profile")
            counted[f"{case.family} {outcome.status}"] += 1
            took[case.family] += outcome.seconds
            most["seconds"] = max(most["seconds"], (outcome.seconds, number))
            most["reading"] = max(most["reading"], (outcome.reading_seconds, number))
            most["memory"] = max(most["memory"], (outcome.memory_bytes, number))
            for complaint in complaints(case, outcome)[:1]:
                pipe.send(("suspect", number, complaint))
            if number % STEP == 0 or number == end - 1:
                pipe.send(("done", counted, took, most))
                counted.clear()
                took.clear()
    pipe.close()


def _confirmed(options: argparse.Namespace, suspects: Sequence[tuple[int, str]]) -> tuple[list[Fault], int, int]:
    """The suspects that do it again in a process of their own, how many do not, and how many were not tried.

    Of each complaint, :data:`MOST_TRIED` are.
    """
    faults = []
    tried: Counter[str] = Counter()
    passing = 0
    for number, complaint in suspects:
        tried[complaint] += 1
        if tried[complaint] > MOST_TRIED:
            continue
        case = case_of(options.seed, number, _families(options))
        found, outcome = run_alone(case)
        if not found:
            passing += 1
            continue
        options.keep.mkdir(parents=True, exist_ok=True)
        where = _where(outcome)
        name = hashlib.sha256(f"{found[0]} {where}".encode()).hexdigest()[:8]
        path = options.keep / f"{case.family}-{name}.json"
        if not path.exists():
            document = {"fault": f"{found[0]}: {where}", "seed": options.seed, "number": number, **case_document(case)}
            path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        faults.append(Fault(number=number, complaint=found[0], where=where, file=str(path)))
    return faults, passing, sum(max(0, count - MOST_TRIED) for count in tried.values())


def _grouped(faults: Sequence[Fault]) -> dict[tuple[str, str], list[Fault]]:
    grouped: dict[tuple[str, str], list[Fault]] = {}
    for fault in faults:
        grouped.setdefault((fault.complaint, fault.where), []).append(fault)
    return dict(sorted(grouped.items(), key=lambda item: -len(item[1]))[:SHOWN])


def run_alone(case: Case) -> tuple[list[str], Outcome]:
    """Run a case in an interpreter of its own, and say what it broke."""
    with tempfile.TemporaryDirectory(prefix="kvplan-fuzz-") as scratch:
        folder = Path(scratch) / "case"
        folder.mkdir()
        write_files(case, folder)
        report = Path(scratch) / "report"
        words = [word.encode("utf-8", "surrogateescape" if _escaped(word) else "surrogatepass") for word in case.words]
        kept = Path(scratch) / "case.json"
        kept.write_text(json.dumps(case_document(case)), encoding="utf-8")
        child = _CHILD if case.family not in CALLED else _CHILD_OF_A_CASE
        command: list[str | bytes] = [
            sys.executable,
            "-c",
            child,
            str(report),
            next(iter(case.files), "") if case.family == "gguf" else "",
            *words,
        ]
        if child is _CHILD_OF_A_CASE:
            command = [sys.executable, "-c", child, str(report), str(kept)]
        variables = environment(folder) | {"PYTHONPATH": str(ROOT), "KVPLAN_DEBUG": "0"}
        try:
            done = subprocess.run(
                command, input=case.stdin, capture_output=True, cwd=folder, env=variables, timeout=HANGS_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            empty = Outcome(status=None, out="", err="", seconds=HANGS_SECONDS, memory_bytes=0)
            return [f"it takes more than {HANGS_SECONDS:g} s"], empty
        seconds, memory, reading = (float(part) for part in report.read_text().split()) if report.exists() else (0.0, 0.0, 0.0)
        outcome = Outcome(
            status=done.returncode,
            out=done.stdout.decode("utf-8", "surrogateescape"),
            err=done.stderr.decode("utf-8", "surrogateescape"),
            seconds=seconds,
            memory_bytes=int(memory),
            reading_seconds=reading,
            left=("through a link",) if case.links and written_outside(folder) else (),
        )
        return complaints(case, outcome), outcome


_CHILD: Final = """
import resource, sys, time
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
from hwcalc.cli import main
status = main(sys.argv[3:])
seconds = time.process_time()
from scripts.fuzzing.watch import peak_bytes, reading_seconds
reading = reading_seconds(open(sys.argv[2], "rb").read()) if sys.argv[2] else 0.0
open(sys.argv[1], "w").write(f"{seconds} {peak_bytes()} {reading}")
sys.exit(status)
"""
_CHILD_OF_A_CASE: Final = """
import resource, sys, time
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
from scripts.fuzzing.case import read_case
from scripts.fuzzing.watch import peak_bytes, read_alone, reading_seconds, started
case = read_case(Path(sys.argv[2]))
status = started(case)
seconds, header = time.process_time(), read_alone(case)
reading = reading_seconds(header) if header is not None else 0.0
open(sys.argv[1], "w").write(f"{seconds} {peak_bytes()} {reading}")
sys.exit(status)
"""
"""The peak is read from the process's own memory: that of getrusage begins with the parent's."""


def _escaped(word: str) -> bool:
    return any("\udc80" <= letter <= "\udcff" for letter in word)


def _where(outcome: Outcome) -> str:
    """The mark that tells one fault from another: the last words of the error, without numbers and names."""
    last = (outcome.err.strip().splitlines() or [""])[0] if outcome.status != 70 else outcome.err.strip()
    last = last.splitlines()[0] if last else ""
    return re.sub(r"'[^']*'|[0-9,]+", "…", last)[:160]


def _print_table(
    options: argparse.Namespace, done: Counter[str], took: dict[str, float], most: Mapping[str, Any], seconds: float
) -> None:
    total = sum(done.values())
    print(f"{total:,} inputs from seed {options.seed} in {seconds:,.0f} s: {total / max(seconds, 0.001):,.0f} a second")
    statuses = sorted({key.split()[1] for key in done}, key=str)
    print(f"{'':12}" + "".join(f"{'exit ' + status:>12}" for status in statuses) + f"{'ms each':>12}")
    for family in FAMILIES:
        if any(key.startswith(f"{family} ") for key in done):
            counts = [done[f"{family} {status}"] for status in statuses]
            each = f"{took[family] / sum(counts) * 1000:>12,.1f}"
            print(f"{family:12}" + "".join(f"{count:>12,}" for count in counts) + each)
    longest, number = most["seconds"]
    print(f"longest: {longest:.2f} s of the processor (input {number}; limit {SECONDS:g})")
    longest, number = most["reading"]
    if longest:
        print(
            f"longest reading of a GGUF header: {longest * 1000:.0f} ms of the processor (input {number}; limit {READING_SECONDS * 1000:g})"
        )
    held, number = most["memory"]
    print(f"largest: {held / 1000**2:.0f} MB of memory (input {number}; limit {MEMORY_BYTES // 1000**2})")


def _replay(options: argparse.Namespace) -> int:
    bad = 0
    for path in options.replay:
        case = read_case(path)
        found, outcome = run_alone(case)
        bad += bool(found)
        print(f"{path}: {'; '.join(found) or 'as promised'}")
        print(f"  words {case.words!r}, exit {outcome.status}, {outcome.seconds:.2f} s, {outcome.memory_bytes / 1000**2:.0f} MB")
        for line in outcome.err.splitlines()[:4]:
            print(f"  {line[:300]!r}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
