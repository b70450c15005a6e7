"""The words of kvplan, and the symbols of its formulas, with what they mean: ``glossary.yaml``, read compiled."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from msgspec import convert

from hwcalc.formulas.record import Record
from hwcalc.profiles.compiled import TOP, record


class Term(Record):
    """A word, other words for the same thing, its key in JSON documents, and the options of a plan that say it."""

    word: str
    group: str
    text: str
    also: tuple[str, ...] = ()
    key: str | None = None
    options: tuple[str, ...] = ()
    see: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def terms() -> tuple[Term, ...]:
    """All terms, those of one group together."""
    return convert(record(TOP, "glossary")["terms"], tuple[Term, ...])


def groups() -> Mapping[str, str]:
    """The groups and their titles, in their order."""
    titles: Mapping[str, str] = record(TOP, "glossary")["groups"]
    return titles


def find_term(name: str) -> Term | None:
    """The term of this word, or of another word for it; capitals and hyphens do not matter, nor a plural.

    >>> find_term("Fullest GPU").word, find_term("users").word, find_term("KV-cache").word, find_term("nonsense")
    ('fullest GPU', 'user', 'cache', None)
    """
    return _by_name().get(_plain(name)) or _by_name().get(_plain(name).removesuffix("s"))


def meaning_of(symbol: str) -> str | None:
    """What a symbol of a formula means; ``None`` for others, such as the names of figures.

    >>> meaning_of("window"), meaning_of("rate_fp8"), meaning_of("nonsense")
    ('newest tokens that a layer looks at', 'operations per second in fp8, dense, at most', None)
    """
    symbols: Mapping[str, str] = record(TOP, "glossary")["symbols"]
    varied = re.search(r"(?<=_)[a-z]*\d+(?=_|$)", symbol)
    if symbol in symbols or varied is None:
        return symbols.get(symbol)
    pattern = f"{symbol[: varied.start()]}*{symbol[varied.end() :]}"
    return symbols[pattern].replace("*", varied[0]) if pattern in symbols else None


def spellings() -> tuple[str, ...]:
    """All words of all terms, in small letters."""
    return tuple(name.lower() for term in terms() for name in (term.word, *term.also))


@lru_cache(maxsize=1)
def _by_name() -> Mapping[str, Term]:
    return {_plain(name): term for term in terms() for name in (term.word, *term.also)}


def _plain(name: str) -> str:
    return " ".join(name.lower().replace("-", " ").replace("_", " ").split())
