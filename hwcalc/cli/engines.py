"""``kvplan engines``: the engines whose rules are known, and their options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hwcalc.cli.options import OUTPUT, Example, Option, view_of
from hwcalc.cli.output import Answer, answer
from hwcalc.documents import document_of

if TYPE_CHECKING:
    from hwcalc.report.records import EngineInfo

__all__ = ["EXAMPLES", "OPTIONS", "run"]

OPTIONS = (
    Option("name", (), "[NAME]", "One engine, with its options.", complete="engines"),
    Option("kinds", ("--kinds",), "", "For which kinds of layers each engine has a rule.", "flag"),
    *OUTPUT,
)
EXAMPLES: Final = (
    Example("All of them", "kvplan engines"),
    Example("One with its options and versions", "kvplan engines vllm"),
    Example("Which kinds of layers each one plans", "kvplan engines --kinds"),
)

_WORDS: Final = (
    "no: the engine refuses the model, or kvplan has no rule for it; yes: for these layers of the models that the engine runs",
    "every token: also those outside the window; by model: for some of its models, and the window alone for the others",
)
_HEADER = ("engine", "versions", "numbers", "option", "default", "meaning")


def run(*, name: str | None, kinds: bool, **output: Any) -> Answer:
    """List the engines, or one with its options, versions and source."""
    view = view_of(**output)
    found = engine_infos(name)
    if view.format == "json":
        from hwcalc.documents import SCHEMA_VERSION

        return answer({"schema_version": SCHEMA_VERSION, "engines": [document_of(engine) for engine in found]})
    from hwcalc.report.listing import listing

    if kinds:
        matrix = [(kind, *(engine.kinds[kind] for engine in found)) for kind in found[0].kinds]
        names = ("layers", *(engine.name for engine in found))
        text = listing(names, matrix, format_=view.format, color=view.color, width=view.width)
        return Answer(text=text, remarks=() if view.quiet else _WORDS)
    if name is None and view.format != "csv":
        rows = [
            (engine.name, _versions(engine), engine.definition, engine.title, ", ".join(option.name for option in engine.options))
            for engine in found
        ]
        header: tuple[str, ...] = ("engine", "versions", "numbers", "what", "options")
        text = listing(header, rows, format_=view.format, color=view.color, width=view.width)
        return Answer(text=text, remarks=() if view.quiet else ("one engine with its options: kvplan engines NAME",))
    if view.format == "csv":
        rows6 = [
            (engine.name, " ".join(engine.versions), engine.definition, option.name, option.default, option.help)
            for engine in found
            for option in engine.options
        ]
        bare = [(engine.name, " ".join(engine.versions), engine.definition, "", "", "") for engine in found if not engine.options]
        return Answer(text=listing(_HEADER, bare + rows6, format_="csv"))
    engine = found[0]
    facts = [
        ("engine", engine.name),
        ("what", engine.title),
        ("versions", ", ".join(engine.versions) or "none"),
        ("numbers", engine.definition),
        ("source", engine.source),
    ]
    text = listing(("", ""), facts, format_=view.format, color=view.color, width=view.width)
    if engine.options:
        options = [(option.name, option.default, option.help) for option in engine.options]
        header = ("option", "default", "meaning")
        text += "\n" + listing(header, options, format_=view.format, color=view.color, width=view.width)
    return Answer(text=text)


def engine_infos(name: str | None) -> list[EngineInfo]:
    """All engines, or the one with this name. A version after ``@`` is checked.

    Raises :class:`~hwcalc.errors.UsageError` if it is unknown.
    """
    from hwcalc.engines import ENGINES, find_engine
    from hwcalc.formulas import KINDS
    from hwcalc.report.records import EngineInfo, OptionInfo

    out = []
    for spelling in ENGINES if name is None else (name,):
        engine, version = find_engine(spelling)
        resolved = engine.version(version)
        out.append(
            EngineInfo(
                name=engine.name,
                title=engine.title,
                definition=engine.definition,
                versions=engine.versions if version is None else (resolved,),
                source=engine.source,
                options=tuple(
                    OptionInfo(name=option.name, default=option.default, help=option.help) for option in engine.options.values()
                ),
                kinds={kind: engine.stores(of) for kind, of in sorted(KINDS.items())},
            )
        )
    return out


def _versions(engine: EngineInfo) -> str:
    return f"{engine.versions[-1]} to {engine.versions[0]}" if len(engine.versions) > 1 else " ".join(engine.versions)
