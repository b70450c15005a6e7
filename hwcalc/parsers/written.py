"""Models whose layers are written down, kind by kind: ``18*mamba2(heads=64, head_dim=64, d_state=128, conv=4) + 6*sliding(...)``.

A model of one's own has no class that could be read. What its layers keep is said in the terms of ``formulas/``: each kind by its name, with
its own fields as parameters. Layers stand in their order; ``6*(3*mamba2(...) + sliding(...))`` repeats a pattern, and ``full(...) & mamba2(...)``
is a layer that keeps both. The text is the value of ``--layers-of``, or the key ``layers`` of a document in YAML or JSON, or a dict, where
layers may also be a list. Weights follow from three sizes, or are given by their number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final, NamedTuple

from msgspec.structs import fields, replace

from hwcalc import formulas
from hwcalc.errors import ConfigError, UsageError
from hwcalc.formulas import MAX_DIMENSION, AttentionKind, CrossAttention, Layer, LayerKind, MetaTokens, Stack
from hwcalc.formulas import weights as w
from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Block, Weight, WeightRole, Weights
from hwcalc.model import (
    EXAMPLE_LAYERS,
    EXAMPLE_PARAMETERS,
    NO_WEIGHTS,
    WRITTEN,
    Definition,
    ModelSpec,
    Note,
    Parameters,
    RawModel,
)
from hwcalc.parsers.blocks import Named, Weighed, attention_of, output_head, repeated, rms_norms
from hwcalc.parsers.config import ALIASES, DTYPE_WORDS, MAX_LAYERS, check_size
from hwcalc.parsers.known_types import SHORT_NAMES, SYNONYMS
from hwcalc.profiles.dtypes import find_dtype
from hwcalc.text import brief, did_you_mean, printable, quoted, shown
from hwcalc.units import parse_parameters, parse_tokens

MODEL_TYPE: Final = "written"
"""The model type of such a model: no other has it."""
MAX_TEXT: Final = 20_000
"""Most characters of a description of layers. A thousand layers, each with numbers of its own, are more than most."""
MAX_NESTING: Final = 8
"""Most patterns within one another."""

_SIZES: Final = ("hidden_size", "intermediate_size", "vocab_size")
KEYS: Final = (
    "layers", "name", "dtype", "state_dtype", "max_position_embeddings", "encoder_tokens", *_SIZES, "tie_word_embeddings", "parameters",
)  # fmt: skip
"""What a document may have."""
_FIELD_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    field: tuple(names.split())
    for field, names in {
        "num_attention_heads": "heads", "num_heads": "heads n_heads", "index_n_heads": "heads", "num_key_value_heads": "kv_heads",
        "num_key_heads": "key_heads", "num_value_heads": "value_heads", "key_head_dim": "key_dim", "value_head_dim": "value_dim",
        "index_head_dim": "head_dim", "index_topk": "topk", "head_dim": "head_dim d_head headdim", "window": "window sliding_window",
        "d_conv": "conv conv_kernel conv_kernel_size conv_kernel_dim conv_size", "d_state": "d_state state_size ssm_state_size state",
        "n_groups": "groups ngroups", "d_inner": "inner d_inner", "kv_lora_rank": "rank", "qk_rope_head_dim": "rope",
        "qk_nope_head_dim": "nope", "v_head_dim": "v_head_dim v", "num_memory_tokens": "tokens", "compress_ratio": "ratio", "chunk": "chunk attention_chunk_size",
    }.items()
}  # fmt: skip
"""Other names of fields beside those that configs have (:data:`~hwcalc.parsers.config.ALIASES`); the first is how they are written."""
_OTHERWISE: Final[Mapping[str, str | int]] = {
    "num_attention_heads": "num_key_value_heads", "num_key_value_heads": "num_attention_heads", "v_head_dim": "head_dim", "n_groups": 1,
    "num_key_heads": "num_value_heads", "num_value_heads": "num_key_heads", "value_head_dim": "key_head_dim",
    "attention_hidden_size": "hidden_size",
}  # fmt: skip
"""What a field is that was left out: another field, or a number."""
_OF_LATENTS: Final[Mapping[str, int]] = {"num_attention_heads": 128, "qk_nope_head_dim": 128, "v_head_dim": 128}
"""What a layer of MLA has that keeps its latent alone: these are of DeepSeek-V3, and decide its weights, and no byte of its cache."""
_BOOLEANS: Final = {"true": True, "yes": True, "false": False, "no": False}


def is_written(config: Mapping[str, Any]) -> bool:
    """True if a document says what its layers keep, and is no config of a model class."""
    return isinstance(config.get("layers"), (str, list, tuple)) and not {"model_type", "architectures"} & config.keys()


class Parameter(NamedTuple):
    """A parameter of a kind of layer: the field, the other names it may have, and what it is where it is left out.

    ``otherwise`` is another field or a number; without one, the field is required unless it has a default.
    """

    field: str
    names: tuple[str, ...]
    type: Any
    otherwise: str | int | None
    has_default: bool

    @property
    def required(self) -> bool:
        """True if it must be given."""
        return self.otherwise is None and not self.has_default

    @property
    def short(self) -> str:
        """The way it is written."""
        return next((name for name in _FIELD_NAMES.get(self.field, ()) if name in (self.field, *self.names)), self.field)

    @property
    def words(self) -> str:
        """Both names, where it has two."""
        return self.field if self.short == self.field else f"{self.field} ({self.short})"


@lru_cache(maxsize=64)
def parameters_of(kind: type[LayerKind]) -> tuple[Parameter, ...]:
    """The parameters of a kind, from its own fields."""
    own = {field.name for field in fields(kind)}
    found, taken = [], set(own)
    for field in fields(kind):
        if field.name == "kept":
            continue
        others = (*_FIELD_NAMES.get(field.name, ()), *ALIASES.get(field.name, ()))
        names = tuple(name for name in dict.fromkeys(others) if name not in taken)
        taken.update(names)
        other = _OF_LATENTS.get(field.name) if issubclass(kind, formulas.LatentAttention) else _OTHERWISE.get(field.name)
        otherwise = other if isinstance(other, int) or other in own else None
        found.append(Parameter(field.name, names, field.type, otherwise, has_default=not field.required))
    return tuple(found)


def kind_names() -> dict[str, str]:
    """Every name of a kind of layer, and the kind's own name."""
    short = {
        SHORT_NAMES[name]: name
        for name in reversed(formulas.KINDS)
        if name in SHORT_NAMES and name != "expanded_latent_attention"
    }
    others = {word: short.get(name, name) for word, name in SYNONYMS.items()}
    return {**others, **short, **{name: name for name in formulas.KINDS}, "none": "no_cache"}


