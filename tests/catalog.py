"""The built-in catalog for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hwcalc.profiles.catalog import find_entry


def find_model(model_id: str) -> Mapping[str, Any] | None:
    """The content of the file for this id, or ``None``."""
    entry = find_entry(model_id)
    return None if entry is None else entry.data
