"""``kvplan sweep`` and ``kvplan explore``: many plans, as rows or as a page."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

from hwcalc.cli.options import MODELS, OUTPUT, Option, command, given_options, plan_options, progress
from hwcalc.cli.output import Answer, on_terminal, view_of, write
from hwcalc.cli.parts import OF_PARTS, shared
from hwcalc.errors import KvplanError, UnwritableFileError, UsageError
from hwcalc.text import brief, shown

if TYPE_CHECKING:
    from hwcalc.explore.build import Page
    from hwcalc.sweep.grid import RowBlock


FORMATS: Final = ("table", "csv", "jsonl", "json", "parquet")
_SUFFIXES: Final = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".parquet": "parquet"}

_DATASET: Final = "dataset"
"""The format where rows go to the folder of ``--out`` alone."""
_IN_MEMORY: Final = 16 * 1024**2
"""Characters of a document that are kept in memory; a longer one is kept in a temporary file without a name."""
_PIECE: Final = 1 << 18
_WORTH_SAYING: Final = 10
"""Seconds from which on a sweep says beforehand how long it takes."""


@command(
    (
        MODELS,
        Option("all", ("--all",), "", "Every model of the catalog.", "flag", group="model"),
        *plan_options("sweep"),
        Option("keep_going", ("--keep-going",), "", "Rows with errors also where no model can be read at all.", "flag"),
        Option("max_time", ("--max-time",), "T", "Most time that it may take by its estimate: 90s, 10m, 2h. Default: 1h."),
        Option(
            "output", ("--output", "-o"), "FILE", "Write to this file, in the format of its suffix. Default: standard output."
        ),
        Option(
            "format_",
            ("--format",),
            "F",
            "table, csv, jsonl, json or parquet. Default: by the suffix; a table on a terminal, and csv elsewhere.",
            complete="sweep_formats",
        ),
        *OF_PARTS,
        *(option for option in OUTPUT if option.name != "format_"),
    ),
    {
        "From 1k to 128k tokens, doubling": "kvplan sweep Qwen/Qwen3-8B --seq 1k..128k --dtype bf16,fp8",
        "Which lengths fit on which accelerator?": "kvplan sweep Qwen/Qwen3-8B --seq 4k,16k --engine vllm --gpu l4,h100",
        "A file for a notebook": "kvplan sweep Qwen/Qwen3-8B --seq 1k..32k -o points.jsonl",
    },
)
def sweep(
    *,
    models: Sequence[str] | None,
    all: bool,  # noqa: A002 - the option's name
    keep_going: bool,
    max_time: str | None,
    output: str | None,
    format_: str | None,
    workers: str | None,
    dask: str | None,
    out: str | None,
    json: bool,
    quiet: bool,
    color: str | None,
    no_color: bool,
    **options: Any,
) -> Answer:
    """Plan a whole grid: rows for a spreadsheet or a notebook.

    Every combination of models, lengths, batches, dtypes, accelerators and ranks.

    A point that cannot be planned is a row with an error. The status is 0 unless no point could be planned, or none has the verdict
    that was asked for.
    """
    target = None if output in (None, "-") else output
    chosen = _DATASET if out is not None and output is format_ is None and not json else _format(format_, target, json=json)
    given = given_options("sweep", options)
    if chosen == "parquet":
        from hwcalc.library.parts import parquet_ready

        parquet_ready()
    from hwcalc.sweep.rows import MAX_TIME, in_words, sweep

    tally = _Tally()
    # Where the rows themselves go to the terminal, progress would stand between them.
    to_terminal = target is None and chosen != _DATASET and sys.stdout is not None and sys.stdout.isatty()
    with shared(workers, dask, out) as executor, nullcontext() if to_terminal else progress():
        limit = MAX_TIME if max_time is None else max_time
        rows = sweep(models or (), every=all, keep_going=keep_going, max_time=limit, executor=executor, **given)
        if rows.seconds >= _WORTH_SAYING and not quiet:
            write(sys.stderr, f"kvplan: {len(rows):,} points, about {in_words(rows.seconds)}\n")
        text, blocks = "", tally.counted(rows.blocks(out))
        pieces: Iterator[str] = iter(())
        if chosen == "table":
            from hwcalc.report.sweep import first_rows, sweep_text

            text = sweep_text(*first_rows(blocks), view_of(quiet=quiet, color=color, no_color=no_color))
        elif chosen == _DATASET:
            for _ in blocks:
                pass
        else:
            pieces = _write(chosen, target, blocks, models or ())
    from hwcalc.report.text import plural

    remarks = [] if quiet else [note.message for note in rows.notes]
    if tally.error is not None:
        failed = f"{tally.failed:,} of {plural(tally.rows, 'point')} could not be planned"
        remarks.append(f"{failed}; the first: {tally.error.message}")
    if tally.unjudged:
        have = "has" if tally.unjudged == 1 else "have"
        points = f"{tally.unjudged:,} of {plural(tally.rows, 'point')}"
        remarks.append(f"{points} {have} no verdict: what the model needs beside its cache is not known.")
    written = {} if quiet else {target: tally.rows, out: tally.rows - rows.grid.missing}
    remarks += [f"{plural(number, 'point')} in {place}" for place, number in written.items() if place is not None]
    # The status of the first error if every point failed, 1 if no other point has the verdict that was asked for.
    status = 1 if tally.unjudged and tally.unjudged + tally.failed == tally.rows else 0
    if tally.error is not None and tally.failed == tally.rows:
        status = tally.error.exit_code
    return Answer(text=text, pieces=pieces, json=chosen not in ("table", _DATASET), remarks=tuple(remarks), status=status)


def _format(format_: str | None, target: str | None, *, json: bool) -> str:
    """The format of the rows: the chosen format, else that of the file's suffix, else CSV."""
    from pathlib import Path

    suffix = "" if target is None else Path(target).suffix.lower()
    usual = "table" if target is None and on_terminal() else "csv"
    chosen = (format_ or ("json" if json else None) or _SUFFIXES.get(suffix) or ("" if suffix else usual)).strip().lower()
    if not chosen:
        message = f"the suffix {brief(suffix, 20)} of --output names no format."
        raise UsageError(message, hint="Add: --format csv, jsonl, json or parquet")
    if chosen not in FORMATS:
        raise UsageError(f"--format {shown(chosen, 40)} is not known.", hint=f"Allowed: {', '.join(FORMATS)}.")
    if json and chosen != "json":
        raise UsageError(f"--json and --format {chosen} contradict each other.", hint="Give one of them.")
    if chosen == "table" and target is not None:
        raise UsageError("A table goes to standard output.", hint="Leave out --output, or name a file of points.csv.")
    if chosen == "parquet" and target is None:
        raise UsageError("Parquet goes to a file only.", hint="Add: --output points.parquet")
    return chosen


