"""``kvplan compare``: several models, dtypes, engines or accelerators side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from hwcalc.cli.options import OUTPUT, Example, Option, given_options, plan_options, progress, view_of
from hwcalc.cli.output import Answer, answer
from hwcalc.documents import document_of

__all__ = ["EXAMPLES", "OPTIONS", "run"]

OPTIONS: Final = (
    Option(
        "models",
        (),
        "MODEL...",
        "Ids, folders or config.json files, patterns of catalog ids ('Qwen/*'), or @FILE with one model on each line.",
        "list",
        complete="models",
    ),
    *plan_options("compare"),
    *OUTPUT,
)
EXAMPLES: Final = (
    Example("Two models side by side", "kvplan compare Qwen/Qwen3-8B meta-llama/Llama-3.1-8B --seq 32k"),
    Example("All engines, and why their numbers differ", "kvplan compare openai/gpt-oss-20b --engine all --gpu h100 --seq 8k"),
    Example("All models of a family", "kvplan compare 'Qwen/Qwen3-?B' --seq 32k"),
)


def run(*, models: Sequence[str] | None, **options: Any) -> Answer:
    """Show models, dtypes, engines or accelerators side by side.

    Every combination of what is given as a list.

    The status is 1 if an accelerator is named and no variant is known to fit. As in a sweep, a variant that cannot be planned is said and
    does not change it; if none can be planned, the status is that of the first error.
    """
    from hwcalc.library.compare import compared

    view, given = view_of(**options), given_options("compare", options)
    with progress():
        comparison, notes = compared(models or (), given)
    remarks = () if view.quiet else tuple(note.message for note in notes)
    failed = [variant.error for variant in comparison.variants if variant.error is not None]
    if failed and all(variant.row is None for variant in comparison.variants):
        remarks = (*remarks, f"{len(failed):,} of {len(comparison.variants):,} could not be planned; the first: {failed[0]}")
    judged = [variant.fits for variant in comparison.variants if variant.gpu is not None or variant.fits is not None]
    status = 1 if judged and not any(judged) else 0
    if view.format == "json":
        from msgspec.structs import replace

        return replace(answer(document_of(comparison)), status=status, remarks=remarks)
    from hwcalc.report.compare import comparison_csv, comparison_text

    if view.format == "csv":
        return Answer(text=comparison_csv(comparison), status=status, remarks=remarks)
    text = comparison_text(comparison, format_=view.format, color=view.color, width=view.width)
    return Answer(text=text, status=status, remarks=remarks)
