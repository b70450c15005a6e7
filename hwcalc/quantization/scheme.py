"""Which format a quantisation gives to each weight, and which weights it leaves unquantised.

A quantiser selects modules by literal names, endings, globs, or regular expressions after ``re:``. A name with a layer number is
valid for that layer alone, and a table finds it. All other names are compared with every name that a module may have in its
checkpoint, once for each model. Only a subset of regular expressions is supported: they have no nested repetition and compile to
patterns that match in linear time. Names that are refused make the whole quantisation unknown.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from fnmatch import translate
from functools import cached_property, lru_cache
from itertools import product
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from hwcalc.formulas import formats
from hwcalc.formulas.formats import WeightFormat
from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole

MOST_NAMES: Final = 200_000
"""The most names that one config may have; published ones have up to 700."""
MOST_COMPARED: Final = 10_000
"""The most patterns that tell layers apart, times the layers: each is compared with every module of every layer. Published: 400."""
_MOST_PATTERNS: Final = 4_096
"""The most globs and regular expressions, counted after each choice between words is written out; published: up to 300."""
_LONGEST_PATTERNS: Final = 200_000
"""The most characters of all these patterns together. To compile so many takes a second; published ones have up to 20,000."""
_MOST_GENERAL: Final = 256
_MOST_BY_NUMBER: Final = 128
_MOST_FORMS: Final = 64
_LONGEST: Final = 500
_CONTAINER: Final = "layers|blocks|layer|block|resblocks|h"
_LAYER: Final = rf"(^|[.*])({_CONTAINER})\.([0-9]{{1,5}})(\.|$)"
_LAYER_IN_REGEX: Final = rf"^((?:\^|\.\*|\\\.|[\w.])*?)(?<!\w)({_CONTAINER})\\?\.([0-9]{{1,5}})(\\?\.|\$|$)"
_IN_TOWER: Final = rf"(^|\.)({_CONTAINER})\."
_EXPERT: Final = r"(^|\.)experts\.[0-9]+(?=\.|$)"
_IN_LAYER: Final = ("model.layers", "model.language_model.layers", "language_model.model.layers", "transformer.h")
_OUTER: Final = ("", "model.", "language_model.", "language_model.model.", "model.language_model.")
_FAMILIES: Final = (
    (Part.VISION, r"(^|[._*])(vision|visual|vit|image|img)"),
    (Part.AUDIO, r"(^|[._*])(audio|speech|sound)"),
    (Part.MTP, r"(^|[._*])(mtp|nextn)"),
)
_SYNONYMS: Final = (("block_sparse_moe", "mlp"), ("index_q_proj", "indexer.q_proj"), ("index_k_proj", "indexer.k_proj"))
_NO_LOSS: Final = r"norm|bias|gate$|router|embed|head|conv|rotary|sinks|(^|[._])ln"
Pattern = re.Pattern[str]


class Names(Record):
    """The modules that a config names. ``numbered`` maps (part, layer) to names and patterns for the rest after the number."""

    literal: frozenset[str] = frozenset()
    numbered: Mapping[tuple[Part, int], tuple[frozenset[str], tuple[Pattern, ...]]] | None = None
    general: tuple[Pattern, ...] = ()
    by_number: tuple[Pattern, ...] = ()
    """Patterns that may match some layer numbers and not others."""
    depth: int = 0
    """The layers of the model, if known. Files number the layers for multi-token prediction on from there."""

    @property
    def is_empty(self) -> bool:
        """True if no module is named."""
        return not (self.literal or self.numbered or self.general or self.by_number)

    @property
    def names_layers(self) -> bool:
        """True if some name depends on the layer number."""
        return bool(self.numbered or self.by_number)

    def layers(self, module: str, part: Part, numbers: Sequence[int]) -> frozenset[int]:
        """The layer ``numbers`` in which the module is named. A module that exists once has one number.

        >>> names = read_names(["model.layers.1.mlp", "re:.*layers.[3-4].*"])
        >>> sorted(names.layers("mlp.up_proj", Part.LANGUAGE, range(6)))
        [1, 3, 4]
        """
        key = (module, part, tuple(numbers))
        if key not in self._found:
            self._found[key] = self._look_up(_renamed(module), part, numbers) if numbers else frozenset()
        return self._found[key]

    @cached_property
    def _found(self) -> dict[tuple[str, Part, tuple[int, ...]], frozenset[int]]:
        """The formats looked up already: a plan asks for the same modules at each step of its solvers."""
        return {}

    @cached_property
    def _matched(self) -> dict[Hashable, bool]:
        """The patterns tried already, True for those that match."""
        return {}

    def _matches(self, module: str, part: Part, number: int, *, general: bool) -> bool:
        """True if a general pattern matches, or one that tells layers apart.

        A general one can tell two numbers apart only by how many digits they have.
        """
        digits = (len(str(number)), len(str(self.depth + number)))
        key = (module, part, digits if general else number)
        if key not in self._matched:
            names = _spellings(module, part, number, self.depth)
            patterns = self.general if general else self.by_number
            self._matched[key] = any(pattern.match(name) for pattern in patterns for name in names)
        return self._matched[key]

    def _look_up(self, module: str, part: Part, numbers: Sequence[int]) -> frozenset[int]:
        first = _spellings(module, part, numbers[0], self.depth) if self.literal else ()
        if any(not self.literal.isdisjoint(_windows(name)) for name in first):
            return frozenset(numbers)
        if self.general and self._matches(module, part, numbers[0], general=True):
            return frozenset(numbers)
        inner = _inner(module)
        parts = inner.split(".")
        heads = {".".join(parts[:i]) for i in range(len(parts) + 1)}
        matches = self._named(part, inner, heads, frozenset(numbers))
        if part is Part.MTP and self.depth:
            behind = self._named(Part.LANGUAGE, inner, heads, frozenset([self.depth + number for number in numbers]))
            matches |= {number - self.depth for number in behind}
        for number in numbers if self.by_number else ():
            if number not in matches and self._matches(module, part, number, general=False):
                matches.add(number)
        return frozenset(matches)

    def strangers(self, modules: Iterable[tuple[str, Part]]) -> tuple[str, ...]:
        """Names of single matrices that none of ``modules`` has. Norms, biases, routers and convolutions are ignored.

        >>> read_names(["visual.blocks.0.attn.wqkv", "lm_head"]).strangers([("visual.blocks.attn.qkv", Part.VISION)])
        ('attn.wqkv',)
        """
        listed = [(_renamed(module), part) for module, part in modules]
        known: dict[Part, set[str]] = {}
        for module, part in listed:
            known.setdefault(part, set()).update(_windows(_inner(module)))
        named = ((part, rest) for (part, _), (rests, _) in (self.numbered or {}).items() for rest in rests)
        unknown = {rest for part, rest in named if rest and part in known and rest not in known[part]}
        towers = {name for name in self.literal if _part(name) in known and _part(name) in (Part.VISION, Part.AUDIO)}
        if towers:
            spelled = {
                window for module, part in listed for name in _spellings(module, part, 0, self.depth) for window in _windows(name)
            }
            unknown |= towers - spelled
        return tuple(sorted(name for name in unknown if not re.search(_NO_LOSS, name)))

    @cached_property
    def _by_part(self) -> Mapping[Part, tuple[dict[str, set[int]], dict[int, tuple[Pattern, ...]]]]:
        """For each part the layer numbers with which each name is listed, and the patterns of each number."""
        found: dict[Part, tuple[dict[str, set[int]], dict[int, tuple[Pattern, ...]]]] = {}
        for (part, number), (names, patterns) in (self.numbered or {}).items():
            listed, by_layer = found.setdefault(part, ({}, {}))
            for name in names:
                listed.setdefault(name, set()).add(number)
            if patterns:
                by_layer[number] = patterns
        return found

    def _named(self, part: Part, inner: str, heads: Iterable[str], numbers: frozenset[int]) -> set[int]:
        """The layers, of these ``numbers``, in which a module is named: by its path inside the layer, or by those of modules around it."""
        listed, patterns = self._by_part.get(part, ({}, {}))
        found = {number for head in heads if head in listed for number in listed[head] & numbers}
        for number in (patterns.keys() & numbers) - found:
            if any(pattern.match(inner) for pattern in patterns[number]):
                found.add(number)
        return found


def read_names(names: Iterable[str]) -> Names | None:
    """Read the names of a quantiser's config; ``None`` if one is not understood or there are too many."""
    literal: dict[str, None] = {}
    texts: dict[tuple[Part, int], set[str]] = {}
    patterns: dict[tuple[Part, int], dict[Pattern, None]] = {}
    general: dict[Pattern, None] = {}
    by_number: dict[Pattern, None] = {}
    forms = characters = 0
    for count, name in enumerate(names):
        regex = name.startswith("re:")
        is_literal = not regex and not any(sign in name for sign in "*?[")
        if count >= MOST_NAMES or len(name) > _LONGEST:
            return None
        text = _renamed(name[3:].strip() if regex else name)
        match = re.match(_LAYER_IN_REGEX, text) if regex else re.search(_LAYER, text)
        if match:
            rest = text[match.end() :]
            key = (_part(text[: match.start(3)]), int(match[3]))
            if is_literal:
                texts.setdefault(key, set()).add(re.sub(_EXPERT, r"\1experts", rest))
                continue
            compiled = (_regex if regex or not rest else _glob)(rest)
            kept = patterns.setdefault(key, {})
        elif is_literal:
            literal[re.sub(_EXPERT, r"\1experts", text)] = None
            continue
        else:
            compiled = (_regex if regex else _glob)(text)
            kept = by_number if re.search(r"[0-9?[]|\\d(?!\+)", text) else general
        known = [pattern for pattern in compiled if pattern is not None]
        forms, characters = forms + len(known), characters + sum(len(pattern.pattern) for pattern in known)
        if len(known) < len(compiled) or forms > _MOST_PATTERNS or characters > _LONGEST_PATTERNS:
            return None
        kept.update(dict.fromkeys(known))
    if len(general) > _MOST_GENERAL or len(by_number) > _MOST_BY_NUMBER:
        return None
    numbered = {key: (frozenset(texts.get(key, ())), tuple(patterns.get(key, ()))) for key in (*texts, *patterns)}
    return Names(literal=frozenset(literal), numbered=numbered, general=tuple(general), by_number=tuple(by_number))


