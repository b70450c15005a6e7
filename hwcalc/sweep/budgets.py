"""What each point of a grid has left for its cache on one GPU: the engine's own equation, asked as seldom as its terms change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hwcalc.engines.base import Engine, Opened
from hwcalc.engines.budget import Section
from hwcalc.formulas.frozen import frozen
from hwcalc.planner.result import Verdict
from hwcalc.sweep.spans import Integers

__all__ = ["Alike", "Budgets", "alike", "budgets_of", "ends_of", "verdicts"]


@frozen
class Budgets:
    """Bytes on one GPU, with a row for each length and a column for each batch.

    ``usable`` is what the engine may use; ``low``, ``expected`` and ``high`` are what of it is left for the cache; ``beside`` is what is
    neither weights nor cache.
    """

    weights: int
    usable: int
    beside: Integers
    low: Integers
    expected: Integers
    high: Integers

    def part(self, seqs: slice, batches: slice) -> Budgets:
        """The budgets of some lengths and batches."""
        names = ("beside", "low", "expected", "high")
        return Budgets(weights=self.weights, usable=self.usable, **{name: getattr(self, name)[seqs, batches] for name in names})


Alike = tuple[int, tuple[int, ...]]
"""The place of a batch, and the places of lengths for which the equation is the same."""


def alike(engine: Engine, context: Opened, seqs: Sequence[int], batches: Sequence[int]) -> tuple[Alike, ...]:
    """The points of a grid whose equation is the same.

    For engines on curves only: their equation knows the length by the tokens of one forward pass alone, those do not fall as the
    length grows, and they are the same for every model and number of ranks.
    """
    out: list[Alike] = []
    ascending = sorted(range(len(seqs)), key=seqs.__getitem__)
    for column, batch in enumerate(batches):
        most = engine.forward_tokens(_at(context, seqs[ascending[-1]], batch))
        groups: dict[tuple[int, int, int], list[int]] = {}
        for place, row in enumerate(ascending):
            tokens = engine.forward_tokens(_at(context, seqs[row], batch))
            if tokens == most:
                # From here on a longer sequence changes nothing.
                groups[most] = ascending[place:]
                break
            groups.setdefault(tokens, []).append(row)
        out += [(column, tuple(rows)) for rows in groups.values()]
    return tuple(out)


def budgets_of(
    engine: Engine, context: Opened, seqs: Sequence[int], batches: Sequence[int], groups: Sequence[Alike], kind: Any
) -> Budgets | None:
    """The budgets of every length and batch; ``None`` where the engine has none for this model and accelerator."""
    found = {name: np.zeros((len(seqs), len(batches)), dtype=kind) for name in ("beside", "low", "expected", "high")}
    weights = usable = 0
    for column, rows in groups:
        budget = _at(context, seqs[rows[0]], batches[column]).budget
        if budget is None:
            return None
        weights = sum(part.expected for part in budget.parts if part.section is Section.WEIGHTS)
        usable = budget.requested_bytes
        places = list(rows)
        found["beside"][places, column] = sum(part.expected for part in budget.parts) - weights
        for name in ("low", "expected", "high"):
            found[name][places, column] = getattr(budget, name)
    return Budgets(weights=weights, usable=usable, **found)


def _at(context: Opened, seq: int, batch: int) -> Opened:
    return context.sized(seq=seq, batch=batch)


def ends_of(needed: Integers, budgets: Budgets) -> tuple[Integers, Integers]:
    """For each point, row by row: what a GPU holds at the low and at the high end of the estimates, beside a cache of ``needed`` bytes."""
    low, high = (budgets.usable - left + needed for left in (budgets.high, budgets.low))
    return np.maximum(low, 0).ravel(), high.ravel()


def verdicts(needed: Integers, budgets: Budgets) -> list[str]:
    """For each point, row by row: whether what is needed fits, and at both ends of the estimates too."""
    fits, low, high = needed <= budgets.expected, needed <= budgets.low, needed <= budgets.high
    words = np.where((low == fits) & (high == fits), np.where(fits, Verdict.FITS, Verdict.DOES_NOT_FIT), Verdict.TIGHT)
    return [str(word) for word in words.ravel().tolist()]
