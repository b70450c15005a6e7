"""Dimensions by hand: the memory equation of a model as polynomials in its layers, heads, key/value heads and head_dim.

A weight of a layer is a product such as ``layers x heads x head_dim``, so a few monomials are enough. The polynomials are fitted to the forms
of the model with some other dimensions (``kvplan MODEL --layers ... --heads ... --kv-heads ... --head-dim ...``), number by number; every
further form is a check. A number that is no polynomial in the dimensions is refused with a sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from math import gcd, lcm, prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from hwcalc.engines.forms import ENDS, Early, PartForm
from hwcalc.engines.memory import Section
from hwcalc.errors import KvplanError
from hwcalc.explore.axes import AS_PUBLISHED
from hwcalc.explore.encode import Place, Pools, cell_of, drawn_form, every, grid_of
from hwcalc.explore.runs import usual_request
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.record import Record

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.explore.axes import PageAxes
    from hwcalc.model import ModelSpec

Dimensions: TypeAlias = Mapping[str, int]
Polynomial: TypeAlias = tuple[tuple[int | float, tuple[str, ...]], ...]

DIMENSIONS: Final = ("layers", "heads", "kv_heads", "head_dim")
_OF_A_LAYER: Final[tuple[tuple[str, ...], ...]] = (
    (),
    ("head_dim",),
    ("heads",),
    ("kv_heads",),
    ("heads", "head_dim"),
    ("kv_heads", "head_dim"),
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
_LISTS: Final = {
    ("pass", 1): "count",
    ("pass", 3): "count",
    ("moment", 1): "products",
    ("product", 0): "count",
}
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


def _written(names: tuple[str, ...]) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """A monomial; rows of queries, keys and values together are two of them."""
    if names[:1] != ("qkv",):
        return ((1, names),)
    return (1, ("heads", *names[1:])), (2, ("kv_heads", *names[1:]))


class Fit:
    """Finds polynomials through values at these points. Those out of reach help to find what grows, and need not be met by a constant."""

    def __init__(self, points: Sequence[Dimensions], reached: Sequence[bool]) -> None:
        self._points, self._reached = tuple(points), tuple(reached)
        self._bases = tuple(_Basis(points, names) for names in (_LAYERS, _OF_A_LAYER, _OF_ALL))
        self._widths = tuple(_Basis(points, names) for names in _WIDTHS)
        self._known: dict[tuple[int | float, ...], Any] = {}

    def count(self, values: Sequence[int | float]) -> Any:
        """The polynomial as JSON (``Count`` in ``page/types.d.ts``); raises :class:`Irregular`."""
        key = tuple(values)
        if key not in self._known:
            self._known[key] = self._found(key)
        if self._known[key] is None:
            raise Irregular(f"no polynomial: {key[:3]}")
        return self._known[key]

    def _found(self, values: tuple[int | float, ...]) -> Any:
        within = {value for value, reached in zip(values, self._reached, strict=True) if reached}
        if len(within) == 1:
            return within.pop()
        for basis in self._bases:
            found = basis.through(dict(enumerate(values)))
            if found is not None:
                return _json(found)
        # A constant, as that of an MLP, until something that grows is larger.
        least = min(values)
        larger = {place: value for place, value in enumerate(values) if value > least}
        for basis in self._widths:
            found = basis.through(larger)
            if found is not None and self._largest(least, found) == values:
                return {"max": [[[least, []]], _json(found)]}
        return None

    def _largest(self, least: float, polynomial: Polynomial) -> tuple[int | float, ...]:
        return tuple(max(least, _value(polynomial, point)) for point in self._points)


class _Basis:
    """Monomials with their values at all points."""

    def __init__(self, points: Sequence[Dimensions], names: Sequence[tuple[str, ...]]) -> None:
        fixed = len({point["layers"] for point in points}) == 1
        self._names = [one for one in names if not (fixed and "layers" in one)]
        self._written = [_written(names) for names in self._names]
        self._rows = [[int(_value(written, point)) for written in self._written] for point in points]
        self._solvers: dict[tuple[int, ...], _Solver | None] = {}

    def through(self, values: Mapping[int, int | float]) -> Polynomial | None:
        """The polynomial with these values at these points; ``None`` if there is none, or if they are too few to say."""
        solver = self._solver(tuple(values))
        if solver is None:
            return None
        exact = [int(value) if value == int(value) else Fraction(value) for value in values.values()]
        if any(_sum(row, exact) for row in solver.checks):
            return None
        solved = [Fraction(_sum(row, exact)) / solver.divisor for row in solver.rows]
        found: list[tuple[int | float, tuple[str, ...]]] = []
        for written, coefficient in zip(self._written, solved, strict=True):
            number = int(coefficient) if coefficient.denominator == 1 else float(coefficient)
            if number != coefficient:
                return None
            if number:
                found += [(number * times, names) for times, names in written]
        return tuple(found)

    def _solver(self, places: tuple[int, ...]) -> _Solver | None:
        if places not in self._solvers:
            self._solvers[places] = _solver([self._rows[place] for place in places], len(self._names))
        return self._solvers[places]


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


def _value(polynomial: Polynomial, point: Dimensions) -> int | float:
    return sum(coefficient * prod(point[name] for name in names) for coefficient, names in polynomial)


def _json(polynomial: Polynomial) -> list[Any]:
    return [[coefficient, list(names)] for coefficient, names in polynomial]


def _inside(key: str, place: int) -> str:
    return _LISTS.get((key, place)) or _ROWS.get(key, "")


def merged(trees: Sequence[Any], fit: Fit, key: str = "") -> Any:
    """Forms as one, where numbers that differ are polynomials. Raises :class:`Irregular` if anything else differs."""
    first = trees[0]
    if all(tree == first for tree in trees):
        return first
    if all(isinstance(tree, dict) and tree.keys() == first.keys() for tree in trees):
        return {name: merged([tree[name] for tree in trees], fit, name) for name in first}
    if all(isinstance(tree, list) and len(tree) == len(first) for tree in trees):
        return [merged([tree[place] for tree in trees], fit, _inside(key, place)) for place in range(len(first))]
    if key == "layers":
        # Which layers these are is said for the model's own number of them.
        return first
    if key in _COUNTS and all(isinstance(tree, (int, float)) for tree in trees):
        return fit.count(trees)
    raise Irregular(f"{key}: {first} is not alike")


Changed = Callable[[Dimensions], "ModelSpec"]
"""Makes the model with other dimensions; raises a KvplanError for what it cannot have."""

_HEADS_STEP: Final = 8
_HEAD_DIM_STEP: Final = 32
_MOST: Final = {"layers": 128, "heads": 128, "kv_heads": 64, "head_dim": 256}
_RULE: Final = "By hand, heads must be a multiple of kv_heads, and kv_heads of tp: each rank has whole heads."
_NO_POLYNOMIAL: Final = "By hand the page has no numbers of this: no one formula of the dimensions gives them. Plan it by itself."
_NOT_ITSELF: Final = "By hand the page has numbers only where it has those of the model itself:"
_ONE_GPU: Final = (
    "By hand the page has this engine on one GPU alone: it gives each GPU a run of layers, and these are seldom as many on each."
)
_FEW: Final = 9
"""Forms that are enough for the bytes of a position, which follow from three dimensions, and leave some to check them."""
_NODES: Final = tuple(
    (layers, 8 * eighths, kv_heads, 32 * width)
    for layers, eighths, kv_heads, width in (
        (2, 1, 1, 1), (5, 2, 2, 4), (3, 4, 8, 2), (7, 3, 24, 3), (11, 16, 16, 8), (4, 16, 64, 8), (13, 12, 32, 7), (6, 16, 64, 6),
        (17, 15, 40, 8), (9, 14, 16, 7), (64, 8, 4, 4), (96, 5, 40, 5), (32, 4, 2, 3), (128, 12, 48, 8), (10, 16, 1, 8),
        (31, 8, 64, 8), (12, 24, 192, 8), (3, 32, 128, 8), (8, 32, 256, 7), (2, 48, 384, 8), (5, 36, 288, 8), (21, 40, 320, 8),
    )
)  # fmt: skip
"""Dimensions whose forms are made, spread over the sliders, and beyond them to where attention is wider than any MLP."""


def hand_of(
    model: ModelSpec, changed: Changed | None, axes: PageAxes, pools: Pools, own: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any] | str:
    """The sliders and runs of a model (``Hand`` in ``page/types.d.ts``), or why it has none. ``own`` are its runs as it is, by engine."""
    dimensions = _own(model)
    if isinstance(dimensions, str):
        return dimensions
    if changed is None:
        return "This model was read from where it cannot be read again. Name its file, its id or its folder."
    for free in (DIMENSIONS, DIMENSIONS[1:]):
        try:
            return _hand(_Family(own=dimensions, free=free, changed=changed), axes, pools, own)
        except (KvplanError, Irregular) as error:
            told = error.message if isinstance(error, KvplanError) else _NO_POLYNOMIAL
    return told


def _hand(family: _Family, axes: PageAxes, pools: Pools, own: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    # What the model cannot have is said once, before any form is made.
    for node in family.nodes(1):
        family.at(node)
    engines: dict[str, Any] = {}
    found = False
    for name in axes.engines:
        runs = _Runs(name, family, axes, pools, own[name]).document()
        found = found or "curve" in runs
        engines[name] = runs
    if not found:
        raise Irregular(_NO_POLYNOMIAL)
    return {"dimensions": family.ranges(), "rule": _RULE, "engines": engines}


def _own(model: ModelSpec) -> dict[str, int] | str:
    """The dimensions that all layers with attention have, or why there are none."""
    kinds = [kind for layer in model.stack for kind in layer]
    shapes = {
        (kind.num_attention_heads, kind.num_key_value_heads, kind.head_dim) for kind in kinds if isinstance(kind, AttentionKind)
    }
    if not shapes:
        return "No layer of this model has key/value heads: there is nothing to set by hand."
    if len(shapes) > 1:
        return "Layers of this model differ in their heads: one slider cannot set them all."
    heads, kv_heads, head_dim = shapes.pop()
    return {"layers": len(model.stack), "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}


class _Family(Record):
    """The model with other dimensions. Those that are not ``free`` stay as they are."""

    own: Dimensions
    free: tuple[str, ...]
    changed: Changed

    def ranges(self) -> dict[str, dict[str, int]]:
        """The sliders."""
        steps = {
            "layers": 1,
            "heads": gcd(_HEADS_STEP, self.own["heads"]),
            "kv_heads": 1,
            "head_dim": gcd(_HEAD_DIM_STEP, self.own["head_dim"]),
        }
        return {
            name: {"value": own, "least": steps[name], "most": max(_MOST[name], own), "step": steps[name]}
            if name in self.free
            else {"value": own, "least": own, "most": own, "step": 1}
            for name, own in self.own.items()
        }

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

        The ends of the sliders are among them: a number that counts only from some size on, or only up to one, is seen there.
        """
        drawn = [dict(zip(DIMENSIONS, values, strict=True)) for values in _NODES]
        kept = [{name: value if name in self.free else self.own[name] for name, value in one.items()} for one in drawn]
        return tuple(node for node in (self.own, *self._ends(tp), *kept) if not node["kv_heads"] % tp)

    def _ends(self, tp: int) -> Iterator[dict[str, int]]:
        """The largest and the smallest dimensions with whole heads on each of so many ranks."""
        ranges = self.ranges()
        top = {name: one["most"] for name, one in ranges.items()}
        top["kv_heads"] -= top["kv_heads"] % tp
        if top["kv_heads"]:
            yield {**top, "heads": top["heads"] - top["heads"] % top["kv_heads"]}
        least = {name: one["least"] for name, one in ranges.items()}
        yield {**least, "heads": lcm(least["heads"], tp), "kv_heads": tp}

    def fit(self, tp: int, nodes: Sequence[Dimensions]) -> Fit:
        """What finds polynomials through the values at these nodes, on one of ``tp`` ranks. It is made once."""
        key = (tp, len(nodes))
        if key not in self._fits:
            self._fits[key] = Fit([on_rank(node, tp) for node in nodes], list(map(self.reaches, nodes)))
        return self._fits[key]

    def reaches(self, dimensions: Dimensions) -> bool:
        """Whether the sliders do."""
        return all(dimensions[name] <= one["most"] for name, one in self.ranges().items())


