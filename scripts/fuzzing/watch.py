"""Run one case in this process and say what went wrong: status, output, time, memory."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from hwcalc.cli import main
from hwcalc.files import SUFFIX
from hwcalc.formulas.record import Record
from scripts.fuzzing.calls import called_library, called_tool, opened_file
from scripts.fuzzing.case import CONFIG_HOME, OUTSIDE, Case, write_files
from scripts.fuzzing.keywords import CHECKS, VALUES, call
from scripts.fuzzing.mutate import SECRET
from scripts.fuzzing.servers import asked_page, hub_of
from scripts.fuzzing.texts import called_launch, called_trace

SECONDS: Final = 5.0
"""Most seconds of the processor for one command whose documents have up to a megabyte."""
MEMORY_BYTES: Final = 300 * 1000**2
"""Most memory of the process at any time of such a command."""
PICTURE_SECONDS: Final = 20.0
"""Most seconds of the processor for a page, which is made of thousands of requests, or a picture."""
PICTURE_MEMORY_BYTES: Final = 500 * 1000**2
"""Most memory for these: the packages that draw are large."""
READING_SECONDS: Final = 0.05
"""Most seconds of the processor to read a GGUF file of up to a megabyte of header, imports and the plan itself apart."""
READING_MEMORY_BYTES: Final = 200 * 1000**2
"""Most memory of the process for such a file."""
STATUSES: Final = frozenset({0, 1, 2, 3, 4, 5, 74})
"""The documented exit statuses without that of a fault in kvplan, 70, and those of signals."""

_CONTROL: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
_COMMAND: Final = re.compile(r"^\s*::|##\[|##vso\[|##teamcity\[", re.MULTILINE)
_FORMULA: Final = frozenset("=+-@")
_NUMBER: Final = re.compile(r"[+-]?[\d.,]+(?:e[+-]?\d+)?%?")
OWN_TOKEN: Final = "the-token-of-the-environment-0123456789"
"""It has no shape that tells it; the other secret, which stands in the inputs, is told by its shape alone."""
_TOLD: Final = SECRET[:26]
"""So much of the secret is recognisable as one, even if a message was cut."""
_LARGEST_OUTPUT: Final = 50 * 1000**2
_USUAL_LOOP_SECONDS: Final = 0.0008
"""What 20,000 additions in Python take where nothing else runs, on processors of 2020 and later."""
_IMPORTED_BYTES: Final = 50 * 1000**2
"""Memory of a process that has read its first models."""
_FROM_MEMORY: Final = frozenset({"launch", "library", "page", "stream", "tool"})
"""Families that read no file and write none."""
_PIPE_SECONDS: Final = 0.2
"""How long the program waits for the other end of a pipe while it is fuzzed. Nobody is there, and its own five seconds are idle."""


class Outcome(Record):
    """The end of a run: its output, time and memory. ``status`` is ``None`` if an exception left the program."""

    status: int | None
    out: str
    err: str
    seconds: float
    memory_bytes: int
    left: tuple[str, ...] = ()
    """Temporary files of kvplan."""
    reading_seconds: float = 0.0
    """The seconds of the processor to read a GGUF file alone."""


def environment(folder: Path) -> dict[str, str]:
    """The variables of a run: no network, no colour, and no folder but the case's own."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("KVPLAN", "HF_", "_KVPLAN", "XDG_", "NO_COLOR"))
    }
    return kept | {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "hf"),
        "HF_TOKEN": OWN_TOKEN,
        "XDG_CACHE_HOME": str(folder / "cache"),
        "XDG_CONFIG_HOME": str(folder / CONFIG_HOME),
        "HOME": str(folder),
        "COLUMNS": "100",
        "TERM": "dumb",
        "PYTHONUTF8": "1",
    }


def run_case(case: Case, folder: Path, *, fresh: bool = True) -> Outcome:
    """Run a case in an empty folder. With ``fresh``, what is remembered of profiles is forgotten first."""
    if fresh:
        _forget()
    on_disk = case.family not in _FROM_MEMORY
    before = Path.cwd()
    if on_disk:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write_files(case, folder)
        os.chdir(folder)
    try:
        with _streams(case.stdin) as (out, err):
            _reset_peak()
            # What earlier inputs have imported is not this one's: packages that draw, or torch, which looks for a GPU.
            others = max(0, peak_bytes() - _IMPORTED_BYTES)
            start = time.process_time()
            status: int | None = None
            try:
                status = started(case)
            except SystemExit as ending:
                status = ending.code if isinstance(ending.code, int) else 0 if ending.code is None else 1
            except BaseException as error:  # that is what is looked for
                if isinstance(error, KeyboardInterrupt):
                    raise
                err.write(f"left the program: {type(error).__name__}: {error}\n".encode("utf-8", "backslashreplace"))
            seconds = time.process_time() - start
            header = read_alone(case)
            known = seconds if case.family == "stream" and seconds < READING_SECONDS else None
            reading = 0.0 if header is None else known if known is not None else reading_seconds(header)
            memory = peak_bytes() - others
        said = [stream.getvalue()[:_LARGEST_OUTPUT].decode("utf-8", "surrogatepass") for stream in (out, err)]
        left = tuple(str(path) for path in folder.rglob(f"*{SUFFIX}")) if on_disk else ()
        if case.links and written_outside(folder):
            left = (*left, "through a link")
        return Outcome(
            status=status, out=said[0], err=said[1], seconds=seconds, memory_bytes=memory, left=left, reading_seconds=reading
        )
    finally:
        os.chdir(before)


