"""The order of the models that run, and which of them are listed as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from hwcalc.library.candidates import Candidate, naming
from hwcalc.library.families import pretrained_of
from hwcalc.quantization.gguf import PUBLISHED_MIXES

if TYPE_CHECKING:
    from hwcalc.planner.runnables import Runnable
    from hwcalc.planner.verdict import Verdict

__all__ = ["OF_A_FAMILY", "Found", "alike", "best_of_families", "ordered"]

OF_A_FAMILY: Final = 3
"""As many models of a family as are listed, unless all are asked for."""
_ROOMY: Final = 2
"""A model made for so many times the tokens asked for stands before one that only just reaches them: it is usually the later one."""
_LAST_FIRST: Final = {letter: 0x7F - letter for letter in range(0x80)}
"""Turns a date into a text that stands the earlier the later it is."""
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


class Found(NamedTuple):
    """A model that runs, by what its place in the list depends on; ``family`` in lower case. ``finish`` works out its row, which takes longer."""

    one: Candidate
    family: str
    also: tuple[str, ...]
    weights: str | None
    file_type: str | None
    seq: int
    parameters: int | None
    max_position_embeddings: int | None
    weights_bytes: int
    needed_bytes: int
    verdict: Verdict
    whole: bool
    finish: Callable[[], Runnable]

    @property
    def id(self) -> str:
        """The id of the model."""
        return self.one.id


def ordered(rows: Iterable[Found], words: Sequence[str] = ()) -> tuple[Found, ...]:
    """The best of each family first, and the families in the order of their best; before all, models with these words in their ids."""
    given = tuple(rows)
    raw = _pretrained(given)
    best = sorted(
        given, key=lambda row: (not all(word in row.id.lower() for word in words), *_rank(row, pretrained=row.id in raw))
    )
    places: dict[str, int] = {}
    for row in best:
        places.setdefault(row.family, len(places))
    return tuple(sorted(best, key=lambda row: places[row.family]))


def _pretrained(rows: Iterable[Found]) -> frozenset[str]:
    """Ids of the models that have not learnt to follow instructions."""
    families: dict[str, list[str]] = {}
    for row in rows:
        families.setdefault(row.family, []).extend((row.id, *row.also))
    return frozenset().union(*(pretrained_of(names, naming) for names in families.values()))


def _rank(row: Found, *, pretrained: bool) -> tuple[bool, bool, bool, bool, bool, int, str, str]:
    """What lies on the GPU whole and surely fits, at four bits and more; then what follows instructions; then what the context asked for does
    not fill; then the largest, then the newest.
    """
    form = row.weights or row.file_type
    decent = form is None or form in _DECENT
    newest = (row.one.released or "0").translate(_LAST_FIRST)
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


def alike(rows: Iterable[Found]) -> tuple[Found, ...]:
    """Models of a family of the same size as one row, which names the others."""
    groups: dict[tuple[object, ...], list[Found]] = {}
    for row in rows:
        key = (row.family, row.weights, row.weights_bytes, row.needed_bytes, row.seq, row.one.modality, row.one.stored)
        groups.setdefault((*key, row.id) if row.one.stored else key, []).append(row)
    return tuple(
        first if not others else first._replace(also=(*first.also, *(name for one in others for name in (one.id, *one.also))))
        for first, *others in groups.values()
    )


def best_of_families(rows: Iterable[Found]) -> tuple[Found, ...]:
    """The first few of each family."""
    listed: dict[str, int] = {}
    out = []
    for row in rows:
        count = listed[row.family] = listed.get(row.family, 0) + 1
        if count <= OF_A_FAMILY:
            out.append(row)
    return tuple(out)
