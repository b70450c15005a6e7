"""Recommends hardware: for each accelerator or cloud instance the fewest GPUs that hold the planned sequences.

What people can rent or buy comes first, and of that the newest; ``sort`` names other orders (:data:`SORTS`).
The search tries the layouts that people run (:mod:`hwcalc.planner.layouts`) with the rules of the engine. Each listed offer is then
planned again, as ``kvplan plan`` would, so that its row shows the verdict of a plan and not of the search.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION
from hwcalc.engines import DEFAULT, find_engine
from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.runs_on import OPEN
from hwcalc.errors import KvplanError, UnsupportedError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.hardware.candidates import Availability
from hwcalc.model import DEFAULT_GPU, ModelSpec, Note
from hwcalc.planner import solve
from hwcalc.planner.context import open_request
from hwcalc.planner.fit import Search
from hwcalc.planner.layouts import counts, layouts, node_of
from hwcalc.planner.options import PRICED, WITHIN
from hwcalc.planner.recommend_result import Offer, Recommendation
from hwcalc.planner.speed_result import SPEED_COLUMNS
from hwcalc.planner.values import AUTO, is_auto
from hwcalc.planner.verdict import Layout, Verdict
from hwcalc.planner.within import best_layout, serving
from hwcalc.quantization.gguf import usual_beside_host
from hwcalc.text import operand, shown

if TYPE_CHECKING:
    from decimal import Decimal

    from hwcalc.engines.memory import Budget
    from hwcalc.hardware.candidates import Candidate
    from hwcalc.planner.command_line import CommandLine
    from hwcalc.planner.result import Plan
    from hwcalc.profiles.hardware_file import Gpu

DEFAULT_MOST: Final = 8
MOST_JOINED: Final = 32
"""GPUs where several nodes are worth a look: the cheapest are wanted, or no node holds the sequences."""
DEFAULT_LIMIT: Final = 20
LARGEST_MOST: Final = 64
DEFAULT_SORT: Final = "common"
_FILLED: Final = 0.25
"""A single accelerator that is less full than this is more than what is asked for needs."""
_CARDS: Final = 4
"""Cards of a computer: more of them take a server that few people have."""


class Wishes(Record):
    """Which offers are wanted, and in which order.

    ``strict`` leaves out what is not sure to fit. A ``limit`` of 0 lists every offer. ``every`` lists instances with the same accelerator
    one by one. ``any_layout`` tries odd numbers of GPUs and every tp x pp x dp as well. ``budget`` is the most dollars an hour.
    Without ``max_gpus`` they are up to :data:`DEFAULT_MOST`, and up to :data:`MOST_JOINED` of an engine that joins nodes where it matters.
    """

    max_gpus: int | None = None
    sort: str = DEFAULT_SORT
    strict: bool = False
    limit: int = DEFAULT_LIMIT
    every: bool = False
    any_layout: bool = False
    budget: Decimal | None = None

    def __post_init__(self) -> None:
        if self.max_gpus is not None and not 1 <= self.max_gpus <= LARGEST_MOST:
            raise UsageError(f"max-gpus is {self.max_gpus:,}.", hint=f"Allowed: a whole number from 1 to {LARGEST_MOST}.")
        if self.limit < 0:
            raise UsageError(f"limit is {self.limit:,}.", hint="Allowed: a whole number; 0 lists all.")
        if self.sort not in SORTS:
            raise UsageError(f"sort is {shown(self.sort, 40)}.", hint=f"Allowed: {', '.join(SORTS)}.")


_AVAILABLE: Final = tuple(Availability)
_MACHINES: Final = ("laptop", "unified", "host")
_OF_COMPUTERS: Final = ("consumer", "workstation")


def _common_key(gpu: Gpu | Offer, way: Availability, gpus: int, nodes: int, filled: float, total_bytes: int) -> tuple[float, ...]:
    """The rank by what people can get first: to rent, to buy, the rest; then one node, the newest, the least memory."""
    machine, many = gpu.category in _MACHINES, gpu.category in _OF_COMPUTERS and gpus > _CARDS
    idle = gpus == 1 and filled < _FILLED
    newest = 0 if idle else -(gpu.released or 0)
    return _AVAILABLE.index(way), nodes > 1, machine, many, idle, newest, total_bytes


def _common_of(offer: Offer) -> tuple[float, ...]:
    filled = offer.needed_bytes / offer.usable_bytes if offer.usable_bytes else 1.0
    return _common_key(offer, offer.availability, offer.gpus, offer.nodes, filled, offer.total_bytes)


SORTS: Final[Mapping[str, Callable[[Offer], tuple[float, ...]]]] = MappingProxyType(
    {
        "common": _common_of,
        "memory": lambda offer: (offer.total_bytes,),
        "gpus": lambda offer: (offer.gpus, offer.total_bytes),
        "speed": lambda offer: (
            offer.decode_tokens_per_s is None,
            -(offer.decode_tokens_per_s or offer.decode_tokens_per_s_bound or 0.0),
        ),
        "cost": lambda offer: (offer.cost is None, 0.0 if offer.cost is None else offer.cost.usd_per_hour),
        "headroom": lambda offer: (-offer.headroom_bytes / offer.usable_bytes if offer.usable_bytes else 0.0,),
    }
)
"""Orders of the offers: what people can get and the newest, least memory, fewest GPUs, most tokens per second as expected, then by the bound
where nothing like it was measured, least dollars an hour, most of a GPU free. What is sure comes first.
"""


class OfOffer(Search):
    """Finds the limits of an offer: the most tokens and the most sequences, but neither the fewest GPUs nor what the host could take."""

    def moved(self, opened: Occupancy) -> None:
        """Nothing: an offer keeps its layers where they are."""

    def fewest(self, opened: Occupancy, verdict: Verdict) -> tuple[None, None]:
        """No layouts: an offer does not state the fewest GPUs."""
        return None, None


_OF_FIT: Final = (
    "verdict", "usable_bytes", "needed_bytes", "needed_low_bytes", "needed_high_bytes", "headroom_bytes", "max_batch", "max_seq",
)  # fmt: skip
_OF_SPEED: Final = ("prefill_s_bound", "bound_by")
"""The values of an offer that its plan has by the same names, in the verdict and in the speed."""
_OF_MATCH: Final = ("common", "memory", "gpus", "cost")
"""Orders that are known without a plan."""


class _Match(Struct, frozen=True):
    """A candidate in a layout that holds the sequences, before it is planned.

    ``certain`` is that they fit and that the engine runs there, neither of which is open. ``also`` are the larger instances that it stands
    for, and ``filled`` is the share of a single accelerator that is needed. ``options`` are what its plan has in place of what was asked.
    """

    candidate: Candidate
    layout: Layout
    certain: bool
    total_bytes: int
    also: tuple[str, ...] = ()
    open: bool = False
    filled: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)
    usd_per_hour: Decimal | None = None

    @property
    def nodes(self) -> int:
        """The number of nodes; an instance is one."""
        return -(-self.layout.gpus // node_of(self.candidate.gpu, self.candidate.count))

    @property
    def common(self) -> tuple[bool, tuple[float, ...]]:
        """The sort key of what people can get."""
        candidate = self.candidate
        key = _common_key(candidate.gpu, candidate.availability, self.layout.gpus, self.nodes, self.filled, self.total_bytes)
        return not self.certain, key

    @property
    def cost(self) -> tuple[Any, ...]:
        """The sort key by dollars, with what has no price last."""
        return not self.certain, self.usd_per_hour is None, self.usd_per_hour or 0, self.rank

    @property
    def rank(self) -> tuple[bool, int, float, tuple[tuple[str, int], ...], int]:
        """The sort key: certain matches first, then by least memory, then by most bandwidth."""
        bandwidth = self.candidate.gpu.memory_bandwidth_gbps or 0.0
        name = _natural(self.candidate.name)
        return not self.certain, self.total_bytes, -bandwidth * self.layout.gpus, name, self.layout.gpus


def _natural(name: str) -> tuple[tuple[str, int], ...]:
    """The sort key of instances by size: ``xlarge`` before ``2xlarge`` before ``12xlarge``.

    >>> sorted(["g6.12xlarge", "g6.2xlarge", "g6.xlarge"], key=_natural)
    ['g6.xlarge', 'g6.2xlarge', 'g6.12xlarge']
    """
    numbered = re.sub(r"(?<![0-9])xlarge", "1xlarge", name) if "xlarge" in name else name
    return tuple((text, int(digits or 0)) for text, digits in re.findall(r"([^0-9]*)([0-9]{1,9})?", numbered))


def recommend_model(
    model: ModelSpec,
    candidates: Sequence[Candidate],
    wishes: Wishes | None,
    *,
    line: CommandLine | None,
    **options: Any,
) -> Recommendation:
    """The recommendation: which of the candidates hold the request, in the order that ``wishes`` names.

    ``options`` are those of :func:`~hwcalc.planner.context.open_request` without hardware, and ``line`` is the command line of a plan
    with all that was asked for. Raises a
    :class:`~hwcalc.errors.KvplanError` subclass if the request is wrong on any hardware.
    """
    from hwcalc.planner.plan import plan_model

    wishes = wishes or Wishes()
    priced = wishes.sort == "cost" or wishes.budget is not None or not options.keys().isdisjoint(PRICED)
    options |= {"cost": True} if priced else {}
    by_cost = wishes.sort == "cost" or wishes.budget is not None
    # No time counts the network between nodes, so that limits of time take several only where they are asked for.
    joins = find_engine(options.get("engine") or DEFAULT)[0].command.joins_nodes and options.keys().isdisjoint(WITHIN)
    several = (MOST_JOINED,) if by_cost else (DEFAULT_MOST, MOST_JOINED)
    for most in (wishes.max_gpus,) if wishes.max_gpus else several if joins else (DEFAULT_MOST,):
        wishes = replace(wishes, max_gpus=most)
        search = _searched(model, candidates, wishes, options)
        if search.matches:
            break
    opened, holding = search.opened, [_with_price(match, options) if priced else match for match in search.matches]
    holding.sort(key=lambda match: match.cost if wishes.sort == "cost" or wishes.budget is not None else match.rank)
    _check_known(model, search, len(candidates))
    matches = [
        match
        for match in holding
        if wishes.budget is None or (match.usd_per_hour is not None and match.usd_per_hour <= wishes.budget)
    ]
    sure = [match for match in matches if match.certain or not wishes.strict]
    kept = sure if wishes.every else _collapsed(sure)
    of_offer = OfOffer()

    def plan_of(match: _Match) -> Plan:
        return plan_model(model, advise=False, search=of_offer, **{**options, **match.options, **_hardware(match)})

    def most_serving(match: _Match) -> _Match:
        """The match in the layout that serves most users within the limits of time, where there are any."""
        if match.layout.gpus == 1 or options.keys().isdisjoint(WITHIN):
            return match
        opened = open_request(model, **{**options, **match.options, **_hardware(match)}).devices.entire()
        node = node_of(match.candidate.gpu, match.candidate.count)
        best = best_layout(opened, match.layout.gpus, node, any_layout=wishes.any_layout)
        # Without a layout that holds the sequences there is none to choose.
        return match if best is None or best.certain < match.certain else replace(match, layout=best.layout)

    plans = _planned(kept, wishes, most_serving, plan_of)
    # What only the whole plan finds to be too slow.
    late = () if plans or options.keys().isdisjoint(WITHIN) else kept
    near = None if plans else (holding[0] if holding else search.nearest(candidates))
    near = None if near is None else most_serving(near)
    # Of what nothing holds, more GPUs are offered only where the nearest then does.
    limited = search.limited
    if near is not None and limited and not holding and not options.keys().isdisjoint(WITHIN):
        limited *= bool(_searched(model, [near.candidate], replace(wishes, max_gpus=LARGEST_MOST), options).matches)
    of_near = None if near is None else _hardware(near)
    on_near = None if line is None or of_near is None else line.changed(**of_near)
    closest = None if of_near is None else plan_model(model, line=on_near, **options, **of_near)
    shown = [plan for _, plan in plans] or ([] if closest is None else [closest])
    common = _common(shown)
    dtypes = {plan.request.kv_dtype for plan in shown} or {opened.dtypes.kv}
    of_policy = (note for plan in shown for note in plan.warnings if note.code.startswith("policy"))
    uncertain = _uncertain(opened, [match for match, _ in plans])
    return Recommendation(
        schema_version=SCHEMA_VERSION,
        kvplan_version=__version__,
        model=model.id,
        revision=model.revision,
        engine=opened.engine.name,
        engine_version=opened.deployment.version or None,
        seq=opened.tokens,
        batch=opened.load.batch,
        kv_dtype=dtypes.pop() if len(dtypes) == 1 else None,
        weights=AUTO if is_auto(options.get("weights")) else opened.setup.weights or "as published",
        policy=None if opened.setup.policy is None else opened.setup.policy.chosen.text,
        max_gpus=wishes.max_gpus or DEFAULT_MOST,
        sort=wishes.sort,
        considered=len(candidates),
        refused=search.refused,
        unknown=search.unknown,
        too_small=search.too_small,
        late=len(search.late) + len(late),
        one_at_a_time=search.alone,
        could_be_more=limited,
        unsure_left_out=len(matches) - len(sure),
        budget_usd_per_hour=None if wishes.budget is None else float(wishes.budget),
        over_budget=sum(match.usd_per_hour is not None for match in holding) - sum(m.usd_per_hour is not None for m in matches),
        unpriced=sum(match.usd_per_hour is None for match in holding) if priced else 0,
        offers=tuple(_offer(match, plan, common) for match, plan in plans),
        more=len(kept) - len(plans),
        nearest=None if near is None or closest is None else _offer(near, closest, common),
        message="" if closest is None or closest.fit is None else closest.fit.message,
        suggestions=() if closest is None or closest.fit is None else tuple(closest.fit.suggestions),
        # The warnings about the policy are those of any plan, such as that the engine lacks it.
        notes=(*_one_server(opened, plans), *model.warnings, *dict.fromkeys(of_policy), *uncertain, *common)
        if common
        else tuple(dict.fromkeys(note for note in (*model.notes, *opened.notes) if note.code not in _LEFT_OUT)),
    )


def _with_price(match: _Match, options: Mapping[str, Any]) -> _Match:
    """The match with the price of its hardware."""
    from hwcalc.planner.cost import price_of

    price = price_of(options, match.candidate.gpu, match.layout.gpus, match.candidate.instance)
    return match if price is None else replace(match, usd_per_hour=price.usd_per_hour)


def _uncertain(opened: Occupancy, matches: Sequence[_Match]) -> tuple[Note, ...]:
    """A note that names the hardware of which sources leave open whether the engine runs the model there; none if there is none."""
    names = [match.candidate.name for match in matches if match.open]
    if not names:
        return ()
    listed = ", ".join(dict.fromkeys(names))
    message = (
        f"Sources leave open whether {opened.engine.label} runs {opened.model.id} on {listed}: a plan on one of them says why."
    )
    return (Note(code=OPEN, message=message),)


def _one_server(opened: Occupancy, plans: Sequence[tuple[_Match, Plan]]) -> tuple[Note, ...]:
    """A note that every offer is one server, where several sequences take several GPUs: smaller servers could share them out."""
    if opened.load.batch == 1 or not plans or plans[0][0].layout.gpus == 1:
        return ()
    message = (
        f"Each of these is one server for all {opened.load.batch:,} sequences. Several smaller ones may cost less: kvplan fleet finds "
        "them. A file to start from: kvplan fleet --example > fleet.yaml"
    )
    return (Note(code="one-server", message=message),)


def _collapsed(matches: Iterable[_Match]) -> list[_Match]:
    """The matches with one match, the smallest, for all instances of a cloud with the same accelerator and the same certainty."""
    groups: dict[tuple[object, ...], list[_Match]] = {}
    for match in matches:
        candidate = match.candidate
        cloud = candidate.name.partition("/")[0]
        key = (candidate.name, match.layout) if candidate.instance is None else (cloud, candidate.gpu.id, match.certain)
        groups.setdefault(key, []).append(match)
    return [
        replace(first, also=tuple(other.candidate.name for other in others)) if others else first
        for first, *others in groups.values()
    ]


def _searched(model: ModelSpec, candidates: Sequence[Candidate], wishes: Wishes, options: Mapping[str, Any]) -> _Search | _BestOf:
    """The search in the format that is named; or one in each of the usual formats, of which each candidate has that of the fewest GPUs."""
    if not is_auto(options.get("weights")):
        search = _Search(open_request(model, **options).devices.entire(), wishes)
        search.matches = list(search.all(candidates))
        return search
    weights = open_request(model, **{**options, "weights": None}).engine.weights
    names = weights.of(model)
    # Of the mixes of GGUF files the smallest one that people take needs the fewest GPUs.
    usual = usual_beside_host(names) if weights.are_mixes else None
    searches, refused = list[_Search](), list[KvplanError]()
    for name in names if usual is None else (usual,):
        try:
            opened = open_request(model, **{**options, "weights": name})
        except KvplanError as error:
            refused.append(error)
            continue
        search = _Search(opened.devices.entire(), wishes)
        # On the GPUs that hold a small mix there may be room for a larger one, which the plan of an offer chooses.
        format_ = {"weights": name if usual is None else AUTO}
        search.matches = [replace(match, options=format_) for match in search.all(candidates)]
        searches.append(search)
    if not searches:
        raise refused[0]
    return _BestOf(searches, len(candidates))


class _BestOf:
    """Searches in several formats, the best one first: of each candidate the match with the fewest GPUs, in the best format of those.

    What no search accepts is rejected.
    """

    def __init__(self, searches: Sequence[_Search], considered: int) -> None:
        self._searches = searches
        self.opened = searches[0].opened
        self.message = next((search.message for search in searches if search.message), "")
        best: dict[tuple[str, bool], _Match] = {}
        for match in (match for search in searches for match in search.matches):
            key = match.candidate.name, match.certain
            if key not in best or match.layout.gpus < best[key].layout.gpus:
                best[key] = match
        sure = {name: match.layout.gpus for (name, certain), match in best.items() if certain}
        self.matches = [
            match for (name, certain), match in best.items() if certain or match.layout.gpus < sure.get(name, LARGEST_MOST + 1)
        ]
        self.refused, self.unknown, self.alone, self.limited = (
            min(getattr(search, name) for search in searches) for name in ("refused", "unknown", "alone", "limited")
        )
        matched = {match.candidate.name for match in self.matches}
        self.late = set[str]().union(*(search.late for search in searches)) - matched
        self.too_small = considered - self.refused - self.unknown - len(matched) - len(self.late)

    def nearest(self, candidates: Iterable[Candidate]) -> _Match | None:
        """As that of the search in the smallest format."""
        return self._searches[-1].nearest(candidates)


class _Search:
    """Tries candidates one by one, and counts those that it rejects. ``matches`` has what :meth:`all` said."""

    def __init__(self, opened: Occupancy, wishes: Wishes) -> None:
        self.opened, self.most, self.any_layout = opened, wishes.max_gpus or DEFAULT_MOST, wishes.any_layout
        self.refused = self.unknown = self.too_small = self.alone = self.limited = 0
        self.message = ""
        self.late: set[str] = set()
        self._serves = serving(opened)
        self._held = False
        self.matches: list[_Match] = []
        self._on_gpu: dict[tuple[object, ...], Occupancy | KvplanError] = {}
        self._seen: dict[tuple[object, ...], tuple[list[solve.HoldingLayout], bool]] = {}

    def all(self, candidates: Iterable[Candidate]) -> Iterator[_Match]:
        """The matches: the fewest GPUs that hold the sequences for certain, in their best layout, and fewer that probably hold them."""
        for candidate in candidates:
            on_one = self._on_one(candidate)
            if on_one is None:
                continue
            opened, budget = on_one
            gpu, count = candidate.gpu, candidate.count
            key = (*_key(gpu), count)
            if key not in self._seen:
                self._held = False
                self._seen[key] = self._layouts(candidate, opened, budget), self._held
            found, held = self._seen[key]
            if not found:
                if held:
                    self.late.add(candidate.name)
                else:
                    self.too_small += 1
                self.alone += candidate.instance is None and gpu.whole_machine
                # Those that could have more GPUs than ``max_gpus`` allows.
                self.limited += count > self.most if count is not None else not gpu.whole_machine or gpu.node > self.most
            for fitting in found:
                certain = fitting.certain and not opened.hardware_warnings
                total, filled = budget.total_bytes * fitting.layout.gpus, 1.0
                if fitting.layout.gpus == 1 and budget.requested_bytes > 0:
                    filled -= (budget.expected - opened.needed_bytes) / budget.requested_bytes
                yield _Match(candidate, fitting.layout, certain, total, open=bool(opened.hardware_warnings), filled=filled)

    def _on_one(self, candidate: Candidate) -> tuple[Occupancy, Budget] | None:
        """The occupancy on one GPU of a candidate, and its budget.

        ``None`` if the engine refuses it or its memory is unknown; it is counted then.
        """
        key = _key(candidate.gpu)
        if key not in self._on_gpu:
            try:
                self._on_gpu[key] = self.opened.changed(gpu=candidate.gpu)
            except KvplanError as error:
                self._on_gpu[key] = error
        opened = self._on_gpu[key]
        if isinstance(opened, KvplanError):
            self.refused += 1
            self.message = self.message or opened.message
            return None
        budget = opened.budget
        if budget is None:
            self.unknown += 1
            self.message = next((note.message for note in opened.notes if note.code in _REASONS), self.message)
            return None
        return opened, budget

    def _layouts(self, candidate: Candidate, opened: Occupancy, budget: Budget) -> list[solve.HoldingLayout]:
        """The best layouts of the fewest GPUs that hold the sequences for certain, and of the fewest that probably hold them."""
        node, least, out = node_of(candidate.gpu, candidate.count), 1, list[solve.HoldingLayout]()
        if budget.requested_bytes > 0:
            # Several GPUs may round blocks differently.
            roles, tokens, encoder = opened.dtypes.roles, opened.tokens, opened.encoder_tokens
            by_formulas = opened.batch * sum(
                group.count * tensor.bytes(roles[tensor.role], tokens, encoder)
                for group in opened.model.stack_for("reference").groups
                for tensor in group.kind.tensors()
            )
            least = solve.least_gpus(budget, min(by_formulas, opened.needed_bytes))
        replica = solve.least_gpus(budget)
        serves = None if self._serves is None else self._in_time
        for gpus in self._counts(candidate):
            if gpus < least:
                continue
            fitting = solve.holding_layout(opened, gpus, node, any_layout=self.any_layout, replica=replica, serves=serves)
            if fitting is not None and (fitting.certain or not out):
                out.append(fitting)
                if fitting.certain:
                    break
        return out

    def _in_time(self, held: Occupancy) -> bool:
        """Whether a layout that holds the sequences serves them within the limits of time. That one holds them is kept."""
        assert self._serves is not None
        self._held = True
        return self._serves(held)

    def _counts(self, candidate: Candidate) -> tuple[int, ...]:
        """The numbers of GPUs to try: all GPUs of an instance, or for whole machines at most as many as can be linked."""
        gpu = candidate.gpu
        if candidate.count is not None:
            return (candidate.count,) if candidate.count <= self.most else ()
        most = min(self.most, gpu.node) if gpu.whole_machine else self.most
        return counts(most, gpu.node, any_layout=self.any_layout or self.opened.engine.facts.splits_layers)

    def nearest(self, candidates: Iterable[Candidate]) -> _Match | None:
        """The candidate and layout whose needed bytes are the smallest multiple of their memory.

        It is ``None`` if there is no candidate.
        """
        best: tuple[float, _Match] | None = None
        for candidate in candidates:
            try:
                opened = self.opened.changed(gpu=candidate.gpu)
            except KvplanError:
                continue
            node = node_of(candidate.gpu, candidate.count)
            most = max(self._counts(candidate), default=0)
            for layout in layouts(opened, most, node, any_layout=self.any_layout) if most else ():
                try:
                    changed = opened.changed(**asdict(layout))
                    budget = changed.budget
                    if budget is None or budget.requested_bytes <= 0:
                        break
                    needed = budget.requested_bytes - budget.expected + changed.needed_bytes
                except KvplanError:
                    continue
                share = needed / budget.requested_bytes
                if best is None or share < best[0]:
                    total = budget.total_bytes * layout.gpus
                    best = share, _Match(candidate=candidate, layout=layout, certain=False, total_bytes=total)
        return None if best is None else best[1]


def _key(gpu: Gpu) -> tuple[object, ...]:
    """A key of an accelerator and its memory, which may differ between an instance and the profile."""
    return gpu.id, gpu.torch_total_mib, gpu.memory_total_mib, gpu.memory_marketing_gb


_REASONS: Final = ("weights-unknown", "gpu-memory-unknown")


def _check_known(model: ModelSpec, search: _Search | _BestOf, considered: int) -> None:
    """Raise an error if the engine refuses every candidate, or if the memory of all others is unknown."""
    if search.refused == considered:
        raise UnsupportedError(
            f"{search.opened.engine.name} runs {model.id} on none of the {considered:,} candidates: {search.message}",
            hint="Choose others, or another --engine. See: kvplan gpus",
        )
    if search.refused + search.unknown == considered:
        hint = (
            "Give a weight format: --weights bf16"
            if model.counted is not None
            else f"Plan one accelerator with a budget: kvplan --gpu l4 --kv-memory 8GiB {operand(model.address)}"
        )
        raise UnsupportedError(search.message or f"The memory that {model.id} takes is not known.", hint=hint)


def _planned(
    kept: Sequence[_Match], wishes: Wishes, laid_out: Callable[[_Match], _Match], plan: Callable[[_Match], Plan]
) -> list[tuple[_Match, Plan]]:
    """The wanted matches with their plans, in the wished order, without those whose plan does not fit. ``laid_out`` chooses their layout.

    Some orders need the plans of all matches.
    """
    out: list[tuple[_Match, Plan]] = []
    if wishes.sort == "gpus":
        kept = sorted(kept, key=lambda match: (not match.certain, match.layout.gpus))
    elif wishes.sort == "memory":
        kept = sorted(kept, key=lambda match: match.rank)
    elif wishes.sort == DEFAULT_SORT:
        kept = _in_turns(sorted(kept, key=lambda match: match.common))
    for one in kept:
        if wishes.limit and len(out) == wishes.limit and wishes.sort in _OF_MATCH:
            break
        match = laid_out(one)
        planned = plan(match)
        in_time = planned.within is None or planned.within.holds is not False
        if planned.fit is not None and planned.fit.verdict.fits and in_time:
            out.append((match, planned))
    out.sort(key=lambda pair: (not pair[0].certain, SORTS[wishes.sort](_offer(pair[0], pair[1], ()))))
    return out[: wishes.limit or None]


def _in_turns(matches: Sequence[_Match]) -> list[_Match]:
    """The matches with the sure ones first, and of these the rented and the sold in turns, so that a short list has both."""
    sure = [match for match in matches if match.certain]
    rented, sold, rare = ([match for match in sure if match.candidate.availability is way] for way in _AVAILABLE)
    turns = (match for pair in zip_longest(rented, sold) for match in pair if match is not None)
    return [*turns, *rare, *(match for match in matches if not match.certain)]


def _hardware(match: _Match) -> dict[str, Any]:
    """The options of a plan that name the hardware of a match."""
    layout, candidate = match.layout, match.candidate
    hardware = {"gpu": candidate.name} if candidate.instance is None else {"instance": candidate.instance, "gpus": layout.gpus}
    return {**hardware, **asdict(layout)}


_LEFT_OUT: Final = frozenset({"per-replica", "price", DEFAULT_GPU})
"""Codes of notes about the pool, which an offer does not have, about the price, of which it has the row, and about a missing GPU."""


def _common(plans: Sequence[Plan]) -> tuple[Note, ...]:
    """The notes that all plans share."""
    if not plans:
        return ()
    shared = set.intersection(*({(note.code, note.message) for note in plan.notes} for plan in plans))
    return tuple(note for note in plans[0].notes if (note.code, note.message) in shared and note.code not in _LEFT_OUT)


def _offer(match: _Match, plan: Plan, common: Sequence[Note]) -> Offer:
    gpu, instance = match.candidate.gpu, match.candidate.instance
    of_plan = {name: getattr(plan.fit, name) for name in _OF_FIT} | {name: getattr(plan.speed, name, None) for name in _OF_SPEED}
    of_plan |= dict.fromkeys(SPEED_COLUMNS) if plan.speed is None else plan.speed.row()
    if plan.within is not None:
        served = plan.within.at_batch
        of_plan |= {"users": plan.within.users, "users_low": plan.within.users_low}
        of_plan |= {"ttft_s": served.ttft_s.expected, "itl_s": served.itl_s.expected}
    if plan.cost is not None and match.usd_per_hour is not None:
        of_plan["cost"] = plan.cost
    return Offer(
        gpu=match.candidate.name if instance is None else gpu.id,
        name=gpu.name,
        vendor=gpu.vendor,
        category=gpu.category,
        instance=instance,
        also=match.also,
        availability=match.candidate.availability,
        released=gpu.released,
        gpus=match.layout.gpus,
        nodes=match.nodes,
        weights=plan.request.weights,
        kv_dtype=plan.request.kv_dtype,
        **asdict(match.layout),
        total_bytes=match.total_bytes,
        **of_plan,
        notes=(
            *(note for note in plan.warnings if note.code == OPEN),
            *(note for note in plan.notes if note not in common and note.code not in _LEFT_OUT),
        ),
    )
