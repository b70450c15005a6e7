"""Processor time of ``kvplan fit`` over the whole catalog, from a cold start, in times of an empty Python's.

Run it where kvplan is installed::

    python benchmarks/fit.py

The two take turns, so that the ratio holds on a machine whose speed changes.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

LIMIT_RATIO = 60
"""An empty Python takes about 15 ms: the list must come in under a second."""
RUNS = 7
COMMAND = ("-m", "hwcalc", "fit", "--gpu", "rtx-4060-ti", "--seq", "16k", "--json")


def seconds(words: tuple[str, ...]) -> float:
    """Processor time of one process."""
    before = os.times()
    subprocess.run([sys.executable, *words], check=True, capture_output=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def measure(runs: int = RUNS) -> tuple[float, float]:
    """The median time of the command, and the median of its ratio to an empty Python."""
    seconds(COMMAND)
    pairs = [(seconds(COMMAND), seconds(("-c", "pass"))) for _ in range(runs)]
    return statistics.median(taken for taken, _ in pairs), statistics.median(taken / empty for taken, empty in pairs)


def main() -> None:
    """Measure and compare with the limit."""
    taken, ratio = measure()
    print(f"kvplan fit: {taken:.2f} s, {ratio:.0f} x an empty Python (limit {LIMIT_RATIO} x)")
    if ratio > LIMIT_RATIO:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
