"""Accelerators: one YAML file each in ``gpus/``, file stem = id; other names of them in ``gpu_aliases.yaml``.

A user's own folder of the same format, ``$XDG_CONFIG_HOME/kvplan/profiles/gpus`` (``~/.config`` where the variable is not
set), comes first: a file there replaces the accelerator of the same id, or adds one. Looking one up reads one or two files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

from profiles.catalog import ProfileError
from profiles.gpu_file import FIELDS, LONGEST_ID, MEMORY_FIELDS, SCHEMA_VERSION, TFLOPS, Gpu, is_id, parse_gpu
from profiles.visible import VisibleMemory, usable_mib, visible_memory
from profiles.yaml_file import read_yaml

__all__ = [
    "ALIASES",
    "BUILT_IN",
    "FIELDS",
    "MEMORY_FIELDS",
    "SCHEMA_VERSION",
    "TFLOPS",
    "Gpu",
    "UnknownGpuError",
    "VisibleMemory",
    "find_gpu",
    "gpu_aliases",
    "list_gpus",
    "nearest",
    "parse_gpu",
    "usable_mib",
    "user_folder",
    "visible_memory",
]

BUILT_IN: Final = Path(__file__).with_name("gpus")
ALIASES: Final = Path(__file__).with_name("gpu_aliases.yaml")

_SPOKEN = re.compile(r"[a-z0-9 _-]{1,64}", re.ASCII)


class UnknownGpuError(LookupError):
    """No accelerator of this name; ``nearest`` are ids that may have been meant."""

    def __init__(self, wanted: str, near: tuple[str, ...]) -> None:
        super().__init__(f"{wanted!r} is not a known accelerator")
        self.wanted = wanted
        self.nearest = near


def user_folder() -> Path | None:
    """The user's own ``gpus`` folder, there or not; ``None`` where the system names no home."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return None if base.startswith("~") else Path(base) / "kvplan" / "profiles" / "gpus"


def find_gpu(name: str) -> Gpu:
    """The accelerator of this id or alias, in any case; hyphens, spaces and the vendor's name do not matter.

    Raises :class:`UnknownGpuError` if there is none, and :class:`~profiles.catalog.ProfileError` with path, line and key if its
    file is broken.

    >>> [find_gpu(name).id for name in ("h100", "RTX 4090", "4090", "mi300x", "NVIDIA L4")]
    ['h100-sxm5-80gb', 'rtx-4090', 'rtx-4090', 'mi300x', 'l4']
    """
    found = _resolve(name)
    if found is None:
        raise UnknownGpuError(name[:LONGEST_ID], nearest(name))
    path, user = found
    return _load(path, user)


def list_gpus() -> tuple[str, ...]:
    """All ids, the user's own included, in alphabetical order; from the folders' listings alone, no file is opened."""
    return tuple(sorted(_paths()))


def gpu_aliases() -> Mapping[str, str]:
    """Other names: alias -> id."""
    return _aliases()


def nearest(text: str, count: int = 3) -> tuple[str, ...]:
    """Up to ``count`` ids that someone may have meant by ``text``, best first.

    >>> nearest("h10")[0]
    'h100-sxm5-80gb'
    """
    from difflib import SequenceMatcher

    wanted = _squashed(text[:LONGEST_ID])
    if not wanted:
        return ()
    names = {**{name: name for name in _paths()}, **_aliases()}
    best: dict[str, float] = {}
    for name, gpu_id in names.items():
        squashed = _squashed(name)
        score = SequenceMatcher(a=squashed, b=wanted, autojunk=False).ratio() + (0.5 if squashed.startswith(wanted) else 0)
        if score > max(0.6, best.get(gpu_id, 0)):
            best[gpu_id] = score
    return tuple(sorted(best, key=lambda gpu_id: (-best[gpu_id], gpu_id))[:count])


def _squashed(text: str) -> str:
    """``NVIDIA RTX 4090`` and ``rtx-4090`` as one name."""
    low = "".join(letter for letter in text.lower() if letter.isascii() and letter.isalnum())
    for vendor in ("nvidia", "amd", "intel", "geforce", "instinct", "tesla"):
        low = low.removeprefix(vendor)
    return low


def _paths() -> dict[str, tuple[Path, bool]]:
    """Id -> its file, and whether it is the user's own."""
    found = {path.stem: (path, False) for path in BUILT_IN.glob("*.yaml")}
    own = user_folder()
    if own is None or not os.path.isdir(own):
        return found
    try:
        names = sorted(os.listdir(own))
    except OSError as error:
        raise ProfileError(own, f"cannot be read ({error.strerror})") from error
    for name in names:
        stem = name.removesuffix(".yaml")
        if stem != name and is_id(stem):
            found[stem] = (own / name, True)
    return found


def _resolve(name: str) -> tuple[Path, bool] | None:
    """The file of this id or alias."""
    text = name.strip().lower()
    if _SPOKEN.fullmatch(text) is None:
        return None
    own = user_folder()
    for gpu_id in (text, _aliases().get(text, "")):
        if not is_id(gpu_id):
            continue
        if own is not None and os.path.lexists(own / f"{gpu_id}.yaml"):
            return own / f"{gpu_id}.yaml", True
        if os.path.exists(BUILT_IN / f"{gpu_id}.yaml"):
            return BUILT_IN / f"{gpu_id}.yaml", False
    paths, wanted = _paths(), _squashed(text)
    if not wanted:
        return None
    for gpu_id in (*paths, *_aliases()):
        if _squashed(gpu_id) == wanted:
            return paths.get(_aliases().get(gpu_id, gpu_id))
    return None


@lru_cache(maxsize=1)
def _aliases() -> Mapping[str, str]:
    file = read_yaml(ALIASES)
    for alias, gpu_id in file.data.items():
        if not isinstance(alias, str) or not is_id(alias) or not isinstance(gpu_id, str):
            raise ProfileError(ALIASES, "must be an id", line=file.line(str(alias)), key=str(alias))
    return MappingProxyType(dict(file.data))


@lru_cache(maxsize=64)
def _read(path: Path, user: bool, changed: int) -> Gpu:
    return parse_gpu(read_yaml(path), user=user)


def _load(path: Path, user: bool) -> Gpu:
    """A file is read again when it has changed."""
    try:
        changed = os.stat(path).st_mtime_ns
    except OSError as error:
        raise ProfileError(path, f"cannot be read ({error.strerror})") from error
    return _read(path, user, changed)
