"""``kvplan models``, ``engines``, ``dtypes``, ``policies`` and ``schema``: what is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from hwcalc.cli.options import OUTPUT, PLANNING, Option, command
from hwcalc.cli.output import Answer, answer, answer_lists, view_of
from hwcalc.documents import SCHEMA_VERSION
from hwcalc.errors import KvplanError, ModelNotFoundError, UsageError
from hwcalc.report import View
from hwcalc.report.schema import DOCUMENTS
from hwcalc.text import shell_word, shown

if TYPE_CHECKING:
    from hwcalc.policies.base import PolicyOption
    from hwcalc.report.records import DTypeInfo, EngineInfo, PolicyInfo, PolicyOptionInfo
    from hwcalc.sources.refresh import Refreshed


_HEADER = ("id", "type", "parameters", "released", "source", "fidelity")
_AS_PUBLISHED = "published parameters"
_COUNTED = "published parameters are all numbers of the files, with scales, buffers and tied heads that are stored twice; a plan counts each parameter once, and multi-token prediction apart"


@command(
    (
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
    ),
    {
        "All of them": "kvplan models",
        "Those with these words in id or type": "kvplan models qwen3 coder",
        "For a script": "kvplan models llama --json",
    },
)
def models(
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
        return listed_types(words, view)
    from hwcalc.sources.listing import list_known_models

    found = list_known_models(words)
    if view.format == "json":
        return answer_lists(models=found)
    if not found:
        raise ModelNotFoundError(
            f"no known model has {shown(words, 60)} in its id or type.", hint="List all of them: kvplan models"
        )
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
    text = view.table(header, rows, right=(2,))
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
        errors = [
            {"id": key, "code": error.exit_code, "type": error.type, "message": error.message, "hint": error.hint}
            for key, error in failed.items()
        ]
        refreshed = [{"id": key, "path": str(new.path), "notes": new.notes} for key, new in done.items()]
        return answer({"schema_version": SCHEMA_VERSION, "refreshed": refreshed, "failed": errors}, status=status)
    text = "".join(f"{model_id}  {written.path}\n" for model_id, written in done.items())
    notes = [] if view.quiet else [f"{model_id}: {note.message}" for model_id, new in done.items() for note in new.notes]
    hints = [f"{model_id}: {error.message} {'' if view.quiet else error.hint}".rstrip() for model_id, error in failed.items()]
    return Answer(text=text, remarks=(*notes, *hints), status=status)


_MODEL_TYPES_HEADER = ("type", "layers")


def listed_types(words: str, view: View) -> Answer:
    """Every known model type with the kinds of layers that its models have. All ``words`` must occur in the type or the kinds."""
    from hwcalc.parsers.known_types import listed_types as known

    found = [
        row
        for row in known()
        if all(word in row.model_type.lower() or any(word in family for family in row.families) for word in words.lower().split())
    ]
    if view.format == "json":
        return answer_lists(types=[{"model_type": row.model_type, "families": row.families} for row in found])
    if not found:
        raise ModelNotFoundError(
            f"no known type has {shown(words, 60)} in its name or its layers.", hint="List all of them: kvplan models --types"
        )
    from hwcalc.report.text import plural

    rows = [(row.model_type, ", ".join(row.families)) for row in found]
    text = view.table(_MODEL_TYPES_HEADER, rows)
    remarks = (plural(len(found), "type"), "To read a config as one of them: kvplan MODEL --assume TYPE")
    return Answer(text=text, remarks=() if view.quiet else remarks)


_WORDS: Final = (
    "no: the engine refuses the model, or kvplan has no rule for it; yes: for these layers of the models that the engine runs",
    "every token: also those outside the window; by model: for some of its models, and the window alone for the others",
)
_ENGINES_HEADER = ("engine", "versions", "numbers", "option", "default", "meaning")


@command(
    (
        Option("name", (), "[NAME]", "One engine, with its options.", complete="engines"),
        Option("kinds", ("--kinds",), "", "For which kinds of layers each engine has a rule.", "flag"),
        *OUTPUT,
    ),
    {
        "All of them": "kvplan engines",
        "One with its options and versions": "kvplan engines vllm",
        "Which kinds of layers each one plans": "kvplan engines --kinds",
    },
)
def engines(*, name: str | None, kinds: bool, **output: Any) -> Answer:
    """List the engines, or one with its options, versions and source."""
    view = view_of(**output)
    found = engine_infos(name)
    if view.format == "json":
        return answer_lists(engines=found)
    if kinds:
        matrix = [(kind, *(engine.kinds[kind] for engine in found)) for kind in found[0].kinds]
        names = ("layers", *(engine.name for engine in found))
        text = view.table(names, matrix)
        return Answer(text=text, remarks=() if view.quiet else _WORDS)
    if name is None and view.format != "csv":
        rows = [
            (engine.name, _versions(engine), engine.definition, engine.title, ", ".join(option.name for option in engine.options))
            for engine in found
        ]
        header: tuple[str, ...] = ("engine", "versions", "numbers", "what", "options")
        text = view.table(header, rows)
        return Answer(text=text, remarks=() if view.quiet else ("one engine with its options: kvplan engines NAME",))
    if view.format == "csv":
        rows6 = [
            (engine.name, " ".join(engine.versions), engine.definition, option.name, option.default, option.help)
            for engine in found
            for option in engine.options
        ]
        bare = [(engine.name, " ".join(engine.versions), engine.definition, "", "", "") for engine in found if not engine.options]
        return Answer(text=view.table(_ENGINES_HEADER, bare + rows6))
    engine = found[0]
    facts = [
        ("engine", engine.name),
        ("what", engine.title),
        ("versions", ", ".join(engine.versions) or "none"),
        ("numbers", engine.definition),
        ("source", engine.source),
    ]
    text = view.table(("", ""), facts)
    if engine.options:
        options = [(option.name, option.default, option.help) for option in engine.options]
        header = ("option", "default", "meaning")
        text += "\n" + view.table(header, options)
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


_WEIGHTS: Final = "Weights (--weights) take others, from q1_0 to tq2_0 as llama-quantize names them: "
_DTYPES_HEADER = ("dtype", "bits", "stored as", "aliases", "source")


@command(
    (Option("name", (), "[NAME]", "One dtype, by name or alias.", complete="dtypes"), *OUTPUT),
    {"All of them": "kvplan dtypes", "One": "kvplan dtypes q8_0", "For a script": "kvplan dtypes --json"},
)
def dtypes(*, name: str | None, **output: Any) -> Answer:
    """List what --dtype takes, with bits per element and source.

    Bits per element with scales, the block that is stored, aliases, source.
    """
    from textwrap import fill

    from hwcalc.quantization.planned import weight_formats

    view = view_of(**output)
    infos = dtype_infos(name)
    if view.format == "json":
        return answer_lists(dtypes=infos, weights=() if name else weight_formats())

    rows = [(dtype.name, _bits(dtype), _stored(dtype), ", ".join(dtype.aliases), dtype.source) for dtype in infos]
    text = view.table(_DTYPES_HEADER, rows, right=(1,))
    if name is None and view.format == "table":
        text += f"\n{fill(_WEIGHTS + ', '.join(weight_formats()) + '.', width=view.width or 100, subsequent_indent='  ')}\n"
    return Answer(text=text)


def dtype_infos(name: str | None) -> list[DTypeInfo]:
    """All formats, or the one with this name or alias. Raises :class:`~hwcalc.errors.UsageError` if it is unknown."""
    from hwcalc.profiles.dtypes import dtype_aliases, dtype_names, dtype_sources, find_dtype, find_packed, packed_names
    from hwcalc.report.records import DTypeInfo

    sources, aliases = dtype_sources(), dtype_aliases()
    out = []
    for known in dtype_names():
        dtype = find_dtype(known)
        assert dtype is not None
        out.append(
            DTypeInfo(
                name=known,
                aliases=aliases[known],
                block_elements=dtype.block_elements,
                block_bytes=dtype.block_bytes,
                parts={},
                source=sources[known],
            )
        )
    for known in packed_names():
        packed = find_packed(known)
        assert packed is not None
        parts = {role.value: dtype.name for role, dtype in packed.roles.items()}
        out.append(DTypeInfo(name=known, aliases=(), block_elements=None, block_bytes=None, parts=parts, source=sources[known]))
    if name is None:
        return out
    lowered = name.strip().lower()
    chosen = [dtype for dtype in out if lowered == dtype.name or lowered in dtype.aliases]
    if not chosen:
        raise UsageError(f"dtype {shown(name, 40)} is not known.", hint=f"Known: {', '.join(dtype.name for dtype in out)}.")
    return chosen


def _bits(dtype: DTypeInfo) -> str:
    """Bits per element including scales, such as ``8.5`` for q8_0."""
    if dtype.block_bytes is None or dtype.block_elements is None:
        return ""
    return f"{8 * dtype.block_bytes / dtype.block_elements:g}"


def _stored(dtype: DTypeInfo) -> str:
    if dtype.block_elements is None:
        return ", ".join(f"{role} in {name}" for role, name in dtype.parts.items())
    if dtype.block_elements == 1:
        return f"{dtype.block_bytes} B per element"
    return f"{dtype.block_bytes} B per {dtype.block_elements} elements"


_POLICIES_HEADER: Final = (
    "policy",
    "class in kvpress",
    "effect",
    "definition",
    "option",
    "default",
    "meaning",
    "keeps",
    "formula",
    "kernel",
    "source",
)


@command(
    (
        Option(
            "name",
            (),
            "[NAME]",
            "One policy, by its name or that of its class in kvpress, with its options.",
            complete="policy_names",
        ),
        *OUTPUT,
    ),
    {
        "All of them": "kvplan policies",
        "One: what it keeps, its formula, memory, kernel and options": "kvplan policies snapkv",
        "For a script": "kvplan policies --json",
    },
)
def policies(*, name: str | None, **output: Any) -> Answer:
    """List the cache policies, or explain one.

    Which tokens stay, the formula, memory beside the cache, the attention kernel, options, published quality, and the source.
    """
    view = view_of(**output)
    found = policy_infos(name)
    if view.format == "json":
        return answer_lists(policies=found)
    if view.format == "csv":
        return Answer(text=view.table(_POLICIES_HEADER, [row for policy in found for row in _csv_rows(policy)]))
    if name is not None:
        return Answer(text=_one(found[0], view), remarks=() if view.quiet else (_in_a_plan(found[0]),))
    rows: list[tuple[str, ...]] = [
        (policy.name, policy.effect.text, policy.title, policy.kernel, policy.source) for policy in found
    ]
    header: tuple[str, ...] = ("policy", "memory", "what", "attention", "source")
    if view.format == "table":
        # A line or two for each: reasons and sources stand beside the policy alone.
        header, rows = header[:4], [(*row[:3], _in_short(row[3])) for row in rows]
    text = view.table(header, rows)
    return Answer(text=text, remarks=() if view.quiet else _MORE)


def _in_short(kernel: str) -> str:
    """The name of the attention kernel, without the reason for it."""
    return kernel.partition(":")[0].partition(";")[0]


_MORE: Final = (
    "memory: frees - dropped tokens are no longer stored; masks, zeroes, reads less - all are stored, and no memory comes back",
    "attention: the kernels with which kvpress, or the policy's own code, can run it",
    "one policy with its formula and options: kvplan policies NAME",
    "a plan with one: kvplan MODEL --policy NAME:key=value,...",
)


def _in_a_plan(policy: PolicyInfo) -> str:
    """The option of a plan that names the policy, with an option that it must have or that people set."""
    return f"in a plan: kvplan MODEL --policy {shell_word(_written(policy))}"


def _written(policy: PolicyInfo) -> str:
    """The text of the policy with its required options, else with the first option on how much it keeps."""
    needed = [one for one in policy.options if one.required or one.kind in _PARTS]
    usual = [one for one in policy.options if one.kind == "ratio" or one.name.endswith("budget")][:1]
    words = [f"{one.name}={_SAMPLES.get(one.kind, one.default)}" for one in needed or usual]
    return f"{policy.name}:{','.join(words)}" if words else policy.name


_PARTS: Final = frozenset({"prefill", "decoding"})
"""Kinds of options of which a policy may have any, but not none."""
_SAMPLES: Final = {
    "ratio": "0.5",
    "count": "1024",
    "number": "0",
    "scorer": "(snapkv:compression_ratio=0.5)",
    "base": "(knorm:compression_ratio=0.5)",
    "prefill": "(snapkv:compression_ratio=0.5)",
    "decoding": "(decoding:base_press=knorm)",
    "prefills": "[(snapkv:compression_ratio=0.5),(knorm:compression_ratio=0.5)]",
    "shares": "[0.5,0.5,...]",
}
"""An example of a value, by the kind of an option."""


def policy_infos(name: str | None) -> list[PolicyInfo]:
    """All policies, or the one with this name. Raises :class:`~hwcalc.errors.UsageError` if it is unknown."""
    from hwcalc.policies.base import quality_of
    from hwcalc.policies.parse import find_policy, policies
    from hwcalc.report.records import PolicyInfo

    chosen = policies().values() if name is None else (find_policy(name.partition(":")[0]),)
    return [
        PolicyInfo(
            name=policy.name,
            press=policy.press,
            title=policy.title,
            aliases=policy.aliases,
            role=policy.role.value,
            effect=policy.effect,
            keeps=policy.keeps,
            formula=policy.formula,
            memory=policy.memory,
            kernel=policy.kernel,
            definition=policy.definition,
            source=policy.source,
            options=tuple(_option(option) for option in policy.options if not option.name.startswith("_")),
            quality=quality_of(policy.name),
        )
        for policy in chosen
    ]


def _option(option: PolicyOption) -> PolicyOptionInfo:
    from hwcalc.report.records import PolicyOptionInfo

    default = (
        "" if option.default is None else str(option.default).lower() if isinstance(option.default, bool) else f"{option.default}"
    )
    return PolicyOptionInfo(name=option.name, kind=option.kind, default=default, required=option.required, help=option.help)


def _one(policy: PolicyInfo, view: View) -> str:
    """A policy as tables: its facts, its options, and published figures."""
    from hwcalc.report.policy import MEMORY

    facts = (
        ("policy", policy.name),
        ("what", policy.title),
        ("class in kvpress", policy.press or _WITHOUT_PRESS[policy.definition]),
        ("keeps", policy.keeps),
        ("formula", policy.formula),
        ("memory", MEMORY[policy.effect.value]),
        ("beside the cache", policy.memory),
        ("attention", policy.kernel),
        ("numbers", _NUMBERS[policy.definition]),
        ("source", policy.source),
    )
    text = view.table(("", ""), facts)
    if policy.options:
        rows = [(one.name, "required" if one.required else one.default or "none", one.help) for one in policy.options]
        text += "\n" + view.table(("option", "default", "meaning"), rows)
    if policy.quality:
        figures = [
            (one.model, one.benchmark, f"{one.budget:,}", f"{one.accuracy:g}", f"{one.full_accuracy:g}") for one in policy.quality
        ]
        header = ("model", "benchmark", "budget", "accuracy %", "whole cache %")
        text += "\n" + view.table(header, figures, right=(2, 3, 4))
        sources = ", ".join(dict.fromkeys(one.source for one in policy.quality))
        text += f"\nright answers as published by {sources}, no promise\n"
    return text


_NUMBERS: Final = {
    "engine": "as its code keeps them; the code was run and compared",
    "published": "as its paper says: no code of it was run",
}
"""How the numbers of a policy are known."""
_WITHOUT_PRESS: Final = {"engine": "none: it has code of its own", "published": "none: it is planned by its paper"}


def _csv_rows(policy: PolicyInfo) -> list[tuple[str, ...]]:
    common = (policy.keeps, policy.formula, policy.kernel, policy.source)
    first = (policy.name, policy.press, policy.effect.text, policy.definition)
    options = [(one.name, one.default, one.help) for one in policy.options] or [("", "", "")]
    return [(*first, *option, *common) for option in options]


@command(
    (
        Option(
            "document",
            (),
            "[DOCUMENT]",
            f"{', '.join(DOCUMENTS[:-1])} or {DOCUMENTS[-1]}. Default: plan.",
            default="plan",
            complete="schemas",
        ),
        next(option for option in OUTPUT if option.name == "json"),
    ),
    {
        "Of a plan's document": "kvplan schema plan",
        "Of a check file, for an editor": "kvplan schema check-file",
        "Of an error's document": "kvplan schema error",
    },
)
def schema(*, document: str, json: bool) -> Answer:
    """Print the JSON Schema of a document, or of a check file.

    Of a document that kvplan writes, or of the check file that it reads; --json changes nothing but errors.
    """
    from hwcalc.report.schema import json_schema

    if document not in DOCUMENTS:
        raise UsageError(f"there is no schema of {shown(document, 40)}.", hint=f"Known: {', '.join(DOCUMENTS)}.")
    return answer(json_schema(document))
