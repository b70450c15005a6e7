"""Scenarios that the schedulers of vLLM, SGLang and llama.cpp ran (``tests/golden``), and the same ones replayed."""

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

Rows = dict[str, dict[str, Any]]


def _rows(file: str) -> Rows:
    document = json.loads((GOLDEN / file).read_text(encoding="utf-8"))
    return {row["name"]: {"config": document.get("config"), **row} for row in document["rows"]}


ROWS: Final = _rows("vllm_scheduler.json")
SGLANG_ROWS: Final = _rows("sglang_scheduler.json")
LLAMACPP_ROWS: Final = _rows("llamacpp_slots.json")
_SGLANG_MODELS: Final = {"dense": "Qwen/Qwen3-8B", "swa": "openai/gpt-oss-20b", "mamba": "Qwen/Qwen3-Next-80B-A3B-Instruct"}
"""The rows were run with one to four layers of these kinds; nothing but their kinds matters to the scheduler."""


@lru_cache(maxsize=len(ROWS))
def replayed(name: str) -> Simulation:
    """The scenario of this name on the deployment that kvplan makes of its model and settings."""
    row = ROWS[name]
    config = {**config_as_run(row["model"]), **row.get("overrides", {})}
    return simulate(config, row["requests"], blocks=row["blocks"], engine_options=row["engine"])


@lru_cache(maxsize=len(SGLANG_ROWS))
def replayed_by_sglang(name: str) -> Simulation:
    """The SGLang scenario of this name on the deployment that kvplan makes of its model and settings."""
    row = SGLANG_ROWS[name]
    config = config_as_run(_SGLANG_MODELS[row["model"]])
    return simulate(config, row["requests"], engine="sglang", tokens=row["tokens"], engine_options=row["engine"])


@lru_cache(maxsize=len(LLAMACPP_ROWS))
def replayed_by_llamacpp(name: str) -> Simulation:
    """The llama-server scenario of this name on the deployment that kvplan makes of its model and settings."""
    row = LLAMACPP_ROWS[name]
    return simulate(row["config"], row["requests"], engine="llamacpp", engine_options=row["engine"])


def digest(steps: Iterable[Iterable[object]]) -> str:
    """Rows as their origin hashed them."""
    return sha256("".join(f"{' '.join(map(str, step))}\n" for step in steps).encode()).hexdigest()
