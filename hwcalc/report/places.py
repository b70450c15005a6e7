"""Where a plan puts the layers, in words and as rows: for engines that leave some of a model in the memory of the host."""

from __future__ import annotations

from hwcalc.planner.result import DeviceInfo, Plan
from hwcalc.report.text import abbreviated, exact
from hwcalc.units import human_bytes

__all__ = ["DEVICE_HEADER", "device_rows", "host_line", "per_gpu", "places", "start_line"]

DEVICE_HEADER = ("device", "layers", "weights", "cache", "activations", "overhead", "total")


def places(plan: Plan) -> str:
    """How much lies where: ``25 of 33 layers on the GPU, 4.10 GiB in host memory``; empty if the engine places nothing."""
    fit, host = plan.fit, _host(plan)
    if fit is None or fit.gpu_layers is None or fit.all_layers is None or host is None:
        return ""
    where = "the GPU" if fit.gpus == 1 else f"{fit.gpus:,} GPUs"
    if fit.gpu_layers == fit.all_layers:
        words = f"all {fit.all_layers:,} layers on {where}"
        if not host.experts:
            return f"{words}, {human_bytes(host.moved)} of their weights in host memory" if host.moved else words
        return f"{words}, the experts of {len(host.experts):,} in host memory ({human_bytes(host.total)})"
    words = f"{fit.gpu_layers:,} of {fit.all_layers:,} layers on {where}"
    experts = f" and the experts of {len(host.experts):,} more" if host.experts else ""
    return f"{words}, the others{experts} in host memory ({human_bytes(host.total)})"


def _host(plan: Plan) -> DeviceInfo | None:
    return plan.memory.devices[-1] if plan.memory.devices else None


def per_gpu(plan: Plan) -> str:
    """What a figure of the fullest device is counted by; empty for a machine without a GPU."""
    return "" if len(plan.memory.devices) == 1 else " per GPU"


def host_line(plan: Plan) -> str:
    """What is needed of the host's memory, largest part first; empty if it holds no more than the input, or all."""
    host = _host(plan)
    if host is None or not per_gpu(plan) or not (host.layers or host.experts or host.output or host.cache or host.moved):
        return ""
    parts = {"weights": host.weights, "cache": host.cache, "activations": host.activations, "overhead": host.overhead}
    known = sorted(((size, name) for name, size in parts.items() if size), reverse=True)
    return f"{human_bytes(host.total)} of host memory: {', '.join(f'{name} {human_bytes(size)}' for size, name in known)}"


def start_line(plan: Plan) -> tuple[str, str] | None:
    """What starts a plan that fits, for engines that run a file on this machine, and a remark; ``None`` if there is nothing to type."""
    if not plan.memory.devices or plan.fit is None or not plan.fit.fits:
        return None
    from hwcalc.report.emit import start_pair

    return start_pair(plan)


def device_rows(plan: Plan, *, full: bool = False) -> list[tuple[str, ...]]:
    """A row for each device: its layers, and its bytes; in full all digits."""
    size = exact if full else human_bytes
    return [
        (
            one.device,
            _layers(one, full=full),
            *(size(number) if number else "-" for number in (one.weights, one.cache, one.activations, one.overhead)),
            size(one.total),
        )
        for one in plan.memory.devices
    ]


def _layers(one: DeviceInfo, *, full: bool) -> str:
    def text(numbers: str) -> str:
        return numbers if full else abbreviated(numbers)

    parts = [text(one.layers.text) if one.layers else "", "output" if one.output else ""]
    parts += [f"experts of {text(one.experts.text)}"] if one.experts else []
    parts += ["input"] if one.device == "host" else []
    return ", ".join(filter(None, parts)) or "-"
