"""What accelerators can do, where layers lie, and what can be set so that a plan takes less memory.

Only engines that put some layers on a GPU and others in the memory of the host have a :class:`Placement`.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import Struct, field
from msgspec.structs import asdict

from hwcalc.errors import UsageError
from hwcalc.formulas import LayerNumbers
from hwcalc.formulas.arithmetic import picked, smaller
from hwcalc.formulas.record import Record
from hwcalc.units import GIB

if TYPE_CHECKING:
    from hwcalc.engines.memory import BudgetPart
    from hwcalc.engines.setup import Parallel
    from hwcalc.model import Definition
    from hwcalc.profiles.hardware_file import Gpu

HOST_SHARE: Final = 4
"""Times the memory of its GPUs that a host may well have (:func:`hwcalc.engines.devices.host_holds` says of which machines)."""

HOST: Final = "host"
"""The name of the device that is the memory of the host; GPUs are ``gpu0``, ``gpu1``."""


class DeviceShare(Record):
    """The content of one device. ``parts`` are what it needs besides weights and cache: buffers of a pass, the process itself."""

    device: str
    layers: LayerNumbers
    output: bool
    """True if the output layer lies here, which makes the logits."""
    weights_bytes: int
    cache_bytes: int
    parts: tuple[BudgetPart, ...] = ()

    def needed(self, end: str = "expected") -> int:
        """Bytes of it all, with the parts at this end of their range: low, expected or high."""
        parts: int = sum(getattr(part, end) for part in self.parts)
        return self.weights_bytes + self.cache_bytes + parts


class Placement(Record):
    """The share of each device: the GPUs in order, and the host last. ``fullest`` is the GPU that has the least left.

    Without any GPU that is the host. ``gpu_layers`` of ``all_layers`` lie on the GPUs, as the engine counts them: 25 of 33 are 24 of 32
    blocks and the output; both are ``None`` without any GPU.
    ``experts_on_host`` are the layers on a GPU whose experts lie in the memory of the host.
    """

    devices: tuple[DeviceShare, ...]
    fullest: int
    gpu_layers: int | None
    all_layers: int | None
    experts_on_host: LayerNumbers = field(default_factory=LayerNumbers)
    moved_bytes: int = 0
    """Weights that patterns of the user have put in host memory."""

    @property
    def gpus(self) -> tuple[DeviceShare, ...]:
        """The shares of the GPUs."""
        return tuple(device for device in self.devices if device.device != HOST)

    @property
    def main(self) -> tuple[DeviceShare, ...]:
        """The devices that a model is meant to lie on: the GPUs, or the host where there is none."""
        return self.gpus or self.devices

    @property
    def host(self) -> DeviceShare:
        """The share of the host."""
        return self.devices[-1]


class TensorGroup(Record):
    """Tensors of one kind: how many layers have them, and by type the bits of a number itself, parameters and bytes.

    ``mtp`` are not loaded by themselves.
    """

    kind: str
    layers: int
    types: tuple[tuple[str, int, int, int], ...]
    mtp: bool = False


class ModelWeights(Record):
    """The tensors of a model as the engine reads them from its files, each counted once."""

    bytes: int
    definition: Definition
    source: str
    groups: tuple[TensorGroup, ...] = ()
    other_bytes: tuple[int, ...] = ()
    """The same made in other ways, where the name of the format leaves that open."""


def check_stages(label: str, sizes: Parallel) -> None:
    """Check that nothing but layers is divided over GPUs. Raises :class:`~hwcalc.errors.UsageError`."""
    for name, size in asdict(sizes).items():
        if size > 1 and name != "pp":
            raise UsageError(
                f"--{name} {size:,}: {label} gives each GPU a run of layers, and divides nothing else.",
                hint=f"Give the number of GPUs: --gpus {sizes.tp * sizes.pp * sizes.dp:,}",
            )


class WeightRead(Record):
    """Tensors of one format and use on one device. Of ``copies`` experts, or rows of a table, a token uses ``active``."""

    format: str
    use: Literal["always", "chosen", "row", "last"]
    elements: int
    bytes: int
    copies: int = 1
    active: int = 1


class Copied(Record):
    """Weights that a pass of at least ``tokens`` tokens copies to an accelerator, which multiplies by them: over a link of ``gbps``.

    A pass of fewer tokens multiplies where they lie.
    """

    tokens: int
    gbps: float

    def by(self, tokens: Any) -> Any:
        """True if a pass of so many tokens copies; of an array an array."""
        return tokens >= self.tokens

    def rate(self, memory: float, tokens: Any, share: float = 1.0) -> Any:
        """Bytes per second that a pass gets of these weights, where their memory delivers ``memory`` and a link this share of its rate."""
        return picked(self.by(tokens), smaller(memory, self.gbps * 1e9 * share), memory)


class DeviceReads(Record):
    """The bytes that a pass reads on one device: the weights there, and the caches of these layers.

    ``gbps`` is what the memory there delivers, ``None`` for that of the accelerator. ``at_once`` devices read their parts at the same
    time; all others wait for each other. A prompt is computed ``pass_tokens`` at a time, all at once if that is ``None``; of the
    ``last_layer`` its passes may compute no more than the last token, whose output is wanted. Weights that are ``copied`` go over a link.
    """

    device: str
    weights: tuple[WeightRead, ...]
    cache_layers: LayerNumbers
    gbps: float | None = None
    at_once: int = 1
    pass_tokens: int | None = None
    last_layer: tuple[WeightRead, ...] = ()
    copied: Copied | None = None


class Cost(enum.IntEnum):
    """The cost of a change, the least first: nothing, digits that are hardly missed, money, use, and quality."""

    NOTHING = 0
    """An option is set back to its default, or to what the plan needs."""
    CACHE = 1
    """The cache keeps eight bits of a number instead of sixteen."""
    WEIGHTS = 2
    """So do the weights."""
    SPEED = 3
    """The answers are the same, but come a little later."""
    PARTLY = 4
    """Layers or experts lie in the memory of the host, which computes them: what llama.cpp does by itself."""
    GPUS = 5
    """More GPUs of the same kind."""
    GPU = 6
    """Another GPU."""
    BATCH = 7
    """Fewer sequences at once."""
    LENGTH = 8
    """Shorter sequences."""
    FEW_BITS = 9
    """Weights of four bits."""
    FEW_CACHE_BITS = 10
    """A cache of four bits."""
    FEWER_BITS = 11
    """Weights of three bits or two, which answer noticeably worse."""
    HOST = 12
    """A part lies in the memory of the host, and is fetched for every token."""


class Saving(Struct, frozen=True):
    """Options of a plan that change so that it takes less or fits, by name, and in words. A ``gpu`` is the accelerator itself."""

    cost: Cost
    what: str
    settings: Mapping[str, Any]
    parts: int = 1

    def __or__(self, other: Saving) -> Saving:
        """The change that makes both changes. It costs what the dearer of the two costs."""
        options = {**self.settings.get("engine_options", {}), **other.settings.get("engine_options", {})}
        settings = {**self.settings, **other.settings, **({"engine_options": options} if options else {})}
        what = ", ".join(filter(None, (self.what, other.what)))
        return Saving(cost=max(self.cost, other.cost), what=what, settings=settings, parts=self.parts + other.parts)

    @property
    def rank(self) -> tuple[int, int]:
        """The sort key among offers: first the cost, then the number of changes that are combined."""
        return self.cost, self.parts

    @property
    def key(self) -> Hashable:
        """The settings, whatever their order: an accelerator by its id, a mapping by its items."""
        return frozenset(
            [
                (name, tuple(value.items()) if name == "engine_options" else value.id if name == "gpu" else value)
                for name, value in self.settings.items()
            ]
        )


def computes_fp8(gpu: Gpu | None) -> bool:
    """True if fp8 is a format of this GPU's own, and not only kept in it. Unknown counts as no, and no GPU as yes."""
    return gpu is None or gpu.fp8_kv == "native"


def computes_fp4(gpu: Gpu | None) -> bool:
    """True if this GPU computes with numbers of four bits."""
    return gpu is not None and gpu.tflops_dense.get("fp4") is not None


def host_holds(gpu: Gpu | None, moved_bytes: int) -> bool:
    """True if the host may take so much for each GPU: it has a memory of its own, of a size that people install with such a GPU.

    No profile says how much memory a host has. Servers are sold with two to three times the memory of their GPUs (2 TB with eight H100
    of 80 GB), and desktops reach four times (96 GB with 24 GB); what needs more is no advice.
    """
    if gpu is None:
        return True
    return not gpu.shares_host_memory and moved_bytes <= HOST_SHARE * (gpu.memory_marketing_gb or 0) * GIB


_HOPPER: Final = 90


def compute_capability(gpu: Gpu | None) -> int:
    """Compute capability as a whole number: 90 for 9.0. Without a GPU, or for one without CUDA, that of an H100."""
    if gpu is None or gpu.compute_capability is None:
        return _HOPPER
    major, _, low = gpu.compute_capability.partition(".")
    return int(major) * 10 + int(low or 0)
