"""A config whose type is not known, or that has keys which its type does not read: refused with proposals, or read as ``--assume`` says.

Known types are tried on the file. The nearest are proposed, unless the file describes other layers than they would give.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.errors import ConfigError, UnknownArchitectureError, UnreadKeysError, UsageError
from hwcalc.formulas import Layer
from hwcalc.formulas.record import Record
from hwcalc.model import LEFT_OUT, UNREAD_KEYS, Note, RawModel
from hwcalc.parsers.config import ALIASES, LONGEST_SEQUENCE, Config, architecture_of, bears_on_memory, class_defaults, weighs
from hwcalc.parsers.key_names import MOST_NAMED, READ_LATER, named_keys, not_read, not_read_of
from hwcalc.parsers.known_types import KeptKinds, family_of, known_types, nearest_types, read_family
from hwcalc.parsers.reading import Family, Reading
from hwcalc.parsers.registry import MAX_NESTING, NESTED, find_family, known_family
from hwcalc.parsers.sketch import UNKNOWN, Sketch, sketched
from hwcalc.parsers.understood import (
    NOTED_DIMENSIONS,
    Read,
    Understood,
    around,
    filled_for,
    left_out_text,
    not_read_around,
    read_as,
    understood,
)
from hwcalc.parsers.written import read_layers
from hwcalc.text import did_you_mean, quoted, shown


def language_config(raw: RawModel, assume: str | None = None) -> Config:
    """The level of a description that its language model is read from. Raises the errors of :func:`resolved`."""
    top, architecture = Config(raw.config), architecture_of(raw.config)
    own = understood(top, architecture)
    return resolved(raw, top, own, assume)[0].reading.config


def resolved(raw: RawModel, top: Config, own: Understood, assume: str | None) -> tuple[Read, tuple[str, ...]]:
    """A config as its own family reads it, or as ``--assume`` says; and the keys that were left out of account.

    Raises :class:`~hwcalc.errors.ConfigError` for what is not understood and not assumed, where the assumed type cannot read the file,
    or where it would put numbers of its class in the place of the file's.
    """
    read = own.read
    if assume is None:
        if read is None or own.unread:
            raise _refusal(raw, top, own)
        return read, ()
    assumption = assumption_of(assume)
    if read is not None and not own.unread:
        note = Note(code="assume-unused", message=f"--assume was not needed: kvplan knows {read.config.model_type}.")
        return replace(read, notes=(*read.notes, note)), ()
    if read is not None and (assumption.plain or assumption.types == (read.config.model_type,)):
        note = left_out(raw, read.config, own.unread, f"type {read.config.model_type}")
        return replace(read, notes=(*read.notes, note)), own.unread
    model_type = choose(raw, assumption, top)
    config = language_level(top, None if assumption.plain else model_type)
    family = known_family(model_type)
    try:
        reading = read_as(family, config)
    except ConfigError as error:
        filled = [f"{key} {value}" for key, value in config.assumed_defaults().items() if re.search(rf"\b{key}\b", error.message)]
        if filled:
            # A key that is not in the file cannot be mended there.
            what = (
                f"{raw.id} leaves out what type {model_type} reads, and {named_keys(filled)} of its class do not go with the file"
            )
            raise proposed(ConfigError(f"--assume {assumption.text}: {what}: {error.message}"), raw, top) from error
        if not error.hint:
            raise proposed(error, raw, top) from error
        error.hint = f"{error.hint}\n{_layers(error, _sketch(top))}"
        raise
    whole = config if config.where == "" else top
    tried = judge(config, whole, family, reading, weighed=not assumption.plain)
    if tried.fills_numbers:
        raise _guessed(raw, top, assumption, config, tried)
    weighed = not (assumption.plain or tried.unweighed or tried.filled_weights)
    read = Read(family=family, config=config, top=whole, reading=reading, assumed=True, weighed=weighed)
    tried = replace(tried, unread=(*tried.unread, *not_read_around(read)))
    return replace(read, notes=tuple(_warned(raw, config, tried, assumption, model_type))), tried.unread


def _refusal(raw: RawModel, top: Config, own: Understood) -> ConfigError:
    """The error about a config with unread keys, of a type that is not known, or whose architecture is of another type."""
    if own.read is not None:
        return _unread_error(raw, own.read, own.unread)
    declared, architecture = raw.config.get("model_type"), shown(architecture_of(raw.config) or "", 60)
    if own.owner is not None and own.lacks:
        said = f"{raw.id} is read as {own.owner} by its architecture, {architecture}, but leaves out {named_keys(own.lacks)}"
        error = UnknownArchitectureError(f"{said}: so says that class, and not what model_type {quoted(top.model_type)} names.")
        tried = _tried(top.raw, own.owner)
        if tried is not None and not tried.fills_numbers:
            error.command = command(raw, own.owner), {"assume": own.owner}
        so = "" if error.command is None else f" To read it so, with every number marked as assumed: {error.command[0]}"
        error.hint = f"Put them into the file.{so}"
        return error
    if own.owner is not None:
        message = f"{raw.id} says model_type {quoted(top.model_type)}, but its architecture, {architecture}, is of {own.owner}."
        return proposed(UnknownArchitectureError(f"{message} The two are different models."), raw, top)
    what = f"model_type {quoted(declared)}" if declared else "no model_type"
    named = f", architecture {architecture}" if architecture_of(raw.config) else ""
    return proposed(UnknownArchitectureError(f"No parser knows {raw.id}: {what}{named}."), raw, top)


def _guessed(raw: RawModel, top: Config, assumption: Assumption, config: Config, tried: Trial) -> ConfigError:
    """The error for a type that would take from its class what the file says under keys that the type does not read."""
    reader = "plain attention" if assumption.plain else f"type {config.model_type}"
    missed = [f"{key} {config.raw.get(key, '')}".rstrip() for key in tried.missed]
    said = f"{reader} does not read {named_keys(missed)}" if missed else f"{reader} finds no number of layers in the keys"
    message = f"--assume {assumption.text}: {said} of {raw.id}, and would take numbers of its own in their place."
    return proposed(ConfigError(message), raw, top)


def _unread_error(raw: RawModel, read: Read, unread: Sequence[str]) -> UnreadKeysError:
    """The error about keys that nobody has read. Its hint goes on without them, unless they say which layers keep what."""
    config, own = read.config, read.config.model_type or PLAIN
    outer = around(read.top, config) if read.is_foreign else {}
    beside = all(key.partition(".")[0] in outer for key in unread)
    bear = "may bear on memory" if read.is_foreign else "bear on the cache"
    what = f"{bear} around its {own} model" if beside else f"{bear} and that type {own} does not have"
    inner = {key: config.raw[key] for key in unread if key in outer and key in config.raw}
    differ = [
        f"{key} is {quoted(outer[key], 40)}, but {config.where}.{key} is {quoted(value, 40)}." for key, value in inner.items()
    ]
    said = (f"{raw.id} has keys that {what}: {named_keys(unread)}.", *config.contradictions()[:MOST_NAMED], *differ[:MOST_NAMED])
    error = UnreadKeysError(" ".join(said), keys=tuple(unread))
    hint = "A number without them would be a guess."
    if not any(map(is_layout, unread)):
        line = command(raw, own)
        hint += f" To go on all the same, with every number marked as assumed: {line}"
        error.command = line, {"assume": own}
    error.hint = f"{hint}\n{_layers(error, _sketch(read.top))}".rstrip()
    return error


_DIMENSIONS: Final[Mapping[str, Sequence[str]]] = {
    "num_attention_heads": ("num_attention_heads", "num_heads"), "num_key_value_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",), "v_head_dim": ("v_head_dim",), "kv_lora_rank": ("kv_lora_rank",), "sliding_window": ("window",),
}  # fmt: skip
"""The facts of a file that layers have as dimensions, and the names of these. A type may know a key and not use it: of an unknown type
nobody has said that it does not."""
_LAYOUT: Final = (
    r"layer_types|block_type|block_configs|pattern|period|offset|indices|idx|attn_layer|every_n|layer_freq|interval|attention_layers|"
    r"layer_ids|first_k_dense|max_window_layers"
)
"""Keys that say which layers are which."""
_OF_MLPS: Final = r"moe|expert|mlp|dense"
"""Those of them that say it about MLPs and experts alone."""
_OF_HEADS: Final = r"^(num_key_value_heads|num_kv_heads|(qk_)?head_dim|v_head_dim|sliding_window|.*window.*)$"
"""Keys that :data:`_DIMENSIONS` judges by the layers, whatever a type says of them."""


class Trial(Record):
    """How well a known type reads a file that is not its own. ``kinds`` are the kinds of layers that it gives."""

    kinds: str
    layers: tuple[Layer, ...]
    unread: tuple[str, ...]
    """The keys that may bear on the cache and that the layers do not follow: those of unknown meaning too."""
    unweighed: tuple[str, ...]
    """The keys that bear on the weights and that nobody read; empty where weights are not counted."""
    filled: Mapping[str, Any]
    """What the file leaves out and the class fills in, as far as it bears on the cache."""
    filled_weights: Mapping[str, Any]
    """The same for what bears on the weights alone."""
    missed: tuple[str, ...] = ()
    """Unread keys of names that no type asks for: they may be what the type would take from its class."""
    counts_layers: bool = True
    """True if the number of layers is the file's own."""
    layout_given: bool = True
    """True if the file itself says which layers keep what: all the same, of which nothing comes from the class, or by its own keys."""

    @property
    def fills_numbers(self) -> bool:
        """True if numbers of the class would stand in the place of the file's."""
        return bool(self.missed or not self.counts_layers)

    @property
    def guessed(self) -> bool:
        """True if layers, heads or widths would be those of the class, or other numbers in the place of the file's."""
        return bool(self.fills_numbers or self.filled.keys() & NOTED_DIMENSIONS)

    def follows(self, sketch: Sketch | None) -> bool:
        """True unless the file describes other layers."""
        if sketch is None:
            return True
        if sketch.complete:
            return _kept(self.layers) == _kept(read_layers(sketch.options["layers_of"]))
        return sketch.kinds - {"full_attention"} <= {kind.name for layer in self.layers for kind in layer}


