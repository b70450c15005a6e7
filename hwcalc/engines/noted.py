"""A value together with notes about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from hwcalc.model import Note

T = TypeVar("T")


class Noted(NamedTuple, Generic[T]):
    """A value, and the notes on how it was obtained, in order."""

    value: T
    notes: tuple[Note, ...] = ()
