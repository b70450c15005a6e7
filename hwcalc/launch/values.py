"""Values of manifests: looked up where they may be missing or of another kind, since nobody has checked them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from hwcalc.launch.documents import Places
from hwcalc.launch.shell import read_script
from hwcalc.launch.words import Spot, Word, filled_word, known_of
from hwcalc.profiles.launch import launch_words

_MOST: Final = 100_000
_DEEPEST: Final = 24


def at(value: Any, *keys: str | int) -> Any:
    """The value behind these keys; ``None`` where there is none."""
    for key in keys:
        if isinstance(key, int):
            value = value[key] if isinstance(value, list) and -len(value) <= key < len(value) else None
        else:
            value = value.get(key) if isinstance(value, Mapping) else None
    return value


def mapping(value: Any) -> Mapping[str, Any]:
    """The value, if it is a mapping; else an empty one."""
    return value if isinstance(value, Mapping) else {}


def rows(value: Any) -> list[Any]:
    """The value, if it is a list; else an empty one."""
    return value if isinstance(value, list) else []


def mappings(value: Any) -> list[Mapping[str, Any]]:
    """The mappings of a list; empty for anything else."""
    return [each for each in rows(value) if isinstance(each, Mapping)]


def settings_in(value: Any) -> dict[str, str]:
    """The variables of a mapping, as texts."""
    return {str(key): text(each) or "" for key, each in mapping(value).items()}


def text(value: Any) -> str | None:
    """A scalar as text."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (str, int, float)) else None


def number(value: Any) -> int | None:
    """A whole number, also one that is written as text."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if abs(value) < 10**9 else None
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}", value.strip()):
        return int(value)
    return None


def sizes_of(held: Any, names: Mapping[str, str], places: Places) -> tuple[dict[str, Any], dict[str, Word]]:
    """The whole numbers of a mapping, by the names of settings, and the words that say them."""
    read = {key: size for name, key in names.items() if (size := number(at(held, name))) is not None}
    words = {key: Word(text=str(read[key]), spot=places.item(held, name)) for name, key in names.items() if key in read}
    return read, words


def texts(value: Any) -> list[str]:
    """A list of scalars as texts; of a single scalar a list of it."""
    if isinstance(value, list):
        return [each for each in map(text, value) if each is not None]
    single = text(value)
    return [] if single is None else [single]


def filled(given: Any, variables: Mapping[str, Any], places: Places) -> list[Word]:
    """The words of a list in a manifest, each with its place."""
    values = texts(given)[:_MOST]
    return [filled_word(each, variables, places.item(given, place)) for place, each in enumerate(values)]


def is_script(values: Sequence[str]) -> bool:
    """True if a list of words starts a shell that reads a script."""
    if not values:
        return False
    shell = values[0].rpartition("/")[2] in launch_words().shells
    return shell and any(re.fullmatch(r"-[a-z]*c", each) for each in values[1:4])


def container_words(
    container: Mapping[str, Any],
    variables: Mapping[str, Any],
    places: Places,
    keys: Sequence[str] = ("command", "args"),
    *,
    braces: Mapping[str, Any] | None = None,
) -> list[Word]:
    """The words of a container: its command and its arguments, lists or texts that are split as a shell would.

    ``braces`` are the variables of ``${A}`` where they are others than those of ``$(A)``.
    """
    words: list[Word] = []
    for key in keys:
        given = container.get(key)
        if isinstance(given, list):
            for place, value in enumerate(texts(given)[:_MOST]):
                # A shell reads the script by itself.
                before, spot = [word.text for word in words], places.item(given, place)
                script = (
                    is_script(before)
                    and (before[-1].endswith("c") or before[-1] == "--")
                    and all(each.startswith("-") for each in before[1:])
                )
                raw = Word(text=value, raw=value, source=value, quoted=True, spot=spot)
                words.append(raw if script else filled_word(value, variables, spot, braces=braces))
        elif isinstance(given, str) and given.strip():
            words += split_text(given, variables, places.item(container, key))
    return words


def split_text(given: str, variables: Mapping[str, Any], spot: Spot) -> list[Word]:
    """A command in a text. A backslash before a folded line is still one."""
    plain = (re.sub(r"\\[ \t]+(?=\S)", " ", given) if "\n" not in given.strip() else given).strip()
    known, taken = known_of(variables)
    script = read_script(plain, known, origin=spot.inside(plain), taken=taken)
    if len(script.commands) == 1:
        return list(script.commands[0].words)
    if not script.commands:
        return []
    return [Word(text=plain, raw=plain, source=plain, quoted=True, spot=spot)]


def walk(value: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """All mappings in a value, from the outside in."""
    if depth > _DEEPEST:
        return
    if isinstance(value, Mapping):
        yield value
        for each in value.values():
            yield from walk(each, depth + 1)
    elif isinstance(value, list):
        for each in value:
            yield from walk(each, depth + 1)


def hub_name(uri: Any) -> str | None:
    """The repository that an address names: ``hf://org/name``.

    >>> hub_name("hf://org/name"), hub_name("pvc://claim/folder")
    ('org/name', None)
    """
    if not isinstance(uri, str):
        return None
    for start in ("hf://", "huggingface://", "https://huggingface.co/"):
        if uri.startswith(start):
            return uri.removeprefix(start).strip('"')
    return None
