"""The formats of traces: what each is and whose, how a file is known by its content and read within bounds, and what its rows say."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import IO, Any, Final

from msgspec import DecodeError, Struct

from hwcalc.errors import TraceError, UsageError
from hwcalc.files import opened
from hwcalc.text import is_manifest, quoted, shown
from hwcalc.units import MOST_TOKENS
from hwcalc.workload.request import Request, Segment

MOST_LINE_BYTES: Final = 4 * 2**20
"""The longest line. A prompt of a million tokens has 2,000 ids of blocks, which are 20 KB."""
MOST_DOCUMENT_BYTES: Final = 2 * 2**30
"""The largest file that is read whole: a JSON document is one value. ShareGPT has 0.7 GB."""
START_BYTES: Final = 64 * 2**10
"""As much of a file as decides what it is."""
_GZIP: Final = b"\x1f\x8b"
UNREADABLE: Final = (DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are no JSON, or no text."""


@contextmanager
def open_data(path: str | os.PathLike[str], what: str = "") -> Iterator[IO[bytes]]:
    """The bytes of a file, unpacked if it is a gzip file. Raises :class:`~hwcalc.errors.TraceError` for one that cannot be read."""
    import zlib

    name = quoted(os.fspath(path), 60)
    if os.fspath(path) == "-":
        raise TraceError(f"{what}standard input can be read once only.", hint="Write it to a file, and name the file.")
    try:
        with opened(path) as raw:
            mode = os.fstat(raw.fileno()).st_mode
            if not stat.S_ISREG(mode):
                kind = "a folder" if stat.S_ISDIR(mode) else "no file"
                raise TraceError(
                    f"{what}{name} is {kind}.", hint="Name a file that can be read again: requests are read as they are used."
                )
            packed = raw.read(len(_GZIP)) == _GZIP
            raw.seek(0)
            if packed:
                import gzip

                with gzip.open(raw) as unpacked:
                    yield unpacked  # type: ignore[misc]
            else:
                yield raw
    except IsADirectoryError as error:
        raise TraceError(f"{what}{name} is a folder.", hint="Name a file.") from error
    except FileNotFoundError as error:
        raise TraceError(f"{what}{name} is not there.", hint="Name a trace, or words: kvplan help workload") from error
    except UnicodeEncodeError as error:
        raise TraceError(f"{what}{name} is no path.", hint="Name a trace, or words: kvplan help workload") from error
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise TraceError(f"{what}{name} cannot be read: {reason}.") from error


def read_lines(path: str | os.PathLike[str], what: str = "") -> Iterator[tuple[int, str]]:
    """The lines of a text file with their numbers, from 1. Raises :class:`~hwcalc.errors.TraceError` for a line that is too long or no text."""
    with open_data(path, what) as data:
        number = 0
        while line := data.readline(MOST_LINE_BYTES + 1):
            number += 1
            if len(line) > MOST_LINE_BYTES:
                message = f"{what}{quoted(os.fspath(path), 60)}, line {number:,} has more than {MOST_LINE_BYTES // 2**20} MiB."
                raise TraceError(message, hint="A trace has a line for each request.")
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise TraceError(f"{what}{quoted(os.fspath(path), 60)}, line {number:,} is no text in UTF-8.") from error
            yield number, text.rstrip("\r\n")


def read_start(path: str | os.PathLike[str]) -> bytes:
    """The first bytes of a file, unpacked."""
    with open_data(path) as data:
        return data.read(START_BYTES)


def read_whole(path: str | os.PathLike[str]) -> bytes:
    """All bytes of a file, unpacked. Raises :class:`~hwcalc.errors.TraceError` if they are too many."""
    with open_data(path) as data:
        document = data.read(MOST_DOCUMENT_BYTES + 1)
    if len(document) > MOST_DOCUMENT_BYTES:
        raise TraceError(
            f"{quoted(os.fspath(path), 60)} has more than {MOST_DOCUMENT_BYTES // 2**30} GiB.",
            hint="Write its lengths as CSV or JSONL, which is read line by line.",
        )
    return document


NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "arrival": ("arrival_s", "arrival", "arrived_at", "timestamp", "time", "ts", "start_time", "created_at", "datetime", "date"),
    "arrival_ms": ("arrival_ms", "timestamp_ms", "time_ms"),
    "prompt": (
        "prompt_tokens", "prompt", "prompt_length", "prompt_len", "input_tokens", "input_length", "input_len", "context_tokens",
        "contexttokens", "request_tokens", "num_prefill_tokens", "isl",
    ),
    "output": (
        "output_tokens", "output", "output_length", "output_len", "completion_tokens", "generated_tokens", "generatedtokens",
        "response_tokens", "num_decode_tokens", "osl",
    ),
    "prefix": ("prefix", "prefix_group", "prefix_id", "group"),
    "prefix_tokens": ("prefix_tokens", "prefix_length", "prefix_len"),
    "hash_ids": ("hash_ids",),
    "priority": ("priority",),
    "session": ("session", "session_id", "conversation_id", "conversation", "chat_id"),
    "cancel_after": ("cancel_after_s", "cancel_after"),
    "samples": ("samples", "n"),
    "max_tokens": ("max_tokens", "max_new_tokens"),
}  # fmt: skip
"""The kind of a row's value -> the names of columns that are taken for it, without capitals and with _ for blanks."""
NEEDED: Final = ("prompt", "output")
MOST_IDS: Final = 1_000_000
"""The most blocks with an id that a prompt may have."""
MOST_SECONDS: Final = 1e12


class Rules(Struct, frozen=True):
    """The ways in which formats differ."""

    arrival_unit_s: float = 1.0
    """Seconds in a unit of the times, where they are numbers."""
    hash_block_tokens: int = 512
    """Tokens of a block that has an id."""
    leaves_failures_out: bool = False
    """True if a row without a prompt or an output is a request that failed; else it is an error."""


def simple(name: str) -> str:
    """The name of a column in small letters, with ``_`` for everything else."""
    return re.sub(r"[^a-z0-9]+", "_", name.strip().lower()).strip("_")


def parse_columns(value: str | Mapping[str, str] | None) -> dict[str, str]:
    """The columns by the user's words: ``prompt=tokens_in,output=tokens_out``, or a dict.

    Raises :class:`~hwcalc.errors.UsageError` for what no row says.
    """
    if value is None:
        return {}
    pairs = [word.partition("=")[::2] for word in value.split(",")] if isinstance(value, str) else list(value.items())
    for says, column in pairs:
        if says.strip() not in NAMES or not column.strip():
            message = f"columns {shown(f'{says}={column}', 60)} is not known."
            raise UsageError(message, hint=f"Write prompt=tokens_in,output=tokens_out. Known: {', '.join(NAMES)}.")
    return {says.strip(): column.strip() for says, column in pairs}


def find_columns(header: Sequence[str], named: Mapping[str, str], place: str) -> dict[str, str]:
    """The kind of a value -> its column in the header. Raises :class:`~hwcalc.errors.TraceError` if there are no lengths."""
    known = {simple(column): column for column in header}
    columns: dict[str, str] = {}
    for says, names in NAMES.items():
        if says in named:
            column = named[says] if named[says] in header else known.get(simple(named[says]))
            if column is None and "." not in named[says]:
                raise TraceError(f"{place}: there is no column {shown(named[says], 40)}.", hint=f"Columns: {_listed(header)}.")
            columns[says] = column or named[says]
        else:
            found = next((known[name] for name in names if name in known), None)
            if found is not None:
                columns[says] = found
    missing = [says for says in NEEDED if says not in columns]
    if missing:
        hint = f"Say which it is: --columns {missing[0]}=NAME. Columns: {_listed(header)}."
        raise TraceError(f"{place}: no column is known to be the {missing[0]} tokens.", hint=hint)
    return columns


def _listed(header: Sequence[str]) -> str:
    return ", ".join(shown(column, 24) for column in header[:12]) + (", ..." if len(header) > 12 else "")