def written_outside(folder: Path) -> bool:
    """True if a link of a case was followed out of its folder and something written there."""
    outside = folder.parent / "outside"
    return {path.name: path.read_bytes() for path in outside.iterdir()} != {"file": OUTSIDE}


def started(case: Case) -> int:
    """Run the case in the current folder, as its family is run: most are command lines. Returns an exit status."""
    if case.family == "keywords":
        return _status_of(lambda: _called(*case.words))
    if case.family in {"library", "stream"}:
        return _status_of(lambda: called_library(case) if case.family == "library" else opened_file(case))
    if case.family in {"launch", "trace"}:
        return _status_of(lambda: called_launch(case) if case.family == "launch" else called_trace())
    if case.family == "tool":
        return _status_of(lambda: print(called_tool(case)))
    if case.family == "page":
        reply = asked_page(case.stdin)
        print("no answer" if not reply else reply[:12].decode("latin-1"))
        return 70 if reply[9:12] == b"500" else 0
    from unittest.mock import patch

    if case.pipes:
        with patch("hwcalc.files._PIPE_SECONDS", _PIPE_SECONDS):
            return main(list(case.words))
    if case.family != "hub":
        return main(list(case.words))
    from huggingface_hub import constants

    from hwcalc.sources import hub_client

    short = patch.multiple(constants, HF_HUB_OFFLINE=False, HF_HUB_DOWNLOAD_TIMEOUT=1.0)
    with short, patch.object(hub_client, "PAUSES", (0.01, 0.01)), patch.dict(os.environ), hub_of(case.files) as address:
        os.environ.pop("HF_HUB_OFFLINE", None)
        return main([*case.words, "--endpoint", address])


