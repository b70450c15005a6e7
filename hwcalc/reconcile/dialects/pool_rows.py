"""What logs that print a pool of blocks and its tokens have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwcalc.model import Note
from hwcalc.reconcile.rows import Row, compared, spread

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.pool import PoolInfo
    from hwcalc.reconcile.facts import Facts

__all__ = ["budget_rows", "forward_shape"]


def budget_rows(
    facts: Facts, opened: Occupancy, tolerance: float, *, size: int | None
) -> tuple[list[Row], PoolInfo | None, list[Note]]:
    """Rows for blocks and tokens of the pool of ``size`` bytes, or of the budget of the plan, which is an estimate, without one."""
    named = opened.request.hardware.kv_memory
    budget = size if size is not None else named
    known = budget is not None
    if budget is None and opened.request.hardware.gpu is not None and opened.budget is not None:
        budget = opened.budget.expected
    if budget is None:
        message = "The log does not say how many bytes the cache has: give them with --kv-memory, or name the GPU with --gpu."
        return [], None, [Note(code="budget-unknown", message=message)]
    pool = opened.pool(max(0, budget))
    if pool is None:
        return [], None, []
    rows: list[Row] = []
    within, definition = (0.0, "engine") if known else (tolerance, "estimate")
    for name, value, meaning in (
        ("blocks", pool.blocks, "whole blocks of the budget"),
        ("tokens", pool.tokens, "blocks x tokens of a block"),
    ):
        predicted = None if value is None else spread(value)
        rows += compared(name, facts.last(name), predicted, within, definition=definition, meaning=meaning)
    return rows, pool, []


def forward_shape(opened: Occupancy) -> tuple[int, int]:
    """Tokens of one forward pass and rows of logits."""
    return opened.forward_tokens()[1], opened.request.replica_batch
