"""GGUF files of the Hub that this machine has: downloads in the Hugging Face cache, and headers that were read before."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from hwcalc.model import Note, RawModel
from hwcalc.sources.gguf.choose import matching, word_for
from hwcalc.sources.gguf.hub import described
from hwcalc.sources.gguf.kept import kept_headers
from hwcalc.sources.gguf.local import from_file
from hwcalc.sources.gguf.names import is_gguf
from hwcalc.sources.hf_folder import snapshot
from hwcalc.sources.wanted import Absent, Wanted
from hwcalc.text import shown

__all__ = ["find_gguf_here"]

_MOST_LISTED: Final = 10_000
"""Most files of a snapshot that are looked at."""


def find_gguf_here(wanted: Wanted) -> RawModel | Absent:
    """The model from files that the Hugging Face cache has, or from headers that were read before.

    Without a file or quantisation in the name, a repository with a config is left to others.
    """
    found = snapshot(wanted.id, wanted.revision)
    if found is not None:
        folder, commit = found
        if wanted.file is None and os.path.lexists(folder / "config.json"):
            return Absent(place="")
        names = matching(_files_of(folder), wanted.file or "")
        if len(names) == 1:
            return _from_cache(wanted, folder, commit, names[0])
    kept = kept_headers(wanted)
    if kept is None:
        # A bare id may mean models that are no GGUF files: only a name with a file says that one is wanted.
        return Absent(place="" if wanted.file is None else "the Hugging Face cache")
    return described(wanted, kept, "its header was read before")


def _from_cache(wanted: Wanted, folder: Path, commit: str, name: str) -> RawModel:
    at = f"the Hugging Face cache, commit {commit[:12]}"
    note = Note(code="gguf-file", message=f"Planned is {shown(name)} of {wanted.id}, as {at}, has it.")
    known = word_for(name, wanted.file)
    return replace(from_file(folder / name, id=f"{wanted.id}:{known}", location=wanted.name, notes=(note,)), revision=commit)


def _files_of(folder: Path) -> list[str]:
    """The GGUF files of a snapshot, those in its folders too, that are there whole."""
    found: list[str] = []
    for place, folders, names in os.walk(folder):
        folders.sort()
        found += (
            Path(place, name).relative_to(folder).as_posix()
            for name in names
            if is_gguf(name) and os.path.isfile(os.path.join(place, name))
        )
        if len(found) > _MOST_LISTED:
            break
    return found
