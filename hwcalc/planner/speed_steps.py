"""The steps of a bound on speed: bytes by bandwidth, operations by rate, and the longer of the two times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.engines.steps import Step, step
from hwcalc.planner.speed_rates import fastest
from hwcalc.planner.weight_share import Use

if TYPE_CHECKING:
    from hwcalc.planner.speed_work import CacheReads
    from hwcalc.profiles.gpus import Gpu

_MOST_KINDS: Final = 4
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


def cache_steps(reads: Sequence[CacheReads], whole: float) -> tuple[Step, ...]:
    """The bytes of cache that a step reads for one sequence, kind by kind; ``whole`` is their sum, shared by decode context parallelism.

    Nothing for a model of very many kinds, whose sum nobody would read.
    """
    if not reads or len(reads) > _MOST_KINDS:
        return ()
    steps = []
    for number, read in enumerate(reads):
        (positions, row), *others = sorted(read.times.items(), reverse=True)
        rest = sum(times * size for times, size in others)
        terms = {"kind_layers": read.layers, "entries": positions, "entry_bytes": row} | ({"other_bytes": rest} if rest else {})
        formula = "kind_layers x (entries x entry_bytes + other_bytes)" if rest else "kind_layers x entries x entry_bytes"
        again = f"_{number + 1}" if read.kind in {one.kind for one in reads[:number]} else ""
        steps.append(step(f"{read.kind}_read{again}", formula, read.bytes, unit="bytes", **terms))
    sizes = {one.name: one.expected for one in steps}
    total = sum(sizes.values())
    if len(steps) == 1 and total == whole:
        return (replace(steps[0], name="cache_bytes_each"),)
    formula, shared = " + ".join(sizes), total != whole
    if shared:
        formula = formula if len(sizes) == 1 else f"({formula})"
        formula, sizes = f"{formula} / dcp", sizes | {"dcp": round(total / whole)}
    return (*steps, step("cache_bytes_each", formula, whole, unit="bytes", **sizes))


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
