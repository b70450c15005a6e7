"""The interface of an engine, and a request that an engine has opened.

An :class:`Engine` has no state. Its methods answer the few questions on which engines differ. :meth:`Engine.open` returns an
:class:`Opened`: one object per request, which asks each question once and keeps the answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import asdict, replace

from hwcalc.engines.command import Commands
from hwcalc.engines.devices import Places
from hwcalc.engines.encoder import encoder_length, follows_output
from hwcalc.engines.families import Families, kept_family
from hwcalc.engines.kinds import Kinds, check_kinds
from hwcalc.engines.noted import Noted
from hwcalc.engines.policies import Policies
from hwcalc.engines.request import Parallel, Request, Servers
from hwcalc.engines.sharing import Alive, Sharers, words_of
from hwcalc.engines.stored import Dtypes, StoredTensor, bytes_of
from hwcalc.engines.traits import Traits
from hwcalc.engines.turns import Sizes
from hwcalc.errors import UsageError
from hwcalc.formulas import CacheTensor, DType, LayerKind
from hwcalc.formulas.record import Record
from hwcalc.model import ModelSpec, Note

if TYPE_CHECKING:
    from hwcalc.engines.allocation import Allocation
    from hwcalc.engines.budget import Budget, BudgetPart
    from hwcalc.engines.pool import PoolGroup, PoolInfo
    from hwcalc.engines.rank_weights import Rules
    from hwcalc.engines.saving import Saving

__all__ = ["Engine", "Opened"]

T = TypeVar("T")
_SIZES = frozenset({"seq", "batch"})


class Engine(
    Traits, Kinds, Families["Opened"], Sizes, Commands["Opened"], Places["Opened"], Policies["Opened"], Sharers["Opened"], ABC
):
    """The rules of one engine. It keeps no state between calls."""

    def weight_choices_of(self, model: ModelSpec) -> tuple[str | None, ...]:
        """The formats among which ``--weights auto`` chooses for this model."""
        from hwcalc.quantization.published_mixes import published_formats

        return self.weight_choices or published_formats(model)

    def weight_sizes(self, model: ModelSpec) -> Mapping[str | None, int]:
        """The bytes of each of them that can be told without opening the model in it."""
        from hwcalc.quantization.published_mixes import mix_sizes

        return {} if self.weight_choices else mix_sizes(model, self.weight_choices_of(model))

    def started_by(self, options: Mapping[str, str]) -> Engine:
        """The engine whose rules hold with these options; almost always this one."""
        return self

    def draft_named(self, options: Mapping[str, str]) -> str | None:
        """The id of the draft model that an engine option names. The caller loads that model as :attr:`Request.option_draft`."""
        return None

    def open(self, model: ModelSpec, request: Request, notes: Iterable[Note] = (), *, beside: Opened | None = None) -> Opened:
        """Fill in every default and check the request. ``notes`` say what the caller has assumed already.

        ``beside`` is the request of the same plan that this one is a change of.
        Raises a :class:`~hwcalc.errors.KvplanError` subclass.
        """
        gpu = request.hardware.gpu
        if gpu is not None and gpu.is_host:
            self.check_host(gpu, request.options, request.gpus)
        opened = self.unchecked(model.as_built_by(self.name), request)
        if self.keeps_families(opened):
            vars(opened)["family"] = (
                kept_family(self.name, opened.model, request, {})
                if beside is None
                else kept_family(self.name, opened.model, request, beside.family, lambda: self.carried(opened, beside))
            )
        opened.tell(*notes)
        return opened.checked()

    def unchecked(self, model: ModelSpec, request: Request) -> Opened:
        """The opened request without the check. An engine that keeps more for a request returns its own subclass of :class:`Opened`."""
        return Opened(engine=self, model=model, request=request, version=self.version(request.engine_version))

    @abstractmethod
    def dtypes(self, opened: Opened) -> Noted[Dtypes]:
        """The format of each role by the rules of this engine. Notes say what was assumed."""

    def check(self, opened: Opened) -> None:
        """Raise an error if the engine refuses the model or the request; add notes with :meth:`Opened.tell`."""

    @abstractmethod
    def tensors(self, kind: LayerKind, opened: Opened) -> tuple[StoredTensor, ...]:
        """The tensors that the engine stores for one layer of this kind. It is one of :attr:`kinds`."""

    def rank_tensors(self, shard: LayerKind, opened: Opened) -> tuple[StoredTensor, ...]:
        """The same on a tensor-parallel rank of a replica, which has this part of the layer."""
        return self.tensors(shard, opened)

    def extras(self, opened: Opened) -> tuple[StoredTensor, ...]:
        """The tensors that the engine stores once for the whole model, beside those of the layers."""
        return ()

    @abstractmethod
    def needed_bytes(self, opened: Opened) -> int:
        """Bytes that the cache of the planned sequences takes on the fullest GPU."""

    @abstractmethod
    def allocation(self, opened: Opened, stage: int) -> tuple[Allocation, ...]:
        """The tensors that a rank of pipeline stage ``stage`` (from 0) allocates, in the order of the engine; none is empty."""

    def groups(self, opened: Opened) -> tuple[PoolGroup, ...]:
        """The groups of layers that share a block table; empty if each layer has its own memory."""
        return ()

    def pool(self, opened: Opened, budget_bytes: int) -> Noted[PoolInfo | None]:
        """The pool that the engine makes of ``budget_bytes`` on each GPU, in the figures of its own log; ``None`` if it has no pool."""
        return Noted(None)

    @abstractmethod
    def budget(self, opened: Opened) -> Noted[Budget | None]:
        """The bytes that each GPU has left for the cache; ``None`` if the memory of the GPU or the size of the weights is unknown."""

    @abstractmethod
    def weights(self, opened: Opened) -> Noted[tuple[BudgetPart, ...] | None]:
        """The bytes of weights on the fullest GPU, which do not depend on length and batch; ``None`` if they are unknown."""

    @abstractmethod
    def weight_rules(self, opened: Opened) -> Rules:
        """The rules by which the engine divides the weights of a model over ranks."""

    @abstractmethod
    def weight_dtype(self, opened: Opened) -> str:
        """The dtype of the weights that are not quantised."""

    @abstractmethod
    def forward_tokens(self, opened: Opened) -> tuple[int, int, int]:
        """How many tokens one forward pass of a replica processes: low, expected and high."""

    def working(self, opened: Opened) -> tuple[BudgetPart, ...]:
        """Memory that the engine needs during a forward pass beside the activations, such as copies while a cache grows."""
        return ()

    def holds(self, opened: Opened, budget_bytes: int) -> bool:
        """Whether the planned sequences fit into ``budget_bytes`` of cache on each GPU."""
        pool = self.pool(opened, max(0, budget_bytes)).value
        if pool is None:
            return opened.needed_bytes <= budget_bytes
        return budget_bytes >= 0 and pool.holds(opened.request.replica_requests)

    def most_sequences(self, opened: Opened) -> tuple[int, str] | None:
        """How many sequences the engine runs at once however much memory there is, and the option that limits them; ``None`` is no limit."""
        return None

    def length_named(self, model: ModelSpec, batch: int, options: Mapping[str, str]) -> int | None:
        """The tokens of a sequence that an engine option names, where the user gives no length; ``None`` if none does."""
        return None

    def longest(self, opened: Opened, budget_bytes: int, bound: int) -> int | None:
        """The most tokens, up to ``bound``, that each planned sequence can have.

        ``None`` if the engine has no direct answer; the caller then searches by trying lengths.
        """
        return None

    def periods(self, opened: Opened) -> frozenset[int]:
        """Every how many tokens a buffer of the cache is emptied; empty if a longer sequence never takes less memory."""
        return frozenset()

    def deals_experts(self, opened: Opened) -> bool:
        """Whether data-parallel replicas share the experts: attention is data parallel, and whole experts are dealt out to all ranks."""
        return False

    def savings(self, opened: Opened, short_bytes: int) -> Iterable[Saving]:
        """Settings of this engine that take less memory of the planned GPU, and that both can do.

        ``short_bytes`` is what the fullest GPU lacks. The planner tries each, so that one that does not help may be among them.
        """
        return ()

    def environment(self, opened: Opened) -> tuple[str, ...]:
        """Variables, with their values, that must be set for the engine to accept the request: ``NAME=1``."""
        return ()

    def settings(self, opened: Opened) -> Mapping[str, int | str | bool]:
        """What the request comes to in the engine's own words, where it rounds or fills in what was asked; mostly nothing."""
        return {}

    def expands_latents(self, opened: Opened) -> bool:
        """Whether the engine stores latent attention as keys and values of every head."""
        return False


