"""``--assume``: as what a config of an unknown type is read, which known types resemble it, and what such a reading leaves unread."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from hwcalc.errors import ConfigError, UsageError
from hwcalc.formulas.frozen import frozen
from hwcalc.model import UNREAD_KEYS, Note, RawModel
from hwcalc.parsers.class_table import class_defaults
from hwcalc.parsers.config import Config
from hwcalc.parsers.find import MAX_NESTING, NESTED
from hwcalc.parsers.known_types import known_types, nearest_types, read_family, types_of
from hwcalc.parsers.noted import filled_in
from hwcalc.parsers.registry import find_family, known_family
from hwcalc.text import shown

__all__ = [
    "PLAIN",
    "Assumption",
    "assumption",
    "choose",
    "command",
    "language_level",
    "left_out",
    "named_keys",
    "nearest",
    "proposal",
    "said",
    "unread_keys",
]

PLAIN: Final = "gqa"
"""Plain grouped-query attention on every layer."""

_NAMED, _SHOWN = 8, 80
"""How many keys a message names, and with how many characters each."""
_TRIED: Final = 8
"""How many of the nearest types are tried on the file."""


@frozen
class Assumption:
    """What ``--assume`` says, checked: the types that it may stand for, in no order. ``plain`` is plain attention."""

    text: str
    types: tuple[str, ...]
    plain: bool = False


def assumption(text: str) -> Assumption:
    """The assumption that a value of ``--assume`` names: a model type, or kinds of layers such as ``mamba2+gqa``.

    Raises :class:`~hwcalc.errors.UsageError` for a name that is neither.
    """
    name = text.strip()
    if name.lower() in (PLAIN, "mha", "mqa"):
        return Assumption(text=name, types=("llama",), plain=True)
    own = _language_type(name)
    if own is not None:
        return Assumption(text=name, types=(own,))
    family = read_family(name)
    types = types_of(family) if family else ()
    if types:
        return Assumption(text=name, types=types)
    raise UsageError(f"--assume {shown(text, 40)} is not known.", hint=_allowed(name, family is not None))


def _allowed(name: str, is_family: bool) -> str:
    if is_family:
        words = set(name.lower().split("+"))
        families = {text for known in known_types().values() for text in known.families}
        near = sorted(families, key=lambda text: (-len(words & set(text.split("+"))), len(text), text))[:3]
        return f"No known type has these layers together. Nearest: {', '.join(near)}. All of them: kvplan models --types"
    from difflib import get_close_matches

    close = get_close_matches(name.lower(), known_types(), n=3)
    meant = f"Did you mean {' or '.join(close)}? " if close else ""
    return f"{meant}Allowed: {PLAIN}, a model type, or kinds of layers, such as mamba2+gqa. All of them: kvplan models --types"


def _language_type(model_type: str) -> str | None:
    """The type of the language model in a document of this type; ``None`` if it is not known."""
    name: str | None = model_type
    for _ in range(MAX_NESTING):
        if name is None or find_family(name) is not None:
            return name
        known = class_defaults(name)
        name = None if known is None else next((known.nested[key] for key in NESTED if key in known.nested), None)
    return None


def language_level(top: Config, model_type: str | None) -> Config:
    """The level of an unknown document that describes the language model, read as ``model_type``.

    ``None`` leaves the type open: keys are then found under each name that some model gives them.
    """
    config = top
    known = class_defaults(model_type)
    own = () if known is None else known.nested
    for _ in range(MAX_NESTING):
        key = next((key for key in NESTED if isinstance(config.raw.get(key), Mapping) and key not in own), None)
        child = None if key is None else config.sub(key)
        if child is None:
            break
        config = child
    return config if model_type is None else config.retyped(model_type)


def choose(assumed: Assumption, top: Config) -> str:
    """The type that the file is read as: of several the one whose parser asks for most of the file's keys."""
    if len(assumed.types) == 1:
        return assumed.types[0]
    found = nearest(language_level(top, None).raw, like=top.model_type, among=assumed.types)
    return found[0] if found else assumed.types[0]


