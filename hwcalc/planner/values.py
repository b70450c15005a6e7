"""The types of option values: how each is parsed from text or Python, and its JSON Schema in a check file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from hwcalc.errors import UsageError
from hwcalc.text import did_you_mean, quoted, shown
from hwcalc.units import (
    AMOUNT,
    GIB,
    LEAST_BYTES,
    MIB,
    human_duration,
    parse_accepted,
    parse_dollars,
    parse_duration,
    parse_memory,
    parse_parameters,
    parse_rate,
    parse_share,
    parse_size,
    parse_token_list,
    parse_tokens,
)

if TYPE_CHECKING:
    from fractions import Fraction

    from hwcalc.engines.options import Lora
    from hwcalc.policies.base import Chosen

AICONFIGURATOR: Final = "aiconfigurator"
"""The package with measured kernels that ``--measured`` names."""
AUTO: Final = "auto"
"""The value of ``--weights`` that leaves the format to kvplan."""

PERCENT: Final = r"(?:100(?:\.0{1,9})?|[0-9]{1,2}(?:\.[0-9]{1,9})?)[ ]*%"
PART: Final = r"(?:0(?:\.[0-9]{1,18})?|1(?:\.0{1,18})?)"
UNITS: Final = r"[0-9][0-9_,]*(?:(?:\.[0-9][0-9_,]*)?[ ]?[kKmMgGtT][iI]?[bB]|[ ]?[bB])"
"""Patterns in the schema of a check file: ``PERCENT`` and ``PART`` for shares, ``UNITS`` for bytes with a unit."""


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{name} must be a string (got {quoted(value)}).", hint=f'Write {name}="...".')
    return value


def _secret(value: Any, name: str) -> str:
    """Text that no error message shows."""
    if not isinstance(value, str):
        raise UsageError(f"{name} must be a string (got {type(value).__name__}).", hint=f'Write {name}="...".')
    return value


def _lora(value: Any, name: str) -> Lora:
    text = _text(value, name)
    from hwcalc.engines.options import parse_lora

    return parse_lora(text)


def _policy(value: Any, name: str) -> Chosen | None:
    from hwcalc.policies.parse import parse_policy

    return parse_policy(value)


def one_of(known: tuple[str, ...]) -> Callable[[Any, str], str]:
    """A parser that accepts only these words."""

    def read(value: Any, name: str) -> str:
        text = _text(value, name).strip().lower()
        if text not in known:
            raise UsageError(
                f"{name} {shown(text, 40)} is not known.", hint=f"{did_you_mean(text, known)}Known: {', '.join(known)}."
            )
        return text

    return read


def _lengths(value: Any, name: str) -> tuple[int, ...]:
    """The lengths in tokens from text with commas between, or from a list. A length that is named twice counts twice."""
    return parse_token_list(value, name, _MOST_LENGTHS)


def _held(value: Any, name: str) -> str:
    from hwcalc.workload.opening import check_words

    return check_words(value, name)


def _lengths_text(value: tuple[int, ...]) -> str:
    return ",".join(map(_tokens_text, value))


def read_flag(value: Any, name: str) -> bool:
    """A truth value; 0 and 1 are allowed. Raises :class:`~hwcalc.errors.UsageError` for anything else."""
    if not isinstance(value, int) or value not in (0, 1):
        raise UsageError(f"{name} must be true or false (got {quoted(value)}).", hint=f"Write {name}=True, or leave it out.")
    return bool(value)


def _written(value: object, name: str) -> str:
    """A value of an engine option as it would be written on a command line: numbers may be of any type, NumPy's too."""
    if isinstance(value, bool):
        return str(value).lower()
    try:
        return str(value)
    except Exception as error:
        raise UsageError(
            f"engine option {name[:40]} cannot be written out: {quoted(value)}.", hint="Give text, a number, true or false."
        ) from error


def _engine_options(value: Any, name: str) -> dict[str, str]:
    """Engine options as strings, as on a command line."""
    if not isinstance(value, Mapping):
        raise UsageError(f"{name} must be a dict (got {type(value).__name__}).", hint='Write {"block_size": 32}.')
    options: dict[str, str] = {}
    for key, item in value.items():
        if not isinstance(key, str) or isinstance(item, (list, tuple, dict, set)) or item is None:
            raise UsageError(f"{name} must map names to plain values (got {quoted(key)}: {quoted(item)}).")
        options[key] = _written(item, key)
    return options


class ValueType(Struct, frozen=True):
    """A type of option values: its parser, called with the value and the name of the option, its JSON Schema, and its text.

    ``write`` is the reverse of ``read``: the text that is read as the same value.
    """

    read: Callable[[Any, str], Any]
    schema: Mapping[str, Any]
    write: Callable[[Any], str] = str


def _tokens_text(value: int) -> str:
    """A number of tokens as people type it: ``32k``, ``1M``, ``500``."""
    for size, unit in ((1 << 20, "M"), (1 << 10, "k")):
        if value and value % size == 0:
            return f"{value // size}{unit}"
    return str(value)


def _duration_text(value: float) -> str:
    text = human_duration(value).replace(" ", "")
    return text if parse_duration(text) == value else f"{_rate_text(value)}s"


def _rate_text(value: float) -> str:
    from decimal import Decimal

    return format(Decimal(repr(value)), "f").removesuffix(".0")


def _parameters_text(value: int) -> str:
    return f"{value // 10**9}B" if value % 10**9 == 0 else str(value)


