"""The results of a probe and of a policy that was run: their fields are the JSON document and the body of a receipt."""

from __future__ import annotations

from typing import Final

from hwcalc.formulas.record import Record
from hwcalc.model import Note

MEASURED, OUT_OF_MEMORY, REFUSED = "measured", "out of memory", "refused"


class Environment(Record):
    """Where it was measured. ``date`` is UTC; ``allocator`` is what ``PYTORCH_ALLOC_CONF`` says; null is unknown or does not apply."""

    device: str
    device_name: str
    total_bytes: int | None
    torch: str
    cuda: str | None
    driver: str | None
    python: str
    platform: str
    allocator: str
    date: str


class TensorResult(Record):
    """One tensor of a rank. ``measured_bytes`` is its storage's; null where it was not allocated."""

    name: str
    layer: int | None
    dtype: str
    shape: tuple[int, ...]
    predicted_bytes: int
    measured_bytes: int | None


class Compared(Record):
    """One figure. A difference is measured minus predicted; beyond ``tolerance_bytes`` it is a disagreement.

    ``tolerance_bytes`` is null where the figure is for information: nothing is concluded from it.
    """

    name: str
    predicted_bytes: int | None
    measured_bytes: int | None
    difference_bytes: int | None
    tolerance_bytes: int | None

    @classmethod
    def of(cls, name: str, predicted: int | None, measured: int | None, *, tolerance: int | None = 0) -> Compared:
        """The figure with its difference. If a value is missing, the difference and the tolerance are ``None``."""
        difference = None if predicted is None or measured is None else measured - predicted
        return cls(
            name=name,
            predicted_bytes=predicted,
            measured_bytes=measured,
            difference_bytes=difference,
            tolerance_bytes=None if difference is None else tolerance,
        )

    @property
    def agrees(self) -> bool:
        """True if the difference is within the tolerance, or is not to be judged."""
        if self.tolerance_bytes is None or self.difference_bytes is None:
            return True
        return abs(self.difference_bytes) <= self.tolerance_bytes


class RankResult(Record):
    """What one rank allocated.

    ``outcome`` is ``measured``, ``out of memory`` or ``refused`` (more than was free beside the reserve; nothing was allocated).
    ``planned_bytes`` is the rank's part of the plan, ``asked_bytes`` what of it was asked for; ``scaled`` says how it was made smaller,
    null where it was not. ``filled`` says whether the pattern was read back as written, null without ``--fill``.
    """

    rank: int
    stage: int
    environment: Environment
    outcome: str
    message: str
    planned_bytes: int
    asked_bytes: int
    scaled: str | None
    most_bytes: int | None
    free_bytes: int | None
    reserve_bytes: int
    filled: bool | None
    tensors: tuple[TensorResult, ...]
    comparisons: tuple[Compared, ...]
    agrees: bool


class Probed(Record):
    """The answer of the whole probe: every rank that was measured, and whether all of it is as predicted."""

    model: str
    model_type: str
    engine: str
    engine_version: str | None
    definition: str
    seq: int
    batch: int
    kv_dtype: str
    tp: int
    pp: int
    dp: int
    dcp: int
    world: int
    ranks: tuple[RankResult, ...]
    agrees: bool
    notes: tuple[Note, ...]


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
        """True if anything is concluded from it."""
        return self.least is not None and self.most is not None

    @property
    def agrees(self) -> bool:
        """True if it lies between its bounds. A number that is missing does not."""
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
