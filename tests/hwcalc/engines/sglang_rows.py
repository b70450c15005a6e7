"""The rows that SGLang's own configurators produced, and the same requests put to the engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from hwcalc import load_model
from hwcalc.engines import find_engine
from hwcalc.engines.setup import Parallel, Request
from hwcalc.engines.sglang.engine import SglangOccupancy
from hwcalc.model import ModelSpec
from tests.golden_configs import config_as_run
from tests.paths import GOLDEN

__all__ = ["Row", "differences", "name_of", "opened_of", "rows"]

Row = Mapping[str, Any]
_NAMES: Final = {
    "opt_mrr": "max_running_requests",
    "opt_swa_ratio": "swa_full_tokens_ratio",
    "opt_mamba_ratio": "mamba_full_memory_ratio",
    "opt_dsa_backend": "dsa_backend",
}


@lru_cache(maxsize=1)
def rows() -> Mapping[str, Row]:
    """Every row by what it was run with."""
    return {name_of(row): row for row in json.loads((GOLDEN / "sglang.json").read_text(encoding="utf-8"))["cases"]}


def name_of(row: Row) -> str:
    """The model and the settings of a row, in one line."""
    options = [f"{key.removeprefix('opt_')}={row[key]}" for key in sorted(row) if key.startswith("opt_")]
    return " ".join([row["model"], row["kv_dtype"], f"page={row['page_size']}", *options, *filter(None, [row["spec"]])])


@lru_cache(maxsize=64)
def _model(name: str) -> ModelSpec:
    return load_model(config_as_run(name))


def options_of(row: Row) -> dict[str, str]:
    """The settings of a row by the names of the engine. What a row does not set, nobody had set when it was run."""
    options = {"page_size": str(row["page_size"])}
    named = {key: row[key] for key in row if key in _NAMES}
    options |= {_NAMES[key]: str(value) for key, value in named.items()}
    if row.get("opt_radix") is False:
        options["disable_radix_cache"] = "true"
    if row.get("opt_extra_buffer"):
        options["mamba_scheduler_strategy"] = "extra_buffer"
    if row["spec"]:
        options["speculative"] = f"eagle:{row['draft_layers']}:{row['draft_tokens']}"
    return options


def opened_of(row: Row) -> SglangOccupancy:
    """The request of a row, opened."""
    request = Request.of(seq=1024, dtype=row["kv_dtype"], parallel=Parallel(tp=row.get("opt_tp", 1)), options=options_of(row))
    occupancy = find_engine("sglang")[0].open(_model(row["model"]), request)
    assert isinstance(occupancy, SglangOccupancy)
    return occupancy


def differences(row: Row) -> list[str]:
    """Figures of a row that are planned otherwise."""
    opened = opened_of(row)
    rules = opened.deployment.pool_rules
    sizes, cell = rules.logged(rules.figures(row["budget_bytes"]))
    found: dict[str, Any] = {
        "max_total_num_tokens": sizes.tokens,
        "swa_tokens": sizes.swa_tokens,
        "max_running_requests": sizes.running,
        "max_mamba_cache_size": sizes.slots,
    }
    if opened.deployment.compressed is not None:
        (stage,) = opened.deployment.compressed.stages
        found |= {
            "bytes_per_full_token": cell,
            "bytes_per_swa_token": opened.deployment.compressed.swa_bytes(stage),
            "indexer_bytes_per_token": opened.deployment.compressed.index_bytes,
        }
    elif row["configurator"] != "SWARequestCapPoolConfigurator":
        found["cell_size"] = cell
    if opened.deployment.slots:
        found |= {
            "mamba_bytes_per_slot": opened.deployment.layout.slot_bytes,
            "mamba_slots_per_req": opened.deployment.slots,
            "kv_budget_after_mamba": sizes.left_bytes,
        }
    return [f"{key}: {row.get(key)} by SGLang, {value} here" for key, value in found.items() if row.get(key) != value]
