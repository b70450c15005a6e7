"""The memory of a GPU as a function of length and number of sequences, in one normal form.

:meth:`Engine.form` gives it for one family of requests (one model, formats, layout and GPU); then ``form.verdict(tokens, sequences)`` is
the verdict of the plan at every length and batch, and ``form.needed(...)`` its bytes, without another plan. A page evaluates the same form
in a browser, and a sweep with arrays: nobody repeats a rule. An engine whose rule does not fit gives no form.

Layers that grow alike are a :class:`Term`: ``count x unit_bytes x stairs(tokens)``, for each sequence. Llama-3.1-8B in bf16 with four tokens
is one term: 32 layers x 4,096 bytes x 4.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

from hwcalc.engines.moments import Fullest
from hwcalc.formulas import LayerNumbers
from hwcalc.formulas.frozen import frozen
from hwcalc.formulas.stairs import Stair, stairs_at

__all__ = [
    "ENDS",
    "HOST",
    "Amount",
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
    return passed if chunk is None else min(passed, max(sequences, chunk))


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
        return max(stairs_at(sums, tokens) for sums in self.stairs)

    def bytes(self, tokens: int) -> int:
        """Bytes of all these layers for one sequence."""
        return self.count * self.unit_bytes * self.units(tokens)


@frozen
class Curve:
    """The cache. ``gpus`` has a sum of terms for each GPU that differs, of which the largest counts; ``total`` are those of all GPUs.

    ``once_bytes`` and ``total_once_bytes`` are there once, however many sequences there are.
    """

    gpus: tuple[tuple[Term, ...], ...]
    total: tuple[Term, ...]
    once_bytes: int = 0
    total_once_bytes: int = 0

    def bytes_on(self, gpu: int, tokens: int, sequences: int) -> int:
        """Bytes on one of the GPUs, for so many sequences of a replica."""
        return sequences * sum(term.bytes(tokens) for term in self.gpus[gpu]) + self.once_bytes

    def needed_bytes(self, tokens: int, sequences: int) -> int:
        """Bytes on the fullest GPU, for so many sequences of a replica."""
        return sequences * max(sum(term.bytes(tokens) for term in terms) for terms in self.gpus) + self.once_bytes

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
        return int(self.element_bytes * passed * self.width + sequences * self.logits * self.logit_bytes)


@frozen
class Largest:
    """The largest of some terms, for all sequences: a tensor that exists twice while it grows."""

    terms: tuple[Term, ...]

    def at(self, tokens: int, sequences: int) -> int:
        """Bytes for so many sequences of a replica."""
        return sequences * max((term.bytes(tokens) for term in self.terms), default=0)


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
        for tokens_at_once, rows, size in self.readings:
            if (tokens_at_once, rows) == (passed, sequences):
                return size
        return self.rule.at(tokens, sequences)


@frozen
class Early:
    """The bytes at the first lengths, from one token on, and the rule that holds from the next length on."""

    first: tuple[int, ...]
    rule: Amount

    def at(self, tokens: int, sequences: int) -> int:
        """Bytes for so many sequences of a replica."""
        return self.first[tokens - 1] if tokens <= len(self.first) else self.rule.at(tokens, sequences)


@frozen
class PerGpu:
    """Another amount on each GPU of a :class:`Curve`, where each runs a part of the model of its own."""

    amounts: tuple[Amount, ...]

    def at(self, tokens: int, sequences: int) -> int:
        """The largest of them."""
        return max(amount.at(tokens, sequences) for amount in self.amounts)


Amount = Constant | Pass | Largest | Fullest | PerGpu | Measured | Early


@frozen
class PartForm:
    """A term of the memory equation, as :class:`~hwcalc.engines.budget.BudgetPart`."""

    name: str
    section: str
    low: Amount
    expected: Amount
    high: Amount

    def on(self, gpu: int, end: str) -> Amount:
        """The amount at an end of the range on one of the GPUs of the curve."""
        amount: Amount = getattr(self, end)
        return amount.amounts[gpu] if isinstance(amount, PerGpu) else amount


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

    ``usable`` is what may be used of a GPU: low, expected and high. A cache fits if ``(left // block_bytes - null_blocks) x block_bytes``
    holds it; for engines without blocks, ``block_bytes`` is 1. At most ``most_sequences`` run at once, because of ``limited_by``; an engine
    that ``refuses_more`` says so in place of a verdict.
    The form holds from ``least_tokens`` on; sequences of more than ``most_tokens`` are refused, and ``model_tokens`` are those that the
    model is made for.
    """

    curve: Curve
    parts: tuple[PartForm, ...]
    usable: tuple[int, int, int]
    total_bytes: int
    block_bytes: int = 1
    null_blocks: int = 0
    most_sequences: int | None = None
    limited_by: str | None = None
    refuses_more: bool = False
    dp: int = 1
    least_tokens: int = 1
    most_tokens: int | None = None
    model_tokens: int | None = None
    host: HostRoom | None = None
    crests: tuple[int, ...] = ()
    """Periods: a length just below a multiple of one may take more than the length itself (``Engine.periods``)."""

    def replica(self, sequences: int) -> int:
        """Sequences of the fullest replica."""
        return -(-sequences // self.dp)

    @cached_property
    def gpus_differ(self) -> bool:
        """Whether each GPU of the curve has parts of its own."""
        return any(isinstance(part.high, PerGpu) for part in self.parts)

    def fullest(self, tokens: int, sequences: int) -> int:
        """The place in the curve of the GPU of which the answer speaks: it needs most at the high end of the parts."""
        gpus = range(len(self.curve.gpus))
        return max(gpus, key=lambda gpu: self._needed_on(gpu, tokens, sequences, "high")) if len(gpus) > 1 else 0

    def parts_bytes(self, tokens: int, sequences: int, end: str, section: str | None = None) -> int:
        """Bytes of the parts of a section, or of all, on the fullest GPU at one end of their ranges."""
        gpu = self.fullest(tokens, sequences) if self.gpus_differ else 0
        return self._parts_on(gpu, tokens, sequences, end, section)

    def left(self, tokens: int, sequences: int, end: str) -> int:
        """Bytes that the fullest GPU has left for the cache."""
        return self.usable[ENDS.index(end)] - self.parts_bytes(tokens, sequences, _OPPOSITE[end])

    def needed_bytes(self, tokens: int, sequences: int) -> int:
        """Bytes of the cache on the fullest GPU."""
        if self.gpus_differ:
            return self.curve.bytes_on(self.fullest(tokens, sequences), tokens, self.replica(sequences))
        return self.curve.needed_bytes(tokens, self.replica(sequences))

    def holds(self, tokens: int, sequences: int, end: str = "expected") -> bool:
        """Whether so many sequences of so many tokens fit at one end of the estimates."""
        if self.most_sequences is not None and sequences > self.most_sequences:
            return False
        if self.most_tokens is not None and tokens > self.most_tokens:
            return False
        if self.gpus_differ:
            gpus = range(len(self.curve.gpus))
            held = all(self._needed_on(gpu, tokens, sequences, _OPPOSITE[end]) <= self.usable[ENDS.index(end)] for gpu in gpus)
            return held and self._host_holds(tokens, sequences, end)
        left = self.left(tokens, sequences, end)
        lengths = [tokens, *(crest for period in self.crests if (crest := tokens // period * period - 1) > 0)]
        most = max(self.needed_bytes(length, sequences) for length in lengths)
        held = left >= 0 and (left // self.block_bytes - self.null_blocks) * self.block_bytes >= most
        return held and self._host_holds(tokens, sequences, end)

    def _host_holds(self, tokens: int, sequences: int, end: str) -> bool:
        """Whether the host has the memory that is needed there."""
        if self.host is None:
            return True
        needed = self._parts_on(0, tokens, sequences, _OPPOSITE[end], HOST)
        if self.host.shared:
            gpus = range(len(self.curve.gpus))
            needed += sum(self._needed_on(gpu, tokens, sequences, _OPPOSITE[end]) for gpu in gpus)
        return needed <= self.host.room[ENDS.index(end)]

    def _needed_on(self, gpu: int, tokens: int, sequences: int, end: str) -> int:
        cache = self.curve.bytes_on(gpu, tokens, self.replica(sequences))
        return cache + self._parts_on(gpu, tokens, sequences, end, None)

    def _parts_on(self, gpu: int, tokens: int, sequences: int, end: str, section: str | None) -> int:
        own = self.replica(sequences)
        parts = (part for part in self.parts if (part.section != HOST if section is None else part.section == section))
        return sum(part.on(gpu, end).at(tokens, own) for part in parts)
