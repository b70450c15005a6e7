"""What a pass reads on each device, which bounds its speed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from hwcalc.engines.devices import HOST, DeviceReads, WeightRead
from hwcalc.engines.llamacpp.fitting import ON_HOST, Assignment, device_of
from hwcalc.formulas import LayerNumbers
from hwcalc.model import Note, Noted
from hwcalc.profiles.engines import llamacpp_profile
from hwcalc.quantization.ggml import GGML

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.deployment import LlamacppDeployment, LlamacppOccupancy
    from hwcalc.engines.llamacpp.tensors import WeightGroup, WeightTensor

_Use = Literal["always", "chosen", "row", "last"]
_Group = tuple[str, _Use, int, bool, str | None]
"""Format, use, block (-1 for input and output), whether they are experts, and the buffer that the user named."""


def reads_of(occupancy: LlamacppOccupancy) -> Noted[tuple[DeviceReads, ...]]:
    """The weights and layers of each device in the placement; nothing if the tensors are not known."""
    deployment = occupancy.deployment
    weights, read = deployment.weight_groups, deployment.hparams
    if weights is None:
        return Noted(())
    assignment, options = occupancy.layout.assignment, deployment.options
    mtp, given = deployment.context.load_mtp, options.overrides
    groups: dict[_Group, tuple[int, int]] = deployment.model.once(
        ("llamacpp reads", deployment.setup.weights, mtp, given), lambda: _grouped(deployment, weights)
    )
    experts = max(1, read.n_expert)
    used = min(experts, max(1, read.n_expert_used))
    found: dict[int, dict[tuple[str, _Use], tuple[int, int]]] = {}
    last: dict[int, int] = {}
    for group, (elements, size) in groups.items():
        device = _device(group, assignment)
        sums = found.setdefault(device, {})
        before = sums.get(group[:2], (0, 0))
        sums[group[:2]] = before[0] + elements, before[1] + size
        if group[2] == read.n_layer - 1:
            last[device] = last.get(device, 0) + size
    order = (*sorted({*found, *assignment.blocks} - {ON_HOST}), ON_HOST)
    host, notes = _host_gbps(deployment)
    together = deployment.setup.gpus if options.split_mode == "row" else 1
    return Noted(
        tuple(
            DeviceReads(
                device=HOST if device == ON_HOST else f"gpu{device}",
                weights=tuple(
                    WeightRead(
                        format=form,
                        use=use,
                        elements=elements,
                        bytes=size,
                        copies={"chosen": experts, "row": max(1, read.n_vocab)}.get(use, 1),
                        active=used if use == "chosen" else 1,
                    )
                    for (form, use), (elements, size) in found.get(device, {}).items()
                ),
                cache_layers=_cache_layers(device, assignment, kept=options.kv_on_host),
                gbps=host if device == ON_HOST else None,
                at_once=1 if device == ON_HOST else together,
                pass_tokens=occupancy.settings.n_ubatch,
                last_layer_bytes=last.get(device, 0),
            )
            for device in order
        ),
        notes if _on_host(found.get(ON_HOST, {}), assignment, kept=options.kv_on_host) else (),
    )


def _on_host(weights: dict[tuple[str, _Use], tuple[int, int]], assignment: Assignment, *, kept: bool) -> bool:
    return kept or ON_HOST in assignment.blocks or any(use != "row" for _, use in weights)


def _grouped(deployment: LlamacppDeployment, weights: tuple[WeightGroup, ...]) -> dict[_Group, tuple[int, int]]:
    """Elements and bytes of the tensors that a pass reads, so that those of one block and format are one entry."""
    groups: dict[_Group, tuple[int, int]] = {}
    forms = dict[str, str]()
    # Prediction layers run beside the step that is bounded, and so do towers.
    for layer, tensor in _loaded(deployment, weights):
        if not tensor.tower:
            form = forms.get(tensor.type) or forms.setdefault(tensor.type, _form(tensor.type))
            group = (form, _use(tensor), layer, tensor.expert, tensor.buffer)
            before = groups.get(group, (0, 0))
            groups[group] = before[0] + tensor.elements, before[1] + tensor.bytes
    return groups


def _loaded(deployment: LlamacppDeployment, weights: tuple[WeightGroup, ...]) -> Iterator[tuple[int, WeightTensor]]:
    """The tensors that are loaded, each with its layer, in the order of the file.

    Alike tensors have the same record without overrides.
    """
    from hwcalc.engines.llamacpp.tensors import in_file_order, loaded, loaded_groups

    if not deployment.options.overrides:
        for number, group in in_file_order(loaded_groups(weights)):
            yield group.first.layer if number < 0 else number, group.first
        return
    from hwcalc.engines.llamacpp.tensors import with_overrides

    for tensor in with_overrides(loaded(deployment.weight_tensors or ()), deployment.options.overrides):
        yield tensor.layer, tensor


def _form(type_: str) -> str:
    """The format of a type of tensors, in the words of :mod:`hwcalc.formulas.formats`."""
    name = type_.lower()
    return GGML[name].name if name in GGML else name


def _use(one: WeightTensor) -> _Use:
    if one.role == "input":
        return "row"
    if one.role == "output":
        return "last"
    return "chosen" if one.expert else "always"


def _device(group: _Group, assignment: Assignment) -> int:
    _, use, layer, expert, buffer = group
    if buffer is not None:
        return device_of(buffer)
    if layer < 0:
        return assignment.output if use == "last" else ON_HOST
    if expert and layer in assignment.experts_on_host:
        return ON_HOST
    return assignment.blocks[layer] if layer < len(assignment.blocks) else ON_HOST


def _cache_layers(device: int, assignment: Assignment, *, kept: bool) -> LayerNumbers:
    """The layers whose caches lie on a device; ``kept``: all of them stay on the host."""
    if kept:
        return LayerNumbers(range(len(assignment.blocks)) if device == ON_HOST else ())
    return assignment.layers(device)


def _host_gbps(deployment: LlamacppDeployment) -> Noted[float | None]:
    """The bandwidth of the host's memory in GB/s: the user's, that of the accelerator if both share a memory, or an assumption."""
    given, gpu = deployment.options.host_gbps, deployment.setup.hardware.gpu
    if given is not None or (gpu is not None and gpu.shares_host_memory and not gpu.is_host):
        return Noted(given)
    assumed = llamacpp_profile().host_bandwidth
    message = (
        f"The bound on speed assumes {assumed.expected:g} GB/s of host memory (two channels of DDR5-5600; of DDR4-3200 {assumed.low:g}; "
        "servers have more, and are faster). Say it with --engine-option host_bandwidth=GB/s."
    )
    return Noted(assumed.expected, (Note(code="host-bandwidth-assumed", message=message),))
