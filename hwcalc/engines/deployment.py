"""What an engine stores for a model: :class:`Deployment` is a server as it is started, :class:`Occupancy` what it holds under a load."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeVar, cast

from msgspec.structs import asdict, replace

from hwcalc.engines.facts import longest_named
from hwcalc.engines.memory import is_measured
from hwcalc.engines.models import encoder_length, has_classes, has_cross, model_classes
from hwcalc.engines.runs_on import check_accelerator, check_formats, check_read
from hwcalc.engines.setup import LOAD_FIELDS, UNSHARED, Load, Parallel, Request, Servers, Setup
from hwcalc.engines.stored import (
    Dtypes,
    InCommon,
    StoredTensor,
    Support,
    Together,
    bytes_of,
    of_stack,
)
from hwcalc.engines.subjects import AdapterRules, Devices, PolicyRules, Reported, Traits
from hwcalc.errors import UsageError
from hwcalc.model import Noted

if TYPE_CHECKING:
    from hwcalc.engines.devices import ModelWeights, Saving
    from hwcalc.engines.engine import Engine
    from hwcalc.engines.forms import Curve, MemoryForm
    from hwcalc.engines.memory import Budget, BudgetPart
    from hwcalc.engines.policies import Evicted
    from hwcalc.engines.pool import Allocation, PoolGroup, PoolInfo, PoolShare
    from hwcalc.engines.rank_weights import Rules
    from hwcalc.formulas import LayerKind, Stack
    from hwcalc.model import ModelSpec, Note

T = TypeVar("T")
AnyOccupancy = TypeVar("AnyOccupancy", bound="Occupancy")
_MOST_KEPT: Final = 128
"""The most deployments that a model keeps. A plan that does not fit tries a few dozen."""
_MISSING: Final[Any] = object()


def deployed(engine: Engine, model: ModelSpec, setup: Setup) -> Deployment:
    """The deployment of a model with this setup. Plans of one model with equal setups share it.

    The model keeps those that were used last. One on an accelerator that the user has measured is not kept: the measurements are in a
    file, which may change. Nor is one with a policy, which remembers what is left of every length.
    """
    gpu = setup.hardware.gpu
    if setup.policy is not None or (gpu is not None and setup.hardware.calibrated and is_measured(engine.name, gpu.id)):
        return engine.deployment(engine, model, setup)
    kept = cast("dict[tuple[Engine, Setup], Deployment]", model.once("deployments", dict))
    # The one that was used last is at the end.
    deployment = kept.pop((engine, setup), None) or engine.deployment(engine, model, setup)
    kept[engine, setup] = deployment
    if len(kept) > _MOST_KEPT:
        del kept[next(iter(kept))]
    return deployment


class Deployment:
    """A model on an engine with one setup: all that is the same whatever the load."""

    adapter_class: ClassVar[type[AdapterRules]] = AdapterRules

    def __init__(self, engine: Engine, model: ModelSpec, setup: Setup) -> None:
        self.engine = engine
        self.model = model
        self.setup = setup
        self.version = engine.version(setup.engine_version)
        self.kept: dict[Any, Any] = {}

    def at(self, load: Load) -> Occupancy:
        """The deployment under a load, which is not checked yet. It has every answer about the load."""
        return self.engine.occupancy(self, load)

    def shared(self, key: Hashable, make: Callable[[], T]) -> T:
        """The result of ``make``, which does not depend on the load. It is called once."""
        answer: T = self.kept.get(key, _MISSING)
        if answer is _MISSING:
            answer = self.kept[key] = make()
        return answer

    @cached_property
    def closed_forms(self) -> dict[Load, MemoryForm | None]:
        """The closed forms of :func:`kept_form`, by a load of one token and one sequence."""
        return {}

    @cached_property
    def max_length(self) -> int | None:
        """The longest sequence that the server allows, where the user names it besides the planned length."""
        return longest_named(self.engine, self.setup.options)

    @cached_property
    def plain_stack(self) -> Stack:
        """The layers of the model as this engine reads the config."""
        return self.model.stack_for(self.engine.name)

    @cached_property
    def dtypes(self) -> Noted[Dtypes]:
        """The format of every role by the rules of this engine, with notes on what was assumed."""
        raise NotImplementedError

    @property
    def adapter_rules(self) -> AdapterRules:
        """The rules by which adapters are served together."""
        return self.adapter_class(self)

    @cached_property
    def parallel(self) -> Parallel:
        """The layout, which says whether replicas share experts."""
        parallel = self.setup.parallel
        return parallel if parallel.dp == 1 or self.traits.deals_experts else Servers(**asdict(parallel))

    @cached_property
    def traits(self) -> Traits:
        """The traits of its memory that the rest of the program has to know."""
        return Traits()

    def unlimited(self) -> Deployment:
        """The deployment without the limit that the engine puts on every length; almost always this one."""
        return self

    def check_class(self) -> None:
        """Raise an error if the engine has no class for the model, where it has a list of them. It is checked before the kinds of layers."""
        if has_classes(self.engine.name):
            model_classes(self.engine.name).check(self.model)

    def backend(self) -> str:
        """The part of the engine that runs this, where accelerators of its parts differ; empty for most engines."""
        return ""

    @cached_property
    def accelerator_warnings(self) -> tuple[Note, ...]:
        """A warning where sources leave open whether the engine runs on the accelerator. Raises an error if it does not."""
        gpu, started = self.setup.hardware.gpu, self.setup.hardware.started
        return () if gpu is None else check_accelerator(self.engine, self.version, gpu, self.backend(), started=started)

    @cached_property
    def format_warnings(self) -> tuple[Note, ...]:
        """Warnings where sources leave open whether the formats run there. Raises an error for those that do not."""
        return check_formats(self)

    def weight_rules(self) -> Rules:
        """The rules by which the engine divides the weights of a model over ranks."""
        raise NotImplementedError

    def weight_dtype(self) -> str:
        """The dtype of the weights that are not quantised."""
        raise NotImplementedError

    def weight_parts(self) -> Noted[tuple[BudgetPart, ...] | None]:
        """The bytes of weights on the fullest GPU; ``None``, with a note, if they are unknown."""
        raise NotImplementedError

    def model_weights(self) -> ModelWeights | None:
        """The weights that the engine's own files hold; ``None`` if they are those that the model was published in or unknown."""
        return None


