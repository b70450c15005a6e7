"""Read traces: rows of CSV, JSON lines and Parquet, results of benchmarks, and conversations. Each file is read as its requests are used."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, Final

import msgspec
from msgspec import Struct

from hwcalc.errors import TraceError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.text import quoted
from hwcalc.workload.formats import UNREADABLE, Rules, TraceFormat, find_columns, open_data, read_lines, read_whole, request_of
from hwcalc.workload.made import Arrivals
from hwcalc.workload.request import Request, Segment, in_order, in_turns

MOST_CONVERSATION_BYTES: Final = 16 * 2**20
"""The most bytes of one conversation."""
_CHUNK: Final = 1 << 20
_PARQUET_ROWS: Final = 8192
FAILED: Final = "failed requests, without a prompt or an output"
LETTERS_OF_TOKEN: Final = 4.0
"""Bytes of UTF-8 in a token of English text, on average, where a trace has text and no counts."""
_RUN_RULES: Final = Rules(leaves_failures_out=True)
_USERS: Final = frozenset({"human", "user"})
_SYSTEMS: Final = frozenset({"system"})


class Trace(Record):
    """A file of requests. ``columns`` are what the user says of its columns; ``seed`` decides arrivals that a benchmark does not record."""

    path: str
    format: TraceFormat
    columns: Mapping[str, str]
    seed: int = 0

    def requests(self, left_out: Counter[str] | None = None) -> Iterator[Request]:
        """The requests in the order of arrival. ``left_out`` counts rows that are none, by the reason.

        Raises :class:`~hwcalc.errors.TraceError` with the line of the first row that cannot be read.
        """
        counted = Counter[str]() if left_out is None else left_out
        return _READERS[self.format.kind](self, counted)

    @cached_property
    def name(self) -> str:
        """The path as errors quote it."""
        return quoted(self.path, 60)

    def place(self, what: str, number: int) -> str:
        """The place of a row in an error."""
        return f"{self.name}, {what} {number:,}"

    @cached_property
    def concurrency(self) -> int | None:
        """The most requests at once, where the file is of a benchmark that waited and does not say when it sent each."""
        if self.format.kind != "runs":
            return None
        run, _ = _last_run(self)
        return (run.max_concurrency or None) if run.start_times is None else None

    def notes(self) -> tuple[str, ...]:
        """The assumptions on the file, in sentences."""
        if self.format.kind == "conversations":
            return (
                f"Tokens are counted as {LETTERS_OF_TOKEN:g} bytes of text each: the file has no counts.",
                "Conversations begin at once, and a turn is sent when the one before it is answered: the file has no times.",
            )
        if self.format.kind == "runs":
            return self._notes_of_run()
        return ()

    def _notes_of_run(self) -> tuple[str, ...]:
        run, number = _last_run(self)
        notes = [f"The last of {number} runs in the file."] if number > 1 else []
        if run.start_times is None:
            rate = run.request_rate
            said = "at once" if rate is None or rate == "inf" else f"as a random process of {rate} a second"
            notes.append(f"The file has no times of requests: they arrive {said}, as the benchmark was started.")
        return tuple(notes)


def _of_csv(trace: Trace, left_out: Counter[str]) -> Iterator[Request]:
    def rows() -> Iterator[Request]:
        lines = (f"{line}\n" for _, line in read_lines(trace.path))
        header = next(lines, "")
        # Only a header says which sign is between cells.
        delimiter = max(",;\t", key=header.count)
        names = [name.strip() for name in next(csv.reader([header], delimiter=delimiter))]
        columns = find_columns(names, trace.columns, trace.place("line", 1))
        places = [(says, names.index(column)) for says, column in columns.items()]
        least = max(place for _, place in places)
        table = csv.reader(lines, delimiter=delimiter, strict=True)
        rules = trace.format.rules
        while True:
            try:
                row = next(table, None)
            except csv.Error as error:
                raise TraceError(f"{trace.place('line', table.line_num + 1)}: {error}.") from error
            if row is None:
                return
            if not row:
                continue
            place = trace.place("line", table.line_num + 1)
            if len(row) <= least:
                raise TraceError(f"{place} has {len(row)} cells.", hint=f"The header has {len(names)}.")
            request = request_of({says: row[number] for says, number in places}, rules, place)
            if request is None:
                left_out[FAILED] += 1
            else:
                yield request

    return in_order(rows())


def _of_json_lines(trace: Trace, left_out: Counter[str]) -> Iterator[Request]:
    def rows() -> Iterator[Request]:
        columns: dict[str, str] | None = None
        decode = msgspec.json.Decoder().decode
        for number, line in read_lines(trace.path):
            if not line.strip():
                continue
            place = trace.place("line", number)
            try:
                row = decode(line)
            except UNREADABLE as error:
                raise TraceError(f"{place} is no JSON: {error}.", hint="Each line is an object of its own.") from error
            if not isinstance(row, dict):
                raise TraceError(
                    f"{place} is no object.", hint='Each line is an object: {"prompt_tokens": 100, "output_tokens": 20}'
                )
            if columns is None:
                columns = find_columns(list(row), trace.columns, place)
            request = request_of({says: _value(row, column) for says, column in columns.items()}, trace.format.rules, place)
            if request is None:
                left_out[FAILED] += 1
            else:
                yield request

    return in_order(rows())


def _value(row: Any, column: str) -> Any:
    """The value of a column, which may be inside others: ``usage.prompt_tokens``."""
    if column in row:
        return row[column]
    for key in column.split("."):
        row = row.get(key) if isinstance(row, dict) else None
    return row


def _of_parquet(trace: Trace, left_out: Counter[str]) -> Iterator[Request]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        hint = "Install it: pip install 'hwcalc[parquet]', or write the trace as CSV."
        raise UsageError("Parquet needs pyarrow, which is not installed.", hint=hint) from error

    def rows() -> Iterator[Request]:
        number = 0
        try:
            with open_data(trace.path) as data, pq.ParquetFile(data) as file:
                columns = find_columns(file.schema_arrow.names, trace.columns, trace.name)
                for batch in file.iter_batches(batch_size=_PARQUET_ROWS, columns=list(set(columns.values()))):
                    values = {says: batch.column(column).to_pylist() for says, column in columns.items()}
                    for place in range(batch.num_rows):
                        number += 1
                        row = {says: cells[place] for says, cells in values.items()}
                        request = request_of(row, trace.format.rules, trace.place("row", number))
                        if request is None:
                            left_out[FAILED] += 1
                        else:
                            yield request
        except (pa.ArrowException, MemoryError) as error:
            raise TraceError(f"{trace.place('row', number + 1)} cannot be read: {error}.") from error

    return in_order(rows())


class _Run(Struct):
    """The part of a benchmark's result that is read. All else in it is passed over."""

    input_lens: list[int] | None = None
    output_lens: list[int] | None = None
    start_times: list[float] | None = None
    request_rate: float | str | None = None
    burstiness: float | None = None
    max_concurrency: int | None = None


