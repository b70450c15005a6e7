"""``kvplan explore``: a page on which the memory of models can be looked at and driven."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from hwcalc.cli.options import OUTPUT, Example, Option, given_options, plan_options, progress
from hwcalc.cli.output import Answer
from hwcalc.errors import UsageError
from hwcalc.text import shown

if TYPE_CHECKING:
    from hwcalc.explore.build import Page

__all__ = ["EXAMPLES", "OPTIONS", "run"]

_DEFAULT: Final = "kvplan.html"
_LARGE: Final = 10_000_000
"""Bytes from which on a page is said to be large: telephones and mail take no more."""

OPTIONS: Final = (
    Option(
        "models",
        (),
        "MODEL...",
        "Ids, folders or config.json files, GGUF files, patterns of catalog ids ('Qwen/*'), or @FILE. None: the bare equation.",
        "list",
        complete="models",
    ),
    *plan_options("explore"),
    Option("output", ("--output", "-o"), "FILE", f"Write the page to this file; - is standard output. Default: {_DEFAULT}."),
    Option("open", ("--open",), "", "Open the page in the browser.", "flag"),
    *(option for option in OUTPUT if option.name == "quiet"),
)
EXAMPLES: Final = (
    Example("A page to look at and to send", "kvplan explore Qwen/Qwen3-8B -o page.html"),
    Example(
        "Two models on the GPUs in question", "kvplan explore Qwen/Qwen3-8B google/gemma-3-12b-it --gpu l4,h100 -o page.html"
    ),
    Example("The equation by hand", "kvplan explore -o page.html --open"),
)


def run(*, models: Sequence[str] | None, output: str | None, open: bool, quiet: bool, **options: Any) -> Answer:  # noqa: A002 - the option's name
    """Make an interactive page: one file that opens anywhere.

    Sliders for length, sequences, formats and GPUs; the memory of a GPU, of each layer, and of every engine. It needs no network.
    """
    target = _DEFAULT if output is None else output
    if open and target == "-":
        raise UsageError("--open needs a file.", hint="Leave out -o -.")
    given = given_options("explore", options)
    with progress():
        from hwcalc.explore.build import page_of

        page = page_of(tuple(models or ()), given)
    remarks = () if quiet else tuple(note.message for note in page.notes)
    if target == "-":
        return Answer(text=page.html.text, remarks=remarks)
    data = page.html.text.encode()
    from hwcalc.files import write_file

    write_file(target, data, "--output")
    if open:
        _open(target)
    return Answer(text="", remarks=remarks if quiet else (*remarks, *_said(page, target, len(data))))


def _said(page: Page, target: str, size: int) -> tuple[str, ...]:
    """Where the page is, and whether it is too large for what people do with pages."""
    from hwcalc.report.text import plural

    said = f"{plural(page.models, 'model')} in {shown(target)}, {size / 1e6:.1f} MB. Open it in a browser."
    return (said, *(("A page of this size opens slowly: name fewer models.",) if size > _LARGE else ()))


def _open(target: str) -> None:
    """Open a file in the user's browser."""
    import webbrowser
    from pathlib import Path

    webbrowser.open(Path(target).resolve().as_uri())
