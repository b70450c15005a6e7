"""Put small files into the Hugging Face cache in the layout of huggingface_hub, so that other programs find them too.

``blobs/<key>`` holds the content, ``snapshots/<commit>/<name>`` links to it, ``refs/<branch>`` holds the commit. The key is git's
hash of the content. The Hub uses the same hash as the ETag of such files.
Layout: https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from hwcalc.files import write_atomically
from hwcalc.sources.hf_folder import cache_folder

__all__ = ["blob_key", "keep_files"]


def blob_key(data: bytes) -> str:
    """The hash that git uses for the content of a file.

    >>> blob_key(b"")
    'e69de29bb2d1d6434b8b29ae775ad8c2e48c5391'
    """
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def keep_files(model_id: str, revision: str, commit: str, files: Mapping[str, bytes]) -> bool:
    """Store files of one commit, and ``revision`` as a name of this commit. Returns whether that was possible.

    Existing files stay as they are. The reference is written last, and before it the first file, the config: a program that finds one of
    them finds all files.
    """
    folder = cache_folder() / f"models--{model_id.replace('/', '--')}"
    try:
        for name, data in reversed(list(files.items())):
            _keep(folder, commit, name, data)
        if not commit.startswith(revision.lower()):
            write_atomically(folder / "refs" / revision, commit.encode("ascii"))
    except OSError:
        return False
    return True


def _keep(folder: Path, commit: str, name: str, data: bytes) -> None:
    path = folder / "snapshots" / commit / name
    if os.path.isfile(path):
        return
    blob = folder / "blobs" / blob_key(data)
    if not os.path.isfile(blob):
        write_atomically(blob, data)
    os.makedirs(path.parent, exist_ok=True)
    if os.path.islink(path):  # the link is broken
        with suppress(FileNotFoundError):
            os.unlink(path)
    try:
        os.symlink(os.path.join("..", "..", "blobs", blob.name), path)
    except FileExistsError:
        return
    except OSError:  # the file system has no links, so write a copy, as huggingface_hub does
        write_atomically(path, data)
