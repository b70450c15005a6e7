"""The result of a cache policy that was run with real tensors."""

from __future__ import annotations

from typing import Final

from hwcalc.formulas.record import Record

__all__ = ["AT_RANDOM", "BLOCKS", "BYTES", "BY_THE_RULE", "SLOTS", "PolicyFigure", "PolicyRun"]

AT_RANDOM: Final = "at random"
BY_THE_RULE: Final = "by the rule"
BYTES: Final = "B"
BLOCKS: Final = "blocks"
SLOTS: Final = "slots"


class PolicyFigure(Record):
    """One number in its unit. It agrees from ``least`` to ``most``; both are null where it is for information."""

    name: str
    unit: str
    predicted: float | None
    measured: float | None
    least: float | None
    most: float | None
    remark: str = ""

    @classmethod
    def exact(cls, name: str, unit: str, predicted: float, measured: float | None, remark: str = "") -> PolicyFigure:
        """A figure that must be met."""
        return cls(name=name, unit=unit, predicted=predicted, measured=measured, least=predicted, most=predicted, remark=remark)

    @classmethod
    def known(cls, name: str, unit: str, predicted: float | None, measured: float | None, remark: str = "") -> PolicyFigure:
        """A figure for information."""
        return cls(name=name, unit=unit, predicted=predicted, measured=measured, least=None, most=None, remark=remark)

    @property
    def is_judged(self) -> bool:
        """Whether anything is concluded from it."""
        return self.least is not None and self.most is not None

    @property
    def agrees(self) -> bool:
        """Whether it lies between its bounds. A number that is missing does not."""
        if self.least is None or self.most is None:
            return True
        return self.measured is not None and self.least <= self.measured <= self.most


class PolicyRun(Record):
    """What a policy left of real tensors, beside what the plan says of it.

    ``survivors`` says how they were chosen: ``by the rule`` where it says which stay, else ``at random`` from ``seed``. ``steps`` is how
    many of ``output`` decode steps were followed. ``scaled`` says how it was made smaller, null where it was not. ``copied_tokens`` counts
    what was moved, of each head of each layer that was run. ``in_place`` says whether every survivor was found again with its own values,
    null where nothing was written.
    """

    policy: str
    rules: str
    compaction: str
    engine: str
    device: str
    seed: int
    survivors: str
    prompt: int
    output: int
    steps: int
    scaled: str | None
    copied_tokens: int
    in_place: bool | None
    figures: tuple[PolicyFigure, ...]
    agrees: bool
