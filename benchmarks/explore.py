"""Processor time and size of pages: one model, eight and twenty, with the default accelerators and dimensions by hand.

Run it where kvplan is installed, on one core::

    taskset -c 0 python benchmarks/explore.py

A page of eight models must take less than ten seconds of CPU where one plan takes two milliseconds. Seconds of a slower machine say little, so
plans are made in the same run, and the limit grows by as much as they take longer. With ``--browser PROGRAM`` (a Chromium, and
playwright) a page of twenty models is opened, and the length's slider moved: what it changes must be drawn within a frame.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hwcalc import explore, load_model, plan
from hwcalc.profiles.catalog import list_models

LIMIT_SECONDS = 10.0
"""Of a page of :data:`MODELS_OF_LIMIT` models, on a machine where a plan takes :data:`PLAN_SECONDS`."""
MODELS_OF_LIMIT = 8
PLAN_SECONDS = 0.002
LIMIT_BYTES = 1_300_000
MODEL = "meta-llama/Llama-3.1-8B"
PAGES = (1, MODELS_OF_LIMIT, 20)
GPU = "h100-sxm5-80gb"
PLANNED = 50
FRAME_MS = 1000 / 60
MOVES = """async () => {
  const slider = document.getElementById("seq");
  const times = [];
  for (let step = 0; step < 25; step += 1) {
    slider.value = String(Number(slider.max) - 3 * step - 1);
    slider.dispatchEvent(new Event("input", { bubbles: true }));
    // Callbacks of one frame run in the order in which they were asked for: the page's own is first.
    const begun = await new Promise((done) => requestAnimationFrame(done));
    void document.body.offsetHeight;
    times.push(performance.now() - begun);
  }
  return times;
}"""
"""Milliseconds from the start of a frame until what a move of the length's slider changes is laid out, 25 times."""


def plan_seconds() -> float:
    """Processor time of one plan of a model that is read already, at a length of its own."""
    model = load_model(MODEL, offline=True)
    started = time.process_time()
    for number in range(PLANNED):
        plan(model, seq=1024 + number, gpu=GPU, engine="vllm")
    return (time.process_time() - started) / PLANNED


def page_seconds(models: list[str]) -> tuple[float, int]:
    """Processor time of ``kvplan explore``, from its start to its end, and the size of the page in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "hwcalc", "explore", *models, "--offline", "-o", str(path)], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, path.stat().st_size


def slider_ms(models: list[str], program: str) -> float:
    """Milliseconds that a move of the slider takes in a frame, on a page of these models in a Chromium."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "page.html"
        path.write_text(explore(models, offline=True), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(path.as_uri())
        page.wait_for_function("() => globalThis.kvplan !== undefined && kvplan.settled()")
        times = page.evaluate(MOVES)
        browser.close()
    return float(statistics.median(times))


def main() -> None:
    """Measure."""
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--browser", metavar="PROGRAM", help="a Chromium that moves the slider of a page of twenty models")
    program = reader.parse_args().browser
    slower = max(1.0, plan_seconds() / PLAN_SECONDS)
    catalog = list_models()
    missed = False
    print(f"a plan takes {PLAN_SECONDS * slower * 1000:.1f} ms here: limits are {slower:.1f} times as long")
    models: list[str] = []
    for number in PAGES:
        models = [MODEL, *catalog[:: max(1, len(catalog) // number)]][:number]
        taken, size = page_seconds(models)
        limit = LIMIT_SECONDS * slower * max(1.0, number / MODELS_OF_LIMIT)
        print(f"{number} models: {taken:.2f} s of CPU (limit {limit:.1f} s); {size:,} bytes (limit {LIMIT_BYTES:,})")
        missed = missed or taken > limit or size > LIMIT_BYTES
    if program is not None:
        median = slider_ms(models, program)
        print(f"slider: {median:.1f} ms in a frame of {FRAME_MS:.1f}")
        missed = missed or median > FRAME_MS
    if missed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