def _renamed(name: str) -> str:
    """The name with the parts for which files have two words in one of them."""
    for word, other in _SYNONYMS:
        name = name.replace(word, other)
    return name


def _part(prefix: str) -> Part:
    """The part of the model that a layer belongs to, from the text before its number."""
    return next((part for part, sign in _FAMILIES if re.search(sign, prefix)), Part.LANGUAGE)


def _inner(module: str) -> str:
    """The path of a module inside its layer."""
    match = _container(module)
    return module[match.end() :] if match else module


def _container(module: str) -> re.Match[str] | None:
    """The match in a module's path that names the layer that it is in."""
    return re.search(_IN_TOWER, module) if "layer" in module or "block" in module or "h." in module else None


@lru_cache(maxsize=8192)
def _spellings(module: str, part: Part, number: int, depth: int) -> tuple[str, ...]:
    """All names that a module may have in its checkpoint."""
    match = _container(module)
    here = f"{module[: match.end()]}{number}.{module[match.end() :]}" if match else module
    names = [module, here, *(f"{prefix}{here}" for prefix in _OUTER)]
    if part is Part.MTP:
        names += [f"mtp.{module}", f"mtp.layers.{number}.{module}"]
        names += [f"{prefix}.{depth + number}.{module}" for prefix in _IN_LAYER if depth]
    elif part in (Part.LANGUAGE, Part.ENCODER) and not module.startswith(("lm_head", "model.")):
        names += [f"{prefix}.{number}.{module}" for prefix in _IN_LAYER]
    names += [name.replace("experts.", "experts.0.", 1) for name in names if ".experts." in f".{name}"]
    return tuple(dict.fromkeys(names))


