"""``kvplan sweep``: every combination of models, lengths, batches, formats, accelerators and ranks, as rows."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

from hwcalc.cli.options import OUTPUT, Example, Option, given_options, plan_options, progress
from hwcalc.cli.output import Answer, write
from hwcalc.errors import KvplanError, UnwritableFileError, UsageError
from hwcalc.text import brief, shown

if TYPE_CHECKING:
    from hwcalc.sweep.blocks import RowBlock
    from hwcalc.sweep.rows import Sweep

__all__ = ["EXAMPLES", "FORMATS", "OPTIONS", "run"]

FORMATS: Final = ("csv", "jsonl", "json", "parquet")
_SUFFIXES: Final = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".parquet": "parquet"}

_IN_MEMORY: Final = 16 * 1024**2
"""Characters of a document that are kept in memory; a longer one is kept in a temporary file without a name."""
_PIECE: Final = 1 << 18
_WORTH_SAYING: Final = 10
"""Seconds from which on a sweep says beforehand how long it takes."""

OPTIONS: Final = (
    Option(
        "models",
        (),
        "MODEL...",
        "Ids, folders or config.json files, patterns of catalog ids ('Qwen/*'), or @FILE with one model on each line.",
        "list",
        complete="models",
    ),
    Option("all", ("--all",), "", "Every model of the catalog.", "flag", group="model"),
    *plan_options("sweep"),
    Option("keep_going", ("--keep-going",), "", "Rows with errors also where no model can be read at all.", "flag"),
    Option("max_time", ("--max-time",), "T", "Most time that it may take by its estimate: 90s, 10m, 2h. Default: 1h."),
    Option("output", ("--output", "-o"), "FILE", "Write to this file, in the format of its suffix. Default: standard output."),
    Option(
        "format_", ("--format",), "F", "csv, jsonl, json or parquet. Default: by the suffix, or csv.", complete="sweep_formats"
    ),
    *(option for option in OUTPUT if option.name in {"json", "quiet"}),
)
EXAMPLES: Final = (
    Example("From 1k to 128k tokens, doubling", "kvplan sweep Qwen/Qwen3-8B --seq 1k..128k --dtype bf16,fp8"),
    Example("Which lengths fit on which accelerator?", "kvplan sweep Qwen/Qwen3-8B --seq 4k,16k --engine vllm --gpu l4,h100"),
    Example("A file for a notebook", "kvplan sweep Qwen/Qwen3-8B --seq 1k..32k -o points.jsonl"),
)


def run(
    *,
    models: Sequence[str] | None,
    all: bool,  # noqa: A002 - the option's name
    keep_going: bool,
    max_time: str | None,
    output: str | None,
    format_: str | None,
    json: bool,
    quiet: bool,
    **options: Any,
) -> Answer:
    """Plan a whole grid: rows for a spreadsheet or a notebook.

    Every combination of models, lengths, batches, dtypes, accelerators and ranks.

    A point that cannot be planned is a row with an error. The status is 0 unless no point could be planned, or none has the verdict
    that was asked for.
    """
    target = None if output in (None, "-") else output
    chosen = _format(format_, target, json=json)
    given = given_options("sweep", options)
    if chosen == "parquet":
        from hwcalc.sweep.writers import parquet_ready

        parquet_ready()
    from hwcalc.sweep.evaluate import MAX_TIME, in_words
    from hwcalc.sweep.rows import sweep

    tally = _Tally()
    with _shown(target):
        limit = MAX_TIME if max_time is None else max_time
        rows = sweep(models or (), every=all, keep_going=keep_going, max_time=limit, **given)
        if rows.seconds >= _WORTH_SAYING and not quiet:
            write(sys.stderr, f"kvplan: {len(rows):,} points, about {in_words(rows.seconds)}\n")
        pieces = _write(chosen, target, tally.counted(rows))
    from hwcalc.report.text import plural

    remarks = [] if quiet else [note.message for note in rows.notes]
    if tally.first is not None:
        remarks.append(f"{tally.failed:,} of {plural(tally.rows, 'point')} could not be planned; the first: {tally.first}")
    if tally.unjudged:
        have = "has" if tally.unjudged == 1 else "have"
        points = f"{tally.unjudged:,} of {plural(tally.rows, 'point')}"
        remarks.append(f"{points} {have} no verdict: what the model needs beside its cache is not known.")
    if target is not None and not quiet:
        remarks.append(f"{plural(tally.rows, 'point')} in {target}")
    return Answer(text="", pieces=pieces, json=True, remarks=tuple(remarks), status=tally.status)


def _format(format_: str | None, target: str | None, *, json: bool) -> str:
    """The format of the rows: the chosen format, else that of the file's suffix, else CSV."""
    from pathlib import Path

    suffix = "" if target is None else Path(target).suffix.lower()
    chosen = (format_ or ("json" if json else None) or _SUFFIXES.get(suffix) or ("" if suffix else "csv")).strip().lower()
    if not chosen:
        raise UsageError(
            f"the suffix {brief(suffix, 20)} of --output names no format.", hint="Add: --format csv, jsonl, json or parquet"
        )
    if chosen not in FORMATS:
        raise UsageError(f"--format {shown(chosen, 40)} is not known.", hint=f"Allowed: {', '.join(FORMATS)}.")
    if json and chosen != "json":
        raise UsageError(f"--json and --format {chosen} contradict each other.", hint="Give one of them.")
    if chosen == "parquet" and target is None:
        raise UsageError("Parquet goes to a file only.", hint="Add: --output points.parquet")
    return chosen


class _Tally:
    """Counts planned and failed points, for the remarks and the status."""

    def __init__(self) -> None:
        self.rows = self.failed = self.unjudged = 0
        self._error: KvplanError | None = None

    def counted(self, rows: Sweep) -> Iterator[RowBlock]:
        """The blocks of a sweep, which are counted while they are iterated."""
        for block in rows.blocks():
            self.rows += block.size
            self.failed += block.failed
            self.unjudged += block.unjudged
            self._error = self._error or block.error
            yield block

    @property
    def first(self) -> str | None:
        """The message of the first error."""
        return None if self._error is None else self._error.message

    @property
    def status(self) -> int:
        """The exit status of the first error if every point failed, 1 if no other point has the verdict that was asked for, else 0."""
        if self._error is not None and self.failed == self.rows:
            return self._error.exit_code
        return 1 if self.unjudged and self.unjudged + self.failed == self.rows else 0


def _shown(target: str | None) -> Any:
    """A context manager that shows progress, unless the rows themselves go to the terminal."""
    if target is None and sys.stdout is not None and sys.stdout.isatty():
        return nullcontext()
    return progress()


def _write(format_: str, target: str | None, blocks: Iterable[RowBlock]) -> Iterator[str]:
    """Write rows as they are planned, and a regular file whole or not at all. A document for standard output is returned instead."""
    from hwcalc.sweep import writers

    if target is not None:
        from hwcalc.files import whole_file

        with whole_file(target, "--output") as file:
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
