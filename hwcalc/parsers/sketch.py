"""The layers that an unknown config describes, in the words of ``--layers-of``: a start for somebody who knows the model.

Which layers are which is read from a list of types or codes, a pattern, numbers of layers, or a key for every so many layers; the parameters of each kind
from keys whose words say so (:mod:`~hwcalc.parsers.key_words`). A question mark stands for what the file does not say. Nothing is planned from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

from hwcalc import formulas
from hwcalc.formulas import AttentionKind
from hwcalc.formulas.record import Record
from hwcalc.formulas.states import StateKind
from hwcalc.parsers.config import MAX_LAYERS, bears_on_memory, weighs
from hwcalc.parsers.key_words import SUBJECTS, Found, Keys, Words, entries, harmless, is_number, meanings, number_in, words_of
from hwcalc.parsers.known_types import SHORT_NAMES
from hwcalc.parsers.written import Parameter, kind_names, parameters_of, pattern_text, weights_follow
from hwcalc.profiles.dtypes import find_dtype
from hwcalc.text import brief, by_word, shell_word

_LONGEST: Final = 700
"""Most characters of a description that a message offers."""
_MOST_KINDS: Final = 8
"""Most types of layers that a list may name."""
_SIZES: Final = ("hidden_size", "intermediate_size", "vocab_size")
_SHARED_NAMES: Final = frozenset(
    ["num_heads", "head_dim", "num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim", "qk_head_dim", "v_head_dim"]
)
"""Fields of states that keys without a word for states give for attention, where there is attention."""
UNKNOWN: Final = "?"
"""What stands for a kind, a number or a count that the file does not say."""

_KINDS_BY_WORD: Final[Mapping[str, str]] = by_word(
    {
        "mamba2": "mamba2 ssd", "mamba1": "mamba1 s6", "mamba": "mamba ssm", "kimi_delta_attention": "kda kimi", "gated_delta_net": "gdn delta deltanet",
        "lightning_attention": "lightning", "gated_linear_attention": "gla", "rwkv_matrix": "rwkv wkv", "matrix_lstm": "mlstm",
        "real_gated_lru": "lru rglru griffin", "latent_attention": "mla latent", "sliding_attention": "sliding swa local window",
        "chunked_attention": "chunk chunked", "cross_attention": "cross", "short_convolution": "conv shortconv", "linear": "linear recurrent rnn",
        "full_attention": "full global attention softmax gqa mha mqa standard", "shared_cache": "shared share reuse reused", "no_cache": "mlp ffn moe identity noop skip",
    }
)  # fmt: skip
"""What files call their types of layers: a kind, or a family of kinds (``mamba``, ``linear``) that its parameters settle."""
_ORDER: Final = tuple(dict.fromkeys(_KINDS_BY_WORD.values()))
"""Where a type has several of these words, the first of these is meant: ``linear_attention`` is linear."""
_LETTERS: Final[Mapping[str, Sequence[str]]] = {
    "M": ("mamba", "no_cache"), "A": ("full_attention",), "F": ("full_attention", "no_cache"), "G": ("full_attention", "gated_delta_net"), "T": ("full_attention",),
    "S": ("sliding_attention", "mamba"), "L": ("sliding_attention", "linear"), "W": ("sliding_attention",), "R": ("real_gated_lru", "rwkv_matrix", "linear"),
    "D": ("gated_delta_net",), "K": ("kimi_delta_attention",), "C": ("short_convolution", "chunked_attention", "cross_attention"), "X": ("cross_attention",),
    "E": ("no_cache",), "-": ("no_cache",), "*": ("full_attention",),
}  # fmt: skip
"""What the letters of a pattern may stand for. The file's other keys settle it, or nobody knows."""
_LINEAR: Final = ("kimi_delta_attention", "gated_delta_net", "lightning_attention", "gated_linear_attention", "real_gated_lru")
"""What linear attention may be."""
_WORDS_OF_STATES: Final[Mapping[str, str]] = {
    "mamba": "mamba mamba1 mamba2 ssm ssd s6", "linear": "linear gdn delta deltanet kda gla lightning", "real_gated_lru": "lru rglru",
    "rwkv_matrix": "rwkv wkv", "matrix_lstm": "mlstm xlstm",
}  # fmt: skip
"""The words by which keys are about states."""
_OF_FEED_FORWARD: Final = r"moe|expert|mlp|ffn|dense|rope|norm|mtp|vision|audio|image"
"""Keys that place something else than what layers keep."""
_OF_HEADS: Final = frozenset({("", "num_key_value_heads"), ("", "head_dim")})
"""What layers that keep a latent alone have no use for."""
_COMPUTED: Final = r"dt(?!ype)|time_step|chunk|rank|scan|expand|kernels|multiplier|use_|eigval|a_log|_min|_max"
"""Keys of states that bear on what they compute, and not on what they keep."""
_OPEN: Final = "attention"
"""The family of a layer that attends, where the file leaves open what it keeps."""
_LATENT: Final = frozenset({"mla", "latent"})
"""Words of keys and values that say that layers keep a latent."""
_SQUEEZING: Final = ("bottleneck", "compress", "squeez", "lowrank")
"""How words of keys begin that may say it, as ``rank`` may."""
_UNKEPT: Final = frozenset({"query", "o", "output", "out"})
"""Words of ranks whose product is never cached."""
_EVERY: Final = frozenset({"every", "period", "interval", "freq", "frequency", "nth"})
_FORMAT_WORDS: Final = frozenset({"dtype", "type", "format", "precision", "quant", "quantization", "algo"})
_INDICES: Final = frozenset({"layer", "idx", "index", "indice", "id", "indices", "block"})
_NAMES: Final = frozenset({"type", "kind", "name", "mixer", "layer"})
_PATTERNS: Final = frozenset({"pattern", "cycle", "period", "unit", "schedule", "repeat"})


