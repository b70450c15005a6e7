"""``kvplan plot``: a picture of a model's memory, in a file or in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from hwcalc.cli.options import OUTPUT, Example, Option, given_options, plan_options, progress
from hwcalc.cli.output import Answer, columns_of_terminal, shows_frames
from hwcalc.text import shown

if TYPE_CHECKING:
    from hwcalc.plot.build import Picture

__all__ = ["EXAMPLES", "OPTIONS", "characters", "run"]

OPTIONS: Final = (
    Option(
        "models",
        (),
        "MODEL...",
        "Ids, folders or config.json files, GGUF files, patterns of catalog ids ('Qwen/*'), or @FILE.",
        "list",
        complete="models",
    ),
    *plan_options("plot"),
    Option(
        "kind",
        ("--kind",),
        "K",
        "memory (bytes against length), frontier (most sequences against length) or layers. Default: memory.",
        complete="plot_kinds",
    ),
    Option("output", ("--output", "-o"), "FILE", "Write to this file: .png, .svg or .pdf. Default: the terminal."),
    *(option for option in OUTPUT if option.name == "quiet"),
)
EXAMPLES: Final = (
    Example("At which length is the card full?", "kvplan plot Qwen/Qwen3-8B --engine vllm --gpu l4 -o memory.png"),
    Example("Windows and latents, side by side", "kvplan plot Qwen/Qwen3-8B google/gemma-3-12b-it -o lengths.svg"),
    Example("How many users at which length?", "kvplan plot Qwen/Qwen3-8B --kind frontier --engine vllm --gpu h100 -o users.pdf"),
)


def run(*, models: Sequence[str] | None, kind: str | None, output: str | None, quiet: bool, **options: Any) -> Answer:
    """Draw memory against length, how many fit, or each layer.

    To a file, or in the terminal.
    """
    given = given_options("plot", options)
    with progress():
        from hwcalc.plot.build import format_of, picture_of

        chosen = None if output is None else format_of(output)
        picture = picture_of(tuple(models or ()), kind or "memory", given)
        data = None if chosen is None else picture.data(chosen)
    if output is None or data is None:
        return Answer(text=characters(picture))
    from hwcalc.files import write_file

    write_file(output, data, "--output")
    return Answer(text="", remarks=() if quiet else (*picture.chart.remarks, f"{picture.chart.title}: {shown(output)}"))


def characters(picture: Picture) -> str:
    """A picture for standard output: as wide as the terminal, in the characters that it has."""
    return picture.text(columns_of_terminal(), ascii_only=not shows_frames())
