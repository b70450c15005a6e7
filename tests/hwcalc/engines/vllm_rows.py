"""The rows that vLLM 0.33's own planner produced, and the same requests put to the engine."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from hwcalc import load_model
from hwcalc.engines import find_engine
from hwcalc.engines.base import Opened
from hwcalc.engines.pool import PoolGroup
from hwcalc.engines.request import Request
from hwcalc.engines.vllm.groups import BlockGroup
from hwcalc.engines.vllm.opened import of_vllm
from hwcalc.engines.vllm.pool import group_infos
from hwcalc.formulas.frozen import replace
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
        "block_size": options.get("block_size"),
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
        seq=options.get("max_model_len") or _length(row["result"]),
        # MiniMax-Text-01 left after 0.23; its row asked the planner without the model.
        version=row.get("vllm_version") or (None if gpu else "0.23"),
        dtype=options.get("kv_cache_dtype"),
        tp=options.get("tp", 1),
        pp=options.get("pp", 1),
        dcp=options.get("dcp", 1),
        gpu=None if gpu is None else card(gpu.split()[1]),
        options={name: str(value).lower() for name, value in own.items() if value is not None},
    )


def _length(result: Row) -> int:
    """The length that the run planned for. Before 0.12 a refused run leaves its last trial value in the settings."""
    told = re.search(r"max seq len \((\d+)\)", result.get("error", ""))
    return int(told[1]) if told else int(result["effective"]["max_model_len"])


def differences(row: Row) -> list[str]:
    """Everything in which the plan of a row differs from vLLM's own."""
    context = row_opened(row)
    pool = context.pool(row["options"]["available_bytes"])
    assert pool is not None
    result = row["result"]
    pairs: dict[str, tuple[Any, Any]] = {
        "fits": (pool.fits, "error" not in result),
    }
    if "bytes_per_block_per_rank" in result:
        pairs["bytes per block"] = (pool.bytes_per_block, max(result["bytes_per_block_per_rank"]))
    if "groups" in result:
        first = "vllm_version" in row and context.request.parallel.pp > 1
        ours = _groups_of_first_stage(context) if first else context.groups
        pairs["groups"] = (sorted(map(_group, ours)), sorted(map(_golden_group, result["groups"])))
    if "bytes_needed_for_one_max_len_request_per_rank" in result:
        pairs["needed"] = (pool.needed_bytes, max(result["bytes_needed_for_one_max_len_request_per_rank"]))
    if "estimated_max_model_len" in result:
        pairs["longest"] = (min(pool.max_seq or 0, context.tokens), result["estimated_max_model_len"])
    if "error" in result:
        pairs["message"] = (pool.message, result["error"].partition(" Try increasing")[0])
    else:
        pairs["blocks"] = (pool.blocks, result["num_blocks"])
        pairs["tokens"] = (pool.tokens, result["log_kv_cache_size_tokens"])
        pairs["concurrency"] = (f"{pool.max_concurrency or 0:.2f}", f"{result['log_max_concurrency']:.2f}")
    if result.get("effective", {}).get("block_size") and "vllm_version" not in row:
        pairs["block size"] = (pool.block_size, result["effective"]["block_size"])
    return [f"{name}: {ours} != {theirs}" for name, (ours, theirs) in pairs.items() if ours != theirs]


def _groups_of_first_stage(context: Opened) -> list[PoolGroup]:
    """The groups with the layers of the first pipeline stage, which is what the rows of older versions list."""
    layout = of_vllm(context).layout
    own, counts = [], []
    for group in layout.stage_groups[0]:
        pairs = zip(group.members, group.specs, strict=True)
        cut = layout.rules.cuts_mixed_group or len(group.distinct) == 1
        kept = [(member, spec) for member, spec in pairs if not cut or layout.caches[member].stage == 0]
        counts.append(sum(layout.caches[member].stage == 0 for member in group.members))
        members, specs = zip(*kept, strict=True) if kept else ((), ())
        own.append(BlockGroup(members=members, specs=specs, distinct=group.distinct))
    infos = group_infos(replace(layout, groups=tuple(own)), context.tokens)
    return [replace(info, count=count) for info, count in zip(infos, counts, strict=True)]


def _group(group: PoolGroup) -> tuple[int, int, int]:
    """Layers, blocks, and the bytes of all its layers' pages."""
    return group.count, group.blocks_per_request, group.block_bytes


def _golden_group(group: Mapping[str, Any]) -> tuple[int, int, int]:
    summed = group["class"] == "UniformTypeKVCacheSpecs"
    total = group["page_size_bytes"] * (1 if summed else group["n_layers"])
    return group["n_layers"], group["blocks_for_one_max_len_request"], total
