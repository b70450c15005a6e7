"""The memory equation of LMDeploy: a share of what is free once the weights are loaded.

PyTorch takes the state slots off what is free, then ``(max_prefill_token_num + 2 x max_batch_size) x vocab_size x 2`` bytes for a forward
pass, and gives ``cache_max_entry_count`` of the rest to blocks. If those are fewer than 16, it halves the tokens of a prompt until they are
not. TurboMind takes its share of all that is free, and the state slots off that.

Sources: pytorch/engine/executor/base.py _get_runtime_size, update_configs; src/turbomind/models/llama/SequenceManager.cc of 0.14.0.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from hwcalc.engines.budget import Budget, BudgetPart, Section
from hwcalc.engines.costs import communication, estimated
from hwcalc.engines.extra_models import beside
from hwcalc.engines.lmdeploy.opened import LmdeployOpened
from hwcalc.engines.lmdeploy.pool import LEAST_BLOCKS, TOO_FEW
from hwcalc.engines.loaded import budget_of, loaded
from hwcalc.engines.noted import Noted
from hwcalc.engines.steps import step
from hwcalc.model import Definition
from hwcalc.profiles.engines import runtime_profile

__all__ = ["Shares", "plan_budget", "shares_of"]


class Shares(NamedTuple):
    """What becomes of the free memory: bytes for a forward pass, for the cache (blocks and states), and what stays free."""

    runtime: int
    cache: int
    unused: int


def shares_of(opened: LmdeployOpened, free: int) -> Shares:
    """What LMDeploy makes of ``free`` bytes, the fewest of all ranks. It computes its share in floating point.

    Llama-3-8B on an H100 with 60 GiB free: the forward pass gets (8,192 + 2 x 1,024) x 128,256 x 2 = 2,626,682,880 bytes, and blocks
    int(61,797,826,560 x 0.8) = 49,438,261,248, which are 5,893 of 8,388,608.
    """
    settings, states = opened.settings, opened.state_bytes
    if settings.num_gpu_blocks is not None:
        return Shares(0, free, 0)
    if not settings.pytorch:
        cache = int(free * settings.ratio) if free > 0 else free
        return Shares(0, cache, free - cache)
    left, block = free - states, max(1, opened.layout.block_bytes)
    tokens = settings.prefill_tokens
    while True:
        runtime = (tokens + 2 * settings.max_batch_size) * (opened.model.vocab_size or 0) * 2
        pool = int((left - runtime) * settings.ratio)
        blocks = pool // block
        if blocks >= LEAST_BLOCKS or blocks <= TOO_FEW or tokens <= 1:
            break
        tokens //= 2
    if left < runtime:
        return Shares(runtime, free - runtime, 0)
    return Shares(runtime, states + pool, free - runtime - states - pool)


def plan_budget(opened: LmdeployOpened) -> Noted[Budget | None]:
    """The bytes that each GPU has left for the cache; ``None`` if the memory of the GPU or the size of the weights is unknown."""
    found = loaded(opened)
    if found.value is None:
        return Noted(None, found.notes)
    gpu, memory, weights = found.value
    extra = beside(opened)
    # Kernels are loaded by the first forward pass, which comes later.
    context = estimated("context", Section.OVERHEAD, runtime_profile().estimate("context.cuda"))
    parts = (*weights, *extra.value, context, *communication(opened.request.parallel, gpu))
    settings = opened.settings
    before, notes = budget_of(opened, memory, parts, tokens=settings.prefill_tokens, rows=settings.max_batch_size)
    ends = [shares_of(opened, free) for free in (before.low, before.expected, before.high)]
    return Noted(_less(opened, before, ends), (*found.notes, *extra.notes, *notes))


def _less(opened: LmdeployOpened, before: Budget, ends: list[Shares]) -> Budget:
    """The equation with what LMDeploy does not give to the cache: a part for the forward pass, and the rest, which it leaves alone."""
    parts = (*before.parts, *_forward_pass(opened, ends))
    # The share that is left alone at the expected end counts at every end, so that the ends stay in order: the range is a little wider.
    low, expected, high = (size - ends[1].unused for size in before.usable)
    return replace(
        before,
        requested_bytes=expected,
        usable=(low, expected, high),
        margin_bytes=before.total_bytes - expected,
        parts=parts,
        low=low - sum(part.high for part in parts),
        expected=expected - sum(part.expected for part in parts),
        high=high - sum(part.low for part in parts),
    )


def _forward_pass(opened: LmdeployOpened, ends: list[Shares]) -> tuple[BudgetPart, ...]:
    """What PyTorch keeps for a forward pass. It is less where little is free."""
    settings, words = opened.settings, opened.model.vocab_size or 0
    low, expected, high = min(each.runtime for each in ends), ends[1].runtime, max(each.runtime for each in ends)
    if not high:
        return ()
    tokens = tuple(size // (2 * words) - 2 * settings.max_batch_size for size in (low, expected, high))
    return (
        BudgetPart(
            name="forward pass",
            section=Section.ACTIVATIONS,
            low=low,
            expected=expected,
            high=high,
            source="LMDeploy 0.14 executor/base.py _get_runtime_size",
            definition=Definition.ENGINE,
            steps=(
                step(
                    "forward pass",
                    "(prefill_tokens + 2 x max_batch_size) x vocab_size x 2",
                    (low, expected, high),
                    prefill_tokens=(tokens[0], tokens[1], tokens[2]),
                    max_batch_size=settings.max_batch_size,
                    vocab_size=words,
                ),
            ),
        ),
    )
