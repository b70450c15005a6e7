"""What engines ask and say of cache policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from hwcalc.formulas.frozen import frozen

if TYPE_CHECKING:
    from hwcalc.policies.base import Chosen

__all__ = ["Policies", "Support"]

OpenedT = TypeVar("OpenedT")


@frozen
class Support:
    """Whether an engine has a policy, and how; or what it would take."""

    offered: bool
    how: str


class Policies(Generic[OpenedT]):
    """The part of an engine that is about cache policies. By default it has none."""

    def policy_support(self, opened: OpenedT, chosen: Chosen) -> Support:
        """Whether the engine has this policy, and how, or what it would take."""
        return Support(offered=False, how="")
