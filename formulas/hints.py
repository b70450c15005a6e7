"""The names of ``typing`` that stand in annotations. A type checker sees ``typing`` itself; while a command runs, nobody reads them.

Importing ``typing`` takes as long as planning a small model. So where nothing else has imported it, what stands here is enough for a
module to load: annotations are text that nobody evaluates, and the few names that take part at run time do nothing there. Where
``typing`` is loaded, as in most programs that use the library, the names are its own.
"""

from __future__ import annotations

import sys

__all__ = [
    "IO",
    "TYPE_CHECKING",
    "Any",
    "AnyStr",
    "ClassVar",
    "Final",
    "Generic",
    "Literal",
    "NoReturn",
    "Protocol",
    "Self",
    "TextIO",
    "TypeAlias",
    "TypeGuard",
    "TypeVar",
    "Unpack",
    "cast",
    "dataclass_transform",
    "overload",
]

# As in typing.
TYPE_CHECKING = False
if TYPE_CHECKING or "typing" in sys.modules:
    from typing import (
        IO,
        Any,
        AnyStr,
        ClassVar,
        Final,
        Literal,
        NoReturn,
        Protocol,
        Self,
        TextIO,
        TypeAlias,
        TypeGuard,
        TypeVar,
        Unpack,
        cast,
        dataclass_transform,
        overload,
    )
else:

    class Any:
        """In the place of each name. What stands in its brackets is dropped."""

        __slots__ = ()

        def __class_getitem__(cls, parameters: object) -> type:
            return cls

    class Protocol(Any):
        """A class that no value is asked about."""

        __slots__ = ()

    AnyStr = ClassVar = Final = IO = Literal = NoReturn = Self = TextIO = TypeAlias = TypeGuard = Unpack = Any

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


if TYPE_CHECKING:
    from typing import Generic
else:

    class Generic:
        """As :class:`typing.Generic`, for classes of which nobody asks the parameters at run time: it costs little to define."""

        __slots__ = ()

        def __class_getitem__(cls, parameters: object) -> type:
            return cls
