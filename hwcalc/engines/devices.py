"""Where the layers lie, for engines that put some on a GPU and others in the memory of the host.

An engine that divides each layer over all GPUs, or that has a run of layers on each stage by the general rule, places nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeVar

from msgspec import field
from msgspec.structs import asdict

from hwcalc.errors import UsageError
from hwcalc.formulas import LayerNumbers
from hwcalc.formulas.record import Record

if TYPE_CHECKING:
    from hwcalc.engines.budget import BudgetPart
    from hwcalc.engines.setup import Parallel
    from hwcalc.model import Definition

HOST_SHARE: Final = 4
"""Times the memory of its GPUs that a host may well have (:func:`hwcalc.engines.saving.host_holds` says of which machines)."""
OpenedT = TypeVar("OpenedT")
"""The occupancy class of an engine, whose module imports this module."""

HOST: Final = "host"
"""The name of the device that is the memory of the host; GPUs are ``gpu0``, ``gpu1``."""


class DeviceShare(Record):
    """What one device holds. ``parts`` are what it needs besides weights and cache: buffers of a pass, the process itself."""

    device: str
    layers: LayerNumbers
    output: bool
    """Whether the output layer lies here, which makes the logits."""
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
        return tuple(one for one in self.devices if one.device != HOST)

    def on_gpus(self, end: str) -> int:
        """Bytes that all GPUs together need at this end of the estimates."""
        return sum(share.needed(end) for share in self.gpus)

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


class DeviceReads(Record):
    """What a pass reads on one device: the weights there, and the caches of these layers.

    ``gbps`` is what the memory there delivers, ``None`` for that of the accelerator. ``at_once`` devices read their parts at the same
    time; all others wait for each other. A prompt is computed ``pass_tokens`` at a time, all at once if that is ``None``;
    all passes but the last may leave out ``last_layer_bytes``, as only the last token's output is wanted.
    """

    device: str
    weights: tuple[WeightRead, ...]
    cache_layers: LayerNumbers
    gbps: float | None = None
    at_once: int = 1
    pass_tokens: int | None = None
    last_layer_bytes: int = 0
