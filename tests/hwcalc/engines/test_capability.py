"""GPUs that are too old for an engine: they are refused in its words, and not planned."""

from __future__ import annotations

import pytest

from hwcalc import plan
from hwcalc.errors import UnsupportedError


@pytest.mark.parametrize(
    ("engine", "gpu", "newer", "words"),
    [
        ("sglang", "v100-sxm2-32gb", "t4", "SGLang only supports sm75 and above"),
        ("tensorrt-llm", "t4", "l4", "TensorRT-LLM runs on Ampere"),
        ("mlx", "p40-pcie-24gb", "t4", "from compute capability 7.5 on"),
        ("tgi", "m40-24gb", "t4", "below CUDA capability 7.5"),
    ],
)
def test_old_gpus_are_refused(engine: str, gpu: str, newer: str, words: str) -> None:
    """One generation is refused and the next one planned."""
    with pytest.raises(UnsupportedError, match=words) as raised:
        plan("Qwen/Qwen3-0.6B", engine=engine, gpu=gpu, seq=1024)
    assert "has compute capability" in str(raised.value)
    assert plan("Qwen/Qwen3-0.6B", engine=engine, gpu=newer, seq=1024).fit is not None
