"""CPU time of one plan on the command line, as a ratio to ``python -c pass``.

Run it where kvplan is installed::

    python benchmarks/startup.py [MODEL] [--runs N]

User and system time of the whole child process, bytecode written; medians. Once the model comes from the catalog, once its config
lies in a Hugging Face cache. Beside it the peer ``hf-mem --help``, where it is installed.
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
"""What one plan of a catalog model may take, in times of ``python -c pass``."""


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


def cpu_seconds(command: list[str], runs: int) -> float:
    """Median user + system seconds of ``command``; one more run goes first, to fill caches."""
    taken = []
    for _ in range(runs + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed with {done.returncode}: {done.stderr.strip()}")
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(taken[1:])


def measure(model: str, runs: int) -> None:
    """Print one line per command."""
    base = cpu_seconds([sys.executable, "-c", "pass"], runs)
    print(f"{'command':<44} {'CPU ms':>8} {'x python':>9}")
    print(f"{'python -c pass':<44} {base * 1e3:>8.1f} {1:>9.2f}")

    plan = [sys.executable, "-m", "hwcalc", model, "--seq", "32k", "--json"]
    script = shutil.which("kvplan", path=str(Path(sys.executable).parent))
    commands = [(f"kvplan {model} --seq 32k --json", [script, *plan[3:]] if script else plan)]
    cached = [CACHED_ID if word == model else word for word in commands[0][1]]
    commands.append(("the same from a Hugging Face cache", cached))
    if peer := shutil.which("hf-mem"):
        commands.append(("hf-mem --help", [peer, "--help"]))
    for name, command in commands:
        taken = cpu_seconds(command, runs)
        print(f"{name:<44} {taken * 1e3:>8.1f} {taken / base:>9.2f}")
    if len(commands) == 2:
        print("hf-mem is not installed: no peer to compare with")


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
        measure(arguments.model, arguments.runs)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
