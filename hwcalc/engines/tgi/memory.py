"""The memory equation of TGI: its share of the whole GPU, minus what is taken after the warm-up.

``free = max(0, cudaFree - (1 - cuda_memory_fraction x TGI_WIGGLE_ROOM) x total)`` after a prefill of ``max_batch_prefill_tokens``
(``get_cuda_free_memory`` in ``utils/import_utils.py``, 3.3.6-dev0; read, not run). With the room of 0.9, a tenth of the total stays free;
CUDA graphs are captured into it afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwcalc.engines.costs import forward
from hwcalc.engines.extra_models import beside
from hwcalc.engines.loaded import budget_of, loaded, outside
from hwcalc.engines.noted import Noted

if TYPE_CHECKING:
    from hwcalc.engines.budget import Budget, BudgetPart
    from hwcalc.engines.tgi.deployment import TgiOccupancy


def plan_budget(opened: TgiOccupancy) -> Noted[Budget | None]:
    """The bytes that each GPU has left for blocks; ``None`` if the memory of the GPU or the size of the weights is unknown."""
    found = loaded(opened)
    if found.value is None:
        return Noted(None, found.notes)
    gpu, memory, weights = found.value
    extra, tokens = beside(opened), opened.settings.prefill_tokens
    # The warm-up has one long prompt, whatever is planned.
    warm = opened.with_request(opened.request.changed(seq=max(tokens, 1), batch=1, dp=1, lengths=()))
    parts: tuple[BudgetPart, ...] = (
        *weights,
        *extra.value,
        forward(warm, (tokens, tokens, tokens), 1),
        *outside(opened, gpu),
    )
    budget, notes = budget_of(opened, memory, parts, tokens=tokens, rows=1, share=opened.settings.share)
    return Noted(budget, (*found.notes, *extra.notes, *notes))
