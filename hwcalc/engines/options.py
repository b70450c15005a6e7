"""Parsers for engine options and for the value of ``--dtype``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from hwcalc.errors import UnknownNameError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.profiles.dtypes import PackedDType, dtype_names, find_dtype, find_packed, packed_names
from hwcalc.text import brief, shown

if TYPE_CHECKING:
    from hwcalc.formulas import DType

AUTO: Final = "auto"
"""The value of ``--dtype`` that stands for the default of the engine."""


class EngineOption(Record):
    """One option of an engine, under the engine's own name. ``check`` parses a value; it is called with the name and the text."""

    name: str
    help: str
    default: str
    check: Callable[[str, str], object]


class Choices(Record):
    """What is offered of an engine where people look and choose: formats with other bytes than the default, those that people run.

    Whoever offers them leaves out what the engine refuses for a model. ``options`` are engine options that every request there has.
    """

    dtypes: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    options: Mapping[str, str] = MappingProxyType({})


def is_on(value: str | None) -> bool:
    """Whether a switch is on; a switch that is not given is off."""
    return value is not None and value.lower() in ("true", "1", "on", "yes")


def integer_option(minimum: int, maximum: int = 2**40) -> Callable[[str, str], int]:
    """A parser of whole numbers in a range. It accepts ``32k``."""
    from hwcalc.units import parse_tokens

    def check(name: str, value: str) -> int:
        number = parse_tokens(value, f"engine option {name}", minimum=minimum)
        if number > maximum:
            raise UsageError(f"engine option {name} is out of range: {brief(value, 40)}", hint=f"At most {maximum:,}.")
        return number

    return check


def number_option(maximum: int) -> Callable[[str, str], float]:
    """A parser of numbers from 0 to ``maximum``, with or without a decimal point."""

    def check(name: str, value: str) -> float:
        whole, _, part = value.partition(".")
        if not (whole.isascii() and whole.isdecimal() and len(whole) < 10) or (
            part and not (part.isascii() and part.isdecimal())
        ):
            raise UsageError(f"engine option {name}={brief(value, 40)} is not a number.", hint=f"Allowed: 0 to {maximum:,}.")
        number = float(value[:30])
        if number > maximum:
            raise UsageError(f"engine option {name} is out of range: {brief(value, 40)}", hint=f"Allowed: 0 to {maximum:,}.")
        return number

    return check


def share_option(name: str, named: str | None, utilization: float | None, default: float) -> float:
    """The share of the GPU that an engine's own option or ``--memory-utilization`` gives; the two mean the same."""
    option_share = None if named is None else number_option(1)(name, named)
    if option_share is not None and utilization is not None and option_share != utilization:
        raise UsageError(
            f"--memory-utilization {utilization:g} and the engine option {name}={brief(named or '', 20)} are the same.",
            hint=f"Give one: --memory-utilization {utilization:g}",
        )
    given = option_share if utilization is None else utilization
    return default if given is None else given


def choice_option(*choices: str) -> Callable[[str, str], str]:
    """A parser that accepts only the given words."""

    def check(name: str, value: str) -> str:
        if value not in choices:
            raise UsageError(f"engine option {name}={brief(value, 40)} is not known.", hint=f"Allowed: {', '.join(choices)}.")
        return value

    return check


def is_auto(spelling: str | None) -> bool:
    """Whether a value of ``--dtype`` leaves the choice to the engine. Without one, the engine chooses as well."""
    return spelling is None or spelling.strip().lower() == AUTO


def parse_kv_dtype(spelling: str) -> tuple[DType, DType] | PackedDType:
    """Parse ``fp8`` or ``q8_0:q4_0`` into the formats of keys and values, and the name of a packed layout into that layout.

    Raises :class:`~hwcalc.errors.UnknownNameError` for an unknown dtype.
    """
    text = spelling.strip().lower()
    packed = find_packed(text)
    if packed is not None:
        return packed
    halves = text.split(":")
    key, value = find_dtype(halves[0]), find_dtype(halves[-1])
    if len(halves) > 2 or key is None or value is None:
        known = ", ".join((AUTO, *dtype_names(), *packed_names()))
        raise UnknownNameError(
            f"--dtype {shown(spelling, 40)} is not a known dtype.",
            option="dtype",
            hint=f"Known: {known}; K:V for two. See: kvplan dtypes",
        )
    return key, value
