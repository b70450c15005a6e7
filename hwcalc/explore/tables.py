"""Tables of what forms are made of, over all choices of the page, from as few forms as tell it.

A form has pieces: its cache, each part of its memory equation, its limits. A piece seldom follows from all four choices (the formats of cache
and weights, the layout and the GPU). So forms are made in which one or two choices are unusual. They say which values of a choice a piece does
not distinguish, and a further form is made only where a piece has values that were not seen together. For each pair of formats one more form is
made and compared with the tables; where it differs, all forms of that pair are made.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import product
from typing import Any, Final, TypeAlias

from hwcalc.formulas.record import Record

Place: TypeAlias = tuple[int, ...]
Cell: TypeAlias = Mapping[Hashable, int]
"""The pieces of one form by name, each as a number; of a refused one only why."""

REFUSED: Final = "refused"
OPEN: Final = "open"
ABSENT: Final = -1
"""The number of a piece that a form does not have."""
OF_GPU: Final = frozenset({"gpu", "host", OPEN})
"""Pieces that hardly two GPUs have in common."""
OF_REPLICAS: Final = frozenset({"replicas", "limits", "host"})
"""Pieces in which their number stands."""

_DTYPE, _WEIGHTS, _LAYOUT, _GPU = range(4)


class Making(Record):
    """The choices, and how a form of them is made. A place has the numbers of the cache's format, the weights' format, the layout and the GPU."""

    sizes: tuple[int, int, int, int]
    usual: int
    """The GPU on which most forms are made."""
    alone: tuple[int, ...]
    """For each layout the first in which a replica is the same."""
    nowhere: Mapping[int, int]
    """GPUs that take nothing of the model, with why."""
    of_rest: AbstractSet[Hashable] = frozenset()
    """Pieces that follow from all others, as far as the forms that were made tell: so from each choice."""
    makers: tuple[str, ...]
    """The maker of each GPU, who has kernels of his own."""
    of_gpu: AbstractSet[Hashable] = OF_GPU
    """Pieces in which GPUs of a maker may differ that have all others in common."""
    make: Callable[[Place], Cell]
    remark: Callable[[Place], Cell]
    """Makes what sources leave open alone, or the refusal."""


class Tables(Record):
    """An array of all places for each piece, and one of the refusals, in which places that are accepted have :data:`ABSENT`."""

    refused: Any
    pieces: dict[Hashable, Any]


def tables_of(making: Making) -> Tables:
    """The tables of all forms."""
    return _Search(making).tables()


class _Search:
    """The forms that were made, and what follows from them."""

    def __init__(self, making: Making) -> None:
        self._making = making
        self._cells: dict[Place, Cell] = {}
        """Whole forms."""
        self._remarks: dict[Place, Cell] = {}
        self._kinds_of_gpus: dict[int, int] = {}
        self._largest = 0
        """A layout of many GPUs, without replicas."""
        self._taken: set[Place] = set()
        """Formats of cache and weights, with the layouts that take them beside an unusual format of the other."""
        self._gpus = [gpu for gpu in range(making.sizes[_GPU]) if gpu not in making.nowhere]
        self._alone = [layout for layout, alone in enumerate(making.alone) if layout == alone]

    def tables(self) -> Tables:
        """Make forms until all is known."""
        import numpy as np

        self._probe()
        refused = self._refusals()
        names = dict.fromkeys(name for _, cell in sorted(self._cells.items()) for name in cell if name != REFUSED)
        pieces = {name: self._table(name, refused) for name in names}
        if not all(self._agree(place, refused, pieces) for place in [*self._cells]):
            # A piece follows from two formats at once in some layouts alone.
            for pair, layout in product(self._formats(), self._alone):
                self._cell((*pair, layout, self._taking(*pair)))
            pieces = {name: self._table(name, refused) for name in names}
        dtypes, stored = self._making.sizes[:2]
        # Both formats are unusual, where there are any others: of these pairs no form was made.
        for dtype, weights in product(range(min(1, dtypes - 1), dtypes), range(min(1, stored - 1), stored)):
            block = refused[dtype, weights][:, self._gpus]
            for there in (block == ABSENT, block != ABSENT):
                alike = [(dtype, weights, int(layout), self._gpus[gpu]) for layout, gpu in np.argwhere(there)]
                place = next((place for place in reversed(alike) if place not in self._cells), None)
                if place is not None and not self._agree(place, refused, pieces):
                    for wrong in alike:
                        self._put(wrong, refused, pieces)
        return Tables(refused=refused, pieces=pieces)

    def _agree(self, place: Place, refused: Any, pieces: Mapping[Hashable, Any]) -> bool:
        """True if the tables have at a place what its form has."""
        cell = self._cell(place)
        if REFUSED in cell or refused[place] != ABSENT:
            return bool(refused[place] == cell.get(REFUSED, ABSENT))
        return cell.keys() <= pieces.keys() and all(table[place] == cell.get(name, ABSENT) for name, table in pieces.items())

    def _put(self, place: Place, refused: Any, pieces: dict[Hashable, Any]) -> None:
        """Write a form into the tables."""
        import numpy as np

        cell = self._cell(place)
        refused[place] = cell.get(REFUSED, ABSENT)
        for name in cell:
            if name != REFUSED and name not in pieces:
                pieces[name] = np.full(self._making.sizes, ABSENT, dtype=np.int64)
        for name, table in pieces.items():
            table[place] = cell.get(name, ABSENT)

    def _cell(self, place: Place) -> Cell:
        if place not in self._cells:
            self._cells[place] = self._making.make(place)
        return self._cells[place]

    def _accepts(self, place: Place) -> bool:
        return REFUSED not in self._cell(place)

    def _probe(self) -> None:
        """Make the forms in which at most two choices are unusual, as far as they can differ."""
        usual, gpus = self._making.usual, self._gpus
        for layout, gpu in (*((layout, usual) for layout in range(self._making.sizes[_LAYOUT])), *((0, gpu) for gpu in gpus)):
            self._cell((0, 0, layout, gpu))
        self._largest = max((layout for layout in self._alone if self._accepts((0, 0, layout, usual))), default=0)
        for gpu in gpus:
            self._cell((0, 0, self._largest, gpu))
        self._kinds_of_gpus = kinds = self._alike()
        for layout, gpu in product(filter(self._differs, range(self._making.sizes[_LAYOUT])), self._telling()):
            self._cell((0, 0, layout, gpu))
        taken = {gpu for gpu in gpus if self._accepts((0, 0, 0, gpu))}
        for dtype, weights in self._formats():
            for gpu in gpus:
                place = (dtype, weights, 0, gpu)
                if kinds[gpu] != gpu:
                    if place not in self._cells:
                        self._remarks[place] = self._making.remark(place)
                elif self._accepts(place) and gpu not in taken:
                    # A GPU on which the usual formats do not run.
                    taken.add(gpu)
                    self._cell((dtype, weights, self._largest, gpu))
            for layout in (0, self._largest):
                self._cell((dtype, weights, layout, self._taking(dtype, weights)))
        for (dtype, weights), layout in product(self._pairs(), self._alone):
            if layout in (0, self._largest):
                continue
            apart = [pair for pair in ((dtype, 0), (0, weights)) if pair != (0, 0)]
            if len(apart) == 2 and self._accepts((dtype, weights, layout, self._taking(dtype, weights))):
                self._taken.update((*pair, layout) for pair in apart)
                continue
            for pair in apart:
                self._cell((*pair, layout, self._taking(*pair)))

    def _differs(self, layout: int) -> bool:
        """True if a replica has anything else in this layout than without others."""
        alone = self._making.alone[layout]
        cell, other = (self._cell((0, 0, number, self._making.usual)) for number in (layout, alone))
        return layout == alone or any(cell.get(name) != other.get(name) for name in {**cell, **other} if name not in OF_REPLICAS)

    def _formats(self) -> Iterator[tuple[int, int]]:
        """The pairs of formats of which one is unusual."""
        dtypes, weights = self._making.sizes[:2]
        yield from ((dtype, 0) for dtype in range(1, dtypes))
        yield from ((0, weight) for weight in range(1, weights))

    def _pairs(self) -> Iterator[tuple[int, int]]:
        """Pairs in which each unusual format of the cache or the weights is, both unusual where there are any."""
        dtypes, weights = (max(1, size - 1) for size in self._making.sizes[:2])
        for number in range(max(dtypes, weights)):
            pair = (1 + number % dtypes, 1 + number % weights)
            yield pair[0] * (self._making.sizes[_DTYPE] > 1), pair[1] * (self._making.sizes[_WEIGHTS] > 1)

    def _alike(self) -> dict[int, int]:
        """For each GPU the first that has the same pieces in the first layout and in a large one, but for its own numbers."""
        first: dict[Any, int] = {}
        kinds = {}
        for gpu in self._gpus:
            cells = [self._cell((0, 0, layout, gpu)) for layout in (0, self._largest)]
            key: Any = (
                self._making.makers[gpu],
                tuple(tuple((name, piece) for name, piece in cell.items() if name not in self._making.of_gpu) for cell in cells),
            )
            # Of a GPU that takes nothing as usual, nothing was seen.
            kinds[gpu] = gpu if REFUSED in cells[0] else first.setdefault(key, gpu)
        return kinds

    def _telling(self) -> list[int]:
        """A few GPUs on which each piece has all the values that it has on any. A piece that is the same in every layout has none to tell."""
        kinds, usual = self._kinds_of_gpus, self._making.usual
        ends = {
            gpu: [self._cell((0, 0, layout, gpu)) for layout in (0, self._largest)] for gpu in sorted({*kinds.values(), usual})
        }
        layouts = [self._cell((0, 0, layout, usual)) for layout in range(self._making.sizes[_LAYOUT])]
        rows = [[cell for cell in cells if REFUSED not in cell] for cells in (layouts, *ends.values())]
        names = dict.fromkeys(name for cells in rows for cell in cells for name in cell if name not in self._making.of_gpu)
        follows = [name for name in names if any(len({cell.get(name) for cell in cells}) > 1 for cells in rows)]
        unseen = {gpu: {(name, *(cell.get(name) for cell in cells)) for name in follows} for gpu, cells in ends.items()}
        chosen = [usual]
        missing = set[Any]().union(*unseen.values()) - unseen[kinds.get(usual, usual)]
        while missing:
            best = max(unseen, key=lambda gpu: (len(unseen[gpu] & missing), -gpu))
            chosen.append(best)
            missing -= unseen[best]
        return chosen

    def _taking(self, dtype: int, weights: int) -> int:
        """The first GPU that takes these formats, the usual one before all others."""
        order = (self._making.usual, *self._gpus)
        apart = {(dtype, 0), (0, weights)} if dtype and weights else {(dtype, weights)}
        taking = (gpu for gpu in order if all(REFUSED not in self._seen((*pair, 0, gpu)) for pair in apart))
        return next(taking, self._making.usual)

    def _seen(self, place: Place) -> Cell:
        """The form of a place, or the remark on it where that was made in its stead."""
        return self._remarks[place] if place in self._remarks else self._cell(place)

    def _refusals(self) -> Any:
        """Why each place is refused: on that GPU, or in that layout, for the sake of either format."""
        import numpy as np

        dtypes, weights = self._making.sizes[:2]
        by_layout = {pair: self._of_layouts(*pair) for pair in ((0, 0), *self._formats())}
        refused = np.full(self._making.sizes, ABSENT, dtype=np.int64)
        for gpu, why in self._making.nowhere.items():
            refused[..., gpu] = why
        answers: dict[frozenset[int], int] = {}
        for dtype, weight in product(range(dtypes), range(weights)):
            pairs = tuple(dict.fromkeys(((dtype, 0), (0, weight)))) if dtype and weight else ((dtype, weight),)
            for gpu in self._gpus:
                there = [self._seen((*pair, 0, gpu)).get(REFUSED) for pair in pairs]
                for layout, reasons in enumerate(zip(*(by_layout[pair] for pair in pairs), strict=True)):
                    whys = frozenset(why for why in (*there, *reasons) if why is not None)
                    if len(whys) > 1 and whys not in answers:
                        # Which of several reasons an engine gives is its order.
                        answers[whys] = self._cell((dtype, weight, layout, gpu)).get(REFUSED, ABSENT)
                    if whys:
                        refused[dtype, weight, layout, gpu] = answers[whys] if len(whys) > 1 else next(iter(whys))
        for place, cell in self._cells.items():
            refused[place] = cell.get(REFUSED, ABSENT)
        return refused

    def _of_layouts(self, dtype: int, weights: int) -> list[int | None]:
        """Why each layout is refused with these formats, on a GPU that takes them."""
        gpu, usual = self._taking(dtype, weights), self._making.usual
        reasons: list[int | None] = []
        for layout, alone in enumerate(self._making.alone):
            why = None if (dtype, weights, alone) in self._taken else self._cell((dtype, weights, alone, gpu)).get(REFUSED)
            without, replicated = (self._cell((0, 0, number, usual)).get(REFUSED) for number in (alone, layout))
            if without != replicated:
                why = replicated
            reasons.append(why)
        return reasons

    def _table(self, name: Hashable, refused: Any) -> Any:
        """The numbers of one piece at all places. Further forms are made of what was not seen together."""
        import numpy as np

        seen = self._seen_of(name)
        values = set(seen.values())
        if len(values) <= 1 and name not in self._making.of_rest:
            return np.full(self._making.sizes, next(iter(values), ABSENT), dtype=np.int64)
        kinds = [self._kinds(name, axis, seen) for axis in range(4)]
        known = {tuple(map(list.__getitem__, kinds, place)): piece for place, piece in sorted(seen.items())}
        firsts = [sorted(set(axis)) for axis in kinds]
        for at in product(*firsts):
            if at in known:
                continue
            known[at] = ABSENT
            for place in product(
                *([number for number, kind in enumerate(axis) if kind == first] for axis, first in zip(kinds, at, strict=True))
            ):
                if refused[place] != ABSENT:
                    continue
                if self._accepts(place):
                    known[at] = self._cell(place).get(name, ABSENT)
                    break
                refused[place] = self._cell(place)[REFUSED]
        table = np.array([known[at] for at in product(*firsts)], dtype=np.int64).reshape([len(axis) for axis in firsts])
        return table[np.ix_(*(np.searchsorted(axis, numbers) for axis, numbers in zip(firsts, kinds, strict=True)))]

    def _kinds(self, name: Hashable, axis: int, seen: Mapping[Place, int]) -> list[int]:
        """For each value of a choice the first with which the piece was the same, wherever both were seen, and was seen to be so."""
        if name in self._making.of_rest:
            others = {each for cell in self._cells.values() for each in cell if isinstance(each, tuple) or each == "gpu"}
            apart = sorted(others - self._making.of_rest, key=str)
            numbered = zip(*(self._kinds(other, axis, self._seen_of(other)) for other in apart), strict=True)
            places: dict[tuple[int, ...], int] = {}
            return [places.setdefault(alike, number) for number, alike in enumerate(numbered)]
        kinds: list[int] = []
        firsts: dict[int, dict[Place, int]] = {}
        # Two GPUs are seen together in a large layout too, where there is more to differ in.
        large = axis == _GPU and self._largest > 0
        for number, row in enumerate(self._rows(name, axis, seen)):
            first = next((first for first, other in firsts.items() if _same(row, other, large=large)), number)
            firsts[first] = {**firsts.get(first, {}), **row}
            kinds.append(first)
        if axis == _GPU:
            for gpu in self._making.nowhere:
                kinds[gpu] = kinds[self._making.usual]
        return kinds

    def _seen_of(self, name: Hashable) -> dict[Place, int]:
        """A piece at the places where its form was made and is not refused."""
        cells = (*self._remarks.items(), *self._cells.items()) if name == OPEN else self._cells.items()
        return {place: cell.get(name, ABSENT) for place, cell in cells if REFUSED not in cell}

    def _rows(self, name: Hashable, axis: int, seen: Mapping[Place, int]) -> list[dict[Place, int]]:
        """For each value of a choice the piece in the forms that were made with it, by the other three choices."""
        rows: list[dict[Place, int]] = [{} for _ in range(self._making.sizes[axis])]
        for place, piece in seen.items():
            rows[place[axis]][place[:axis] + place[axis + 1 :]] = piece
        if axis == _GPU and name not in self._making.of_gpu:
            for gpu, first in self._kinds_of_gpus.items():
                rows[gpu] = {**rows[first], **rows[gpu]}
        if axis == _LAYOUT:
            for layout, alone in enumerate(self._making.alone):
                if _same(rows[layout], rows[alone]):
                    rows[layout] = {**rows[alone], **rows[layout]}
        return rows


def _same(row: Mapping[Place, int], other: Mapping[Place, int], *, large: bool = False) -> bool:
    """True if both were seen somewhere, with ``large`` also in a layout beyond the first, and are the same wherever they were."""
    both = row.keys() & other.keys()
    return (any(at[_LAYOUT] for at in both) if large else bool(both)) and all(row[at] == other[at] for at in both)
