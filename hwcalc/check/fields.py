"""The keys of a check: the options of a plan, and the requirements. Reader, help and schema of each key are defined here, once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from typing import Any, Final, NamedTuple

from hwcalc.errors import UsageError
from hwcalc.planner.asked import read_options
from hwcalc.planner.options import OPTIONS as PLAN_OPTIONS
from hwcalc.planner.options import OTHER_NAMES, PlanOption
from hwcalc.planner.values import DURATION, MONEY, PART, PERCENT, RATE, TYPES, UNITS
from hwcalc.profiles.engine_flags import engine_flags
from hwcalc.text import brief, shown
from hwcalc.units import (
    LEAST_BYTES,
    parse_bytes,
    parse_duration,
    parse_memory,
    parse_money,
    parse_rate,
    parse_share,
    parse_tokens,
)
from hwcalc.yaml_tree import Node


class Field(NamedTuple):
    """How one key is read: ``read`` returns its value or raises :class:`~hwcalc.errors.UsageError`; ``schema`` is its JSON Schema."""

    read: Callable[[Node, str], Any]
    help: str
    schema: Mapping[str, Any]


class Headroom(NamedTuple):
    """Memory that must stay free: bytes on each GPU, or a share of what the engine may use."""

    bytes: int = 0
    share: Fraction | None = None

    def of(self, usable_bytes: int) -> int:
        """The headroom in bytes, rounded up."""
        return self.bytes if self.share is None else -(-usable_bytes * self.share.numerator // self.share.denominator)


_LONGEST_TEXT: Final = 4096


def _text(node: Node, key: str, what: str = "text", write: str = "TEXT, in quotes if YAML reads it otherwise.") -> str:
    """Text, ``what`` it is to be. A bare number counts as the text that was written, because a commit may look like a number."""
    scalar = isinstance(node.value, (str, int, float)) and not isinstance(node.value, bool)
    if not scalar or not node.text.strip() or len(node.text) > _LONGEST_TEXT or "\0" in node.text:
        raise UsageError(f"{key} must be {what}", hint=f"Write {key}: {write}")
    return node.text


def _scalar(node: Node, key: str, kinds: tuple[type, ...], allowed: str) -> Any:
    value = node.value
    if isinstance(value, float) and value.is_integer() and float not in kinds:
        value = int(value)  # JSON Schema counts 5.0 as a whole number
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise UsageError(f"{key} is not {allowed}", hint=f"Allowed: {allowed}.")
    return value


def _parsed(parse: Callable[[Any, str], int], allowed: str) -> Callable[[Node, str], int]:
    """A reader of a number or a text that ``parse`` takes."""
    return lambda node, key: parse(_scalar(node, key, (int, str), allowed), key)


_tokens: Final = _parsed(parse_tokens, "a whole number from 1, such as 32768 or 32k")
_number_of: Final = _parsed(parse_tokens, "a whole number from 1")
_tokens_from_zero: Final = _parsed(partial(parse_tokens, minimum=0), "a whole number from 0, such as 1500 or 32k")
_bytes: Final = _parsed(parse_bytes, "bytes, or a size such as 20GiB or 80GB")
_memory: Final = _parsed(parse_memory, "a number of GB, or a size such as 64GiB")
"""Memory of a host: a bare number is GB."""


def _size(node: Node, key: str) -> int:
    """Bytes with a unit, or a bare number that is too large to be anything but bytes."""
    return _with_unit(node, key, _bytes(node, key), "unit", "a size such as 20GiB or 80GB")


def _with_unit(node: Node, key: str, size: int, missing: str, allowed: str) -> int:
    """The size. Raises :class:`~hwcalc.errors.UsageError` for a bare number so small that a unit was probably forgotten."""
    value = node.value
    bare = not isinstance(value, str) or not re.fullmatch(UNITS, value)
    if bare and (isinstance(value, str) or 0 < size < LEAST_BYTES):
        raise UsageError(f"{key} {shown(node.text, 40)} has no {missing}", hint=f"Write {allowed}.")
    return size


def _number(node: Node, key: str) -> float:
    value = float(_scalar(node, key, (int, float), "a number above 0"))
    if not 0 < value < 1e18:
        raise UsageError(f"{key} is out of range: {brief(node.text, 40)}", hint="Allowed: a number above 0.")
    return value


def _share(node: Node, key: str) -> str:
    """A share such as ``5%`` or ``0.05``, checked and kept as text for a plan."""
    _text(node, key)
    share = parse_share(node.value, key)
    written = not isinstance(node.value, str) or re.fullmatch(f"{PERCENT}|{PART}", node.value)
    if not written or not 0 <= share.numerator <= share.denominator:
        message = f"{key} is not a share of the whole: {shown(node.text, 40)}"
        raise UsageError(message, hint="Allowed: a share such as 0.05, or 5%.")
    return str(node.value)


def _flag(node: Node, key: str) -> bool:
    if not isinstance(node.value, bool):
        raise UsageError(f"{key} is not true or false", hint="Allowed: true, false.")
    return node.value


def _engine_options(node: Node, key: str) -> dict[str, str]:
    if not isinstance(node.value, dict):
        raise UsageError(f"{key} must map names to values", hint=f"Write {key}: {_PAIRS[key][1]}")
    for name, item in node.value.items():
        if not isinstance(item.value, (str, int, float)) or not item.text:
            raise UsageError(f"the {_PAIRS[key][0]} {shown(name, 40)} must be text, a number, true or false")
    return {name: str(item.value).lower() if isinstance(item.value, bool) else item.text for name, item in node.value.items()}


_PAIRS: Final = {"engine_options": ("engine option", "{block_size: 32}"), "price": ("price of", "{h100: 2.50/h}")}
"""What is given by name, and what to write."""


def _lengths(node: Node, key: str) -> object:
    """Lengths with commas between, or a list of them."""
    if isinstance(node.value, list):
        return [_tokens(one, key) for one in node.value]
    return _text(node, key)


def _headroom(node: Node, key: str) -> Headroom:
    """``5%`` of what the engine may use, or bytes. A bare number must be too large to be meant as a share."""
    allowed = "a share such as 5%, or bytes such as 2GiB"
    value = _scalar(node, key, (int, str), allowed)
    if isinstance(value, str) and value.rstrip().endswith("%"):
        share = parse_share(value, key)
        if not re.fullmatch(PERCENT, value):
            raise UsageError(f"{key} is not a share of the whole: {shown(node.text, 40)}", hint=f"Allowed: {allowed}.")
        return Headroom(share=share)
    return Headroom(bytes=_with_unit(node, key, parse_bytes(value, key), "unit, percent or bytes", allowed))


def _written(node: Node, key: str) -> str:
    """Text that is kept as it was written, once a plan can read it."""
    text = _text(node, key)
    read_options({key: text})
    return text


def _part(node: Node, key: str) -> float:
    """A share such as ``1%`` or ``0.01``, as a number."""
    return float(parse_share(_share(node, key), key))


def _duration(node: Node, key: str) -> float:
    """Seconds, written with a unit."""
    return parse_duration(_text(node, key, "a time with its unit", "500ms, or 2s"), key)


def _rate(node: Node, key: str) -> float:
    return parse_rate(_text(node, key, "a number of tokens a second", "40, or 40/s"), key)


def _money(node: Node, key: str) -> float:
    """Dollars an hour."""
    return float(parse_money(_text(node, key, "US dollars per hour or month", "7/h, or 5000/month"), key))


_COUNT: Final = TYPES["count"].schema
_BYTES: Final = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": rf"^(?:{UNITS}|[0-9][0-9_,]*)$"}]}
_HEADROOM: Final = {
    "anyOf": [
        {"const": 0},
        {"type": "integer", "minimum": LEAST_BYTES},
        {"type": "string", "pattern": f"^(?:{PERCENT}|{UNITS})$"},
    ]
}

_READERS: Final[Mapping[str, Callable[[Node, str], Any]]] = {
    "tokens": _tokens,
    "count": _number_of,
    "from zero": _tokens_from_zero,
    "size": _size,
    "memory": _memory,
    "share": _share,
    "utilization": _share,
    "text": _text,
    "lora": _text,
    "policy": _written,
    "policy rules": _written,
    "compaction": _written,
    "lengths": _lengths,
    "held": _lengths,
    "model": _text,
    "pairs": _engine_options,
    "flag": _flag,
    "dollars": _text,
    "duration": _duration,
    "rate": _rate,
    "accepted": _number,
}
"""Type of an option -> reader of its value in a check file. Numbers are read more strictly here than in the library."""
_LAST: Final = ("margin", "lora", "draft", "revision", "assume")
"""The keys that come last in messages and in the schema."""


def field_of(row: PlanOption) -> Field:
    """The key that is an option of a plan."""
    return Field(_READERS[row.type], row.check or row.help, TYPES[row.type].schema)


_ROWS: Final = {row.name: row for row in PLAN_OPTIONS if row.check is not None}
OPTIONS: Final[Mapping[str, Field]] = {
    row.name: field_of(row)
    for row in (*(row for name, row in _ROWS.items() if name not in _LAST), *(_ROWS[name] for name in _LAST if name in _ROWS))
}
"""Key -> how it is read. The keys are the keyword arguments of :func:`hwcalc.plan`, from the table of its options."""

REQUIREMENTS: Final[Mapping[str, Field]] = {
    "fits": Field(
        _flag, "Whether it must fit. Default: true where a GPU, an instance or kv_memory is given.", {"type": "boolean"}
    ),
    "headroom": Field(_headroom, "What must stay free of what the engine may use: 5%, or bytes per GPU, 2GiB.", _HEADROOM),
    "max_cache": Field(_bytes, "Most bytes of cache, all GPUs together.", _BYTES),
    "max_weights": Field(_bytes, "Most bytes of weights.", _BYTES),
    "max_total": Field(_bytes, "Most bytes of everything that is planned, all GPUs together.", _BYTES),
    "max_bytes_per_token": Field(_bytes, "Most bytes that one more token takes.", _BYTES),
    "min_concurrency": Field(_number_of, "Fewest sequences of seq tokens that must fit at once.", _COUNT),
    "min_seq": Field(_tokens, "Shortest acceptable longest sequence.", _COUNT),
    "max_overrun": Field(
        _part, "Most likely that batch sequences of the lengths of avg_seq overrun the pool: 1%.", TYPES["share"].schema
    ),
    "max_gpus": Field(_number_of, "Most GPUs that it may take to fit.", _COUNT),
    "max_cost": Field(_money, "Most that the hardware may cost, by a price with its date: 5000/month, 7/h.", MONEY),
    "min_decode_tokens_per_s": Field(
        _number,
        "Fewest tokens per second of all sequences together, as expected; by the bound where nothing like it was measured. Of each it is min_rate.",
        {"type": "number", "exclusiveMinimum": 0},
    ),
    "max_ttft": Field(_duration, "Longest time to the first token, with all users of the check at once: 2s.", DURATION),
    "max_itl": Field(_duration, "Longest time between two tokens of a user, on average: 50ms.", DURATION),
    "max_e2e": Field(_duration, "Longest time from a request to its last token: 30s.", DURATION),
    "min_rate": Field(_rate, "Fewest tokens per second of each user, once the first is there: 40.", RATE),
    "min_users": Field(_number_of, "Fewest users that must be served at once within these limits of time.", _COUNT),
}
"""Key -> how the requirement is read, in the order of the reports."""

_VLLM: Final = engine_flags("vllm")
ALIASES: Final = {
    **{name: own for name, own in OTHER_NAMES.items() if own in OPTIONS},
    # Of vLLM's switch for experts only the command line can tell the number of ranks.
    **{
        flag.removeprefix("--").replace("-", "_"): own
        for own, flags in _VLLM.options.items()
        for flag in flags
        if own in OPTIONS and own != "ep" and flag.startswith("--")
    },
}
"""Another name of an option, vLLM's too, as a key -> its name. A hyphen in a key is an underscore."""
LEFT_OUT: Final = frozenset(flag.removeprefix("--") for flag in _VLLM.takes if flag.startswith("--"))
"""The names of vLLM's flags that a plan leaves out, with hyphens."""
UNPLANNED: Final = {flag.removeprefix("--"): reason for flag, reason in _VLLM.unplanned.items() if flag.startswith("--")}
"""Those of them that may bear on memory -> why a plan does not count them."""
OF_ENGINE: Final = frozenset((*_VLLM.values, *_VLLM.switches))
"""Options of vLLM, which are engine options as keys of a check too."""
LENGTH_OF_SERVER: Final = "max_model_len"
"""vLLM's name for the longest sequence that a server allows: the length of a sequence, unless that is given too."""
HARDWARE: Final = ("gpu", "instance", "kv_memory")
"""Keys that name hardware; with any of them a plan has a verdict."""
OF_TIME: Final[Mapping[str, str]] = {"max_ttft": "ttft", "max_itl": "itl", "max_e2e": "e2e", "min_rate": "min_rate"}
"""Requirements that limit the time of a request -> the option of a plan that does the same."""
FITTING: Final = (
    *("fits", "headroom", "min_concurrency", "min_seq", "max_overrun", "max_gpus", "max_cost", "min_decode_tokens_per_s"),
    *(*OF_TIME, "min_users"),
)
"""Requirements that need a verdict, and so hardware."""
SCHEMA_VERSION: Final = 1
MOST_CHECKS: Final = 500
"""A check takes some milliseconds, so this many take a few seconds."""
OTHER_KEYS: Final = tuple(
    dict.fromkeys(each for name in (*ALIASES, *sorted(OF_ENGINE)) for each in (name, name.replace("_", "-")))
)
"""Names that stand for keys; vLLM writes its own with hyphens."""