class _Tally:
    """Counts planned and failed points, for the remarks and the status."""

    def __init__(self) -> None:
        self.rows = self.failed = self.unjudged = 0
        self.error: KvplanError | None = None
        """The first error."""

    def counted(self, blocks: Iterable[RowBlock]) -> Iterator[RowBlock]:
        """The blocks of a sweep, which are counted while they are iterated."""
        for block in blocks:
            self.rows += block.size
            self.failed += block.failed
            self.unjudged += block.unjudged
            self.error = self.error or block.error
            yield block


def _write(format_: str, target: str | None, blocks: Iterable[RowBlock], models: Iterable[str]) -> Iterator[str]:
    """Write rows as they are planned, and a regular file whole or not at all. A document for standard output is returned instead.

    No file of the ``models`` is replaced.
    """
    from hwcalc.sweep import writers

    if target is not None:
        from hwcalc.files import whole_file

        with whole_file(target, "--output", read=[name.removeprefix("@") for name in models]) as file:
            if format_ == "parquet":
                writers.write_parquet(file, blocks)
            else:
                for piece in writers.texts(format_, blocks):
                    file.write(piece.encode("utf-8", "surrogateescape"))
    elif format_ == "json":
        return _kept(writers.texts(format_, blocks))
    else:
        for piece in writers.texts(format_, blocks):
            write(sys.stdout, piece, json=format_ != "csv")
    return iter(())


def _kept(pieces: Iterable[str]) -> Iterator[str]:
    """The pieces of a text, once all of them exist, so that an error or Ctrl-C leaves no half of a document."""
    from tempfile import SpooledTemporaryFile

    # Whoever prints the document reads it to its end.
    kept = SpooledTemporaryFile(_IN_MEMORY, "w+", encoding="utf-8", errors="surrogatepass", newline="")  # noqa: SIM115
    try:
        for piece in pieces:
            kept.write(piece)
        kept.seek(0)
    except OSError as error:
        raise UnwritableFileError(f"the points could not be kept in a temporary file: {error.strerror or error}.") from error
    # A piece ends with its line: what a runner may read as a command is looked for in each.
    return iter(lambda: kept.read(_PIECE) + kept.readline(), "")