def nearest(
    raw: Mapping[str, Any], *, like: str | None = None, among: Sequence[str] | None = None, most: int = 3
) -> tuple[str, ...]:
    """The known types that this level of a config resembles most, by its keys, and that can read it."""
    candidates = nearest_types(raw, like=like, among=among, most=_TRIED)
    tried = [(faults, place, name) for place, name in enumerate(candidates) if (faults := _faults(raw, name)) is not None]
    return tuple(name for _, _, name in sorted(tried)[:most])


def _faults(raw: Mapping[str, Any], model_type: str) -> int | None:
    """How many keys that bear on the cache this type leaves unread or adds; ``None`` if it cannot read the file."""
    config, family = Config(raw, model_type), find_family(model_type)
    try:
        if family is None or not family.read(config).layers:
            return None
        return len(config.unread()) + len(filled_in(config))
    except (ConfigError, UsageError, ValueError):
        return None


def proposal(raw: RawModel, top: Config) -> str:
    """The hint of an error about an unknown architecture: the nearest types, and a whole command."""
    found = nearest(language_level(top, None).raw, like=top.model_type)
    known = known_types()
    near = ", ".join(f"{name} ({known[name].families[0]})" for name in found)
    return (
        f"{f'Nearest by its keys: {near}. ' if near else ''}To read it so, with every number marked as assumed: "
        f"{command(raw, found[0] if found else PLAIN)}. As plain attention: --assume {PLAIN}. All that is known: kvplan models --types"
    )


def command(raw: RawModel, assumed: str) -> str:
    """The command line that plans this model with an assumption."""
    address = {"local": raw.location or raw.id, "stdin": "-"}.get(raw.source, raw.id)
    return f"kvplan {shlex.quote(address)} --assume {assumed}"


def said(assumed: Assumption, model_type: str) -> Note:
    """A note that says what a file of an unknown type is read as."""
    if assumed.plain:
        message = (
            "No parser knows this architecture: every layer is assumed to keep plain attention keys and values for every token."
        )
    else:
        chosen = "" if len(assumed.types) == 1 else f", of the {len(assumed.types)} known types with {assumed.text} the nearest"
        message = f"No parser knows this architecture: it is read as {model_type}, since --assume says so{chosen}."
    return Note(code="assumed", message=message)


def unread_keys(config: Config) -> list[str]:
    """The keys that bear on the cache and that the assumed type does not read, those of nested objects too.

    A known type has a say on which of its nested objects count; of an unknown one nobody knows.
    """
    return list(dict.fromkeys((*config.unread(), *config.unread_inside())))


def left_out(raw: RawModel, config: Config, unread: Sequence[str], reader: str, *, by_keys: bool = False) -> Note:
    """The warning that names the keys that a reading has left out of account, and a type that reads more of them."""
    message = (
        f"{raw.id} has keys that bear on the cache and that {reader} does not read: {named_keys(unread)}. They were left out of "
        "account, so the numbers are an assumption."
    )
    message = " ".join((message, *config.contradictions()[:_NAMED]))
    if by_keys:
        found = nearest(config.raw, like=raw.config.get("model_type") if isinstance(raw.config.get("model_type"), str) else None)
        better = next((name for name in found if name != config.model_type), None)
        fewer = better is not None and len(_unread_by(config.raw, better)) < len(unread)
        message += f" Nearer by its keys: --assume {better}." if fewer else ""
    return Note(code=UNREAD_KEYS, message=message)


def _unread_by(raw: Mapping[str, Any], model_type: str) -> list[str]:
    config = Config(raw, model_type)
    known_family(model_type).read(config)
    return unread_keys(config)


def named_keys(keys: Sequence[str]) -> str:
    """The first keys, cut, as a list in words."""
    named = ", ".join(key if len(key) <= _SHOWN else f"{key[:_SHOWN]}..." for key in keys[:_NAMED])
    return named + (", ..." if len(keys) > _NAMED else "")
