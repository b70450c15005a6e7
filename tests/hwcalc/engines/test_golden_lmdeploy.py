"""Every block that LMDeploy's own code laid out (``tests/golden/lmdeploy.json``) has the same bytes here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import pytest

from hwcalc import plan
from hwcalc.engines.lmdeploy.layout import FORMATS, Shape, pytorch_pieces
from tests.paths import GOLDEN

Row = Mapping[str, Any]

_MODELS: Final = {
    "Llama-3.1-8B": "meta-llama/Llama-3.1-8B",
    "DeepSeek-V3 MLA bf16 (v_head_dim=0)": "deepseek-ai/DeepSeek-V3",
    "DeepSeek-V3.2 MLA fp8 + indexer (128 fp8 + 1 fp32)": "deepseek-ai/DeepSeek-V3.2",
    "Qwen3-30B-A3B": "Qwen/Qwen3-30B-A3B",
    "Qwen3-30B-A3B int8": "Qwen/Qwen3-30B-A3B",
    "Qwen3.5-35B-A3B attn layers": "Qwen/Qwen3.5-35B-A3B",
}
"""Rows whose dimensions are those of a published model."""


@lru_cache(maxsize=1)
def rows() -> Mapping[str, Row]:
    """The rows by name."""
    cases = json.loads((GOLDEN / "lmdeploy.json").read_text(encoding="utf-8"))["cases"]
    return {f"{row['name']} q{row['quant_policy']} tp{row['tp']}": row for row in cases}


@pytest.mark.parametrize("name", rows())
def test_a_block_has_these_bytes(name: str) -> None:
    """All pieces of a block of one rank, over all layers."""
    row = rows()[name]
    sparse = "fp8" in row["name"]
    shape = Shape(
        heads=max(1, row["kv_heads"] // row["tp"]),
        key=row["k_dim"],
        value=row["v_dim"],
        index_dim=128 if "indexer" in row["name"] else 0,
    )
    block = row["block_size"]
    pieces = pytorch_pieces(shape, FORMATS[int(row["quant_policy"])], block, block, sparse=sparse)
    assert row["layers"] * sum(piece.bytes for piece in pieces) == row["block_bytes"]
    assert row["block_bytes"] / block == row["bytes_per_token"]


@pytest.mark.parametrize("name", [name for name, row in rows().items() if row["name"] in _MODELS])
def test_a_plan_of_the_model_has_these_bytes(name: str) -> None:
    """The pool of a plan, and the blocks of one sequence beside the states."""
    row = rows()[name]
    asked = {
        "tp": row["tp"],
        "engine": "lmdeploy",
        "engine_options": {"quant_policy": row["quant_policy"], "max_batch_size": "1"},
    }
    made = plan(_MODELS[row["name"]], seq=row["block_size"], kv_memory=2**35, **asked)
    longer = plan(_MODELS[row["name"]], seq=3 * row["block_size"] + 1, kv_memory=2**35, **asked)
    assert made.pool is not None
    assert (made.pool.bytes_per_block, made.pool.block_size) == (row["block_bytes"], row["block_size"])
    assert made.pool.bytes_per_token == row["bytes_per_token"]
    assert longer.cache.per_gpu_bytes - made.cache.per_gpu_bytes == 3 * row["block_bytes"]
    assert longer.cache.total_bytes - made.cache.total_bytes == 3 * row["tp"] * row["block_bytes"]


def test_the_file_has_all_rows() -> None:
    """No row is passed over."""
    assert len(rows()) == 16
