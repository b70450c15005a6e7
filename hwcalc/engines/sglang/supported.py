"""What SGLang 0.5.23 refuses."""

from __future__ import annotations

from hwcalc.engines.noted import Noted
from hwcalc.engines.sglang.opened import SglangOpened

__all__ = ["check_supported"]


def check_supported(opened: SglangOpened) -> Noted[None]:
    """Raise an error for a model or a request that SGLang refuses, or that kvplan has no rules for. Notes say what is assumed."""
    opened.compressed or opened.layout  # noqa: B018 - refuses kinds without a rule
    return Noted(None)
