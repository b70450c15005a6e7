"""The assignment of replicas to nodes as an integer program: all users served, for the least money, on the fewest nodes, on the fewest GPUs.

It knows nothing of models and GPUs: a node has units, a replica takes some of them and serves some users. HiGHS solves it (the extra
``fleet``), in one thread and with one seed, so that a fleet has the same answer whenever the search comes to its end.

Sizes of replicas on a node divide each other, but for the one that takes the whole node. Then equal nodes need no names: replicas lie on
``n`` nodes exactly if, for each size, those at least as large count no more of it than the nodes have room for, and any node with room will
do if the largest are placed first. Only where a failure must be survived it matters which replicas share a node. Then the program without
names says how little an answer can cost, replicas are spread evenly, and what that leaves open is decided with a column for each node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from math import ceil
from time import monotonic
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.errors import KvplanError, UsageError
from hwcalc.formulas.record import Record

SECONDS: Final = 3.5
"""The longest that a search goes on. What it has come to then is the answer, with its gap."""
_ABOUT: Final = 0.005
"""Share of the costs by which an attempt may be dearer than the best of its kind."""
_ROUNDS: Final = 6
"""Attempts to spread replicas so that a failure is survived."""
_MOST_NAMED: Final = 150
"""Nodes that have columns of their own at most."""


class Kind(Record):
    """A way to run one of the models: it takes ``units`` of a node of this type, and serves ``users``."""

    model: int
    node: int
    units: int
    users: int


class Pool(Record):
    """Nodes of one type: ``most`` of them are there, or may be rented at ``price`` each. What is owned has the price 0."""

    node: int
    most: int
    price: int


class Problem(Record):
    """Models with the users that each has, and what they may run on; ``units`` are those of a node of each type.

    Any ``survive`` nodes may fail, and the others serve all users. With ``rolling`` there is room for a replica more of any kind that is used,
    one at a time.
    """

    users: tuple[int, ...]
    units: tuple[int, ...]
    kinds: tuple[Kind, ...]
    pools: tuple[Pool, ...]
    survive: int = 0
    rolling: bool = False


class UndecidedError(KvplanError):
    """Time ended, and whether there is an answer is open."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no answer within {seconds:g} s.", hint="Name fewer nodes or models, or leave out --survive.")


class Placed(Record):
    """A node of a pool, with the number of replicas of each kind, by its index; so many units are kept ``spare`` for an update."""

    pool: int
    replicas: Mapping[int, int]
    spare: int = 0


class Assignment(Record):
    """Nodes with replicas. ``unserved`` are the users of each model for whom there is no replica, none where the nodes are enough.

    ``bound`` is the least ``money`` that any answer takes. ``proven`` says that the search came to its end: no answer is better.
    """

    nodes: tuple[Placed, ...]
    unserved: tuple[int, ...]
    money: int
    bound: int
    proven: bool


def served(problem: Problem, nodes: Sequence[Placed], failed: int | None = None) -> tuple[int, ...]:
    """The users of each model that these nodes serve once so many have failed, by default ``survive``: those that serve most of its users."""
    failed, kinds, totals = problem.survive if failed is None else failed, problem.kinds, []
    for model in range(len(problem.users)):
        each = sorted(
            sum(kinds[kind].users * count for kind, count in node.replicas.items() if kinds[kind].model == model)
            for node in nodes
        )
        totals.append(sum(each[: max(0, len(each) - failed)]))
    return tuple(totals)


