"""The memory of a GPU as a function of length and number of sequences, in one normal form.

:meth:`~hwcalc.engines.deployment.Occupancy.form` returns it for one deployment (a model, formats, layout and GPU); then ``form.holds(tokens, sequences)`` is
the verdict of the plan at every length and batch, and ``form.at(...).needed_bytes`` its bytes, without another plan. A page evaluates the same
form in a browser. A sweep calls it with arrays of lengths and of numbers of sequences, which every function here takes in place of integers
(:mod:`hwcalc.formulas.arithmetic`): nobody repeats a rule. Who asks more than one thing of the same lengths and sequences asks
:meth:`MemoryForm.at`. An engine whose rule does not fit gives no form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from hwcalc.formulas.arithmetic import ceiled, either, floored, larger, largest, mapped, smaller, some
from hwcalc.formulas.record import Record
from hwcalc.formulas.stairs import Stair, stairs_at, together

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hwcalc.engines.memory import BudgetPart
    from hwcalc.formulas import LayerNumbers


class Term(Record):
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
        """Bytes of the layers of this term for one sequence."""
        return self.count * self.unit_bytes * self.units(tokens)


class _Sum(Struct, frozen=True):
    """Some terms: those of one sum of stairs as a single sum, in bytes, and the others."""

    stairs: tuple[Stair, ...]
    others: tuple[Term, ...]

    @classmethod
    def of(cls, terms: Iterable[Term]) -> _Sum:
        listed = tuple(terms)
        single = ((term.count * term.unit_bytes, term.stairs[0]) for term in listed if len(term.stairs) == 1)
        return cls(together(single), tuple(term for term in listed if len(term.stairs) > 1))

    def bytes(self, tokens: int) -> int:
        """Bytes of all terms for one sequence."""
        size = stairs_at(self.stairs, tokens)
        return size + sum(term.bytes(tokens) for term in self.others) if self.others else size


class Curve(Record):
    """The bytes of the cache. ``gpus`` has a sum of terms for each GPU that differs, of which the largest counts; ``total`` is the sum of all GPUs.

    ``once_bytes`` and ``total_once_bytes`` are there once, however many sequences there are. Sequences of more than ``most_tokens``, and
    more than ``most_sequences`` of them, are refused. An engine with another rule has a subclass.
    """

    gpus: tuple[tuple[Term, ...], ...]
    total: tuple[Term, ...]
    once_bytes: int = 0
    total_once_bytes: int = 0
    most_tokens: int | None = None
    most_sequences: int | None = None

    @cached_property
    def _on_gpus(self) -> tuple[_Sum, ...]:
        return tuple(dict.fromkeys(map(_Sum.of, self.gpus)))

    @cached_property
    def _in_all(self) -> _Sum:
        return _Sum.of(self.total)

    @cached_property
    def _by_gpu(self) -> tuple[_Sum, ...]:
        return tuple(map(_Sum.of, self.gpus))

    @cached_property
    def step_tokens(self) -> int:
        """Every how many tokens a GPU takes more, at most: the tokens of the largest block of which a sequence takes ever more."""
        stairs = [stair for terms in self.gpus for term in terms for sums in term.stairs for stair in sums]
        if any(stair.times < 0 for stair in stairs):
            return 1
        return max((stair.per for stair in stairs if stair.most is None), default=1)

    def bytes_on(self, gpu: int, tokens: int, sequences: int) -> int:
        """Bytes on one of the GPUs, for so many sequences of a replica."""
        return sequences * self._by_gpu[gpu].bytes(tokens) + self.once_bytes

    def needed_bytes(self, tokens: int, sequences: int) -> int:
        """Bytes on the fullest GPU, for so many sequences of a replica."""
        sums = self._on_gpus
        most: int = sums[0].bytes(tokens) if len(sums) == 1 else largest(one.bytes(tokens) for one in sums)
        return sequences * most + self.once_bytes

    def total_bytes(self, tokens: int, sequences: int) -> int:
        """Bytes on all GPUs, for all sequences."""
        return sequences * self._in_all.bytes(tokens) + self.total_once_bytes


class StagedCurve(Curve):
    """A cache in which what is there once is not the same on each GPU: ``once_on`` are those bytes in place of ``once_bytes``."""

    once_on: tuple[int, ...]

    def bytes_on(self, gpu: int, tokens: int, sequences: int) -> int:
        return sequences * self._by_gpu[gpu].bytes(tokens) + self.once_on[gpu]

    def needed_bytes(self, tokens: int, sequences: int) -> int:
        most: int = largest(self.bytes_on(gpu, tokens, sequences) for gpu in range(len(self.gpus)))
        return most


class AskedCurve(Curve):
    """A cache that is no sum of stairs, but proportional to the number of sequences: the engine computes it once for each length.

    ``one`` is a sequence of a replica on the fullest GPU, and ``whole`` a sequence on all GPUs.
    """

    gpus: tuple[tuple[Term, ...], ...] = ((),)
    total: tuple[Term, ...] = ()
    one: Callable[[int], int]
    whole: Callable[[int], int]

    def bytes_on(self, gpu: int, tokens: int, sequences: int) -> int:
        return self.needed_bytes(tokens, sequences)

    def needed_bytes(self, tokens: int, sequences: int) -> int:
        size: int = sequences * mapped(self.one, tokens) + self.once_bytes
        return size

    def total_bytes(self, tokens: int, sequences: int) -> int:
        size: int = sequences * mapped(self.whole, tokens) + self.total_once_bytes
        return size


Factor = Literal["passed", "sequences", "each", "alone"]
"""Tokens that are processed at once; sequences; of the former those of one sequence; 1 if there is one sequence, 0 if more."""


class Product(Struct, frozen=True):
    """``bytes x stairs``, times the factors. Without any stairs that is ``bytes`` times the factors."""

    bytes: int
    factors: tuple[Factor, ...] = ()
    stairs: tuple[Stair, ...] = ()

    def at(self, tokens: int, factors: Mapping[Factor, int]) -> int:
        """The value of the product for sequences of ``tokens`` tokens, with these values of its factors."""
        value = self.bytes * (stairs_at(self.stairs, tokens) if self.stairs else 1)
        for name in self.factors:
            value = value * factors[name]  # not in place: an array would keep its shape
        return value


class Moment(Struct, frozen=True):
    """Bytes at one moment of a pass: ``share`` times the sum of the products, a single multiplication in floating point."""

    share: float
    products: tuple[Product, ...]


class Fullest(Record):
    """The largest of the moments, rounded ``up`` or down to whole bytes. At most ``chunk`` tokens are processed at once."""

    moments: tuple[Moment, ...]
    chunk: int | None
    up: bool

    def at(self, tokens: int, sequences: int) -> int:
        """Bytes for so many sequences of a replica."""
        passed = sequences * tokens if self.chunk is None else smaller(sequences * tokens, self.chunk)
        factors: dict[Factor, int] = {
            "passed": passed,
            "sequences": sequences,
            "each": -(-passed // sequences),
            "alone": (sequences == 1) * 1,
        }
        most = largest(moment.share * sum(product.at(tokens, factors) for product in moment.products) for moment in self.moments)
        rounded: int = ceiled(most) if self.up else floored(most)
        return rounded


def passed_tokens(tokens: int, sequences: int, chunk: int | None) -> int:
    """Tokens of one forward pass: all, or at most ``chunk`` of them, but one for each sequence."""
    passed = sequences * tokens
    most: int = passed if chunk is None else smaller(passed, larger(sequences, chunk))
    return most


class Pass(Record):
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


class Constant(Record):
    """The same at every length and for every number of sequences."""

    bytes: int

    @classmethod
    def of(cls, size: int) -> Constant:
        """A constant of ``size`` bytes."""
        return cls(bytes=size)

    def at(self, tokens: int, sequences: int) -> int:
        """Bytes for so many sequences of a replica."""
        return self.bytes


class Largest(Record):
    """The largest of some terms, for all sequences: a tensor that exists twice while it grows."""

    terms: tuple[Term, ...]

    def at(self, tokens: int, sequences: int) -> int:
        """Bytes for so many sequences of a replica."""
        most: int = largest(term.bytes(tokens) for term in self.terms) if self.terms else 0
        return sequences * most


class Measured(Record):
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


class Early(Record):
    """What a function says of the lengths ``before`` one, and the rule that holds from that one on."""

    before: int
    early: Callable[[int], int]
    rule: Amount

    @classmethod
    def of(cls, first: Sequence[int], rule: Amount) -> Early:
        """These bytes at the first lengths, from one token on, and then the rule."""
        return cls(before=len(first) + 1, early=lambda tokens: first[tokens - 1], rule=rule)

    @classmethod
    def summed(cls, amounts: Iterable[Amount]) -> tuple[Amount, ...]:
        """Amounts with the same sum: those that are constant from the same length on are one."""
        alike: dict[int, list[Early]] = {}
        others: list[Amount] = []
        for amount in amounts:
            if isinstance(amount, Early) and isinstance(amount.rule, Constant):
                alike.setdefault(amount.before, []).append(amount)
            else:
                others.append(amount)
        return (*others, *(cls._sum(before, some) for before, some in alike.items()))

    @classmethod
    def _sum(cls, before: int, some: list[Early]) -> Early:
        rule = Constant.of(sum(one.rule.at(before, 1) for one in some))
        return cls(before=before, early=lambda tokens: sum(one.early(tokens) for one in some), rule=rule)

    @property
    def first(self) -> tuple[int, ...]:
        """The bytes at the first lengths, from one token on."""
        return tuple(map(self.early, range(1, self.before)))

    def at(self, tokens: int, sequences: int) -> int:
        """Bytes for so many sequences of a replica."""
        if isinstance(tokens, int):
            return self.early(tokens) if 1 <= tokens < self.before else self.rule.at(tokens, sequences)
        is_early = tokens < self.before
        if not some(is_early):
            return self.rule.at(tokens, sequences)
        early = mapped(lambda length: self.early(length) if length < self.before else 0, smaller(tokens, self.before))
        size: int = either(is_early, early, self.rule.at(tokens, sequences))
        return size


class PerGpu(Record):
    """An amount that differs by GPU, in the order of the GPUs of a :class:`Curve`: each GPU runs another part of the model."""

    amounts: tuple[Amount, ...]

    def at(self, tokens: int, sequences: int) -> int:
        """The largest of the amounts, in bytes."""
        most: int = largest(amount.at(tokens, sequences) for amount in self.amounts)
        return most


class OwnAmount:
    """A rule of one engine, which nobody else knows."""

    def at(self, tokens: int, sequences: int) -> int:
        """Bytes for so many sequences of a replica."""
        raise NotImplementedError


class Asked(OwnAmount, Record):
    """Bytes that are proportional to the number of sequences: the engine's ``rule`` computes those of a sequence once for each length."""

    rule: Callable[[int], int]
    alone: bool = False
    """True if ``rule`` computes the bytes of all sequences together."""

    def at(self, tokens: int, sequences: int) -> int:
        size: int = mapped(self.rule, tokens)
        return size if self.alone else sequences * size


