"""A request from a row of a trace: which columns have what, and what their values may be."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct

from hwcalc.errors import TraceError, UsageError
from hwcalc.text import quoted, shown
from hwcalc.units import MOST_TOKENS
from hwcalc.workload.request import Request, Segment

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
"""What a row says -> the names of columns that are taken for it, without capitals and with _ for blanks."""
NEEDED: Final = ("prompt", "output")
MOST_IDS: Final = 1_000_000
"""The most blocks with an id that a prompt may have."""
MOST_SECONDS: Final = 1e12


class Rules(Struct, frozen=True):
    """How rows are read, where formats differ."""

    arrival_unit_s: float = 1.0
    """Seconds in a unit of the times, where they are numbers."""
    hash_block_tokens: int = 512
    """Tokens of a block that has an id."""
    leaves_failures_out: bool = False
    """Whether a row without a prompt or an output is a request that failed; else it is an error."""


def simple(name: str) -> str:
    """The name of a column in small letters, with ``_`` for everything else."""
    return re.sub(r"[^a-z0-9]+", "_", name.strip().lower()).strip("_")


def parse_columns(value: str | Mapping[str, str] | None) -> dict[str, str]:
    """What the user says of columns: ``prompt=tokens_in,output=tokens_out``, or a dict.

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
    """What rows say -> its column in the header. Raises :class:`~hwcalc.errors.TraceError` if there are no lengths."""
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
