"""Numbers of a picture: every point is one of a plan. Nothing here draws.

Numbers on the axes of a picture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple

from hwcalc.engines.deployment import Occupancy
from hwcalc.errors import KvplanError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.hardware.prices import money
from hwcalc.library.compare import Comparison, Variant
from hwcalc.library.layer_bytes import LayerBytes, layer_bytes
from hwcalc.model import ModelSpec
from hwcalc.planner import solve
from hwcalc.planner.context import open_request
from hwcalc.planner.plan import plan_opened
from hwcalc.planner.result import Plan
from hwcalc.planner.speed_result import CostInfo, rented_words
from hwcalc.planner.values import TYPES
from hwcalc.planner.verdict import Verdict, layout_text
from hwcalc.units import human_bytes

_LEAST: Final = 32
"""Tokens at the left edge."""
_STEPS: Final = 8
"""Points for each doubling of the length, on a logarithmic axis."""
_PARTS: Final = 96
"""Equal distances between points, on a linear axis."""
_LONGEST: Final = 1 << 20
"""Tokens at the right edge for models without a maximum of their own."""


class Level(NamedTuple):
    """A horizontal line: the memory of a GPU."""

    label: str
    bytes: int


class Mark(NamedTuple):
    """A point that is named."""

    label: str
    x: int
    y: int


class Area(Record):
    """A part of what a line shows, such as the weights: its bytes at each length of the line."""

    label: str
    ys: tuple[int, ...]


class Line(Record):
    """Values over sequence lengths. ``low`` and ``high`` are the ends of an estimate; ``areas`` are the parts of ``ys``, the lowest first."""

    label: str
    xs: tuple[int, ...]
    ys: tuple[int, ...]
    low: tuple[int, ...] = ()
    high: tuple[int, ...] = ()
    areas: tuple[Area, ...] = ()
    mark: Mark | None = None


class Profile(Record):
    """The cache of each layer of one model, for all planned sequences. ``total_bytes`` is the whole cache, with what lies beside the layers."""

    label: str
    layers: tuple[LayerBytes, ...]
    total_bytes: int

    def kinds(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Each kind of layer by its title, with the bytes of its layers."""
        sizes: dict[str, list[int]] = {}
        for layer in self.layers:
            sizes.setdefault(layer.title, []).append(layer.bytes)
        return tuple((title, tuple(each)) for title, each in sizes.items())


def kind_words(title: str, sizes: Sequence[int]) -> str:
    """A kind of layer with what it takes.

    >>> kind_words("full attention", (64 << 20,) * 12)
    'full attention: 12 x 64.00 MiB = 768.00 MiB'
    """
    total = human_bytes(sum(sizes))
    if len(set(sizes)) == 1:
        return f"{title}: {len(sizes)} x {human_bytes(sizes[0])} = {total}"
    return f"{title}: {len(sizes)} layers, {total}"


class Cell(Record):
    """One model on one node; ``row`` is the model's place. ``verdict`` is nothing where it was not planned, or nobody can say; ``why`` says so.

    ``placed`` says what a fleet has there, in place of how many fit.
    """

    row: int
    model: str
    node: str
    verdict: Verdict | None = None
    at_once: int = 0
    layout: str = ""
    needed_bytes: int = 0
    usable_bytes: int = 0
    why: str = ""
    placed: str = ""

    @property
    def words(self) -> str:
        """The answer in two words or three: how many sequences fit for certain."""
        return self.why or self.placed or f"{self.at_once:,} at once"


class Chart(Record):
    """One picture. ``caption`` says by which rules, in which format and for what; ``remarks`` what it leaves out.

    ``scale`` is that of both axes: ``linear`` or ``log``.
    """

    kind: str
    title: str
    caption: str
    y_label: str
    x_label: str = "tokens of a sequence"
    scale: str = "linear"
    lines: tuple[Line, ...] = ()
    levels: tuple[Level, ...] = ()
    profiles: tuple[Profile, ...] = ()
    cells: tuple[Cell, ...] = ()
    remarks: tuple[str, ...] = ()

    def highest(self, most: int, times: float) -> int:
        """The size at which the picture ends: ``most``, and no more than so many times the highest level."""
        levels = [level.bytes for level in self.levels if level.bytes > 0]
        return min(most, round(times * max(levels))) if levels else most


