"""The folder of the Hugging Face cache, and which commits of a repository it has."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["cache_folder", "cache_place", "commit_of", "repository_folder", "snapshot"]

_COMMIT = re.compile(r"[0-9A-Za-z_-]{1,128}")
_COMMIT_START = re.compile(r"[0-9a-f]{4,64}")


def cache_place() -> str:
    """The path of the cache, whether or not it exists. An empty variable counts as not set."""
    environment = os.environ.get
    home = environment("HF_HOME") or os.path.join(environment("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    place = environment("HF_HUB_CACHE") or environment("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    place = os.path.expandvars(os.path.expanduser(place))
    return place if os.path.normpath(place) == place else str(_path(place))


def cache_folder() -> Path:
    """The folder of the cache, whether or not it exists."""
    return _path(cache_place())


def _path(place: str) -> Path:
    from pathlib import Path

    return Path(place)


def repository_folder(model_id: str) -> Path | None:
    """The folder of one repository; ``None`` if the cache does not have it."""
    place = os.path.join(cache_place(), f"models--{model_id.replace('/', '--')}")
    return _path(place) if os.path.isdir(place) else None


def snapshot(model_id: str, revision: str | None) -> tuple[Path, str] | None:
    """The folder of a revision's files and its commit; ``None`` if the cache does not have it."""
    folder = repository_folder(model_id)
    if folder is None:
        return None
    commit, _ = commit_of(folder, revision)
    return None if commit is None else (folder / "snapshots" / commit, commit)


def _snapshots(folder: Path) -> Iterator[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return
    yield from sorted(name for name in names if _COMMIT.fullmatch(name))


def commit_of(folder: Path, revision: str | None) -> tuple[str | None, str]:
    """The commit that ``revision`` means in a repository's folder and a remark, or ``None`` and the reason."""
    commits = tuple(_snapshots(folder / "snapshots"))
    listed = "; it has " + ", ".join(commit[:12] for commit in commits[:4]) if commits else ""
    known = f"the Hugging Face cache has {folder.name.removeprefix('models--').replace('--', '/', 1)}"
    commit = _reference(folder / "refs" / (revision or "main"))
    if commit is not None:
        return commit, ""
    if revision is None:
        if len(commits) == 1:
            return commits[0], f"The cache holds one commit, {commits[0][:12]}, and does not say that it is the main branch."
        return None, f"{known}, but no main branch{listed}"
    start = revision.lower()
    matches = [name for name in commits if _COMMIT_START.fullmatch(start) and name.startswith(start)]
    if len(matches) == 1:
        return matches[0], ""
    return None, f"{known}, but {'more than one' if matches else 'no'} revision {revision}{listed}"


def _reference(path: Path) -> str | None:
    if not os.path.isfile(path):
        return None
    try:
        with open(path, encoding="ascii") as file:
            commit = file.read(256).strip()
    except (OSError, ValueError):
        return None
    return commit if _COMMIT.fullmatch(commit) else None