def _kept(layers: Sequence[Layer]) -> Counter[frozenset[Any]]:
    """How many layers keep the same, wherever they are."""
    return Counter(frozenset(tensor for kind in layer for tensor in kind.tensors()) for layer in layers)


def is_layout(key: str) -> bool:
    """True if a key says which layers keep what."""
    return bool(re.search(_LAYOUT, key)) and not re.search(_OF_MLPS, key)


def judge(config: Config, top: Config, family: Family, reading: Reading, *, weighed: bool = True) -> Trial:
    """The trial of a reading: what it leaves out of account and adds. Without ``weighed`` nobody counts the weights."""
    known_by_name = (*config.unread(), *config.unread_inside(), *_unused(config, reading.layers))
    level, filled = reading.config, filled_for(config, reading.layers)
    if weighed:
        with suppress(ConfigError, UsageError, ValueError):
            family.weigh(level, top, reading)
    # The keys that bear on the cache and that the type is known to pass over.
    asked = {name for key in config.asked for name in config.names(key)} | config.asked
    read = {str(key): value for key, value in config.raw.items() if key not in asked and key in config.read}
    bearing = [key for key, value in read.items() if bears_on_memory(key, value) and not re.search(_OF_HEADS, key)]
    places = (f"{config.where}.{key}" if config.where else key for key in bearing)
    layout = [place for place in places if is_layout(place)]
    where = f"{config.where}." if config.where else ""
    others = {path: where + path for path in not_read(config.raw, config.read | READ_LATER)}
    unread = tuple(dict.fromkeys((*known_by_name, *layout, *others.values())))
    alike = len(set(reading.layers)) == 1 and (len(reading.layers[0]) == 1 or not filled)
    given = any(is_layout(key) and key in config.read for key, value in config.raw.items() if value is not None)
    added: dict[str, Any] = {}
    if weighed:
        own = {key: value for key, value in level.assumed_defaults().items() if key not in filled and not isinstance(value, bool)}
        added = {key: value for key, value in own.items() if weighs(key, value)}
    return Trial(
        missed=tuple(_missed(config, filled, others)),
        counts_layers=not {"num_hidden_layers", "decoder_layers"} & level.assumed_defaults().keys(),
        kinds=family_of(reading.layers),
        layers=reading.layers,
        unread=unread,
        unweighed=tuple(key for key in _unweighed(level) if key not in unread) if weighed else (),
        filled=filled,
        filled_weights=added,
        layout_given=alike or given,
    )


