"""The page as a file: it opens from disk, is small, and nothing in it is taken for anything but text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hwcalc.explore.browser.models import HOSTILE, MODELS
from tests.hwcalc.explore.browser.watched import TELEPHONE, Watched, opened

MOST_BYTES = 900_000
"""Of a page with nine models, four of them with dimensions by hand: it goes into a mail."""


def test_it_opens_from_disk(page: Watched) -> None:
    """Without network, request, console error or violation of its own policy, and it has an answer."""
    assert len(page.run("() => kvplan.payload.models")) == len(MODELS)
    assert page.answer()


def test_it_is_small(page_file: Path) -> None:
    """All engines and formats."""
    assert page_file.stat().st_size < MOST_BYTES


def test_nothing_scrolls_sideways(browser: Any, page_file: Path) -> None:
    """On a telephone, only charts and tables scroll to the side, and the page never does."""
    with opened(browser, page_file.as_uri(), viewport=TELEPHONE) as page:
        wide = page.run("() => document.documentElement.scrollWidth")

    assert wide <= TELEPHONE["width"]


def test_names_are_text(browser: Any, hostile_file: Path) -> None:
    """A model named like a tag that runs a script, and scripts in its config, change nothing: the page shows the name."""
    with opened(browser, hostile_file.as_uri()) as page:
        for name in (HOSTILE, f"{HOSTILE}2"):
            page.set(model=name)
            assert page.run("() => kvplan.state().model") == name
            assert HOSTILE in page.page.title()
        images = page.run(
            "() => document.querySelectorAll('img, iframe, object, embed, script:not([type]):not(:nth-of-type(n))').length"
        )

    assert images == 0


FRAGMENTS = (
    "#",
    "#model=",
    "#model=<img src=x onerror=alert(1)>",
    "#model=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E&engine=<script>alert(1)</script>",
    "#seq=1e999&batch=-1&count=NaN&tp=0",
    "#seq=99999999999999999999&batch=99999999999999999999&tp=8&count=1",
    "#seq=0&batch=0",
    "#seq=32768.5&batch=0x10",
    "#%&%%=%zz&model=%ff",
    "#model=__proto__&engine=constructor&gpu=toString&dtype=hasOwnProperty&weights=valueOf",
    "#__proto__=1&constructor=2&hand=3&state=4",
    "#layers=1e9&heads=-3&kv_heads=0&head_dim=x",
    "#model=Qwen/Qwen3-8B#model=x",
    "#javascript:alert(1)",
    "#" + "x" * 100_000,
    "#" + "&".join(f"k{number}=v" for number in range(5_000)),
    "#answer",
)


@pytest.fixture(scope="module")
def window(browser: Any, small_file: Path) -> Iterator[Watched]:
    """A window for one address after the other."""
    with opened(browser, small_file.as_uri()) as page:
        yield page


@pytest.mark.parametrize("fragment", FRAGMENTS, ids=[f"{number}" for number in range(len(FRAGMENTS))])
def test_hostile_fragments(window: Watched, small_file: Path, fragment: str) -> None:
    """Whatever stands in the address, the page has one of its own states, and an answer or a reason."""
    window.load(small_file.as_uri() + fragment)
    state = window.run("() => kvplan.state()")
    valid = window.run("() => { const { models, engines, gpus } = kvplan.payload; const s = kvplan.state();"
                       " return models.some((m) => m.id === s.model) && engines.some((e) => e.name === s.engine) && gpus.some((g) => g.id === s.gpu); }")  # fmt: skip
    answer = window.run("() => kvplan.answer()")
    window.check()

    assert valid
    assert state["seq"] >= 1
    assert state["batch"] >= 1
    assert answer.keys() == {"refused"} or answer.keys() >= {"cache", "per_gpu", "fit"}


def test_a_link_keeps_the_state(browser: Any, small_file: Path) -> None:
    """What is chosen goes into the address, and the address alone gives it back, with the same answer."""
    with opened(browser, small_file.as_uri()) as page:
        page.set(model="google/gemma-3-12b-it", engine="vllm", gpu="h100-sxm5-80gb", count=4, tp=2, seq=50_000, batch=7)
        page.page.wait_for_function("() => location.hash.includes('seq=50000')")
        state, answer, fragment = page.run("() => [kvplan.state(), kvplan.answer(), location.hash]")
    with opened(browser, small_file.as_uri(), fragment=fragment) as page:
        again = page.run("() => [kvplan.state(), kvplan.answer()]")

    assert state["seq"] == 50_000
    assert state["tp"] == 2
    assert again == [state, answer]


def test_back_and_forward(small: Watched) -> None:
    """The browser's own keys go through the states."""
    small.set(engine="reference")
    small.set(batch=4)
    small.page.go_back()
    small.page.wait_for_function("() => kvplan.state().batch !== 4")
    small.page.go_forward()
    small.page.wait_for_function("() => kvplan.state().batch === 4")


def test_an_address_for_another_page(browser: Any, small_file: Path) -> None:
    """What the page lacks is said until something else is chosen; other spellings are taken."""
    with opened(browser, small_file.as_uri(), fragment="#model=qwen3-8b&gpu=rtx-4090&engine=vLLM") as page:
        assert 'no GPU "rtx-4090"' in page.answer()
        assert page.run("() => kvplan.state().engine") == "vllm"
        page.set(batch=2)
        assert "rtx-4090" not in page.answer()