class Occupancy:
    """What a deployment holds under one load: every answer of the engine, each worked out once.

    :attr:`notes` collects what the engine assumed.
    """

    policy_class: ClassVar[type[PolicyRules]] = PolicyRules
    device_class: ClassVar[type[Devices]] = Devices

    def __init__(self, deployment: Deployment, load: Load, counts: Mapping[int, int] | None = None) -> None:
        """``counts`` are the tokens of each layer on which the policy acts, at another moment than the one that is planned."""
        self.deployment = deployment
        self.load = load
        self.counts = counts
        self.collected: list[Note] = []

    @property
    def engine(self) -> Engine:
        """The engine."""
        return self.deployment.engine

    @property
    def model(self) -> ModelSpec:
        """The model as the engine builds it."""
        return self.deployment.model

    @property
    def setup(self) -> Setup:
        """The setup that the server is started with."""
        return self.deployment.setup

    @cached_property
    def request(self) -> Request:
        """Setup and load together."""
        return Request(setup=self.deployment.setup, load=self.load)

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

    @property
    def hardware_warnings(self) -> tuple[Note, ...]:
        """Warnings where sources leave open whether the engine, or a format, runs on the accelerator."""
        return (*self.deployment.accelerator_warnings, *self.deployment.format_warnings)

    @property
    def tokens(self) -> int:
        """Tokens of one sequence."""
        return self.load.seq

    @property
    def batch(self) -> int:
        """The number of planned sequences."""
        return self.load.sequences

    def checked(self) -> Self:
        """This request, after the engine has filled in the defaults and accepted it. Raises the error of the engine."""
        self.deployment.accelerator_warnings  # noqa: B018 - refuses an accelerator on which the engine does not run
        self.deployment.shared("kinds", lambda: _check_kinds(self))
        # The notes on defaults come first.
        self.told(self.deployment.dtypes)
        if self.load.encoder_seq is not None or has_cross(self.model):
            self.encoder_tokens  # noqa: B018
        if self.setup.lora is not None:
            self.deployment.adapter_rules.check()
        check_read(self.deployment)
        self.check()
        self.deployment.format_warnings  # noqa: B018 - refuses formats that do not run on the accelerator
        group, ep = self.deployment.parallel.group, self.deployment.parallel.ep
        if group % ep:
            raise UsageError(
                f"ep {ep}: replicas of {self.engine.label} share no experts.", hint=f"Use: --ep {group}, or leave it out"
            )
        return self

    def sized(self, *, seq: int | None = None, batch: int | None = None) -> Self:
        """This deployment under a load of another length or batch. It is not checked again."""
        load = self.load
        seq, batch = load.seq if seq is None else seq, load.batch if batch is None else batch
        if seq == load.seq and batch == load.batch:
            return self
        return self.under(replace(load, seq=seq, batch=batch))

    def under(self, load: Load) -> Self:
        """This deployment under another load, which is not checked."""
        return self if load == self.load else type(self)(self.deployment, load)

    def changed(self, **change: Any) -> Self:
        """The request with some values changed, checked again. Raises the error of the engine if it refuses the change."""
        if change.keys() <= LOAD_FIELDS:
            return self.under(replace(self.load, **change)).checked()
        changed = self.engine.open(self.model, self.request.changed(**change))
        return cast("Self", changed)

    @property
    def dtypes(self) -> Dtypes:
        """The format of every role."""
        return self.deployment.dtypes.value

    @cached_property
    def encoder_tokens(self) -> int:
        """Tokens of the encoder's output; 0 if the model has no cross attention."""
        return self.told(encoder_length(self.model, self.load))

    @cached_property
    def kind_tensors(self) -> dict[LayerKind, tuple[StoredTensor, ...]]:
        """The tensors of one layer of each kind."""
        return {group.kind: self.tensors(group.kind) for group in self.stack.groups}

    @cached_property
    def rank_tensors(self) -> dict[LayerKind, tuple[StoredTensor, ...]]:
        """The tensors that the fullest rank of a replica stores for one layer of each kind."""
        parallel = self.setup.parallel
        if parallel.tp == self.request.replicas == 1:
            return self.kind_tensors
        rules, replica = self.deployment.weight_rules(), self.replica
        sharded = of_stack(
            self,
            (self.engine.name, "shards", parallel.tp),
            lambda: {group.kind: rules.shard(self.model, group.kind, parallel.tp) for group in self.stack.groups},
        )
        return {kind: replica.shard_tensors(shard) for kind, shard in sharded.items()}

    @cached_property
    def extras(self) -> tuple[StoredTensor, ...]:
        """The tensors that are stored once and belong to no layer."""
        return ()

    @cached_property
    def stored_bytes(self) -> int:
        """Bytes of cache that the engine stores for the batch, on all GPUs together."""
        layers = sum(group.count * bytes_of(self.kind_tensors[group.kind]) for group in self.stack.groups)
        return layers + bytes_of(self.extras)

    @cached_property
    def needed_bytes(self) -> int:
        """Bytes that the cache of the planned sequences takes on the fullest GPU."""
        raise NotImplementedError

    @property
    def group_reasons(self) -> tuple[str, ...]:
        """Sentences on why the blocks of groups are as large and as many as they are; empty where the formulas say it all."""
        return ()

    @cached_property
    def groups(self) -> tuple[PoolGroup, ...]:
        """The groups of layers that share a block table; empty if each layer has its own memory."""
        return ()

    @cached_property
    def weights(self) -> Noted[tuple[BudgetPart, ...] | None]:
        """The bytes of weights on the fullest GPU; ``None``, with a note, if they are unknown."""
        return self.deployment.shared("weights", self.deployment.weight_parts)

    @cached_property
    def budget(self) -> Budget | None:
        """The bytes that each GPU has left for the cache; ``None`` if the memory of the GPU or the size of the weights is unknown."""
        return self.told(self._plan_budget())

    def allocation(self, stage: int) -> tuple[Allocation, ...]:
        """The tensors that a rank of pipeline stage ``stage`` (from 0) allocates, in the order of the engine; none is empty."""
        raise NotImplementedError

    @cached_property
    def evicted(self) -> Evicted | None:
        """The tokens of the cache that the policy of the request leaves; ``None`` without a policy."""
        if self.setup.policy is None:
            return None
        from hwcalc.engines.policies import evicted_under

        return evicted_under(self)

    @property
    def stack(self) -> Stack:
        """The layers of the model, each with the tokens that the policy of the request leaves in it."""
        return self.deployment.plain_stack if self.evicted is None else self.evicted.stack

    @cached_property
    def sharing_support(self) -> Support:
        """The engine's support for keeping once what sequences have in common, and how; or what it does instead."""
        return Support(offered=False, how="every sequence is kept by itself")

    @property
    def shares(self) -> bool:
        """True if the engine keeps once what the planned sequences have in common."""
        sharing = self.load.sharing
        return sharing.asked and not sharing.apart and self.sharing_support.offered

    def in_common(self) -> InCommon:
        """The part that is kept once for several sequences, in tokens and, where the engine keeps whole blocks, in blocks."""
        return InCommon(*self.together.common_tokens)

    @cached_property
    def together(self) -> Together:
        """The planned sequences, as the engine keeps them."""
        request, sharing, shares = self.request, self.load.sharing, self.shares
        return Together(
            lengths=((request.load.seq, request.load.batch),)
            if request.load.lengths and self.deployment.traits.pads
            else request.load.lengths_of,
            branches=sharing.branches,
            prefix=sharing.prefix if shares else 0,
            prompt=request.load.prompt_tokens if shares else 0,
            # In blocks, what a policy leaves of a prompt is not the same in every branch for certain.
            forks=shares
            and sharing.branches > 1
            and not (self.engine.facts.pooled and self.evicted is not None and self.evicted.drops),
            replicas=request.replicas,
            scattered=max(sharing.scattered, request.replicas if self.engine.facts.scatters else 1),
        )

    @property
    def replica(self) -> Self:
        """The occupancy of the fullest data-parallel replica: that with the most sequences."""
        if self.request.replicas == 1:
            return self
        sharing = self.load.sharing
        if sharing.asked:
            sharing = replace(sharing, scattered=self.together.scattered)
        return self.under(replace(self.load, batch=self.request.replica_requests, sharing=sharing, of_replica=True))

    @property
    def policies(self) -> PolicyRules:
        """The rules by which the engine runs cache policies."""
        return self.policy_class(self)

    @property
    def devices(self) -> Devices:
        """The devices that layers lie on, for an engine that leaves some to the host."""
        return self.device_class(self)

    def reported(self) -> Reported:
        """The settings that a plan reports in the engine's words."""
        return Reported()

    def check_length(self) -> None:
        """Raise :class:`~hwcalc.errors.UsageError` if the sequences are longer than the server allows."""
        allowed, name = self.deployment.max_length, self.engine.facts.longest_option
        if allowed is not None and self.tokens > allowed:
            message = f"seq is {self.tokens:,} tokens, and {name} allows {allowed:,}."
            raise UsageError(message, hint=f"Use: --engine-option {name}={self.tokens}")

    def check(self) -> None:
        """Raise an error if the engine refuses the model or the request; add notes with :meth:`Occupancy.tell`."""

    def tensors(self, kind: LayerKind) -> tuple[StoredTensor, ...]:
        """The tensors that the engine stores for one layer of this kind. It is one of :attr:`kinds`."""
        raise NotImplementedError

    def shard_tensors(self, shard: LayerKind) -> tuple[StoredTensor, ...]:
        """The tensors that a tensor-parallel rank of a replica stores for this part of a layer."""
        return self.tensors(shard)

    def pool(self, budget_bytes: int) -> Noted[PoolInfo | None]:
        """The pool that the engine makes of ``budget_bytes`` on each GPU, in the figures of its own log; ``None`` if it has no pool."""
        return Noted(None)

    def _plan_budget(self) -> Noted[Budget | None]:
        """:attr:`budget` by the rules of this engine, with notes."""
        raise NotImplementedError

    def forward_tokens(self) -> tuple[int, int, int]:
        """The number of tokens that one forward pass of a replica processes: low, expected and high."""
        raise NotImplementedError

    def working(self) -> tuple[BudgetPart, ...]:
        """Memory that the engine needs during a forward pass besides the activations, such as copies while a cache grows."""
        return ()

    def holds(self, budget_bytes: int) -> bool:
        """True if the planned sequences fit into ``budget_bytes`` of cache on each GPU."""
        from hwcalc.engines.forms import Blocks

        return Blocks().holds(budget_bytes, self.needed_bytes)

    def pool_shares(self, budget_bytes: int) -> tuple[PoolShare, ...] | None:
        """The pools that the sequences of a replica fill in a budget per GPU, by the length of each; ``None`` where the engine has no such rule.

        Here they are the bytes of each GPU, of which sequences take as much as the curve says.
        """
        from hwcalc.engines.forms import Curve, StagedCurve
        from hwcalc.engines.pool import PoolShare

        curve, traits = self.curve(), self.deployment.traits
        if curve is None or type(curve) not in (Curve, StagedCurve) or traits.preallocates or traits.pads:
            return None

        def share(gpu: int) -> PoolShare:
            once = curve.bytes_on(gpu, 1, 0)
            of_sequence = lambda tokens: curve.bytes_on(gpu, tokens, 1) - once  # noqa: E731 - a rule of this GPU
            return PoolShare(name="bytes", total=budget_bytes - once, of_sequence=of_sequence)

        return tuple(map(share, range(len(curve.gpus))))

    def most_sequences(self) -> tuple[int, str] | None:
        """The most sequences that the engine runs at once, however much memory there is, and the option that says so; ``None`` is no limit."""
        return None

    def savings(self, short_bytes: int) -> Iterable[Saving]:
        """Settings of this engine that take less memory of the planned GPU, and that both can do.

        ``short_bytes`` is what the fullest GPU lacks. The planner tries each, so that one that does not help may be among them.
        """
        return ()

    def curve(self) -> Curve | None:
        """The bytes of the cache at every length and number of sequences, in the normal form; ``None`` if there is none. No GPU is needed."""
        return None

    def form(self) -> MemoryForm | None:
        """The memory of a GPU at every length and number of sequences, in the normal form; ``None`` if there is none.

        The form does not depend on the length and batch of this load. There is none without a GPU, or where the budget is unknown.
        """
        return None


