"""Every block that LMDeploy's own code laid out has the same bytes here: that of 0.14.0 (``tests/golden/lmdeploy.json``), and of 0.18.0."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import pytest

from hwcalc import plan
from hwcalc.engines.lmdeploy.layout import FORMATS, NONE, PoolLayout, Shape, pytorch_pieces
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
    pieces = pytorch_pieces(shape, FORMATS[int(row["quant_policy"])], block, block, fp8_rows=sparse)
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
    asked["engine"] = "lmdeploy@0.14"
    made = plan(_MODELS[row["name"]], seq=row["block_size"], kv_memory=2**35, **asked)
    longer = plan(_MODELS[row["name"]], seq=3 * row["block_size"] + 1, kv_memory=2**35, **asked)
    assert made.pool is not None
    assert (made.pool.bytes_per_block, made.pool.block_size) == (row["block_bytes"], row["block_size"])
    assert made.pool.bytes_per_token == row["bytes_per_token"]
    assert longer.cache.per_gpu_bytes - made.cache.per_gpu_bytes == 3 * row["block_bytes"]
    assert longer.cache.total_bytes - made.cache.total_bytes == 3 * row["tp"] * row["block_bytes"]


def newest() -> list[Row]:
    """The rows of 0.18.0."""
    cases: list[Row] = json.loads((GOLDEN / "lmdeploy_newest.json").read_text(encoding="utf-8"))["cases"]
    return cases


@pytest.mark.parametrize("row", newest(), ids=lambda row: f"{row['name']} q{row['quant_policy']} tp{row['tp']}")
def test_a_block_of_the_newest_release(row: Row) -> None:
    """All pieces of a block; an indexer's keys are those of the layers that have one."""
    form, block = FORMATS[int(row["quant_policy"])], row["block_size"]
    index, heads = row.get("index_dim", 0), max(1, row["kv_heads"] // row["tp"])
    shape = Shape(heads=heads, key=row["k_dim"], value=row["v_dim"], index_dim=index)
    rows_ = bool(index) and form.policy == 16
    pieces = pytorch_pieces(shape, NONE if index else form, block, block, fp8_rows=rows_)
    layers = row["layers"]
    indexed = row.get("index_layers", layers)
    layout = PoolLayout(
        layers=layers, index_layers=indexed, pieces=pieces, state_layers=0, states=(), alignment=256, index_apart=True
    )
    assert layout.block_bytes == row["block_bytes"] == row["bytes_per_token"] * block


@pytest.mark.parametrize(
    ("model", "dtype", "block_bytes"),
    [
        ("deepseek-ai/DeepSeek-V3.2", "auto", 5_012_736),
        ("deepseek-ai/DeepSeek-V3.2", "fp8", 3_076_352),
        ("zai-org/GLM-5", "auto", 6_409_728),
        # 78 latents of 64 x 576 x 2 bytes, and 21 indexers of 64 x 132.
        ("zai-org/GLM-5.2", "auto", 5_928_192),
    ],
)
def test_a_plan_by_the_newest_release(model: str, dtype: str, block_bytes: int) -> None:
    """Sparse latents are in bf16 unless fp8 is named, in a plan too; what it stores is a block."""
    made = plan(model, seq=64, kv_memory=2**35, engine="lmdeploy", dtype=dtype)
    assert made.pool is not None
    assert (made.pool.bytes_per_block, made.cache.per_gpu_bytes) == (block_bytes, block_bytes)


def test_the_files_have_all_rows() -> None:
    """No row is passed over."""
    assert (len(rows()), len(newest())) == (16, 18)
