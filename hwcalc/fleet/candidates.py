"""Ways to run a model on a part of a node: for each number of its GPUs the layout in which a replica serves most users for sure.

The users are those that a plan of the replica says are sure. Search and plan follow the same rules; still each replica of an answer is planned
(:func:`hwcalc.fleet.run.fleet`), and what its plan does not say is not promised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from math import floor
from typing import Any, Final

from msgspec.structs import asdict, replace

from hwcalc.engines.deployment import Occupancy
from hwcalc.errors import KvplanError, UsageError
from hwcalc.fleet.file import NodeType, Wanted
from hwcalc.formulas.record import Record
from hwcalc.library.plan import load_request
from hwcalc.model import ModelSpec
from hwcalc.planner.context import open_request
from hwcalc.planner.layouts import counts, has_experts, layouts
from hwcalc.planner.options import Access, read_options
from hwcalc.planner.solve import tried
from hwcalc.planner.verdict import Layout
from hwcalc.planner.within import Limits, sure_arrivals, sure_users


class Loaded(Record):
    """A model of a fleet, read, with its options as keywords of an opened request."""

    wanted: Wanted
    spec: ModelSpec
    request: Mapping[str, Any]


PARTS: Final = 4
"""The most replicas that share a GPU, each with its part of the memory."""


_JOINED: Final = (2, 4, 8)
"""The whole nodes over which a replica goes where one is not enough."""


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
    """The ways to run a model on a node of this type, and where there is none, why not; on several nodes if they may be ``joined`` and none is enough."""
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
    if not found and several and not alone:
        # An instance has the GPUs of one node.
        hardware = {"gpu": node.device.id, "instance": None}
        wide = ((nodes, _best(opened, nodes * node.gpus, node.gpus)) for nodes in _JOINED)
        joint = (replace(way, nodes=nodes, options={**hardware, **way.options}) for nodes, way in wide if way is not None)
        found = tuple(islice(joint, 1))
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
