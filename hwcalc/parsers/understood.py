"""A config as the family of its type reads it: what is understood, what is assumed, and what is left out of account.

Keys that name the kind of attention in one word, such as ``"attention_type": "gqa"``, are read by few classes: they say again
what heads and windows say, and are read as long as they say the same. A word that says otherwise, or that is not known, stays
unread, so that the plan stops. BigBird's classes have the key: their sparse encoder keeps nothing, and their decoder attends
fully whatever it says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.errors import ConfigError, UnknownArchitectureError, UnreadKeysError, UsageError
from hwcalc.formulas import FullAttention, LatentAttention, Layer, LayerKind
from hwcalc.formulas.attention import AttentionKind, SlidingAttention
from hwcalc.formulas.record import Record
from hwcalc.model import Note, RawModel
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import Family, Reading
from hwcalc.parsers.registry import architecture_of, find_language_model, known_family, room_of
from hwcalc.text import quoted, shown

if TYPE_CHECKING:
    from hwcalc.parsers.assume import Assumption

_ATTENTION_WORDS: Final = ("attention_type", "attention_method", "attn_type")
"""Keys that name the kind of attention in one word. Few configs have one."""
_CONTRADICTIONS: Final = 8
"""How many contradictions a message names."""


def language_config(raw: RawModel, assume: str | None = None) -> Config:
    """The level of a description that its language model is read from."""
    return understood(raw, Config(raw.config), architecture_of(raw.config), assume)[0].reading.config


class Read(Record):
    """A config as one family read it. ``weighed`` says whether the weights may be counted as that family's."""

    family: Family
    config: Config
    top: Config
    reading: Reading
    notes: tuple[Note, ...] = ()
    assumed: bool = False
    weighed: bool = True


def understood(raw: RawModel, top: Config, architecture: str | None, assume: str | None) -> tuple[Read, list[str]]:
    """The config as its own family reads it, or as the assumption says; and the keys that were left out of account."""
    found = find_language_model(top)
    if assume is None and found is not None:
        read, unread = _by_its_family(top, *found, architecture)
        if unread:
            raise _unread_error(raw, read.config, unread)
        return read, unread
    from hwcalc.parsers import assume as assuming

    if assume is None:
        raise assuming.proposed(_unknown(raw, architecture), raw, top)
    assumed = assuming.assumption(assume)
    if found is not None:
        read, unread = _by_its_family(top, *found, architecture)
        if not unread:
            note = Note(code="assume-unused", message=f"--assume was not needed: kvplan knows {read.config.model_type}.")
            return replace(read, notes=(*read.notes, note)), unread
        if assumed.plain:
            note = assuming.left_out(raw, read.config, unread, f"the {room_of(read.config.model_type)!r} parser")
            return replace(read, notes=(*read.notes, note)), unread
    return _as_assumed(raw, top, assumed)


def _as_assumed(raw: RawModel, top: Config, assumed: Assumption) -> tuple[Read, list[str]]:
    """The config as the assumption says. What it leaves unread and what it adds are warnings."""
    from hwcalc.parsers import assume as assuming
    from hwcalc.parsers.assume import judge

    model_type = assuming.choose(raw, assumed, top)
    config = assuming.language_level(top, None if assumed.plain else model_type)
    family = known_family(model_type)
    try:
        reading = _read(family, config)
    except ConfigError as error:
        raise assuming.unreadable(error, raw, top, model_type) from error.__cause__
    whole = config if config.where == "" else top
    found = judge(config, whole, family, reading, weighed=not assumed.plain)
    notes = [assuming.said(assumed, model_type), *assuming.warned(raw, config, found, assumed, model_type)]
    read = Read(
        family=family,
        config=config,
        top=whole,
        reading=reading,
        notes=tuple(notes),
        assumed=True,
        weighed=not (assumed.plain or found.unweighed or found.filled_weights),
    )
    return read, list(found.unread)