class Slot(NamedTuple):
    """What one layer is called, and where: a kind or a family, ``""`` if nobody knows it, and the keys of this layer alone."""

    kind: str
    said: str
    own: int | None = None
    """The number of the layer, where lists have values of its own."""


class Sketch(Record):
    """What a file says of its layers.

    ``options`` are those of a command line, ``lines`` say where each number comes from, and ``complete`` is true if nothing is left to fill in.
    """

    options: Mapping[str, str]
    lines: tuple[str, ...]
    complete: bool
    placed: tuple[str, ...] = ()
    """The keys that say which layers are which."""
    kinds: frozenset[str] = frozenset()
    """The kinds of layers that the file has numbers of."""

    @property
    def command(self) -> str:
        """The command line."""
        words = (word for name, value in self.options.items() for word in (f"--{name.replace('_', '-')}", value))
        return " ".join(map(shell_word, ("kvplan", *words)))


def sketched(raw: Mapping[str, Any]) -> Sketch | None:
    """The layers of a file as far as it describes them; ``None`` if it says too little, or too much for a message."""
    return _Reader(raw).sketch()


class _Reader:
    """One file."""

    def __init__(self, raw: Mapping[str, Any], *, alike: bool = True) -> None:
        self.raw, self.alike = raw, alike
        """``alike``: where no key says how many heads keep keys and values, they are as many as those of queries."""
        self.guessed = False
        """True if that was made use of."""
        self.pairs = raw.get("is_encoder_decoder") is True
        self.keys = Keys(raw, prefer="decoder" if self.pairs else "")
        self.placed: set[str] = set()
        """Keys that say which layers are which."""
        found = self.keys.take("num_hidden_layers")
        self.count = found.value if found is not None and is_number(found.value) and found.value <= MAX_LAYERS else 0
        self.disagree = {found.key} if found is not None and found.value is None else set[str]()
        """What two keys say of the number of layers, where that is not the same."""
        self.slots: Sequence[Slot] = ()
        self.own: Sequence[Keys] = ()
        """The keys of each layer, where the file has an object for each."""
        self.attends = any(map(self.keys.find, ("num_attention_heads", "num_key_value_heads")))
        self.weighed = True
        """False if layers are of a kind whose weights do not follow from the sizes."""
        self.rank = self.keys.find("kv_lora_rank")
        self.squeezed = tuple(self._squeezing()) if self.rank is None else ()
        """Numbers that may be those of a latent in words that are not known."""
        said = (words_of(key) | words_of(value if isinstance(value, str) else "") for key, value in self._shapes() if value)
        self.latent = self.rank is not None or any(words & _LATENT for words in said)
        """True if a number or a word of the file says that layers keep a latent."""
        self.windowed = bool(self._window()) and raw.get("use_sliding_window") is not False

    @cached_property
    def by_layer(self) -> bool:
        """True if a list has a number for each layer."""
        lists = (
            entry for entry in self.keys.entries if isinstance(entry.value, (list, tuple)) and len(entry.value) == self.count
        )
        return any(
            bears_on_memory(entry.key, 1) and all(item is None or isinstance(item, int) for item in entry.value)
            for entry in lists
        )

    def sketch(self) -> Sketch | None:
        """The layers in words."""
        placed = self._slots()
        if placed is None:
            slots, counted = [Slot(self._settled(kind) or kind, "") for kind in self._described()], False
            if not slots and not self.count:
                return None
            slots = slots or [Slot("", "")]
        else:
            slots, counted = placed, True
            if self.windowed and not any("sliding" in slot.kind for slot in slots):
                # A window that no layer is said to have: only those that are called full have none.
                slots = [slot._replace(kind=_OPEN) if _may_slide(slot) else slot for slot in slots]
            self.attends = self.attends and any(slot.kind in ("", "both") or not _is_state(slot.kind) for slot in slots)
        texts, told = list[str](), dict[str, tuple[int, str]]()
        lines: list[str] = []
        made = {slot: self._layer(slot) for slot in dict.fromkeys(slots)}
        self.slots = slots
        for slot in slots:
            text, line = made[slot]
            texts.append(text)
            told[text] = told.get(text, (0, line))[0] + 1, line
        if counted and len(pattern_text(texts)) > _LONGEST:
            texts = [text for text in dict.fromkeys(texts) for _ in range(texts.count(text))]
            lines.append("in another order than the file's, to be short: it bears on no sum")
        text = pattern_text(texts) if counted else " + ".join(f"{self._times(texts)}*{each}" for each in texts)
        if len(text) > _LONGEST:
            return None
        for number, line in told.values():
            lines.append(f"{number if counted else self._times(texts)} x {line}")
        left = [
            kind
            for kind in map(self._settled, self._described())
            if kind and UNKNOWN in texts and kind not in {slot.kind for slot in slots}
        ]
        lines += [f"it also has numbers of {self._kind(kind, Slot(kind, ''))[1]}" for kind in left]
        lines += sorted(self.disagree)
        if not counted and UNKNOWN + "*" in text and not self.disagree:
            of = f" of {self.count} layers" if self.count else ""
            lines.append(f"which{of} are which is not in the file, or kvplan does not know the key that says it")
        if self.raw.get("tie_word_embeddings"):
            lines.append(
                "tied embeddings, which a file of layers can say: tie_word_embeddings: true, beside the three sizes for weights"
            )
        options = {"layers_of": text, **self._rest()}
        longest = self.keys.find("max_position_embeddings")
        if longest is None or not is_number(longest.value):
            why = "the longest sequence is not in the file, or kvplan does not know its key" if longest is None else longest.key
            lines.append(f"{why}: {options['seq']} stands for it")
        else:
            # Without it a longer sequence is planned in silence.
            said = f"made for {longest.value:,} tokens ({longest.key})"
            lines.append(f"{said}, which a file of layers can say: max_position_embeddings: {longest.value}")
        others = list(self._unread())
        if others:
            lines.append(f"not read: {', '.join(others[:8])}{', ...' if len(others) > 8 else ''}")
        if unknown := list(self._without_meaning(others)):
            lines.append(
                f"numbers whose meaning kvplan does not know: {', '.join(unknown[:8])}{', ...' if len(unknown) > 8 else ''}"
            )
        if self.guessed and any(not (self.pairs and key.startswith("encoder")) for key in (*others, *unknown)):
            # One of these may say what is kept in place of the heads. An encoder keeps nothing.
            return _Reader(self.raw, alike=False).sketch()
        return Sketch(
            options=options,
            lines=tuple(lines),
            complete=UNKNOWN not in text and not others and not self.disagree,
            placed=(*self.placed, *self.squeezed),
            kinds=frozenset(filter(None, map(self._settled, self._described()))),
        )

    def _times(self, texts: Sequence[str]) -> int | str:
        """The number of layers of a kind, where the file does not say which are of which kind."""
        placing = any(_places(key, value) for key, value in entries(self.raw))
        return self.count if self.count and len(texts) == 1 and not placing else UNKNOWN

    def _shapes(self) -> Iterator[tuple[str, Any]]:
        """The values that may bear on what layers keep, by their keys."""
        return ((key, value) for key, value in entries(self.raw) if not re.search(_OF_FEED_FORWARD, key))

    def _layouts(self) -> Iterator[tuple[str, Words, Any]]:
        """The values that may say which layers keep what, with the words of their keys."""
        return ((key, words_of(key), value) for key, value in self._shapes())

    def _squeezing(self) -> Iterator[str]:
        """The keys whose numbers may be the width of what layers keep in place of keys and values."""
        of_states = frozenset(" ".join(_WORDS_OF_STATES.values()).split())
        for key, words, value in self._layouts():
            squeezes = "rank" in words or any(word.startswith(_SQUEEZING) for word in words)
            if squeezes and is_number(value) and value > 1 and not words & (_UNKEPT | of_states) and not harmless(key):
                yield key

    # --- which layers are which -----------------------------------------------------------------------------------------

    def _slots(self) -> list[Slot] | None:
        """The layers in their order; ``None`` if the file does not say which are which."""
        slots = self._listed() or self._spelled() or self._in_places() or self._every() or self._counted()
        if slots is None:
            described = self._described()
            said = [key for key, value in entries(self.raw) if key not in self.keys.used and _places(key, value)]
            if not self.count or len(described) != 1 or said:
                return None
            slots = [Slot(self._settled(described[0]) or described[0], "", self._number(i)) for i in range(self.count)]
        shared = self._last_shared(len(slots))
        return [
            *slots[: len(slots) - shared],
            *([Slot("shared_cache", "num_kv_shared_layers: the last ones, as Gemma has them")] * shared),
        ]

    def _listed(self) -> list[Slot] | None:
        """By a list with an entry for each layer, or one whose name says that it repeats."""
        for key, words, value in self._layouts():
            if not isinstance(value, (list, tuple)) or not 1 <= len(value) <= MAX_LAYERS or _gives_sizes(key):
                continue
            listed = list(value)
            if (
                all(isinstance(item, Mapping) for item in listed)
                and words & {"layer", "block"}
                and self.count in (0, len(listed))
            ):
                return self._objects(key, listed)
            of_layers = words & {"layer", "block", "type", "mixer", *_PATTERNS} or _named_kind(key)
            if not of_layers or not (all(isinstance(item, str) for item in listed) or all(map(is_code, listed))):
                continue
            # RecurrentGemma repeats its block_types.
            repeats = words & _PATTERNS or "block_type" in key
            if not self.count and not repeats and all(isinstance(item, str) for item in listed):
                self.count = len(listed)
            if not self._fits(key, listed, repeats=bool(repeats)) or len(set(map(str, listed))) > _MOST_KINDS:
                continue
            kinds = {item: self._of_word(item) if isinstance(item, str) else self._of_code(key, item, listed) for item in listed}
            self.placed.add(key)
            return [
                Slot(kinds[item], f"{key} {brief(str(item), 30)}", self._number(i))
                for i, item in enumerate(_cycle(listed, self.count))
            ]
        return None

    def _objects(self, key: str, listed: list[Mapping[str, Any]]) -> list[Slot]:
        """By an object for each layer, which has its type and perhaps numbers of its own."""
        self.count = len(listed)
        self.placed.add(key)
        self.own = [Keys(item) for item in listed]
        slots, same = [], dict[str, int]()
        for number, item in enumerate(listed):
            words = (value for name, value in item.items() if isinstance(value, str) and words_of(str(name)) & _NAMES)
            word = next(words, "")
            # Layers with equal objects are one slot.
            first = same.setdefault(repr(item)[:2_000], number)
            slots.append(Slot(self._of_word(word), f"{key} {brief(word, 30)}", first))
        return slots

    def _spelled(self) -> list[Slot] | None:
        """By a text with a letter for each layer: ``MMM*``."""
        for key, words, value in self._layouts():
            spells = words & {*_PATTERNS, "layout"} or (words & {"layer", "block"} and words & {"type", "kind"})
            if not spells or not isinstance(value, str):
                continue
            parts = [part for part in re.split(r"[\s,;|/]+", value) if part]
            spelled = parts if len(parts) > 1 and all(len(part) > 1 for part in parts) else list("".join(parts))
            if not self.count and "pattern" in key:
                self.count = len(spelled)
            if not all(part.upper() in _LETTERS or len(part) > 1 for part in spelled):
                continue
            if len(spelled) < 2 or len(set(spelled)) > _MOST_KINDS or not self._fits(key, spelled):
                continue
            kinds = {each: self._of_letter(each, spelled) if len(each) == 1 else self._of_word(each) for each in spelled}
            if any(kinds.values()):
                self.placed.add(key)
                return [Slot(kinds[each], f"{key} {each}", self._number(i)) for i, each in enumerate(_cycle(spelled, self.count))]
        return None

    def _fits(self, key: str, listed: Sequence[Any], *, repeats: bool = True) -> bool:
        """True if a list is as long as there are layers, or is a unit that they repeat. One that repeats a unit itself is of another number."""
        size, whole = len(listed), list(listed)
        unit = all(whole != whole[:part] * (size // part) for part in range(1, size) if size % part == 0)
        if size == self.count or (repeats and size and (self.count % size == 0 or (unit and 2 * size <= self.count))):
            return size <= self.count
        if self.count:
            self.placed.add(key)
            found = self.keys.find("num_hidden_layers")
            number = f"{found.key} {self.count}" if found is not None else f"{self.count} layers"
            self.disagree.add(f"{key}, which is {size} layers long, and {number} disagree")
        return False

    def _in_places(self) -> list[Slot] | None:
        """By lists of the numbers of layers: ``attention_layers: [3, 7]``."""
        places: dict[str, tuple[str, list[int]]] = {}
        for key, words, value in self._layouts():
            kind = _named_kind(key)
            if not kind or not words & _INDICES or not isinstance(value, (list, tuple)) or not 0 < len(value) <= self.count:
                continue
            numbers = [item for item in value if isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= self.count]
            if len(set(numbers)) == len(value):
                places[key] = self._settled(kind), numbers
        if not places:
            return None
        numbers = [number for _, listed in places.values() for number in listed]
        if len(set(numbers)) < len(numbers) or {0, self.count} <= set(numbers):
            return None
        first = 1 if 0 not in numbers and (self.count in numbers or len(numbers) == self.count) else 0
        other = self._other(*(kind for kind, _ in places.values())) if len(numbers) < self.count else ""
        slots = [Slot(other, "the other layers", self._number(i)) for i in range(self.count)]
        for key, (kind, listed) in places.items():
            self.placed.add(key)
            for number in listed:
                slots[number - first] = Slot(kind, key, self._number(number - first))
        return slots

    def _every(self) -> list[Slot] | None:
        """By a key that says which of so many layers is unlike the others: ``full_attention_interval: 4``."""
        for key, words, value in self._layouts():
            kind, pattern = _named_kind(key), "pattern" in words
            if not kind or not (words & _EVERY or pattern) or not is_number(value) or not 2 <= value <= self.count:
                continue
            hit, other = self._settled(kind), self._other(kind)
            if pattern and kind in ("sliding_attention", "chunked_attention"):
                # The period of a pattern of windows: all but one of its layers slide.
                hit, other = "full_attention", kind
            offsets = [item for name, item in entries(self.raw) if "offset" in words_of(name) and _named_kind(name) == kind]
            offset = next((item for item in offsets if isinstance(item, int)), None)
            self.placed |= {key, *(name for name in self.raw if "offset" in words_of(str(name)))}
            place = (value - 1 if offset is None else offset) % value
            slots = [Slot(hit if i % value == place else other, f"{key} {value}", self._number(i)) for i in range(self.count)]
            rest = self.count % value
            if rest and offset is None:
                # The first or the last of each: the layers behind the last whole period tell the two apart.
                slots[self.count - rest] = Slot(
                    "", f"{key} {value} leaves open whether the first or the last of {value} is meant"
                )
            return slots
        return None

    def _counted(self) -> list[Slot] | None:
        """By the number of layers of each kind: ``num_mamba_layers: 18``. Their order bears on no sum."""
        counts: dict[str, tuple[str, int]] = {}
        for key, words, value in self._layouts():
            kind = _named_kind(key)
            # attention beside another kind is a part of its name.
            named = (
                words - {"layer", "block"} - ({"attention"} if kind != "full_attention" or words & {"full", "global"} else set())
            )
            if (
                kind
                and len(named) == 1
                and len(words) > 1
                and is_number(value)
                and value <= MAX_LAYERS
                and words & {"layer", "block"}
            ):
                counts[key] = self._settled(kind), value
        if not counts:
            return None
        total = sum(number for _, number in counts.values())
        self.count = self.count or (total if len(counts) > 1 and total <= MAX_LAYERS else 0)
        if not total <= self.count:
            return None
        slots = [Slot(kind, key) for key, (kind, number) in counts.items() for _ in range(number)]
        self.placed.update(counts)
        return slots + [Slot(self._other(*(kind for kind, _ in counts.values())), "the other layers")] * (self.count - total)

    def _last_shared(self, count: int) -> int:
        """How many of the last layers read the keys and values of others."""
        for key, value in self.raw.items():
            if is_number(value) and words_of(str(key)) == {"kv", "shared", "layer"} and value < count:
                self.placed.add(str(key))
                return int(value)
        return 0

    def _number(self, layer: int) -> int | None:
        """The number of a layer, where lists have numbers for each layer."""
        return layer if self.by_layer else None

    # --- what a word means ----------------------------------------------------------------------------------------------

    def _described(self) -> list[str]:
        """The kinds of layers that the file has parameters of."""
        states = [family for family, words in _WORDS_OF_STATES.items() if self.keys.named(words.split())]
        if not states and not self.attends and self.keys.find("d_state", "mamba2") is not None:
            states = ["mamba"]
        if not states and self.keys.find("channels", "short_convolution"):
            states = ["short_convolution"]
        if not self.attends or self.latent:
            return [*states, *(["latent_attention"] if self.latent else [])]
        chunked = any({"attention", "chunk"} <= entry.words for entry in self.keys.entries)
        # A window says nothing of how many layers have it.
        limited = "sliding_attention" if self.windowed else "chunked_attention" if chunked else ""
        return [*states, *([limited] if limited else []), "full_attention"]

    def _of_word(self, word: str) -> str:
        """The kind or the family that a type of layers names; empty if it names none."""
        plain = word.strip().lower()
        if plain in ("-", "*") or (len(plain) == 1 and plain.isalpha()):
            return self._of_letter(plain.upper(), [])
        exact = kind_names().get(plain.replace("-", "_"))
        if exact is not None and exact != "mamba1":
            return self._settled(exact)
        if plain in ("dense", "sparse", "none", "feed_forward", "feedforward"):
            return "no_cache"
        parts = re.split(r"[+&]", plain)
        if plain in ("hybrid", "parallel") or (len(parts) > 1 and all(_kind_in(words_of(part)) for part in parts)):
            return "both"
        return self._settled(_kind_in(words_of(word)))

    def _of_letter(self, letter: str, among: Sequence[str]) -> str:
        """The kind that a letter of a pattern stands for, if the file's keys leave one."""
        described = {*self._described(), "full_attention"}

        def possible(each: str) -> Sequence[str]:
            candidates = _LETTERS.get(each.upper(), ())
            return candidates if len(candidates) == 1 else [kind for kind in candidates if kind in described]

        # What another letter alone can mean, this one does not.
        taken = {kinds[0] for kinds in (possible(other) for other in among if other != letter) if len(kinds) == 1}
        own = possible(letter) if len(possible(letter)) == 1 else [kind for kind in possible(letter) if kind not in taken]
        return self._settled(own[0]) if len(own) == 1 else ""

    def _of_code(self, key: str, code: int, listed: Sequence[Any]) -> str:
        """The kind of a number in a list of codes: by a table of the file, or by the key's own name where it is yes or no."""
        for value in self.raw.values():
            names = dict(enumerate(value)) if isinstance(value, (list, tuple)) and len(value) < self.count else value
            if not isinstance(names, Mapping) or not 0 < len(names) <= _MOST_KINDS:
                continue
            # Kinds by their codes, or codes by their kinds.
            table = {str(name): str(word) for name, word in names.items()} | {
                str(word): str(name) for name, word in names.items() if is_code(word)
            }
            words = [self._of_word(table.get(str(int(item)), "")) for item in set(listed)]
            if all(words):
                return self._of_word(table[str(int(code))])
        kind = _named_kind(key)
        if not kind or not {int(item) for item in listed} <= {0, 1}:
            return ""
        return self._settled(kind) if code else self._other(kind)

    def _other(self, *kinds: str) -> str:
        """The kind of the layers that a key about ``kinds`` leaves over, if the file leaves one."""
        settled = {*map(self._settled, kinds), *kinds}
        described = dict.fromkeys(map(self._settled, self._described()))
        if any(_is_state(kind) for kind in described) and not any(map(_is_state, settled)):
            # Beside states the layers that a key names are all that attend.
            described = dict.fromkeys(filter(_is_state, described))
        left = [kind for kind in described if kind not in settled]
        return left[0] if len(left) == 1 else ""

    def _settled(self, kind: str) -> str:
        """The kind of a family, by the parameters that the file has; the family itself if they leave it open."""
        keys, bare = self.keys, not self.attends
        if kind == "full_attention" and self.latent:
            return "latent_attention"
        if _attends(kind) and kind != "latent_attention" and (self.squeezed or (self.latent and self.rank is None)):
            return _OPEN
        if kind == "mamba":
            width = keys.find("head_dim", "mamba2", bare=bare)
            if width is None and keys.find("dt_rank", "mamba1"):
                return "mamba1"
            if width or keys.find("num_heads", "mamba2", bare=bare) or keys.find("n_groups", "mamba2"):
                return "mamba2"
            return "mamba1" if self._inner("mamba1") else ""
        if kind == "linear":
            own = {each: set(SUBJECTS[each].split()) - {"linear", "gated", "net", "rg"} for each in _LINEAR}
            named = [each for each, words in own.items() if keys.named(words)]
            if len(named) == 1:
                return named[0]
            values, heads = (
                keys.find(field, each, bare=bare)
                for field, each in (("num_value_heads", "gated_delta_net"), ("num_heads", "kimi_delta_attention"))
            )
            if values in (None, heads) and keys.find("head_dim", "kimi_delta_attention", bare=bare):
                return "kimi_delta_attention" if keys.find("d_conv", "kimi_delta_attention") else "lightning_attention"
            if values is not None:
                return "gated_delta_net"
            # Newer files call every layer with states so.
            others = [each for each in self._described() if _is_state(each) and each != "linear"]
            return self._settled(others[0]) if len(others) == 1 else ""
        return kind

    # --- what a kind has ------------------------------------------------------------------------------------------------

    def _layer(self, slot: Slot) -> tuple[str, str]:
        """One layer in words: as it is written, and with the keys that its numbers are from."""
        where = f", by {slot.said}" if slot.said else ""
        if not slot.kind:
            return UNKNOWN, f"{UNKNOWN}: their kind is not in the file{where}"
        both = dict.fromkeys(map(self._settled, self._described())) if slot.kind == "both" else {slot.kind: None}
        kinds = [kind for kind in both if kind != "sliding_attention" or len(both) == 1]
        if kinds == ["sliding_attention"] and self._window(slot) == 0:
            kinds = ["full_attention"]
        if "latent_attention" in kinds and self.keys.find("index_head_dim", "sparse_indexer"):
            kinds.append("sparse_indexer")
        if self.pairs and "cross_attention" not in kinds and any(map(_attends, kinds)):
            kinds.append("cross_attention")
        made = [self._kind(kind, slot) for kind in kinds]
        return " & ".join(text for text, _ in made), f"{' & '.join(line for _, line in made)}{where}"

    def _kind(self, name: str, slot: Slot) -> tuple[str, str]:
        if name not in formulas.KINDS:
            return UNKNOWN, f"{name}, of which kind of it the file's keys do not say"
        kind, short = formulas.KINDS[name], SHORT_NAMES.get(name, name)
        text, told = [], []
        for parameter, value, key in self._values(name, slot):
            text.append(f"{parameter.short}={value}")
            told.append(f"{parameter.short}={value} ({key})")
        words = f"{short}({', '.join(text)})"
        self.weighed = self.weighed and weights_follow(kind)
        return words, f"{short}: {', '.join(told) or kind.title}"

    def _values(self, name: str, slot: Slot) -> Iterator[tuple[Parameter, int | str, str]]:
        """The parameters that the file gives, and those that must be given, each with where it is from."""
        found = {parameter.field: self._value(name, parameter.field, slot) for parameter in parameters_of(formulas.KINDS[name])}
        self._derive(name, found)
        if "num_key_value_heads" in found and found["num_key_value_heads"] is None and self.raw.get("multi_query") is True:
            self.keys.used.add("multi_query")
            found["num_key_value_heads"] = Found(1, "multi_query")
        heads = found.get("num_attention_heads")
        for parameter in parameters_of(formulas.KINDS[name]):
            field, value = parameter.field, found[parameter.field]
            if field == "v_head_dim" and value is not None and value.value == getattr(found.get("head_dim"), "value", None):
                continue
            if value is not None:
                yield parameter, UNKNOWN if value.value is None else value.value, value.key
            elif parameter.required or (field == "num_attention_heads" and _attends(name)):
                yield parameter, UNKNOWN, "not in the file"
            elif field == "n_groups":
                yield parameter, 1, "one: no key for it is in the file"
            elif field == "num_key_value_heads" and heads is not None and heads.value:
                self.guessed = self.alike
                number = heads.value if self.alike else UNKNOWN
                yield parameter, number, f"{'as many as heads: ' if self.alike else ''}no key for it is in the file"

    def _value(self, name: str, field: str, slot: Slot) -> Found | None:
        """The number of a field for one layer."""
        if slot.own is not None and self.own and (own := self.own[slot.own].number(field, name)) is not None:
            return own
        bare = not (self.attends and field in _SHARED_NAMES and issubclass(formulas.KINDS[name], StateKind))
        searched = "sliding_attention" if field == "window" and name != "sink_attention" else name
        found = None if (field, name) == ("window", "latent_attention") else self.keys.take(field, searched, bare=bare)
        if found is not None and isinstance(found.value, (list, tuple)):
            item = found.value[slot.own] if slot.own is not None and len(found.value) == self.count else None
            found = Found(item if is_number(item) else None, found.key if slot.own is None else f"{found.key}[{slot.own}]")
        return found if found is not None and (found.value is None or is_number(found.value)) else None

    def _derive(self, name: str, found: dict[str, Found | None]) -> None:
        """Fill in what follows from other numbers by the kind's own definition."""
        if "hidden_size" in found and found["hidden_size"] is None:
            found["hidden_size"] = self.keys.number("hidden_size")
        heads = found.get("num_attention_heads")
        if _attends(name) and found["head_dim"] is None and heads is not None and heads.value:
            hidden = self.keys.number("hidden_size")
            if hidden is not None and hidden.value % heads.value == 0:
                found["head_dim"] = Found(hidden.value // heads.value, f"{hidden.key} / {heads.key}")
        inner = self._inner(name) if name in ("mamba1", "mamba2") else None
        if name == "mamba1":
            found["d_inner"] = inner
        elif inner is not None:
            # The heads of Mamba-2 share its inner width.
            for field, other in (("num_heads", "head_dim"), ("head_dim", "num_heads")):
                given = found[other]
                if found[field] is None and given is not None and given.value and inner.value % given.value == 0:
                    found[field] = Found(inner.value // given.value, f"{inner.key} / {given.key}")

    def _inner(self, name: str) -> Found | None:
        """The inner width of a layer of Mamba: a number of its own, or the hidden size times its expansion."""
        inner = self.keys.number("d_inner", name) or (None if self.attends else self.keys.number("intermediate_size"))
        expand, hidden = self.keys.take("expand", name), self.keys.number("hidden_size")
        if inner is None and expand is not None and hidden is not None and isinstance(expand.value, (int, float)):
            width = hidden.value * expand.value
            inner = Found(int(width), f"{expand.key} x {hidden.key}") if width == int(width) else None
        return inner

    def _window(self, slot: Slot | None = None) -> int | None:
        """The window of a layer, of any layer without one; 0 where a list says that this layer has none."""
        found = self.keys.find("window", "sliding_attention")
        if found is None or not isinstance(found.value, (list, tuple)):
            return None if found is None or not is_number(found.value) else found.value
        if slot is None:
            return next((item for item in found.value if is_number(item)), None)
        item = found.value[slot.own] if slot.own is not None and slot.own < len(found.value) else None
        return item if is_number(item) else 0

    # --- everything else ------------------------------------------------------------------------------------------------

    def _unread(self) -> Iterator[str]:
        """The keys that bear on the cache by their names, and that nothing was read from."""
        used = self.keys.used | self.placed
        for key, value in entries(self.raw):
            bears = bears_on_memory(key, value) or (is_number(value) and ("conv" in key or ("ratio" in key and _named_kind(key))))
            bears = bears or self._is_format(key, value) or (isinstance(value, str) and "precision" in words_of(key))
            if (
                bears
                and key not in used
                and not key.startswith(tuple(f"{path}." for path in used))
                and not self._has_no_effect(key, value)
            ):
                yield key

    def _is_format(self, key: str, value: object) -> bool:
        """True for the name of a format of keys, values or states, unless it leaves that to others."""
        words = words_of(key)
        kept = words & {"kv", "cache", "key", "value", "state", "ssm", "recurrent"} and words & _FORMAT_WORDS
        usual = {"", "auto", "none", "default", "float32" if words & {"state", "ssm", "recurrent"} else ""}
        return bool(kept) and isinstance(value, str) and value.lower().removeprefix("torch.") not in usual

    def _kv_format(self) -> str | None:
        """The format of the cache that the file names; ``None`` without one, or if it is not known."""
        for key, value in entries(self.raw):
            if (
                self._is_format(key, value)
                and words_of(key) & {"kv", "cache"}
                and (dtype := find_dtype(value.lower())) is not None
            ):
                self.keys.used.add(key)
                return dtype.name
        return None

    def _without_meaning(self, unread: Sequence[str]) -> Iterator[str]:
        """The other numbers that nothing was read from, with their values: their names do not say whether they bear on the cache."""
        known = {*self.keys.used, *self.placed, *unread}
        for key, said in entries(self.raw):
            value = number_in(key, said)
            if is_number(value) and key not in known and value != 1:
                other = bears_on_memory(key, value) or weighs(key, value) or harmless(key) or re.search(_OF_FEED_FORWARD, key)
                if not other:
                    yield f"{brief(key, 40)} {value}"

    def _has_no_effect(self, key: str, value: object) -> bool:
        """True for a key that says again what was read, or that layers of the kinds that there are have no use for."""
        words, kinds = words_of(key), {slot.kind for slot in self.slots}
        states = any(map(_is_state, kinds))
        attends = any(map(_attends, kinds))
        of_states = any(words & frozenset(each.split()) for each in _WORDS_OF_STATES.values())
        return bool(
            re.search(_OF_FEED_FORWARD, key)
            or (of_states and (re.search(_COMPUTED, key) or (self.placed and not states and "" not in kinds)))
            or (states and words == {"chunk", "size"})
            or ("window" in words and (key.startswith("use_") or self.raw.get("use_sliding_window") is False))
            or (self.placed and isinstance(value, (int, str)) and words & (_EVERY | _PATTERNS))
            or ("latent_attention" in kinds and not attends and meanings(key) & _OF_HEADS)
        )

    def _rest(self) -> dict[str, str]:
        """The options that say what else bears on the numbers: the sizes for weights, the length and the format."""
        options = dict[str, str]()
        # Of a model with experts, or with tied embeddings, three sizes are not all.
        plain = self.weighed and not self.raw.get("tie_word_embeddings")
        plain = plain and not any("expert" in str(key) and value for key, value in self.raw.items())
        sizes = {name: self.keys.number(name) for name in _SIZES}
        if plain and all(sizes.values()):
            options |= {name: str(found.value) for name, found in sizes.items() if found is not None}
        longest = self.keys.number("max_position_embeddings")
        tokens = 32 * 1024 if longest is None else longest.value
        options["seq"] = str(tokens) if tokens % 1024 else f"{tokens // 1024}k"
        words = (self.raw.get(key) for key in ("dtype", "torch_dtype"))
        word = next((word for word in words if isinstance(word, str)), None)
        dtype = None if word is None else find_dtype(word.removeprefix("torch."))
        if dtype is not None and dtype.name in ("bf16", "fp16", "fp32"):
            options["dtype"] = dtype.name
            # Weights are bf16 where nothing else is said.
            options |= {"weights": dtype.name} if dtype.name == "fp32" else {}
        if (kept := self._kv_format()) is not None:
            options["dtype"] = kept
        return options


def is_code(value: object) -> bool:
    """True for a number that may stand for a kind of layer."""
    return isinstance(value, int) and 0 <= value < _MOST_KINDS


def _cycle(listed: Sequence[Any], count: int) -> list[Any]:
    return [listed[i % len(listed)] for i in range(count)]


def _kind_in(words: frozenset[str]) -> str:
    """The kind or the family that words name; empty if they name none."""
    named = {_KINDS_BY_WORD[word] for word in words if word in _KINDS_BY_WORD}
    return next((kind for kind in _ORDER if kind in named), "")


def _named_kind(key: str) -> str:
    """The kind or the family that a key is about, by its own words before those of the object that it stands in."""
    return _kind_in(words_of(key.rpartition(".")[2])) or _kind_in(words_of(key))


def _is_state(kind: str) -> bool:
    return kind in _WORDS_OF_STATES or (kind in formulas.KINDS and issubclass(formulas.KINDS[kind], StateKind))


def _may_slide(slot: Slot) -> bool:
    """True for attention of which the file does not say that it is full."""
    return slot.kind == "full_attention" and not words_of(slot.said) & {"full", "global"}


def _attends(kind: str) -> bool:
    return kind in formulas.KINDS and issubclass(formulas.KINDS[kind], AttentionKind)


def _places(key: str, value: object) -> bool:
    """True if a key may say which layers are which."""
    words = words_of(key)
    said = words & (_EVERY | _PATTERNS | {"offset"}) or (isinstance(value, (list, tuple)) and words & {"layer", "type", "block"})
    return bool(said and bears_on_memory(key, value) and not _gives_sizes(key) and not re.search(_OF_FEED_FORWARD, key))


def _gives_sizes(key: str) -> bool:
    """True if a key gives numbers of heads or widths, also where it has one for each layer."""
    return bool(meanings(key) - {("", "num_hidden_layers")})
