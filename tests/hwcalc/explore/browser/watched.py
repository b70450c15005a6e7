"""A page under watch: what it asks for, and what it complains of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import field

from hwcalc.formulas.record import Record

__all__ = ["DESKTOP", "TELEPHONE", "Watched", "opened"]

DESKTOP = {"width": 1280, "height": 900}
TELEPHONE = {"width": 360, "height": 740}
_VIOLATIONS = """
globalThis.violations = [];
addEventListener("securitypolicyviolation", (event) => globalThis.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
"""


class Watched(Record):
    """A page and its faults: requests, errors on the console, dialogs, violations of the policy."""

    page: Any
    faults: list[str] = field(default_factory=list)

    def run(self, script: str, argument: Any = None) -> Any:
        """What a function of JavaScript gives."""
        return self.page.evaluate(script, argument)

    def load(self, address: str) -> None:
        """Open an address as if nothing had been open before, and wait until the page runs."""
        self.page.goto("about:blank")
        self.page.goto(address)
        self.page.wait_for_function("() => globalThis.kvplan !== undefined")

    def frame(self) -> None:
        """Wait until what has changed is drawn."""
        self.run("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def set(self, **change: Any) -> None:
        """Choose something else, and wait until it is drawn."""
        self.run("(change) => kvplan.set(change)", change)
        self.frame()

    def settle(self, **change: Any) -> None:
        """Choose something else, and wait until the sections out of sight have followed, too."""
        self.set(**change)
        self.page.wait_for_function("() => kvplan.settled()")

    def answer(self) -> str:
        """What the page says of its state, as text."""
        return "\n".join(self.page.locator("#answer, #gauge").all_inner_texts())

    def check(self) -> None:
        """Fail for what the page did wrong since the last time."""
        self.frame()
        found = [*self.faults, *(f"violates {rule}" for rule in self.run("() => globalThis.violations.splice(0)"))]
        self.faults.clear()
        assert not found


@contextmanager
def opened(
    browser: Any, address: str, *, fragment: str = "", allowed: tuple[str, ...] = (), **settings: Any
) -> Iterator[Watched]:
    """The page at an address, with the network off but for what is ``allowed``. What it has done wrong fails the test at the end."""
    context = browser.new_context(**{"viewport": DESKTOP, **settings})
    context.set_default_timeout(60_000)
    context.set_offline(not allowed)
    watched = Watched(page=context.new_page())
    page, faults = watched.page, watched.faults

    def asked(route: Any) -> None:
        target = route.request.url.partition("#")[0]
        if target == address or target.startswith(allowed):
            route.continue_()
        else:
            faults.append(f"asks for {target[:200]}")
            route.abort()

    def asks(dialog: Any) -> None:
        faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    context.route("**/*", asked)
    page.on("console", lambda said: faults.append(f"{said.type}: {said.text}") if said.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: faults.append(f"error: {error}"))
    page.on("dialog", asks)
    page.on("popup", lambda other: faults.append(f"opens {other.url}"))
    context.add_init_script(_VIOLATIONS)
    try:
        watched.load(address + fragment)
        yield watched
        watched.check()
    finally:
        context.close()
