"""The GGUF models that are on this machine already, by their names and sizes. No file is opened."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from hwcalc.formulas.record import Record
from hwcalc.model import OLLAMA
from hwcalc.sources.gguf.names import is_gguf, models_of, part_of
from hwcalc.sources.hf_cache import cached_ids
from hwcalc.sources.hf_folder import snapshot
from hwcalc.sources.ollama import model_file, ollama_models, ollama_stores
from hwcalc.text import printable

__all__ = ["InstalledModel", "installed_models", "models_in_folder"]

MOST_FILES: Final = 20_000
"""Most GGUF files of a folder that are looked at."""
_DEEPEST: Final = 6
_FOLDERS: Final = ("~/.lmstudio/models", "~/.cache/lm-studio/models", "~/.cache/llama.cpp")
"""Where LM Studio, its earlier releases and earlier releases of llama.cpp keep files."""


class InstalledModel(Record):
    """A model in one file or several. ``name`` names it on a command line; ``path`` is its file, or the first of several.

    ``source`` is ``hf-cache``, ``ollama`` or ``folder``.
    """

    name: str
    path: Path
    bytes: int
    source: str


def installed_models(folders: Iterable[str | os.PathLike[str]] = ()) -> list[InstalledModel]:
    """All GGUF models in the Hugging Face cache, in Ollama's store and in folders, each file once, in alphabetical order.

    Those of other programs' folders are listed too. Models in several files of which one is missing are left out.
    """
    places = [Path(os.path.expanduser(os.fspath(folder))) for folder in (*folders, *_FOLDERS)]
    found: dict[str, InstalledModel] = {}
    for model in (*_cached(), *_of_ollama(), *(one for place in places for one in models_in_folder(place))):
        found.setdefault(os.path.realpath(model.path), model)
    return sorted(found.values(), key=lambda model: (model.name.lower(), model.name))


def models_in_folder(folder: Path) -> Iterator[InstalledModel]:
    """The models in a folder and in those below it."""
    for path, size in _models_below(folder):
        yield InstalledModel(name=printable(str(path)), path=path, bytes=size, source="folder")


def _cached() -> Iterator[InstalledModel]:
    for model_id in cached_ids():
        found = snapshot(model_id, None)
        if found is None:
            continue
        for path, size in _models_below(found[0]):
            name = f"{model_id}:{path.relative_to(found[0]).as_posix()}"
            yield InstalledModel(name=printable(name), path=path, bytes=size, source="hf-cache")


def _of_ollama() -> Iterator[InstalledModel]:
    for store in ollama_stores():
        for model, manifest in ollama_models(store):
            found = model_file(store, manifest)
            if found is not None:
                yield InstalledModel(name=OLLAMA + model.short, path=found[0], bytes=found[1], source="ollama")


def _models_below(folder: Path) -> Iterator[tuple[Path, int]]:
    """The first files and the bytes of all models below a folder."""
    count = 0
    for place, folders, names in os.walk(folder):
        depth = len(Path(place).relative_to(folder).parts)
        folders[:] = sorted(name for name in folders if not name.startswith(".")) if depth < _DEEPEST else []
        files = [name for name in names if is_gguf(name)]
        count += len(files)
        if count > MOST_FILES:
            return
        for name in models_of(files):
            part = part_of(name)
            sizes = [_size(os.path.join(place, one)) for one in ((name,) if part is None else part.names)]
            if None not in sizes:
                yield Path(place, name), sum(size or 0 for size in sizes)


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None