def signature(kind: type[LayerKind]) -> str:
    """A kind with its parameters, as a description names them: ``mamba2(num_heads=, head_dim=, d_state=, n_groups=1, d_conv=)``."""
    words = []
    for parameter in parameters_of(kind):
        other = ", may be left out" if parameter.otherwise is None else f", else {parameter.otherwise}"
        words.append(parameter.words if parameter.required else f"{parameter.words}{other}")
    return "; ".join(words) or "nothing"


class ParameterInfo(Record):
    """A parameter of a kind of layer: the field, the other names that are understood, and whether it must be given."""

    name: str
    names: tuple[str, ...]
    required: bool


class KindInfo(Record):
    """A kind of layer as a description may name it: its own name, all its names with the usual one first, and what it keeps."""

    kind: str
    names: tuple[str, ...]
    parameters: tuple[ParameterInfo, ...]
    keeps: str


def kinds_described() -> tuple[KindInfo, ...]:
    """Every kind of layer, in the order of the formulas."""
    usual = SHORT_NAMES.values()
    by_kind: dict[str, list[str]] = {}
    for word, kind in sorted(kind_names().items(), key=lambda item: (item[0] not in usual, item[0] != item[1], item[0])):
        by_kind.setdefault(kind, []).append(word)
    return tuple(
        KindInfo(
            kind=name,
            names=tuple(by_kind[name]),
            parameters=tuple(
                ParameterInfo(name=each.field, names=each.names, required=each.required) for each in parameters_of(kind)
            ),
            keeps=re.sub(r"\{(\w+)\}", r"\1", kind.keeps),
        )
        for name, kind in formulas.KINDS.items()
    )


