"""``kvplan models``: what can be planned by its id on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hwcalc.cli.options import OUTPUT, Option, view_of
from hwcalc.cli.output import Answer, answer
from hwcalc.errors import ModelNotFoundError

__all__ = ["OPTIONS", "run"]

OPTIONS = (
    Option("search", (), "[SEARCH]...", "Words of the id or the model type; all must occur.", "list", complete="models"),
    *OUTPUT,
)

_HEADER = ("id", "type", "parameters", "released", "source", "fidelity")


def run(*, search: Sequence[str] | None, **output: Any) -> Answer:
    """List the models that are known without network: the catalog and the Hugging Face cache."""
    from hwcalc.sources.listing import list_known_models

    view = view_of(**output)
    words = " ".join(search or ())
    found = list_known_models(words)
    if view.format == "json":
        from dataclasses import asdict

        from hwcalc.planner.result import SCHEMA_VERSION

        return answer({"schema_version": SCHEMA_VERSION, "models": [asdict(model) for model in found]})
    if not found:
        raise ModelNotFoundError(f"no known model has {words[:60]!r} in its id or type.", hint="List all of them: kvplan models")
    from hwcalc.report.rows import listing
    from hwcalc.report.text import parameters, plural

    rows = [
        (
            model.id,
            model.model_type or "",
            "" if model.parameters is None else str(model.parameters) if view.format == "csv" else parameters(model.parameters),
            model.released or "",
            model.source,
            model.fidelity or "",
        )
        for model in found
    ]
    text = listing(_HEADER, rows, format_=view.format, right=(2,), color=view.color, width=view.width)
    remarks = () if view.quiet else (plural(len(found), "model"),)
    return Answer(text=text, remarks=remarks)
