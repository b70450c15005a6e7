"""``kvplan sweep``: every combination of models, lengths, batches, formats, accelerators and ranks, as rows."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

from hwcalc.cli.lists import listed_options, plan_options, reading
from hwcalc.cli.options import OUTPUT, Option, progress
from hwcalc.cli.output import Answer, OutputError, write
from hwcalc.errors import KvplanError, UsageError

if TYPE_CHECKING:
    from hwcalc.model import ModelSpec
    from hwcalc.sweep.blocks import Block
    from hwcalc.sweep.grid import Grid, Missing

__all__ = ["FORMATS", "OPTIONS", "run"]

FORMATS: Final = ("csv", "jsonl", "json", "parquet")
_SUFFIXES: Final = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".parquet": "parquet"}
_MOST_POINTS: Final = 100_000_000
_LISTS: Final = {
    "seq": "Tokens per sequence: 1k,4k; 1k..128k doubles, 1k..128k:1k goes by steps. Default: each model's own maximum.",
    "batch": "Sequences alive at once, as a list like that of --seq. Default: 1.",
    "dtype": "KV-cache dtypes: bf16,fp8. See: kvplan dtypes. Default: each model's dtype.",
    "gpu": "Accelerators: l4,h100-sxm5-80gb. Default: none, and no verdict.",
    "tp": "Tensor parallel sizes: 1,2,4,8. Default: 1.",
}

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
    *listed_options(_LISTS),
    Option("keep_going", ("--keep-going",), "", "A model that cannot be read is a row with an error, not the end.", "flag"),
    Option("output", ("--output", "-o"), "FILE", "Write to this file, in the format of its suffix. Default: standard output."),
    Option(
        "format_", ("--format",), "F", "csv, jsonl, json or parquet. Default: by the suffix, or csv.", complete="sweep_formats"
    ),
    *(option for option in OUTPUT if option.name in {"json", "quiet"}),
)
_OWN: Final = ("models", "all", "keep_going", "output", "format_", "json", "quiet", *_LISTS)


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

    A point that cannot be planned is a row with an error; the status is 0 unless no point could be planned.
    """
    target = None if output in (None, "-") else output
    chosen = _format(format_, target, json=json)
    lists = _lists(options)
    from hwcalc.sweep.lists import model_names

    names = model_names(models or (), every=all)
    if chosen == "parquet":
        from hwcalc.sweep.writers import parquet_ready

        parquet_ready()
    with _shown(target):
        grid = _grid(names, lists, options, keep_going=keep_going)
        tally = _Tally()
        _write(chosen, target, tally.counted(grid))
    from hwcalc.report.text import plural

    remarks = []
    if tally.first is not None:
        remarks.append(f"{tally.failed:,} of {plural(tally.rows, 'point')} could not be planned; the first: {tally.first}")
    if target is not None and not quiet:
        remarks.append(f"{plural(tally.rows, 'point')} in {target}")
    return Answer(text="", remarks=tuple(remarks), status=tally.status)


def _format(given: str | None, target: str | None, *, json: bool) -> str:
    """The format asked for, else that of the file's suffix, else CSV."""
    from pathlib import Path

    suffix = "" if target is None else Path(target).suffix.lower()
    chosen = (given or ("json" if json else None) or _SUFFIXES.get(suffix) or ("" if suffix else "csv")).strip().lower()
    if not chosen:
        raise UsageError(
            f"the suffix {suffix[:20]} of --output names no format.", hint="Add: --format csv, jsonl, json or parquet"
        )
    if chosen not in FORMATS:
        raise UsageError(f"--format {chosen[:40]!r} is not known.", hint=f"Allowed: {', '.join(FORMATS)}.")
    if json and chosen != "json":
        raise UsageError(f"--json and --format {chosen} contradict each other.", hint="Give one of them.")
    if chosen == "parquet" and target is None:
        raise UsageError("Parquet goes to a file only.", hint="Add: --output points.parquet")
    return chosen


def _lists(options: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    """The axes of the grid, read before anything else is done."""
    from hwcalc.hardware.named import load_gpu
    from hwcalc.sweep.lists import numbers, words

    gpus = tuple(dict.fromkeys(load_gpu(name, []).id for name in words(options["gpu"], "gpu")))
    return {
        "seqs": numbers(options["seq"], "seq"),
        "batches": numbers(options["batch"], "batch") or (1,),
        "dtypes": words(options["dtype"], "dtype") or (None,),
        "gpus": gpus or (None,),
        "tps": numbers(options["tp"], "tp") or (None,),
    }


def _grid(names: Sequence[str], lists: dict[str, tuple[Any, ...]], options: dict[str, Any], *, keep_going: bool) -> Grid:
    from hwcalc.sweep.grid import Grid, check, count

    found = tuple(_models(names, reading(options), keep_going=keep_going))
    grid = Grid(models=found, **lists, options=plan_options(options, apart=_OWN))
    points = count(grid)
    if points > _MOST_POINTS:
        raise UsageError(
            f"the grid has {points:,} points.", hint=f"At most {_MOST_POINTS:,}. Take larger steps, or fewer models."
        )
    check(grid)
    return grid


def _models(names: Sequence[str], how: dict[str, Any], *, keep_going: bool) -> Iterator[ModelSpec | Missing]:
    from hwcalc.library.plan import load_model
    from hwcalc.sources.progress import tell
    from hwcalc.sweep.grid import Missing

    for number, name in enumerate(names, 1):
        tell(f"reading model {number:,} of {len(names):,}")
        try:
            yield load_model(name, **how)
        except KvplanError as error:
            if not keep_going:
                raise
            yield Missing(name=name, error=error)


class _Tally:
    """What happened to the points, for the remarks and the status."""

    def __init__(self) -> None:
        self.rows = self.failed = 0
        self._error: KvplanError | None = None

    def counted(self, grid: Grid) -> Iterator[Block]:
        """The blocks of a grid, counted as they go by."""
        from hwcalc.sweep.evaluate import blocks

        for block in blocks(grid):
            self.rows += block.size
            self.failed += block.failed
            self._error = self._error or block.error
            yield block

    @property
    def first(self) -> str | None:
        """The first reason."""
        return None if self._error is None else self._error.message

    @property
    def status(self) -> int:
        """0 unless every point failed; then that of the first."""
        return self._error.exit_code if self._error is not None and self.failed == self.rows else 0


def _shown(target: str | None) -> Any:
    """Progress, unless the rows themselves go to the terminal."""
    if target is None and sys.stdout is not None and sys.stdout.isatty():
        return nullcontext()
    return progress()


def _write(format_: str, target: str | None, blocks: Iterable[Block]) -> None:
    """Rows as they come: to standard output, or to a file that is only ever seen whole."""
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
        raise OutputError(f"{target[:80]} could not be written: {error.strerror or error}.") from error
