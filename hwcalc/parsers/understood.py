"""A config as the family of its type reads it: what is understood, what the class fills in, and which keys nobody reads.

A config that is not understood so is refused, or read as ``--assume`` says, in :mod:`hwcalc.parsers.unknown`.

Keys that name the kind of attention in one word, such as ``"attention_type": "gqa"``, are read by few classes: they say again
what heads and windows say, and are read as long as they say the same. A word that says otherwise, or that is not known, stays
unread, so that the plan stops. BigBird's classes have the key: their sparse encoder keeps nothing, and their decoder attends
fully whatever it says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.errors import ConfigError, UsageError
from hwcalc.formulas import FullAttention, LatentAttention, Layer, LayerKind
from hwcalc.formulas.attention import AttentionKind, SlidingAttention
from hwcalc.formulas.record import Record
from hwcalc.model import BY_ARCHITECTURE, LEFT_OUT, Note
from hwcalc.parsers.config import Config, bears_on_memory, defaults_table
from hwcalc.parsers.reading import Family, Reading
from hwcalc.parsers.registry import find_family, find_language_model, find_wrapper, model_type_of_architecture
from hwcalc.text import quoted

_ATTENTION_WORDS: Final = ("attention_type", "attention_method", "attn_type")
"""Keys that name the kind of attention in one word. Few configs have one."""


class Read(Record):
    """A config as one family read it. ``weighed`` says whether the weights may be counted as that family's."""

    family: Family
    config: Config
    top: Config
    reading: Reading
    notes: tuple[Note, ...] = ()
    assumed: bool = False
    weighed: bool = True
    is_foreign: bool = False
    """True if code that nobody knows may read more of the document than its family does."""


class Understood(Record):
    """A config as its own family reads it. ``read`` is ``None`` if no family does, or if the architecture is of another type, ``owner``."""

    read: Read | None = None
    unread: tuple[str, ...] = ()
    """The keys that bear on the cache and that nobody has read."""
    owner: str | None = None
    lacks: tuple[str, ...] = ()
    """What a file of a type that nobody knows leaves out, with the numbers that the class of its architecture, of ``owner``, fills in."""


def understood(top: Config, architecture: str | None) -> Understood:
    """The config as the family of its own type reads it."""
    found = find_language_model(top)
    if found is None:
        return Understood()
    owner = contradicting(top, *found, architecture)
    return Understood(owner=owner) if owner is not None else _by_its_family(top, *found, architecture)


def contradicting(top: Config, family: Family, config: Config, architecture: str | None) -> str | None:
    """The model type that the architecture belongs to, where the config read so is another model; ``None`` without contradiction.

    A type whose code lives with the model may name any class. One that transformers has a class for is built by that class alone,
    while other engines go by the architecture.
    """
    owner = None if architecture is None else model_type_of_architecture(architecture)
    other = find_family(owner)
    if architecture in config.built_by:
        return None
    if other is None or owner == config.model_type or config is not top or not config.has_class or other is family:
        return None
    try:
        own = family.read(Config(top.raw))
        again = other.read(Config(top.raw, owner))
        same = own.layers == again.layers and _elements(family, own) == _elements(other, again)
    except (ConfigError, UsageError, ValueError):
        same = False
    return None if same else owner


def _elements(family: Family, reading: Reading) -> int:
    """The number of elements in the weights of a reading; 0 where nobody counts them."""
    blocks = family.weigh(reading.config, reading.config, reading) or ()
    return sum(block.count * weight.elements for block in blocks for weight in block.weights)


