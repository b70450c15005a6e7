"""Policies that mask by head, on models of more heads than anybody has made: what is counted is bounded, and refused above."""

from __future__ import annotations

import pytest

import hwcalc
from hwcalc.errors import UsageError
from tests.hwcalc.policies.tiny import tiny

MASKING = (
    "adakv:press=(knorm:compression_ratio=0.5)",
    "criticaladakv:press=(knorm:compression_ratio=0.5)",
    "composed:presses=[(fastkvzip:compression_ratio=0.5)]",
    "dms:press=knorm,threshold=0",
    "duoattention:head_compression_ratio=0.5",
    "kvzip:compression_ratio=0.5",
)


@pytest.mark.parametrize("policy", MASKING)
@pytest.mark.parametrize("layers", [1, 4])
def test_more_heads_than_are_counted_are_refused(policy: str, layers: int) -> None:
    """131,072 in all layers: those of a thousand layers with 128 each, and some."""
    heads = 131_072 // layers
    most = tiny({"layers": layers, "heads": heads, "kv": heads, "hidden": heads})
    more = tiny({"layers": layers, "heads": heads + 1, "kv": heads + 1, "hidden": heads + 1})
    assert hwcalc.plan(most, seq=8, policy=policy).policy is not None
    with pytest.raises(UsageError) as caught:
        hwcalc.plan(more, seq=8, policy=policy)

    assert f"have {131_072 + layers:,} of these" in caught.value.message
    assert "131,072" in caught.value.hint


def test_others_are_not_counted_by_head() -> None:
    """A policy that cuts whole tokens has the same answer whatever the heads: half of 8 tokens."""
    config = tiny({"heads": 10**6, "kv": 10**6, "hidden": 10**6})

    assert hwcalc.keep(config, "knorm:compression_ratio=0.5", prompt=8).per_layer == [4] * 4
