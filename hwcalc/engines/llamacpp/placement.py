"""Where a model lies: which layers on which GPU, and what stays in the memory of the host."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hwcalc.engines.budget import BudgetPart
from hwcalc.engines.devices import HOST, DeviceShare, Placement
from hwcalc.engines.llamacpp.assignment import ON_HOST, PINNED, Assignment, Weighed, assign, splits, weights_on
from hwcalc.engines.llamacpp.equation import process, room_of
from hwcalc.engines.llamacpp.fitting import Fitting, Runs, fitted
from hwcalc.engines.llamacpp.repack import repacked_output
from hwcalc.engines.llamacpp.weighing import weighed_of
from hwcalc.engines.stored import bytes_of
from hwcalc.formulas import LayerKind, LayerNumbers

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.opened import LlamacppOpened

__all__ = [
    "assignment_of",
    "cache_on",
    "device_weights",
    "ends_of",
    "placement_of",
    "whole_assignment",
]


def ends_of(opened: LlamacppOpened) -> tuple[float, ...]:
    """Where the part of each GPU ends; a GPU that is not used has none."""
    options, gpus = opened.place_options, opened.gpus
    if options.split_mode == "none":
        return tuple(float(number >= options.main_gpu) for number in range(gpus))
    return splits(options.tensor_split, gpus)


def assignment_of(opened: LlamacppOpened) -> Assignment:
    """The device of each layer: as the options say, or as llama.cpp fits them by itself."""
    if PINNED in opened.family:
        pinned: Assignment = opened.family[PINNED]
        return pinned
    found: Assignment = opened.kept("assignment", lambda: _fitted_assignment(opened))
    return found


def _fitted_assignment(opened: LlamacppOpened) -> Assignment:
    options = opened.place_options
    weighed = weighed_of(opened)
    if options.n_gpu_layers is None and opened.gpus and weighed is not None and opened.request.hardware.kv_memory is None:
        room = room_of(opened.request.hardware, options, "low")
        if room is not None:
            experts = tuple(bool(experts) for experts, _ in weighed.blocks)
            return fitted(_fitting(opened, weighed, experts, room)).assignment(experts)
    return whole_assignment(opened)


def whole_assignment(opened: LlamacppOpened) -> Assignment:
    """As many layers on the GPUs as the options say, or all of them. A family shares the answer."""
    found: Assignment = opened.shared("whole assignment", lambda: _whole_assignment(opened))
    return found


def _whole_assignment(opened: LlamacppOpened) -> Assignment:
    options, blocks, layers = opened.place_options, opened.hparams.n_layer_all, opened.place_options.n_gpu_layers
    whole = assign(blocks, blocks + 1 if layers is None or layers < 0 else layers, ends_of(opened))
    hosted = blocks if options.cpu_moe else min(blocks, options.n_cpu_moe)
    weighed = weighed_of(opened)
    experts = _with_experts(range(hosted), weighed, whole)
    if weighed is None or not weighed.largest_moved:
        return replace(whole, experts_on_host=experts) if experts else whole
    moved = {number for number in weighed.experts_moved if whole.blocks[number] != ON_HOST}
    return replace(whole, experts_on_host=LayerNumbers(sorted(moved.union(experts))), largest_moved=weighed.largest_moved)


def _with_experts(numbers: range, weighed: Weighed | None, assignment: Assignment) -> LayerNumbers:
    """Those of the blocks that have experts and lie on a GPU."""
    known = () if weighed is None else weighed.blocks
    return LayerNumbers(n for n in numbers if n < len(known) and known[n][0] and assignment.blocks[n] != ON_HOST)


def _fitting(opened: LlamacppOpened, weighed: Weighed, experts: tuple[bool, ...], room: int) -> Fitting:
    def holds(runs: Runs, device: int) -> bool:
        assignment = runs.assignment(experts)
        weights, cache = weights_on(device, assignment, weighed), cache_on(device, assignment, opened)
        return weights + cache + sum(part.high for part in _parts(opened, assignment, device)) <= room

    return Fitting(blocks=opened.hparams.n_layer_all, ends=ends_of(opened), experts=any(experts), holds=holds)


def cache_on(device: int, assignment: Assignment, opened: LlamacppOpened) -> int:
    """Bytes of cache and states on a device: those of its blocks, unless the whole cache stays on the host."""
    if opened.place_options.kv_on_host:
        return opened.stored_bytes if device == ON_HOST else 0
    # A policy makes layers unlike, by the length.
    cut = None if opened.evicted is None else tuple(opened.evicted.most.items())
    keep, drafts = (opened.model.once, opened.plain_settings.drafts) if cut is None else (opened.shared, None)
    counts: Counter[LayerKind] = keep(
        ("llamacpp kinds on", assignment, device, cut, drafts), lambda: _kinds_on(device, assignment, opened)
    )
    own = sum(count * opened.kind_bytes[kind] for kind, count in counts.items())
    return own + (bytes_of(opened.extras) if assignment.blocks and assignment.blocks[-1] == device else 0)


def _kinds_on(device: int, assignment: Assignment, opened: LlamacppOpened) -> Counter[LayerKind]:
    """How many layers of each kind lie on a device."""
    layers = zip(assignment.blocks, opened.stack.layers, strict=False)
    return Counter(kind for one, layer in layers if one == device for kind in layer)


def _parts(opened: LlamacppOpened, assignment: Assignment, device: int) -> tuple[BudgetPart, ...]:
    """What a device needs beside weights and cache."""
    from hwcalc.engines.llamacpp.compute import device_buffers

    gpu = opened.request.hardware.gpu
    buffers = device_buffers(opened, assignment, device)
    buffers = (*buffers, *_policy_part(opened, assignment, device))
    if opened.gpus == 0:
        return (*buffers, *repacked_output(opened))
    return buffers if gpu is None or device == ON_HOST else (*buffers, process(gpu))


def _policy_part(opened: LlamacppOpened, assignment: Assignment, device: int) -> tuple[BudgetPart, ...]:
    """What a policy takes to score the layers whose cache lies on a device."""
    if opened.evicted is None:
        return ()
    from hwcalc.engines.peaks import policy_part

    if opened.place_options.kv_on_host:
        return policy_part(opened, LayerNumbers(range(len(assignment.blocks)))) if device == ON_HOST else ()
    return policy_part(opened, assignment.layers(device))


def placement_of(opened: LlamacppOpened) -> Placement | None:
    """The share of each device; ``None`` if the tensors of the model are not known."""
    found: Placement | None = opened.kept("placement", lambda: _placement(opened))
    return found


def _placement(opened: LlamacppOpened) -> Placement | None:
    weighed = weighed_of(opened)
    if weighed is None:
        return None
    assignment = assignment_of(opened)
    order = (*range(opened.gpus), ON_HOST)
    shares = tuple(
        # Advice asks for much that lies on GPUs alone: what the host needs for it, nobody reads.
        DeviceShare(
            device=HOST if device == ON_HOST else f"gpu{device}",
            layers=assignment.layers(device),
            output=assignment.output == device,
            weights_bytes=device_weights(opened, device, assignment, weighed),
            cache_bytes=cache_on(device, assignment, opened),
            parts=_parts(opened, assignment, device),
        )
        for device in order
    )
    gpus = shares[:-1]
    return Placement(
        devices=shares,
        # Of a single one nobody need know how full it is.
        fullest=max(range(len(gpus)), key=lambda place: gpus[place].needed("high")) if len(gpus) > 1 else 0,
        gpu_layers=assignment.gpu_layers if gpus else None,
        all_layers=len(assignment.blocks) + 1 if gpus else None,
        experts_on_host=assignment.experts_on_host,
        moved_bytes=weighed.overridden.get(ON_HOST, 0),
    )


def _rows(opened: LlamacppOpened) -> tuple[float, ...]:
    """The share of each GPU in every matrix, with ``split_mode=row``."""
    ends = ends_of(opened)
    return tuple(end - start for start, end in zip((0.0, *ends), ends, strict=False))


def device_weights(opened: LlamacppOpened, device: int, assignment: Assignment, weighed: Weighed) -> int:
    """Bytes of weights on a device. A family shares the answer for an assignment."""
    divided = _rows(opened) if opened.place_options.split_mode == "row" else None
    size: int = opened.shared(("weights on", assignment, device), lambda: _weights(device, assignment, weighed, divided))
    return size


def _weights(device: int, assignment: Assignment, weighed: Weighed, divided: tuple[float, ...] | None) -> int:
    if divided is None or device == ON_HOST:
        return weights_on(device, assignment, weighed)
    together = sum(weights_on(one, assignment, weighed) for one in range(len(divided)))
    before = int(together * sum(divided[:device]))
    return (together if device == len(divided) - 1 else int(together * sum(divided[: device + 1]))) - before