def _by_its_family(top: Config, family: Family, config: Config, architecture: str | None) -> tuple[Read, list[str]]:
    """The config as the family of its own type reads it, and the keys that bear on the cache and that nobody has read."""
    notes: tuple[Note, ...] = ()
    if config.model_type != top.model_type and config.where == "" and not top.has_class:
        declared = f"model_type {quoted(top.model_type)} is not known" if top.model_type else "The config has no model_type"
        message = f"{declared}: read as {config.model_type} by its architecture, {architecture}."
        notes = (Note(code="by-architecture", message=message),)
    # Only the language model's level is checked: towers and projectors have windows and heads of their own.
    read = Read(family=family, config=config, top=top, reading=_read(family, config), notes=notes)
    return read, config.unread()


def _read(family: Family, config: Config) -> Reading:
    try:
        reading = family.read(config)
    except (ConfigError, UsageError):
        raise
    except ValueError as error:
        # A layer kind refused the numbers. That is still the config's fault, and the message names the field.
        raise ConfigError(f"the {config.model_type} config does not make sense: {error}.") from error
    if not reading.layers:
        raise no_layers()
    words = [key for key in _ATTENTION_WORDS if key in reading.config.raw]
    if words:
        read_attention_words(reading.config, words, reading.layers)
    return reading


def _unread_error(raw: RawModel, config: Config, unread: list[str]) -> UnreadKeysError:
    from hwcalc.parsers.assume import PLAIN, command, named_keys

    message = (
        f"{raw.id} has keys that bear on the cache and that the {room_of(config.model_type)!r} parser does not know: "
        f"{named_keys(unread)}."
    )
    message = " ".join((message, *config.contradictions()[:_CONTRADICTIONS]))
    line = command(raw, PLAIN)
    hint = f"A number without them would be a guess. To go on all the same, with every number marked as assumed: {line}"
    error = UnreadKeysError(message, keys=tuple(unread), hint=hint)
    error.command = line, PLAIN
    return error


def _unknown(raw: RawModel, architecture: str | None) -> UnknownArchitectureError:
    model_type = raw.config.get("model_type")
    what = f"model_type {quoted(model_type)}" if model_type else "no model_type"
    with_architecture = f", architecture {shown(architecture, 60)}" if architecture else ""
    return UnknownArchitectureError(f"No parser knows {raw.id}: {what}{with_architecture}.")


def no_layers() -> ConfigError:
    """The error for a config whose model has no layers."""
    return ConfigError("the config describes a model without layers.")


Test = Callable[[LayerKind], bool]


def _full(kind: LayerKind) -> bool:
    return isinstance(kind, FullAttention)


def _every_head(kind: LayerKind) -> bool:
    return isinstance(kind, AttentionKind) and kind.num_key_value_heads == kind.num_attention_heads


def _one_head(kind: LayerKind) -> bool:
    return isinstance(kind, AttentionKind) and kind.num_key_value_heads == 1


_WORDS: Final[Mapping[Test, tuple[str, ...]]] = {
    _full: ("full", "full_attention", "global", "causal", "softmax", "standard", "default"),
    _every_head: ("mha", "multi_head", "multihead", "multi_head_attention", "multihead_attention"),
    (lambda kind: isinstance(kind, AttentionKind)): ("gqa", "grouped_query", "grouped_query_attention"),
    _one_head: ("mqa", "multi_query", "multiquery", "multi_query_attention", "multiquery_attention"),
    (lambda kind: isinstance(kind, LatentAttention)): ("mla", "latent", "multi_head_latent_attention"),
    (lambda kind: isinstance(kind, SlidingAttention)): ("swa", "sliding", "sliding_window", "sliding_attention"),
}
_OF_AN_ENCODER: Final = ("block_sparse", "original_full")
_TESTS: Final = {word: test for test, words in _WORDS.items() for word in words}


def read_attention_words(config: Config, keys: Iterable[str], layers: Iterable[Layer]) -> None:
    """Mark those of ``keys`` as read whose word is true of what every layer keeps."""
    for key in keys:
        word = config.raw.get(key)
        test = _TESTS.get(word.strip().lower().replace("-", "_")) if isinstance(word, str) else None
        holds = test is not None and all(any(map(test, layer)) for layer in set(layers))
        if holds or (word in _OF_AN_ENCODER and config.knows(key)):
            config.ignore(key)
