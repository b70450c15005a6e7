"""A note on weights that are planned in another format than the checkpoint's, where that has no more bits and fits too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.engines.deployment import Occupancy
from hwcalc.model import Note
from hwcalc.planner import solve
from hwcalc.planner.expected import speed_of
from hwcalc.planner.planned_weights import WeightsInfo, weights_of
from hwcalc.quantization.ggml import MIXES
from hwcalc.quantization.planned import bits_of, format_name
from hwcalc.units import few_digits, human_bytes

if TYPE_CHECKING:
    from hwcalc.planner.speed_result import SpeedInfo

NO_SMALLER: Final = "weights-no-smaller"
"""The code of the note."""
_FLOAT_BITS: Final = 16
"""Weights of so many bits are not quantised."""
_ALIKE: Final = 0.001
"""Sizes that differ by so small a part are one: nothing is gained."""


def published_notes(opened: Occupancy, weights: WeightsInfo, speed: SpeedInfo | None) -> tuple[Note, ...]:
    """A note if most of the checkpoint's weights have no more bits than those of ``--weights``, and what it takes without that option.

    None where people publish files in the named format nevertheless, and where the checkpoint as it is does not fit or is as large.
    """
    name, formats = format_name(opened.setup.weights), opened.engine.weights
    bits = None if name is None else bits_of(name)
    if bits is None or weights.bytes is None or (formats.are_mixes and name in formats.of(opened.model)):
        return ()
    other = solve.tried(opened, weights=None)
    published = None if other is None else weights_of(other).value
    form = None if published is None else _most(published)
    if other is None or published is None or published.bytes is None or form is None:
        return ()
    stored, stored_bits = form
    if stored_bits > min(bits, _FLOAT_BITS - 1) or stored in (name, MIXES.get(name or "")) or not solve.holds(other):
        return ()
    if abs(published.bytes - weights.bytes) <= _ALIKE * weights.bytes:
        return ()
    takes = [f"{human_bytes(published.bytes)} instead of {human_bytes(weights.bytes)}"]
    speeds = [None if one is None else one.tokens_per_s_each for one in (speed_of(other), speed)]
    rates = [few_digits(one.expected) for one in speeds if one is not None and one.expected is not None]
    takes += [f"{rates[0]} tokens/s instead of {rates[1]}"] if len(set(rates)) > 1 else []
    takes += ["less loss"] if published.bytes > weights.bytes else []
    message = f"Published mostly in {stored}. Without --weights: {', '.join(takes)}"
    return (Note(code=NO_SMALLER, message=message),)


def _most(weights: WeightsInfo) -> tuple[str, int] | None:
    """The name and the bits of the format that most parameters have; ``None`` if that is not known."""
    sums: dict[tuple[str, int], int] = {}
    for part in weights.parts:
        for one in part.formats:
            sums[one.format, one.bits] = sums.get((one.format, one.bits), 0) + one.parameters
    return max(sums, key=sums.__getitem__, default=None)
