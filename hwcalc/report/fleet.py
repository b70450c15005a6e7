"""A fleet as text or Markdown, as a picture, and as what starts its servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Final

from hwcalc.errors import UsageError
from hwcalc.fleet.result import Fleet, FleetModel, NodesInUse, Planned, Rented, ReplicaGroup
from hwcalc.hardware.prices import money
from hwcalc.planner.verdict import Verdict, layout_text
from hwcalc.plot.series import Cell, Chart
from hwcalc.profiles.mig import slice_named
from hwcalc.report.emit import EACH, emitted, emitters, manifest_form, remarks_on
from hwcalc.report.manifest import EACH_NODE, FORMS
from hwcalc.report.text import plural
from hwcalc.report.view import View
from hwcalc.text import shown

_MODELS: Final = ("model", "users", "replicas", "served for sure", "share used")
_NODES: Final = ("node", "nodes", "in use", "model", "on each", "GPUs", "layout", "serves")


def fleet_text(fleet: Fleet, view: View) -> str:
    """Text: whether all users are served and what it costs, the models, the nodes, what is left, what would have to be added."""
    fails = fleet.survive > 0
    header = (*_MODELS[:4], *(("after a failure",) if fails else ()), *_MODELS[4:])
    rows = []
    for model in fleet.models:
        lasting = [model.amount(model.served_after_failure)] if fails else []
        share = min(model.planned_users, model.served) / model.served if model.served else None
        used = "-" if share is None else f"{100 * share:.1f} %"
        rows.append(
            [model.name, model.amount(model.planned_users), f"{model.replicas:,}", model.amount(model.served), *lasting, used]
        )
    groups = fleet.groups
    answer, *others = _head(fleet)
    text = (
        view.verdict(answer, agrees=fleet.holds)
        + view.paragraphs(others)
        + "\n"
        + view.table(header, rows, right=range(1, len(header)))
    )
    nodes = [row for each in fleet.nodes for row in _node_rows(each, groups, fleet.models)]
    if nodes:
        text += "\n" + view.table(_NODES, nodes, right=(1, 2, 4, 5, 7))
    return "\n".join(filter(None, (text, view.paragraphs(_tail(fleet, quiet=view.quiet)))))


def _head(fleet: Fleet) -> list[str]:
    """The answer: how many nodes, what they cost, whether that is the least."""
    used = sum(nodes.count for nodes in fleet.nodes)
    own = used - sum(rented.count for rented in fleet.rent)
    conditions = [
        "any node may fail" if fleet.survive == 1 else f"any {fleet.survive} nodes may fail" if fleet.survive else "",
        f"{fleet.growth:g} times as many users" if fleet.growth > 1 else "",
        "a replica more of one model at a time" if fleet.rolling else "",
    ]
    under = "; ".join(filter(None, conditions))
    served = "All users are served" if fleet.holds else "Not all users are served"
    where = f"{plural(own, 'node')} of your own" if own else ""
    rented = " and ".join(f"{rented.count:,} x {rented.node}" for rented in fleet.rent)
    cost = f"{rented} rented for {_usd(fleet.usd_per_hour)}/h ({_usd(fleet.usd_per_month)}/month)" if fleet.rent else ""
    on = f" on {' and '.join(filter(None, (where, cost)))}" if used else ""
    lines = [f"{served}{on}{f' ({under})' if under else ''}."]
    # What was tried: hwcalc.fleet.run.replicas.
    joined = sorted({nodes.joined for nodes in fleet.nodes if nodes.joined > 1})
    beyond = f", or on {' or '.join(map(str, joined))} whole nodes joined," if joined else ""
    fewer = "fewer joined nodes, or then on fewer nodes or GPUs" if joined else "fewer nodes or GPUs"
    others = f"other way with each replica on 1, 2, 4 or all GPUs of one node{beyond}"
    if not fleet.holds:
        lacking = [
            f"{model.name}: {model.amount(model.unserved)} of {model.amount(model.planned_users)}"
            for model in fleet.models
            if model.unserved
        ]
        failed = ", once they fail" if fleet.survive else ""
        lines.append(f"Users who are not served{failed}: {'; '.join(lacking)}.")
        lines += [f"{model.name} runs on no node: {model.reason}" for model in fleet.models if model.reason]
        if fleet.additions:
            lines.append(f"With {' and '.join(map(_added, fleet.additions))} more, all would be served.")
    elif fleet.optimal:
        lines.append(
            f"No {others} costs less, or as much on {fewer}."
            if fleet.rent
            else f"No {others} takes {fewer.replace(' on ', ' ')}."
        )
    elif fleet.usd_per_hour > fleet.usd_per_hour_least:
        gap = 100 * (1 - fleet.usd_per_hour_least / fleet.usd_per_hour)
        lines.append(
            f"The search was cut short: no {others.removeprefix('other ')} costs less than {_usd(fleet.usd_per_hour_least)}/h, which is {gap:.1f} % less."
        )
    else:
        lines.append(f"No {others} costs less. The search was cut short: perhaps fewer nodes or GPUs would do.")
    return [*lines, *(["The time of the network between joined nodes is not counted."] if joined else [])]


def _added(rented: Rented) -> str:
    cost = "" if rented.usd_per_hour is None else f" ({_usd(rented.usd_per_hour)}/h)"
    return f"{rented.count:,} x {rented.node}{cost}"


def _usd(usd: float) -> str:
    return money(Decimal(str(usd)))


def _node_rows(nodes: NodesInUse, groups: Sequence[ReplicaGroup], models: Sequence[FleetModel]) -> list[list[str]]:
    """Rows of nodes that are alike: a row for each group of replicas, the nodes in the first."""
    used = f"{nodes.gpus_used:g} of {nodes.gpus}{' slices' if nodes.mig else ''}"
    name = nodes.node + (" rented" if nodes.rented else "") + (f", {nodes.joined} joined" if nodes.joined > 1 else "")
    head = [name, f"{nodes.count:,}", used]
    held = [(each.replicas, groups[each.group]) for each in nodes.holds]
    amount = {model.name: model.amount for model in models}
    rows = [
        [
            group.model,
            f"{count}",
            f"{group.gpus * group.gpu_share:g}",
            layout_text(group),
            amount[group.model](count * group.serves),
        ]
        for count, group in held
    ] or [["free for updates", "", "", "", ""]]
    return [[*(head if place == 0 else ("", "", "")), *row] for place, row in enumerate(rows)]


def _tail(fleet: Fleet, *, quiet: bool) -> list[str]:
    """Lines: what is left over, the prices with their dates, notes."""
    lines = []
    for left in fleet.left:
        idle = f"{plural(left.idle, 'node')} not in use" if left.idle else ""
        what = f"{'slice' if left.mig else 'GPU'}{'' if left.free_gpus == 1 else 's'}"
        free = f"{left.free_gpus:g} {what} free on nodes in use" if left.free_gpus else ""
        lines.append(f"left of {left.node}: {', '.join(filter(None, (idle, free)))}.")
    if quiet:
        return lines
    rented = {each.node for each in (*fleet.rent, *fleet.additions)}
    lines += [
        f"price of {each.node}: {_usd(each.usd_per_hour)}/h, {each.source.removeprefix(f'{each.node}, ')}."
        for each in fleet.prices
        if each.node in rented
    ]
    return [*lines, *(note.message for note in fleet.notes)]


def fleet_chart(fleet: Fleet) -> Chart:
    """The picture of a fleet: models against the nodes in use."""
    columns, seen, cells = [], Counter[str](), []
    nothing = NodesInUse(node="node in use", rented=False, count=0, joined=1, gpus=0, gpus_used=0, mig=None, holds=())
    for nodes in fleet.nodes or (nothing,):
        name = f"{nodes.count} x {nodes.node}{' rented' if nodes.rented else ''}"
        seen[name] += 1
        columns.append((f"{name} ({seen[name]})" if seen[name] > 1 else name, nodes))
    for row, model in enumerate(fleet.models):
        for name, nodes in columns:
            held = [(each, fleet.groups[each.group]) for each in nodes.holds if fleet.groups[each.group].model == model.name]
            count = sum(each.replicas for each, _ in held)
            users = model.amount(sum(each.replicas * group.serves for each, group in held))
            fullest = max((group for _, group in held), key=lambda group: group.needed_high_bytes, default=None)
            cells.append(
                Cell(
                    row=row,
                    model=model.name,
                    node=name,
                    verdict=None if fullest is None else Verdict.FITS,
                    layout=", ".join(filter(None, (layout_text(group) for _, group in held))),
                    needed_bytes=0 if fullest is None else fullest.needed_high_bytes,
                    usable_bytes=0 if fullest is None else fullest.usable_bytes,
                    placed=f"{count} x, {users}{'' if model.rate else ' users'}" if count else "-",
                )
            )
    return Chart(
        kind="nodes",
        title="Replicas of models on nodes, and the users that each node serves for sure",
        caption=_head(fleet)[0],
        y_label="",
        cells=tuple(cells),
        remarks=tuple(
            f"{model.name}: {model.amount(model.unserved)} of {model.amount(model.planned_users)} are not served"
            for model in fleet.models
            if model.unserved
        ),
    )


def check_emitted(what: str) -> None:
    """Raise :class:`~hwcalc.errors.UsageError` for a word that names nothing that starts servers."""
    known = (*FORMS, EACH)
    if what.strip().lower() not in known:
        raise UsageError(f"--emit {shown(what, 40)} is not known.", hint=f"Allowed: {', '.join(known)}.")


def fleet_emitted(planned: Planned, what: str) -> str:
    """What starts the servers: for each group its command, or its manifest with as many replicas as it has.

    Raises :class:`~hwcalc.errors.UsageError` for a group that has none.
    """
    texts, form = [], manifest_form(what)
    named: dict[str, int] = {}
    for group, plan in zip(planned.fleet.groups, planned.plans, strict=True):
        if plan.request.engine not in emitters():
            raise UsageError(
                f"no command starts {group.model}: its engine is {plan.request.engine}.",
                hint="Name one in the file: engine: vllm",
            )
        if form is not None and group.nodes > 1:
            raise UsageError(
                f"--emit {form} starts a server on one node, and a replica of {group.model} takes {group.nodes}.",
                hint=f"Use: --emit {EACH}, which {EACH_NODE}.",
            )
        number = named[plan.model.id] = named.get(plan.model.id, 0) + 1
        head = f"# {group.model}: {plural(group.replicas, 'replica')} on {_gpus(group)} of {group.node} each\n"
        if group.gpu_share < 1:
            head += "# Several servers share a GPU: pin each to its own, or let the device plugin offer a GPU several times (time slicing, MPS).\n"
        if form is None:
            head += "".join(f"# {remark}\n" for remark in remarks_on(plan, plan.request.engine))
        texts.append(head + emitted(plan, form or plan.request.engine, group.replicas, f"-{number}" if number > 1 else "") + "\n")
    return ("\n" if form is None else "---\n").join(texts)


def _gpus(group: ReplicaGroup) -> str:
    if slice_named(group.gpu) is not None:
        return plural(group.gpus, "slice")
    return plural(group.gpus, "GPU") if group.gpu_share == 1 else f"{group.gpu_share:g} of a GPU"
