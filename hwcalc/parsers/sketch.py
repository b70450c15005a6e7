"""The layers that a config of an unknown type describes, in the words of ``--layers-of``: a start for somebody who knows the model.

Only names that published configs have are read (:mod:`~hwcalc.parsers.key_names`), as those configs mean them. A question mark stands for everything else,
and what nothing was read from is listed. While that may change the layers, their numbers are question marks too. Nothing is planned from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any, Final, NamedTuple

from hwcalc import formulas
from hwcalc.errors import ConfigError
from hwcalc.formulas import AttentionKind, LatentAttention
from hwcalc.formulas.record import Record
from hwcalc.formulas.states import StateKind
from hwcalc.parsers.config import ALIASES, MAX_LAYERS
from hwcalc.parsers.key_names import BESIDE, FAMILIES, NAMES, SIGNS, SWITCHES, is_number, kind_of, not_read, not_read_of
from hwcalc.parsers.known_types import SHORT_NAMES
from hwcalc.parsers.reading import every
from hwcalc.parsers.written import Parameter, parameters_of, pattern_text, read_layers, weights_follow
from hwcalc.profiles.dtypes import find_dtype
from hwcalc.text import brief, quoted, shell_word

UNKNOWN: Final = "?"
"""What stands for a kind, a number or a count that the file does not say."""
_LONGEST: Final = 700
"""Most characters of a description that a message offers."""
_LISTED: Final = 400
"""How many characters a line has that lists keys, before it ends."""
_SIZES: Final = ("hidden_size", "intermediate_size", "vocab_size")
_DTYPES: Final = frozenset({"dtype", "torch_dtype"})
_FULL, _SLIDING, _LATENT = "full_attention", "sliding_attention", "latent_attention"
_LISTS: Final = ("layer_types", "layers_block_type", "block_types")
"""Keys with a type for each layer; ``block_types`` is a unit that repeats."""
_LETTERS: Final = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""Those of ``hybrid_override_pattern``, as Nemotron-H has them."""
_PERIODS: Final = {"full_attention_interval": "linear_attention", "sliding_window_pattern": _SLIDING}
"""Keys of a period whose last layer is full, with the type of the others."""
_NAMESAKES: Final = {"num_heads": ("num_heads", "n_heads", "n_head"), "head_dim": ("head_dim", "head_size")}
"""Names of attention's parameters that configs of states alone have for a parameter of theirs."""


class Found(NamedTuple):
    """A number of the file and the key that gives it, or ``None`` and why there is none."""

    value: int | None
    said: str


class Sketch(Record):
    """What a file says of its layers.

    ``options`` are those of a command line, and ``lines`` say where each number comes from. It is ``complete`` if no question mark is in it: then nothing
    of the file was left unread that may bear on memory.
    """

    options: Mapping[str, str]
    lines: tuple[str, ...]
    complete: bool
    leaves_out: bool
    """True if the file has numbers or words that were not read."""
    kinds: frozenset[str]
    """The kinds of layers that the file has."""

    @property
    def command(self) -> str:
        """The command line."""
        words = (word for name, value in self.options.items() for word in (f"--{name.replace('_', '-')}", value))
        return " ".join(map(shell_word, ("kvplan", *words)))


def sketched(raw: Mapping[str, Any], around: Mapping[str, Any] | None = None) -> Sketch | None:
    """The layers of a file as far as it describes them; ``None`` if it says nothing of them.

    ``around`` is what stands in a document around the level of its language model.
    """
    return _Reader(raw, around or {}).sketch()


