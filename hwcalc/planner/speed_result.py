"""What a plan says of speed."""

from __future__ import annotations

from hwcalc.engines.steps import Step
from hwcalc.formulas.record import Record
from hwcalc.model import Definition

class SpeedInfo(Record):
    """How fast at most, if it fits (``fit.fits``). Null is unknown: the accelerator's bandwidth or rate, or the model's weights.

    ``decode_tokens_per_s_bound`` counts all sequences of all replicas, each holding ``seq`` tokens; ``decode_step_s_bound`` is
    the time in which every sequence gains one token, ``prefill_s_bound`` until the first token of one prompt (of ``prompt``
    tokens, else ``seq``). ``bound_by`` is ``memory bandwidth``, ``host memory bandwidth`` (most of the time goes to what lies
    there) or ``compute``. Bytes and operations are those of one tensor-parallel rank, its pipeline stages added up: weights and
    caches that a step reads (with several pipeline stages, a step of one of the parts that the batch is split into).
    ``definition`` is ``bound`` (by the profile's peak), ``measured`` (by the bandwidth that the user's own machine reached) or
    ``unknown``. ``steps`` say how the figures come about.
    """

    definition: Definition
    decode_tokens_per_s_bound: float | None
    decode_step_s_bound: float | None
    bound_by: str | None
    prefill_s_bound: float | None
    prefill_bound_by: str | None
    weight_bytes_per_step: int | None
    cache_bytes_per_step: int | None
    flops_per_step: int | None
    prefill_flops: int | None
    source: str
    steps: tuple[Step, ...]
