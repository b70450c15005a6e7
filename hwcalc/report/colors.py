"""The colours that say something, wherever they stand."""

from __future__ import annotations

from typing import Final

__all__ = ["AGREES", "DIFFERS", "UNSURE", "VERDICT_COLORS"]

UNSURE: Final = "yellow"
VERDICT_COLORS: Final = {"fits": "green", "probably fits": UNSURE, "probably not": UNSURE, "does not fit": "red"}
"""The colour of each verdict's words."""
AGREES: Final = "green"
DIFFERS: Final = "red"
