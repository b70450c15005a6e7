"""A fact file of the user's own, which may change while a program runs."""

from __future__ import annotations

import os

from hwcalc.profiles.catalog import ProfileError

__all__ = ["changed_ns"]


def changed_ns(path: str) -> int:
    """When the file was last changed, in nanoseconds. Raises :class:`~hwcalc.profiles.catalog.ProfileError` if that cannot be told."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError as error:
        raise ProfileError(path, f"cannot be read ({error.strerror})") from error
