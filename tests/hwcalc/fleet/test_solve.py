"""The assignment of replicas to nodes equals that of trying everything, on small fleets made at random."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations_with_replacement, count, islice, product
from math import comb, prod

import pytest
from msgspec.structs import replace

from hwcalc.errors import UsageError
from hwcalc.fleet.solve import Assignment, Kind, Placed, Pool, Problem, assign, served
from tests.effort import cases

MOST_WAYS = 4_000
"""Ways to fill the nodes of a fleet; those with more are left out."""


def made(seed: int) -> Problem:
    """A small fleet: one to three models, one or two types of nodes of 2 to 8 units."""
    chance = random.Random(seed)  # noqa: S311 - nothing is kept secret
    models, types = chance.randint(1, 3), chance.randint(1, 2)
    units = tuple(chance.choice((2, 4, 6, 7, 8)) for _ in range(types))
    kinds = []
    for model, node in product(range(models), range(types)):
        sizes = [size for size in (1, 2, 4) if size < units[node]] + [units[node]]
        least = chance.choice(sizes)
        kinds += [
            Kind(model=model, node=node, units=size, users=chance.randint(1, 12) * size)
            for size in sizes
            if size >= least and chance.random() < 0.6 and size >= units[node] // 4
        ]
    pools = [
        Pool(node=node, most=chance.randint(1, 3), price=price)
        for node in range(types)
        for price in (0, chance.randint(1, 9))
        if chance.random() < 0.8
    ]
    return Problem(
        users=tuple(chance.randint(1, 24) for _ in range(models)),
        units=units,
        kinds=tuple(kinds),
        pools=tuple(pools),
        survive=chance.choice((0, 0, 1, 1, 2)),
        rolling=chance.random() < 0.4,
    )


def made_joined(seed: int) -> Problem:
    """One in which replicas of the first model take two or three nodes of a pool together, each of which others may have by themselves."""
    chance, problem = random.Random(seed), replace(made(seed), rolling=False)  # noqa: S311 - nothing is kept secret
    pools = tuple(replace(pool, most=chance.randint(2, 4)) for pool in problem.pools[:2])
    types, joined = len(problem.units), chance.choice((2, 2, 3))
    kinds = [kind for kind in problem.kinds if kind.model or chance.random() < 0.2]
    kinds += [
        Kind(model=0, node=types + node, units=joined * problem.units[node], users=chance.randint(6, 30)) for node in range(types)
    ]
    more = [
        Pool(node=types + pool.node, most=pool.most // joined, price=pool.price * joined, of=place, joined=joined)
        for place, pool in enumerate(pools)
        if pool.most >= joined
    ]
    units = (*problem.units, *(joined * units for units in problem.units))
    return replace(problem, units=units, kinds=tuple(kinds), pools=(*pools, *more))


def contents(problem: Problem, pool: Pool) -> list[tuple[int, ...]]:
    """Everything that a node can hold: replicas of each kind."""
    kinds = [(index, kind) for index, kind in enumerate(problem.kinds) if kind.node == pool.node]
    ranges = [range(problem.units[pool.node] // kind.units + 1) for _, kind in kinds]
    out = []
    for counts in product(*ranges):
        if sum(count * kind.units for count, (_, kind) in zip(counts, kinds, strict=True)) <= problem.units[pool.node]:
            every = [0] * len(problem.kinds)
            for count, (index, _) in zip(counts, kinds, strict=True):
                every[index] = count
            out.append(tuple(every))
    return out


def small(make: Callable[[int], Problem], number: int) -> list[Problem]:
    """So many fleets of which everything can be tried."""

    def ways(problem: Problem) -> int:
        return prod(comb(len(contents(problem, pool)) + (pool.price > 0) + pool.most - 1, pool.most) for pool in problem.pools)

    every = (make(seed) for seed in count())
    return list(islice((problem for problem in every if problem.pools and ways(problem) <= MOST_WAYS), number))


def units_of(problem: Problem, counts: Sequence[int]) -> int:
    """The units that replicas take."""
    return sum(number * kind.units for number, kind in zip(counts, problem.kinds, strict=True))


def rolls(problem: Problem, nodes: Sequence[tuple[int, Sequence[int]]]) -> bool:
    """True if for each kind that is used some node of its type has room for a replica more."""
    free = [(node := problem.pools[pool].node, problem.units[node] - units_of(problem, counts)) for pool, counts in nodes]
    used = {index for _, counts in nodes for index, number in enumerate(counts) if number}
    kinds = problem.kinds
    return all(any(node == kinds[each].node and room >= kinds[each].units for node, room in free) for each in used)


def serves(problem: Problem, nodes: Sequence[tuple[int, Sequence[int]]]) -> bool:
    """True if all users are served when those nodes fail that serve most of them."""
    for model, users in enumerate(problem.users):
        each = sorted(
            sum(number * kind.users for number, kind in zip(counts, problem.kinds, strict=True) if kind.model == model)
            for _, counts in nodes
        )
        if sum(each[: max(0, len(each) - problem.survive)]) < users:
            return False
    return True


def value(problem: Problem, nodes: Sequence[tuple[int, Sequence[int]]]) -> tuple[int, ...]:
    """Money, nodes in use that are joined, nodes of one's own in use, units in use, replicas."""
    used = [(problem.pools[pool], counts) for pool, counts in nodes if any(counts)]
    return (
        sum(problem.pools[pool].price for pool, _ in nodes),
        sum(pool.joined for pool, _ in used if pool.joined > 1),
        sum(pool.joined for pool, _ in used if not pool.price),
        sum(units_of(problem, counts) for _, counts in nodes),
        sum(sum(counts) for _, counts in nodes),
    )


