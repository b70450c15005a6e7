"""A plan in each of its formats."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from hwcalc.documents import dumps

if TYPE_CHECKING:
    from hwcalc.planner.result import Plan

FORMATS: Final = {
    "table": ("hwcalc.report.table", "plan_table"),
    "json": ("hwcalc.report.plan", "plan_json"),
    "markdown": ("hwcalc.report.exports", "plan_markdown"),
    "csv": ("hwcalc.report.exports", "plan_csv"),
}
"""Name -> module and function, which is imported when the format is asked for."""


def plan_report(plan: Plan, format_: str, **style: Any) -> str:
    """The plan as text in one of :data:`FORMATS`. ``style`` is that of :func:`hwcalc.report.table.plan_table`."""
    module, function = FORMATS[format_]
    text: str = getattr(import_module(module), function)(plan, **style)
    return text


def plan_json(plan: Plan, **_style: object) -> str:
    """The JSON document."""
    return dumps(plan.to_dict())
