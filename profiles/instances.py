"""Cloud instances and boxes: their accelerator and how many they have. One YAML file each, ``instances/<cloud>/<name>.yaml``, read compiled.

A file has the name of its instance in small letters with hyphens (``standard-nd96isr-h100-v5.yaml``). A file in the user's own
folder, ``$XDG_CONFIG_HOME/kvplan/profiles/instances``, replaces a built-in one. No file has a price.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from hwcalc.formulas.frozen import frozen
from hwcalc.profiles.catalog import ProfileError
from hwcalc.profiles.compiled import names, record, records
from hwcalc.profiles.estimate import parse_share, wrong
from hwcalc.profiles.fields import Field, check, date, sources, text, version, whole
from hwcalc.profiles.gpu_file import is_id

if TYPE_CHECKING:
    from hwcalc.profiles.yaml_file import YamlFile

__all__ = [
    "BUILT_IN",
    "FIELDS",
    "SCHEMA_VERSION",
    "AmbiguousInstanceError",
    "Instance",
    "UnknownInstanceError",
    "built_in_instances",
    "file_name",
    "find_instance",
    "list_instances",
    "nearest_instances",
    "own_instances",
    "parse_instance",
    "user_folder",
]

SCHEMA_VERSION: Final = 1
BUILT_IN: Final = Path(__file__).with_name("instances")

_LONGEST = 96
_MOST = 100_000
_SLUG = re.compile(r"[a-z0-9]+(?:[.-][a-z0-9]+)*")
_CLOUD = re.compile(r"[a-z0-9]{1,32}")
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


@frozen
class Instance:
    """``count`` accelerators of one kind, rented or sold together."""

    id: str
    """The name as the cloud spells it."""
    cloud: str
    accelerator: str
    """Id of a file in ``gpus/``."""
    count: int
    fabric: str | None = None
    """What connects the accelerators if there are several."""
    fraction: tuple[int, int] | None = None
    """The share of one accelerator, as two numbers: ``(1, 8)``. ``None`` means whole accelerators."""
    memory_mib: int | None = None
    """The memory of a share, as the cloud's interface reports it."""
    note: str | None = None
    source: str = ""
    path: Path | None = None
    user: bool = False
    """Whether the file is the user's own."""

    @property
    def name(self) -> str:
        """The full name with the cloud, which is unique: ``aws/p5.48xlarge``."""
        return f"{self.cloud}/{file_name(self.id)}"


def user_folder() -> Path | None:
    """The user's own ``instances`` folder, whether or not it exists; ``None`` without a home folder."""
    from hwcalc.profiles import gpus

    folder = gpus.user_folder()
    return None if folder is None else folder.with_name("instances")


def file_name(name: str) -> str:
    """The stem of an instance's file: small letters, digits and points; a hyphen replaces everything else.

    >>> file_name("Standard_ND96isr_H100_v5"), file_name("DGX-1 (V100 16 GB)"), file_name("p5.48xlarge")
    ('standard-nd96isr-h100-v5', 'dgx-1-v100-16-gb', 'p5.48xlarge')
    """
    kept = "".join(letter if letter == "." or (letter.isascii() and letter.isalnum()) else "-" for letter in name.lower())
    return "-".join(filter(None, (part.strip(".") for part in kept.split("-"))))


def find_instance(name: str) -> Instance:
    """The instance of this name, with or without ``cloud/`` before it. Capitals and the signs between words do not matter.

    Raises :class:`UnknownInstanceError`, :class:`AmbiguousInstanceError` if several clouds have an instance of this name, and
    :class:`~hwcalc.profiles.catalog.ProfileError` with path, line and key if the file is broken.

    >>> [find_instance(name).count for name in ("p5.48xlarge", "gcp/g2-standard-24", "ND96isr_H100_v5", "DGX H100")]
    [8, 2, 8, 8]
    """
    matches = _matching(name)
    if not matches:
        raise UnknownInstanceError(name[:_LONGEST], nearest_instances(name))
    if len(matches) > 1:
        raise AmbiguousInstanceError(name[:_LONGEST], tuple(sorted(matches)))
    ((full, own),) = matches.items()
    return _load(full, own)


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
    return MappingProxyType({name: _instance(content, _path(name), user=False) for name, content in found})


def nearest_instances(text: str, count: int = 3) -> tuple[str, ...]:
    """Up to ``count`` names that are similar to ``text``, best first.

    >>> nearest_instances("p5.48xl")[0]
    'aws/p5.48xlarge'
    """
    from difflib import SequenceMatcher

    cloud, query = _split(text[:_LONGEST])
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


