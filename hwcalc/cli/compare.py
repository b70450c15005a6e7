"""``kvplan compare``, ``diff``, ``fit`` and ``recommend``: several plans side by side, of models or of hardware."""

from __future__ import annotations

import json as json_module
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from hwcalc.cli.options import (
    MODELS,
    OPTIONAL_MODEL,
    OUTPUT,
    Option,
    command,
    given_options,
    grouped,
    plan_options,
    progress,
    reading,
    say_unreachable,
)
from hwcalc.cli.output import Answer, answer, view_of, why_not
from hwcalc.errors import UsageError

if TYPE_CHECKING:
    from hwcalc.planner.diff import Change, Difference


@command(
    (MODELS, *plan_options("compare"), *OUTPUT),
    {
        "Two models side by side": "kvplan compare Qwen/Qwen3-8B meta-llama/Llama-3.1-8B --seq 32k",
        "All engines, and why their numbers differ": "kvplan compare openai/gpt-oss-20b --engine all --gpu h100 --seq 8k",
        "All models of a family": "kvplan compare 'Qwen/Qwen3-?B' --seq 32k",
    },
)
def compare(*, models: Sequence[str] | None, **options: Any) -> Answer:
    """Show models, dtypes, engines or accelerators side by side.

    Every combination of what is given as a list.

    The status is 1 if an accelerator is named and no variant is known to fit. As in a sweep, a variant that cannot be planned is said and
    does not change it; if none can be planned, the status is that of the first error.
    """
    from hwcalc.library.compare import compared

    view, given = view_of(**options), given_options("compare", options)
    with progress():
        comparison, notes = compared(models or (), given)
    remarks = () if view.quiet else tuple(note.message for note in notes)
    failed = [variant.error for variant in comparison.variants if variant.error is not None]
    if failed and all(variant.row is None for variant in comparison.variants):
        remarks = (*remarks, f"{len(failed):,} of {len(comparison.variants):,} could not be planned; the first: {failed[0]}")
    judged = [variant.fits for variant in comparison.variants if variant.gpu is not None or variant.fits is not None]
    status = 1 if judged and not any(judged) else 0
    if view.format == "json":
        return answer(comparison, status=status, remarks=remarks)
    from hwcalc.report.compare import comparison_csv, comparison_text

    if view.format == "csv":
        return Answer(text=comparison_csv(comparison), status=status, remarks=remarks)
    return Answer(text=comparison_text(comparison, view), status=status, remarks=remarks)


_LONGEST = 60
_MOST_KEYS = 200
"""Keys that a table lists. Two published configs of one type differ in up to a hundred."""


@command(
    (
        Option(
            "models", (), "A B", "Two models: ids, org/name@revision, folders or config.json files.", "list", complete="models"
        ),
        *plan_options("diff"),
        *OUTPUT,
    ),
    {
        "Two models, key by key and in bytes": "kvplan diff Qwen/Qwen3-8B Qwen/Qwen3-14B --seq 32k",
        "The same on an accelerator": "kvplan diff Qwen/Qwen3-8B Qwen/Qwen3-4B --engine vllm --gpu l4",
        "For a pull request": "kvplan diff Qwen/Qwen3-8B Qwen/Qwen3-14B --format markdown",
    },
)
def diff(*, models: list[str] | None, **options: Any) -> Answer:
    """Show what differs in memory between two models or revisions.

    Keys of the configs that bear on memory, and bytes.

    The status is 1 if an accelerator is named and one of the two is not known to fit it.
    """
    from hwcalc.library.load import load
    from hwcalc.library.plan import plan
    from hwcalc.model import PARTIAL_WEIGHTS
    from hwcalc.planner.diff import compare
    from hwcalc.planner.options import read_options
    from hwcalc.planner.plan import common_notes

    names = models or []
    if len(names) != 2:
        raise UsageError(f"diff compares two models (got {len(names)}).", hint="Write: kvplan diff A B --seq 32k")
    if names == ["-", "-"]:
        raise UsageError("standard input can be only one of the two models.", hint="Write: kvplan diff - other.json < one.json")
    view, given = view_of(**options), given_options("diff", options)
    asked = read_options(given)
    a, b = (load(name, asked.access, revision=asked.revision, assume=asked.assume) for name in names)
    if "seq" not in given:
        # The smaller maximum of both, so that their bytes can be compared.
        known = [model.max_position_embeddings for model in (a, b) if model.max_position_embeddings is not None]
        if not known:
            raise UsageError("neither model states its longest sequence.", hint="Give one: --seq 32k")
        given["seq"] = min(known)
    plan_a, plan_b = (plan(model, **given) for model in (a, b))
    for planned in (plan_a, plan_b):
        say_unreachable(planned.notes)
    difference = compare(a, b, plan_a, plan_b)
    remarks = () if view.quiet else tuple(note.message for note in common_notes([plan_a.notes, plan_b.notes]))
    named = (("A", plan_a), ("B", plan_b))
    partial = [(name, note) for name, planned in named for note in planned.warnings if note.code == PARTIAL_WEIGHTS]
    refuted = [f"{name}: {line}" for name, planned in named for line in why_not(planned)]
    remarks = (*remarks, *(f"{name}: {note.message}" for name, note in partial), *refuted)
    status, seq = 1 if plan_a.refutes or plan_b.refutes else 0, plan_a.request.seq
    if view.format == "json":
        return answer(difference, status=status, remarks=remarks)
    if view.format == "csv":
        return Answer(text=_csv(difference, seq), status=status, remarks=remarks)
    from hwcalc.report.summary import footnotes
    from hwcalc.text import clean

    rows = [_for_people(figure) for figure in difference.figures]
    if plan_a.fit is not None and plan_b.fit is not None:
        rows.append(("verdict", plan_a.fit.verdict.text, plan_b.fit.verdict.text, ""))
    figures = view.table((f"at {seq:,} tokens", "A", "B", "B - A"), rows, right=(1, 2, 3))
    changed = [(change.key, _value(change.in_a, change.a), _value(change.in_b, change.b)) for change in difference.keys]
    few, more = changed[:_MOST_KEYS], len(changed) - _MOST_KEYS
    keys = view.table(("key", "A", "B"), few) if changed else ""
    if more > 0:
        keys += f"\n{more:,} more keys differ. All of them: --format csv, or --json\n"
    head = f"A  {clean(difference.a)}\nB  {clean(difference.b)}\n\n"
    same = "" if changed else "No key that bears on memory differs.\n"
    pairs = ((difference.a, difference.definition_a), (difference.b, difference.definition_b))
    told = footnotes(pairs, view)
    return Answer(text=f"{head}{figures}\n{keys}{same}" + (f"\n{told}" if told else ""), status=status, remarks=remarks)