def check_file_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12). Rules between keys, such as ``headroom`` needs hardware, are left to :mod:`hwcalc.check.file`."""
    fields = {name: (field.schema, field.help) for name, field in {**OPTIONS, **REQUIREMENTS}.items()}
    others = {alias: (OPTIONS[key].schema, f"The same as {key}.") for alias, key in ALIASES.items()}
    others |= {
        name: ({"type": ["string", "number", "boolean"]}, f"vLLM's own: engine_options: {{{name}: ...}}.")
        for name in sorted(OF_ENGINE)
    }
    fields |= {key: others[key.replace("-", "_")] for key in OTHER_KEYS}
    text = {"type": "string", "minLength": 1}
    model = {**text, "description": "Hub id, or the path of a folder or config.json from this file's folder."}
    name = {**text, "maxLength": 200, "description": "What reports call the check. Default: model and request."}
    optional: dict[str, Any] = {"model": model}
    for key, (schema, description) in fields.items():
        # null undoes a default
        plain = {word: value for word, value in schema.items() if word != "description"}
        if key == "engine_options":
            plain["additionalProperties"] = {"type": [*plain["additionalProperties"]["type"], "null"]}
        optional[key] = {"anyOf": [plain, {"type": "null"}], "description": description}
    kinds = {
        "A flag of vLLM's that changes no planned bytes: it is left out.": LEFT_OUT - UNPLANNED.keys(),
        "A flag of vLLM's that may bear on memory: it is left out, with a warning.": LEFT_OUT & UNPLANNED.keys(),
    }
    closed = {
        "patternProperties": {
            f"^({'|'.join(flag.replace('-', '[-_]') for flag in sorted(flags))})$": {"description": each}
            for each, flags in kinds.items()
        },
        "additionalProperties": False,
    }
    check = {"type": "object", **closed, "properties": {"name": name, **optional}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kvplan check-file",
        "description": "What kvplan check reads, in YAML or JSON.",
        "type": "object",
        "additionalProperties": False,
        "required": ["schema_version", "checks"],
        "properties": {
            "schema_version": {"const": SCHEMA_VERSION},
            "defaults": {
                "type": ["object", "null"],
                "description": "Options and requirements of every check that does not say otherwise.",
                **closed,
                "properties": optional,
            },
            "checks": {"type": "array", "minItems": 1, "maxItems": MOST_CHECKS, "items": check},
        },
    }
