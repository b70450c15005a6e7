"""``kvplan schema``: the JSON Schema of a document."""

from __future__ import annotations

from hwcalc.cli.options import OUTPUT, Example, Option
from hwcalc.cli.output import Answer, answer
from hwcalc.errors import UsageError
from hwcalc.report.schema import DOCUMENTS
from hwcalc.text import shown

__all__ = ["EXAMPLES", "OPTIONS", "run"]

OPTIONS = (
    Option(
        "document",
        (),
        "[DOCUMENT]",
        f"{', '.join(DOCUMENTS[:-1])} or {DOCUMENTS[-1]}. Default: plan.",
        default="plan",
        complete="schemas",
    ),
    next(option for option in OUTPUT if option.name == "json"),
)
EXAMPLES = (
    Example("Of a plan's document", "kvplan schema plan"),
    Example("Of a check file, for an editor", "kvplan schema check-file"),
    Example("Of an error's document", "kvplan schema error"),
)


def run(*, document: str, json: bool) -> Answer:
    """Print the JSON Schema of a document, or of a check file.

    Of a document that kvplan writes, or of the check file that it reads; --json changes nothing but errors.
    """
    from hwcalc.report.schema import json_schema

    if document not in DOCUMENTS:
        raise UsageError(f"there is no schema of {shown(document, 40)}.", hint=f"Known: {', '.join(DOCUMENTS)}.")
    return answer(json_schema(document))
