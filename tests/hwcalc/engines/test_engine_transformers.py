"""The transformers engine beyond the golden rows: quantized caches, versions, options, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hwcalc import plan
from hwcalc.errors import UnsupportedError, UsageError
from tests.paths import GOLDEN as ROWS

GOLDEN: list[dict[str, Any]] = json.loads((ROWS / "transformers_quantized.json").read_text(encoding="utf-8"))["cases"]

LLAMA = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 512}
MLA = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "hidden_size": 7168,
}


def name_of(case: dict[str, Any]) -> str:
    """A short test id."""
    keys = ("backend", "nbits", "q_group_size", "batch", "num_key_value_heads", "tokens", "head_dim")
    return "-".join(str(case[key]) for key in keys)


@pytest.mark.parametrize("case", GOLDEN, ids=name_of)
def test_quantized_layer(case: dict[str, Any]) -> None:
    """A quantized layer takes what quanto, hqq and the fp8 backend store, and is refused where they refuse."""
    config = {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "num_attention_heads": case["num_key_value_heads"],
        "head_dim": case["head_dim"],
        "hidden_size": case["num_key_value_heads"] * case["head_dim"],
    }
    options = {
        "cache": "quantized",
        "quant_backend": case["backend"],
        "nbits": case["nbits"],
        "q_group_size": case["q_group_size"],
    }

    def planned() -> int:
        result = plan(
            config, seq=case["tokens"], batch=case["batch"], dtype="bf16", engine="transformers", engine_options=options
        )
        return result.cache.total_bytes

    if "error" in case:
        with pytest.raises(UsageError, match="q_group_size"):
            planned()
    else:
        assert case["layer_bytes"] == planned()


def test_residual_is_said() -> None:
    """127 tokens x 2 layers x 2 heads x (64 + 64) x 2 bytes may wait beside a quantized cache."""
    result = plan(LLAMA, seq=64, dtype="bf16", engine="transformers", engine_options={"cache": "quantized"})

    assert f"{127 * 2 * 2 * 128 * 2:,} bytes" in next(n.message for n in result.notes if n.code == "residual")


def test_latent_was_expanded_before_5_15() -> None:
    """DeepSeek-V3: 61 x 128 x (192 + 128) elements a token up to 5.14, 61 x 576 since."""
    old = plan(MLA, seq=1000, dtype="bf16", engine="transformers@5.14").cache.total_bytes
    new = plan(MLA, seq=1000, dtype="bf16", engine="transformers@5.15").cache.total_bytes

    assert 1000 * 61 * 128 * (192 + 128) * 2 == old
    assert 1000 * 61 * 576 * 2 == new


def test_states_were_in_the_model_dtype_before_5_14() -> None:
    """Mamba-1, one layer: d_inner 128, state 16, kernel 4; the state is bf16 up to 5.13 and fp32 since."""
    config = {"model_type": "mamba", "num_hidden_layers": 1, "hidden_size": 64, "expand": 2, "state_size": 16, "conv_kernel": 4}
    config["intermediate_size"] = 128
    old = plan(config, seq=10, dtype="bf16", engine="transformers@5.13").cache.total_bytes
    new = plan(config, seq=10, dtype="bf16", engine="transformers").cache.total_bytes

    assert 128 * 4 * 2 + 128 * 16 * 2 == old
    assert 128 * 4 * 2 + 128 * 16 * 4 == new


def test_patch_versions_take_their_minor_rules() -> None:
    """5.14.1 has the rules of 5.14, 5.19 those of 5.18."""
    assert plan(MLA, seq=10, engine="transformers@5.14.1").request.engine_version == "5.14"
    assert plan(MLA, seq=10, engine="transformers@5.19").request.engine_version == "5.18"


def test_a_major_version_is_its_newest() -> None:
    """5 is the newest 5.x, 4 the newest 4.x."""
    assert plan(MLA, seq=10, engine="transformers@5").request.engine_version == "5.24"
    assert plan(MLA, seq=10, engine="transformers@4").request.engine_version == "4.57"


@pytest.mark.parametrize("version", ["4.0", "6.1", "6", "5.99", "x", "", "5.14.x", "99999999999999999999.1"])
def test_unknown_versions(version: str) -> None:
    """A version without rules is an error that names the range, and so is an empty one."""
    with pytest.raises(UsageError, match=r"no rules|names no version"):
        plan(MLA, seq=10, engine=f"transformers@{version}")


def test_static_length_is_allocated_whatever_is_fed() -> None:
    """max_cache_len 100 takes 100 tokens for a prompt of 10; a longer prompt does not fit."""
    options = {"cache": "static", "max_cache_len": 100}

    result = plan(LLAMA, seq=10, dtype="bf16", engine="transformers", engine_options=options)

    assert 100 * 2 * 2 * (64 + 64) * 2 == result.cache.total_bytes
    with pytest.raises(UsageError, match="does not hold"):
        plan(LLAMA, seq=101, dtype="bf16", engine="transformers", engine_options=options)


def test_offloaded_bytes_are_the_same() -> None:
    """Offloading moves the cache, but does not shrink it."""
    plain = plan(LLAMA, seq=10, engine="transformers")
    offloaded = plan(LLAMA, seq=10, engine="transformers", engine_options={"cache": "offloaded"})

    assert plain.cache.total_bytes == offloaded.cache.total_bytes
    assert "offloaded" in {note.code for note in offloaded.notes}


@pytest.mark.parametrize(
    ("options", "dtype", "problem"),
    [
        ({"cache": "paged"}, "bf16", "not known"),
        ({"block_size": 16}, "bf16", "not known to transformers"),
        ({"nbits": 4}, "bf16", "belongs to cache=quantized"),
        ({"max_cache_len": 100}, "bf16", "belongs to cache=static"),
        ({"cache": "quantized", "nbits": 3}, "bf16", "does not pack 3 bits"),
        ({"cache": "quantized", "quant_backend": "fp8", "nbits": 4}, "bf16", "does not pack 4 bits"),
        ({"cache": "static", "max_cache_len": "-5"}, "bf16", "out of range"),
        ({"cache": "static", "max_cache_len": 0}, "bf16", "out of range"),
        ({}, "fp8", "never in fp8"),
        ({}, "bf16:fp16", "never in"),
        ({}, "fp8_ds_mla", "never in"),
    ],
)
def test_refused_options(options: dict[str, object], dtype: str, problem: str) -> None:
    """Options that the library refuses are usage errors with a message."""
    with pytest.raises(UsageError, match=problem):
        plan(LLAMA, seq=10, dtype=dtype, engine="transformers", engine_options=options)


def test_quantized_needs_full_attention() -> None:
    """A windowed model has no quantized cache in transformers."""
    config = {**LLAMA, "model_type": "mistral", "sliding_window": 16}
    with pytest.raises(UnsupportedError, match="full attention on every layer"):
        plan(config, seq=10, engine="transformers", engine_options={"cache": "quantized"})


def test_fp8_backend_is_young() -> None:
    """The fp8 backend came after 5.20."""
    options = {"cache": "quantized", "quant_backend": "fp8"}
    with pytest.raises(UsageError, match="no fp8 backend"):
        plan(LLAMA, seq=10, engine="transformers@5.20", engine_options=options)
