"""CPU time of one plan on the command line, as a ratio to ``python -c pass``.

Run it where kvplan is installed::

    python benchmarks/startup.py [MODEL] [--runs N]

User and system time of the whole child process, bytecode written; medians, and exit status 1 above the limit. Once the model comes
from the catalog, once its config lies in a Hugging Face cache. Beside it the peer ``hf-mem --help``, where it is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from hwcalc.profiles.catalog import find_model

LIMIT = 6
"""What a plan may take, in times of ``python -c pass``."""

CACHED_ID = "cached/model"
COMMIT = "0" * 40


def fill_cache(home: Path, model: str) -> None:
    """Lay the catalog's config of ``model`` into a Hugging Face cache, as a download would."""
    found = find_model(model)
    if found is None:
        raise SystemExit(f"{model} is not in the catalog")
    folder = home / "hub" / f"models--{CACHED_ID.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT, encoding="utf-8")
    (folder / "snapshots" / COMMIT).mkdir(parents=True)
    (folder / "snapshots" / COMMIT / "config.json").write_text(json.dumps(found["config"]), encoding="utf-8")


def cpu_seconds(command: list[str]) -> float:
    """User + system seconds of one run of ``command``."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed with {done.returncode}: {done.stderr.strip()}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(model: str, runs: int) -> bool:
    """Print one line per command; whether the plans keep to the limit. By turns, so that a busy machine slows all alike."""
    script = shutil.which("kvplan", path=str(Path(sys.executable).parent))
    kvplan = [script] if script else [sys.executable, "-m", "hwcalc"]
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        f"kvplan {model} --seq 32k --json": [*kvplan, model, "--seq", "32k", "--json"],
        "the same from a Hugging Face cache": [*kvplan, CACHED_ID, "--seq", "32k", "--json"],
    }
    if peer := shutil.which("hf-mem"):
        commands["hf-mem --help"] = [peer, "--help"]
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(runs + 1):
        for name, command in commands.items():
            taken[name].append(cpu_seconds(command))
    # The first run of each writes the bytecode.
    empty, *plans = medians = [statistics.median(seconds[1:]) for seconds in taken.values()]
    print(f"{'command':<44} {'CPU ms':>8} {'x python':>9}")
    for name, seconds in zip(commands, medians, strict=True):
        print(f"{name:<44} {seconds * 1e3:>8.1f} {seconds / empty:>9.2f}")
    if peer is None:
        print("hf-mem is not installed: no peer to compare with")
    print(f"the limit is {LIMIT} x")
    return max(plans[:2]) <= LIMIT * empty


def main() -> int:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="Qwen/Qwen3-8B")
    parser.add_argument("--runs", type=int, default=15)
    arguments = parser.parse_args()

    os.environ |= {"HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": ""}
    with tempfile.TemporaryDirectory() as bytecode, tempfile.TemporaryDirectory() as home:
        os.environ["PYTHONPYCACHEPREFIX"] = bytecode
        os.environ["HF_HOME"] = home
        fill_cache(Path(home), arguments.model)
        return 0 if measure(arguments.model, arguments.runs) else 1


if __name__ == "__main__":
    raise SystemExit(main())
