"""Which symbols an explanation uses, each with its meaning."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from hwcalc.library.explained import Symbol, names_in
from hwcalc.library.glossary import MEANINGS

__all__ = ["symbols_in"]

_NUMBERED: Final = re.compile(r"_\d+$")


def symbols_in(formulas: Iterable[str]) -> tuple[Symbol, ...]:
    """The symbols of formulas, each once, in the order in which they are met.

    The name of another figure has no meaning here: its own line says it. What is counted several times has a number behind its name.
    """
    names = dict.fromkeys(
        name if name in MEANINGS else _NUMBERED.sub("", name) for formula in formulas for name in names_in(formula)
    )
    return tuple(Symbol(name=name, meaning=MEANINGS[name]) for name in names if name in MEANINGS)
