"""The assignment of replicas to nodes as an integer program: all users served, for the least money, on the fewest joined nodes,
the fewest nodes, the fewest GPUs, and by the fewest replicas.

It knows nothing of models and GPUs: a node has units, a replica takes some of them and serves some users. HiGHS solves it (the extra
``fleet``), in one thread and with one seed, so that a fleet has the same answer whenever the search comes to its end.

Sizes of replicas on a node divide each other, but for the one that takes the whole node. Then equal nodes need no names: replicas lie on
``n`` nodes exactly if, for each size, those at least as large count no more of it than the nodes have room for, and any node with room will
do if the largest are placed first. Only where a failure must be survived it matters which replicas share a node. Then the program without
names says how little an answer can cost, and one that limits what a node serves of each model spreads the replicas. Of few nodes, each then
has columns of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import ceil
from operator import add
from time import monotonic
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.errors import KvplanError, UsageError
from hwcalc.formulas.record import Record

SECONDS: Final = 5.0
"""The longest that a search goes on. What it has come to then is the answer, with its gap."""
_ATTEMPTS: Final = 3
"""To spread replicas so that a failure is survived."""
_MOST_NAMED: Final = 40
"""Nodes that have columns of their own at most."""
_STEPS: Final = 8
"""Numbers of users among which the most that a node serves of a model is chosen."""


class Kind(Record):
    """A way to run one of the models: it takes ``units`` of a node of this type, and serves ``users``."""

    model: int
    node: int
    units: int
    users: int


class Pool(Record):
    """Nodes of one type: ``most`` of them are there, or may be rented at ``price`` each. What is owned has the price 0.

    Of the nodes of the pool ``of``, each of these is so many ``joined``, which hold a replica together and fail together.
    """

    node: int
    most: int
    price: int
    of: int | None = None
    joined: int = 1

    def base(self, own: int) -> int:
        """The pool whose nodes these are, where its ``own`` number is this."""
        return own if self.of is None else self.of


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

    ``bound`` is the least ``money`` that any answer takes. ``proven`` says that no answer is better but for the number of its replicas.
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
    survive = problem.survive
    pooled = _Program(problem, _by_type(problem), elastic=elastic)
    first = pooled.solve(began + seconds / 4 if survive else end, tidy=not survive)
    if first is None and not pooled.cut_short:
        return None
    made = None if first is None else pooled.assignment(first)
    if not survive:
        if made is None:
            raise UndecidedError(seconds)
        return made
    bound = 0 if made is None else made.bound
    few = len(_by_node(problem, None)) <= _MOST_NAMED
    best = None if made is None or elastic else _filled(problem, made)
    best = _spread(problem, best, bound, end - few * seconds / 2, elastic=elastic)
    if few:
        bins = _by_node(problem, None if elastic or best is None else best.money)
        named = _Program(problem, bins, elastic=elastic, least=bound)
        second = named.solve(end, best)
        if second is not None:
            return named.assignment(second)
        if best is None and not named.cut_short:
            return None
    if best is None:
        raise UndecidedError(seconds)
    return best


def _spread(problem: Problem, best: Assignment | None, bound: int, end: float, *, elastic: bool) -> Assignment | None:
    """An assignment of which the most users of each model that a node serves are chosen first; ``best`` if none is cheaper in time.

    There may be no room to lay replicas so: what that leaves without a replica gets more, where they cost least, and in the next attempt there
    are so many users more.
    """
    more: tuple[int, ...] = (0,) * len(problem.users)
    for _ in range(_ATTEMPTS):
        program = _Program(problem, _by_type(problem), elastic=elastic, least=bound, spread=more)
        solved = program.solve(end - (end - monotonic()) / 3)
        if solved is None:
            break
        made = replace(program.assignment(solved), bound=bound, proven=False)
        short = made.unserved
        filled = made if elastic or not any(short) else _filled(problem, made)
        if filled is not None and (best is None or filled.money < best.money):
            best = filled
        if elastic or not any(short) or monotonic() > end:
            break
        more = tuple(map(add, more, short))
    return best


def _filled(problem: Problem, made: Assignment) -> Assignment | None:
    """The assignment with more replicas until all users are served; ``None`` if there is no room for them.

    The next one costs the least money, and then the fewest units for each user that it adds to what a failure leaves.
    """
    nodes, there = list(made.nodes), Counter(node.pool for node in made.nodes)
    for place, pool in enumerate(problem.pools):
        nodes += [Placed(pool=place, replicas={})] * min(pool.most - there[place], _MOST_NAMED)
    pools = [problem.pools[node.pool] for node in nodes]
    # For updates of the kinds in use there is room.
    used = {index for node in made.nodes for index in node.replicas}
    kinds = {index: kind for index, kind in enumerate(problem.kinds) if kind.users and (index in used or not problem.rolling)}
    held = [Counter(node.replicas) for node in nodes]
    for model, users in enumerate(problem.users):
        while True:
            each = [
                sum(kinds[index].users * count for index, count in of_node.items() if kinds[index].model == model)
                for of_node in held
            ]
            lack = users - sum(sorted(each)[: max(0, len(each) - problem.survive)])
            if lack <= 0:
                break
            free = [
                problem.units[pool.node] - node.spare - sum(kinds[index].units * count for index, count in of_node.items())
                for pool, node, of_node in zip(pools, nodes, held, strict=True)
            ]
            taken = Counter[int]()
            for pool, node, of_node in zip(pools, nodes, held, strict=True):
                taken[pool.base(node.pool)] += pool.joined if of_node or node.spare else 0
            ways = [
                (
                    0 if held[place] or nodes[place].spare else pool.price,
                    kind.units * (1 + max(0, each[place] + kind.users - max(each)) / users) / min(kind.users, lack),
                    place,
                    index,
                )
                for place, pool in enumerate(pools)
                for index, kind in kinds.items()
                if (kind.model, kind.node) == (model, pool.node) and kind.units <= free[place]
                if held[place]
                or nodes[place].spare
                or taken[pool.base(nodes[place].pool)] + pool.joined <= problem.pools[pool.base(nodes[place].pool)].most
            ]
            if not ways:
                return None
            _, _, place, index = min(ways)
            held[place][index] += 1
    placed = [
        replace(node, replicas=dict(sorted(of_node.items())))
        for node, of_node in zip(nodes, held, strict=True)
        if of_node or node.spare
    ]
    money = sum(problem.pools[node.pool].price for node in placed)
    return replace(made, nodes=tuple(placed), money=money, unserved=(0,) * len(problem.users), proven=False)


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
    """Nodes of a type that the same columns describe: so many of each pool, all of them or a single one."""

    node: int
    pools: Mapping[int, int]

    @property
    def copies(self) -> int:
        return sum(self.pools.values())


def _by_type(problem: Problem) -> tuple[_Bin, ...]:
    """All nodes of each type, as far as an answer that could spare none has them."""
    bins = []
    for node in range(len(problem.units)):
        least: dict[int, int] = {}
        kinds = [kind for kind in problem.kinds if kind.node == node and kind.users]
        for kind in kinds:
            least[kind.model] = min(kind.users, least.get(kind.model, kind.users))
        enough = sum(-(-problem.users[model] // users) + problem.survive for model, users in least.items())
        enough += problem.rolling * len(kinds)
        pools = {place: min(pool.most, enough) for place, pool in enumerate(problem.pools) if pool.node == node}
        bins += [_Bin(node=node, pools=pools)] if pools else []
    return tuple(bins)


def _by_node(problem: Problem, money: int | None) -> tuple[_Bin, ...]:
    """Each node by itself: of those for rent as many as this money pays."""
    bins = list[_Bin]()
    for each in _by_type(problem):
        for pool, copies in each.pools.items():
            price = problem.pools[pool].price
            paid = copies if not price or money is None else min(copies, money // price)
            bins += [_Bin(node=each.node, pools={pool: 1})] * paid
    return tuple(bins)


class _Solved(Record):
    """The values of all columns, the money that they cost, the least that any cost, and whether nothing is better."""

    values: tuple[float, ...]
    money: int
    bound: int
    proven: bool


class _Program:
    """The integer program: columns for the replicas in each bin and for its nodes in use, rows for room, users, failures and updates.

    Of a bin of several nodes it is not known what one of them holds: a failure takes what one holds on average, or more. With ``spread``,
    users more of each model, a column says how many nodes hold a kind so many times, and a failure takes as many users as any of these serves.
    """

    def __init__(
        self,
        problem: Problem,
        bins: Sequence[_Bin],
        *,
        elastic: bool = False,
        least: int = 0,
        spread: Sequence[int] = (),
    ) -> None:
        self._problem, self._bins = problem, bins
        self._most: list[float] = []
        self._spread = spread
        self._highspy = solver()
        self._highs = self._highspy.Highs()
        options = {"output_flag": False, "threads": 1, "random_seed": 0, "mip_rel_gap": 0.0, "mip_abs_gap": 0.5}
        for name, value in options.items():
            self._highs.setOptionValue(name, value)
        self.cut_short = False
        """True if the time ended a search."""
        self._used = [{pool: self._column(copies) for pool, copies in each.pools.items()} for each in bins]
        self._unserved = [self._column(users if elastic else 0) for users in problem.users]
        self._replicas = [self._columns_of(each) for each in bins]
        self._spare = [
            {units: self._column(1) for units in sorted({problem.kinds[index].units for index, _ in of_bin})}
            if problem.rolling
            else {}
            for of_bin in self._replicas
        ]
        for place, each in enumerate(bins):
            self._add_room(place)
            if place and each == bins[place - 1] and each.copies == 1:
                self._row(
                    {**dict.fromkeys(self._used[place - 1].values(), 1), **dict.fromkeys(self._used[place].values(), -1)}, low=0
                )
        for joined in {pool.of for pool in problem.pools if pool.of is not None}:
            self._add_joined(joined)
        for model in range(len(problem.users)):
            self._add_users(model)
        if problem.rolling:
            self._add_updates()
        used = [(problem.pools[pool], column) for of_bin in self._used for pool, column in of_bin.items()]
        self._money = {column: pool.price for pool, column in used if pool.price}
        if least:
            self._row(self._money, low=least)
        units = {
            column: problem.kinds[index].units * times for of_bin in self._replicas for (index, times), column in of_bin.items()
        }
        more = 1 + sum(problem.units[each.node] * each.copies for each in bins)
        owned = {column: more * pool.joined for pool, column in used if not pool.price}
        unserved = [dict.fromkeys(self._unserved, 1)] if elastic else []
        together = {column: pool.joined for pool, column in used if pool.joined > 1}
        servers = {column: times for of_bin in self._replicas for (_, times), column in of_bin.items()}
        self._goals: tuple[Mapping[int, int], ...] = (*unserved, self._money)
        self._tidy_goals: tuple[Mapping[int, int], ...] = (*([together] if together else []), {**owned, **units}, servers)

    def _columns_of(self, each: _Bin) -> dict[tuple[int, int], int]:
        """A column for the replicas of each kind, and with ``spread`` one for the nodes that hold so many of it.

        Several are on a node where no larger kind takes their place.
        """
        problem, columns = self._problem, dict[tuple[int, int], int]()
        kinds = [(index, kind) for index, kind in enumerate(problem.kinds) if kind.users and kind.node == each.node]
        for index, kind in kinds:
            node, most = problem.units[each.node], _most_replicas(problem, kind)
            larger = (other.units for _, other in kinds if other.model == kind.model and other.units > kind.units)
            room = 1 if not self._spread else (min(larger, default=node + 1) - 1) // kind.units
            for times in range(1, room + 1):
                columns[index, times] = self._column(min(each.copies * (node // kind.units), most) // times)
        return columns

    def _column(self, most: float, *, whole: bool = True) -> int:
        self._highs.addVar(0, most)
        if whole:
            self._highs.changeColIntegrality(len(self._most), self._highspy.HighsVarType.kInteger)
        self._most.append(most)
        return len(self._most) - 1

    def _row(self, entries: Mapping[int, float], low: float | None = None, high: float | None = None) -> None:
        import numpy as np

        endless = self._highspy.kHighsInf
        columns, values = np.fromiter(entries, np.int32), np.fromiter(entries.values(), np.float64)
        self._highs.addRow(-endless if low is None else low, endless if high is None else high, len(entries), columns, values)

    def _add_room(self, place: int) -> None:
        """Rows: for each size, the replicas at least as large count no more of it than the nodes in use have room for.

        A place that is kept spare takes no node of one's own into use, but one that is rented.
        """
        problem, each, spare = self._problem, self._bins[place], self._spare[place]
        node, used = problem.units[each.node], self._used[place]
        rented = {pool: column for pool, column in used.items() if problem.pools[pool].price}
        there = sum(copies for pool, copies in each.pools.items() if pool not in rented)
        replicas = [(problem.kinds[index].units, times, column) for (index, times), column in self._replicas[place].items()]
        rows = [(replicas, used, 0)]
        if spare:
            rows.append(([*replicas, *((units, 1, column) for units, column in spare.items())], rented, there))
        for items, columns, idle in rows:
            for size in {units for units, _, _ in items}:
                room = node // size
                row = {
                    column: float(times * (units // size if units < node else room))
                    for units, times, column in items
                    if units >= size
                }
                self._row({**row, **dict.fromkeys(columns.values(), -float(room))}, high=room * idle)
        if self._spread:
            # No kind twice on a node, and none beside a replica that takes all of it.
            full = [column for units, _, column in replicas if units == node]
            for index in {index for index, _ in self._replicas[place] if problem.kinds[index].units < node}:
                ways = [column for (kind, _), column in self._replicas[place].items() if kind == index]
                self._row({**dict.fromkeys([*ways, *full], 1.0), **dict.fromkeys(used.values(), -1.0)}, high=0)

    def _add_joined(self, pool: int) -> None:
        """A row: nodes of a pool in use, each by itself or joined, are no more than there are."""
        pools = self._problem.pools
        used = [(each, column) for of_bin in self._used for each, column in of_bin.items() if pools[each].base(each) == pool]
        self._row({column: float(pools[each].joined) for each, column in used}, high=pools[pool].most)

    def _add_users(self, model: int) -> None:
        """Rows: all users are served by what is left once the nodes fail that serve most of them.

        These serve the least, over all levels, of ``survive`` times the level and what is above the level.
        """
        problem, survive, kinds = self._problem, self._problem.survive, self._problem.kinds
        rows = [
            {
                column: float(kinds[index].users * times)
                for (index, times), column in of_bin.items()
                if kinds[index].model == model
            }
            for of_bin in self._replicas
        ]
        total: dict[int, float] = {self._unserved[model]: 1.0}
        for row in rows:
            total |= row
        level: dict[int, float] = {}
        if survive:
            level = self._add_steps(rows) if self._spread else {self._column(self._highspy.kHighsInf, whole=False): 1.0}
            total |= {column: -survive * users for column, users in level.items()}
        for each, row in zip(self._bins, rows, strict=True):
            if row and level:
                above: dict[int, float] = {}
                if survive > 1 and not self._spread:
                    above = {self._column(self._highspy.kHighsInf, whole=False): -1.0}
                total |= above
                self._row({**row, **above, **{column: -each.copies * users for column, users in level.items()}}, high=0)
        self._row(total, low=problem.users[model] + (self._spread[model] if self._spread else 0))

    def _add_steps(self, rows: Sequence[Mapping[int, float]]) -> dict[int, float]:
        """Steps up to the most users that a node serves by one of its kinds, each with what it adds; rows that choose them."""
        users = sorted({users for row in rows for users in row.values()}, reverse=True)
        users = users[:: 1 + len(users) // _STEPS][::-1]
        steps = [self._column(1) for _ in users]
        for lower, upper in pairwise(steps):
            self._row({lower: 1.0, upper: -1.0}, low=0)
        for row in rows:
            for column, each in row.items():
                step = steps[next(place for place, most in enumerate(users) if most >= each)]
                self._row({column: 1.0, step: -self._most[column]}, high=0)
        return {step: upper - lower for step, lower, upper in zip(steps, [0.0, *users], users, strict=False)}

    def _add_updates(self) -> None:
        """Rows: for a kind that is used, a place at least as large is kept spare on a node of its type."""
        problem = self._problem
        for index, kind in enumerate(problem.kinds):
            columns = {
                column: float(times) for of_bin in self._replicas for (each, times), column in of_bin.items() if each == index
            }
            most = -float(_most_replicas(problem, kind)) if kind.users else 0.0
            spare = {
                column: most
                for each, of_bin in zip(self._bins, self._spare, strict=True)
                for units, column in of_bin.items()
                if units >= kind.units and each.node == kind.node
            }
            if columns:
                self._row({**columns, **spare}, high=0)

    def solve(self, end: float, start: Assignment | None = None, *, tidy: bool = True) -> _Solved | None:
        """The best values until the clock says ``end``: fewest users unserved, least money, and ``tidy``: fewest nodes that are joined, fewest of
        one's own, fewest units, fewest replicas.

        ``None`` if there are none, or where none are known in time.
        """
        values, money, bound, proven = None if start is None else self._started(start), 0, 0, True
        known = False
        for costs in (*self._goals, *self._tidy_goals) if tidy else self._goals:
            found = self._minimized(costs, end, values)
            # Fewer replicas are tidier, and no better: what is not known of them leaves the answer as good.
            last = tidy and costs is self._tidy_goals[-1]
            if found is None:
                proven = proven and last
                break
            values, value, least = found
            known = True
            if costs is self._money:
                money, bound = value, min(value, least)
            proven = proven and (least >= value or last)
            self._row({column: float(cost) for column, cost in costs.items()}, high=value)
        return _Solved(values=tuple(values or ()), money=money, bound=bound, proven=proven) if known else None

    def _started(self, start: Assignment) -> list[float]:
        """The values of an assignment to bins of a node each, as far as they are whole numbers; the rest follows from these."""
        values, left = [0.0] * len(self._most), list(start.nodes)
        for place, each in enumerate(self._bins):
            node = next((node for node in left if node.pool in each.pools), None)
            if node is None:
                continue
            left.remove(node)
            values[self._used[place][node.pool]] = float(bool(node.replicas) or self._problem.pools[node.pool].price > 0)
            for index, count in node.replicas.items():
                values[self._replicas[place][index, 1]] = float(count)
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

        highs, number = self._highs, len(self._most)
        highs.changeColsCost(
            number, np.arange(number, dtype=np.int32), np.array([costs.get(column, 0) for column in range(number)], float)
        )
        highs.setOptionValue("time_limit", max(0.2, end - monotonic()))
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
            counts: Counter[int] = Counter()
            for (index, times), column in self._replicas[place].items():
                counts[index] += times * round(solved.values[column])
            spare = [units for units, column in self._spare[place].items() if round(solved.values[column])]
            used = {pool: round(solved.values[column]) for pool, column in self._used[place].items()}
            nodes += _packed(problem, each, used, counts, spare)
        left = served(problem, nodes)
        return Assignment(
            nodes=tuple(nodes),
            unserved=tuple(max(0, users - each) for users, each in zip(problem.users, left, strict=True)),
            money=solved.money,
            bound=solved.bound,
            proven=solved.proven,
        )


def _packed(
    problem: Problem, each: _Bin, used: Mapping[int, int], counts: Mapping[int, int], spare: Sequence[int]
) -> list[Placed]:
    """Replicas on the ``used`` nodes of a bin: the largest first, each where least is free; where failures count, where its model has fewest users.

    Places that are kept ``spare`` lie on nodes that are not in use, as far as there are any.
    """
    whole, kinds = problem.units[each.node], problem.kinds
    pools = [pool for pool, number in used.items() for _ in range(number)]
    in_use = len(pools)
    pools += [pool for pool, copies in each.pools.items() if not problem.pools[pool].price for _ in range(copies - used[pool])]
    free, kept = [whole] * len(pools), [0] * len(pools)
    held = [Counter[int]() for _ in pools]
    users = [Counter[int]() for _ in pools]
    items = [(kinds[index].units, kinds[index].users, index) for index, count in counts.items() for _ in range(count)]
    for units, serves, index in sorted(
        [*items, *((units, 0, -1) for units in spare)], key=lambda item: (-item[0], -item[1], item[2])
    ):
        if index < 0:
            place = max(place for place in range(len(pools)) if free[place] >= units)
            kept[place] = max(kept[place], units)
        else:
            model = kinds[index].model
            fitting = (place for place in range(in_use) if free[place] >= units)
            place = min(
                (users[place][model], -free[place], place) if problem.survive else (0, free[place], place) for place in fitting
            )[2]
            held[place][index] += 1
            users[place][model] += serves
        free[place] -= units
    return [
        Placed(pool=pool, replicas=dict(sorted(replicas.items())), spare=units)
        for place, (pool, replicas, units) in enumerate(zip(pools, held, kept, strict=True))
        if replicas or units or (place < in_use and problem.pools[pool].price)
    ]


def solver() -> Any:
    """The solver's module. Raises :class:`~hwcalc.errors.UsageError` if it is not installed."""
    try:
        import highspy
    except ImportError as error:
        raise UsageError(
            "fleet needs highspy, which is not installed.", hint="Install it: pip install 'hwcalc[fleet]'"
        ) from error
    return highspy
