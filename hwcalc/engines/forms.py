"""The memory of a GPU as a function of length and number of sequences, in one normal form.

:meth:`Engine.form` gives it for one family of requests (one model, formats, layout and GPU); then ``form.verdict(tokens, sequences)`` is
the verdict of the plan at every length and batch, and ``form.needed(...)`` its bytes, without another plan. A page evaluates the same form
in a browser. A sweep calls it with arrays of lengths and of numbers of sequences, which every function here takes in place of integers
(:mod:`hwcalc.formulas.arithmetic`): nobody repeats a rule. An engine whose rule does not fit gives no form.

Layers that grow alike are a :class:`Term`: ``count x unit_bytes x stairs(tokens)``, for each sequence. Llama-3.1-8B in bf16 with four tokens
is one term: 32 layers x 4,096 bytes x 4.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property
from typing import TYPE_CHECKING, Final, get_args

from hwcalc.engines.moments import Fullest
from hwcalc.formulas import LayerNumbers
from hwcalc.formulas.arithmetic import either, floored, larger, largest, mapped, smaller
from hwcalc.formulas.frozen import frozen
from hwcalc.formulas.stairs import Stair, stairs_at

if TYPE_CHECKING:
    from hwcalc.engines.budget import BudgetPart

__all__ = [
    "ENDS",
    "HOST",
    "Amount",
    "Blocks",
    "Constant",
    "Curve",
    "Early",
    "Fullest",
    "HostRoom",
    "Largest",
    "Measured",
    "MemoryForm",
    "PartForm",
    "Pass",
    "PerGpu",
    "Pools",
    "Term",
    "passed_tokens",
]

ENDS: Final = ("low", "expected", "high")
HOST: Final = "host"
"""The section of parts that lie in the memory of the host."""
_OPPOSITE: Final = {"low": "high", "expected": "expected", "high": "low"}
"""An end of what there is -> that of what is needed. The low end takes every part at its high end."""


def passed_tokens(tokens: int, sequences: int, chunk: int | None) -> int:
    """Tokens of one forward pass: all, or at most ``chunk`` of them, but one for each sequence."""
    passed = sequences * tokens
    most: int = passed if chunk is None else smaller(passed, larger(sequences, chunk))
    return most


@frozen
class Term:
    """Layers of one kind that grow alike. A unit is a position, or a block of ``unit_tokens`` tokens.

    ``stairs`` are the units that one layer takes of one sequence; of several sums the largest counts. ``rule`` says it in words, where
    ``n`` is the number of tokens.
    """

    kind: str
    layers: LayerNumbers
    count: int
    unit_bytes: int
    stairs: tuple[tuple[Stair, ...], ...]
    rule: str
    unit_tokens: int = 1

    def units(self, tokens: int) -> int:
        """Positions or blocks of one layer and one sequence."""
        units: int = largest(stairs_at(sums, tokens) for sums in self.stairs)
        return units

    def bytes(self, tokens: int) -> int:
        """Bytes of all these layers for one sequence."""
        return self.count * self.unit_bytes * self.units(tokens)


@frozen
class Curve:
    """The cache. ``gpus`` has a sum of terms for each GPU that differs, of which the largest counts; ``total`` are those of all GPUs.

    ``once_bytes`` and ``total_once_bytes`` are there once, however many sequences there are. Sequences of more than ``most_tokens``, and
    more than ``most_sequences`` of them, are refused.
    """

    gpus: tuple[tuple[Term, ...], ...]
    total: tuple[Term, ...]
    once_bytes: int = 0
    total_once_bytes: int = 0
    most_tokens: int | None = None
    most_sequences: int | None = None

    def bytes_on(self, gpu: int, tokens: int, sequences: int) -> int:
        """Bytes on one of the GPUs, for so many sequences of a replica."""
        return sequences * sum(term.bytes(tokens) for term in self.gpus[gpu]) + self.once_bytes

    def needed_bytes(self, tokens: int, sequences: int) -> int:
        """Bytes on the fullest GPU, for so many sequences of a replica."""
        most: int = largest(sum(term.bytes(tokens) for term in terms) for terms in self.gpus)
        return sequences * most + self.once_bytes

    def total_bytes(self, tokens: int, sequences: int) -> int:
        """Bytes on all GPUs, for all sequences."""
        return sequences * sum(term.bytes(tokens) for term in self.total) + self.total_once_bytes


@frozen
class Constant:
    """The same at every length and for every number of sequences."""

    bytes: int

    @classmethod
    def of(cls, size: int) -> Constant:
        """So many bytes."""
        return cls(bytes=size)

    def at(self, tokens: int, sequences: int) -> int:
        """Bytes for so many sequences of a replica."""
        return self.bytes


@frozen
class Pass:
    """A forward pass: ``int(element_bytes x passed x width + sequences x logits x logit_bytes)``.

    ``passed`` are the tokens that are processed at once: all, or at most ``chunk`` of them (but one for each sequence). The products are
    formed in floating point and in this order, so that every language gives the same integer.
    """

    element_bytes: int
    width: float
    chunk: int | None
    logits: int
    logit_bytes: float

    def passed(self, tokens: int, sequences: int) -> int:
        """Tokens that are processed at once."""
        return passed_tokens(tokens, sequences, self.chunk)

    def at(self, tokens: int, sequences: int) -> int:
        """Bytes for so many sequences of a replica."""
        passed = self.passed(tokens, sequences)
        size: int = floored(self.element_bytes * passed * self.width + sequences * self.logits * self.logit_bytes)
        return size


@frozen
class Largest:
    """The largest of some terms, for all sequences: a tensor that exists twice while it grows."""

    terms: tuple[Term, ...]

    def at(self, tokens: int, sequences: int) -> int:
        """Bytes for so many sequences of a replica."""
        most: int = largest(term.bytes(tokens) for term in self.terms) if self.terms else 0
        return sequences * most


@frozen
class Measured:
    """A rule, but the bytes that were measured where a forward pass is one of the ``readings``: its tokens, its sequences, bytes.

    At most ``chunk`` tokens are processed at once, as in :class:`Pass`.
    """

    rule: Amount
    chunk: int | None
    readings: tuple[tuple[int, int, int], ...]

    def at(self, tokens: int, sequences: int) -> int:
        """Bytes for so many sequences of a replica."""
        passed = passed_tokens(tokens, sequences, self.chunk)
        size = self.rule.at(tokens, sequences)
        for tokens_at_once, rows, measured in reversed(self.readings):
            size = either((tokens_at_once == passed) & (rows == sequences), measured, size)
        return size


@frozen
class Early:
    """The bytes at the first lengths, from one token on, and the rule that holds from the next length on."""

    first: tuple[int, ...]
    rule: Amount

    def at(self, tokens: int, sequences: int) -> int:
        """Bytes for so many sequences of a replica."""
        size = self.rule.at(tokens, sequences)
        for length, early in enumerate(self.first, 1):
            size = either(tokens == length, early, size)
        return size


@frozen
class PerGpu:
    """Another amount on each GPU of a :class:`Curve`, where each runs a part of the model of its own."""

    amounts: tuple[Amount, ...]

    def at(self, tokens: int, sequences: int) -> int:
        """The largest of them."""
        most: int = largest(amount.at(tokens, sequences) for amount in self.amounts)
        return most


Amount = Constant | Pass | Largest | Fullest | PerGpu | Measured | Early


@frozen
class PartForm:
    """A term of the memory equation, as :class:`~hwcalc.engines.budget.BudgetPart`."""

    name: str
    section: str
    low: Amount
    expected: Amount
    high: Amount

    @classmethod
    def constant(cls, part: BudgetPart) -> PartForm:
        """A part that follows from neither length nor number of sequences."""
        low, expected, high = map(Constant.of, (part.low, part.expected, part.high))
        return cls(name=part.name, section=part.section.value, low=low, expected=expected, high=high)

    def on(self, gpu: int, end: str) -> Amount:
        """The amount at an end of the range on one of the GPUs of the curve."""
        amount: Amount = getattr(self, end)
        return amount.amounts[gpu] if isinstance(amount, PerGpu) else amount


@frozen
class Blocks:
    """What a pool of blocks holds of a budget: whole blocks of ``bytes``, without those that no sequence gets.

    17 bytes in blocks of 4, of which one is nobody's, hold 12.
    """

    bytes: int = 1
    null: int = 0

    def hold(self, budget_bytes: int) -> int:
        """The bytes that sequences may take of so many."""
        return (budget_bytes // self.bytes - self.null) * self.bytes


@frozen
class Pools:
    """Several pools that are made of one budget, by a rule of the engine.

    ``demands`` are the units that one sequence takes of each pool, as terms, and ``capacities`` says how many units each has by the bytes
    of a GPU that are left for the cache (none if there are fewer than 0). Sequences fit if every pool holds them.
    """

    demands: tuple[tuple[Term, ...], ...]
    capacities: Callable[[int], tuple[int, ...]]

    def hold(self, budget_bytes: int, tokens: int, sequences: int) -> bool:
        """Whether so many sequences of a replica fit."""
        capacities, held = cache(self.capacities), True
        for pool, terms in enumerate(self.demands):
            taken = sequences * sum(term.bytes(tokens) for term in terms)
            held = held & (taken <= mapped(lambda size, at=pool: capacities(size)[at], budget_bytes))  # type: ignore[misc]
        return held


@frozen
class HostRoom:
    """Memory of the host that must be there beside the GPUs: for parts with the section :data:`HOST`, which lie on no GPU.

    ``room`` is low, expected and high. If it is ``shared``, the GPUs take what they need of it as well.
    """

    room: tuple[int, int, int]
    shared: bool = False


@frozen
class MemoryForm:
    """The memory equation of one family of requests.

    ``usable`` is what may be used of a GPU: low, expected and high. A cache fits if the ``blocks`` that are left hold it, or all ``pools``
    of an engine that has several. At most ``most_sequences`` run at once, because of ``limited_by``. The form holds from ``least_tokens``
    on, and ``model_tokens`` are those that the model is made for.
    """

    curve: Curve
    parts: tuple[PartForm, ...]
    usable: tuple[int, int, int]
    total_bytes: int
    blocks: Blocks = Blocks()
    pools: Pools | None = None
    most_sequences: int | None = None
    limited_by: str | None = None
    dp: int = 1
    least_tokens: int = 1
    model_tokens: int | None = None
    host: HostRoom | None = None
    crests: tuple[int, ...] = ()
    """Periods: a length just below a multiple of one may take more than the length itself (``Engine.periods``)."""

    @property
    def refuses_more(self) -> bool:
        """Whether the engine says so in place of a verdict where there are more sequences than may run."""
        return self.curve.most_sequences is not None

    @cached_property
    def drawable(self) -> bool:
        """Whether the page of ``kvplan explore`` can evaluate it: it knows the classes here alone, and no rule of a pool."""
        amounts = (getattr(part, end) for part in self.parts for end in ENDS)
        return self.pools is None and type(self.curve) is Curve and all(isinstance(one, get_args(Amount)) for one in amounts)

    def replica(self, sequences: int) -> int:
        """Sequences of the fullest replica."""
        return -(-sequences // self.dp)

    @cached_property
    def gpus_differ(self) -> bool:
        """Whether each GPU of the curve has parts of its own."""
        return any(isinstance(part.high, PerGpu) for part in self.parts)

    def parts_bytes(self, tokens: int, sequences: int, end: str, section: str | None = None) -> int:
        """Bytes of the parts of a section, or of all, on the fullest GPU at one end of their ranges."""
        return self._on_fullest(tokens, sequences, lambda gpu: self._parts_on(gpu, tokens, sequences, end, section))

    def left(self, tokens: int, sequences: int, end: str) -> int:
        """Bytes that the fullest GPU has left for the cache."""
        return self.usable[ENDS.index(end)] - self.parts_bytes(tokens, sequences, _OPPOSITE[end])

    def needed_bytes(self, tokens: int, sequences: int) -> int:
        """Bytes of the cache on the fullest GPU."""
        own = self.replica(sequences)
        if not self.gpus_differ:
            return self.curve.needed_bytes(tokens, own)
        return self._on_fullest(tokens, sequences, lambda gpu: self.curve.bytes_on(gpu, tokens, own))

    def holds(self, tokens: int, sequences: int, end: str = "expected") -> bool:
        """Whether so many sequences of so many tokens fit at one end of the estimates."""
        held = self._allows(tokens, sequences)
        if held is False:
            return False
        if self.gpus_differ:
            usable = self.usable[ENDS.index(end)]
            for gpu in range(len(self.curve.gpus)):
                held = held & (self._needed_on(gpu, tokens, sequences, _OPPOSITE[end]) <= usable)
        else:
            held = held & self._pool_holds(tokens, sequences, end)
        if self.host is not None:
            held = held & self._host_holds(self.host, tokens, sequences, end)
        return held

    def _allows(self, tokens: int, sequences: int) -> bool:
        """Whether the engine runs so many sequences of so many tokens at once, however much memory there is."""
        allowed = True
        if self.most_sequences is not None:
            allowed = sequences <= self.most_sequences
        if self.curve.most_tokens is not None:
            allowed = allowed & (tokens <= self.curve.most_tokens)
        return allowed

    def _pool_holds(self, tokens: int, sequences: int, end: str) -> bool:
        left = self.left(tokens, sequences, end)
        if self.pools is not None:
            return (left >= 0) & self.pools.hold(left, tokens, self.replica(sequences))
        most = self.needed_bytes(tokens, sequences)
        for period in self.crests:
            crest = tokens // period * period - 1
            most = larger(most, self.needed_bytes(either(crest > 0, crest, tokens), sequences))
        return (left >= 0) & (self.blocks.hold(left) >= most)

    def _host_holds(self, host: HostRoom, tokens: int, sequences: int, end: str) -> bool:
        """Whether the host has the memory that is needed there."""
        needed = self._parts_on(0, tokens, sequences, _OPPOSITE[end], HOST)
        if host.shared:
            gpus = range(len(self.curve.gpus))
            needed = needed + sum(self._needed_on(gpu, tokens, sequences, _OPPOSITE[end]) for gpu in gpus)
        return needed <= host.room[ENDS.index(end)]

    def _on_fullest(self, tokens: int, sequences: int, amount: Callable[[int], int]) -> int:
        """An amount of the GPU of which the answer speaks: the first one that needs most at the high end of the parts."""
        found = amount(0)
        if self.gpus_differ:
            most = self._needed_on(0, tokens, sequences, "high")
            for gpu in range(1, len(self.curve.gpus)):
                needed = self._needed_on(gpu, tokens, sequences, "high")
                found = either(needed > most, amount(gpu), found)
                most = larger(most, needed)
        return found

    def _needed_on(self, gpu: int, tokens: int, sequences: int, end: str) -> int:
        cache = self.curve.bytes_on(gpu, tokens, self.replica(sequences))
        return cache + self._parts_on(gpu, tokens, sequences, end, None)

    def _parts_on(self, gpu: int, tokens: int, sequences: int, end: str, section: str | None) -> int:
        own = self.replica(sequences)
        parts = (part for part in self.parts if (part.section != HOST if section is None else part.section == section))
        return sum(part.on(gpu, end).at(tokens, own) for part in parts)