def _missed(config: Config, filled: Mapping[str, Any], others: Mapping[str, str]) -> Iterator[str]:
    """The places of unread keys (``others``) that may be the numbers which the class would fill in: no type asks for their names."""
    lacks_heads = "num_key_value_heads" in config.asked and not config.has("num_key_value_heads")
    if others and (lacks_heads or filled):
        yield from (others[path] for path in _of_no_type(others))


def _of_no_type(paths: Iterable[str]) -> list[str]:
    """Those of the keys that no type asks for."""
    asked = frozenset[str]().union(*(known.keys for known in known_types().values()))
    return [path for path in paths if path not in asked]


def _unweighed(level: Config) -> Iterator[str]:
    """The keys of the file that bear on the weights and that nobody read, but for those that say again what was read."""
    counted = {key: value for key, value in level.raw.items() if key in level.read and weighs(key, value)}
    has_experts = any("experts" in key for key in counted)
    for key, value in level.raw.items():
        if key in level.read or not weighs(key, value) or re.search(_LAYOUT, key) or value in list(counted.values()):
            continue
        # A model of experts alone has no use for the width of a dense MLP.
        same = has_experts if "intermediate" in key else "shared" in key and any("shared" in other for other in counted)
        if not same:
            yield str(key)


def _unused(config: Config, layers: Sequence[Layer]) -> list[str]:
    """The keys of the file that give a dimension of the layers with another value than every layer has."""
    dims: dict[str, set[Any]] = {}
    for layer in layers:
        for kind in layer:
            for name, size in kind.dims().items():
                dims.setdefault(name, set()).add(size)
    found = []
    for fact, names in _DIMENSIONS.items():
        own = (*config.names(fact), fact, *ALIASES.get(fact, ()))
        given = next((name for name in own if name in config.raw), None)
        value = None if given is None else config.raw[given]
        if not isinstance(value, int) or isinstance(value, bool) or value == 0:
            continue
        built = set[Any]().union(*(dims.get(name, set()) for name in names))
        applies = bool(built)
        if fact == "sliding_window":
            # Whether nothing in the file says that its window is not used.
            off = "use_sliding_window" in config.raw and not config.raw["use_sliding_window"]
            applies = not off and not isinstance(config.raw.get("layer_types"), list)
        if value not in built and applies:
            found.append(f"{config.where}.{given}" if config.where else str(given))
    return found


