"""What one engine has for one model on the page: its form for every format, layout and accelerator, as grids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, Final

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.forms import MemoryForm
from hwcalc.errors import KvplanError, UnsupportedError
from hwcalc.explore.axes import AS_PUBLISHED, PageAxes, plan_options
from hwcalc.explore.encode import Place, Pools, drawn_form, every, grid_of
from hwcalc.hardware.named import load_gpu
from hwcalc.model import ModelSpec
from hwcalc.planner.context import open_request

_USUAL_TOKENS: Final = 4096
"""The length of the requests from which forms are made. A form holds at every length."""
_REFUSED: Final = "refused"

Cell = Mapping[Any, int | None]
"""The pieces of one form by name, as places in the pools; of a refused request only why."""


def runs_of(model: ModelSpec, engine: str, axes: PageAxes, pools: Pools) -> dict[str, Any]:
    """The forms as grids (``Runs`` of ``page/types.d.ts``), or why all are refused."""
    try:
        forms = _Forms(model, engine, axes, pools)
    except KvplanError:
        return {_REFUSED: _refusals(model, engine, axes, pools)}
    cells = forms.cells()
    sizes = tuple(map(len, forms.axes))
    ignored = frozenset(place for place, cell in cells.items() if cell.get(_REFUSED) is not None)

    def grid(name: object) -> Any:
        return grid_of(
            {place: cell.get(name) for place, cell in cells.items()}, sizes, frozenset() if name == _REFUSED else ignored
        )

    if len(ignored) == len(cells):
        return {_REFUSED: grid(_REFUSED)}
    names = dict.fromkeys(name for cell in cells.values() for name in cell if isinstance(name, tuple))
    return {
        "dtypes": [forms.default_dtype, *forms.dtypes[1:]],
        "weights": [AS_PUBLISHED, *forms.weights[1:]],
        **{name: grid(name) for name in (_REFUSED, "curve", "rest")},
        "parts": [grid(name) for name in names],
    }


def _refusals(model: ModelSpec, engine: str, axes: PageAxes, pools: Pools) -> Any:
    """Why an engine that takes the model on no GPU refuses it, as a grid: it may be another reason on each of them."""
    sizes = (1, 1, len(axes.layouts), len(axes.gpus))
    found: dict[Place, int | None] = {}
    for place in every(sizes):
        parallel = axes.layouts[place[2]].parallel(engine)
        try:
            opened = usual_request(model, engine, axes, gpu=axes.gpus[place[3]], tp=parallel.tp, pp=parallel.pp, dp=parallel.dp)
            error: KvplanError = UnsupportedError(_unknown(opened))
        except KvplanError as refusal:
            error = refusal
        found[place] = pools.text(sentence(error))
    return grid_of(found, sizes)


def sentence(error: KvplanError) -> str:
    """What an engine says when it refuses, and what it offers instead."""
    return f"{error.message} {error.hint}".strip()


class _Forms:
    """The forms of one model by one engine. Each request is opened once."""

    def __init__(self, model: ModelSpec, engine: str, axes: PageAxes, pools: Pools) -> None:
        self._pools = pools
        self._gpus = tuple(load_gpu(name, []) for name in axes.gpus)
        self._sizes = tuple(layout.parallel(engine) for layout in axes.layouts)
        self._plain = accepted(model, engine, axes)
        self._found: dict[Place, Cell] = {}
        self._joint: dict[Place, Cell] = {}
        self.dtypes: tuple[str | None, ...] = (None,)
        self.weights: tuple[str | None, ...] = (None,)
        self.default_dtype = str(self._plain.dtypes.kv)
        dtypes = (name for name in axes.dtypes_of(engine) if name != self.default_dtype)
        self.dtypes += tuple(name for name in dtypes if self._takes(dtype=name))
        self.weights += tuple(name for name in axes.weights_of(engine, model) if self._takes(weights=name))

    @property
    def axes(self) -> tuple[tuple[object, ...], ...]:
        """Dtype, weights, layout and GPU."""
        return self.dtypes, self.weights, self._sizes, self._gpus

    def cells(self) -> dict[Place, Cell]:
        """The pieces of every form.

        A piece that follows from the dtype or from the weights alone is found with the default of the other; only one that follows from
        both needs each pair. So it is with formats and replicas. That no other piece does is tried for each pair of formats where most and
        least is shared, and if one does, all are made.
        """
        places = every(tuple(map(len, self.axes)))
        cells = {place: self._joined(place) for place in places}
        tried = (self._tried(dtype, weights, cells) for dtype, weights in product(*map(range, map(len, self.axes[:2]))))
        if not all(tried):
            return {place: self._cell(place) for place in places}
        return cells

    def _joined(self, place: Place) -> Cell:
        """The cell of a place from those in which one thing is as usual, or its own where nothing or more matters."""
        if place not in self._joint:
            self._joint[place] = self._from_others(place)
        return self._joint[place]

    def _from_others(self, place: Place) -> Cell:
        dtype, weights, layout, gpu = place
        alone = self._alone(layout)
        if dtype and weights:
            others = (0, 0, layout, gpu), (dtype, 0, layout, gpu), (0, weights, layout, gpu)
        elif (dtype or weights) and alone != layout:
            others = (0, 0, alone, gpu), (dtype, weights, alone, gpu), (0, 0, layout, gpu)
        else:
            return self._cell(place)
        neither, one, other = map(self._joined, others)
        if neither.get(_REFUSED) is not None:
            return self._cell(place)
        joined = {}
        for name in {**neither, **one, **other}:
            usual, by_one, by_other = (cell.get(name) for cell in (neither, one, other))
            if usual not in (by_one, by_other):
                return self._cell(place)
            joined[name] = by_other if by_one == usual else by_one
        return joined

    def _alone(self, layout: int) -> int:
        """The first layout in which a replica is the same: without others, if the page has it."""
        own = self._sizes[layout]
        return next(number for number, sizes in enumerate(self._sizes) if (sizes.tp, sizes.pp) == (own.tp, own.pp))

    def _tried(self, dtype: int, weights: int, cells: Mapping[Place, Cell]) -> bool:
        """Whether joined cells of a pair of formats are what the engine gives, on the first and the last request that it accepts."""
        pair = [
            (place, cell)
            for place, cell in cells.items()
            if place[:2] == (dtype, weights) and place not in self._found and cell.get(_REFUSED) is None
        ]
        return all(_same(cell, self._cell(place)) for place, cell in (pair[:1] + pair[-1:]))

    def _takes(self, **formats: str) -> bool:
        """Whether the engine accepts a format on any of the accelerators."""
        return any(isinstance(self._form(0, gpu, **formats), MemoryForm) for gpu in range(len(self._gpus)))

    def _cell(self, place: Place) -> Cell:
        """The pieces of the form of one place."""
        cell = self._found.get(place)
        if cell is None:
            cell = self._found[place] = self._made(place)
        return cell

    def _made(self, place: Place) -> Cell:
        dtype, weights, layout, gpu = place
        # An engine that splits models by layers has one layout for each number of GPUs.
        same = self._sizes.index(self._sizes[layout])
        if same != layout:
            return self._cell((dtype, weights, same, gpu))
        form = self._form(layout, gpu, dtype=self.dtypes[dtype], weights=self.weights[weights])
        if isinstance(form, KvplanError):
            return {_REFUSED: self._pools.text(sentence(form))}
        pieces: dict[Any, int | None] = {"curve": self._pools.curve(form), "rest": self._pools.rest(form)}
        return pieces | {name: self._pools.part(part) for name, part in zip(_named(form), form.parts, strict=True)}

    def _form(self, layout: int, gpu: int, **formats: str | None) -> MemoryForm | KvplanError:
        given = {name: value for name, value in formats.items() if value is not None}
        sizes = self._sizes[layout]
        try:
            opened = self._plain.changed(gpu=self._gpus[gpu], tp=sizes.tp, pp=sizes.pp, dp=sizes.dp, **given)
            return drawn_form(opened) or UnsupportedError(_unknown(opened))
        except KvplanError as error:
            return error


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


def _same(one: Cell, other: Cell) -> bool:
    """Whether two cells say the same; a piece that one lacks is none."""
    return all(one.get(name) == other.get(name) for name in {**one, **other})


def _unknown(opened: Occupancy) -> str:
    """Why a request that the engine accepts has no form."""
    why = opened.weights.notes if opened.weights.value is None else ()
    return why[0].message if why else f"{opened.engine.label}'s memory of this request follows no rule that the page can draw."


def _named(form: MemoryForm) -> Iterator[tuple[str, int]]:
    """The names of the parts, with a number where two have the same."""
    seen: dict[str, int] = {}
    for part in form.parts:
        yield part.name, seen.setdefault(part.name, 0)
        seen[part.name] += 1