@lru_cache(maxsize=8192)
def _windows(name: str) -> frozenset[str]:
    """Every run of consecutive parts of a name.

    >>> sorted(_windows("a.b"))
    ['a', 'a.b', 'b']
    """
    parts = name.split(".")
    return frozenset(".".join(parts[i:j]) for i in range(len(parts)) for j in range(i + 1, len(parts) + 1))


@lru_cache(maxsize=1024)
def _glob(text: str) -> tuple[Pattern | None, ...]:
    """Patterns of a glob. It matches a whole name, or the name of an outer module."""
    return re.compile(translate(text)), re.compile(translate(f"{text}.*"))


_TOKEN: Final = (
    r"(?P<star>\.\*\??)|(?P<plus>\.\+\??)|(?P<digits>(?:\\d|\[0-9\])\+)|(?P<one>\\d|\[[0-9a-zA-Z_-]+\](?![+*?{])|\.(?![+*?{]))"
    r"|(?P<plain>\\[./_-]|[\w/-])(?![+*?{])"
)
_GROUP: Final = r"\((?:\?:)?((?:\\\.|[\w.|])+)\)(?![+*?{])"


@lru_cache(maxsize=1024)
def _regex(text: str) -> tuple[Pattern | None, ...]:
    r"""The alternatives of a regular expression, each as a pattern for the start of a name; ``None`` if it is not supported.

    >>> [bool(form.match("x.mlp.up_proj")) for form in _regex(r".*mlp\.(gate|up)_proj.*")]
    [False, True]
    >>> _regex("(a+)+$")
    (None,)
    """
    parts = re.split(_GROUP, text.removeprefix("^"))
    choices = [part.split("|") if i % 2 else [part] for i, part in enumerate(parts)]
    size = 1
    for choice in choices:
        size *= len(choice)
        if size > _MOST_FORMS:
            return (None,)
    return tuple(_linear("".join(form)) for form in product(*choices))


