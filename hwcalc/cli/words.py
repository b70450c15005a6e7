"""``kvplan help WORD``: what a word of kvplan's output means, from the glossary, or what an option does."""

from __future__ import annotations

from typing import Final

from hwcalc.planner.options import OTHER_NAMES, ROWS
from hwcalc.profiles.glossary import find_term, groups, spellings, terms
from hwcalc.report.text import filled

_WIDEST: Final = 100


def explained(name: str, width: int) -> str:
    """What a word or an option means, with the options and JSON keys that belong to it; empty for an unknown one."""
    columns = min(width, _WIDEST)
    option = name.lstrip("-").replace("-", "_")
    option = OTHER_NAMES.get(option, option)
    term = find_term(name)
    if term is None and option not in ROWS:
        return ""
    lines = []
    if term is not None:
        also = f" (also: {', '.join(term.also)})" if term.also else ""
        lines += [f"{term.word}{also}", *(f"  {line}" for line in _wrapped(term.text, columns - 2)), ""]
    for each in dict.fromkeys((*(term.options if term is not None else ()), *((option,) if option in ROWS else ()))):
        row = ROWS[each]
        lines += [
            f"  {', '.join(row.spellings)} {row.metavar}".rstrip(),
            *(f"    {line}" for line in _wrapped(row.help, columns - 4)),
        ]
    if term is not None:
        lines += [f"  in JSON: {term.key}"] if term.key else []
        lines += [filled(f"  see also: {', '.join(term.see)}", columns)] if term.see else []
    return "\n".join(lines).rstrip() + "\n"


def listed(width: int) -> str:
    """All words, group by group."""
    columns = min(width, _WIDEST)
    parts = []
    for group, title in groups().items():
        words = ", ".join(term.word for term in terms() if term.group == group)
        parts.append("\n".join((title, *(f"  {line}" for line in _wrapped(words, columns - 2)))))
    return "\n".join([*parts, "", "What one of them means: kvplan help WORD"]) + "\n"


def word_meant(name: str) -> str:
    """The word that a mistyped one resembles; else empty."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name.lower(), spellings(), n=1, cutoff=0.75)), "")


def _wrapped(text: str, width: int) -> list[str]:
    from textwrap import wrap

    return wrap(text, width, break_long_words=False, break_on_hyphens=False)
