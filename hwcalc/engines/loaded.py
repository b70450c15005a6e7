"""A GPU on which a model is loaded: what the memory equations of engines begin and end with."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hwcalc.engines.budget import Budget, BudgetPart
from hwcalc.engines.calibration import calibrated
from hwcalc.engines.costs import communication, device_context, memory_of, workspaces
from hwcalc.engines.noted import Noted

if TYPE_CHECKING:
    from fractions import Fraction

    from hwcalc.engines.deployment import Occupancy
    from hwcalc.profiles.gpus import VisibleMemory
    from hwcalc.profiles.hardware_file import Gpu


class Loaded(NamedTuple):
    """A GPU, its memory, and the weights on it."""

    gpu: Gpu
    memory: VisibleMemory
    weights: tuple[BudgetPart, ...]


def loaded(opened: Occupancy) -> Noted[Loaded | None]:
    """``None`` without a GPU, or if its memory or the size of the weights is unknown; notes say which."""
    gpu = opened.request.hardware.gpu
    if gpu is None:
        return Noted(None)
    memory, notes = memory_of(gpu)
    weights = opened.weights
    notes += weights.notes
    if memory is None or weights.value is None:
        return Noted(None, notes)
    return Noted(Loaded(gpu, memory, weights.value), notes)


def outside(opened: Occupancy, gpu: Gpu) -> tuple[BudgetPart, ...]:
    """The parts outside of the engine's tensors: the context, workspaces, and buffers for communication."""
    return device_context(gpu), *workspaces(gpu), *communication(opened.request.parallel, gpu)


def budget_of(
    opened: Occupancy,
    memory: VisibleMemory,
    parts: tuple[BudgetPart, ...],
    *,
    tokens: int,
    rows: int,
    share: float = 1.0,
    margin: Fraction | int | None = None,
) -> Noted[Budget]:
    """What ``parts`` leave of a share of the memory. Estimates are replaced by measurements of passes of so many tokens and rows.

    ``margin`` is the share that stays free, by default what the user says.
    """
    request = opened.request
    measured = calibrated(opened.engine.name, opened.model.id, request, parts, tokens=tokens, rows=rows)
    margin = request.hardware.margin or 0 if margin is None else margin
    return Noted(Budget.of(memory, share, margin, measured.value), measured.notes)
