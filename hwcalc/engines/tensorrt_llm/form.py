"""The memory of a GPU under TensorRT-LLM as a function of length and number of sequences.

The cache is what the manager's own rules say, so that its curve is no sum of terms: pools of fixed shares, in whole pages. What stays free
is a share of what the other parts leave.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from hwcalc.engines.forms import ENDS, OPPOSITE, Amount, Curve, Memory, MemoryForm, OwnAmount, PartForm
from hwcalc.engines.general_form import form_with
from hwcalc.engines.memory import Section, measurements
from hwcalc.engines.tensorrt_llm.memory import KEPT_FREE, dummy_rows
from hwcalc.engines.tensorrt_llm.needs import AllNeeds
from hwcalc.formulas.arithmetic import floored, larger
from hwcalc.formulas.record import Record
from hwcalc.profiles.calibration import overheads_kind

if TYPE_CHECKING:
    from hwcalc.engines.memory import BudgetPart
    from hwcalc.engines.tensorrt_llm.deployment import TensorrtDeployment, TensorrtOccupancy


def plan_form(occupancy: TensorrtOccupancy) -> MemoryForm | None:
    """The form of sequences that are alike; ``None`` of others, or if the budget is unknown or partly measured."""
    return form_with(occupancy, lambda: _parts(occupancy), form=PoolForm)


def _parts(occupancy: TensorrtOccupancy) -> tuple[PartForm, ...] | None:
    """The parts of the equation; ``None`` where some were measured, which hold for batches of one size."""
    hardware, budget, settings = occupancy.setup.hardware, occupancy.budget, occupancy.settings
    assert hardware.gpu is not None
    assert budget is not None
    if hardware.calibrated and measurements(hardware.gpu.id, overheads_kind(occupancy.engine.name)).value is not None:
        return None
    parts = tuple(_part(part, settings.batched_tokens) for part in budget.parts if part.name != KEPT_FREE)
    low, expected, high = (
        KeptFree(usable=size, others=tuple(getattr(part, OPPOSITE[end]) for part in parts), share=settings.fraction)
        for end, size in zip(ENDS, budget.usable, strict=True)
    )
    kept = PartForm(name=KEPT_FREE, section=Section.OVERHEAD.value, low=low, expected=expected, high=high)
    return (*parts, kept)


def _part(part: BudgetPart, batch: int) -> PartForm:
    if part.grows is None:
        return PartForm.constant(part)
    low, expected, high = (DummyBatch(rule=rule, batch=batch) for rule in part.grows)
    return PartForm(name=part.name, section=part.section.value, low=low, expected=expected, high=high)


class DummyBatch(OwnAmount, Record):
    """A forward pass of a full batch of prompts: the longer these are, the fewer."""

    rule: Amount
    batch: int

    def at(self, tokens: int, sequences: int) -> int:
        return self.rule.at(tokens, dummy_rows(self.batch, tokens))


class KeptFree(OwnAmount, Record):
    """Bytes that stay free: of what the other parts leave, the cache gets the share ``free_gpu_memory_fraction`` and not the rest."""

    usable: int
    others: tuple[Amount, ...]
    share: float

    def at(self, tokens: int, sequences: int) -> int:
        left = larger(0, self.usable - sum(part.at(tokens, sequences) for part in self.others))
        kept: int = left - floored(left * self.share)
        return kept


class PoolCurve(Curve):
    """The cache: the smallest budget whose pools hold the sequences."""

    deployment: TensorrtDeployment
    dp: int
    tp: int

    def needs(self, tokens: int, sequences: int) -> AllNeeds:
        """What so many sequences of a replica need."""
        return AllNeeds(self.deployment.layouts, tokens, sequences)

    def bytes_on(self, gpu: int, tokens: int, sequences: int) -> int:
        """Bytes of the cache on each GPU; all GPUs count as the fullest."""
        return self.needed_bytes(tokens, sequences)

    def needed_bytes(self, tokens: int, sequences: int) -> int:
        return self.needs(tokens, sequences).needed_bytes()

    def total_bytes(self, tokens: int, sequences: int) -> int:
        return self.total_of(self.needs(tokens, -(-sequences // self.dp)), sequences)

    def total_of(self, needs: AllNeeds, sequences: int) -> int:
        """Bytes of the cache on all GPUs for ``sequences`` sequences; ``needs`` are those of a replica."""
        return self.tp * needs.total_bytes(sequences, self.dp)


def pool_curve(deployment: TensorrtDeployment) -> PoolCurve:
    """The cache of a deployment."""
    parallel = deployment.setup.parallel
    return PoolCurve(gpus=(), total=(), most_tokens=deployment.most_tokens, deployment=deployment, dp=parallel.dp, tp=parallel.tp)


class PoolForm(MemoryForm):
    """The memory equation, where pools of the left bytes must hold the sequences."""

    def at(self, tokens: int, sequences: int) -> Memory:
        assert isinstance(self.curve, PoolCurve)
        return _PoolMemory(self, self.curve, tokens, sequences)


class _PoolMemory(Memory):
    """What the form says of some sequences, whose needs are worked out once."""

    def __init__(self, form: PoolForm, curve: PoolCurve, tokens: int, sequences: int) -> None:
        super().__init__(form, tokens, sequences)
        self._curve, self._needs = curve, curve.needs(tokens, self._own)

    @cached_property
    def needed_bytes(self) -> int:
        return self._needs.needed_bytes()

    @cached_property
    def total_bytes(self) -> int:
        return self._curve.total_of(self._needs, self.sequences)

    def _pool_holds(self, end: str) -> bool:
        left = self.left(end)
        return (left >= 0) & self._needs.holds(left)
