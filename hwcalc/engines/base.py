"""An engine, and a request that it has opened.

An :class:`Engine` is rules without state, and asks only the few questions in which engines differ. :meth:`Engine.open` gives an
:class:`Opened`: one object for a request, which asks each of them once and keeps the answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from hwcalc.engines.allocation import Allocation
from hwcalc.engines.encoder import encoder_length
from hwcalc.engines.noted import Noted
from hwcalc.engines.options import EngineOption
from hwcalc.engines.request import Request
from hwcalc.engines.stored import Dtypes, StoredTensor, bytes_of
from hwcalc.errors import UnknownNameError, UsageError
from hwcalc.formulas import CacheTensor, DType, LayerKind
from hwcalc.formulas.frozen import field, frozen, replace
from hwcalc.formulas.tensor import Fixed
from hwcalc.model import Definition, ModelSpec, Note

if TYPE_CHECKING:
    from hwcalc.engines.budget import Budget, BudgetPart
    from hwcalc.engines.command import CommandInput
    from hwcalc.engines.pool import PoolGroup, PoolInfo
    from hwcalc.engines.rank_weights import Rules
    from hwcalc.formulas import Stack

__all__ = ["Engine", "Opened"]

T = TypeVar("T")
_SIZES = frozenset({"seq", "batch"})


class Engine(ABC):
    """One engine. Frozen rules: no state between calls."""

    name: ClassVar[str]
    title: ClassVar[str]
    label: ClassVar[str]
    """What people call it."""
    has_command: ClassVar[bool] = False
    """Whether :meth:`command` gives the command line of a plan."""
    definition: ClassVar[Definition]
    """What its numbers are: ``exact`` (the formulas) or ``engine`` (that engine's rule)."""
    versions: ClassVar[tuple[str, ...]]
    """Versions whose rules are known, newest first; an empty tuple if there is nothing to choose."""
    options: ClassVar[Mapping[str, EngineOption]] = MappingProxyType({})
    source: ClassVar[str]
    pooled: ClassVar[bool] = False
    """Whether it allocates a pool at start-up, from which sequences take what they need."""

    def version(self, wanted: str | None) -> str:
        """The known version whose rules hold for ``wanted`` (``5.14`` takes those of 5.14.x)."""
        if wanted is None:
            return self.versions[0] if self.versions else ""
        if not self.versions:
            raise UnknownNameError(
                f"--engine {self.name}@{wanted[:20]}: {self.name} has no versions.",
                option="engine",
                hint=f"Use: --engine {self.name}",
            )
        return self.resolve_version(wanted)

    def resolve_version(self, wanted: str) -> str:
        """Exact names only, unless an engine knows better."""
        if wanted in self.versions:
            return wanted
        known = ", ".join(self.versions)
        raise UnknownNameError(
            f"--engine {self.name}@{wanted[:20]}: no rules for that version.", option="engine", hint=f"Known: {known}."
        )

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

    def draft_named(self, options: Mapping[str, str]) -> str | None:
        """The draft model that its options name, to be loaded as :attr:`Request.option_draft` by whoever may load models."""
        return None

    def open(self, model: ModelSpec, request: Request, notes: Iterable[Note] = ()) -> Opened:
        """The request with every default filled in, checked. ``notes`` are what was assumed before it got here.

        Raises a :class:`~hwcalc.errors.KvplanError` subclass.
        """
        opened = self.unchecked(model, request)
        opened.tell(*notes)
        return opened.checked()

    def unchecked(self, model: ModelSpec, request: Request) -> Opened:
        """The request before it is checked; an engine with more to keep for a request has a subclass of :class:`Opened`."""
        return Opened(engine=self, model=model, request=request, version=self.version(request.engine_version))

    @abstractmethod
    def dtypes(self, opened: Opened) -> Noted[Dtypes]:
        """The format of every role, by this engine's rules, and what had to be assumed."""

    def check(self, opened: Opened) -> None:
        """Raise if the engine refuses this model or this combination as a whole; :meth:`Opened.tell` what is worth knowing."""

    @abstractmethod
    def tensors(self, kind: LayerKind, opened: Opened) -> tuple[StoredTensor, ...]:
        """What this engine stores for one layer of this kind. A kind without a rule is an error, never a guess."""

    def extras(self, opened: Opened) -> tuple[StoredTensor, ...]:
        """What it stores once for the whole model beside the layers."""
        return ()

    @abstractmethod
    def needed_bytes(self, opened: Opened) -> int:
        """What the cache of the planned sequences takes of the fullest GPU."""

    @abstractmethod
    def allocation(self, opened: Opened, stage: int) -> tuple[Allocation, ...]:
        """The tensors that a rank of pipeline stage ``stage`` asks its device for, in the engine's order; none is empty."""

    def groups(self, opened: Opened) -> tuple[PoolGroup, ...]:
        """Layers that share a block table; none where every layer has memory of its own."""
        return ()

    def pool(self, opened: Opened, budget_bytes: int) -> Noted[PoolInfo | None]:
        """What ``budget_bytes`` of cache on each GPU hold, as the engine's own log counts it; ``None`` without a pool."""
        return Noted(None)

    @abstractmethod
    def budget(self, opened: Opened) -> Noted[Budget | None]:
        """How many bytes each GPU has left for the cache; ``None`` without a GPU of known memory, or if the weights are unknown."""

    @abstractmethod
    def weights(self, opened: Opened) -> Noted[tuple[BudgetPart, ...] | None]:
        """What the model's weights take of the fullest GPU, whatever the length and the batch; ``None`` where that is not known."""

    @abstractmethod
    def weight_rules(self) -> Rules:
        """How it cuts a model's weights over ranks."""

    @abstractmethod
    def plain_dtype(self, opened: Opened) -> str:
        """The dtype in which weights without a format of their own are kept."""

    @abstractmethod
    def forward_tokens(self, opened: Opened) -> tuple[int, int, int]:
        """Tokens that one forward pass of a replica takes at once: low, expected and high."""

    def working(self, opened: Opened) -> tuple[BudgetPart, ...]:
        """What the engine needs for a while beside one forward pass, such as copies while a cache grows."""
        return ()

    def holds(self, opened: Opened, budget_bytes: int) -> bool:
        """Whether ``budget_bytes`` of cache on each GPU hold the planned sequences."""
        pool = self.pool(opened, max(0, budget_bytes)).value
        if pool is None:
            return opened.needed_bytes <= budget_bytes
        return budget_bytes >= 0 and pool.holds(opened.request.replica_batch)

    def most_sequences(self, opened: Opened) -> tuple[int, str] | None:
        """How many sequences the engine runs at once whatever the memory, and the name of what says so; ``None`` is any number."""
        return None

    def longest(self, opened: Opened, budget_bytes: int, bound: int) -> int | None:
        """The most tokens up to ``bound`` that each planned sequence may have, where the engine's plan knows without trying."""
        return None

    def periods(self, opened: Opened) -> frozenset[int]:
        """Lengths after which what waits in a buffer falls back to nothing; empty where a longer sequence never takes less."""
        return frozenset()

    def expands_latents(self, opened: Opened) -> bool:
        """Whether latent attention is kept as keys and values of every head."""
        return False

    def command(self, planned: CommandInput) -> list[str]:
        """The words of the engine's own command line for a plan; only where :attr:`has_command` says that it has one."""
        raise UsageError(f"{self.label} has no command line.", hint="Leave out --emit.")

    def flag(self, name: str, value: object) -> str:
        """An option of kvplan in the engine's own words: ``--seq 4096`` unless it has its own."""
        return f"--{name.replace('_', '-')} {value}"


@frozen
class Opened:
    """One request to one engine about one model, with everything that is constant for it.

    Requests that differ in length and batch alone are a family: they share what does not depend on these. What had to be assumed
    on the way is collected in :attr:`notes`.
    """

    engine: Engine
    model: ModelSpec
    request: Request
    version: str
    family: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What requests that differ in length and batch alone have worked out together."""
    collected: list[Note] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def tokens(self) -> int:
        """Tokens of one sequence."""
        return self.request.seq

    @property
    def batch(self) -> int:
        """Sequences."""
        return self.request.batch

    @property
    def notes(self) -> tuple[Note, ...]:
        """What a reader should know of the answers so far, in the order in which they were asked for."""
        return tuple(dict.fromkeys(self.collected))

    def tell(self, *notes: Note) -> None:
        """Add to :attr:`notes`."""
        self.collected.extend(notes)

    def told(self, noted: Noted[T]) -> T:
        """The value alone; its notes are collected."""
        self.collected.extend(noted.notes)
        return noted.value

    def shared(self, key: Hashable, make: Callable[[], T]) -> T:
        """What ``make`` gives, made once for all requests of the family; it may not depend on their lengths and batches."""
        if key not in self.family:
            self.family[key] = make()
        found: T = self.family[key]
        return found

    def checked(self) -> Opened:
        """This request, once its defaults are filled in and the engine takes it."""
        self.dtypes  # noqa: B018 - what is assumed first is told first
        self.encoder_tokens  # noqa: B018
        self.engine.check(self)
        return self

    def sized(self, *, seq: int | None = None, batch: int | None = None) -> Opened:
        """The same with another length or number of sequences, of the same family, and not checked."""
        seq, batch = self.request.seq if seq is None else seq, self.request.batch if batch is None else batch
        if (seq, batch) == (self.request.seq, self.request.batch):
            return self
        made = replace(self, request=replace(self.request, seq=seq, batch=batch))
        vars(made)["family"] = self.family
        return made

    def changed(self, **change: Any) -> Opened:
        """The same model with another request, checked anew. Raises what the engine refuses it with."""
        if change.keys() <= _SIZES:
            return self.sized(**change).checked()
        return self.engine.open(self.model, self.request.changed(**change))

    @property
    def replica(self) -> Opened:
        """The sequences of the data-parallel replica that has most."""
        return self.sized(batch=self.request.replica_batch)

    @property
    def stack(self) -> Stack:
        """The layers as the engine reads the file."""
        return self.model.stack_for(self.engine.name)

    @cached_property
    def dtypes(self) -> Dtypes:
        """The format of every role."""
        return self.told(self.shared("dtypes", lambda: self.engine.dtypes(self)))

    @cached_property
    def encoder_tokens(self) -> int:
        """Tokens of the encoder's output."""
        return self.told(encoder_length(self.model, self.request))

    @cached_property
    def kind_tensors(self) -> dict[LayerKind, tuple[StoredTensor, ...]]:
        """What is stored for one layer of each kind."""
        return {group.kind: self.engine.tensors(group.kind, self) for group in self.stack.groups}

    @cached_property
    def rank_tensors(self) -> dict[LayerKind, tuple[StoredTensor, ...]]:
        """What the fullest rank of a replica stores for one layer of each kind."""
        parallel = self.request.parallel
        if parallel.tp == parallel.dp == 1:
            return self.kind_tensors
        rules, replica = self.engine.weight_rules(), self.replica
        sharded = {group.kind: rules.shard(self.model, group.kind, parallel.tp) for group in self.stack.groups}
        return {kind: self.engine.tensors(shard, replica) for kind, shard in sharded.items()}

    @cached_property
    def extras(self) -> tuple[StoredTensor, ...]:
        """What is stored once beside the layers."""
        return self.engine.extras(self)

    @cached_property
    def stored_bytes(self) -> int:
        """Everything that the engine stores for the batch, on all GPUs together."""
        layers = sum(group.count * bytes_of(self.kind_tensors[group.kind]) for group in self.stack.groups)
        return layers + bytes_of(self.extras)

    @cached_property
    def needed_bytes(self) -> int:
        """What the cache of the planned sequences takes of the fullest GPU."""
        return self.engine.needed_bytes(self)

    @cached_property
    def groups(self) -> tuple[PoolGroup, ...]:
        """Layers that share a block table."""
        return self.engine.groups(self)

    @cached_property
    def weights(self) -> Noted[tuple[BudgetPart, ...] | None]:
        """What the model's weights take of the fullest GPU; ``None``, with a note, where that is not known."""
        return self.shared("weights", lambda: self.engine.weights(self))

    @cached_property
    def budget(self) -> Budget | None:
        """How many bytes each GPU has left for the cache; ``None`` where that is not known."""
        return self.told(self.engine.budget(self))

    def pool(self, budget_bytes: int) -> PoolInfo | None:
        """What so many bytes of cache on each GPU hold; ``None`` for an engine without a pool."""
        return self.told(self.engine.pool(self, budget_bytes))

    def allocation(self, stage: int) -> tuple[Allocation, ...]:
        """What a rank of a pipeline stage asks its device for."""
        return self.engine.allocation(self, stage)

    @cached_property
    def fullest_stage(self) -> int:
        """The pipeline stage whose ranks hold most; the first of several."""
        sizes = [sum(one.bytes for one in self.allocation(stage)) for stage in range(self.request.parallel.pp)]
        return sizes.index(max(sizes))

    def store(self, tensor: CacheTensor, *, dtype: DType | None = None, positions: int | None = None) -> StoredTensor:
        """A tensor stored plainly: once per sequence, rows padded to whole blocks of its dtype, positions by its span."""
        chosen = dtype or self.dtypes.roles[tensor.role]
        kept = tensor.span.positions(self.tokens, self.encoder_tokens) if positions is None else positions
        return StoredTensor(
            name=tensor.name,
            role=tensor.role,
            axes=tensor.axes,
            shape=tensor.shape,
            dtype=chosen.name,
            positions=kept,
            span=tensor.span if positions is None else Fixed(kept),
            bytes=self.batch * kept * tensor.bytes_per_position(chosen),
        )

    def store_all(self, tensors: Iterable[CacheTensor]) -> tuple[StoredTensor, ...]:
        """Several tensors, each stored plainly."""
        return tuple(self.store(tensor) for tensor in tensors)
