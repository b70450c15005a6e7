"""The choices that the page offers, and the forms of engines for each of them as the page reads them (``page/types.d.ts``).

Equal pieces of forms are in pools, and what one engine has for one model is a grid of places in these pools.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby, product
from math import prod
from types import MappingProxyType
from typing import Any, Final

from msgspec import field
from msgspec.json import encode
from msgspec.structs import replace

from hwcalc.engines import ENGINES, find_engine, forms
from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.memory import Section
from hwcalc.engines.options import Choices
from hwcalc.engines.setup import ALONE, Parallel, Request
from hwcalc.errors import KvplanError, UnsupportedError
from hwcalc.explore.tables import ABSENT, OF_GPU, OPEN, REFUSED, Cell, Making, Place, Tables, tables_of
from hwcalc.formulas import KINDS
from hwcalc.formulas.record import Record
from hwcalc.formulas.stairs import Stair
from hwcalc.hardware.named import load_gpu
from hwcalc.model import ModelSpec
from hwcalc.planner.context import open_request
from hwcalc.planner.layouts import copies_of, has_experts
from hwcalc.planner.solve import closed_form
from hwcalc.units import GIB

GPUS: Final = ("rtx-4090", "l4", "a100-sxm4-80gb", "h100-sxm5-80gb", "h200-sxm-141gb", "b200-180gb", "mi300x", "apple-m4-max-40c")
"""Accelerators where the user names none: from a desk to a rack, of three makers."""
LEAST_TOKENS: Final = 128
MOST_TOKENS: Final = 1 << 20
AS_PUBLISHED: Final = "as published"
"""The name of the weights as they are, for which a command line has no option."""
_COUNTS: Final = (1, 2, 4, 8)
_BATCHES: Final = tuple(1 << power for power in range(13))
"""Up to 4,096 sequences. An engine that accepts fewer says so in its form."""


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

    def parallel(self, engine: str, *, dealt: bool = False) -> Parallel:
        """The sizes: the other GPUs are replicas, or all hold further layers if the engine splits models by layers.

        ``dealt`` says that replicas share the experts, as in the layouts of :mod:`hwcalc.planner.layouts`.
        """
        if find_engine(engine)[0].facts.splits_layers:
            return Parallel(pp=self.count)
        dp = self.count // (self.tp * self.pp)
        return Parallel(tp=self.tp, pp=self.pp, dp=dp, ep=self.tp * dp if dealt and dp > 1 else 1)


def layouts_of(count: int) -> Iterator[PageLayout]:
    """The layouts of so many GPUs: no more than eight share a layer, and the others are replicas or hold further layers.

    >>> [(layout.tp, layout.pp) for layout in layouts_of(6)]
    [(1, 1), (1, 6), (2, 1), (2, 3), (6, 1)]
    """
    for tp in sorted({*(share for share in _COUNTS if count % share == 0), *([count] if count <= max(_COUNTS) else [])}):
        yield from (PageLayout(count=count, tp=tp, pp=pp) for pp in dict.fromkeys((1, count // tp)))


class PageAxes(Record):
    """What can be chosen on one page, for all its models."""

    gpus: tuple[str, ...] = GPUS
    engines: tuple[str, ...] = field(default_factory=page_engines)
    layouts: tuple[PageLayout, ...] = tuple(layout for count in _COUNTS for layout in layouts_of(count))
    batches: tuple[int, ...] = _BATCHES
    most_tokens: int = MOST_TOKENS
    dtypes: tuple[str, ...] = ()
    """Formats of the cache that the user named."""
    weights: tuple[str, ...] = ()
    """Formats of the weights that the user named."""
    nodes: tuple[tuple[str, int], ...] = ()
    """Accelerators with their numbers, where the user named nodes."""
    fixed: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Options that every state has, parsed."""
    priced: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Options that say what GPUs cost, parsed; those of :data:`~hwcalc.planner.options.PRICED`."""

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
_REST: Final = frozenset({"gpu", "limits", "replicas", "lengths", "host", OPEN})
"""The pieces of a form beside its cache and parts (:meth:`Pools.rest_pieces`)."""


def drawn_form(opened: Occupancy) -> forms.MemoryForm | None:
    """The form of a request, if it has one that the page can evaluate. It is without its rules for the first lengths, if no answer lies there.

    A page has no lengths below :data:`LEAST_TOKENS`, and tells limits below that as none.
    """
    form = closed_form(opened)
    if form is None or not form.drawable:
        return None
    if forms.Early not in form.amount_classes:
        return replace(form, least_tokens=LEAST_TOKENS)
    least = max(one.before for part in form.parts for one in part.amounts if isinstance(one, forms.Early))
    # None does if the most sequences that may run fit at the next length, since all shorter ones fit too; nor if not even one token fits.
    if least <= LEAST_TOKENS or form.holds(least, form.most_sequences or 1, "low") or form.at(1, 1).left("high") < 0:
        return replace(form, parts=tuple(part.by(rule_of) for part in form.parts), least_tokens=max(least, LEAST_TOKENS))

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
        pools = ("texts", "shapes", "terms", "curves", "sums", "parts", "rests", "shares", "weights", "reads", "rates", "classes")
        self.pieces: dict[str, list[Any]] = {name: [] for name in pools}
        self._places: dict[tuple[str, str | bytes], int] = {}
        self._records: dict[Hashable, int] = {}

    def put(self, pool: str, piece: Any) -> int:
        """The place of a piece that is JSON already. Raises :class:`~hwcalc.errors.UnsupportedError` for a number that is too large."""
        text = piece if isinstance(piece, str) else encode(piece)
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

    def _once(self, record: Hashable, make: Callable[[], int]) -> int:
        """The place of a record, which many forms have: it is written as JSON once."""
        place = self._records.get(record)
        if place is None:
            place = self._records[record] = make()
        return place

    def term(self, term: forms.Term) -> int:
        """The place of layers that grow alike."""
        return self._once(term, lambda: self._term(term))

    def _term(self, term: forms.Term) -> int:
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
        return self._once((form.curve, form.blocks, form.crests), lambda: self._curve(form))

    def _curve(self, form: forms.MemoryForm) -> int:
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
        return self._once(part, lambda: self._part(part))

    def _part(self, part: forms.PartForm) -> int:
        piece = {"name": part.name, "section": str(part.section), "expected": self.amount(part.expected)}
        for end in ("low", "high"):
            amount = self.amount(getattr(part, end))
            if amount != piece["expected"]:
                piece[end] = amount
        return self.put("parts", piece)

    def rest(self, pieces: Iterable[Mapping[str, Any]]) -> int:
        """The place of what a form has beside its cache and parts: the pieces of :meth:`rest_pieces`."""
        return self.put("rests", {name: value for piece in pieces for name, value in piece.items()})

    def rest_pieces(self, form: forms.MemoryForm) -> dict[str, dict[str, Any]]:
        """What a form has beside its cache and parts, by what each of it follows from."""
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

    table = np.full(sizes, ABSENT, dtype=np.int64)
    unsaid = np.full(sizes, fill_value=True)
    for place, cell in cells.items():
        table[place] = _NOTHING if cell is None else cell
        unsaid[place] = place in ignored
    return nested_table(table, unsaid, _NOTHING)


_NOTHING: Final = -(2**62)
"""Less than any place, or place of a refusal (below zero)."""


def nested_table(table: Any, ignored: Any, nothing: int = ABSENT) -> Any:
    """As :func:`grid_of`, of an array in which ``nothing`` stands for no place."""
    import numpy as np

    # What is ignored is both more and less than any.
    least, most = _NOTHING - 1, 2**62
    table = np.where(ignored, most, table)
    for axis in range(table.ndim):
        known = table != most
        lowest, highest = table.min(axis, keepdims=True), np.where(known, table, least).max(axis, keepdims=True)
        if (known.any(axis, keepdims=True) <= (lowest == highest)).all():
            table = lowest

    def nested(entries: Any) -> Any:
        """The lists of a part of the table."""
        if not isinstance(entries, list):
            return None if entries in (nothing, most) else entries
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


def all_cells(grid: Any, sizes: Sequence[int]) -> list[Any]:
    """What a grid has at all places of :func:`every`; of an axis that is longer, at the first ones.

    >>> all_cells([[7, 8]], (2, 2)), all_cells([[5], [7, 8]], (1, 2))
    ([7, 8, 7, 8], [5, 5])
    """
    if not isinstance(grid, list) or not sizes:
        return [grid] * prod(sizes)
    size, *inner = sizes
    rows = [all_cells(row, inner) for row in grid[:size]]
    return [cell for row in (rows * size if len(grid) == 1 else rows) for cell in row]


def every(sizes: Sequence[int]) -> tuple[Place, ...]:
    """All places of a grid with axes of these sizes, the last one changing fastest."""
    return tuple(product(*map(range, sizes)))


_USUAL_TOKENS: Final = 4096
"""The length of the requests from which forms are made. A form holds at every length."""


class Requests:
    """The requests of the page for one model and one engine. Each is opened once."""

    def __init__(self, model: ModelSpec, engine: str, axes: PageAxes) -> None:
        self.model, self.engine, self.axes = model, engine, axes
        self._gpus = {name: load_gpu(name, []) for name in axes.gpus}
        self._opened: dict[tuple[Any, ...], Occupancy | KvplanError] = {}

    @cached_property
    def plain(self) -> Occupancy:
        """The request on one GPU that takes it. Raises the error of the first one if none does."""
        first: KvplanError | None = None
        for gpu in self.axes.gpus:
            try:
                return usual_request(self.model, self.engine, self.axes, gpu=gpu)
            except KvplanError as error:
                first = first or error
        raise first or UnsupportedError("the page has no accelerator.")

    @cached_property
    def dealt(self) -> bool:
        """True if replicas share the experts of the model."""
        return self.plain.deployment.traits.deals_experts and has_experts(self.plain.model)

    @property
    def layouts(self) -> list[Parallel]:
        """The sizes of each layout of the page."""
        return [layout.parallel(self.engine, dealt=self.dealt) for layout in self.axes.layouts]

    def request(self, gpu: str, sizes: Parallel = ALONE, **change: Any) -> Request:
        """The request on these GPUs, with other values where they are not ``None``."""
        given = {name: value for name, value in change.items() if value is not None}
        return self.plain.request.changed(gpu=self._gpus[gpu], parallel=sizes, **given)

    def opened(self, gpu: str | None = None, sizes: Parallel = ALONE, **formats: str | None) -> Occupancy | KvplanError:
        """The request, by default on the usual GPU, or why the engine refuses it."""
        gpu = gpu or self.usual_gpu
        key = (gpu, sizes, *sorted((name, value) for name, value in formats.items() if value is not None))
        if key not in self._opened:
            try:
                self._opened[key] = self.of(self.plain.model, self.request(gpu, sizes, **formats))
            except KvplanError as error:
                self._opened[key] = error
        return self._opened[key]

    @property
    def usual_gpu(self) -> str:
        """That of the plain request."""
        usual = self.plain.setup.hardware.gpu
        return next(name for name, gpu in self._gpus.items() if usual is not None and usual.id == gpu.id)

    def of(self, model: ModelSpec, request: Request) -> Occupancy:
        """The occupancy of a model that may differ in its layers. Raises the engine's error."""
        return self.plain.engine.open(model, request)

    @cached_property
    def cache_budget(self) -> int | None:
        """A budget for requests of which the cache alone is wanted: with a given one no weights are counted. ``None`` if these have no form."""
        form = drawn_form(self.of(self.plain.model, self.request(self.usual_gpu, kv_memory=GIB)))
        return None if form is None else GIB


