"""The budget of the cache from the GPU alone: a share of what is left after loading.

``available = (total - peak) x free_gpu_memory_fraction``; the peak is that of weights and a batch of ``max_num_tokens`` dummy tokens, and
what lies outside torch (pyexecutor/_util.py configure_kv_cache_capacity and _cal_max_memory of the sources of 1.4; read, not run). The share
that stays free is a part of its own here. Its ends are those of what is left, so that the range of the budget is a little wide.

Weights are divided as everybody does, but left-over layers go to the first stages (mapping.py pp_layers).
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, Final

from hwcalc.engines.memory import Budget, BudgetPart, Section, beside, budget_of, estimated, forward, loaded, outside
from hwcalc.engines.rank_weights import Rules
from hwcalc.engines.steps import step
from hwcalc.formulas.arithmetic import larger, smaller
from hwcalc.formulas.formats import FLOATS
from hwcalc.model import Noted
from hwcalc.profiles.engines import runtime_profile

if TYPE_CHECKING:
    from hwcalc.engines.tensorrt_llm.deployment import TensorrtOccupancy

KEPT_FREE: Final = "kept free"
"""The part that ``free_gpu_memory_fraction`` leaves."""


class _TensorrtRules(Rules):
    engine: ClassVar[str] = "tensorrt-llm"
    gathers_logits: ClassVar[bool] = True

    def spans(self, layers: int, pp: int) -> tuple[range, ...]:
        each, more = divmod(layers, pp)
        starts = [stage * each + min(stage, more) for stage in range(pp + 1)]
        return tuple(range(start, stop) for start, stop in pairwise(starts))


TENSORRT: Final = _TensorrtRules()


def dummy_rows(batch: int, tokens: int) -> int:
    """Requests of the dummy batch: prompts of a token less than the longest sequence, until the batch is full."""
    rows: int = -(-batch // smaller(batch, larger(1, tokens - 1)))
    return rows


def plan_budget(occupancy: TensorrtOccupancy) -> Noted[Budget | None]:
    """The bytes that each GPU has left for the cache; ``None`` if the memory of the GPU or the size of the weights is unknown."""
    from hwcalc.quantization.planned import format_name

    settings = occupancy.settings
    memory_and_weights = loaded(occupancy)
    if memory_and_weights.value is None:
        return Noted(None, memory_and_weights.notes)
    gpu, memory, weights = memory_and_weights.value
    extra, rows, tokens = beside(occupancy), dummy_rows(settings.batched_tokens, occupancy.tokens), settings.batched_tokens
    weight_format = format_name(occupancy.request.weights)
    parts = (
        *weights,
        *extra.value,
        forward(occupancy, (tokens, tokens, tokens), rows, dtype=weight_format if weight_format in FLOATS else None),
        *outside(occupancy, gpu),
        estimated("CUDA graphs", Section.OVERHEAD, runtime_profile().estimate("tensorrt_llm.graphs")),
    )
    whole, notes = budget_of(occupancy, memory, parts, tokens=tokens, rows=rows)
    kept = _kept_free(whole, settings.fraction)
    margin = occupancy.request.hardware.margin or 0
    return Noted(Budget.of(memory, 1.0, margin, (*whole.parts, kept)), (*memory_and_weights.notes, *extra.notes, *notes))


def _kept_free(whole: Budget, fraction: float) -> BudgetPart:
    """What the share leaves of what is left, rounded as the engine rounds: the cache gets ``int(left x fraction)``."""
    left = tuple(max(0, size) for size in (whole.low, whole.expected, whole.high))
    low, expected, high = (size - int(size * fraction) for size in left)
    return BudgetPart(
        name=KEPT_FREE,
        section=Section.OVERHEAD,
        low=low,
        expected=expected,
        high=high,
        source=f"TensorRT-LLM pyexecutor/_util.py _cal_max_memory: free_gpu_memory_fraction {fraction:g} of what is left",
        steps=(
            step(
                KEPT_FREE,
                "left - floor(left x free_gpu_memory_fraction)",
                (low, expected, high),
                left=(left[0], left[1], left[2]),
                free_gpu_memory_fraction=fraction,
            ),
        ),
    )
