"""What only some engines have an answer to, one object a subject. The classes here answer for all other engines.

An engine that lays layers on several devices, or runs cache policies, returns a subclass from :attr:`Occupancy.devices` or
:attr:`Occupancy.policies`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar, cast

from msgspec import Struct

from hwcalc.engines.stored import PagedGroup, Support
from hwcalc.model import Noted

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.devices import DeviceReads, Placement
    from hwcalc.engines.general import GeneralOccupancy
    from hwcalc.policies.base import Chosen


AnyOccupancy = TypeVar("AnyOccupancy", bound="Occupancy")


class Traits(Struct, frozen=True, kw_only=True):
    """What holds of a deployment under every load."""

    attention_kernel: str = ""
    """The kernel of attention that the user names, where accelerators differ in those they run; empty if the engine chooses."""
    deals_experts: bool = False
    """Whether data-parallel replicas share the experts: attention is data parallel, and whole experts are dealt out to all ranks."""
    drafted_tokens: int = 0
    """Tokens that are drafted for each sequence at a time, as the engine's options say; 0 where they say nothing of it."""
    expands_latents: bool = False
    """Whether the engine stores latent attention as keys and values of every head."""
    pads: bool = False
    """Whether every sequence of a batch takes as much as the longest of them."""
    preallocates: bool = False
    """Whether each sequence has the place of all its tokens from the start."""
    periods: frozenset[int] = frozenset()
    """Every how many tokens a buffer of the cache is emptied; empty if a longer sequence never takes less memory."""
    sizes_by_token: bool = False
    """Whether a layer that a policy cuts takes as many bytes for each token that is left, in tensors of its own."""


class Reported(Struct, frozen=True):
    """What a plan reports of an engine's settings besides the request's."""

    settings: Mapping[str, int | str | bool] = MappingProxyType({})
    """Where the engine rounds or fills in what the request says: the values by the engine's own names."""
    environment: tuple[str, ...] = ()
    """Variables, with their values, that must be set for the engine to accept the request: ``NAME=1``."""


class Devices:
    """Where layers lie: by default all GPUs are alike, and nothing is left to the host."""

    def __init__(self, occupancy: Occupancy) -> None:
        self.occupancy = occupancy

    def placement(self) -> Placement | None:
        """The share of each device for the planned sequences; ``None`` without hardware, or if the engine places nothing."""
        return None

    def reads(self) -> Noted[tuple[DeviceReads, ...]]:
        """The reads of a pass on each device, with notes; empty where all GPUs are alike and the weights are as published."""
        return Noted(())

    def lacking(self, end: str) -> str | None:
        """The name of the memory, other than that of the fullest GPU, that is too small at this end of the estimates; ``None`` if none is."""
        return None

    def entire(self) -> Occupancy:
        """The occupancy with everything on the GPUs, where the engine would leave a part on the host by default."""
        return self.occupancy

    def pinned(self) -> Occupancy:
        """The occupancy whose other lengths and batches keep every layer on the device that it has in this plan."""
        return self.occupancy

    def fitting_length(self) -> Noted[int | None]:
        """The length that the engine gives sequences where the user names none; ``None`` is as long as the model allows."""
        return Noted(None)

    def most_tokens(self) -> int | None:
        """The most tokens that an option of the engine allows a sequence, however much memory there is; ``None`` is no limit."""
        return self.occupancy.deployment.max_length


class PolicyRules:
    """How an engine runs cache policies, if it does: by default each layer is cut only after the whole prompt has been read."""

    def __init__(self, occupancy: Occupancy) -> None:
        self.occupancy = occupancy

    def support(self, chosen: Chosen) -> Support:
        """The engine's support of this policy: that it has it, and how, or what it would take."""
        return Support(offered=False, how="")

    @property
    def ahead(self) -> int:
        """Tokens of a prefix that the engine keeps once, on which no policy can act."""
        return self.occupancy.load.sharing.prefix if self.occupancy.shares else 0

    def holding(self, counts: Mapping[int, int]) -> Occupancy:
        """The occupancy with ``counts`` tokens in each layer on which the policy acts."""
        occupancy = self.occupancy
        return type(occupancy)(occupancy.deployment, occupancy.load, counts)

    def prefill_bytes(self, stage: int) -> int:
        """Bytes of cache on a GPU of this pipeline stage while the last layer of the prompt is scored. By default nothing is cut yet."""
        occupancy = self.occupancy
        return int(without_policy(occupancy.replica.sized(seq=occupancy.load.prompt_tokens)).needed_bytes)

    def scored_at_once(self) -> tuple[int, int]:
        """Prompts of a replica that one forward pass scores, and the tokens that it takes of them. By default the whole batch.

        Where branches of a request fork from one prompt, it is read and scored once.
        """
        request = self.occupancy.request
        prompts = request.replica_requests if self.occupancy.together.forks else request.replica_batch
        return prompts, prompts * request.load.prompt_tokens

    def paged_groups(self) -> tuple[PagedGroup, ...]:
        """The groups of layers that share blocks and on which the policy of the request acts; none where the cache has no blocks."""
        return ()


class WholePrompts(PolicyRules):
    """Those of an engine whose cache has a place for the whole prompt from the start, whatever is cut of it later."""

    def prefill_bytes(self, stage: int) -> int:
        return self.occupancy.needed_bytes


class LayerByLayer(PolicyRules):
    """Those of an engine that cuts each layer before the next one begins, while the prompt is read."""

    occupancy: GeneralOccupancy

    def prefill_bytes(self, stage: int) -> int:
        from hwcalc.engines.policies import stage_prefill_bytes

        return stage_prefill_bytes(self.occupancy, stage)


def without_policy(occupancy: AnyOccupancy) -> AnyOccupancy:
    """The same load without the policy: nothing is dropped."""
    if occupancy.setup.policy is None:
        return occupancy
    return cast("AnyOccupancy", occupancy.engine.unchecked(occupancy.model, occupancy.request.changed(policy=None)))
