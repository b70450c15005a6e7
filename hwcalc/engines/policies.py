"""What engines ask and say of cache policies."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar

from hwcalc.formulas.record import Record

if TYPE_CHECKING:
    from hwcalc.engines.steps import Step

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})

OpenedT = TypeVar("OpenedT")
T = TypeVar("T")


class Support(Record):
    """Whether an engine has a policy, and how; or what it would take."""

    offered: bool
    how: str
    options: Mapping[str, str] = _NOTHING
    """Engine options with which an offered policy is started."""
    flags: tuple[str, ...] = ()
    """Further words of its command line."""
    environment: tuple[str, ...] = ()
    """Variables with their values that it reads."""


class PagedGroup(Record):
    """Layers that share one block table. ``layers`` are the numbers of those that the policy cuts, and ``whole`` says that these are all.

    ``block_size`` counts tokens on all ranks together, and ``page_bytes`` is a block of all its layers on one rank. ``counted`` says how
    many blocks a sequence has at the most behind its prompt. ``prompt_tokens`` are the most of a prompt that lie in it, where a prompt is
    cut while it is read; ``None`` is all of them.
    """

    block_size: int
    layers: tuple[int, ...]
    whole: bool
    page_bytes: int
    counted: Step
    prompt_tokens: int | None = None

    @property
    def steady(self) -> int:
        """The most blocks of a sequence behind its prompt."""
        return int(self.counted.expected)
