"""The rows that vLLM 0.33's own planner produced, and the same requests put to the engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from hwcalc import load_model
from hwcalc.engines import find_engine
from hwcalc.engines.base import Opened
from hwcalc.engines.request import Request
from hwcalc.profiles.gpus import Gpu
from tests.golden_configs import config_as_run
from tests.paths import GOLDEN as ROWS

GOLDEN: Final = ROWS / "vllm.json"
CARDS: Final = {"H100": ("9.0", 81_559), "B200": ("10.0", 183_359), "A100": ("8.0", 81_920), "L4": ("8.9", 22_564)}
"""Compute capability and MiB."""

Row = Mapping[str, Any]


@lru_cache(maxsize=1)
def rows() -> Mapping[str, Row]:
    """Every row by its name, or by its model where it has none."""
    named: dict[str, Row] = {}
    for row in json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"]:
        named[row["name"] or row["model"]] = row
    return named


def card(name: str) -> Gpu:
    """The accelerator as far as vLLM's planner asks for it."""
    capability, mebibytes = CARDS[name]
    return Gpu(
        id=name.lower(),
        name=name,
        vendor="nvidia",
        architecture=None,
        compute_capability=capability,
        memory_marketing_gb=None,
        memory_total_mib=mebibytes,
        torch_total_mib=mebibytes,
        memory_bandwidth_gbps=None,
        fp8_kv=None,
        source="test",
    )


def opened(model: str | Mapping[str, Any], *, seq: int, version: str | None = None, **fields: Any) -> Opened:
    """A request to the engine about a model of the catalog, or a config."""
    engine, _ = find_engine("vllm")
    return engine.open(load_model(model), Request(seq=seq, engine_version=engine.version(version)).changed(**fields))


def row_opened(row: Row) -> Opened:
    """The row's request. Its run took ``quantization_config`` away, as the oracle does."""
    options = row["options"]
    config = dict(row.get("config") or config_as_run(row["model"]))
    config.pop("quantization_config", None)
    if isinstance(config.get("text_config"), Mapping):
        config["text_config"] = {key: value for key, value in config["text_config"].items() if key != "quantization_config"}
    own = {
        "max_num_batched_tokens": options.get("max_num_batched_tokens"),
        "num_gpu_blocks_override": options.get("num_gpu_blocks_override"),
        "enable_prefix_caching": options.get("enable_prefix_caching"),
        "async_scheduling": options.get("async_scheduling"),
        "disable_hybrid_kv_cache_manager": options.get("disable_hybrid"),
        "mamba_ssm_cache_dtype": options.get("mamba_ssm_cache_dtype"),
        "speculative": "ngram:5" if "speculative" in options else None,
    }
    gpu = row["result"].get("gpu_emulated")
    return opened(
        config,
        seq=options.get("max_model_len") or row["result"]["effective"]["max_model_len"],
        # MiniMax-Text-01 left after 0.23; its row asked the planner without the model.
        version=None if gpu else "0.23",
        dtype=options.get("kv_cache_dtype"),
        tp=options.get("tp", 1),
        pp=options.get("pp", 1),
        dcp=options.get("dcp", 1),
        gpu=None if gpu is None else card(gpu.split()[1]),
        options={name: str(value).lower() for name, value in own.items() if value is not None},
    )
