"""The built-in catalog: a file for each model in ``models/<org>/<name>.json``. Only the file of the model in question is read.

A file in the user's own folder, ``$XDG_CONFIG_HOME/kvplan/profiles/models`` (``~/.config`` if the variable is not set), replaces
the catalog's model of the same id or adds a new one. It may change while a program runs.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from hwcalc.data import data_file
from hwcalc.formulas.record import Record

if TYPE_CHECKING:
    from pathlib import Path


def built_in(*names: str) -> str:
    """The path of a fact file of the package, or of a folder of them."""
    return str(data_file(__file__, *names))


def own(*names: str) -> str | None:
    """The path of a fact file of the user's own, whether or not it exists; ``None`` without a home folder.

    It is in ``$XDG_CONFIG_HOME/kvplan/profiles``, or in ``~/.config`` if the variable is not set.
    """
    get = os.environ.get
    # Every plan on a GPU asks a few times, and these are the variables that may change in between.
    return _own(get("XDG_CONFIG_HOME"), get("USERPROFILE" if os.name == "nt" else "HOME"), names)


@lru_cache(maxsize=512)
def _own(base: str | None, home: str | None, names: tuple[str, ...]) -> str | None:
    base = base or os.path.expanduser("~/.config")
    return None if base.startswith("~") else os.path.join(base, "kvplan", "profiles", *names)


SCHEMA_VERSION: Final = 1

_LARGEST_FILE = 16 * 1024**2
_MODEL_ID: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}"
_DATE: Final = r"(19|20)[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"


class ProfileError(ValueError):
    """A fact file is broken. The message names the file, the line, the key and the problem."""

    def __init__(self, path: str | os.PathLike[str], problem: str, *, line: int | None = None, key: str | None = None) -> None:
        from pathlib import Path

        path = Path(path)
        place = f"{path}, line {line}" if line else str(path)
        super().__init__(f"{place}: {key}: {problem}" if key else f"{place}: {problem}")
        self.path = path
        self.line = line
        self.key = key


class CatalogEntry(Record):
    """One file of the catalog: its content, its path as text, and whether it is the user's own."""

    data: Mapping[str, Any]
    place: str
    user: bool

    @property
    def path(self) -> Path:
        """The path of the file."""
        from pathlib import Path

        return Path(self.place)


def is_model_id(text: str) -> bool:
    """True if ``text`` has the form ``org/name``: ASCII letters, digits, ``_``, ``.`` and ``-``, as the Hub allows.

    The Hub does not allow ``..`` and ``--`` in an id. Therefore an id is always safe as a relative path.
    """
    return re.fullmatch(_MODEL_ID, text) is not None and ".." not in text and "--" not in text


def user_folder(kind: str) -> Path | None:
    """The user's own folder ``models``, ``gpus`` or ``instances``, whether or not it exists; ``None`` without a home folder."""
    from pathlib import Path

    place = own(kind)
    return None if place is None else Path(place)


def find_entry(model_id: str) -> CatalogEntry | None:
    """The model of exactly this id, or ``None``. Reads one file: the user's own if there is one.

    Raises :class:`ProfileError` if the file is broken.
    """
    if not is_model_id(model_id):
        return None
    for folder, user in ((own("models"), True), (built_in("models"), False)):
        path = "" if folder is None else os.path.join(folder, f"{model_id}.json")
        if path and os.path.lexists(path):
            data = parse_entry(read_text(path, _LARGEST_FILE), path)
            # A file system that ignores case also opens qwen/qwen3-8b. Such an id gets a suggestion, not an answer.
            if data["id"] == model_id:
                return CatalogEntry(data=data, place=path, user=user)
    return None


def list_models() -> tuple[str, ...]:
    """All ids in alphabetical order, with the user's own. Only folders are listed; no file is opened."""
    ids = {*own_models(), *_listed(built_in("models"))}
    return tuple(sorted(ids, key=lambda model_id: (model_id.lower(), model_id)))


def own_models() -> tuple[str, ...]:
    """The ids in the user's own folder, in alphabetical order."""
    return tuple(sorted(_listed(own("models"))))


def _listed(folder: str | None) -> Iterator[str]:
    if folder is None or not os.path.isdir(folder):
        return
    try:
        for org in (entry.name for entry in os.scandir(folder) if entry.is_dir()):
            for name in os.listdir(os.path.join(folder, org)):
                model_id = f"{org}/{name.removesuffix('.json')}"
                if name.endswith(".json") and is_model_id(model_id):
                    yield model_id
    except OSError as error:
        raise ProfileError(folder, f"cannot be read ({error.strerror})") from error


