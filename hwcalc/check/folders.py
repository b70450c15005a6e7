"""The files that paths name: those of a pattern, and those of a folder that may hold commands or manifests."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from hwcalc.check.file import CheckFileError
from hwcalc.check.models import SUFFIX
from hwcalc.launch.named import named_launch
from hwcalc.text import printable

_SKIPPED: Final = frozenset({"node_modules", "__pycache__", "venv"})
"""Folders in which nobody keeps manifests of their own; those whose names begin with a dot are left out too."""
MOST_FILES: Final = 10_000
"""Files of a folder."""


def files_in(paths: Sequence[str]) -> dict[str, bool]:
    """The files of these paths, each once, and whether it is merely one of a folder: those that match a pattern, and those of a folder that may
    hold commands or manifests, by their names. Locks are no such files.

    Raises :class:`~hwcalc.check.file.CheckFileError` for a folder of too many files.
    """
    out: dict[str, bool] = {}
    for path in paths:
        if path != "-" and any(sign in path for sign in "*?[") and not os.path.lexists(path):
            from glob import glob

            found = sorted(each for each in glob(path, recursive=True) if os.path.isfile(each) and not each.endswith(SUFFIX))
            out |= dict.fromkeys(found or [path], False)
        elif path != "-" and os.path.isdir(path):
            walked = list(islice(_walked(path), MOST_FILES + 1))
            if len(walked) > MOST_FILES:
                raise CheckFileError(f"{printable(path)} has more than {MOST_FILES:,} files.", hint="Name a folder in it.")
            out |= {name: True for name in walked if name not in out}
        else:
            out[path] = False
    return out


def _walked(folder: str) -> Iterator[str]:
    """The files of a folder that may hold commands or manifests, by their names, and no locks. Links to folders are not followed."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith(".") and each not in _SKIPPED)
        yield from (
            os.path.normpath(os.path.join(place, name))
            for name in sorted(files)
            if (named_launch(name) or "." not in name) and not name.endswith(SUFFIX)
        )
