"""What an engine answers: what it stores for a layer, what a request holds, what a byte budget gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import field
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from formulas import CacheTensor, DType, LayerKind, Role
from formulas.frozen import frozen
from hwcalc.errors import UsageError
from hwcalc.model import ModelSpec, Note
from hwcalc.planner.result import PoolGroup, PoolInfo
from profiles.dtypes import dtype_names, find_dtype, find_packed, packed_names

if TYPE_CHECKING:
    from profiles.gpus import Gpu

__all__ = [
    "Budget",
    "BudgetPart",
    "Context",
    "Dtypes",
    "Engine",
    "Option",
    "Request",
    "StoredTensor",
    "choice_option",
    "integer_option",
    "parse_kv_dtype",
    "store",
]


@frozen
class Request:
    """What the user asked for, parsed. ``dtype`` is the spelling of ``--dtype`` or ``None`` for the engine's default."""

    seq: int
    batch: int = 1
    dtype: str | None = None
    encoder_seq: int | None = None
    engine_version: str | None = None
    tp: int = 1
    pp: int = 1
    dp: int = 1
    dcp: int = 1
    ep: int = 1
    gpu: Gpu | None = None
    memory_utilization: float | None = None
    kv_memory: int | None = None
    """Bytes that each GPU gives to the cache, where the user says so."""
    weights: str | None = None
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@frozen
class BudgetPart:
    """One term of the memory equation, in bytes per GPU: low, expected, high, and where it comes from."""

    name: str
    low: int
    expected: int
    high: int
    source: str


@frozen
class Budget:
    """What is left for the cache on the GPU that has least: total x utilisation minus the parts."""

    total_bytes: int
    requested_bytes: int
    parts: tuple[BudgetPart, ...]
    low: int
    expected: int
    high: int


@frozen
class Dtypes:
    """The format of each role, and how the pair of key and value formats is spelled."""

    kv: str
    roles: Mapping[Role, DType]

    @property
    def state(self) -> str:
        """The format of recurrent states."""
        return self.roles[Role.STATE].name


@frozen
class StoredTensor:
    """One tensor of one layer as the engine stores it for the whole batch.

    ``shape`` counts elements per position and ``positions`` how many are kept for one sequence; ``bytes`` is exact and
    holds for ``batch`` sequences, padding and scales included. A tensor that exists once, not once per sequence, is not
    multiplied. ``rule`` says in words and numbers how the bytes come about where they are not shape times positions.
    """

    name: str
    role: Role
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    positions: int
    span: str
    bytes: int
    rule: str | None = None


@frozen
class Context:
    """Everything a rule needs beside the layer itself."""

    model: ModelSpec
    request: Request
    version: str
    dtypes: Dtypes
    encoder_tokens: int
    notes: list[Note]

    @property
    def tokens(self) -> int:
        """Tokens of one sequence."""
        return self.request.seq

    @property
    def batch(self) -> int:
        """Sequences."""
        return self.request.batch


def store(tensor: CacheTensor, context: Context, *, dtype: DType | None = None, positions: int | None = None) -> StoredTensor:
    """A tensor stored plainly: once per sequence, rows padded to whole blocks of its dtype, positions by its span."""
    chosen = dtype or context.dtypes.roles[tensor.role]
    kept = tensor.span.positions(context.tokens, context.encoder_tokens) if positions is None else positions
    return StoredTensor(
        name=tensor.name,
        role=tensor.role,
        axes=tensor.axes,
        shape=tensor.shape,
        dtype=chosen.name,
        positions=kept,
        span=tensor.span.text if positions is None else f"{kept:,}",
        bytes=context.batch * kept * tensor.bytes_per_position(chosen),
    )


@frozen
class Option:
    """An engine's own knob: its name, what it does, its default, and how its value is read."""

    name: str
    help: str
    default: str
    check: Callable[[str, str], object]


def integer_option(minimum: int, maximum: int = 2**40) -> Callable[[str, str], int]:
    """A reader of whole numbers in range, ``32k`` included."""
    from hwcalc.units import parse_tokens

    def check(name: str, value: str) -> int:
        number = parse_tokens(value, f"engine option {name}", minimum=minimum)
        if number > maximum:
            raise UsageError(f"engine option {name} is out of range: {value[:40]}", hint=f"At most {maximum:,}.")
        return number

    return check


