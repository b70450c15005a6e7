"""The result of a run of checks in each of its formats."""

from __future__ import annotations

from hwcalc.check.result import CheckDocument
from hwcalc.report.drawing import PIPED_WIDTH

__all__ = ["FORMATS", "check_report"]

FORMATS = ("table", "json", "markdown", "csv", "junit", "sarif", "github")


def check_report(
    document: CheckDocument, format_: str, *, color: bool = False, width: int = PIPED_WIDTH, quiet: bool = False
) -> str:
    """The result as text in one of :data:`FORMATS`."""
    if format_ == "json":
        from hwcalc.documents import dumps

        return dumps(document.to_dict())
    if format_ == "sarif":
        from hwcalc.report.sarif import check_sarif

        return check_sarif(document)
    if format_ == "junit":
        from hwcalc.report.junit import check_junit

        return check_junit(document)
    if format_ == "github":
        from hwcalc.report.annotations import check_annotations

        return check_annotations(document)
    from hwcalc.report.check_text import check_csv, check_markdown, check_table

    if format_ == "csv":
        return check_csv(document)
    if format_ == "markdown":
        return check_markdown(document, quiet=quiet)
    return check_table(document, color=color, width=width, quiet=quiet)
