"""CPU time and memory of replays: long prompts with common prefixes, as of chats about documents, and very many short requests.

    python benchmarks/replay.py [--trace FILE] [--model MODEL] [--blocks N]

Each replay is a process of its own. With ``--trace`` it is that of a file, such as Mooncake's traces. Measured on a busy machine, where a
loop that puts four million numbers into a dictionary and takes them out again took 1.0 s: 10,000 long requests 14 s, 100,000 short ones 48 s.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any, Final

RUNS: Final = {
    "10,000 long requests": {
        "trace": "prompt=p50=7k,p95=40k,max=120k output=p50=300,p95=900,max=2000 prefix=4k groups=60 arrival=poisson=3 requests=10000",
        "model": "meta-llama/Llama-3.1-8B",
        "blocks": 24_000,
    },
    "100,000 short requests": {
        "trace": "prompt=p50=900,p95=4k,max=7k output=p50=130,p95=480,max=1000 arrival=poisson=5 requests=100000",
        "model": "Qwen/Qwen3-8B",
        "blocks": 3_000,
    },
}
"""What is replayed: lengths like those of public traces of a chat service, on a pool that is nearly full."""


def measure(run: dict[str, Any]) -> dict[str, Any]:
    """What one replay takes, in this process."""
    from hwcalc.replay.simulate import simulate

    began = time.process_time()
    simulation = simulate(run["model"], run["trace"], blocks=run["blocks"], step_time=0.025)
    seconds = time.process_time() - began
    totals = simulation.totals
    return {
        "seconds": seconds,
        "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        **{name: totals[name] for name in ("model_steps", "scheduled_tokens", "preemptions")},
    }


def main() -> None:
    """Measure the replays one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", help="replay this trace instead")
    parser.add_argument("--model", default="meta-llama/Llama-3.1-8B")
    parser.add_argument("--blocks", type=int, default=24_000)
    parser.add_argument("--run", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run is not None:
        print(json.dumps(measure(json.loads(given.run))))
        return
    runs = RUNS if given.trace is None else {given.trace: {"trace": given.trace, "model": given.model, "blocks": given.blocks}}
    began = time.process_time()
    numbers = dict.fromkeys(range(4_000_000))
    for number in range(4_000_000):
        del numbers[number]
    print(f"this machine: four million numbers in and out of a dictionary: {time.process_time() - began:.2f} s")
    for name, run in runs.items():
        out = subprocess.run([sys.executable, __file__, "--run", json.dumps(run)], check=True, capture_output=True, text=True)
        told = json.loads(out.stdout)
        print(
            f"{name}: {told['seconds']:.1f} s, {told['mib']:.0f} MiB; {told['model_steps']:,} steps, "
            f"{told['scheduled_tokens']:,} tokens, {told['preemptions']:,} preemptions"
        )


if __name__ == "__main__":
    main()
