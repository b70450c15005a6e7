"""The page with the server behind it: any model of the catalog."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hwcalc.explore.build import page_of
from hwcalc.explore.serve import Live, Server, Site
from tests.hwcalc.explore.browser.watched import Watched, opened
from tests.hwcalc.explore.planned import agree, planned


@pytest.fixture(scope="module")
def server(browser: Any) -> Iterator[Server]:
    """A server as ``kvplan explore --serve`` starts it."""
    page = page_of(["Qwen/Qwen3-8B"], {"gpu": "l4,h100"}, live=True)
    models = Live(page.payload)
    site = Site(
        page=page.html.text.encode(),
        policy=page.html.policy,
        models=models.models,
        payload=models.payload,
        progress=models.progress,
    )
    with Server(site) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def choose(page: Watched, model: str) -> None:
    """Ask for a model as a person does."""
    field = page.page.locator("#live-model")
    field.fill(model)
    field.press("Enter")


def test_any_model(browser: Any, server: Server) -> None:
    """A model that the page does not have is asked for, chosen, and answered as the plan answers; the first one stays."""
    with opened(browser, server.address, allowed=(server.address,)) as page:
        page.page.wait_for_function("() => document.querySelectorAll('#catalog option').length > 300")
        choose(page, "mistralai/Mistral-7B-v0.1")
        page.page.wait_for_function("() => kvplan.state().model === 'mistralai/Mistral-7B-v0.1'")
        page.set(engine="vllm", gpu="h100-sxm5-80gb", count=2, tp=2, seq=5000, batch=3)
        answer, command = page.run("() => [kvplan.answer(), kvplan.command()]")
        assert agree(answer, planned(command))
        page.set(model="Qwen/Qwen3-8B")
        answer, command = page.run("() => [kvplan.answer(), kvplan.command()]")
        assert agree(answer, planned(command))
        assert page.run("() => kvplan.payload.models.length") == 2


def test_a_link_to_another_model(browser: Any, server: Server) -> None:
    """The address may name a model that the page does not have yet."""
    with opened(
        browser, server.address, fragment="#model=google/gemma-3-12b-it&engine=vllm&seq=5120", allowed=(server.address,)
    ) as page:
        page.page.wait_for_function("() => kvplan.state().model === 'google/gemma-3-12b-it'")
        state = page.run("() => kvplan.state()")
        page.page.goto(f"{server.address}#model=mistralai/Mistral-7B-v0.1&engine=vllm&seq=640")
        page.page.wait_for_function("() => kvplan.state().model === 'mistralai/Mistral-7B-v0.1'")
        assert page.run("() => kvplan.state().seq") == 640

    assert ("vllm", 5120) == (state["engine"], state["seq"])


def test_no_such_model(browser: Any, server: Server) -> None:
    """A name that the catalog lacks is refused in the server's words, as text; the page stays as it is."""
    with opened(browser, server.address, allowed=(server.address,)) as page:
        for name in ("nobody/nothing", "<img src=x onerror=alert(1)>"):
            choose(page, name)
            page.page.wait_for_function(
                "(name) => document.querySelector('main').innerText.includes(`the catalog has no model`)", arg=name
            )
        assert page.run("() => kvplan.state().model") == "Qwen/Qwen3-8B"
        assert page.run("() => document.querySelectorAll('img').length") == 0
        # Chromium writes every answer that is no success to the console.
        assert {fault.partition(":")[0] for fault in page.faults} == {"error"}
        assert all("404" in fault for fault in page.faults)
        page.faults.clear()


def test_the_server_has_gone(browser: Any, server: Server) -> None:
    """Without the server the page keeps working, and says what it cannot do."""
    with opened(browser, server.address, allowed=(server.address,)) as page:
        page.page.context.set_offline(True)
        choose(page, "google/gemma-3-1b-it")
        page.page.wait_for_function("() => document.querySelector('main').innerText.includes('The server does not answer')")
        page.set(engine="vllm")
        assert page.answer()
        assert all("ERR_INTERNET_DISCONNECTED" in fault for fault in page.faults)
        page.faults.clear()