PLAIN: Final = "gqa"
"""Plain grouped-query attention on every layer."""
_PLAIN_TYPE: Final = "llama"
"""The type that reads it."""

_TRIED: Final = 12
"""How many of the nearest types are tried on the file."""
_MOST_KEYS: Final = 1_000
"""Most keys of a file that types are tried on. Published configs have up to 200."""


class Assumption(Record):
    """What ``--assume`` says, checked: the types that it may stand for, in no order. ``plain`` is plain attention."""

    text: str
    types: tuple[str, ...]
    plain: bool = False
    kinds: KeptKinds = frozenset()
    """The kinds of layers that it names; empty where it names a type."""


def assumption_of(text: str) -> Assumption:
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
    known = known_types().values() if family else ()
    types = tuple(each.model_type for each in known if any(read_family(words) == family for words in each.families))
    if types:
        return Assumption(text=name, types=types, kinds=family or frozenset())
    if family is not None:
        asked = set(name.lower().split("+"))
        families = {words for known in known_types().values() for words in known.families}
        near = sorted(families, key=lambda words: (-len(asked & set(words.split("+"))), len(words), words))[:3]
        hint = f"No known type has these layers together. Nearest: {', '.join(near)}."
    else:
        hint = f"{did_you_mean(name, known_types(), 3)}Allowed: {PLAIN}, a model type, or kinds of layers, such as mamba2+gqa."
    raise UsageError(f"--assume {shown(text, 40)} is not known.", hint=f"{hint} All of them: kvplan models --types")


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


def _sketch(top: Config) -> Sketch | None:
    """The layers that an unknown document describes."""
    level = language_level(top, None)
    return sketched(level.raw, around(top, level))


