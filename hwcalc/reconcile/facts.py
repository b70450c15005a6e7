"""The facts that a log states, the dialects that read them, and the rows that compare them with a plan.

A fact has its line, its process, and for a number the range that rounding leaves open. A row is a figure twice: as planned, and as the log
states it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from hwcalc.formulas.record import Record
from hwcalc.masking import masked
from hwcalc.model import Note
from hwcalc.profiles.engines import planned_version
from hwcalc.reconcile.prometheus import Sample, sample
from hwcalc.units import GIB, KIB, MIB

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.memory import Budget, BudgetPart
    from hwcalc.engines.pool import PoolInfo
    from hwcalc.model import ModelSpec

T = TypeVar("T")
Number = int | float

BINARY: Final = {"GiB": GIB, "GB": GIB, "MiB": MIB, "MB": MIB, "KiB": KIB, "KB": KIB, "bytes": 1, "B": 1}
"""Unit -> bytes, for engines that divide by powers of 1,024 even if they print GB."""
_MOST_RANKS: Final = 4096
_LONGEST_RAW: Final = 160
_FEWEST_DECIMALS: Final = 2
_LARGEST: Final = 2**53
"""No number that a server states is larger."""
_RELEASE: Final = re.compile(r"v?([0-9]{1,4}(?:\.[0-9]{1,4}){1,2}+)(?!\.?dev)", re.ASCII)

# The text between a name and its number, and the number. Each part has a bounded length and cannot start with a character with
# which the part before may end, so that matching takes linear time.
_GAP = re.compile(r"[ :=~]{0,12}[(`'\"]?")
_DIGITS = re.compile(r"-?[0-9]{1,3}(?:[,_'\u00a0\u202f][0-9]{3}){1,6}(?![0-9])|-?[0-9]{1,18}(?![0-9])", re.ASCII)
_FRACTION = re.compile(r"\.([0-9]{1,20})", re.ASCII)
_UNIT = re.compile(r"[ ]{0,2}(GiB|GB|MiB|MB|KiB|KB|bytes|B|%|x|tokens)(?![A-Za-z])")


class PrintedNumber(Record):
    """A number in a text: its digits without the point, the number of decimals, its unit, and the position behind it."""

    digits: int
    decimals: int
    unit: str
    end: int

    @property
    def value(self) -> Number:
        """The number as it is printed."""
        return self.digits if self.decimals == 0 else self.digits / 10**self.decimals


class Fact(Record):
    """One thing that a log, or a server (then in no line), states. ``low`` and ``high`` are what it may have been before it was rounded; ``text`` is the beginning of the line,
    without secrets.
    """

    name: str
    value: Number | str
    low: Number | None
    high: Number | None
    unit: str
    rank: str | None
    line: int
    text: str


class Facts:
    """The last fact of each name and process. The number of facts is bounded, whatever the log says."""

    def __init__(self) -> None:
        self._facts: dict[tuple[str, str | None], Fact] = {}
        self._shown = ("", "")
        self.line = 0
        self.text = ""
        """The line that is read: what is added stands in it."""
        self.taken = 0
        """How many facts were added, also in place of others."""

    def add(
        self,
        name: str,
        value: Number | str,
        unit: str = "",
        *,
        low: Number | None = None,
        high: Number | None = None,
        rank: str | None = None,
    ) -> None:
        """Keep this fact in place of an older one, unless the older one is the same number with more digits."""
        self.taken += 1
        key = (name, rank)
        old = self._facts.pop(key, None)
        if old is None and len(self._facts) >= _MOST_RANKS:
            return
        if not isinstance(value, str):
            low, high = (value if low is None else low), (value if high is None else high)
        else:
            value = masked(value)
        # One line often states several facts: its secrets are looked for once.
        if self._shown[0] != self.text:
            self._shown = (self.text, masked(self.text))
        kept = self._shown[1]
        if rank is not None and any(word in self.text and word not in kept for word in rank.split()):
            rank = "***"  # what looks like the name of a process is a secret
        new = Fact(name=name, value=value, low=low, high=high, unit=unit, rank=rank, line=self.line, text=kept[:_LONGEST_RAW])
        if old is not None and old.low is not None and old.high is not None and low is not None and high is not None:
            finer = low <= old.low and old.high <= high and old.high - old.low < high - low
            new = old if finer else new
        self._facts[key] = new

    def add_bytes(self, name: str, printed: PrintedNumber | None, *, rank: str | None = None) -> None:
        """Add a size in a unit of :data:`BINARY`; a size without a known unit is left out."""
        if printed is not None and printed.unit in BINARY:
            value, low, high = byte_range(printed, BINARY[printed.unit])
            self.add(name, value, "bytes", low=low, high=high, rank=rank)

    def add_count(
        self, name: str, printed: PrintedNumber | None, unit: str = "", *, least: int = 1, rank: str | None = None
    ) -> None:
        """Add a whole number of at least ``least``; anything else is left out."""
        if printed is not None and printed.decimals == 0 and printed.digits >= least:
            self.add(name, printed.digits, unit, rank=rank)

    def add_whole(self, name: str, value: object, unit: str = "", *, least: int = 1, rank: str | None = None) -> None:
        """Add a value of a JSON document that is a whole number of at least ``least``; anything else is left out."""
        if type(value) is int and least <= value < _LARGEST:
            self.add(name, value, unit, rank=rank)

    def add_release(self, version: str) -> None:
        """Add the release that a version begins with: 0.11.1 in ``0.11.1rc2.dev141``. A build without tags, ``0.1.dev1``, has none."""
        release = _RELEASE.match(version)
        if release is not None and any(part.strip("0") for part in release[1].split(".")):
            self.add("version", ".".join(str(int(part)) for part in release[1].split(".")))

    def add_floor(self, name: str, count: int, step: int, *, rank: str | None = None) -> None:
        """Add a size that was rounded down to whole units of ``step`` bytes."""
        self.add(name, count * step, "bytes", low=count * step, high=(count + 1) * step - 1, rank=rank)

    def clear(self) -> None:
        """Forget all facts, because the engine has started again."""
        self._facts.clear()

    def forget(self, names: Iterable[str], rank: str | None) -> None:
        """Forget these facts of one process, because it states them anew."""
        for name in names:
            self._facts.pop((name, rank), None)

    def __len__(self) -> int:
        return len(self._facts)

    def __contains__(self, name: str) -> bool:
        return any(key[0] == name for key in self._facts)

    def of(self, name: str, rank: str | None) -> Fact | None:
        """The fact of this name and process."""
        return self._facts.get((name, rank))

    def all(self) -> tuple[Fact, ...]:
        """All facts, in the order of their lines."""
        return tuple(sorted(self._facts.values(), key=lambda fact: (fact.line, fact.name)))

    def ranks(self, name: str) -> tuple[Fact, ...]:
        """The facts of this name, one for each process, in the order of their lines."""
        return tuple(fact for fact in self.all() if fact.name == name)

    def last(self, name: str) -> Fact | None:
        """The fact of this name that was stated last."""
        facts = self.ranks(name)
        return facts[-1] if facts else None

    def smallest(self, name: str) -> Fact | None:
        """The smallest value of all processes: the smallest pool limits all of them."""
        return min(self.ranks(name), key=_size, default=None)

    def largest(self, name: str) -> Fact | None:
        """The largest value of all processes: a plan describes the fullest one."""
        return max(self.ranks(name), key=_size, default=None)

    def number(self, name: str) -> Number | None:
        """The last value, if it is a number."""
        fact = self.last(name)
        return None if fact is None or isinstance(fact.value, str) else fact.value

    def whole(self, name: str) -> int | None:
        """The last value as a whole number, if it is a number."""
        number = self.number(name)
        return None if number is None else int(number)

    def word(self, name: str) -> str | None:
        """The last value, if it is a word."""
        fact = self.last(name)
        return fact.value if fact is not None and isinstance(fact.value, str) else None


def without_none(**values: T | None) -> dict[str, T]:
    """The values that are not ``None``, by name."""
    return {name: value for name, value in values.items() if value is not None}


def _order(version: str) -> int:
    major, minor, *_ = (*planned_version(version), 0)
    return 1000 * major + minor


class Dialect:
    """Reads a log of one program line by line, and compares its figures with a plan.

    ``sought`` lists lines by which a log is recognised, ``states_version`` says whether it names the engine's version. ``facts`` is what
    the lines of the last start state, ``starts`` how often the engine started. Rules of an engine ask for more of the plan than any engine
    has, so that their parameter is that engine's class.
    """

    name: ClassVar[str]
    engine: ClassVar[str]
    sought: ClassVar[tuple[str, ...]]
    states_version: ClassVar[bool] = False
    longest: ClassVar[int] = 4096
    """Characters of a line that are read."""
    endpoints: ClassVar[tuple[str, ...]] = ()
    """The paths that a running server of the engine is asked for; none if it is not read."""
    metrics: ClassVar[str] = ""
    """What the names of its samples begin with in ``/metrics``."""
    gauges: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Sample -> fact. What every engine may say: ``running_requests``, ``waiting_requests``, ``usage_share``, ``used_tokens``."""
    pool_of: ClassVar[str] = ""
    """The label by which a sample names one of several pools."""
    limit: ClassVar[tuple[str, str]] = ("", "")
    """The fact that says how many requests run at once, and the engine's option for it."""

    def __init__(self) -> None:
        self.facts = Facts()
        self.source = "log"
        """What is read, in a word: ``log`` or ``server``."""
        self.starts = 1
        self.named_version: str | None = None
        """The version of the engine that the user names, which comes before that of the log."""

    def feed(self, number: int, text: str) -> None:
        """Read the line with this number."""
        self.facts.line, self.facts.text = number, text[: self.longest]
        if self.metrics and text.startswith(self.metrics):
            self.sampled(sample(self.facts.text))
        else:
            self.read(self.facts.text)

    def sampled(self, sample: Sample) -> None:
        """Add the fact of a sample of ``/metrics``, if it is one of :attr:`gauges`."""
        fact, value = self.gauges.get(sample.name), sample.value
        if fact is None or value is None:
            return
        unit = "share" if fact == "usage_share" else next((unit for unit in ("tokens", "blocks") if fact.endswith(unit)), "")
        if 0 <= value <= (1 if unit == "share" else _LARGEST):
            self.facts.add(fact, float(value) if unit == "share" else value, unit, rank=self.pool(sample))

    def pool(self, sample: Sample) -> str | None:
        """The name of the pool that a sample is about, where a server has several."""
        number = sample.labels.get(self.pool_of) or sample.labels.get(f"{self.pool_of}_index")
        return f"{self.pool_of} {number}" if number is not None and number.isdecimal() and len(number) < _LONGEST_NUMBER else None

    def answered(self, path: str, document: Any) -> None:
        """Add the facts of a JSON document that a server answers under one of its :attr:`endpoints`."""

    def read(self, text: str) -> None:
        """Add the facts that one line states."""
        raise NotImplementedError

    def restart(self) -> None:
        """The engine has started again: only its last start is compared."""
        self.facts.clear()
        self.starts += 1

    def inputs(self) -> tuple[dict[str, object], dict[str, str]]:
        """The keywords of a plan and the engine options that the log states."""
        raise NotImplementedError

    def nearest_version(self, said: str, known: Sequence[str]) -> str:
        """The known version that is the nearest to that of the log, whose rules are not known."""
        return min(known, key=lambda one: abs(_order(one) - _order(said)))

    def online_format(self) -> str | None:
        """The weight format into which the engine converts unquantized weights."""
        return None

    def stored_format(self) -> str | None:
        """The name of the format in which the weights are stored, as the engine spells it; ``None`` if the log states none."""
        return self.facts.word("quantization")

    def lacks_format(self, spec: ModelSpec) -> bool:
        """True if the files of the engine may be in any format, and neither what is read nor the model says which that is."""
        return False

    def compare(self, occupancy: Any, tolerance: float) -> tuple[list[Row], list[Note]]:
        """A row for every figure that the log and the plan have, and notes about what could not be compared."""
        raise NotImplementedError

    @property
    def without_budget(self) -> Note:
        """The note that counts are not compared, since nobody says of how many bytes they are."""
        message = f"The {self.source} does not say how many bytes the cache has: give them with --kv-memory, or name the GPU with --gpu."
        return Note(code="budget-unknown", message=message)

    def overheads(self, occupancy: Any) -> dict[str, int]:
        """The overheads that the log measured and a calibration saves: bytes by name; empty if it measures none."""
        return {}

    def batch_shape(self, occupancy: Any) -> tuple[int, int]:
        """Tokens of one forward pass and rows of logits, for which the overheads hold."""
        return occupancy.forward_tokens()[1], occupancy.request.replica_batch