def _called(name: str, keyword: str, number: str, alone: str, engine: str = "") -> None:
    import warnings

    Path("check.yaml").write_text(CHECKS, encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call(name, keyword, VALUES[int(number)](), alone=bool(int(alone)), engine=engine)


def _status_of(called: Callable[[], object]) -> int:
    """The status of a call of the library. An error of kvplan is printed; any other leaves this function."""
    from hwcalc import KvplanError

    try:
        called()
    except KvplanError as error:
        print(f"kvplan: {error.message}\n{error.hint}", file=sys.stderr)
        return error.exit_code
    return 0


def read_alone(case: Case) -> bytes | None:
    """The GGUF file of a case, whose reading is also measured by itself."""
    is_gguf = case.family == "gguf" or (case.family == "stream" and "x.gguf" in case.files)
    return next(iter(case.files.values()), None) if is_gguf else None


def reading_seconds(header: bytes) -> float:
    """Seconds of a usual processor to read a model, without imports. An open file may end behind its header.

    What seems too long is measured again: the shortest of some times counts, by the speed that the processor has at that moment.
    """
    from hwcalc import load_model
    from hwcalc.errors import KvplanError

    times = []
    for _ in range(4):
        start = time.process_time()
        with suppress(KvplanError):
            load_model(io.BytesIO(header))
        times.append(time.process_time() - start)
        if times[-1] < READING_SECONDS:
            return times[-1]
    return min(times) / _slowness()


def _slowness() -> float:
    """The factor by which this processor is slower than a usual one just now: others may share it. At least 1."""
    times = []
    for _ in range(7):
        start = time.process_time()
        total = 0
        for number in range(20_000):
            total += number
        times.append(time.process_time() - start)
    return max(1.0, min(times) / _USUAL_LOOP_SECONDS)


def complaints(case: Case, outcome: Outcome) -> list[str]:
    """The promises that a run broke; empty if all were kept."""
    found = []
    seconds, memory_bytes = SECONDS, MEMORY_BYTES
    if case.words[:1] in {("explore",), ("plot",)}:
        seconds, memory_bytes = PICTURE_SECONDS, PICTURE_MEMORY_BYTES
        if outcome.out.startswith("<!doctype") and not _is_page(outcome.out):
            found.append("a page with more in it than its scripts and its payload")
    if outcome.reading_seconds > READING_SECONDS:
        found.append(f"more than {READING_SECONDS:g} s of the processor to read a header")
    if read_alone(case) is not None:
        memory_bytes = min(memory_bytes, READING_MEMORY_BYTES)
    if outcome.status not in STATUSES:
        found.append(f"exit status {outcome.status}")
    if case.status not in {None, outcome.status}:
        found.append(f"exit status {outcome.status}, not {case.status}")
    if case.says not in outcome.out + outcome.err:
        found.append(f"it does not say {case.says!r}")
    if outcome.seconds > seconds:
        found.append(f"more than {seconds:g} s of the processor")
    if outcome.memory_bytes > memory_bytes:
        found.append(f"more than {memory_bytes // 1000**2} MB of memory")
    if "Traceback (most recent" in outcome.err:
        found.append("a traceback")
    wants = _format(case.words)
    to_a_file = any(word.partition("=")[0] in {"-o", "--output"} for word in case.words)
    if outcome.status in STATUSES and wants == "json" and not to_a_file and not _is_json(outcome.out):
        found.append("standard output is not one JSON document")
    if wants == "csv" and _has_formula(outcome.out):
        found.append("a formula in CSV")
    if outcome.left:
        found.append(
            f"a file is left or written: {outcome.left[0][-40:]}"
            if "through a link" in outcome.left
            else "a temporary file is left"
        )
    for name, text in (("output", outcome.out), ("error", outcome.err)):
        if _TOLD in text or OWN_TOKEN in text:
            found.append(f"the secret on standard {name}")
        if _CONTROL.search(text) and not (name == "output" and wants in {"json", "jsonl", "parquet", "sarif"}):
            found.append(f"a control character on standard {name}")
        if _COMMAND.search(text) and not (name == "output" and wants == "github"):
            found.append(f"a line that a runner reads as a command on standard {name}")
    return found


def _format(words: tuple[str, ...]) -> str:
    """The format that a command line asks for; nothing if it is not plain to see."""
    options = words[: words.index("--")] if "--" in words else words
    if not {"--help", "--version", "--example"}.isdisjoint(options):
        return ""
    if "--json" in options:
        return "json"
    for word, following in zip(options, (*options[1:], ""), strict=False):
        if word == "--format":
            return following.strip().lower()
        if word.startswith("--format="):
            return word.partition("=")[2].strip().lower()
    return ""


def _has_formula(text: str) -> bool:
    """True if a cell of CSV is what a spreadsheet would run."""
    cells = (cell.strip() for row in csv.reader(io.StringIO(text)) for cell in row)
    return any(cell[:1] in _FORMULA and not _NUMBER.fullmatch(cell) for cell in cells if len(cell) > 1)


def _is_page(text: str) -> bool:
    """True if a page holds two scripts, of which the first is data, and nothing that stands in these ends them."""
    _, _, payload = text.partition('<script type="application/json" id="payload">')
    data, _, rest = payload.partition("</script>")
    ends = (
        len(re.findall(f"<(?=/?{name}\\b)", text, re.IGNORECASE)) for name in ("script", "style", "img", "svg", "iframe", "base")
    )
    return text.isascii() and _is_json(data) and rest.lstrip().startswith("<script>") and [*ends] == [4, 2, 0, 0, 0, 0]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@contextmanager
def _streams(stdin: bytes) -> Iterator[tuple[io.BytesIO, io.BytesIO]]:
    kept = sys.stdin, sys.stdout, sys.stderr
    out, err = io.BytesIO(), io.BytesIO()
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin), "utf-8")
    wrapped = [io.TextIOWrapper(stream, "utf-8", errors="strict", write_through=True) for stream in (out, err)]
    sys.stdout, sys.stderr = wrapped
    try:
        yield out, err
    finally:
        sys.stdin, sys.stdout, sys.stderr = kept
        for stream in wrapped:
            with suppress(ValueError):
                stream.detach()


def _forget() -> None:
    """Empty the caches that assume that profiles do not change while the program runs."""
    for name, module in [*sys.modules.items()]:
        if name.startswith(("hwcalc.profiles", "hwcalc.hardware", "hwcalc.sources")):
            for value in [*vars(module).values()]:
                clear = getattr(value, "cache_clear", None)
                if clear is not None:
                    clear()


def _reset_peak() -> None:
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_bytes() -> int:
    """Most bytes of memory since :func:`_reset_peak`, or since the start where the system cannot tell."""
    try:
        with Path("/proc/self/status").open(encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