class WrittenError(ConfigError):
    """A description of layers that cannot be read. Exit 3, as a config; as an option it is wrong usage."""


def read_layers(given: object) -> tuple[Layer, ...]:
    """The layers of a description: text, or a list of texts and mappings.

    >>> [len(layer) for layer in read_layers("2*(full(heads=8, head_dim=64) & conv(channels=4, conv=4)) + none()")]
    [2, 2, 1]

    Raises :class:`WrittenError`, whose message says what is wrong and what is allowed.
    """
    layers = tuple(_of_text(given) if isinstance(given, str) else _of_list(given, 0))
    if not layers:
        raise WrittenError("no layer is named.", hint=f"Write: {EXAMPLE_LAYERS}")
    return layers


def _bounded(count: int, layers: list[Layer]) -> list[Layer]:
    if not 1 <= count <= MAX_LAYERS or count * len(layers) > MAX_LAYERS:
        raise WrittenError(
            f"there are more than {MAX_LAYERS:,} layers, or fewer than 1.", hint=f"Allowed: 1 to {MAX_LAYERS:,} layers."
        )
    return layers * count


_TOKEN: Final = r"\s*(?:(?P<number>\d[\d_]*)(?![\w.])|(?P<word>[A-Za-z_][\w-]*)|(?P<sign>[-+*&(),=]|[^\s\w]|\w+))"


_ENDS: Final = ("", ",", ")", "(", "=", "+", "*", "&")
_TIMES: Final = r"(?<![\w=])([0-9_]+)(?:\s*[xX\u00d7]\s*|\s+)(?=[A-Za-z(])"
"""A number of times as people write it: 18 x mamba2(...), 18 mamba2(...)."""


