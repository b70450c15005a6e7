"""Measure on one GPU all that kvplan says of GPUs: predictions to the byte, and the questions that only a GPU can answer.

One command, on a machine with an NVIDIA GPU, in a checkout; it takes at most eight minutes and needs no network:

    python3 scripts/prove_on_gpu.py --out receipts

It needs Python 3.11, torch 2.11 with CUDA and PyYAML; `live` needs transformers, or is skipped. Where a package is missing and nothing can
be installed, make a folder elsewhere, `pip install --target site pyyaml`, bring it along and set PYTHONPATH=site.

Each step runs in processes of its own, because the allocator's settings hold from a process's start, and writes DIR/DEVICE-STEP.json if
it has compared anything. What a cut run has measured is kept in a file that ends in .part. Files that agree belong into
tests/receipts/proof, where tests plan them again; what is only rehearsed on a CPU does not.

exit status: 0 all that was compared agrees; 1 something differs or failed, or nothing was compared; 2 wrong usage, no GPU, or files that
cannot be written
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, Final, NoReturn

from msgspec.structs import asdict

ROOT: Final = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    # A script's own folder is on the path, its repository is not.
    sys.path.insert(0, str(ROOT))

from hwcalc.errors import UsageError  # noqa: E402 - after the path is known
from hwcalc.formulas.record import Record  # noqa: E402
from hwcalc.units import parse_bytes  # noqa: E402
from scripts.gpu_proof.child import CHECK, inside, records_of  # noqa: E402
from scripts.gpu_proof.record import AGREES, DIFFERS, FAILED, SKIPPED, Receipt, UnwritableError, failed, skipped  # noqa: E402
from scripts.gpu_proof.steps import STEPS, Step  # noqa: E402

DEFAULT_OUT: Final = "gpu-proof"
"""In the current folder: what belongs to the tests is brought there by hand."""
LEAST_SECONDS: Final = 8.0
"""A process that has less does not get as far as its first case."""
CHECK_SECONDS: Final = 120.0
"""torch may be read from a cold disk."""
SHOWN: Final = 20
"""Cases of a step that are named when they do not agree."""


class RefusedError(Exception):
    """Nothing can be measured: what is wrong, and what to do."""


class Options(Record):
    """What the command line says."""

    out: Path
    steps: tuple[Step, ...]
    seconds: float
    device: str
    most_bytes: int | None


def options_of(words: Sequence[str] | None) -> tuple[Options, argparse.Namespace]:
    """Read the command line. Ends the process with status 2 if it is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", metavar="DIR", help="folder for the files; default: $OUT, else gpu-proof")
    parser.add_argument("--only", action="append", default=[], metavar="STEP", help="only this step; may be repeated, or a,b")
    parser.add_argument("--minutes", type=float, default=8.0, metavar="N", help="time for everything; default: 8")
    parser.add_argument("--most", metavar="BYTES", help="allocate at most so much at once: 8GiB; default: what is free, less 5%%")
    parser.add_argument("--device", default="cuda", metavar="D", help="cuda; cpu rehearses the steps that need no GPU")
    parser.add_argument("--list", action="store_true", help="say what the steps are, and measure nothing")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    names = [name for word in given.only for name in word.split(",")]
    unknown = [name for name in names if name not in STEPS]
    if unknown:
        parser.error(f"--only {unknown[0][:40]!r} is not known; allowed: {', '.join(STEPS)}")
    if not 0 < given.minutes <= 24 * 60:
        parser.error(f"--minutes is {given.minutes:g}; allowed: above 0 and up to 1440")
    if given.device not in {"cuda", "cpu"}:
        parser.error(f"--device {given.device[:40]!r} is not known; allowed: cuda, cpu")
    if given.out is not None and not given.out.strip():
        parser.error("--out is empty; give a folder: --out receipts")
    if given.most is not None and given.most.strip().startswith("-"):
        parser.error(f"--most is {given.most.strip()[:40]}; allowed: 0 or more, in bytes or as 8GiB")
    try:
        most = None if given.most is None else parse_bytes(given.most, "most")
    except UsageError as error:
        parser.error(f"{error.message} {error.hint}")
    chosen = tuple(step for name, step in STEPS.items() if not names or name in names)
    out = Path(given.out or os.environ.get("OUT") or DEFAULT_OUT)
    return Options(out=out, steps=chosen, seconds=given.minutes * 60, device=given.device, most_bytes=most), given


def checked(options: Options) -> dict[str, Any]:
    """The environment of the device. Raises :class:`RefusedError` without a device or a package that is needed."""
    answer: dict[str, Any] = {}
    for answer in _records(CHECK, "default", options, min(CHECK_SECONDS, options.seconds)):
        if "environment" in answer:
            return dict(answer["environment"])
    message = answer.get("error") or answer.get("why") or "the process that looks for it said nothing"
    raise RefusedError(
        f"nothing can be measured here: {message}", str(answer.get("hint") or "Rehearse without one: --device cpu")
    )


