"""``kvplan models``, ``engines``, ``dtypes``, ``policies`` and ``schema``: what is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc.cli.options import OUTPUT, PLANNING, Option, command
from hwcalc.cli.output import Answer, answer, answer_lists, view_of
from hwcalc.documents import SCHEMA_VERSION, ErrorInfo, document_of
from hwcalc.errors import KvplanError, ModelNotFoundError, UsageError
from hwcalc.report.schema import DOCUMENTS
from hwcalc.report.view import View
from hwcalc.text import shell_word, shown

if TYPE_CHECKING:
    from hwcalc.report.records import DTypeInfo, EngineInfo, HardwareInfo, PolicyInfo
    from hwcalc.sources.refresh import Refreshed


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
        Option(
            "kinds",
            ("--kinds",),
            "",
            "List the kinds of layers, with the parameters that --layers-of takes for each.",
            "flag",
            group="model",
        ),
        *(option for option in PLANNING if option.name in {"revision", "token", "endpoint"}),
        *OUTPUT,
    ),
    {
        "All of them": "kvplan models",
        "Those with these words in id or type": "kvplan models qwen3 coder",
        "What layers can be written down with": "kvplan models --kinds mamba",
    },
)
def models(
    *,
    search: Sequence[str] | None,
    refresh: bool,
    types: bool,
    kinds: bool,
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
    if types and kinds:
        raise UsageError("--types and --kinds are two lists.", hint="Give one of them.")
    if types:
        return _types(words, view)
    if kinds:
        return _kinds(words, view)
    from hwcalc.sources.listing import list_known_models

    matching = list_known_models(words)
    if view.format == "json":
        return answer_lists(models=matching)
    if not matching:
        words = shown(words, 60)
        raise ModelNotFoundError(f"no known model has {words} in its id or type.", hint="List all of them: kvplan models")
    from hwcalc.report.columns import listed
    from hwcalc.report.text import PIPED_WIDTH, parameters, plural

    whole, rows = view.format == "csv", []
    for model in matching:
        count = "" if model.parameters is None else str(model.parameters) if whole else parameters(model.parameters)
        fidelity = model.fidelity or ""
        kind = (model.model_type or "", count, model.released or "")
        rows.append((model.id, *kind, model.source, fidelity if whole else fidelity.partition(",")[0]))
    # On a terminal the remark says whose parameters they are.
    short = whole or (view.format == "table" and view.width < PIPED_WIDTH)
    header = ("id", "type", "parameters" if short else "published parameters", "released", "source", "fidelity")
    text, left_out = listed(view, header, rows, ("source", "fidelity", "type", "released"), right=(2,))
    remarks = () if view.quiet else (f"{plural(len(matching), 'model')}; {_COUNTED}", *left_out)
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
        errors = [{"id": key, **document_of(ErrorInfo.of(error))} for key, error in failed.items()]
        refreshed = [{"id": key, "path": str(new.path), "notes": new.notes} for key, new in done.items()]
        return answer({"schema_version": SCHEMA_VERSION, "refreshed": refreshed, "failed": errors}, status=status)
    text = "".join(f"{model_id}  {written.path}\n" for model_id, written in done.items())
    notes = [] if view.quiet else [f"{model_id}: {note.message}" for model_id, new in done.items() for note in new.notes]
    hints = [f"{model_id}: {error.message} {'' if view.quiet else error.hint}".rstrip() for model_id, error in failed.items()]
    return Answer(text=text, remarks=(*notes, *hints), status=status)


def _types(words: str, view: View) -> Answer:
    """Every known model type with the kinds of layers that its models have. All ``words`` must occur in the type or the kinds."""
    from hwcalc.parsers.known_types import listed_types

    matching = []
    for row in listed_types():
        texts = (row.model_type.lower(), *row.families)
        if all(any(word in text for text in texts) for word in words.lower().split()):
            matching.append(row)
    if view.format == "json":
        return answer_lists(types=[{"model_type": row.model_type, "families": row.families} for row in matching])
    if not matching:
        message = f"no known type has {shown(words, 60)} in its name or its layers."
        raise ModelNotFoundError(message, hint="List all of them: kvplan models --types")
    from hwcalc.report.text import plural

    text = view.table(("type", "layers"), [(row.model_type, ", ".join(row.families)) for row in matching])
    remarks = (plural(len(matching), "type"), "To read a config as one of them: kvplan MODEL --assume TYPE")
    return Answer(text=text, remarks=() if view.quiet else remarks)


def _kinds(words: str, view: View) -> Answer:
    """Every kind of layer with its parameters. All ``words`` must occur in its names or in what it keeps."""
    from hwcalc.formulas import KINDS
    from hwcalc.parsers.written import kinds_described, signature

    texts = ((row, " ".join((*row.names, row.keeps)).lower()) for row in kinds_described())
    matching = [row for row, text in texts if all(word in text for word in words.lower().split())]
    if view.format == "json":
        return answer_lists(kinds=matching)
    if not matching:
        message = f"no kind of layer has {shown(words, 60)} in its names or in what it keeps."
        raise ModelNotFoundError(message, hint="List all of them: kvplan models --kinds")
    from hwcalc.report.text import plural

    rows = [(row.names[0], signature(KINDS[row.kind]), row.keeps) for row in matching]
    text = view.table(("kind", "parameters", "keeps"), rows)
    remarks = (
        plural(len(matching), "kind"),
        "To write a model of them: kvplan --layers-of '12*KIND(PARAMETER=N, ...) + 4*KIND(...)' --seq 32k",
    )
    return Answer(text=text, remarks=() if view.quiet else remarks)


_WORDS: Final = (
    "no: the engine refuses the model, or kvplan has no rule for it; yes: for these layers of the models that the engine runs",
    "every token: also those outside the window; by model: for some of its models, and the window alone for the others",
)


@command(
    (
        Option("name", (), "[NAME]", "One engine, with its options.", complete="engines"),
        Option("kinds", ("--kinds",), "", "For which kinds of layers each engine has a rule.", "flag"),
        Option("hardware", ("--hardware",), "", "The accelerators it runs on, and the formats that need more.", "flag"),
        *OUTPUT,
    ),
    {
        "All of them": "kvplan engines",
        "One with its options and versions": "kvplan engines vllm",
        "What it runs on, with source": "kvplan engines vllm --hardware",
    },
)
def engines(*, name: str | None, kinds: bool, hardware: bool, **output: Any) -> Answer:
    """List the engines, or one with its options and versions.

    With --hardware: on which accelerators each runs, by version, and the formats that need more, with source.
    """
    view = view_of(**output)
    infos = _engine_infos(name)
    if view.format == "json":
        return answer_lists(engines=infos)
    if kinds:
        matrix = [(kind, *(engine.kinds[kind] for engine in infos)) for kind in infos[0].kinds]
        names = ("layers", *(engine.name for engine in infos))
        return Answer(text=view.table(names, matrix), remarks=() if view.quiet else _WORDS)
    if hardware:
        return _hardware(infos, view)
    if view.format == "csv":
        bare, known = [], []
        for engine in infos:
            first = (engine.name, " ".join(engine.versions), engine.definition)
            known += [(*first, option.name, option.default, option.help) for option in engine.options]
            bare += [] if engine.options else [(*first, "", "", "")]
        return Answer(text=view.table(("engine", "versions", "numbers", "option", "default", "meaning"), bare + known))
    if name is None:
        rows = []
        for engine in infos:
            several = len(engine.versions) > 1
            versions = f"{engine.versions[-1]} to {engine.versions[0]}" if several else " ".join(engine.versions)
            options = ", ".join(option.name for option in engine.options)
            rows.append((engine.name, versions, engine.definition, engine.title, options))
        from hwcalc.report.columns import listed

        text, left_out = listed(view, ("engine", "versions", "numbers", "what", "options"), rows, ("options", "numbers"))
        return Answer(text=text, remarks=() if view.quiet else ("one engine with its options: kvplan engines NAME", *left_out))
    engine = infos[0]
    versions = ", ".join(engine.versions) or "none"
    facts = [("engine", engine.name), ("what", engine.title), ("versions", versions), ("numbers", engine.definition)]
    text = view.table(("", ""), [*facts, ("source", engine.source)])
    if engine.options:
        own = [(option.name, option.default, option.help) for option in engine.options]
        text += "\n" + view.table(("option", "default", "meaning"), own)
    return Answer(text=text)


_ANSWERS: Final = (
    "runs: the engine ships it or its page says so; open: a plug-in, a source build, or not tried, which a plan says as a warning; never: a plan refuses it",
    "the best answer of several rows holds; an accelerator without a row is refused; 7.5 is a compute capability of NVIDIA, 7.5+ that and later ones",
)


def _hardware(engines: Sequence[EngineInfo], view: View) -> Answer:
    """The accelerators on which engines run, and the formats that need more: a row for each statement of a source."""
    if not any(engine.hardware for engine in engines):
        return Answer(
            text="", remarks=(f"{engines[0].name} is the formulas alone, which run on no accelerator: any may be planned.",)
        )
    rows = []
    for engine in engines:
        for row in engine.hardware:
            what = "engine" if row.what == "runs" else f"{row.what} {', '.join(row.formats)}"
            versions = " ".join(filter(None, (row.since and f"from {row.since}", row.until and f"before {row.until}"))) or "all"
            own = (what, row.answer, " ".join(row.accelerators), versions, row.backend, row.note, row.source)
            rows.append((engine.name, *own))
    header = ("engine", "what", "answer", "accelerators", "versions", "by", "note", "source")
    # One engine needs no column of its name. Sources are long: they stand in the other formats than a table.
    shown = slice(len(engines) == 1, -1 if view.format == "table" else None)
    remarks = (*_ANSWERS, f"with the source of each row: kvplan engines {engines[0].name} --hardware --format csv")
    return Answer(text=view.table(header[shown], [row[shown] for row in rows]), remarks=() if view.quiet else remarks)


def _hardware_infos(engine: str, version: str | None) -> Iterator[HardwareInfo]:
    """The statements on an engine, of one version if there is one."""
    from hwcalc.profiles.engine_hardware import hardware_rows, has_hardware
    from hwcalc.report.records import HardwareInfo

    for section, rows in hardware_rows(engine).items() if has_hardware(engine) else ():
        for row in rows:
            if version is None or row.holds(version):
                yield HardwareInfo(
                    what=section,
                    formats=row.formats,
                    accelerators=row.accelerators,
                    answer=row.answer.value,
                    backend=row.backend,
                    since=None if row.since == "0.0" else row.since,
                    until=row.until,
                    note=row.note,
                    source=row.source,
                )


def _engine_infos(name: str | None) -> list[EngineInfo]:
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
        options = (OptionInfo(name=option.name, default=option.default, help=option.help) for option in engine.options.values())
        out.append(
            EngineInfo(
                name=engine.name,
                title=engine.title,
                definition=engine.definition,
                versions=engine.versions if version is None else (resolved,),
                source=engine.source,
                options=tuple(options),
                kinds={kind: engine.stores(of) for kind, of in sorted(KINDS.items())},
                hardware=tuple(_hardware_infos(engine.name, None if version is None else resolved)),
            )
        )
    return out


_OWN: Final = "Single engines have others: "
_WEIGHTS: Final = "Weights (--weights) take others, from q1_0 to tq2_0 as llama-quantize names them: "


@command(
    (Option("name", (), "[NAME]", "One dtype, or a format of weights, by name or alias.", complete="dtypes"), *OUTPUT),
    {"All of them": "kvplan dtypes", "One": "kvplan dtypes q8_0", "For a script": "kvplan dtypes --json"},
)
def dtypes(*, name: str | None, **output: Any) -> Answer:
    """List what --dtype takes, with bits per element and source.

    Bits per element with scales, the block that is stored, aliases, source.
    """
    from hwcalc.quantization.planned import weight_formats
    from hwcalc.report.cache_format import cache_text, in_words

    view = view_of(**output)
    infos, weights = _dtype_infos(name), None
    if not infos and name is not None:
        from hwcalc.library.weight_format import weight_format
        from hwcalc.report.weight_format import format_text

        weights = weight_format(name)
        if weights is None:
            known = (*(dtype.name for dtype in _dtype_infos(None)), *_own_formats())
            hint = f"Known: {', '.join(known)}; of weights (--weights): {', '.join(weight_formats())}."
            raise UsageError(f"dtype {shown(name, 40)} is not known.", hint=hint)
        if view.format == "table":
            return Answer(text=format_text(name, view.width))
    if view.format == "json":
        return answer_lists(
            dtypes=infos, weights=weight_formats() if name is None else () if weights is None else (weights.name,)
        )
    rows = []
    if weights is not None:
        rows.append((weights.name, f"{weights.bits:g}", weights.mostly, ", ".join(weights.aliases), weights.made_by))
    for dtype in infos:
        # Engines may store more than the block of a format, and may have formats of their own.
        rows += [(dtype.name, f"{one.bits:g}", in_words(one), "", one.source) for one in dtype.engines if view.format != "table"]
        if dtype.block_elements is None and not dtype.parts:
            continue
        if dtype.block_elements is None or dtype.block_bytes is None:
            bits, stored = "", ", ".join(f"{role} in {part}" for role, part in dtype.parts.items())
        else:
            # Bits per element including scales, such as 8.5 for q8_0.
            bits = f"{8 * dtype.block_bytes / dtype.block_elements:g}"
            block = "element" if dtype.block_elements == 1 else f"{dtype.block_elements} elements"
            stored = f"{dtype.block_bytes} B per {block}"
        rows.append((dtype.name, bits, stored, ", ".join(dtype.aliases), dtype.source))
    text = view.table(("dtype", "bits", "stored as", "aliases", "source"), rows, right=(1,))
    if name is not None and view.format == "table":
        said = "".join(cache_text(each.name, view.width) for each in infos)
        text = f"{text}\n{said}" if rows and said else said or text
    if name is None and view.format == "table":
        own = f"{_OWN}{', '.join(_own_formats())}. What one is: kvplan dtypes NAME"
        text += "\n" + view.paragraphs([f"{_WEIGHTS}{', '.join(weight_formats())}.", own])
    return Answer(text=text)


def _dtype_infos(name: str | None) -> list[DTypeInfo]:
    """All formats of a cache that several engines have, or the one with this name or alias, also of a single engine, if there is one."""
    from hwcalc.profiles.dtypes import dtype_file
    from hwcalc.report.cache_format import engine_formats
    from hwcalc.report.records import DTypeInfo

    out, file = [], dtype_file()
    for known, facts in {**file["dtypes"], **file["packed"]}.items():
        block = {size: facts.get(size) for size in ("block_elements", "block_bytes")}
        aliases, parts = tuple(facts.get("aliases", ())), facts.get("roles", {})
        out.append(DTypeInfo(name=known, aliases=aliases, **block, parts=parts, source=facts["source"]))
    if name is None:
        return out
    lowered = name.strip().lower()
    found, own = [dtype for dtype in out if lowered == dtype.name or lowered in dtype.aliases], engine_formats()
    if not found and lowered in own:
        sources = "; ".join(dict.fromkeys(one.source for one in own[lowered]))
        found = [DTypeInfo(name=lowered, aliases=(), block_elements=None, block_bytes=None, parts={}, source=sources)]
    return [replace(dtype, engines=tuple(own.get(dtype.name, ()))) for dtype in found]


def _own_formats() -> list[str]:
    """The names of formats of a cache that single engines have."""
    from hwcalc.profiles.dtypes import find_dtype, find_packed
    from hwcalc.report.cache_format import engine_formats

    return [name for name in engine_formats() if find_dtype(name) is None and find_packed(name) is None]


_POLICIES_HEADER: Final = (
    "policy", "class in kvpress", "effect", "definition", "option", "default", "meaning", "keeps", "formula", "kernel", "source",
)  # fmt: skip


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
    from hwcalc.policies.parse import find_policy, policies
    from hwcalc.report.records import policy_info

    view = view_of(**output)
    chosen = policies().values() if name is None else (find_policy(name.partition(":")[0]),)
    infos = [policy_info(policy) for policy in chosen]
    if view.format == "json":
        return answer_lists(policies=infos)
    if view.format == "csv":
        rows: list[tuple[str, ...]] = []
        for policy in infos:
            first = (policy.name, policy.press, policy.effect.text, policy.definition)
            last = (policy.keeps, policy.formula, policy.kernel, policy.source)
            options = [(option.name, option.default, option.help) for option in policy.options] or [("", "", "")]
            rows += [(*first, *option, *last) for option in options]
        return Answer(text=view.table(_POLICIES_HEADER, rows))
    if name is not None:
        return Answer(text=_one(infos[0], view), remarks=() if view.quiet else (_in_a_plan(infos[0]),))
    rows = [(policy.name, policy.effect.text, policy.title, policy.kernel, policy.source) for policy in infos]
    header: tuple[str, ...] = ("policy", "memory", "what", "attention", "source")
    if view.format == "table":
        # A line or two for each: the reason for a kernel, and sources, stand beside the policy alone.
        header, rows = header[:4], [(*row[:3], row[3].partition(":")[0].partition(";")[0]) for row in rows]
    return Answer(text=view.table(header, rows), remarks=() if view.quiet else _MORE)


_MORE: Final = (
    "memory: frees - dropped tokens are no longer stored; masks, zeroes, reads less - all are stored, and no memory comes back",
    "attention: the kernels with which kvpress, or the policy's own code, can run it",
    "one policy with its formula and options: kvplan policies NAME",
    "a plan with one: kvplan MODEL --policy NAME:key=value,...",
)


def _in_a_plan(policy: PolicyInfo) -> str:
    """The option of a plan that names the policy with its required options, else with the first option on how much it keeps."""
    needed = [option for option in policy.options if option.required or option.kind in _PARTS]
    usual = [option for option in policy.options if option.kind == "ratio" or option.name.endswith("budget")][:1]
    words = [f"{option.name}={_SAMPLES.get(option.kind, option.default)}" for option in needed or usual]
    written = f"{policy.name}:{','.join(words)}" if words else policy.name
    return f"in a plan: kvplan MODEL --policy {shell_word(written)}"


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
        rows = [
            (option.name, "required" if option.required else option.default or "none", option.help) for option in policy.options
        ]
        text += "\n" + view.table(("option", "default", "meaning"), rows)
    if policy.quality:
        figures = [
            (figure.model, figure.benchmark, f"{figure.budget:,}", f"{figure.accuracy:g}", f"{figure.full_accuracy:g}")
            for figure in policy.quality
        ]
        header = ("model", "benchmark", "budget", "accuracy %", "whole cache %")
        text += "\n" + view.table(header, figures, right=(2, 3, 4))
        sources = ", ".join(dict.fromkeys(figure.source for figure in policy.quality))
        text += f"\nright answers as published by {sources}, no promise\n"
    return text


_NUMBERS: Final = {
    "engine": "as its code keeps them; the code was run and compared",
    "published": "as its paper says: no code of it was run",
}
"""Origins of the numbers of a policy."""
_WITHOUT_PRESS: Final = {"engine": "none: it has code of its own", "published": "none: it is planned by its paper"}


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
