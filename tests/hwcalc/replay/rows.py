"""Scenarios that vLLM's own scheduler ran (``tests/golden/vllm_scheduler.json``), and the same ones replayed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final

from hwcalc.replay.result import Simulation
from hwcalc.replay.simulate import simulate
from tests.golden_configs import config_as_run
from tests.paths import GOLDEN

ROWS: Final[dict[str, dict[str, Any]]] = {
    row["name"]: row for row in json.loads((GOLDEN / "vllm_scheduler.json").read_text(encoding="utf-8"))["rows"]
}


@lru_cache(maxsize=len(ROWS))
def replayed(name: str) -> Simulation:
    """The scenario of this name on the deployment that kvplan makes of its model and settings."""
    row = ROWS[name]
    config = {**config_as_run(row["model"]), **row.get("overrides", {})}
    return simulate(config, row["requests"], blocks=row["blocks"], engine_options=row["engine"])


def digest(steps: Iterable[Iterable[int]]) -> str:
    """The steps as the rows' origin hashed them."""
    return sha256("".join(f"{' '.join(map(str, step))}\n" for step in steps).encode()).hexdigest()
