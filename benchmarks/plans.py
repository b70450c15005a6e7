"""Processor time of 10,000 plans through an engine: every (model, seq, dtype, tp) anew, on one core.

Run it where kvplan is installed::

    python benchmarks/plans.py [ENGINE] [--gpu GPU]

Without a GPU each plan has a budget by hand; with one it has the whole memory equation, its verdict and the searches for what would fit.

Beside the seconds stands the ratio to a loop of 10,000 calls of ``json.dumps`` on one small plan document, from the same run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time

from hwcalc import Plan, load_model, plan

LIMIT_SECONDS = 10
"""Without a GPU."""
LIMIT_RATIO = 84
"""With a GPU, in times of the loop of ``json.dumps``: half of the 168 that it took before a request was opened once."""
MODELS = (
    "meta-llama/Llama-3.1-8B",
    "google/gemma-3-27b-it",
    "openai/gpt-oss-120b",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "deepseek-ai/DeepSeek-V3",
)
LENGTHS = tuple(range(1_000, 501_000, 1_000))
DTYPES = ("auto", "fp8")
RANKS = (1, 2)
BUDGET_BYTES = 40 * 2**30


def plans(engine: str, gpu: str | None) -> list[Plan]:
    """One plan for each combination."""
    models = [load_model(name) for name in MODELS]
    kv_memory = BUDGET_BYTES if gpu is None else None
    return [
        plan(model, engine=engine, seq=seq, dtype=dtype, tp=tp, kv_memory=kv_memory, gpu=gpu)
        for model, dtype, tp, seq in itertools.product(models, DTYPES, RANKS, LENGTHS)
    ]


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("engine", nargs="?", default="vllm")
    parser.add_argument("--gpu", help="the accelerator, such as h100")
    arguments = parser.parse_args()
    engine, gpu = arguments.engine, arguments.gpu
    plan(MODELS[0], engine=engine, seq=1_000, gpu=gpu)
    started = time.process_time()
    made = plans(engine, gpu)
    taken = time.process_time() - started
    document = made[0].to_dict()
    started = time.process_time()
    for _ in made:
        json.dumps(document)
    ratio = taken / (time.process_time() - started)
    where = "" if gpu is None else f" on {gpu}"
    limit = f"{LIMIT_SECONDS} s" if gpu is None else f"{LIMIT_RATIO} x"
    print(f"{len(made):,} plans with {engine}{where}: {taken:.2f} s, {ratio:.1f} x json.dumps (limit {limit})")
    if taken > LIMIT_SECONDS if gpu is None else ratio > LIMIT_RATIO:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