_DEFAULT: Final = "kvplan.html"
_LARGE: Final = 10_000_000
"""Bytes from which on a page is said to be large: telephones and mail take no more."""


@command(
    (
        Option(
            "models",
            (),
            "MODEL...",
            "Ids, folders or config.json files, GGUF files, patterns of catalog ids ('Qwen/*'), or @FILE. None: the bare equation.",
            "list",
            complete="models",
        ),
        *plan_options("explore"),
        Option(
            "output", ("--output", "-o"), "FILE", f"Write the page to this file, and not to {_DEFAULT}; - is standard output."
        ),
        Option("open", ("--open",), "", "Open the page in the browser.", "flag"),
        Option(
            "serve",
            ("--serve",),
            "",
            "Serve the page on 127.0.0.1, to choose any model of the catalog or of the Hub in it. Ctrl-C ends it.",
            "flag",
        ),
        Option("port", ("--port",), "N", "The port of --serve. Default: one that is free."),
        *(option for option in OUTPUT if option.name == "quiet"),
    ),
    {
        "A page to look at and to send": "kvplan explore Qwen/Qwen3-8B -o page.html",
        "Two models on the GPUs in question": "kvplan explore Qwen/Qwen3-8B google/gemma-3-12b-it --gpu l4,h100 -o page.html",
        "The equation by hand, and any model of the catalog and the Hub": "kvplan explore --serve",
    },
)
def explore(
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
        hint = "Write: -o page.html, or -o - | gzip > page.html.gz"
        raise UsageError("--output - is the terminal, which shows no page.", hint=hint)
    if serve and not open and sys.stdout is None:
        hint = "Write: kvplan explore --serve --open"
        raise UsageError("standard output is closed, so nobody would learn the address.", hint=hint)
    if port is not None and not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 1 << 16):
        raise UsageError(f"--port {shown(port, 20)} is no port.", hint="Give a number from 1024 to 65535, or leave it out.")
    given = given_options("explore", options)
    from hwcalc.files import whole_file

    # The file first: where none can be written nobody waits for the page.
    read = [name.removeprefix("@") for name in models or ()]
    with progress(), nullcontext() if serve or to_pipe else whole_file(target, "--output", read=read) as file:
        from hwcalc.explore.build import page_of

        page = page_of(tuple(models or ()), given, live=serve)
        size = 0 if file is None else file.write(page.html.text.encode())
    remarks = () if quiet else tuple(note.message for note in page.notes)
    if serve:
        return _serve(page, 0 if port is None else int(port), remarks, open_=open, quiet=quiet)
    if to_pipe:
        return Answer(text=page.html.text, remarks=remarks)
    if open:
        import webbrowser
        from pathlib import Path

        webbrowser.open(Path(target).resolve().as_uri())
    if quiet:
        return Answer(text="", remarks=remarks)
    from hwcalc.report.text import plural

    said = f"{plural(page.models, 'model')} in {shown(target)}, {size / 1e6:.1f} MB. Open it in a browser."
    slow = ("A page of this size opens slowly: name fewer models.",) if size > _LARGE else ()
    return Answer(text="", remarks=(*remarks, said, *slow))


def _serve(page: Page, port: int, remarks: Sequence[str], *, open_: bool, quiet: bool) -> Answer:
    """Serve the page until a signal ends the command."""
    from hwcalc.explore.serve import Live, Server, Site, reader

    models = Live(page.payload, reader(page.access))
    site = Site(
        page=page.html.text.encode(),
        policy=page.html.policy,
        models=models.models,
        payload=models.payload,
        progress=models.progress,
    )
    with Server(site, port) as server:
        said = () if quiet else ("the page is at the address below, for this machine alone. Ctrl-C ends it.",)
        for remark in (*remarks, *said):
            write(sys.stderr, f"kvplan: {remark}\n")
        write(sys.stdout, f"{server.address}\n")
        if open_:
            import webbrowser

            webbrowser.open(server.address)
        server.serve_forever()
    return Answer(text="")