def runs_of(requests: Requests, pools: Pools) -> dict[str, Any]:
    """The forms as grids (``Runs`` of ``page/types.d.ts``), or why all are refused."""
    model, engine, axes = requests.model, requests.engine, requests.axes
    try:
        made = _Forms(requests, pools)
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
        return {REFUSED: grid_of(refusals, sizes)}
    tables = made.tables()
    refused = nested_table(tables.refused, tables.refused < ABSENT)
    ignored = tables.refused != ABSENT
    if ignored.all():
        return {REFUSED: refused}
    parts = {name: table for name, table in tables.pieces.items() if isinstance(name, tuple)}
    return {
        "dtypes": [made.default_dtype, *made.dtypes[1:]],
        "weights": [AS_PUBLISHED, *made.weights[1:]],
        "beyond": beyond_of(made.plain, axes.most_tokens),
        "deals_experts": requests.dealt,
        "copies": {str(tp): copies_of(made.plain, tp) for tp in dict.fromkeys(layout.tp for layout in axes.layouts)},
        REFUSED: refused,
        "curve": nested_table(tables.pieces["curve"], ignored),
        "rest": nested_table(made.rests(tables, ignored), ignored),
        "parts": [nested_table(table, ignored) for table in parts.values()],
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
    """The forms of one model by one engine."""

    def __init__(self, requests: Requests, pools: Pools) -> None:
        model, engine, axes = requests.model, requests.engine, requests.axes
        self._requests, self._pools, self._gpus = requests, pools, axes.gpus
        layouts = requests.layouts
        # An engine that splits models by layers has one layout for each number of GPUs.
        self._sizes = tuple(dict.fromkeys(layouts))
        self._of_layout = list(map(self._sizes.index, layouts))
        self.plain = requests.plain
        self._formed: dict[tuple[Any, ...], forms.MemoryForm | KvplanError] = {}
        self._of_rest: set[tuple[str, int]] = set()
        self._of_gpu: set[Hashable] = set(OF_GPU)
        self._rests: dict[bytes, int] = {}
        self._rest_pieces: list[Any] = []
        self.default_dtype = str(self.plain.dtypes.kv)
        dtypes = (name for name in axes.dtypes_of(engine) if name != self.default_dtype)
        self.dtypes: tuple[str | None, ...] = (None, *(name for name in dtypes if self._takes(dtype=name)))
        weights = axes.weights_of(engine, model)
        self.weights: tuple[str | None, ...] = (None, *(name for name in weights if self._takes(weights=name)))

    def tables(self) -> Tables:
        """The pieces of every form: dtype, weights, layout and GPU."""
        replicas = [(sizes.tp, sizes.pp) for sizes in self._sizes]
        making = Making(
            sizes=(len(self.dtypes), len(self.weights), len(self._sizes), len(self._gpus)),
            usual=self._gpus.index(self._requests.usual_gpu),
            alone=tuple(map(replicas.index, replicas)),
            nowhere=self._nowhere(),
            makers=tuple(load_gpu(name, []).vendor for name in self._gpus),
            of_rest=self._of_rest,
            of_gpu=self._of_gpu,
            make=self._cell,
            remark=self._remark,
        )
        tables = tables_of(making)
        return Tables(
            refused=tables.refused.take(self._of_layout, 2),
            pieces={name: table.take(self._of_layout, 2) for name, table in tables.pieces.items()},
        )

    def rests(self, tables: Tables, ignored: Any) -> Any:
        """The places of what forms have beside their cache and parts."""
        import numpy as np

        rows = list(zip(*(table[~ignored].tolist() for name, table in tables.pieces.items() if name in _REST), strict=True))
        pieces = self._rest_pieces
        places = {row: self._pools.rest(pieces[number] for number in row if number != ABSENT) for row in sorted(set(rows))}
        table = np.full(ignored.shape, ABSENT, dtype=np.int64)
        table[~ignored] = [places[row] for row in rows]
        return table

    def _nowhere(self) -> dict[int, int]:
        """The GPUs on which the engine does not run, whatever the formats and the layout, with why."""
        refused: dict[int, int] = {}
        for number, gpu in enumerate(self._gpus):
            opened = self.plain.engine.unchecked(self.plain.model, self._requests.request(gpu))
            try:
                opened.deployment.accelerator_warnings  # noqa: B018 - refuses an accelerator on which the engine does not run
            except KvplanError as refusal:
                refused[number] = self._pools.text(sentence(refusal))
        return refused

    def _takes(self, **formats: str) -> bool:
        """True if the engine accepts a format on any of the accelerators."""
        return any(not isinstance(self._form(0, gpu, **formats), KvplanError) for gpu in range(len(self._gpus)))

    def _cell(self, place: Place) -> Cell:
        """The pieces of the form of one place."""
        dtype, weights, layout, gpu = place
        formats = {"dtype": self.dtypes[dtype], "weights": self.weights[weights]}
        form = self._form(layout, gpu, **formats)
        if isinstance(form, KvplanError):
            return {REFUSED: self._pools.text(sentence(form))}
        names = numbered(part.name for part in form.parts)
        self._of_rest.update(name for name, part in zip(names, form.parts, strict=True) if part.of_rest)
        # What a process takes beside the model is another on each GPU.
        self._of_gpu.update(name for name, part in zip(names, form.parts, strict=True) if part.section == Section.OVERHEAD)
        rest: dict[Hashable, int] = {name: self._rest(piece) for name, piece in self._pools.rest_pieces(form).items()}
        return {
            "curve": self._pools.curve(form),
            **rest,
            **self._remark(place),
            **{name: self._pools.part(part) for name, part in zip(names, form.parts, strict=True)},
        }

    def _remark(self, place: Place) -> Cell:
        """What sources leave open at one place, or the engine's refusal."""
        dtype, weights, layout, gpu = place
        opened = self._open(layout, gpu, dtype=self.dtypes[dtype], weights=self.weights[weights])
        if isinstance(opened, KvplanError):
            return {REFUSED: self._pools.text(sentence(opened))}
        left_open = [self._pools.text(note.message) for note in opened.hardware_warnings]
        return {OPEN: self._rest({"open": left_open} if left_open else {})}

    def _rest(self, piece: dict[str, Any]) -> int:
        """The number of a piece of what a form has beside its cache and parts."""
        number = self._rests.setdefault(encode(piece), len(self._rests))
        if number == len(self._rest_pieces):
            self._rest_pieces.append(piece)
        return number

    def _open(self, layout: int, gpu: int, **formats: str | None) -> Occupancy | KvplanError:
        """The request of a place, or why the engine refuses it."""
        return self._requests.opened(self._gpus[gpu], self._sizes[layout], **formats)

    def _form(self, layout: int, gpu: int, **formats: str | None) -> forms.MemoryForm | KvplanError:
        """The form of a place, or why the engine refuses it."""
        opened = self._open(layout, gpu, **formats)
        if isinstance(opened, KvplanError):
            return opened
        key = (layout, gpu, *sorted((name, value) for name, value in formats.items() if value is not None))
        if key not in self._formed:
            try:
                form = drawn_form(opened)
                self._formed[key] = _no_form(opened) if form is None else form
            except KvplanError as error:
                self._formed[key] = error
        return self._formed[key]


def usual_request(model: ModelSpec, engine: str, axes: PageAxes, **given: Any) -> Occupancy:
    """A request of the page in its default formats."""
    seq = min(_USUAL_TOKENS, model.max_position_embeddings or _USUAL_TOKENS)
    return open_request(model, seq=seq, **plan_options(engine), **given, **axes.fixed)


def _no_form(opened: Occupancy) -> UnsupportedError:
    """Why a request that the engine accepts has no form."""
    why = opened.weights.notes if opened.weights.value is None else ()
    known = f"{opened.engine.label}'s memory of this request follows no rule that the page can draw."
    return UnsupportedError(why[0].message if why else known)