def _linear(text: str) -> Pattern | None:
    """Compile one alternative to a pattern that matches in linear time, or return ``None`` if it is not supported.

    The text between two ``.*`` has a fixed length except for runs of digits, so the first place where it matches is enough.
    """
    closed = text.endswith("$")
    text = text.removesuffix("$")
    segments, after_digits, at = [""], False, 0
    while at < len(text):
        match = re.compile(_TOKEN).match(text, at)
        if match is None:
            return None
        kind, at = match.lastgroup, match.end()
        if after_digits and (kind in ("digits", "one", "plus") or (kind == "plain" and match[0].isdigit())):
            return None
        after_digits = kind == "digits"
        if kind in ("star", "plus"):
            segments[-1] += "." if kind == "plus" else ""
            segments.append("")
        else:
            segments[-1] += "[0-9]++" if kind == "digits" else match[0]
    first, *rest = segments
    last = rest.pop() if rest and closed else ""
    body = first + "".join(f"(?>.*?{segment})" for segment in rest)
    try:
        return re.compile(body + (rf"(?:.*{last})\Z" if closed and len(segments) > 1 else r"\Z" if closed else ""))
    except re.error:
        return None


FORMATS: Final[Mapping[str, WeightFormat]] = {item.name: item for item in (
    formats.FP8, formats.FP8_BLOCK, formats.FP8_CHANNEL, formats.MXFP8, formats.MXFP4, formats.NVFP4, formats.INT8, formats.INT4,
    formats.GPTQ, formats.AWQ, formats.BNB4, formats.BNB4_DOUBLE, formats.BNB8,
)}  # fmt: skip
"""Quantised formats by their names for ``--weights``."""

QUANTISED_ROLES: Final = (WeightRole.LINEAR, WeightRole.EXPERT)
"""What a quantiser packs unless it says otherwise."""
_TEXT: Final = (Part.LANGUAGE, Part.ENCODER, Part.MTP)


class Rule(Record):
    """One format and the weights that get it: those with these roles that ``only`` names and ``never`` does not name."""

    format: WeightFormat
    roles: tuple[WeightRole, ...] = QUANTISED_ROLES
    only: Names | None = None
    never: Names = Names()
    text_only: bool = False
    """True if the towers for images and sound, and what joins them to the text, stay unquantised."""

    def covers(self, weight: Weight, part: Part) -> bool:
        """True if the format is one for tensors of this kind, whatever their names."""
        return weight.role in self.roles and len(weight.shape) > 1 and not (self.text_only and part not in _TEXT)

    def taken(self, weight: Weight, part: Part, layers: Sequence[int]) -> frozenset[int]:
        """The ``layers`` in which the weight gets this format."""
        if not self.covers(weight, part):
            return frozenset()
        module = weight.path.removesuffix(".weight")
        included = frozenset(layers) if self.only is None else self.only.layers(module, part, layers)
        return included and included - self.never.layers(module, part, layers)

    @property
    def names_layers(self) -> bool:
        """True if the rule depends on layer numbers."""
        return self.never.names_layers or (self.only is not None and self.only.names_layers)


