"""Cloud instances and boxes: their accelerator and how many they have. One YAML file each, ``instances/<cloud>/<name>.yaml``, read compiled.

A file has the name of its instance in small letters with hyphens (``standard-nd96isr-h100-v5.yaml``). A file in the user's own
folder, ``$XDG_CONFIG_HOME/kvplan/profiles/instances``, replaces a built-in one. Prices are in ``prices/``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from hwcalc.profiles.catalog import ProfileError, changed, own
from hwcalc.profiles.compiled import names, record, records
from hwcalc.profiles.hardware_file import LONGEST_NAME, Instance, file_name, instance_of, is_file_name

_CLOUD: Final = r"[a-z0-9]{1,32}"
_AZURE = "standard-"
"""The prefix of every Azure size. People leave it out."""


class UnknownInstanceError(LookupError):
    """There is no instance of this name. ``nearest`` holds similar names."""

    def __init__(self, wanted: str, near: tuple[str, ...]) -> None:
        super().__init__(f"{wanted!r} is not a known instance")
        self.nearest = near


class AmbiguousInstanceError(LookupError):
    """Several clouds have an instance of this name. ``names`` holds the full names, with the cloud."""

    def __init__(self, wanted: str, names: tuple[str, ...]) -> None:
        super().__init__(f"{wanted!r} is the name of {', '.join(names)}")
        self.names = names


def find_instance(name: str) -> Instance:
    """The instance of this name, with or without ``cloud/`` before it. Capitals and the signs between words do not matter.

    Raises :class:`UnknownInstanceError`, :class:`AmbiguousInstanceError` if several clouds have an instance of this name, and
    :class:`~hwcalc.profiles.catalog.ProfileError` with path, line and key if the file is broken.

    >>> [find_instance(name).count for name in ("p5.48xlarge", "gcp/g2-standard-24", "ND96isr_H100_v5", "DGX H100")]
    [8, 2, 8, 8]
    """
    matches: dict[str, str | None] = {}
    cloud, query = _split(name[: 2 * LONGEST_NAME + 1])
    if len(name) <= 2 * LONGEST_NAME and is_file_name(query):
        places = {**dict.fromkeys(names("instances")), **_own_files()}
        for its_cloud in sorted({full.partition("/")[0] for full in places}) if cloud is None else [cloud]:
            full = f"{its_cloud}/{query}" if f"{its_cloud}/{query}" in places else f"{its_cloud}/{_AZURE}{query}"
            if full in places:
                matches[full] = places[full]
    if not matches:
        raise UnknownInstanceError(name[:LONGEST_NAME], nearest_instances(name))
    if len(matches) > 1:
        raise AmbiguousInstanceError(name[:LONGEST_NAME], tuple(sorted(matches)))
    ((full, file),) = matches.items()
    # A file of the user's own that has changed is read again.
    return _read(full, file, None if file is None else changed(file))


def list_instances() -> tuple[str, ...]:
    """Every ``cloud/name`` in order, with the user's own."""
    return tuple(sorted({*names("instances"), *_own_files()}))


def own_instances() -> frozenset[str]:
    """Every ``cloud/name`` in the user's own folder."""
    return frozenset(_own_files())


@lru_cache(maxsize=1)
def built_in_instances() -> Mapping[str, Instance]:
    """All built-in instances by ``cloud/name``, which are read together."""
    return MappingProxyType({name: instance_of(content) for name, content in records("instances").items()})


def nearest_instances(text: str) -> tuple[str, ...]:
    """Up to three names that are similar to ``text``, best first.

    >>> nearest_instances("p5.48xl")[0]
    'aws/p5.48xlarge'
    """
    from difflib import SequenceMatcher

    cloud, query = _split(text[:LONGEST_NAME])
    if not query:
        return ()
    scores: dict[str, float] = {}
    for name in list_instances():
        its_cloud, _, stem = name.partition("/")
        short = stem.removeprefix(_AZURE)
        score = SequenceMatcher(a=short, b=query.removeprefix(_AZURE), autojunk=False).ratio()
        score += (0.5 if short.startswith(query) else 0) + (0.2 if its_cloud == cloud else 0)
        if score > 0.6:
            scores[name] = score
    return tuple(sorted(scores, key=lambda name: (-scores[name], name))[:3])


def _split(text: str) -> tuple[str | None, str]:
    """Split ``aws/p5.48xlarge`` or ``aws:p5.48xlarge`` into cloud and file name. The cloud is ``None`` if the text has none."""
    cloud, slash, rest = text.strip().replace(":", "/", 1).partition("/")
    return (cloud.strip().lower(), file_name(rest)) if slash else (None, file_name(cloud))


def _own_files() -> dict[str, str]:
    """The user's own instances: ``cloud/name`` -> the path of the file."""
    files, folder = {}, own("instances")
    for cloud in _names(folder):
        place = os.path.join(folder or "", cloud)
        for name in _names(place) if re.fullmatch(_CLOUD, cloud) else ():
            stem = name.removesuffix(".yaml")
            if stem != name and is_file_name(stem):
                files[f"{cloud}/{stem}"] = os.path.join(place, name)
    return files


def _names(folder: str | None) -> list[str]:
    try:
        return [] if folder is None else os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ProfileError(folder or "", f"cannot be read ({error.strerror})") from error


@lru_cache(maxsize=1024)
def _read(name: str, file: str | None, state: tuple[int, int] | None) -> Instance:
    if file is None:
        return instance_of(record("instances", name))
    from pathlib import Path

    from hwcalc.profiles.schema import parse_instance, read_yaml

    return parse_instance(read_yaml(Path(file)))
