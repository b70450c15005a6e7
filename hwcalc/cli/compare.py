"""``kvplan compare``, ``diff``, ``fit``, ``recommend`` and ``swap``: several plans side by side, of models or of hardware."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

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
from hwcalc.cli.output import Answer, formatted, on_terminal, output_lines, view_of, why_not
from hwcalc.errors import UsageError
from hwcalc.planner.options import ROWS
from hwcalc.text import shell_word

if TYPE_CHECKING:
    from hwcalc.planner.diff import Difference
    from hwcalc.planner.result import Plan


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

    The status is 1 if an accelerator is named and no variant is known to fit, within the limits of time if there are any. As in a sweep, a variant that cannot be planned is said and
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
    judged = [variant.passes for variant in comparison.variants if variant.gpu is not None or variant.fits is not None]
    status = 1 if judged and not any(judged) else 0
    from hwcalc.report.compare import comparison_text

    return formatted(comparison, view, comparison_text, status=status, remarks=remarks)


@command(
    (
        Option(
            "models",
            (),
            "A B",
            "Two models: ids, org/name@revision, folders or config.json files; or two plans that --json wrote.",
            "list",
            complete="models",
            short="Two models, or two plans that --json wrote.",
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
    """Show how two models, revisions or plans differ in memory.

    Keys that bear on memory, and bytes. Two files that kvplan MODEL --json wrote are compared as they are.

    The status is 1 if an accelerator is named and one of the two is not known to fit it.
    """
    from hwcalc.planner.diff import compare_documents, read_plan
    from hwcalc.report.compare import difference_csv, difference_text

    names = models or []
    if len(names) != 2:
        raise UsageError(f"diff compares two models (got {len(names)}).", hint="Write: kvplan diff A B --seq 32k")
    if names == ["-", "-"]:
        raise UsageError("standard input can be only one of the two models.", hint="Write: kvplan diff - other.json < one.json")
    view, given = view_of(**options), given_options("diff", options)
    a, b = map(read_plan, names)
    if a is not None and b is not None:
        if given:
            hint = f"Write: kvplan diff {' '.join(map(shell_word, names))}"
            raise UsageError(f"both files are plans already, which take no {ROWS[next(iter(given))].spellings[0]}.", hint=hint)
        difference = compare_documents(names[0], a, names[1], b)
        fits = all(verdict is None or verdict.fits for verdict in (difference.verdict_a, difference.verdict_b))
        return formatted(difference, view, difference_text, difference_csv, status=0 if fits else 1)
    from hwcalc.model import PARTIAL_WEIGHTS
    from hwcalc.planner.plan import common_notes

    plan_a, plan_b, difference = _planned(names, given)
    remarks = () if view.quiet else tuple(note.message for note in common_notes([plan_a.notes, plan_b.notes]))
    for name, planned in (("A", plan_a), ("B", plan_b)):
        partial = [note.message for note in planned.warnings if note.code == PARTIAL_WEIGHTS]
        remarks = (*remarks, *(f"{name}: {line}" for line in (*partial, *why_not(planned))))
    status = 1 if plan_a.refutes or plan_b.refutes else 0
    return formatted(difference, view, difference_text, difference_csv, status=status, remarks=remarks)


def _planned(names: Sequence[str], given: dict[str, Any]) -> tuple[Plan, Plan, Difference]:
    """Two models planned at one length, and what differs."""
    from hwcalc.library.load import load
    from hwcalc.library.plan import plan
    from hwcalc.planner.asked import read_options
    from hwcalc.planner.diff import compare

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
    return plan_a, plan_b, compare(a, b, plan_a, plan_b)


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
    Option("min_speed", ("--min-speed",), "T", "At least so many tokens per second, as listed."),
    Option("limit", ("--limit",), "N", "List so many; 0 lists all. Default: 30, or as many as the screen has room for."),
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
    from hwcalc.report.drawing import SCREEN
    from hwcalc.report.fitting import BESIDE_MODELS, fit_csv, fit_text, models_left_out

    own = {option.name: options[option.name] for option in _CHOICE if options[option.name] not in (None, [])}
    if "limit" not in own and on_terminal() and (view.format, view.detail) == ("table", "usual"):
        # The first are at the top, which is not to go by.
        own["limit"] = max(SCREEN[0], output_lines()) - BESIDE_MODELS
        view = replace(view, detail="screen")
    with progress():
        result = fit(**own, **given)

    status = 0 if result.models else 1
    # A table has these lines itself.
    remarks = tuple(models_left_out(result)) if view.format == "csv" and not view.quiet else ()
    return formatted(result, view, fit_text, fit_csv, status=status, remarks=remarks)


_CATEGORY: Final = "Only of these categories: datacenter, consumer, ... Repeatable."
_INSTANCES: Final = "Cloud instances instead of accelerators: aws, gcp, azure, ..., all, or how their names begin: p5."
_SORT: Final = "What is sure first, then by memory (least), gpus (fewest), speed, cost (least), headroom (most), or common: what people can get, newest first. Default: common."
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
        Option(
            "max_gpus",
            ("--max-gpus",),
            "N",
            "At most so many GPUs together. Default: 8; 32 in several nodes of vLLM or SGLang for --sort cost, for --budget and where 8 are not enough, but not within limits of time.",
        ),
    ),
    Option("sort", ("--sort",), "S", _SORT, complete="sorts", short="By common, cost, memory, gpus, speed or headroom."),
    *grouped(
        "hardware",
        Option("budget", ("--budget",), "USD", "Only what costs at most so much: 5000/month, 7/h.", short="5000/month, 7/h."),
    ),
    Option("strict", ("--strict",), "", "Leave out what only probably fits.", "flag"),
    Option("limit", ("--limit",), "N", "List so many; 0 lists all. Default: 20."),
    Option("every", ("--all",), "", "List each instance, not one for all with the same accelerator.", "flag"),
    *grouped("hardware", Option("any_layout", ("--any-layout",), "", _ANY_LAYOUT, "flag")),
)


@command(
    (OPTIONAL_MODEL, *plan_options("recommend"), *_RECOMMEND_CHOICE, *OUTPUT),
    {
        "What holds 8 sequences of 32k tokens?": "kvplan recommend Qwen/Qwen3-8B --seq 32k --users 8",
        "Only what is named": "kvplan recommend Qwen/Qwen3-8B --engine vllm --gpu l4,l40s,h100",
        "To rent, the cheapest first": "kvplan recommend Qwen/Qwen3-8B --engine vllm --seq 32k --instances aws --sort cost",
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
    from hwcalc.report.fitting import hardware_left_out, recommendation_csv, recommendation_text

    if view.format == "csv" and not view.quiet:
        more = (f"{result.more:,} more: --limit 0",) if result.more else ()
        said = (*said, *more, *hardware_left_out(result))
    return formatted(result, view, recommendation_text, recommendation_csv, status=status, remarks=said)


_SWAP: Final = (
    Option(
        "most_awake",
        ("--most-awake",),
        "N",
        "Models of a GPU that are awake at once at most. Default: the engine's own limit, such as that of OLLAMA_MAX_LOADED_MODELS.",
        group="hardware",
    ),
    Option(
        "disk",
        ("--disk",),
        "D",
        "The drive with the models' files: nvme-gen3, sata, ... Default: nvme.",
        complete="drives",
        group="hardware",
    ),
)


@command(
    (MODELS, *plan_options("swap"), *_SWAP, *OUTPUT),
    {
        "Which of three are awake together, and what does a switch cost?": "kvplan swap Qwen/Qwen3-8B Qwen/Qwen3-4B Qwen/Qwen3-0.6B --engine vllm --gpu l4 --seq 8k",
        "As Ollama loads and unloads them": "kvplan swap Qwen/Qwen3-8B Qwen/Qwen3-14B --weights q4_k_m --engine ollama --gpu l4 --seq 8k",
        "From a slower drive": "kvplan swap Qwen/Qwen3-8B Qwen/Qwen3-4B --engine sglang --gpu l40s --seq 8k --disk sata",
    },
)
def swap(*, models: Sequence[str] | None, **options: Any) -> Answer:
    """Plan several models on one node: which are awake together.

    What those asleep keep on the GPU and in host memory is the engine's: sleep mode, a router, unloading. Options of the load hold for each model. Exit status 1: a model
    cannot be awake at all.
    """
    from hwcalc.library.swap import swap
    from hwcalc.report.swap import swap_text

    view, given = view_of(**options), given_options("swap", options)
    own = {option.name: options[option.name] for option in _SWAP if options.get(option.name) is not None}
    with progress():
        found = swap(models or (), **own, **given)
    say_unreachable(found.notes)
    return formatted(found, view, swap_text, status=1 if found.never else 0)