_FIGURES: Final = {
    "parameters.total": "parameters",
    "parameters.active": "active parameters",
    "cache.bytes_per_token": "cache of a token",
    "cache.state_bytes_per_sequence": "state of a sequence",
    "cache.bytes_per_sequence": "cache of a sequence",
    "cache.total_bytes": "cache",
    "memory.weights.bytes": "weights",
    "memory.total_bytes": "all together",
}
"""What a figure is called in the table. Documents and CSV have its name."""


def _for_people(figure: Change) -> tuple[str, str, str, str]:
    """A figure of both models in words and binary units, and the difference with its sign."""
    from hwcalc.report.text import parameters
    from hwcalc.units import human_bytes

    written = parameters if figure.name.startswith("parameters.") else human_bytes
    a, b = ("unknown" if size is None else written(size) for size in (figure.a, figure.b))
    apart = figure.difference
    if not apart:
        return _FIGURES[figure.name], a, b, "" if apart is None else "same"
    return _FIGURES[figure.name], a, b, f"{'+' if apart > 0 else '-'}{written(abs(apart))}"


def _csv(difference: Difference, seq: int) -> str:
    """One table with the request, the figures as numbers (empty is unknown) and the keys (empty is absent)."""
    from hwcalc.report.text import csv_text

    rows: list[tuple[object, ...]] = [("model", "id", difference.a, difference.b, "")]
    rows += [("model", "definition", difference.definition_a, difference.definition_b, ""), ("request", "seq", seq, seq, 0)]
    rows += (("figure", figure.name, figure.a, figure.b, figure.difference) for figure in difference.figures)
    rows += (("key", key.key, _cell(key.in_a, key.a), _cell(key.in_b, key.b), "") for key in difference.keys)
    return csv_text(("what", "name", "a", "b", "difference"), rows)


def _cell(present: bool, value: Any) -> str:
    if not present:
        return ""
    return value if isinstance(value, str) else json_module.dumps(value, default=str)


def _value(present: bool, value: Any) -> str:
    if not present:
        return "(absent)"
    text = json_module.dumps(value, default=str)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


_CHOICE: Final = (
    Option(
        "models",
        (),
        "[WORD]...",
        "Words of the id, or else of the model type; all must occur: qwen3 coder.",
        "list",
        complete="models",
    ),
    *grouped(
        "model",
        Option("installed", ("--installed",), "", "What is here: the Hugging Face cache and Ollama's store.", "flag"),
        Option("folder", ("--folder",), "DIR", "The GGUF files of a folder. Repeatable.", "list", complete="files"),
        Option(
            "family", ("--family",), "F,...", "Only of these families: qwen3, gemma-3. Repeatable.", "list", complete="families"
        ),
        Option("min_params", ("--min-params",), "N", "At least so many parameters: 7B."),
        Option("max_params", ("--max-params",), "N", "At most so many parameters: 70B."),
        Option(
            "modality",
            ("--modality",),
            "M",
            "Only models that take this: text (alone), vision, audio; or embedding models.",
            complete="modalities",
        ),
    ),
    Option("only_fits", ("--only-fits",), "", "Leave out models of which a part stays in the memory of the host.", "flag"),
    Option("min_speed", ("--min-speed",), "T", "At least so many tokens per second by the bound."),
    Option("limit", ("--limit",), "N", "List so many; 0 lists all. Default: 30."),
    Option("every", ("--all",), "", "Every model by itself, not the best three of a family.", "flag"),
)