def _size_text(value: int) -> str:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB")):
        if value and value % unit == 0:
            return f"{value // unit}{name}"
    return f"{value}B"


def unit_text(value: int) -> str:
    """A size of memory with its unit: ``64GB``, ``64GiB``.

    >>> unit_text(64 * 10**9), unit_text(64 * 2**30)
    ('64GB', '64GiB')
    """
    return _size_text(value) if value % _GB else f"{value // _GB}GB"


def _memory_text(value: int) -> str:
    return unit_text(value).removesuffix("GiB")


def _share_text(value: Fraction | float) -> str:
    from decimal import Decimal
    from fractions import Fraction

    percent = Fraction(str(value)) * 100
    if percent.denominator == 1:
        return f"{percent}%"
    return str(Decimal(percent.numerator) / Decimal(percent.denominator) / 100).lower()


def _model_text(value: Any) -> str:
    """The name of a draft: as it was typed, or the address of a loaded model."""
    return str(getattr(value, "address", value))


def _whole(minimum: int) -> dict[str, Any]:
    return {"anyOf": [{"type": "integer", "minimum": minimum}, {"type": "string", "pattern": r"^[0-9][0-9_,.]*\s?[kKmMgG]?$"}]}


_MOST_LENGTHS: Final = 1000
POLICY_RULES: Final = ("kvpress", "paper")
COMPACTIONS: Final = ("repack", "fill", "none")
"""The words of :mod:`hwcalc.policies`, which is not imported on the way to a plan without a policy; a test compares them."""
_TEXT: Final = {"type": ["string", "number"]}
_SHARE: Final = {
    "anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, {"type": "string", "pattern": f"^(?:{PERCENT}|{PART})$"}]
}
_SIZE: Final = {
    "anyOf": [{"const": 0}, {"type": "integer", "minimum": LEAST_BYTES}, {"type": "string", "pattern": f"^(?:{UNITS})$"}]
}
_MEMORY: Final = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": f"^(?:{UNITS}|[0-9]+)$"}]}
_GB: Final = 10**9
DURATION: Final = {"type": "string", "pattern": r"^[0-9]*\.?[0-9]+[ ]?(?:us|ms|s|sec|m|min|h)$"}
RATE: Final = {
    "anyOf": [
        {"type": "number", "exclusiveMinimum": 0},
        {"type": "string", "pattern": r"^[0-9]*\.?[0-9]+(?:[ ]?(?:tokens?|requests?))?(?:[ ]?/[ ]?[a-z]+)?$"},
    ]
}
DOLLARS: Final = {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "pattern": rf"^\$?(?:{AMOUNT})$"}]}
MONEY: Final = {"type": "string", "pattern": rf"^\$?(?:{AMOUNT})[ ]?/[ ]?(?:h|hr|hour|mo|month)$"}
_PAIRS: Final = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}

TYPES: Final[Mapping[str, ValueType]] = {
    "tokens": ValueType(parse_tokens, _whole(1), _tokens_text),
    "count": ValueType(parse_tokens, _whole(1)),
    "parameters": ValueType(parse_parameters, _whole(1), _parameters_text),
    "from zero": ValueType(partial(parse_tokens, minimum=0), _whole(0), _tokens_text),
    "size": ValueType(parse_size, _SIZE, _size_text),
    "memory": ValueType(parse_memory, _MEMORY, _memory_text),
    "share": ValueType(parse_share, _SHARE, _share_text),
    "duration": ValueType(parse_duration, DURATION, _duration_text),
    "rate": ValueType(parse_rate, RATE, _rate_text),
    "dollars": ValueType(parse_dollars, DOLLARS),
    "accepted": ValueType(parse_accepted, {"type": "number", "minimum": 1}, _rate_text),
    "utilization": ValueType(lambda value, name: float(parse_share(value, name)), _SHARE),
    "text": ValueType(_text, _TEXT),
    "secret": ValueType(_secret, _TEXT),
    "lora": ValueType(_lora, _TEXT),
    "policy": ValueType(_policy, _TEXT, attrgetter("text")),
    "policy rules": ValueType(one_of(POLICY_RULES), {"enum": list(POLICY_RULES)}),
    "measured": ValueType(one_of((AICONFIGURATOR,)), {"enum": [AICONFIGURATOR]}),
    "lengths": ValueType(_lengths, {"anyOf": [_TEXT, {"type": "array", "minItems": 1, "items": _whole(1)}]}, _lengths_text),
    "held": ValueType(_held, {"anyOf": [_TEXT, {"type": "array", "minItems": 1, "items": _whole(1)}]}),
    "compaction": ValueType(one_of(COMPACTIONS), {"enum": list(COMPACTIONS)}),
    "model": ValueType(lambda value, _: value, _TEXT, _model_text),
    "pairs": ValueType(_engine_options, _PAIRS),
    "flag": ValueType(read_flag, {"type": "boolean"}),
}


def is_auto(weights: str | None) -> bool:
    """True if the value of ``--weights`` leaves the choice to kvplan."""
    return weights is not None and weights.strip().lower() == AUTO


def refuse_auto(weights: str | None, command: str) -> None:
    """Raise :class:`~hwcalc.errors.UsageError` where one format must be named."""
    if is_auto(weights):
        hint = "Name a format: --weights q4_k_m. For one GPU: kvplan MODEL --weights auto --gpu rtx-4060-ti"
        raise UsageError(f"{command} plans more than one GPU, and --weights auto chooses for one.", hint=hint)
