"""How many cases a test tries: a fixed share of them in every run, all of them with ``KVPLAN_TESTS=all``."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Final, TypeVar

ALL: Final = os.environ.get("KVPLAN_TESTS") == "all"

T = TypeVar("T")


def cases(some: int, most: int) -> int:
    """``some``, or ``most`` where all is tried."""
    return most if ALL else some


def sample(things: Collection[T], some: int) -> list[T]:
    """Of these, ``some`` at equal distances, or all where all is tried: two of ``"abcd"`` are a and c."""
    every = list(things)
    return every if ALL or len(every) <= some else [every[number * len(every) // some] for number in range(some)]