_MIX: Final = re.compile(r"\b(I?Q[0-9]_?[A-Z0-9_]*|F16|BF16|F32|MXFP4 MoE|TQ[0-9]_0)(?: - (Small|Medium|Large))?")
_LETTER: Final = {"Small": "_s", "Medium": "_m", "Large": "_l", None: ""}


def mix_in_words(words: Any) -> str | None:
    """The format of weights in llama.cpp's words for a file (``llama_model_ftype_name``).

    >>> mix_in_words("llama 8B Q4_K - Medium"), mix_in_words("all F32"), mix_in_words("gpt-oss 20B MXFP4 MoE"), mix_in_words("llama")
    ('q4_k_m', 'fp32', 'mxfp4', None)
    """
    found = _MIX.search(words) if isinstance(words, str) else None
    if found is None:
        return None
    name = f"{found[1].lower()}{_LETTER[found[2]]}"
    return {"f16": "fp16", "f32": "fp32", "mxfp4 moe": "mxfp4"}.get(name, name)


def served_model(document: Any, *owners: str) -> Mapping[str, Any]:
    """The first model of an answer to ``/v1/models`` that one of these programs serves, and that is no adapter of another; empty without one."""
    match document:
        case {"data": [*cards]}:
            own = (one for one in cards if isinstance(one, dict) and one.get("owned_by") in owners and not one.get("parent"))
            return next(own, {})
    return {}


