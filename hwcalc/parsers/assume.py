"""``--assume``: as what a config of an unknown type is read, which known types resemble it, and what such a reading leaves unread."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from hwcalc.errors import ConfigError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.model import LEFT_OUT, UNREAD_KEYS, Note, RawModel
from hwcalc.parsers.class_table import class_defaults
from hwcalc.parsers.config import Config
from hwcalc.parsers.find import MAX_NESTING, NESTED
from hwcalc.parsers.known_types import Family, known_types, nearest_types, read_family, types_of
from hwcalc.parsers.noted import left_out_text
from hwcalc.parsers.registry import find_family
from hwcalc.parsers.tried import Trial, is_layout, trial
from hwcalc.text import shown

ErrorT = TypeVar("ErrorT", bound=ConfigError)

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
    "proposed",
    "said",
    "unreadable",
    "warned",
]

PLAIN: Final = "gqa"
"""Plain grouped-query attention on every layer."""
_PLAIN_TYPE: Final = "llama"
"""The type that reads it."""

_NAMED, _SHOWN = 8, 80
"""How many keys a message names, and with how many characters each."""
_TRIED: Final = 12
"""How many of the nearest types are tried on the file."""


class Assumption(Record):
    """What ``--assume`` says, checked: the types that it may stand for, in no order. ``plain`` is plain attention."""

    text: str
    types: tuple[str, ...]
    plain: bool = False
    kinds: Family = frozenset()
    """The kinds of layers that it names; empty where it names a type."""


def assumption(text: str) -> Assumption:
    """The assumption that a value of ``--assume`` names: a model type, or kinds of layers such as ``mamba2+gqa``.

    Raises :class:`~hwcalc.errors.UsageError` for a name that is neither.
    """
    name = text.strip()
    if name.lower() in (PLAIN, "mha", "mqa"):
        return Assumption(text=name, types=(_PLAIN_TYPE,), plain=True)
    own = _language_type(name)
    if own is not None:
        return Assumption(text=name, types=(own,))
    family = read_family(name)
    types = types_of(family) if family else ()
    if types:
        return Assumption(text=name, types=types, kinds=family or frozenset())
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


def choose(raw: RawModel, assumed: Assumption, top: Config) -> str:
    """The type that the file is read as: of several the one whose parser asks for most of the file's keys.

    Raises :class:`~hwcalc.errors.ConfigError` where no type reads layers of the named kinds from it.
    """
    if len(assumed.types) == 1 and not assumed.kinds:
        return assumed.types[0]
    level = language_level(top, None).raw
    found = nearest(level, like=top.model_type, among=assumed.types, kinds=assumed.kinds)
    if found:
        return found[0]
    closest = nearest(level, like=top.model_type, among=assumed.types)
    if not closest:
        return assumed.types[0]
    name, read = closest[0], _tried(level, closest[0])
    lacking = sorted(key for key in known_types()[name].keys if key not in level and is_layout(key))
    wanted = f" with one of these keys: {named_keys(lacking)}" if lacking else ""
    line = command(raw, name)
    error = ConfigError(
        f"--assume {assumed.text}: {raw.id} does not say which layers keep what{wanted}.",
        hint=f"Add it to the file, or take the layers that are read without: {line} ({name if read is None else read.kinds})",
    )
    error.command = line, name
    raise error


def nearest(
    raw: Mapping[str, Any],
    *,
    like: str | None = None,
    among: Sequence[str] | None = None,
    kinds: Family = frozenset(),
    most: int = 3,
) -> tuple[str, ...]:
    """The known types that this level of a config resembles most, by its keys, and that can read it.

    Nearer is what leaves fewer keys unread and adds fewer; ``kinds`` are the kinds of layers that it must give.
    """
    known, tried = known_types(), []
    candidates = nearest_types(raw, like=like, among=among, most=_TRIED if among is None else len(among))
    for place, name in enumerate(candidates):
        found = _tried(raw, name)
        if found is not None and (not kinds or (found.layout_given and read_family(found.kinds) == kinds)):
            tried.append((found.faults, known[name].published == 0, place, name))
    return tuple(name for *_, name in sorted(tried)[:most])


def _tried(raw: Mapping[str, Any], model_type: str) -> Trial | None:
    family = find_family(model_type)
    return None if family is None else trial(raw, model_type, family)


def proposed(error: ErrorT, raw: RawModel, top: Config) -> ErrorT:
    """The error about an unknown architecture with its hint: the nearest types, and a whole command."""
    found = nearest(language_level(top, None).raw, like=top.model_type)
    known = known_types()
    everything = "All that is known: kvplan models --types"
    if not found:
        error.hint = f"{_why_not(top)}{everything}"
        return error
    near = ", ".join(f"{name} ({known[name].families[0]})" for name in found)
    plain = "" if _plain_fault(top) else f" As plain attention: --assume {PLAIN}."
    line = command(raw, found[0])
    error.hint = f"Nearest by its keys: {near}. To read it so, with every number marked as assumed: {line}.{plain} {everything}"
    error.command = line, found[0]
    return error


def unreadable(error: ErrorT, raw: RawModel, top: Config, model_type: str) -> ErrorT:
    """The error about a file that the assumed type cannot read, with its hint: others that can, or that the file is at fault."""
    if error.hint:
        return error
    found = nearest(language_level(top, None).raw, like=top.model_type)
    if found and found[0] != model_type:
        return proposed(error, raw, top)
    error.hint = "Mend it in the file. Known types: kvplan models --types"
    return error


def _why_not(top: Config) -> str:
    """Why no known type can read the file: what is wrong with it for plain attention."""
    fault = _plain_fault(top)
    return f"None of the nearest types can read it: {fault} " if fault else ""


def _plain_fault(top: Config) -> str:
    family, config = find_family(_PLAIN_TYPE), language_level(top, None)
    try:
        if family is not None:
            family.read(config)
    except ConfigError as error:
        return error.message
    except (UsageError, ValueError) as error:
        return f"{error}."
    return ""


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


def warned(raw: RawModel, config: Config, found: Trial, assumed: Assumption, model_type: str) -> Iterator[Note]:
    """What an assumed reading leaves out of account, what it adds, and why weights are not counted then."""
    reader = "plain attention" if assumed.plain else f"type {model_type}"
    guessed = (*found.unweighed, *found.filled_weights)
    so = " Weights are not counted." if guessed else ""
    unread = (*found.unread, *found.unweighed)
    if unread:
        note = left_out(raw, config, unread, reader, found=found)
        yield Note(code=note.code, message=f"{note.message}{so}")
    filled = {**found.filled, **found.filled_weights}
    if filled and not assumed.plain:
        yield Note(code=LEFT_OUT, message=f"{left_out_text(config, filled)} That is an assumption too.{so}")
    if guessed:
        yield Note(
            code="weights-unknown",
            message=f"Parameters are not counted: by {named_keys(guessed)} the weights of {raw.id} are not those of {reader}.",
        )


def left_out(raw: RawModel, config: Config, unread: Sequence[str], reader: str, *, found: Trial | None = None) -> Note:
    """The warning that names the keys that a reading has left out of account, and a type that reads more of them."""
    message = (
        f"{raw.id} has keys that bear on {'memory' if found else 'the cache'} and that {reader} does not read: {named_keys(unread)}. "
        "They were left out of account, so the numbers are an assumption."
    )
    message = " ".join((message, *config.contradictions()[:_NAMED]))
    if found is not None:
        declared = raw.config.get("model_type")
        names = nearest(config.raw, like=declared if isinstance(declared, str) else None)
        better = next((name for name in names if name != config.model_type), None)
        closer = None if better is None else _tried(config.raw, better)
        fewer = closer is not None and len(closer.unread) + len(closer.unweighed) < len(unread)
        message += f" Nearer by its keys: --assume {better}." if fewer else ""
    return Note(code=UNREAD_KEYS, message=message)


def named_keys(keys: Sequence[str]) -> str:
    """The first keys, cut, as a list in words."""
    named = ", ".join(key if len(key) <= _SHOWN else f"{key[:_SHOWN]}..." for key in keys[:_NAMED])
    return named + (", ..." if len(keys) > _NAMED else "")