def _by_its_family(top: Config, family: Family, config: Config, architecture: str | None) -> Understood:
    read, unread = Read(family=family, config=config, top=top, reading=read_as(family, config)), config.unread()
    is_known = top.has_class or top.model_type == config.model_type
    if is_known and not _has_own_class(top, config, architecture):
        # Of a document that a class reads, the language model's level alone is checked: towers and projectors have windows and heads.
        return Understood(read=read, unread=tuple(unread))
    if is_known or find_wrapper(top.model_type) is None:
        unread += _not_read(read)
    unread += not_read_around(read)
    is_named = not config.where and not is_known and top.model_type is not None
    lacks = filled_for(read.reading.config, read.reading.layers) if is_named else {}
    if lacks:
        # Nobody knows what a type of another name fills in.
        return Understood(
            owner=config.model_type, lacks=tuple(f"{key} {quoted(value, 40)}" for key, value in sorted(lacks.items()))
        )
    if not is_known and find_wrapper(top.model_type) is None:
        declared = f"model_type {quoted(top.model_type)} is not known" if top.model_type else "The config has no model_type"
        by = config.where or f"architecture, {architecture}"
        note = Note(code=BY_ARCHITECTURE, message=f"{declared}: read as {config.model_type} by its {by}.")
        read = replace(read, notes=(note,))
    return Understood(read=replace(read, is_foreign=True), unread=tuple(dict.fromkeys(unread)))


def _has_own_class(top: Config, config: Config, architecture: str | None) -> bool:
    """True if a file of a known type names a class that nobody knows, whose code lives with the model."""
    known = architecture is None or model_type_of_architecture(architecture) is not None or architecture in config.built_by
    return config is top and bool(top.raw.get("auto_map")) and not known


def _not_read(read: Read) -> Iterator[str]:
    """What no reader of this family reads, at the level of the language model: the model's own code may read it."""
    from hwcalc.parsers.key_names import READ_LATER, not_read

    with suppress(ConfigError, UsageError, ValueError):
        # What bears on weights is read there.
        read.family.weigh(read.config, read.top, read.reading)
    for level in (read.config, *read.config.children):
        where = f"{level.where}." if level.where else ""
        yield from (
            where + path for path, value in not_read(level.raw, level.read | READ_LATER).items() if not level.says(path, value)
        )


def without_effect(read: Read) -> tuple[Note, ...]:
    """A note about the keys of a known type that its class does not read and that no published config is known to have."""
    from hwcalc.parsers.key_names import named_keys

    beyond = [*_not_read(read)]
    if not beyond:
        return ()
    return (
        Note(
            code="without-effect",
            message=f"Type {read.config.model_type} does not read, and so passes over: {named_keys(beyond)}.",
        ),
    )


def not_read_around(read: Read) -> Iterator[str]:
    """What stands around a language model, may bear on memory and does not repeat it, in a document of a type without a class."""
    from hwcalc.parsers.key_names import READ_OF_ANY, not_read_of

    outer = {} if read.top.has_class else around(read.top, read.config)
    dims = dict[str, set[Any]]()
    for kind in {kind for layer in read.reading.layers for kind in layer if isinstance(kind, (AttentionKind, LatentAttention))}:
        for name, size in kind.dims().items():
            dims.setdefault(name, set()).add(size)
    for path, value in not_read_of(outer, READ_OF_ANY).items():
        if not read.config.says(path, value) and [*dims.get(path, ())] != [value]:
            yield path


def around(top: Config, level: Config) -> Mapping[str, Any]:
    """What stands in a document around the level of its language model, but for what says the same."""
    around, inner = dict[str, Any](), top.raw
    for step in level.where.split(".") if level.where else ():
        around |= {key: value for key, value in inner.items() if key != step and level.raw.get(key) != value}
        inner = inner[step]
    return around


def read_as(family: Family, config: Config) -> Reading:
    """The layers that a family reads from a config. Raises :class:`~hwcalc.errors.ConfigError` for values that make no sense."""
    try:
        reading = family.read(config)
    except (ConfigError, UsageError):
        raise
    except ValueError as error:
        # A layer kind refused the numbers. That is still the config's fault, and the message names the field.
        raise ConfigError(f"the {config.model_type} config does not make sense: {error}.") from error
    if not reading.layers:
        raise no_layers()
    for key in _ATTENTION_WORDS:
        # A word counts as read if it is true of what every layer keeps.
        word = reading.config.raw.get(key)
        test = _WORDS.get(word.strip().lower().replace("-", "_")) if isinstance(word, str) else None
        holds = test is not None and all(any(map(test, layer)) for layer in set(reading.layers))
        if holds or (word in _OF_AN_ENCODER and reading.config.knows(key)):
            reading.config.ignore(key)
    return reading


