"""CPU time and memory of the commands of the README, as ratios to ``python -c pass``.

Run it where kvplan is installed::

    python benchmarks/startup.py [--runs N] [--only WORD] [--terminal]

With ``--terminal`` the commands write to a terminal of 80 columns, where they use colours, instead of a pipe.

User and system time of the whole child process, bytecode written; medians of runs by turns, so that a busy machine slows all alike.
Exit status 1 if a command takes more than its bar, or more memory than any may. Beside them the peer ``hf-mem --help``, where it is
installed. What the README calls long work has no bar: ``explore`` plans every format and engine for its page.

Measured on 2026-11-30, where ``python -c pass`` took 19 ms. Importing Typer and msgspec alone takes 6.6 to 7.3 of the 8 times that JSON may take.
These miss their bars: JSON takes 12, help 9 to 10, a table 14, an engine on a GPU 17 to 20, llama.cpp on a GPU 22, and a list 16 to 17. What is
left is thinly spread over the import of a hundred modules. Searches take 26 to 45.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from hwcalc.profiles.catalog import find_entry

ROOT: Final = Path(__file__).resolve().parents[1]
LIMIT: Final = 8
"""What the JSON of a plan may take, in times of ``python -c pass``."""
TABLE_LIMIT: Final = 12
"""What the table of a plan may take."""
ANY_LIMIT: Final = 14
"""What a plan on a GPU, a list and every other command may take."""
SEARCH_LIMIT: Final = 60
"""What a search through models, hardware or edits may take: the second that README names."""
HELP_LIMIT: Final = 8
"""What help and version may take."""
MOST_MIB: Final = 60
"""The most memory of a command."""
CACHED_ID: Final = "cached/model"
COMMIT: Final = "0" * 40
PLAN: Final = "Qwen/Qwen3-8B --seq 32k --json"

COMMANDS: Final[tuple[tuple[str, int | None], ...]] = (
    (PLAN, LIMIT),
    (PLAN.replace("Qwen/Qwen3-8B", CACHED_ID), LIMIT),
    ("--help", HELP_LIMIT),
    ("plan --help", HELP_LIMIT),
    ("help recommend", HELP_LIMIT),
    ("--version", HELP_LIMIT),
    ("version", HELP_LIMIT),
    ("Qwen/Qwen3-8B --seq 32k --dtype fp8", TABLE_LIMIT),
    ("meta-llama/Llama-3.3-70B-Instruct --engine vllm --gpu h100 --gpus 4 --seq 32k --users 20 --brief", ANY_LIMIT),
    ("Qwen/Qwen3-14B --engine llamacpp --weights q6_k --seq 32k --gpu rtx-4060-ti-16gb --brief --quiet", ANY_LIMIT),
    ("google/gemma-3-27b-it --engine vllm --gpu h100 --gpus 2 --seq 32k --users 4 --brief --quiet", ANY_LIMIT),
    ("mcp --list", ANY_LIMIT),
    ("Qwen/Qwen3-8B --engine vllm --gpu h100 --seq 32k", ANY_LIMIT),
    ("Qwen/Qwen3.5-35B-A3B --engine sglang --gpu h200 --seq 32k --users 16 --brief", ANY_LIMIT),
    ("Qwen/Qwen3-8B --engine all", ANY_LIMIT),
    ("Qwen/Qwen3-8B --policy snapkv:compression_ratio=0.5", ANY_LIMIT),
    ("Qwen/Qwen3-8B --samples 4 --shared-prefix 2k --prompt 4k", ANY_LIMIT),
    ("explain Qwen/Qwen3-8B", ANY_LIMIT),
    ("fit --gpu rtx-4060-ti --seq 16k", SEARCH_LIMIT),
    ("recommend Qwen/Qwen3-8B --seq 32k --users 8", SEARCH_LIMIT),
    ("compare Qwen/Qwen3-8B meta-llama/Llama-3.1-8B --dtype bf16,fp8", ANY_LIMIT),
    ("diff Qwen/Qwen3-4B Qwen/Qwen3-8B", ANY_LIMIT),
    ("sweep Qwen/Qwen3-8B --seq 1k..128k", ANY_LIMIT),
    ("check tests/readme/kvplan.yaml", SEARCH_LIMIT),
    ("simulate Qwen/Qwen3-8B --blocks 600 --step-time 25ms --trace 'prompt=500 output=20 requests=5'", None),
    ("tune Qwen/Qwen3-8B --gpu l4 --trace 'prompt=1k output=9 requests=9' --ttft 9s --dtype auto", None),
    ("disaggregate Qwen/Qwen3-8B --engine vllm --gpu h100 --seq 8k --ttft 1s", None),
    ("fleet docs/fleet.yaml", None),
    ("swap Qwen/Qwen3-8B Qwen/Qwen3-4B --engine vllm --gpu l4 --seq 8k", None),
    ("launch vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2", ANY_LIMIT),
    ("workload 'prompt=2k output=300 requests=50'", ANY_LIMIT),
    ("strategies Qwen/Qwen3-8B --lengths 1k,2k,8k", ANY_LIMIT),
    (
        "reconcile Qwen/Qwen3-235B-A22B-FP8 --log tests/logs/vllm/v1-0.27-qwen3-235b-tp4.log --gpu h20-96gb --quiet",
        ANY_LIMIT,
    ),
    ("models", ANY_LIMIT),
    ("gpus", ANY_LIMIT),
    ("instances", ANY_LIMIT),
    ("engines", ANY_LIMIT),
    ("dtypes", ANY_LIMIT),
    ("policies", ANY_LIMIT),
    ("schema", ANY_LIMIT),
    ("--install-completion", ANY_LIMIT),
    ("explore Qwen/Qwen3-8B -o {folder}/page.html", None),
)
"""What stands behind ``kvplan``, and its bar."""


class Cost(NamedTuple):
    """What one run of a command takes."""

    cpu_seconds: float
    peak_mib: float


def fill_cache(home: Path, model: str) -> None:
    """Lay the catalog's config of ``model`` into a Hugging Face cache, as a download would."""
    found = find_entry(model)
    if found is None:
        raise SystemExit(f"{model} is not in the catalog")
    folder = home / "hub" / f"models--{CACHED_ID.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT, encoding="utf-8")
    (folder / "snapshots" / COMMIT).mkdir(parents=True)
    (folder / "snapshots" / COMMIT / "config.json").write_text(json.dumps(found.data["config"]), encoding="utf-8")


