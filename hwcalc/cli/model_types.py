"""``kvplan models --types``: the model types that are known, which are also what ``--assume`` takes."""

from __future__ import annotations

from hwcalc.cli.output import Answer, View, answer
from hwcalc.errors import ModelNotFoundError
from hwcalc.text import shown

__all__ = ["listed_types"]

_HEADER = ("type", "layers")


def listed_types(words: str, view: View) -> Answer:
    """Every known model type with the kinds of layers that its models have. All ``words`` must occur in the type or the kinds."""
    from hwcalc.parsers.known_types import listed_types as known

    found = [
        row
        for row in known()
        if all(word in row.model_type.lower() or any(word in family for family in row.families) for word in words.lower().split())
    ]
    if view.format == "json":
        from hwcalc.documents import SCHEMA_VERSION

        types = [{"model_type": row.model_type, "families": list(row.families)} for row in found]
        return answer({"schema_version": SCHEMA_VERSION, "types": types})
    if not found:
        raise ModelNotFoundError(
            f"no known type has {shown(words, 60)} in its name or its layers.", hint="List all of them: kvplan models --types"
        )
    from hwcalc.report.listing import listing
    from hwcalc.report.text import plural

    rows = [(row.model_type, ", ".join(row.families)) for row in found]
    text = listing(_HEADER, rows, format_=view.format, color=view.color, width=view.width)
    remarks = (plural(len(found), "type"), "To read a config as one of them: kvplan MODEL --assume TYPE")
    return Answer(text=text, remarks=() if view.quiet else remarks)