def there(problem: Problem, nodes: Sequence[tuple[int, Sequence[int]]]) -> bool:
    """True if no more nodes of a pool are in use, each by itself and joined, than there are."""
    pools, used = problem.pools, Counter[int]()
    for pool, counts in nodes:
        used[pools[pool].base(pool)] += pools[pool].joined if any(counts) or pools[pool].price else 0
    return all(number <= pools[pool].most for pool, number in used.items())


def tried(problem: Problem) -> tuple[int, ...] | None:
    """The least value of all ways to place replicas that serve everybody."""
    best: tuple[int, ...] | None = None
    # None is a node for rent that is not rented; one that is owned is there, with nothing on it.
    each = [
        list(combinations_with_replacement([*([None] if pool.price else []), *contents(problem, pool)], pool.most))
        for pool in problem.pools
    ]
    for ways in product(*each):
        nodes = [(place, counts) for place, way in enumerate(ways) for counts in way if counts is not None]
        new = value(problem, nodes)
        if (
            (best is None or new < best)
            and serves(problem, nodes)
            and there(problem, nodes)
            and (not problem.rolling or rolls(problem, nodes))
        ):
            best = new
    return best


def listed(problem: Problem, assignment: Assignment) -> list[tuple[int, list[int]]]:
    """The nodes of an answer with their replicas by kind, and those of one's own that have none."""
    nodes = [(node.pool, [node.replicas.get(kind, 0) for kind in range(len(problem.kinds))]) for node in assignment.nodes]
    for place, pool in enumerate(problem.pools):
        there = sum(node == place for node, _ in nodes)
        assert there <= pool.most
        nodes += [] if pool.price else [(place, [0] * len(problem.kinds))] * (pool.most - there)
    return nodes


def all_worth_having(problem: Problem) -> bool:
    """True if no smaller replicas of a model serve as many users on the units of a larger one."""
    kinds = problem.kinds
    return not any(
        (one.model, one.node) == (other.model, other.node)
        and other.units < one.units
        and one.units // other.units * other.users >= one.users
        for one in kinds
        for other in kinds
    )


