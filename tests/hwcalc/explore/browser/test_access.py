"""The page for everybody: what axe-core finds, the keyboard alone, a telephone; and what a slider changes at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.hwcalc.explore.browser.watched import DESKTOP, TELEPHONE, Watched, opened

SERIOUS = {"serious", "critical"}
VLLM = {"engine": "vllm", "gpu": "h100-sxm5-80gb", "seq": 8192, "batch": 4}


# Colours follow the scheme, places the size: two pages see both of each.
@pytest.mark.parametrize(("size", "scheme"), [(DESKTOP, "light"), (TELEPHONE, "dark")], ids=["desktop-light", "telephone-dark"])
def test_no_serious_fault(browser: Any, small_file: Path, scheme: str, size: dict[str, int]) -> None:
    """axe-core finds no fault that is serious or critical, in an answer with all tables open, in another without, and in a refusal."""
    from axe_playwright_python.sync_playwright import Axe

    axe = Axe()
    with opened(browser, small_file.as_uri(), viewport=size, color_scheme=scheme) as page:
        for state, opens in (
            (VLLM, True),
            ({**VLLM, "model": "google/gemma-3-12b-it", "seq": 1 << 20, "batch": 64}, False),
            ({**VLLM, "weights": "nvfp4", "gpu": "l4"}, False),
        ):
            page.set(**state)
            page.run("(opens) => document.querySelectorAll('details').forEach((table) => { table.open = opens; })", opens)
            page.frame()
            said = axe.run(page.page, options={"resultTypes": ["violations"]}).response
            found = [one for one in said["violations"] if one["impact"] in SERIOUS]
            assert not [(one["id"], one["help"], [node["target"] for node in one["nodes"]][:5]) for one in found]


def test_the_keyboard_alone(small: Watched) -> None:
    """Tab reaches every control that can be seen, once, in the order of the page, and shows where it is; nothing holds it."""
    small.settle(**VLLM)
    small.run(
        "() => { document.querySelectorAll('details').forEach((table) => { table.open = false; }); document.activeElement.blur(); scrollTo(0, 0); }"
    )
    wanted = small.run(
        "() => [...document.querySelectorAll('a[href], input, select, button, summary, [tabindex=\"0\"]')]"
        ".filter((e) => e.checkVisibility() && !e.disabled && e.tabIndex >= 0 && !(e.type === 'radio' && !e.checked)).length"
    )
    small.page.locator("a.skip").focus()
    seen = []
    for _ in range(wanted + 1):
        where, outline = small.run(
            "() => { const e = document.activeElement; e.dataset.place ??= String(performance.now()); const s = getComputedStyle(e);"
            " return [e === document.body ? '' : `${e.localName}#${e.id}.${e.name ?? ''} ${e.dataset.place}`,"
            " s.outlineStyle !== 'none' || s.boxShadow !== 'none']; }"
        )
        if where in seen or not where:
            break
        assert outline, f"nothing shows that the focus is at {where}"
        seen.append(where)
        small.page.keyboard.press("Tab")

    assert len(seen) == wanted


def test_the_answer_is_read_out(small: Watched) -> None:
    """A screen reader hears the verdict once the sliders rest."""
    small.settle(**VLLM)
    small.page.wait_for_function("() => [...document.querySelectorAll('[role=status]')].some((e) => /fit/.test(e.textContent))")


def test_signs_beside_colours(small: Watched) -> None:
    """The verdict is a word, and each part of the bar has a pattern or a word of its own."""
    small.settle(**VLLM)
    words = small.answer()

    assert "fits" in words
    for part in ("weights", "cache", "activations", "overhead"):
        assert part in words


def test_a_slider_is_answered_in_a_frame(small: Watched) -> None:
    """A move of the length's slider changes what is in sight in the very next frame: nothing of it waits for an idle moment."""
    small.settle(**VLLM)
    before, after = small.run(
        """async () => {
          const slider = document.getElementById("seq");
          const words = () => document.querySelector("#answer").innerText;
          const before = words();
          slider.value = String(Number(slider.max) - 1);
          slider.dispatchEvent(new Event("input", { bubbles: true }));
          // Callbacks of one frame run in the order in which they were asked for: the page's own is first.
          await new Promise((done) => requestAnimationFrame(done));
          return [before, words()];
        }"""
    )

    assert before != after
    assert "fit" in after