def without_sharing(occupancy: AnyOccupancy) -> AnyOccupancy:
    """The same sequences, of which each is kept by itself."""
    load = occupancy.load
    return occupancy.under(replace(load, sharing=replace(load.sharing, apart=True))) if occupancy.shares else occupancy


def of_one(occupancy: AnyOccupancy) -> AnyOccupancy:
    """A single sequence of the same length."""
    return occupancy.under(replace(occupancy.load, batch=1, sharing=UNSHARED, lengths=()))


def _check_kinds(occupancy: Occupancy) -> None:
    """Raise an error for a model without a class, and for a layer of the model, or of its draft, without a rule."""
    engine, setup = occupancy.engine, occupancy.setup
    occupancy.deployment.check_class()
    engine.refuse_kinds(occupancy.deployment.plain_stack)
    for draft in (setup.draft, setup.option_draft):
        if draft is not None:
            alone = occupancy.request.changed(draft=None, option_draft=None, options={}, policy=None, sharing=UNSHARED)
            engine.refuse_kinds(engine.unchecked(draft.as_built_by(engine.name), alone).deployment.plain_stack)


def kept_form(occupancy: Occupancy) -> MemoryForm | None:
    """The memory of a GPU under every load that differs in length and number of sequences alone; ``None`` if there is no form."""
    forms, like = occupancy.deployment.closed_forms, replace(occupancy.load, seq=1, batch=1)
    if like not in forms:
        forms[like] = occupancy.form()
    return forms[like]
