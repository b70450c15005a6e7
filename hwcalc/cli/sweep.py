"""``kvplan sweep``: every combination of models, lengths, batches, formats, accelerators and ranks, as rows."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

from hwcalc.cli.options import OUTPUT, Option, given_options, plan_options, progress
from hwcalc.cli.output import Answer, OutputError, write
from hwcalc.errors import KvplanError, UsageError
from hwcalc.text import brief, shown

if TYPE_CHECKING:
    from hwcalc.sweep.blocks import RowBlock
    from hwcalc.sweep.rows import Sweep

__all__ = ["FORMATS", "OPTIONS", "run"]

FORMATS: Final = ("csv", "jsonl", "json", "parquet")
_SUFFIXES: Final = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".parquet": "parquet"}

OPTIONS: Final = (
    Option(
        "models",
        (),
        "MODEL...",
        "Ids, folders or config.json files, patterns of catalog ids ('Qwen/*'), or @FILE with one model on each line.",
        "list",
        complete="models",
    ),
    Option("all", ("--all",), "", "Every model of the catalog.", "flag"),
    *plan_options("sweep"),
    Option("keep_going", ("--keep-going",), "", "A model that cannot be read is a row with an error, not the end.", "flag"),
    Option("output", ("--output", "-o"), "FILE", "Write to this file, in the format of its suffix. Default: standard output."),
    Option(
        "format_", ("--format",), "F", "csv, jsonl, json or parquet. Default: by the suffix, or csv.", complete="sweep_formats"
    ),
    *(option for option in OUTPUT if option.name in {"json", "quiet"}),
)


def run(
    *,
    models: Sequence[str] | None,
    all: bool,  # noqa: A002 - the option's name
    keep_going: bool,
    output: str | None,
    format_: str | None,
    json: bool,
    quiet: bool,
    **options: Any,
) -> Answer:
    """Plan every combination of models, lengths, batches, dtypes, accelerators and ranks: rows for a spreadsheet or a notebook.

    A point that cannot be planned is a row with an error. The status is 0 unless no point could be planned, or none has the verdict
    that was asked for.
    """
    target = None if output in (None, "-") else output
    chosen = _format(format_, target, json=json)
    given = given_options("sweep", options)
    if chosen == "parquet":
        from hwcalc.sweep.writers import parquet_ready

        parquet_ready()
    from hwcalc.sweep.rows import sweep

    with _shown(target):
        tally = _Tally()
        rows = sweep(models or (), every=all, keep_going=keep_going, **given)
        _write(chosen, target, tally.counted(rows))
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
    return Answer(text="", remarks=tuple(remarks), status=tally.status)


def _format(format_: str | None, target: str | None, *, json: bool) -> str:
    """The chosen format, else that of the file's suffix, else CSV."""
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
    """A block that shows progress, unless the rows themselves go to the terminal."""
    if target is None and sys.stdout is not None and sys.stdout.isatty():
        return nullcontext()
    return progress()


def _write(format_: str, target: str | None, blocks: Iterable[RowBlock]) -> None:
    """Write rows as they are planned: to standard output, or atomically to a file."""
    from hwcalc.sweep import writers

    if target is None:
        for piece in writers.texts(format_, blocks):
            write(sys.stdout, piece, json=format_ != "csv")
        return
    from hwcalc.sweep.files import whole_file

    try:
        with whole_file(target) as file:
            if format_ == "parquet":
                writers.write_parquet(file, blocks)
            else:
                for piece in writers.texts(format_, blocks):
                    file.write(piece.encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise OutputError(f"{brief(target, 80)} could not be written: {error.strerror or error}.") from error