@pytest.mark.parametrize(("make", "some"), [(made, 90), (made_joined, 45)])
def test_equals_everything_tried(make: Callable[[int], Problem], some: int) -> None:
    """Money, joined nodes, nodes, units and replicas are the least, none is said where there is none, and replicas lie where there is room."""
    answers = joined = 0
    for problem in small(make, cases(some, 500)):
        found, least = assign(problem), tried(problem)
        if found is None:
            assert least is None, problem
            continue
        nodes = listed(problem, found)
        answers += 1

        # Replicas are the fewest of the sizes that smaller ones on as many units do not make up for.
        compared = 4 + all_worth_having(problem)
        assert least is not None
        assert value(problem, nodes)[:compared] == least[:compared], problem
        assert (found.money, found.bound, found.proven) == (value(problem, nodes)[0], found.money, True)
        assert all(units_of(problem, counts) <= problem.units[problem.pools[pool].node] for pool, counts in nodes)
        assert serves(problem, nodes)
        assert there(problem, nodes)
        joined += any(problem.pools[node.pool].joined > 1 for node in found.nodes)
        assert rolls(problem, nodes) or not problem.rolling

    assert answers > some / 4
    assert joined > 5 or make is made


def test_nodes_are_joined_only_where_that_is_cheaper() -> None:
    """Three nodes of $20 serve 79 users each, by themselves; two joined ones serve 185, and the third the rest by 26 on half of it.

    237 of 79 and 211 are both enough for 200, at $60. Joined nodes are the answer where they spare one: 185 users take three alone.
    """
    kinds = (
        Kind(model=0, node=0, units=4, users=26),
        Kind(model=0, node=0, units=8, users=79),
        Kind(model=0, node=1, units=16, users=185),
    )
    pools = (Pool(node=0, most=8, price=20), Pool(node=1, most=4, price=40, of=0, joined=2))
    for users, price, replicas in ((200, 60, [{1: 1}] * 3), (185, 40, [{2: 1}])):
        found = assign(Problem(users=(users,), units=(8, 16), kinds=kinds, pools=pools))
        assert found is not None
        assert (found.money, [dict(node.replicas) for node in found.nodes]) == (price, replicas)


def test_equal_nodes_are_counted() -> None:
    """1,000 users by 40 on two units of eight: 25 replicas on 7 of 50 nodes, and on 8 where one may fail.

    With 7 nodes 28 replicas fit, four on each: 24 of them, 960 users, are left by a failure. On 8 there are 28 or more that are spread, at most
    four on each: 29 - 4 = 25.
    """
    problem = Problem(
        users=(1000,), units=(8,), kinds=(Kind(model=0, node=0, units=2, users=40),), pools=(Pool(node=0, most=50, price=0),)
    )
    plain = assign(problem)
    spread = assign(
        Problem(**{name: getattr(problem, name) for name in problem.__struct_fields__ if name != "survive"}, survive=1)
    )

    assert plain is not None
    assert len(plain.nodes) == 7
    assert sum(node.replicas[0] for node in plain.nodes) == 25
    assert spread is not None
    assert (len(spread.nodes), sum(node.replicas[0] for node in spread.nodes)) == (8, 29)


def test_who_is_not_served() -> None:
    """Of 100 and 50 users two nodes serve 60 each: 40 lack with a node for each model, 50 with both for the first."""
    kinds = tuple(Kind(model=model, node=0, units=4, users=60) for model in (0, 1))
    problem = Problem(users=(100, 50), units=(4,), kinds=kinds, pools=(Pool(node=0, most=2, price=0),))

    assert assign(problem) is None
    found = assign(problem, elastic=True)
    assert found is not None
    assert found.unserved == (40, 0)


def test_most_that_fails_is_what_is_lost() -> None:
    """Of nodes with 5, 4 and 3 users, 7 are left by a failure, and 3 by two."""
    problem = Problem(
        users=(1,), units=(1,), kinds=tuple(Kind(model=0, node=0, units=1, users=users) for users in (5, 4, 3)), pools=()
    )
    nodes = [Placed(pool=0, replicas={kind: 1}) for kind in range(3)]

    assert [served(problem, nodes, failed) for failed in range(4)] == [(12,), (7,), (3,), (0,)]


def test_without_the_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(UsageError, match="highspy") as raised:
        assign(Problem(users=(1,), units=(1,), kinds=(), pools=(Pool(node=0, most=1, price=0),)))

    assert raised.value.hint == "Install it: pip install 'hwcalc[fleet]'"