def _last_run(trace: Trace) -> tuple[_Run, int]:
    """The last run of a file that has one or several, and how many there are."""
    whole = read_whole(trace.path)
    decoder = msgspec.json.Decoder(_Run)
    try:
        return decoder.decode(whole), 1
    except UNREADABLE as error:
        lines = [(number, line) for number, line in enumerate(whole.splitlines(), 1) if line.strip()]
        if len(lines) < 2:
            raise TraceError(f"{trace.name} is no result of a benchmark: {error}.") from error
    number, line = lines[-1]
    try:
        return decoder.decode(line), len(lines)
    except UNREADABLE as error:
        raise TraceError(f"{trace.place('line', number)} is no result of a benchmark: {error}.") from error


def _of_runs(trace: Trace, left_out: Counter[str]) -> Iterator[Request]:
    run, _ = _last_run(trace)
    name = trace.name
    if run.input_lens is None or run.output_lens is None:
        raise TraceError(
            f"{name} has no lengths of single requests.",
            hint="Run the benchmark again with --save-detailed (vllm bench serve) or --output-details (sglang.bench_serving).",
        )
    prompts, outputs, times = run.input_lens, run.output_lens, run.start_times
    if len(prompts) != len(outputs) or (times is not None and len(times) != len(prompts)):
        raise TraceError(f"{name}: its lists have {len(prompts):,} prompts and {len(outputs):,} outputs.")
    arrivals: Iterator[float]
    if times is not None:
        arrivals = iter(times)
    else:
        rate = None if run.request_rate in (None, "inf") else _rate(run.request_rate, name)
        burstiness = run.burstiness if run.burstiness and run.burstiness > 0 else 1.0
        arrivals = Arrivals(text="", rate=rate, random=True, burstiness=burstiness).times(f"{trace.seed} arrival")

    def rows() -> Iterator[Request]:
        for number, (prompt, output, arrival) in enumerate(zip(prompts, outputs, arrivals, strict=False), 1):
            said = {"prompt": prompt, "output": output, "arrival": arrival}
            request = request_of(said, _RUN_RULES, trace.place("request", number))
            if request is None:
                left_out[FAILED] += 1
            else:
                yield request

    return in_order(rows())