class _Reader:
    """One file."""

    def __init__(self, raw: Mapping[str, Any], around: Mapping[str, Any]) -> None:
        self.raw, self.around = raw, around
        self.off = {number for flag, number in SWITCHES.items() if raw.get(flag) is False}
        """Numbers that the file itself switches off."""
        self.used = {"sliding_window", "use_sliding_window", "max_window_layers"} if "sliding_window" in self.off else set[str]()
        """The keys that something was read from."""
        found = self._number("num_hidden_layers")
        self.faults = [] if found is None or found.value is not None else [found.said]
        """What disagrees, or makes no sense."""
        self.count = 0 if found is None or found.value is None else found.value
        if self.count > MAX_LAYERS:
            self.faults.append(f"{self.count:,} layers are more than {MAX_LAYERS:,}")
            self.count = 0
        self.latent, self.windowed = self._has("kv_lora_rank"), self._has("sliding_window")

    # --- numbers ----------------------------------------------------------------------------------------------------------

    def _keys(self, *names: str) -> list[str]:
        """The keys of the file that have one of these names or of their aliases."""
        known = (other for name in names for other in (name, *ALIASES.get(name, ())))
        return [key for key in known if self.raw.get(key) is not None and key not in self.off]

    def _has(self, *names: str) -> bool:
        return bool(self._keys(*names))

    def _number(self, *names: str) -> Found | None:
        """The number that the file has under these names, ``None`` without one. Keys that agree count as used."""
        given = {key: self.raw[key] for key in self._keys(*names)}
        for key, number in given.items():
            if not is_number(number):
                return Found(None, f"{key} is {quoted(number, 30)}")
        if len(set(given.values())) > 1:
            return Found(None, f"{' and '.join(f'{key} {number}' for key, number in given.items())} disagree")
        self.used.update(given)
        return next((Found(number, key) for key, number in given.items()), None)

    def _value(self, kind: str, field: str) -> Found | None:
        """The number of one parameter of a kind."""
        if (kind, field) == ("mamba1", "d_inner"):
            inner = self._product("mamba_expand", "hidden_size")
            return None if inner is None or inner.value is None else inner
        attends = issubclass(formulas.KINDS[kind], AttentionKind)
        own = "" if issubclass(formulas.KINDS[kind], StateKind) else field
        found = self._number(*NAMES.get(kind, {}).get(field, own).split())
        if attends and found is not None and found.said in self.missing:
            return Found(None, f"{found.said} {found.value} may be that of {self.missing[found.said]}")
        return self._filling(found) if (kind, field) == ("mamba2", "num_heads") else found

    def _product(self, *factors: str) -> Found | None:
        """The product of numbers that each have one of these names, ``None`` where one is missing."""
        found = [each for names in factors if (each := self._number(*names.split())) is not None]
        if len(found) < len(factors):
            return None
        unclear = next((each for each in found if each.value is None), None)
        return unclear or Found(prod(each.value or 0 for each in found), " x ".join(each.said for each in found))

    def _filling(self, heads: Found | None) -> Found | None:
        """The heads of Mamba-2, unless the file has another inner width than they fill."""
        names = NAMES["mamba2"]
        filled = self._product(names["num_heads"], names["head_dim"])
        inner = self._product("mamba_expand expand", "hidden_size")
        if heads is None or filled is None or inner is None or filled.value is None or inner.value == filled.value:
            return heads
        if inner.value is None:
            return inner
        return Found(None, f"{filled.said} {filled.value} and {inner.said} {inner.value} disagree")

    @cached_property
    def missing(self) -> Mapping[str, str]:
        """Names that may be meant for a parameter that the file does not give of its states, with the kind of state."""
        states = [kind for kind in self.kinds if kind and issubclass(formulas.KINDS[kind], StateKind)]
        fields = ((each.field, kind) for kind in states for each in parameters_of(formulas.KINDS[kind]))
        lacking = ((field, kind) for field, kind in fields if field in _NAMESAKES and self._value(kind, field) is None)
        return {name: _short(kind) for field, kind in lacking for name in _NAMESAKES[field]}

    # --- which layers are which -------------------------------------------------------------------------------------------

    @cached_property
    def slots(self) -> tuple[str, ...]:
        """The kind of each layer, empty where nobody knows it; no layers if the file does not say which are which."""
        found: dict[str, tuple[str, ...]] = {}
        for key, words in self._words().items():
            self.used.add(key)
            if self.count and len(words) != self.count:
                self.faults.append(f"{key}, which is {len(words)} layers long, and num_hidden_layers {self.count} disagree")
            elif len(words) > MAX_LAYERS:
                self.faults.append(f"{key} is {len(words):,} layers long: more than {MAX_LAYERS:,}")
            else:
                found[key] = tuple(map(self._settled, words))
        if len(set(found.values())) > 1:
            self.faults.append(f"{' and '.join(found)} disagree")
        kinds = () if self.faults or not found else next(iter(found.values()))
        # A window that no layer is said to have may be that of all that attend.
        open_ = self.windowed and not {_SLIDING, "sink_attention"} & {*kinds}
        return tuple("" if open_ and kind == _FULL else kind for kind in kinds)

    def _words(self) -> dict[str, Sequence[str]]:
        """The words for the layers in their order, under each key that gives them."""
        raw, count, words = self.raw, self.count, dict[str, Sequence[str]]()
        for key in _LISTS:
            value = raw.get(key)
            if isinstance(value, (list, tuple)) and value and all(isinstance(item, str) for item in value):
                unit = key == "block_types" and len(value) < count
                words[key] = [value[i % len(value)] for i in range(count)] if unit else value
        if (pattern := raw.get("hybrid_override_pattern")) and isinstance(pattern, str):
            words["hybrid_override_pattern"] = [_LETTERS.get(letter, "") for letter in pattern]
        for key, other in _PERIODS.items():
            if count and is_number(period := raw.get(key)):
                words[key] = every(period, count, _FULL, other)
        period, offset = raw.get("attn_layer_period"), raw.get("attn_layer_offset")
        if count and is_number(period) and (offset == 0 or is_number(offset)) and offset < period:
            words["attn_layer_period"] = every(period, count, _FULL, "mamba", offset)
            self.used.add("attn_layer_offset")
        return words

    def _settled(self, word: str) -> str:
        """The kind that a type of layers stands for in this file; empty if the file leaves it open."""
        kind = kind_of(word.strip().lower()) or ""
        if kind in FAMILIES:
            signed = [each for each in FAMILIES[kind] if self._has(*SIGNS[each].split())]
            return signed[0] if len(signed) == 1 else ""
        if self.latent and kind in (_FULL, _SLIDING):
            return _LATENT if kind == _FULL else ""
        return kind

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of the layers, or those that the file has numbers of where it does not say which layers are which."""
        states = [kind for kind, names in SIGNS.items() if self._has(*names.split())]
        attention = [_SLIDING] * self.windowed + ["chunked_attention"] * self._has("attention_chunk_size") + [_FULL]
        attends = self._has("num_attention_heads", "num_key_value_heads", "head_dim")
        described = (*states, *([_LATENT] if self.latent else attention if attends else []))
        return tuple(dict.fromkeys(self.slots)) or described or ("",)

    # --- in words ---------------------------------------------------------------------------------------------------------

    def sketch(self) -> Sketch | None:
        """The layers in words."""
        slots = self.slots or (self.kinds * self.count if len(self.kinds) == 1 else ())
        made = {kind: self._layer(kind) for kind in self.kinds}
        options = self._rest()
        unread = not_read(self.raw, self.used) | not_read_of(self.around, self.used & _DTYPES)
        if self.kinds == ("",) and not self.count and not unread:
            return None
        counts = Counter(slots)
        text = pattern_text([made[kind][0] for kind in slots])
        if UNKNOWN not in text and slots:
            try:
                read_layers(text)
            except ConfigError as error:
                self.faults.append(error.message)
        is_open = bool(not slots or unread or self.faults)
        by = f", by {' and '.join(self._words())}" if self.slots else ""
        lines = []
        for kind, (_, line) in made.items():
            of = f"{counts[kind]} of {len(slots)} layers" if by else f"of {self.count} layers" if self.count else ""
            lines.append(f"{UNKNOWN} x {line}{of and f', {of}'}{by}" if is_open else f"{counts[kind]} x {line}{by}")
        if is_open:
            text = " + ".join(f"{UNKNOWN}*{text}" for text, _ in made.values())
            lines += (*self.faults, *_listed(unread))
            if unread:
                # They may be of other matrices than three sizes give: a number of experts, or a second width.
                sized = ", and the sizes for weights are left out" if options.keys() & {*_SIZES} else ""
                options = {name: value for name, value in options.items() if name not in _SIZES}
                lines.append(f"while these are not read, the number of layers of each kind is left open{sized}")
            elif not slots:
                lines.append("which layers are which is not in the file, or kvplan does not know the key that says it")
        elif len(text) > _LONGEST:
            text = " + ".join(f"{counts[kind]}*{text}" for kind, (text, _) in made.items())
            lines.append("in another order than the file's, to be short: it bears on no sum")
        return Sketch(
            options={"layers_of": text, **options},
            lines=(*lines, *self._remarks(options["seq"])),
            complete=UNKNOWN not in text,
            leaves_out=bool(unread),
            kinds=frozenset(self.kinds) - {""},
        )

    def _layer(self, name: str) -> tuple[str, str]:
        """A layer of this kind: as it is written, and with the keys that its numbers are from."""
        if not name:
            return UNKNOWN, f"{UNKNOWN}: their kind is not in the file, or kvplan does not know its name"
        texts, told = [], []
        for kind in self._together(name):
            given = list(self._parameters(kind))
            texts.append(f"{_short(kind)}({', '.join(f'{each.short}={found.value or UNKNOWN}' for each, found in given)})")
            said = (f"{each.short}={found.value or UNKNOWN} ({found.said})" for each, found in given)
            told.append(f"{_short(kind)}: {', '.join(said) or formulas.KINDS[kind].title}")
        return " & ".join(texts), " & ".join(told)

    def _together(self, name: str) -> list[str]:
        """The kinds that a layer has at once: an indexer stands beside a latent."""
        return [name, *(["sparse_indexer"] if name == _LATENT and self._has("index_head_dim") else [])]

    def _parameters(self, name: str) -> Iterator[tuple[Parameter, Found]]:
        """The parameters of a kind that the file gives, and those that must be given."""
        kind = formulas.KINDS[name]
        self.used.update(BESIDE.get(name, "").split())
        if name == _LATENT and self.raw.get("num_key_value_heads") == self.raw.get("num_attention_heads"):
            # All heads share the latent: as many for keys as for queries say nothing of their own.
            self.used.add("num_key_value_heads")
        for parameter in parameters_of(kind):
            found = self._value(name, parameter.field)
            # Values are as wide as keys, and heads beside a latent bear on no byte of the cache.
            of_latent = issubclass(kind, LatentAttention) and not parameter.required
            if found is not None or not (parameter.has_default or of_latent or parameter.field == "v_head_dim"):
                yield parameter, found or Found(None, "no key that kvplan knows")

    def _rest(self) -> dict[str, str]:
        """The options that say what else bears on the numbers: the sizes for weights, the length and the format."""
        options, whole = dict[str, str](), {**self.around, **self.raw}
        sizes = {name: found.value for name in _SIZES if (found := self._number(name)) is not None and found.value is not None}
        # Of a model with experts, tied embeddings or a format of its own for weights, three sizes are not all.
        more = {"tie_word_embeddings", "quantization_config", "compression_config"}
        plain = not any(value and (key in more or "expert" in str(key)) for key, value in whole.items())
        plain = plain and all(
            kind and weights_follow(formulas.KINDS[kind]) for name in self.kinds for kind in self._together(name)
        )
        if plain and len(sizes) == len(_SIZES):
            options |= {name: str(value) for name, value in sizes.items()}
        longest = self._number("max_position_embeddings")
        self.used.update(self._keys("max_position_embeddings"))
        tokens = (longest and longest.value) or 32 * 1024
        options["seq"] = str(tokens) if tokens % 1024 else f"{tokens // 1024}k"
        words = {key: word for key in _DTYPES if isinstance(word := whole.get(key), str)}
        formats = {find_dtype(word.removeprefix("torch.")) for word in words.values()}
        names = {found.name if found is not None else "" for found in formats}
        if len(names) == 1 and names <= {"bf16", "fp16", "fp32"}:
            self.used.update(words)
            (options["dtype"],) = names
            # Weights are bf16 where nothing else is said.
            options |= {"weights": "fp32"} if names == {"fp32"} else {}
        # States are in fp32 where nothing else is said.
        self.used.update(key for key in ("mamba_ssm_dtype", "mamba_ssm_cache_dtype") if self.raw.get(key) == "float32")
        return options

    def _remarks(self, tokens: str) -> Iterator[str]:
        """What a file of layers can say and a command line cannot, and the length where the file has none."""
        if self.raw.get("tie_word_embeddings"):
            yield "tied embeddings, which a file of layers can say: tie_word_embeddings: true, beside the three sizes for weights"
        longest = self._number("max_position_embeddings")
        if longest is None or longest.value is None:
            why = "the longest sequence is not in the file, or kvplan does not know its key" if longest is None else longest.said
            yield f"{why}: {tokens} stands for it"
        else:
            # Without it a longer sequence is planned in silence.
            said = f"made for {longest.value:,} tokens ({longest.said})"
            yield f"{said}, which a file of layers can say: max_position_embeddings: {longest.value}"


def _listed(unread: Mapping[str, Any]) -> Iterator[str]:
    """The lines about what was not read."""
    for what, worded in (("numbers", False), ("words", True)):
        items = [item for item in unread.items() if isinstance(item[1], (str, bool)) is worded][:_LISTED]
        told = ", ".join(
            f"{brief(path, 40)} {brief(value, 20) if isinstance(value, str) else quoted(value, 20)}" for path, value in items
        )
        if len(told) > _LISTED:
            told = f"{told[:_LISTED].rpartition(', ')[0]}, ..."
        if told:
            yield f"{what} that kvplan does not read: {told}"


def _short(kind: str) -> str:
    return SHORT_NAMES.get(kind, kind)