def request_of(said: Mapping[str, Any], rules: Rules, place: str) -> Request | None:
    """The request of a row by what it says; ``None`` if it failed. Raises :class:`~hwcalc.errors.TraceError` with its place."""
    prompt, output = _whole(said.get("prompt"), "prompt", place), _whole(said.get("output"), "output", place)
    if prompt < 1 or output < 1:
        if rules.leaves_failures_out:
            return None
        short = "prompt" if prompt < 1 else "output"
        raise TraceError(
            f"{place}: {short} is {min(prompt, output)}.", hint="A request has at least 1 token of prompt and of output."
        )
    arrival, unit_s = said.get("arrival"), rules.arrival_unit_s
    if arrival is None or arrival == "":
        arrival, unit_s = said.get("arrival_ms"), 0.001
    arrival_s = 0.0 if arrival is None or arrival == "" else _time(arrival, unit_s, place)
    request = Request(number=0, arrival_s=arrival_s, prompt_tokens=prompt, output_tokens=output)
    if said.keys() <= _PLAIN:
        return request
    optional = {name: value for name, value in said.items() if name not in _PLAIN and value is not None and value != ""}
    if not optional:
        return request
    changes: dict[str, Any] = {}
    if "hash_ids" in optional:
        changes["prefix"] = _of_ids(optional["hash_ids"], prompt, rules.hash_block_tokens, place)
    elif "prefix" in optional:
        tokens = _whole(optional.get("prefix_tokens", prompt), "prefix_tokens", place)
        changes["prefix"] = (Segment(_name(optional["prefix"], "prefix", place), min(tokens, prompt)),) if tokens else ()
    if "session" in optional:
        changes["session"] = _name(optional["session"], "session", place)
    if "priority" in optional:
        changes["priority"] = _whole(optional["priority"], "priority", place, least=-MOST_TOKENS)
    for says, name in (("samples", "samples"), ("max_tokens", "max_tokens")):
        if says in optional:
            changes[name] = _whole(optional[says], says, place, least=1)
    if "cancel_after" in optional:
        changes["cancel_after_s"] = _time(optional["cancel_after"], 1.0, place)
    return request.changed(**changes)


_PLAIN: Final = frozenset({*NEEDED, "arrival", "arrival_ms"})


def _whole(value: Any, name: str, place: str, least: int = 0) -> int:
    number: int | None = None
    if type(value) is int:
        number = value
    elif isinstance(value, str):
        text = value.strip()
        if text.isascii() and text.isdigit() and len(text) < 16:
            number = int(text)
        # A table of numbers that has a gap somewhere is often written with decimals.
        elif re.fullmatch(r"(?a)-?[0-9]{1,15}(?:\.0{0,9})?", text):
            number = int(text.partition(".")[0])
    elif isinstance(value, float) and value.is_integer():
        number = int(value)
    if number is None:
        raise TraceError(f"{place}: {name} is {quoted(value, 40)}.", hint="Allowed: a whole number.")
    if not least <= number <= MOST_TOKENS:
        raise TraceError(f"{place}: {name} is {number:,}.", hint=f"Allowed: {least:,} to {MOST_TOKENS:,}.")
    return number


def _time(value: Any, unit_s: float, place: str) -> float:
    """Seconds of a number, or of a date with a time."""
    if isinstance(value, str):
        text = value.strip()
        try:
            number = float(text)
        except ValueError:
            try:
                moment = datetime.fromisoformat(text)
            except ValueError as error:
                hint = "Allowed: a number, or a date such as 2024-05-10 00:00:00.25."
                raise TraceError(f"{place}: the time is {quoted(value, 40)}.", hint=hint) from error
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    elif isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        number = value
    else:
        raise TraceError(f"{place}: the time is {quoted(value, 40)}.", hint="Allowed: a number, or a date.")
    if not 0 <= number * unit_s <= MOST_SECONDS:
        raise TraceError(f"{place}: the time is {quoted(value, 40)}.", hint=f"Allowed: 0 to {MOST_SECONDS:,.0f} seconds.")
    return number * unit_s


def _name(value: Any, name: str, place: str) -> Hashable:
    if not isinstance(value, (str, int, float)) or (isinstance(value, str) and len(value) > 256):
        raise TraceError(f"{place}: {name} is {quoted(value, 40)}.", hint="Allowed: a number, or a name of at most 256 letters.")
    return value


def _of_ids(ids: Any, prompt: int, block_tokens: int, place: str) -> tuple[Segment, ...]:
    """The segments of a prompt whose blocks have ids; the last block may be a part of one."""
    if isinstance(ids, str):
        ids = [int(word) for word in re.findall(r"(?a)[0-9]{1,18}", ids)]
    if not isinstance(ids, Sequence) or len(ids) > MOST_IDS or any(type(one) is not int for one in ids):
        raise TraceError(f"{place}: hash_ids is {quoted(ids, 40)}.", hint=f"Allowed: at most {MOST_IDS:,} whole numbers.")
    whole, rest = divmod(prompt, block_tokens)
    segments = [Segment(one, block_tokens) for one in ids[:whole]]
    if rest and len(ids) > whole:
        segments.append(Segment(ids[whole], rest))
    return tuple(segments)


class TraceFormat(Struct, frozen=True):
    """A format of traces. ``kind`` says how a file is read: csv, jsonl, parquet, runs (results of a benchmark) or conversations."""

    name: str
    kind: str
    label: str
    source: str = ""
    licence: str = ""
    rules: Rules = Rules()


