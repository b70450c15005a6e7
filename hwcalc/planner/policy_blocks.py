"""What a policy gives back of the blocks of one sequence: :func:`policy_blocks`."""

from __future__ import annotations

from hwcalc.engines.base import Opened
from hwcalc.engines.evicting import Evicted
from hwcalc.planner.policy_result import PolicyBlocks

__all__ = ["policy_blocks"]


def policy_blocks(opened: Opened, evicted: Evicted) -> PolicyBlocks | None:
    """Blocks behind the largest cut; ``None`` if the cache has no blocks, or nothing is dropped."""
    return None
