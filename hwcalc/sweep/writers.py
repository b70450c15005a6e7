"""Write blocks of rows as CSV, JSON lines, one JSON document, or Parquet."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Final

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION
from hwcalc.errors import KvplanError, UsageError
from hwcalc.library.parts import Part, metadata_of
from hwcalc.masking import without_tokens
from hwcalc.sweep.grid import COLUMNS, NUMBERS, OF_SPEED, Column, RowBlock, SharedNumbers, Value
from hwcalc.sweep.setting import column_of
from hwcalc.text import csv_cell, json_for

_LINES: Final = 1_000
"""Lines that are written by one format string: one for each line takes a fifth longer, and one for all of them memory."""
_KEPT_CELLS: Final = 4096
"""Cells that are kept as text: most are the same in many rows and blocks."""
_GROUP_ROWS: Final = 262_144
"""Approximate number of rows in a row group of a Parquet file."""
_OF_PATH: Final = ("model", "engine")
"""The columns that the path of a file of a dataset has."""
_COUNTS: Final = "kvplan_counts"


def texts(format_: str, blocks: Iterable[RowBlock]) -> Iterator[str]:
    """The text in pieces: a header line and rows (``csv``), an object on each line (``jsonl``), or one document (``json``)."""
    if format_ == "csv":
        yield ",".join(COLUMNS) + "\n"
        line, cell = ",".join(["%s"] * len(COLUMNS)), lru_cache(maxsize=_KEPT_CELLS)(_csv_cell)
    else:
        line, cell = _OBJECT, lru_cache(maxsize=_KEPT_CELLS)(_json_cell)
    pieces = (_rows(block, line, cell) for block in blocks)
    if format_ != "json":
        yield from pieces
        return
    yield f'{{"schema_version": "{SCHEMA_VERSION}", "kvplan_version": "{__version__}", "points": ['
    between = "\n"
    for piece in pieces:
        yield between + piece.removesuffix("\n").replace("\n", ",\n")
        between = ",\n"
    yield "\n]}\n"


_OBJECT: Final = "{" + ", ".join(f'"{name}": %s' for name in COLUMNS) + "}"


def _rows(block: RowBlock, form: str, cell: Callable[[Value], str]) -> str:
    """A block as lines. Values that all rows share are put into the format string once, which saves time for each row."""
    constants: list[str] = []
    varying: list[Sequence[Any]] = []
    for name in COLUMNS:
        column = block.columns[name]
        if column is None or isinstance(column, (str, int, float)):
            constants.append(cell(column).replace("%", "%%"))
            continue
        constants.append("%s")
        # Numbers stay as they are; text, and columns with unknown values, are written by the cell.
        if isinstance(column, SharedNumbers):
            varying.append(column.texts)
        elif isinstance(column, list):
            varying.append(column if name in NUMBERS and None not in column else list(map(cell, column)))
        else:
            varying.append(column.tolist())  # type: ignore[union-attr]
    line = form % tuple(constants) + "\n"
    if not varying:
        return line % () * block.size
    parts, width = [], len(varying)
    for first in range(0, block.size, _LINES):
        count = min(_LINES, block.size - first)
        cells: list[Any] = [None] * (width * count)
        for place, values in enumerate(varying):
            cells[place::width] = values[first : first + count]
        parts.append(line * count % tuple(cells))
    return "".join(parts)


def _csv_cell(value: Value) -> str:
    text = csv_cell(value) if isinstance(value, str) else "" if value is None else str(value)
    return '"' + text.replace('"', '""') + '"' if any(sign in text for sign in ',"\r\n') else text


def _json_cell(value: Value) -> str:
    return json_for(json.dumps(without_tokens(value) if isinstance(value, str) else value, ensure_ascii=False))


def write_parquet(file: IO[bytes], blocks: Iterable[RowBlock], stamp: Mapping[str, str] | None = None) -> None:
    """Write whole numbers as int64, others as float64 and text as strings.

    With a ``stamp`` it is a file of a dataset: model and engine are in its path, and the stamp and the counts of its rows in its metadata.
    Raises :class:`~hwcalc.errors.UsageError` if a number needs more than 64 bits.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = dict.fromkeys(NUMBERS, pa.int64()) | dict.fromkeys(OF_SPEED, pa.float64())
    names = COLUMNS if stamp is None else [name for name in COLUMNS if name not in _OF_PATH]
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in names])
    waiting: list[Any] = []
    rows = size = failed = 0
    first: KvplanError | None = None
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for block in blocks:
            try:
                arrays = [_array(pa, schema.field(name).type, block.columns[name], block.size) for name in names]
            except (OverflowError, pa.ArrowInvalid) as error:
                message = "a number of this grid does not fit into the 64 bits that Parquet has."
                raise UsageError(message, hint="Use --format csv, or smaller lengths and batches.") from error
            waiting.append(pa.record_batch(arrays, schema=schema))
            rows, size, failed, first = rows + block.size, size + block.size, failed + block.failed, first or block.error
            if rows >= _GROUP_ROWS:
                writer.write_table(pa.Table.from_batches(waiting, schema))
                waiting, rows = [], 0
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting, schema))
        if stamp is not None:
            told = None if first is None else (first.message, first.exit_code)
            writer.add_key_value_metadata({**stamp, _COUNTS: json.dumps({"size": size, "failed": failed, "error": told})})


def read_parquet(path: Path, part: Part) -> list[RowBlock]:
    """The rows of a file of a dataset, whose columns are read when they are asked for."""
    counts = json.loads(metadata_of(path)[_COUNTS.encode()])
    error = None if counts["error"] is None else _KeptError(*counts["error"])
    return [RowBlock(size=counts["size"], columns=_Columns(path, part), failed=counts["failed"], error=error)]


class _KeptError(KvplanError):
    """The error of a part that was finished before."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]


class _Columns(Mapping[str, Column]):
    """The columns of a file of a dataset."""

    def __init__(self, path: Path, part: Part) -> None:
        self._path, self._of_path = path, {"model": part.model, "engine": part.engine}

    def __getitem__(self, name: str) -> Column:
        import pyarrow.parquet as pq

        if name in self._of_path:
            return self._of_path[name]
        with self._path.open("rb") as file:
            values: Column = column_of(pq.ParquetFile(file).read([name])[name].to_pylist())
        return values

    def __iter__(self) -> Iterator[str]:
        return iter(COLUMNS)

    def __len__(self) -> int:
        return len(COLUMNS)


def _array(pa: Any, type_: Any, column: Column, size: int) -> Any:
    if column is None:
        return pa.nulls(size, type_)
    if isinstance(column, (str, int, float)):
        return pa.repeat(pa.scalar(column, type_), size)
    return pa.array(column, type_)
