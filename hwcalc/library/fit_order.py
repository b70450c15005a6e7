"""The order of the models that run, and which of them are listed as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from hwcalc.formulas.frozen import replace
from hwcalc.planner.runnables import Runnable
from hwcalc.quantization.published_mixes import PUBLISHED_MIXES
from hwcalc.sources.families import pretrained_of

__all__ = ["OF_A_FAMILY", "alike", "best_of_families", "ordered"]

OF_A_FAMILY: Final = 3
"""As many models of a family as are listed, unless all are asked for."""
_ROOMY: Final = 2
"""A model made for so many times the tokens asked for stands before one that only just reaches them: it is usually the later one."""
_DECENT: Final = frozenset(
    (
        *PUBLISHED_MIXES[: PUBLISHED_MIXES.index("iq4_xs") + 1],
        "mxfp4_moe",
        "bf16",
        "fp16",
        "f16",
        "f32",
        "q4_0",
        "q4_1",
        "q5_0",
        "q5_1",
        "iq4_nl",
        "nvfp4",
        "fp8",
        "int8",
        "awq",
        "gptq",
    )
)
"""Formats of four bits and more. With fewer the answers of a model suffer."""


def ordered(rows: Iterable[Runnable], words: Sequence[str] = ()) -> tuple[Runnable, ...]:
    """The best of each family first, and the families in the order of their best; before all, models with these words in their ids."""
    given = tuple(rows)
    raw = _pretrained(given)
    best = sorted(
        given, key=lambda row: (not all(word in row.id.lower() for word in words), *_rank(row, pretrained=row.id in raw))
    )
    places: dict[str, int] = {}
    for row in best:
        places.setdefault(row.family.lower(), len(places))
    return tuple(sorted(best, key=lambda row: places[row.family.lower()]))


def _pretrained(rows: Iterable[Runnable]) -> frozenset[str]:
    """Ids of the models that have not learnt to follow instructions."""
    families: dict[str, list[str]] = {}
    for row in rows:
        families.setdefault(row.family.lower(), []).extend((row.id, *row.also))
    return frozenset().union(*map(pretrained_of, families.values()))


def _rank(row: Runnable, *, pretrained: bool) -> tuple[bool, bool, bool, bool, bool, int, str, str]:
    """What lies on the GPU whole and surely fits, at four bits and more; then what follows instructions; then what the context asked for does
    not fill; then the largest, then the newest.
    """
    form = row.weights or row.file_type
    decent = form is None or form in _DECENT
    newest = "".join(chr(0x7F - ord(letter)) for letter in row.released or "0")
    return (
        not row.whole,
        not decent,
        row.whole and not row.verdict.certain,
        pretrained,
        row.max_position_embeddings is not None and row.max_position_embeddings < _ROOMY * row.seq,
        -(row.parameters or 0),
        newest,
        row.id,
    )


def alike(rows: Iterable[Runnable]) -> tuple[Runnable, ...]:
    """Models of a family of the same size as one row, which names the others."""
    groups: dict[tuple[object, ...], list[Runnable]] = {}
    for row in rows:
        key = (row.family.lower(), row.weights, row.weights_bytes, row.needed_bytes, row.seq, row.modality, row.stored)
        groups.setdefault((*key, row.id) if row.stored else key, []).append(row)
    return tuple(
        first if not others else replace(first, also=(*first.also, *(name for one in others for name in (one.id, *one.also))))
        for first, *others in groups.values()
    )


def best_of_families(rows: Iterable[Runnable]) -> tuple[Runnable, ...]:
    """The first few of each family."""
    listed: dict[str, int] = {}
    out = []
    for row in rows:
        count = listed[row.family.lower()] = listed.get(row.family.lower(), 0) + 1
        if count <= OF_A_FAMILY:
            out.append(row)
    return tuple(out)
