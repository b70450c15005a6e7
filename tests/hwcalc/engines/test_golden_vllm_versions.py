"""What 22 older releases of vLLM computed with their own planners (``tests/golden/vllm*_versions.json``) is planned to the block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest

from hwcalc.errors import KvplanError
from tests.hwcalc.engines.vllm_rows import differences, older_rows

_DCP: Final = "has no decode context parallelism"
"""That release has none: its run dropped the option, kvplan refuses it."""
_NARROW: Final = "builds heads of hidden_size / num_attention_heads"
"""Heads of 112, which the checkpoint's of 128 do not fit: the run built a model that no checkpoint is of."""
REFUSED: Final[Mapping[tuple[str, str], str]] = {
    ("0.8.5", "llama31-8b_tp16_dcp2"): _DCP,
    ("0.9.2", "llama31-8b_tp16_dcp2"): _DCP,
    ("0.8.5", "dsv2-lite_1g_tp4_dcp4"): _DCP,
    ("0.8.5", "llama8b_tp4_dcp2"): _DCP,
    ("0.8.5", "llama8b_1g_tp16_dcp2"): _DCP,
    ("0.8.5", "kimi-k2_tp8_dcp2_fp8"): _DCP,
    ("0.8.5", "kimi-k2_tp8_dcp8"): _DCP,
    ("0.9.2", "dsv2-lite_tp2_dcp2"): _DCP,
    **{
        ("0.9.2", f"x_nvidia-nemotron-nano-9b-v2_enforce_eagerTrue_enable_prefix_cachingFalse_block_size{size}"): _NARROW
        for size in ("800", "1024", "1024_tp2", "1024_1g", "1600", "2048")
    },
}
"""Rows by version and name that kvplan refuses, each with words of the refusal. All others are exact."""


@pytest.mark.parametrize("version", dict.fromkeys(version for version, _ in older_rows()))
def test_rows_are_planned_to_the_block(version: str) -> None:
    """Every figure of every row of the release, or the refusal of what it cannot serve."""
    found = {}
    for key, row in older_rows().items():
        if key[0] == version and key in REFUSED:
            with pytest.raises(KvplanError, match=REFUSED[key]):
                differences(row)
        elif key[0] == version and (unlike := differences(row)):
            found[key[1]] = unlike
    assert found == {}


def test_all_rows_are_tried() -> None:
    """Those of both files, and every refused row is one of them."""
    assert len(older_rows()) == 544 + 1578
    assert set(REFUSED) <= set(older_rows())