_LONGEST_NUMBER: Final = 6
_DEVICES: Final = (
    re.compile(r"\bdevice_name=([A-Za-z0-9][A-Za-z0-9_.-]{2,60}?)(?:,|\.json|['\"\]) ]|$)"),
    re.compile(r"\bDevice [0-9]{1,2}: ([A-Za-z][A-Za-z0-9 ()./-]{2,60}?), (?:compute capability|gfx|VMM)"),
    re.compile(
        r"\busing device [A-Za-z]{2,10}[0-9]{0,2} \(([A-Za-z][A-Za-z0-9 ()./-]{2,60}?)\) (?:\([0-9A-Fa-f:.]{1,20}\) |\(unknown id\) )?- "
    ),
)
"""A device by its driver's name: in the file names of tuned kernels, in ggml's list of CUDA devices, and in llama.cpp's line on each that it uses."""


def add_device(facts: Facts, text: str) -> None:
    """Add the name of the accelerator that this line states, as its driver spells it."""
    for pattern, sign in zip(_DEVICES, ("device_name=", "Device ", "using device "), strict=True):
        found = pattern.search(text) if sign in text else None
        if found is not None:
            name = found[1].replace("_", " ")
            other = facts.word("device") not in (None, name)
            facts.add("device", "unlike devices" if other else name)


