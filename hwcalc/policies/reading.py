"""The values of options, from text or Python."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from hwcalc.errors import UsageError
from hwcalc.policies.base import PolicyOption
from hwcalc.policies.written import split_at
from hwcalc.text import quoted
from hwcalc.units import parse_tokens

__all__ = ["KINDS", "read_value"]

_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]{1,18}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)
_MOST_VALUES: Final = 100_000
_FLAGS: Final[Mapping[str, bool]] = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def _real(value: Any, what: str, allowed: str) -> float:
    """A finite number. A string is read as a number is written; a flag is none."""
    written = isinstance(value, str) and _NUMBER.fullmatch(value.strip())
    try:
        number = math.nan if isinstance(value, (str, bool)) and not written else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{what} is not a number: {quoted(value)}", hint=f"Allowed: {allowed}.")
    return number


def _ratio(value: Any, what: str, option: PolicyOption) -> float:
    allowed = "the share that is dropped, from 0 to below 1, such as 0.5"
    number = _real(value, what, allowed)
    if not 0 <= number < 1:
        raise UsageError(f"{what} is out of range: {quoted(value)}", hint=f"Allowed: {allowed}.")
    return number


def _share(value: Any, what: str, option: PolicyOption) -> float:
    allowed = "a share from 0 to 1"
    number = _real(value, what, allowed)
    if not 0 <= number <= 1:
        raise UsageError(f"{what} is out of range: {quoted(value)}", hint=f"Allowed: {allowed}.")
    return number


def _number(value: Any, what: str, option: PolicyOption) -> float:
    allowed = f"a number from {option.least}" if option.least else "a number"
    number = _real(value, what, allowed)
    if option.least and number < option.least:
        raise UsageError(f"{what} is out of range: {quoted(value)}", hint=f"Allowed: {allowed}.")
    return number


def _count(value: Any, what: str, option: PolicyOption) -> int:
    return parse_tokens(value, what, minimum=option.least)


def _flag(value: Any, what: str, option: PolicyOption) -> bool:
    known = (
        value if isinstance(value, bool) else _FLAGS.get(str(value).strip().lower()) if isinstance(value, (int, str)) else None
    )
    if known is None:
        raise UsageError(f"{what} is neither true nor false: {quoted(value)}", hint="Allowed: true or false.")
    return known


def _several(value: Any, what: str) -> list[Any]:
    """A list, or the text of one: ``[0.1,0.5]``."""
    if isinstance(value, str) and value.strip().startswith("[") and value.strip().endswith("]"):
        value = [word for word in split_at(value.strip()[1:-1], ",") if word.strip()]
    values = list(value) if isinstance(value, (list, tuple)) else None
    if not values or len(values) > _MOST_VALUES:
        raise UsageError(f"{what} is not a list of values: {quoted(value)}", hint="Write: [0.1,0.5,0.9]")
    return values


def _shares(value: Any, what: str, option: PolicyOption) -> tuple[float, ...]:
    return tuple(_share(one, what, option) for one in _several(value, what))


def _rows(value: Any, what: str, option: PolicyOption) -> tuple[tuple[float, ...], ...]:
    """Rows of numbers, one for each layer."""
    return tuple(tuple(_real(one, what, "numbers") for one in _several(row, what)) for row in _several(value, what))


def _counts(value: Any, what: str, option: PolicyOption) -> tuple[int, ...]:
    return tuple(parse_tokens(one, what, minimum=0) for one in _several(value, what))


def _any(value: Any, what: str, option: PolicyOption) -> Any:
    """A value that bears on quality alone: scalars are taken as they are, and text as it would be written."""
    if not isinstance(value, (str, int, float, bool)):
        raise UsageError(f"{what} takes one value: {quoted(value)}", hint="Give a number or a word.")
    if not isinstance(value, str):
        return value
    word = value.strip()
    if not word.isprintable() or any(sign in word for sign in ",()[]"):
        raise UsageError(f"{what} takes one word: {quoted(value)}", hint="Leave out commas and brackets.")
    if word.lower() in {"true", "false"}:
        return word.lower() == "true"
    return (float(word) if not word.isdigit() else int(word)) if _NUMBER.fullmatch(word) else word


KINDS: Final[Mapping[str, Callable[[Any, str, PolicyOption], Any]]] = {
    "ratio": _ratio,
    "share": _share,
    "number": _number,
    "count": _count,
    "flag": _flag,
    "shares": _shares,
    "rows": _rows,
    "counts": _counts,
    "any": _any,
}


def read_value(option: PolicyOption, value: Any, policy: str) -> Any:
    """The value of an option that is no policy. ``None`` and the text ``none`` are the default, if that is nothing."""
    if option.default is None and not option.required and (value is None or value == "none"):
        return None
    return KINDS[option.kind](value, f"{policy}: {option.name}", option)