DRAWN: Final = (Constant, Pass, Largest, Fullest, PerGpu, Measured, Early)
"""Those that the page of ``kvplan explore`` can evaluate."""
Amount = Constant | Pass | Largest | Fullest | PerGpu | Measured | Early | OwnAmount


ENDS: Final = ("low", "expected", "high")
HOST: Final = "host"
"""The section of parts that lie in the memory of the host."""
OPPOSITE: Final = {"low": "high", "expected": "expected", "high": "low"}
"""An end of what there is -> that of what is needed. The low end takes every part at its high end."""


class PartForm(Record):
    """A term of the memory equation, as :class:`~hwcalc.engines.memory.BudgetPart`."""

    name: str
    section: str
    low: Amount
    expected: Amount
    high: Amount
    of_rest: bool = False
    """True if it is a share of what the other parts leave: then it follows from whatever any of them follows from."""

    @classmethod
    def constant(cls, part: BudgetPart) -> PartForm:
        """A part that follows from neither length nor number of sequences."""
        low, expected, high = map(Constant.of, (part.low, part.expected, part.high))
        return cls(name=part.name, section=part.section.value, low=low, expected=expected, high=high)

    @property
    def amounts(self) -> tuple[Amount, Amount, Amount]:
        """Low, expected and high."""
        return self.low, self.expected, self.high

    def by(self, change: Callable[[Amount], Amount]) -> PartForm:
        """The part with another amount in place of each."""
        low, expected, high = map(change, self.amounts)
        return replace(self, low=low, expected=expected, high=high)

    def on(self, gpu: int, end: str) -> Amount:
        """The amount at an end of the range on one of the GPUs of the curve."""
        amount: Amount = getattr(self, end)
        return amount.amounts[gpu] if isinstance(amount, PerGpu) else amount


