"""The choices that the page offers, and the forms of engines for each of them as the page reads them (``page/types.d.ts``).

Equal pieces of forms are in pools, and what one engine has for one model is a grid of places in these pools.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import groupby, product
from types import MappingProxyType
from typing import Any, Final

from msgspec import field
from msgspec.structs import replace

from hwcalc.engines import ENGINES, find_engine, forms
from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.memory import Section
from hwcalc.engines.options import Choices
from hwcalc.engines.setup import Parallel
from hwcalc.errors import KvplanError, UnsupportedError
from hwcalc.formulas import KINDS
from hwcalc.formulas.record import Record
from hwcalc.formulas.stairs import Stair
from hwcalc.hardware.named import load_gpu
from hwcalc.model import ModelSpec
from hwcalc.planner.context import open_request
from hwcalc.planner.layouts import copies_of
from hwcalc.planner.solve import closed_form

GPUS: Final = ("rtx-4090", "l4", "a100-sxm4-80gb", "h100-sxm5-80gb", "h200-sxm-141gb", "b200-180gb", "mi300x", "apple-m4-max-40c")
"""Accelerators where the user names none: from a desk to a rack, of three makers."""
LEAST_TOKENS: Final = 128
MOST_TOKENS: Final = 1 << 20
AS_PUBLISHED: Final = "as published"
"""The name of the weights as they are, for which a command line has no option."""
_COUNTS: Final = (1, 2, 4, 8)
_BATCHES: Final = tuple(1 << power for power in range(9))
"""Up to 256 sequences, which is the most that llama.cpp accepts."""


def page_engines() -> tuple[str, ...]:
    """The engines that offer something to choose, in their usual order."""
    return tuple(name for name in ENGINES if find_engine(name)[0].facts.choices is not None)


def choices_of(engine: str) -> Choices:
    """What an engine offers."""
    return find_engine(engine)[0].facts.choices or Choices()


def plan_options(engine: str) -> dict[str, Any]:
    """The engine, and the engine options that every state of the page has, as keywords of a plan."""
    return {"engine": engine, "engine_options": dict(choices_of(engine).options)}


class PageLayout(Record):
    """So many GPUs, of which ``tp`` share each layer. The others are replicas, or ``pp`` runs of layers follow each other."""

    count: int
    tp: int
    pp: int = 1

    def parallel(self, engine: str) -> Parallel:
        """The sizes: the other GPUs are replicas, or all hold further layers if the engine splits models by layers."""
        if find_engine(engine)[0].facts.splits_layers:
            return Parallel(pp=self.count)
        return Parallel(tp=self.tp, pp=self.pp, dp=self.count // (self.tp * self.pp))


class PageAxes(Record):
    """What can be chosen on one page, for all its models."""

    gpus: tuple[str, ...] = GPUS
    engines: tuple[str, ...] = field(default_factory=page_engines)
    layouts: tuple[PageLayout, ...] = tuple(
        PageLayout(count=count, tp=tp, pp=pp)
        for count in _COUNTS
        for tp in _COUNTS
        if tp <= count
        for pp in dict.fromkeys((1, count // tp))
    )
    batches: tuple[int, ...] = _BATCHES
    most_tokens: int = MOST_TOKENS
    dtypes: tuple[str, ...] = ()
    """Formats of the cache that the user named."""
    weights: tuple[str, ...] = ()
    """Formats of the weights that the user named."""
    fixed: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Options that every state has, parsed."""

    def dtypes_of(self, engine: str) -> tuple[str, ...]:
        """The formats of the cache to try beside the engine's default."""
        return tuple(dict.fromkeys((*self.dtypes, *choices_of(engine).dtypes)))

    def weights_of(self, engine: str, model: ModelSpec) -> tuple[str, ...]:
        """The formats of the weights to try beside the published ones."""
        as_published = model.quantization is None and model.gguf is None and model.dtype in {"bfloat16", "bf16"}
        tried = (name for name in choices_of(engine).weights if not (as_published and name == "bf16"))
        return tuple(dict.fromkeys((*self.weights, *tried)))


