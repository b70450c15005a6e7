"""Models whose layers no release of vLLM can group are refused where its own code asserts; encoders have a pool of nothing."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final

import pytest

from hwcalc import KvplanError, load_model, plan
from hwcalc.errors import UnsupportedError
from hwcalc.parsers.registry import known_families
from hwcalc.sources import resolve

SPARSE, WINDOW = "compressed_sparse_attention", "sliding_attention"


def _v4(types: list[str], **changed: Any) -> dict[str, Any]:
    config = {key: value for key, value in resolve("deepseek-ai/DeepSeek-V4-Flash").config.items() if key != "compress_ratios"}
    return {**config, "num_hidden_layers": len(types), "layer_types": types, **changed}


@pytest.mark.parametrize("version", ["0.20.0", "0.21.0", "0.25.1", "0.26.0"])
def test_a_window_wider_than_every_full_page(version: str) -> None:
    """``assert max(sm_page_sizes) <= max(all_page_sizes)`` (v1/core/kv_cache_utils.py)."""
    with pytest.raises(UnsupportedError, match="pages of these layers"):
        plan(_v4([SPARSE], head_dim=4096), seq=1000, engine=f"vllm@{version}", dtype="fp8", gpu="h200-sxm-141gb")


@pytest.mark.parametrize("version", ["0.21.0", "0.25.1"])
def test_a_first_stage_without_full_layers(version: str) -> None:
    """The log counts in blocks of the first group, all of whose layers stand where the stage has none of them.

    Where the stages change places, the pages of the group are the same, and so is the number of blocks of a request.
    """
    requests = []
    for types in ([WINDOW, WINDOW, SPARSE], [SPARSE, WINDOW, WINDOW]):
        pool = plan(_v4(types), seq=1000, engine=f"vllm@{version}", dtype="fp8", gpu="h200-sxm-141gb", pp=2).pool
        assert pool is not None
        assert pool.max_concurrency is not None
        assert pool.blocks is not None
        requests.append(Fraction(pool.blocks) / Fraction(pool.max_concurrency))

    assert all(abs(request - round(request)) < Fraction(1, 10**6) for request in requests)


ENCODERS: Final = sorted(
    {
        "bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert", "rembert", "roberta",
        "roberta-prelayernorm", "roc_bert", "roformer", "xlm", "xlm-roberta", "xlm-roberta-xl", "xmod",
    }
    & set(known_families())
)  # fmt: skip

REQUESTS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"gpu": "l4"},
    {"gpu": "l4", "tp": 2, "pp": 2},
    {"kv_memory": "1GiB"},
    {"dtype": "fp8"},
    {"batch": 300},
)


@pytest.mark.parametrize("model_type", ENCODERS)
def test_encoders_keep_nothing(model_type: str) -> None:
    """Every engine plans a model without a cache, in every layout, or says why it does not."""
    model = load_model({"model_type": model_type})
    planned = 0
    for engine in ("reference", "transformers", "vllm", "vllm@0.6.0", "vllm@0.8.5", "vllm@0.11.0", "vllm@0.20.0"):
        for request in (
            {},
            {"gpu": "l4"},
            {"gpu": "l4", "tp": 2, "pp": 2},
            {"kv_memory": "1GiB"},
            {"dtype": "fp8"},
            {"batch": 300},
        ):
            try:
                cache = plan(model, seq=100, engine=engine, **request).cache
            except KvplanError:
                continue
            planned += 1
            assert cache.total_bytes == 0

    assert planned > 10
