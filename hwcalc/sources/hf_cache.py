"""The Hugging Face cache on this machine as a source. The Hub is asked only for weight headers that were never read before.

``<cache>/models--<org>--<name>/refs/<branch>`` holds a commit. ``snapshots/<commit>/config.json`` is the file, a link into
``blobs``. The first of these is the cache: ``$HF_HUB_CACHE``, ``$HUGGINGFACE_HUB_CACHE`` (its old name), ``$HF_HOME/hub``,
``$XDG_CACHE_HOME/huggingface/hub``, ``~/.cache/huggingface/hub``.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hwcalc.model import Note, RawModel
from hwcalc.sources.hf_folder import cache_place, commit_of, repository_folder
from hwcalc.sources.wanted import Absent, Wanted
from hwcalc.text import printable

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["cached_config", "cached_ids", "find_cached"]

_WHOLE_COMMIT = re.compile(r"[0-9a-f]{40}")


def cached_ids() -> tuple[str, ...]:
    """The ids of all models with a folder in the cache, in alphabetical order. The folder may lack a config."""
    try:
        names = os.listdir(cache_place())
    except OSError:
        return ()
    ids = (name.removeprefix("models--").replace("--", "/", 1) for name in names if name.startswith("models--"))
    return tuple(sorted((model_id for model_id in ids if model_id), key=str.lower))


def cached_config(model_id: str) -> Path | None:
    """The path of the config of the main branch, or ``None`` if the cache does not have it."""
    located = _locate(Wanted(id=model_id))
    return None if isinstance(located, str) else located[0]


def find_cached(wanted: Wanted) -> RawModel | Absent:
    """The model from the cache. Raises :class:`~hwcalc.errors.ConfigError` for a broken config."""
    located = _locate(wanted)
    if isinstance(located, str):
        return Absent(place=f"the Hugging Face cache ({printable(cache_place())})", remark=located)
    from hwcalc.sources.folder import read_config

    path, commit, remark = located
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
    """The model with its weight facts, from an earlier reading of this commit, from downloaded files, or from the Hub."""
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
    """Config, commit and a remark, or only the reason why the cache has no config. The reason is empty for an unknown model."""
    folder = repository_folder(wanted.id)
    if folder is None:
        return ""
    commit, remark = commit_of(folder, wanted.revision)
    if commit is None:
        return remark
    path = folder / "snapshots" / commit / "config.json"
    for name in ("config.json", "params.json"):
        if os.path.isfile(path.with_name(name)):
            return path.with_name(name), commit, remark
    if os.path.islink(path):
        return f"the Hugging Face cache has {wanted.id}, but its config.json is a link to a file that is gone"
    return f"the Hugging Face cache has {wanted.id} at commit {commit[:12]}, but without a config.json"