def _size(fact: Fact) -> Number:
    return 0 if isinstance(fact.value, str) else fact.value


def number_after(text: str, name: str, start: int = 0) -> PrintedNumber | None:
    """The number behind the first ``name``, past blanks, ``:``, ``=`` or ``~`` and an opening bracket or quote.

    >>> number_after("GPU KV cache size: 1,043,072 tokens", "GPU KV cache size").value
    1043072
    >>> number_after("non_torch_memory=0.35GiB", "non_torch_memory")
    PrintedNumber(digits=35, decimals=2, unit='GiB', end=24)
    """
    place = text.find(name, start)
    return None if place < 0 else number_at(text, place + len(name))


def number_at(text: str, place: int) -> PrintedNumber | None:
    """The number at this position, past blanks, ``:``, ``=`` or ``~`` and an opening bracket or quote."""
    gap = _GAP.match(text, place)
    place = place if gap is None else gap.end()
    whole = _DIGITS.match(text, place)
    if whole is None:
        return None
    fraction = _FRACTION.match(text, whole.end())
    after = whole.end() if fraction is None else fraction.end()
    decimals = "" if fraction is None else fraction[1]
    unit = _UNIT.match(text, after)
    number = "".join(letter for letter in whole[0] if letter.isdigit())
    sign = -1 if whole[0].startswith("-") else 1
    return PrintedNumber(
        digits=sign * int(number + decimals),
        decimals=len(decimals),
        unit="" if unit is None else unit[1],
        end=after if unit is None else unit.end(),
    )


