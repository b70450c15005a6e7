"""Golden rows: kvpress 0.5.5 on tiny random models, and functions of R-KV, TriAttention and Quest."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import pytest

from hwcalc import keep
from hwcalc.errors import UsageError
from hwcalc.policies.blocks import expected_free, filled, repacked
from hwcalc.policies.methods import pages_read, triggers
from hwcalc.policies.parse import parse_policy
from tests.hwcalc.policies.tiny import tiny
from tests.paths import ROOT

ROWS: Final[list[dict[str, Any]]] = json.loads((ROOT / "tests/golden/eviction.json").read_text(encoding="utf-8"))["rows"]
PRESSES: Final = [row for row in ROWS if "press" in row]
CADENCES: Final = [row for row in ROWS if "method" in row]
PAGES: Final = [row for row in ROWS if "token_budget" in row]
TABLES: Final = [row for row in ROWS if "total_tokens" in row]
SCATTERED: Final = [row for row in ROWS if "survivors" in row]

BY_SCORES: Final = {
    "adakv-snapkv-256-0.9-a0.2": "heads share a budget by their scores",
    "adakv-expected-256-0.5": "heads share a budget by their scores",
    "dms-knorm-300": "a threshold on scores",
}
"""Rows whose masks in each head follow from scores, that is from weights and text: sums or bounds are known."""
BY_CHUNKS: Final = {
    "chunkkv-1000-0.7-c16": "whether a layer chooses the short last chunk",
    "chunkkv-1000-0.9-c64": "whether a layer chooses the short last chunk",
}
"""Rows whose lengths follow from scores: bounds are known."""

FREE: Final = {
    "adakv-snapkv-256-0.9-a0.2": {"masked_per_layer_head"},
    "adakv-expected-256-0.5": {"masked_per_layer_head"},
    "dms-knorm-300": {"masked_per_layer_head", "prefill_peak_bytes", "reported_compression_ratio"},
    **{
        name: {"kept_per_layer", "after_decode_per_layer", "cache_bytes", "storage_bytes", "prefill_peak_bytes"}
        for name in BY_CHUNKS
    },
}
"""What the text decides of these rows; everything else is exact."""

NAMES: Final = {
    "kept_per_layer": "per_layer",
    "after_decode_per_layer": "after_decode_per_layer",
    "cache_bytes": "cache_bytes",
    "storage_bytes": "storage_bytes",
    "full_bytes": "full_bytes",
    "frees_memory": "frees_memory",
    "first_decode_position": "first_decode_position",
    "length_series_layer0": "series",
    "masked_per_layer_head": "masked_per_layer_head",
    "prefill_peak_bytes": "prefill_peak_bytes",
    "reported_compression_ratio": "reported_compression_ratio",
}


def kept_of(row: dict[str, Any]) -> Any:
    """What is said of a row of kvpress."""
    return keep(
        tiny(row.get("model", {})),
        row["press"],
        prompt=row["N"],
        decode=row.get("decode", 4),
        attention=row.get("attn", "sdpa"),
        batch=row.get("batch", 1),
    )


@pytest.mark.parametrize("row", PRESSES, ids=[row["name"] for row in PRESSES])
def test_kvpress(row: dict[str, Any]) -> None:
    """Every number that does not depend on weights and text; and an error where kvpress has one."""
    expected = row["expect"]
    if "error" in expected:
        with pytest.raises(UsageError):
            kept_of(row)
        return
    kept = kept_of(row)
    free = FREE.get(row["name"], set())
    for name, ours in NAMES.items():
        if name in expected and name not in free:
            assert getattr(kept, ours) == expected[name], name
    if "kept_positions_layer1_head0" in expected and kept.kept_ranges is not None:
        assert [place for start, end in kept.kept_ranges for place in range(start, end)] == expected[
            "kept_positions_layer1_head0"
        ]


@pytest.mark.parametrize("row", [row for row in PRESSES if row["name"] in BY_CHUNKS], ids=[*BY_CHUNKS])
def test_lengths_that_the_text_decides_are_bounded(row: dict[str, Any]) -> None:
    """Each layer has the most or the least."""
    kept, true = kept_of(row), row["expect"]["kept_per_layer"]

    assert kept.definition == "estimate"
    assert all(found in (low, high) for low, found, high in zip(kept.per_layer_low, true, kept.per_layer, strict=True))
    assert kept.cache_low_bytes <= row["expect"]["cache_bytes"] <= kept.cache_bytes
    assert kept.prefill_peak.low <= row["expect"]["prefill_peak_bytes"] <= kept.prefill_peak.high


@pytest.mark.parametrize("row", [row for row in PRESSES if row["name"] in BY_SCORES], ids=[*BY_SCORES])
def test_masks_that_the_text_decides_are_bounded(row: dict[str, Any]) -> None:
    """The sum is exact where heads share a budget, and bounded under a threshold."""
    kept, true = kept_of(row), row["expect"]["masked_per_layer_head"]
    total = sum(map(sum, true))

    assert kept.masked.definition == "estimate"
    assert kept.masked.low <= total <= kept.masked.high
    assert all(
        low <= head <= high
        for bounds, heads in zip(kept.masked_bounds_per_layer_head, true, strict=True)
        for (low, high), head in zip(bounds, heads, strict=True)
    )
    assert kept.prefill_peak.low <= row["expect"]["prefill_peak_bytes"] <= kept.prefill_peak.high
    if kept.masked_per_layer_head is not None:
        assert [sum(layer) for layer in kept.masked_per_layer_head] == [sum(layer) for layer in true]


@pytest.mark.parametrize("row", CADENCES, ids=[row["name"] for row in CADENCES])
def test_cadence(row: dict[str, Any]) -> None:
    """R-KV's own code, and SnapKV as it stands there: each cut, the peak between steps, and lengths on the way."""
    options = {name: row[name] for name in ("budget", "divide_length", "window_size")}
    kept = keep(tiny(), [row["method"], options], prompt=row["prompt"], decode=row["generated"])
    lengths = [kept.per_layer[0], *kept.series]

    assert row["expect"] == {
        "after_prefill": lengths[0],
        "peak": kept.most_tokens,
        "final": lengths[-1],
        "compressions": [[0, row["prompt"], lengths[0]], *kept.cuts],
        "lengths_every_32": lengths[::32],
    }