def choose(raw: RawModel, assumption: Assumption, top: Config) -> str:
    """The type that the file is read as: of several the one whose parser asks for most of the file's keys.

    Raises :class:`~hwcalc.errors.ConfigError` where no type reads layers of the named kinds from it.
    """
    if len(assumption.types) == 1 and not assumption.kinds:
        return assumption.types[0]
    level = language_level(top, None).raw
    found = nearest(level, like=top.model_type, among=assumption.types, kinds=assumption.kinds)
    if found:
        return found[0]
    layout = [str(key) for key, value in level.items() if is_layout(str(key)) and value is not None]
    closest = () if layout else nearest(level, like=top.model_type, among=assumption.types)
    if not closest:
        so = f" as its {named_keys(layout)} says" if layout else ""
        others = not_read(level, READ_LATER)
        own = named_keys([f"{path} {others[path]}" for path in _of_no_type(others)])
        message = f"--assume {assumption.text}: no known type with these layers reads {f'{own} of ' if own else ''}{raw.id}{so}."
        raise proposed(ConfigError(message), raw, top)
    name, read = closest[0], _tried(level, closest[0])
    lacking = sorted(key for key in known_types()[name].keys if key not in level and is_layout(key))
    wanted = f" with one of these keys: {named_keys(lacking)}" if lacking else ""
    line = command(raw, name)
    error = ConfigError(
        f"--assume {assumption.text}: {raw.id} does not say which layers keep what{wanted}.",
        hint=f"Add it to the file, or take the layers that are read without: {line} ({name if read is None else read.kinds})",
    )
    error.command = line, {"assume": name}
    raise error


def nearest(
    raw: Mapping[str, Any],
    *,
    like: str | None = None,
    among: Sequence[str] | None = None,
    kinds: KeptKinds = frozenset(),
    most: int = 3,
) -> tuple[str, ...]:
    """The known types that this level of a config resembles most, by its keys, and that can read it.

    Nearer is what leaves fewer keys unread and adds fewer; ``kinds`` are the kinds of layers that it must give. Types that nobody named
    with ``among`` are proposed only if they leave nothing unread that may bear on memory, and give the layers that the file describes.
    """
    if len(raw) > _MOST_KEYS:
        return ()
    known, tried, sketch = known_types(), [], sketched(raw)
    candidates = nearest_types(raw, like=like, among=among, most=_TRIED if among is None else len(among))
    for place, name in enumerate(candidates):
        found = _tried(raw, name)
        if found is None or found.guessed or ((among is None or kinds) and not found.follows(sketch)):
            continue
        if among is None and (found.unread or found.unweighed or found.filled):
            continue
        if (
            found.layout_given
            if among is None
            else not kinds or (found.layout_given and not any(map(is_layout, found.unread)) and read_family(found.kinds) == kinds)
        ):
            # How much of the file is left out of account and how much is added, for the cache before the weights.
            cache = len(found.unread) + len(found.filled)
            weights = len(found.unweighed) + len(found.filled_weights)
            tried.append((cache, weights, known[name].published == 0, place, name))
    return tuple(name for *_, name in sorted(tried)[:most])


def _tried(raw: Mapping[str, Any], model_type: str) -> Trial | None:
    """This level of a config read as a type; ``None`` if the type cannot read it."""
    family, config = find_family(model_type), Config(raw, model_type)
    if family is None:
        return None
    try:
        reading = family.read(config)
    except (ConfigError, UsageError, ValueError):
        return None
    return judge(config, config, family, reading) if reading.layers else None


def proposed(error: ConfigError, raw: RawModel, top: Config) -> ConfigError:
    """The error about an unknown architecture with its hint: the nearest types, its layers written down, and a whole command for each."""
    level = language_level(top, None)
    found = () if not_read_of(around(top, level), READ_LATER) else nearest(level.raw, like=top.model_type)
    sketch = _sketch(top)
    written = _layers(error, sketch)
    if found:
        near = ", ".join(f"{name} ({known_types()[name].families[0]})" for name in found)
        line, options = command(raw, found[0]), {"assume": found[0]}
        if not any(key in level.raw for key in LONGEST_SEQUENCE):
            line, options["seq"] = f"{line} --seq 32k", "32k"
        error.command = line, options
        tried = _tried(level.raw, _PLAIN_TYPE) if sketch is not None and sketch.kinds == {"full_attention"} else None
        # A semicolon behind a command is none of its words when it is copied; a full stop would be.
        plain = "" if tried is None or tried.unread else f"; as plain attention: --assume {PLAIN}"
        known = f"Nearest by its keys: {near}. To read it so, with every number marked as assumed: {line}{plain}; all that is known: {_TYPES}"
    else:
        known = f"No type that kvplan knows reads all of it. All that is known: {_TYPES}"
    error.hint = "\n".join((known, written) if found else (written, known))
    return error


