"""A replay over time as a page: two charts, with the numbers behind them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hwcalc.explore.timeline import save_timeline_page
from hwcalc.replay.traffic import Timeline
from tests.hwcalc.explore.browser.watched import TELEPHONE

TIMELINE = Timeline(
    title="<b>8B</b>, vllm",
    caption="1,500 blocks",
    clock="seconds",
    times=(120.0, 240.0, 360.0),
    use=(0.25, 0.5, 0.125),
    use_max=(0.75, 1.0, 0.125),
    running=(3.0, 40.0, 1.0),
    waiting=(0.0, 7.5, 0.0),
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_replay_over_time(browser: Any, tmp_path: Path, scheme: str) -> None:
    """Six minutes of a replay, on a telephone: nothing is asked for, and the tables say in minutes and percent what is drawn."""
    path = tmp_path / "replay.html"
    save_timeline_page(TIMELINE, path)
    context = browser.new_context(viewport=TELEPHONE, color_scheme=scheme)
    context.set_offline(True)
    page, faults = context.new_page(), list[str]()
    page.on("console", lambda said: faults.append(said.text))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(path.as_uri())
    page.wait_for_function("() => document.querySelectorAll('canvas').length === 2")
    for summary in page.locator("summary").all():
        summary.click()
    page.wait_for_function("() => document.querySelectorAll('details tr').length >= 8")

    assert page.locator("h1").inner_text() == TIMELINE.title
    assert [row.split() for row in page.locator("details tr").all_inner_texts()] == [
        ["minutes", "fullest", "mean"], ["2", "75", "25"], ["4", "100", "50"], ["6", "12.5", "12.5"],
        ["minutes", "running", "waiting"], ["2", "3", "0"], ["4", "40", "7.5"], ["6", "1", "0"],
    ]  # fmt: skip
    assert page.evaluate("() => document.documentElement.scrollWidth") <= TELEPHONE["width"]
    assert faults == []
    context.close()
