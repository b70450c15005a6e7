"""The steps of a bound on speed: bytes by bandwidth, operations by rate, and the longer of the two times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from hwcalc.engines.steps import Step, step
from hwcalc.planner.weight_use import Use

if TYPE_CHECKING:
    from hwcalc.profiles.gpus import Gpu

__all__ = ["fastest", "time_steps", "weight_step"]

_USES: Final = {
    Use.ALWAYS: "weights_of_every_token",
    Use.CHOSEN: "weights_of_chosen_experts",
    Use.ROW: "embedding_rows",
    Use.LAST: "output_head",
    Use.ENCODER: "encoder_weights",
}
"""What the weights of a use are called in a formula."""


def weight_step(name: str, read: Iterable[tuple[Use, float]]) -> Step:
    """The bytes of weights that a pass reads, by their use."""
    sums: dict[str, float] = {}
    total = 0.0
    for use, size in read:
        total += size
        sums[_USES[use]] = sums.get(_USES[use], 0) + size
    return step(name, " + ".join(sums) or "0", total, unit="bytes", **sums)


def time_steps(
    pass_name: str, sizes: Mapping[str, float], flops: Mapping[tuple[str, ...], float], gpu: Gpu, bandwidth: float | None
) -> tuple[Step, ...]:
    """The time for reading, the time for computing and the longer one, in seconds. What is not known is left out.

    ``sizes`` are the bytes that the pass reads, and ``flops`` its operations by the names of the rates at which they may run.
    """
    times: dict[str, float] = {}
    steps = []
    if bandwidth is not None:
        reading = sum(sizes.values()) / bandwidth
        summed = " + ".join(sizes) if len(sizes) == 1 else f"({' + '.join(sizes)})"
        steps.append(step(f"{pass_name}_reading", f"{summed} / bandwidth", reading, unit="s", **sizes, bandwidth=bandwidth))
        times[f"{pass_name}_reading"] = reading
    terms: dict[str, float] = {}
    quotients = []
    computing = 0.0
    for names, count in flops.items():
        found = fastest(gpu, names)
        if found is None:
            continue
        name, rate = found
        if f"rate_{name}" not in terms:
            quotients.append(f"flops_{name} / rate_{name}")
        terms[f"flops_{name}"] = terms.get(f"flops_{name}", 0) + count
        terms[f"rate_{name}"] = rate
        computing += count / rate
    if quotients:
        steps.append(step(f"{pass_name}_computing", " + ".join(quotients), computing, unit="s", **terms))
        times[f"{pass_name}_computing"] = computing
    if times:
        formula = f"max({', '.join(times)})" if len(times) > 1 else next(iter(times))
        steps.append(step(f"{pass_name}_s", formula, max(times.values()), unit="s", **times))
    return tuple(steps)


def fastest(gpu: Gpu, rates: Iterable[str]) -> tuple[str, float] | None:
    """The fastest of these rates that is known, by name, in operations per second."""
    known = [(rate * 1e12, name) for name in rates if (rate := gpu.tflops_dense.get(name)) is not None]
    if not known:
        return None
    rate = max(rate for rate, _ in known)
    return next((name, found) for found, name in known if found == rate)
