"""On which devices a llama.cpp context lies, and how long it is made so that everything fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from hwcalc.engines.llamacpp.layout import reads_of
from hwcalc.engines.llamacpp.settings import CELLS
from hwcalc.engines.subjects import Devices
from hwcalc.formulas.arithmetic import last_good
from hwcalc.model import Note, Noted

if TYPE_CHECKING:
    from hwcalc.engines.devices import DeviceReads, Placement
    from hwcalc.engines.llamacpp.occupancy import LlamacppOccupancy


class LlamacppDevices(Devices):
    """The placement of a context's layers on the GPUs and the host."""

    occupancy: LlamacppOccupancy

    def placement(self) -> Placement | None:
        return self.occupancy.layout.placement if self.occupancy.deployment.knows_devices else None

    def reads(self) -> Noted[tuple[DeviceReads, ...]]:
        return reads_of(self.occupancy)

    def most_tokens(self) -> int | None:
        """The most tokens of a sequence with ``n_ctx``, where the length does not depend on the memory; else ``None``."""
        return None if self.occupancy.deployment.context.n_ctx is None else self.occupancy.settings.slot_tokens

    def lacking(self, end: str) -> str | None:
        occupancy = self.occupancy
        if (
            not occupancy.deployment.knows_devices
            or not occupancy.deployment.gpus
            or occupancy.setup.hardware.kv_memory is not None
        ):
            return None
        room, layout = occupancy.deployment.rooms[end], occupancy.layout
        others = [gpu for gpu in layout.main if gpu != layout.fullest]
        if room is not None and not layout.hold(others, room, end):
            return "cache"
        return None if layout.host_holds(end) else "host memory"

    def entire(self) -> LlamacppOccupancy:
        occupancy = self.occupancy
        # Without a GPU it is asked for hardware that is still to be found.
        if occupancy.setup.hardware.gpu is not None and (not occupancy.deployment.gpus or occupancy.layout.assignment.everything):
            return occupancy
        if occupancy.deployment.options.n_gpu_layers is not None:
            return occupancy
        whole = occupancy.engine.open(
            occupancy.model, occupancy.request.changed(options={**occupancy.setup.options, "n_gpu_layers": "all"})
        )
        return cast("LlamacppOccupancy", whole)

    def pinned(self) -> LlamacppOccupancy:
        occupancy = self.occupancy
        deployment = occupancy.deployment
        if deployment.pinned is not None or deployment.gpu is None or deployment.options.n_gpu_layers is not None:
            return occupancy
        return occupancy.pinned

    def fitting_length(self) -> Noted[int | None]:
        """The longest context, in steps of ``CELLS`` tokens, with which everything surely fits on the GPUs (common/fit.cpp, step 2)."""
        occupancy = self.occupancy
        options, hardware = occupancy.deployment.options, occupancy.setup.hardware
        deployment = occupancy.deployment
        context = deployment.context
        if hardware.kv_memory is not None or deployment.weighed is None or context.n_ctx is not None or not context.server:
            return Noted(None)
        entire = self.entire()
        if entire.surely_fits:
            return Noted(None)
        shortest = min(options.shortest, occupancy.tokens)
        least = shortest // CELLS
        more: int = last_good(
            occupancy.tokens // CELLS - 1 - least, lambda more: entire.sized(seq=(least + more) * CELLS).surely_fits
        )
        tokens = max(shortest, (least + more) * CELLS)
        if tokens >= occupancy.tokens:
            return Noted(None)
        how = (
            ("until all layers fit on the GPU" if deployment.gpus else "until everything fits")
            if tokens > shortest
            else f"to {shortest:,} before it leaves layers to the host"
        )
        message = (
            f"Planned for {tokens:,} of the model's {occupancy.tokens:,} tokens: llama.cpp shortens a context that is not asked for, {how}. "
            "Set it with --seq."
        )
        return Noted(tokens, (Note(code="shorter-context", message=message),))
