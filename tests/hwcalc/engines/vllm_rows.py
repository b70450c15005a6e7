"""The rows that vLLM's own planners produced, those of 0.33 and of older releases, and the same requests put to the engine."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from msgspec.structs import replace

from hwcalc import load_model
from hwcalc.engines import find_engine
from hwcalc.engines.pool import PoolGroup, PoolInfo
from hwcalc.engines.setup import Request
from hwcalc.engines.vllm.deployment import VllmOccupancy
from hwcalc.engines.vllm.layout import BlockGroup
from hwcalc.engines.vllm.pool import group_infos
from hwcalc.model import ModelSpec
from hwcalc.profiles.hardware_file import Gpu
from hwcalc.units import GIB
from tests.golden_configs import config_as_run
from tests.paths import GOLDEN as ROWS

GOLDEN: Final = ROWS / "vllm.json"
OLDER: Final = ROWS / "vllm_versions.json"
MORE: Final = ROWS / "vllm_more_versions.json"
CLASSES: Final = ROWS / "vllm_classes.json"
CARDS: Final = {"H100": ("9.0", 81_559), "B200": ("10.0", 183_359), "A100": ("8.0", 81_920), "L4": ("8.9", 22_564)}
"""Compute capability and MiB."""
_OPTIONS: Final = (
    "async_scheduling",
    "block_size",
    "dtype",
    "enable_prefix_caching",
    "enforce_eager",
    "mamba_ssm_cache_dtype",
    "max_num_batched_tokens",
    "num_gpu_blocks_override",
)
"""Options that a row spells as the engine does."""
_DIRECT: Final = {"enable_prefix_caching": True}
"""The settings of 0.33 that a row without a GPU has beside its own."""

Row = Mapping[str, Any]


@lru_cache(maxsize=1)
def rows() -> Mapping[str, Row]:
    """Every row by its name, or by its model where it has none."""
    named: dict[str, Row] = {}
    for row in json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"]:
        named[row["name"] or row["model"]] = row
    return named


@lru_cache(maxsize=1)
def class_rows() -> Mapping[str, Row]:
    """Every row of the classes of the catalog by its name."""
    return {row["name"]: row for row in json.loads(CLASSES.read_text(encoding="utf-8"))["cases"]}


@lru_cache(maxsize=1)
def older_rows() -> Mapping[tuple[str, str], Row]:
    """Every row of an older release by version and name."""
    found: dict[tuple[str, str], Row] = {}
    for path in (OLDER, MORE):
        document = json.loads(path.read_text(encoding="utf-8"))
        configs = document.get("configs", {})
        for row in document["cases"]:
            own = {"config": configs[row["model"]]} if row["model"] in configs else {}
            found[row["vllm_version"], row["name"]] = {**row, **own}
    return found


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


def opened(model: str | Mapping[str, Any], *, seq: int, version: str | None = None, **fields: Any) -> VllmOccupancy:
    """A request to the engine about a model of the catalog, or a config."""
    return _asked(load_model(model), seq, version, fields)


def pool(model: str | Mapping[str, Any], budget: int = 60 * GIB, **fields: Any) -> PoolInfo:
    """The pool of a model of the catalog, or of a config."""
    made = opened(model, **fields).pool(budget).value
    assert made is not None
    return made


def groups(model: str | Mapping[str, Any], **fields: Any) -> tuple[PoolGroup, ...]:
    """The layers that share a block table."""
    return opened(model, **fields).groups


def _asked(model: ModelSpec, seq: int, version: str | None, fields: Mapping[str, Any]) -> VllmOccupancy:
    return unchecked(model, seq, version, fields).checked()


def unchecked(model: ModelSpec, seq: int, version: str | None, fields: Mapping[str, Any]) -> VllmOccupancy:
    """A request to the engine as it is, which it may refuse."""
    engine, _ = find_engine("vllm")
    request = Request.of(seq=seq, engine_version=engine.version(version)).changed(**fields)
    occupancy = engine.unchecked(model.as_built_by("vllm"), request)
    assert isinstance(occupancy, VllmOccupancy)
    return occupancy


@lru_cache(maxsize=512)
def _row_model(name: str, config: str) -> ModelSpec:
    """The model of a row, by the row's own ``config`` or from the catalog, without the ``quantization_config`` that the runs took away."""
    read = dict(json.loads(config) or config_as_run(name))
    read.pop("quantization_config", None)
    if isinstance(read.get("text_config"), Mapping):
        read["text_config"] = {key: value for key, value in read["text_config"].items() if key != "quantization_config"}
    return load_model(read)


def row_opened(row: Row) -> VllmOccupancy:
    """The row's request. A row without a GPU asked the planner of 0.33 without the model, which left after 0.23."""
    options = row["options"]
    gpu = row["result"].get("gpu_emulated")
    fields = {
        "dtype": options.get("kv_cache_dtype"),
        "tp": options.get("tp", 1),
        "pp": options.get("pp", 1),
        "dcp": options.get("dcp", 1),
        "gpu": None if gpu is None else card(gpu.split()[1]),
        "options": _engine_options(options if gpu else {**options, **_DIRECT}),
    }
    length = options.get("max_model_len") or _length(row["result"])
    version = row.get("vllm_version") or (None if gpu else "0.23")
    return _asked(_row_model(row["model"], json.dumps(row.get("config") or None)), length, version, fields)


def _engine_options(options: Mapping[str, Any]) -> dict[str, str]:
    own = {
        **{name: options.get(name) for name in _OPTIONS},
        "disable_hybrid_kv_cache_manager": options.get("disable_hybrid"),
        "speculative": "ngram:5" if "speculative" in options else None,
    }
    return {name: str(value).lower() for name, value in own.items() if value is not None}


def _length(result: Row) -> int:
    """The length that the run planned for. Before 0.12 a refused run leaves its last trial value in the settings."""
    told = re.search(r"max seq len \((\d+)\)", result.get("error", ""))
    return int(told[1]) if told else int(result["effective"]["max_model_len"])


def differences(row: Row) -> list[str]:
    """Everything in which the plan of a row differs from vLLM's own."""
    context = row_opened(row)
    pool = context.pool(row["options"]["available_bytes"]).value
    assert pool is not None
    result = row["result"]
    pairs: dict[str, tuple[Any, Any]] = {
        "fits": (pool.fits, "error" not in result),
    }
    if "bytes_per_block_per_rank" in result:
        pairs["bytes per block"] = (pool.bytes_per_block, max(result["bytes_per_block_per_rank"]))
    if "groups" in result:
        first = "vllm_version" in row and context.setup.parallel.pp > 1
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


def _groups_of_first_stage(context: VllmOccupancy) -> list[PoolGroup]:
    """The groups with the layers of the first pipeline stage, which is what the rows of older versions list."""
    layout = context.layout
    own, counts = [], []
    for group in layout.stage_groups[0]:
        pairs = zip(group.members, group.specs, strict=True)
        cut = layout.rules.cuts_mixed_group or len(group.distinct) == 1
        kept = [(member, spec) for member, spec in pairs if not cut or layout.stages[member] == 0]
        counts.append(sum(layout.stages[member] == 0 for member in group.members))
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