class Opened(Alive, Record):
    """One request to one engine about one model. It keeps every answer of the engine.

    Requests that differ only in length and batch are a family: they share the answers that do not depend on length and batch.
    :attr:`notes` collects what the engine assumed.
    """

    engine: Engine
    model: ModelSpec
    request: Request
    version: str

    @cached_property
    def collected(self) -> list[Note]:
        """The notes on all answers so far."""
        return []

    @property
    def tokens(self) -> int:
        """Tokens of one sequence."""
        return self.request.seq

    @property
    def batch(self) -> int:
        """How many sequences are planned."""
        return self.request.sequences

    @property
    def notes(self) -> tuple[Note, ...]:
        """The notes on all answers so far, each once, in the order of the questions."""
        return tuple(dict.fromkeys(self.collected))

    def tell(self, *notes: Note) -> None:
        """Add to :attr:`notes`."""
        self.collected.extend(notes)

    def told(self, noted: Noted[T]) -> T:
        """Return the value of an answer, and add the notes of the answer to :attr:`notes`."""
        self.collected.extend(noted.notes)
        return noted.value

    def checked(self) -> Opened:
        """This request, after the engine has filled in the defaults and accepted it. Raises the error of the engine."""
        self.shared("kinds", lambda: check_kinds(self))
        self.dtypes  # noqa: B018 - so that the notes on defaults come first
        self.encoder_tokens  # noqa: B018
        self.engine.check(self)
        group, ep = self.parallel.group, self.parallel.ep
        if group % ep:
            raise UsageError(
                f"ep {ep}: replicas of {self.engine.label} share no experts.", hint=f"Use: --ep {group}, or leave it out"
            )
        return self

    def sized(self, *, seq: int | None = None, batch: int | None = None) -> Opened:
        """The request with another length or batch, in the same family. It is not checked again."""
        request = self.request
        seq, batch = request.seq if seq is None else seq, request.batch if batch is None else batch
        if seq == request.seq and batch == request.batch:
            return self
        return self.sibling(replace(request, seq=seq, batch=batch))

    def beyond(self, tokens: int) -> Opened:
        """The request at a length that the model need not have, to see how its cache grows."""
        return self.sized(seq=tokens)

    def changed(self, **change: Any) -> Opened:
        """The request with some values changed, checked again. Raises the error of the engine if it refuses the change."""
        if change.keys() <= _SIZES:
            return self.sized(**change).checked()
        return self.engine.open(self.model, self.request.changed(**change), beside=self)

    @cached_property
    def parallel(self) -> Parallel:
        """The layout, which says whether replicas share experts."""
        parallel = self.request.parallel
        return parallel if parallel.dp == 1 or self.engine.deals_experts(self) else Servers(**asdict(parallel))

    @cached_property
    def dtypes(self) -> Dtypes:
        """The format of every role."""
        return self.told(self.shared("dtypes", lambda: self.engine.dtypes(self)))

    @cached_property
    def encoder_tokens(self) -> int:
        """Tokens of the encoder's output; 0 if the model has no cross attention."""
        return self.told(encoder_length(self.model, self.request))

    @cached_property
    def growing_encoder_tokens(self) -> int | None:
        """The same for stairs: ``None`` where the encoder's output is as long as the sequence."""
        return None if follows_output(self.model, self.request) else self.encoder_tokens

    @cached_property
    def kind_tensors(self) -> dict[LayerKind, tuple[StoredTensor, ...]]:
        """The tensors of one layer of each kind."""
        return {group.kind: self.engine.tensors(group.kind, self) for group in self.stack.groups}

    @cached_property
    def rank_tensors(self) -> dict[LayerKind, tuple[StoredTensor, ...]]:
        """What the fullest rank of a replica stores for one layer of each kind."""
        parallel = self.request.parallel
        if parallel.tp == parallel.dp == 1:
            return self.kind_tensors
        rules, replica = self.engine.weight_rules(self), self.replica
        sharded = self.of_stack(
            (self.engine.name, "shards", parallel.tp),
            lambda: {group.kind: rules.shard(self.model, group.kind, parallel.tp) for group in self.stack.groups},
        )
        return {kind: self.engine.rank_tensors(shard, replica) for kind, shard in sharded.items()}

    @cached_property
    def extras(self) -> tuple[StoredTensor, ...]:
        """The tensors that are stored once, beside those of the layers."""
        return self.engine.extras(self)

    @cached_property
    def stored_bytes(self) -> int:
        """Bytes of cache that the engine stores for the batch, on all GPUs together."""
        layers = sum(group.count * bytes_of(self.kind_tensors[group.kind]) for group in self.stack.groups)
        return layers + bytes_of(self.extras)

    @cached_property
    def needed_bytes(self) -> int:
        """Bytes that the cache of the planned sequences takes on the fullest GPU."""
        return self.engine.needed_bytes(self)

    @cached_property
    def groups(self) -> tuple[PoolGroup, ...]:
        """The groups of layers that share a block table."""
        return self.engine.groups(self)

    @cached_property
    def weights(self) -> Noted[tuple[BudgetPart, ...] | None]:
        """The bytes of weights on the fullest GPU; ``None``, with a note, if they are unknown."""
        return self.shared("weights", lambda: self.engine.weights(self))

    @cached_property
    def budget(self) -> Budget | None:
        """The bytes that each GPU has left for the cache; ``None`` if that is unknown."""
        return self.told(self.engine.budget(self))

    def pool(self, budget_bytes: int) -> PoolInfo | None:
        """The pool that the engine makes of ``budget_bytes`` on each GPU; ``None`` if it has no pool."""
        return self.told(self.engine.pool(self, budget_bytes))

    def allocation(self, stage: int) -> tuple[Allocation, ...]:
        """The tensors that a rank of a pipeline stage allocates."""
        return self.engine.allocation(self, stage)

    @cached_property
    def fullest_stage(self) -> int:
        """The pipeline stage whose ranks hold most; the first one if several hold as much."""
        sizes = [sum(one.bytes for one in self.allocation(stage)) for stage in range(self.request.parallel.pp)]
        return sizes.index(max(sizes))

    def store(self, tensor: CacheTensor, *, dtype: DType | None = None) -> StoredTensor:
        """Store a tensor by the general rule: once per sequence, rows padded to whole blocks of the dtype, positions by the span.

        ``dtype`` overrides the dtype of the role.
        """
        chosen = dtype or self.dtypes.roles[tensor.role]
        kept = tensor.span.positions(self.tokens, self.encoder_tokens)
        runs = self.runs(tensor.span, self.encoder_tokens) if self.together.unlike else ()
        total = sum(run.positions for run in runs) if runs else self.batch * kept
        position_bytes = tensor.bytes_per_position(chosen)
        # A sweep stores the tensors of each setting.
        return StoredTensor(
            name=tensor.name,
            role=tensor.role,
            axes=tensor.axes,
            shape=tensor.shape,
            dtype=chosen.name,
            positions=kept,
            span=tensor.span,
            bytes=total * position_bytes,
            rule=f"({words_of(runs)}) x {position_bytes:,} B" if runs else None,
            position_bytes=position_bytes,
            once=False,
            runs=runs,
            why=None,
        )

    def store_all(self, tensors: Iterable[CacheTensor]) -> tuple[StoredTensor, ...]:
        """Store several tensors by the general rule."""
        return tuple(self.store(tensor) for tensor in tensors)
