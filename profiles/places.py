"""Where fact files lie: those of the package, and the user's own. Paths are text here."""

from __future__ import annotations

import os
from functools import lru_cache

from hwcalc.data import data_file

__all__ = ["built_in", "own"]


def built_in(*names: str) -> str:
    """The path of a fact file of the package, or of a folder of them."""
    return str(data_file(__file__, *names))


def own(*names: str) -> str | None:
    """The path of a fact file of the user's own, whether or not it exists; ``None`` without a home folder.

    It is in ``$XDG_CONFIG_HOME/kvplan/profiles``, or in ``~/.config`` if the variable is not set.
    """
    get = os.environ.get
    # Every plan on a GPU asks a few times, and these are the variables that may change in between.
    return _own(get("XDG_CONFIG_HOME"), get("USERPROFILE" if os.name == "nt" else "HOME"), names)


@lru_cache(maxsize=512)
def _own(base: str | None, home: str | None, names: tuple[str, ...]) -> str | None:
    base = base or os.path.expanduser("~/.config")
    return None if base.startswith("~") else os.path.join(base, "kvplan", "profiles", *names)