FORMATS: Final = (
    TraceFormat(
        "azure", "csv", "Azure LLM inference traces of 2023 and 2024", "github.com/Azure/AzurePublicDataset", "CC-BY 4.0"
    ),
    TraceFormat(
        "burstgpt", "csv", "BurstGPT", "github.com/HPMLL/BurstGPT", "CC-BY 4.0", Rules(leaves_failures_out=True)
    ),
    TraceFormat(
        "mooncake", "jsonl", "Mooncake (FAST 2025)", "github.com/kvcache-ai/Mooncake", "Apache-2.0",
        Rules(arrival_unit_s=0.001, hash_block_tokens=512),
    ),
    TraceFormat(
        "qwen-bailian", "jsonl", "Qwen-Bailian (ATC 2025)", "github.com/alibaba-edu/qwen-bailian-usagetraces-anon", "Apache-2.0",
        Rules(hash_block_tokens=16),
    ),
    TraceFormat(
        "sharegpt", "conversations", "ShareGPT conversations", "huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered",
        "Apache-2.0, as its page says",
    ),
    TraceFormat("vllm-bench", "runs", "a result of vllm bench serve", "github.com/vllm-project/vllm: vllm/benchmarks/serve.py"),
    TraceFormat("sglang-bench", "runs", "a result of sglang.bench_serving", "github.com/sgl-project/sglang: bench_serving"),
    TraceFormat("csv", "csv", "CSV with named columns"),
    TraceFormat("jsonl", "jsonl", "JSON lines with named values"),
    TraceFormat("parquet", "parquet", "Parquet with named columns"),
)  # fmt: skip
"""All formats: those that are published, and plain tables."""
BY_NAME: Final = {one.name: one for one in FORMATS}
_AZURE: Final = {"timestamp", "contexttokens", "generatedtokens"}
_BURSTGPT: Final = {"timestamp", "model", "request_tokens", "response_tokens"}
_KEYS: Final = r'"((?:[^"\\]|\\.){1,64})"\s*:'


def format_named(name: str) -> TraceFormat:
    """The format of this name. Raises :class:`~hwcalc.errors.UsageError` if there is none."""
    known = BY_NAME.get(name.strip().lower())
    if known is None:
        raise UsageError(f"trace format {shown(name, 40)} is not known.", hint=f"Known: {', '.join(BY_NAME)}.")
    return known


def detect(path: str | os.PathLike[str]) -> TraceFormat:
    """The format of a file, by its first bytes. Raises :class:`~hwcalc.errors.TraceError` for one that is no trace."""
    start, name = read_start(path), quoted(os.fspath(path), 60)
    if start.startswith(b"PAR1"):
        return BY_NAME["parquet"]
    text = start.decode("utf-8-sig", errors="ignore").lstrip()
    if not start.strip():
        raise TraceError(f"{name} is empty.", hint="A trace has a line for each request.")
    if b"\0" in start or len(text.encode()) < 0.9 * len(start.strip()):
        raise TraceError(f"{name} is no text.", hint=_hint())
    if text.startswith("["):
        return BY_NAME["sharegpt"]
    if text.startswith("{"):
        return _by_keys(_first_keys(text))
    if is_manifest(text):
        raise TraceError(f"{name} is a manifest of servers, and no trace.", hint=_hint())
    columns = set(map(simple, re.split(r"[,;\t]", text.partition("\n")[0])))
    if columns >= _AZURE:
        return BY_NAME["azure"]
    return BY_NAME["burstgpt" if columns >= _BURSTGPT else "csv"]


def _first_keys(text: str) -> set[str]:
    """The keys of the first JSON object, or of as much of it as is there."""
    import msgspec

    line = text.partition("\n")[0]
    try:
        first: Any = msgspec.json.decode(line)
    except UNREADABLE:
        return set(re.findall(_KEYS, text[:START_BYTES]))
    return set(first) if isinstance(first, dict) else set()


def _by_keys(keys: set[str]) -> TraceFormat:
    if "hash_ids" in keys:
        return BY_NAME["qwen-bailian" if "chat_id" in keys else "mooncake"]
    if keys & {"conversations", "messages"}:
        return BY_NAME["sharegpt"]
    if "input_lens" in keys or {"completed", "total_input_tokens"} <= keys:
        return BY_NAME["sglang-bench" if keys & {"total_output_tokens_retokenized", "server_info"} else "vllm-bench"]
    return BY_NAME["jsonl"]


def _hint() -> str:
    return f"A trace is one of: {', '.join(BY_NAME)}. See: kvplan help workload"
