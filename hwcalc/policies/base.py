"""A cache policy: what it is told of a model, what it leaves in the cache, its options, and what is published of its quality.

Figures of quality are those of others, with their source, and no promise.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, Final

from msgspec import field
from msgspec.structs import replace

from hwcalc.formulas.record import Record
from hwcalc.formulas.tensor import Shown
from hwcalc.model import Definition

EAGER: Final = "eager"
SDPA: Final = "sdpa"
KVPRESS: Final = "kvpress"
PAPER: Final = "paper"
RULES: Final = (KVPRESS, PAPER)


class Effect(Shown, enum.StrEnum):
    """What becomes of the memory of a token that a policy does not want."""

    FREES = "frees"
    """The tensors shrink."""
    MASKS = "masks"
    """The token is stored and has no weight in the attention."""
    ZEROES = "zeroes"
    """Numbers are set to zero and stored."""
    READS_LESS = "reads less"
    """Everything is stored, and a step reads a part of it."""
    DEPENDS = "as its parts"
    """What the policies inside do."""

    @property
    def text(self) -> str:
        """The word itself."""
        return self.value


class Choice(enum.StrEnum):
    """Who chooses the tokens that stay: as many choices fall on the blocks of a paged cache."""

    EACH_HEAD = "each head of each layer"
    EACH_LAYER = "each layer, for all its heads"
    HEADS_TOGETHER = "each head, for all layers"


class Role(enum.StrEnum):
    """Where a policy can stand inside another."""

    SCORER = "scorer"
    """It gives each token a score and keeps the highest: what most wrappers take."""
    PREFILL = "prefill"
    """It acts once, behind each attention layer of the prefill."""
    DECODING = "decoding"
    """It acts between decode steps alone."""
    METHOD = "method"
    """It has rules of its own for prefill and decoding, and stands alone."""


class Count(Record):
    """A number of tokens. ``low`` and ``high`` differ where it depends on the text, which is not known."""

    low: int
    high: int

    @classmethod
    def of(cls, tokens: int) -> Count:
        """A number that is known."""
        return cls(low=tokens, high=tokens)

    @property
    def is_exact(self) -> bool:
        """True if it is known."""
        return self.low == self.high

    def each(self, rule: Callable[[int], int]) -> Count:
        """Both ends through a rule that never falls."""
        return Count(low=rule(self.low), high=rule(self.high))


class Masked(Record):
    """Pairs of one layer that are stored without weight: how many in all, and in each key/value head.

    ``split`` is a division of the high total over the heads that adds up: the true one where every head is known, else an even one.
    """

    total: Count
    heads: tuple[Count, ...]
    split: tuple[int, ...]


class Left(Record):
    """What is left in one layer: tokens stored in each head, pairs masked, tokens that a decode step reads."""

    stored: Count
    masked: Masked | None = None
    read: Count | None = None


class LayerShape(Record):
    """The attention of one layer. ``index`` is its place among all layers of the model."""

    index: int
    heads: int
    kv_heads: int
    head_dim: int


class Setting(Record):
    """What a policy is told: the layers that it acts on, the attention kernel, the rules, and the size of an element.

    ``attention`` is the kernel that was asked for, or the one that fits the policy.
    """

    layers: tuple[LayerShape, ...]
    depth: int
    """All layers of the model, those too on which no policy acts."""
    attention: str = SDPA
    rules: str = KVPRESS
    element_bytes: int = 2
    batch: int = 1
    hidden_size: int | None = None
    together: int = 1
    """Sequences that go through one prefill: the batch under kvpress, one in an engine that serves requests."""


class State(Record):
    """The cache behind a policy. ``hidden`` are the tokens of the prompt that went through the model.

    ``ranges`` are the kept positions, from start to end, where the rule alone says which they are.
    """

    hidden: int
    layers: tuple[Left, ...]
    ranges: tuple[tuple[int, int], ...] | None = None
    masked_total: Count | None = None
    """All masked pairs, where a policy fixes their number and not their layers."""

    def with_stored(self, stored: tuple[Count, ...], ranges: tuple[tuple[int, int], ...] | None = None) -> State:
        """The same with other lengths."""
        layers = tuple(replace(layer, stored=count) for layer, count in zip(self.layers, stored, strict=True))
        return replace(self, layers=layers, ranges=ranges)


class Scored(Record):
    """What a scorer is asked to score: so many keys, for so many queries whose hidden states are at hand."""

    keys: int
    queries: int
    attention: str
    decoding: bool = False


class Start(Record):
    """Where decoding starts: tokens in one layer, those of the prompt, and the steps to come."""

    length: int
    prompt: int
    steps: int
    layer: int
    setting: Setting


class Extra(Record):
    """Memory beside the cache while a policy works: for one layer at a time unless it says ``all layers``.

    ``lasting`` stays between steps; all else is there while a layer is computed or scored. ``by_query`` is made of the queries of
    the prompt, such as scores of attention itself: one row for each token that goes through the model at once.
    """

    name: str
    bytes: int
    formula: str
    when: str
    definition: Definition
    source: str
    lasting: bool = False
    by_query: bool = False


class PolicyOption(Record):
    """One option of a policy: ``kind`` is a reader of :mod:`hwcalc.policies.parse`."""

    name: str
    kind: str
    default: Any
    help: str
    required: bool = False
    least: int = 0
    hidden: bool = False


class InPrefill(Record):
    """What kvpress's code of a policy makes itself while a prompt is read, as far as that was counted.

    ``bytes`` are of so many tokens of the prompt and so many keys of a layer; without it they are less than those of the MLP.
    """

    bytes: Callable[[Chosen, int, int, LayerShape, Setting], int] | None = None
    complete: bool = True
    """True if nothing else is made that may be more."""
    always: bool = False
    """True if it looks at the keys even where nothing is to go."""
    key_scores: int = 0
    """Scores of each key that stay behind a layer."""
    head_bytes: int = 0
    """Bytes for each head that are there all the time."""
    seen: Callable[[Chosen, int, Setting], Iterable[tuple[Chosen, tuple[int, ...]]]] | None = None
    """The policies inside with the length of each layer that they see; by default each sees the whole prompt."""


class Policy(Record):
    """One policy: facts, and the functions that say what it leaves.

    ``prefill`` gives the cache behind the prefill. A scorer has ``check``, which raises an error where it cannot score, and ``budget``, the
    tokens that it keeps of so many at a ratio. ``decode`` gives the length of a layer in each step, before and after its cut.
    """

    name: str
    press: str
    title: str
    role: Role
    effect: Effect
    keeps: str
    formula: str
    kernel: str
    source: str
    options: tuple[PolicyOption, ...]
    prefill: Callable[[Chosen, State, Setting], State]
    memory: str = "nothing beside the keys that it reads"
    aliases: tuple[str, ...] = ()
    check: Callable[[Chosen, Scored], None] | None = None
    budget: Callable[[Chosen, float, int, int, int], int] | None = None
    protects: Callable[[Chosen, float, int], int] | None = None
    """The tokens of each head that a scorer puts above all others, of so many at a ratio, whatever the text is."""
    decode: Callable[[Chosen, Start], Iterable[tuple[int, int]]] | None = None
    extra: Callable[[Chosen, int, Setting], tuple[Extra, ...]] | None = None
    crests: Callable[[Chosen], tuple[int, ...]] | None = None
    """Lengths of a prompt of which more is kept than of the next longer one: a prompt that is cut only from some length on."""
    worked: Callable[[Chosen, int, int, Setting], tuple[str, Mapping[str, float]]] | None = None
    """What a layer keeps of so many tokens as a formula with its numbers (:mod:`hwcalc.policies.counting`)."""
    needs: str | None = None
    """The only attention kernel that it works with."""
    forbids: str | None = None
    by_layer: bool = False
    """True if layers of one length may be cut to different ones."""
    chooses: Choice | None = None
    """Who chooses; without it the policy inside says so, or else each head of each layer does."""
    chunk_option: str | None = None
    """The option with the number of tokens that stay or go together."""
    in_prefill: InPrefill | None = None
    """What it makes while a prompt is read; ``None`` was not counted."""
    has_delimiter: bool = False
    """True if it takes a token out of the prompt, which never enters the cache."""
    decodes: bool = False
    """True if it may stand where a scorer cuts between decode steps, though it is none."""
    composes: bool = True
    """True if it may stand among others, one after the other."""
    check_chosen: Callable[[Chosen], None] | None = None
    """Raises an error where the options do not go together."""
    by_place: bool = False
    """True if places alone say which tokens stay, whatever the text is: the first ``n_sink`` and the last ones."""
    rerotates: bool = False
    """True if positions of decoded tokens go on from what is kept."""
    cuts_each_step: bool = False
    """True if the paper cuts to the budget in each decode step."""
    definition: Definition = Definition.ENGINE


class Chosen(Record):
    """A policy with the values of its options. Values may be chosen policies again."""

    policy: Policy
    values: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def get(self, name: str) -> Any:
        """The value of an option; ``None`` if the policy has no such option."""
        return self.values.get(name)

    def __repr__(self) -> str:
        return f"Chosen({self.text!r})"

    @cached_property
    def inner(self) -> tuple[Chosen, ...]:
        """The policies inside, in their order."""
        found: list[Chosen] = []
        for value in self.values.values():
            if isinstance(value, Chosen):
                found.append(value)
            elif isinstance(value, tuple):
                found += [one for one in value if isinstance(one, Chosen)]
        return tuple(found)

    @cached_property
    def whole(self) -> tuple[Chosen, ...]:
        """The policy and all those inside."""
        return (self, *(one for inner in self.inner for one in inner.whole))

    @property
    def chooses(self) -> Choice:
        """The level at which the tokens that stay are chosen. Where policies inside differ, heads differ behind the first that lets each choose."""
        if self.policy.chooses is not None:
            return self.policy.chooses
        inside = {one.chooses for one in self.inner}
        return inside.pop() if len(inside) == 1 else Choice.EACH_HEAD

    @property
    def ratio(self) -> float:
        """The compression ratio: its own, or that of the policy inside."""
        own = self.values.get("compression_ratio")
        if own is None and isinstance(self.values.get("press"), Chosen):
            inner: float = self.values["press"].ratio
            return inner
        return own or 0.0

    @property
    def text(self) -> str:
        """The policy as ``--policy`` takes it, with the options that were set."""
        words = [
            f"{option.name}={_written(self.values[option.name])}"
            for option in self.policy.options
            if self.values.get(option.name) != option.default
        ]
        return self.policy.name + (f":{','.join(words)}" if words else "")


def _written(value: Any) -> str:
    if isinstance(value, Chosen):
        return f"({value.text})" if ":" in value.text else value.text
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (tuple, list)):
        return f"[{','.join(map(_written, value))}]"
    return f"{value}"


RATIO: Final = PolicyOption(name="compression_ratio", kind="ratio", default=0.0, help="share of the tokens that is dropped")
INNER: Final = PolicyOption(name="press", kind="scorer", default=None, help="the scorer inside", required=True)
SINKS: Final = PolicyOption(name="n_sink", kind="count", default=4, help="first tokens that always stay")
WINDOW: Final = PolicyOption(
    name="window_size", kind="count", default=64, help="last tokens, whose queries score the others", least=1
)
ALPHA: Final = PolicyOption(
    name="alpha_safeguard", kind="share", default=0.2, help="share of its part that each head keeps whatever the scores say"
)
BUDGET: Final = PolicyOption(
    name="budget", kind="count", default=None, help="tokens to keep, in place of a ratio: as the papers count", least=1
)
DIVIDE: Final = PolicyOption(
    name="divide_length",
    kind="count",
    default=None,
    help="with a budget: cut again each time the text has grown by so many",
    least=1,
)


def quality(name: str, default: Any) -> PolicyOption:
    """An option that decides which tokens are kept, and not how many."""
    return PolicyOption(name=name, kind="any", default=default, help="changes which tokens stay, not how many", hidden=True)


REPACK: Final = "repack"
"""Survivors move together in their order."""
FILL: Final = "fill"
"""Survivors of the last blocks move into the holes of the first ones."""
NO_COMPACTION: Final = "none"
"""Nothing moves: a block goes when nothing in it is left."""
COMPACTIONS: Final = (REPACK, FILL, NO_COMPACTION)


class AskedPolicy(Record):
    """A policy with the rules that it follows, and what becomes of the blocks of a paged cache."""

    chosen: Chosen
    rules: str = KVPRESS
    compaction: str = REPACK


class Quality(Record):
    """One published figure: accuracy in percent with ``budget`` tokens, beside that of the whole cache."""

    policy: str
    model: str
    benchmark: str
    budget: int
    accuracy: float
    full_accuracy: float
    source: str


_README: Final = "WeianMao/triattention 01aed81"
_MODELS: Final = (
    ("Qwen3-8B", 2048),
    ("DeepSeek-R1-Distill-Llama-8B", 512),
    ("DeepSeek-R1-Distill-Qwen-7B", 2048),
    ("gpt-oss-20b", 2048),
)
_FULL: Final = ((57.1, 40.8), (50.4, 31.4), (43.8, 34.2), (69.2, 60.0))
_AIME: Final = (
    ("snapkv", ((34.6, 20.0), (5.0, 6.7), (34.6, 25.0), (48.3, 36.7))),
    ("rkv", ((25.4, 17.5), (25.8, 11.2), (34.6, 23.3), (49.6, 39.2))),
    ("triattention", ((42.1, 32.9), (33.8, 19.6), (42.5, 30.0), (59.2, 49.2))),
)
_BUDGETS: Final[Mapping[str, tuple[tuple[str, int, float, float], ...]]] = {
    "triattention": (("MATH-500", 1024, 68.4, 69.6), ("AIME24", 4096, 54.6, 57.1), ("AIME25", 3072, 40.8, 40.8))
}


def quality_of(policy: str) -> tuple[Quality, ...]:
    """All that is known here of a policy; nothing is known of most."""
    found = [
        Quality(
            policy=name, model=model, benchmark=benchmark, budget=budget, accuracy=accuracy, full_accuracy=full, source=_README
        )
        for name, columns in _AIME
        if name == policy
        for (model, budget), scores, fulls in zip(_MODELS, columns, _FULL, strict=True)
        for benchmark, accuracy, full in zip(("AIME24", "AIME25"), scores, fulls, strict=True)
    ]
    found += [
        Quality(
            policy=policy, model="Qwen3-8B", benchmark=name, budget=budget, accuracy=accuracy, full_accuracy=full, source=_README
        )
        for name, budget, accuracy, full in _BUDGETS.get(policy, ())
    ]
    return tuple(found)
