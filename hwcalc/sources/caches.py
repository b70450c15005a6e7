"""This machine's copies of the Hub: the folder of the Hugging Face cache, and weight facts per commit.

The folder is the first of these: ``$HF_HUB_CACHE``, ``$HUGGINGFACE_HUB_CACHE`` (its old name), ``$HF_HOME/hub``,
``$XDG_CACHE_HOME/huggingface/hub``, ``~/.cache/huggingface/hub``. In ``<cache>/models--<org>--<name>``, ``blobs/<key>`` holds the
content of a file, ``snapshots/<commit>/<name>`` links to it, and ``refs/<branch>`` holds the commit. The key is git's hash of the
content, which the Hub uses as the ETag of such files. Small files are put there in the same layout, so that other programs find them.
Layout: https://huggingface.co/docs/huggingface_hub/guides/manage-cache

The files of a commit never change, so it is enough to read the headers of its weights once. The facts are in
``$XDG_CACHE_HOME/kvplan/headers/<org>--<name>/<commit>.json`` (``~/.cache`` if the variable is not set). If a file is missing,
broken or cannot be written, the headers are read again, without an error. That a commit has no weight files or damaged ones is
remembered too, with the notes of the reading.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeGuard

from hwcalc.files import write_atomically
from hwcalc.formulas.record import Record
from hwcalc.model import Note, WeightFacts

_COMMIT: Final = r"[0-9A-Za-z_-]{1,128}"
_COMMIT_START: Final = r"[0-9a-f]{4,64}"
_REPOSITORY: Final = r"(?a)models--(?:([\w.-]+?)--)?([\w.-]+)"
"""The folder of a repository, from which its id follows."""


def cache_place() -> str:
    """The path of the cache, whether or not it exists. An empty variable counts as not set."""
    environment = os.environ.get
    home = environment("HF_HOME") or os.path.join(environment("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    place = environment("HF_HUB_CACHE") or environment("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    place = os.path.expandvars(os.path.expanduser(place))
    return place if os.path.normpath(place) == place else str(Path(place))


def repository_folder(model_id: str) -> Path | None:
    """The folder of one repository; ``None`` if the cache does not have it."""
    place = os.path.join(cache_place(), f"models--{model_id.replace('/', '--')}")
    return Path(place) if os.path.isdir(place) else None


def snapshot_of(path: Path) -> tuple[str, Path] | None:
    """The id, and the folder of a commit, that a path in the cache lies in; ``None`` for a path elsewhere."""
    for folder in Path(os.path.abspath(path)).parents:
        match = re.fullmatch(_REPOSITORY, folder.parent.parent.name) if folder.parent.name == "snapshots" else None
        if match is not None:
            return f"{match[1]}/{match[2]}" if match[1] else match[2], folder
    return None


def snapshot(model_id: str, revision: str | None) -> tuple[Path, str] | None:
    """The folder of a revision's files and its commit; ``None`` if the cache does not have it."""
    folder = repository_folder(model_id)
    if folder is None:
        return None
    commit, _ = commit_of(folder, revision)
    return None if commit is None else (folder / "snapshots" / commit, commit)


def commit_of(folder: Path, revision: str | None) -> tuple[str | None, str]:
    """The commit that ``revision`` means in a repository's folder and a remark, or ``None`` and the reason."""
    names: list[str] = []
    with suppress(OSError):
        names = sorted(os.listdir(folder / "snapshots"))
    commits = [name for name in names if re.fullmatch(_COMMIT, name)]
    listed = "; it has " + ", ".join(commit[:12] for commit in commits[:4]) if commits else ""
    known = f"the Hugging Face cache has {folder.name.removeprefix('models--').replace('--', '/', 1)}"
    reference = folder / "refs" / (revision or "main")
    if os.path.isfile(reference):
        with suppress(OSError, ValueError), open(reference, encoding="ascii") as file:
            commit = file.read(256).strip()
            if re.fullmatch(_COMMIT, commit):
                return commit, ""
    if revision is None:
        if len(commits) == 1:
            return commits[0], f"The cache holds one commit, {commits[0][:12]}, and does not say that it is the main branch."
        return None, f"{known}, but no main branch{listed}"
    start = revision.lower()
    matches = [name for name in commits if re.fullmatch(_COMMIT_START, start) and name.startswith(start)]
    if len(matches) == 1:
        return matches[0], ""
    return None, f"{known}, but {'more than one' if matches else 'no'} revision {revision}{listed}"


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
    located = locate(model_id, None)
    return None if isinstance(located, str) else located[0]