class _Inline(Pools):
    """Writes whole pieces in place of their places."""

    def put(self, pool: str, piece: Any) -> Any:
        return piece


class _Runs:
    """The runs of one engine by hand."""

    def __init__(self, engine: str, family: _Family, axes: PageAxes, pools: Pools, own: Mapping[str, Any]) -> None:
        self._engine, self._family, self._axes, self._pools, self._own = engine, family, axes, pools, own
        self._still: set[int] = set()
        self._irregular: set[tuple[Any, ...]] = set()
        self._opened: dict[Place, Occupancy] = {}
        self._trees: dict[tuple[Place, int], dict[str, Any]] = {}

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
        first: dict[tuple[Any, ...], Place] = {}
        for place in every(sizes):
            refused[place] = self._not_itself(cell_of(own["refused"], place))
            if refused[place] is not None:
                continue
            if self._splits_unevenly(place):
                refused[place] = self._pools.text(_ONE_GPU)
                continue
            cells = [cell_of(grid, place) for grid in (own["curve"], *own["parts"])]
            # Pieces that are the same as the model has them are the same by hand, on as many ranks.
            pieces = list(self._pieces(place, cells, first))
            if len(pieces) < len(cells):
                refused[place] = self._pools.text(_NO_POLYNOMIAL)
                continue
            curves[place], rests[place] = pieces[0], self._rest(place)
            for number, piece in enumerate(pieces[1:]):
                parts[number][place] = piece
        ignored = frozenset(place for place, why in refused.items() if why is not None)
        if len(ignored) == len(refused):
            return {"refused": self._pools.text(_NO_POLYNOMIAL)}
        return {
            "dtypes": own["dtypes"],
            "weights": [AS_PUBLISHED],
            "refused": grid_of(refused, sizes),
            "curve": grid_of(curves, sizes, ignored),
            "rest": grid_of(rests, sizes, ignored),
            "parts": [grid_of(cells, sizes, ignored) for cells in parts],
        }

    def _not_itself(self, why: Any) -> Any:
        """Places of the texts that say why the model has no numbers, said of other dimensions, which might have them."""
        if isinstance(why, list):
            return [self._not_itself(one) for one in why]
        return None if why is None else self._pools.text(f"{_NOT_ITSELF} {self._pools.document()['texts'][why]}")

    def _ranks(self, place: Place) -> int:
        """How many GPUs share each layer."""
        return self._axes.layouts[place[2]].parallel(self._engine).tp

    def _splits_unevenly(self, place: Place) -> bool:
        """Whether each GPU has a run of layers, and their number is free: as many on each is the exception."""
        return "layers" in self._family.free and self._axes.layouts[place[2]].parallel(self._engine).pp > 1

    def _rest(self, place: Place) -> int:
        """What is beside cache and parts, for the lengths from which one rule holds."""
        rest = cell_of(self._own["rest"], place)
        assert rest is not None
        pools = self._pools.document()
        cells = [cell for grid in self._own["parts"] if (cell := cell_of(grid, place)) is not None]
        least = 1 + max((_early_tokens(pools["parts"][cell]) for cell in cells), default=0)
        return rest if least == 1 else self._pools.put("rests", {**pools["rests"][rest], "least_tokens": least})

    def _pieces(self, place: Place, cells: Sequence[int | None], first: dict[tuple[Any, ...], Place]) -> Iterator[int | None]:
        """The places of the curve and of the parts by hand, up to the first that is no polynomial."""
        tp = self._ranks(place)
        for number, cell in enumerate(cells):
            # A curve that is none in one format is none in others, and on other accelerators.
            key = (tp, number, cell) if number else (tp, 0)
            if key in self._irregular:
                return
            try:
                yield None if cell is None else self._piece(first.setdefault((tp, number, cell), place), number, cell)
            except (Irregular, KvplanError):
                self._irregular.add(key)
                return

    def _piece(self, place: Place, number: int, cell: int) -> int:
        """The place of a curve (number 0) or a part by hand. Raises where there is no polynomial."""
        if number in self._still:
            return cell
        return self._part(place, number, cell) if number else self._curve(place)

    def _curve(self, place: Place) -> int:
        try:
            # Other formats have the same numbers of other sizes: a few forms are enough to find them, and to check them.
            curve = self._merged(place, lambda tree: tree["curve"], few=place[0] > 0)
        except Irregular:
            curve = self._merged(place, lambda tree: tree["curve"])
        gpus = [[self._term(term) for term in terms] for terms in curve["gpus"]]
        return self._pools.put("curves", {**curve, "gpus": gpus, "total": [self._term(term) for term in curve["total"]]})

    def _part(self, place: Place, number: int, cell: int) -> int:
        name = dict(_named(self._pools, self._own, place))[number]
        piece = self._merged(place, lambda tree: tree["parts"][name])
        if piece["section"] == Section.OVERHEAD and piece == self._pools.document()["parts"][cell]:
            # What a process takes beside the model is another on each accelerator, and the same for all dimensions.
            self._still.add(number)
        return self._pools.put("parts", self._with_places(piece))

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

    def _merged(self, place: Place, of: Callable[[dict[str, Any]], Any], *, few: bool = False) -> dict[str, Any]:
        """A piece of the form of a place with polynomials in it. Raises :class:`Irregular` if it has none."""
        tp = self._ranks(place)
        nodes = self._family.nodes(tp)[: _FEW if few else None]
        names = {name for _, name in _named(self._pools, self._own, place)}
        trees = [self._tree(place, nodes, number) for number in range(len(nodes))]
        if any(tree["parts"].keys() != names for tree in trees):
            raise Irregular("not the parts of the model itself")
        found: dict[str, Any] = merged(list(map(of, trees)), self._family.fit(tp, nodes))
        return found

    def _tree(self, place: Place, nodes: Sequence[Dimensions], number: int) -> dict[str, Any]:
        """The form of a place with the dimensions of a node, as JSON."""
        if (place, number) not in self._trees:
            if place not in self._opened:
                self._opened[place] = self._open(place, self._family.at(nodes[0]))
            first = self._opened[place]
            opened = first.engine.open(self._family.at(nodes[number]), first.request) if number else first
            self._trees[place, number] = _tree_of(opened)
        return self._trees[place, number]

    def _open(self, place: Place, model: ModelSpec) -> Occupancy:
        dtype, _, layout, gpu = place
        sizes = self._axes.layouts[layout].parallel(self._engine)
        name = None if dtype == 0 else self._own["dtypes"][dtype]
        return usual_request(
            model, self._engine, self._axes, gpu=self._axes.gpus[gpu], dtype=name, tp=sizes.tp, pp=sizes.pp, dp=sizes.dp
        )