class _Text:
    """A reader of one text, token by token."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_TEXT:
            raise WrittenError(f"the layers are {len(text):,} characters long.", hint=f"Allowed: at most {MAX_TEXT:,}.")
        self.text = re.sub(_TIMES, r"\1*", text)
        self.tokens = [
            (match.lastgroup or "", match[match.lastgroup or 0], match.start(match.lastgroup or 0), match.end())
            for match in re.finditer(_TOKEN, self.text)
        ]
        self.place = 0

    def next(self) -> str:
        """The next token, ``""`` behind the last one."""
        return self.tokens[self.place][1] if self.place < len(self.tokens) else ""

    def kind(self) -> str:
        """The kind of the next token: ``number``, ``word``, ``sign``, or nothing."""
        return self.tokens[self.place][0] if self.place < len(self.tokens) else ""

    def take(self) -> str:
        """The next token, which is read now."""
        token = self.next()
        self.place += 1
        return token

    def expect(self, sign: str, where: str) -> None:
        """Take this sign, or raise an error."""
        if self.next() != sign:
            raise self.error(f"{shown(sign)} {where}")
        self.place += 1

    def value(self) -> str:
        """The value of a parameter: what stands up to a blank, a comma or a parenthesis."""
        first = self.place
        while self.next() not in _ENDS and (self.place == first or self.tokens[self.place][2] == self.tokens[self.place - 1][3]):
            self.place += 1
        return "" if self.place == first else self.text[self.tokens[first][2] : self.tokens[self.place - 1][3]]

    def error(self, wanted: str) -> WrittenError:
        """The error for a token that cannot stand here."""
        if self.next().startswith("?"):
            hint = (
                "Write a number, or a kind with its parameters, in place of the question mark. All kinds: kvplan models --kinds"
            )
            return WrittenError(f"the layers have a ? that is not filled in, where {wanted} is expected.", hint=hint)
        end = self.tokens[self.place][3] if self.place < len(self.tokens) else len(self.text)
        before = self.text[max(0, end - 30) : end]
        found = f"end after {shown(before, 40)}" if not self.next() else f"have {shown(self.next(), 30)} in {shown(before, 40)}"
        return WrittenError(f"the layers {found}, where {wanted} is expected.", hint=f"Write: {EXAMPLE_LAYERS}")


def _of_text(text: str) -> list[Layer]:
    reader = _Text(text)
    layers = _sum(reader, 0)
    if reader.next():
        raise reader.error("a plus sign, or the end,")
    return layers


def _sum(reader: _Text, depth: int) -> list[Layer]:
    """Terms with plus signs between."""
    if depth > MAX_NESTING:
        raise WrittenError(f"patterns of layers are nested more than {MAX_NESTING} deep.", hint=f"Write: {EXAMPLE_LAYERS}")
    layers = _term(reader, depth)
    while reader.next() == "+":
        reader.take()
        layers = _bounded(1, layers + _term(reader, depth))
    return layers


def _term(reader: _Text, depth: int) -> list[Layer]:
    """A layer or a pattern in parentheses, with a number of times before or behind it."""
    count = 1
    if reader.kind() == "number":
        count = _count(reader.take())
        reader.expect("*", "behind a number of layers")
    if reader.next() == "(":
        reader.take()
        layers = _sum(reader, depth + 1)
        reader.expect(")", "at the end of a pattern")
    else:
        layers = [_layer(reader)]
    if reader.next() == "*":
        reader.take()
        if reader.kind() != "number":
            raise reader.error("a number of layers")
        count *= _count(reader.take())
    return _bounded(count, layers)


def _count(digits: str) -> int:
    text = digits.replace("_", "")
    return int(text) if len(text) <= len(str(MAX_LAYERS)) else MAX_LAYERS + 1


def _layer(reader: _Text) -> Layer:
    """One layer: a kind, or several that it has at once."""
    kinds = [_kind_of_text(reader)]
    while reader.next() == "&":
        reader.take()
        kinds.append(_kind_of_text(reader))
    return tuple(kinds)


def _kind_of_text(reader: _Text) -> LayerKind:
    if reader.kind() != "word":
        raise reader.error("a kind of layer")
    name, given = reader.take(), dict[str, Any]()
    if reader.next() == "(":
        reader.take()
        while reader.next() != ")":
            if reader.kind() != "word":
                raise reader.error("the name of a parameter")
            parameter = reader.take()
            reader.expect("=", f"behind the parameter {shown(parameter, 40)}")
            value = reader.value()
            if parameter in given:
                raise WrittenError(f"{brief(name, 40)} has {brief(parameter, 40)} twice.", hint="Give it once.")
            given[parameter] = value
            if reader.next() == ",":
                reader.take()
            elif reader.next() != ")":
                raise reader.error("a comma, or a closing parenthesis,")
        reader.take()
    return make_kind(name, given)


_ENTRY: Final = ("kind", "count", "layers", "kinds")


def _of_list(given: object, depth: int) -> list[Layer]:
    """A list whose items are texts, or mappings of a ``kind``, of ``kinds`` that a layer has at once, or of ``layers`` to repeat."""
    if not isinstance(given, (list, tuple)):
        raise WrittenError(f"layers is {quoted(given, 40)}: it must be text or a list.", hint=f"Write: layers: {EXAMPLE_LAYERS}")
    if depth > MAX_NESTING:
        raise WrittenError(
            f"patterns of layers are nested more than {MAX_NESTING} deep.", hint=f"Write: layers: {EXAMPLE_LAYERS}"
        )
    layers: list[Layer] = []
    for entry in given:
        layers = _bounded(1, layers + _of_entry(entry, depth))
    return layers


def _of_entry(entry: object, depth: int) -> list[Layer]:
    if isinstance(entry, str):
        return _of_text(entry)
    if not isinstance(entry, Mapping) or sum(key in entry for key in ("kind", "layers", "kinds")) != 1:
        hint = "An item is text, or has a kind with its parameters, or the layers of a pattern, or the kinds of one layer."
        raise WrittenError(f"an item of layers is {quoted(entry, 60)}.", hint=hint)
    count = _number("count", entry.get("count", 1), 1)
    if "kind" in entry:
        return _bounded(count, [(_kind_of_entry(entry),)])
    extra = [str(key) for key in entry if key not in _ENTRY]
    if extra:
        raise WrittenError(f"an item of layers has a key {shown(extra[0], 40)}.", hint=f"Allowed here: {', '.join(_ENTRY)}.")
    if "layers" in entry:
        return _bounded(count, _of_list(entry["layers"], depth + 1))
    kinds = entry["kinds"]
    if (
        not isinstance(kinds, (list, tuple))
        or not kinds
        or not all(isinstance(kind, Mapping) and "kind" in kind for kind in kinds)
    ):
        raise WrittenError(
            f"kinds is {quoted(kinds, 60)}.", hint="Allowed: a list of items, each with a kind and its parameters."
        )
    return _bounded(count, [tuple(map(_kind_of_entry, kinds))])


def _kind_of_entry(entry: Mapping[Any, Any]) -> LayerKind:
    return make_kind(entry["kind"], {str(key): value for key, value in entry.items() if key not in ("kind", "count")})


def make_kind(name: object, given: Mapping[str, Any]) -> LayerKind:
    """The kind of layer of this name with these parameters. Raises :class:`WrittenError`."""
    names = {_plain(each): kind for each, kind in kind_names().items()}
    word = name.strip().lower() if isinstance(name, str) else ""
    if _plain(word) not in names:
        known = ", ".join(SHORT_NAMES.get(each, each) for each in formulas.KINDS if each != "expanded_latent_attention")
        raise WrittenError(
            f"there is no kind of layer {shown(name, 40) if isinstance(name, str) else quoted(name, 40)}.",
            hint=f"{did_you_mean(word, kind_names(), 3)}Known: {known}.",
        )
    kind = formulas.KINDS[names[_plain(word)]]
    known_names = {_plain(other): parameter for parameter in parameters_of(kind) for other in (parameter.field, *parameter.names)}
    values: dict[str, Any] = {}
    for key, value in given.items():
        parameter = known_names.get(_plain(key))
        if parameter is None:
            close = get_close_matches(_plain(key), known_names, n=1)
            meant = f"Did you mean {known_names[close[0]].short}? " if close else ""
            raise WrittenError(f"{word} has no parameter {shown(key, 40)}.", hint=f"{meant}It takes {signature(kind)}.")
        if parameter.field in values:
            raise WrittenError(
                f"{word} has {parameter.field} twice: {brief(key, 40)} is another name of it.", hint="Give it once."
            )
        values[parameter.field] = _value(word, parameter, value)
    for each in parameters_of(kind):
        other = values.get(each.otherwise) if isinstance(each.otherwise, str) else each.otherwise
        if values.get(each.field) is None and other is not None:
            values[each.field] = other
    missing: dict[str, Parameter] = {}
    for each in parameters_of(kind):
        # What another gives that is missing too follows from that one.
        if not each.has_default and values.get(each.field) is None and each.otherwise not in missing:
            missing[each.field] = each
    if missing:
        written = ", ".join(
            (*(f"{key}={value}" for key, value in given.items()), *(f"{each.short}=N" for each in missing.values()))
        )
        raise WrittenError(
            f"{word} lacks {', '.join(each.words for each in missing.values())}.",
            hint=f"It takes {signature(kind)}. Write: {word}({brief(written, 200)})",
        )
    try:
        return kind(**values)
    except ValueError as error:
        raise WrittenError(f"{word}: {error}.", hint=f"It takes {signature(kind)}.") from error


def _plain(name: str) -> str:
    """A name without what people write in several ways: Mamba-2, mamba_2."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _value(kind: str, parameter: Parameter, value: object) -> int | bool | None:
    """A checked value: a whole number, ``true`` or ``false``, or nothing where a field may be nothing."""
    word = value.strip().lower() if isinstance(value, str) else value
    if word in ("none", "null", None) and not isinstance(parameter.type, type):
        return None
    if parameter.type is bool:
        found = _BOOLEANS.get(word) if isinstance(word, str) else word
        if not isinstance(found, bool):
            raise WrittenError(f"{kind}: {parameter.field} is {quoted(value, 40)}.", hint="Allowed: true or false.")
        return found
    if isinstance(word, str) and word and not word.strip("?"):
        raise WrittenError(f"{kind}: {parameter.field} is not filled in.", hint="Write a number in place of the question mark.")
    # A kind itself knows which of its fields may be 0.
    return _number(f"{kind}: {parameter.field}", value, 0)