LARGEST: Final = 2**53 - 1
"""The largest whole number that JavaScript reads exactly."""

Place = tuple[int, ...]


def drawn_form(opened: Occupancy) -> forms.MemoryForm | None:
    """The form of a request, if it has one that the page can evaluate. It is without its rules for the first lengths, if no answer lies there.

    A page has no lengths below :data:`LEAST_TOKENS`, and tells limits below that as none.
    """
    form = closed_form(opened)
    if form is None or not form.drawable:
        return None
    least = max((one.before for part in form.parts for one in part.amounts if isinstance(one, forms.Early)), default=1)
    if least <= LEAST_TOKENS:
        return replace(form, parts=tuple(part.by(rule_of) for part in form.parts), least_tokens=LEAST_TOKENS)
    # None does if the most sequences that may run fit at the next length, since all shorter ones fit too; nor if not even one token fits.
    if form.holds(least, form.most_sequences or 1, "low") or form.left(1, 1, "high") < 0:
        return replace(form, parts=tuple(part.by(rule_of) for part in form.parts), least_tokens=least)

    def rule_if_same(amount: forms.Amount) -> forms.Amount:
        return rule_of(amount) if isinstance(amount, forms.Early) and set(amount.first) == {amount.rule.at(1, 1)} else amount

    return replace(form, parts=tuple(part.by(rule_if_same) for part in form.parts), least_tokens=LEAST_TOKENS)


