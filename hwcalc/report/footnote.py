"""What stands below a table of several models: whose numbers follow from a config that is not as published, or is not understood."""

from __future__ import annotations

from collections.abc import Iterable

from hwcalc.report.drawing import PIPED_WIDTH
from hwcalc.report.text import escaped, filled
from hwcalc.text import clean

__all__ = ["DEFINITIONS", "footnotes"]

DEFINITIONS = {
    "exact": "exact: the formulas, nothing that an engine adds",
    "reconstructed": "RECONSTRUCTED: the catalog's config is not a copy of the published file",
    "published": "published: by the rules of a paper, whose code was not run",
    "assumed": "ASSUMED: rests on what the notes say was assumed",
}
"""What a definition of a number means."""
_TOLD = ("reconstructed", "assumed")
_MOST = 5
"""Models that are named; JSON and CSV have the definition of each."""


def footnotes(named: Iterable[tuple[str, str | None]], *, format_: str, width: int = PIPED_WIDTH) -> str:
    """A line for each such definition with the models that have it, from pairs of model and definition; empty if all are as published.

    >>> print(footnotes([("a/b", "reconstructed"), ("a/c", "exact"), ("a/b", "reconstructed")], format_="table"), end="")
    RECONSTRUCTED: the catalog's config is not a copy of the published file (a/b)
    """
    models: dict[str, dict[str, None]] = {definition: {} for definition in _TOLD}
    for model, definition in named:
        if definition in models:
            models[definition][model] = None
    return "".join(_line(DEFINITIONS[definition], list(those), format_, width) for definition, those in models.items() if those)


def _line(meaning: str, models: list[str], format_: str, width: int) -> str:
    more = f" and {len(models) - _MOST:,} more" if len(models) > _MOST else ""
    text = clean(f"{meaning} ({', '.join(models[:_MOST])}{more})")
    if format_ == "markdown":
        return f"{escaped(text)}\n"
    return f"{filled(text, width, subsequent_indent='  ', break_on_hyphens=False, break_long_words=False)}\n"
