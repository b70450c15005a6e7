"""A span for rules that only one engine has."""

from __future__ import annotations

from hwcalc.formulas.tensor import Span


class OwnRule(Span):
    """A number of positions that an engine computes for one request by its own rule, with the rule in words. It has no stairs."""

    __slots__ = ("words",)

    words: str

    def __init__(self, words: str, count: int) -> None:
        super().__init__(count)
        object.__setattr__(self, "words", words)

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) and isinstance(other, OwnRule) and other.words == self.words

    def __hash__(self) -> int:
        return hash((type(self), self.numbers, self.words))

    def __reduce__(self) -> tuple[type[OwnRule], tuple[int | str, ...]]:
        """What copies it and writes it to a pickle."""
        return OwnRule, (self.words, self.numbers[0])

    def positions(self, tokens: int, encoder_tokens: int = 0) -> int:
        return self.numbers[0]

    @property
    def text(self) -> str:
        return self.words
