"""What a plan says of sequences that have tokens in common: :func:`sharing_info`."""

from __future__ import annotations

from hwcalc.engines.base import Opened
from hwcalc.errors import UnsupportedError
from hwcalc.planner.sharing_result import SharingInfo

__all__ = ["sharing_info"]


def sharing_info(opened: Opened) -> SharingInfo:
    """What sequences have in common, and what that saves."""
    raise UnsupportedError(
        f"{opened.engine.label} has no rule for sharing yet.", hint="Leave out --shared-prefix, --samples and --beams."
    )
