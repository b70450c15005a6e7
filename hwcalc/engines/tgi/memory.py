"""The memory equation of TGI: its share of the whole GPU, minus what is taken after the warm-up.

``free = max(0, cudaFree - (1 - cuda_memory_fraction x TGI_WIGGLE_ROOM) x total)`` after a prefill of ``max_batch_prefill_tokens``
(``get_cuda_free_memory`` in ``utils/import_utils.py``, 3.3.6-dev0; read, not run). With the room of 0.9, a tenth of the total stays free;
CUDA graphs are captured into it afterwards.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from hwcalc.engines.budget import Budget, BudgetPart
from hwcalc.engines.calibration import calibrated
from hwcalc.engines.costs import communication, device_context, forward, memory_of, workspaces
from hwcalc.engines.extra_models import beside
from hwcalc.engines.noted import Noted

if TYPE_CHECKING:
    from hwcalc.engines.tgi.opened import TgiOpened

__all__ = ["plan_budget"]


def plan_budget(opened: TgiOpened) -> Noted[Budget | None]:
    """The bytes that each GPU has left for blocks; ``None`` if the memory of the GPU or the size of the weights is unknown."""
    request, hardware = opened.request, opened.request.hardware
    if hardware.gpu is None:
        return Noted(None)
    memory, notes = memory_of(hardware.gpu)
    weights = opened.weights
    notes += weights.notes
    if memory is None or weights.value is None:
        return Noted(None, notes)
    extra, tokens = beside(opened), opened.settings.prefill_tokens
    # The warm-up has one long prompt, whatever is planned.
    warm = opened.with_request(request.changed(seq=max(tokens, 1), batch=1, dp=1, lengths=()))
    parts: tuple[BudgetPart, ...] = (
        *weights.value,
        *extra.value,
        forward(warm, (tokens, tokens, tokens), 1),
        device_context(hardware.gpu),
        *workspaces(hardware.gpu),
        *communication(request.parallel, hardware.gpu),
    )
    measured = calibrated(opened.engine.name, opened.model.id, request, parts, tokens=tokens, rows=1)
    budget = Budget.of(memory, opened.settings.share, hardware.margin or Fraction(0), measured.value)
    return Noted(budget, (*notes, *extra.notes, *measured.notes))
