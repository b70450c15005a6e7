"""A config document and the rules for reading it: other names of keys, class defaults, checked values, and a record of what was
read.

A model type that transformers has a class for is read by that class's aliases and defaults (``class_defaults.json``). Absent and
null differ: an absent key takes the class's default, a null stays null. Every bound on what a config may describe lies far above
the published models, and far below what would take seconds.
"""

from __future__ import annotations

import json
import re
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import lru_cache
from typing import Any, Final

from hwcalc.data import json_data
from hwcalc.errors import ConfigError
from hwcalc.formulas import MAX_DIMENSION
from hwcalc.model import ModelSpec
from hwcalc.text import quoted

LONGEST_SEQUENCE: Final = (
    "max_position_embeddings", "max_target_positions", "max_decoder_position_embeddings", "max_text_positions", "n_positions",
    "max_seq_len", "seq_length", "max_sequence_length",
)  # fmt: skip
"""Keys of the longest sequence. Encoder-decoder classes have two lengths: the one that counts here is the decoder's."""

DTYPE_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "fp32": ("float32", "float", "fp32"),
    "fp16": ("float16", "half", "fp16"),
    "bf16": ("bfloat16", "bf16"),
    "fp8": ("float8_e4m3fn",),
}
"""What configs call a dtype: first the name that they are written with."""

LEGACY_KEYS: Mapping[str, Mapping[str, str]] = {
    "bloom": {"hidden_size": "n_embed"},
    "falcon": {"hidden_size": "n_embed"},
    "lfm2": {"intermediate_size": "block_ff_dim", "tie_word_embeddings": "tie_embedding"},
    "lfm2_moe": {"tie_word_embeddings": "tie_embedding"},
}
"""Keys of early files that a config class still takes, and that win over the current name."""

ALIASES: Mapping[str, Sequence[str]] = {
    key: names.split()
    for key, names in {
        "hidden_size": "n_embd d_model dim model_dim",
        "num_hidden_layers": "num_layers n_layer n_layers num_transformer_layers num_decoder_layers",
        "num_attention_heads": "n_head n_heads num_heads num_query_heads",
        "num_key_value_heads": "num_kv_heads n_kv_heads kv_n_heads n_head_kv multi_query_group_num num_attention_groups",
        "head_dim": "attention_head_dim kv_channels d_kv head_size",
        "intermediate_size": "n_inner d_ff ffn_hidden_size ffn_dim",
        "vocab_size": "padded_vocab_size",
        "max_position_embeddings": "n_positions max_seq_len max_sequence_length seq_length model_max_length max_position_embedding "
        "max_context_length context_length training_seqlen ctx_len max_length",
        "sliding_window": "sliding_window_size attention_window_size window_size",
    }.items()
}
"""Other names of facts, in files of models whose code lives with the model. They must not contradict the class's own aliases."""

_CLASSES: Final = "class_defaults.json"
_TOWERS: Final = "tower_defaults.json"
"""The defaults of towers. They have their own file, which a plan without towers does not read."""


class ClassDefaults:
    """The aliases, defaults and types of nested configs that transformers' config class of one model type fills in."""

    __slots__ = ("absent", "aliases", "built_by", "defaults", "filled", "nested", "ties")

    def __init__(self, entry: Mapping[str, Any]) -> None:
        self.aliases: Mapping[str, str] = entry.get("aliases", {})
        self.defaults: Mapping[str, Any] = entry.get("defaults", {})
        self.nested: Mapping[str, str] = entry.get("nested", {})
        self.ties: str | None = entry.get("ties")
        self.built_by: Sequence[str] = entry.get("built_by", ())
        self.filled: Mapping[str, Mapping[str, Any]] = entry.get("filled", {})
        self.absent: Mapping[str, Mapping[str, Any]] = entry.get("absent", {})

    def over(self, values: Mapping[str, Any]) -> ClassDefaults:
        """The same class, with these values in place of its own defaults."""
        changed = copy(self)
        changed.defaults = {**self.defaults, **values}
        return changed