def number_before(text: str, name: str) -> PrintedNumber | None:
    """The number with its unit right before the first ``name``, such as ``1.4 GiB`` before ``for peak activation``.

    >>> number_before("Actual usage is 8.8 GiB for weight, 1.4 GiB for peak activation", " for peak activation").value
    1.4
    """
    place = text.find(name)
    if place < 0:
        return None
    words = text[max(0, place - 40) : place].replace("(", " ").split()
    for first in (-1, -2):
        if len(words) >= -first:
            printed = number_at(" ".join(words[first:]), 0)
            if printed is not None:
                return printed
    return None


def byte_range(printed: PrintedNumber, factor: int) -> tuple[int, int, int]:
    """A printed size in bytes, and the least and most bytes that are printed in the same way.

    Engines print two decimals and may drop zeros: 0.4 is at least 0.395 and at most 0.405, times 2^30 424,128,020.5 and 434,865,438.7.

    >>> byte_range(PrintedNumber(digits=4, decimals=1, unit="GiB", end=0), 2**30)[1:]
    (424128021, 434865438)
    """
    scale = 10**printed.decimals
    value = (2 * printed.digits * factor + scale) // (2 * scale)
    if factor == 1:
        return value, value, value
    fine = 10 ** max(printed.decimals, _FEWEST_DECIMALS)
    steps = printed.digits * (fine // scale)
    # Half a step down and up: (2 x steps +- 1) / (2 x fine) units.
    low, high = -(-(2 * steps - 1) * factor // (2 * fine)), (2 * steps + 1) * factor // (2 * fine)
    return value, min(low, value), max(value, high)


class Range(Record):
    """A prediction: the expected value, the least and the most."""

    low: Number
    expected: Number
    high: Number


class Row(Record):
    """A figure of the log beside the plan's.

    ``low`` to ``high`` is the range of the prediction: of an estimate its own, of an exact rule what the rounding of the log's budget
    leaves open. ``reported_low`` to ``reported_high`` is what the log's figure may have been before it was rounded. ``difference`` is
    reported minus predicted and ``percent`` that of the prediction; ``distance_percent`` is how far the two ranges lie apart, 0 where
    they meet, and ``tolerance`` the share that they may, 0 for a figure that is exact. ``within`` is ``None`` for a figure that cannot be
    judged, because the prediction rests on something that neither the log nor the user states; ``needs`` is the option that states it. ``definition`` is what the prediction is (``exact``, ``engine``, ``estimate``, ``profile``), ``meaning`` what the figure is.
    """

    name: str
    unit: str
    definition: str
    meaning: str
    predicted: Number
    low: Number
    high: Number
    reported: Number
    reported_low: Number
    reported_high: Number
    difference: Number
    percent: float | None
    distance_percent: float
    tolerance: float
    within: bool | None
    needs: str | None
    rank: str | None
    line: int
    text: str


def spread(expected: Number, *ends: Number) -> Range:
    """A prediction with these ends; without uncertainty if there are none."""
    return Range(low=min((expected, *ends)), expected=expected, high=max((expected, *ends)))


def total(parts: Iterable[BudgetPart]) -> Range | None:
    """The bytes of these parts together; ``None`` without any."""
    found = list(parts)
    low, expected, high = (sum(getattr(part, end) for part in found) for end in ("low", "expected", "high"))
    return Range(low=low, expected=expected, high=high) if found else None


def named_budget(occupancy: Occupancy) -> Budget | None:
    """The plan's budget, if its GPU was named."""
    return None if occupancy.setup.hardware.gpu is None else occupancy.budget


def device_memory(occupancy: Occupancy) -> Range | None:
    """The memory of the plan's GPU that programs see; ``None`` without a GPU, or if that is unknown."""
    from hwcalc.profiles.gpus import visible_memory

    gpu = occupancy.setup.hardware.gpu
    memory = None if gpu is None else visible_memory(gpu)
    return None if memory is None else Range(low=memory.low_bytes, expected=memory.expected_bytes, high=memory.high_bytes)


def compared(
    name: str, fact: Fact | None, predicted: Range | Number | None, tolerance: float, definition: str, meaning: str
) -> list[Row]:
    """The row of this fact; empty if the log or the plan lacks the figure.

    The figures agree if their ranges are no further apart than ``tolerance``, a share of the larger of the two figures.
    """
    if fact is None or predicted is None or isinstance(fact.value, str):
        return []
    predicted = predicted if isinstance(predicted, Range) else spread(predicted)
    low, high = (fact.value if end is None else end for end in (fact.low, fact.high))
    distance = max(0, low - predicted.high, predicted.low - high)
    largest = max(abs(predicted.expected), abs(fact.value))
    share = distance / largest if largest else 0.0
    return [
        Row(
            name=name,
            unit=fact.unit,
            definition=definition,
            meaning=meaning,
            predicted=predicted.expected,
            low=predicted.low,
            high=predicted.high,
            reported=fact.value,
            reported_low=low,
            reported_high=high,
            difference=fact.value - predicted.expected,
            percent=100 * (fact.value - predicted.expected) / predicted.expected if predicted.expected else None,
            distance_percent=100 * share,
            tolerance=tolerance,
            within=share <= tolerance,
            needs=None,
            rank=fact.rank,
            line=fact.line,
            text=fact.text,
        )
    ]


def budget_rows(
    dialect: Dialect, occupancy: Occupancy, tolerance: float, size: int | None = None
) -> tuple[list[Row], PoolInfo | None, list[Note]]:
    """Rows for blocks and tokens of the pool of ``size`` bytes, or of the budget of the plan, which is an estimate, without one."""
    size = size if size is not None else occupancy.setup.hardware.kv_memory
    within, definition = (0.0, "engine") if size is not None else (tolerance, "estimate")
    if size is None and (budget := named_budget(occupancy)) is not None:
        size = budget.expected
    if size is None:
        return [], None, [dialect.without_budget]
    facts = dialect.facts
    pool = occupancy.told(occupancy.pool(max(0, size)))
    if pool is None:
        return [], None, []
    rows = compared("blocks", facts.last("blocks"), pool.blocks, within, definition, "whole blocks of the budget")
    rows += compared("tokens", facts.last("tokens"), pool.tokens, within, definition, "blocks x tokens of a block")
    return rows, pool, []