def read_text(path: str | os.PathLike[str], largest: int) -> str:
    """The text of a fact file of at most ``largest`` bytes, a multiple of 1 MiB. Raises :class:`ProfileError`."""
    try:
        if not os.path.isfile(path):
            raise ProfileError(path, "is not a regular file")
        if os.stat(path).st_size > largest:
            raise ProfileError(path, f"is larger than {largest // 1024**2} MiB")
        with open(path, "rb") as file:
            text = file.read().decode().removeprefix("\ufeff")
        return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text
    except OSError as error:
        raise ProfileError(path, f"cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ProfileError(path, "is not UTF-8 text") from error


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def is_date(value: Any) -> bool:
    """True if it is a date as text, such as ``2026-11-20``."""
    return isinstance(value, str) and re.fullmatch(_DATE, value) is not None


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**63


def _parameters(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and set(value) <= {"total", "active", "mtp", "definition", "source"}
        and _text(value.get("definition"))
        and (value.get("source") is None or _text(value["source"]))
        and all(value.get(key) is None or _count(value[key]) for key in ("total", "active", "mtp"))
    )


def _bytes_by_dtype(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_count, value.values()))


_COUNTS: Final = '"total", "active", "mtp" (positive whole numbers or null), "source" (words)'
# A key, its check, what is allowed, and whether it may be absent or null. The fields have the order of the file.
_FIELDS: tuple[tuple[str, Callable[[Any], bool], str, bool], ...] = (
    ("schema_version", lambda value: value == SCHEMA_VERSION and not isinstance(value, bool), f"{SCHEMA_VERSION}", False),
    ("id", lambda value: isinstance(value, str) and is_model_id(value), "the model's id, org/name", False),
    ("released", is_date, "a date, YYYY-MM-DD, or null", True),
    ("recorded", is_date, "a date, YYYY-MM-DD, or null", True),
    ("source", _text, "where the facts come from, in words or as an address, or null", True),
    ("fidelity", _text, "how sure the config is, in words, or null", True),
    ("parameters", _parameters, f'null, or an object with "definition" (words) and {_COUNTS}', True),
    ("stored_elements", _count, "a positive whole number or null", True),
    ("weight_bytes", _bytes_by_dtype, "an object of whole numbers by dtype, or null", True),
    ("config", lambda value: isinstance(value, dict) and bool(value), "an object with the keys of config.json", False),
)

FIELDS: Final = tuple(name for name, *_ in _FIELDS)
"""The keys of a file, in the order of the file."""


def parse_entry(text: str, path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """Check the text of one file. ``path`` is ``.../<org>/<name>.json`` and must match the id, except for capitals.

    Raises :class:`ProfileError` with line and key.
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ProfileError(path, f"is not JSON: {error.msg}", line=error.lineno) from error
    except (RecursionError, ValueError) as error:
        raise ProfileError(path, "is not JSON that can be read: nested too deeply, or a number that is too long") from error
    if not isinstance(data, dict):
        raise ProfileError(path, "must be a JSON object", line=1)
    for key in data:
        if key not in FIELDS:
            raise ProfileError(path, f"is not known. Allowed: {', '.join(FIELDS)}", line=_line_of(text, key), key=key)
    for key, good, allowed, optional in _FIELDS:
        if optional and data.get(key) is None:
            continue
        if key not in data:
            raise ProfileError(path, f"is missing: it must be {allowed}", key=key)
        if not good(data[key]):
            raise ProfileError(path, f"must be {allowed}", line=_line_of(text, key), key=key)
    folder, name = os.path.split(path)
    named = f"{os.path.basename(folder)}/{name.removesuffix('.json')}"
    if named.lower() != data["id"].lower():
        raise ProfileError(path, f"is {data['id']}, but the file is named {named}.json", line=_line_of(text, "id"), key="id")
    return data


def _line_of(text: str, key: str) -> int | None:
    match = re.search(re.escape(json.dumps(key, ensure_ascii=False)) + r"\s*:", text)
    return None if match is None else text.count("\n", 0, match.start()) + 1


def changed(path: str | os.PathLike[str]) -> tuple[int, int]:
    """When the file was last changed, in nanoseconds, and its bytes. Raises :class:`ProfileError` if that cannot be told."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise ProfileError(path, f"cannot be read ({error.strerror})") from error
    return status.st_mtime_ns, status.st_size
