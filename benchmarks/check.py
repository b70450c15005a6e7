"""CPU time of ``kvplan check`` on a file of 50 checks, offline from its lock, and on a folder of 100 manifests: the whole process, user and system.

Run it where kvplan is installed::

    python benchmarks/check.py [--runs N]

Ten models of the catalog, each planned five ways for two engines' rules; once as a table, once as JSON and SARIF. Beside it ``python -c
pass`` and one plan of the same program.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT_SECONDS = 1.0
FOLDER_SECONDS = 2.0
"""The bar of a folder."""
MANIFESTS = 100
FOLDER = f"kvplan check, a folder of {MANIFESTS} manifests"
MODELS = (
    "meta-llama/Llama-3.1-8B",
    "meta-llama/Llama-3.1-70B-Instruct",
    "google/gemma-3-27b-it",
    "openai/gpt-oss-20b",
    "openai/gpt-oss-120b",
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "deepseek-ai/DeepSeek-V3",
    "mistralai/Mistral-7B-v0.1",
    "microsoft/Phi-3.5-mini-instruct",
)
WAYS: tuple[dict[str, object], ...] = (
    {"engine": "vllm", "gpu": "h100-sxm5-80gb", "gpus": 8, "seq": "8k", "fits": None, "max_cache": "1TiB"},
    {"engine": "vllm", "gpu": "h100-sxm5-80gb", "gpus": 8, "seq": "32k", "dtype": "fp8", "fits": None, "max_cache": "1TiB"},
    {"engine": "vllm", "gpu": "b200", "gpus": 8, "seq": "4k", "batch": 16, "fits": None, "max_cache": "1TiB"},
    {"engine": "reference", "seq": "32k", "max_bytes_per_token": "4MiB"},
    {"engine": "reference", "seq": "128k", "dtype": "fp8", "batch": 8, "max_cache": "1TiB"},
)


def checks() -> dict[str, object]:
    """A check file: every model in every way."""
    return {"schema_version": 1, "checks": [{"model": model, **way} for model in MODELS for way in WAYS]}


def manifest(number: int) -> str:
    """A Deployment of a model, with the Service of it."""
    return f"""\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: server-{number}}}
spec:
  replicas: 2
  template:
    spec:
      nodeSelector: {{nvidia.com/gpu.product: NVIDIA-H200}}
      containers:
      - name: server
        image: vllm/vllm-openai:v0.20.0
        args:
        - --model={MODELS[number % len(MODELS)]}
        - --max-model-len={2048 * (1 + number // len(MODELS))}
        - --tensor-parallel-size=8
        resources: {{limits: {{nvidia.com/gpu: 8}}}}
---
apiVersion: v1
kind: Service
metadata: {{name: server-{number}}}
"""


def cpu_seconds(command: list[str], runs: int, folder: Path) -> float:
    """Median user + system seconds of ``command``; one more run goes first, to fill caches."""
    taken = []
    for _ in range(runs + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode not in (0, 1):
            raise SystemExit(f"{' '.join(command)} failed with {done.returncode}: {(done.stdout + done.stderr).strip()[-2000:]}")
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(taken[1:])


def main() -> int:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    os.environ |= {"HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": ""}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        os.environ |= {"PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "HF_HOME": str(folder / "home")}
        (folder / "checks.yaml").write_text(json.dumps(checks(), indent=1), encoding="utf-8")
        program = [sys.executable, "-m", "hwcalc"]
        check = [*program, "check", "checks.yaml"]
        subprocess.run([*check, "--lock"], cwd=folder, check=True, capture_output=True)
        (folder / "deploy").mkdir()
        for number in range(MANIFESTS):
            (folder / "deploy" / f"{number}.yaml").write_text(manifest(number), encoding="utf-8")
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            f"kvplan plan {MODELS[0]} --json": [*program, MODELS[0], "--seq", "32k", "--json"],
            "kvplan check, 50 checks, table": check,
            "kvplan check, 50 checks, JSON and SARIF": [*check, "--json", "--output", "sarif=out.sarif"],
            FOLDER: [*program, "check", "deploy"],
        }
        slow = False
        for name, command in commands.items():
            taken, limit = cpu_seconds(command, runs, folder), FOLDER_SECONDS if name == FOLDER else LIMIT_SECONDS
            slow |= taken > limit
            print(f"{name:<48} {taken * 1e3:>8.1f} ms of CPU, limit {limit * 1e3:,.0f}")
    return int(slow)


if __name__ == "__main__":
    raise SystemExit(main())
