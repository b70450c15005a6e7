"""What one forward pass processes, and the bytes that it takes."""

from __future__ import annotations

from hwcalc.formulas.arithmetic import floored, larger, smaller
from hwcalc.formulas.record import Record

__all__ = ["Pass", "passed_tokens"]


def passed_tokens(tokens: int, sequences: int, chunk: int | None) -> int:
    """Tokens of one forward pass: all, or at most ``chunk`` of them, but one for each sequence."""
    passed = sequences * tokens
    most: int = passed if chunk is None else smaller(passed, larger(sequences, chunk))
    return most


class Pass(Record):
    """A forward pass: ``int(element_bytes x passed x width + sequences x logits x logit_bytes)``.

    ``passed`` are the tokens that are processed at once: all, or at most ``chunk`` of them (but one for each sequence). The products are
    formed in floating point and in this order, so that every language gives the same integer.
    """

    element_bytes: int
    width: float
    chunk: int | None
    logits: int
    logit_bytes: float

    def passed(self, tokens: int, sequences: int) -> int:
        """Tokens that are processed at once."""
        return passed_tokens(tokens, sequences, self.chunk)

    def at(self, tokens: int, sequences: int) -> int:
        """Bytes for so many sequences of a replica."""
        passed = self.passed(tokens, sequences)
        size: int = floored(self.element_bytes * passed * self.width + sequences * self.logits * self.logit_bytes)
        return size
