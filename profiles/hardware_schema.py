"""The form of ``hardware.yaml``: how much of an accelerator's memory a program sees."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from hwcalc.profiles.schema import Date, Estimate, FactFile, Facts, Positive, Share, Whole, Words, WrongKeyError

__all__ = ["HardwareFile"]


def _of_one(share: Estimate) -> Estimate:
    if share.high > 1:
        raise ValueError("must be shares of at most 1")
    return share


EstimatedShare = Annotated[Estimate, AfterValidator(_of_one)]


class VisibleShare(Facts):
    """What torch sees, as a share of what is known."""

    of_tool: EstimatedShare
    of_tool_amd: EstimatedShare
    of_marketing: EstimatedShare


class Reading(Facts):
    """What Metal reported on a Mac, in 10^6 bytes."""

    ram_gib: Whole
    megabytes: Positive
    macos: Words

    @model_validator(mode="after")
    def _is_of_the_memory(self) -> Self:
        if self.megabytes * 10**6 > self.ram_gib * 1024**3:
            raise WrongKeyError("megabytes", "must be no more than the memory")
        return self


class Step(Facts):
    """The share of a Mac's memory that Metal allows from a size on."""

    from_gib: Annotated[int, Field(ge=0, description="a whole number of GiB")]
    share: Share


def _rising(steps: list[Step]) -> list[Step]:
    starts = [step.from_gib for step in steps]
    if starts[:1] != [0] or not all(lower < higher for lower, higher in pairwise(starts)):
        raise ValueError("must begin at 0 and rise")
    return steps


Rule = Annotated[list[Step], AfterValidator(_rising)]


class Metal(Facts):
    """What Metal lets a GPU use of a Mac's memory."""

    readings: Annotated[list[Reading], Field(min_length=1)]
    older_rule: Rule
    newer_rule: Rule
    raise_with: Words
    source: Words


class HardwareFile(FactFile):
    """``hardware.yaml``, whose comments say what each number is."""

    id: Words
    recorded: Date
    visible_share: VisibleShare
    metal: Metal

    def place(self) -> tuple[str, ...]:
        return (f"{self.id}.yaml",)
