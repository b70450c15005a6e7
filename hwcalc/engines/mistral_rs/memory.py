"""The memory equation of mistral.rs with PagedAttention: its share of the whole GPU, minus all that is there after loading.

``pool = total x fraction - used - reserved``, and no more than ``available - max(2 % of available, 512 MiB) - reserved``
(``calculate_cache_config`` in ``mistralrs-core/src/paged_attention/mod.rs``, 0.9.2; read, not run). ``used`` is weights, context, and the
states, which :func:`~hwcalc.engines.mistral_rs.pool.plan_pool` takes off; ``reserved`` is what its loader predicts for activations:
attention scores of at most 1,024 x 1,024 positions (``mapped_max_act_size_elems`` of every text loader). With NCCL, or with layers that
the user maps, nothing is predicted, so that activations have the share that stays free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.engines.amounts import OwnAmount, passed_tokens
from hwcalc.engines.budget import Budget, BudgetPart, Section
from hwcalc.engines.costs import chunk_tokens, forward
from hwcalc.engines.extra_models import beside
from hwcalc.engines.loaded import budget_of, loaded, outside
from hwcalc.engines.mistral_rs.models import is_text
from hwcalc.engines.noted import Noted
from hwcalc.engines.steps import step
from hwcalc.formulas.arithmetic import larger, smaller
from hwcalc.formulas.record import Record
from hwcalc.units import MIB

if TYPE_CHECKING:
    from hwcalc.engines.mistral_rs.opened import MistralOpened

__all__ = ["KEPT_FREE", "kept_free", "plan_budget", "predicted_activations"]

KEPT_FREE: Final = "kept free"
"""The name of the part that stays free beside the share of mistral.rs."""

_SCORES: Final = 1024
_LEAST_FREE: Final = 512 * MIB
_ONE_IN_FREE: Final = 50
_SOURCE: Final = "mistral.rs 0.9.2 paged_attention/mod.rs device_memory_cap: 2 % of what is available, at least 512 MiB"


class Scores(OwnAmount, Record):
    """Attention scores of each sequence: ``square_bytes`` for each pair of its tokens, of which there are at most 1,024."""

    square_bytes: int

    def at(self, tokens: int, sequences: int) -> int:
        size: int = sequences * self.square_bytes * smaller(tokens, _SCORES) ** 2
        return size


def plan_budget(opened: MistralOpened) -> Noted[Budget | None]:
    """The bytes that each GPU has left for pages and states; ``None`` if the memory of the GPU or the size of the weights is unknown."""
    found = loaded(opened)
    if found.value is None:
        return Noted(None, found.notes)
    gpu, memory, weights = found.value
    extra, rows = beside(opened), opened.request.replica_batch
    parts: tuple[BudgetPart, ...] = (
        *weights,
        *extra.value,
        *_reserved(opened, rows),
        *outside(opened, gpu),
    )
    tokens = passed_tokens(opened.tokens, rows, chunk_tokens()[1])
    budget, notes = budget_of(opened, memory, parts, tokens=tokens, rows=rows, share=opened.settings.fraction)
    totals = (budget.total_low_bytes, budget.total_bytes, budget.total_high_bytes)
    return Noted(_capped(budget, totals), (*found.notes, *extra.notes, *notes))


def predicted_activations(opened: MistralOpened) -> int | None:
    """The bytes that its loader predicts, as the log has them in whole MB; ``None`` for models that see pictures."""
    if not is_text(opened.model):
        return None
    heads, tokens = _scores(opened)
    return opened.request.replica_batch * heads * tokens**2 * opened.model_format.block_bytes


def _scores(opened: MistralOpened) -> tuple[int, int]:
    """Heads and positions of the scores."""
    heads = max(getattr(group.kind, "num_attention_heads", 0) for group in opened.plain_stack.groups)
    return heads, min(opened.tokens, _SCORES)


def _reserved(opened: MistralOpened, rows: int) -> tuple[BudgetPart, ...]:
    """What is set aside for activations. The loaders of models that see pictures count those too: the general estimate stands for them."""
    parallel = opened.request.parallel
    if parallel.tp * parallel.pp > 1:
        return ()
    count = predicted_activations(opened)
    if count is None:
        return (forward(opened, chunk_tokens(), rows),)
    heads, tokens = _scores(opened)
    made = step(
        "activations",
        "batch x heads x tokens x tokens x element_bytes",
        count,
        batch=rows,
        heads=heads,
        tokens=tokens,
        element_bytes=opened.model_format.block_bytes,
    )
    return (
        BudgetPart(
            name="activations",
            section=Section.ACTIVATIONS,
            low=count,
            expected=count,
            high=count,
            source="mistral.rs 0.9.2 auto_device_map.rs: what it predicts and reserves",
            steps=(made,),
            grows=(Scores(square_bytes=heads * opened.model_format.block_bytes),) * 3,
        ),
    )


def _capped(budget: Budget, totals: tuple[int, int, int]) -> Budget:
    """With a share near the whole, what must stay free as a further part."""
    ends = zip((budget.low, budget.expected, budget.high), totals, budget.usable, strict=True)
    more = [kept_free(*end) for end in ends]
    if not any(more):
        return budget
    # The low end of what is left is the high end of a part.
    high, expected, low = more
    low, high = min(low, expected), max(high, expected)
    part = BudgetPart(name=KEPT_FREE, section=Section.OVERHEAD, low=low, expected=expected, high=high, source=_SOURCE)
    return replace(
        budget,
        parts=(*budget.parts, part),
        low=budget.low - high,
        expected=budget.expected - expected,
        high=budget.high - low,
    )


def kept_free(left: int, total: int, usable: int) -> int:
    """Bytes that must stay free of those that are ``left`` of the usable ones: 2 % of what is available, at least 512 MiB."""
    available = larger(total - (usable - left), 0)
    most = larger(available - larger(available // _ONE_IN_FREE, _LEAST_FREE), 0)
    kept: int = larger(left - most, 0)
    return kept
