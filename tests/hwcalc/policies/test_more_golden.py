"""More rows of kvpress 0.5.5: batches, kernels, policies inside others, and options drawn at random."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from hwcalc.errors import UsageError
from tests.hwcalc.policies.test_golden import NAMES, kept_of
from tests.paths import ROOT

ROWS: Final[list[dict[str, Any]]] = json.loads((ROOT / "tests/golden/eviction_more.json").read_text(encoding="utf-8"))["rows"]
BY_LENGTH: Final = (
    "kept_per_layer",
    "after_decode_per_layer",
    "cache_bytes",
    "storage_bytes",
    "length_series_layer0",
    "frees_memory",
)


def compared(kept: Any) -> dict[str, str]:
    """The numbers that do not depend on the text. Masks stand for one sequence, and have a test of their own."""
    names = {theirs: ours for theirs, ours in NAMES.items() if theirs not in {"masked_per_layer_head", "prefill_peak_bytes"}}
    if kept.per_layer != kept.per_layer_low:
        names = {theirs: ours for theirs, ours in names.items() if theirs not in {*BY_LENGTH, "first_decode_position"}}
    if kept.reported_compression_ratio is None:
        del names["reported_compression_ratio"]
    return names


@pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])
def test_kvpress(row: dict[str, Any]) -> None:
    """Every number that does not depend on the text, and bounds of those that do; and an error where kvpress has one."""
    expected = row["expect"]
    if "error" in expected:
        with pytest.raises(UsageError):
            kept_of(row)
        return
    kept = kept_of(row)

    for theirs, ours in compared(kept).items():
        assert getattr(kept, ours) == (pytest.approx(expected[theirs], abs=1e-12) if "ratio" in theirs else expected[theirs]), (
            theirs
        )
    assert all(
        low <= true <= high
        for low, true, high in zip(kept.per_layer_low, expected["kept_per_layer"], kept.per_layer, strict=True)
    )
    if kept.prefill_peak is not None and kept.prefill_peak.definition == "measured":
        assert kept.prefill_peak.low <= expected["prefill_peak_bytes"] <= kept.prefill_peak.high


@pytest.mark.parametrize("row", [row for row in ROWS if "error" not in row["expect"]], ids=lambda row: row["name"])
def test_masks(row: dict[str, Any]) -> None:
    """Pairs that are masked lie within the bounds, add up where a layer shares a budget, and are exact where each head is."""
    kept, batch = kept_of(row), row.get("batch", 1)
    heads = row.get("model", {}).get("kv", 2)
    true = [layer or [0] * heads for layer in row["expect"].get("masked_per_layer_head") or [None] * len(kept.per_layer)]
    if kept.masked is None:
        assert sum(map(sum, true)) == 0
        return

    assert kept.masked.low * batch <= sum(map(sum, true)) <= kept.masked.high * batch
    bounds = zip(kept.masked_bounds_per_layer_head, true, strict=True)
    assert all(
        low * batch <= head <= high * batch for ends, heads in bounds for (low, high), head in zip(ends, heads, strict=True)
    )
    if kept.masked_per_layer_head is not None:
        assert [sum(layer) * batch for layer in kept.masked_per_layer_head] == [sum(layer) for layer in true]
        if kept.masked.definition != "estimate":
            assert [[head * batch for head in layer] for layer in kept.masked_per_layer_head] == true
