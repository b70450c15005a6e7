"""CPU time of one plan on the command line, as a ratio to ``python -c pass``.

Run it where kvplan is installed::

    python benchmarks/startup.py [MODEL] [--runs N]

User and system time of the whole child process, bytecode written; medians. Beside it the peer ``hf-mem --help``, where it is installed.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT = 8
"""What one plan of a catalog model may take, in times of ``python -c pass``."""


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
    if peer := shutil.which("hf-mem"):
        commands.append(("hf-mem --help", [peer, "--help"]))
    for name, command in commands:
        taken = cpu_seconds(command, runs)
        print(f"{name:<44} {taken * 1e3:>8.1f} {taken / base:>9.2f}")
    if len(commands) == 1:
        print("hf-mem is not installed: no peer to compare with")


def main() -> int:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="Qwen/Qwen3-8B")
    parser.add_argument("--runs", type=int, default=15)
    arguments = parser.parse_args()

    os.environ |= {"HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": ""}
    with tempfile.TemporaryDirectory() as bytecode:
        os.environ["PYTHONPYCACHEPREFIX"] = bytecode
        measure(arguments.model, arguments.runs)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