class Portion(Struct, frozen=True):
    """Parameters that are stored in one format, and their bytes."""

    format: WeightFormat
    elements: int
    bytes: int


class Scheme(Record):
    """Rules in order. The first rule that takes a weight decides its format; all other weights stay unquantised."""

    name: str
    rules: tuple[Rule, ...]
    others: tuple[Scheme, ...] = ()
    """Other ways of making weights of this format, which take more or fewer bytes."""
    unpacked_by_transformers: bool = False
    """True if transformers unpacks the weights when it loads them, so that on the GPU they are as wide as unquantised ones."""

    def bytes(self, block: Block, weight: Weight, unquantised: WeightFormat) -> int:
        """Bytes of one tensor in all layers of its block."""
        return sum([count * form.bytes(weight) for count, form in self.formats(block, weight, unquantised)])

    def portions(self, block: Block, weight: Weight, unquantised: WeightFormat) -> Iterator[Portion]:
        """The formats of a tensor in all layers of its block, each with its parameters and bytes."""
        for count, form in self.formats(block, weight, unquantised):
            yield Portion(format=form, elements=count * weight.elements, bytes=count * form.bytes(weight))

    def formats(self, block: Block, weight: Weight, unquantised: WeightFormat) -> list[tuple[int, WeightFormat]]:
        """The formats of a tensor, each with its number of layers. If the block has no layer numbers, they count from 0."""
        layers: Sequence[int] = range(block.count) if block.layers is None else block.layers
        if self._alike and layers:
            for rule in self.rules:
                if rule.covers(weight, block.part):
                    return [(len(layers), rule.format)]
            return [(len(layers), unquantised)]
        key = (weight.path, weight.role, len(weight.shape), block.part, layers)
        if key not in self._formats:
            counted: list[tuple[int, WeightFormat | None]] = []
            left = layers
            for rule in self.rules:
                taken = rule.taken(weight, block.part, left)
                if taken:
                    rest = [number for number in left if number not in taken]
                    counted.append((len(left) - len(rest), rule.format))
                    left = rest
                if not left:
                    break
            else:
                counted.append((len(left), None))
            self._formats[key] = counted
        return [(count, form or unquantised) for count, form in self._formats[key]]

    @cached_property
    def _alike(self) -> bool:
        """True if a tensor has the same format in all layers, by what it is alone: no rule has names."""
        return all(rule.only is None and rule.never.is_empty for rule in self.rules)

    @cached_property
    def _formats(self) -> dict[Hashable, list[tuple[int, WeightFormat | None]]]:
        """The answers so far: a plan asks for the same tensors, cut in different ways, at each step of its solvers."""
        return {}

    def strangers(self, blocks: Iterable[Block]) -> tuple[str, ...]:
        """Names that the config leaves unquantised and that no module of the model has."""
        modules = [(weight.path.removesuffix(".weight"), block.part) for block in blocks for weight in block.weights]
        return tuple(dict.fromkeys(name for rule in self.rules[:1] for name in rule.never.strangers(modules)))

    def placed(self, *, layers: int, text_only: bool) -> Scheme | None:
        """The scheme of a model with this many layers, whose config says it for the text alone or for the whole model.

        ``None`` if too many of its patterns would have to be compared with the name of each layer.
        """
        # One object for all rules that share it, so that they share what was looked up.
        never = {id(rule.never): replace(rule.never, depth=layers) for rule in self.rules}
        patterns = {pattern for rule in self.rules for names in (rule.only, rule.never) if names for pattern in names.by_number}
        if len(patterns) * layers > MOST_COMPARED:
            return None
        rules = tuple(
            replace(
                rule,
                only=None if rule.only is None else replace(rule.only, depth=layers),
                never=never[id(rule.never)],
                text_only=text_only,
            )
            for rule in self.rules
        )
        return replace(self, rules=rules)

    @property
    def names_layers(self) -> bool:
        """True if any rule depends on layer numbers."""
        return any(rule.names_layers for rule in self.rules)


def uniform_scheme(name: str) -> Scheme | None:
    """The scheme of ``--weights NAME``: all matrices except embeddings, routers and the head; ``None`` for an unknown name."""
    form = FORMATS.get(name)
    return None if form is None else Scheme(name=name, rules=(Rule(format=form),))