def _layers(error: ConfigError, sketch: Sketch | None) -> str:
    """The part of a hint that writes a file's layers down, as far as it describes them; empty if it says too little."""
    if sketch is None:
        return "How to write its layers down by hand: kvplan help layers"
    error.written = sketch.command, sketch.options
    fill_in = f"with what you know in place of each {UNKNOWN} (all kinds: kvplan models --kinds)"
    ask = (
        "To plan them"
        if sketch.complete
        else f"To plan them{' without what is not read' if sketch.leaves_out else ''}, {fill_in}"
    )
    return "\n".join(
        (
            "Its layers, as far as the file says:",
            *(f"  {line}" for line in sketch.lines),
            *([_MAY_CHANGE] if sketch.leaves_out else []),
            f"{ask}:",
            sketch.command,
            HOW_TO_CHANGE,
        )
    )


_TYPES: Final = "kvplan models --types"
_MAY_CHANGE: Final = (
    "What is not read may change the cache. If you know what it means, write the layers as the kinds that they are, or give the keys "
    "their published names and read the file as a kind: --assume mla reads kv_lora_rank and qk_rope_head_dim."
)
HOW_TO_CHANGE: Final = "How to keep them in a file, change and compare them: kvplan help layers"


def command(raw: RawModel, assumed: str) -> str:
    """The command line that plans this model with an assumption."""
    address = {"local": raw.location or raw.id, "stdin": "-"}.get(raw.source, raw.id)
    return f"kvplan {shlex.quote(address)} --assume {assumed}"


def _warned(raw: RawModel, config: Config, found: Trial, assumption: Assumption, model_type: str) -> Iterator[Note]:
    """Notes on what a file of an unknown type is read as, what that leaves out and adds, and why weights are not counted."""
    what, reader = "every layer is assumed to keep plain attention keys and values for every token", "plain attention"
    if not assumption.plain:
        chosen = (
            ""
            if len(assumption.types) == 1
            else f", of the {len(assumption.types)} known types with {assumption.text} the nearest"
        )
        what, reader = f"it is read as {model_type}, since --assume says so{chosen}", f"type {model_type}"
    yield Note(code="assumed", message=f"No parser knows this architecture: {what}.")
    guessed = (*found.unweighed, *found.filled_weights)
    so = " Weights are not counted." if guessed else ""
    unread = (*found.unread, *found.unweighed)
    if unread:
        note = left_out(raw, config, unread, reader)
        yield Note(code=note.code, message=f"{note.message}{so}")
    filled = {**found.filled, **found.filled_weights}
    if filled and not assumption.plain:
        yield Note(code=LEFT_OUT, message=f"{left_out_text(config, filled)} That is an assumption too.{so}")
    if not guessed and not assumption.plain and config.assumed_defaults().get("tie_word_embeddings") is True:
        tied = left_out_text(config, {"tie_word_embeddings": "true"})
        yield Note(
            code=LEFT_OUT,
            message=f"{tied} The head is the embedding then, and is counted once: say false in the file if it is not.",
        )
    if guessed:
        message = f"Parameters are not counted: by {named_keys(guessed)} the weights of {raw.id} are not those of {reader}."
        yield Note(code="weights-unknown", message=message)


def left_out(raw: RawModel, config: Config, unread: Sequence[str], reader: str) -> Note:
    """The warning that names the keys that a reading has left out of account."""
    said = f"{raw.id} has keys that may bear on memory and that {reader} does not read: {named_keys(unread)}."
    so = "They were left out of account, so the numbers are an assumption."
    return Note(code=UNREAD_KEYS, message=" ".join((said, so, *config.contradictions()[:MOST_NAMED])))