class Blocks(Record):
    """What a pool of blocks holds of a budget: whole blocks of ``bytes``, without those that no sequence gets.

    17 bytes in blocks of 4, of which one is nobody's, hold 12.
    """

    bytes: int = 1
    null: int = 0

    def holds(self, budget_bytes: int, needed_bytes: int) -> bool:
        """True if so many bytes are left of a budget for the cache."""
        return (budget_bytes // self.bytes - self.null) * self.bytes >= needed_bytes


class Pool(Protocol):
    """What an engine makes of a budget, by a rule of its own."""

    def hold(self, budget_bytes: int, tokens: int, sequences: int) -> bool:
        """True if so many sequences of a replica fit into the bytes that a GPU has left for the cache."""


class HostRoom(Record):
    """Memory of the host that must be there besides that of the GPUs: for parts with the section :data:`HOST`, which lie on no GPU.

    ``room`` is the bytes that the host has: low, expected and high. If they are ``shared``, the GPUs take what they need of them as well.
    """

    room: tuple[int, int, int]
    shared: bool = False


class MemoryForm(Record):
    """The memory equation of one deployment, at every length and number of sequences.

    ``usable`` is what may be used of a GPU: low, expected and high. A cache fits if the ``blocks`` that are left hold it, or the ``pools``
    of an engine with a rule of its own. At most ``most_sequences`` run at once, because of ``limited_by``. The form holds from
    ``least_tokens`` on, and ``model_tokens`` are those that the model is made for. Where the user gives the budget, all of it is usable and
    there are no parts.
    """

    curve: Curve
    parts: tuple[PartForm, ...]
    usable: tuple[int, int, int]
    total_bytes: int
    blocks: Blocks = Blocks()
    pools: Pool | None = None
    most_sequences: int | None = None
    limited_by: str | None = None
    dp: int = 1
    least_tokens: int = 1
    model_tokens: int | None = None
    host: HostRoom | None = None
    in_blocks: bool = False
    """True if the ``pools`` say no more than the ``blocks``, which the page of ``kvplan explore`` can evaluate."""
    crests: tuple[int, ...] = ()
    """Periods: a length just below a multiple of one may take more than the length itself (:attr:`~hwcalc.engines.subjects.Traits.periods`)."""

    @property
    def refuses_more(self) -> bool:
        """True if the engine says so in place of a verdict where there are more sequences than may run."""
        return self.curve.most_sequences is not None

    @cached_property
    def drawable(self) -> bool:
        """True if the page of ``kvplan explore`` can evaluate it: it knows the classes here alone, and no rule of a pool."""
        ruled = self.pools is not None and not self.in_blocks
        return not ruled and type(self.curve) is Curve and all(issubclass(kind, DRAWN) for kind in self.amount_classes)

    @cached_property
    def amount_classes(self) -> frozenset[type[Amount]]:
        """The classes of the amounts of all parts."""
        return frozenset(type(amount) for part in self.parts for amount in (part.low, part.expected, part.high))

    def replica(self, sequences: int) -> int:
        """Sequences of the fullest replica."""
        return sequences if self.dp == 1 else -(-sequences // self.dp)

    @cached_property
    def gpus_differ(self) -> bool:
        """True if each GPU of the curve has parts of its own."""
        return any(isinstance(part.high, PerGpu) for part in self.parts)

    @cached_property
    def _sums(self) -> dict[tuple[int, str, str | None], tuple[int, tuple[Amount, ...]]]:
        return {}

    def sum_on(self, gpu: int, end: str, section: str | None) -> tuple[int, tuple[Amount, ...]]:
        """The parts of a section (``None``: of all sections) on a GPU: the sum of the constant bytes, and the amounts that change with the load."""
        key = (gpu, end, section)
        if key not in self._sums:
            parts = (part for part in self.parts if (part.section != HOST if section is None else part.section == section))
            amounts = [part.on(gpu, end) for part in parts]
            constant = sum(amount.bytes for amount in amounts if isinstance(amount, Constant))
            self._sums[key] = constant, Early.summed(amount for amount in amounts if not isinstance(amount, Constant))
        return self._sums[key]

    def is_full(self, end: str) -> bool:
        """True if the parts that are the same under every load leave nothing at this end of the estimates."""
        gpus = range(len(self.curve.gpus)) if self.gpus_differ else range(1)
        return any(self.sum_on(gpu, OPPOSITE[end], None)[0] > self.usable[ENDS.index(end)] for gpu in gpus)

    def at(self, tokens: int, sequences: int) -> Memory:
        """The memory of ``sequences`` sequences of ``tokens`` tokens each, with all figures that follow from it."""
        return Memory(self, tokens, sequences)

    def holds(self, tokens: int, sequences: int, end: str = "expected") -> bool:
        """True if so many sequences of so many tokens fit at one end of the estimates."""
        return self.at(tokens, sequences).holds(end)


class Memory:
    """What a form says of some lengths and numbers of sequences, place by place. What several answers need is worked out once."""

    def __init__(self, form: MemoryForm, tokens: int, sequences: int) -> None:
        self.form = form
        self.tokens = tokens
        self.sequences = sequences
        self.replica_sequences = form.replica(sequences)
        self._known: dict[int, int] = {}

    @cached_property
    def needed_bytes(self) -> int:
        """Bytes of the cache on the fullest GPU."""
        if self.form.gpus_differ:
            return self._on_fullest(self._caches)
        return self.form.curve.needed_bytes(self.tokens, self.replica_sequences)

    @property
    def total_bytes(self) -> int:
        """Bytes of the cache on all GPUs, for all sequences."""
        return self.form.curve.total_bytes(self.tokens, self.sequences)

    def parts_bytes(self, end: str, section: str | None = None) -> int:
        """Bytes of the parts of a section, or of all, on the fullest GPU at one end of their ranges."""
        if not self.form.gpus_differ:
            return self._parts_on(0, end, section)
        return self._on_fullest([self._parts_on(gpu, end, section) for gpu in range(len(self.form.curve.gpus))])

    def left(self, end: str) -> int:
        """Bytes that the fullest GPU has left for the cache."""
        return self.form.usable[ENDS.index(end)] - self.parts_bytes(OPPOSITE[end])

    def holds(self, end: str = "expected") -> bool:
        """True if they fit at one end of the estimates."""
        held = self.allowed
        if held is False:
            return False
        if self.form.gpus_differ:
            usable, opposite = self.form.usable[ENDS.index(end)], OPPOSITE[end]
            for gpu in range(len(self._caches)):
                held = held & (self._needed_on(gpu, opposite) <= usable)
        else:
            held = held & self._pool_holds(end)
        if self.form.host is not None:
            held = held & self._host_holds(self.form.host, end)
        return held

    @cached_property
    def devices_bytes(self) -> int | None:
        """Bytes of all GPUs and the host by the expected values; ``None`` for an engine that leaves nothing on the host."""
        if self.form.host is None:
            return None
        gpus = sum(self._needed_on(gpu, "expected") for gpu in range(len(self._caches)))
        return gpus + self._parts_on(0, "expected", HOST)

    @property
    def allowed(self) -> bool:
        """True if the engine runs so many sequences of so many tokens at once, however much memory there is."""
        form, allowed = self.form, True
        if form.most_sequences is not None:
            allowed = self.sequences <= form.most_sequences
        if form.curve.most_tokens is not None:
            allowed = allowed & (self.tokens <= form.curve.most_tokens)
        return allowed

    def _pool_holds(self, end: str) -> bool:
        """True if the pool or blocks of what is left hold the sequences, also at every length that they pass (``crests``)."""
        left, form = self.left(end), self.form
        if form.pools is not None:
            return (left >= 0) & form.pools.hold(left, self.tokens, self.replica_sequences)
        most = self._crest_bytes if form.crests else self.needed_bytes
        return (left >= 0) & form.blocks.holds(left, most)

    @cached_property
    def _crest_bytes(self) -> int:
        """The most bytes that the cache takes while the sequences grow to these lengths."""
        most = self.needed_bytes
        for period in self.form.crests:
            crest = self.tokens // period * period - 1
            most = larger(most, self.form.curve.needed_bytes(either(crest > 0, crest, self.tokens), self.replica_sequences))
        return most

    def _host_holds(self, host: HostRoom, end: str) -> bool:
        """True if the memory of the host holds what must lie there, at one end of the estimates."""
        opposite = OPPOSITE[end]
        needed = self._parts_on(0, opposite, HOST)
        if host.shared:
            needed = needed + sum(self._needed_on(gpu, opposite) for gpu in range(len(self._caches)))
        return needed <= host.room[ENDS.index(end)]

    @cached_property
    def _caches(self) -> list[int]:
        """Bytes of the cache on each GPU that differs."""
        curve = self.form.curve
        return [curve.bytes_on(gpu, self.tokens, self.replica_sequences) for gpu in range(len(curve.gpus))]

    def _on_fullest(self, amounts: list[int]) -> int:
        """That of the GPU of which the answer speaks: the first one that needs most at the high end of the parts."""
        amount, most = amounts[0], self._needed_on(0, "high")
        for gpu in range(1, len(amounts)):
            needed = self._needed_on(gpu, "high")
            amount = either(needed > most, amounts[gpu], amount)
            most = larger(most, needed)
        return amount

    def _needed_on(self, gpu: int, end: str) -> int:
        return self._caches[gpu] + self._parts_on(gpu, end, None)

    def _parts_on(self, gpu: int, end: str, section: str | None) -> int:
        size, others = self.form.sum_on(gpu, end, section)
        for amount in others:
            size = size + self._amount(amount)  # not in place: an array would keep its shape
        return size

    def _amount(self, amount: Amount) -> int:
        key = id(amount)
        if key not in self._known:
            self._known[key] = amount.at(self.tokens, self.replica_sequences)
        return self._known[key]
