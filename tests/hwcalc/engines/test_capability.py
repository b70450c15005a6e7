"""GPUs that are too old for an engine: they are refused in its words, and not planned."""

from __future__ import annotations

import pytest

from hwcalc import plan
from hwcalc.errors import UnsupportedError


@pytest.mark.parametrize(
    ("engine", "gpu", "newer", "words"),
    [
        ("sglang", "v100-sxm2-32gb", "a10", "its own check refuses what is below compute capability 7.5"),
        ("tensorrt-llm", "t4", "l4", "it runs on Ampere and later"),
        ("mlx", "p40-pcie-24gb", "t4", "begin at compute capability 7.5"),
        ("tgi", "m40-24gb", "t4", "its image has no code for it"),
    ],
)
def test_old_gpus_are_refused(engine: str, gpu: str, newer: str, words: str) -> None:
    """One generation is refused and the next one planned."""
    with pytest.raises(UnsupportedError, match=words) as raised:
        plan("Qwen/Qwen3-0.6B", engine=engine, gpu=gpu, seq=1024)
    assert "(compute capability " in str(raised.value)
    assert plan("Qwen/Qwen3-0.6B", engine=engine, gpu=newer, seq=1024).fit is not None
