"""What vLLM 0.33's own planner computed (``tests/golden/vllm.json``) is planned to the block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest

from hwcalc.engines.pool import PoolGroup
from hwcalc.errors import KvplanError
from tests.hwcalc.engines.vllm_rows import Row, row_opened, rows

ALLOWED_MISSES: Final = 0.03

KNOWN_MISSES: Final[Mapping[str, str]] = {}
"""Rows that are not planned exactly, by name, each with its reason. One that begins to pass must leave this table."""


def differences(row: Row) -> list[str]:
    """Everything in which the plan of a row differs from vLLM's own."""
    context = row_opened(row)
    pool = context.pool(row["options"]["available_bytes"])
    assert pool is not None
    result = row["result"]
    pairs: dict[str, tuple[Any, Any]] = {
        "bytes per block": (pool.bytes_per_block, max(result["bytes_per_block_per_rank"])),
        "groups": (sorted(map(_group, context.groups)), sorted(map(_golden_group, result["groups"]))),
        "fits": (pool.fits, "error" not in result),
    }
    if "bytes_needed_for_one_max_len_request_per_rank" in result:
        pairs["needed"] = (pool.needed_bytes, max(result["bytes_needed_for_one_max_len_request_per_rank"]))
    if "estimated_max_model_len" in result:
        pairs["longest"] = (min(pool.max_seq or 0, context.tokens), result["estimated_max_model_len"])
    if "error" in result:
        pairs["message"] = (pool.message, result["error"].partition(" Try increasing")[0])
    else:
        pairs["blocks"] = (pool.blocks, result["num_blocks"])
        pairs["tokens"] = (pool.tokens, result["log_kv_cache_size_tokens"])
        pairs["concurrency"] = (f"{pool.max_concurrency:.2f}", f"{result['log_max_concurrency']:.2f}")
    if result.get("effective", {}).get("block_size"):
        pairs["block size"] = (pool.block_size, result["effective"]["block_size"])
    return [f"{name}: {ours} != {theirs}" for name, (ours, theirs) in pairs.items() if ours != theirs]


def _group(group: PoolGroup) -> tuple[int, int, int]:
    """Layers, blocks, and the bytes of all its layers' pages."""
    return group.count, group.blocks_per_request, group.block_bytes


def _golden_group(group: Mapping[str, Any]) -> tuple[int, int, int]:
    summed = group["class"] == "UniformTypeKVCacheSpecs"
    total = group["page_size_bytes"] * (1 if summed else group["n_layers"])
    return group["n_layers"], group["blocks_for_one_max_len_request"], total


@pytest.mark.parametrize("name", rows())
def test_row_is_planned_to_the_block(name: str) -> None:
    """Every figure of the row, or a known reason."""
    try:
        found = differences(rows()[name])
    except KvplanError as error:
        found = [f"{type(error).__name__}: {error.message}"]
    if name in KNOWN_MISSES:
        assert found, f"{name} is exact now: take it out of KNOWN_MISSES"
        pytest.xfail(KNOWN_MISSES[name])
    assert not found, "\n".join(found)


def test_few_rows_are_missed() -> None:
    """The table of misses stays short."""
    assert len(KNOWN_MISSES) <= ALLOWED_MISSES * len(rows())
    assert len(rows()) > 200


@pytest.mark.parametrize(
    "name", [name for name, row in rows().items() if "bytes_needed_for_one_max_len_request_per_rank" in row["result"]]
)
def test_tensors_and_extras_add_up_to_what_a_request_takes(name: str) -> None:
    """All ranks together: each of tp ranks of each pipeline stage holds its stage's blocks."""
    if name in KNOWN_MISSES:
        pytest.xfail(KNOWN_MISSES[name])
    row = rows()[name]
    context = row_opened(row)
    stack = context.model.stack_for("vllm")
    total = sum(group.count * tensor.bytes for group in stack.groups for tensor in context.engine.tensors(group.kind, context))
    total += sum(tensor.bytes for tensor in context.extras)
    needed = row["result"]["bytes_needed_for_one_max_len_request_per_rank"]
    assert total == context.request.parallel.tp * sum(needed)
