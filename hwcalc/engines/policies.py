"""What engines ask and say of cache policies."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, Self, TypeVar, cast

from msgspec.structs import replace

from hwcalc.engines.request import Family, Request
from hwcalc.engines.steps import Step
from hwcalc.formulas import Stack
from hwcalc.formulas.record import Record
from hwcalc.model import ModelSpec

if TYPE_CHECKING:
    from hwcalc.engines.cut_layers import CutLayers
    from hwcalc.engines.evicting import Evicted
    from hwcalc.policies.base import Chosen, Setting

__all__ = ["Dropping", "EngineOfPolicy", "PagedGroup", "Policies", "Support"]

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})

OpenedT = TypeVar("OpenedT")
T = TypeVar("T")


class Support(Record):
    """Whether an engine has a policy, and how; or what it would take."""

    offered: bool
    how: str
    options: Mapping[str, str] = _NOTHING
    """Engine options with which an offered policy is started."""
    flags: tuple[str, ...] = ()
    """Words of its command line beside."""
    environment: tuple[str, ...] = ()
    """Variables with their values that it reads."""


class PagedGroup(Record):
    """Layers that share one block table. ``layers`` are the numbers of those that the policy cuts, and ``whole`` says that these are all.

    ``block_size`` counts tokens on all ranks together, and ``page_bytes`` is a block of all its layers on one rank. ``counted`` says how
    many blocks a sequence has at the most behind its prompt. ``prompt_tokens`` are the most of a prompt that lie in it, where a prompt is
    cut while it is read; ``None`` is all of them.
    """

    block_size: int
    layers: tuple[int, ...]
    whole: bool
    page_bytes: int
    counted: Step
    prompt_tokens: int | None = None

    @property
    def steady(self) -> int:
        """The most blocks of a sequence behind its prompt."""
        return int(self.counted.expected)


class Policies(Generic[OpenedT]):
    """The part of an engine that is about cache policies. By default it has none."""

    def policy_support(self, opened: OpenedT, chosen: Chosen) -> Support:
        """Whether the engine has this policy, and how, or what it would take."""
        return Support(offered=False, how="")

    def prefill_bytes(self, opened: OpenedT, stage: int) -> int:
        """Bytes of cache on a GPU of this pipeline stage while the last layer of the prompt is scored. By default nothing is cut yet."""
        asked: Any = opened
        return int(asked.replica.sized(seq=asked.request.prompt_tokens).without_policy().needed_bytes)

    def scored_at_once(self, opened: OpenedT) -> tuple[int, int]:
        """Prompts of a replica that one forward pass scores, and the tokens that it takes of them. By default the whole batch.

        Where branches of a request fork from one prompt, it is read and scored once.
        """
        request, forks = cast("Dropping", opened).request, cast("Any", opened).together.forks
        prompts = request.replica_requests if forks else request.replica_batch
        return prompts, prompts * request.prompt_tokens

    def sizes_by_token(self, opened: OpenedT) -> bool:
        """Whether a layer that a policy cuts takes as many bytes for each token that is left, in tensors of its own."""
        return False

    def paged_groups(self, opened: OpenedT) -> tuple[PagedGroup, ...]:
        """The groups of layers that share blocks and on which the policy of the request acts; none where the cache has no blocks."""
        return ()


class EngineOfPolicy(Protocol):
    """What is asked of the engine of an opened request; its module imports this one."""

    name: ClassVar[str]
    pooled: ClassVar[bool]

    def weight_dtype(self, opened: Any) -> str: ...

    def unchecked(self, model: ModelSpec, request: Request) -> Any: ...


class Dropping(Family):
    """The part of an opened request that is about its policy: its layers, with the tokens that the policy leaves in each."""

    engine: EngineOfPolicy
    model: ModelSpec

    @property
    def ahead(self) -> int:
        """Tokens of a prefix that the engine keeps once, on which no policy can act. By default nothing is kept once."""
        return 0

    @cached_property
    def evicted(self) -> Evicted | None:
        """What the policy of the request leaves of the cache; ``None`` without a policy."""
        asked, request = self.request.policy, self.request
        if asked is None:
            return None
        from hwcalc.engines.evicting import evicted_of

        # An engine without a pool takes a batch through one prefill.
        together = 1 if self.engine.pooled else request.sequences
        setting = replace(self._policy_setting, batch=request.sequences, together=together)
        # A prefix that others need too cannot go: the policy acts behind it. A solver also tries sequences that are all prefix.
        ahead, plain = min(self.ahead, request.prompt_tokens), self.plain_stack
        tokens, prompt = request.seq - ahead, request.prompt_tokens - ahead
        found = self.shared(
            ("evicted", tokens, prompt, ahead, together),
            lambda: evicted_of(asked.chosen, tokens, prompt, setting, plain, ahead),
        )
        return found.with_setting(setting)

    @property
    def _policy_setting(self) -> Setting:
        """What the policy is told of the model; the batch is not known yet."""
        return self.shared("policy setting", self._make_setting)

    def _make_setting(self) -> Setting:
        from hwcalc.engines.evicting import shapes_of
        from hwcalc.formulas.formats import FLOATS
        from hwcalc.policies.base import Setting
        from hwcalc.policies.outcome import kernel_for

        asked, plain = self.request.policy, self.plain_stack
        assert asked is not None
        return Setting(
            layers=self.model.once((self.engine.name, "policy layers"), lambda: shapes_of(plain)),
            depth=len(plain),
            attention=kernel_for(asked.chosen, None),
            rules=asked.rules,
            element_bytes=FLOATS[self.engine.weight_dtype(self)].bits // 8,
            hidden_size=self.model.hidden_size,
        )

    @property
    def plain_stack(self) -> Stack:
        """The layers of the model as this engine reads the config."""
        return self.model.stack_for(self.engine.name)

    @property
    def stack(self) -> Stack:
        """The layers as the request has them: those of the model, each with the tokens that a policy leaves in it."""
        return self.plain_stack if self.evicted is None else self.evicted.stack

    @cached_property
    def cut_layers(self) -> CutLayers | None:
        """Bytes of the layers that the policy cuts, where they follow from those of a token."""
        if self.request.policy is None:
            return None
        from hwcalc.engines.cut_layers import cut_layers

        return cut_layers(self)

    def of_stack(self, key: Hashable, make: Callable[[], T]) -> T:
        """The result of ``make``, which depends on the layers alone: the model keeps it, unless a policy changes them."""
        return self.model.once(key, make) if self.evicted is None else make()

    def holding(self, counts: Mapping[int, int]) -> Self:
        """The same request with these tokens in each layer on which the policy acts."""
        assert self.evicted is not None
        other = self.sibling(self.request)
        vars(other)["evicted"] = self.evicted.holding(counts)
        return other

    def without_policy(self) -> Self:
        """The same request, of which nothing is dropped."""
        if self.request.policy is None:
            return self
        plain: Self = self.engine.unchecked(self.model, replace(self.request, policy=None))
        return plain