class _Subject(NamedTuple):
    """A request, its plan, and the lengths to draw."""

    opened: Occupancy
    plan: Plan
    label: str
    lengths: tuple[int, ...]


SCALES: Final = ("linear", "log")


def chart_of(
    kind: str, models: Sequence[tuple[ModelSpec, Mapping[str, Any]]], least: int | None, scale: str | None, *, whole: bool
) -> Chart:
    """The picture of these models, each with the keywords of :func:`~hwcalc.planner.context.open_request`.

    It begins at ``least`` tokens and ends at the planned length, or with ``whole`` at each model's own maximum. Without a ``scale``
    axes are linear, and those of a frontier logarithmic. Raises a :class:`~hwcalc.errors.KvplanError` subclass.
    """
    scale = scale or ("log" if kind == "frontier" else "linear")
    subjects = []
    for model, request in models:
        opened = _laid_out(model, request)
        longest = opened.tokens if not whole else model.max_position_embeddings or _LONGEST
        subjects.append(_Subject(opened, plan_opened(opened), model.id, _lengths(opened, least, longest, scale)))
    return _KINDS[kind](subjects, scale)


def _laid_out(model: ModelSpec, request: Mapping[str, Any]) -> Occupancy:
    """The request at its longest length, laid out as it is at the longest length that fits: a picture has one server for all lengths."""
    opened = open_request(model, **request)
    # A layout that was given, or that of one GPU, is that of every length.
    if opened.setup.parallel.gpus == 1 or any(request.get(name, 1) != 1 for name in ("tp", "pp", "dp", "dcp", "ep")):
        return opened
    trial = opened
    while trial.tokens > _LEAST and plan_opened(trial).refutes:
        trial = open_request(model, **{**request, "seq": trial.tokens // 2})
    sizes = {name: getattr(trial.setup.parallel, name) for name in ("tp", "pp", "dp", "ep")}
    return opened if trial is opened else open_request(model, **{**request, **sizes})


def _lengths(opened: Occupancy, least: int | None, longest: int, scale: str) -> tuple[int, ...]:
    """Both ends, where a window is full, and lengths at equal distances, or of equal ratios on a logarithmic axis."""
    least = min(longest, least or (_LEAST if longest > _LEAST else 1))
    if scale == "log":
        steps = max(1, (longest // least).bit_length() * _STEPS)
        between = {round(least * (longest / least) ** (step / steps)) for step in range(steps + 1)}
    else:
        between = {least + (longest - least) * step // _PARTS for step in range(_PARTS)}
    windows = {
        size for group in opened.stack.groups for name, size in group.kind.dims().items() if name in ("window", "chunk") and size
    }
    full = {length for window in windows for length in (window, window + 1) if least <= length <= longest}
    return tuple(sorted({least, longest} | between | full))


def _memory(subjects: Sequence[_Subject], scale: str) -> Chart:
    """Bytes of the cache, and with a GPU of everything on the fullest one, against length."""
    lines: list[Line] = []
    levels: dict[str, Level] = {}
    for subject in subjects:
        sized = list(_answered(subject, lambda opened: opened.needed_bytes))
        xs = tuple(opened.tokens for opened, _ in sized)
        if subject.plan.fit is None:
            lines.append(Line(label=subject.label, xs=xs, ys=tuple(opened.stored_bytes for opened, _ in sized)))
            continue
        if subject.plan.fit.budget is None:
            lines.append(Line(label=subject.label, xs=xs, ys=tuple(size for _, size in sized), mark=_longest(subject)))
        else:
            ends = [_needed(opened, size) for opened, size in sized]
            low, ys, high = (tuple(end[place] for end in ends) for place in range(3))
            lines.append(Line(label=subject.label, xs=xs, ys=ys, low=low, high=high, areas=_areas(sized), mark=_longest(subject)))
        fit = subject.plan.fit
        label = f"usable of {'each of ' if fit.gpus > 1 else ''}{fit.gpus} x {fit.gpu}"
        label = "the given budget" if fit.budget is None else label
        levels[label] = Level(label, fit.usable_bytes)
    on_gpu = any(subject.plan.fit is not None for subject in subjects)
    return Chart(
        kind="memory",
        title=_title(subjects, "memory of the fullest GPU" if on_gpu else "cache", "against sequence length"),
        caption=_caption(subjects),
        y_label="bytes on the fullest GPU" if on_gpu else "bytes of the cache",
        scale=scale,
        lines=tuple(lines),
        levels=tuple(levels.values()),
    )


def _areas(sized: Sequence[tuple[Occupancy, int]]) -> tuple[Area, ...]:
    """The parts of the memory equation by their expected values, and the cache on top of them."""
    sizes: dict[str, list[int]] = {name: [] for name in ("weights", "overhead", "activations", "cache")}
    for opened, cache in sized:
        parts = () if opened.budget is None else opened.budget.parts
        for name, each in sizes.items():
            each.append(cache if name == "cache" else sum(part.expected for part in parts if part.section == name))
    return tuple(Area(label=name, ys=tuple(each)) for name, each in sizes.items() if any(each))


def _answered(subject: _Subject, ask: Callable[[Occupancy], int]) -> Iterator[tuple[Occupancy, int]]:
    """The request at each length, with an answer; lengths that the engine or a policy refuses are left out."""
    for length in subject.lengths:
        try:
            sized = subject.opened.changed(seq=length)
            yield sized, ask(sized)
        except KvplanError:
            continue


def _needed(opened: Occupancy, cache: int) -> tuple[int, int, int]:
    """Everything on the fullest GPU, as :class:`~hwcalc.planner.result.FitInfo` has it: low, expected and high."""
    budget = opened.budget
    if budget is None:
        return cache, cache, cache
    usable = budget.requested_bytes
    low, expected, high = (usable - left + cache for left in (budget.high, budget.expected, budget.low))
    return max(0, low), expected, high


def _longest(subject: _Subject) -> Mark | None:
    """The longest length that fits by the expected value, if the memory of the GPU ends it within the picture.

    Where the engine moves layers to the memory of the host for longer ones, it is the longest with all of them on the GPU.
    """
    fit = subject.plan.fit
    if fit is None or fit.expected_max_seq is None or not fit.expected_max_seq or fit.expected_max_seq >= subject.lengths[-1]:
        return None
    moves = fit.moved_max_seq is not None
    if moves and subject.plan.partly_on_host:
        return None
    try:
        opened = subject.opened.changed(seq=fit.expected_max_seq)
        height = opened.needed_bytes if fit.budget is None else _needed(opened, opened.needed_bytes)[1]
    except KvplanError:
        return None
    up_to = "all layers on the GPU up to" if moves else "fits up to"
    sure = f"{fit.max_seq or 0:,} tokens, " if fit.max_seq != fit.expected_max_seq else ""
    return Mark(f"{up_to} {sure}{fit.expected_max_seq:,}{' expected' if sure else ' tokens'}", fit.expected_max_seq, height)


def _frontier(subjects: Sequence[_Subject], scale: str) -> Chart:
    """The most sequences that fit at once, against length: for certain, and by the expected value."""
    lines, remarks = [], []
    for subject in subjects:
        if subject.plan.fit is None:
            unknown = f"{subject.label}: what it needs beside its cache is not known."
            message = "a frontier needs the memory of a GPU." if subject.opened.setup.hardware.gpu is None else unknown
            raise UsageError(message, hint="Add: --gpu h100, or --kv-memory 20GiB")
        sure, expected = [], []
        for length in subject.lengths:
            try:
                opened = subject.opened.changed(seq=length)
                most = solve.most(opened)
                certain = solve.most(opened, "low", most.value)
            except KvplanError:
                continue
            if not most.value:
                break
            expected.append((length, most.value))
            sure.append(certain.value)
        if not expected:
            remarks.append(f"{subject.label}: not one sequence of {subject.lengths[0]:,} tokens fits.")
            continue
        xs, ys = zip(*expected, strict=True)
        last = None
        if xs[-1] < subject.lengths[-1]:
            last = Mark(f"one sequence: {subject.plan.fit.expected_max_seq:,} tokens", xs[-1], ys[-1])
        lines.append(Line(label=subject.label, xs=xs, ys=ys, low=tuple(sure), high=ys, mark=last))
    return Chart(
        kind="frontier",
        title=_title(subjects, "most sequences at once", "against sequence length"),
        caption=_caption(subjects, batch=False),
        y_label="sequences at once",
        scale=scale,
        lines=tuple(lines),
        remarks=tuple(remarks),
    )


def _layers(subjects: Sequence[_Subject], scale: str) -> Chart:
    """The cache of each layer, model by model."""
    tokens = {subject.plan.request.seq for subject in subjects}
    length = f"at {tokens.pop():,} tokens" if len(tokens) == 1 else "at each model's own length"
    return Chart(
        kind="layers",
        title=_title(subjects, "cache of each layer", length),
        caption=_caption(subjects),
        y_label="bytes of a layer",
        scale=scale,
        profiles=tuple(
            Profile(label=subject.label, layers=layer_bytes(subject.plan), total_bytes=subject.plan.cache.total_bytes)
            for subject in subjects
        ),
    )


_KINDS: Final[Mapping[str, Callable[[Sequence[_Subject], str], Chart]]] = {
    "memory": _memory,
    "frontier": _frontier,
    "layers": _layers,
}
COST: Final = "cost"
KINDS: Final = (*_KINDS, "nodes", COST)
OF_NODES: Final = ("nodes", COST)
"""Kinds whose numbers are those of a comparison of nodes."""


def nodes_chart(rows: Sequence[tuple[str, Comparison | KvplanError]]) -> Chart:
    """Models against nodes: how many sequences each holds, and by which layout.

    A row is a model with its comparison of the nodes, or with the error where it runs on none of them; at least one has a comparison.
    """
    compared = [answer for _, answer in rows if isinstance(answer, Comparison)]
    nodes = [_node(variant) for variant in compared[0].variants]
    cells: list[Cell] = []
    failed: list[tuple[str, str]] = []
    for row, (model, answer) in enumerate(rows):
        if isinstance(answer, KvplanError):
            cells += [Cell(row=row, model=model, node=node, why="does not run") for node in nodes]
            failed.append((model, answer.message))
            continue
        cells += [_cell(variant, node, row) for variant, node in zip(answer.variants, nodes, strict=True)]
        failed += [
            (f"{model} on {node}", variant.error) for variant, node in zip(answer.variants, nodes, strict=True) if variant.error
        ]
    planned = next(variant for variant in compared[0].variants if variant.error is None)
    lengths = {variant.seq for answer in compared for variant in answer.variants if variant.error is None}
    length = f"{planned.seq:,} tokens" if len(lengths) == 1 else "each model's own length"
    engine = " ".join(filter(None, (planned.engine, planned.engine_version)))
    sequences = f"{planned.batch:,} sequence{'s' if planned.batch > 1 else ''}"
    return Chart(
        kind="nodes",
        title=f"Nodes that hold {sequences} of {length}, and how many at once",
        caption=f"{engine} · at once: the most sequences of this length, for certain",
        y_label="",
        cells=tuple(cells),
        remarks=_folded(failed),
    )


def _folded(reasons: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """A line for each reason, with all that it holds for."""
    named: dict[str, list[str]] = {}
    for name, reason in reasons:
        named.setdefault(reason, []).append(name)
    return tuple(f"{'; '.join(names)}: {reason}" for reason, names in named.items())


def cost_chart(rows: Sequence[tuple[str, Comparison | KvplanError]], scale: str) -> Chart:
    """Dollars a month against users: as many nodes of each kind as hold them at once for certain.

    What is owned ends where no further node is. The picture ends at four times the users that are planned, or that a node holds. Rows are
    as those of :func:`nodes_chart`, whose variants have prices; a node without one is a remark.
    """
    left_out = [(model, answer.message) for model, answer in rows if isinstance(answer, KvplanError)]
    variants = [variant for _, answer in rows if isinstance(answer, Comparison) for variant in answer.variants]
    models = dict.fromkeys(variant.model for variant in variants)
    short = {model: model.rpartition("/")[2] for model in models}
    names = short if len({*short.values()}) == len(short) else {model: model for model in models}
    priced: list[tuple[str, Variant, CostInfo]] = []
    for variant in variants:
        label = f"{names[variant.model]} on {_node(variant)}" if len(models) > 1 else _node(variant)
        if variant.error is not None or not variant.max_batch:
            left_out.append((label, variant.error or "no user for certain"))
        elif variant.cost is None:
            left_out.append((label, "no price with a date is known. Give yours: --price NAME=2.50/h"))
        else:
            priced.append((f"{label}: {money(variant.cost.usd_per_hour)}/h", variant, variant.cost))
    planned = next(variant for variant in variants if variant.error is None)
    asked = planned.batch or 1
    last = min(_MOST_USERS, 4 * (asked if asked > 1 else max((variant.max_batch or 1 for _, variant, _ in priced), default=1)))
    engine = " ".join(filter(None, (planned.engine, planned.engine_version)))
    costs = [cost for _, _, cost in priced]
    days = dict.fromkeys(
        "power of what you own"
        if cost.is_owned
        else " ".join(filter(None, ("yours" if cost.price.user else cost.price.provider, cost.price.date)))
        for cost in costs
    )
    return Chart(
        kind=COST,
        title=f"{'' if len(models) > 1 else f'{planned.model}: '}dollars a month against users of {planned.seq:,} tokens",
        caption=f"{engine} · as many nodes as hold the users for certain · prices: {', '.join(days) or 'none'}",
        y_label="dollars a month",
        x_label="users",
        scale=scale,
        lines=tuple(_stairs(label, variant, cost, last) for label, variant, cost in priced),
        remarks=(*_folded(left_out), *rented_words(costs)),
    )


_MOST_USERS: Final = 100_000


def _stairs(label: str, variant: Variant, cost: CostInfo, last: int) -> Line:
    """The line of a node up to ``last`` users, or those on what is owned: both ends of each step, of the first hundred."""
    users, mark = variant.max_batch or 1, None
    nodes = (cost.owned or 0) // (variant.gpus or 1) if cost.is_owned else None
    if nodes is not None and nodes * users < last:
        last = nodes * users
        mark = Mark(f"you own {nodes:,}: {last:,} user{'s' if last > 1 else ''}", last, round(nodes * cost.usd_per_month))
    ends = {count * users + more for count in range(1, min(100, last // users) + 1) for more in (0, 1)}
    xs = tuple(sorted({1, last} | {end for end in ends if end <= last}))
    return Line(label=label, xs=xs, ys=tuple(round(-(-x // users) * cost.usd_per_month) for x in xs), mark=mark)


def _node(variant: Variant) -> str:
    return variant.instance or f"{variant.gpus or 1} x {variant.gpu}"


def _cell(variant: Variant, node: str, row: int) -> Cell:
    why = "does not run" if variant.error is not None else "unknown" if variant.max_batch is None else ""
    return Cell(
        row=row,
        model=variant.model,
        node=node,
        verdict=variant.verdict,
        at_once=variant.max_batch or 0,
        layout=variant.layout or "",
        needed_bytes=variant.total_per_gpu_bytes or 0,
        usable_bytes=variant.usable_bytes or 0,
        why=why,
    )


def _title(subjects: Sequence[_Subject], what: str, how: str) -> str:
    name = f"{subjects[0].label}: " if len(subjects) == 1 else ""
    words = f"{what} {how}"
    return f"{name}{words}" if name else f"{words[0].upper()}{words[1:]}"


def _caption(subjects: Sequence[_Subject], *, batch: bool = True) -> str:
    """Engine, numbers, formats, ranks and what the bytes are; what differs between models is left to the legend."""
    request, fit = subjects[0].plan.request, subjects[0].plan.fit
    dtypes = dict.fromkeys(subject.plan.request.kv_dtype for subject in subjects)
    definitions = dict.fromkeys(subject.plan.cache.definition.value for subject in subjects)
    parts = [" ".join(filter(None, (request.engine, request.engine_version)))]
    parts += [f"{request.batch:,} sequence{'s' if request.batch > 1 else ''}"] if batch else []
    parts.append(f"KV dtype {' or '.join(dtypes)}")
    parts += filter(None, [layout_text(request)])
    parts += [f"{fit.gpus} x {fit.gpu}"] if fit is not None and fit.gpu is not None else []
    parts += [f"policy {request.policy}"] if request.policy else []
    return " · ".join([*parts, f"definition: {' or '.join(definitions)}"])


def drawing(package: str, *, what: str) -> Any:
    """A package that draws, of the extra ``plot``. Raises :class:`~hwcalc.errors.UsageError` if it is not installed."""
    try:
        return import_module(package)
    except ImportError as error:
        message = f"{what} needs {package}, which is not installed."
        raise UsageError(message, hint="Install it: pip install 'hwcalc[plot]'") from error


_MOST: Final = 9
"""Ticks of an axis."""


def token_ticks(low: int, high: int, scale: str = "log") -> list[tuple[int, str]]:
    """Lengths for an axis, each with its text: powers of two on a logarithmic one, multiples of a power of two on a linear one.

    >>> token_ticks(1024, 4096), token_ticks(0, 4096, "linear")[:3]
    ([(1024, '1k'), (2048, '2k'), (4096, '4k')], [(0, '0'), (512, '512'), (1024, '1k')])
    """
    values = _multiples(low, high) if scale == "linear" else [1 << power for power in _powers(low, high)]
    return [(value, TYPES["tokens"].write(value)) for value in values]


def length_ticks(kind: str, low: int, high: int, scale: str) -> list[tuple[int, str]]:
    """Ticks of the level axis: of users where the picture is of cost, else of lengths."""
    return _round_ticks(low, high, scale) if kind == COST else token_ticks(low, high, scale)


def _round_ticks(low: int, high: int, scale: str, sign: str = "") -> list[tuple[int, str]]:
    """Round numbers: 1, 2 and 5 with noughts, or multiples of such a one of which at most eight steps reach from end to end."""
    steps = (step * 10**digits for digits in range(12) for step in (1, 2, 5))
    step = next(step for step in steps if step * 8 >= high - low)
    values = _decades(low, high) if scale == "log" else range(-(-low // step) * step, high + 1, step)
    return [(value, f"{sign}{value:,}") for value in values]


def size_ticks(kind: str, low: int, high: int, scale: str) -> list[tuple[int, str]]:
    """Ticks of the upright axis: of numbers of sequences for a frontier, of dollars for cost, else of bytes.

    >>> size_ticks("memory", 1 << 20, 3 << 20, "log"), size_ticks("memory", 0, 3 << 20, "linear")[1]
    ([(1048576, '1 MiB'), (2097152, '2 MiB')], (524288, '512 KiB'))
    >>> size_ticks("frontier", 1, 30, "log")
    [(1, '1'), (2, '2'), (5, '5'), (10, '10'), (20, '20')]
    >>> size_ticks("cost", 0, 9000, "linear")[:3]
    [(0, '$0'), (2000, '$2,000'), (4000, '$4,000')]
    """
    if kind == COST:
        return _round_ticks(low, high, scale, "$")
    if kind == "frontier":
        values = _decades(low, high) if scale == "log" else list(_multiples(low, high))
        return [(value, f"{value:,}") for value in values]
    values = list(_multiples(low, high)) if scale == "linear" else [1 << power for power in _powers(low, high)] or [high]
    return [(size, human_bytes(size).replace(".00", "") if size else "0") for size in values]


def _powers(low: int, high: int) -> range:
    first, last = max(0, (max(1, low) - 1).bit_length()), max(1, high).bit_length() - 1
    return range(first, last + 1, max(1, -(-(last - first + 1) // _MOST)))


def _multiples(low: int, high: int) -> range:
    """Multiples of the smallest power of two of which at most eight steps reach from ``low`` to ``high``."""
    step = 1 << max(0, (max(1, high - low) - 1).bit_length() - 3)
    return range(-(-low // step) * step, high + 1, step)


def _decades(low: int, high: int) -> list[int]:
    digits = range(len(str(max(1, high))))
    return [value for digit in digits for step in (1, 2, 5) if low <= (value := step * 10**digit) <= high] or [high]