def _number(what: str, value: object, least: int) -> int:
    try:
        number = parse_tokens(value, what, minimum=least)  # type: ignore[arg-type]
    except UsageError as error:
        raise WrittenError(error.message if error.message.endswith(".") else f"{error.message}.", hint=error.hint) from error
    if number > MAX_DIMENSION:
        raise WrittenError(f"{what} is {number:,}.", hint=f"Allowed: a whole number from {least} to {MAX_DIMENSION:,}.")
    return number


def pattern_text(layers: Sequence[str]) -> str:
    """Layers in words, with a number where several are alike, and for a pattern that repeats.

    >>> pattern_text(["a", "a", "b"] * 4 + ["a"])
    '4*(2*a + b) + a'
    """
    parts: list[str] = []
    place = 0
    while place < len(layers):
        size, times = _repeated(layers[place : place + 2 * MAX_LAYERS])
        block = layers[place : place + size]
        text = block[0] if size == 1 else pattern_text(block)
        bare = size == 1 and " & " not in text
        parts.append(text if times == 1 else f"{times}*{text}" if bare else f"{times}*({text})")
        place += size * times
    return " + ".join(parts)


_LONGEST_PATTERN: Final = 100
"""Most layers of a pattern that is looked for."""


def _repeated(layers: Sequence[str]) -> tuple[int, int]:
    """How many of the first layers form the pattern that repeats over most of them, and how many times it does; the shortest such pattern."""
    best = 1, 1
    for size in range(1, min(len(layers) // 2, _LONGEST_PATTERN) + 1):
        times = 1
        while layers[size * times : size * (times + 1)] == layers[:size]:
            times += 1
        if times > 1 and size * times > best[0] * best[1]:
            best = size, times
    return best


def parse_written(raw: RawModel) -> ModelSpec:
    """The model of a document that says what its layers keep. Raises :class:`WrittenError`."""
    unknown = [str(key) for key in raw.config if key not in KEYS]
    if unknown:
        # torch_dtype is the dtype, and no state_dtype.
        ends = next((key for key in KEYS if unknown[0].endswith(f"_{key}")), "")
        meant = f"Did you mean {ends}? " if ends else did_you_mean(unknown[0], KEYS)
        raise WrittenError(f"a model with layers has no key {shown(unknown[0], 40)}.", hint=f"{meant}Allowed: {', '.join(KEYS)}.")
    name = raw.config.get("name")
    if name is not None and not (isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME):
        raise WrittenError(f"name is {quoted(name, 40)}.", hint=f"Allowed: text of at most {_LONGEST_NAME} characters.")
    layers = read_layers(raw.config["layers"])
    given = _as_config(raw.config)
    sizes: dict[str, int] = {key: given[key] for key in _SIZES if key in given}
    spec = ModelSpec(
        id=printable(name) if name else raw.id,
        source=raw.source,
        location=raw.location,
        revision=raw.revision,
        model_type=MODEL_TYPE,
        architecture=None,
        stack=Stack(layers),
        dtype=_dtype(raw.config, "dtype"),
        state_dtype=_dtype(raw.config, "state_dtype"),
        max_position_embeddings=given.get("max_position_embeddings"),
        hidden_size=sizes.get("hidden_size"),
        vocab_size=sizes.get("vocab_size"),
        encoder_tokens=given.get("encoder_tokens"),
        bearing=given,
        notes=(
            *raw.notes,
            Note(code=WRITTEN, message=_WRITTEN_DOWN),
        ),
        config=given,
    )
    check_size([spec])
    return _weighed(spec, given, sizes)


def _as_config(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with its values as a config.json has them: 131072 for 128k, and ``bfloat16`` for bf16. Engines read these keys themselves.

    Keys without a value are left out. Raises :class:`WrittenError`.
    """
    given = {key: value for key, value in document.items() if value is not None}
    for key in (*_SIZES, "max_position_embeddings", "encoder_tokens"):
        if key in given:
            given[key] = _number(key, given[key], 1)
    for key in ("dtype", "state_dtype"):
        name = _dtype(given, key)
        if name is not None:
            given[key] = DTYPE_WORDS.get(name, (name,))[0]
    if "parameters" in given:
        try:
            given["parameters"] = parse_parameters(given["parameters"], "parameters")
        except UsageError as error:
            raise WrittenError(f"{error.message}.", hint=error.hint) from error
    return given


_LONGEST_NAME: Final = 200
_MLP: Final = 4
"""The width of an MLP in widths of the hidden states: that of GPT-2 and BLOOM, and gated ones have about as many numbers."""
_VOCABULARY: Final = 128_256
"""That of Llama 3, for the size of logits."""
_MATRICES: Final = 64
"""The most matrices of a layer whose weights are known by their number alone."""
_WRITTEN_DOWN: Final = (
    "The layers are those that were written down, not those of a known model. An engine needs a class that builds them: its numbers follow "
    "from its rules for such layers."
)


def _dtype(given: Mapping[str, Any], key: str) -> str | None:
    word = given.get(key)
    if word is None:
        return None
    found = find_dtype(word) if isinstance(word, str) else None
    if found is None:
        raise WrittenError(
            f"{key} is {quoted(word, 40)}.", hint="Allowed: bf16, fp16, fp32 and the other formats of: kvplan dtypes"
        )
    return found.name


def _weighed(spec: ModelSpec, given: Mapping[str, Any], sizes: Mapping[str, int]) -> ModelSpec:
    """The model with its weights: by their number, by three sizes, or without any."""
    parameters: int | None = given.get("parameters")
    if parameters is not None:
        if spec.hidden_size is None:
            # Twelve times the square of the width are the weights of a layer of GPT: four of attention, eight of its MLP.
            width = max(1, round((parameters / (12 * len(spec.stack))) ** 0.5 / 128)) * 128
            message = f"hidden_size is taken for {width:,}, by 12 x hidden_size x hidden_size weights of a layer; it bears on activations alone."
            spec = replace(spec, hidden_size=width, notes=(*spec.notes, Note(code="width-by-number", message=message)))
        exact = "hidden_size, intermediate_size and vocab_size in place of parameters"
        return by_number(spec, parameters, exact)
    if len(sizes) < len(_SIZES):
        message = f"The weights are not known: give {EXAMPLE_PARAMETERS}, or --hidden-size, --intermediate-size and --vocab-size."
        if spec.source != "options":
            message = "The weights are not known: give parameters (7.2B), or hidden_size, intermediate_size and vocab_size."
        return replace(spec, notes=(*spec.notes, Note(code=NO_WEIGHTS, message=message)))
    hidden, width, vocabulary = (sizes[key] for key in _SIZES)
    mlp, norms = w.gated_mlp(hidden, width), rms_norms(hidden, "input_layernorm", "post_attention_layernorm")

    def weigh(layer: Layer) -> Iterator[Named]:
        for kind in layer:
            yield kind.name, _mixer(kind, hidden)
        yield "mlp", mlp
        yield "norm", norms

    blocks = [
        Block(kind="embedding", weights=w.embedding("model.embed_tokens", vocabulary, hidden)),
        Block(kind="norm", weights=w.rms_norm("model.norm", hidden)),
        *output_head("lm_head", hidden, vocabulary, tied=_flag(given, "tie_word_embeddings")),
        *repeated(spec.stack, weigh),
    ]
    counted = Weights(blocks=tuple(blocks))
    total = Parameters(total=counted.total, active=counted.active, definition=Definition.ESTIMATE)
    message = (
        "Weights by the sizes: each layer has the usual matrices of its kinds, a gated MLP and two norms. Where that is not so, give their "
        "number in place of the sizes (parameters)."
    )
    notes = (*spec.notes, Note(code="weights-by-sizes", message=message))
    return replace(spec, counted=counted, parameters=total, notes=notes)


def by_number(spec: ModelSpec, parameters: int, exact: str) -> ModelSpec:
    """The model with so many parameters, spread evenly over its layers. Which tensors they form is not known.

    ``exact`` is what to give for weights that are known better.
    """
    layers, hidden, vocabulary = len(spec.stack), spec.hidden_size or 1, spec.vocab_size or _VOCABULARY
    rows = parameters // (layers * hidden)
    rest = parameters - rows * layers * hidden
    # Engines work out activations by the widest thing that a matrix gives: that of an MLP.
    height = max(_MLP * hidden, -(-rows // _MATRICES))
    heights = [height] * (rows // height) + ([rows % height] if rows % height else [])
    matrices = tuple(Weight(path="mlp.up_proj.weight", shape=(size, hidden), role=WeightRole.LINEAR) for size in heights)
    blocks = [Block(kind="layer", weights=matrices, count=layers, layers=tuple(range(layers)))] if matrices else []
    blocks += [Block(kind="rest", weights=(Weight(path="rest", shape=(rest,), role=WeightRole.OTHER),))] if rest else []
    total = Parameters(total=parameters, active=parameters, definition=Definition.ESTIMATE)
    message = (
        f"Weights by their number alone: activations are those of an MLP {_MLP} times as wide as the hidden states and of "
        f"{vocabulary:,} words. Exact ones: {exact}."
    )
    notes = (*spec.notes, Note(code="weights-by-number", message=message))
    return replace(spec, counted=Weights(blocks=tuple(blocks)), parameters=total, vocab_size=vocabulary, notes=notes)


def _flag(given: Mapping[str, Any], key: str) -> bool:
    value = given.get(key, False)
    if not isinstance(value, bool):
        raise WrittenError(f"{key} is {quoted(value, 40)}.", hint="Allowed: true or false.")
    return value


_WEIGHED: Final[Mapping[type[LayerKind], Callable[..., Weighed]]] = {
    formulas.Mamba2: w.mamba2, formulas.GatedDeltaNet: w.gated_delta_net, formulas.KimiDeltaAttention: w.kimi_delta_attention,
    formulas.LightningAttention: w.lightning_attention,
}  # fmt: skip
"""States whose weights have the names of their dimensions."""


def weights_follow(kind: type[LayerKind]) -> bool:
    """True if the weights of layers of this kind follow from the sizes: all models have the same matrices."""
    others = (MetaTokens, AttentionKind, formulas.LatentAttention, formulas.Mamba1, formulas.ShortConvolution, formulas.NoCache)
    return issubclass(kind, (*others, *_WEIGHED))


def _mixer(kind: LayerKind, hidden: int) -> Weighed:
    """The usual matrices of a kind of layer. Raises :class:`WrittenError` where there are none that all models have."""
    if not weights_follow(type(kind)):
        message = f"the weights of layers of the kind {SHORT_NAMES.get(kind.name, kind.name)} do not follow from sizes alone."
        raise WrittenError(message, hint="Give the number of all parameters (7.2B) in place of the sizes.")
    numbers = kind.numbers()
    if isinstance(kind, AttentionKind):
        return attention_of(kind, hidden, path="encoder_attn" if isinstance(kind, CrossAttention) else "self_attn")
    if isinstance(kind, formulas.LatentAttention):
        return w.latent_attention(hidden, **{key: value for key, value in numbers.items() if key != "window"})
    if isinstance(kind, formulas.Mamba1):
        return w.mamba1(hidden, **numbers, dt_rank=-(-hidden // 16))
    if isinstance(kind, formulas.ShortConvolution):
        return w.short_convolution(hidden, kind.d_conv)
    return next((weigh(hidden, **numbers) for known, weigh in _WEIGHED.items() if isinstance(kind, known)), ())
