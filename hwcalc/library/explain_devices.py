"""What each device of a plan holds, explained: for engines that place layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hwcalc.library.explain_memory import bytes_figure
from hwcalc.library.explained import ExplainedSection
from hwcalc.model import Definition
from hwcalc.planner.result import Plan
from hwcalc.units import human_bytes

_TERMS: Final = {"weights": "weights", "cache": "kv_cache", "activations": "activations", "overhead": "overhead"}
"""Fields of a device -> their symbols. ``cache`` is the symbol of the fullest GPU's."""


def devices(plan: Plan) -> ExplainedSection | None:
    """What each device holds, and the sum of them; ``None`` if the engine places nothing."""
    held = plan.memory.devices
    if not held or plan.memory.total_bytes is None:
        return None
    figures = []
    for number, one in enumerate(held):
        values = {term: getattr(one, name) for name, term in _TERMS.items() if getattr(one, name)}
        ends = one.total_low, one.total_high
        known = Definition.ESTIMATE if one.total_low != one.total_high else plan.memory.cache.definition
        formula = " + ".join(values) or "0"
        place = f"memory.devices.{number}.total"
        figures.append(bytes_figure(one.device, place, one.total, formula, values, ends=ends, definition=known))
    together = {one.device: one.total for one in held}
    figures.append(
        bytes_figure(
            "all devices",
            "memory.total_bytes",
            plan.memory.total_bytes,
            " + ".join(together),
            together,
            definition=Definition.ESTIMATE,
        )
    )
    return ExplainedSection(
        name="devices",
        title="devices",
        about="Where the layers lie, and what that takes there. The input is always on the host; the last layers go to GPUs first.",
        figures=tuple(figures),
        remarks=tuple(_on_devices(plan)),
    )


def _on_devices(plan: Plan) -> Iterator[str]:
    for one in plan.memory.devices:
        layers = f"layers {one.layers.text}" if one.layers else "no layer"
        experts = f", and the experts of layers {one.experts.text}" if one.experts else ""
        yield f"{one.device} has {layers}{' and the output' if one.output else ''}{experts}."
    copies = sum(one.weights for one in plan.memory.devices) - (plan.memory.weights.bytes or 0)
    if copies > 0:
        yield f"{human_bytes(copies)} of the weights lie on two devices: a table that is input and output at once has a copy on each."
