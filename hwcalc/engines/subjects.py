"""What only some engines have an answer to, one object a subject. The classes here answer for all other engines.

An engine that lays layers on several devices, or runs cache policies, returns a subclass from :attr:`Occupancy.devices` or
:attr:`Occupancy.policies`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, TypeVar, cast

from msgspec import Struct

from hwcalc.engines.stored import PagedGroup, Support
from hwcalc.errors import UnsupportedError
from hwcalc.formulas.record import Record
from hwcalc.model import Note, Noted

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Deployment, Occupancy
    from hwcalc.engines.devices import DeviceReads, Placement
    from hwcalc.engines.general import GeneralOccupancy
    from hwcalc.engines.options import Lora
    from hwcalc.engines.rank_weights import RankBytes
    from hwcalc.policies.base import Chosen


AnyOccupancy = TypeVar("AnyOccupancy", bound="Occupancy")


class Traits(Struct, frozen=True, kw_only=True):
    """The traits of a deployment under every load."""

    attention_kernel: str = ""
    """The kernel of attention that the user names, where accelerators differ in those they run; empty if the engine chooses."""
    build: int | None = None
    """The number of the build, where the engine counts them."""
    deals_experts: bool = False
    """True if data-parallel replicas share the experts: attention is data parallel, and whole experts are dealt out to all ranks."""
    drafted_tokens: int = 0
    """Tokens that are drafted for each sequence at a time, as the engine's options say; 0 where they say nothing of it."""
    expands_latents: bool = False
    """True if the engine stores latent attention as keys and values of every head."""
    pads: bool = False
    """True if every sequence of a batch takes as much as the longest of them."""
    preallocates: bool = False
    """True if each sequence has the place of all its tokens from the start."""
    periods: frozenset[int] = frozenset()
    """The numbers of tokens after which a buffer of the cache is emptied; empty if a longer sequence never takes less memory."""
    sizes_by_token: bool = False
    """True if a layer that a policy cuts takes as many bytes for each token that is left, in tensors of its own."""


class Reported(Struct, frozen=True):
    """What a plan reports of an engine's settings besides the request's."""

    settings: Mapping[str, int | str | bool] = MappingProxyType({})
    """Where the engine rounds or fills in what the request says: the values by the engine's own names."""
    environment: tuple[str, ...] = ()
    """Variables, with their values, that must be set for the engine to accept the request: ``NAME=1``."""
    chosen: tuple[str, ...] = ()
    """Variables that say an option of the request for which the release has no flag."""


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


class AdaptersInfo(Record):
    """Adapters that are served together. ``gpu_bytes`` are those of ``count`` adapters on the fullest rank, ``low`` and ``high`` their range;
    with ``reserved`` the engine takes them whatever is loaded. ``loaded`` adapters lie in host memory, in as many bytes of all processes
    together; 0 where the engine keeps none there. Null is unknown.
    """

    count: int
    rank: int
    reserved: bool
    loaded: int
    gpu_bytes: int | None
    gpu_low_bytes: int | None
    gpu_high_bytes: int | None
    host_bytes: int | None
    host_high_bytes: int | None
    source: str


class AdapterRules:
    """How an engine serves the adapters of ``--lora`` together: by default it loads each as it is, and keeps none in host memory."""

    reserved_by: ClassVar[str] = ""
    """The option for whose number of adapters the engine reserves memory, whatever is loaded; empty if it loads each as it is."""
    loaded_by: ClassVar[str] = ""
    """The option that says how many adapters lie in host memory; empty if the engine keeps all on the GPU."""
    alone: ClassVar[str] = ""
    """What the engine does in place of serving several adapters, as a sentence; empty if it serves them."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment

    @property
    def lora(self) -> Lora:
        """The adapters of ``--lora``, which are given."""
        lora = self.deployment.setup.lora
        assert lora is not None
        return lora

    def check(self) -> None:
        """Raise an error for adapters that the engine does not serve together, or does not keep in host memory."""
        label = self.deployment.engine.label
        if self.alone and self.lora.count > 1:
            raise UnsupportedError(f"{label} serves no adapters together: {self.alone}", hint="Use: --lora with count=1")
        if self.lora.loaded is not None and not self.loaded_by:
            raise UnsupportedError(
                f"{label} keeps no adapters in host memory.", hint="Leave out loaded= of --lora, or count them all: count=N"
            )

    def on_gpu(self) -> RankBytes | None:
        """Bytes of adapters on the fullest rank; ``None`` if the model's weights are not counted."""
        from hwcalc.engines.weights_beside import lora_bytes_rank

        deployment = self.deployment
        return lora_bytes_rank(deployment.model, self.lora, deployment.parallel, rules=deployment.weight_rules())

    def on_host(self) -> tuple[int, int] | None:
        """The least and the most bytes of host memory, of all ranks together, that adapters take while they are not needed.

        ``None`` if the engine keeps none there, or the model's weights are not counted. By default each rank has a process, and that has
        every loaded adapter as a whole, in pinned memory that PyTorch rounds up.
        """
        from hwcalc.engines.weights_beside import pinned_lora_bytes

        each = pinned_lora_bytes(self.deployment.model, self.lora) if self.loaded_by else None
        times = self.loaded * self.deployment.setup.gpus
        return None if each is None else (times * each[0], times * each[1])

    @property
    def loaded(self) -> int:
        """The number of adapters in host memory. By default no more than the GPU has at once."""
        return self.lora.count if self.lora.loaded is None else self.lora.loaded

    def info(self) -> AdaptersInfo:
        """The adapters on a GPU and in host memory."""
        size, host = self.on_gpu(), self.on_host()
        least, most = (None, None) if host is None and self.loaded_by else host or (0, 0)
        return AdaptersInfo(
            count=self.lora.count,
            rank=self.lora.rank,
            reserved=bool(self.reserved_by),
            loaded=self.loaded if self.loaded_by else 0,
            gpu_bytes=None if size is None else size.expected,
            gpu_low_bytes=None if size is None else size.low,
            gpu_high_bytes=None if size is None else size.high,
            host_bytes=least,
            host_high_bytes=most,
            source="" if size is None else size.source,
        )

    def notes(self) -> tuple[Note, ...]:
        """A note on what the engine reserves whatever is loaded, and on what lies in host memory."""
        from hwcalc.units import human_bytes

        if not self.reserved_by:
            return ()
        host = self.on_host()
        message = f"{self.deployment.engine.label} reserves the memory of {self.lora.count:,} adapters ({self.reserved_by}), whatever is loaded"
        if host is not None:
            size = " to ".join(dict.fromkeys(map(human_bytes, host)))
            message += f"; {self.loaded:,} in host memory ({self.loaded_by}) take {size}"
        return (Note(code="adapters", message=f"{message}."),)


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
