"""The parts of the pool that public start-up logs state, beside those of the plan."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from statistics import median
from typing import Any, Final

from msgspec.structs import replace

from hwcalc import load_model
from hwcalc.engines.memory import ACTIVATION, NON_TORCH, Budget
from hwcalc.engines.vllm.memory import plan_budget
from hwcalc.formulas.record import Record
from hwcalc.profiles.gpus import find_gpu
from hwcalc.units import GIB
from tests.hwcalc.engines.vllm_rows import unchecked
from tests.paths import TESTS

ROWS: Final[list[dict[str, Any]]] = json.loads((TESTS / "logs" / "vllm" / "pools.json").read_text(encoding="utf-8"))
HALF: Final = 0.01
"""GiB by which a figure of two decimals, or one worked out from two of them, may be off."""
ENCODER_CACHE: Final = "encoder cache"


class Figure(Record):
    """One figure of a log, in GiB, beside low, expected and high of the plan."""

    row: int
    model: str
    family: str
    name: str
    stated: float
    low: float
    expected: float
    high: float

    @property
    def inside(self) -> bool:
        """Whether the log lies inside the range."""
        return self.low - HALF <= self.stated <= self.high + HALF

    @property
    def error(self) -> float:
        """By which share of the figure the plan is off."""
        return abs(self.expected - self.stated) / abs(self.stated)


def planned(row: dict[str, Any]) -> Budget:
    """The budget of a row, on a GPU with the memory that the log states."""
    gpu = find_gpu(row["gpu"])
    if row["total_gib"] is not None:
        gpu = replace(gpu, torch_total_mib=round(row["total_gib"] * 1024), torch_total_mib_seen=None)
    fields = {"gpu": gpu, "tp": row["tp"], "pp": row["pp"], "memory_utilization": row["utilization"], "options": row["options"]}
    opened = unchecked(load_model(row["model"]), row["seq"], row["version"], fields)
    settings = opened.settings
    found = plan_budget(opened, sequences=settings.sequences, batched_tokens=settings.batched_tokens).value
    assert found is not None
    return found


def figures() -> Iterator[Figure]:
    """Every figure of every row."""
    for number, row in enumerate(ROWS):
        budget = planned(row)
        named = {"activation": (*ACTIVATION, ENCODER_CACHE), "non_torch": NON_TORCH}
        ends: dict[str, tuple[int, ...]] = {"available": (budget.low, budget.expected, budget.high)}
        for name, names in named.items():
            found = [part for part in budget.parts if part.name in names]
            ends[name] = tuple(sum(getattr(part, end) for part in found) for end in ("low", "expected", "high"))
        weights = [part for part in budget.parts if part.section == "weights" or part.name == "rotary table"]
        ends["weights"] = tuple(sum(getattr(part, end) for part in weights) for end in ("low", "expected", "high"))
        for name, sizes in ends.items():
            stated = row[f"{name}_gib"]
            if stated is not None:
                low, expected, high = (size / GIB for size in sizes)
                yield Figure(
                    row=number,
                    model=row["model"],
                    family=row["family"],
                    name=name,
                    stated=stated,
                    low=low,
                    expected=expected,
                    high=high,
                )


def table(found: list[Figure]) -> list[str]:
    """For each family and figure: how many, the median error, and the share inside the range."""
    lines = []
    for family in sorted({figure.family for figure in found}):
        for name in ("available", "weights", "activation", "non_torch"):
            here = [figure for figure in found if figure.family == family and figure.name == name]
            if here:
                error, inside = median(figure.error for figure in here), sum(figure.inside for figure in here)
                lines.append(
                    f"{family:8} {name:10} {len(here):3} logs, median error {error:7.2%}, inside {inside / len(here):.0%}"
                )
    return lines


if __name__ == "__main__":
    everything = list(figures())
    outside = [f"  outside: {figure}" for figure in everything if not figure.inside]
    sys.stdout.write("\n".join([*table(everything), *outside]) + "\n")
