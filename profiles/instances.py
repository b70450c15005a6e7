"""Cloud instances and boxes: their accelerator and how many they have. One YAML file each, ``instances/<cloud>/<name>.yaml``, read compiled.

A file has the name of its instance in small letters with hyphens (``standard-nd96isr-h100-v5.yaml``). A file in the user's own
folder, ``$XDG_CONFIG_HOME/kvplan/profiles/instances``, replaces a built-in one. No file has a price.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from hwcalc.profiles.catalog import ProfileError, changed_ns, own
from hwcalc.profiles.compiled import names, record, records
from hwcalc.profiles.hardware_file import LONGEST_NAME, Instance, file_name, instance_of, is_file_name

if TYPE_CHECKING:
    from pathlib import Path

_CLOUD: Final = r"[a-z0-9]{1,32}"
_AZURE = "standard-"
"""The prefix of every Azure size. People leave it out."""


class UnknownInstanceError(LookupError):
    """There is no instance of this name. ``nearest`` holds similar names."""

    def __init__(self, wanted: str, near: tuple[str, ...]) -> None:
        super().__init__(f"{wanted!r} is not a known instance")
        self.wanted = wanted
        self.nearest = near


class AmbiguousInstanceError(LookupError):
    """Several clouds have an instance of this name. ``names`` holds the full names, with the cloud."""

    def __init__(self, wanted: str, names: tuple[str, ...]) -> None:
        super().__init__(f"{wanted!r} is the name of {', '.join(names)}")
        self.wanted = wanted
        self.names = names


def user_folder() -> Path | None:
    """The user's own ``instances`` folder, whether or not it exists; ``None`` without a home folder."""
    from pathlib import Path

    place = own("instances")
    return None if place is None else Path(place)


def find_instance(name: str) -> Instance:
    """The instance of this name, with or without ``cloud/`` before it. Capitals and the signs between words do not matter.

    Raises :class:`UnknownInstanceError`, :class:`AmbiguousInstanceError` if several clouds have an instance of this name, and
    :class:`~hwcalc.profiles.catalog.ProfileError` with path, line and key if the file is broken.

    >>> [find_instance(name).count for name in ("p5.48xlarge", "gcp/g2-standard-24", "ND96isr_H100_v5", "DGX H100")]
    [8, 2, 8, 8]
    """
    matches = _matching(name)
    if not matches:
        raise UnknownInstanceError(name[:LONGEST_NAME], nearest_instances(name))
    if len(matches) > 1:
        raise AmbiguousInstanceError(name[:LONGEST_NAME], tuple(sorted(matches)))
    ((full, file),) = matches.items()
    return _load(full, file)


def list_instances() -> tuple[str, ...]:
    """Every ``cloud/name`` in order, with the user's own."""
    return tuple(sorted({*names("instances"), *_own_files()}))


def own_instances() -> frozenset[str]:
    """Every ``cloud/name`` in the user's own folder."""
    return frozenset(_own_files())


@lru_cache(maxsize=1)
def built_in_instances() -> Mapping[str, Instance]:
    """All built-in instances by ``cloud/name``, which are read together."""
    found = records("instances").items()
    return MappingProxyType({name: instance_of(content) for name, content in found})


def nearest_instances(text: str, count: int = 3) -> tuple[str, ...]:
    """Up to ``count`` names that are similar to ``text``, best first.

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
    return tuple(sorted(scores, key=lambda name: (-scores[name], name))[:count])


def _split(text: str) -> tuple[str | None, str]:
    """Split ``aws/p5.48xlarge`` into cloud and file name. The cloud is ``None`` if the text has none."""
    cloud, slash, rest = text.strip().partition("/")
    return (cloud.strip().lower(), file_name(rest)) if slash else (None, file_name(cloud))


def _matching(name: str) -> dict[str, str | None]:
    """All instances with this name: ``cloud/name`` -> the path of the user's own file."""
    if len(name) > 2 * LONGEST_NAME:
        return {}
    cloud, query = _split(name)
    if not is_file_name(query):
        return {}
    matches: dict[str, str | None] = {}
    for one in _clouds():
        if cloud not in {None, one}:
            continue
        for full in (f"{one}/{query}", f"{one}/{_AZURE}{query}"):
            file = own("instances", f"{full}.yaml")
            if file is not None and os.path.lexists(file):
                matches[full] = file
                break
            if full in names("instances"):
                matches[full] = None
                break
    return matches


def _clouds() -> list[str]:
    """All clouds, with those of the user's own folder."""
    known = {name.partition("/")[0] for name in names("instances")}
    return sorted(known.union(name for name in _names(own("instances")) if re.fullmatch(_CLOUD, name)))


def _own_files() -> dict[str, str]:
    """The user's own instances: ``cloud/name`` -> the path of the file."""
    folder = own("instances")
    return {
        f"{cloud}/{stem}": os.path.join(folder, cloud, name)
        for cloud in _names(folder)
        if folder is not None and re.fullmatch(_CLOUD, cloud)
        for name in _names(os.path.join(folder, cloud))
        if (stem := name.removesuffix(".yaml")) != name and is_file_name(stem)
    }


def _names(folder: str | None) -> list[str]:
    if folder is None:
        return []
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ProfileError(folder, f"cannot be read ({error.strerror})") from error


def _load(name: str, file: str | None) -> Instance:
    """Load one instance. A file of the user's own that has changed is read again."""
    if file is None:
        return _built_in(name)
    return _own(file, changed_ns(file))


@lru_cache(maxsize=512)
def _built_in(name: str) -> Instance:
    return instance_of(record("instances", name))


@lru_cache(maxsize=512)
def _own(file: str, changed: int) -> Instance:
    from pathlib import Path

    from hwcalc.profiles.hardware_schema import parse_instance
    from hwcalc.profiles.schema import read_yaml

    return parse_instance(read_yaml(Path(file)), user=True)