@pytest.mark.parametrize("row", PAGES, ids=[row["name"] for row in PAGES])
def test_quest(row: dict[str, Any]) -> None:
    """Pages are exact; whether a head reads the short last one depends on its scores."""
    expected, page = row["expect"], row["chunk_size"]
    kept = keep(tiny(), ["quest", {"token_budget": row["token_budget"], "chunk_size": page}], prompt=row["N"])

    assert kept.per_layer == [expected["tokens_kept"]] * 4
    assert pages_read(row["N"], row["token_budget"], page) == expected["pages_read"]
    assert -(-row["N"] // page) == expected["pages"]
    assert kept.read_per_layer is not None
    assert kept.read_per_layer_low is not None
    assert kept.read_per_layer[:2] == [row["N"]] * 2
    assert {kept.read_per_layer[2], kept.read_per_layer_low[2]} >= set(expected["tokens_read_per_head"])


def test_triattention_triggers() -> None:
    """At the budget and an interval, from there on."""
    (row,) = [row for row in ROWS if row["name"] == "trigger-default"]
    chosen = parse_policy(["triattention", {"kv_budget": row["kv_budget"], "divide_length": row["divide_length"]}])

    assert chosen is not None
    assert [[length, triggers(chosen, length)] for length, _ in row["expect"]] == row["expect"]


@pytest.mark.parametrize("row", TABLES, ids=[row["name"] for row in TABLES])
def test_compaction(row: dict[str, Any]) -> None:
    """TriAttention's own code: blocks and slots of both shapes, of which it uses the first."""
    tokens, block = row["total_tokens"], row["block_size"]
    keep_rule = row["keep_rule"]
    survivors = row["keep"] if keep_rule is None else range(*(int(part) for part in re.findall(r"[0-9]+", keep_rule)))
    for name, made in (("order_preserving", repacked), ("hole_filling", filled)):
        expected, found = row["expect"][name], made(tokens, survivors, block)
        for key, value in expected.items():
            if value is not None:
                assert getattr(found, key) == value, (name, key)


@pytest.mark.parametrize("row", SCATTERED, ids=[row["name"] for row in SCATTERED])
def test_scattered_survivors(row: dict[str, Any]) -> None:
    """Expected free blocks to the last digit that is given, and near the mean of simulations."""
    expected = row["expect"]
    found = expected_free(row["tokens"], {row["survivors"]: row["heads_choosing_alone"]}, row["block_size"])

    assert round(found, 3) == expected["expected"] or round(found, 2) == expected["expected"]
    assert found == pytest.approx(expected["simulated_mean"], rel=0.02)


def test_every_row_is_met() -> None:
    """Few numbers depend on weights and text; none is left out."""
    met = [*PRESSES, *CADENCES, *PAGES, *TABLES, *SCATTERED]

    assert [row["name"] for row in ROWS if row not in met] == ["trigger-default"]
    assert len(PRESSES) - len(BY_SCORES) - len(BY_CHUNKS) == 57
