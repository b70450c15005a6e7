"""Weights of one format and use: which of them a token reads, and with which it multiplies."""

from __future__ import annotations

import enum
from typing import Final

from hwcalc.formulas.record import Record

_ALIKE: Final = 0.5
"""Tokens of one step choose experts as if so few were drawn at random: t to this power. With 2/3, steps of 1 to 32 sequences that were
measured reach the same share of the bandwidth (llama.cpp, benches/dgx-spark, gpt-oss and Qwen3-Coder)."""


class Use(enum.StrEnum):
    """Which tokens use a weight."""

    ALWAYS = "always"
    """Every token."""
    CHOSEN = "chosen"
    """Tokens that are routed to it: an expert."""
    ROW = "row"
    """Each token looks up one row: an embedding. There is no multiplication."""
    LAST = "last"
    """Tokens whose next token is predicted: all tokens of a decode step, the last token of a prompt. The output head."""
    ENCODER = "encoder"
    """Tokens of the encoder, before the first decode step."""


class WeightShare(Record):
    """The weights of one format and use: parameters and bytes of all copies and layers together.

    A token uses ``active`` of ``copies``: of the experts of a layer, or of the rows of a table.
    """

    format: str
    use: Use
    parameters: int
    bytes: int
    copies: int = 1
    active: int = 1

    def touched_bytes(self, tokens: float) -> float:
        """Bytes that ``tokens`` tokens of one step read."""
        if self.use is Use.CHOSEN:
            return self.bytes * expected_share(self.copies, self.active, max(1.0, tokens) ** _ALIKE)
        return self.bytes * min(1.0, tokens / self.copies) if self.use is Use.ROW else float(self.bytes)

    @property
    def flops_per_token(self) -> int:
        """Operations per token that uses the weights."""
        return 0 if self.use is Use.ROW else 2 * self.parameters * self.active // self.copies


def expected_share(copies: int, active: int, tokens: float) -> float:
    """The expected share of ``copies`` experts that ``tokens`` tokens use, if each token uses ``active`` of them at random.

    >>> expected_share(4, 1, 1), expected_share(4, 1, 2), expected_share(4, 4, 1)
    (0.25, 0.4375, 1.0)

    Two tokens both miss an expert with probability (3/4)^2, so the share is 1 - 9/16 = 7/16.
    """
    return float(1 - (1 - active / copies) ** tokens)
