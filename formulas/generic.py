"""Generic classes that cost little to define: what stands in the brackets is for the type checker, and is dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["Generic"]

if TYPE_CHECKING:
    from typing import Generic
else:

    class Generic:
        """As :class:`typing.Generic`, for classes of which nobody asks the parameters at run time."""

        __slots__ = ()

        def __class_getitem__(cls, parameters: object) -> type:
            return cls
