"""The general rules, which an engine follows unless it overrides them.

Each layer has its own tensors. ``tp`` divides heads, but not a latent; ``pp`` divides layers, ``dp`` sequences, and ``dcp`` the tokens
of attention. The memory left for the cache follows from the equation in :mod:`hwcalc.engines.memory`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hwcalc.engines.deployment import Deployment, Occupancy
from hwcalc.engines.engine import Engine
from hwcalc.engines.models import plain_format
from hwcalc.engines.options import Choices

if TYPE_CHECKING:
    from hwcalc.engines.forms import Curve, MemoryForm
    from hwcalc.engines.memory import Budget, BudgetPart
    from hwcalc.engines.pool import Allocation
    from hwcalc.engines.rank_weights import Rules
    from hwcalc.formulas.hybrid import Group
    from hwcalc.model import Noted


class GeneralDeployment(Deployment):
    """A server by the general rules. A subclass needs at least :meth:`choose_dtypes`."""

    def weight_parts(self) -> Noted[tuple[BudgetPart, ...] | None]:
        from hwcalc.engines.memory import rank_weights_part

        return rank_weights_part(self)

    def weight_rules(self) -> Rules:
        """The rules by which weights are divided over ranks; by default every matrix is divided evenly."""
        from hwcalc.engines.rank_weights import REFERENCE

        return REFERENCE

    def weight_dtype(self) -> str:
        """By default that of the model. An engine whose rules read the weights in another one says so here too."""
        return plain_format(self.model).name


class GeneralOccupancy(Occupancy):
    """What an engine holds by the general rules. A subclass needs at least :meth:`tensors`."""

    def fullest_bytes(self) -> int:
        if self.cut_layers is None and self.request.gpus == self.request.parallel.dcp == 1:
            return self.stored_bytes
        from hwcalc.engines.ranks import cut_rank_bytes, fullest_rank_bytes

        return fullest_rank_bytes(self, self.gpu_groups()) if self.cut_layers is None else cut_rank_bytes(self)

    def gpu_groups(self) -> tuple[tuple[Group, ...], ...]:
        """The layers on each GPU that differs, by kind; the fullest counts. By default those of each pipeline stage."""
        from hwcalc.engines.ranks import stage_groups

        return stage_groups(self)

    def prefill_bytes(self, stage: int) -> int:
        """Bytes of the cache on a rank while the prompt is read: by default each layer is cut before the next layer begins."""
        from hwcalc.engines.policies import stage_prefill_bytes

        return stage_prefill_bytes(self, stage)

    def stage_allocation(self, stage: int) -> tuple[Allocation, ...]:
        from hwcalc.engines.ranks import allocations_of, stage_spans

        return allocations_of(self, stage_spans(self)[stage])

    def plan_budget(self) -> Noted[Budget | None]:
        from hwcalc.engines.memory import plan_equation

        if self.evicted is None:
            return plan_equation(self, self.chunks())
        from hwcalc.engines.policies import policy_part

        return plan_equation(self, self.chunks(), policy_part(self))

    def weight_parts(self) -> Noted[tuple[BudgetPart, ...] | None]:
        from hwcalc.engines.memory import rank_weights_part

        return rank_weights_part(self)

    def chunks(self) -> tuple[int | None, int | None, int | None]:
        """The most tokens of one forward pass of a replica: low, expected and high; ``None`` is no limit.

        By default prompts are processed in chunks.
        """
        from hwcalc.engines.memory import chunk_tokens

        return chunk_tokens()

    def forward_tokens(self) -> tuple[int, int, int]:
        from hwcalc.engines.forms import passed_tokens

        batch = self.request.replica_batch
        low, expected, high = (passed_tokens(self.tokens, batch, chunk) for chunk in self.chunks())
        return low, expected, high

    def curve(self) -> Curve | None:
        from hwcalc.engines.general_form import general_curve

        return general_curve(self, self.gpu_groups())

    def form(self) -> MemoryForm | None:
        from hwcalc.engines.general_form import general_form

        return general_form(self, self.chunks()[1])


class GeneralEngine(Engine):
    """The general rules. A subclass needs at least a name, a :attr:`deployment` and an :attr:`occupancy`."""

    choices: ClassVar[Choices | None] = Choices()
    deployment: ClassVar[type[Deployment]] = GeneralDeployment
    occupancy: ClassVar[type[Occupancy]] = GeneralOccupancy