@lru_cache(maxsize=2)
def _table(file: str) -> Mapping[str, Any]:
    table: dict[str, Any] = json_data(__file__, file)
    return table


def defaults_table(name: str) -> Any:
    """One entry of the tables that is no row of a type: ``version``, the transformers version that the defaults come from;
    ``architectures``, the model type of each model class that transformers has, by class name; or ``parts``, how a class builds each
    nested config but its language model, by model type.
    """
    return _table(_TOWERS if name == "parts" else _CLASSES)[name]


@lru_cache(maxsize=1024)
def class_defaults(model_type: str | None, *, tower: bool = False) -> ClassDefaults | None:
    """The defaults of one model type; ``None`` if transformers has no class for it.

    With ``tower`` those of a tower, or of a language model that stands in a tower's place.
    """
    for file in (_TOWERS, _CLASSES) if tower else (_CLASSES,):
        entry = _table(file)["model_types"].get(model_type)
        if entry is not None:
            return ClassDefaults(entry)
    return None


# A key with one of these words may bear on the cache. If the file has it, its value is not empty and nobody has read it, the
# plan stops.
_BEARING: Final = (
    r"(?:^|_)(?:"
    r"kv|key_value|head_dim|head_size|heads|n_head|multi_query|window|chunk|sink|sinks|layer_types|layer_block_type|"
    r"layers_block_type|block_type|block_types|block_configs|pattern|local_attn|local_attention|global_attn|"
    r"global_attention|full_attn|full_attention|sparse_attention|attention_layers|attention_type|attention_types|"
    r"attention_groups|attention_period|attention_method|attn_layer|attn_type|attn_types|latent|compress|compressed|"
    r"compression|compressor|indexer|index|state|states|conv|conv1d|ssm|mamba|lru|rnn|recurrent|linear|delta|lightning|cla|"
    r"cache|cross|swa|cycles|every_n|layer_period|memory|slots"
    r")(?:_|$)"
)
# A key with one of these words bears on the weights: widths and numbers of matrices.
_WEIGHING: Final = (
    r"intermediate_size|(^|_)(ffn|ff|inner)_(dim|size|hidden_size|hidden_dim)$|(^|_)d_ff$|^n_inner$|^vocab_size$|^word_embed_proj_dim$|"
    r"(^|_)(num|n|routed|shared|local)_(\w+_)?experts$|expert_layer_|moe_layer_freq|first_k_dense|lora_rank$|^(hidden_size|n_embd|d_model)$"
)
# Exceptions: a key that also has one of these words has not borne on the cache in any config seen.
_HARMLESS: Final = (
    r"use_cache|expert|_token_i(d|nde)|token_index|cache_implementation|attn_implementation|attn_impl$|dropout|logit|initializer|"
    r"_init|init_|_std$|norm|bias$|scale|scaling|rope|rotary|softmax|tie_|_dtype$|quant|pruned_heads|cross_entropy|vision|image|"
    r"video|audio|_eps$|epsilon|_fusion|_act$|activation|clip|temperature|loss|^mlp_|_mlp_|^mtp_|_mtp_|chunk_size_feed_forward|"
    r"for_llm_compressor|memory_efficient|^compression_config$|classif|output_hidden_states|^ignore_index$"
)

_DEEPEST: Final = 3
"""How deep nested objects are searched."""
_MOST: Final = 1_000
"""How many keys of nested objects are listed."""


def harmless(path: str) -> bool:
    """True if a key is about something that never bears on the cache, such as an image tower or a rotary embedding.

    >>> harmless("vision_config.num_heads"), harmless("num_heads")
    (True, False)
    """
    return re.search(_HARMLESS, path) is not None


