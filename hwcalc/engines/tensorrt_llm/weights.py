"""How TensorRT-LLM divides weights: as everybody does, but left-over layers go to the first stages (mapping.py pp_layers)."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar, Final

from hwcalc.engines.rank_weights import Rules


class _TensorrtRules(Rules):
    engine: ClassVar[str] = "tensorrt-llm"
    gathers_logits: ClassVar[bool] = True

    def spans(self, layers: int, pp: int) -> tuple[range, ...]:
        each, more = divmod(layers, pp)
        starts = [stage * each + min(stage, more) for stage in range(pp + 1)]
        return tuple(range(start, stop) for start, stop in pairwise(starts))


TENSORRT: Final = _TensorrtRules()