def _rate(value: Any, name: str) -> float:
    if isinstance(value, (int, float)) and 0 < value < 1e9:
        return float(value)
    raise TraceError(f"{name}: request_rate is {quoted(value, 40)}.", hint='Allowed: a number above 0, or "inf".')


def _of_conversations(trace: Trace, left_out: Counter[str]) -> Iterator[Request]:
    def sessions() -> Iterator[list[Request]]:
        for number, entry in _conversations(trace):
            turns = _turns_of(entry, number, trace.place("conversation", number), left_out)
            if turns:
                yield turns

    return in_turns(sessions())


def _conversations(trace: Trace) -> Iterator[tuple[int, Any]]:
    """The entries of an array, or those of lines, with their numbers from 1. No more than one of them is held, and what was read with it."""
    import json
    from codecs import getincrementaldecoder

    # No number is looked at, and int() refuses those of more than 4,300 digits.
    decoder, letters = json.JSONDecoder(parse_int=float), getincrementaldecoder("utf-8-sig")()
    number, text, at, ended = 0, "", 0, False
    between = re.compile(r"[ \t\r\n,]*").match
    with open_data(trace.path) as data:
        while True:
            at = between(text, at).end()  # type: ignore[union-attr]
            if number == 0 and text[at : at + 1] == "[":
                at = between(text, at + 1).end()  # type: ignore[union-attr]
            place = trace.place("conversation", number + 1)
            if at < len(text) and text[at] != "]":
                try:
                    entry, at = decoder.raw_decode(text, at)
                except RecursionError as error:
                    raise TraceError(f"{place} is nested too deep.") from error
                except json.JSONDecodeError as error:
                    # An entry whose end has not been read yet is no JSON either.
                    if ended or len(text) - at > MOST_CONVERSATION_BYTES:
                        reason = f"is no JSON: {error.msg}" if ended else f"has more than {MOST_CONVERSATION_BYTES // 2**20} MiB"
                        raise TraceError(f"{place} {reason}.") from error
                else:
                    number += 1
                    yield number, entry
                    continue
            elif ended or at < len(text):
                return
            chunk = data.read(max(_CHUNK, len(text) - at))
            ended = not chunk
            try:
                text, at = text[at:] + letters.decode(chunk, final=ended), 0
            except UnicodeDecodeError as error:
                raise TraceError(f"{place} is no text in UTF-8.") from error


def _turns_of(entry: Any, session: int, place: str, left_out: Counter[str]) -> list[Request]:
    """The requests of a conversation: an answer, and all before it as its prompt."""
    messages = entry.get("conversations", entry.get("messages")) if isinstance(entry, dict) else None
    if not isinstance(messages, list):
        raise TraceError(
            f"{place} has no conversations.", hint='ShareGPT has {"conversations": [{"from": "human", "value": "..."}]}.'
        )
    requests, prefix, asked = list[Request](), list[Segment](), False
    for turn, message in enumerate(messages):
        role = message.get("from", message.get("role")) if isinstance(message, dict) else None
        text = message.get("value", message.get("content")) if isinstance(message, dict) else None
        if not isinstance(role, str) or not isinstance(text, str):
            raise TraceError(f"{place}: message {turn + 1} has no role or no text.")
        tokens = -(-len(text.encode("utf-8", "surrogatepass")) // int(LETTERS_OF_TOKEN))
        if not tokens:
            continue
        if role.lower() in _USERS or role.lower() in _SYSTEMS:
            prefix.append(Segment((session, turn), tokens))
            asked = True
            continue
        if not asked:
            # Conversations that were cut in two begin with an answer.
            left_out["answers to nothing"] += 1
        else:
            prompt = sum(segment.tokens for segment in prefix)
            requests.append(
                Request(
                    number=0,
                    prompt_tokens=prompt,
                    output_tokens=tokens,
                    prefix=tuple(prefix),
                    output_id=(session, turn),
                    session=session,
                )
            )
        prefix.append(Segment((session, turn), tokens))
    return requests


_READERS: Final[Mapping[str, Callable[[Trace, Counter[str]], Iterator[Request]]]] = {
    "csv": _of_csv,
    "jsonl": _of_json_lines,
    "parquet": _of_parquet,
    "runs": _of_runs,
    "conversations": _of_conversations,
}
