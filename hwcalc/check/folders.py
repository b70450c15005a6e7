"""The files that paths name: those of a pattern, those of a folder that may hold commands or manifests, and those that read what is named."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

from hwcalc.check.file import CheckFileError, read_text
from hwcalc.check.models import SUFFIX
from hwcalc.launch.env_file import NAME as ENV_FILE
from hwcalc.launch.manifests import is_compose
from hwcalc.launch.named import named_launch
from hwcalc.text import printable
from hwcalc.yaml_tree import LARGEST_MANIFEST

_SKIPPED: Final = frozenset({"node_modules", "__pycache__", "venv"})
"""Folders in which nobody keeps manifests of their own; those whose names begin with a dot are left out too."""
_OF_VARIABLES: Final = re.compile(r"^\.env\.|\.env$")
"""In the names of files of variables."""
MOST_FILES: Final = 10_000
"""Files of a folder."""


def files_in(paths: Sequence[str], env_file: str = "") -> dict[str, bool]:
    """The files of these paths, each once, and whether it is merely one of a folder: those that match a pattern, and those of a folder that may
    hold commands or manifests, by their names. Locks are no such files. A lock that is named stands for the file that it is of, and a file of
    variables, such as ``env_file`` of the user, for the Compose files beside it that read it: a hook is given what has changed.

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
            out |= dict.fromkeys(_read_with(path, env_file), False)
    return out


def _read_with(path: str, env_file: str) -> Sequence[str]:
    """The files that are checked for a path: itself, or those that read it."""
    folder, name = os.path.split(path)
    of_lock = path.removesuffix(SUFFIX)
    if of_lock != path and os.path.isfile(of_lock):
        return [of_lock]
    of_all = name == ENV_FILE or (bool(env_file) and os.path.normpath(path) == os.path.normpath(env_file))
    if of_all or _OF_VARIABLES.search(name):
        return [each for each in _yaml_in(folder) if _reads(each, "" if of_all else name)] or [path]
    return [path]


def _yaml_in(folder: str) -> Iterator[str]:
    """The files of YAML in a folder; none of one that cannot be read."""
    with suppress(OSError):
        for name in sorted(os.listdir(folder or os.curdir)):
            if name.endswith((".yaml", ".yml")):
                yield os.path.join(folder, name)


def _reads(path: str, name: str) -> bool:
    """True for a file of Compose, which reads the ``.env`` beside it by itself, and others that it names."""
    with suppress(CheckFileError):
        text = read_text(path, LARGEST_MANIFEST)
        return name in text and is_compose(text)
    return False


def _walked(folder: str) -> Iterator[str]:
    """The files of a folder that may hold commands or manifests, by their names, and no locks. Links to folders are not followed."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith(".") and each not in _SKIPPED)
        yield from (
            os.path.normpath(os.path.join(place, name))
            for name in sorted(files)
            if (named_launch(name) or "." not in name) and not name.endswith(SUFFIX)
        )
