"""``kvplan explain``: where every byte comes from."""

from __future__ import annotations

from typing import Any

from hwcalc.cli.options import PLANNING, planned
from hwcalc.cli.output import Answer, answer
from hwcalc.errors import UsageError

__all__ = ["OPTIONS", "run"]

OPTIONS = PLANNING


def run(**options: Any) -> Answer:
    """Explain every byte: the formula of each kind of layer, the model's numbers put in, the result."""
    plan, view = planned(**options)
    if view.format == "json":
        from hwcalc.report.explain import explain_document

        return answer(explain_document(plan))
    if view.format == "csv":
        raise UsageError(
            "explain has no CSV: its formulas are not rows.", hint="Use --format markdown, or: kvplan MODEL --format csv"
        )
    if view.format == "markdown":
        from hwcalc.report.markdown import explain_markdown

        return Answer(text=explain_markdown(plan, quiet=view.quiet))
    from hwcalc.report.explain_text import explain_text

    return Answer(text=explain_text(plan, color=view.color, width=view.width, quiet=view.quiet))
