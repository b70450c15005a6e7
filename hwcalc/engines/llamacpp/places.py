"""What llama.cpp answers about places: its GPUs are runs of layers, and the rest lies in the memory of the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace

from hwcalc.engines.budget import Section
from hwcalc.engines.costs import exact
from hwcalc.engines.devices import ModelWeights, Placement
from hwcalc.engines.general import GeneralEngine
from hwcalc.engines.llamacpp.assignment import PINNED, weights_on
from hwcalc.engines.llamacpp.opened import of_llamacpp
from hwcalc.engines.llamacpp.settings import CELLS, MAX_SEQUENCES
from hwcalc.engines.llamacpp.weighing import weighed_of
from hwcalc.engines.noted import Noted
from hwcalc.engines.request import Request
from hwcalc.errors import UsageError
from hwcalc.model import Definition, Note
from hwcalc.units import human_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hwcalc.engines.allocation import Allocation
    from hwcalc.engines.base import Opened
    from hwcalc.engines.budget import Budget, BudgetPart
    from hwcalc.engines.devices import DeviceReads
    from hwcalc.engines.llamacpp.opened import LlamacppOpened
    from hwcalc.profiles.gpus import Gpu

__all__ = ["LlamacppPlaces"]


class LlamacppPlaces(GeneralEngine):
    """The part of the engine that says where layers lie, and whether they have room there."""

    splits_layers: ClassVar[bool] = True

    def preallocates(self, opened: Opened) -> bool:
        return True

    def needed_bytes(self, opened: Opened) -> int:
        own, placement = of_llamacpp(opened), self.placement(opened)
        if placement is not None:
            return placement.devices[placement.fullest].cache_bytes
        if not own.gpus or (own.gpus == 1 and own.request.hardware.gpu is None):
            return own.stored_bytes
        from hwcalc.engines.llamacpp.placement import assignment_of, cache_on

        assignment = assignment_of(own)
        return max(cache_on(gpu, assignment, own) for gpu in range(own.request.gpus))

    def allocation(self, opened: Opened, stage: int) -> tuple[Allocation, ...]:
        """The cache of the blocks on a GPU; without one named, the whole cache is on one device."""
        from hwcalc.engines.rank_allocation import allocations_of

        own = of_llamacpp(opened)
        if own.place_options.kv_on_host:
            return ()
        from hwcalc.engines.llamacpp.placement import assignment_of

        blocks = assignment_of(own).blocks
        return allocations_of(
            own, (number for number, device in enumerate(blocks) if device == stage), extras=bool(blocks) and blocks[-1] == stage
        )

    def check_host(self, host: Gpu, options: Mapping[str, str], gpus: int) -> None:
        if gpus > 1:
            raise UsageError(f"--gpus {gpus:,}: {host.id} is a machine without a GPU.", hint="Leave out --gpus.")
        if host.torch_total_mib is None and "host_memory" not in options:
            from hwcalc.hardware.host import EXAMPLE, this_machine

            here = this_machine()
            also = "" if here is None else f" This machine: --gpu {here}"
            raise UsageError(f"--gpu {host.id}: how much memory does the machine have?", hint=f"Say it: --gpu {EXAMPLE}.{also}")

    def placement(self, opened: Opened) -> Placement | None:
        if opened.request.hardware.gpu is None:
            return None
        from hwcalc.engines.llamacpp.placement import placement_of

        return placement_of(of_llamacpp(opened))

    def budget(self, opened: Opened) -> Noted[Budget | None]:
        from hwcalc.engines.llamacpp.equation import budget_of
        from hwcalc.engines.llamacpp.placement import placement_of
        from hwcalc.engines.llamacpp.repack import repacked_note

        own = of_llamacpp(opened)
        placement = placement_of(own)
        if placement is None:
            return Noted(None, (_unknown_weights(own),))
        budget = budget_of(own, own.place_options, placement)
        return Noted(budget.value, (*budget.notes, *_on_host(own), *repacked_note(own)))

    def weights(self, opened: Opened) -> Noted[tuple[BudgetPart, ...] | None]:
        """The tensors on the GPU with most of them, with all layers on GPUs; without a GPU on the only device there is."""
        own = of_llamacpp(opened)
        weighed = weighed_of(own)
        if weighed is None:
            return Noted(None, (_unknown_weights(own),))
        size = weighed.total
        if own.gpus > 1 or (own.gpus and own.request.hardware.gpu is not None):
            from hwcalc.engines.llamacpp.placement import whole_assignment

            size = max(weights_on(gpu, whole_assignment(own), weighed) for gpu in range(own.request.gpus))
        return Noted((exact("weights", Section.WEIGHTS, size, "tensors of the GGUF file"),))

    def model_weights(self, opened: Opened) -> ModelWeights | None:
        own = of_llamacpp(opened)
        weighed, model = weighed_of(own), own.model
        if weighed is None:
            return None
        from hwcalc.engines.llamacpp.tensors import grouped
        from hwcalc.engines.llamacpp.weights import other_sizes

        mtp = own.settings.load_mtp
        groups = model.once(("llamacpp groups", own.request.weights, mtp), lambda: grouped(own.weight_groups or (), mtp=mtp))
        if model.gguf is not None and model.gguf.tensors and own.request.weights is None:
            return ModelWeights(
                bytes=weighed.total, definition=Definition.EXACT, source="tensors of the GGUF file", groups=groups
            )
        # A file of this format does not exist yet, or is not at hand.
        name = own.request.weights or model.dtype or "as published"
        return ModelWeights(
            bytes=weighed.total,
            definition=model.definition(Definition.ENGINE),
            source=f"tensors that llama.cpp's converter and quantiser write for {name}",
            groups=groups,
            other_bytes=other_sizes(model, own.request.weights, mtp=mtp),
        )

    def reads(self, opened: Opened) -> Noted[tuple[DeviceReads, ...]]:
        from hwcalc.engines.llamacpp.reads import reads_of

        return reads_of(of_llamacpp(opened))

    def lacking(self, opened: Opened, end: str) -> str | None:
        own, placement = of_llamacpp(opened), self.placement(opened)
        if placement is None or not placement.gpus or own.request.hardware.kv_memory is not None:
            return None
        from hwcalc.engines.llamacpp.equation import OPPOSITE, host_room, room_of

        room = room_of(own.request.hardware, own.place_options, end)
        others = (share for place, share in enumerate(placement.gpus) if place != placement.fullest)
        if room is not None and any(share.needed(OPPOSITE[end]) > room for share in others):
            return "cache"
        host = host_room(own.request, own.place_options, placement.on_gpus, end)
        return "host memory" if placement.host.needed(OPPOSITE[end]) > host else None

    def whole(self, request: Request) -> Request:
        from hwcalc.engines.llamacpp.place_options import place_options

        if place_options(request.options, fits_itself=request.options.get("defaults") != "api").n_gpu_layers is not None:
            return request
        return replace(request, options={**request.options, "n_gpu_layers": "all"})

    def entire(self, opened: Opened) -> Opened:
        from hwcalc.engines.llamacpp.placement import assignment_of

        own = of_llamacpp(opened)
        # Without a GPU it is asked for hardware that is still to be found.
        if own.request.hardware.gpu is not None and (not own.gpus or assignment_of(own).everything):
            return opened
        request = self.whole(opened.request)
        return opened if request is opened.request else self.open(opened.model, request)

    def pinned(self, opened: Opened) -> Opened:
        own = of_llamacpp(opened)
        if PINNED in own.family or own.request.hardware.gpu is None or own.place_options.n_gpu_layers is not None:
            return opened
        from hwcalc.engines.llamacpp.placement import assignment_of

        other = replace(own)
        vars(other)["family"] = {**own.family, PINNED: assignment_of(own)}
        return other

    def fitting_length(self, opened: Opened) -> Noted[int | None]:
        """The longest context, in steps of 256 tokens, with which everything surely fits on the GPUs (common/fit.cpp, step 2)."""
        own = of_llamacpp(opened)
        options = own.place_options
        if own.request.hardware.kv_memory is not None or weighed_of(own) is None or "n_ctx" in own.request.options:
            return Noted(None)
        if not own.settings.server or _surely_fits(self.entire(own)):
            return Noted(None)
        shortest, longest = min(options.shortest, own.tokens), own.tokens
        entire = self.entire(own)
        low, high = shortest // CELLS, longest // CELLS
        while high - low > 1:
            middle = (low + high) // 2
            if _surely_fits(entire.sized(seq=middle * CELLS)):
                low = middle
            else:
                high = middle
        tokens = max(shortest, low * CELLS)
        if tokens >= own.tokens:
            return Noted(None)
        how = (
            ("until all layers fit on the GPU" if own.gpus else "until everything fits")
            if tokens > shortest
            else f"to {shortest:,} before it leaves layers to the host"
        )
        message = (
            f"Planned for {tokens:,} of the model's {own.tokens:,} tokens: llama.cpp shortens a context that is not asked for, {how}. "
            "Set it with --seq."
        )
        return Noted(tokens, (Note(code="shorter-context", message=message),))

    def most_sequences(self, opened: Opened) -> tuple[int, str] | None:
        return MAX_SEQUENCES, "n_seq_max"


def _surely_fits(opened: Opened) -> bool:
    """Whether every GPU holds its part at the high end of the estimates."""
    from hwcalc.engines.llamacpp.equation import room_of
    from hwcalc.engines.llamacpp.placement import placement_of

    own = of_llamacpp(opened)
    room, placement = room_of(own.request.hardware, own.place_options, "low"), placement_of(own)
    return placement is not None and room is not None and all(share.needed("high") <= room for share in placement.main)


def _on_host(opened: LlamacppOpened) -> tuple[Note, ...]:
    """A note where nobody can say that the host has the memory that is needed of it."""
    from hwcalc.engines.llamacpp.equation import host_room
    from hwcalc.engines.llamacpp.placement import placement_of

    placement, gpu = placement_of(opened), opened.request.hardware.gpu
    if placement is None or gpu is None or gpu.shares_host_memory or opened.place_options.host_bytes is not None:
        return ()
    needed = placement.host.needed("high")
    if needed <= host_room(opened.request, opened.place_options, placement.on_gpus, "low"):
        return ()
    message = (
        f"{human_bytes(needed)} must be free in host memory, and kvplan does not know how much there is. "
        "Say it with --engine-option host_memory=64GiB."
    )
    return (Note(code="host-memory-unknown", message=message),)


def _unknown_weights(opened: LlamacppOpened) -> Note:
    message = f"The tensors of {opened.model.id} are not known: no verdict. Give a budget with --kv-memory."
    return Note(code="weights-unknown", message=message)
