"""Records: frozen classes whose fields are given by keyword, on :class:`msgspec.Struct`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, dataclass_transform

from msgspec import Struct, StructMeta, field

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema


class _RecordMeta(StructMeta):
    """Fields are given by keyword in every class. :class:`msgspec.Struct` takes this option for each class by itself."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        return super().__new__(mcs, name, bases, namespace, **{"kw_only": True, **options})


@dataclass_transform(frozen_default=True, kw_only_default=True, eq_default=True, field_specifiers=(field,))
class Record(Struct, metaclass=_RecordMeta, frozen=True, dict=True):
    """The base of records. A ``__dict__`` holds what is worked out later, such as a cached property; fields are not in it.

    >>> class Point(Record):
    ...     x: int
    ...     y: int = 0
    >>> Point(x=1) == Point(x=1, y=0), Point(x=1)
    (True, Point(x=1, y=0))
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The schema by which pydantic checks an argument that is a record: its class."""
        from pydantic_core import core_schema

        return core_schema.is_instance_schema(cls)


def repr_without(record: Record, *hidden: str) -> str:
    """The text of a record for a programmer, without the fields that are secret."""
    shown = ", ".join(f"{name}={getattr(record, name)!r}" for name in record.__struct_fields__ if name not in hidden)
    return f"{type(record).__qualname__}({shown})"
