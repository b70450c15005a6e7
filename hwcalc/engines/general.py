"""An engine that follows the general rules wherever it does not say otherwise.

Each layer has tensors of its own; heads are divided over ``tp`` and a latent is not, layers over ``pp``, sequences over ``dp``, and
the tokens of attention over ``dcp``. What a GPU has left for the cache follows from the equation of :mod:`hwcalc.engines.equation`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwcalc.engines.base import Engine, Opened
from hwcalc.engines.noted import Noted

if TYPE_CHECKING:
    from hwcalc.engines.allocation import Allocation
    from hwcalc.engines.budget import Budget, BudgetPart
    from hwcalc.engines.rank_weights import Rules

__all__ = ["GeneralEngine"]


class GeneralEngine(Engine):
    """The general rules. An engine has at least a name, its :meth:`dtypes` and its :meth:`tensors` of its own."""

    def needed_bytes(self, opened: Opened) -> int:
        if opened.request.gpus == opened.request.parallel.dcp == 1:
            return opened.stored_bytes
        from hwcalc.engines.ranks import fullest_rank_bytes

        return fullest_rank_bytes(opened)

    def allocation(self, opened: Opened, stage: int) -> tuple[Allocation, ...]:
        from hwcalc.engines.rank_allocation import layer_allocations

        return layer_allocations(opened, stage)

    def budget(self, opened: Opened) -> Noted[Budget | None]:
        from hwcalc.engines.equation import plan_equation

        return plan_equation(opened)

    def weights(self, opened: Opened) -> Noted[tuple[BudgetPart, ...] | None]:
        from hwcalc.engines.equation import rank_weights_part

        return rank_weights_part(opened)

    def weight_rules(self) -> Rules:
        """Evenly."""
        from hwcalc.engines.rank_weights import REFERENCE

        return REFERENCE

    def plain_dtype(self, opened: Opened) -> str:
        return self.weight_rules().plain(opened.model, None).name

    def forward_tokens(self, opened: Opened) -> tuple[int, int, int]:
        """Prompts go in pieces."""
        from hwcalc.engines.costs import chunk_tokens

        return chunk_tokens(opened)