def read_away(terminal: int) -> None:
    """Read what is written to a terminal until nobody has it open."""
    with suppress(OSError):
        while os.read(terminal, 65_536):
            pass


def cost_of(command: list[str], *, terminal: bool) -> Cost:
    """User + system seconds and the peak of memory of one run; what does not fit ends with 1, and is an answer too."""
    reader, writer = pty.openpty() if terminal else (-1, subprocess.DEVNULL)
    with tempfile.TemporaryFile() as errors, subprocess.Popen(command, cwd=ROOT, stdout=writer, stderr=errors) as run:
        if terminal:
            os.close(writer)
            read_away(reader)
            os.close(reader)
        _, status, used = os.wait4(run.pid, 0)
        run.returncode = os.waitstatus_to_exitcode(status)
        if run.returncode not in {0, 1}:
            errors.seek(0)
            raise SystemExit(f"{shlex.join(command)} failed with {run.returncode}: {errors.read().decode().strip()}")
    return Cost(cpu_seconds=used.ru_utime + used.ru_stime, peak_mib=used.ru_maxrss / 1024)


def measure(lines: dict[str, tuple[list[str], int | None]], runs: int, *, terminal: bool) -> bool:
    """Print one line per command; whether all keep to their bars."""
    empty = [sys.executable, "-c", "pass"]
    taken: dict[str, list[Cost]] = {name: [] for name in ("", *lines)}
    # The first run of each writes the bytecode.
    for _ in range(runs + 1):
        for name, command in {"": empty, **{name: command for name, (command, _) in lines.items()}}.items():
            taken[name].append(cost_of(command, terminal=terminal and bool(name)))
    seconds = {name: statistics.median(cost.cpu_seconds for cost in costs[1:]) for name, costs in taken.items()}
    peaks = {name: max(cost.peak_mib for cost in costs[1:]) for name, costs in taken.items()}
    print(f"{'CPU ms':>8} {'x python':>9} {'bar':>4} {'MiB':>6}  command")
    print(f"{seconds[''] * 1e3:>8.1f} {1:>9.2f} {'':>4} {peaks['']:>6.1f}  python -c pass")
    missed = 0
    for name, (_, bar) in lines.items():
        ratio = seconds[name] / seconds[""]
        over = bar is not None and (ratio > bar or peaks[name] > MOST_MIB)
        missed += over
        print(
            f"{seconds[name] * 1e3:>8.1f} {ratio:>9.2f} {bar or '-':>4} {peaks[name]:>6.1f}  {name}{'  MISSED' if over else ''}"
        )
    print(f"{missed} of {len(lines)} above a bar; memory at most {MOST_MIB} MiB")
    return not missed


def main() -> int:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--only", default="", help="the commands with this in them")
    parser.add_argument("--terminal", action="store_true", help="write to a terminal instead of a pipe")
    arguments = parser.parse_args()

    script = shutil.which("kvplan", path=str(Path(sys.executable).parent))
    kvplan = [script] if script else [sys.executable, "-m", "hwcalc"]
    # Bytecode lies beside the sources, as an installation has it.
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "KVPLAN_DEBUG", "PYTHONPYCACHEPREFIX"):
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": home,
            "HOME": home,
            "PYTHONDONTWRITEBYTECODE": "",
        }
        fill_cache(Path(home), PLAN.partition(" ")[0])
        lines: dict[str, tuple[list[str], int | None]] = {
            f"kvplan {line}": ([*kvplan, *shlex.split(line.format(folder=home))], bar)
            for line, bar in COMMANDS
            if arguments.only in line
        }
        if (peer := shutil.which("hf-mem")) is not None:
            lines["hf-mem --help"] = ([peer, "--help"], None)
        return 0 if measure(lines, arguments.runs, terminal=arguments.terminal) else 1


if __name__ == "__main__":
    raise SystemExit(main())
