"""Measurements of the user's own accelerator, which replace estimates in the memory equation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from hwcalc.engines.budget import BudgetPart
from hwcalc.engines.noted import Noted
from hwcalc.model import Definition, Note

if TYPE_CHECKING:
    from hwcalc.engines.setup import Parallel, Request
    from hwcalc.profiles.calibration import Calibration

NON_TORCH: Final = ("non-torch", "communication", "expert exchange")
"""Parts that an engine counts as memory outside torch."""
ACTIVATION: Final = ("activations", "encoder profile", "workspaces")
"""Parts that are in the peak of torch's allocator, which also serves the workspaces of cuBLAS."""
GRAPHS: Final = ("CUDA graphs",)
CONTEXT: Final = ("context",)
_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "non_torch_bytes": NON_TORCH,
    "activation_bytes": ACTIVATION,
    "graphs_bytes": GRAPHS,
    "context_bytes": CONTEXT,
}
_DEPENDS: Final[Mapping[str, tuple[str, ...]]] = {
    "non_torch_bytes": ("tp", "pp", "ep"),
    "activation_bytes": ("model", "tp", "pp", "ep", "tokens", "rows"),
    "graphs_bytes": ("model", "tp", "pp", "ep", "rows"),
    "context_bytes": (),
}
"""The conditions under which a measurement holds for another plan: these values must be equal."""
_SIZES: Final = ("tokens", "rows")
"""Those of them that follow from length and batch."""


Readings: TypeAlias = dict[str, tuple[tuple[int, int, int], ...]]


def conditions(model: str, parallel: Parallel, *, tokens: int, rows: int) -> dict[str, int | str]:
    """The values on which overheads depend: the model, the ranks, and the largest forward pass."""
    return {
        "model": model,
        "tp": parallel.tp,
        "pp": parallel.pp,
        "ep": parallel.ep,
        "tokens": tokens,
        "rows": rows,
    }


def calibrated(
    engine: str, model: str, request: Request, parts: tuple[BudgetPart, ...], *, tokens: int, rows: int
) -> Noted[tuple[BudgetPart, ...]]:
    """Replace estimated parts of a memory equation by what was measured on this accelerator.

    A measurement replaces an estimate if it was taken under the same conditions: activations for the same model, ranks and batch,
    memory outside torch for the same ranks. ``tokens`` is the size of one forward pass, ``rows`` the number of sequences whose logits
    it computes. A note names the replaced parts.
    """
    from hwcalc.profiles.calibration import overheads_kind

    gpu = request.hardware.gpu
    if gpu is None or not request.hardware.calibrated:
        return Noted(parts)
    calibration, notes = measurements(gpu.id, overheads_kind(engine))
    if calibration is None:
        return Noted(parts, notes)
    here, used = conditions(model, request.parallel, tokens=tokens, rows=rows), []
    for value, names in _PARTS.items():
        reading = calibration.latest(value, {name: here[name] for name in _DEPENDS[value]})
        first = next((part for part in parts if part.name in names), None)
        if reading is None or first is None:
            continue
        size, measured = int(reading.values[value]), reading.measured
        part = BudgetPart(
            name=first.name,
            section=first.section,
            low=size,
            expected=size,
            high=size,
            source=f"measured on {measured.device}, {measured.date}: {measured.source}",
            definition=Definition.MEASURED,
        )
        parts = tuple(part if one is first else one for one in parts if one is first or one.name not in names)
        used.append(f"{first.name} ({measured.date})")
    if used:
        message = f"Measured on this machine instead of estimated: {', '.join(used)}. Without: KVPLAN_NO_CALIBRATION=1."
        notes += (Note(code="calibrated", message=message),)
    return Noted(parts, notes)


def measured_passes(engine: str, model: str, request: Request, parts: tuple[BudgetPart, ...]) -> Readings:
    """The measurements that replace parts where a forward pass is as large as the measured one.

    By the name of a part: tokens and sequences of the pass, and bytes. What was measured is more than one part in the first of them.
    """
    from hwcalc.profiles.calibration import overheads_kind

    gpu = request.hardware.gpu
    calibration = None if gpu is None else measurements(gpu.id, overheads_kind(engine)).value
    if calibration is None or not request.hardware.calibrated:
        return {}
    found: dict[str, tuple[tuple[int, int, int], ...]] = {}
    for value, names in _PARTS.items():
        present = [part.name for part in parts if part.name in names]
        if not set(_SIZES) <= set(_DEPENDS[value]) or not present:
            continue
        sizes = {tuple(int(reading.conditions.get(name, 0)) for name in _SIZES) for reading in calibration.readings}
        for tokens, rows in sorted(sizes):
            here = conditions(model, request.parallel, tokens=tokens, rows=rows)
            reading = calibration.latest(value, {name: here[name] for name in _DEPENDS[value]})
            if reading is None:
                continue
            for name in present:
                size = int(reading.values[value]) if name == present[0] else 0
                found[name] = (*found.get(name, ()), (tokens, rows, size))
    return found


def may_be_measured(engine: str) -> bool:
    """Whether the user has measured this engine on any accelerator, or measurements are switched off."""
    from hwcalc.profiles.calibration import calibrated_gpus, enabled, overheads_kind

    return not enabled() or calibrated_gpus(overheads_kind(engine)) != frozenset()


def is_measured(gpu: str, engine: str) -> bool:
    """Whether the user has measured this engine on this accelerator, or measurements are switched off, which a note says."""
    from hwcalc.profiles.calibration import calibration_exists, enabled, overheads_kind

    return not enabled() or calibration_exists(gpu, overheads_kind(engine))


def measurements(gpu: str, kind: str) -> Noted[Calibration | None]:
    """The user's measurements of this kind. If calibration is switched off, ``None`` with a note.

    Raises :class:`~hwcalc.errors.ConfigError` if the file is broken.
    """
    from hwcalc.profiles.calibration import SWITCH, calibration_exists, calibration_path, enabled, load_calibration

    if not enabled():
        path = calibration_path(gpu, kind)
        if path is None or not path.exists():
            return Noted(None)
        note = Note(code="calibration-off", message=f"{SWITCH} is set: what was measured on {gpu} is left out.")
        return Noted(None, (note,))
    if not calibration_exists(gpu, kind):
        return Noted(None)
    from hwcalc.hardware.profiles import profile_errors

    with profile_errors():
        return Noted(load_calibration(gpu, kind))
