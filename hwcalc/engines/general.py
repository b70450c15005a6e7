"""The general rules, which an engine follows unless it overrides them.

Each layer has its own tensors. ``tp`` divides heads, but not a latent; ``pp`` divides layers, ``dp`` sequences, and ``dcp`` the tokens
of attention. The memory left for the cache follows from the equation in :mod:`hwcalc.engines.equation`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hwcalc.engines.base import Engine, Opened
from hwcalc.engines.model_dtypes import plain_format
from hwcalc.engines.noted import Noted
from hwcalc.engines.options import Choices

if TYPE_CHECKING:
    from hwcalc.engines.allocation import Allocation
    from hwcalc.engines.budget import Budget, BudgetPart
    from hwcalc.engines.forms import Curve, MemoryForm
    from hwcalc.engines.rank_weights import Rules
    from hwcalc.formulas.hybrid import Group

__all__ = ["GeneralEngine"]


class GeneralEngine(Engine):
    """The general rules. A subclass needs at least a name, :meth:`dtypes` and :meth:`tensors`."""

    choices: ClassVar[Choices | None] = Choices()

    def needed_bytes(self, opened: Opened) -> int:
        if opened.cut_layers is None and opened.request.gpus == opened.request.parallel.dcp == 1:
            return opened.stored_bytes
        from hwcalc.engines.ranks import cut_rank_bytes, fullest_rank_bytes

        return fullest_rank_bytes(opened, self.gpu_groups(opened)) if opened.cut_layers is None else cut_rank_bytes(opened)

    def gpu_groups(self, opened: Opened) -> tuple[tuple[Group, ...], ...]:
        """The layers on each GPU that differs, by kind; the fullest counts. By default those of each pipeline stage."""
        from hwcalc.engines.ranks import stage_groups

        return stage_groups(opened)

    def prefill_bytes(self, opened: Opened, stage: int) -> int:
        """By default each layer is cut before the next one begins."""
        from hwcalc.engines.peaks import stage_prefill_bytes

        return stage_prefill_bytes(opened, stage)

    def allocation(self, opened: Opened, stage: int) -> tuple[Allocation, ...]:
        from hwcalc.engines.rank_allocation import layer_allocations

        return layer_allocations(opened, stage)

    def budget(self, opened: Opened) -> Noted[Budget | None]:
        from hwcalc.engines.equation import plan_equation

        return plan_equation(opened, self.chunks(opened))

    def weights(self, opened: Opened) -> Noted[tuple[BudgetPart, ...] | None]:
        from hwcalc.engines.equation import rank_weights_part

        return rank_weights_part(opened)

    def weight_rules(self, opened: Opened) -> Rules:
        """By default every matrix is divided evenly."""
        from hwcalc.engines.rank_weights import REFERENCE

        return REFERENCE

    def weight_dtype(self, opened: Opened) -> str:
        """By default that of the model. An engine whose rules read the weights in another one says so here too."""
        return plain_format(opened.model).name

    def chunks(self, opened: Opened) -> tuple[int | None, int | None, int | None]:
        """The most tokens of one forward pass of a replica: low, expected and high; ``None`` is no limit.

        By default prompts are processed in chunks.
        """
        from hwcalc.engines.costs import chunk_tokens

        return chunk_tokens()

    def forward_tokens(self, opened: Opened) -> tuple[int, int, int]:
        from hwcalc.engines.passes import passed_tokens

        batch = opened.request.replica_batch
        low, expected, high = (passed_tokens(opened.tokens, batch, chunk) for chunk in self.chunks(opened))
        return low, expected, high

    def curve(self, opened: Opened) -> Curve | None:
        from hwcalc.engines.general_form import general_curve

        return general_curve(opened, self.gpu_groups(opened))

    def form(self, opened: Opened) -> MemoryForm | None:
        from hwcalc.engines.general_form import general_form

        return general_form(opened, self.chunks(opened)[1])
