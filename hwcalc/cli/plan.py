"""``kvplan plan``: the cache of one model."""

from __future__ import annotations

from typing import Any

from hwcalc.cli.options import PLANNING, planned
from hwcalc.cli.output import Answer, answer

__all__ = ["OPTIONS", "run"]

OPTIONS = PLANNING


def run(**options: Any) -> Answer:
    """Plan one model: the exact bytes of its cache."""
    plan, view = planned(**options)
    if view.format == "json":
        return answer(plan.to_dict())
    if view.format == "csv":
        from hwcalc.report.rows import plan_csv

        return Answer(text=plan_csv(plan), remarks=tuple(f"warning: {note.message}" for note in plan.warnings))
    if view.format == "markdown":
        from hwcalc.report.markdown import plan_markdown

        return Answer(text=plan_markdown(plan, quiet=view.quiet))
    from hwcalc.report.table import plan_table

    return Answer(text=plan_table(plan, color=view.color, width=view.width, quiet=view.quiet))
