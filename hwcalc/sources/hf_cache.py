"""The Hugging Face cache on this machine, read as it lies on disk. The Hub is asked only for weight headers that nobody has read yet.

``<cache>/models--<org>--<name>/refs/<branch>`` holds a commit, ``snapshots/<commit>/config.json`` (a link into ``blobs``)
the file. Where the cache is: ``HF_HUB_CACHE``, else ``HUGGINGFACE_HUB_CACHE`` (its old name), else ``$HF_HOME/hub``, else
``$XDG_CACHE_HOME/huggingface/hub``, else ``~/.cache/huggingface/hub``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from hwcalc.formulas.frozen import replace
from hwcalc.model import Note, RawModel
from hwcalc.sources.hf_folder import cache_folder
from hwcalc.sources.wanted import Absent, Wanted
from hwcalc.text import printable

__all__ = ["cached_config", "cached_ids", "find_cached"]

_COMMIT = re.compile(r"[0-9A-Za-z_-]{1,128}")
_WHOLE_COMMIT = re.compile(r"[0-9a-f]{40}")
_COMMIT_START = re.compile(r"[0-9a-f]{4,64}")


def cached_ids() -> tuple[str, ...]:
    """Ids of the models that the cache has a folder for, config or not, in alphabetical order."""
    try:
        names = os.listdir(cache_folder())
    except OSError:
        return ()
    ids = (name.removeprefix("models--").replace("--", "/", 1) for name in names if name.startswith("models--"))
    return tuple(sorted((model_id for model_id in ids if model_id), key=str.lower))


def cached_config(model_id: str) -> Path | None:
    """The config of the main branch, if the cache has it; it is not opened."""
    found = _locate(Wanted(id=model_id))
    return None if isinstance(found, str) else found[0]


def find_cached(wanted: Wanted) -> RawModel | Absent:
    """The model from the cache. A config that is there and broken raises :class:`~hwcalc.errors.ConfigError`."""
    found = _locate(wanted)
    if isinstance(found, str):
        return Absent(place=f"the Hugging Face cache ({printable(str(cache_folder()))})", remark=found)
    from hwcalc.sources.folder import read_config

    path, commit, remark = found
    notes = [Note(code="revision", message=remark)] if remark else []
    config = read_config(path, notes)
    raw = RawModel(
        id=wanted.id,
        config=config,
        source="hf-cache",
        location=f"Hugging Face cache, commit {commit[:12]}",
        revision=commit,
        notes=tuple(notes),
    )
    return _with_weights(raw, wanted, path, commit) if wanted.weights else raw


def _with_weights(raw: RawModel, wanted: Wanted, config: Path, commit: str) -> RawModel:
    """From an earlier reading of this commit, else from the weight files if they were downloaded, else from the Hub."""
    from hwcalc.sources.facts_cache import cached_weights, keep_weights
    from hwcalc.sources.folder import weights_beside

    kept = cached_weights(wanted.id, commit)
    if kept is not None and kept.facts is not None:
        return replace(raw, weights=kept.facts, notes=(*raw.notes, *kept.notes))
    notes: list[Note] = []
    facts = weights_beside(config, notes)
    if facts is not None:
        keep_weights(wanted.id, commit, facts)
    elif kept is not None:
        notes = list(kept.notes)
    elif not wanted.offline and _WHOLE_COMMIT.fullmatch(commit):
        from hwcalc.sources.hub import with_weights

        return with_weights(raw, wanted, commit, params=config.name == "params.json")
    return replace(raw, weights=facts, notes=(*raw.notes, *notes))


def _locate(wanted: Wanted) -> tuple[Path, str, str] | str:
    """Config, commit and a remark; or only what stands in the way, empty if the cache does not know the model at all."""
    folder = cache_folder() / f"models--{wanted.id.replace('/', '--')}"
    if not os.path.isdir(folder):
        return ""
    commits = tuple(_snapshots(folder / "snapshots"))
    commit, remark = _commit(folder, wanted.revision, commits)
    if commit is None:
        return remark
    path = folder / "snapshots" / commit / "config.json"
    for name in ("config.json", "params.json"):
        if os.path.isfile(path.with_name(name)):
            return path.with_name(name), commit, remark
    if os.path.islink(path):
        return f"the Hugging Face cache has {wanted.id}, but its config.json is a link to a file that is gone"
    return f"the Hugging Face cache has {wanted.id} at commit {commit[:12]}, but without a config.json"


def _snapshots(folder: Path) -> Iterator[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return
    yield from sorted(name for name in names if _COMMIT.fullmatch(name))


def _commit(folder: Path, revision: str | None, commits: tuple[str, ...]) -> tuple[str | None, str]:
    """The commit that ``revision`` means in this folder, with a remark; or ``None`` with the reason."""
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
