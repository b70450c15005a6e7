"""``kvplan recommend``: hardware that fits, smallest first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hwcalc.cli.options import OPTIONAL_MODEL, OUTPUT, Example, Option, given_options, plan_options, reading, view_of
from hwcalc.cli.output import Answer, answer

if TYPE_CHECKING:
    from hwcalc.cli.output import View
    from hwcalc.planner.recommend import Recommendation

__all__ = ["EXAMPLES", "OPTIONS", "run"]

_CHOICE: Final = (
    Option(
        "gpu",
        ("--gpu",),
        "G,...",
        "Choose from these accelerators only: l4,h100. Repeatable. Default: all.",
        "list",
        complete="gpus",
        group="hardware",
    ),
    Option(
        "vendor",
        ("--vendor",),
        "V,...",
        "Only of these makers: nvidia, amd. Repeatable.",
        "list",
        complete="vendors",
        group="hardware",
    ),
    Option(
        "category",
        ("--category",),
        "C,...",
        "Only of these categories: datacenter, consumer, ... Repeatable.",
        "list",
        complete="categories",
        group="hardware",
    ),
    Option(
        "instances",
        ("--instances",),
        "CLOUD",
        "Cloud instances instead of accelerators: aws, gcp, azure, ..., all, or how their names begin: p5.",
        complete="clouds",
        group="hardware",
    ),
    Option("max_gpus", ("--max-gpus",), "N", "At most so many GPUs together. Default: 8.", group="hardware"),
    Option(
        "sort",
        ("--sort",),
        "S",
        "What is sure first, then by memory (least), gpus (fewest), speed or headroom (most). Default: memory.",
        complete="sorts",
    ),
    Option("strict", ("--strict",), "", "Leave out what only probably fits.", "flag"),
    Option("limit", ("--limit",), "N", "List so many; 0 lists all. Default: 20."),
    Option("every", ("--all",), "", "List each instance, not one for all with the same accelerator.", "flag"),
    Option(
        "any_layout",
        ("--any-layout",),
        "",
        "Try any number of GPUs and any tp x pp x dp: 3, 5 or 7 GPUs, pp 7.",
        "flag",
        group="hardware",
    ),
)
OPTIONS = (OPTIONAL_MODEL, *plan_options("recommend"), *_CHOICE, *OUTPUT)
EXAMPLES: Final = (
    Example("What holds 8 sequences of 32k tokens?", "kvplan recommend Qwen/Qwen3-8B --seq 32k --batch 8"),
    Example("Only what is named", "kvplan recommend Qwen/Qwen3-8B --engine vllm --gpu l4,l40s,h100"),
    Example("To rent", "kvplan recommend Qwen/Qwen3-8B --engine vllm --seq 32k --instances aws"),
)


def run(*, model: str | None, **options: Any) -> Answer:
    """List the hardware that holds the sequences, smallest first. Exit status 1 says that none does."""
    from hwcalc.library.recommend import recommend

    view, given = view_of(**options), given_options("recommend", options)
    own = {name: options[name] for name in (option.name for option in _CHOICE) if options[name] is not None}
    with reading(model, "recommend"):
        result = recommend(model, **own, **given)
    return _answer(result, view)


def _answer(result: Recommendation, view: View) -> Answer:
    from msgspec.structs import replace

    from hwcalc.hardware.profiles import LEFT_OUT

    status = 0 if result.offers else 1
    said = tuple(note.message for note in result.notes if note.code in {"hub-unreachable", LEFT_OUT})
    if view.format == "json":
        from hwcalc.documents import document_of

        return replace(answer(document_of(result)), status=status, remarks=said)
    from hwcalc.report.recommend import left_out, recommendation_csv, recommendation_text

    if view.format == "csv":
        more = (f"{result.more:,} more: --limit 0",) if result.more else ()
        return Answer(
            text=recommendation_csv(result), status=status, remarks=said if view.quiet else (*said, *more, *left_out(result))
        )
    text = recommendation_text(result, format_=view.format, color=view.color, width=view.width, quiet=view.quiet)
    return Answer(text=text, status=status, remarks=said)
