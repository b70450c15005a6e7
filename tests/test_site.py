"""The site as it is read: in a browser, from a folder, with no other host asked. ``.ci/run`` builds it and names its folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

from hwcalc import load_model
from tests.effort import sample

SITE: Final = os.environ.get("KVPLAN_SITE", "")
pytestmark = pytest.mark.skipif(not SITE, reason="KVPLAN_SITE names no site: python scripts/build_site.py FOLDER builds one")


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and writes no log."""

    def guess_type(self, path: str | os.PathLike[str]) -> str:
        """The type of a file; Python 3.11 knows neither modules nor WebAssembly."""
        types = {".mjs": "text/javascript", ".wasm": "application/wasm"}
        return types.get(Path(path).suffix) or super().guess_type(path)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of the site on this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=SITE))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(scope="module")
def page(browser: Any, address: str) -> Iterator[Any]:
    """The page that runs kvplan. A request to another host fails the test."""
    context = browser.new_context()
    elsewhere: list[str] = []
    context.on(
        "request", lambda request: None if request.url.startswith((address, "data:", "blob:")) else elsewhere.append(request.url)
    )
    page = context.new_page()
    page.goto(f"{address}/try/")
    yield page
    context.close()
    assert elsewhere == []


def answered(page: Any, config: str, options: str) -> str:
    """What the page shows for a config and options."""
    page.evaluate("delete document.getElementById('kvplan-answer').dataset.done")
    page.fill("#kvplan-config", config)
    page.fill("#kvplan-options", options)
    page.click("#kvplan-try button")
    page.wait_for_selector("#kvplan-answer[data-done]", timeout=240_000)
    text: str = page.text_content("#kvplan-answer")
    return text


def printed(words: list[str], stdin: str = "") -> str:
    """What the command prints here."""
    done = subprocess.run(
        [sys.executable, "-m", "hwcalc", *words, "--offline"],
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
        env=os.environ | {"COLUMNS": "90"},
    )
    return done.stdout


def test_a_model_of_the_catalog(page: Any) -> None:
    """The browser prints what the command prints."""
    words = ["--engine", "vllm", "--gpu", "l4", "--seq", "8k"]

    assert answered(page, "Qwen/Qwen3-8B", " ".join(words)) == printed(["Qwen/Qwen3-8B", *words])


def test_a_config_that_was_pasted(page: Any) -> None:
    """It is read as standard input; JSON has the same integers as here."""
    config = json.dumps(dict(load_model("google/gemma-3-12b-it").config))
    words = ["--engine", "llamacpp", "--weights", "q4_k_m", "--gpu", "rtx-4070", "--seq", "16k", "--json"]
    shown, here = (json.loads(text) for text in (answered(page, config, " ".join(words)), printed(["-", *words], config)))

    assert shown["cache"] == here["cache"]
    assert shown["memory"] == here["memory"]
    assert shown["fit"] == here["fit"]


@pytest.mark.parametrize(
    ("config", "options", "words"),
    [
        ("{", "", "kvplan: "),
        ('{"model_type": "no_such_type"}', "", "no_such_type"),
        ("Qwen/No-Such-Model", "", "kvplan: "),
        ("Qwen/Qwen3-8B", "--no-such-option", "--no-such-option"),
        ("Qwen/Qwen3-8B", "'", "The options cannot be read"),
    ],
)
def test_what_is_wrong_is_said(page: Any, config: str, options: str, words: str) -> None:
    """An error is an answer, and the page goes on."""
    said = answered(page, config, options)

    assert words in said
    assert "Traceback" not in said


def test_every_page_is_drawn(browser: Any, address: str) -> None:
    """No page has a broken picture or link, an error of a script, or a request to another host; a share of the pages in every run."""
    context = browser.new_context()
    tab = context.new_page()
    faults: list[str] = []
    tab.on("pageerror", lambda error: faults.append(str(error)))
    tab.on("request", lambda request: None if request.url.startswith((address, "data:", "blob:")) else faults.append(request.url))
    tab.on("response", lambda response: faults.append(response.url) if response.status >= 400 else None)
    for path in sample(sorted(Path(SITE).rglob("index.html")), 8):
        tab.goto(f"{address}/{path.parent.relative_to(SITE).as_posix()}/".replace("/./", "/"))
        broken = tab.evaluate(
            "[...document.images].filter(image => image.complete && !image.naturalWidth).map(image => image.src)"
        )
        assert broken == []
    context.close()

    assert faults == []


def test_a_telephone_shows_every_page_in_its_width(browser: Any, address: str) -> None:
    """Wide tables and lines of code scroll in boxes of their own; no page scrolls sideways, and every picture is there."""
    context = browser.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    names = sorted(path.parent.name for path in Path(SITE).glob("*/index.html"))
    assert len(names) > 40
    for name in names:
        page.goto(f"{address}/{name}/")
        wide, lost = page.evaluate(
            "[document.documentElement.scrollWidth - document.documentElement.clientWidth,"
            " [...document.images].filter((image) => !image.naturalWidth).map((image) => image.src)]"
        )
        broken = page.evaluate(
            "[...document.querySelectorAll('article :is(p, li) code.fits')]"
            ".filter((code) => code.getClientRects().length > 1).map((code) => code.textContent)"
        )
        assert (name, wide, lost, broken) == (name, 0, [], [])
    context.close()


def test_a_telephone_keeps_a_full_stop_with_the_code_before_it(browser: Any, address: str) -> None:
    """What stands behind short code without a blank is on the same line."""
    context = browser.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto(f"{address}/llamacpp/")
    apart, tried = page.evaluate(
        """(() => {
          let apart = [], tried = 0;
          for (const code of document.querySelectorAll('article :is(p, li) > code.fits')) {
            const next = code.nextSibling;
            if (next === null || next.nodeType !== 3 || !/^[.,;:)]/.test(next.textContent)) continue;
            const range = document.createRange();
            range.setStart(next, 0);
            range.setEnd(next, 1);
            tried += 1;
            if (range.getBoundingClientRect().left < code.getBoundingClientRect().right - 1) apart.push(code.textContent);
          }
          return [apart, tried];
        })()"""
    )
    context.close()
    assert (apart, tried > 20) == ([], True)


@pytest.mark.parametrize(("scheme", "words"), [("light", "gh-light-mode-only"), ("dark", "gh-dark-mode-only")])
def test_the_picture_of_a_page_is_as_dark_as_the_page_around_it(browser: Any, address: str, scheme: str, words: str) -> None:
    """Of the light picture and the dark one, the page shows its own."""
    context = browser.new_context(color_scheme=scheme)
    page = context.new_page()
    page.goto(f"{address}/explore/")
    shown = page.evaluate("[...document.querySelectorAll('article img')].filter((one) => one.offsetWidth).map((one) => one.src)")
    assert [source.partition("#")[2] for source in shown] == [words]
    context.close()
