"""Processor time and memory of a million points by every engine, with an accelerator and without, as CSV.

Run it where kvplan is installed::

    python benchmarks/sweep.py [--engine E] [--shape many|few] [--share 0.1]

Two shapes of grid: many settings (200 models x 4 formats x 5 numbers of ranks, 250 points each) and few (4 models, 250,000 points each). Each
sweep is a process of its own on one core. A random thousand of its rows are planned one by one in this run: each must be equal, and the
ratio of the two times is printed. With ``--share`` both shapes have so much of their points, and no bar of seconds. Exit status 1 if a bar
is missed, or a row is not its plan.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

from hwcalc import load_model, plan
from hwcalc.engines import ENGINES
from hwcalc.errors import KvplanError
from hwcalc.model import ModelSpec
from hwcalc.profiles.catalog import list_models
from hwcalc.sweep.grid import row_of
from hwcalc.text import csv_cell

MOST_SECONDS: Final = 20.0
MOST_SECONDS_OF: Final[Mapping[str, float]] = {"reference": 2.0}
"""The bars of a million points; that of one engine holds without an accelerator."""
MOST_MIB: Final = 300
MODELS: Final = 200
FEW_MODELS: Final = (
    "meta-llama/Llama-3.1-8B",
    "google/gemma-3-27b-it",
    "Qwen/Qwen3-30B-A3B",
    "mistralai/Mistral-7B-Instruct-v0.1",
)
GPU: Final = "h100-sxm5-80gb"
GPUS: Final[Mapping[str, str]] = {"mlx": "apple-m3-ultra-512gb"}
DTYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "reference": ("bf16", "fp8", "int8", "int4"),
    "transformers": ("auto", "bf16", "fp16", "fp32"),
    "mlx": ("auto", "bf16", "int8", "int4"),
    "llamacpp": ("f16", "q8_0", "q4_0", "q5_1"),
    "ollama": ("f16", "q8_0", "q4_0", "bf16"),
    "lmdeploy": ("auto", "int8", "int4", "fp8"),
    "mistral-rs": ("auto", "bf16", "fp8", "f8e4m3"),
    "tensorrt-llm": ("auto", "bf16", "fp8", "nvfp4"),
}
OTHER_DTYPES: Final = ("auto", "fp8", "fp8_e4m3", "fp8_e5m2")
RANKS: Final = (1, 2, 4, 8, 16)
BY_LAYERS: Final = ("llamacpp", "ollama")
"""Engines without ranks, which have five times the batches. They are asked about files."""
SAMPLE: Final = 1000


class Axes(NamedTuple):
    """The lists of a grid, in the order of its rows."""

    models: tuple[str, ...]
    dtypes: tuple[str | None, ...]
    ranks: tuple[int | None, ...]
    lengths: range
    batches: range

    @property
    def points(self) -> int:
        """The number of rows."""
        return prod(map(len, self))

    @property
    def words(self) -> list[str]:
        """They as words of the command."""
        words = [*self.models, "--seq", _steps(self.lengths), "--batch", _steps(self.batches)]
        for name, entries in (("--dtype", self.dtypes), ("--tp", self.ranks)):
            words += [] if entries == (None,) else [name, ",".join(map(str, entries))]
        return words


class Measured(NamedTuple):
    """What one sweep took."""

    seconds: float
    mib: float


def _steps(numbers: range) -> str:
    return f"{numbers[0]}..{numbers[-1]}:{numbers.step}"


def few_settings(engine: str, share: float) -> Axes:
    """Four models, and all lengths and batches of each."""
    lengths = max(1, round(1000 * share))
    return Axes(FEW_MODELS, (None,), (None,), range(256, 256 * lengths + 1, 256), range(1, 251))


def many_settings(engine: str, share: float) -> Axes:
    """Models from the whole catalog, each in 20 settings."""
    every, number = list_models(), max(1, round(MODELS * share))
    models = tuple(every[place * len(every) // number] for place in range(number))
    dtypes, lengths = DTYPES.get(engine, OTHER_DTYPES), range(1024, 25 * 1024 + 1, 1024)
    if engine in BY_LAYERS:
        return Axes(models, dtypes, (None,), lengths, range(1, 51))
    return Axes(models, dtypes, RANKS, lengths, range(1, 11))


SHAPES: Final = {"few": few_settings, "many": many_settings}


def measured(axes: Axes, options: Mapping[str, str], target: Path) -> Measured:
    """Processor time and memory of a sweep on one core."""
    target.unlink(missing_ok=True)
    pinned = ["taskset", "-c", str(min(os.sched_getaffinity(0)))] if shutil.which("taskset") else []
    asked = [word for name, value in options.items() for word in (f"--{name}", value)]
    command = [*pinned, sys.executable, "-m", "hwcalc", "sweep", *axes.words, *asked, "--offline", "--quiet", "--max-time", "30d"]
    process = subprocess.Popen([*command, "--output", str(target)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if not target.exists():
        raise SystemExit(f"kvplan sweep {' '.join(axes.words[-8:])}: status {os.waitstatus_to_exitcode(status)}, and no rows")
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return Measured(seconds=usage.ru_utime + usage.ru_stime, mib=usage.ru_maxrss / unit)


def sampled(axes: Axes, target: Path) -> list[tuple[dict[str, Any], dict[str, str]]]:
    """Some points: what is asked for, and the row."""
    chosen = frozenset(random.Random(1).sample(range(axes.points), min(SAMPLE, axes.points)))  # noqa: S311 - a sample
    names = ("model", "dtype", "tp", "seq", "batch")
    with target.open(encoding="utf-8", newline="") as file:
        pairs = zip(product(*axes), csv.DictReader(file), strict=True)
        return [(dict(zip(names, point, strict=True)), row) for number, (point, row) in enumerate(pairs) if number in chosen]


@cache
def model_of(name: str) -> ModelSpec:
    """A model of the catalog."""
    return load_model(name, offline=True)


def seconds_of_a_plan(points: list[tuple[dict[str, Any], dict[str, str]]], options: Mapping[str, Any]) -> float:
    """Mean processor time of planning these points one by one. Stops at a row that is not what its plan says."""
    taken = 0.0
    for asked, row in points:
        model = model_of(asked["model"])
        keywords = {name: value for name, value in asked.items() if name != "model" and value is not None}
        started = time.process_time()
        try:
            expected: dict[str, Any] = row_of(plan(model, **keywords, **options))
            expected["gpu"] = expected["gpu"] or options.get("gpu")
        except KvplanError as error:
            expected = {"error": error.message}
        taken += time.process_time() - started
        for name, value in expected.items():
            if row[name] != ("" if value is None else csv_cell(str(value))):
                raise SystemExit(f"{asked}: {name} is {row[name]}, and {value} by its plan")
    return taken / len(points)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", action="append", choices=list(ENGINES))
    parser.add_argument("--shape", action="append", choices=list(SHAPES))
    parser.add_argument("--share", type=float, default=1.0)
    asked = parser.parse_args()
    missed = False
    print(
        f"{'engine':14}{'accelerator':22}{'shape':6}{'points':>9}{'refused':>9}{'seconds':>9}{'bar':>5}{'MiB':>5}  plans / sweep"
    )
    # A sweep's peak of memory counts that of the process that starts it, so the plans are made in another one.
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(max_workers=1) as beside:
        target = Path(folder, "points.csv")
        for engine, named, shape in product(asked.engine or ENGINES, (False, True), asked.shape or SHAPES):
            gpu = GPUS.get(engine, GPU) if named else ""
            options = {"engine": engine, "gpu": gpu, "weights": "q4_k_m" if engine in BY_LAYERS else ""}
            given = {name: value for name, value in options.items() if value}
            axes = SHAPES[shape](engine, asked.share)
            found = measured(axes, given, target)
            points = sampled(axes, target)
            ratio = beside.submit(seconds_of_a_plan, points, given).result() * axes.points / found.seconds
            most = MOST_SECONDS if named else MOST_SECONDS_OF.get(engine, MOST_SECONDS)
            over = (asked.share >= 1 and found.seconds > most) or found.mib > MOST_MIB
            refused = sum(bool(row["error"]) for _, row in points) / len(points)
            print(
                f"{engine:14}{gpu:22}{shape:6}{axes.points:9,}{refused:9.0%}{found.seconds:9.2f}{most:5.0f}{found.mib:5.0f}"
                f"{ratio:8.0f}{'  MISSED' if over else ''}",
                flush=True,
            )
            missed = missed or over
    raise SystemExit(missed)


if __name__ == "__main__":
    main()
