"""The names of ``typing`` that stand in annotations. Modules take them from here, so that a command, which reads no annotation, can do
without ``typing``: others stand in their place there (:mod:`hwcalc.cli.unread_hints`).
"""

from __future__ import annotations

from typing import (
    IO,
    TYPE_CHECKING,
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

if TYPE_CHECKING:
    from typing import Generic
else:

    class Generic:
        """As :class:`typing.Generic`, for classes of which nobody asks the parameters at run time: it costs little to define."""

        __slots__ = ()

        def __class_getitem__(cls, parameters: object) -> type:
            return cls
