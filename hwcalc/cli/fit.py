"""``kvplan fit``: the models that run on one's GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hwcalc.cli.options import OUTPUT, Example, Option, given_options, grouped, plan_options, progress, view_of
from hwcalc.cli.output import Answer, answer

if TYPE_CHECKING:
    from hwcalc.cli.output import View
    from hwcalc.planner.runnables import Runnables

__all__ = ["EXAMPLES", "OPTIONS", "run"]

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
            "modality", ("--modality",), "M", "Only models that take this: text (alone), vision, audio.", complete="modalities"
        ),
    ),
    Option("only_fits", ("--only-fits",), "", "Leave out models of which a part stays in the memory of the host.", "flag"),
    Option("min_speed", ("--min-speed",), "T", "At least so many tokens per second by the bound."),
    Option("limit", ("--limit",), "N", "List so many; 0 lists all. Default: 30."),
    Option("every", ("--all",), "", "Every model by itself, not the best three of a family.", "flag"),
)
OPTIONS = (*_CHOICE, *plan_options("fit"), *OUTPUT)
EXAMPLES: Final = (
    Example("What runs on a card?", "kvplan fit --gpu rtx-4060-ti --seq 16k"),
    Example(
        "Of these, on a Mac, at least as fast as one reads", "kvplan fit --family qwen3,gemma-3 --gpu m4-24gb --min-speed 10"
    ),
    Example("Of what is on this machine", "kvplan fit --installed --gpu rtx-3060 --seq 32k"),
)


def run(**options: Any) -> Answer:
    """List the models that run on a GPU, each in its best format. Exit status 1 says that none does.

    First are models that lie on the GPU as a whole in four bits or more, then those that follow instructions, then those made for at
    least twice the tokens asked for, then the largest.
    """
    from hwcalc.library.fit import fit

    view, given = view_of(**options), given_options("fit", options)
    own = {option.name: options[option.name] for option in _CHOICE if options[option.name] not in (None, [])}
    with progress():
        result = fit(**own, **given)
    return _answer(result, view)


def _answer(result: Runnables, view: View) -> Answer:
    from msgspec.structs import replace

    from hwcalc.report.fit import fit_csv, fit_text, left_out

    status = 0 if result.models else 1
    if view.format == "json":
        from hwcalc.documents import document_of

        return replace(answer(document_of(result)), status=status)
    if view.format == "csv":
        remarks = () if view.quiet else tuple(left_out(result))
        return Answer(text=fit_csv(result), status=status, remarks=remarks)
    text = fit_text(result, format_=view.format, color=view.color, width=view.width, quiet=view.quiet)
    return Answer(text=text, status=status)