def choice_option(*choices: str) -> Callable[[str, str], str]:
    """A reader of one of a few words."""

    def check(name: str, value: str) -> str:
        if value not in choices:
            raise UsageError(f"engine option {name}={value[:40]} is not known.", hint=f"Allowed: {', '.join(choices)}.")
        return value

    return check


def parse_kv_dtype(spelling: str) -> tuple[DType, DType] | str:
    """``fp8`` or ``q8_0:q4_0`` as the formats of keys and values; a packed layout's name is given back as it is."""
    text = spelling.strip().lower()
    if find_packed(text) is not None:
        return text
    halves = text.split(":")
    found = [find_dtype(half) for half in halves]
    if len(halves) > 2 or None in found:
        known = ", ".join((*dtype_names(), *packed_names()))
        raise UsageError(
            f"--dtype {spelling[:40]!r} is not a known dtype.", hint=f"Known: {known}; K:V for two. See: kvplan dtypes"
        )
    key, value = found[0], found[-1]
    assert key is not None
    assert value is not None
    return key, value


class Engine(ABC):
    """One engine. Frozen rules: no state between calls."""

    name: ClassVar[str]
    title: ClassVar[str]
    definition: ClassVar[str]
    """What its numbers are: ``exact`` (the formulas) or ``engine`` (that engine's rule)."""
    versions: ClassVar[tuple[str, ...]]
    """Versions whose rules are known, newest first; an empty tuple if there is nothing to choose."""
    options: ClassVar[Mapping[str, Option]] = MappingProxyType({})
    source: ClassVar[str]
    pooled: ClassVar[bool] = False
    """Whether it has a pool: only then parallel sizes, a GPU and a budget mean anything to it."""

    def version(self, wanted: str | None) -> str:
        """The known version whose rules hold for ``wanted`` (``5.14`` takes those of 5.14.x)."""
        if wanted is None:
            return self.versions[0] if self.versions else ""
        if not self.versions:
            raise UsageError(
                f"--engine {self.name}@{wanted[:20]}: {self.name} has no versions.", hint=f"Use: --engine {self.name}"
            )
        return self.resolve_version(wanted)

    def resolve_version(self, wanted: str) -> str:
        """Exact names only, unless an engine knows better."""
        if wanted in self.versions:
            return wanted
        known = ", ".join(self.versions)
        raise UsageError(f"--engine {self.name}@{wanted[:20]}: no rules for that version.", hint=f"Known: {known}.")

    def check_options(self, options: Mapping[str, str]) -> dict[str, object]:
        """Parsed engine options; an unknown name is an error that lists the known ones."""
        parsed: dict[str, object] = {}
        for name, value in options.items():
            option = self.options.get(name)
            if option is None:
                known = ", ".join(self.options) or "none"
                raise UsageError(f"engine option {name[:40]!r} is not known to {self.name}.", hint=f"Known: {known}.")
            parsed[name] = option.check(name, value)
        return parsed

    @abstractmethod
    def dtypes(self, model: ModelSpec, request: Request, notes: list[Note]) -> Dtypes:
        """The format of every role, by this engine's rules; what had to be assumed goes into ``notes``."""

    @abstractmethod
    def tensors(self, kind: LayerKind, context: Context) -> tuple[StoredTensor, ...]:
        """What this engine stores for one layer of this kind. A kind without a rule is an error, never a guess."""

    def rank_bytes(self, context: Context, total_bytes: int) -> int:
        """What the GPU that holds most keeps of ``total_bytes`` of cache."""
        return total_bytes

    def groups(self, context: Context) -> tuple[PoolGroup, ...]:
        """Layers that share a block table; none where every layer has memory of its own."""
        return ()

    def pool(self, context: Context, budget_bytes: int) -> PoolInfo | None:
        """What ``budget_bytes`` of cache on each GPU hold, as the engine's own log counts it; ``None`` without a pool."""
        return None

    def budget(self, context: Context) -> Budget | None:
        """How many bytes each GPU has left for the cache by this engine's memory equation; ``None`` if it has none."""
        return None

    def extras(self, context: Context) -> tuple[StoredTensor, ...]:
        """What it stores once for the whole model beside the layers."""
        return ()

    def check(self, context: Context) -> None:
        """Raise if the engine refuses this model or this combination as a whole."""


def bytes_of(tensors: tuple[StoredTensor, ...]) -> int:
    """Sum of bytes."""
    return sum(tensor.bytes for tensor in tensors)


def elements(tensor: StoredTensor) -> int:
    """Elements of one sequence."""
    return prod(tensor.shape) * tensor.positions
