"""What a device holds: the fullest GPU of a plan, or each device where an engine places layers."""

from __future__ import annotations

from hwcalc.formulas import LayerNumbers
from hwcalc.formulas.record import Record

class PerGpu(Record):
    """The fullest GPU. Null is unknown or not planned: activations and overhead need hardware."""

    weights: int | None
    cache: int
    activations: int | None
    overhead: int | None
    total: int | None


class DeviceInfo(Record):
    """What one device holds: ``gpu0``, ``gpu1``, and ``host`` for the memory of the host.

    ``layers`` are the blocks that lie there, and ``experts`` those of which it has the experts alone. ``output`` says whether it has the
    output layer too.
    """

    device: str
    layers: LayerNumbers
    experts: LayerNumbers
    output: bool
    weights: int
    cache: int
    activations: int
    overhead: int
    total: int
    total_low: int
    total_high: int
    moved: int = 0
    """Bytes of weights that patterns of the user (``override_tensor``) have put in host memory."""