def locate(model_id: str, revision: str | None) -> tuple[Path, str, str] | str:
    """Config, commit and a remark, or only the reason why the cache has no config. The reason is empty for an unknown model."""
    folder = repository_folder(model_id)
    if folder is None:
        return ""
    commit, remark = commit_of(folder, revision)
    if commit is None:
        return remark
    path = folder / "snapshots" / commit / "config.json"
    for name in ("config.json", "params.json"):
        if os.path.isfile(path.with_name(name)):
            return path.with_name(name), commit, remark
    if os.path.islink(path):
        return f"the Hugging Face cache has {model_id}, but its config.json is a link to a file that is gone"
    return f"the Hugging Face cache has {model_id} at commit {commit[:12]}, but without a config.json"


def keep_files(model_id: str, revision: str, commit: str, files: Mapping[str, bytes]) -> None:
    """Store files of one commit, and ``revision`` as a name of this commit, where the cache can be written.

    Existing files stay as they are. The reference is written last, and before it the first file, the config: a program that finds one of
    them finds all files.
    """
    import hashlib

    folder = Path(cache_place()) / f"models--{model_id.replace('/', '--')}"
    with suppress(OSError):
        for name, data in reversed(list(files.items())):
            path = folder / "snapshots" / commit / name
            if os.path.isfile(path):
                continue
            blob = folder / "blobs" / hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
            if not os.path.isfile(blob):
                write_atomically(blob, data)
            os.makedirs(path.parent, exist_ok=True)
            if os.path.islink(path):  # the link is broken
                with suppress(FileNotFoundError):
                    os.unlink(path)
            try:
                os.symlink(os.path.join("..", "..", "blobs", blob.name), path)
            except FileExistsError:
                continue
            except OSError:  # the file system has no links, so write a copy, as huggingface_hub does
                write_atomically(path, data)
        if not commit.startswith(revision.lower()):
            write_atomically(folder / "refs" / revision, commit.encode("ascii"))


_VERSION: Final = 1
_LARGEST: Final = 64 * 1024
_MOST_NOTES: Final = 8
_LONGEST_NOTE: Final = 1000


class Kept(Record):
    """One reading of a commit. ``facts`` is ``None`` if the commit has no readable weight files."""

    facts: WeightFacts | None
    notes: tuple[Note, ...] = ()


def facts_folder() -> Path | None:
    """The folder of the cache, whether or not it exists; ``None`` without a home folder."""
    base = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return Path(base) / "kvplan" / "headers" if os.path.isabs(base) else None


def cached_weights(model_id: str, commit: str) -> Kept | None:
    """The result of an earlier reading of this commit, or ``None``."""
    path = _facts_path(model_id, commit)
    try:
        with open(path or os.devnull, "rb") as file:
            document = json.loads(file.read(_LARGEST))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or document.get("schema_version") != _VERSION:
        return None
    rows = document.get("notes", [])
    if not isinstance(rows, list) or len(rows) > _MOST_NOTES:
        return None
    for row in rows:
        if not (isinstance(row, list) and len(row) == 2 and all(isinstance(text, str) and text.isprintable() for text in row)):
            return None
    notes = tuple(Note(code=code[:64], message=message[:_LONGEST_NOTE]) for code, message in rows)
    if document.get("no_weights") is True:
        return Kept(facts=None, notes=notes)
    sizes, elements = document.get("bytes_by_dtype"), document.get("elements_by_dtype")
    files, tensors, source = document.get("files"), document.get("tensors"), document.get("source")
    if not (_counts(sizes) and _counts(elements) and set(sizes) == set(elements)):
        return None
    if not (_count(files) and _count(tensors) and isinstance(source, str) and source.isprintable()):
        return None
    facts = WeightFacts(bytes_by_dtype=sizes, elements_by_dtype=elements, files=files, tensors=tensors, source=source[:200])
    return Kept(facts=facts, notes=notes)


def keep_weights(model_id: str, commit: str, facts: WeightFacts | None, notes: Iterable[Note] = ()) -> None:
    """Store the result of a reading. Nothing happens if the file cannot be written."""
    path = _facts_path(model_id, commit)
    if path is None:
        return
    document: dict[str, Any] = {"schema_version": _VERSION, "notes": [[note.code, note.message] for note in notes]}
    if facts is None:
        document["no_weights"] = True
    else:
        document |= {"bytes_by_dtype": dict(facts.bytes_by_dtype), "elements_by_dtype": dict(facts.elements_by_dtype)}
        document |= {"files": facts.files, "tensors": facts.tensors, "source": facts.source}
    with suppress(OSError):
        write_atomically(path, json.dumps(document).encode())


def _facts_path(model_id: str, commit: str) -> Path | None:
    folder = facts_folder()
    return None if folder is None else folder / model_id.replace("/", "--") / f"{commit}.json"


def _counts(value: Any) -> TypeGuard[dict[str, int]]:
    return isinstance(value, dict) and all(key.isprintable() and len(key) < 32 and _count(size) for key, size in value.items())


def _count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 2**63
