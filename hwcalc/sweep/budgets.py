"""The memory that each point of a grid leaves for its cache on one GPU.

It comes from the engine's own memory equation, which is evaluated once for all points that share its terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hwcalc.engines.base import Opened
from hwcalc.engines.budget import Section
from hwcalc.formulas.frozen import frozen
from hwcalc.planner.result import Verdict
from hwcalc.sweep.spans import Integers

__all__ = ["Budgets", "EqualPoints", "budgets_of", "ends_of", "equal_points", "verdicts"]


@frozen
class Budgets:
    """Bytes on one GPU. Arrays have a row for each length and a column for each batch.

    ``usable`` is what the engine may use; ``low``, ``expected`` and ``high`` are the part of it that is left for the cache; ``beside`` is
    memory for neither weights nor cache.
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


EqualPoints = tuple[int, tuple[int, ...]]
"""The index of a batch, and the indexes of the lengths for which the memory equation has the same terms."""


def equal_points(opened: Opened, seqs: Sequence[int], batches: Sequence[int]) -> tuple[EqualPoints, ...]:
    """Group the points of a grid whose memory equation has the same terms.

    This holds only for engines with curves. Their equation depends on the length only through the tokens of one forward pass, which do
    not fall as the length grows and are the same for every model and number of ranks.
    """
    out: list[EqualPoints] = []
    ascending = sorted(range(len(seqs)), key=seqs.__getitem__)
    for column, batch in enumerate(batches):
        most = opened.engine.forward_tokens(opened.sized(seq=seqs[ascending[-1]], batch=batch))
        groups: dict[tuple[int, int, int], list[int]] = {}
        for place, row in enumerate(ascending):
            tokens = opened.engine.forward_tokens(opened.sized(seq=seqs[row], batch=batch))
            if tokens == most:
                # Longer sequences do not change the terms any more.
                groups[most] = ascending[place:]
                break
            groups.setdefault(tokens, []).append(row)
        out += [(column, tuple(rows)) for rows in groups.values()]
    return tuple(out)


def budgets_of(
    opened: Opened, seqs: Sequence[int], batches: Sequence[int], groups: Sequence[EqualPoints], kind: Any
) -> Budgets | None:
    """The budgets of every length and batch; ``None`` if the engine has none for this model and accelerator."""
    arrays = {name: np.zeros((len(seqs), len(batches)), dtype=kind) for name in ("beside", "low", "expected", "high")}
    weights = usable = 0
    for column, rows in groups:
        budget = opened.sized(seq=seqs[rows[0]], batch=batches[column]).budget
        if budget is None:
            return None
        weights = sum(part.expected for part in budget.parts if part.section is Section.WEIGHTS)
        usable = budget.requested_bytes
        places = list(rows)
        arrays["beside"][places, column] = sum(part.expected for part in budget.parts) - weights
        for name in ("low", "expected", "high"):
            arrays[name][places, column] = getattr(budget, name)
    return Budgets(weights=weights, usable=usable, **arrays)


def ends_of(needed: Integers, budgets: Budgets) -> tuple[Integers, Integers]:
    """The bytes of one GPU at the low and the high end of the estimates, including a cache of ``needed`` bytes; point by point."""
    low, high = (budgets.usable - left + needed for left in (budgets.high, budgets.low))
    return np.maximum(low, 0).ravel(), high.ravel()


def verdicts(needed: Integers, budgets: Budgets) -> list[str]:
    """The verdict of each point: whether its cache fits at the expected value and at both ends of the estimates."""
    fits, low, high = needed <= budgets.expected, needed <= budgets.low, needed <= budgets.high
    certain = (low == fits) & (high == fits)
    words = np.where(fits, np.where(certain, Verdict.FITS, Verdict.PROBABLY), np.where(certain, Verdict.NO, Verdict.PROBABLY_NOT))
    return [str(word) for word in words.ravel().tolist()]
