"""The user's own measurements of speed: how many times the expected time an engine took, kept by engine, accelerator and kind of model.

``kvplan reconcile --bench FILE --calibrate`` keeps them. A class of speed then has its times multiplied: those of arithmetic, which prompts
are made of, by ``prompt_times``, and all others, which decoding is made of, by ``decode_times``. Its range becomes narrower, by the square
root: half of what measurements of a class lie apart is the machine and its settings, which are the user's own now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.engines.memory import measurements
from hwcalc.model import Note
from hwcalc.profiles.calibration import speed_kind

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.model import ModelSpec
    from hwcalc.profiles.hardware_file import Gpu
    from hwcalc.profiles.speed import SpeedClass

NO_CALIBRATION: Final = "no_calibration"
"""The option that leaves all measurements of the user out."""
CALIBRATED: Final = "speed-calibrated"
"""The code of the note that names a measurement."""


def layers_word(model: ModelSpec) -> str:
    """The kind of model that measurements are kept by: ``experts``, or ``dense``."""
    parameters = model.parameters
    has_experts = parameters is not None and parameters.total is not None and parameters.active not in (None, parameters.total)
    return "experts" if has_experts else "dense"


def scaled(chosen: SpeedClass, decode_times: float, prompt_times: float) -> SpeedClass:
    """The class with its times multiplied, and narrower ranges."""
    ranges = {kind: replace(one, low=one.low**0.5, high=one.high**0.5) for kind, one in chosen.ranges.items()}
    return replace(chosen, parameters=chosen.parameters.slower(decode_times, prompt_times), ranges=ranges)


def is_measured(gpu: Gpu, engine: str) -> bool:
    """True if the user has measured the speed of this engine on this accelerator, with any kind of model."""
    return measurements(gpu.id, speed_kind(engine))[0] is not None


def as_measured(opened: Occupancy, chosen: SpeedClass | None) -> SpeedClass | None:
    """The class as the user's own measurement makes it, if there is one of this engine, accelerator and kind of model.

    The occupancy is told a note that names it.
    """
    gpu = opened.setup.hardware.gpu
    if chosen is None or gpu is None or opened.setup.others.get(NO_CALIBRATION):
        return chosen
    calibration, notes = measurements(gpu.id, speed_kind(opened.engine.name))
    opened.tell(*notes)
    reading = None if calibration is None else calibration.latest("decode_times", {"layers": layers_word(opened.model)})
    if reading is None:
        return chosen
    decode, prompt = (float(reading.values.get(name, 1.0)) for name in ("decode_times", "prompt_times"))
    message = (
        f"Speed as measured by the user on {reading.measured.date} ({reading.measured.source}): {decode:.2f} times the expected time of "
        f"decoding and {prompt:.2f} times that of prompts. Leave it out: --no-calibration."
    )
    opened.tell(Note(code=CALIBRATED, message=message))
    return replace(scaled(chosen, decode, prompt), name=f"{chosen.name}, times the user's measurement of {reading.measured.date}")
