"""``kvplan models``: what can be planned by its id on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hwcalc.cli.options import OUTPUT, PLANNING, Option, view_of
from hwcalc.cli.output import Answer, View, answer
from hwcalc.errors import ModelNotFoundError, UsageError

__all__ = ["OPTIONS", "run"]

OPTIONS = (
    Option(
        "search",
        (),
        "[SEARCH]...",
        "Words of the id or the model type; all must occur. With --refresh: ids.",
        "list",
        complete="models",
    ),
    Option("refresh", ("--refresh",), "", "Read these models from the Hub and keep their facts in your own catalog.", "flag"),
    *(option for option in PLANNING if option.name in {"revision", "token", "endpoint"}),
    *OUTPUT,
)

_HEADER = ("id", "type", "parameters", "released", "source", "fidelity")


def run(
    *,
    search: Sequence[str] | None,
    refresh: bool,
    revision: str | None,
    token: str | None,
    endpoint: str | None,
    **output: Any,
) -> Answer:
    """List the models that are known without network, or keep new ones: the catalog and the Hugging Face cache."""
    view = view_of(**output)
    if refresh:
        return _refreshed(search or (), view, revision=revision, token=token, endpoint=endpoint)
    from hwcalc.sources.listing import list_known_models

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


def _refreshed(ids: Sequence[str], view: View, **hub: Any) -> Answer:
    """Each model is written as soon as it is read: what fails later does not undo it."""
    from hwcalc.sources.refresh import refresh

    if not ids:
        raise UsageError("--refresh needs the id of a model.", hint="Write: kvplan models --refresh org/name")
    paths = {model_id: str(refresh(model_id, **hub)) for model_id in ids}
    if view.format == "json":
        from hwcalc.planner.result import SCHEMA_VERSION

        return answer({"schema_version": SCHEMA_VERSION, "refreshed": [{"id": key, "path": path} for key, path in paths.items()]})
    return Answer(text="".join(f"{model_id}  {path}\n" for model_id, path in paths.items()))