def _tree_of(opened: Occupancy) -> dict[str, Any]:
    """The form of a request as JSON, all in one."""
    form = drawn_form(opened)
    if form is None:
        raise Irregular("no form")
    inline = _Inline()
    names = _numbered([str(part.name) for part in form.parts])
    return {
        "curve": inline.curve(form),
        "parts": {name: inline.part(_rule_of(part)) for name, part in zip(names, form.parts, strict=True)},
    }


def _early_tokens(part: Mapping[str, Any]) -> int:
    """At how many lengths, the first ones, an encoded part has other bytes than by its rule."""
    amounts = (part[end] for end in ENDS if end in part)
    return max(len(amount["early"]["first"]) if isinstance(amount, dict) and "early" in amount else 0 for amount in amounts)


def _rule_of(part: PartForm) -> PartForm:
    """The part without what it has at the first lengths: those are none of the page's, and dimensions say whether there are any."""
    return part.by(lambda amount: amount.rule if isinstance(amount, Early) else amount)


def _numbered(names: Sequence[str]) -> list[str]:
    """Each name with how often it was there before."""
    return [f"{name} {names[:place].count(name)}" for place, name in enumerate(names)]


def _named(pools: Pools, own: Mapping[str, Any], place: Place) -> Iterator[tuple[int, str]]:
    """The parts that a place has in the model's own runs: the number of their grid, from 1 on, and their name."""
    cells = [(number, cell_of(grid, place)) for number, grid in enumerate(own["parts"], 1)]
    there = [(number, cell) for number, cell in cells if cell is not None]
    pieces = pools.document()["parts"]
    names = _numbered([pieces[cell]["name"] for _, cell in there])
    return zip((number for number, _ in there), names, strict=True)
