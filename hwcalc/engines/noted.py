"""A value together with what a reader should know about it."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from hwcalc.model import Note

__all__ = ["Noted"]

T = TypeVar("T")


class Noted(NamedTuple, Generic[T]):
    """A value and its notes, in the order in which they came up."""

    value: T
    notes: tuple[Note, ...] = ()
