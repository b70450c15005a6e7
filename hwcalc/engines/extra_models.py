"""What is loaded beside the planned model: LoRA adapters, and the draft whose guesses it checks."""

from __future__ import annotations

from hwcalc.engines.base import BudgetPart, Context
from hwcalc.engines.rank_weights import Rules

__all__ = ["adapters", "draft_weights"]


def adapters(context: Context) -> tuple[BudgetPart, ...]:
    """Adapters of ``--lora`` on a rank; none without."""
    return ()


def draft_weights(rules: Rules, context: Context) -> tuple[BudgetPart, ...]:
    """Weights of ``--draft`` on a rank; none without."""
    return ()