def _records(step: str, allocator: str, options: Options, seconds: float) -> Any:
    return records_of(
        step,
        allocator=allocator,
        seconds=seconds,
        device=options.device,
        most_bytes=options.most_bytes,
        environment=os.environ,
    )


def run_step(step: Step, options: Options, seconds: float, environment: Mapping[str, Any]) -> Receipt:
    """Run one step under each of its allocator's settings, and keep what it says."""
    receipt = Receipt(options.out / f"{slug(environment)}-{step.name}.json", step.name, step.what, environment)
    if options.device == "cpu" and not step.cpu:
        receipt.add(skipped(step.name, "it needs CUDA"))
        receipt.finish()
        return receipt
    until = monotonic() + seconds
    # The CPU has no caching allocator.
    allocators = step.allocators if options.device == "cuda" else step.allocators[:1]
    for number, allocator in enumerate(allocators):
        left = (until - monotonic()) / (len(allocators) - number)
        if left < LEAST_SECONDS:
            receipt.add(skipped(f"{step.name} ({allocator})", f"no time was left: {max(0.0, left):.0f} s"))
            continue
        for record in _records(step.name, allocator, options, left):
            one = {"allocator": allocator, **record}
            if "status" not in one:
                one = {"allocator": allocator, **asdict(failed(f"{step.name} ({allocator})", str(record.get("error", record))))}
            receipt.add(one)
    receipt.finish()
    return receipt


def slug(environment: Mapping[str, Any]) -> str:
    """The device's name as part of a file's: ``NVIDIA H100 80GB HBM3`` is ``h100-80gb-hbm3``."""
    if environment.get("device") == "cpu":
        return "cpu"
    words = re.findall(r"[a-z0-9]+", str(environment.get("device_name", "")).lower())
    return "-".join(word for word in words if word != "nvidia")[:40] or "gpu"


def said(step: Step, receipt: Receipt, seconds: float) -> None:
    """One line for the step, and one for each case that did not agree."""
    counts = ", ".join(f"{count} {status}" for status, count in receipt.counts.items() if count)
    print(f"{step.name}: {counts or 'nothing'} ({seconds:.0f} s)", flush=True)
    poor = [record for record in receipt.records if record["status"] in {DIFFERS, FAILED, SKIPPED}]
    for record in poor[:SHOWN]:
        print(f"  {record['status']}: {record['case']} [{record.get('allocator', '-')}] {record['why']}", flush=True)
    if len(poor) > SHOWN:
        print(f"  and {len(poor) - SHOWN} more" + (f", in {receipt.path.name}" if receipt.compared else ""), flush=True)
    if not receipt.compared:
        print("  nothing was compared: no file is kept", flush=True)


def prove(options: Options) -> int:
    """Run the steps, each with its share of the time that is left, and give back the exit status."""
    until = monotonic() + options.seconds
    environment = checked(options)
    print(f"{environment['device_name']}, torch {environment['torch']}, driver {environment['driver'] or 'unknown'}", flush=True)
    receipts = []
    for number, step in enumerate(options.steps):
        began = monotonic()
        share = step.share / sum(later.share for later in options.steps[number:])
        receipts.append(run_step(step, options, (until - began) * share, environment))
        said(step, receipts[-1], monotonic() - began)
    total = {status: sum(receipt.counts[status] for receipt in receipts) for status in receipts[0].counts}
    print("in all: " + ", ".join(f"{count} {status}" for status, count in total.items()))
    return 0 if total[AGREES] and not total[DIFFERS] and not total[FAILED] else 1


def main(words: Sequence[str] | None = None) -> int:
    """Measure, or run the part of one process, and give back the exit status."""
    options, given = options_of(words)
    if given.list:
        for step in options.steps:
            print(f"{step.name:10} {step.what}")
        return 0
    if given.child is not None:
        return inside(given.child, seconds=given.seconds or 60.0, device=given.device, most_bytes=options.most_bytes)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        # Minutes of measuring would be lost if the first file showed that none can be written.
        with tempfile.TemporaryFile(dir=options.out):
            pass
    except OSError as error:
        return _unwritable(options.out, error.strerror or type(error).__name__)

    def leave(number: int, frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    # The running step is stopped on the way out, and what it has said is kept.
    signal.signal(signal.SIGTERM, leave)
    try:
        return prove(options)
    except RefusedError as error:
        return _refused(*error.args)
    except UnwritableError as error:
        return _unwritable(options.out, str(error))


def _unwritable(out: Path, why: str) -> int:
    return _refused(f"no file can be written into {str(out)[:80]!r}: {why}.", "Name a folder that can be written: --out DIR")


def _refused(message: str, hint: str) -> int:
    print(f"prove_on_gpu: {message}\n  {hint}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