def assign(problem: Problem, seconds: float = SECONDS, *, elastic: bool = False) -> Assignment | None:
    """The best assignment that is found in so many seconds; ``None`` if there is none.

    With ``elastic`` there always is one: it leaves as few users as can be without a replica. Raises
    :class:`~hwcalc.errors.UsageError` without HiGHS, and :class:`UndecidedError` where time ends without an answer.
    """
    problem, began = _without_dominated(problem), monotonic()
    end = began + seconds
    # Equal nodes without names, and no room for updates: a bound, and something to begin with.
    hard = problem.survive > 0 or problem.rolling
    plain = _Program(replace(problem, rolling=False), _by_pool(problem), elastic=elastic)
    first = plain.solve(began + seconds / 4 if hard else end)
    if first is None:
        if plain.cut_short:
            raise UndecidedError(seconds)
        return None
    made = plain.assignment(first)
    if not hard:
        return made
    start = made if elastic else _spread(problem, made, began + seconds * 2 / 3)
    if start is not None and not elastic and first.proven and _value(problem, start) == _value(problem, made):
        # As good as without the conditions.
        return replace(start, proven=True)
    bins = _by_node(problem, None if elastic or start is None else start.money) if problem.survive else _by_pool(problem)
    if len(bins) <= _MOST_NAMED:
        whole = _Program(problem, bins, elastic=elastic, least=first.bound)
        second = whole.solve(end, start)
        if second is not None:
            return whole.assignment(second)
        if start is None and not whole.cut_short:
            return None
    if start is None:
        raise UndecidedError(seconds)
    return start


def _value(problem: Problem, assignment: Assignment) -> tuple[int, int, int]:
    """What is to be small: the money, the number of nodes of one's own in use, and the units of all replicas."""
    used = [node for node in assignment.nodes if node.replicas]
    units = sum(problem.kinds[kind].units * count for node in used for kind, count in node.replicas.items())
    return assignment.money, sum(not problem.pools[node.pool].price for node in used), units


def _without_dominated(problem: Problem) -> Problem:
    """The problem with no users for kinds in whose place smaller ones on as many units serve as many."""

    def beaten(kind: Kind) -> bool:
        return any(
            (other.model, other.node) == (kind.model, kind.node)
            and kind.units // other.units * other.users >= kind.users
            and (other.units, other.users) != (kind.units, kind.users)
            for other in problem.kinds
        )

    return replace(problem, kinds=tuple(replace(kind, users=0) if beaten(kind) else kind for kind in problem.kinds))


