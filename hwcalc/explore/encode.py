"""The forms of engines as the page reads them: pools of equal pieces, and grids of places in these pools (``page/types.d.ts``)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, product
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.forms import (
    Amount,
    Constant,
    Early,
    Fullest,
    Largest,
    Measured,
    MemoryForm,
    PartForm,
    Pass,
    PerGpu,
    Term,
)
from hwcalc.errors import UnsupportedError
from hwcalc.formulas import KINDS
from hwcalc.formulas.stairs import Stair
from hwcalc.planner.solve import closed_form

LARGEST: Final = 2**53 - 1
"""The largest whole number that JavaScript reads exactly."""

Place = tuple[int, ...]


def drawn_form(opened: Occupancy) -> MemoryForm | None:
    """The form of a request, if it has one that the page can evaluate. It is without its rules for the first lengths, if no answer lies there."""
    form = closed_form(opened)
    if form is None or not form.drawable:
        return None
    least = max((one.before for part in form.parts for one in part.amounts if isinstance(one, Early)), default=1)
    if least == 1:
        return form
    # None does if the most sequences that may run fit at the next length, since all shorter ones fit too; nor if not even one token fits.
    if form.holds(least, form.most_sequences or 1, "low") or form.left(1, 1, "high") < 0:
        return replace(form, parts=tuple(part.by(rule_of) for part in form.parts), least_tokens=least)

    def rule_if_same(amount: Amount) -> Amount:
        return rule_of(amount) if isinstance(amount, Early) and set(amount.first) == {amount.rule.at(1, 1)} else amount

    return replace(form, parts=tuple(part.by(rule_if_same) for part in form.parts))


def rule_of(amount: Amount) -> Amount:
    """The amount without what it is at the first lengths."""
    return amount.rule if isinstance(amount, Early) else amount


def numbered(names: Iterable[str]) -> list[tuple[str, int]]:
    """Each name with how often it was there before.

    >>> numbered(["a", "b", "a"])
    [('a', 0), ('b', 0), ('a', 1)]
    """
    listed = list(names)
    return [(name, listed[:place].count(name)) for place, name in enumerate(listed)]


class Pools:
    """Pieces that many forms have in common. Each is written once, and is known by its place."""

    def __init__(self) -> None:
        pools = ("texts", "shapes", "terms", "curves", "sums", "parts", "rests")
        self.pieces: dict[str, list[Any]] = {name: [] for name in pools}
        self._places: dict[tuple[str, str], int] = {}

    def put(self, pool: str, piece: Any) -> int:
        """The place of a piece that is JSON already. Raises :class:`~hwcalc.errors.UnsupportedError` for a number that is too large."""
        text = piece if isinstance(piece, str) else json.dumps(piece, separators=(",", ":"), allow_nan=False)
        place = self._places.get((pool, text))
        if place is None:
            _check(piece)
            pieces = self.pieces[pool]
            place = self._places[pool, text] = len(pieces)
            pieces.append(piece)
        return place

    def text(self, text: str) -> int:
        """The place of a text."""
        return self.put("texts", text)

    def term(self, term: Term) -> int:
        """The place of layers that grow alike."""
        shape = {
            "kind": self.text(title_of(term.kind)),
            "layers": self.text(term.layers.text),
            **({} if term.unit_tokens == 1 else {"unit_tokens": term.unit_tokens}),
            "stairs": [list(map(_stair, sums)) for sums in term.stairs],
            "rule": self.text(term.rule),
        }
        return self.put("terms", {"shape": self.put("shapes", shape), "count": term.count, "unit_bytes": term.unit_bytes})

    def curve(self, form: MemoryForm) -> int:
        """The place of the cache of a form."""
        curve = form.curve
        piece = {
            "gpus": [[self.term(term) for term in terms] for terms in curve.gpus],
            "total": [self.term(term) for term in curve.total],
        }
        others = {
            "once_bytes": curve.once_bytes,
            "total_once_bytes": curve.total_once_bytes,
            "block_bytes": form.blocks.bytes if form.blocks.bytes != 1 else 0,
            "null_blocks": form.blocks.null,
            "crests": list(form.crests),
        }
        return self.put("curves", piece | {name: value for name, value in others.items() if value})

    def part(self, part: PartForm) -> int:
        """The place of a part of the memory equation."""
        piece = {"name": part.name, "section": str(part.section), "expected": self.amount(part.expected)}
        for end in ("low", "high"):
            amount = self.amount(getattr(part, end))
            if amount != piece["expected"]:
                piece[end] = amount
        return self.put("parts", piece)

    def rest(self, form: MemoryForm) -> int:
        """The place of what a form has beside its cache and parts."""
        piece = {
            "usable": list(form.usable),
            "total_bytes": form.total_bytes,
            "most_sequences": form.most_sequences,
            "limited_by": form.limited_by,
            "refuses_more": form.refuses_more,
            "most_tokens": form.curve.most_tokens,
            "dp": form.dp,
            "least_tokens": form.least_tokens,
            "host": None if form.host is None else {"room": list(form.host.room), "shared": form.host.shared},
        }
        return self.put("rests", piece)

    def amount(self, amount: Amount) -> Any:
        """An amount as JSON."""
        if isinstance(amount, Constant):
            return amount.bytes
        if isinstance(amount, Pass):
            return {"pass": [amount.element_bytes, amount.width, amount.chunk, amount.logits, amount.logit_bytes]}
        if isinstance(amount, Largest):
            return {"largest": [self.term(term) for term in amount.terms]}
        if isinstance(amount, Fullest):
            moments = []
            for one in amount.moments:
                products = [[each.bytes, list(each.factors), list(map(_stair, each.stairs))] for each in one.products]
                moments.append([one.share, self.put("sums", products)])
            return {"fullest": {"chunk": amount.chunk, "up": amount.up, "moments": moments}}
        if isinstance(amount, PerGpu):
            return {"gpus": [[len(list(alike)), one] for one, alike in groupby(map(self.amount, amount.amounts))]}
        assert isinstance(amount, (Early, Measured)), "a form that is drawn"
        rule = self.amount(amount.rule)
        if isinstance(amount, Early):
            return {"early": {"rule": rule, "first": list(amount.first)}}
        return {"measured": {"rule": rule, "chunk": amount.chunk, "readings": [list(reading) for reading in amount.readings]}}


def _stair(stair: Stair) -> list[int | None]:
    return [stair.times, stair.per, stair.add, stair.most]


def _check(piece: Any) -> None:
    """Raise an error for a number that JavaScript would round."""
    if isinstance(piece, int) and abs(piece) > LARGEST:
        raise UnsupportedError(
            f"the page counts to {LARGEST:,}, and this model needs {piece:,}.", hint="Plan it by itself: kvplan MODEL"
        )
    for each in piece.values() if isinstance(piece, Mapping) else piece if isinstance(piece, list) else ():
        _check(each)


def grid_of(cells: Mapping[Place, int | None], sizes: Sequence[int], ignored: frozenset[Place] = frozenset()) -> Any:
    """Cells as nested lists, one level for each axis. Nothing is said of the ``ignored`` places.

    An axis on which nothing depends has one entry, and what is the same further in is written once.

    >>> grid_of({(0, 0): 7, (0, 1): 8, (1, 0): 7, (1, 1): 8}, (2, 2))
    [[7, 8]]
    >>> grid_of({(0, 0): 7, (0, 1): 7, (1, 0): 7, (1, 1): 8}, (2, 2), frozenset({(1, 1)}))
    7
    """
    known = {place: cell for place, cell in cells.items() if place not in ignored}
    kept = list(range(len(sizes)))

    def at(place: Place, axes: Sequence[int]) -> Place:
        return tuple(place[axis] for axis in axes)

    for axis in range(len(sizes)):
        others = [one for one in kept if one != axis]
        fewer: dict[Place, int | None] = {}
        if all(fewer.setdefault(at(place, others), cell) == cell for place, cell in known.items()):
            kept = others
    table = {at(place, kept): cell for place, cell in known.items()}

    def nested(place: Place) -> Any:
        """The lists from one place on."""
        axis = len(place)
        if axis == len(sizes):
            return table.get(at(place, kept))
        entries = [nested((*place, number)) for number in (range(sizes[axis]) if axis in kept else (0,))]
        if any(entry != entries[0] for entry in entries):
            return entries
        return [entries[0]] if isinstance(entries[0], list) else entries[0]

    return nested(())


def title_of(kind: str) -> str:
    """What a kind of layer is called, in the words of all outputs; an engine's own name for it where it has no other."""
    return KINDS[kind].title if kind in KINDS else kind.replace("_", " ")


def cell_of(grid: Any, place: Place) -> int | None:
    """What a grid has at a place.

    >>> cell_of([[7, 8]], (1, 1)), cell_of(7, (1, 1))
    (8, 7)
    """
    for number in place:
        if not isinstance(grid, list):
            break
        grid = grid[0 if len(grid) == 1 else number]
    found: int | None = grid
    return found


def every(sizes: Sequence[int]) -> tuple[Place, ...]:
    """All places of a grid with axes of these sizes, the last one changing fastest."""
    return tuple(product(*map(range, sizes)))
