"""``kvplan explain``: where every byte comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hwcalc.cli.options import PLANNING, given_options, reading, say_unreachable, view_of
from hwcalc.cli.output import Answer, View, answer
from hwcalc.errors import UsageError

if TYPE_CHECKING:
    from hwcalc.library.explain import Explanation

__all__ = ["OPTIONS", "run"]

OPTIONS = PLANNING


def run(*, model: str | None, **options: Any) -> Answer:
    """Explain every byte: the formula of each kind of layer, the model's numbers put in, the result.

    The status is 1 if an accelerator is named and the plan is not known to fit it.
    """
    from hwcalc.cli.verdict import why_not
    from hwcalc.formulas.frozen import replace
    from hwcalc.library.explain import explain

    view, given = view_of(**options), given_options("explain", options)
    with reading(model):
        explanation = explain(model, **given)
    planned = explanation.plan
    say_unreachable(planned.notes)
    # That nobody can say is a warning of the explanation itself.
    remarks = () if planned.fit is None else why_not(planned)
    return replace(_answer(explanation, view), status=1 if planned.refutes else 0, remarks=remarks)


def _answer(explanation: Explanation, view: View) -> Answer:
    if view.format == "json":
        return answer(explanation.to_dict())
    if view.format == "csv":
        raise UsageError(
            "explain has no CSV: its formulas are not rows.", hint="Use --format markdown, or: kvplan MODEL --format csv"
        )
    if view.format == "markdown":
        from hwcalc.report.markdown import explain_markdown

        return Answer(text=explain_markdown(explanation, quiet=view.quiet))
    from hwcalc.report.explain_text import explain_text

    return Answer(text=explain_text(explanation, color=view.color, width=view.width, quiet=view.quiet))
