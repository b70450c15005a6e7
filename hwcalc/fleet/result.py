"""The answer about a fleet: records, whose fields are the JSON document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from hwcalc.documents import Answer
from hwcalc.formulas.record import Record
from hwcalc.model import Note

if TYPE_CHECKING:
    from hwcalc.planner.result import Plan


class FleetModel(Record):
    """A model: ``users`` of the file, ``planned_users`` with growth, the ``served`` of all replicas, and of those that failures leave.

    ``unserved`` are the planned users for whom there is no replica, and ``reason`` says why none runs anywhere. Where the file has a ``rate`` in
    their place, all of these are requests that arrive in a second.
    """

    name: str
    model: str
    users: float
    planned_users: float
    replicas: int
    served: float
    served_after_failure: float
    unserved: float
    reason: str = ""
    rate: float | None = None

    def amount(self, users: float) -> str:
        """So many of its users, or requests in a second, as a text: ``1,500``, ``2.5/s``."""
        return f"{users:,.3f}".rstrip("0").rstrip(".") + ("" if self.rate is None else "/s")


class ReplicaGroup(Record):
    """Equal replicas of a model on nodes of one type, each on ``gpus`` of a node or of several ``nodes``, with ``users_each`` at once for sure.

    Where requests arrive at a rate, ``rate_each`` of them may arrive in a second. Of a single GPU a replica may have a ``gpu_share`` alone: its part of the memory, beside others.

    The bytes are those of the fullest GPU with so many users, at the high end of the estimate; the times are the expected ones, null without
    limits. ``command`` plans a replica.
    """

    model: str
    node: str
    gpu: str
    gpus: int
    gpu_share: float
    tp: int
    pp: int
    dp: int
    ep: int
    replicas: int
    users_each: int
    engine: str
    engine_version: str | None
    weights: str | None
    kv_dtype: str
    needed_high_bytes: int
    usable_bytes: int
    ttft_s: float | None
    itl_s: float | None
    command: str
    nodes: int
    rate_each: float | None

    @property
    def serves(self) -> float:
        """The users that a replica serves, or the requests in a second."""
        return self.users_each if self.rate_each is None else self.rate_each


class Held(Record):
    """The replicas of a group on a node; ``group`` is its place in the list of groups, from 0."""

    group: int
    replicas: int


class NodesInUse(Record):
    """``count`` nodes of a type with the same replicas: ``rented`` ones, or those that are there. ``gpus_used`` of ``gpus`` are those of each.

    Where GPUs are cut into slices, ``mig``, these are counted in their place. If nodes are ``joined``, so many of them hold a replica together.
    """

    node: str
    rented: bool
    count: int
    joined: int
    gpus: int
    gpus_used: float
    mig: str | None
    holds: tuple[Held, ...]


class LeftOver(Record):
    """What is left of the nodes of a type: ``idle`` ones that are there and not in use, and GPUs of those in use, or slices, ``mig``."""

    node: str
    idle: int
    free_gpus: float
    mig: str | None


class NodePrice(Record):
    """The price of a node of a type for an hour, with the row that it is from. ``date`` is null for the user's own."""

    node: str
    usd_per_hour: float
    date: str | None
    source: str


class Rented(Record):
    """Nodes of a type for rent or to be had, and what they cost an hour together; null where no price is known."""

    node: str
    count: int
    usd_per_hour: float | None


class Fleet(Answer, Record):
    """Which models run on which nodes. ``holds`` says that all planned users are served under the conditions.

    ``survive`` nodes may fail, users are ``growth`` times those of the file, and with ``rolling`` a replica more of any group fits. ``optimal``
    says that no other answer costs less, or as much on fewer nodes of one's own or fewer GPUs; else ``usd_per_hour_least`` is what every
    answer costs at least. ``additions`` are the fewest nodes with which it would hold, where it does not.
    """

    schema_version: str
    kvplan_version: str
    holds: bool
    optimal: bool
    survive: int
    growth: float
    rolling: bool
    usd_per_hour: float
    usd_per_month: float
    usd_per_hour_least: float
    models: tuple[FleetModel, ...]
    groups: tuple[ReplicaGroup, ...]
    nodes: tuple[NodesInUse, ...]
    left: tuple[LeftOver, ...]
    rent: tuple[Rented, ...]
    prices: tuple[NodePrice, ...]
    additions: tuple[Rented, ...]
    notes: tuple[Note, ...]

    def headline(self) -> str:
        served = (
            "all users are served"
            if self.holds
            else f"not served: {', '.join(f'{model.name} {model.amount(model.unserved)}' for model in self.models if model.unserved)}"
        )
        used = sum(nodes.count for nodes in self.nodes)
        models, nodes = ("" if count == 1 else "s" for count in (len(self.models), used))
        return f"{len(self.models)} model{models} on {used:,} node{nodes}, ${self.usd_per_hour:,.2f}/h: {served}"

    def records(self) -> list[dict[str, Any]]:
        """One row for each group."""
        return [asdict(group) for group in self.groups]

    __repr__ = Answer.__repr__


class Planned(Record):
    """An answer with the plan of a replica of each of its groups, in their order."""

    fleet: Fleet
    plans: tuple[Plan, ...]