def rule_of(amount: forms.Amount) -> forms.Amount:
    """The amount without what it is at the first lengths."""
    return amount.rule if isinstance(amount, forms.Early) else amount


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
        pools = ("texts", "shapes", "terms", "curves", "sums", "parts", "rests", "shares", "reads", "rates")
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

    def term(self, term: forms.Term) -> int:
        """The place of layers that grow alike."""
        shape = {
            "kind": self.text(title_of(term.kind)),
            "layers": self.text(term.layers.text),
            **({} if term.unit_tokens == 1 else {"unit_tokens": term.unit_tokens}),
            "stairs": [list(map(_stair, sums)) for sums in term.stairs],
            "rule": self.text(term.rule),
        }
        return self.put("terms", {"shape": self.put("shapes", shape), "count": term.count, "unit_bytes": term.unit_bytes})

    def curve(self, form: forms.MemoryForm) -> int:
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

    def part(self, part: forms.PartForm) -> int:
        """The place of a part of the memory equation."""
        piece = {"name": part.name, "section": str(part.section), "expected": self.amount(part.expected)}
        for end in ("low", "high"):
            amount = self.amount(getattr(part, end))
            if amount != piece["expected"]:
                piece[end] = amount
        return self.put("parts", piece)

    def rest(self, pieces: Mapping[str, Any]) -> int:
        """The place of what a form has beside its cache and parts: the pieces of :meth:`rest_pieces`."""
        return self.put("rests", {name: value for piece in pieces.values() for name, value in piece.items()})

    def rest_pieces(self, form: forms.MemoryForm, left_open: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
        """What a form has beside its cache and parts, and what sources leave open there, by what each of it follows from."""
        return {
            "gpu": {"usable": list(form.usable), "total_bytes": form.total_bytes},
            "limits": {
                "most_sequences": form.most_sequences,
                "limited_by": form.limited_by,
                "refuses_more": form.refuses_more,
                "most_tokens": form.curve.most_tokens,
            },
            "replicas": {"dp": form.dp},
            "lengths": {"least_tokens": form.least_tokens},
            "host": {"host": None if form.host is None else {"room": list(form.host.room), "shared": form.host.shared}},
            "open": {"open": [self.text(one) for one in left_open]} if left_open else {},
        }

    def amount(self, amount: forms.Amount) -> Any:
        """An amount as JSON."""
        if isinstance(amount, forms.Constant):
            return amount.bytes
        if isinstance(amount, forms.Pass):
            return {"pass": [amount.element_bytes, amount.width, amount.chunk, amount.logits, amount.logit_bytes]}
        if isinstance(amount, forms.Largest):
            return {"largest": [self.term(term) for term in amount.terms]}
        if isinstance(amount, forms.Fullest):
            moments = []
            for one in amount.moments:
                products = [[each.bytes, list(each.factors), list(map(_stair, each.stairs))] for each in one.products]
                moments.append([one.share, self.put("sums", products)])
            return {"fullest": {"chunk": amount.chunk, "up": amount.up, "moments": moments}}
        if isinstance(amount, forms.PerGpu):
            return {"gpus": [[len(list(alike)), one] for one, alike in groupby(map(self.amount, amount.amounts))]}
        assert isinstance(amount, (forms.Early, forms.Measured)), "a form that is drawn"
        rule = self.amount(amount.rule)
        if isinstance(amount, forms.Early):
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
    import numpy as np

    # Nothing is a number too, as any place or a refused one (below zero) is; what is ignored is both more and less than any.
    least, most = -(2**62), 2**62
    table = np.full(sizes, most, dtype=np.int64)
    for place, cell in cells.items():
        if place not in ignored:
            table[place] = least + 1 if cell is None else cell
    for axis in range(len(sizes)):
        known = table != most
        lowest, highest = table.min(axis, keepdims=True), np.where(known, table, least).max(axis, keepdims=True)
        if (known.any(axis, keepdims=True) <= (lowest == highest)).all():
            table = lowest

    def nested(entries: Any) -> Any:
        """The lists of a part of the table."""
        if not isinstance(entries, list):
            return None if entries in (least + 1, most) else entries
        inner = [nested(entry) for entry in entries]
        if any(entry != inner[0] for entry in inner):
            return inner
        return [inner[0]] if isinstance(inner[0], list) else inner[0]

    return nested(table.tolist())


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


_USUAL_TOKENS: Final = 4096
"""The length of the requests from which forms are made. A form holds at every length."""
_REFUSED: Final = "refused"

Cell = Mapping[Any, Any]
"""The pieces of one form by name, as places in the pools, and those of its rest; of a refused request only why."""


def runs_of(model: ModelSpec, engine: str, axes: PageAxes, pools: Pools) -> dict[str, Any]:
    """The forms as grids (``Runs`` of ``page/types.d.ts``), or why all are refused."""
    try:
        made = _Forms(model, engine, axes, pools)
    except KvplanError:
        # An engine that takes the model on no GPU may have another reason on each of them.
        sizes: tuple[int, ...] = (1, 1, len(axes.layouts), len(axes.gpus))
        refusals: dict[Place, int | None] = {}
        for place in every(sizes):
            parallel = axes.layouts[place[2]].parallel(engine)
            try:
                gpu = axes.gpus[place[3]]
                opened = usual_request(model, engine, axes, gpu=gpu, tp=parallel.tp, pp=parallel.pp, dp=parallel.dp)
                refusals[place] = pools.text(sentence(_no_form(opened)))
            except KvplanError as refusal:
                refusals[place] = pools.text(sentence(refusal))
        return {_REFUSED: grid_of(refusals, sizes)}
    cells = made.cells()
    sizes = tuple(map(len, made.axes))
    ignored = frozenset(place for place, cell in cells.items() if cell.get(_REFUSED) is not None)

    def grid(name: object) -> Any:
        there = {place: cell.get(name) for place, cell in cells.items()}
        return grid_of(there, sizes, frozenset() if name == _REFUSED else ignored)

    if len(ignored) == len(cells):
        return {_REFUSED: grid(_REFUSED)}
    names = dict.fromkeys(name for cell in cells.values() for name in cell if isinstance(name, tuple))
    rests = {place: made.rest(cell) for place, cell in cells.items() if place not in ignored}
    return {
        "dtypes": [made.default_dtype, *made.dtypes[1:]],
        "weights": [AS_PUBLISHED, *made.weights[1:]],
        "beyond": beyond_of(made.plain, axes.most_tokens),
        "copies": {str(tp): copies_of(made.plain, tp) for tp in dict.fromkeys(layout.tp for layout in axes.layouts)},
        **{name: grid(name) for name in (_REFUSED, "curve")},
        "rest": grid_of(rests, sizes),
        "parts": [grid(name) for name in names],
    }


def beyond_of(opened: Occupancy, most: int) -> dict[str, Any] | None:
    """Up to how many tokens the engine starts without variables of its environment, and those that it needs beyond; ``None`` if it needs none."""

    def needs(tokens: int) -> tuple[str, ...]:
        return tuple(opened.sized(seq=tokens).reported().environment)

    variables = needs(most)
    if not variables:
        return None
    accepted = bisect_left(range(1, most), 1, key=lambda tokens: int(needs(tokens) == variables))
    return {"tokens": accepted, "variables": " ".join(variables)}


def sentence(error: KvplanError) -> str:
    """What an engine says when it refuses, and what it offers instead."""
    return f"{error.message} {error.hint}".strip()


class _Forms:
    """The forms of one model by one engine. Each request is opened once."""

    def __init__(self, model: ModelSpec, engine: str, axes: PageAxes, pools: Pools) -> None:
        self._pools = pools
        self._gpus = tuple(load_gpu(name, []) for name in axes.gpus)
        self._sizes = tuple(layout.parallel(engine) for layout in axes.layouts)
        self.plain = accepted(model, engine, axes)
        gpu = self.plain.setup.hardware.gpu
        self._usual_gpu = next(number for number, one in enumerate(self._gpus) if gpu is not None and one.id == gpu.id)
        self._found: dict[Place, Cell] = {}
        self._joint: dict[Place, Cell] = {}
        self._together: set[Place] = set()
        self._opened: dict[tuple[Any, ...], tuple[forms.MemoryForm, list[str]] | KvplanError] = {}
        self.default_dtype = str(self.plain.dtypes.kv)
        dtypes = (name for name in axes.dtypes_of(engine) if name != self.default_dtype)
        self.dtypes: tuple[str | None, ...] = (None, *(name for name in dtypes if self._takes(dtype=name)))
        weights = axes.weights_of(engine, model)
        self.weights: tuple[str | None, ...] = (None, *(name for name in weights if self._takes(weights=name)))

    @property
    def axes(self) -> tuple[tuple[object, ...], ...]:
        """Dtype, weights, layout and GPU."""
        return self.dtypes, self.weights, self._sizes, self._gpus

    @cached_property
    def _nowhere(self) -> dict[int, Cell]:
        """The GPUs on which the engine does not run, whatever the formats and the layout, with why."""
        refused: dict[int, Cell] = {}
        for number, gpu in enumerate(self._gpus):
            opened = self.plain.engine.unchecked(self.plain.model, self.plain.request.changed(gpu=gpu))
            try:
                opened.deployment.accelerator_warnings  # noqa: B018 - refuses an accelerator on which the engine does not run
            except KvplanError as refusal:
                refused[number] = {_REFUSED: self._pools.text(sentence(refusal))}
        return refused

    def cells(self) -> dict[Place, Cell]:
        """The pieces of every form.

        Of two things, such as the formats of cache and weights, a piece mostly follows from one: then it is found with the other as usual.
        Only a piece that follows from both needs each pair. So it is with formats and replicas, and with either and the GPU. That no other
        piece does is tried for each format on each GPU, and for each pair of formats where most and least is shared.
        """
        places = every(tuple(map(len, self.axes)))
        formats = [
            *((dtype, 0) for dtype in range(1, len(self.dtypes))),
            *((0, weights) for weights in range(1, len(self.weights))),
        ]
        for pair, gpu in product(formats, range(len(self._gpus))):
            own, joined = self._cell((*pair, 0, gpu)), self._from_others((*pair, 0, gpu))
            if joined is not None and own != joined:
                self._together.add((*pair, gpu))
        cells = {place: self._joined(place) for place in places}
        untried: dict[tuple[Place, bool], list[Place]] = {}
        for place, cell in cells.items():
            if place not in self._found and place[-1] not in self._nowhere:
                untried.setdefault((place[:2], _REFUSED in cell), []).append(place)
        for alike in untried.values():
            # Whether joined cells are what the engine gives, on the first and the last of them.
            if any(self._cell(place) != cells[place] for place in (alike[0], alike[-1])):
                cells |= {place: self._cell(place) for place in alike}
        return cells

    def _joined(self, place: Place) -> Cell:
        """The cell of a place from those in which one thing is as usual, or its own where nothing or more matters."""
        if place not in self._joint:
            self._joint[place] = self._from_others(place) or self._cell(place)
        return self._joint[place]

    def _from_others(self, place: Place) -> Cell | None:
        dtype, weights, layout, gpu = place
        if gpu in self._nowhere:
            return self._nowhere[gpu]
        usual, alone, by_format = self._like[gpu], self._alone[layout], bool(dtype or weights)
        others: list[tuple[Place, Place, Place]] = []
        if dtype and weights:
            refused = [
                cell for cell in map(self._joined, ((dtype, 0, layout, gpu), (0, weights, layout, gpu))) if _REFUSED in cell
            ]
            if refused:
                return refused[0] if len(refused) == 1 else None
            others.append(((0, 0, layout, gpu), (dtype, 0, layout, gpu), (0, weights, layout, gpu)))
        if by_format and alone != layout:
            others.append(((0, 0, alone, gpu), (dtype, weights, alone, gpu), (0, 0, layout, gpu)))
        if by_format and gpu != usual and (dtype, weights, gpu) not in self._together:
            others.append(((0, 0, layout, usual), (dtype, weights, layout, usual), (0, 0, layout, gpu)))
        if not by_format and alone != layout and gpu != usual:
            others.append(((0, 0, alone, usual), (0, 0, layout, usual), (0, 0, alone, gpu)))
        # A format may be refused on one GPU and taken on another, and there only sources may leave it open, whatever the layout.
        corner: Cell = self._cell((dtype, weights, 0, gpu)) if (dtype == 0) != (weights == 0) else {}
        refused_there = _REFUSED in corner and corner != self._joined((0, 0, 0, gpu))
        for three in () if refused_there else others:
            joined = _joined_of(*map(self._joined, three))
            if joined is not None:
                return {**joined, **({"open": corner["open"]} if "open" in corner and _REFUSED not in joined else {})}
        return None

    @cached_property
    def _like(self) -> list[int]:
        """For each GPU the first on which the cache, its limits and the activations are the same; the usual one for that GPU itself."""

        def key(gpu: int) -> list[tuple[Any, Any]]:
            cell = self._nowhere.get(gpu) or self._cell((0, 0, 0, gpu))
            parts = self._pools.pieces["parts"]
            varies = {
                "gpu",
                "open",
                *(name for name in cell if isinstance(name, tuple) and parts[cell[name]]["section"] == Section.OVERHEAD),
            }
            return [(name, piece) for name, piece in cell.items() if name not in varies]

        keys = list(map(key, range(len(self._gpus))))
        order = [self._usual_gpu, *range(len(keys))]
        first = [next(one for one in order if keys[one] == own) for own in keys]
        return [one if one != gpu else self._usual_gpu for gpu, one in enumerate(first)]

    @cached_property
    def _alone(self) -> list[int]:
        """For each layout the first in which a replica is the same: without others, if the page has it."""
        replicas = [(sizes.tp, sizes.pp) for sizes in self._sizes]
        return list(map(replicas.index, replicas))

    def rest(self, cell: Cell) -> int:
        """The place of what a cell has beside its cache and parts."""
        return self._pools.rest({name: piece for name, piece in cell.items() if isinstance(piece, dict)})

    def _takes(self, **formats: str) -> bool:
        """Whether the engine accepts a format on any of the accelerators."""
        return any(not isinstance(self._form(0, gpu, **formats), KvplanError) for gpu in range(len(self._gpus)))

    def _cell(self, place: Place) -> Cell:
        """The pieces of the form of one place."""
        if place not in self._found:
            dtype, weights, layout, gpu = place
            # An engine that splits models by layers has one layout for each number of GPUs.
            same = self._sizes.index(self._sizes[layout])
            if same != layout:
                self._found[place] = self._cell((dtype, weights, same, gpu))
                return self._found[place]
            found = self._form(layout, gpu, dtype=self.dtypes[dtype], weights=self.weights[weights])
            if isinstance(found, KvplanError):
                self._found[place] = {_REFUSED: self._pools.text(sentence(found))}
            else:
                form, left_open = found
                names = numbered(part.name for part in form.parts)
                parts = {name: self._pools.part(part) for name, part in zip(names, form.parts, strict=True)}
                self._found[place] = {"curve": self._pools.curve(form), **self._pools.rest_pieces(form, left_open), **parts}
        return self._found[place]

    def _form(self, layout: int, gpu: int, **formats: str | None) -> tuple[forms.MemoryForm, list[str]] | KvplanError:
        """The form of a place and what sources leave open there, or why the engine refuses it."""
        given = {name: value for name, value in formats.items() if value is not None}
        sizes = self._sizes[layout]
        key = (layout, gpu, *sorted(given.items()))
        if key not in self._opened:
            try:
                opened = self.plain.changed(gpu=self._gpus[gpu], tp=sizes.tp, pp=sizes.pp, dp=sizes.dp, **given)
                form = drawn_form(opened)
                left_open = [note.message for note in opened.hardware_warnings]
                self._opened[key] = _no_form(opened) if form is None else (form, left_open)
            except KvplanError as error:
                self._opened[key] = error
        return self._opened[key]


def _joined_of(neither: Cell, one: Cell, other: Cell) -> Cell | None:
    """The cell in which two things differ from ``neither``, from those in which one of them does; ``None`` if a piece follows from both."""
    if any(_REFUSED in cell for cell in (neither, one, other)):
        return neither if neither == one == other else None
    joined = {}
    for name in {**neither, **one, **other}:
        usually, by_one, by_other = (cell.get(name) for cell in (neither, one, other))
        if usually not in (by_one, by_other):
            return None
        joined[name] = by_other if by_one == usually else by_one
    return {name: piece for name, piece in joined.items() if piece is not None}


def accepted(model: ModelSpec, engine: str, axes: PageAxes) -> Occupancy:
    """The request on one GPU that takes it. Raises the error of the first one if none does."""
    first: KvplanError | None = None
    for gpu in axes.gpus:
        try:
            return usual_request(model, engine, axes, gpu=gpu)
        except KvplanError as error:
            first = first or error
    raise first or UnsupportedError("the page has no accelerator.")


def usual_request(model: ModelSpec, engine: str, axes: PageAxes, **given: Any) -> Occupancy:
    """A request of the page in its default formats."""
    seq = min(_USUAL_TOKENS, model.max_position_embeddings or _USUAL_TOKENS)
    return open_request(model, seq=seq, **plan_options(engine), **given, **axes.fixed)


def _no_form(opened: Occupancy) -> UnsupportedError:
    """Why a request that the engine accepts has no form."""
    why = opened.weights.notes if opened.weights.value is None else ()
    known = f"{opened.engine.label}'s memory of this request follows no rule that the page can draw."
    return UnsupportedError(why[0].message if why else known)
