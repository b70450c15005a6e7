"""``kvplan explore``: a page on which the memory of models can be looked at and driven."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

from hwcalc.cli.options import OUTPUT, Example, Option, given_options, plan_options, progress
from hwcalc.cli.output import Answer, write
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
    Option(
        "serve",
        ("--serve",),
        "",
        "Serve the page on 127.0.0.1, to choose any model of the catalog in it. Ctrl-C ends it.",
        "flag",
    ),
    Option("port", ("--port",), "N", "The port of --serve. Default: one that is free."),
    *(option for option in OUTPUT if option.name == "quiet"),
)
EXAMPLES: Final = (
    Example("A page to look at and to send", "kvplan explore Qwen/Qwen3-8B -o page.html"),
    Example(
        "Two models on the GPUs in question", "kvplan explore Qwen/Qwen3-8B google/gemma-3-12b-it --gpu l4,h100 -o page.html"
    ),
    Example("The equation by hand, and any model of the catalog", "kvplan explore --serve"),
)


def run(
    *,
    models: Sequence[str] | None,
    output: str | None,
    open: bool,  # noqa: A002 - the option's name
    serve: bool,
    port: str | None,
    quiet: bool,
    **options: Any,
) -> Answer:
    """Make an interactive page: one file that opens anywhere.

    Sliders for length, sequences, formats and GPUs; the memory of a GPU, of each layer, and of every engine. It needs no network.
    """
    target = _DEFAULT if output is None else output
    if open and target == "-":
        raise UsageError("--open needs a file.", hint="Leave out -o -.")
    if serve and output is not None:
        raise UsageError("--serve writes no file.", hint="Leave out --serve or --output.")
    if port is not None and not serve:
        raise UsageError("--port needs --serve.", hint="Write: kvplan explore --serve --port 8000")
    to_pipe = target == "-" and not serve
    if to_pipe and sys.stdout is not None and sys.stdout.isatty():
        raise UsageError(
            "--output - is the terminal, which shows no page.", hint="Write: -o page.html, or -o - | gzip > page.html.gz"
        )
    if serve and not open and sys.stdout is None:
        raise UsageError(
            "standard output is closed, so nobody would learn the address.", hint="Write: kvplan explore --serve --open"
        )
    number = _port(port)
    given = given_options("explore", options)
    from hwcalc.files import whole_file

    # The file first: where none can be written nobody waits for the page.
    with progress(), nullcontext() if serve or to_pipe else whole_file(target, "--output") as file:
        from hwcalc.explore.build import page_of

        page = page_of(tuple(models or ()), given, live=serve)
        size = 0 if file is None else file.write(page.html.text.encode())
    remarks = () if quiet else tuple(note.message for note in page.notes)
    if serve:
        return _serve(page, number, remarks, open_=open, quiet=quiet)
    if to_pipe:
        return Answer(text=page.html.text, remarks=remarks)
    if open:
        from pathlib import Path

        _open(Path(target).resolve().as_uri())
    return Answer(text="", remarks=remarks if quiet else (*remarks, *_said(page, target, size)))


def _port(text: str | None) -> int:
    """The number of a port; 0 is any that is free."""
    if text is None:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 1 << 16):
        raise UsageError(f"--port {shown(text, 20)} is no port.", hint="Give a number from 1024 to 65535, or leave it out.")
    return int(text)


def _serve(page: Page, port: int, remarks: Sequence[str], *, open_: bool, quiet: bool) -> Answer:
    """Serve the page until a signal ends the command."""
    from hwcalc.explore.serve import Live, Server, Site

    models = Live(page.payload)
    site = Site(page=page.html.text.encode(), policy=page.html.policy, models=models.models, payload=models.payload)
    with Server(site, port) as server:
        said = () if quiet else ("the page is at the address below, for this machine alone. Ctrl-C ends it.",)
        for remark in (*remarks, *said):
            write(sys.stderr, f"kvplan: {remark}\n")
        write(sys.stdout, f"{server.address}\n")
        if open_:
            _open(server.address)
        server.serve_forever()
    return Answer(text="")


def _said(page: Page, target: str, size: int) -> tuple[str, ...]:
    """Where the page is, and whether it is too large for what people do with pages."""
    from hwcalc.report.text import plural

    said = f"{plural(page.models, 'model')} in {shown(target)}, {size / 1e6:.1f} MB. Open it in a browser."
    return (said, *(("A page of this size opens slowly: name fewer models.",) if size > _LARGE else ()))


def _open(address: str) -> None:
    """Open a page in the user's browser."""
    import webbrowser

    webbrowser.open(address)
