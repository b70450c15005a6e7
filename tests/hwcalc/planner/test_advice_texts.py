"""Texts of a change that are written when they are read."""

from __future__ import annotations

import weakref
from functools import partial

from hwcalc.engines.pool import LATE_TEXTS, Try
from hwcalc.formulas.frozen import record, replace


class Searched:
    """What a text is written from."""

    def text(self, name: str) -> str:
        """One of the texts."""
        return f"its {name}"


def test_texts_that_are_read_keep_nothing_in_memory() -> None:
    """A program may keep many plans: what it took to find out what a change gives goes as soon as all is written."""
    searched = Searched()
    held = weakref.ref(searched)
    one = record(Try, {LATE_TEXTS: {name: partial(searched.text, name) for name in ("flag", "effect", "command")}})
    del searched
    assert held() is not None

    other = replace(one, flag="another")
    assert (one.flag, one.effect, one.command) == ("its flag", "its effect", "its command")
    assert held() is None
    assert other == Try(flag="another", effect="its effect", command="its command")