def _most_replicas(problem: Problem, kind: Kind) -> int:
    """As many replicas of a kind as an answer has that could spare none: for all users, and on the nodes that fail."""
    return -(-problem.users[kind.model] // kind.users) + problem.survive * (problem.units[kind.node] // kind.units)


class _Bin(Record):
    """Equal nodes of a pool that the same columns describe: all of them, or one."""

    pool: int
    copies: int


def _by_pool(problem: Problem) -> tuple[_Bin, ...]:
    """All nodes of each pool, as far as an answer that could spare none has them."""
    bins = []
    for place, pool in enumerate(problem.pools):
        least: dict[int, int] = {}
        kinds = [kind for kind in problem.kinds if kind.node == pool.node and kind.users]
        for kind in kinds:
            least[kind.model] = min(kind.users, least.get(kind.model, kind.users))
        enough = sum(-(-problem.users[model] // users) + problem.survive for model, users in least.items())
        bins.append(_Bin(pool=place, copies=min(pool.most, enough + problem.rolling * len(kinds))))
    return tuple(bins)


def _by_node(problem: Problem, money: int | None) -> tuple[_Bin, ...]:
    """Each node by itself: of those for rent as many as this money pays."""
    bins = list[_Bin]()
    for each in _by_pool(problem):
        price = problem.pools[each.pool].price
        bins += [_Bin(pool=each.pool, copies=1)] * (
            each.copies if not price or money is None else min(each.copies, money // price)
        )
    return tuple(bins)


class _Solved(Record):
    """The values of all columns, the money that they cost, the least that any cost, and whether nothing is better."""

    values: tuple[float, ...]
    money: int
    bound: int
    proven: bool


class _Program:
    """The integer program: columns for the replicas in each bin and for its nodes in use, rows for room, users, failures and updates.

    Of a bin of several nodes it is not known what one of them holds: a failure takes what one holds on average, or more.
    """

    def __init__(
        self,
        problem: Problem,
        bins: Sequence[_Bin],
        *,
        elastic: bool = False,
        least: int = 0,
        about: bool = False,
        most: Sequence[int] = (),
    ) -> None:
        self._problem, self._bins, self._columns = problem, bins, 0
        self._highspy = solver()
        self._highs = self._highspy.Highs()
        for name, value in {
            "output_flag": False,
            "threads": 1,
            "random_seed": 0,
            "mip_rel_gap": _ABOUT if about else 0.0,
            "mip_abs_gap": 0.5,
        }.items():
            self._highs.setOptionValue(name, value)
        self.cut_short = False
        """True if the time ended a search."""
        self._used = [self._column(each.copies) for each in bins]
        self._unserved = [self._column(users if elastic else 0) for users in problem.users]
        self._replicas = [
            {
                index: self._column(min(each.copies * (problem.units[kind.node] // kind.units), _most_replicas(problem, kind)))
                for index, kind in enumerate(problem.kinds)
                if kind.users and kind.node == problem.pools[each.pool].node
            }
            for each in bins
        ]
        self._spare = [
            {units: self._column(1) for units in sorted({problem.kinds[index].units for index in of_bin})}
            if problem.rolling
            else {}
            for of_bin in self._replicas
        ]
        for place in range(len(bins)):
            self._add_room(place)
            if place and bins[place] == bins[place - 1] and bins[place].copies == 1:
                self._row({self._used[place - 1]: 1, self._used[place]: -1}, low=0)
        for model in range(len(problem.users)):
            self._add_users(model)
        if problem.rolling:
            self._add_updates()
        for model, limit in enumerate(most):
            for used, of_bin in zip(self._used, self._replicas, strict=True):
                row = {
                    column: problem.kinds[index].users for index, column in of_bin.items() if problem.kinds[index].model == model
                }
                self._row({**row, used: -limit}, high=0)
        prices = [problem.pools[each.pool].price for each in bins]
        self._money = {column: price for column, price in zip(self._used, prices, strict=True) if price}
        if least:
            self._row(self._money, low=least)
        units = {column: problem.kinds[index].units for of_bin in self._replicas for index, column in of_bin.items()}
        more = 1 + sum(problem.units[problem.pools[each.pool].node] * each.copies for each in bins)
        owned = {column: more for column, price in zip(self._used, prices, strict=True) if not price}
        tidy = {} if about and self._money else {**owned, **units}
        self._goals = (dict.fromkeys(self._unserved, 1) if elastic else {}, self._money, tidy)

    def _column(self, most: int, *, whole: bool = True) -> int:
        self._highs.addVar(0, most)
        if whole:
            self._highs.changeColIntegrality(self._columns, self._highspy.HighsVarType.kInteger)
        self._columns += 1
        return self._columns - 1

    def _row(self, entries: Mapping[int, float], low: float | None = None, high: float | None = None) -> None:
        import numpy as np

        endless = self._highspy.kHighsInf
        columns, values = np.fromiter(entries, np.int32), np.fromiter(entries.values(), np.float64)
        self._highs.addRow(-endless if low is None else low, endless if high is None else high, len(entries), columns, values)

    def _add_room(self, place: int) -> None:
        """Rows: for each size, the replicas at least as large count no more of it than the nodes in use have room for.

        A place that is kept spare takes no node of one's own into use, but one that is rented.
        """
        problem, used, copies = self._problem, self._used[place], self._bins[place].copies
        pool = problem.pools[self._bins[place].pool]
        node = problem.units[pool.node]
        replicas = [(problem.kinds[index].units, column) for index, column in self._replicas[place].items()]
        spare = list(self._spare[place].items())
        for rows, rented in ((replicas, True), (replicas + spare, bool(pool.price)))[: 2 if spare else 1]:
            for size in {units for units, _ in rows}:
                room = node // size
                row = {column: float(units // size if units < node else room) for units, column in rows if units >= size}
                if rented:
                    row[used] = -float(room)
                self._row(row, high=0 if rented else room * copies)

    def _add_users(self, model: int) -> None:
        """Rows: all users are served by what is left once the nodes fail that serve most of them."""
        problem, survive, kinds = self._problem, self._problem.survive, self._problem.kinds
        users, unserved = problem.users[model], {self._unserved[model]: 1.0}
        bins = [
            (each.copies, {column: float(kinds[index].users) for index, column in of_bin.items() if kinds[index].model == model})
            for each, of_bin in zip(self._bins, self._replicas, strict=True)
        ]
        every = {column: value for _, row in bins for column, value in row.items()}
        most = sum(copies for copies, row in bins if row)
        if most <= survive:
            self._row(unserved, low=users)
            return
        if survive and all(copies == 1 for copies, _ in bins):
            # The largest of them sum up to the least, over all levels, of survive x level and what is above the level.
            level = self._column(self._highspy.kHighsInf, whole=False)
            lost = {level: -float(survive)}
            for _, row in bins:
                if row:
                    above = {self._column(self._highspy.kHighsInf, whole=False): -1.0} if survive > 1 else {}
                    lost |= above
                    self._row({**row, **above, level: -1.0}, high=0)
            self._row({**every, **lost, **unserved}, low=users)
        # Those that fail serve at least as much as others on average.
        average = 1 - survive / most
        self._row({**{column: average * value for column, value in every.items()}, **unserved}, low=users)

    def _add_updates(self) -> None:
        """Rows: for a kind that is used, a place at least as large is kept spare on a node of its type."""
        problem = self._problem
        for index, kind in enumerate(problem.kinds):
            columns = {of_bin[index]: 1.0 for of_bin in self._replicas if index in of_bin}
            most = -float(_most_replicas(problem, kind)) if kind.users else 0.0
            spare = {
                column: most
                for each, of_bin in zip(self._bins, self._spare, strict=True)
                for units, column in of_bin.items()
                if units >= kind.units and problem.pools[each.pool].node == kind.node
            }
            if columns:
                self._row({**columns, **spare}, high=0)

    def solve(self, end: float, start: Assignment | None = None) -> _Solved | None:
        """The best values until the clock says ``end``: fewest users unserved, least money, fewest nodes of one's own, fewest units.

        ``None`` if there are none, or where none are known in time.
        """
        values, money, bound, proven = self._started(start), 0, 0, True
        known = False
        if values is None and self._money and not self._goals[0]:
            values = self._without_rent(end)
        for costs in self._goals:
            if not costs:
                continue
            found = self._minimized(costs, end, values)
            if found is None:
                proven = False
                break
            values, value, least = found
            known = True
            if costs is self._money:
                money, bound = value, min(value, least)
            proven = proven and least >= value
            self._row({column: float(cost) for column, cost in costs.items()}, high=value)
        return _Solved(values=tuple(values or ()), money=money, bound=bound, proven=proven) if known else None

    def _without_rent(self, end: float) -> list[float] | None:
        """The values of some answer that rents nothing; ``None`` if there is none, or none is seen at once."""
        tops = {column: self._highs.getLp().col_upper_[column] for column in self._money}
        for column in tops:
            self._highs.changeColBounds(column, 0, 0)
        found = self._minimized({}, monotonic() + (end - monotonic()) / 4, None)
        for column, top in tops.items():
            self._highs.changeColBounds(column, 0, top)
        self.cut_short = False
        return None if found is None else found[0]

    def _started(self, start: Assignment | None) -> list[float] | None:
        """The values of an assignment, as far as they are whole numbers; the rest follows from these."""
        if start is None:
            return None
        values, left = [0.0] * self._columns, list(start.nodes)
        for place, each in enumerate(self._bins):
            nodes = [node for node in left if node.pool == each.pool][: each.copies]
            left = [node for node in left if node.pool != each.pool] + [node for node in left if node.pool == each.pool][
                each.copies :
            ]
            rented = self._problem.pools[each.pool].price > 0
            values[self._used[place]] = float(sum(rented or bool(node.replicas) for node in nodes))
            for node in nodes:
                for index, count in node.replicas.items():
                    values[self._replicas[place][index]] += float(count)
                kept = max((units for units in self._spare[place] if units <= node.spare), default=0)
                if kept:
                    values[self._spare[place][kept]] = 1.0
        for column, users in zip(self._unserved, start.unserved, strict=True):
            values[column] = float(users)
        return values

    def _minimized(
        self, costs: Mapping[int, float], end: float, start: list[float] | None
    ) -> tuple[list[float], int, int] | None:
        """The values with the least costs, these costs, and the least that they can be."""
        import numpy as np

        highs, columns = self._highs, np.arange(self._columns, dtype=np.int32)
        highs.changeColsCost(self._columns, columns, np.array([costs.get(column, 0) for column in range(self._columns)], float))
        highs.setOptionValue("time_limit", highs.getRunTime() + max(0.2, end - monotonic()))
        if start is not None:
            solution = self._highspy.HighsSolution()
            solution.col_value = start
            highs.setSolution(solution)
        highs.run()
        info, optimal = highs.getInfo(), highs.getModelStatus() == self._highspy.HighsModelStatus.kOptimal
        if not optimal:
            self.cut_short = self.cut_short or highs.getModelStatus() == self._highspy.HighsModelStatus.kTimeLimit
            if info.primal_solution_status != self._highspy.SolutionStatus.kSolutionStatusFeasible:
                return None
        value = round(info.objective_function_value)
        # The least whole number that is not below the bound, but for its rounding.
        bound = max(0.0, info.mip_dual_bound)
        return list(highs.getSolution().col_value), value, min(value, ceil(bound - 1e-6 - 1e-9 * bound))

    def assignment(self, solved: _Solved) -> Assignment:
        """The nodes with their replicas."""
        problem, nodes = self._problem, list[Placed]()
        for place, each in enumerate(self._bins):
            pool, counts = problem.pools[each.pool], dict[int, int]()
            for index, column in self._replicas[place].items():
                counts[index] = round(solved.values[column])
            spare = [units for units, column in self._spare[place].items() if round(solved.values[column])]
            used = round(solved.values[self._used[place]])
            nodes += _packed(problem, each.pool, used, used if pool.price else each.copies, counts, spare)
        left = served(problem, nodes)
        return Assignment(
            nodes=tuple(nodes),
            unserved=tuple(max(0, users - each) for users, each in zip(problem.users, left, strict=True)),
            money=solved.money,
            bound=solved.bound,
            proven=solved.proven,
        )


def _packed(problem: Problem, pool: int, used: int, there: int, counts: Mapping[int, int], spare: Sequence[int]) -> list[Placed]:
    """Replicas on the ``used`` nodes of those that are ``there``: the largest first, each where its model has fewest users.

    Places that are kept ``spare`` lie on nodes that are not in use, as far as there are any.
    """
    whole, kinds = problem.units[problem.pools[pool].node], problem.kinds
    free, kept = [whole] * there, [0] * there
    held = [Counter[int]() for _ in range(there)]
    users = [Counter[int]() for _ in range(there)]
    items = [(kinds[index].units, kinds[index].users, index) for index, count in counts.items() for _ in range(count)]
    for units, serves, index in sorted(
        [*items, *((units, 0, -1) for units in spare)], key=lambda item: (-item[0], -item[1], item[2])
    ):
        if index < 0:
            place = max(place for place in range(there) if free[place] >= units)
            kept[place] = max(kept[place], units)
        else:
            model = kinds[index].model
            place = min((users[place][model], free[place], place) for place in range(used) if free[place] >= units)[2]
            held[place][index] += 1
            users[place][model] += serves
        free[place] -= units
    return [
        Placed(pool=pool, replicas=dict(sorted(replicas.items())), spare=units)
        for place, (replicas, units) in enumerate(zip(held, kept, strict=True))
        if replicas or units or (place < used and problem.pools[pool].price)
    ]


def _spread(problem: Problem, plain: Assignment, end: float) -> Assignment | None:
    """An assignment that survives failures, where a ``plain`` one does not: each model has so many more users as one node may serve of it.

    Where nodes turn out to have more, that is allowed in the next round; what falls short in the end gets replicas where there is room.
    ``None`` if there is not.
    """
    lost = [_most_on_a_node(problem, model) for model in range(len(problem.users))]
    best = _repaired(problem, plain)
    for rounds in range(_ROUNDS, 0, -1):
        users = tuple(users + problem.survive * each for users, each in zip(problem.users, lost, strict=True))
        kinds = tuple(replace(kind, users=kind.users * (kind.users <= lost[kind.model])) for kind in problem.kinds)
        more = replace(problem, users=users, survive=0, rolling=False, kinds=kinds)
        until = monotonic() + (end - monotonic()) / rounds
        program = _Program(more, _by_pool(more), about=True, most=lost)
        solved = program.solve(until)
        made = None if solved is None else program.assignment(solved)
        if made is None:
            break
        repaired = _repaired(problem, made)
        if repaired is not None and (best is None or _value(problem, repaired) < _value(problem, best)):
            best = replace(repaired, bound=plain.bound)
        short = [each < wanted for each, wanted in zip(served(problem, made.nodes), problem.users, strict=True)]
        if not any(short) or monotonic() > end:
            break
        every, left = served(problem, made.nodes, 0), served(replace(problem, survive=1), made.nodes)
        lost = [max(one, total - each) for one, total, each in zip(lost, every, left, strict=True)]
    return best


def _most_on_a_node(problem: Problem, model: int) -> int:
    """The users of a model that one node may serve at most, so that its replicas take few units although a failure takes so many.

    Few users on a node need small replicas, which take more units for each user; of many users on a node a failure takes many.
    """
    users = problem.users[model]
    kinds = [kind for kind in problem.kinds if kind.model == model and kind.users]
    best = {node: max(kind.users / kind.units for kind in kinds if kind.node == node) for node in {kind.node for kind in kinds}}

    def units(most: int) -> float:
        """The units that are needed, in times of those without failures, on the average of the types of nodes."""
        total = 0.0
        for node, each in best.items():
            rates = [kind.users / kind.units for kind in kinds if kind.node == node and kind.users <= most]
            total += (users + problem.survive * most) / users * each / max(rates) if rates else 1 + problem.survive * 2.0
        return total / len(best)

    return min({kind.users for kind in kinds}, key=lambda most: (units(most), most), default=0)


def _repaired(problem: Problem, made: Assignment) -> Assignment | None:
    """The assignment with replicas more, one by one, until it survives failures; ``None`` if there is no room for them.

    The next one costs the least money, and then the fewest units for each user that it adds to what a failure leaves.
    """
    filling = _Filling(problem, made)
    kinds = [kind for kind in problem.kinds if kind.users]
    types = [len({kind.node for kind in kinds if kind.model == model}) for model in range(len(problem.users))]
    # Those first that run on few types of nodes.
    models = sorted(range(len(types)), key=lambda model: (types[model], model))
    filling.make_room()
    if not all(filling.serves(model) for model in models):
        return None
    nodes = filling.placed()
    money = sum(problem.pools[node.pool].price for node in nodes)
    return replace(made, nodes=nodes, money=money, unserved=(0,) * len(models), proven=False)


class _Filling:
    """Nodes that are filled with more replicas, and empty ones of each pool."""

    def __init__(self, problem: Problem, made: Assignment) -> None:
        self.problem = problem
        nodes = [*made.nodes]
        there = Counter(node.pool for node in nodes)
        for place, pool in enumerate(problem.pools):
            nodes += [Placed(pool=place, replicas={})] * min(pool.most - there[place], _MOST_NAMED)
        self.nodes = nodes
        self.replicas = [Counter(node.replicas) for node in nodes]
        self.pools = [problem.pools[node.pool] for node in nodes]
        self.spare = [node.spare for node in nodes]
        taken = [sum(problem.kinds[index].units * count for index, count in node.replicas.items()) for node in nodes]
        self.free = [
            problem.units[pool.node] - units - node.spare for pool, units, node in zip(self.pools, taken, nodes, strict=True)
        ]

    def cost(self, places: Collection[int]) -> int:
        """The price of those of these nodes that nothing is on yet."""
        return sum(self.pools[place].price for place in places if not self.replicas[place] and not self.spare[place])

    def room(self, kind: Kind, place: int | None = None) -> tuple[int, ...] | None:
        """The node that has to keep room for updates of a kind, once one comes to ``place``: none if there is such room, ``None`` if it cannot be."""
        same = [each for each, pool in enumerate(self.pools) if pool.node == kind.node]
        if not self.problem.rolling or any(self.spare[each] >= kind.units for each in same):
            return ()
        fitting = (each for each in same if self.free[each] - kind.units * (each == place) >= kind.units)
        best = min(fitting, key=lambda each: (self.cost([each]), each), default=None)
        return None if best is None else (best,)

    def keep(self, places: Collection[int], units: int) -> None:
        """Keep room on these nodes."""
        for place in places:
            self.spare[place] += units
            self.free[place] -= units

    def make_room(self) -> None:
        """Keep room for updates of the kinds that are used; replicas of a kind for which there can be none are taken away."""
        used = {index for each in self.replicas for index in each}
        for index in sorted(used, key=lambda index: (-self.problem.kinds[index].units, index)):
            kind = self.problem.kinds[index]
            places = self.room(kind)
            self.keep(places or (), kind.units)
            for place, each in enumerate(self.replicas) if places is None else ():
                self.free[place] += kind.units * each.pop(index, 0)

    def serves(self, model: int) -> bool:
        """True if a failure leaves all users of a model served, once there are more replicas of it."""
        problem, users = self.problem, self.problem.users[model]
        kinds = [(index, kind) for index, kind in enumerate(problem.kinds) if kind.model == model and kind.users]
        held = [sum(kind.users * each[index] for index, kind in kinds) for each in self.replicas]
        while (lack := users - sum(sorted(held)[: len(held) - problem.survive])) > 0:
            best: tuple[int, float, int, int, tuple[int, ...]] | None = None
            for index, kind in kinds:
                empty: set[int] = set()
                for place, (pool, free) in enumerate(zip(self.pools, self.free, strict=True)):
                    if pool.node != kind.node or free < kind.units:
                        continue
                    unused = not self.replicas[place] and not self.spare[place]
                    kept = None if unused and self.nodes[place].pool in empty else self.room(kind, place)
                    empty |= {self.nodes[place].pool} if unused else set()
                    if kept is not None:
                        grown = max(0, held[place] + kind.users - max(held))
                        rate = kind.units * (1 + grown / users) / min(kind.users, lack)
                        way = (self.cost({place, *kept}), rate, place, index, kept)
                        best = way if best is None else min(best, way)
            if best is None:
                return False
            _, _, place, index, kept = best
            self.keep(kept, problem.kinds[index].units)
            self.replicas[place][index] += 1
            self.free[place] -= problem.kinds[index].units
            held[place] += problem.kinds[index].users
        return True

    def placed(self) -> tuple[Placed, ...]:
        """The nodes that hold something, or are kept for updates."""
        return tuple(
            Placed(pool=node.pool, replicas=dict(sorted(replicas.items())), spare=spare)
            for node, replicas, spare in zip(self.nodes, self.replicas, self.spare, strict=True)
            if replicas or spare
        )


def solver() -> Any:
    """The solver's module. Raises :class:`~hwcalc.errors.UsageError` if it is not installed."""
    try:
        import highspy
    except ImportError as error:
        raise UsageError(
            "fleet needs highspy, which is not installed.", hint="Install it: pip install 'hwcalc[fleet]'"
        ) from error
    return highspy
