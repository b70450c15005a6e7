"""``kvplan plan``: the cache of one model."""

from __future__ import annotations

from typing import Any

from hwcalc.cli.options import PLANNING, Option, given_options, reading, say_unreachable, view_of
from hwcalc.cli.output import Answer, View, answer
from hwcalc.formulas.frozen import replace
from hwcalc.planner.result import Plan

__all__ = ["OPTIONS", "run"]

OPTIONS = (
    *PLANNING,
    Option("emit", ("--emit",), "E", "Print the engine's own command line of this plan instead: vllm.", complete="emitters"),
)


def run(*, model: str, emit: str | None, **options: Any) -> Answer:
    """Plan one model: the exact bytes of its cache. Exit status 1 says that it does not fit."""
    from hwcalc.library.plan import plan

    view, given = view_of(**options), given_options("plan", options)
    with reading(model):
        planned = plan(model, **given)
    say_unreachable(planned.notes)
    status = 1 if planned.fit is not None and not planned.fit.fits else 0
    if emit is not None:
        from hwcalc.report.emit import emitted

        return Answer(text=emitted(planned, emit) + "\n", status=status, remarks=_verdict(planned) if status else ())
    answered = _answer(planned, view)
    return replace(answered, status=status)


def _verdict(plan: Plan) -> tuple[str, ...]:
    """Why the command line would not do, and what would, for standard error."""
    from hwcalc.report.summary import verdict

    if plan.fit is None:
        return ()
    return (verdict(plan), plan.fit.message, *(f"try {one.flag}" for one in plan.fit.suggestions))


def _answer(plan: Plan, view: View) -> Answer:
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