def no_layers() -> ConfigError:
    """The error for a config whose model has no layers."""
    return ConfigError("the config describes a model without layers.")


Test = Callable[[LayerKind], bool]
_TESTS: Final[Mapping[Test, str]] = {
    (lambda kind: isinstance(kind, FullAttention)): "full full_attention global causal softmax standard default",
    (lambda kind: isinstance(kind, AttentionKind) and kind.num_key_value_heads == kind.num_attention_heads):
        "mha multi_head multihead multi_head_attention multihead_attention",
    (lambda kind: isinstance(kind, AttentionKind)): "gqa grouped_query grouped_query_attention",
    (lambda kind: isinstance(kind, AttentionKind) and kind.num_key_value_heads == 1):
        "mqa multi_query multiquery multi_query_attention multiquery_attention",
    (lambda kind: isinstance(kind, LatentAttention)): "mla latent multi_head_latent_attention",
    (lambda kind: isinstance(kind, SlidingAttention)): "swa sliding sliding_window sliding_attention",
}  # fmt: skip
_WORDS: Final = {word: test for test, words in _TESTS.items() for word in words.split()}
_OF_AN_ENCODER: Final = ("block_sparse", "original_full")


# Class defaults that decide how much is cached. Others are not worth a note.
_WORTH_A_NOTE: Final = frozenset(
    {
        "num_hidden_layers", "decoder_layers", "num_attention_heads", "decoder_attention_heads", "num_key_value_heads",
        "head_dim", "hidden_size", "d_model", "d_kv", "sliding_window", "kv_lora_rank", "qk_rope_head_dim",
        "attention_chunk_size", "num_kv_shared_layers", "global_head_dim", "state_size", "conv_kernel", "expand",
        "mamba_d_state", "mamba_d_conv",
    }
)  # fmt: skip


def filled_in(config: Config) -> Mapping[str, Any]:
    """The keys that the file leaves out and the model's class fills in, as far as they decide how much is cached."""
    defaults = config.assumed_defaults().items()
    return {key: value for key, value in defaults if key in _WORTH_A_NOTE and not isinstance(value, bool)}


def filled_for(config: Config, layers: Sequence[Layer]) -> Mapping[str, Any]:
    """The values that the class filled in and the cache follows from: no window or chunk that no layer has."""
    from hwcalc.parsers.key_names import PARAMETERS

    given = {
        key: value
        for key, value in config.assumed_defaults().items()
        if not isinstance(value, bool) and (bears_on_memory(key, value) or key in PARAMETERS)
    }
    dims = {name for layer in layers for kind in layer for name in kind.dims()}
    without_effect = {"window", "chunk"} - dims
    found = {**filled_in(config), **given}
    return {key: value for key, value in found.items() if not any(word in key for word in without_effect)}


def from_the_class(language: Config, *, complete: bool) -> tuple[Note, ...]:
    """A note that lists them. It is a warning where somebody may have forgotten them: not in a ``complete`` config, as published."""
    filled = filled_in(language)
    if not filled:
        return ()
    # Published documents of several parts leave out the heads of their language model, where these are the class's own.
    forgotten = NOTED_DIMENSIONS if language.where == "" else SIZES
    code = "class-defaults" if complete or not forgotten & filled.keys() else LEFT_OUT
    return (Note(code=code, message=left_out_text(language, filled)),)


def left_out_text(language: Config, filled: Mapping[str, Any]) -> str:
    """The sentence about what the model's class fills in."""
    listed = ", ".join(f"{key} {value}" for key, value in sorted(filled.items()))
    return (
        f"The config leaves out {listed}: taken from the {language.model_type} class of transformers {defaults_table('version')}."
    )


SIZES: Final = frozenset({"num_hidden_layers", "decoder_layers", "hidden_size", "d_model"})
NOTED_DIMENSIONS: Final = SIZES | {"num_attention_heads", "decoder_attention_heads", "num_key_value_heads", "head_dim", "d_kv"}
"""The numbers of layers and heads, and their widths."""
