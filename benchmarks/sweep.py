"""Processor time and memory of a million points: 200 models x 25 lengths x 10 batches x 4 dtypes x 5 tensor parallel sizes, as CSV.

Run it where kvplan is installed, on one core::

    taskset -c 0 python benchmarks/sweep.py

Reading the models is in the time, and so is writing the file. A random thousand of the rows is planned one by one in the same run:
each must be equal, and the ratio of the two times is printed.
"""

from __future__ import annotations

import csv
import random
import resource
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

from hwcalc import load_model, plan
from hwcalc.cli import main as kvplan
from hwcalc.errors import KvplanError
from hwcalc.profiles.catalog import list_models
from hwcalc.sweep.blocks import row_of

LIMIT_SECONDS = 3.0
LIMIT_MIB = 500
MODELS = 200
LENGTHS = range(1024, 26 * 1024, 1024)
BATCHES = range(1, 11)
DTYPES = ("bf16", "fp8", "int8", "int4")
RANKS = (1, 2, 4, 8, 16)
SAMPLE = 1000


def peak_mib() -> float:
    """The most memory that this process had so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def sampled_seconds(rows: list[list[str]], header: list[str]) -> float:
    """Processor time of planning these rows one by one. Stops at a row that is not what its plan says."""
    models = {name: load_model(name, offline=True) for name in {row[header.index("model")] for row in rows}}
    taken = 0.0
    for row in rows:
        found = dict(zip(header, row, strict=True))
        started = time.process_time()
        try:
            expected = row_of(
                plan(
                    models[found["model"]],
                    seq=int(found["seq"]),
                    batch=int(found["batch"]),
                    dtype=found["dtype"],
                    tp=int(found["tp"]),
                )
            )
        except KvplanError as error:
            expected = {"error": error.message}
        taken += time.process_time() - started
        for name, value in expected.items():
            if found[name] != ("" if value is None else str(value)):
                raise SystemExit(f"{found['model']}: {name} is {found[name]}, and {value} by its plan")
    return taken


def main() -> None:
    """Measure."""
    models = list_models()[:MODELS]
    started = time.process_time()
    points = len(models) * len(LENGTHS) * len(BATCHES) * len(DTYPES) * len(RANKS)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "points.csv")
        words = ["sweep", *models, "--seq", "1k..25k:1k", "--batch", "1..10:1", "--dtype", ",".join(DTYPES)]
        status = kvplan([*words, "--tp", ",".join(map(str, RANKS)), "--offline", "--quiet", "--output", str(target)])
        taken, peak = time.process_time() - started, peak_mib()
        chosen = frozenset(random.Random(1).sample(range(points), SAMPLE))  # noqa: S311 - a sample
        with target.open(encoding="utf-8", newline="") as file:
            reader = csv.reader(file)
            header = next(reader)
            axes = product(models, DTYPES, RANKS, LENGTHS, BATCHES)
            rows = [row for number, (row, _) in enumerate(zip(reader, axes, strict=True)) if number in chosen]
    each = sampled_seconds(rows, header) / len(rows)
    print(f"{points:,} points: {taken:.2f} s (limit {LIMIT_SECONDS} s), {peak:.0f} MiB (limit {LIMIT_MIB} MiB)")
    print(
        f"{len(rows):,} of them planned one by one are equal; one by one all would take {each * points / taken:.0f} times as long"
    )
    if status or taken > LIMIT_SECONDS or peak > LIMIT_MIB:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
