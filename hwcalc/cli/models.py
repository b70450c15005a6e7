"""``kvplan models``: list the models that can be planned by id on this machine, or keep the facts of new ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from hwcalc.cli.options import OUTPUT, PLANNING, Example, Option, view_of
from hwcalc.cli.output import Answer, View, answer
from hwcalc.errors import KvplanError, ModelNotFoundError, UsageError
from hwcalc.text import shown

if TYPE_CHECKING:
    from hwcalc.sources.refresh import Refreshed

__all__ = ["EXAMPLES", "OPTIONS", "run"]

OPTIONS = (
    Option(
        "search",
        (),
        "[SEARCH]...",
        "Words of the id or the model type; all must occur. With --refresh: ids.",
        "list",
        complete="models",
    ),
    Option(
        "refresh",
        ("--refresh",),
        "",
        "Read these models from the Hub and keep their facts in your own catalog.",
        "flag",
        group="model",
    ),
    Option(
        "types",
        ("--types",),
        "",
        "List the model types that are known, with the kinds of layers that each has.",
        "flag",
        group="model",
    ),
    *(option for option in PLANNING if option.name in {"revision", "token", "endpoint"}),
    *OUTPUT,
)
EXAMPLES: Final = (
    Example("All of them", "kvplan models"),
    Example("Those with these words in id or type", "kvplan models qwen3 coder"),
    Example("For a script", "kvplan models llama --json"),
)

_HEADER = ("id", "type", "parameters", "released", "source", "fidelity")
_AS_PUBLISHED = "published parameters"
_COUNTED = "published parameters are all numbers of the files, with scales, buffers and tied heads that are stored twice; a plan counts each parameter once, and multi-token prediction apart"


def run(
    *,
    search: Sequence[str] | None,
    refresh: bool,
    types: bool,
    revision: str | None,
    token: str | None,
    endpoint: str | None,
    **output: Any,
) -> Answer:
    """List the models that are known without network.

    Those of the catalog and of the Hugging Face cache; or keep the facts of new ones.
    """
    view = view_of(**output)
    if refresh:
        return _refreshed(search or (), view, revision=revision, token=token, endpoint=endpoint)
    words = " ".join(search or ())
    if types:
        from hwcalc.cli.model_types import listed_types

        return listed_types(words, view)
    from hwcalc.sources.listing import list_known_models

    found = list_known_models(words)
    if view.format == "json":
        from hwcalc.documents import SCHEMA_VERSION, document_of

        return answer({"schema_version": SCHEMA_VERSION, "models": [document_of(model) for model in found]})
    if not found:
        raise ModelNotFoundError(
            f"no known model has {shown(words, 60)} in its id or type.", hint="List all of them: kvplan models"
        )
    from hwcalc.report.listing import listing
    from hwcalc.report.text import parameters, plural

    rows = [
        (
            model.id,
            model.model_type or "",
            "" if model.parameters is None else str(model.parameters) if view.format == "csv" else parameters(model.parameters),
            model.released or "",
            model.source,
            (model.fidelity or "") if view.format == "csv" else (model.fidelity or "").partition(",")[0],
        )
        for model in found
    ]
    header = _HEADER if view.format == "csv" else tuple(_AS_PUBLISHED if name == "parameters" else name for name in _HEADER)
    text = listing(header, rows, format_=view.format, right=(2,), color=view.color, width=view.width)
    remarks = () if view.quiet else (f"{plural(len(found), 'model')}; {_COUNTED}",)
    return Answer(text=text, remarks=remarks)


def _refreshed(ids: Sequence[str], view: View, **hub: Any) -> Answer:
    """Refresh each model by itself, so that a failure does not undo the others. The status is that of the first failure."""
    from hwcalc.sources.refresh import refresh

    if not ids:
        raise UsageError("--refresh needs the id of a model.", hint="Write: kvplan models --refresh org/name")
    done: dict[str, Refreshed] = {}
    failed: dict[str, KvplanError] = {}
    for model_id in dict.fromkeys(ids):
        try:
            done[model_id] = refresh(model_id, **hub)
        except KvplanError as error:
            failed[model_id] = error
    if len(failed) == 1 and not done:
        raise next(iter(failed.values()))
    status = next((error.exit_code for error in failed.values()), 0)
    if view.format == "json":
        from msgspec.structs import replace

        return replace(answer(_document(done, failed)), status=status)
    text = "".join(f"{model_id}  {written.path}\n" for model_id, written in done.items())
    notes = [] if view.quiet else [f"{model_id}: {note.message}" for model_id, new in done.items() for note in new.notes]
    hints = [f"{model_id}: {error.message} {'' if view.quiet else error.hint}".rstrip() for model_id, error in failed.items()]
    return Answer(text=text, remarks=(*notes, *hints), status=status)


def _document(done: Mapping[str, Refreshed], failed: Mapping[str, KvplanError]) -> dict[str, Any]:
    from hwcalc.documents import SCHEMA_VERSION, document_of

    return {
        "schema_version": SCHEMA_VERSION,
        "refreshed": [
            {"id": key, "path": str(new.path), "notes": [document_of(note) for note in new.notes]} for key, new in done.items()
        ],
        "failed": [
            {"id": key, "code": error.exit_code, "type": error.type, "message": error.message, "hint": error.hint}
            for key, error in failed.items()
        ],
    }
