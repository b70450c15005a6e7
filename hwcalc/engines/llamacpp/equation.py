"""What each device needs beside weights and cache, and what that leaves of it.

A GPU: visible memory - what stays free - the process - the compute buffer. The host: the compute buffer, and the outputs of the last
layer, which llama.cpp keeps there.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING, Final

from hwcalc.engines.devices import HOST_SHARE
from hwcalc.engines.memory import Budget, BudgetPart, Section, estimated, exact, memory_of, part_of
from hwcalc.model import Note, Noted
from hwcalc.profiles.engines import runtime_profile
from hwcalc.units import GIB, human_bytes

if TYPE_CHECKING:
    from hwcalc.engines.devices import Placement
    from hwcalc.engines.llamacpp.options import PlaceOptions
    from hwcalc.engines.setup import Hardware, Setup
    from hwcalc.profiles.gpus import VisibleMemory
    from hwcalc.profiles.hardware_file import Gpu

OPPOSITE: Final = {"low": "high", "expected": "expected", "high": "low"}
"""An end of the estimates of what there is -> that of what is needed, to be sure, or to hope."""
_VENDORS: Final = {"nvidia": "cuda", "amd": "rocm"}
_LEFT_BY_SYSTEM: Final[Mapping[str, Fraction | int]] = {"low": Fraction(7, 8), "expected": Fraction(15, 16), "high": 1}
"""What the system and other programs leave of a machine's one memory: at least, probably, at most. A habit, not a measurement."""


def process(gpu: Gpu) -> BudgetPart:
    """The memory of a GPU that the process takes outside the buffers of llama.cpp."""
    return _process(_VENDORS.get(gpu.vendor.lower(), "other"))


@lru_cache(maxsize=3)
def _process(name: str) -> BudgetPart:
    return estimated("process", Section.OVERHEAD, runtime_profile().estimate(f"llamacpp.{name}"))


def _memory_of(hardware: Hardware, options: PlaceOptions) -> Noted[VisibleMemory | None]:
    """The memory that programs see: that of the GPU, or of a machine without a GPU as the user gives it."""
    gpu = hardware.gpu
    if gpu is None:
        return Noted(None)
    size = options.host_bytes
    if not gpu.is_host or size is None:
        return memory_of(gpu)
    from hwcalc.profiles.gpus import VisibleMemory

    return Noted(
        VisibleMemory(low_bytes=size, expected_bytes=size, high_bytes=size, basis="host_memory, as given", source="the user")
    )


def margin_of(hardware: Hardware, options: PlaceOptions, memory: VisibleMemory) -> Noted[Fraction | int]:
    """The share of a GPU that stays free: the user's, or as many bytes as ``--fit`` leaves."""
    if hardware.margin is not None or hardware.memory_utilization is not None:
        return Noted(hardware.margin or 0)
    gpu = hardware.gpu
    if gpu is not None and gpu.is_host and options.host_bytes is not None:
        # What may be taken was said.
        return Noted(0)
    where = "the machine's memory" if gpu is not None and gpu.is_host else "each GPU"
    share = Fraction(min(options.target_bytes, memory.expected_bytes), memory.expected_bytes)
    return Noted(share, (_default_margin(options.target_bytes, where),))


@lru_cache(maxsize=64)
def _default_margin(size: int, where: str) -> Note:
    message = (
        f"{human_bytes(size)} of {where} stay free, as llama.cpp's --fit leaves them. "
        "Set it with --engine-option fit_target=MIB, or --margin."
    )
    return Note(code="default-margin", message=message)


def room_of(hardware: Hardware, options: PlaceOptions, end: str) -> int | None:
    """Bytes of a GPU that may be used at this end of what programs see; ``None`` if its memory is not known."""
    memory = _memory_of(hardware, options).value
    if memory is None:
        return None
    size: int = getattr(memory, f"{end}_bytes")
    share = hardware.memory_utilization
    margin = margin_of(hardware, options, memory).value
    return max(0, ceil(size * (1.0 if share is None else share)) - part_of(size, margin))


def budget_beside(hardware: Hardware, options: PlaceOptions, parts: tuple[BudgetPart, ...]) -> Noted[Budget | None]:
    """The bytes that a GPU has left beside these parts."""
    memory, notes = _memory_of(hardware, options)
    if memory is None:
        return Noted(None, notes)
    margin = margin_of(hardware, options, memory)
    utilization = hardware.memory_utilization
    budget = Budget.of(memory, 1.0 if utilization is None else utilization, margin.value, parts)
    return Noted(budget, (*notes, *margin.notes))


def weights_part(placement: Placement) -> BudgetPart:
    """The weights on the fullest GPU, with the layers whose tensors they are."""
    share = placement.devices[placement.fullest]
    layers = f"layers {share.layers.text}" if share.layers else "no layer"
    experts = " without the experts of some" if placement.experts_on_host else ""
    source = f"tensors of {layers}{' and the output' if share.output else ''}{experts}"
    return exact("weights", Section.WEIGHTS, share.weights_bytes, source)


def host_room(setup: Setup, options: PlaceOptions, end: str) -> int:
    """Bytes of the host's memory that the model may take, GPUs with the same memory included: as the user says, or by the hardware.

    Where nothing is said, a host has at least as much memory as its GPUs, and likely four times.
    """
    gpu = setup.hardware.gpu
    if options.host_bytes is not None and (gpu is None or not gpu.shares_host_memory):
        return options.host_bytes
    sold = (0 if gpu is None else gpu.memory_marketing_gb or 0) * GIB
    if gpu is not None and gpu.shares_host_memory:
        return part_of(sold if options.host_bytes is None else options.host_bytes, _LEFT_BY_SYSTEM[end])
    gpus = setup.gpus * sold
    return {"low": gpus, "expected": HOST_SHARE * gpus}.get(end, 2**50)
