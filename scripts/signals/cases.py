"""The command lines that are interrupted, and how each run is set up in a folder of its own."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.hub.repositories import TEXT, sharded

ROOT: Final = Path(__file__).resolve().parents[2]
QWEN: Final = "Qwen/Qwen3-8B"
HUB_MODEL: Final = "org/sharded"
REPOSITORY: Final = {"config.json": TEXT, **sharded(6)}
"""The files of the model on the local Hub: a config, an index and six weight files, read by several threads."""
GRID: Final = (
    *("sweep", QWEN, "--seq", "1k,2k,4k,8k,16k,32k", "--batch", "1,2,4,8,16,32", "--dtype", "bf16,fp8"),
    *("--gpu", "l4,h100-sxm5-80gb", "--tp", "1,2", "--engine", "vllm", "--quiet"),
)
CHECKS: Final = """schema_version: 1
defaults: {engine: vllm, gpu: l4, seq: 16k}
checks:
  - {name: chat, model: meta-llama/Llama-3.1-8B, concurrency: 2, dtype: fp8, headroom: 1%}
  - {name: long, model: Qwen/Qwen3-8B, gpu: h100-sxm5-80gb, seq: 32k, max_cache: 20GiB}
"""
SCRIPT: Final = """import re
import sys
from hwcalc.cli import main
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])
    sys.exit(main())
"""
"""What pip writes as the file ``kvplan``."""


@dataclass(frozen=True)
class Case:
    """One command line. ``outputs`` are the files that it writes; ``streams`` says that standard output comes in lines, not at once."""

    name: str
    words: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    streams: bool = False
    environment: tuple[tuple[str, str], ...] = ()
    compiles: bool = False
    """True if Python finds no bytecode and writes it: the first run after an installation."""


CASES: Final = (
    Case("plan", (QWEN, "--seq", "32k")),
    Case("plan --json", (QWEN, "--seq", "32k", "--json")),
    Case("plan, first import", (QWEN, "--seq", "32k", "--json"), compiles=True),
    Case("plan --gpu", (QWEN, "--seq", "8k", "--engine", "vllm", "--gpu", "l4", "--json")),
    Case("explain", ("explain", "google/gemma-3-27b-it", "--seq", "32k")),
    Case("recommend", ("recommend", QWEN, "--seq", "32k", "--gpu", "l4,l40s", "--json")),
    Case("compare", ("compare", QWEN, "meta-llama/Llama-3.1-8B", "--dtype", "bf16,fp8", "--gpu", "l4", "--json")),
    Case("diff", ("diff", "Qwen/Qwen3-4B", QWEN, "--json")),
    Case(
        "check --output",
        ("check", "kvplan.yaml", "--output", "sarif=out.sarif", "--output", "junit=out.xml", "--output", "json=out.json"),
        outputs=("out.sarif", "out.xml", "out.json"),
    ),
    Case("check --lock", ("check", "kvplan.yaml", "--lock", "--json"), outputs=("kvplan.yaml.lock",)),
    Case("sweep, csv", GRID, streams=True),
    Case("sweep --json", (*GRID, "--json")),
    Case("sweep -o csv", (*GRID, "-o", "points.csv"), outputs=("points.csv",)),
    Case("sweep -o json", (*GRID, "-o", "points.json"), outputs=("points.json",)),
    Case("sweep -o parquet", (*GRID, "-o", "points.parquet"), outputs=("points.parquet",)),
    Case(
        "reconcile",
        (
            *("reconcile", "Qwen/Qwen3-235B-A22B-FP8", "--gpu", "h20-96gb", "--json"),
            *("--log", str(ROOT / "tests/logs/vllm/v1-0.27-qwen3-235b-tp4.log")),
        ),
    ),
    Case("models", ("models", "--json")),
    Case("help", ("--help",)),
    Case(
        "completion",
        (),
        environment=(("_KVPLAN_COMPLETE", "complete_bash"), ("COMP_WORDS", "kvplan Qwen/Qwen3-8"), ("COMP_CWORD", "1")),
    ),
    Case("Hub and its cache", (HUB_MODEL, "--seq", "1k", "--json")),
    Case("probe without a device", ("probe", QWEN, "--seq", "1k", "--device", "cuda", "--json")),
    Case(
        "probe --verify",
        ("probe", "--verify", str(ROOT / "tests/receipts/cpu-qwen3-1.7b-reference.json"), "--json"),
    ),
)


class Room:
    """A folder in which one case runs, with a home of its own. Paths on the command line are relative to ``work``."""

    def __init__(self, folder: Path, case: Case, endpoint: str, bytecode: Path) -> None:
        self.folder, self.case = folder, case
        self.work = folder / "work"
        self.work.mkdir(parents=True)
        (folder / "tmp").mkdir()
        (folder / "kvplan").write_text(SCRIPT, encoding="utf-8")
        if case.name.startswith("check"):
            (self.work / "kvplan.yaml").write_text(CHECKS, encoding="utf-8")
        kept = {name: value for name, value in os.environ.items() if name in {"PATH", "LANG", "LD_LIBRARY_PATH"}}
        self.environment: Mapping[str, str] = {
            **kept,
            "PYTHONPATH": str(ROOT),
            "PYTHONUTF8": "1",
            "PYTHONPYCACHEPREFIX": str(folder / "bytecode" if case.compiles else bytecode),
            "HOME": str(folder / "home"),
            "HF_HOME": str(folder / "hf"),
            "HF_ENDPOINT": endpoint,
            "TMPDIR": str(folder / "tmp"),
            "CUDA_VISIBLE_DEVICES": "",
            **dict(case.environment),
        }

    def command(self, *, script: bool) -> list[str]:
        """The whole command line, as the script that pip makes or as ``python -m hwcalc``."""
        start = [str(self.folder / "kvplan")] if script else ["-m", "hwcalc"]
        return [sys.executable, *start, *self.case.words]

    def files(self) -> dict[str, bytes]:
        """Every file in the folder by its path."""
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and not path.is_symlink()
        }

    def remove(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
