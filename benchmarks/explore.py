"""Processor time and size of pages: one model and twenty, with the default accelerators and dimensions by hand.

Run it where kvplan is installed, on one core::

    taskset -c 0 python benchmarks/explore.py

Seconds of a slow machine say little: the limits are ratios to plans that are made in the same run, one by one. A page of one model has
thousands of forms, and must not take longer than so many plans of it. A slider's time is measured by the tests in a browser.
"""

from __future__ import annotations

import time

from hwcalc import explore, load_model, plan
from hwcalc.profiles.catalog import list_models

LIMIT_PLANS = 900
"""A page of one model takes as long as at most so many plans of that model."""
LIMIT_BYTES = 1_500_000
MODEL = "meta-llama/Llama-3.1-8B"
MODELS = 20
GPU = "h100-sxm5-80gb"
PLANNED = 50


def plan_seconds() -> float:
    """Processor time of one plan of a model that is read already, at a length of its own."""
    model = load_model(MODEL, offline=True)
    started = time.process_time()
    for number in range(PLANNED):
        plan(model, seq=1024 + number, gpu=GPU, engine="vllm")
    return (time.process_time() - started) / PLANNED


def page_seconds(models: list[str]) -> tuple[float, int]:
    """Processor time of a page, and its size in bytes."""
    started = time.process_time()
    page = explore(models, offline=True)
    return time.process_time() - started, len(page.encode())


def main() -> None:
    """Measure."""
    each = plan_seconds()
    catalog = list_models()
    models = [MODEL, *catalog[:: max(1, len(catalog) // MODELS)]][:MODELS]
    missed = False
    for names in ([MODEL], models):
        taken, size = page_seconds(names)
        limit = LIMIT_PLANS * len(names)
        print(
            f"{len(names)} models: {taken:.2f} s, the time of {taken / each:,.0f} plans (limit {limit:,}); "
            f"{size:,} bytes (limit {LIMIT_BYTES:,})"
        )
        missed = missed or taken > limit * each or size > LIMIT_BYTES
    if missed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
