"""What an engine answers: what it stores for a layer, what a request holds, what a byte budget gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from hwcalc.engines.budget import Budget, BudgetPart
from hwcalc.engines.options import Option, choice_option, integer_option, number_option, parse_kv_dtype
from hwcalc.engines.pool import PoolGroup, PoolInfo
from hwcalc.engines.request import Request
from hwcalc.engines.stored import Context, Dtypes, StoredTensor
from hwcalc.errors import UnknownNameError, UsageError
from hwcalc.formulas import LayerKind
from hwcalc.model import Definition, ModelSpec, Note

if TYPE_CHECKING:
    from hwcalc.engines.lora import Lora
    from hwcalc.engines.rank_weights import RankBytes, Rules
    from hwcalc.engines.stored import Allocation
    from hwcalc.planner.result import Plan

__all__ = [
    "Engine",
    "Option",
    "choice_option",
    "integer_option",
    "number_option",
    "parse_kv_dtype",
]


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
    options: ClassVar[Mapping[str, Option]] = MappingProxyType({})
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

    @abstractmethod
    def dtypes(self, model: ModelSpec, request: Request, notes: list[Note]) -> Dtypes:
        """The format of every role, by this engine's rules; what had to be assumed goes into ``notes``."""

    @abstractmethod
    def tensors(self, kind: LayerKind, context: Context) -> tuple[StoredTensor, ...]:
        """What this engine stores for one layer of this kind. A kind without a rule is an error, never a guess."""

    def rank_bytes(self, context: Context, total_bytes: int) -> int:
        """What the GPU that holds most keeps of ``total_bytes`` of cache: its shard of the layers of its stage, for its replica.

        The general rule: heads are divided over ``tp`` and a latent is not, layers over ``pp``, sequences over ``dp``, and the tokens
        of attention over ``dcp``. An engine that allocates otherwise says so by its own method.
        """
        from hwcalc.engines.ranks import fullest_rank_bytes

        return total_bytes if context.request.gpus == context.request.dcp == 1 else fullest_rank_bytes(self, context)

    def allocation(self, context: Context, stage: int) -> tuple[Allocation, ...]:
        """The tensors that a rank of pipeline stage ``stage`` asks its device for, in the engine's order; none is empty."""
        from hwcalc.engines.allocation import layer_allocations

        return layer_allocations(self, context, stage)

    def groups(self, context: Context) -> tuple[PoolGroup, ...]:
        """Layers that share a block table; none where every layer has memory of its own."""
        return ()

    def pool(self, context: Context, budget_bytes: int) -> PoolInfo | None:
        """What ``budget_bytes`` of cache on each GPU hold, as the engine's own log counts it; ``None`` without a pool."""
        return None

    def budget(self, context: Context) -> Budget | None:
        """How many bytes each GPU has left for the cache; ``None`` without a GPU of known memory, or if the weights are unknown.

        The general equation of :mod:`hwcalc.engines.equation`; an engine with an equation of its own has its own method.
        """
        from hwcalc.engines.equation import plan_equation

        return plan_equation(self, context)

    def forward_tokens(self, context: Context) -> tuple[int, int, int]:
        """Tokens that one forward pass of a replica takes at once: low, expected and high."""
        from hwcalc.engines.costs import chunk_tokens

        return chunk_tokens(context)

    def working(self, context: Context) -> tuple[BudgetPart, ...]:
        """What the engine needs for a while beside one forward pass, such as copies while a cache grows."""
        return ()

    def weight_rules(self) -> Rules:
        """How it cuts a model's weights over ranks; evenly, unless the engine has habits of its own."""
        from hwcalc.engines.rank_weights import REFERENCE

        return REFERENCE

    def plain_dtype(self, context: Context) -> str:
        """The dtype in which weights without a format of their own are kept."""
        return self.weight_rules().plain(context.model, None).name

    def weight_parts(self, context: Context) -> tuple[BudgetPart, ...] | None:
        """What the model's weights take of the fullest GPU; ``None``, with a note, where they are not known."""
        from hwcalc.engines.equation import rank_weights_part

        part = rank_weights_part(self, context)
        return None if part is None else (part,)

    def lora_bytes(self, context: Context, lora: Lora) -> RankBytes | None:
        """What adapters take of the fullest GPU; ``None`` where the layers that they stand beside are not counted."""
        from hwcalc.engines.lora import lora_bytes_rank

        request = context.request
        ranks = {"tp": request.tp, "pp": request.pp, "dp": request.dp, "ep": request.ep}
        return lora_bytes_rank(context.model, lora, rules=self.weight_rules(), **ranks)

    def needed_bytes(self, context: Context) -> int:
        """What the cache of the planned sequences needs on the fullest GPU."""
        from hwcalc.engines.ranks import stored_bytes

        return self.rank_bytes(context, 0 if context.request.gpus * context.request.dcp > 1 else stored_bytes(self, context))

    def most_sequences(self, context: Context) -> tuple[int, str] | None:
        """How many sequences the engine runs at once whatever the memory, and the name of what says so; ``None`` is any number."""
        return None

    def longest(self, context: Context, budget_bytes: int, bound: int) -> int | None:
        """The most tokens up to ``bound`` that each planned sequence may have, where the engine's plan knows without trying."""
        return None

    def periods(self, context: Context) -> frozenset[int]:
        """Lengths after which what waits in a buffer falls back to nothing; empty where a longer sequence never takes less."""
        return frozenset()

    def command(self, plan: Plan) -> list[str]:
        """The words of the engine's own command line for a plan; only where :attr:`has_command` says that it has one."""
        raise UsageError(f"{self.label} has no command line.", hint="Leave out --emit.")

    def expands_latents(self, context: Context) -> bool:
        """Whether latent attention is kept as keys and values of every head."""
        return False

    def flag(self, name: str, value: object) -> str:
        """An option of kvplan in the engine's own words: ``--seq 4096`` unless it has its own."""
        return f"--{name.replace('_', '-')} {value}"

    def extras(self, context: Context) -> tuple[StoredTensor, ...]:
        """What it stores once for the whole model beside the layers."""
        return ()

    def check(self, context: Context) -> None:
        """Raise if the engine refuses this model or this combination as a whole."""


def elements(tensor: StoredTensor) -> int:
    """Elements of one sequence."""
    return prod(tensor.shape) * tensor.positions
