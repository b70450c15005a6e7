"""Every cache that mlx-lm itself built (``tests/golden/mlx.json``) is planned to the byte."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import pytest

from hwcalc import plan
from hwcalc.planner.result import Plan
from tests.golden_configs import config_as_run
from tests.paths import GOLDEN

Row = Mapping[str, Any]

OF_AN_EMPTY_CACHE: Final = (
    "a QuantizedKVCache that starts empty cannot take 6 bits with heads of 128; mlx-lm 0.32.2 never makes one: it quantizes a KVCache "
    "that holds the first piece, which works (test_live_mlx.py runs it)"
)
"""Why the rows with an error are no plans."""
_UPDATES: Final = re.compile(r"\[(\d+)(?:, (\d+))?(?:, \d+)?\]\.\.x(\d+)")


@lru_cache(maxsize=1)
def rows() -> Mapping[str, Row]:
    """The rows, by number and what they are of."""
    cases = json.loads((GOLDEN / "mlx.json").read_text(encoding="utf-8"))["cases"]
    return {f"{number} {row.get('model') or row['cls']}": row for number, row in enumerate(cases)}


def layer(kind: str = "full_attention", **keys: object) -> dict[str, Any]:
    """A model of one such layer, and of a full one beside where there must be one: 8 heads of 128."""
    whole = kind == "full_attention"
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 1024,
        "intermediate_size": 64,
        "num_hidden_layers": 1 if whole else 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 64,
        "max_position_embeddings": 1 << 20,
        **({} if whole else {"layer_types": [kind, "full_attention"]}),
        **keys,
    }


def first_layer(planned: Plan) -> int:
    """The bytes of layer 0."""
    return sum(tensor.bytes for tensor in planned.cache.tensors if tensor.layers == planned.cache.tensors[0].layers)


def bytes_of_class(row: Row) -> int:
    """The bytes of the one layer that a row is of."""
    name = row["cls"]
    if name == "KVCache":
        options = {"prefill_step_size": max(2048, row["tokens"])} if row["how"] == "one prompt chunk" else {}
        prompt = 100 if row["how"].startswith("100 prompt") else None
        return plan(
            layer(), seq=row["tokens"], prompt=prompt, engine="mlx", dtype="bf16", engine_options=options
        ).cache.total_bytes
    if "uantized" in name:
        bits, group, tokens = row.get("bits", 8), row.get("group", 64), row.get("tokens", 300)
        options = {"kv_bits": bits, "kv_group_size": group, "quantized_kv_start": 0}
        return plan(layer(), seq=tokens, engine="mlx", dtype="bf16", engine_options=options).cache.total_bytes
    if name == "RotatingKVCache":
        found = _UPDATES.fullmatch(row["updates"])
        assert found
        first, second, count = int(found[1]), int(found[2] or found[1]), int(found[3])
        tokens, prompt = row["offset"], first if second == 1 else first * count
        if row["keep"]:
            options = {"max_kv_size": row["max_size"]}
            config = layer() | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
            return plan(config, seq=tokens, prompt=prompt, engine="mlx", dtype="bf16", engine_options=options).cache.total_bytes
        config = layer("sliding_attention", sliding_window=row["max_size"])
        return first_layer(plan(config, seq=tokens, prompt=prompt, engine="mlx", dtype="bf16"))
    assert name == "ChunkedKVCache"
    text = layer("chunked_attention", attention_chunk_size=row["chunk_size"], model_type="llama4_text", num_local_experts=2)
    text |= {
        "num_hidden_layers": 4,
        "layer_types": ["chunked_attention"] * 3 + ["full_attention"],
        "no_rope_layers": [1, 1, 1, 0],
    }
    config = {"model_type": "llama4", "architectures": ["Llama4ForConditionalGeneration"], "text_config": text}
    return first_layer(plan(config, seq=row["prompt"], engine="mlx", dtype="bf16")) // 3


@pytest.mark.parametrize("name", rows())
def test_bytes_are_those_of_mlx(name: str) -> None:
    """Cache classes and models are exact."""
    row = rows()[name]

    if "error" in row:
        assert row["dim" if "dim" in row else "bits"] == 6, OF_AN_EMPTY_CACHE
        assert 128 // (32 // row["bits"]) != 128 * row["bits"] // 32
        return
    if "model" in row:
        config = config_as_run(row["model"])
        assert plan(dict(config), seq=row["prompt"], engine="mlx", dtype="bf16").cache.total_bytes == row["total_nbytes"]
        return
    assert bytes_of_class(row) == row["nbytes"]
