"""The command line of LMDeploy that serves a plan."""

from __future__ import annotations

from typing import Any

import pytest

from hwcalc import plan
from hwcalc.engines import find_engine
from hwcalc.errors import KvplanError
from hwcalc.report.emit import emitted

QWEN = "Qwen/Qwen3-8B"


def line(**wanted: Any) -> str:
    """The command line of a plan."""
    return emitted(plan(QWEN, **{"seq": 4096, "engine": "lmdeploy", **wanted}), "lmdeploy")


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({}, ""),
        ({"tp": 2, "dp": 4}, "--tp 8 --dp 4"),
        ({"dtype": "fp8"}, "--quant-policy 16"),
        ({"dtype": "int4"}, "--quant-policy 4"),
        ({"weights": "fp8"}, "--model-format fp8"),
        ({"memory_utilization": 0.6}, "--cache-max-entry-count 0.6"),
        ({"engine_options": {"quant_policy": "turbo_quant"}}, "--quant-policy 42"),
        (
            {"engine_options": {"enable_prefix_caching": "true", "max_batch_size": "64"}},
            "--enable-prefix-caching --max-batch-size 64",
        ),
        ({"engine_options": {"cache_block_seq_len": "128", "flash_mla": "false"}}, "--cache-block-seq-len 128"),
    ],
)
def test_the_words(wanted: dict[str, Any], words: str) -> None:
    """The back end is named, since LMDeploy would choose TurboMind by itself."""
    expected = f"lmdeploy serve api_server {QWEN} --backend pytorch --session-len 4096 {words}".strip()
    assert line(**wanted).strip().splitlines()[-1] == expected


def test_turbomind() -> None:
    """The other back end."""
    assert "--backend turbomind" in line(engine_options={"backend": "turbomind"})


@pytest.mark.parametrize(
    "wanted", [{"kv_memory": 2**33}, {"weights": "awq"}, {"engine_options": {"num_gpu_blocks": "99"}}, {"lora": "rank=16"}]
)
def test_what_has_no_flag(wanted: dict[str, Any]) -> None:
    """An error with a way out."""
    with pytest.raises(KvplanError) as caught:
        line(**wanted)
    assert caught.value.hint


def test_flags_of_options() -> None:
    """How advice spells them."""
    engine, _ = find_engine("lmdeploy")
    assert engine.command.flag("max_batch_size", 8) == "--max-batch-size 8"
    assert engine.command.flag("dtype", "int8") == "--quant-policy 8"
    assert engine.command.flag("quant_policy", "fp8") == "--quant-policy 16"
    assert engine.command.flag("enable_prefix_caching", "true") == "--enable-prefix-caching"
    assert engine.command.flag("enable_prefix_caching", "false") == engine.command.flag("weights", "awq") == ""