def bears_on_memory(key: object, value: object) -> bool:
    """True if a key that nobody has read may change the cache: its name says so, and its value is not empty.

    >>> bears_on_memory("kv_lora_rank", 512), bears_on_memory("kv_lora_rank", None), bears_on_memory("rope_theta", 1e6)
    (True, False, False)
    """
    # A dict handed in from Python may have keys of any type.
    return value not in (None, False, "", 0, [], {}) and bears_by_name(str(key))


def bears_by_name(name: str) -> bool:
    """True if a key of this name may change the cache."""
    return re.search(_BEARING, name) is not None and not harmless(name)


def weighs(key: object, value: object) -> bool:
    """True if a key bears on the weights, by its name, and says something.

    >>> weighs("intermediate_size", 14336), weighs("num_experts_per_tok", 8), weighs("n_shared_experts", 0)
    (True, False, False)
    """
    return value not in (None, False, "", 0, [], {}) and bool(re.search(_WEIGHING, str(key)))


MAX_LAYERS: Final = 1_000
"""Most layers of a model. The deepest published decoders have 126, copies of their own layers included a few hundred; DeepNet
(arXiv:2203.00555) was trained with 1,000."""

MAX_ITEMS: Final = 10 * MAX_LAYERS
"""Most items of a list that is read: lists per layer may go on behind the last layer."""

MTP_COUNTS: Final = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers")
"""Keys that count layers for multi-token prediction. They are bounded as layers are, wherever they are read."""

_MISSING: Final = object()
_HINT: Final = "Check that the file is the model's config.json."

# Facts that bear on no memory, under names that real files also use for something else.
_DESCRIPTIVE: Final = frozenset({"max_position_embeddings", "vocab_size"})
_FACTS_BY_NAME: Final[Mapping[str, Sequence[str]]] = {
    name: [key for key, names in ALIASES.items() if key not in _DESCRIPTIVE and name in (key, *names)]
    for name in {name for key, names in ALIASES.items() for name in (key, *names)}
}
"""For each name, the facts that some model calls so."""
_COUNTS: Final = frozenset({"num_hidden_layers", *ALIASES["num_hidden_layers"]})