def _matching(name: str) -> dict[str, Path | None]:
    """All instances with this name: ``cloud/name`` -> the user's own file."""
    if len(name) > 2 * _LONGEST:
        return {}
    cloud, query = _split(name)
    if not is_file_name(query):
        return {}
    folder = user_folder()
    matches: dict[str, Path | None] = {}
    for one in _clouds(folder):
        if cloud not in {None, one}:
            continue
        for full in (f"{one}/{query}", f"{one}/{_AZURE}{query}"):
            own = None if folder is None else folder / f"{full}.yaml"
            if own is not None and os.path.lexists(own):
                matches[full] = own
                break
            if full in names("instances"):
                matches[full] = None
                break
    return matches


def is_file_name(stem: str) -> bool:
    """Whether this can be the stem of an instance's file. A path that leaves the folder cannot."""
    return len(stem) <= _LONGEST and _SLUG.fullmatch(stem) is not None


def _clouds(folder: Path | None) -> list[str]:
    """All clouds, with those of the user's own folder."""
    known = {name.partition("/")[0] for name in names("instances")}
    return sorted(known.union(name for name in _names(folder) if _CLOUD.fullmatch(name)))


def _own_files() -> dict[str, Path]:
    """The user's own instances: ``cloud/name`` -> the file."""
    folder = user_folder()
    return {
        f"{cloud}/{stem}": folder / cloud / name
        for cloud in _names(folder)
        if folder is not None and _CLOUD.fullmatch(cloud)
        for name in _names(folder / cloud)
        if (stem := name.removesuffix(".yaml")) != name and is_file_name(stem)
    }


def _names(folder: Path | None) -> list[str]:
    if folder is None:
        return []
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ProfileError(folder, f"cannot be read ({error.strerror})") from error


def _path(name: str) -> Path:
    return BUILT_IN / f"{name}.yaml"


def _load(name: str, own: Path | None) -> Instance:
    """Load one instance. A file of the user's own that has changed is read again."""
    if own is None:
        return _built_in(name)
    try:
        changed = os.stat(own).st_mtime_ns
    except OSError as error:
        raise ProfileError(own, f"cannot be read ({error.strerror})") from error
    return _own(own, changed)


@lru_cache(maxsize=512)
def _built_in(name: str) -> Instance:
    found = record("instances", name)
    assert found is not None
    return _instance(found, _path(name), user=False)


@lru_cache(maxsize=512)
def _own(path: Path, changed: int) -> Instance:
    from hwcalc.profiles.yaml_file import read_yaml

    return parse_instance(read_yaml(path), user=True)


# The fields have the order of the file.
_FIELDS: tuple[Field, ...] = (
    ("schema_version", version(SCHEMA_VERSION), f"{SCHEMA_VERSION}", False),
    ("id", text, "its name, as its cloud spells it", False),
    ("cloud", lambda value: isinstance(value, str) and _CLOUD.fullmatch(value) is not None, "small letters and digits", False),
    (
        "recorded",
        date,
        "a date, YYYY-MM-DD, in quotes",
        True,
    ),
    ("accelerator", lambda value: isinstance(value, str) and is_id(value), "the id of an accelerator", False),
    ("count", lambda value: whole(value) and value <= _MOST, f"a whole number from 1 to {_MOST:,}", False),
    ("fabric", text, "words", True),
    ("fraction", lambda value: isinstance(value, str), "a share of one accelerator, written 1/8", True),
    ("memory_mib", whole, "a positive whole number of MiB", True),
    ("note", text, "words", True),
    ("source", sources, "a name and words for each source", False),
)

FIELDS: Final = tuple(name for name, *_ in _FIELDS)
"""The keys of a file, in the order of the file."""


def parse_instance(file: YamlFile, *, user: bool = False) -> Instance:
    """Check the content of one file. Raises :class:`~hwcalc.profiles.catalog.ProfileError` with line and key."""
    data: Mapping[str, Any] = file.data
    check(file, _FIELDS)
    if (file.path.parent.name, file.path.stem) != (data["cloud"], file_name(data["id"])):
        raise wrong(file, "id", f"belongs in {data['cloud']}/{file_name(data['id'])}.yaml, but the file is {file.path.name}")
    if data.get("fraction") is None and data.get("memory_mib") is not None:
        raise wrong(file, "memory_mib", "goes with fraction: a whole accelerator's memory is in its own file")
    if data.get("fraction") is not None and data["count"] != 1:
        raise wrong(file, "fraction", "goes with a count of 1")
    if data.get("fraction") is not None:
        parse_share(file, "fraction", data["fraction"])
    return _instance(data, file.path, user=user)


def _instance(data: Mapping[str, Any], path: Path, *, user: bool) -> Instance:
    """The instance of a file's content, which has been checked."""
    part, _, whole = (data.get("fraction") or "").partition("/")
    return Instance(
        id=data["id"],
        cloud=data["cloud"],
        accelerator=data["accelerator"],
        count=data["count"],
        fabric=data.get("fabric"),
        memory_mib=data.get("memory_mib"),
        note=data.get("note"),
        fraction=(int(part), int(whole)) if part else None,
        source="; ".join(data["source"].values()),
        path=path,
        user=user,
    )