@command(
    (*_CHOICE, *plan_options("fit"), *OUTPUT),
    {
        "What runs on a card?": "kvplan fit --gpu rtx-4060-ti --seq 16k",
        "Of these, on a Mac, at least as fast as one reads": "kvplan fit --family qwen3,gemma-3 --gpu m4-24gb --min-speed 10",
        "Of what is on this machine": "kvplan fit --installed --gpu rtx-3060 --seq 32k",
    },
)
def fit(**options: Any) -> Answer:
    """List the models that run on a GPU, each in its best format. Exit status 1 says that none does.

    First are models that lie on the GPU as a whole in four bits or more, then those that follow instructions, then those made for at
    least twice the tokens asked for, then the largest.
    """
    from hwcalc.library.fit import fit

    view, given = view_of(**options), given_options("fit", options)
    own = {option.name: options[option.name] for option in _CHOICE if options[option.name] not in (None, [])}
    with progress():
        result = fit(**own, **given)
    from hwcalc.report.fitting import fit_csv, fit_text, models_left_out

    status = 0 if result.models else 1
    if view.format == "json":
        return answer(result, status=status)
    if view.format == "csv":
        remarks = () if view.quiet else tuple(models_left_out(result))
        return Answer(text=fit_csv(result), status=status, remarks=remarks)
    return Answer(text=fit_text(result, view), status=status)


_CATEGORY: Final = "Only of these categories: datacenter, consumer, ... Repeatable."
_INSTANCES: Final = "Cloud instances instead of accelerators: aws, gcp, azure, ..., all, or how their names begin: p5."
_SORT: Final = "What is sure first, then by memory (least), gpus (fewest), speed, headroom (most), or common: what people can get, newest first. Default: common."
_ANY_LAYOUT: Final = "Try any number of GPUs and any tp x pp x dp: 3, 5 or 7 GPUs, pp 7."
_RECOMMEND_CHOICE: Final = (
    *grouped(
        "hardware",
        Option(
            "gpu",
            ("--gpu",),
            "G,...",
            "Choose from these accelerators only: l4,h100. Repeatable. Default: all.",
            "list",
            complete="gpus",
            short="Only of these: l4,h100.",
        ),
        Option("vendor", ("--vendor",), "V,...", "Only of these makers: nvidia, amd. Repeatable.", "list", complete="vendors"),
        Option(
            "category",
            ("--category",),
            "C,...",
            _CATEGORY,
            "list",
            complete="categories",
            short="Only of these: datacenter, consumer.",
        ),
        Option("instances", ("--instances",), "CLOUD", _INSTANCES, complete="clouds"),
        Option("max_gpus", ("--max-gpus",), "N", "At most so many GPUs together. Default: 8."),
    ),
    Option("sort", ("--sort",), "S", _SORT, complete="sorts", short="By common, memory, gpus, speed or headroom."),
    Option("strict", ("--strict",), "", "Leave out what only probably fits.", "flag"),
    Option("limit", ("--limit",), "N", "List so many; 0 lists all. Default: 20."),
    Option("every", ("--all",), "", "List each instance, not one for all with the same accelerator.", "flag"),
    *grouped("hardware", Option("any_layout", ("--any-layout",), "", _ANY_LAYOUT, "flag")),
)


@command(
    (OPTIONAL_MODEL, *plan_options("recommend"), *_RECOMMEND_CHOICE, *OUTPUT),
    {
        "What holds 8 sequences of 32k tokens?": "kvplan recommend Qwen/Qwen3-8B --seq 32k --batch 8",
        "Only what is named": "kvplan recommend Qwen/Qwen3-8B --engine vllm --gpu l4,l40s,h100",
        "To rent": "kvplan recommend Qwen/Qwen3-8B --engine vllm --seq 32k --instances aws",
    },
)
def recommend(*, model: str | None, **options: Any) -> Answer:
    """List the hardware that holds the sequences.

    Of each kind as little as does, and what people can get first. Exit status 1: none does.
    """
    from hwcalc.library.recommend import recommend

    view, given = view_of(**options), given_options("recommend", options)
    own = {name: options[name] for name in (option.name for option in _RECOMMEND_CHOICE) if options[name] is not None}
    with reading(model, "recommend"):
        result = recommend(model, **own, **given)
    from hwcalc.hardware.profiles import LEFT_OUT

    status = 0 if result.offers else 1
    said = tuple(note.message for note in result.notes if note.code in {"hub-unreachable", LEFT_OUT})
    if view.format == "json":
        return answer(result, status=status, remarks=said)
    from hwcalc.report.fitting import hardware_left_out, recommendation_csv, recommendation_text

    if view.format == "csv":
        more = (f"{result.more:,} more: --limit 0",) if result.more else ()
        return Answer(
            text=recommendation_csv(result),
            status=status,
            remarks=said if view.quiet else (*said, *more, *hardware_left_out(result)),
        )
    return Answer(text=recommendation_text(result, view), status=status, remarks=said)
