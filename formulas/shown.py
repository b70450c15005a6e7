"""Values that are written as text in documents."""

from __future__ import annotations

from typing import Any

__all__ = ["Shown"]


class Shown:
    """A value that JSON and tables show as its :attr:`text`. The program itself works with the value."""

    __slots__ = ()

    @property
    def text(self) -> str:
        """The value in words."""
        raise NotImplementedError

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Tell pydantic that the JSON Schema of this value is that of a string."""
        return handler.generate_schema(str)
