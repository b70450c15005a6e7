"""What stands for :mod:`hwcalc.formulas.hints` while a command runs: enough for modules to load, since nobody evaluates their annotations.

Importing ``typing`` takes as long as planning a small model. Annotations are text, and the few names that take part at run time do
nothing here. Only the command puts it in place (:func:`hwcalc.cli.main` without arguments), never the library.
"""

from __future__ import annotations

import sys

__all__ = ["stand_in"]

TYPE_CHECKING = False


class Any:
    """In the place of each name. What stands in its brackets is dropped."""

    __slots__ = ()

    def __class_getitem__(cls, parameters: object) -> type:
        return cls


class Protocol(Any):
    """A class that no value is asked about."""

    __slots__ = ()


AnyStr = ClassVar = Final = Generic = IO = Literal = NoReturn = Self = TextIO = TypeAlias = TypeGuard = Unpack = Any


def TypeVar(name: str, *constraints: object, bound: object = None) -> object:  # noqa: N802 - as in typing
    """A name that nobody binds."""
    return Any


def cast(kind: object, value: object) -> object:
    """The value."""
    return value


def overload(function: object) -> object:
    """The function, which the one behind it replaces."""
    return function


def dataclass_transform(**facts: object) -> object:
    """What decorates with nothing."""
    return lambda decorated: decorated


def stand_in() -> None:
    """Take the place of the names of typing, unless something has imported it: then they cost nothing."""
    if "typing" not in sys.modules:
        sys.modules["hwcalc.formulas.hints"] = sys.modules[__name__]
