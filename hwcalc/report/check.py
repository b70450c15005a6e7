"""The result of a run of checks in each of its formats."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from hwcalc.documents import dumps

if TYPE_CHECKING:
    from hwcalc.check.result import CheckDocument

__all__ = ["FORMATS", "check_json", "check_report"]

FORMATS: Final = {
    "table": ("hwcalc.report.check_text", "check_table"),
    "json": ("hwcalc.report.check", "check_json"),
    "markdown": ("hwcalc.report.check_text", "check_markdown"),
    "csv": ("hwcalc.report.check_text", "check_csv"),
    "junit": ("hwcalc.report.junit", "check_junit"),
    "sarif": ("hwcalc.report.sarif", "check_sarif"),
    "github": ("hwcalc.report.annotations", "check_annotations"),
}
"""Name -> module and function, which is imported when the format is asked for."""


def check_report(document: CheckDocument, format_: str, *, color: bool = False, width: int = 100, quiet: bool = False) -> str:
    """The result as text in one of :data:`FORMATS`."""
    module, function = FORMATS[format_]
    text: str = getattr(import_module(module), function)(document, color=color, width=width, quiet=quiet)
    return text


def check_json(document: CheckDocument, **_style: object) -> str:
    """The JSON document."""
    return dumps(document.to_dict())
