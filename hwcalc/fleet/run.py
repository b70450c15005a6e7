"""Which models on which nodes: :func:`fleet`.

For each number of a node's GPUs the search takes the layout in which a replica serves most users for sure, as a plan of the replica says.
Each replica of an answer is planned once more, and what its plan does not say is not promised.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from math import ceil, floor, gcd
from pathlib import Path
from typing import Any, Final

from msgspec.structs import asdict, replace

from hwcalc._version import __version__
from hwcalc.check.file import read_text
from hwcalc.documents import SCHEMA_VERSION
from hwcalc.engines.deployment import Occupancy
from hwcalc.errors import KvplanError, UsageError
from hwcalc.fleet.file import FleetFile, NodeType, Wanted, parse_fleet, read_growth, read_survive
from hwcalc.fleet.result import Fleet, FleetModel, Held, LeftOver, NodePrice, NodesInUse, Planned, Rented, ReplicaGroup
from hwcalc.fleet.solve import SECONDS, Assignment, Kind, Pool, Problem, UndecidedError, assign, served, solver
from hwcalc.formulas.record import Record
from hwcalc.hardware.prices import Price
from hwcalc.library.plan import load_request
from hwcalc.model import ModelSpec, Note
from hwcalc.planner.asked import Access, Asked, read_options, take_options
from hwcalc.planner.command_line import command_line
from hwcalc.planner.context import open_request
from hwcalc.planner.cost import price_of
from hwcalc.planner.layouts import counts, has_experts, layouts
from hwcalc.planner.plan import plan_model
from hwcalc.planner.result import Plan
from hwcalc.planner.solve import tried
from hwcalc.planner.values import read_flag
from hwcalc.planner.verdict import Layout, Verdict
from hwcalc.planner.within import Limits, sure_arrivals, sure_users
from hwcalc.sources.request import tell
from hwcalc.units import HOURS_PER_MONTH


class Loaded(Record):
    """A model of a fleet, read, with its options as keywords of an opened request."""

    wanted: Wanted
    spec: ModelSpec
    request: Mapping[str, Any]


PARTS: Final = 4
"""The most replicas that share a GPU, each with its part of the memory."""


_JOINED: Final = range(2, 9)
"""The whole nodes over which a replica goes where one is not enough, or where each serves more than with fewer."""


class Replica(Record):
    """A way to run a model on so many GPUs of a node, on a part of one, or on several whole ``nodes``: its options of a plan, and the users that it serves for sure.

    ``units`` are quarters of a GPU. Where requests arrive at a rate, ``users`` are thousandths of one in a second, and its options have it.
    """

    units: int
    options: Mapping[str, Any]
    users: int
    nodes: int = 1


PER_REQUEST: Final = 1_000
"""The parts in which requests a second are counted."""


def load_wanted(wanted: Wanted, access: Access) -> Loaded:
    """The model of a fleet, with its draft. Raises a :class:`~hwcalc.errors.KvplanError` subclass."""
    asked = read_options({**wanted.options, **asdict(access)})
    spec, request = load_request(wanted.model, asked)
    try:
        # A fault that needs no hardware is one of the file.
        open_request(spec, **request)
    except UsageError as error:
        raise UsageError(f"{wanted.name}: {error.message}", hint=error.hint) from error
    return Loaded(wanted=wanted, spec=spec, request=request)


def replicas(model: Loaded, node: NodeType, *, joined: bool) -> tuple[tuple[Replica, ...], str]:
    """The ways to run a model on a node of this type, and where there is none, why not; on several nodes if they may be ``joined`` and each serves more so."""
    try:
        opened = open_request(model.spec, **model.request, **node.hardware, gpus=1)
    except KvplanError as error:
        return (), error.message
    if opened.hardware_warnings:
        return (), opened.hardware_warnings[0].message
    limited = Limits.of(opened.setup.others) is not None
    if node.mig is not None and limited:
        return (), f"no engine was measured on a MIG slice, so that nothing is sure within limits of time on {node.device.id}"
    most = 1 if node.mig is not None else node.gpus
    ways = [_best(opened, gpus, most) for gpus in counts(most, most)]
    if opened.engine.facts.utilization_of_server and not limited and node.mig is None and ways[0] is not None:
        ways += [_part(opened, parts) for parts in (PARTS, PARTS // 2)]
    found = tuple(way for way in ways if way is not None)
    several = node.mig is None and node.gpus == node.device.node > 1
    alone = "" if joined else ", which rolling keeps a replica within"
    alone = "; the time that a network between nodes takes is not known" if limited else alone
    if several and not alone:
        # An instance has the GPUs of one node.
        hardware = {"gpu": node.device.id, "instance": None}
        of_node = max((Fraction(way.users * (node.gpus * PARTS // way.units)) for way in found), default=Fraction(0))
        for nodes in _JOINED:
            way = _best(opened, nodes * node.gpus, node.gpus)
            if way is not None and Fraction(way.users, nodes) > of_node:
                of_node = Fraction(way.users, nodes)
                found += (replace(way, nodes=nodes, options={**hardware, **way.options}),)
    if found:
        return found, ""
    within = " within the limits" if limited else ""
    where = "a slice" if node.mig is not None else "eight whole nodes" if several and not alone else "a whole node"
    return (), f"not one user is sure{within} on {where}{alone if several else ''}"


def _part(opened: Occupancy, parts: int) -> Replica | None:
    """A replica in one of several equal parts of what a server may use of a GPU. Nobody measured how fast they are."""
    budget = opened.budget
    share = 0.0 if budget is None else floor(100 * budget.utilization / parts) / 100
    placed = tried(opened, memory_utilization=share) if share else None
    with suppress(KvplanError):
        users = 0 if placed is None else sure_users(placed)
        return Replica(units=PARTS // parts, options={"memory_utilization": share}, users=users) if users else None
    return None


def _best(opened: Occupancy, gpus: int, node: int) -> Replica | None:
    """The layout of so many GPUs that serves most users; of equal ones the preferred."""
    best: Replica | None = None
    arrive = opened.setup.others.get("rate") is not None
    for layout, placed in _placed(opened, gpus, node):
        with suppress(KvplanError):
            places, rate = sure_arrivals(placed) if arrive else (sure_users(placed), 0.0)
            users, at_once = (int(rate * PER_REQUEST), {"batch": places}) if arrive else (places, {})
            if users > (0 if best is None else best.users):
                best = Replica(units=gpus * PARTS, options={"gpus": gpus, **asdict(layout), **at_once}, users=users)
    return best


def _placed(opened: Occupancy, gpus: int, node: int) -> Iterator[tuple[Layout, Occupancy]]:
    """The request in each layout. Replicas that share nothing are replicas of the fleet, and no layout."""
    shares = opened.deployment.traits.deals_experts and has_experts(opened.model)
    for layout in layouts(opened, gpus, node):
        if layout.dp > 1 and not shares:
            continue
        placed = tried(opened, **asdict(layout), dcp=1)
        if placed is not None and opened.engine.facts.splits_layers:
            with suppress(KvplanError):
                yield layout, placed.devices.entire()
        elif placed is not None:
            yield layout, placed


_PER_USD: Final = 100_000
"""Money is counted in whole parts of a dollar, so that sums are exact."""
_UNDECIDED: Final = Note(
    code="undecided", message="The search was cut short: perhaps the nodes would serve all users. Name fewer of them to know."
)
_TOO_MUCH: Final = Note(
    code="too-much", message="The nodes that would have to be added are not said: they are too many, or the search was cut short."
)
_ANY: Final = 10**6
"""As many nodes as an addition may take."""


def fleet(
    file: str | os.PathLike[str] | Mapping[str, Any],
    *,
    survive: int | str | None = None,
    growth: float | str | None = None,
    rolling: bool | None = None,
    spot: bool = False,
    price: Mapping[str, object] | None = None,
    prices: str | None = None,
    offline: bool = False,
    token: str | None = None,
    endpoint: str | None = None,
) -> Fleet:
    """Place replicas of several models on nodes, so that all users are served for the least money.

    ``file`` is the path of a YAML file, or its content as a dict. ``survive``, ``growth`` and ``rolling`` replace its conditions: how many
    nodes may fail at once, ``"2x"`` as many users, and whether a replica more of one model at a time must fit. ``spot``, ``price`` and
    ``prices`` are those of :func:`hwcalc.plan`: at prices of spot machines, and the user's own. A replica serves as many users as its own plan says are sure. Raises a subclass of
    :class:`~hwcalc.errors.KvplanError`; a fleet that does not hold is an answer.
    """
    options = {"spot": spot, "price": price, "prices": prices, "offline": offline, "token": token, "endpoint": endpoint}
    return planned_fleet(file, survive=survive, growth=growth, rolling=rolling, options=options).fleet


def planned_fleet(
    file: str | os.PathLike[str] | Mapping[str, Any],
    *,
    survive: int | str | None,
    growth: float | str | None,
    rolling: bool | None,
    options: Mapping[str, Any],
) -> Planned:
    """As :func:`fleet`, with the plan of a replica of each group; ``options`` are the rest of its keywords."""
    _, asked = take_options("fleet", options)
    solver()
    read = _read(file)
    conditions = read.conditions
    given = {
        "survive": None if survive is None else read_survive(survive),
        "growth": None if growth is None else read_growth(growth),
        "rolling": None if rolling is None else read_flag(rolling, "rolling"),
    }
    conditions = replace(conditions, **{name: value for name, value in given.items() if value is not None})
    read = replace(read, conditions=conditions)
    priced = _priced(read.nodes, asked)
    models = []
    for wanted in read.models:
        tell(f"reading {wanted.name}")
        models.append(load_wanted(wanted, asked.access))
    return _Search(read, models, priced).answer()


def _read(file: str | os.PathLike[str] | Mapping[str, Any]) -> FleetFile:
    """The fleet of a file, whose relative paths of models start at its folder, or of a dict."""
    if isinstance(file, Mapping):
        try:
            return parse_fleet(json.dumps(file), "fleet")
        except (TypeError, ValueError, RecursionError) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(
                "a fleet as a dict has text, numbers, lists and dicts alone.", hint="Give what the YAML file would hold."
            ) from error
    if not isinstance(file, (str, os.PathLike)):
        raise UsageError(f"a fleet is no {type(file).__name__}.", hint="Give the path of a YAML file, or its content as a dict.")
    path = os.fsdecode(file)
    read = parse_fleet(read_text(path, command="fleet"), path)
    folder = Path(path).parent
    models = (
        replace(model, model=str(there)) if os.path.exists(there := folder / model.model) else model  # noqa: PTH110 - a name may be too long
        for model in read.models
    )
    return replace(read, models=tuple(models)) if path != "-" else read


def _priced(nodes: Sequence[NodeType], asked: Asked) -> dict[str, Price]:
    """The price of each type of node that may be rented. Raises :class:`~hwcalc.errors.UsageError` where none is known."""
    out = {}
    for node in nodes:
        if node.usd_per_hour is not None:
            own: dict[str, Any] = {"provider": "own", "instance": node.name, "accelerator": node.gpu or "", "count": node.gpus}
            out[node.name] = Price(usd_per_hour=node.usd_per_hour, source=f"price in {node.where}", user=True, **own)
        elif node.rent:
            found = price_of(asked.values, node.whole, node.gpus, node.instance)
            if found is None:
                raise UsageError(
                    f"{node.where}: {node.name} may be rented, and no price of it is known.",
                    hint="Write what a node of it costs, such as price: 20/h.",
                )
            out[node.name] = found
    return out


_Use = tuple[int, int]
"""A kind of the integer program, and the entry of the file on whose nodes it is."""


class _Way(Record):
    """A kind of the integer program: a model on so many GPUs of a node."""

    model: int
    node: int
    replica: Replica


class _Search:
    """The search for the best assignment of one file."""

    def __init__(self, read: FleetFile, models: Sequence[Loaded], priced: Mapping[str, Price]) -> None:
        self.read, self.models, self.priced = read, models, priced
        self.ways: list[_Way] = []
        self.reasons: dict[int, str] = {}
        self.joined: list[tuple[int, int]] = []
        """Types of joined nodes, behind those of the file: the type of each of them, and how many."""
        # An instance and a node of one's own may have the same accelerators: they are one type, by the number of the first.
        alike = [(node.device, node.devices) for node in read.nodes]
        self.types = [alike.index(each) for each in alike]
        for place, model in enumerate(models):
            tell(f"planning {model.wanted.name}")
            joined = not read.conditions.rolling
            planned = {number: replicas(model, read.nodes[number], joined=joined) for number in dict.fromkeys(self.types)}
            self.ways += [
                _Way(model=place, node=self.type_of(number, replica), replica=replica)
                for number, (ways, _) in planned.items()
                for replica in ways
            ]
            whys = [f"{read.nodes[number].name}: {why.rstrip('.')}" for number, (_, why) in planned.items() if why]
            if not any(way.model == place for way in self.ways):
                line = command_line(model.spec, model.request, model=model.wanted.model).text.replace(
                    "kvplan", "kvplan recommend", 1
                )
                self.reasons[place] = f"{'; '.join(dict.fromkeys(whys))}. What would do: {line}"
        asked = [model.wanted.users or Fraction(model.wanted.rate or 0) * PER_REQUEST for model in models]
        self.users = tuple(ceil(each * read.conditions.growth) for each in asked)
        there = [(number, node.count, 0) for number, node in enumerate(read.nodes) if node.count]
        there += [(number, node.rent, self.price(node)) for number, node in enumerate(read.nodes) if node.rent]
        self.pools = self.with_joined([Pool(node=self.types[number], most=most, price=price) for number, most, price in there])
        self.nodes = [there[pool.base(place)][0] for place, pool in enumerate(self.pools)]
        """The entry of the file that each pool is of."""

    def type_of(self, number: int, replica: Replica) -> int:
        """The type of the nodes of a replica: that of the file's, or of so many joined."""
        if replica.nodes == 1:
            return number
        if (number, replica.nodes) not in self.joined:
            self.joined.append((number, replica.nodes))
        return len(self.read.nodes) + self.joined.index((number, replica.nodes))

    def with_joined(self, pools: Sequence[Pool]) -> list[Pool]:
        """The pools with those of joined nodes of each."""
        return [
            *pools,
            *(
                Pool(node=len(self.read.nodes) + kind, most=pool.most // nodes, price=pool.price * nodes, of=place, joined=nodes)
                for kind, (number, nodes) in enumerate(self.joined)
                for place, pool in enumerate(pools)
                if pool.node == number and pool.most >= nodes
            ),
        ]

    def price(self, node: NodeType) -> int:
        """The price of a node in whole parts of a dollar, at least one."""
        return max(1, round(self.priced[node.name].usd_per_hour * _PER_USD))

    def problem(self, pools: Sequence[Pool]) -> Problem:
        """The integer program: nodes and replicas in GPUs, or in parts of one if a replica takes that."""
        conditions = self.read.conditions
        unit = gcd(PARTS, *(way.replica.units for way in self.ways))
        devices = [node.devices for node in self.read.nodes]
        devices += [devices[number] * nodes for number, nodes in self.joined]
        return Problem(
            users=self.users,
            units=tuple(each * PARTS // unit for each in devices),
            kinds=tuple(
                Kind(model=way.model, node=way.node, units=way.replica.units // unit, users=way.replica.users)
                for way in self.ways
            ),
            pools=tuple(pools),
            survive=conditions.survive,
            rolling=conditions.rolling,
        )

    def answer(self) -> Planned:
        """The best assignment whose every replica is as its own plan says."""
        plans: dict[_Use, Plan] = {}
        while True:
            tell("placing replicas")
            problem = self.problem(self.pools)
            try:
                assignment, undecided = assign(problem), False
            except UndecidedError:
                assignment, undecided = None, True
            found = assign(problem, SECONDS / 2, elastic=True) if assignment is None else assignment
            assert found is not None, "an elastic program leaves users without a replica"
            used = sorted({(kind, self.nodes[node.pool]) for node in found.nodes for kind in node.replicas})
            plans |= {use: self.plan(use) for use in used if use not in plans}
            broken = {kind: _sure_users(plans[kind, number]) for kind, number in used if not _is_sure(plans[kind, number])}
            if not broken:
                additions = () if assignment is not None else self.additions()
                notes = (_UNDECIDED,) if undecided else () if assignment or additions or self.reasons else (_TOO_MUCH,)
                return self.told(problem, found, additions, {use: plans[use] for use in used}, notes)
            plans = {use: plan for use, plan in plans.items() if use[0] not in broken}
            for kind, sure in broken.items():
                way = self.ways[kind]
                replica = replace(way.replica, users=min(sure, way.replica.users - 1))
                self.ways[kind] = replace(way, replica=replica)

    def options(self, use: _Use) -> dict[str, Any]:
        """The options of a plan that are a replica's own: its hardware, its layout, its users."""
        kind, number = use
        replica = self.ways[kind].replica
        serves: dict[str, float] = {"batch": replica.users}
        if self.models[self.ways[kind].model].wanted.rate is not None:
            serves = {"rate": replica.users / PER_REQUEST}
        return {**self.read.nodes[number].hardware, "gpus": 1, **replica.options, **serves}

    def plan(self, use: _Use) -> Plan:
        model = self.models[self.ways[use[0]].model]
        return plan_model(model.spec, advise=False, **{**model.request, **self.options(use)})

    def additions(self) -> tuple[Rented, ...]:
        """The nodes of the file's types with which all users would be served, for the least money; without all prices the fewest GPUs, with a price if it may be."""
        nodes = self.read.nodes
        priced = all(node.name in self.priced for node in nodes)
        more = [
            Pool(
                node=self.types[number],
                most=_ANY,
                price=self.price(node) if priced else _ANY * node.gpus + (node.name not in self.priced),
            )
            for number, node in enumerate(nodes)
        ]
        free = [Pool(node=pool.node, most=pool.most, price=0) for pool in self.pools if pool.of is None]
        pools = self.with_joined([*free, *more])
        try:
            found = None if self.reasons else assign(self.problem(pools), SECONDS / 2)
        except UndecidedError:
            found = None
        if found is None:
            return ()
        counts = Counter[int]()
        for node in found.nodes:
            pool = pools[node.pool]
            counts[pool.base(node.pool) - len(free)] += pool.joined
        return tuple(self.rented(number, count) for number, count in sorted(counts.items()) if number >= 0)

    def rented(self, number: int, count: int) -> Rented:
        node = self.read.nodes[number]
        price = self.priced.get(node.name)
        return Rented(node=node.name, count=count, usd_per_hour=None if price is None else float(price.usd_per_hour * count))

    def told(
        self,
        problem: Problem,
        found: Assignment,
        additions: tuple[Rented, ...],
        plans: Mapping[_Use, Plan],
        notes: tuple[Note, ...],
    ) -> Planned:
        """The answer in words and numbers of the file."""
        nodes, pools, conditions = self.read.nodes, self.pools, self.read.conditions
        counts: Counter[_Use] = Counter()
        for node in found.nodes:
            counts.update({(kind, self.nodes[node.pool]): count for kind, count in node.replicas.items()})
        order = {use: place for place, use in enumerate(plans)}
        alike = Counter(
            (node.pool, tuple(node.replicas.items())) for node in found.nodes if node.replicas or pools[node.pool].price
        )
        in_use = [
            NodesInUse(
                node=nodes[self.nodes[pool]].name,
                rented=pools[pool].price > 0,
                count=count * pools[pool].joined,
                joined=pools[pool].joined,
                gpus=nodes[self.nodes[pool]].devices,
                mig=nodes[self.nodes[pool]].mig,
                gpus_used=sum(self.ways[kind].replica.units * number for kind, number in replicas) / PARTS / pools[pool].joined,
                holds=tuple(Held(group=order[kind, self.nodes[pool]], replicas=number) for kind, number in replicas),
            )
            for (pool, replicas), count in sorted(alike.items())
        ]
        rented = Counter(
            self.nodes[node.pool] for node in found.nodes if pools[node.pool].price for _ in range(pools[node.pool].joined)
        )
        rent = tuple(self.rented(number, count) for number, count in sorted(rented.items()))
        usd = sum(self.priced[nodes[number].name].usd_per_hour * count for number, count in rented.items())
        parts = [1 if model.wanted.rate is None else PER_REQUEST for model in self.models]
        planned, every, after, lacking = (
            [users if of == 1 else users / of for users, of in zip(each, parts, strict=True)]
            for each in (self.users, served(problem, found.nodes, 0), served(problem, found.nodes), found.unserved)
        )
        models = [
            FleetModel(
                name=model.wanted.name,
                model=model.spec.id,
                users=model.wanted.users or model.wanted.rate or 0,
                planned_users=planned[place],
                replicas=sum(count for (kind, _), count in counts.items() if self.ways[kind].model == place),
                served=every[place],
                served_after_failure=after[place],
                unserved=lacking[place],
                reason=self.reasons.get(place, ""),
                rate=model.wanted.rate,
            )
            for place, model in enumerate(self.models)
        ]
        fleet = Fleet(
            schema_version=SCHEMA_VERSION,
            kvplan_version=__version__,
            holds=not any(found.unserved),
            optimal=found.proven,
            survive=conditions.survive,
            growth=float(conditions.growth),
            rolling=conditions.rolling,
            usd_per_hour=float(usd),
            usd_per_month=float(usd * HOURS_PER_MONTH),
            usd_per_hour_least=float(usd) if found.bound >= found.money else min(float(usd), found.bound / _PER_USD),
            models=tuple(models),
            groups=tuple(self.group(use, counts[use], plan) for use, plan in plans.items()),
            nodes=tuple(in_use),
            left=tuple(self.left(in_use)),
            rent=rent,
            prices=tuple(
                NodePrice(
                    node=name,
                    usd_per_hour=float(price.usd_per_hour),
                    date=None if price.date is None else price.date.isoformat(),
                    source=price.origin(),
                )
                for name, price in self.priced.items()
            ),
            additions=additions,
            notes=(*notes, *self.notes()),
        )
        return Planned(fleet=fleet, plans=tuple(plans.values()))

    def group(self, use: _Use, count: int, plan: Plan) -> ReplicaGroup:
        way, fit, request = self.ways[use[0]], plan.fit, plan.request
        model, node = self.models[way.model], self.read.nodes[use[1]]
        assert fit is not None, "a replica is planned on hardware"
        line = command_line(model.spec, model.request, model=model.wanted.model).changed(**self.options(use))
        return ReplicaGroup(
            model=model.wanted.name,
            node=node.name,
            gpu=node.device.id,
            gpus=request.tp * request.pp * request.dp,
            nodes=way.replica.nodes,
            gpu_share=min(1.0, way.replica.units / PARTS),
            **{name: getattr(request, name) for name in Layout.__struct_fields__},
            replicas=count,
            users_each=request.batch,
            rate_each=None if model.wanted.rate is None else way.replica.users / PER_REQUEST,
            engine=request.engine,
            engine_version=request.engine_version,
            weights=request.weights,
            kv_dtype=request.kv_dtype,
            needed_high_bytes=fit.needed_high_bytes,
            usable_bytes=fit.usable_bytes,
            ttft_s=None if plan.within is None else plan.within.at_batch.ttft_s.expected,
            itl_s=None if plan.within is None else plan.within.at_batch.itl_s.expected,
            command=line.text,
        )

    def left(self, in_use: Sequence[NodesInUse]) -> Iterator[LeftOver]:
        for node in self.read.nodes:
            own = [each for each in in_use if each.node == node.name]
            idle = node.count - sum(each.count for each in own if not each.rented)
            free = sum(each.count * (each.gpus - each.gpus_used) for each in own)
            if idle or free:
                yield LeftOver(node=node.name, idle=idle, free_gpus=free, mig=node.mig)

    def notes(self) -> Iterator[Note]:
        for model in self.models:
            yield from (Note(code=note.code, message=f"{model.wanted.name}: {note.message}") for note in model.spec.warnings)


def _is_sure(plan: Plan) -> bool:
    """True if the plan says that it fits, and within its limits, for sure."""
    return plan.fit is not None and plan.fit.verdict is Verdict.FITS and (plan.within is None or plan.within.holds_low is True)


def _sure_users(plan: Plan) -> int:
    """The users that a plan says are sure, or the requests in a second."""
    if plan.within is not None and plan.within.arrivals is not None:
        return int((plan.within.arrivals.most_rate_low or 0) * PER_REQUEST)
    most = 0 if plan.fit is None else plan.fit.max_batch or 0
    return most if plan.within is None else min(most, plan.within.users_low or 0)
