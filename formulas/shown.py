"""Values that stand as text in a document."""

from __future__ import annotations

from typing import Any

__all__ = ["Shown"]


class Shown:
    """A value whose :attr:`text` stands for it in JSON, tables and schemas; the program itself works with the value."""

    __slots__ = ()

    @property
    def text(self) -> str:
        """The value in words."""
        raise NotImplementedError

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """A string, to whoever makes a JSON Schema of it."""
        return handler.generate_schema(str)
