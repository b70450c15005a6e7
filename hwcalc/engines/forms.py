"""The memory of a GPU as a function of length and number of sequences, in one normal form.

:meth:`Engine.form` gives it for one family of requests (one model, formats, layout and GPU); then ``form.holds(tokens, sequences)`` is
the verdict of the plan at every length and batch, and ``form.needed_bytes(...)`` its bytes, without another plan. A page evaluates the same
form in a browser. A sweep calls it with arrays of lengths and of numbers of sequences, which every function here takes in place of integers
(:mod:`hwcalc.formulas.arithmetic`): nobody repeats a rule. Who asks more than one thing of the same lengths and sequences asks
:meth:`MemoryForm.at`. An engine whose rule does not fit gives no form.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property
from typing import TYPE_CHECKING, Final, Protocol

from msgspec.structs import replace

from hwcalc.engines.amounts import (
    DRAWN,
    Amount,
    Asked,
    Constant,
    Early,
    Largest,
    Measured,
    OwnAmount,
    Pass,
    PerGpu,
    passed_tokens,
)
from hwcalc.engines.curves import AskedCurve, Curve, Term
from hwcalc.engines.moments import Fullest
from hwcalc.formulas.arithmetic import either, larger, mapped
from hwcalc.formulas.record import Record

if TYPE_CHECKING:
    from hwcalc.engines.budget import BudgetPart

__all__ = [
    "ENDS",
    "HOST",
    "OPPOSITE",
    "Amount",
    "Asked",
    "AskedCurve",
    "Blocks",
    "Constant",
    "Curve",
    "Early",
    "Fullest",
    "HostRoom",
    "Largest",
    "Measured",
    "Memory",
    "MemoryForm",
    "OwnAmount",
    "PartForm",
    "Pass",
    "PerGpu",
    "Pool",
    "Pools",
    "Term",
    "passed_tokens",
]

ENDS: Final = ("low", "expected", "high")
HOST: Final = "host"
"""The section of parts that lie in the memory of the host."""
OPPOSITE: Final = {"low": "high", "expected": "expected", "high": "low"}
"""An end of what there is -> that of what is needed. The low end takes every part at its high end."""


class PartForm(Record):
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

    def hold(self, budget_bytes: int) -> int:
        """The bytes that sequences may take of so many."""
        return (budget_bytes // self.bytes - self.null) * self.bytes


class Pool(Protocol):
    """What an engine makes of a budget, by a rule of its own."""

    def hold(self, budget_bytes: int, tokens: int, sequences: int) -> bool:
        """Whether so many sequences of a replica fit into the bytes that a GPU has left for the cache."""


class Pools(Record):
    """Several pools that are made of one budget, by a rule of the engine.

    ``demands`` are the units that one sequence takes of each pool, as terms, and ``capacities`` says how many units each has by the bytes
    of a GPU that are left for the cache (none if there are fewer than 0). Sequences fit if every pool holds them.
    """

    demands: tuple[tuple[Term, ...], ...]
    capacities: Callable[[int], tuple[int, ...]]

    def hold(self, budget_bytes: int, tokens: int, sequences: int) -> bool:
        """Whether so many sequences of a replica fit."""
        capacities, held = cache(self.capacities), True

        def in_pool(pool: int, taken: int) -> bool:
            holds: bool = taken <= mapped(lambda size: capacities(size)[pool], budget_bytes)
            return holds

        for pool, terms in enumerate(self.demands):
            held = held & in_pool(pool, sequences * sum(term.bytes(tokens) for term in terms))
        return held


class HostRoom(Record):
    """Memory of the host that must be there beside the GPUs: for parts with the section :data:`HOST`, which lie on no GPU.

    ``room`` is low, expected and high. If it is ``shared``, the GPUs take what they need of it as well.
    """

    room: tuple[int, int, int]
    shared: bool = False


class MemoryForm(Record):
    """The memory equation of one family of requests.

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
    crests: tuple[int, ...] = ()
    """Periods: a length just below a multiple of one may take more than the length itself (``Engine.periods``)."""

    @property
    def refuses_more(self) -> bool:
        """Whether the engine says so in place of a verdict where there are more sequences than may run."""
        return self.curve.most_sequences is not None

    @cached_property
    def drawable(self) -> bool:
        """Whether the page of ``kvplan explore`` can evaluate it: it knows the classes here alone, and no rule of a pool."""
        amounts = (amount for part in self.parts for amount in part.amounts)
        return self.pools is None and type(self.curve) is Curve and all(isinstance(one, DRAWN) for one in amounts)

    def replica(self, sequences: int) -> int:
        """Sequences of the fullest replica."""
        return sequences if self.dp == 1 else -(-sequences // self.dp)

    @cached_property
    def gpus_differ(self) -> bool:
        """Whether each GPU of the curve has parts of its own."""
        return any(isinstance(part.high, PerGpu) for part in self.parts)

    @cached_property
    def _sums(self) -> dict[tuple[int, str, str | None], tuple[int, tuple[Amount, ...]]]:
        return {}

    def sum_on(self, gpu: int, end: str, section: str | None) -> tuple[int, tuple[Amount, ...]]:
        """The parts of a section, or of all on a GPU: bytes that are always the same, and the other amounts."""
        key = (gpu, end, section)
        if key not in self._sums:
            parts = (part for part in self.parts if (part.section != HOST if section is None else part.section == section))
            amounts = [part.on(gpu, end) for part in parts]
            constant = sum(amount.bytes for amount in amounts if isinstance(amount, Constant))
            self._sums[key] = constant, tuple(amount for amount in amounts if not isinstance(amount, Constant))
        return self._sums[key]

    def at(self, tokens: int, sequences: int) -> Memory:
        """Everything about so many sequences of so many tokens."""
        return Memory(self, tokens, sequences)

    def parts_bytes(self, tokens: int, sequences: int, end: str, section: str | None = None) -> int:
        """Bytes of the parts of a section, or of all, on the fullest GPU at one end of their ranges."""
        return self.at(tokens, sequences).parts_bytes(end, section)

    def left(self, tokens: int, sequences: int, end: str) -> int:
        """Bytes that the fullest GPU has left for the cache."""
        return self.at(tokens, sequences).left(end)

    def needed_bytes(self, tokens: int, sequences: int) -> int:
        """Bytes of the cache on the fullest GPU."""
        return self.at(tokens, sequences).needed_bytes

    def holds(self, tokens: int, sequences: int, end: str = "expected") -> bool:
        """Whether so many sequences of so many tokens fit at one end of the estimates."""
        return self.at(tokens, sequences).holds(end)

    def devices_bytes(self, tokens: int, sequences: int) -> int | None:
        """Bytes of all GPUs and the host by the expected values; ``None`` for an engine that leaves nothing on the host."""
        return self.at(tokens, sequences).devices_bytes


class Memory:
    """What a form says of some lengths and numbers of sequences, place by place. What several answers need is worked out once."""

    def __init__(self, form: MemoryForm, tokens: int, sequences: int) -> None:
        self.form = form
        self.tokens = tokens
        self.sequences = sequences
        self._own = form.replica(sequences)
        self._known: dict[int, int] = {}

    @cached_property
    def needed_bytes(self) -> int:
        """Bytes of the cache on the fullest GPU."""
        if not self.form.gpus_differ:
            return self.form.curve.needed_bytes(self.tokens, self._own)
        return self._on_fullest(self._caches)

    @cached_property
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
        """Whether they fit at one end of the estimates."""
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

    @cached_property
    def allowed(self) -> bool:
        """Whether the engine runs so many sequences of so many tokens at once, however much memory there is."""
        form, allowed = self.form, True
        if form.most_sequences is not None:
            allowed = self.sequences <= form.most_sequences
        if form.curve.most_tokens is not None:
            allowed = allowed & (self.tokens <= form.curve.most_tokens)
        return allowed

    def _pool_holds(self, end: str) -> bool:
        left, form = self.left(end), self.form
        if form.pools is not None:
            return (left >= 0) & form.pools.hold(left, self.tokens, self._own)
        return (left >= 0) & (form.blocks.hold(left) >= self._crest_bytes)

    @cached_property
    def _crest_bytes(self) -> int:
        """The most that the cache takes on its way to these lengths."""
        most = self.needed_bytes
        for period in self.form.crests:
            crest = self.tokens // period * period - 1
            most = larger(most, self.form.curve.needed_bytes(either(crest > 0, crest, self.tokens), self._own))
        return most

    def _host_holds(self, host: HostRoom, end: str) -> bool:
        """Whether the host has the memory that is needed there."""
        opposite = OPPOSITE[end]
        needed = self._parts_on(0, opposite, HOST)
        if host.shared:
            needed = needed + sum(self._needed_on(gpu, opposite) for gpu in range(len(self._caches)))
        return needed <= host.room[ENDS.index(end)]

    @cached_property
    def _caches(self) -> list[int]:
        """Bytes of the cache on each GPU that differs."""
        curve = self.form.curve
        return [curve.bytes_on(gpu, self.tokens, self._own) for gpu in range(len(curve.gpus))]

    def _on_fullest(self, amounts: list[int]) -> int:
        """That of the GPU of which the answer speaks: the first one that needs most at the high end of the parts."""
        found, most = amounts[0], self._needed_on(0, "high")
        for gpu in range(1, len(amounts)):
            needed = self._needed_on(gpu, "high")
            found = either(needed > most, amounts[gpu], found)
            most = larger(most, needed)
        return found

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
            self._known[key] = amount.at(self.tokens, self._own)
        return self._known[key]