class Config:
    """One level of a config document.

    Every getter takes the canonical key (``num_key_value_heads``); the value comes from the file under that key or the
    class's own alias; if the file has neither, it is the class's default. A wrong value raises a :class:`ConfigError` that names
    the key, the value and what is allowed.
    """

    def __init__(self, raw: Mapping[str, Any], model_type: str | None = None, where: str = "") -> None:
        declared = raw.get("model_type")
        self.raw = raw
        self.model_type = model_type or (declared if isinstance(declared, str) else None)
        self.where = where
        self.read: set[str] = set()
        self.asked: set[str] = set()
        self.defaulted: dict[str, Any] = {}
        self.children: list[Config] = []
        self.parts: list[Config] = []
        self._class = class_defaults(self.model_type)
        self._layers: dict[int, Config] | None = None
        self._values: dict[str, Any] = {}

    @property
    def built_by(self) -> Sequence[str]:
        """The classes of other types with which transformers builds this type."""
        return () if self._class is None else self._class.built_by

    @property
    def has_class(self) -> bool:
        """True if transformers has a config class for this model type."""
        return self._class is not None

    @property
    def ties(self) -> str | None:
        """The key that makes the class tie embeddings: ``whole``, ``text``, ``either``, or ``never``; ``None`` if unknown."""
        return None if self._class is None else self._class.ties

    def _key_in_file(self, key: str) -> str | None:
        """The name under which the file gives ``key``."""
        names = self.names(key)
        self.asked.add(key)
        self.read.update(names)
        return next((name for name in names if name in self.raw), None)

    def names(self, key: str) -> Sequence[str]:
        """The names under which a file may give one fact, the one that counts first. A class's aliases win over its own fields."""
        if self._class is None:
            return (key, *ALIASES.get(key, ()))
        field = self._class.aliases.get(key, key)
        aliases = [name for name, own in self._class.aliases.items() if own == field]
        legacy = LEGACY_KEYS.get(self.model_type or "", {}).get(key)
        return (*([] if legacy is None else [legacy]), *aliases, field)

    def knows(self, key: str) -> bool:
        """True if the model's class has a field of this name."""
        return self._class is not None and key in self._class.defaults

    def has(self, key: str) -> bool:
        """True if the file has the key, even with the value null."""
        return self._key_in_file(key) is not None

    def get(self, key: str, default: Any = None) -> Any:
        """The unchecked value: from the file, else the class's default, else ``default``."""
        if key not in self._values:
            self._values[key] = self._found(key)
        value = self._values[key]
        return default if value is _MISSING else value

    def _found(self, key: str) -> Any:
        name = self._key_in_file(key)
        if name is not None:
            for other in self.names(key) if self._class is None and key not in _DESCRIPTIVE else ():
                if other in self.raw and other != name and self.raw[other] != self.raw[name]:
                    message = _disagree(self._place(other), self.raw[other], self._place(name), self.raw[name])
                    raise ConfigError(message, hint="Take out of the file the one that the model's own code does not read.")
            return self.raw[name]
        if self._class is None:
            return _MISSING
        real = self._class.aliases.get(key, key)
        value = self._class.defaults.get(real, self._class.defaults.get(key, _MISSING))
        if value is not _MISSING and value is not None:
            self.defaulted[key] = value
        return value

    def ignore(self, *keys: str) -> None:
        """Mark keys as known and without effect on the cache."""
        self.read.update(keys)

    def _place(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where else key

    def error(self, key: str, value: Any, allowed: str) -> ConfigError:
        """Make a :class:`ConfigError` about one key. The caller raises it."""
        return self.error_in_words(key, _written(value), allowed)

    def error_in_words(self, key: str, words: str, allowed: str) -> ConfigError:
        """The same about a value that is described and not shown."""
        return ConfigError(f"{self._place(key)} is {words}, but must be {allowed}.")

    def missing(self, key: str) -> ConfigError:
        """Make a :class:`ConfigError` about a missing key. The caller raises it."""
        kind = f"a {self.model_type} config" if self.model_type else "this config"
        other = next((name for name in ALIASES.get(key, ()) if isinstance(self.raw.get(name), int)), None)
        hint = _HINT if other is None else f"The file has {self._place(other)} {quoted(self.raw[other])}: is that what is meant?"
        return ConfigError(f"{self._place(key)} is missing: {kind} needs it.", hint=hint)

    def maybe_integer(self, key: str, *, minimum: int = 1, maximum: int = MAX_DIMENSION) -> int | None:
        """A whole number; ``None`` if it is null, or absent and without a default."""
        value = self.get(key)
        return None if value is None else self.checked_integer(key, value, minimum=minimum, maximum=maximum)

    def checked_integer(self, key: str, value: Any, *, minimum: int = 1, maximum: int = MAX_DIMENSION) -> int:
        """``value`` as a whole number in range; an integral float (``4.0``) counts."""
        if key in MTP_COUNTS:
            maximum = min(maximum, MAX_LAYERS)
        if isinstance(value, float) and value.is_integer() and abs(value) <= maximum:
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
            raise self.error(key, value, f"a whole number from {minimum:,} to {maximum:,}")
        return value

    def integer(self, key: str, *, minimum: int = 1, maximum: int = MAX_DIMENSION) -> int:
        """A whole number that must be there."""
        value = self.maybe_integer(key, minimum=minimum, maximum=maximum)
        if value is None:
            raise self.missing(key)
        return value

    def number_of_layers(self, key: str = "num_hidden_layers") -> int:
        """A layer count that must be there."""
        return self.integer(key, maximum=MAX_LAYERS)

    def flag(self, key: str, default: bool = False) -> bool:
        """A truth value. 0 and 1 are allowed, and null is ``False``, because the code of the models treats it so."""
        value = self.get(key, default)
        if value is None:
            return False
        if not isinstance(value, bool) and value not in (0, 1):
            raise self.error(key, value, "true or false")
        return bool(value)

    def text(self, key: str, default: str | None = None) -> str | None:
        """A string, or ``default`` where it is absent or null."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.error(key, value, "a string")
        return value

    def number(self, key: str, default: float) -> float:
        """A finite number, whole or not."""
        value = self.get(key, default)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= MAX_DIMENSION:
            raise self.error(key, value, "a number")
        return float(value)

    def sequence(self, key: str, *, length: int | None = None, most: int = MAX_ITEMS) -> list[Any] | None:
        """A list of at most ``most`` items, or ``None`` where it is absent or null; ``length`` is how many items it must have."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, (list, tuple)):
            raise self.error(key, value, "a list")
        if len(value) > most:
            raise self.error_in_words(key, f"{len(value):,} items long", f"a list of at most {most:,}")
        if length is not None and len(value) != length:
            raise self.error_in_words(key, f"{len(value)} items long", f"a list of {length} items, one for each layer")
        return list(value)

    def integers(self, key: str, *, length: int | None = None, minimum: int = 0) -> list[int] | None:
        """A list of whole numbers, or ``None``."""
        values = self.sequence(key, length=length)
        return None if values is None else [self.checked_integer(key, value, minimum=minimum) for value in values]

    def strings(self, key: str, *, length: int | None = None) -> list[str] | None:
        """A list of strings, or ``None``."""
        values = self.sequence(key, length=length)
        for value in values or ():
            if not isinstance(value, str):
                raise self.error(key, value, "a list of strings")
        return values

    def sub(self, key: str, model_type: str | None = None) -> Config | None:
        """A nested config, or ``None`` where it is absent or null; it knows its path in the document, for error messages."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(key, value, "an object")
        declared = value.get("model_type")
        if isinstance(declared, str) and declared:
            model_type = declared
        # A few classes put values of their own into a nested config that leaves them out.
        filled = {} if self._class is None else self._class.filled.get(key, {})
        child = Config({**filled, **value} if filled else value, model_type or self.nested_type(key), self._place(key))
        self.children.append(child)
        return child

    def part(self, key: str, **set_by_parent: int) -> Config | None:
        """The nested config of a tower, of the model type that this config's class gives it.

        Where the file has none, the class builds the part from its defaults, or leaves it out (``None``) if it is optional.
        ``set_by_parent`` are keys that the class overwrites. The keys of a tower bear on weights alone: neither :meth:`unread`
        nor :meth:`assumed_defaults` counts them.
        """
        spec = defaults_table("parts").get(self.model_type or "", {}).get(key, {})
        value = self.get(key)
        if value is None:
            if not spec or spec.get("optional"):
                return None
            value = spec.get("absent", {})
        if not isinstance(value, Mapping):
            raise self.error(key, value, "an object")
        declared = value.get("model_type")
        named = isinstance(declared, str) and bool(declared) and (not spec or spec.get("named"))
        model_type = declared if named else spec.get("type")
        known = class_defaults(model_type, tower=True)
        if known is not None and any(name in value for name in known.aliases):
            # A class accepts a field's alias as well as its own name. The getters look for the name.
            value = {known.aliases.get(name, name): given for name, given in value.items()} | {
                name: given for name, given in value.items() if name not in known.aliases
            }
        child = Config({**value, **set_by_parent}, model_type, self._place(key))
        child._class = known
        self.parts.append(child)
        return child

    def layer(self, index: int) -> Config:
        """The config of layer ``index``: this one, with the values that ``per_layer_config`` has for the layer, if any."""
        overrides = self.get("per_layer_config")
        if not isinstance(overrides, Mapping) or not overrides:
            return self
        if self._layers is None:
            if len(overrides) > MAX_LAYERS:
                allowed = f"an object of at most {MAX_LAYERS:,} layers"
                raise self.error_in_words("per_layer_config", f"{len(overrides):,} layers long", allowed)
            self._layers = {}
            for key, values in overrides.items():
                if not (isinstance(key, str) and key.isdecimal() and len(key) < 8 and isinstance(values, Mapping)):
                    raise self.error("per_layer_config", key, "an object of layer numbers, each with an object of keys")
                # Laid over the document, not copied: a thousand layers of a large document are still one document.
                child = Config(ChainMap(values, self.raw), self.model_type, self.where)  # type: ignore[arg-type]
                child.read, child.asked, child.defaulted = self.read, self.asked, self.defaulted
                self._layers[int(key)] = child
        return self._layers.get(index, self)

    def retyped(self, model_type: str | None, nested: str = "") -> Config:
        """The same document, read as another model type: that of the ``nested`` config that it does not have, if one is named."""
        child = Config(self.raw, model_type, self.where)
        values = {} if self._class is None else self._class.absent.get(nested, {})
        if values and child._class is not None:
            child._class = child._class.over(values)
        child.read, child.asked = self.read, self.asked
        self.children.append(child)
        return child

    def nested_type(self, key: str) -> str | None:
        """The model type of a nested config that the file does not name."""
        return self._class.nested.get(key) if self._class else None

    def unread(self) -> list[str]:
        """Keys that nobody has read though they may affect the cache and are not empty, here and in nested configs.

        So are other names of a fact, with another value than the one that counts.
        """
        found = []
        for key, value in self.raw.items():
            if key in self.read:
                continue
            facts = self._facts_named(key)
            # A key that only says again what was read is no news.
            repeats = any(own == value for fact, own in facts.items() if fact in self._values)
            if any(own != value for own in facts.values()) or (not repeats and bears_on_memory(key, value)):
                found.append(self._place(key))
        for child in self.children:
            found += child.unread()
        return list(dict.fromkeys(found))

    def says(self, name: str, value: Any) -> bool:
        """True if what was read here under this name, or under another of the same fact, is this value."""
        return any(self._values[fact] == value for fact in (name, *_FACTS_BY_NAME.get(name, ())) if fact in self._values)

    def unread_inside(self) -> list[str]:
        """The dotted paths of keys that may affect the cache, are not empty, and stand in nested objects that nobody has read.

        So are numbers of layers: such an object may be another model.
        """
        level, found = [(self._place(key), value) for key, value in self.raw.items() if key not in self.read], list[str]()
        for _ in range(_DEEPEST):
            objects = [(path, value) for path, value in level if isinstance(value, Mapping) and not harmless(path)]
            items = [(path, key, item) for path, value in objects for key, item in value.items()]
            found += [f"{path}.{key}" for path, key, item in items if bears_on_memory(key, item) or (key in _COUNTS and item)]
            if len(found) > _MOST:
                break
            level = [(f"{path}.{key}", item) for path, key, item in items]
        return found[:_MOST]

    def asked_keys(self) -> set[str]:
        """Every key that was asked for, whether or not the file has it, here and in nested configs."""
        return self.asked.union(*(child.asked_keys() for child in (*self.children, *self.parts)))

    def _facts_named(self, name: str) -> dict[str, Any]:
        """The facts that other models call by this name and this one by another, with the value that counts."""
        if self._class is not None and name in self._class.defaults:
            return {}
        facts = {}
        for key in _FACTS_BY_NAME.get(name, ()):
            own = next((own for own in self.names(key) if own in self.raw), None)
            value = self.raw[own] if own else self._class.defaults.get(self.names(key)[-1]) if self._class else None
            # A null beside what the class alone says is nothing said.
            if own != name and (own or not (value is None or self.raw[name] is None)):
                facts[key] = value
        return facts

    def contradictions(self) -> list[str]:
        """A sentence for each key that nobody has read and that gives a fact with another value than the one that counts."""
        own = [
            _disagree(self._place(name), self.raw[name], key, value)
            for name in self.raw
            if name not in self.read
            for key, value in self._facts_named(name).items()
            if value != self.raw[name]
        ]
        return list(dict.fromkeys((*own, *(sentence for child in self.children for sentence in child.contradictions()))))

    def bearing(self) -> dict[str, Any]:
        """The keys of the file that were read, with their values, by dotted path, here and in nested configs."""
        out = {self._place(key): value for key, value in self.raw.items() if key in self.read and not isinstance(value, Mapping)}
        for child in (*self.children, *self.parts):
            out |= child.bearing()
        return out

    def assumed_defaults(self) -> dict[str, Any]:
        """Keys whose value came from the class, here and in nested configs."""
        out = dict(self.defaulted)
        for child in self.children:
            out.update(child.assumed_defaults())
        return out


def _disagree(name: str, value: Any, other: str, its_value: Any) -> str:
    """Both values as JSON, so that a string does not look like a number."""
    return f"{name} is {_written(value)}, but {other}, which says the same, is {_written(its_value)}."


def _written(value: Any) -> str:
    """A value as the file writes it, cut. A dict from Python may hold what no file does: that is described."""
    try:
        text = json.dumps(value, default=quoted)
    except (ValueError, TypeError, RecursionError):
        text = quoted(value)
    return text if len(text) <= 60 else text[:57] + "..."


MAX_KINDS: Final = 128
"""Most different kinds of layers, as far as their caches go. Published models have up to 30, where each layer has its own number of
heads (OpenELM), and most have one or two."""

MAX_TENSORS: Final = 2_500
"""Most different tensors of weights; equal ones of several layers count once. Published models have up to 150."""

MAX_NAME: Final = 200
"""Most characters of a model type or an architecture; published ones have up to 60."""


def check_size(models: Iterable[ModelSpec]) -> None:
    """Raise :class:`~hwcalc.errors.ConfigError` for a model whose plan would take long, since its layers have too little in common."""
    for model in models:
        kinds = len(model.stack.groups)
        if kinds > MAX_KINDS:
            raise ConfigError(f"the config describes {kinds:,} different kinds of layers: more than {MAX_KINDS:,}.", hint=_HINT)
        tensors = 0 if model.counted is None else sum(len(block.weights) for block in model.counted.blocks)
        if tensors > MAX_TENSORS:
            raise ConfigError(f"the config describes {tensors:,} different tensors: more than {MAX_TENSORS:,}.", hint=_HINT)


def architecture_of(config: Mapping[str, Any]) -> str | None:
    """The first of the architectures that a document names."""
    names = config.get("architectures")
    return names[0] if isinstance(names, (list, tuple)) and names and isinstance(names[0], str) else None


def form(config: Config) -> str | None:
    """The parts of an encoder-decoder model that the class has, ``None`` for a class with a head for another task.

    ``both`` (with a head; also if no class is named), ``text`` (both with a head, of a model that has encoders of speech and of
    text, without the one of speech), ``decoder``, ``encoder``, or ``body`` (both without a head).
    """
    name = architecture_of(config.raw) or ""
    if not name or name.endswith(("ForConditionalGeneration", "MTModel", "ForSpeechToText")):
        return "both"
    if name.endswith("ForTextToText"):
        return "text"
    if name.endswith("ForCausalLM"):
        return "decoder"
    if name.endswith("EncoderModel"):
        return "encoder"
    return "body" if name.endswith("Model") else None


def predicts_words(config: Config) -> bool | None:
    """True if the class has a head that predicts words. ``None`` for a class with a head for another task."""
    name = architecture_of(config.raw) or ""
    if not name or name.endswith(("ForCausalLM", "LMHeadModel", "ModelWithLMHead", "ForMaskedLM", "Decoder")):
        return True
    return False if name.endswith(("Model", "GenerationEncoder")) else None
