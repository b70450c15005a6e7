"""How long a fleet of 50 nodes and 10 models takes, with and without conditions: seconds of the clock and of the processor.

    python benchmarks/fleet.py

Five to six seconds of the processor, with the search of at most five seconds of the clock and three of plans; $66 to $95/h where a node may fail,
by how much else the machine does.
"""

from __future__ import annotations

import time
from typing import Any, Final

from hwcalc.fleet.run import fleet

FLEET: Final[dict[str, Any]] = {
    "schema_version": 1,
    "defaults": {"engine": "vllm", "ttft": "2s", "itl": "60ms", "prompt": "3k", "output": "1k"},
    "models": [
        {"name": "chat", "model": "Qwen/Qwen3-32B", "weights": "fp8", "users": 900},
        {"name": "small", "model": "Qwen/Qwen3-8B", "users": 1500},
        {"name": "tiny", "model": "Qwen/Qwen3-4B", "users": 700},
        {"name": "agents", "model": "openai/gpt-oss-120b", "users": 1200, "prompt": "7k"},
        {"name": "tools", "model": "openai/gpt-oss-20b", "users": 800, "prompt": "7k"},
        {"name": "large", "model": "meta-llama/Llama-3.3-70B-Instruct", "weights": "fp8", "users": 400},
        {"name": "mixture", "model": "Qwen/Qwen3-235B-A22B", "weights": "fp8", "users": 300},
        {"name": "code", "model": "Qwen/Qwen3-Coder-30B-A3B-Instruct", "users": 600, "prompt": "15k"},
        {"name": "gemma", "model": "google/gemma-3-27b-it", "users": 200},
        {"name": "wise", "model": "deepseek-ai/DeepSeek-V3", "users": 150, "itl": "100ms"},
    ],
    "nodes": [
        {"gpu": "8xh100-sxm", "count": 8},
        {"gpu": "8xh200", "count": 4},
        {"gpu": "8xa100-sxm4-80gb", "count": 6},
        {"gpu": "4xl40s", "count": 10},
        {"gpu": "8xmi300x", "count": 2},
        {"instance": "aws/p5.48xlarge", "rent": {"at_most": 10}},
        {"instance": "aws/p5en.48xlarge", "rent": {"at_most": 6}},
        {"instance": "aws/g6e.12xlarge", "rent": {"at_most": 4}},
    ],
}


def main() -> None:
    """Print a row for each set of conditions."""
    print("conditions                              clock   CPU  $/h       at least  optimal")
    for conditions in ({}, {"growth": "2x"}, {"survive": 1}, {"rolling": True}, {"survive": 1, "rolling": True}):
        clock, cpu = time.perf_counter(), time.process_time()
        answer = fleet({**FLEET, **conditions})
        clock, cpu = time.perf_counter() - clock, time.process_time() - cpu
        words = ", ".join(f"{name} {value}" for name, value in conditions.items()) or "none"
        print(
            f"{words:38}  {clock:5.1f} {cpu:5.1f}  {answer.usd_per_hour:8.2f}  {answer.usd_per_hour_least:8.2f}  {answer.optimal}  {answer.headline()}"
        )


if __name__ == "__main__":
    main()
