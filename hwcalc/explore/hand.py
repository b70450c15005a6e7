"""Dimensions by hand: the memory equation of a model as polynomials in its layers, heads, key/value heads and head_dim.

A weight of a layer is a product such as ``layers x heads x head_dim``, so a few monomials are enough. The polynomials are fitted to the forms
of the model with some other dimensions (``kvplan MODEL --layers ... --heads ... --kv-heads ... --head-dim ...``), number by number; every
further form is a check. A number that is no polynomial in the dimensions is refused with a sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import cached_property
from math import gcd, lcm, prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from hwcalc.engines.forms import ENDS
from hwcalc.engines.memory import Section
from hwcalc.errors import KvplanError
from hwcalc.explore.runs import AS_PUBLISHED, Pools, all_cells, cell_of, drawn_form, every, grid_of, numbered, rule_of
from hwcalc.explore.tables import Place
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.record import Record

if TYPE_CHECKING:
    from hwcalc.engines.forms import MemoryForm
    from hwcalc.explore.runs import Requests
    from hwcalc.model import ModelSpec

Dimensions: TypeAlias = Mapping[str, int]
Polynomial: TypeAlias = tuple[tuple[int | float, tuple[str, ...]], ...]

DIMENSIONS: Final = ("layers", "heads", "kv_heads", "head_dim")
_OF_A_LAYER: Final[tuple[tuple[str, ...], ...]] = (
    *((), ("head_dim",), ("heads",), ("kv_heads",)),
    *(("heads", "head_dim"), ("kv_heads", "head_dim")),
)
_LAYERS: Final[tuple[tuple[str, ...], ...]] = ((), ("layers",))
_OF_ALL: Final = ((), ("head_dim",), *(("layers", *names) for names in _OF_A_LAYER))
_WIDTHS: Final[tuple[tuple[tuple[str, ...], ...], ...]] = (
    ((), ("qkv", "head_dim")),
    ((), ("kv_heads", "head_dim")),
    ((), ("heads", "head_dim")),
    ((), ("heads", "head_dim"), ("kv_heads", "head_dim")),
    ((), ("heads",), ("heads", "head_dim"), ("kv_heads", "head_dim")),
)
"""What the width of attention may follow from: the fewest that are enough."""
_COUNTS: Final = frozenset({"count", "unit_bytes", "block_bytes", "once_bytes", "total_once_bytes", "low", "expected", "high"})
"""Numbers that may be polynomials (``Count`` in ``page/types.d.ts``), by their name; of a pass it is width and logits."""
_LISTS: Final = {("pass", 1): "count", ("pass", 3): "count", ("moment", 1): "products", ("product", 0): "count"}
"""What stands at a place of a list that is no row of alike things."""
_ROWS: Final = {"moments": "moment", "products": "product", "gpus": "gpus", "total": "total", "parts": "parts"}


class Irregular(Exception):  # noqa: N818 - not an error that anybody sees: it becomes a sentence
    """The forms are not alike, or a number is no such polynomial."""


def on_rank(dimensions: Dimensions, tp: int) -> dict[str, int]:
    """The dimensions as one of ``tp`` ranks has them.

    >>> on_rank({"layers": 2, "heads": 32, "kv_heads": 8, "head_dim": 64}, 8)
    {'layers': 2, 'heads': 4, 'kv_heads': 1, 'head_dim': 64}
    """
    return {**dimensions, "heads": dimensions["heads"] // tp, "kv_heads": dimensions["kv_heads"] // tp}


class Fit:
    """Finds polynomials through values at these points. Those out of reach help to find what grows, and need not be met by a constant."""

    def __init__(self, points: Sequence[Dimensions], reached: Sequence[bool]) -> None:
        self._points, self._reached = tuple(points), tuple(reached)
        self._bases = tuple(_Basis(points, names) for names in (_LAYERS, _OF_A_LAYER, _OF_ALL))
        self._widths = tuple(_Basis(points, names) for names in _WIDTHS)
        self._of_these: dict[tuple[tuple[str, ...], ...], _Basis] = {}
        self._known: dict[tuple[int | float, ...], Any] = {}

    def count(self, values: Sequence[int | float], like: Any = None) -> Any:
        """The polynomial as JSON (``Count`` in ``page/types.d.ts``); raises :class:`Irregular`.

        If ``like`` is a polynomial, it has its monomials, so that fewer points are enough.
        """
        key = tuple(values)
        found: Any
        if isinstance(like, list):
            polynomial = self._with(like).through(dict(enumerate(key)))
            found = None if polynomial is None else _as_json(polynomial)
        elif isinstance(like, dict):
            found = self._within(key) or self._until(key, (self._with(like["max"][1]),))
        else:
            if key not in self._known:
                self._known[key] = self._found(key)
            found = self._known[key]
        if found is None:
            raise Irregular(f"no polynomial: {key[:3]}")
        return found

    def _with(self, like: Sequence[Any]) -> _Basis:
        """The monomials of a polynomial."""
        names = tuple(tuple(monomial) for _, monomial in like)
        if names not in self._of_these:
            self._of_these[names] = _Basis(self._points, names)
        return self._of_these[names]

    def _within(self, values: tuple[int | float, ...]) -> int | float | None:
        """The value at all points that are within reach, if it is the same."""
        within = {value for value, reached in zip(values, self._reached, strict=True) if reached}
        return within.pop() if len(within) == 1 else None

    def _found(self, values: tuple[int | float, ...]) -> Any:
        constant = self._within(values)
        if constant is not None:
            return constant
        for basis in self._bases:
            found = basis.through(dict(enumerate(values)))
            if found is not None:
                return _as_json(found)
        return self._until(values, self._widths)

    def _until(self, values: tuple[int | float, ...], bases: Sequence[_Basis]) -> Any:
        """A constant, as that of an MLP, until a polynomial is larger; ``None`` if that is not so."""
        least = min(values)
        larger = {place: value for place, value in enumerate(values) if value > least}
        for basis in bases:
            found = basis.through(larger)
            if found is not None and all(
                max(least, _value(found, point)) == value for point, value in zip(self._points, values, strict=True)
            ):
                return {"max": [[[least, []]], _as_json(found)]}
        return None


class _Basis:
    """Monomials with their values at all points."""

    def __init__(self, points: Sequence[Dimensions], monomials: Sequence[tuple[str, ...]]) -> None:
        fixed = len({point["layers"] for point in points}) == 1
        self._monomials: list[Polynomial] = []
        for names in monomials:
            if names[:1] == ("qkv",):
                # Rows of queries, keys and values together.
                self._monomials.append(((1, ("heads", *names[1:])), (2, ("kv_heads", *names[1:]))))
            elif not (fixed and "layers" in names):
                self._monomials.append(((1, names),))
        self._rows = [[int(_value(monomial, point)) for monomial in self._monomials] for point in points]
        self._solvers: dict[tuple[int, ...], _Solver | None] = {}

    def through(self, values: Mapping[int, int | float]) -> Polynomial | None:
        """The polynomial with these values at these points; ``None`` if there is none, or if they are too few to say."""
        places = tuple(values)
        if places not in self._solvers:
            self._solvers[places] = _solver([self._rows[place] for place in places], len(self._monomials))
        solver = self._solvers[places]
        if solver is None:
            return None
        exact = [int(value) if value == int(value) else Fraction(value) for value in values.values()]
        if any(_sum(row, exact) for row in solver.checks):
            return None
        found: list[tuple[int | float, tuple[str, ...]]] = []
        for monomial, row in zip(self._monomials, solver.rows, strict=True):
            coefficient = Fraction(_sum(row, exact)) / solver.divisor
            number = int(coefficient) if coefficient.denominator == 1 else float(coefficient)
            if number != coefficient:
                return None
            if number:
                found += [(number * times, names) for times, names in monomial]
        return tuple(found)


class _Solver(NamedTuple):
    """Products of the values with ``rows`` are the coefficients times ``divisor``; those with ``checks`` are nothing if a polynomial fits."""

    rows: list[list[int]]
    checks: list[list[int]]
    divisor: int


def _solver(points: Sequence[Sequence[int]], width: int) -> _Solver | None:
    """Solve for all values at once, in integers; ``None`` if the points are too few or too much alike.

    >>> _solver([[1, 2], [1, 5], [1, 7]], 2)
    _Solver(rows=[[5, -2, 0], [-1, 1, 0]], checks=[[2, -5, 3]], divisor=3)
    """
    size = len(points)
    rows = [[*point, *(int(place == own) for place in range(size))] for own, point in enumerate(points)]
    divisor = 1
    for column in range(width):
        pivot = next((place for place in range(column, size) if rows[place][column]), None)
        if pivot is None:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        head = rows[column]
        times = head[column]
        for place, row in enumerate(rows):
            if place != column:
                share = row[column]
                # Every such quotient is a whole number: it is a determinant.
                rows[place] = [(times * left - share * right) // divisor for left, right in zip(row, head, strict=True)]
        divisor = times
    if size <= width:
        return None
    return _Solver([row[width:] for row in rows[:width]], [row[width:] for row in rows[width:]], divisor)


def _sum(row: Sequence[int], values: Sequence[int | Fraction]) -> int | Fraction:
    return sum(share * value for share, value in zip(row, values, strict=True) if share)


def _as_json(polynomial: Polynomial) -> list[Any]:
    return [[coefficient, list(names)] for coefficient, names in polynomial]


def _value(polynomial: Polynomial, point: Dimensions) -> int | float:
    return sum(coefficient * prod(point[name] for name in names) for coefficient, names in polynomial)


def merged(trees: Sequence[Any], fit: Fit, key: str = "", like: Any = None) -> Any:
    """Forms as one, where numbers that differ are polynomials. Raises :class:`Irregular` if anything else differs.

    ``like`` is such a form: then polynomials have its monomials.
    """
    first = trees[0]
    if all(tree == first for tree in trees):
        return first
    if all(isinstance(tree, dict) and tree.keys() == first.keys() for tree in trees):
        known = like if isinstance(like, dict) else {}
        return {name: merged([tree[name] for tree in trees], fit, name, known.get(name)) for name in first}
    if all(isinstance(tree, list) and len(tree) == len(first) for tree in trees):
        rows = _ROWS.get(key, "")
        likes = like if isinstance(like, list) and len(like) == len(first) else [None] * len(first)
        columns = enumerate(zip(zip(*trees, strict=True), likes, strict=True))
        return [merged(column, fit, _LISTS.get((key, place), rows), known) for place, (column, known) in columns]
    if key == "layers":
        # Which layers these are is said for the model's own number of them.
        return first
    if key in _COUNTS and all(isinstance(tree, (int, float)) for tree in trees):
        return fit.count(trees, like)
    raise Irregular(f"{key}: {first} is not alike")


def _shape(piece: Any) -> Any:
    """A piece without its numbers.

    >>> _shape({"low": [[16, ["heads"]], [2, []]], "high": 7})
    {'low': [[None, ['heads']], [None, []]], 'high': None}
    """
    if isinstance(piece, dict):
        return {name: _shape(value) for name, value in piece.items()}
    return list(map(_shape, piece)) if isinstance(piece, list) else piece if isinstance(piece, str) else None


def _telling(piece: Any) -> int:
    """The number of nodes that tell the polynomials of such a piece and check them: more where the larger of two counts, which few nodes see.

    >>> _telling({"low": [[16, ["heads"]], [2, []]], "high": {"max": [[[9, []]], [[1, ["layers"]], [4, []]]]}})
    6
    """
    if isinstance(piece, dict):
        if piece.keys() == {"max"}:
            return _ALWAYS + sum(map(len, piece["max"]))
        return max(map(_telling, piece.values()), default=0)
    if not isinstance(piece, list):
        return 0
    is_polynomial = bool(piece) and all(isinstance(each, list) and len(each) == 2 and _are_names(each[1]) for each in piece)
    return 1 + len(piece) if is_polynomial else max(map(_telling, piece), default=0)


def _are_names(piece: Any) -> bool:
    return isinstance(piece, list) and all(isinstance(name, str) for name in piece)


Changed = Callable[[Dimensions], "ModelSpec"]
"""Makes the model with other dimensions; raises a KvplanError for what it cannot have."""

_HEADS_STEP: Final = 8
_HEAD_DIM_STEP: Final = 32
_MOST: Final = {"layers": 128, "heads": 128, "kv_heads": 64, "head_dim": 256}
_RULE: Final = "By hand, heads must be a multiple of kv_heads, and kv_heads of tp: each rank has whole heads."
_NO_POLYNOMIAL: Final = "By hand the page has no numbers of this: no one formula of the dimensions gives them. Plan it by itself."
_NOT_ITSELF: Final = "By hand the page has numbers only where it has those of the model itself:"
_ONE_GPU: Final = "By hand the page has no runs of layers on several GPUs: they are seldom as many on each."
_ALWAYS: Final = 3
"""Nodes that stand first: the model itself and the ends of the sliders. A polynomial of which the monomials are known is found of these, and of
as many of the next nodes as it has further numbers."""
_MOSTLY: Final = 12
"""Nodes that tell and check most polynomials: the longest has 8 numbers. Where they tell none, all are looked at."""
_NODES: Final = tuple(
    (layers, 8 * eighths, kv_heads, 32 * width)
    for layers, eighths, kv_heads, width in (
        (12, 24, 192, 8), (8, 32, 256, 7), (128, 12, 48, 8), (2, 48, 384, 8), (31, 8, 64, 8), (2, 1, 1, 1), (5, 2, 2, 4), (3, 4, 8, 2),
        (7, 3, 24, 3), (17, 15, 40, 8), (9, 14, 16, 7), (96, 5, 40, 5), (32, 4, 2, 3), (10, 16, 1, 8), (5, 36, 288, 8), (21, 40, 320, 8),
    )
)  # fmt: skip
"""Dimensions whose forms are made, spread over the sliders, and beyond them to where attention is wider than any MLP, which stand first."""


def hand_of(
    model: ModelSpec,
    changed: Changed | None,
    requests: Mapping[str, Requests],
    pools: Pools,
    own: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any] | str:
    """The sliders and runs of a model (``Hand`` in ``page/types.d.ts``), or why it has none. ``own`` are its runs as it is, by engine."""
    kinds = [kind for layer in model.stack for kind in layer if isinstance(kind, AttentionKind)]
    shapes = {(kind.num_attention_heads, kind.num_key_value_heads, kind.head_dim) for kind in kinds}
    if not shapes:
        return "No layer of this model has key/value heads: there is nothing to set by hand."
    if len(shapes) > 1:
        return "Layers of this model differ in their heads: one slider cannot set them all."
    if changed is None:
        return "This model was read from where it cannot be read again. Name its file, its id or its folder."
    dimensions = dict(zip(DIMENSIONS, (len(model.stack), *shapes.pop()), strict=True))
    for free in (DIMENSIONS, DIMENSIONS[1:]):
        family = _Family(own=dimensions, free=free, changed=changed)
        try:
            # What the model cannot have is said once, before any form is made.
            for node in family.nodes(1):
                family.at(node)
            engines = {name: _Runs(each, family, pools, own[name]).document() for name, each in requests.items()}
        except KvplanError as error:
            told = error.message
            continue
        if any("curve" in runs for runs in engines.values()):
            return {"dimensions": family.ranges, "rule": _RULE, "engines": engines}
        told = _NO_POLYNOMIAL
    return told


class _Family(Record):
    """The model with other dimensions. Those that are not ``free`` stay as they are."""

    own: Dimensions
    free: tuple[str, ...]
    changed: Changed

    @cached_property
    def ranges(self) -> dict[str, dict[str, int]]:
        """The sliders."""
        steps = {"layers": 1, "heads": _HEADS_STEP, "kv_heads": 1, "head_dim": _HEAD_DIM_STEP}
        ranges = {name: {"value": own, "least": own, "most": own, "step": 1} for name, own in self.own.items()}
        for name in self.free:
            own = self.own[name]
            step = gcd(steps[name], own)
            ranges[name] = {"value": own, "least": step, "most": max(_MOST[name], own), "step": step}
        return ranges

    @cached_property
    def _models(self) -> dict[tuple[int, ...], ModelSpec]:
        """Those that were made."""
        return {}

    @cached_property
    def _fits(self) -> dict[tuple[int, int], Fit]:
        return {}

    def at(self, dimensions: Dimensions) -> ModelSpec:
        """The model with these dimensions, which is made once."""
        key = tuple(dimensions[name] for name in DIMENSIONS)
        if key not in self._models:
            self._models[key] = self.changed(dimensions)
        return self._models[key]

    def nodes(self, tp: int) -> tuple[Dimensions, ...]:
        """Dimensions whose forms are made for so many ranks, the model's own first where they go with them.

        The ends of the sliders, with whole heads on each rank, are among them: a number that counts only from some size on, or only up to
        one, is seen there.
        """
        top = {name: one["most"] for name, one in self.ranges.items()}
        least = {name: one["least"] for name, one in self.ranges.items()}
        top["kv_heads"] -= top["kv_heads"] % tp
        ends = [{**least, "heads": lcm(least["heads"], tp), "kv_heads": tp}]
        if top["kv_heads"]:
            ends.insert(0, {**top, "heads": top["heads"] - top["heads"] % top["kv_heads"]})
        drawn = [dict(zip(DIMENSIONS, values, strict=True)) for values in _NODES]
        kept = [{**self.own, **{name: one[name] for name in self.free}} for one in drawn]
        return tuple(node for node in (self.own, *ends, *kept) if not node["kv_heads"] % tp)

    def fit(self, tp: int, nodes: Sequence[Dimensions]) -> Fit:
        """What finds polynomials through the values at these nodes, on one of ``tp`` ranks. It is made once."""
        key = (tp, len(nodes))
        if key not in self._fits:
            reached = [all(node[name] <= one["most"] for name, one in self.ranges.items()) for node in nodes]
            self._fits[key] = Fit([on_rank(node, tp) for node in nodes], reached)
        return self._fits[key]


class _Inline(Pools):
    """Writes whole pieces in place of their places."""

    def put(self, pool: str, piece: Any) -> Any:
        return piece


class _Runs:
    """The runs of one engine by hand."""

    def __init__(self, requests: Requests, family: _Family, pools: Pools, own: Mapping[str, Any]) -> None:
        self._requests, self._axes, self._family, self._pools, self._own = requests, requests.axes, family, pools, own
        self._still: set[int] = set()
        self._irregular: set[tuple[Any, ...]] = set()
        self._forms: dict[tuple[Any, ...], MemoryForm | None] = {}
        self._trees: dict[tuple[Any, ...], Any] = {}
        self._whole: set[Place] = set()
        """The places that give parts too that may follow from dimensions: there whole forms are made."""
        self._made: dict[tuple[Place, int], int] = {}
        self._named: dict[Place, dict[int, tuple[str, int]]] = {}
        self._known: dict[int, list[Any]] = {}
        """Of each piece those that were made of all forms, after one of the model itself."""
        self._sizes = requests.layouts
        """How the GPUs of a layout share the model."""

    def document(self) -> dict[str, Any]:
        """The runs, of weights as published; refused where there is no polynomial anywhere."""
        own = self._own
        if "curve" not in own:
            return {"refused": self._not_itself(own["refused"])}
        sizes = (len(own["dtypes"]), 1, len(self._axes.layouts), len(self._axes.gpus))
        refused: dict[Place, int | None] = {}
        curves: dict[Place, int | None] = {}
        rests: dict[Place, int | None] = {}
        parts: list[dict[Place, int | None]] = [{} for _ in own["parts"]]
        cells_at: dict[Place, list[int | None]] = {}
        columns = [all_cells(grid, sizes) for grid in (own["refused"], own["curve"], *own["parts"])]
        for place, why, *cells in zip(every(sizes), *columns, strict=True):
            refused[place] = self._not_itself(why)
            if refused[place] is not None:
                continue
            if self._sizes[place[2]].pp > 1:
                # Each GPU has a run of layers, and their number is free: as many on each is the exception.
                refused[place] = self._pools.text(_ONE_GPU)
                continue
            cells_at[place] = cells
        first = self._firsts(cells_at)
        self._whole = {place for (_, number, cell), place in first.items() if number and not self._is_overhead(cell)}
        for place, cells in cells_at.items():
            pieces = list(self._pieces(place, cells, first))
            if len(pieces) < len(cells):
                refused[place] = self._pools.text(_NO_POLYNOMIAL)
                continue
            curves[place], rests[place] = pieces[0], self._rest(place, cells[1:])
            for number, piece in enumerate(pieces[1:]):
                parts[number][place] = piece
        ignored = frozenset(place for place, why in refused.items() if why is not None)
        if len(ignored) == len(refused):
            return {"refused": self._pools.text(_NO_POLYNOMIAL)}
        return {
            "dtypes": own["dtypes"],
            "weights": [AS_PUBLISHED],
            "deals_experts": own["deals_experts"],
            "refused": grid_of(refused, sizes),
            "curve": grid_of(curves, sizes, ignored),
            "rest": grid_of(rests, sizes, ignored),
            "parts": [grid_of(cells, sizes, ignored) for cells in parts],
        }

    def _not_itself(self, why: Any) -> Any:
        """Places of the texts that say why the model has no numbers, said of other dimensions, which might have them."""
        if isinstance(why, list):
            return [self._not_itself(one) for one in why]
        return None if why is None else self._pools.text(f"{_NOT_ITSELF} {self._pools.pieces['texts'][why]}")

    def _firsts(self, cells_at: Mapping[Place, Sequence[int | None]]) -> dict[tuple[int, int, int | None], Place]:
        """Few places that have every piece, by the ranks, the number of the piece and its place in the pool.

        Pieces that are the same as the model has them are the same by hand, on as many ranks: each is made of the forms of one place.
        """
        rows: dict[tuple[int | None, ...], Place] = {}
        for place, cells in cells_at.items():
            rows.setdefault((self._sizes[place[2]].tp, *cells), place)
        alike = {
            frozenset((self._sizes[place[2]].tp, number, cell) for number, cell in enumerate(cells_at[place])): place
            for place in rows.values()
        }
        first: dict[tuple[int, int, int | None], Place] = {}
        while alike:
            best = max(alike, key=lambda pieces: len(pieces - first.keys()))
            for piece in best:
                first.setdefault(piece, alike[best])
            alike = {pieces: place for pieces, place in alike.items() if pieces - first.keys()}
        return first

    def _rest(self, place: Place, parts: Sequence[int | None]) -> int:
        """What is beside cache and parts, for the lengths from which one rule holds."""
        rest = cell_of(self._own["rest"], place)
        assert rest is not None
        pieces = self._pools.pieces
        # Of the first lengths an encoded part may have other bytes than by its rule.
        amounts = [
            pieces["parts"][part][end] for part in parts if part is not None for end in ENDS if end in pieces["parts"][part]
        ]
        early = [len(amount["early"]["first"]) for amount in amounts if isinstance(amount, dict) and "early" in amount]
        return self._pools.put("rests", {**pieces["rests"][rest], "least_tokens": 1 + max(early)}) if any(early) else rest

    def _pieces(
        self, place: Place, cells: Sequence[int | None], first: Mapping[tuple[int, int, int | None], Place]
    ) -> Iterator[int | None]:
        """The places of the curve and of the parts by hand, up to the first that is no polynomial."""
        tp = self._sizes[place[2]].tp
        for number, cell in enumerate(cells):
            # A curve that is none in one format is none in others, and on other accelerators; nor on more ranks, if it is none on one.
            key = (tp, number, cell) if number else (tp, 0)
            if key in self._irregular or (1, 0) in self._irregular:
                return
            try:
                if cell is None or number in self._still:
                    yield cell
                else:
                    known = first[tp, number, cell]
                    if (known, number) not in self._made:
                        self._made[known, number] = self._part(known, number, cell) if number else self._curve(known)
                    yield self._made[known, number]
            except (Irregular, KvplanError):
                self._irregular.add(key)
                return

    def _curve(self, place: Place) -> int:
        curve = self._merged(place, 0)
        gpus = [[self._term(term) for term in terms] for terms in curve["gpus"]]
        return self._pools.put("curves", {**curve, "gpus": gpus, "total": [self._term(term) for term in curve["total"]]})

    def _part(self, place: Place, number: int, cell: int) -> int:
        name, own = self._names(place)[number], self._pools.pieces["parts"][cell]
        # What is the same with the model's own dimensions and at both ends of the sliders is the same between them.
        self._known.setdefault(number, [own])
        piece = self._merged(place, number, name)
        if self._is_overhead(cell) and piece == own:
            # What a process takes beside the model is another on each accelerator, and the same for all dimensions.
            self._still.add(number)
        return self._pools.put("parts", self._with_places(piece))

    def _is_overhead(self, cell: int | None) -> bool:
        """True for a part that a process takes beside the model, or one that is not there."""
        return cell is None or self._pools.pieces["parts"][cell]["section"] == Section.OVERHEAD

    def _names(self, place: Place) -> dict[int, tuple[str, int]]:
        """The parts that a place has in the model's own runs: the number of their grid, from 1 on, and their name."""
        if place in self._named:
            return self._named[place]
        cells = {number: cell_of(grid, place) for number, grid in enumerate(self._own["parts"], 1)}
        there = {number: self._pools.pieces["parts"][cell]["name"] for number, cell in cells.items() if cell is not None}
        self._named[place] = dict(zip(there, numbered(there.values()), strict=True))
        return self._named[place]

    def _term(self, term: Mapping[str, Any]) -> int:
        shape = {**term["shape"], **{name: self._pools.text(term["shape"][name]) for name in ("kind", "layers", "rule")}}
        return self._pools.put("terms", {**term, "shape": self._pools.put("shapes", shape)})

    def _with_places(self, piece: Any) -> Any:
        """A piece with places for the terms and sums in it."""
        if isinstance(piece, list):
            return [self._with_places(one) for one in piece]
        if isinstance(piece, dict) and "moments" in piece:
            moments = [[share, self._pools.put("sums", products)] for share, products in piece["moments"]]
            return {**piece, "moments": moments}
        if isinstance(piece, dict):
            return self._term(piece) if "shape" in piece else {name: self._with_places(one) for name, one in piece.items()}
        return piece

    def _merged(self, place: Place, number: int, part: tuple[str, int] | None = None) -> dict[str, Any]:
        """A part of the form of a place, or its curve, with polynomials in it. Raises :class:`Irregular` if it has none.

        In other formats, on other GPUs and on more ranks a piece mostly has the same polynomials with other numbers: if a few forms give
        these, the others are not made.
        """
        known = self._known.setdefault(number, [])
        for like in known:
            with suppress(Irregular):
                piece = self._merged_of(place, part, max(_ALWAYS, _telling(like)), like)
                if _shape(piece) == _shape(like):
                    return piece
        try:
            piece = self._merged_of(place, part, _MOSTLY)
        except Irregular:
            piece = self._merged_of(place, part)
        known.append(piece)
        return piece

    def _merged_of(self, place: Place, part: tuple[str, int] | None, most: int | None = None, like: Any = None) -> dict[str, Any]:
        """As :meth:`_merged`, of the first ``most`` forms, or of all; with the monomials of ``like`` if it is given."""
        tp = self._sizes[place[2]].tp
        nodes = self._family.nodes(tp)[:most]
        trees = [self._piece(place, node, part) for node in nodes]
        merged_piece: dict[str, Any] = merged(trees, self._family.fit(tp, nodes), like=like)
        return merged_piece

    def _piece(self, place: Place, dimensions: Dimensions, part: tuple[str, int] | None) -> Any:
        """The curve or a part of the form of a place with these dimensions, as JSON, all in one."""
        key = (place, *dimensions.values(), part)
        if key not in self._trees:
            self._trees[key] = self._tree(place, dimensions, part)
        return self._trees[key]

    def _tree(self, place: Place, dimensions: Dimensions, part: tuple[str, int] | None) -> Any:
        inline = _Inline()
        if part is None:
            budget = None if place in self._whole else self._requests.cache_budget
            return inline.curve(self._form(place, dimensions, budget))
        form = self._form(place, dimensions)
        parts = dict(zip(numbered(one.name for one in form.parts), form.parts, strict=True))
        if parts.keys() != set(self._names(place).values()):
            raise Irregular("not the parts of the model itself")
        # Dimensions say whether there are first lengths with other bytes: those are none of the page's.
        return inline.part(parts[part].by(rule_of))

    def _form(self, place: Place, dimensions: Dimensions, budget: int | None = None) -> MemoryForm:
        """The form of a place with these dimensions. Raises :class:`Irregular` if there is none."""
        key = (place, *dimensions.values(), budget)
        if key not in self._forms:
            dtype, _, layout, gpu = place
            named = self._own["dtypes"][dtype] if dtype else None
            request = self._requests.request(self._axes.gpus[gpu], self._sizes[layout], dtype=named, kv_memory=budget)
            self._forms[key] = drawn_form(self._requests.of(self._family.at(dimensions), request))
        form = self._forms[key]
        if form is None:
            raise Irregular("no form")
        return form
