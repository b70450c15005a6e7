"""What an engine answers directly, where the planner would otherwise try lengths and numbers of sequences one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from hwcalc.formulas.generic import Generic

if TYPE_CHECKING:
    from hwcalc.engines.forms import Curve, MemoryForm
    from hwcalc.engines.room import Room

__all__ = ["Shortcuts"]

OpenedT = TypeVar("OpenedT")
"""The opened request of an engine, whose module imports this one."""


class Shortcuts(Generic[OpenedT]):
    """The direct answers of an engine. By default there is none, and the planner plans each request that it asks about."""

    def accepts_all_sizes(self, opened: OpenedT) -> bool:
        """Whether the engine accepts each change of a request in a kept family at every length and number of sequences, or at none."""
        return False

    def keeps_families(self, opened: OpenedT) -> bool:
        """Whether later plans of a family may take the answers of earlier ones: no shared answer follows from length or batch."""
        return False

    def room(self, opened: OpenedT) -> Room | None:
        """What decides whether requests of the family fit, from some length on; ``None`` if that is not a number of blocks alone.

        Then a longer sequence takes no less, at any length.
        """
        return None

    def first_room(self, opened: OpenedT) -> Room | None:
        """The same for sequences of one token; it says nothing of longer ones."""
        return None

    def most_served(self, opened: OpenedT, budget_bytes: int) -> int | None:
        """The most requests of the planned length in the pool that the engine makes, 0 if it does not start; ``None`` without a direct answer."""
        return None

    def longest(self, opened: OpenedT, budget_bytes: int, bound: int) -> int | None:
        """The most tokens, up to ``bound``, that each planned sequence can have.

        ``None`` if the engine has no direct answer; the caller then searches by trying lengths.
        """
        return None

    def stores_alike(self, opened: OpenedT) -> bool:
        """Whether each stored tensor is so many times that of one sequence by itself, as many as are planned."""
        return False

    def periods(self, opened: OpenedT) -> frozenset[int]:
        """Every how many tokens a buffer of the cache is emptied; empty if a longer sequence never takes less memory."""
        return frozenset()

    def curve(self, opened: OpenedT) -> Curve | None:
        """The cache at all lengths and numbers of sequences of a family, in the normal form, with a GPU or without; ``None`` if there is none."""
        return None

    def form(self, opened: OpenedT) -> MemoryForm | None:
        """The memory of a GPU at every length and for every number of sequences, in the normal form; ``None`` if there is none.

        It holds for the family of ``opened``: what follows from length and batch is not looked at. There is none without a GPU, or where
        the budget is unknown.
        """
        return None
