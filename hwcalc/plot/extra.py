"""The two packages that draw, of the extra ``plot``: imported when something is drawn."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hwcalc.errors import UsageError


def drawing(package: str, *, what: str) -> Any:
    """The package. Raises :class:`~hwcalc.errors.UsageError` if it is not installed."""
    try:
        return import_module(package)
    except ImportError as error:
        raise UsageError(
            f"{what} needs {package}, which is not installed.", hint="Install it: pip install 'hwcalc[plot]'"
        ) from error
